//! Terminal output: one line per measurement, and the estimated time left.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what this module is for")]

use std::time::{Duration, Instant};

use crate::results::{Group, Sample};

/// Standard error, with the time since the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    begun: Instant,
}

impl Progress {
    pub(crate) fn start() -> Progress {
        Progress { begun: Instant::now() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Prints a note about the progress.
    pub(crate) fn note(&self, text: &str) {
        let seconds = self.begun.elapsed().as_secs();
        eprintln!("{:>3}:{:02}  {text}", seconds / 60, seconds % 60);
    }

    /// Prints a completed measurement.
    pub(crate) fn sample(&self, group: &Group, label: &str, sample: &Sample) {
        let mut text = format!(
            "{:<13} {:<13} {:<4} {:<14} {label:<34} {:>7.2} s wall {:>7.2} s CPU",
            group.scenario,
            group.server,
            group.cache.to_string(),
            group.load.to_string(),
            sample.wall_s,
            sample.cpu_s()
        );
        if let Some(bytes) = sample.stored_bytes {
            text += &format!(" {:>8.1} MB", bytes as f64 / 1e6);
        }
        if let Some(clients) = sample.clients {
            text += &format!(", longest commit {:.0} ms", clients.commit_longest_ms);
        }
        self.note(&text);
    }
}

/// Prints the final table.
pub(crate) fn print(text: &str) {
    println!("{text}");
}

/// Prints why the program failed.
pub(crate) fn print_error(error: &anyhow::Error) {
    eprintln!("holdfast-bench: error: {error:#}");
}
