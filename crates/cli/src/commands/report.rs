//! `report`: shows the measurements of a run. A backup ends with the same figures.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use holdfast_core::{
    Context as _, ErrorKind, PhaseTime, Result,
    logical::{ReadFacts, ViewFacts},
    position::Position,
};
use holdfast_repo::Act;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Context, repository, select};
use crate::{
    args::{
        inspect::ReportArgs,
        units::{ByteSize, Span},
    },
    exit::Exit,
    output::{
        Render,
        text::{self, numbers, words},
    },
};

/// At most this many characters of a lock's statement are shown in a summary.
const LOCK_NAME_CHARS: usize = 32;

/// A stored report: the fields shown as text, and the `whole` that JSON output gets.
pub(super) struct Report {
    id: String,
    known: Known,
    whole: Value,
}

/// The fields shown as text. Reports by other versions may lack some of them.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Known {
    server_version: String,
    total_ms: u64,
    phases: Vec<PhaseTime>,
    stages: Vec<Stage>,
    position: Option<Position>,
    view: Option<ViewFacts>,
    read: ReadFacts,
    capture: Capture,
    locks: Vec<Lock>,
    totals: Totals,
    memory_bytes_max: u64,
    cpu_seconds: f64,
    compression: String,
}

#[derive(Deserialize)]
struct Stage {
    name: String,
    busy_ms: u64,
    bytes: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Capture {
    pages_read: u64,
    bytes_read: u64,
    pages_torn: u64,
    torn_reads: u64,
    pages_unverifiable: u64,
    pages_by_checksum: BTreeMap<String, u64>,
    files_recopied: u64,
    pages_recopied: u64,
    damaged_pages: Vec<DamagedPage>,
    redo_bytes: u64,
}

#[derive(Deserialize)]
struct DamagedPage {
    path: String,
    page: u64,
    table: Option<String>,
    index: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    statement: String,
    wait_ms: f64,
    held_ms: f64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Totals {
    files: u64,
    bytes: u64,
    bytes_new: u64,
    bytes_reused: u64,
    bytes_adopted: u64,
    bytes_rewritten: u64,
    bytes_stored: u64,
    packs: u64,
}

impl Serialize for Report {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Whole<'a> {
            id: &'a str,
            report: &'a Value,
        }
        Whole { id: &self.id, report: &self.whole }.serialize(serializer)
    }
}

impl Report {
    /// Parses a stored report.
    pub(super) fn new(id: String, whole: Value) -> Result<Self> {
        let known = Known::deserialize(&whole)
            .context_kind(ErrorKind::Damaged, format!("understand the report of {id}"))?;
        Ok(Self { id, known, whole })
    }

    /// The report as it is stored.
    pub(super) fn whole(&self) -> &Value {
        &self.whole
    }

    /// How many pages were stored as the server has them, damaged.
    pub(super) fn damaged_pages(&self) -> usize {
        self.known.capture.damaged_pages.len()
    }

    /// Writes the summary that ends a successful run: a few lines.
    pub(super) fn summary(&self, out: &mut String) -> fmt::Result {
        let Known { totals, capture, .. } = &self.known;
        text::fact(out, "server", &self.known.server_version)?;
        match &self.known.view {
            Some(_) => rows_fact(out, &self.known.read)?,
            None => {
                let files = text::count(totals.files, "file");
                text::fact(out, "data", format!("{} in {files}", ByteSize(totals.bytes)))?;
            }
        }
        let mut parts = vec![
            format!("{} new", ByteSize(totals.bytes_new)),
            format!("{} reused", ByteSize(totals.bytes_reused)),
        ];
        if totals.bytes_adopted > 0 {
            parts.push(format!("{} taken up from a run that did not finish", ByteSize(totals.bytes_adopted)));
        }
        if totals.bytes_rewritten > 0 {
            parts.push(format!("{} stored again", ByteSize(totals.bytes_rewritten)));
        }
        let what = if self.known.view.is_some() { "rows" } else { "pages" };
        text::fact(out, what, parts.join(", "))?;
        let packs = text::count(totals.packs, "pack");
        text::fact(
            out,
            "stored",
            format!("{} in {packs} ({})", ByteSize(totals.bytes_stored), self.known.compression),
        )?;
        match &self.known.view {
            Some(view) => view_facts(out, view)?,
            None => text::fact(out, "redo", ByteSize(capture.redo_bytes))?,
        }
        if let Some(position) = &self.known.position {
            position_facts(out, position)?;
        }
        if !self.known.locks.is_empty() {
            text::fact(out, "locks held", self.locks())?;
        }
        text::fact(out, "time", text::millis(self.known.total_ms))
    }

    /// Lists the locks, each by the words that tell it from the others.
    fn locks(&self) -> String {
        let short = |lock: &Lock| {
            let statement = lock.statement.strip_prefix("BACKUP STAGE ").unwrap_or(&lock.statement);
            let words: String = statement.chars().take(LOCK_NAME_CHARS).collect();
            format!("{words} {}", milliseconds(lock.held_ms))
        };
        self.known.locks.iter().map(short).collect::<Vec<_>>().join(", ")
    }
}

fn milliseconds(ms: f64) -> Span {
    Span(std::time::Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default())
}

/// Writes what a logical backup has read.
pub(super) fn rows_fact(out: &mut String, read: &ReadFacts) -> fmt::Result {
    let (rows, tables) = (text::count(read.rows, "row"), text::count(read.tables, "table"));
    let others = text::count(read.definitions, "other object");
    text::fact(out, "data", format!("{rows} in {tables}, {}; {others}", ByteSize(read.row_bytes)))
}

/// Writes what the consistent view guarantees.
pub(super) fn view_facts(out: &mut String, view: &ViewFacts) -> fmt::Result {
    text::fact(out, "view", &view.promise)?;
    for (name, tables) in [("not in the view", &view.inconsistent), ("without rows", &view.without_rows)] {
        if !tables.is_empty() {
            text::fact(out, name, tables.join(" "))?;
        }
    }
    if !view.misprinted_defaults.is_empty() {
        text::fact(out, "unsure defaults", view.misprinted_defaults.join(" "))?;
    }
    if !view.omitted.is_empty() {
        text::fact(out, "not in it", view.omitted.join(", "))?;
    }
    Ok(())
}

/// Writes the backup's replication position.
pub(super) fn position_facts(out: &mut String, position: &Position) -> fmt::Result {
    let precision = match position.precision {
        holdfast_core::position::Precision::Exact => "",
        holdfast_core::position::Precision::AtRestore => " (the restored server shows the exact one)",
    };
    if let Some(binlog) = &position.binlog {
        text::fact(out, "binlog", format!("{}:{}{precision}", binlog.file, binlog.offset))?;
    }
    if let Some(gtid) = position.gtid.as_ref().filter(|gtid| !gtid.is_empty()) {
        text::fact(out, "gtid", format!("{gtid}{precision}"))?;
    }
    text::fact(out, "lsn", position.lsn)
}

impl Render for Report {
    fn render(&self, out: &mut String) -> fmt::Result {
        let Known { capture, phases, stages, locks, .. } = &self.known;
        text::fact(out, "backup", &self.id)?;
        self.summary(out)?;
        let is_logical = self.known.view.is_some();
        let read = &self.known.read;
        let bytes_read = if is_logical { read.row_bytes } else { capture.bytes_read };
        let rate = u128::from(bytes_read) * 1000 / u128::from(self.known.total_ms.max(1));
        let rate = ByteSize(u64::try_from(rate).unwrap_or(u64::MAX));
        text::fact(out, "read", format!("{}, {rate}/s over all", ByteSize(bytes_read)))?;
        if is_logical {
            let how = format!(
                "by {} in {}, {}",
                text::count(read.readers, "connection"),
                text::count(read.ranges, "range"),
                text::count(read.statements, "statement")
            );
            text::fact(out, "readers", how)?;
        } else {
            let torn = format!(
                "{} of {} pages torn, {} reads again",
                capture.pages_torn, capture.pages_read, capture.torn_reads
            );
            text::fact(out, "checked", torn)?;
            let unverifiable = (capture.pages_unverifiable > 0)
                .then(|| format!("not verifiable {}", capture.pages_unverifiable));
            let known = capture.pages_by_checksum.iter().map(|(name, pages)| format!("{name} {pages}"));
            let checksums: Vec<_> = known.chain(unverifiable).collect();
            if !checksums.is_empty() {
                text::fact(out, "checksums", checksums.join(", "))?;
            }
        }
        let recopied = [(capture.files_recopied, "file"), (capture.pages_recopied, "page")];
        let recopied = recopied.into_iter().filter(|(count, _)| *count > 0);
        let recopied: Vec<_> = recopied.map(|(count, what)| text::count(count, what)).collect();
        if !recopied.is_empty() {
            text::fact(out, "ddl", format!("{} copied again", recopied.join(" and ")))?;
        }
        text::fact(out, "memory", ByteSize(self.known.memory_bytes_max))?;
        text::fact(out, "processor", milliseconds(self.known.cpu_seconds * 1e3))?;
        if !phases.is_empty() {
            writeln!(out)?;
            let rows: Vec<_> =
                phases.iter().map(|it| [it.name.to_string(), text::millis(it.ms).to_string()]).collect();
            text::table(out, &[words("PHASE"), numbers("TOOK")], &rows)?;
        }
        if !stages.is_empty() {
            writeln!(out)?;
            let row = |it: &Stage| {
                [it.name.clone(), text::millis(it.busy_ms).to_string(), ByteSize(it.bytes).to_string()]
            };
            let rows: Vec<_> = stages.iter().map(row).collect();
            text::table(out, &[words("STAGE"), numbers("BUSY"), numbers("BYTES")], &rows)?;
        }
        if !capture.damaged_pages.is_empty() {
            writeln!(out)?;
            let row = |it: &DamagedPage| {
                let name = |name: &Option<String>| name.clone().unwrap_or_default();
                [it.path.clone(), it.page.to_string(), name(&it.table), name(&it.index)]
            };
            let rows: Vec<_> = capture.damaged_pages.iter().map(row).collect();
            let columns = [words("DAMAGED ON THE SERVER"), numbers("PAGE"), words("TABLE"), words("INDEX")];
            text::table(out, &columns, &rows)?;
        }
        if !locks.is_empty() {
            writeln!(out)?;
            let row = |it: &Lock| {
                [
                    it.statement.clone(),
                    milliseconds(it.wait_ms).to_string(),
                    milliseconds(it.held_ms).to_string(),
                ]
            };
            let rows: Vec<_> = locks.iter().map(row).collect();
            text::table(out, &[words("LOCK"), numbers("WAITED"), numbers("HELD")], &rows)?;
        }
        Ok(())
    }
}

pub(super) fn run(args: &ReportArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = repository::open_for(context, Act::Read, "to show a report")?;
    let chosen = select::backup(context, &repo, &args.id, args.name.name.as_ref())?;
    let id = chosen.log().backup_id(chosen.run);
    let json = chosen.history.report(&repo, chosen.run)?;
    let whole = serde_json::from_slice(&json)
        .context_kind(ErrorKind::Damaged, format!("understand the report of {id}"))?;
    context.output.result(Exit::Done, &Report::new(id, whole)?);
    Ok(Exit::Done)
}
