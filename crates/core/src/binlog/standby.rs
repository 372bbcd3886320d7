//! Several archivers of one archive, on several servers: one archives, the others stand by.
//!
//! Which one is decided by the run, of which an archive has one at a time, and by its lease. Who takes the place goes on by
//! GTID, as at a failover: exactly behind what is stored, so that nothing is missing and nothing is there twice.

use std::time::{Duration, Instant};

use holdfast_repo::run::{Standing, standing};

use super::{archive::Archiver, stretch::Place};
use crate::{
    error::{Error, ErrorKind, Result},
    server::{Purpose, Session},
};

/// How often it is looked whether the other is still there.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Nobody archives for so long: the last one has ended in good order, and is not just between two runs.
const IDLE_MIN: Duration = Duration::from_secs(10);
/// A server that is away for so long is left to those who reach another.
pub(super) const YIELD_AFTER: Duration = Duration::from_secs(30);

impl Archiver<'_> {
    /// Waits until nobody else archives, and the server can be reached. `false`: asked to end.
    pub(super) fn stand_by(&self) -> Result<bool> {
        let (mut idle_since, mut is_told, mut is_warned) = (None, false, false);
        loop {
            if self.cancel.is_cancelled() {
                return Ok(false);
            }
            let is_free = match standing(self.repo, &self.log) {
                Ok(Standing::Dead) => true,
                Ok(Standing::Idle) => idle_since.get_or_insert_with(Instant::now).elapsed() >= IDLE_MIN,
                Ok(Standing::Alive) => {
                    idle_since = None;
                    if !is_told {
                        self.note(format!("another archives {}: standing by", self.log));
                        is_told = true;
                    }
                    false
                }
                Err(_) if is_warned => false,
                Err(error) => {
                    self.warn(format!("whether another archives cannot be seen at the moment: {error}"));
                    is_warned = true;
                    false
                }
            };
            if is_free {
                match Session::open(&self.options.connect, Purpose::Control) {
                    Ok(_) => return Ok(true),
                    Err(_) if is_warned => {}
                    Err(error) => {
                        self.warn(format!("nobody archives, and the server cannot be reached: {error}"));
                        is_warned = true;
                    }
                }
            }
            self.pause(LOOK_EVERY);
        }
    }
}

/// Whether what ended a run leaves it to another archiver, or to a later time.
pub(super) fn is_for_another(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Active | ErrorKind::Server)
}

/// Why the place is given up.
pub(super) fn yields(error: &Error) -> Error {
    let text = format!("the server is away for more than {} s: {error}", YIELD_AFTER.as_secs());
    Error::new(ErrorKind::Active, text)
}

/// Why the place is not taken yet.
pub(super) fn behind(until: &Place) -> Error {
    let text = format!("this server has not yet all that is archived, which is until {until} of another");
    Error::new(ErrorKind::Active, text)
}
