//! The demo's output: one line per step, followed by its figures.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what this module is for")]

use std::time::{Duration, Instant};

use holdfast_testkit::program::Done;

/// Standard output; each step is preceded by the time since the start.
pub(crate) struct Screen {
    begun: Instant,
}

impl Default for Screen {
    fn default() -> Self {
        Screen { begun: Instant::now() }
    }
}

impl Screen {
    /// Prints the title line.
    pub(crate) fn title(&self, text: &str) {
        println!("\n{text}\n");
    }

    /// Prints an event.
    pub(crate) fn step(&self, name: &str, text: &str) {
        println!("{:>5.0} s  {name:<8} {text}", self.begun.elapsed().as_secs_f64());
    }

    /// Prints a command that succeeded.
    pub(crate) fn command(&self, done: &Done, result: &str) {
        self.step("$", &format!("{:<30} {:>5.1} s  {result}", done.typed, done.elapsed.as_secs_f64()));
    }

    /// Prints details of the last step.
    pub(crate) fn detail(&self, text: &str) {
        println!("{:17}{text}", "");
    }

    /// Prints the last line.
    pub(crate) fn end(&self, text: &str) {
        println!("\n{text}");
    }

    /// Prints why the demo failed.
    pub(crate) fn error(&self, error: &anyhow::Error) {
        eprintln!("\nthe demo failed: {error:#}");
    }
}

/// Formats a size.
pub(crate) fn bytes(count: u64) -> String {
    let mib = count as f64 / f64::from(1 << 20);
    if mib < 10.0 { format!("{mib:.1} MiB") } else { format!("{mib:.0} MiB") }
}

/// Formats the time since `begun`.
pub(crate) fn seconds(begun: Instant) -> String {
    let elapsed: Duration = begun.elapsed();
    format!("{:.1} s", elapsed.as_secs_f64())
}
