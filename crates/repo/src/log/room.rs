//! Room for those who drop, prune and hold, in a log that always has a run: that of a binlog archive ends soon when it is
//! asked to, and its archiver goes on behind them (`docs/reference/repository.md` section 12).
//!
//! The objects that ask are readable without a key, and say nothing. Whoever can make them up makes an archiver begin another
//! run, and no more.

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

/// So long a run that makes room may take for it.
const WITHIN: Duration = Duration::from_secs(120);
/// How often it is looked whether there is room.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Whether somebody asks that `run` end.
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

/// Begins a run by `begin`; where another is active that makes room, asks it to and waits.
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
        while Instant::now() < until && standing(repo, log)? == Standing::Alive {
            interrupt.check()?;
            thread::sleep(LOOK_EVERY);
        }
    }
}
