//! `binlog list`: what is archived, what is missing, which period is recoverable; also finds
//! transactions by time or text.

use std::{
    fmt::{self, Write as _},
    ops::ControlFlow,
};

use holdfast_core::{
    Result,
    binlog::{Archive, ArchivedStretch, Chain, Gap, Search, TransactionSummary, Unreadable},
    server::ServerVersion,
};
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, instant, open_archive};
use crate::{
    args::{binlog::ListArgs, units::ByteSize},
    exit::Exit,
    output::{
        Render,
        text::{self, numbers, words},
    },
};

/// Consecutive stretches of one file, joined.
#[derive(Serialize)]
struct FileShown {
    file: String,
    begin: u64,
    end: u64,
    size_bytes: u64,
    transactions: u64,
    first_at: Option<Timestamp>,
    last_at: Option<Timestamp>,
    first_gtid: Option<String>,
    last_gtid: Option<String>,
    server: ServerVersion,
    hostname: String,
    runs: Vec<u64>,
    /// Whether the file may still grow.
    live: bool,
    gap: Option<Gap>,
    /// The settings, with their values, by which the server left transactions out of this file.
    leaves_out: Option<String>,
}

impl FileShown {
    fn new(archived: &ArchivedStretch) -> Self {
        let stretch = &archived.stretch;
        Self {
            file: stretch.file.clone(),
            begin: stretch.begin,
            end: archived.ends_at().position,
            size_bytes: stretch.bytes,
            transactions: stretch.transactions,
            first_at: stretch.first_at.map(instant),
            last_at: stretch.last_at.map(instant),
            first_gtid: stretch.first_gtid.clone(),
            last_gtid: stretch.last_gtid.clone(),
            server: stretch.server.version.clone(),
            hostname: stretch.server.hostname.clone(),
            runs: vec![archived.run.0],
            live: archived.is_live,
            gap: archived.gap.clone(),
            leaves_out: stretch.leaves_out.clone(),
        }
    }

    /// Appends `next` if it continues this one; returns `false` otherwise.
    fn join(&mut self, next: &Self) -> bool {
        let goes_on = next.gap.is_none()
            && self.file == next.file
            && self.end == next.begin
            && self.leaves_out == next.leaves_out;
        if goes_on {
            self.end = next.end;
            self.size_bytes += next.size_bytes;
            self.transactions += next.transactions;
            self.first_at = self.first_at.or(next.first_at);
            self.last_at = next.last_at.or(self.last_at);
            self.first_gtid = self.first_gtid.take().or_else(|| next.first_gtid.clone());
            self.last_gtid = next.last_gtid.clone().or_else(|| self.last_gtid.take());
            self.runs
                .extend(next.runs.iter().filter(|run| !self.runs.contains(run)).copied().collect::<Vec<_>>());
            self.live |= next.live;
        }
        goes_on
    }

    fn row(&self) -> [String; 8] {
        let time = |at: Option<Timestamp>| at.map(text::instant).unwrap_or_default();
        [
            self.file.clone(),
            self.begin.to_string(),
            self.end.to_string(),
            ByteSize(self.size_bytes).to_string(),
            self.transactions.to_string(),
            time(self.first_at),
            time(self.last_at),
            self.last_gtid.clone().unwrap_or_default(),
        ]
    }
}

/// A recoverable period.
#[derive(Serialize)]
struct Recoverable {
    /// The oldest physical backup from which the archive is complete.
    from: String,
    from_at: Timestamp,
    /// The latest time that can be recovered to.
    until_at: Option<Timestamp>,
    /// How long ago `until_at` was, by this host's clock: anything committed since is lost if the server is.
    until_age_s: Option<u64>,
    until_file: String,
    until_position: u64,
}

#[derive(Serialize)]
struct Listed {
    source: String,
    files: Vec<FileShown>,
    gaps: Vec<Gap>,
    /// Runs that have not ended as backups, with segments that cannot be read.
    unreadable: Vec<Unreadable>,
    recoverable: Vec<Recoverable>,
}

impl Render for Listed {
    fn render(&self, out: &mut String) -> fmt::Result {
        for it in &self.unreadable {
            writeln!(
                out,
                "UNREADABLE: {}; what run #{} has after it is not listed",
                text::one_line(&it.problem),
                it.run
            )?;
        }
        if self.files.is_empty() {
            return writeln!(out, "nothing is archived of {}", self.source);
        }
        let columns = [
            words("FILE"),
            numbers("FROM"),
            numbers("TO"),
            numbers("SIZE"),
            numbers("TRANSACTIONS"),
            words("FIRST (UTC)"),
            words("LAST (UTC)"),
            words("LAST GTID"),
        ];
        let mut rows = Vec::new();
        let mut leaves_out = None;
        for file in &self.files {
            let is_filtered = file.leaves_out.is_some() && file.leaves_out != leaves_out;
            if !rows.is_empty() && (file.gap.is_some() || is_filtered) {
                text::table(out, &columns, &std::mem::take(&mut rows))?;
            }
            if let Some(gap) = &file.gap {
                writeln!(out, "GAP: {}", text::one_line(&gap.text))?;
            }
            if let Some(filters) = file.leaves_out.as_ref().filter(|_| is_filtered) {
                writeln!(out, "LEFT OUT by the server: {}", text::one_line(filters))?;
            }
            leaves_out.clone_from(&file.leaves_out);
            rows.push(file.row());
        }
        text::table(out, &columns, &rows)?;
        if self.recoverable.is_empty() {
            writeln!(
                out,
                "a restore can replay nothing: no backup of the whole server is kept from which the archive \
                 continues"
            )?;
        }
        for part in &self.recoverable {
            let from = text::instant(part.from_at);
            let until = part.until_at.filter(|until| *until >= part.from_at);
            let Some(until) = until.map(text::instant) else {
                writeln!(out, "recoverable: {from} ({}), and no later time yet", part.from)?;
                continue;
            };
            write!(
                out,
                "recoverable from {from} ({}) until {until} ({}:{})",
                part.from, part.until_file, part.until_position
            )?;
            match part.until_age_s {
                Some(1) => writeln!(out, ", 1 second ago")?,
                Some(seconds) => writeln!(out, ", {seconds} seconds ago")?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    }
}

fn recoverable(archive: &Archive, chain: &Chain) -> Option<Recoverable> {
    // From one that excludes something, not every moment may be recoverable.
    let base = chain.bases.iter().find(|base| !base.excludes).or(chain.bases.first())?;
    let until_at = archive.recoverable_until(chain).map(instant);
    let age = until_at.map(|until| Timestamp::now().duration_since(until).as_secs());
    Some(Recoverable {
        from: base.id.clone(),
        from_at: base.at,
        until_at,
        until_age_s: age.map(|seconds| u64::try_from(seconds).unwrap_or(0)),
        until_file: chain.end.file.clone(),
        until_position: chain.end.position,
    })
}

pub(super) fn run(args: &ListArgs, context: &Context<'_>) -> Result<Exit> {
    let archive = open_archive(context, &args.name, "to look into the archive")?;
    if args.around.is_some() || args.grep.is_some() {
        return find(args, &archive, context);
    }
    let mut files: Vec<FileShown> = Vec::new();
    for archived in archive.stretches() {
        let next = FileShown::new(archived);
        if !files.last_mut().is_some_and(|last| last.join(&next)) {
            files.push(next);
        }
    }
    let gaps: Vec<Gap> = files.iter().filter_map(|file| file.gap.clone()).collect();
    let chains = archive.chains()?;
    let recoverable = chains.iter().filter_map(|chain| recoverable(&archive, chain)).collect();
    let unreadable = archive.unreadable().to_vec();
    let exit = if gaps.is_empty() && unreadable.is_empty() { Exit::Done } else { Exit::Finding };
    let source = archive.log().source.to_string();
    context.output.result(exit, &Listed { source, files, gaps, unreadable, recoverable });
    Ok(exit)
}

/// A transaction that matches the search.
#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    summary: TransactionSummary,
    committed_at: Timestamp,
}

impl Render for Found {
    fn render(&self, out: &mut String) -> fmt::Result {
        const STATEMENT_CHARS: usize = 200;
        let summary = &self.summary;
        let file = text::one_line(&summary.file);
        write!(out, "{:.6}  {file}:{}", self.committed_at, summary.begin)?;
        if let Some(gtid) = &summary.gtid {
            write!(out, "  {gtid}")?;
        }
        if !summary.tables.is_empty() {
            write!(out, "  {}", text::one_line(&summary.tables.join(" ")))?;
        }
        writeln!(out, "  {}", ByteSize(summary.bytes))?;
        for statement in &summary.statements {
            let mut line: String = statement.chars().take(STATEMENT_CHARS).collect();
            line = line.split_whitespace().collect::<Vec<_>>().join(" ");
            writeln!(out, "    {line}")?;
        }
        let more = summary.statement_count - summary.statements.len() as u64;
        if more > 0 {
            writeln!(out, "    and {} more", text::count(more, "statement"))?;
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Count {
    source: String,
    transactions: u64,
    /// The requested period, if no transaction falls into it.
    #[serde(skip)]
    none_between: Option<(Timestamp, Timestamp)>,
    /// The nearest time at which a stretch of the archive begins or ends.
    #[serde(skip)]
    nearest: Option<Timestamp>,
}

impl Render for Count {
    fn render(&self, out: &mut String) -> fmt::Result {
        write!(out, "{}", text::count(self.transactions, "transaction"))?;
        if let Some((from, to)) = self.none_between {
            write!(out, " between {} and {} (UTC)", text::instant(from), text::instant(to))?;
            if let Some(nearest) = self.nearest {
                write!(out, "; the nearest archived time is {}", text::instant(nearest))?;
            }
        }
        writeln!(out)
    }
}

fn find(args: &ListArgs, archive: &Archive, context: &Context<'_>) -> Result<Exit> {
    let (from_us, to_us) = match args.around {
        Some(around) => {
            let at = u64::try_from(around.0.as_microsecond()).unwrap_or(0);
            let window = u64::try_from(args.window.0.as_micros()).unwrap_or(u64::MAX);
            (at.saturating_sub(window), at.saturating_add(window))
        }
        None => (0, u64::MAX),
    };
    let mut transactions = 0;
    let search = Search { from_us, to_us, text: args.grep.clone() };
    archive.summaries(&search, &mut |summary| {
        context.cancel.check()?;
        transactions += 1;
        let committed_at = instant(summary.at);
        context.output.item(&Found { summary, committed_at });
        Ok(ControlFlow::Continue(()))
    })?;
    let none_between = args.around.filter(|_| transactions == 0).map(|_| (instant(from_us), instant(to_us)));
    let middle_us = from_us.midpoint(to_us);
    let ends =
        archive.stretches().iter().flat_map(|archived| [archived.stretch.first_at, archived.stretch.last_at]);
    let nearest = ends.flatten().min_by_key(|at| at.abs_diff(middle_us)).map(instant);
    let source = archive.log().source.to_string();
    context.output.result(Exit::Done, &Count { source, transactions, none_between, nearest });
    Ok(Exit::Done)
}
