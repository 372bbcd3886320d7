//! Runs and measures one command.
//!
//! Every contestant is a shell command, as a DBA would type it, so that timed operations
//! can be read and repeated.
//! Paths are passed in variables, so no quoting is needed and the text is the same in every run.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use wait4::Wait4;

use crate::interrupt::{self, Watched};

/// A tool that takes longer than this is considered hung.
const DEADLINE: Duration = Duration::from_secs(15 * 60);

/// A shell command and its variables.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    text: String,
    variables: Vec<(&'static str, OsString)>,
}

impl Script {
    /// A bash command that stops at the first failure, including failures within a pipe.
    pub(crate) fn new(text: impl Into<String>) -> Script {
        Script { text: text.into(), variables: Vec::new() }
    }

    /// Sets a variable that the text uses.
    #[must_use]
    pub(crate) fn var(mut self, name: &'static str, value: impl Into<OsString>) -> Script {
        self.variables.push((name, value.into()));
        self
    }

    /// Prepends a command.
    #[must_use]
    pub(crate) fn before(mut self, text: &str) -> Script {
        self.text.insert_str(0, text);
        self
    }

    /// Appends a command.
    #[must_use]
    pub(crate) fn after(mut self, text: &str) -> Script {
        self.text.push_str(text);
        self
    }

    /// The command text, with variable names in place of paths.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Runs the command untimed.
    pub(crate) fn run(&self, logs: &Path) -> Result<()> {
        self.measure(logs).map(drop)
    }

    /// Runs the command to completion.
    /// Its output goes to files in `logs`, which hold only the last command's output.
    pub(crate) fn measure(&self, logs: &Path) -> Result<Usage> {
        interrupt::check()?;
        let (out_path, err_path) = (logs.join("out"), logs.join("err"));
        // If this program is killed, the tool must not continue and fill the disk.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "bash", "-c"])
            .arg(format!("set -euo pipefail\n{}", self.text));
        // The user's own settings must not affect the measurement.
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"HOLDFAST_"))
        {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.process_group(0).stdin(Stdio::null());
        command.stdout(File::create(&out_path)?).stderr(File::create(&err_path)?);

        forget_own_peak()?;
        let begun = Instant::now();
        let mut child = command.spawn().context("start bash by setpriv")?;
        let watched = Watched::group(child.id());
        let (ended_in_time, overtime) = watchdog();
        let used = child.wait4().context("wait for the command")?;
        let ended = Instant::now();
        drop(ended_in_time);
        drop(watched);

        interrupt::check()?;
        let output = fs::read(&out_path).unwrap_or_default();
        if overtime.join().unwrap_or(false) {
            bail!("killed after {} s:\n{}", DEADLINE.as_secs(), self.text);
        }
        if !used.status.success() {
            bail!(
                "{}:\n{}\n{}",
                used.status,
                self.text,
                tail(&fs::read(&err_path).unwrap_or_default(), &output)
            );
        }
        Ok(Usage {
            begun,
            ended,
            user: used.rusage.utime,
            system: used.rusage.stime,
            rss_max_bytes: used.rusage.maxrss,
            last_line: String::from_utf8_lossy(&output).lines().last().unwrap_or_default().to_owned(),
        })
    }
}

/// Resources used by a command.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    /// User time of all its processes.
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    /// Peak memory of its largest process, not the sum of all.
    pub(crate) rss_max_bytes: u64,
    /// The last line of its standard output.
    pub(crate) last_line: String,
}

impl Usage {
    pub(crate) fn wall(&self) -> Duration {
        self.ended - self.begun
    }
}

/// Resets the peak memory of this process.
/// A child inherits the peak until its `exec`, and ours must not count as the tool's.
fn forget_own_peak() -> Result<()> {
    const RESET_PEAK: &str = "5";
    fs::write("/proc/self/clear_refs", RESET_PEAK).context("reset this program's peak memory")
}

/// Kills the measured group at the deadline unless the sender is dropped earlier; the
/// thread returns whether it did.
fn watchdog() -> (mpsc::Sender<()>, thread::JoinHandle<bool>) {
    let (ended_in_time, ended) = mpsc::channel();
    let overtime = thread::spawn(move || {
        let late = ended.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout);
        if late {
            interrupt::kill_group();
        }
        late
    });
    (ended_in_time, overtime)
}

/// The last lines of a failed command's output.
fn tail(errors: &[u8], output: &[u8]) -> String {
    const LINES: usize = 12;
    let text =
        String::from_utf8_lossy(if errors.trim_ascii().is_empty() { output } else { errors }).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::Script;

    /// Memory of this program, past or present, is not attributed to the command.
    #[test]
    fn own_memory_is_not_counted() {
        let logs = tempfile::tempdir().unwrap();
        drop(std::hint::black_box(vec![1_u8; 300 << 20]));
        let usage = Script::new("true").measure(logs.path()).unwrap();
        assert!(usage.rss_max_bytes < 200 << 20, "{usage:?}");
    }

    /// Resources used by a command's children count as its own; a failure anywhere in a pipe is a failure.
    #[test]
    fn a_command_is_measured_with_its_children() {
        let logs = tempfile::tempdir().unwrap();
        let busy = "head -c 200000000 /dev/zero | sha256sum; echo \"$WORD\"";
        let usage = Script::new(busy).var("WORD", "last line").measure(logs.path()).unwrap();
        assert_eq!(usage.last_line, "last line");
        assert!((usage.user + usage.system).as_millis() > 10, "{usage:?}");
        assert!(usage.rss_max_bytes > 100_000, "{usage:?}");
        let error = Script::new("(echo why >&2; false) | cat").run(logs.path()).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }
}
