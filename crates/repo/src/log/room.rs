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

use crate::{
    error::RepoError,
    format::names::{LogName, RunNo},
    interrupt::Interrupt,
    log::run::{BeginError, Run, Standing, standing},
    repo::Repo,
    store::exists,
};

/// How long to wait for a run to make room.
const WITHIN: Duration = Duration::from_secs(120);
/// How often to check whether there is room.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Whether another run has asked `run` to end.
pub(crate) fn is_asked_for(repo: &Repo, log: &LogName, run: RunNo) -> Result<bool, RepoError> {
    Ok(exists(&**repo.store(), &log.ask(run))?)
}

fn ask(repo: &Repo, log: &LogName, run: RunNo) -> Result<(), RepoError> {
    match repo.store().create_if_absent(&log.ask(run), b"{}") {
        Ok(_) => Ok(()),
        Err(error) if error.is_exists() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

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
