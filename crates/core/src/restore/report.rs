//! The result of a restore: returned, and kept in the target as `holdfast-restore.json`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    backup_id::BackupId,
    continuing::{continue_statement, primaries::primary_statements, replicate_statement},
    done::{LeftOut, Loaded, Prepared, Replayed, Written},
    planned::RestorePlan,
};
use crate::{position::Position, server::ServerVersion, watch::PhaseTime};

/// Schema version of the report and of `holdfast-restore.json`. Fields are added without raising it.
pub const RESTORE_SCHEMA: u32 = 1;

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestoreReport {
    /// [`RESTORE_SCHEMA`].
    pub schema_version: u32,
    /// Which backup.
    pub backup: BackupId,
    /// Where it is now.
    pub target_dir: PathBuf,
    /// The server it was taken from.
    pub server_version: ServerVersion,
    /// The state of the restored files, as a replication position; `None`: a logical backup that has none.
    pub position: Option<Position>,
    /// Whether a server has recovered it already. If not, the first start does.
    pub prepared: Option<Prepared>,
    /// A logical backup: what the server did that made the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
    /// Transactions replayed after the backup, if it was restored to a later moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Replayed>,
    /// What was written.
    pub written: Written,
    /// Files of the backup that were left out.
    #[serde(default)]
    pub dropped: Vec<LeftOut>,
    /// Files outside of the target that belong to it, because a mapping has put them there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mapped: Vec<PathBuf>,
    /// Every phase.
    pub phases: Vec<PhaseTime>,
    /// Options that a server needs on these files, besides those of its own configuration.
    pub server_options: Vec<String>,
    /// Statements that make the restored server a replica of its source; `<…>` is to be filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicate_statement: Option<String>,
    /// MariaDB, if the source had a binlog: the statement that makes the restored server, before anybody
    /// writes to it, count its transactions from far beyond all that the source can have had. A binlog that
    /// begins again at 1, or where the backup ends, assigns numbers twice, and a replica of the source that
    /// finds its own number in it skips everything before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_statement: Option<String>,
    /// If the source was a replica itself: statements that make the restored server a replica of the same
    /// primaries, one text for each channel whose place is known; `<…>` is to be filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub primary_statements: Vec<String>,
}

impl RestoreReport {
    /// The report on what was planned. `knows_gtids`: whether the restored server has been told its GTIDs.
    pub(super) fn of(plan: &RestorePlan, position: Option<Position>, knows_gtids: bool) -> Self {
        let version = &plan.server_version;
        let known = position.as_ref();
        Self {
            schema_version: RESTORE_SCHEMA,
            backup: plan.backup.clone(),
            target_dir: plan.target_dir.clone(),
            server_version: version.clone(),
            replicate_statement: known.and_then(|at| replicate_statement(version, at, knows_gtids)),
            continue_statement: known.and_then(|at| continue_statement(version, at)),
            primary_statements: known.map_or_else(Vec::new, |at| primary_statements(version, at)),
            position,
            prepared: None,
            loaded: None,
            replayed: None,
            written: Written::default(),
            mapped: plan.mapped(),
            dropped: plan.dropped.clone(),
            phases: Vec::new(),
            server_options: plan.server_options.clone(),
        }
    }
}
