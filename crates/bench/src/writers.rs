//! Clients that write to the server while it is backed up.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use holdfast_testkit::Server;
use holdfast_testkit::load::WriteLoad;

/// Running clients.
pub(crate) trait Writers {
    /// The number of transactions committed so far.
    fn committed(&self) -> Result<u64>;
}

impl Writers for WriteLoad {
    fn committed(&self) -> Result<u64> {
        Ok(WriteLoad::committed(self))
    }
}

/// The sysbench benchmark with its mix of reads and writes (`oltp_read_write`), as fast as the server
/// responds.
pub(crate) struct Sysbench<'a> {
    server: &'a Server,
    process: Child,
}

impl Sysbench<'_> {
    pub(crate) const CLIENTS: u32 = 4;
    const TABLES: u32 = 4;
    const ROWS_PER_TABLE: u32 = 100_000;
    const SCHEMA: &'static str = "sbtest";

    /// Why it cannot be used, if so.
    pub(crate) fn missing() -> Option<String> {
        let found = Command::new("sysbench").arg("--version").stdout(Stdio::null()).status();
        (!found.is_ok_and(|status| status.success())).then(|| "sysbench is not installed".to_owned())
    }

    /// Creates its tables, which are kept, and runs its clients until this is dropped.
    pub(crate) fn start<'a>(server: &'a Server, logs: &Path) -> Result<Sysbench<'a>> {
        const IS_GOING_AFTER: Duration = Duration::from_secs(2);
        server.exec(format!("DROP DATABASE IF EXISTS {}", Self::SCHEMA))?;
        server.exec(format!("CREATE DATABASE {}", Self::SCHEMA))?;
        let log = logs.join("sysbench");
        let made = command(server, &log)?.arg("prepare").status().context("run sysbench")?;
        ensure!(made.success(), "sysbench prepare: {made}: {}", said(&log));
        let process = command(server, &log)?.arg("run").spawn().context("run sysbench")?;
        let mut sysbench = Sysbench { server, process };
        thread::sleep(IS_GOING_AFTER);
        if let Some(status) = sysbench.process.try_wait()? {
            bail!("sysbench: {status}: {}", said(&log));
        }
        Ok(sysbench)
    }

    /// Stops the clients; fails if they had ended earlier.
    pub(crate) fn stop(mut self) -> Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("sysbench ended while it was needed: {status}"),
        }
    }
}

impl Drop for Sysbench<'_> {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Writers for Sysbench<'_> {
    /// Counts explicit transactions, as only these count in `Com_commit`.
    fn committed(&self) -> Result<u64> {
        let rows: Vec<(String, u64)> = self.server.query("SHOW GLOBAL STATUS LIKE 'Com_commit'")?;
        rows.first().map(|(_, count)| *count).context("the server does not count commits")
    }
}

fn command(server: &Server, log: &Path) -> Result<Command> {
    // If this program is killed, nothing else would end sysbench.
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig",
            "KILL",
            "--",
            "sysbench",
            "oltp_read_write",
            "--db-driver=mysql",
            "--mysql-user=root",
        ])
        .arg(format!("--mysql-socket={}", server.socket().display()))
        .arg(format!("--mysql-db={}", Sysbench::SCHEMA))
        .arg(format!("--tables={}", Sysbench::TABLES))
        .arg(format!("--table-size={}", Sysbench::ROWS_PER_TABLE))
        .arg(format!("--threads={}", Sysbench::CLIENTS))
        .args(["--time=0", "--report-interval=0", "--mysql-ignore-errors=1213,1205,1020"])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(File::create(log)?)
        .stderr(File::create(log.with_extension("err"))?);
    Ok(command)
}

/// The last line of each of its logs.
fn said(log: &Path) -> String {
    let last = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
    };
    [last(log), last(&log.with_extension("err"))].join("; ")
}
