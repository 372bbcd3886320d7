//! Measurements of a physical backup. Stored with the run, and printed at its end.

use serde::Serialize;

use crate::{position::Position, server::LockRecord, source::CaptureStats, taking::RunReport};

/// Measurements of a physical backup.
#[derive(Clone, Debug, Serialize)]
pub struct BackupReport {
    /// The part that backups of all kinds report.
    #[serde(flatten)]
    pub run: RunReport,
    /// The state it restores to.
    pub position: Position,
    /// Measurements of the capture.
    pub capture: CaptureStats,
    /// Locks, in the order in which they were released.
    pub locks: Vec<LockRecord>,
}
