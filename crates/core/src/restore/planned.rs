//! What a restore will do, as the user is told.

use std::path::PathBuf;

use serde::Serialize;

use super::{backup_id::BackupId, done::LeftOut};
use crate::server::ServerVersion;

/// How the target was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoreMode {
    /// The target is absent or empty.
    Fresh,
    /// An interrupted restore of the same backup is completed.
    Continue,
    /// All of an interrupted restore of the same backup is there, except for its report.
    Complete,
    /// The data directory there is made into the backup.
    Delta,
}

/// A file, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedPath {
    /// Absolute.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// A file that the source kept outside of its data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExternalFile {
    /// Where it was.
    pub was: PathBuf,
    /// Where it goes.
    pub goes_to: PathBuf,
}

/// Disk space in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedRoom {
    /// The directory, or the existing one above it.
    pub path: PathBuf,
    /// The most that the restore takes there; the least, if a server is to make the files of rows.
    pub needed_bytes: u64,
    /// Free there, for the user who restores.
    pub free_bytes: u64,
}

/// A user and a group, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedOwner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// How the server will recover the files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedPrepare {
    /// The program.
    pub program: PathBuf,
    /// Its version.
    pub version: ServerVersion,
    /// Its buffer pool.
    pub buffer_pool_bytes: u64,
    /// The least time that it takes: this long if the pages that the redo changes fit the buffer pool.
    pub least_ms: u64,
}

/// Rows that a server will load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedRows {
    /// How many tables there are.
    pub tables: u64,
    /// How many rows.
    pub rows: u64,
    /// Their size.
    pub bytes: u64,
}

/// What a restore will do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestorePlan {
    /// The backup.
    pub backup: BackupId,
    /// The server it was taken from.
    pub server_version: ServerVersion,
    /// Where it goes.
    pub target_dir: PathBuf,
    /// How the target was found.
    pub mode: RestoreMode,
    /// The owner of everything restored; `None` if we may not set it, and everything stays ours.
    pub owner: Option<PlannedOwner>,
    /// Files of the backup.
    pub files: u64,
    /// Their size; holes count.
    pub bytes: u64,
    /// A logical backup: its rows. It has no files; what a server makes of them is not known before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<PlannedRows>,
    /// Redo that recovery will go through.
    pub redo_bytes: u64,
    /// Files to be made.
    pub create: Vec<PlannedPath>,
    /// Existing files that get the backup's content; pages that are right stay.
    pub replace: Vec<PlannedPath>,
    /// What is in the target and does not belong to the backup.
    pub delete: Vec<PathBuf>,
    /// Files that the source kept outside of its data directory.
    pub external: Vec<ExternalFile>,
    /// Files of the backup that are not restored, and why.
    pub dropped: Vec<LeftOut>,
    /// Disk space, by place.
    pub room: Vec<PlannedRoom>,
    /// The recovery; `None` if the first start of the restored server is to do it.
    pub prepare: Option<PlannedPrepare>,
    /// Options that a server needs on these files, besides those of its own configuration.
    pub server_options: Vec<String>,
}

impl RestorePlan {
    /// Where files go that a mapping puts elsewhere.
    pub(in crate::restore) fn mapped(&self) -> Vec<PathBuf> {
        let goes_to = self.external.iter().map(|file| &file.goes_to);
        goes_to.filter(|path| !path.starts_with(&self.target_dir)).cloned().collect()
    }

    /// Whether it makes, replaces and deletes the same files.
    pub(in crate::restore) fn does_the_same(&self, other: &Self) -> bool {
        let does = |plan: &Self| (plan.mode, plan.create.clone(), plan.replace.clone(), plan.delete.clone());
        self.target_dir == other.target_dir && does(self) == does(other)
    }
}
