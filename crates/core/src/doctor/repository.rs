//! Whether a repository can be written to, and has recent backups of its sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    Kind, LogName, Repo, RepoError, Role, SourceName,
    ops::keys,
    store::{ObjectPath, writers::PROBES},
};
use jiff::Timestamp;

use super::{
    archive::{archiver, gaps},
    bucket::protection,
    finding::{Finding, Findings, Verdict},
    source::{Stands, TAKEN_STILL, source},
};
use crate::{
    error::{Error, Result},
    event::Cancel,
};

/// How old the newest backup of each source and kind may be.
#[derive(Clone, Debug, Default)]
pub struct AgeMax {
    /// An older newest backup is a problem; without a limit, one of more than two days is a notice.
    pub age: Option<Duration>,
    /// The kinds that it applies to; empty: all kinds that a source has backups of. Never applies to binlog
    /// archives.
    pub kinds: Vec<Kind>,
}

impl AgeMax {
    fn of(&self, kind: Kind) -> Option<Duration> {
        self.age.filter(|_| kind != Kind::Binlog && (self.kinds.is_empty() || self.kinds.contains(&kind)))
    }
}

/// What to check in a repository.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Only this source, if set.
    pub name: Option<SourceName>,
    /// How old backups may be.
    pub age_max: AgeMax,
    /// It is a problem if no archiver of a binlog is running and the last run ended longer ago than this.
    pub lag_max: Option<Duration>,
    /// A repository that cannot be written to is a problem, not just a notice.
    pub is_to_be_written: bool,
}

/// Checks whether a repository can be written to, whether its records are whole, and whether its sources have
/// recent backups of each kind. A backup of a part of a server counts only if there is none of the whole.
/// Does not read any backup's data: `check` does.
pub fn repository(repo: &Arc<Repo>, asked: &Asked, cancel: &Cancel) -> Result<Vec<Finding>> {
    let Asked { age_max, lag_max, .. } = asked;
    let findings = Findings::default();
    let mut logs = repo.logs()?;
    let sources: BTreeSet<&SourceName> = logs.iter().map(|log| &log.source).collect();
    findings.add(Finding::good(format!(
        "{} opens, is {}, and holds {}",
        repo.store().location(),
        if repo.info().suite == Suite::None { "not encrypted" } else { "encrypted" },
        match sources.len() {
            0 => "nothing yet".to_owned(),
            1 => "one source".to_owned(),
            n => format!("{n} sources"),
        }
    )));
    if let Err(error) = written(repo) {
        let verdict = if asked.is_to_be_written { Verdict::Problem } else { Verdict::Notice };
        findings.add(Finding { verdict, ..error.into() });
    }
    if let Some(name) = &asked.name {
        logs.retain(|log| log.source == *name);
    }
    if repo.info().suite != Suite::None {
        findings.add(Finding::good(match repo.keys().role() {
            Role::Operator => "the key is an operator's: it can do everything",
            Role::Writer => "the key is a writer's: it adds backups, and reads none",
            Role::Keeper => "the key is a keeper's: it expires, prunes and checks, and reads no backup",
        }));
    }
    for (object, damage) in repo.key_problems() {
        let text = format!("{object}: {damage}: ignored");
        findings
            .add(Finding::notice(text, "\"holdfast key list\" shows the keys; find out where it came from"));
    }
    match keys::without_share(repo) {
        Ok(keys) => keys.into_iter().for_each(|(object, problem)| {
            findings.add(Finding::notice(
                format!("{object}: {problem}"),
                "\"holdfast key remove\", then \"holdfast key add\"",
            ));
        }),
        Err(error) => findings.add(Error::from(RepoError::from(error))),
    }
    match protection(repo) {
        Ok(found) => found.into_iter().flatten().for_each(|finding| findings.add(finding)),
        Err(error) => findings.add(error),
    }
    let mut backed_up: BTreeMap<&SourceName, bool> = BTreeMap::new();
    for log in &logs {
        cancel.check()?;
        let counts = match source(repo, log, age_max.of(log.kind), &findings) {
            Ok(Stands::Backups) => age_max.of(log.kind).is_some(),
            // Nobody imports dumps on a schedule.
            Ok(Stands::Imports) => true,
            Ok(Stands::Nothing) => false,
            Err(error) => {
                findings.add(error);
                true
            }
        };
        if log.kind != Kind::Binlog {
            *backed_up.entry(&log.source).or_default() |= counts;
        }
    }
    if age_max.age.is_some() {
        findings_of_none(&backed_up, age_max).for_each(|finding| findings.add(finding));
    }
    if let Some(lag_max) = *lag_max {
        let archives: Vec<&LogName> = logs.iter().filter(|log| log.kind == Kind::Binlog).collect();
        if archives.is_empty() {
            findings.add(
                Error::failed("there is no binlog archive")
                    .hinted("start one with \"holdfast binlog archive\""),
            );
        }
        for log in archives {
            match archiver(repo, log, lag_max) {
                Ok(finding) => findings.add(finding),
                Err(error) => findings.add(error),
            }
            match gaps(repo, log) {
                Ok(found) => found.into_iter().for_each(|finding| findings.add(finding)),
                Err(error) => findings.add(error),
            }
        }
    }
    Ok(findings.into_vec())
}

/// Writes a small object as backups write theirs, and deletes it. Does nothing if the store may keep deleted
/// objects, as a bucket may.
fn written(repo: &Repo) -> Result<()> {
    let store = repo.store();
    let location = store.location();
    let leaves_nothing = location.split_once("://").is_none_or(|(scheme, _)| scheme == "sftp");
    if !leaves_nothing || store.versioned().is_some() || repo.info().object_lock.is_some() {
        return Ok(());
    }
    let name = format!("{PROBES}doctor-{}-{}", std::process::id(), Timestamp::now().as_nanosecond());
    let Some(path) = ObjectPath::new(name) else { return Ok(()) };
    let created = store.create_if_absent(&path, b"doctor");
    // Even after a failure: the object may exist nevertheless.
    let deleted = store.delete(&[path]);
    let failed =
        |doing: &str, error| Error::from(RepoError::from(error)).context(format!("{location}: {doing}"));
    created.map_err(|error| failed("cannot write", error))?;
    deleted.map_err(|error| failed("can write, but not delete", error))
}

/// Problems for sources without a backup whose age could be checked.
fn findings_of_none<'a>(
    backed_up: &'a BTreeMap<&SourceName, bool>,
    age_max: &'a AgeMax,
) -> impl Iterator<Item = Error> + 'a {
    let nowhere = backed_up.is_empty().then(|| {
        Error::failed("there is no backup").hinted("take one, or check that this is the right repository")
    });
    let kinds: Vec<String> = age_max.kinds.iter().map(|kind| format!(" {kind}")).collect();
    let kinds = kinds.join(" or");
    let without = backed_up
        .iter()
        .filter(|(_, is)| !**is)
        .map(move |(source, _)| Error::failed(format!("{source} has no{kinds} backup")).hinted(TAKEN_STILL));
    nowhere.into_iter().chain(without)
}
