//! What a check finds, and what can be done about it.

use crate::{
    error::RepoError,
    format::{item::ItemPath, names::RunNo},
    log::check_record::Unread,
};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Backups can be restored: what is wrong can be rebuilt from what exists, or no restore needs it.
    Repairable,
    /// A later version has written it, or it is sealed with later keys: only such a version, or a key that has
    /// them, can tell whether it is good.
    Newer,
    /// Data of a backup is gone, or cannot be trusted.
    Lost,
}

/// What a repair can do about a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// Drops the backups that need what is lost; does nothing if there are none.
    #[default]
    Drop,
    /// Rebuilds the refs of these backups from their page maps.
    Refs,
    /// Rebuilds the index of this run from its packs.
    Index(RunNo),
    /// Deletes the object, which no restore needs, or can use.
    Discard,
    /// Declares that the run had no effect, or finds out what its prune did.
    Outcome,
}

/// Something that is not as it should be.
#[derive(Clone, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The object, down to the chunk.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// What a repair can do about it.
    pub remedy: Remedy,
    /// The backups that need it.
    pub backups: Vec<RunNo>,
    /// The files that need it, as far as page maps were read. Only the first few.
    pub files: Vec<ItemPath>,
    /// The tables that these files belong to, as `db.t`.
    pub tables: Vec<String>,
    /// How many more files need it, as far as they were counted.
    pub files_more: u64,
}

/// What a check did and found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The findings, worst first.
    pub findings: Vec<Finding>,
    /// What every run builds on is damaged: nothing can be written to this log any more
    /// ([`RepoError::History`]).
    pub stops_runs: bool,
    /// Backups that stand.
    pub backups: u64,
    /// Packs that these backups need.
    pub packs: u64,
    /// Needed packs that were read.
    pub packs_read: u64,
    /// Bytes of the packs that were read.
    pub bytes_read: u64,
    /// Packs that the key cannot open, and that bear no signature that says anything: they could not be checked.
    pub packs_unproven: u64,
    /// Packs that should have been read, but were left because of the limits on time or bytes.
    pub packs_left: u64,
    /// Bytes of the packs that were left.
    pub bytes_left: u64,
    /// For how long data that backups need has not been read, after this check.
    pub unread: Unread,
    /// Why it could not be recorded which packs were read, are gone, or need not be remembered any more.
    pub not_recorded: Option<String>,
    /// Items whose page maps were read.
    pub items_walked: u64,
    /// What was not checked, because the key cannot read it.
    pub not_checked: Vec<&'static str>,
}

impl Finding {
    /// What is wrong with an object. `severity` is that of damage.
    pub(crate) fn of(error: &RepoError, severity: Severity) -> Self {
        let severity = if error.is_unknown() { Severity::Newer } else { severity };
        let (object, problem) = match error {
            RepoError::Damaged { object, damage } => (object.clone(), damage.to_string()),
            RepoError::Store(error) => (error.path.clone(), error.kind.to_string()),
            other => (String::new(), other.to_string()),
        };
        Self { problem, ..Self::of_object(object, severity) }
    }

    pub(crate) fn of_object(object: String, severity: Severity) -> Self {
        Self {
            severity,
            object,
            problem: String::new(),
            remedy: Remedy::default(),
            backups: Vec::new(),
            files: Vec::new(),
            tables: Vec::new(),
            files_more: 0,
        }
    }
}
