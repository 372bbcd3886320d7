//! What a physical backup measured. Stored with the run, printed at its end.

use serde::Serialize;

use crate::{physical::Position, server::LockRecord, source::CaptureStats, taking::RunReport};

/// What a backup measured.
#[derive(Clone, Debug, Serialize)]
pub struct BackupReport {
    /// What those of all kinds measure.
    #[serde(flatten)]
    pub run: RunReport,
    /// The state it restores to.
    pub position: Position,
    /// What the capture did.
    pub capture: CaptureStats,
    /// Locks, in the order they were released.
    pub locks: Vec<LockRecord>,
}
