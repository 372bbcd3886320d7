//! What the reports of all kinds of backups contain. Stored with the run, and printed at its end.

use holdfast_pipe::meter::Meter;
use holdfast_repo::{data::writer::WriterMeters, format::manifest::Totals};
use serde::Serialize;

use crate::watch::{PhaseTime, ms};

/// Version of the report layout; raised when a field changes its meaning or is removed.
pub const REPORT_SCHEMA: u32 = 1;

/// Measurements of a run that became a backup.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// [`REPORT_SCHEMA`].
    pub schema_version: u32,
    /// Number of the run, and of its backup.
    pub backup: u64,
    /// The backup that it was compared with.
    pub base: Option<u64>,
    /// The source's name.
    pub source: String,
    /// `physical` or `logical`.
    pub kind: String,
    /// The version of Holdfast that wrote it.
    pub holdfast_version: &'static str,
    /// The server's version, as it reports it.
    pub server_version: String,
    /// When it began, RFC 3339, UTC.
    pub started_at: String,
    /// When the backup was complete.
    pub finished_at: String,
    /// Wall time.
    pub total_ms: u64,
    /// The phases of the run.
    pub phases: Vec<PhaseTime>,
    /// Busy time of the stages between server and repository.
    pub stages: Vec<StageTime>,
    /// What was stored.
    pub totals: Totals,
    /// Peak memory of the process.
    pub memory_bytes_max: u64,
    /// CPU time of the process, user and system.
    pub cpu_seconds: f64,
    /// The compression.
    pub compression: String,
}

/// Busy time of a stage, summed over its threads.
#[derive(Clone, Debug, Serialize)]
pub struct StageTime {
    /// `compress`, `seal`, `upload`, …
    pub name: &'static str,
    /// Busy time, summed over the threads.
    pub busy_ms: u64,
    /// Bytes that went through it.
    pub bytes: u64,
}

/// The times of a writer's stages.
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
