//! What the reports of all kinds of backups say. Stored with the run, printed at its end.

use holdfast_pipe::meter::Meter;
use holdfast_repo::{data::writer::WriterMeters, format::manifest::Totals};
use serde::Serialize;

use crate::watch::{PhaseTime, ms};

/// Version of the reports' layout; raised when a field changes its meaning or goes.
pub const REPORT_SCHEMA: u32 = 1;

/// What a run that became a backup measured.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// [`REPORT_SCHEMA`].
    pub schema_version: u32,
    /// Number of the run, and of the backup.
    pub backup: u64,
    /// The backup that it was compared with.
    pub base: Option<u64>,
    /// Whose.
    pub source: String,
    /// `physical` or `logical`.
    pub kind: String,
    /// What wrote it.
    pub holdfast_version: &'static str,
    /// The server, as it calls itself.
    pub server_version: String,
    /// When it began, RFC 3339, UTC.
    pub started_at: String,
    /// When the backup was complete.
    pub finished_at: String,
    /// Wall time.
    pub total_ms: u64,
    /// Its parts.
    pub phases: Vec<PhaseTime>,
    /// Busy time of the stages between server and repository.
    pub stages: Vec<StageTime>,
    /// What was stored.
    pub totals: Totals,
    /// Highest memory of the process.
    pub memory_bytes_max: u64,
    /// CPU time of the process, user and system.
    pub cpu_seconds: f64,
    /// How it was made smaller.
    pub compression: String,
}

/// Busy time of a stage, summed over its threads.
#[derive(Clone, Debug, Serialize)]
pub struct StageTime {
    /// `compress`, `seal`, `upload`, …
    pub name: &'static str,
    /// Busy time.
    pub busy_ms: u64,
    /// Bytes that went through it.
    pub bytes: u64,
}

/// What the stages of a writer took.
pub(super) fn stage_times(meters: &WriterMeters) -> Vec<StageTime> {
    let stages = [
        ("compare", &meters.compare),
        ("compress", &meters.pipeline.compress),
        ("seal", &meters.pipeline.seal),
        ("upload", &meters.pipeline.upload),
        ("finish", &meters.pipeline.finish),
    ];
    let time =
        |(name, meter): (_, &Meter)| StageTime { name, busy_ms: ms(meter.busy()), bytes: meter.bytes() };
    stages.map(time).to_vec()
}
