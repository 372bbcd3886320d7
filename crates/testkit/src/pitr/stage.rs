//! The source, the store, the archiver, and the connections between them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::Options;
use crate::network::Network;
use crate::program::{Ended, Holdfast, Invocation, Running};
use crate::server::{Server, ServerOptions};

/// Name of the source.
const NAME: &str = "pitr";
/// Once all faults are repaired, the archiver must have caught up within this time.
const IN_ORDER: Duration = Duration::from_secs(120);
/// Exit codes for an unreachable server and an unreachable store (`docs/reference/errors.md`).
const MAY_BE_AWAY: [i32; 2] = [4, 5];
/// Exit code if the archive changed too often while it was read.
const BUSY: i32 = 8;

/// Fields are dropped in order: processes before their directory.
pub(super) struct Stage {
    pub(super) archiver: Option<Running>,
    pub(super) backup: Option<Backup>,
    pub(super) source: Server,
    pub(super) network: Network,
    pub(super) holdfast: Holdfast,
    /// Physical backups, which recovery can start from.
    pub(super) bases: Vec<Base>,
    /// Logical backups, which it can start from as well.
    pub(super) logical: Vec<Base>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// When a fault was last active.
    pub(super) disorder: Instant,
    /// Output of commands that failed during a fault.
    pub(super) said: Vec<String>,
    dir: TempDir,
}

/// A backup in progress.
pub(super) struct Backup {
    running: Running,
    is_physical: bool,
    begun: Instant,
    /// Whether no fault is active or will be.
    must_succeed: bool,
}

/// A completed backup.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) id: String,
    /// When it was completed.
    pub(super) at: Timestamp,
}

impl Stage {
    pub(super) fn set(options: &Options) -> Result<Stage> {
        let dir = tempfile::Builder::new().prefix("holdfast-pitr-").tempdir()?;
        let source = Server::start(options.kind, ServerOptions::default().parent(dir.path()))?;
        let network = Network::to(&source)?;
        let holdfast = network.holdfast(options.program.clone(), dir.path(), NAME)?;
        holdfast.init()?;
        Ok(Stage {
            archiver: None,
            backup: None,
            source,
            network,
            holdfast,
            bases: Vec::new(),
            logical: Vec::new(),
            counts: BTreeMap::new(),
            disorder: Instant::now(),
            said: Vec::new(),
            dir,
        })
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Keeps all files.
    pub(super) fn keep(&mut self) -> PathBuf {
        self.source.keep();
        self.network.store.keep();
        self.dir.disable_cleanup(true);
        self.dir().to_owned()
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Files and runs are kept short, so that many begin and end.
    pub(super) fn start_archiver(&mut self) -> Result<()> {
        let words = format!("binlog archive --name {NAME} --segment-age 200ms --run-size 400K --run-age 4s");
        self.archiver = Some(self.holdfast.command(words).at_port(self.network.to_source.port()).start()?);
        Ok(())
    }

    pub(super) fn run_source(&mut self) -> Result<()> {
        self.source.run()?;
        self.network.to_source.lead_to(self.source.port());
        Ok(())
    }

    pub(super) fn start_backup(&mut self, words: &str) -> Result<()> {
        let running = self.back_up(words).start()?;
        let is_physical = !words.contains("logical");
        self.backup = Some(Backup { running, is_physical, begun: Instant::now(), must_succeed: false });
        Ok(())
    }

    fn back_up(&self, words: &str) -> Invocation {
        self.holdfast.command(format!("backup --name {NAME} {words}")).of(&self.source)
    }

    /// Takes a backup that must succeed.
    pub(super) fn take_backup(&mut self, words: &str) -> Result<()> {
        self.start_backup(words)?;
        while let Some(backup) = &mut self.backup {
            backup.must_succeed = true;
            self.look_after_backup()?;
            self.look_after_archiver()?;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Records a backup that has ended. It may fail only if a fault was active.
    pub(super) fn look_after_backup(&mut self) -> Result<()> {
        let Some(backup) = &mut self.backup else { return Ok(()) };
        if !backup.running.has_ended()? {
            return Ok(());
        }
        let Some(Backup { running, is_physical, begun, must_succeed }) = self.backup.take() else {
            return Ok(());
        };
        let ended = running.wait()?;
        if !ended.succeeded() {
            let may_fail = !must_succeed && self.disorder >= begun;
            ensure!(may_fail, "a backup that nothing disturbed failed: {}", ended.output);
            self.said.push(format!("backup: {}", ended.output));
            self.count("backups broken off");
            return Ok(());
        }
        let number = ended.output.lines().rev().filter(|line| line.contains("completed OK"));
        let number = number.filter_map(|line| line.split('#').nth(1)?.split(' ').next()).next();
        let number = number.with_context(|| format!("no number of a backup in: {}", ended.output))?;
        if is_physical {
            self.bases.push(Base { id: self.physical(&number), at: Timestamp::now() });
            self.count("physical backups");
        } else {
            self.logical.push(Base { id: format!("{NAME}/logical#{number}"), at: Timestamp::now() });
            self.count("logical backups");
        }
        Ok(())
    }

    /// The id of the backup that a report names.
    pub(super) fn id(&self, backup: &Value) -> Result<String> {
        let kind = backup["kind"].as_str().context("no kind of a backup")?;
        Ok(match kind {
            "physical" => self.physical(&backup["run"]),
            _ => format!("{NAME}/{kind}#{}", backup["run"]),
        })
    }

    fn physical(&self, number: &dyn std::fmt::Display) -> String {
        format!("{NAME}#{number}")
    }

    /// Acts as a supervisor: restarts the archiver if it has ended, which it may do only during a fault.
    pub(super) fn look_after_archiver(&mut self) -> Result<()> {
        let Some(archiver) = &mut self.archiver else { return Ok(()) };
        if !archiver.has_ended()? {
            return Ok(());
        }
        let Some(running) = self.archiver.take() else { return Ok(()) };
        let ended = running.wait()?;
        let code = ended.status.code();
        ensure!(
            code.is_some_and(|code| MAY_BE_AWAY.contains(&code))
                && self.disorder.elapsed() < Duration::from_secs(60),
            "the archiver ended by itself with {}: {}",
            ended.status,
            ended.output
        );
        self.said.push(format!("archiver: {}", ended.output));
        self.count("archiver ended by itself");
        thread::sleep(Duration::from_millis(300));
        self.start_archiver()
    }

    /// Waits until the archiver has caught up by itself, then stops it, which must succeed.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        let rows: Vec<mysql::Row> = self.source.query("SHOW BINARY LOGS")?;
        let last = rows.last().context("no binlogs")?;
        let end: (String, u64) = (last.get(0).context("no name")?, last.get(1).context("no size")?);
        let begun = Instant::now();
        loop {
            let list = self.list()?.unwrap_or_default();
            let file = list["files"].as_array().and_then(|files| files.last());
            let has = file.map(|file| (file["file"].as_str().unwrap_or_default(), file["end"].as_u64()));
            if has.is_some_and(|(file, size)| file == end.0 && size >= Some(end.1)) {
                break;
            }
            self.look_after_archiver()?;
            if begun.elapsed() > IN_ORDER {
                let said = self.end_archiver().map(|ended| ended.output);
                bail!("it has {has:?}, the server is at {end:?}; the archiver: {said:?}");
            }
            thread::sleep(Duration::from_millis(300));
        }
        let ended = self.end_archiver()?;
        ensure!(ended.succeeded(), "the archiver, when it was stopped: {}", ended.output);
        Ok(())
    }

    fn end_archiver(&mut self) -> Result<Ended> {
        let mut archiver = self.archiver.take().context("no archiver")?;
        archiver.signal(Signal::TERM)?;
        archiver.wait()
    }

    /// The output of `binlog list`; `None` if the archive changed too often while it was read,
    /// since runs are so short here.
    pub(super) fn list(&self) -> Result<Option<Value>> {
        let listed = self.holdfast.command(format!("binlog list --name {NAME} --json")).start()?.wait()?;
        match listed.status.code() {
            Some(BUSY) => Ok(None),
            _ => last_line(&listed).map(Some),
        }
    }

    /// The report of a backup.
    pub(super) fn report(&self, id: &str) -> Result<Value> {
        last_line(&self.holdfast.command(format!("report {id} --json")).start()?.wait()?)
    }

    /// Recovers into a directory; returns the report.
    pub(super) fn restore(&self, words: &str, target: &Path) -> Result<Value> {
        if target.exists() {
            fs::remove_dir_all(target)?;
        }
        let command = self.holdfast.command(format!("restore {words} --name {NAME} --json"));
        let ended = command.into(&self.source.program()?, target).start()?.wait()?;
        ensure!(ended.succeeded(), "restore {words}: {}", ended.output);
        last_line(&ended)
    }
}

/// The result in the output of a command with `--json`.
fn last_line(ended: &Ended) -> Result<Value> {
    let results = ended.output.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let result = results.filter(|line| line["type"] == "result").map(|mut line| line["data"].take()).next();
    result.with_context(|| format!("no result: {}", ended.output))
}
