//! `check`: is the repository whole?

use std::{
    fmt::{self, Write as _},
    sync::Arc,
    time::Instant,
};

use holdfast_core::{Error, HISTORY_HINT, Result};
use holdfast_repo::{
    Act, Damage, LogName, Role,
    check::{CheckOptions, CheckReport, Finding, Severity, check},
};
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, list, repository};
use crate::{
    args::{check::CheckArgs, units::ByteSize},
    exit::Exit,
    output::{Render, text},
};

/// What to do where data of backups is lost.
const LOST_HINT: &str = "\
later backups share what is lost until its pages change: take one that shares nothing (backup --full),
check again, then drop the backups that are named here (expire ID, or \"holdfast repair\", which says what it is about to do)";
/// What to do where nothing of a backup is lost.
const REPAIR_HINT: &str = "\"holdfast repair\" says what it would make anew; no backup has lost anything";

/// What is wrong with one object.
#[derive(Serialize)]
struct Found {
    severity: &'static str,
    object: String,
    problem: String,
    /// Backups that need it.
    backups: Vec<String>,
    /// Files that need it, the first few.
    files: Vec<String>,
    files_more: u64,
}

impl Found {
    /// A record about keys that counts for nothing.
    fn of_key(object: String, damage: &Damage) -> Self {
        Self {
            severity: "repairable",
            object,
            problem: damage.to_string(),
            backups: Vec::new(),
            files: Vec::new(),
            files_more: 0,
        }
    }

    fn new(log: &LogName, finding: Finding) -> Self {
        Self {
            severity: match finding.severity {
                Severity::Repairable => "repairable",
                Severity::Lost => "lost",
            },
            object: finding.object,
            problem: finding.problem,
            backups: finding.backups.into_iter().map(|run| list::id(log, run)).collect(),
            files: finding.files.iter().map(ToString::to_string).collect(),
            files_more: finding.files_more,
        }
    }
}

/// What was looked at, and what was found.
#[derive(Default, Serialize)]
struct Checked {
    findings: Vec<Found>,
    /// What to do about them.
    hint: Option<&'static str>,
    backups: u64,
    packs: u64,
    packs_read: u64,
    bytes_read: u64,
    /// Of what was to be read, left for want of time or by --max-bytes.
    packs_left: u64,
    bytes_left: u64,
    /// Since when what was read longest ago was not read; never read, since it was written.
    unread_since: Option<Timestamp>,
    /// Of what backups need, what no check has ever read.
    never_read_packs: u64,
    never_read_bytes: u64,
    /// Why it is not recorded what was read.
    not_recorded: Option<String>,
    /// What was not looked at, because the key cannot read it.
    not_checked: Vec<&'static str>,
}

impl Checked {
    fn add(&mut self, log: &LogName, report: CheckReport) {
        if report.stops_runs {
            self.hint = Some(HISTORY_HINT);
        } else if report.findings.iter().any(|finding| finding.severity == Severity::Lost) {
            self.hint.get_or_insert(LOST_HINT);
        } else if !report.findings.is_empty() {
            self.hint.get_or_insert(REPAIR_HINT);
        }
        self.findings.extend(report.findings.into_iter().map(|finding| Found::new(log, finding)));
        self.backups += report.backups;
        self.packs += report.packs;
        self.packs_read += report.packs_read;
        self.bytes_read += report.bytes_read;
        self.packs_left += report.packs_left;
        self.bytes_left += report.bytes_left;
        let since = report.unread.since.and_then(|since| Timestamp::try_from(since).ok());
        self.unread_since = [self.unread_since, since].into_iter().flatten().min();
        self.never_read_packs += report.unread.never_packs;
        self.never_read_bytes += report.unread.never_bytes;
        self.not_recorded = self.not_recorded.take().or(report.not_recorded);
        for what in report.not_checked {
            if !self.not_checked.contains(&what) {
                self.not_checked.push(what);
            }
        }
    }
}

impl Render for Checked {
    fn render(&self, out: &mut String) -> fmt::Result {
        for found in &self.findings {
            writeln!(out, "{}: {}: {}", found.severity, found.object, found.problem)?;
            if !found.backups.is_empty() {
                text::fact(out, "  backups", found.backups.join(" "))?;
            }
            if !found.files.is_empty() {
                let mut files = found.files.join("\n");
                if found.files_more > 0 {
                    write!(files, "\nand {} more", found.files_more)?;
                }
                text::fact(out, "  files", files)?;
            }
        }
        let (backups, packs) = (text::count(self.backups, "backup"), text::count(self.packs, "pack"));
        write!(out, "checked {backups}, {packs}")?;
        if self.packs_read > 0 {
            write!(out, "; read {}, {}", text::count(self.packs_read, "pack"), ByteSize(self.bytes_read))?;
        }
        match self.findings.len() as u64 {
            0 => writeln!(out, ": no errors found"),
            n => writeln!(out, ": {}", text::count(n, "finding")),
        }?;
        if !self.not_checked.is_empty() {
            writeln!(out, "not checked, since it takes an operator's key:")?;
            for what in &self.not_checked {
                writeln!(out, "  {what}")?;
            }
        }
        if self.packs_left > 0 {
            let left = text::count(self.packs_left, "pack");
            writeln!(out, "{left}, {}, left for another time", ByteSize(self.bytes_left))?;
        }
        if let Some(since) = self.unread_since {
            let unread = text::unread(since, self.never_read_packs, self.never_read_bytes);
            writeln!(out, "{unread}")?;
        }
        if let Some(error) = &self.not_recorded {
            writeln!(out, "what was read is not recorded: {error}")?;
        }
        self.hint.map_or(Ok(()), |hint| out.write_str(&text::hint(hint)))
    }
}

pub(super) fn run(args: &CheckArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open(context)?);
    if repo.keys().role() == Role::Writer {
        repo.require(Act::Prune, "a check")?;
    }
    let chosen = CheckOptions::default();
    let memory = args.memory.bytes_or(&context.config.resources);
    let options = CheckOptions {
        memory_bytes: memory.unwrap_or(chosen.memory_bytes),
        read_data: args.read_data.map(|percent| percent.fraction()),
        seed: jiff::Timestamp::now().as_second().unsigned_abs(),
        unread_for: args.unread_for.map(|span| span.0),
        bytes_max: args.max_bytes.map(|size| size.0),
        time_max: args.max_time.map(|span| span.0),
        interrupt: context.cancel.interrupt(),
        steps: context.output.steps(),
        ..chosen
    };
    let mut logs = repo.logs()?;
    if let Some(name) = &args.name {
        logs.retain(|log| *name == log.source);
        if logs.is_empty() {
            return Err(Error::failed(format!("the repository holds nothing of {name}")));
        }
    }
    let began_at = Instant::now();
    let mut checked = Checked::default();
    checked
        .findings
        .extend(repo.key_problems().into_iter().map(|(object, damage)| Found::of_key(object, &damage)));
    for log in logs {
        context.cancel.check()?;
        let bytes_max = options.bytes_max.map(|most| most.saturating_sub(checked.bytes_read));
        let time_max = options.time_max.map(|most| most.saturating_sub(began_at.elapsed()));
        let options = CheckOptions { bytes_max, time_max, ..options.clone() };
        checked.add(&log, check(&repo, &log, options)?);
    }
    // What was asked for and could not be done is a finding, too.
    let is_done = checked.findings.is_empty() && (repo.can_read() || args.read_data.is_none());
    let exit = if is_done { Exit::Done } else { Exit::Finding };
    context.output.result(exit, &checked);
    Ok(exit)
}
