//! Several archivers of one archive, on several servers: one archives, the others stand by.
//!
//! Which one archives is decided by the run, of which an archive has one at a time, and by its lease. An
//! archiver that takes over continues by GTID, as in a failover: exactly after what is stored, so that
//! nothing is missing and nothing is there twice.

use std::time::{Duration, Instant};

use holdfast_repo::log::run::{Standing, standing};

use super::{Archiver, Away, is_refused};
use crate::{
    binlog::{
        left_out,
        recurring::RecurringWarning,
        resume::{Binlog, another_lacks},
        stored::stored_tail,
    },
    error::{Error, ErrorKind, Result},
    server::{Purpose, Session},
};

/// How often to check whether the other archiver is still there.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// If nobody has archived for this long, the last archiver has ended in good order,
/// and is not just between two runs.
const IDLE_MIN: Duration = Duration::from_secs(10);
/// An archiver whose server has been away for this long yields to those that can reach another.
pub(super) const YIELD_AFTER: Duration = Duration::from_secs(30);
/// Extra wait before asking a server that is behind again: each time, everything that runs have left is read.
const NOT_YET: Duration = Duration::from_secs(10);
/// An archiver that cannot archive, while nobody else does, ends after this long.
pub(super) const IN_VAIN_MAX: Duration = Duration::from_secs(600);

impl Archiver<'_> {
    /// Waits until nobody else archives, and this server can be archived.
    /// Returns `false` if a stop was requested.
    pub(super) fn stand_by(&mut self) -> Result<bool> {
        let (mut idle_since, mut is_told, mut unseen, mut unable) =
            (None, false, RecurringWarning::default(), RecurringWarning::default());
        loop {
            if self.cancel.is_cancelled() {
                return Ok(false);
            }
            let seen = standing(self.repo, &self.log);
            if seen.is_ok() && unseen.end() {
                self.note("the state of the other archivers can be read again");
            }
            let is_free = match seen {
                Ok(Standing::Dead) => true,
                Ok(Standing::Idle) => idle_since.get_or_insert_with(Instant::now).elapsed() >= IDLE_MIN,
                Ok(Standing::Alive) => {
                    idle_since = None;
                    self.in_vain_since = None;
                    unable.end();
                    if !is_told {
                        self.note(format!("another archiver is active on {}: standing by", self.log));
                        is_told = true;
                    }
                    false
                }
                Err(error) => {
                    let text =
                        format!("the state of the other archivers cannot be read at the moment: {error}");
                    unseen.warn(self.listener, text);
                    false
                }
            };
            if is_free {
                // A run that begins in vain stays in the repository for good,
                // so everything that can be known is checked first.
                let (error, wait) = match self.look() {
                    Ok(None) => return Ok(true),
                    Ok(Some(not_yet)) => (not_yet, NOT_YET),
                    Err(error) if error.kind() == ErrorKind::Usage => return Err(error),
                    Err(error) => (error, Duration::ZERO),
                };
                let text =
                    format!("no archiver is active on {}, and this one cannot take over: {error}", self.log);
                unable.warn(self.listener, text);
                // A server that is merely away may be back;
                // one that lacks something or refuses is another matter.
                if error.kind() == ErrorKind::Active || is_refused(&error) {
                    self.in_vain(&error)?;
                }
                self.pause(wait);
            }
            self.pause(LOOK_EVERY);
        }
    }

    /// Whether the server could be archived now; if not, returns why not yet.
    fn look(&self) -> Result<Option<Error>> {
        let mut session = Session::open(&self.options.connect, Purpose::Control)?;
        left_out::require_all(&mut session, true, self.options.allow_replica_filters)?;
        if let Some(why) = left_out::stopped_replica(&mut session)? {
            return Ok(Some(Error::new(ErrorKind::Active, why)));
        }
        let mut binlog = Binlog::read(session, &self.options.connect, self.stream_options)?;
        let tail = stored_tail(self.repo, &self.log)?.filter(|_| !self.options.new_identity);
        let Some(tail) = tail else { return Ok(None) };
        let lack = another_lacks(&mut binlog, &tail)?;
        Ok(lack.map(|lack| lack.of_another(&tail.place)))
    }

    /// Notes that this archiver cannot archive while nobody else does. Fails if that lasts.
    pub(super) fn in_vain(&mut self, error: &Error) -> Result<()> {
        let since = *self.in_vain_since.get_or_insert_with(Instant::now);
        match since.elapsed() < IN_VAIN_MAX {
            true => Ok(()),
            false => Err(error.again()),
        }
    }
}

/// Whether the error that ended a run leaves the archive to another archiver, or to a later time.
pub(super) fn is_for_another(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Active | ErrorKind::Server)
}

/// The error with which the place is given up.
pub(super) fn yields(error: &Error, away: Option<Away>) -> Error {
    let away = away.map(|away| format!("; {away}")).unwrap_or_default();
    let text = format!("the server has been away for more than {} s: {error}{away}", YIELD_AFTER.as_secs());
    Error::new(ErrorKind::Active, text)
}
