//! What a backup measured. Stored with the run, printed at its end.

use std::{
    borrow::Cow,
    sync::Mutex,
    time::{Duration, Instant},
};

use holdfast_pipe::{lock::lock, meter::Meter};
use holdfast_repo::{manifest::Totals, writer::WriterMeters};
use serde::{Deserialize, Serialize};

use crate::{
    event::{Event, Listener},
    physical::Position,
    server::LockRecord,
    source::CaptureStats,
};

/// Version of the report's layout; raised when a field changes its meaning or goes.
pub const REPORT_SCHEMA: u32 = 1;

/// How long a phase took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Its name, as in [`Event::Phase`]: of a backup `reach`, `start`, `copy`, `stop`, `complete`.
    pub name: Cow<'static, str>,
    /// Wall time.
    pub ms: u64,
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
pub(crate) fn stage_times(meters: &WriterMeters) -> Vec<StageTime> {
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

/// What a backup measured.
#[derive(Clone, Debug, Serialize)]
pub struct BackupReport {
    /// [`REPORT_SCHEMA`].
    pub schema_version: u32,
    /// Number of the run, and of the backup.
    pub backup: u64,
    /// The backup that unchanged pages were compared with.
    pub base: Option<u64>,
    /// Whose.
    pub source: String,
    /// `physical`.
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
    /// Busy time of the stages between source and repository.
    pub stages: Vec<StageTime>,
    /// The state it restores to.
    pub position: Position,
    /// What the capture did.
    pub capture: CaptureStats,
    /// Locks, in the order they were released.
    pub locks: Vec<LockRecord>,
    /// What was stored.
    pub totals: Totals,
    /// Highest memory of the process.
    pub memory_bytes_max: u64,
    /// CPU time of the process, user and system.
    pub cpu_seconds: f64,
    /// How it was made smaller.
    pub compression: String,
}

/// Passes events on and takes the time of the phases.
pub(crate) struct Watch<'a> {
    listener: &'a dyn Listener,
    started: Instant,
    phases: Mutex<Vec<(&'static str, Instant)>>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(listener: &'a dyn Listener) -> Self {
        Self { listener, started: Instant::now(), phases: Mutex::default() }
    }

    pub(crate) fn phase(&self, name: &'static str) {
        self.event(Event::Phase { name });
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn phases(&self) -> Vec<PhaseTime> {
        let phases = lock(&self.phases);
        let ends = phases.iter().skip(1).map(|(_, begin)| *begin).chain([Instant::now()]);
        phases
            .iter()
            .zip(ends)
            .map(|((name, begin), end)| PhaseTime {
                name: Cow::Borrowed(name),
                ms: ms(end.duration_since(*begin)),
            })
            .collect()
    }
}

impl Listener for Watch<'_> {
    fn event(&self, event: Event) {
        if let Event::Phase { name } = &event {
            lock(&self.phases).push((name, Instant::now()));
        }
        self.listener.event(event);
    }
}

pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
