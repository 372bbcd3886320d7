//! Takes a logical backup: [`run`] is the outline. Reach the server → begin a run → make the view → read definitions
//! and rows → complete. Nothing is visible before the outcome.

use std::sync::{Arc, Mutex};

use holdfast_pipe::{
    Headroom,
    lock::{into_inner, lock},
};
use holdfast_repo::{
    Kind, LogName, Repo,
    local_maps::LocalMaps,
    manifest::{HEAD_SCHEMA, Head},
    run::{Ending, Run},
    writer::{BackupWriter, FinishedData, WriterMeters},
};
use serde_json::{Map, Value};

use super::{
    definition::{Definition, Rows, ServerDefinition},
    import::{IMPORT, Origin},
    objects::{self, TableKind},
    reading::{self, ReadTables},
    report::{LogicalReport, REPORT_SCHEMA, ReadFacts, TableFacts, ViewFacts},
    selection::Selection,
    tables::Table,
    view::{Method, View, Wanted},
};
use crate::{
    backup::{
        BackupOptions, NEW_IDENTITY, Watch, default_name, foundation, identity, item_path, keep_maps,
        kept_maps, ms, object, stage_times, writer_options,
    },
    error::{Context, Error, Result},
    event::{Cancel, Event, Listener},
    points::point,
    server::{LockLimits, LockRecord, Purpose, ServerFacts, ServerVersion, Session, stale},
};

/// So often the view is begun again because the way to the server broke.
const WAYS_MAX: u32 = 3;
/// Tables named in a report.
const LARGEST_COUNT: usize = 20;
/// Flag of a backup that was another tool's dump.
const IMPORTED: &str = "imported";
/// Tables named in a warning.
const NAMES_SHOWN_MAX: usize = 5;

/// What was taken, before it is published.
struct Taken {
    facts: ServerFacts,
    position: Option<crate::physical::Position>,
    view: ViewFacts,
    read: ReadFacts,
    largest: Vec<TableFacts>,
    locks: Vec<LockRecord>,
}

/// Takes a logical backup of what is selected.
pub fn run(
    repo: &Arc<Repo>,
    options: &BackupOptions,
    selection: &Selection,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<LogicalReport> {
    let result = reach_and_run(repo, options, selection, None, listener, cancel);
    result.map_err(|error| options.connect.explain_loss(error).at(repo))
}

/// Takes what a dump has become on a private server: `options` lead there, and say whose history it belongs to.
pub(super) fn of_import(
    repo: &Arc<Repo>,
    options: &BackupOptions,
    selection: &Selection,
    origin: &Origin,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<LogicalReport> {
    reach_and_run(repo, options, selection, Some(origin), listener, cancel)
}

fn reach_and_run(
    repo: &Arc<Repo>,
    options: &BackupOptions,
    selection: &Selection,
    origin: Option<&Origin>,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<LogicalReport> {
    let watch = Watch::new(listener);
    watch.phase("reach");
    let mut control = Session::open(&options.connect, Purpose::Control)?;
    let facts = ServerFacts::probe(&mut control)?;
    for other in stale::other_sessions(&mut control, &options.connect.run)? {
        let text = format!("{other} is still there: another run, or one that has just died");
        watch.event(Event::Warning { text });
    }
    let name = match &options.name {
        Some(name) => name.clone(),
        None => default_name(&facts)?,
    };
    let log = LogName { source: name, kind: Kind::Logical };
    // A dump does not prove of which server it is. Its history stays that of the server that it was of.
    let mut origin = origin.cloned();
    let is_another = match &mut origin {
        Some(origin) => {
            origin.identity_before = identity::known(repo, &log, options)?;
            false
        }
        None => identity::check(repo, &log, &facts.identity, options, &watch)?,
    };
    let text = format!("{} at {}", facts.version, facts.identity.hostname);
    watch.event(Event::Note { text });
    let mut run = Run::begin(repo, &log, &options.run)?;
    point("logical.run.begun");
    if origin.is_some() {
        run.set_imported();
    }
    let mut flags = if is_another { vec![NEW_IDENTITY.to_owned()] } else { Vec::new() };
    flags.extend(origin.iter().map(|_| IMPORTED.to_owned()));
    let taking = Taking { options, selection, origin: origin.as_ref(), watch: &watch, cancel };
    let result = taking.complete(&mut run, control, facts, flags);
    // What another has ended may miss its base by now: that is not what went wrong.
    let result = result.map_err(|error| run.lost().map_or(error, Error::from));
    if let Err(error) = &result {
        // Frees the source for the next run at once; should it fail, the lease runs out by itself.
        drop(run.abandon(&error.to_string()));
    }
    result
}

struct Taking<'a> {
    options: &'a BackupOptions,
    selection: &'a Selection,
    /// Of what is imported.
    origin: Option<&'a Origin>,
    watch: &'a Watch<'a>,
    cancel: &'a Cancel,
}

impl Taking<'_> {
    fn complete(
        self,
        run: &mut Run,
        control: Session,
        facts: ServerFacts,
        flags: Vec<String>,
    ) -> Result<LogicalReport> {
        let local = kept_maps(run.repo(), run.log(), self.options)?;
        let foundation = foundation(run, local.as_ref(), self.options, self.watch);
        let base = foundation.base;
        let writer = BackupWriter::new(
            run,
            &foundation,
            writer_options(self.options, Arc::new(Headroom::beside_server())),
        )?;
        let taken = self.take(control, facts, &writer);
        let taken = taken.map_err(|error| writer.failure().map_or(error, Error::from))?;
        self.watch.phase("complete");
        let meters = Arc::clone(writer.meters());
        let finished = writer.finish(run)?;
        point("logical.data.durable");
        self.cancel.check()?;
        self.publish(run, taken, base.map(|base| base.0), flags, finished, &meters, local.as_deref())
    }

    /// From the view to the last row.
    fn take(&self, mut control: Session, facts: ServerFacts, writer: &BackupWriter) -> Result<Taken> {
        self.watch.phase("view");
        let wanted = Wanted {
            connect: &self.options.connect,
            selection: self.selection,
            readers: self.options.parallel.max(1),
            limits: LockLimits { wait_max: self.options.lock_wait, held_max: Some(self.options.lock_max) },
            tries: self.options.lock_tries,
        };
        let mut ways_left = WAYS_MAX;
        let mut view = loop {
            match View::open(&mut control, &wanted, self.watch, self.cancel) {
                // Nothing is read yet: what broke can be made again.
                Err(error) if ways_left > 0 && self.options.connect.has_broken_tunnel() => {
                    ways_left -= 1;
                    let error = self.options.connect.explain_loss(error);
                    let text = format!("the way to the server is lost, trying again: {error}");
                    self.watch.event(Event::Warning { text });
                    self.cancel.check()?;
                    control = Session::open_patiently(&self.options.connect, Purpose::Control)?;
                }
                outcome => break outcome?,
            }
        };
        let text = format!("{} of one view: {}", connections(view.readers.len()), view.method.promise());
        self.watch.event(Event::Note { text });
        point("logical.view.made");
        let mut tables = std::mem::take(&mut view.tables);
        let facts_of_view = self.judge(&view, &mut tables);
        // Before the rows, which may take so long that the server gives this session up.
        self.watch.phase("definitions");
        let definitions = self.definitions(&mut control, &view, &facts, writer)?;
        drop(control);
        self.watch.phase("rows");
        let mut readers = std::mem::take(&mut view.readers);
        let view = Mutex::new(view);
        let release = || lock(&view).release_tables(self.watch);
        let read = reading::read(&tables, &mut readers, writer, &release, self.watch, self.cancel)?;
        let view = into_inner(view);
        let (position, readers_count) = (view.position.clone(), readers.len() as u64);
        let mut locks = view.close(self.watch)?;
        if self.origin.is_some() {
            // Nobody waited for them.
            locks.clear();
        }
        Ok(Taken {
            // Of an imported dump, what it says stands with its origin.
            position: position.filter(|_| self.origin.is_none()),
            view: facts_of_view,
            read: ReadFacts { definitions, readers: readers_count, ..read_facts(&read) },
            largest: largest(&tables, &read),
            locks,
            facts,
        })
    }

    /// Says which tables are not what a reader would expect, in the events and in the backup.
    fn judge(&self, view: &View, tables: &mut [Table]) -> ViewFacts {
        // What a private server shows is of one moment; whether the dump was, it does not say.
        let method = if self.origin.is_some() { Method::Imported } else { view.method };
        let mut facts = ViewFacts {
            method,
            promise: method.promise().to_owned(),
            inconsistent: Vec::new(),
            without_rows: Vec::new(),
        };
        for table in tables {
            let rows = &mut table.definition.rows;
            if *rows == Rows::Locked && !view.method.can_lock_tables() {
                *rows = Rows::Inconsistent;
            }
            match rows {
                Rows::Inconsistent => facts.inconsistent.push(table.name.to_string()),
                Rows::None => facts.without_rows.push(table.name.to_string()),
                Rows::Consistent | Rows::Locked => {}
            }
        }
        for (names, what) in [
            (&facts.inconsistent, "could not be locked, and are not of the moment of the view"),
            (&facts.without_rows, "hold no rows of their own here: only their definitions are saved"),
        ] {
            if !names.is_empty() {
                self.watch.event(Event::Warning { text: format!("tables that {what}: {}", shown(names)) });
            }
        }
        facts
    }

    /// Everything that is not a table. Returns how many there are.
    fn definitions(
        &self,
        control: &mut Session,
        view: &View,
        facts: &ServerFacts,
        writer: &BackupWriter,
    ) -> Result<u64> {
        let mut count = 0;
        let mut store = |definition: &Definition| -> Result<()> {
            let names = definition.names();
            let path = item_path(names.iter().map(|name| name.as_bytes()))?;
            let json = serde_json::to_vec(definition).context("describe a definition")?;
            count += 1;
            writer.definition(path, definition.kind(), &json).map_err(Error::from)
        };
        store(&Definition::Server(ServerDefinition {
            flavor: facts.flavor(),
            version: self.version(facts),
            lower_case_table_names: facts.sql.lower_case_table_names,
        }))?;
        for definition in &view.programs {
            store(definition)?;
        }
        for listed in view.listing.tables.iter().filter(|listed| listed.kind == TableKind::Sequence) {
            store(&Definition::Sequence(objects::sequence(control, &listed.name)?))?;
        }
        Ok(count)
    }

    /// The server's version as it calls itself. Of an imported dump it is the dumped server's, if the private one is of the same:
    /// they may tell more of themselves than that.
    fn version(&self, facts: &ServerFacts) -> String {
        let dumped = self.origin.and_then(|origin| origin.server_version.as_deref());
        let is_same = |text: &&str| {
            let dumped = ServerVersion::parse(text);
            dumped
                .is_some_and(|it| (it.flavor, it.number()) == (facts.version.flavor, facts.version.number()))
        };
        dumped.filter(is_same).map_or_else(|| facts.version.text.clone(), str::to_owned)
    }

    #[allow(clippy::too_many_arguments, reason = "each is a part of the backup")]
    fn publish(
        &self,
        run: &mut Run,
        taken: Taken,
        base: Option<u64>,
        flags: Vec<String>,
        finished: FinishedData,
        meters: &WriterMeters,
        local: Option<&LocalMaps>,
    ) -> Result<LogicalReport> {
        let finished_at = jiff::Timestamp::now();
        let started_at =
            finished_at - jiff::SignedDuration::try_from(self.watch.elapsed()).unwrap_or_default();
        let mut more = Map::new();
        more.insert("view".to_owned(), Value::Object(object(&taken.view)?));
        more.insert("read".to_owned(), Value::Object(object(&taken.read)?));
        let mut server = object(&taken.facts)?;
        if let Some(origin) = self.origin {
            more.insert(IMPORT.to_owned(), Value::Object(object(origin)?));
            // The private server's, which is gone.
            server.remove("identity");
            server.remove("paths");
        }
        let head = Head {
            schema: HEAD_SCHEMA,
            run: run.no().0,
            source: run.log().source.to_string(),
            kind: run.log().kind.to_string(),
            method: "logical".to_owned(),
            started_at,
            finished_at,
            tags: self.options.tags.clone(),
            server,
            redo: None,
            position: taken.position.as_ref().map(object).transpose()?,
            totals: finished.totals,
            flags,
            base,
            roots: finished.roots.clone(),
            more,
        };
        let report = LogicalReport {
            schema_version: REPORT_SCHEMA,
            backup: run.no().0,
            base,
            source: run.log().source.to_string(),
            kind: run.log().kind.to_string(),
            holdfast_version: env!("CARGO_PKG_VERSION"),
            server_version: taken.facts.version.to_string(),
            started_at: started_at.to_string(),
            finished_at: finished_at.to_string(),
            total_ms: ms(self.watch.elapsed()),
            phases: self.watch.phases(),
            stages: stage_times(meters),
            position: taken.position,
            import: self.origin.cloned(),
            view: taken.view,
            read: taken.read,
            largest: taken.largest,
            locks: taken.locks,
            totals: finished.totals,
            memory_bytes_max: crate::usage::memory_bytes_max(),
            cpu_seconds: crate::usage::cpu_time().as_secs_f64(),
            compression: self.options.compression.to_string(),
        };
        run.write_report(&serde_json::to_vec(&report).context("describe the run")?)?;
        let head = head.encode().context("encode the manifest head")?;
        let ending = Ending::Backup { head: head.clone(), refs: finished.refs, parts: finished.parts };
        let outcome = run.finish(ending)?;
        point("logical.published");
        if let Some(local) = local {
            keep_maps(local, &outcome, &head, "maps", self.watch);
        }
        Ok(report)
    }
}

fn connections(count: usize) -> String {
    if count == 1 { "1 connection".to_owned() } else { format!("{count} connections") }
}

fn shown(names: &[String]) -> String {
    let mut text = names.iter().take(NAMES_SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_SHOWN_MAX {
        text.push_str(&format!(", and {} more", names.len() - NAMES_SHOWN_MAX));
    }
    text
}

fn read_facts(read: &ReadTables) -> ReadFacts {
    ReadFacts {
        tables: read.totals.len() as u64,
        rows: read.totals.iter().map(|totals| totals.rows).sum(),
        row_bytes: read.totals.iter().map(|totals| totals.bytes).sum(),
        ranges: read.ranges,
        statements: read.statements,
        ..ReadFacts::default()
    }
}

fn largest(tables: &[Table], read: &ReadTables) -> Vec<TableFacts> {
    let pairs = tables.iter().zip(&read.totals);
    let mut all: Vec<_> =
        pairs.map(|(table, totals)| TableFacts::new(table.name.to_string(), *totals)).collect();
    all.sort_by_key(|table| std::cmp::Reverse(table.bytes));
    all.truncate(LARGEST_COUNT);
    all
}
