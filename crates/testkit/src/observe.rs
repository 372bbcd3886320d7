//! Observations of a server and of directories from outside.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::load::{Prober, WriteLoad};
use crate::server::Server;

/// What clients of the server experienced during an operation.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Rate of the load, without the probes.
    pub transactions_per_second: f64,
    /// Median latency of the probes, which commit one row each.
    pub latency_median: Duration,
    /// The longest time that a probe was blocked.
    pub latency_max: Duration,
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |latency: Duration| latency.as_secs_f64() * 1000.0;
        write!(
            f,
            "{:.0} transactions/s; a commit takes {:.1} ms, the longest {:.0} ms",
            self.transactions_per_second,
            ms(self.latency_median),
            ms(self.latency_max)
        )
    }
}

/// Probes the server while `what` runs.
pub fn observe<T>(
    server: &Server,
    load: &WriteLoad,
    what: impl FnOnce() -> Result<T>,
) -> Result<(T, Observation)> {
    let prober = Prober::of_commits(server)?;
    let (begun, committed) = (Instant::now(), load.committed());
    let result = what()?;
    let transactions_per_second = (load.committed() - committed) as f64 / begun.elapsed().as_secs_f64();
    let latencies = prober.stop()?;
    let observation = Observation {
        transactions_per_second,
        latency_median: latencies.percentile(50.0),
        latency_max: latencies.max(),
    };
    Ok((result, observation))
}

/// Bytes that the files of a directory occupy.
pub fn directory_bytes(dir: &Path) -> Result<u64> {
    const BLOCK: u64 = 512;
    let mut sum = 0;
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        sum += match entry.metadata() {
            Ok(meta) if meta.is_dir() => directory_bytes(&entry.path())?,
            Ok(meta) => meta.blocks() * BLOCK,
            // A running server removes files.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(sum)
}
