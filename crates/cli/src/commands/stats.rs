//! `stats`: shows what takes up space.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use holdfast_core::{ErrorKind, Result, head::read_heads};
use holdfast_repo::{
    Act, Repo, RunNo,
    data::reader::Backup,
    format::manifest::Totals,
    log::{history::History, outcome::Outcome},
    ops::{
        compression::CodecBytes,
        space::{BackupSpace, Space},
    },
};
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, repository, select};
use crate::{
    args::{
        inspect::StatsArgs,
        units::{ByteSize, Span},
    },
    exit::Exit,
    output::{
        Render,
        text::{self, numbers, words},
    },
};

/// One backup.
#[derive(Serialize)]
struct BackupStats {
    id: String,
    finished_at: Timestamp,
    /// Size of its files.
    size_bytes: u64,
    /// Plain bytes that its run stored.
    new_bytes: u64,
    /// Bytes that these occupy in the repository.
    stored_bytes: u64,
    /// Stored bytes of everything it needs, approximately.
    needed_bytes: u64,
    /// Stored bytes that no other backup needs, approximately.
    own_bytes: u64,
}

/// How one codec has compressed the data of all packs, or the maps that lead to it.
#[derive(Serialize)]
struct CodecStats {
    codec: &'static str,
    content: &'static str,
    chunks: u64,
    plain_bytes: u64,
    /// Stored size, seals included.
    stored_bytes: u64,
    /// Plain bytes per stored byte.
    ratio: Option<f64>,
}

/// One table, or a file that belongs to none.
#[derive(Serialize)]
struct TableStats {
    name: String,
    files: u64,
    size_bytes: u64,
}

/// How a source grows.
#[derive(Serialize)]
struct Growth {
    /// Days between the first and the last backup.
    days: f64,
    /// Growth of the files; negative if they shrank.
    size_bytes: i64,
    /// Bytes stored by all backups except the first.
    stored_bytes: u64,
}

/// The backups of one kind of one source.
#[derive(Serialize)]
struct LogStats {
    source: String,
    kind: String,
    packs: u64,
    pack_bytes: u64,
    /// Bytes of packs that no backup needs; prune frees them.
    unneeded_bytes: u64,
    /// When a check last read the least recently read of the data that backups need.
    unread_since: Option<Timestamp>,
    never_read_packs: u64,
    never_read_bytes: u64,
    /// Plain bytes per stored byte, over all runs whose backups still exist.
    ratio: Option<f64>,
    codecs: Vec<CodecStats>,
    /// Packs that no index describes, and that are therefore missing in `codecs`.
    unlisted_packs: u64,
    unlisted_bytes: u64,
    growth: Option<Growth>,
    backups: Vec<BackupStats>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tables: Vec<TableStats>,
}

#[derive(Serialize)]
struct Stats {
    repository: String,
    sources: Vec<LogStats>,
}

pub(super) fn run(args: &StatsArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Read, "to show what takes up space")?);
    let mut sources = Vec::new();
    let mut exit = Exit::Done;
    for log in select::logs_named(&repo, args.name.as_ref())? {
        context.cancel.check()?;
        let history = select::salvaged(context, &repo, &log, &mut |_, _| {})?;
        match of_log(&repo, &history, args.tables, context) {
            Ok(stats) => sources.push(stats),
            // One damaged log does not hide the others.
            Err(error) if error.kind() == ErrorKind::Damaged => {
                exit = Exit::Finding;
                context.output.warning(format!("{log} is left out: {error}"));
            }
            Err(error) => return Err(error),
        }
    }
    context.output.result(exit, &Stats { repository: repo.store().location(), sources });
    Ok(exit)
}

fn of_log(repo: &Arc<Repo>, history: &History, tables: usize, context: &Context<'_>) -> Result<LogStats> {
    let space = Space::of(repo, history, &context.cancel.interrupt())?;
    let mut totals = Vec::new();
    let mut whole = Vec::new();
    let mut backups = Vec::new();
    let runs: Vec<RunNo> = space.backups.iter().map(|backup| backup.run).collect();
    let mut heads = Vec::new();
    read_heads(repo, history, &runs, |_, head| {
        heads.push(head?);
        context.cancel.check()
    })?;
    let newest_part = history.newest_taken().and_then(|run| history.outcome(run)?.part);
    for (BackupSpace { run, needed_bytes, own_bytes }, head) in space.backups.into_iter().zip(heads) {
        totals.push((head.finished_at, head.totals));
        // Neither another part of the server nor an import says how the server grows.
        let is_comparable = |outcome: &Outcome| {
            outcome.part == newest_part && outcome.can_be_continued() && !outcome.imported
        };
        if history.outcome(run).is_some_and(is_comparable) {
            whole.push((head.finished_at, head.totals));
        }
        backups.push(BackupStats {
            id: history.log().backup_id(run),
            finished_at: head.finished_at,
            size_bytes: head.totals.bytes,
            new_bytes: plain_bytes(&head.totals),
            stored_bytes: head.totals.bytes_stored,
            needed_bytes,
            own_bytes,
        });
    }
    let tables = match history.newest_taken().filter(|_| tables > 0) {
        Some(newest) => largest_tables(repo, history, newest, tables)?,
        None => Vec::new(),
    };
    let log = history.log();
    Ok(LogStats {
        source: log.source.to_string(),
        kind: log.kind.to_string(),
        packs: space.packs,
        pack_bytes: space.pack_bytes,
        unneeded_bytes: space.unneeded_bytes,
        unread_since: space.unread.since.and_then(|since| Timestamp::try_from(since).ok()),
        never_read_packs: space.unread.never_packs,
        never_read_bytes: space.unread.never_bytes,
        ratio: ratio_of_runs(&totals),
        codecs: space.compression.codecs.into_iter().map(CodecStats::from).collect(),
        unlisted_packs: space.compression.unlisted_packs,
        unlisted_bytes: space.compression.unlisted_bytes,
        growth: growth(&whole),
        backups,
        tables,
    })
}

/// Plain bytes of the pages that a run stored.
fn plain_bytes(totals: &Totals) -> u64 {
    totals.bytes_new.saturating_add(totals.bytes_rewritten)
}

fn ratio_of_runs(totals: &[(Timestamp, Totals)]) -> Option<f64> {
    let plain = totals.iter().map(|(_, totals)| plain_bytes(totals)).sum();
    ratio(plain, totals.iter().map(|(_, totals)| totals.bytes_stored).sum())
}

#[expect(clippy::cast_precision_loss, reason = "for reading only")]
fn ratio(plain_bytes: u64, stored_bytes: u64) -> Option<f64> {
    (stored_bytes > 0).then(|| plain_bytes as f64 / stored_bytes as f64)
}

impl From<CodecBytes> for CodecStats {
    fn from(of: CodecBytes) -> Self {
        Self {
            codec: of.codec.as_str(),
            content: of.content.as_str(),
            chunks: of.chunks,
            plain_bytes: of.plain_bytes,
            stored_bytes: of.stored_bytes,
            ratio: ratio(of.plain_bytes, of.stored_bytes),
        }
    }
}

fn growth(totals: &[(Timestamp, Totals)]) -> Option<Growth> {
    let [(first_at, first), later @ ..] = totals else { return None };
    let (last_at, last) = later.last()?;
    Some(Growth {
        days: text::duration(*first_at, *last_at).as_secs_f64() / 86_400.0,
        size_bytes: last.bytes.cast_signed().saturating_sub(first.bytes.cast_signed()),
        stored_bytes: later.iter().map(|(_, totals)| totals.bytes_stored).sum(),
    })
}

/// The largest tables of a backup; partitions and all files of a table are added up.
fn largest_tables(repo: &Arc<Repo>, history: &History, run: RunNo, count: usize) -> Result<Vec<TableStats>> {
    let mut tables: BTreeMap<String, TableStats> = BTreeMap::new();
    for item in Backup::open(repo, history, run)?.items() {
        let item = item?;
        let path = String::from_utf8_lossy(item.path.as_bytes());
        let name = item.table().unwrap_or_else(|| path.into_owned());
        let stats = tables.entry(name).or_insert_with_key(|name| TableStats {
            name: name.clone(),
            files: 0,
            size_bytes: 0,
        });
        stats.files += 1;
        stats.size_bytes = stats.size_bytes.saturating_add(item.size_bytes);
    }
    let mut tables: Vec<_> = tables.into_values().collect();
    tables.sort_by_key(|table| std::cmp::Reverse(table.size_bytes));
    tables.truncate(count);
    Ok(tables)
}

impl Render for Stats {
    fn render(&self, out: &mut String) -> fmt::Result {
        if self.sources.is_empty() {
            return writeln!(out, "no backups");
        }
        for (number, source) in self.sources.iter().enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            source.render(out)?;
        }
        if let [_, _, ..] = self.sources.as_slice() {
            let bytes = self.sources.iter().map(|source| source.pack_bytes).sum();
            writeln!(out, "\n{} stored in all", ByteSize(bytes))?;
        }
        Ok(())
    }
}

impl LogStats {
    fn render(&self, out: &mut String) -> fmt::Result {
        let backups = text::count(self.backups.len() as u64, "backup");
        let packs = text::count(self.packs, "pack");
        writeln!(out, "{}/{}: {backups}, {} in {packs}", self.source, self.kind, ByteSize(self.pack_bytes))?;
        if self.unneeded_bytes > 0 {
            writeln!(out, "  no backup needs {} of that: prune frees it", ByteSize(self.unneeded_bytes))?;
        }
        if let Some(since) = self.unread_since {
            let unread = text::unread(since, self.never_read_packs, self.never_read_bytes);
            writeln!(out, "  {unread}")?;
        }
        if let Some(ratio) = self.ratio {
            writeln!(out, "  compression ratio {ratio:.1} (bytes of pages per stored byte)")?;
        }
        if let Some(growth) = &self.growth {
            let became = if growth.size_bytes < 0 { "smaller" } else { "larger" };
            let size = ByteSize(growth.size_bytes.unsigned_abs());
            let stored = ByteSize(growth.stored_bytes);
            let time = Span(Duration::from_secs_f64(growth.days * 86_400.0));
            writeln!(out, "  in {time}: files {size} {became}, {stored} stored")?;
        }
        let columns = [
            words("ID"),
            words("TIME (UTC)"),
            numbers("SIZE"),
            numbers("NEW"),
            numbers("STORED"),
            numbers("NEEDS"),
            numbers("FREES"),
        ];
        let bytes = |bytes| ByteSize(bytes).to_string();
        let rows: Vec<_> = self
            .backups
            .iter()
            .map(|backup| {
                [
                    backup.id.clone(),
                    text::instant(backup.finished_at),
                    bytes(backup.size_bytes),
                    bytes(backup.new_bytes),
                    bytes(backup.stored_bytes),
                    bytes(backup.needed_bytes),
                    bytes(backup.own_bytes),
                ]
            })
            .collect();
        text::table(out, &columns, &rows)?;
        self.render_codecs(out)?;
        if !self.tables.is_empty() {
            writeln!(out)?;
            let rows: Vec<_> = self
                .tables
                .iter()
                .map(|table| [table.name.clone(), table.files.to_string(), bytes(table.size_bytes)])
                .collect();
            text::table(out, &[words("TABLE"), numbers("FILES"), numbers("SIZE")], &rows)?;
        }
        Ok(())
    }

    fn render_codecs(&self, out: &mut String) -> fmt::Result {
        if self.unlisted_packs > 0 {
            let packs = text::count(self.unlisted_packs, "pack");
            let bytes = ByteSize(self.unlisted_bytes);
            writeln!(out, "\n  not included: {packs}, {bytes}, which no index describes")?;
        } else if !self.codecs.is_empty() {
            writeln!(out)?;
        }
        if self.codecs.is_empty() {
            return Ok(());
        }
        let columns = [
            words("CODEC"),
            words("OF"),
            numbers("CHUNKS"),
            numbers("PLAIN"),
            numbers("STORED"),
            numbers("RATIO"),
        ];
        let rows: Vec<_> = self
            .codecs
            .iter()
            .map(|of| {
                [
                    of.codec.to_owned(),
                    of.content.to_owned(),
                    of.chunks.to_string(),
                    ByteSize(of.plain_bytes).to_string(),
                    ByteSize(of.stored_bytes).to_string(),
                    of.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                ]
            })
            .collect();
        text::table(out, &columns, &rows)
    }
}
