//! Makes tables with their rows and indexes, in several sessions.
//!
//! The session that takes a table makes it, largest first. Its rows are loaded in units of some tens of
//! chunks, each unit one transaction that records itself. An idle session takes half of what is left of
//! another's stretch, so several sessions fill one table, each in key order. When the last unit is in, the
//! indexes are built at once, while others read the rows again.

mod encode;
mod queue;

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use holdfast_formats::Flavor;
use holdfast_pipe::lock::{into_inner, lock};
use holdfast_repo::{
    data::reader::{Backup, ReadRows},
    format::rows::RowTotals,
};

use super::{
    LoadOptions, computed,
    elements::{Element, ElementKind},
    link::Link,
    object::Stage,
    plan::{Adaptation, Plan, PlannedTable},
    progress::Progress,
    target::{Existing, Target, Way},
    verify::Verifying,
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Listener},
    logical::{
        catalog, crew,
        sql::quoted,
        stored::{definition::ColumnDefinition, rows::each_row},
    },
    meter::Meter,
    points::point,
    server::{
        SqlError,
        bulk::{
            self, Done, Feed, RawReader,
            for_many::{self, ForMany, ParameterType},
        },
        code::{NO_SUCH_TABLE_IN_ENGINE, NOT_OF_CHARSET},
    },
};

use queue::{Job, Queue, Unit};

/// Bytes that a statement needs besides its rows, with a margin.
const STATEMENT_SPARE_BYTES: usize = 1 << 10;
/// A statement with rows is ended at this length.
const STATEMENT_BYTES: usize = 1 << 20;

/// Warnings about a changed value: out of range, truncated, not of the type, without such a character, NULL
/// where none may be.
const CHANGED: [u16; 11] =
    [1048, 1263, 1264, NOT_IN_LIST, 1292, NOT_OF_CHARSET, 1366, 1411, 1406, 1977, 3854];
/// The warning about a value that is not in an enumeration.
const NOT_IN_LIST: u16 = 1265;
/// Warnings that mean no change to a row: deprecation, and that a binlog of statements may not record
/// everything.
const NO_CHANGE: [u16; 5] = [1287, 1592, 1681, 3719, 3778];

/// Errors for a half-made table: its tablespace is missing; the engine knows nothing of it.
const HALF_MADE: [u16; 2] = [1812, NO_SUCH_TABLE_IN_ENGINE];
/// Notes about an index made of the beginnings of values, or a text made of a short string.
const MADE_OTHERWISE: [u16; 2] = [1071, 1246];
/// Members of an enumeration are the same: they may have been on the source, in the same character set.
const SAME_MEMBERS: u16 = 1291;
/// Warnings that mean no difference: deprecation, a duplicate index or one of little use, rows that may turn
/// out too long (which will show), directories (which the plan names).
const MADE_ALL_THE_SAME: [u16; 9] = [139, 1287, 1618, 1681, 1831, 3674, 3719, 3778, 4079];

const DROP_TRIES: u32 = 3;

/// Passes on rows, one after the other, and returns their totals.
type EachRow<'a> = dyn FnMut(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<RowTotals> + 'a;

/// What was loaded.
#[derive(Clone, Debug, Default)]
pub(super) struct Loaded {
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// Whether rows were sent as parameters.
    pub(super) are_parameters: bool,
    /// Objects that the server has made differently than told, with only a warning.
    pub(super) adapted: Vec<Adaptation>,
}

/// A table's prepared `INSERT`, and the types of its parameters.
struct PreparedInsert {
    for_many: Box<dyn ForMany>,
    types: Vec<ParameterType>,
}

struct Loading<'a> {
    backup: &'a Backup,
    plan: &'a Plan,
    target: &'a Target,
    options: &'a LoadOptions,
    progress: &'a Progress,
    verifying: Option<&'a Verifying<'a>>,
    queue: Queue,
    meter: Meter<'a>,
    cancel: &'a Cancel,
    rows_done: AtomicU64,
    are_by_parameters: AtomicBool,
    adapted: Mutex<Vec<Adaptation>>,
}

/// Makes and fills all tables of the plan that are not done yet, and lets `verifying` read them meanwhile.
pub(super) fn load(
    backup: &Backup,
    plan: &Plan,
    (target, options): (&Target, &LoadOptions),
    progress: &Progress,
    verifying: Option<&Verifying<'_>>,
    control: &mut Link,
    (listener, cancel): (&dyn Listener, &Cancel),
) -> Result<Loaded> {
    let how = (options.chunks_per_commit.max(1), verifying.is_some());
    let (queue, bytes_total) = queue::Queue::new(plan, how, progress, &mut control.session)?;
    let loading = Loading {
        backup,
        plan,
        target,
        options,
        progress,
        verifying,
        queue,
        meter: Meter::new(listener, bytes_total),
        cancel,
        rows_done: AtomicU64::new(0),
        are_by_parameters: AtomicBool::new(false),
        adapted: Mutex::new(Vec::new()),
    };
    let workers = 0..options.parallel.clamp(1, super::link::SESSIONS_MAX);
    crew::all(
        workers,
        || loading.queue.fail(),
        |number| loading.work(&mut Link::open(options, target, number)?, number),
    )?;
    Ok(Loaded {
        rows: loading.rows_done.into_inner(),
        bytes: loading.meter.bytes_done(),
        are_parameters: loading.are_by_parameters.into_inner(),
        adapted: into_inner(loading.adapted),
    })
}

impl Loading<'_> {
    fn work(&self, link: &mut Link, worker: usize) -> Result<()> {
        catalog::configure(&mut link.session)?;
        let mut raw = RawReader::default();
        loop {
            self.cancel.check()?;
            let job = self.queue.next(worker);
            let number = match &job {
                Job::Make(table) | Job::Index(table) | Job::Divide(table) => *table,
                Job::Fill(unit) => unit.table,
                Job::Verify(range) => range.table,
                Job::Over => return Ok(()),
            };
            let table = &self.plan.tables[number];
            link.compute(self.target, !matches!(job, Job::Verify(_)))?;
            let named = |error: Error| error.context(format_args!("load table {}", table.name));
            match job {
                Job::Make(_) => {
                    self.make(link, table).map_err(named)?;
                    self.queue.made(worker, number);
                }
                Job::Fill(unit) => {
                    let totals = self.fill(link, table, &unit).map_err(named)?;
                    self.rows_done.fetch_add(totals.rows, Relaxed);
                    self.meter.add(totals.bytes);
                    self.queue.filled(worker, &unit);
                }
                Job::Index(_) => {
                    self.index(link, table).map_err(named)?;
                    self.queue.done();
                }
                Job::Divide(_) => {
                    let ranges = self.verifying.map(|verifying| verifying.divide_for_now(number));
                    self.queue.divided(ranges.transpose().map_err(named)?.unwrap_or_default());
                }
                Job::Verify(range) => {
                    if let Some(verifying) = self.verifying {
                        verifying.read(&mut link.session, &mut raw, &range)?;
                    }
                    self.queue.done();
                }
                Job::Over => return Ok(()),
            }
        }
    }

    /// Makes the table anew.
    fn make(&self, link: &mut Link, table: &PlannedTable) -> Result<()> {
        self.progress.fence(&mut link.session)?;
        if self.progress.stages[table.object] == Stage::Begun && !self.options.overwrite {
            self.refuse_others(link, table)?;
        }
        self.progress.forget_ranges(&mut link.session, table.object)?;
        let (place, overwrite) = ((self.target, table.object), self.options.overwrite);
        self.progress.make(link, place, overwrite, self.plan, |link, is_to_be_dropped| {
            link.enter(&table.name.schema)?;
            if is_to_be_dropped {
                let word = self.target.existing(&table.name.schema, &table.name.table);
                let word = word.map_or("TABLE", super::target::Existing::word);
                drop_patiently(link, word, table)?;
                if word != "TABLE" {
                    drop_patiently(link, "TABLE", table)?;
                }
            }
            let done = link.exec(&table.create(self.target.has_children(&table.name)))?;
            self.name_changes(link, table, done)
        })?;
        let quoted_name = table.name.quoted();
        for (column, literal) in &table.definition.defaults {
            let column = quoted(column);
            link.exec(
                format!("ALTER TABLE {quoted_name} ALTER COLUMN {column} SET DEFAULT {literal}").as_bytes(),
            )?;
        }
        point("load.table.made");
        // A table filled in one transaction needs no note of its own before.
        if table.is_transactional && table.chunks > self.options.chunks_per_commit {
            self.progress.note(&mut link.session, table.object, Stage::Made)?;
        }
        Ok(())
    }

    /// Refuses a table that someone else has made. A table with transactions that an earlier try was about to
    /// make has no rows yet: committed ones are noted with it. So one that has rows was made by someone else.
    fn refuse_others(&self, link: &mut Link, table: &PlannedTable) -> Result<()> {
        let name = &table.name;
        let Some(existing) = Target::existing_by_now(&mut link.session, self.target, name)? else {
            return Ok(());
        };
        let is_other = match existing {
            Existing::View | Existing::Sequence => true,
            Existing::Table if !table.is_transactional => false,
            Existing::Table => {
                match link.session.value(&format!("SELECT 1 FROM {} LIMIT 1", name.quoted())) {
                    Ok(row) => row.is_some(),
                    // No one can have used a table that a crash of the server has left half made.
                    Err(error) if error.code().is_some_and(|code| HALF_MADE.contains(&code)) => false,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        if !is_other {
            return Ok(());
        }
        Err(self.progress.leave_to_others(&mut link.session, table.object, self.plan)?)
    }

    /// Loads the rows of some chunks.
    fn fill(&self, link: &mut Link, table: &PlannedTable, unit: &Unit) -> Result<RowTotals> {
        let keys_wait = matches!(table.definition.engine.to_uppercase().as_str(), "MYISAM" | "ARIA");
        if keys_wait {
            link.exec(format!("ALTER TABLE {} DISABLE KEYS", table.name.quoted()).as_bytes())?;
        }
        link.session.exec("START TRANSACTION")?;
        if table.definition.has_history {
            link.session.exec("SET SESSION system_versioning_insert_history = 1")?;
        }
        let totals = if unit.first == unit.end || !table.has_rows() {
            RowTotals::default()
        } else {
            let is_usual = table.is_transactional && !table.definition.has_history;
            let prepared = match is_usual && self.target.way() == Way::Parameters {
                true => self.prepare(link, table)?,
                false => None,
            };
            let filled = match prepared {
                Some(prepared) => self.fill_by_parameters(link, table, unit, prepared)?,
                None => None,
            };
            match filled {
                Some(totals) => totals,
                None if is_usual && self.target.has_local_infile => {
                    self.in_bulk(link, table, &mut |each| self.read(table, unit, each))?
                }
                None => self.by_statements(link, table, &mut |each| self.read(table, unit, each))?,
            }
        };
        link.send_bytes(false)?;
        if table.definition.has_history {
            link.session.exec("SET SESSION system_versioning_insert_history = 0")?;
        }
        point("load.rows.sent");
        if unit.is_whole {
            let stage = if table.indexes().next().is_some() { Stage::Filled } else { Stage::Indexed };
            if keys_wait {
                link.session.exec("COMMIT")?;
                link.exec(format!("ALTER TABLE {} ENABLE KEYS", table.name.quoted()).as_bytes())?;
            }
            self.progress.note_in_transaction(&mut link.session, table.object, stage)?;
        } else {
            self.progress.note_range(&mut link.session, table.object, unit.first, unit.end)?;
        }
        point("load.rows.noted");
        link.session.exec("COMMIT")?;
        point("load.rows.committed");
        Ok(totals)
    }

    fn read(
        &self,
        table: &PlannedTable,
        unit: &Unit,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<RowTotals> {
        let reader = self.backup.table(&table.item).ok_or_else(|| Error::failed("it holds no rows"))?;
        let go_on = || {
            self.cancel.check()?;
            if self.queue.has_failed() {
                return Err(Error::failed("another session has failed"));
            }
            Ok(())
        };
        each_row(&reader, unit.first..unit.end, ReadRows::default(), &go_on, each)
    }

    /// Prepares the table's `INSERT`, if the server prepares one.
    fn prepare(&self, link: &mut Link, table: &PlannedTable) -> Result<Option<PreparedInsert>, SqlError> {
        let begin = encode::insert(table);
        let (places, types) = encode::places(table, self.target.flavor);
        let insert = (begin.as_str(), places.as_str());
        let bytes = (STATEMENT_BYTES, self.target.max_packet_bytes.saturating_sub(STATEMENT_SPARE_BYTES));
        let session = &mut link.session;
        let for_many = match self.target.flavor {
            Flavor::MariaDb => for_many::prepare_bulk(session, insert, bytes),
            Flavor::MySql => for_many::prepare_several(session, insert, &types, bytes, table.totals.rows),
        };
        Ok(for_many?.map(|for_many| PreparedInsert { for_many, types }))
    }

    /// Sends rows as parameters, so that the server neither looks for the ends of values nor takes escapes
    /// out of them. `None`: it refused the first of them, and takes none.
    fn fill_by_parameters(
        &self,
        link: &mut Link,
        table: &PlannedTable,
        unit: &Unit,
        PreparedInsert { mut for_many, types }: PreparedInsert,
    ) -> Result<Option<RowTotals>> {
        let mut rows_taken = 0;
        let mut is_refused = false;
        let mut send = |link: &mut Link, for_many: &mut dyn ForMany, taken: &mut u64| -> Result<()> {
            link.send_bytes(self.target.flavor == Flavor::MySql)?;
            loop {
                let done = for_many.exec(&mut link.session);
                let done =
                    done.inspect_err(|error| is_refused = *taken == 0 && for_many::is_refused(error))?;
                let Some(done) = done else { return Ok(()) };
                self.refuse_changes(link, table, done)?;
                *taken += done.rows;
            }
        };
        let read = self.read(table, unit, &mut |row| {
            let bytes = row.len() + size_of::<u64>() * types.len();
            if !for_many.has_room(bytes) {
                send(link, &mut *for_many, &mut rows_taken)?;
            }
            if bytes <= for_many.row_bytes_max() {
                return encode::parameters(&mut *for_many, &types, row);
            }
            // After the rows before it, and by a way that takes longer ones.
            send(link, &mut *for_many, &mut rows_taken)?;
            let mut once = |each: &mut dyn FnMut(&[u8]) -> Result<()>| {
                each(row)?;
                Ok(RowTotals { rows: 1, bytes: row.len() as u64, ..RowTotals::default() })
            };
            rows_taken += match self.target.has_local_infile {
                true => self.in_bulk(link, table, &mut once)?,
                false => self.by_statements(link, table, &mut once)?,
            }
            .rows;
            Ok(())
        });
        let sent = read.and_then(|totals| {
            send(link, &mut *for_many, &mut rows_taken)?;
            Ok(totals)
        });
        if is_refused {
            for_many.close(&mut link.session)?;
            return Ok(None);
        }
        let totals = sent?;
        for_many.close(&mut link.session)?;
        taken(rows_taken, totals)?;
        self.are_by_parameters.store(true, Relaxed);
        Ok(Some(totals))
    }

    fn in_bulk(&self, link: &mut Link, table: &PlannedTable, rows: &mut EachRow<'_>) -> Result<RowTotals> {
        link.send_bytes(false)?;
        let columns = &table.definition.columns;
        let statement = encode::load_data(table);
        let mut totals = RowTotals::default();
        let mut feed = |out: &mut Feed<'_>| -> Result<()> {
            totals = rows(&mut |row| {
                encode::line(out.buffer(), columns.len(), row)?;
                Ok(out.flush_full()?)
            })?;
            Ok(())
        };
        let packet_bytes = self.target.max_packet_bytes / 2;
        let done = bulk::load(&mut link.session, &statement, packet_bytes, &mut feed)?;
        taken(done.rows, totals)?;
        self.refuse_warnings(link, table, done)?;
        Ok(totals)
    }

    fn by_statements(
        &self,
        link: &mut Link,
        table: &PlannedTable,
        rows: &mut EachRow<'_>,
    ) -> Result<RowTotals> {
        link.send_bytes(false)?;
        let begin = encode::insert(table);
        let room = self.target.max_packet_bytes.saturating_sub(STATEMENT_SPARE_BYTES);
        let mut statement: Vec<u8> = Vec::new();
        let mut rows_taken = 0;
        let mut values = Vec::new();
        let mut send = |statement: &mut Vec<u8>| -> Result<()> {
            let done = link.exec(statement)?;
            self.refuse_changes(link, table, done)?;
            rows_taken += done.rows;
            statement.clear();
            statement.shrink_to(2 * STATEMENT_BYTES);
            Ok(())
        };
        let totals = rows(&mut |row| {
            values.clear();
            encode::values(&mut values, table, row)?;
            if begin.len() + values.len() > room {
                let text = format!("a row takes {} bytes in a statement", values.len());
                return Err(Error::new(ErrorKind::Server, text).hinted(
                    "raise the target's max_allowed_packet, up to 1G, then run the same command again",
                ));
            }
            if !statement.is_empty() && statement.len() + values.len() + 2 > room.min(STATEMENT_BYTES) {
                send(&mut statement)?;
            }
            statement.extend_from_slice(if statement.is_empty() { begin.as_bytes() } else { b",\n" });
            statement.extend_from_slice(&values);
            Ok(())
        })?;
        if !statement.is_empty() {
            send(&mut statement)?;
        }
        taken(rows_taken, totals)?;
        Ok(totals)
    }

    /// Fails the load if the server reports that it has changed a value and the rows are not read again; and
    /// at once if text goes into another character set, since what is computed from it is not read.
    fn refuse_changes(&self, link: &mut Link, table: &PlannedTable, done: Done) -> Result<()> {
        let is_read_again = self.options.verify;
        if is_read_again && !table.is_converted.contains(&true) {
            return Ok(());
        }
        self.look_at_warnings(link, table, done, |code| CHANGED.contains(&code))
    }

    /// `LOAD DATA LOCAL` cannot fail in the middle of what it is sent: anything that would be an error
    /// elsewhere is a warning, with a changed value or an omitted row. So any warning that may mean a change
    /// fails the load, whether rows are read again or not.
    fn refuse_warnings(&self, link: &mut Link, table: &PlannedTable, done: Done) -> Result<()> {
        self.look_at_warnings(link, table, done, |code| !NO_CHANGE.contains(&code))
    }

    fn look_at_warnings(
        &self,
        link: &mut Link,
        table: &PlannedTable,
        done: Done,
        is_change: impl Fn(u16) -> bool,
    ) -> Result<()> {
        if done.warnings == 0 {
            return Ok(());
        }
        let rows = link.session.rows("SHOW WARNINGS")?;
        let are_shown = rows.len() >= usize::from(done.warnings) && done.warnings < u16::MAX;
        let is_converted = table.is_converted.contains(&true);
        if !are_shown && (is_converted || !self.options.verify) {
            let text = format!("the server has {} warnings and shows {}", done.warnings, rows.len());
            return Err(Error::failed(text).hinted(match is_converted {
                true => "raise max_error_count on the target, up to 65535",
                false => "load without --no-verify: then rows are read again",
            }));
        }
        for row in &rows {
            let (code, message) = (row.number("Code")?, row.text("Message")?);
            // The value comes before the column's name.
            let place = message.rfind(" for column ").map_or("", |at| &message[at..]);
            let is_named = |column: &ColumnDefinition| {
                ['\'', '`'].iter().any(|quote| place.contains(&format!("{quote}{}{quote}", column.name)))
            };
            let is_member = |column: &ColumnDefinition| {
                ["enum", "set"].iter().any(|word| column.column_type.to_lowercase().starts_with(word))
                    && is_named(column)
            };
            // A value that is not in the list is stored exactly so.
            let is_stored = code == NOT_IN_LIST && table.definition.columns.iter().any(is_member);
            // Computed values may be rounded, as on the source; the result is compared with the rows.
            let may_be_computed =
                computed::is_any(&table.sql) && !table.definition.columns.iter().any(is_named);
            if may_be_computed && (self.options.verify || row.text("Level")? == "Note") {
                continue;
            }
            if is_change(code) && !is_stored {
                let what = if place.is_empty() { "rows" } else { "a value" };
                return Err(Error::failed(format!("the server has changed {what}{place} ({code})"))
                    .hinted("its columns on the target cannot hold the values in the backup"));
            }
        }
        Ok(())
    }

    /// Names what the server has made differently in a table.
    fn name_changes(&self, link: &mut Link, table: &PlannedTable, done: Done) -> Result<(), SqlError> {
        if done.warnings == 0 {
            return Ok(());
        }
        for row in &link.session.rows("SHOW WARNINGS")? {
            let code = row.number("Code")?;
            let is_warning = row.text("Level")? == "Warning" && !MADE_ALL_THE_SAME.contains(&code);
            let became_same = code == SAME_MEMBERS && !self.options.conversions.charsets.is_empty();
            if is_warning || became_same || MADE_OTHERWISE.contains(&code) {
                let object = format!("table {}", table.name);
                let adapted = Adaptation { object, what: row.text("Message")?.to_owned() };
                lock(&self.adapted).push(adapted);
            }
        }
        Ok(())
    }

    /// Builds the indexes that the table was made without.
    fn index(&self, link: &mut Link, table: &PlannedTable) -> Result<()> {
        self.progress.fence(&mut link.session)?;
        let there = super::foreign_keys::index_names(&mut link.session, &table.name)?;
        let missing =
            |index: &&Element| index.name.as_ref().is_none_or(|name| !there.contains(&name.to_lowercase()));
        for indexes in at_once(table.indexes().filter(missing)) {
            link.enter(&table.name.schema)?;
            let begin = format!("ALTER TABLE {} ", table.name.quoted());
            let done = link.exec_patiently(&[begin.as_bytes(), &indexes.join(&b", "[..])].concat())?;
            self.name_changes(link, table, done)?;
        }
        point("load.table.indexed");
        self.progress.note(&mut link.session, table.object, Stage::Indexed)
    }
}

/// The changes that add indexes, each with those that are built at once. InnoDB builds one full-text index at a
/// time; it copies the table for the first, and the other indexes are built in that copy.
fn at_once<'a>(indexes: impl Iterator<Item = &'a Element>) -> Vec<Vec<Vec<u8>>> {
    let (full_texts, others): (Vec<_>, Vec<_>) =
        indexes.partition(|index| index.kind == ElementKind::Fulltext);
    let add = |index: &Element| [b"ADD ", index.text.as_slice()].concat();
    let mut full_texts = full_texts.into_iter().map(add);
    let mut first: Vec<_> = others.into_iter().map(add).collect();
    first.extend(full_texts.next());
    let first = Some(first).filter(|first| !first.is_empty());
    first.into_iter().chain(full_texts.map(|index| vec![index])).collect()
}

/// Drops what is in the place of a table. A server that drops a table and those that lead to it at the same
/// time may have them wait for each other.
fn drop_patiently(link: &mut Link, word: &str, table: &PlannedTable) -> Result<(), SqlError> {
    let statement = format!("DROP {word} IF EXISTS {}", table.name.quoted());
    for _ in 1..DROP_TRIES {
        match link.exec(statement.as_bytes()) {
            Err(error) if error.is_lock_timeout() => {}
            dropped => return dropped.map(drop),
        }
    }
    link.exec(statement.as_bytes()).map(drop)
}

/// Checks that the server has taken all rows.
fn taken(rows: u64, sent: RowTotals) -> Result<()> {
    if rows == sent.rows {
        return Ok(());
    }
    Err(Error::failed(format!("the server has taken {rows} of {} rows", sent.rows)).hinted(
        "some rows are duplicates under one of its keys there: was the key changed, or does its collation differ?",
    ))
}
