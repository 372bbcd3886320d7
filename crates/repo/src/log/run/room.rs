//! Makes room for runs that drop, prune and hold in a log that always has a run:
//! a run of a binlog archive ends soon after it is asked to, and the archiver continues after the others
//! (`docs/reference/repository.md` section 12).
//!
//! The objects that ask are readable without a key, and say nothing. Whoever can forge them can make an
//! archiver begin another run, and no more.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{BeginError, Run, Standing, standing};
use crate::{format::names::LogName, interrupt::Interrupt, log::ask::ask, repo::Repo};

/// How long to wait for a run to make room.
const WITHIN: Duration = Duration::from_secs(120);
/// How often to check whether there is room.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Begins a run with `begin`. If the active run makes room, asks it to and waits.
pub(crate) fn with_room(
    repo: &Repo,
    log: &LogName,
    interrupt: &Interrupt,
    begin: impl Fn() -> Result<Run, BeginError>,
) -> Result<Run, BeginError> {
    let until = Instant::now() + WITHIN;
    loop {
        let active = match begin() {
            Err(BeginError::Active(active)) if active.makes_room && Instant::now() < until => active,
            begun => return begun,
        };
        ask(repo, log, active.run)?;
        // At least one pause: `begin` may find a run alive that does not look so here.
        loop {
            interrupt.check()?;
            thread::sleep(LOOK_EVERY);
            if Instant::now() >= until || standing(repo, log)? != Standing::Alive {
                break;
            }
        }
    }
}
