//! `hold` and `release`: protect backups from `expire`.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{Error, ErrorKind, Result};
use holdfast_repo::{
    Act, LogName, Repo, RunNo, SourceName,
    log::{history::History, hold::Hold},
    ops::hold::{HoldError, HoldTerms, hold, release},
};
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, repository, select};
use crate::{
    args::{
        backup_ref::BackupRef,
        hold::{HoldArgs, ReleaseArgs},
    },
    exit::Exit,
    output::{Render, text},
};

/// A hold, as `list` and `show` present it.
#[derive(Serialize)]
pub(super) struct HoldShown {
    since: Timestamp,
    until: Option<Timestamp>,
    reason: String,
}

impl HoldShown {
    /// The hold on a backup, unless it has ended by this host's clock.
    /// (`expire` uses the repository's clock.)
    pub(super) fn of(history: &History, run: RunNo) -> Option<Self> {
        let Hold { since, until, reason } = history.hold(run, Timestamp::now())?.clone();
        Some(Self { since, until, reason })
    }

    pub(super) fn since(&self) -> Timestamp {
        self.since
    }
}

/// `until 2027-12-31 00:00:00: audit`. Whoever signed it, the reason must not break out of its line.
impl fmt::Display for HoldShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&until(self.until))?;
        if !self.reason.is_empty() {
            f.write_str(": ")?;
        }
        let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        self.reason.chars().map(printable).try_for_each(|c| f.write_char(c))
    }
}

fn until(until: Option<Timestamp>) -> String {
    until.map_or_else(|| "until released".to_owned(), |until| format!("until {}", text::instant(until)))
}

#[derive(Serialize)]
struct Held {
    held: Vec<String>,
    /// The end of the last hold; for several sources, ends may differ by the time between their runs.
    until: Option<Timestamp>,
    reason: String,
}

impl Render for Held {
    fn render(&self, out: &mut String) -> fmt::Result {
        let until = until(self.until);
        self.held.iter().try_for_each(|id| writeln!(out, "{id} is held {until}"))
    }
}

#[derive(Serialize)]
struct Released {
    released: Vec<String>,
}

impl Render for Released {
    fn render(&self, out: &mut String) -> fmt::Result {
        self.released.iter().try_for_each(|id| writeln!(out, "{id} is no longer held"))
    }
}

pub(super) fn run(args: &HoldArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Prune, "holding backups")?);
    let terms = HoldTerms { until: args.until.map(|until| until.0), reason: args.reason.clone() };
    let mut held = Held { held: Vec::new(), until: None, reason: args.reason.clone() };
    let mut hold_all = || {
        for (log, runs) in chosen(context, &repo, &args.ids, args.name.name.as_ref())? {
            context.cancel.check()?;
            let done = hold(&repo, &log, &runs, &terms, &context.run_options());
            (_, held.until) = done.map_err(of_hold)?;
            held.held.extend(runs.into_iter().map(|run| log.backup_id(run)));
        }
        Ok(Exit::Done)
    };
    let done = hold_all();
    let is_any = !held.held.is_empty();
    context.output.ended(done, &held, is_any)
}

pub(super) fn run_release(args: &ReleaseArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Prune, "releasing backups")?);
    let mut released = Released { released: Vec::new() };
    let mut release_all = || {
        for (log, runs) in chosen(context, &repo, &args.ids, args.name.name.as_ref())? {
            context.cancel.check()?;
            release(&repo, &log, &runs, &context.run_options()).map_err(of_hold)?;
            released.released.extend(runs.into_iter().map(|run| log.backup_id(run)));
        }
        Ok(Exit::Done)
    };
    let done = release_all();
    let is_any = !released.released.is_empty();
    context.output.ended(done, &released, is_any)
}

/// The typed backups, grouped by log, without duplicates.
fn chosen(
    context: &Context<'_>,
    repo: &Repo,
    ids: &[BackupRef],
    name: Option<&SourceName>,
) -> Result<Vec<(LogName, Vec<RunNo>)>> {
    let mut by_log: Vec<(LogName, Vec<RunNo>)> = Vec::new();
    for id in ids {
        let chosen = select::backup(context, repo, id, name)?;
        match by_log.iter_mut().find(|(log, _)| log == chosen.log()) {
            Some((_, runs)) if runs.contains(&chosen.run) => {}
            Some((_, runs)) => runs.push(chosen.run),
            None => by_log.push((chosen.log().clone(), vec![chosen.run])),
        }
    }
    Ok(by_log)
}

fn of_hold(error: HoldError) -> Error {
    match error {
        HoldError::Begin(error) => error.into(),
        HoldError::Finish(error) => error.into(),
        HoldError::Repo(error) => error.into(),
        HoldError::Past { .. } | HoldError::TooLong | HoldError::Reason => {
            Error::new(ErrorKind::Usage, error.to_string())
        }
        HoldError::HeldLonger { ref log, run } => {
            let hint = format!("\"holdfast release {}\" ends that hold first", log.backup_id(run));
            Error::failed(error.to_string()).hinted(hint)
        }
        HoldError::NoSuchBackup { .. } | HoldError::NotHeld { .. } => {
            Error::failed(error.to_string()).hinted("\"holdfast list\" shows the backups, and which are held")
        }
    }
}
