//! Takes a logical backup. [`run_to`] is the outline: reach the server → begin a run in each repository →
//! make the view → read definitions and rows → complete each run. Nothing is visible before the outcome.

pub(super) mod report;
mod room;

use std::{
    collections::BTreeMap,
    slice,
    sync::{Arc, Mutex},
    time::Duration,
};

use holdfast_pipe::{
    Headroom,
    lock::{into_inner, lock},
};
use holdfast_repo::{Kind, LogName, Repo, format::item::ItemPath, log::outcome::Outcome};
use serde_json::{Map, Value};

use super::{
    catalog::{
        listing::{Listing, TableKind},
        omitted, programs, settings,
        tables::Table,
    },
    excluded,
    reading::{self, ReadTables, tee::Tee},
    selection::Selection,
    stored::{
        definition::{Definition, Rows, ServerDefinition, ZoneDefinition},
        origin::Origin,
    },
    view::{View, ViewRequest, method::Method},
};
use report::{LogicalReport, READ, ReadFacts, TableFacts, VIEW, ViewFacts};

use crate::{
    error::{Context, Result},
    event::{Cancel, Event, Listener},
    head::{IMPORT, SELECTION, object},
    name_list::first_of,
    points::point,
    server::{LockRecord, Purpose, ServerFacts, ServerVersion, Session, locks::stale},
    taking::{
        BackupOptions, Destinations, HeadFields, Publication, Stored, Writers,
        identity::{self, NEW_IDENTITY},
        name, only,
    },
    watch::Watch,
};

/// How many times the view is begun again because the way to the server broke.
const WAYS_MAX: u32 = 3;
/// How many tables a report names.
const LARGEST_COUNT: usize = 20;
/// Flag of a backup made from another tool's dump.
const IMPORTED: &str = "imported";
/// Flag of a backup for which only some databases, tables or rows were asked for, or some were excluded.
const PARTIAL: &str = "partial";
/// How many tables a warning names.
const NAMES_SHOWN_MAX: usize = 5;
/// Warning about a backup without a position.
const NO_POSITION: &str = "the backup has no position in the binlog, since this account's rights do not suffice to read \
    one: nothing can be replayed on it, and no replica can be made from it (docs/guide/connections.md lists the rights)";

/// What was taken, before it is published.
struct Taken {
    facts: ServerFacts,
    position: Option<crate::position::Position>,
    view: ViewFacts,
    read: ReadFacts,
    largest: Vec<TableFacts>,
    locks: Vec<LockRecord>,
    /// What was excluded by name: tables by database.
    left_out: BTreeMap<String, Vec<String>>,
}

/// Takes a logical backup of what is selected.
pub fn run(
    repo: &Arc<Repo>,
    options: &BackupOptions,
    selection: &Selection,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<LogicalReport> {
    only(run_to(slice::from_ref(repo), options, selection, listener, cancel))
}

/// Takes one into several repositories, reading the server once. Returns the result for each repository; a
/// failure in one does not keep the others from the backup.
pub fn run_to(
    repos: &[Arc<Repo>],
    options: &BackupOptions,
    selection: &Selection,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Vec<Result<LogicalReport>> {
    match reach_and_run(repos, options, selection, None, listener, cancel) {
        Ok(taken) => repos.iter().zip(taken).map(|(repo, it)| it.map_err(|error| error.at(repo))).collect(),
        Err(error) => {
            let error = options.connect.explain_loss(error);
            repos.iter().map(|_| Err(error.again())).collect()
        }
    }
}

/// Takes a backup of what a dump has become on a private server. `options` lead to that server, and name the
/// source whose history the backup belongs to.
pub(super) fn of_import(
    repo: &Arc<Repo>,
    options: &BackupOptions,
    selection: &Selection,
    origin: &Origin,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<LogicalReport> {
    only(reach_and_run(slice::from_ref(repo), options, selection, Some(origin), listener, cancel)?)
}

fn reach_and_run(
    repos: &[Arc<Repo>],
    options: &BackupOptions,
    selection: &Selection,
    origin: Option<&Origin>,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<Vec<Result<LogicalReport>>> {
    let watch = Watch::new(listener);
    watch.phase("reach");
    let mut control = Session::open(&options.connect, Purpose::Control)?;
    let facts = ServerFacts::probe(&mut control)?;
    stale::warn_of_others(&mut control, &options.connect.run, &watch)?;
    let options = &options.leading_to(&facts.identity);
    let name = match &options.name {
        Some(name) => name.clone(),
        None => name::of_server(&facts.identity.hostname, facts.identity.port)?,
    };
    let log = LogName { source: name, kind: Kind::Logical };
    // A dump does not prove which server it came from, so the history keeps the identity that it had.
    let mut origin = origin.cloned();
    if let (Some(origin), [repo]) = (&mut origin, repos) {
        origin.identity_before = identity::known(repo, &log, options)?;
    }
    let part = selection.part();
    let admit = |repo: &Arc<Repo>| -> Result<Vec<String>> {
        let is_another = origin.is_none() && identity::check(repo, &log, &facts.identity, options, &watch)?;
        let flags = [
            is_another.then_some(NEW_IDENTITY),
            origin.as_ref().map(|_| IMPORTED),
            part.as_ref().map(|_| PARTIAL),
        ];
        Ok(flags.into_iter().flatten().map(str::to_owned).collect())
    };
    let admitted: Vec<Result<Vec<String>>> = repos.iter().map(admit).collect();
    if admitted.iter().all(Result::is_err) {
        return Ok(admitted.into_iter().filter_map(Result::err).map(Err).collect());
    }
    let text = format!("{} at {}", facts.version, facts.identity.hostname);
    watch.event(Event::Note { text });
    let headroom = Arc::new(match options.is_private {
        true => Headroom::default(),
        false => Headroom::beside_server(),
    });
    let destinations = Destinations {
        log: &log,
        part,
        is_imported: origin.is_some(),
        headroom: Arc::clone(&headroom),
        options,
        watch: &watch,
        cancel,
    };
    let taking = Taking { options, selection, origin: origin.as_ref(), watch: &watch, cancel };
    // Begin the runs first: that may take minutes behind a run that does housekeeping, and the server would
    // not keep an idle session for so long.
    drop(control);
    let capture = |writers: &Writers<'_>| {
        let mut control = Session::open_patiently(&options.connect, Purpose::Control)?;
        let found = ServerFacts::probe(&mut control)?;
        let taken = taking.take(control, found, writers, &headroom);
        let taken = taken.map_err(|error| options.connect.explain_loss(error))?;
        watch.phase("complete");
        Ok(taken)
    };
    Ok(destinations.take(repos, admitted, capture, |publication, stored, taken| {
        taking.publish(publication, stored, taken)
    }))
}

struct Taking<'a> {
    options: &'a BackupOptions,
    selection: &'a Selection,
    /// Set for an import.
    origin: Option<&'a Origin>,
    watch: &'a Watch<'a>,
    cancel: &'a Cancel,
}

impl Taking<'_> {
    /// Runs from the view to the last row.
    fn take(
        &self,
        mut control: Session,
        facts: ServerFacts,
        writers: &Writers<'_>,
        headroom: &Headroom,
    ) -> Result<Taken> {
        let tee = Tee::new(writers);
        self.watch.phase("view");
        let mut view = self.open_view(&mut control, &facts)?;
        let mut tables = std::mem::take(&mut view.tables);
        if self.origin.is_some() {
            // The values that a private server computed for a dump say nothing about the dumped server.
            tables.iter_mut().for_each(|table| table.definition.computed = None);
        }
        let mut facts_of_view = self.judge(&view, &mut tables);
        facts_of_view.omitted = self.omitted(&mut control)?;
        let left_out = self.left_out(&mut control)?;
        self.watch.phase("definitions");
        let (patience, silence_max) = (self.hold_up_max(&view), self.options.silence_max);
        let definitions = || self.definitions(&mut control, &view, &facts, &tee);
        let definitions = writers.while_giving(|| patience, silence_max, definitions)?;
        self.watch.phase("rows");
        let mut readers = std::mem::take(&mut view.readers);
        let view = Mutex::new(view);
        let release = || lock(&view).release_tables(self.watch);
        let rate = self.options.read_bytes_per_s_max;
        let read = || reading::read(&tables, &mut readers, &tee, &release, rate, self.watch, self.cancel);
        let read = || writers.while_giving(|| self.hold_up_max(&lock(&view)), silence_max, read);
        let read = match self.options.is_private {
            true => read()?,
            false => room::asking(control, headroom, read)?,
        };
        let view = into_inner(view);
        let (position, readers_count) = (view.position.clone(), readers.len() as u64);
        let mut locks = view.close(self.watch)?;
        if self.origin.is_some() {
            // No other session waited for them.
            locks.clear();
        }
        Ok(Taken {
            // For an imported dump, the position it names is kept in its origin.
            position: position.filter(|_| self.origin.is_none()),
            view: facts_of_view,
            read: ReadFacts { definitions, readers: readers_count, ..read_facts(&read) },
            largest: largest(&tables, &read),
            locks,
            left_out,
            facts,
        })
    }

    /// One view for all connections.
    fn open_view(&self, control: &mut Session, facts: &ServerFacts) -> Result<View> {
        let wanted = ViewRequest {
            connect: &self.options.connect,
            facts,
            selection: self.selection,
            readers: self.options.parallel.max(1),
            limits: self.options.locks.limits(),
            tries: self.options.locks.tries,
            patience: self.options.locks.patience,
            hold_up_max: self.options.hold_up_max,
        };
        let mut ways_left = WAYS_MAX;
        let view = loop {
            match View::open(control, &wanted, self.watch, self.cancel) {
                // Nothing is read yet, so the view can be made again.
                Err(error) if ways_left > 0 && self.options.connect.has_broken_tunnel() => {
                    ways_left -= 1;
                    let error = self.options.connect.explain_loss(error);
                    self.warn(format!("the connection to the server is lost, trying again: {error}"));
                    self.cancel.check()?;
                    *control = Session::open_patiently(&self.options.connect, Purpose::Control)?;
                }
                outcome => break outcome?,
            }
        };
        let text = format!("{} of one view: {}", connections(view.readers.len()), view.method.promise());
        self.watch.event(Event::Note { text });
        if view.position.is_none() && self.origin.is_none() {
            self.warn(NO_POSITION.to_owned());
        }
        point("logical.view.made");
        Ok(view)
    }

    /// What the server has that no logical backup holds.
    fn omitted(&self, control: &mut Session) -> Result<Vec<String>> {
        if self.origin.is_some() || self.selection.part().is_some_and(|part| !part.is_rest) {
            return Ok(Vec::new());
        }
        let omitted = omitted::read(control)?;
        if !omitted.is_empty() {
            self.warn(format!(
                "not in the backup, and to be made on a new server before a load: {}",
                first_of(&omitted, NAMES_SHOWN_MAX)
            ));
        }
        Ok(omitted)
    }

    /// What is excluded by name. Listed after the moment of the view: one that was made since is among what can be
    /// replayed.
    fn left_out(&self, control: &mut Session) -> Result<BTreeMap<String, Vec<String>>> {
        let (left_out, names) = Listing::excluded(control, self.selection)?;
        // A table that is gone must not end all backups from then on; one more in it than wanted is no loss. A
        // private server may have only what is wanted.
        if let Some(unknown) = names.unknown().filter(|_| !self.options.is_private) {
            self.warn(format!("of what is to be left out, {unknown}: names are case-sensitive"));
        }
        Ok(left_out)
    }

    fn warn(&self, text: String) {
        self.watch.event(Event::Warning { text });
    }

    /// How long one repository may hold up the others: not so long that tables locked until they are read
    /// would be given up.
    fn hold_up_max(&self, view: &View) -> Duration {
        match view.holds_tables() {
            true => self.options.hold_up_max.min(self.options.locks.held_max / 2),
            false => self.options.hold_up_max,
        }
    }

    /// Reports the tables that are not what a reader would expect, in the events and in the backup.
    fn judge(&self, view: &View, tables: &mut [Table]) -> ViewFacts {
        // A private server's view is of one moment; the dump does not say whether its own was.
        let method = if self.origin.is_some() { Method::Imported } else { view.method };
        let mut facts = ViewFacts {
            method,
            promise: method.promise().to_owned(),
            inconsistent: Vec::new(),
            without_rows: Vec::new(),
            misprinted_defaults: Vec::new(),
            omitted: Vec::new(),
        };
        for table in tables {
            let columns = table.misprinted_defaults.iter();
            facts.misprinted_defaults.extend(columns.map(|column| format!("{}.{column}", table.name)));
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
            (&facts.inconsistent, "could not be locked, and are not consistent with the rest of the backup"),
            (&facts.without_rows, "hold no rows of their own here: only their definitions are saved"),
        ] {
            if !names.is_empty() {
                self.watch.event(Event::Warning {
                    text: format!("tables that {what}: {}", first_of(names, NAMES_SHOWN_MAX)),
                });
            }
        }
        if !facts.misprinted_defaults.is_empty() {
            let text = format!(
                "columns whose default the server prints with bytes of another character set, and may use otherwise: {}",
                first_of(&facts.misprinted_defaults, NAMES_SHOWN_MAX)
            );
            self.watch.event(Event::Warning { text });
        }
        facts
    }

    /// Stores everything that is not a table. Returns the number of definitions.
    fn definitions(
        &self,
        control: &mut Session,
        view: &View,
        facts: &ServerFacts,
        tee: &Tee<'_>,
    ) -> Result<u64> {
        let settings = match self.options.is_private {
            // The settings of the server that the data came from are not known.
            true => BTreeMap::new(),
            false => settings::read(control)?,
        };
        let mut count = 0;
        let mut store = |definition: &Definition| -> Result<()> {
            let names = definition.names();
            let path = ItemPath::of_names(names.iter().map(|name| name.as_bytes()));
            let path = path.context("name what is stored")?;
            let json = serde_json::to_vec(definition).context("describe a definition")?;
            count += 1;
            tee.definition(&path, definition.kind(), &json)
        };
        store(&Definition::Server(ServerDefinition {
            flavor: facts.flavor(),
            version: self.version(facts),
            lower_case_table_names: facts.sql.lower_case_table_names,
            time_zone: facts.sql.time_zone.clone().filter(|_| !self.options.is_private).map(|server| {
                ZoneDefinition { server, host: facts.sql.system_time_zone.clone().unwrap_or_default() }
            }),
            settings,
        }))?;
        for definition in &view.programs {
            store(definition)?;
        }
        for listed in view.listing.tables.iter().filter(|listed| listed.kind == TableKind::Sequence) {
            store(&Definition::Sequence(programs::sequence(control, &listed.name)?))?;
        }
        Ok(count)
    }

    /// The server's version as it calls itself. For an imported dump it is the dumped server's, if flavor and
    /// number are those of the private server: the full text may tell more than these.
    fn version(&self, facts: &ServerFacts) -> String {
        let dumped = self.origin.and_then(|origin| origin.server_version.as_deref());
        let is_same = |text: &&str| {
            let dumped = ServerVersion::parse(text);
            dumped
                .is_some_and(|it| (it.flavor, it.number()) == (facts.version.flavor, facts.version.number()))
        };
        dumped.filter(is_same).map_or_else(|| facts.version.text.clone(), str::to_owned)
    }

    fn publish(
        &self,
        mut publication: Publication<'_>,
        Stored { flags, meters, kept }: Stored<'_>,
        taken: &Taken,
    ) -> Result<(LogicalReport, Outcome)> {
        let mut said = HeadFields {
            server: object(&taken.facts)?,
            redo: None,
            position: taken.position.as_ref().map(object).transpose()?,
            flags,
            more: Map::new(),
        };
        said.more.insert(VIEW.to_owned(), Value::Object(object(&taken.view)?));
        said.more.insert(READ.to_owned(), Value::Object(object(&taken.read)?));
        if self.selection.part().is_some() {
            said.more.insert(SELECTION.to_owned(), excluded::described(self.selection, &taken.left_out));
        }
        if let Some(origin) = self.origin {
            said.more.insert(IMPORT.to_owned(), Value::Object(object(origin)?));
            // These were the private server's, which is gone.
            said.server.remove("identity");
            said.server.remove("paths");
        }
        let report = LogicalReport {
            run: publication.run_report(&taken.facts.version, meters),
            position: taken.position.clone(),
            import: self.origin.cloned(),
            view: taken.view.clone(),
            read: taken.read,
            largest: taken.largest.clone(),
            locks: taken.locks.clone(),
        };
        publication.write_report(&report)?;
        let outcome = publication.publish(said, kept)?;
        Ok((report, outcome))
    }
}

fn connections(count: usize) -> String {
    if count == 1 { "1 connection".to_owned() } else { format!("{count} connections") }
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
