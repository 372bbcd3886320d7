//! Selects the backup or the source that the user means.

use std::collections::BTreeMap;

use holdfast_core::{Error, ErrorKind, Event, Listener as _, Result};
use holdfast_repo::{
    Kind, LogName, Repo, RepoError, RunNo, SourceName,
    log::{history::History, outcome::OutcomeType},
};

use crate::{
    args::backup_ref::{BackupNo, BackupRef},
    context::Context,
};

/// A selected backup.
pub(crate) struct Chosen {
    pub(crate) history: History,
    pub(crate) run: RunNo,
}

impl Chosen {
    pub(crate) fn log(&self) -> &LogName {
        self.history.log()
    }
}

/// The log of the source given by `name` or the configuration, or the only one there is.
pub(crate) fn log(
    context: &Context<'_>,
    repo: &Repo,
    name: Option<&SourceName>,
    kind: Option<Kind>,
) -> Result<LogName> {
    let mut logs = repo.logs()?;
    // Physical backups are the default if there are any.
    let name = name.or(context.config.name.as_ref());
    let of_name = |log: &&LogName| name.is_none_or(|name| *name == log.source);
    let has_physical = logs.iter().filter(of_name).any(|log| log.kind == Kind::Physical);
    let usual = if has_physical { Kind::Physical } else { Kind::Logical };
    let (is_asked_for, kind, all) = (kind.is_some(), kind.unwrap_or(usual), logs.len());
    logs.retain(|log| log.kind == kind);
    if logs.is_empty() && is_asked_for {
        let hint = match kind {
            Kind::Binlog => "\"holdfast binlog archive\" begins with it",
            Kind::Logical if all == 0 => "\"holdfast backup --method logical\" makes the first",
            Kind::Physical if all == 0 => "\"holdfast backup\" makes the first",
            Kind::Physical | Kind::Logical => "\"holdfast list\" shows what there is",
        };
        return Err(Error::failed(format!("the repository contains nothing of kind {kind}")).hinted(hint));
    }
    if let Some(name) = name.filter(|_| logs.is_empty() && all > 0) {
        let text = format!("the repository contains no backup of {name}");
        return Err(Error::failed(text).hinted("\"holdfast list\" shows what there is"));
    }
    only(context, logs, name, |first| format!("use --name, or write {first}#42"))
}

/// The logs of the source given by `name` or the configuration, or of the only source; empty if the
/// repository is still empty.
pub(crate) fn logs_of_source(
    context: &Context<'_>,
    repo: &Repo,
    name: Option<&SourceName>,
) -> Result<Vec<LogName>> {
    let mut logs = repo.logs()?;
    if !logs.is_empty() {
        let mut sources = logs.clone();
        sources.dedup_by(|one, other| one.source == other.source);
        let one = only(context, sources, name, |_| "use --name".to_owned())?;
        logs.retain(|log| log.source == one.source);
    }
    Ok(logs)
}

/// The logs of the source with that name, or of all sources.
/// An unknown name is an error, so that a typo does not go unnoticed.
pub(crate) fn logs_named(repo: &Repo, name: Option<&SourceName>) -> Result<Vec<LogName>> {
    let mut logs = repo.logs()?;
    if let Some(name) = name {
        logs.retain(|log| *name == log.source);
        if logs.is_empty() {
            return Err(holds_nothing_of(name));
        }
    }
    Ok(logs)
}

/// The error for a name that no log has.
pub(crate) fn holds_nothing_of(name: &SourceName) -> Error {
    Error::failed(format!("the repository contains nothing of {name}"))
        .hinted("\"holdfast list\" shows the names")
}

/// Selects one of `logs`, each of a different source.
fn only(
    context: &Context<'_>,
    mut logs: Vec<LogName>,
    name: Option<&SourceName>,
    how_to_say: impl Fn(&SourceName) -> String,
) -> Result<LogName> {
    let name = name.or(context.config.name.as_ref());
    let all = logs.len();
    logs.retain(|log| name.is_none_or(|name| *name == log.source));
    match (logs.len(), name) {
        (1, _) => Ok(logs.remove(0)),
        (0, Some(name)) if all > 0 => Err(holds_nothing_of(name)),
        (0, _) => Err(Error::failed("the repository contains no backup yet")
            .hinted("\"holdfast backup\" makes the first")),
        _ => {
            let names: Vec<&str> = logs.iter().map(|log| log.source.as_str()).collect();
            Err(Error::new(
                ErrorKind::Usage,
                format!("the repository contains {}: which one?", names.join(", ")),
            )
            .hinted(how_to_say(&logs[0].source)))
        }
    }
}

/// The backup that was typed.
pub(crate) fn backup(
    context: &Context<'_>,
    repo: &Repo,
    typed: &BackupRef,
    name: Option<&SourceName>,
) -> Result<Chosen> {
    let log = log(context, repo, typed.source.as_ref().or(name), typed.kind)?;
    let mut damaged = BTreeMap::new();
    let history = salvaged(context, repo, &log, &mut |run, error| drop(damaged.insert(run, error)))?;
    let run = match typed.which {
        BackupNo::Number(run) if history.stands(run) => run,
        BackupNo::Number(run) => {
            return Err(damaged.remove(&run).map_or_else(|| not_a_backup(&history, run), Error::from));
        }
        BackupNo::Latest => {
            let newest = history.newest_backup();
            // The damaged run may have been a later backup of the whole source.
            let latest = history.newest_taken().or(newest);
            if let Some((_, error)) = damaged.pop_last().filter(|(run, _)| Some(*run) > latest) {
                return Err(Error::from(error)
                    .context("find the latest backup")
                    .hinted("name a backup by its number: \"holdfast list\" shows those that can be read"));
            }
            let newest = newest.ok_or_else(|| {
                Error::failed(format!("no backup of {log} is kept"))
                    .hinted("\"holdfast list\" shows what there is")
            })?;
            // Nobody knows for certain how old the rows of a dump are.
            let taken = history.newest_taken().ok_or_else(|| {
                Error::failed(format!("all backups of {log} were imported: which is the latest is not known"))
                    .hinted("name one by its number: \"holdfast list\" shows them, and \"holdfast show\" when each was dumped")
            })?;
            if taken != newest {
                let text = format!(
                    "the latest backup of all of {log} is {taken}: later imports and partial backups are \
                     skipped"
                );
                context.output.event(Event::Note { text });
            } else if history.outcome(taken).is_some_and(|outcome| outcome.part.is_some()) {
                let text = format!("backup {taken} of {log} is partial, and none covers the whole source");
                context.output.event(Event::Note { text });
            }
            taken
        }
    };
    Ok(Chosen { history, run })
}

/// Reads the intact part of a history, for read-only verbs.
/// Warns about the damaged part, and passes it to `each`.
pub(crate) fn salvaged(
    context: &Context<'_>,
    repo: &Repo,
    log: &LogName,
    each: &mut dyn FnMut(RunNo, RepoError),
) -> Result<History> {
    let history = History::salvage(repo, log, &mut |run, error| {
        context.output.warning(format!("{error}; see \"holdfast check\""));
        each(run, error);
    })?;
    Ok(history)
}

fn not_a_backup(history: &History, run: RunNo) -> Error {
    let log = history.log();
    let what = match history.outcome(run).map(|outcome| outcome.outcome_type) {
        None => format!("there is no run {run} of {log}"),
        Some(OutcomeType::Backup) => format!("backup {run} of {log} was dropped"),
        Some(OutcomeType::Tombstone | OutcomeType::Abandoned) => format!("run {run} of {log} did not finish"),
        Some(other) => format!("run {run} of {log} is not a backup: it is the run of {}", other.as_str()),
    };
    Error::failed(what).hinted("\"holdfast list\" shows the backups")
}
