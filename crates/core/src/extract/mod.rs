//! Extracts tables from a physical backup, or from a moment after any backup: into a running server, or into
//! files.
//!
//! [`run`] is the outline: choose → restore a part → have a server of our own recover it → replay, if a
//! moment is requested → read the tables into a temporary repository. From there on it is a logical backup
//! like any other, and [`load`] and [`export`] do with it what they do with those: adapt, rename, defer
//! indexes, verify, continue after an interruption.
//!
//! Invariants:
//! - The result is what a restore of the whole backup, to the same moment, would hold. Where a part cannot
//!   guarantee that, the whole backup is restored and replayed, and the report says why ([`filter`]).
//! - No server other than ours is ever started on the restored files, and none of ours outlives us.
//! - Nothing is left behind, except rows that a load has begun with ([`work`]).

mod filter;
mod names;
mod report;
mod work;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use holdfast_formats::{
    Flavor,
    binlog::{Body, Checksum, Event as BinlogEvent, FormatDescription},
    table_name,
};
use holdfast_repo::{Kind, LogName, Repo, RunNo, SourceName, data::reader::Backup, log::history::History};

pub use report::{ExtractPlan, ExtractReport, FoundTable};

use filter::{Filter, Unnamed};
use names::Names;
use report::Taken;
use work::WorkDir;

use crate::{
    error::{Context, Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    head,
    logical::{
        self, Selection,
        export::{self, ExportOptions, Exported},
        load::{self, CREATE, LoadOptions, LoadReport, Unfinished},
        quoted_text,
    },
    points::point,
    recovery::Recovery,
    restore::{
        self, BackupId, MissingTablespaces, Part, Piece, RecoveryHooks, RestoreOptions, ScratchRestore,
        Transactions,
    },
    server::{ConnectOptions, Purpose, ServerFacts, Session, TableName},
    taking::BackupOptions,
    watch::Watch,
};

/// How many times a restore may start over because more is needed. Each time it includes everything named so
/// far.
const TRIES_MAX: u32 = 12;
/// Default place of the working directory: it is on disk, and survives a restart.
pub const WORK_PLACE: &str = "/var/tmp";

/// The options of an extraction.
#[derive(Clone, Debug)]
pub struct ExtractOptions {
    /// The tables to extract.
    pub selection: Selection,
    /// The directory in which the working directory is created.
    pub work_place: PathBuf,
    /// How files are restored and recovered. The target in it is ignored.
    pub restore: RestoreOptions,
    /// The server to load the tables into, if any: the rows of an interrupted load are kept for this server
    /// alone.
    pub target: Option<Target>,
}

/// A server that can be loaded into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// What distinguishes it from other servers.
    server: String,
    /// The load that has not finished there.
    unfinished: Option<Unfinished>,
}

impl ExtractOptions {
    /// The options that an expert would choose.
    #[must_use]
    pub fn new(selection: Selection) -> Self {
        let work_place = PathBuf::from(WORK_PLACE);
        Self { selection, restore: RestoreOptions::new(&work_place), work_place, target: None }
    }
}

/// What to extract from.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// A backup, as it is.
    Backup(&'a LogName, RunNo),
    /// A moment after a backup.
    Moment(&'a Recovery),
}

impl Origin<'_> {
    fn base(&self) -> (&LogName, RunNo) {
        match self {
            Origin::Backup(log, run) => (log, *run),
            Origin::Moment(recovery) => recovery.base(),
        }
    }

    fn recovery(&self) -> Option<&Recovery> {
        match self {
            Origin::Backup(..) => None,
            Origin::Moment(recovery) => Some(recovery),
        }
    }
}

/// Extracted tables. Dropping them removes the working directory.
pub struct Extracted {
    /// Report of the extraction.
    pub report: ExtractReport,
    /// Whether an earlier process did the extraction.
    pub is_taken_up: bool,
    work: WorkDir,
    /// Whether the load goes into a known server: then it can continue after an interruption.
    has_target: bool,
    repo: Arc<Repo>,
    log: LogName,
    run: RunNo,
}

/// Says what an extraction would do, and refuses what it would refuse. Changes nothing.
pub fn plan(
    repo: &Arc<Repo>,
    origin: Origin<'_>,
    options: &ExtractOptions,
    cancel: &Cancel,
) -> Result<ExtractPlan> {
    let extraction = Extraction::look(repo, origin, options, cancel)?;
    let mut attempt = extraction.first_attempt(cancel)?;
    let place = existing(&options.work_place).join("holdfast-extract");
    let (log, run) = origin.base();
    let restored = extraction.restore_options(&mut attempt, &place);
    let restore = restore::plan(repo, log, run, &restored, cancel)?;
    let replay = origin.recovery().map(|recovery| recovery.count(cancel)).transpose()?;
    Ok(ExtractPlan {
        restore,
        replay,
        tables: extraction.names.shown(),
        backup_bytes: extraction.names.backup_bytes,
        whole: attempt.whole,
    })
}

/// Extracts tables, or reuses what an interrupted load had extracted.
pub fn run(
    repo: &Arc<Repo>,
    origin: Origin<'_>,
    options: &ExtractOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<Extracted> {
    let watch = Watch::new(listener);
    watch.phase("choose");
    let extraction = Extraction::look(repo, origin, options, cancel).map_err(|error| error.at(repo))?;
    let unfinished = options.target.as_ref().and_then(|target| target.unfinished.as_ref());
    let wanted = unfinished.map(Unfinished::repository);
    let (work, taken) = WorkDir::take(&options.work_place, &extraction.identity, wanted)?;
    point("extract.begun");
    let has_target = options.target.is_some();
    if let Some(taken) = taken {
        watch.event(Event::Note {
            text: format!("the rows that an interrupted run left in {} are reused", work.path().display()),
        });
        return Extracted::of(work, taken, true, has_target);
    }
    if let Some(unfinished) = unfinished {
        // Checked before hours of work.
        return Err(unfinished.refusal().also_hinted(format_args!(
            "if that load is of tables from a physical backup, their rows are in the --work-dir of that \
             command, not in {}",
            options.work_place.display()
        )));
    }
    let taken = extraction.extract(&work, &watch, cancel)?;
    Extracted::of(work, taken, false, has_target)
}

/// The longest part of a path that exists.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(path)
}

/// An extraction whose backup and selection have been examined.
struct Extraction<'a> {
    repo: &'a Arc<Repo>,
    origin: Origin<'a>,
    options: &'a ExtractOptions,
    names: Names,
    facts: ServerFacts,
    id: BackupId,
    identity: String,
}

/// One attempt.
struct Attempt {
    part: Part,
    /// Why the whole backup is restored instead of a part.
    whole: Option<String>,
}

impl Attempt {
    /// Adds to a failure why the whole backup is restored, which the user did not ask for.
    fn explain(&self, error: Error) -> Error {
        let Some(why) = &self.whole else { return error };
        error.also_hinted(format_args!("the whole backup is restored, because {why}"))
    }
}

impl<'a> Extraction<'a> {
    fn look(
        repo: &'a Arc<Repo>,
        origin: Origin<'a>,
        options: &'a ExtractOptions,
        cancel: &Cancel,
    ) -> Result<Self> {
        let (log, run) = origin.base();
        let selection = &options.selection;
        if selection.is_of_all() {
            return Err(Error::new(ErrorKind::Usage, "no table is named").hinted(
                "name tables with --table or databases with --database; a whole backup is restored into a \
                 directory",
            ));
        }
        // A logical backup has nothing to extract, unless something is to be replayed after it.
        let id = match (log.kind, origin.recovery()) {
            (Kind::Logical, Some(_)) => BackupId::of(repo, log, run),
            _ => BackupId::of_physical(repo, log, run)?,
        };
        let history = History::salvage(repo, log, &mut |_, _| {})?;
        let backup = Backup::open(repo, &history, run)?;
        let facts = head::require_server(backup.head(), &id)?;
        let names = Names::read(&backup, facts.flavor(), selection, cancel)?;
        // After the backup there may be more tables, and on MySQL some have no file of their own.
        if facts.flavor() == Flavor::MariaDb
            && origin.recovery().is_none()
            && let Some(error) = names.unknown()
        {
            return Err(error);
        }
        // A moment is the same from whichever backup, and tomorrow a newer one may be the nearest. But a
        // transaction's number can occur twice: then the user names the backup.
        let of = match origin.recovery().map(|recovery| (recovery.until(), recovery.named())) {
            None => id.to_string(),
            Some((until, None)) => format!("{} {until}", id.source),
            Some((until, Some(named))) => format!("{} {until} from {named}", id.source),
        };
        // Rows that the load into one target continues with are neither used nor removed for another target,
        // or for files.
        let target = options.target.as_ref().map_or("files", |target| &target.server);
        let identity = format!("{} {of} {} {target}", id.repository, selection.identity());
        Ok(Self { repo, origin, options, names, facts, id, identity })
    }

    /// Retries until everything that turns out to be needed is restored.
    fn extract(&self, work: &WorkDir, watch: &Watch<'_>, cancel: &Cancel) -> Result<Taken> {
        let mut attempt = self.first_attempt(cancel)?;
        let mut begun_again = 0;
        loop {
            match self.attempt(&mut attempt, work, begun_again, watch, cancel) {
                Err(Stopped::Failed(error)) => return Err(attempt.explain(error)),
                Ok(taken) => return Ok(taken),
                Err(Stopped::NeedsMore(why)) if begun_again < TRIES_MAX => {
                    begun_again += 1;
                    watch.event(Event::Note {
                        text: format!("{why}: the restore starts again with more of the backup"),
                    });
                }
                Err(Stopped::NeedsMore(why)) => {
                    let text = format!("{why}, even after {TRIES_MAX} new attempts with more of the backup");
                    return Err(Error::failed(text).hinted("restore the whole backup into a directory"));
                }
            }
            if let Some(why) = &attempt.whole {
                watch.event(Event::Note { text: format!("the whole backup is restored: {why}") });
            }
        }
    }

    fn first_attempt(&self, cancel: &Cancel) -> Result<Attempt> {
        if self.origin.base().0.kind == Kind::Logical {
            let whole = Some("it is recovered from a logical backup".to_owned());
            let part = Part::new(self.facts.flavor(), self.options.selection.clone());
            return Ok(Attempt { part, whole });
        }
        // On MySQL some tables have no file of their own: only the server knows them.
        let is_known = self.facts.flavor() == Flavor::MariaDb;
        let missing = self.names.without_files().filter(|_| is_known);
        let whole = self.look_ahead(missing, self.wanted_tables(), cancel)?;
        let part = Part::new(self.facts.flavor(), self.options.selection.clone());
        Ok(Attempt { part, whole })
    }

    /// Tables whose rows must be right, as far as they are known: those that have files, and those that the
    /// user named.
    fn wanted_tables(&self) -> Vec<TableName> {
        let named = self.options.selection.tables.iter().filter_map(|it| it.name());
        let named = named.map(|(schema, table)| TableName { schema, table });
        self.names.tables().cloned().chain(named).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Reads the transactions to replay. Returns why they cannot be applied to `tables` only, if they cannot.
    /// Fails if no statement in them names a table of `missing`, which the backup lacks: replaying everything
    /// would not create it either.
    fn look_ahead(
        &self,
        missing: impl Iterator<Item = TableName>,
        tables: Vec<TableName>,
        cancel: &Cancel,
    ) -> Result<Option<String>> {
        let Some(recovery) = self.origin.recovery() else { return Ok(None) };
        let mut unnamed = Unnamed::new(missing);
        let mut filter = Filter::new(tables, self.options.selection.has_wildcards());
        each_event(recovery, cancel, &mut |event| {
            unnamed.event(event);
            filter.event(event);
        })?;
        match unnamed.tables().first() {
            Some(name) => Err(self.names.never_made(name)),
            None => Ok(filter.refused().map(str::to_owned)),
        }
    }

    fn restore_options(&self, attempt: &mut Attempt, target: &Path) -> RestoreOptions {
        let part = attempt.whole.is_none().then(|| attempt.part.clone());
        RestoreOptions {
            target_dir: target.to_owned(),
            delta: false,
            prepare: true,
            maps: Vec::new(),
            part,
            // A view that cannot be made keeps nobody from a table.
            leave_out: true,
            ..self.options.restore.clone()
        }
    }

    fn attempt(
        &self,
        attempt: &mut Attempt,
        work: &WorkDir,
        begun_again: u32,
        watch: &Watch<'_>,
        cancel: &Cancel,
    ) -> Result<Taken, Stopped> {
        // A restore must not continue with files that a server has worked on.
        work.remove_data()?;
        let options = self.restore_options(attempt, &work.data());
        let mut transactions = self.origin.recovery().map(Recovery::transactions);
        let mut reading = Reading {
            extraction: self,
            attempt,
            work,
            watch,
            cancel,
            taken: None,
            more: None,
            is_filtered: false,
        };
        let base = self.origin.base();
        let transactions = transactions.as_mut().map(|it| it as &mut dyn Transactions);
        let done =
            restore::run_in_scratch(self.repo, base, &options, transactions, &mut reading, watch, cancel);
        let Reading { taken, more, is_filtered, .. } = reading;
        let scratch = match done {
            Ok(scratch) => scratch,
            Err(error) => return Err(self.stopped(error, more, is_filtered, attempt, cancel)),
        };
        let Some(read) = taken else { return Err(Error::failed("nothing was read").into()) };
        work.remove_data()?;
        let ScratchRestore { server_version, position, prepared, loaded, replayed, written, redo_bytes } =
            scratch;
        let report = ExtractReport {
            backup: self.id.clone(),
            server_version,
            position,
            backup_bytes: self.names.backup_bytes,
            restored_bytes: written.bytes,
            restored_files: written.files,
            redo_bytes,
            begun_again,
            whole: attempt.whole.clone(),
            prepared,
            loaded,
            replayed,
            tables: read.read.tables,
            rows: read.read.rows,
            row_bytes: read.read.row_bytes,
            phases: watch.phases(),
        };
        let taken = Taken {
            identity: self.identity.clone(),
            source: read.run.source.clone(),
            run: read.run.backup,
            report,
        };
        work.set_ready(&taken)?;
        point("extract.ready");
        Ok(taken)
    }

    /// Whether another attempt can do better.
    fn stopped(
        &self,
        error: Error,
        more: Option<String>,
        is_filtered: bool,
        attempt: &mut Attempt,
        cancel: &Cancel,
    ) -> Stopped {
        if cancel.is_cancelled() {
            return error.into();
        }
        if let Some(why) = more {
            return Stopped::NeedsMore(why);
        }
        if let Some(missing) = error.cause::<MissingTablespaces>()
            && attempt.whole.is_none()
            && attempt.part.add_spaces(&missing.0)
        {
            return Stopped::NeedsMore(missing.to_string());
        }
        // A server that misses a table stops; it does not continue without it. If there is no room for a
        // part, there is none for the whole.
        let may_be_of_tables = matches!(error.kind(), ErrorKind::Failed | ErrorKind::Server)
            && error.cause::<io::Error>().is_none_or(|it| it.kind() != io::ErrorKind::StorageFull);
        if is_filtered && may_be_of_tables && attempt.whole.is_none() {
            let why = format!("the server could not apply transactions to these tables only: {error}");
            attempt.whole = Some(why.clone());
            return Stopped::NeedsMore(why);
        }
        error.into()
    }
}

/// Why an attempt failed.
enum Stopped {
    Failed(Error),
    NeedsMore(String),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Reads every event to replay.
fn each_event(recovery: &Recovery, cancel: &Cancel, look: &mut dyn FnMut(&BinlogEvent<'_>)) -> Result<()> {
    let mut checksum = Checksum::None;
    recovery.count_each(cancel, &mut |piece| {
        match piece {
            Piece::File { format, .. } => checksum = checksum_of(format)?,
            Piece::Event { bytes, .. } => {
                let event = BinlogEvent::parse(bytes, checksum);
                look(&event.context("read an event that is to be replayed")?);
            }
        }
        Ok(())
    })?;
    Ok(())
}

fn checksum_of(format: &[u8]) -> Result<Checksum> {
    // This event has a checksum, whether the file's other events do or not.
    let event = BinlogEvent::parse(format, Checksum::Crc32).context("read the format of a binlog")?;
    match event.body().context("read the format of a binlog")? {
        Body::FormatDescription(FormatDescription { checksum, .. }) => Ok(checksum),
        _ => Err(Error::failed("a binlog does not begin with its format")),
    }
}

/// What to do on the servers that run on the restored files.
struct Reading<'a, 'b> {
    extraction: &'a Extraction<'b>,
    attempt: &'a mut Attempt,
    work: &'a WorkDir,
    watch: &'a Watch<'a>,
    cancel: &'a Cancel,
    taken: Option<logical::LogicalReport>,
    /// Why to start over.
    more: Option<String>,
    /// Whether transactions are being applied to some tables only.
    is_filtered: bool,
}

impl RecoveryHooks for Reading<'_, '_> {
    fn on_recovered(&mut self, connect: &ConnectOptions) -> Result<Option<Vec<TableName>>> {
        let mut session = Session::open(connect, Purpose::Control)?;
        let there = BTreeSet::from_iter(selected(&mut session, &self.extraction.options.selection)?);
        let mut wanted = BTreeSet::from_iter(self.extraction.wanted_tables());
        wanted.extend(there.iter().cloned());
        let bound = bound_by_keys(&mut session, self.extraction.facts.flavor(), &wanted)?;
        let tables: Vec<TableName> = wanted.union(&bound).cloned().collect();
        let missing = self.extraction.names.without_files().filter(|it| !there.contains(it));
        let why = self.extraction.look_ahead(missing, tables.clone(), self.cancel)?;
        if self.attempt.whole.is_some() {
            return Ok(None);
        }
        if let Some(why) = why {
            self.more = Some(why.clone());
            self.attempt.whole = Some(why);
            return Err(Error::failed("the restore is to be begun again"));
        }
        if self.attempt.part.add_tables(bound.into_iter().map(|it| (it.schema, it.table))) {
            self.more = Some("foreign keys bind the tables to others".to_owned());
            return Err(Error::failed("the restore is to be begun again"));
        }
        self.is_filtered = true;
        Ok(Some(tables))
    }

    fn on_arrived(&mut self, connect: &ConnectOptions) -> Result<()> {
        // The transactions were applied: a failure from here on would also occur with all tables.
        self.is_filtered = false;
        self.watch.phase("read");
        let repo = self.work.new_rows()?;
        let source: SourceName = self.extraction.id.source.parse().context("name the source")?;
        let restore = &self.extraction.options.restore;
        let options = BackupOptions {
            name: Some(source),
            memory_bytes: usize::try_from(restore.memory_bytes).unwrap_or(usize::MAX),
            spool_dir: Some(self.work.path().to_owned()),
            ..BackupOptions::new(connect.clone()).of_private()
        };
        let inner = Inner { watch: self.watch };
        let selection = &self.extraction.options.selection;
        let report = logical::run(&repo, &options, selection, &inner, self.cancel);
        let report = report.map_err(|error| match (error.kind(), self.extraction.names.unknown()) {
            (ErrorKind::Usage, Some(unknown)) => unknown,
            (ErrorKind::Server, _) if self.attempt.whole.is_none() => {
                let more = "views and MERGE tables need the tables that they read: name those, too";
                error.context("read the tables").also_hinted(more)
            }
            _ => error.context("read the tables"),
        })?;
        point("extract.read");
        self.taken = Some(report);
        Ok(())
    }
}

/// Forwards progress and warnings of the reading, but not its phases: here it is one phase.
struct Inner<'a> {
    watch: &'a Watch<'a>,
}

impl Listener for Inner<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Progress { .. } | Event::Warning { .. }) {
            self.watch.event(event);
        }
    }
}

/// The selected tables that the server knows, with or without files of their own.
fn selected(session: &mut Session, selection: &Selection) -> Result<Vec<TableName>> {
    let query = "SELECT table_schema AS s, table_name AS t FROM information_schema.tables";
    let mut tables = Vec::new();
    for row in session.rows(query)? {
        let name = TableName { schema: row.text("s")?.to_owned(), table: row.text("t")?.to_owned() };
        if selection.has_table(&name.schema, &name.table) {
            tables.push(name);
        }
    }
    Ok(tables)
}

/// Tables that foreign keys bind to the wanted ones: replayed rows are checked against their parents, and a
/// change of a parent's row can change them without a trace in the binlog. What the wanted rows do to their
/// own children does not matter.
fn bound_by_keys(
    session: &mut Session,
    flavor: Flavor,
    wanted: &BTreeSet<TableName>,
) -> Result<BTreeSet<TableName>> {
    let query = match flavor {
        Flavor::MariaDb => "SELECT for_name AS c, ref_name AS p FROM information_schema.innodb_sys_foreign",
        Flavor::MySql => {
            "SELECT CONCAT(constraint_schema, '/', table_name) AS c, \
             CONCAT(unique_constraint_schema, '/', referenced_table_name) AS p \
             FROM information_schema.referential_constraints"
        }
    };
    let name = |text: &str| -> Result<TableName> {
        let unreadable = || Error::failed(format!("the server names a table {text:?} in a foreign key"));
        let (schema, table) = text.split_once('/').ok_or_else(unreadable)?;
        let decoded = |part: &str| match flavor {
            Flavor::MariaDb => table_name::decode(part).map(|it| it.to_string()),
            Flavor::MySql => Some(part.to_owned()),
        };
        let (schema, table) = decoded(schema).zip(decoded(table)).ok_or_else(unreadable)?;
        Ok(TableName { schema, table })
    };
    let mut keys = Vec::new();
    for row in session.rows(query)? {
        keys.push((name(row.text("c")?)?, name(row.text("p")?)?));
    }
    let mut all = wanted.clone();
    loop {
        let before = all.len();
        for (child, parent) in &keys {
            if all.contains(child) {
                all.insert(parent.clone());
            }
        }
        if all.len() == before {
            return Ok(all.difference(wanted).cloned().collect());
        }
    }
}

impl Extracted {
    fn of(work: WorkDir, taken: Taken, is_taken_up: bool, has_target: bool) -> Result<Self> {
        let repo = work.rows()?;
        let source = taken.source.parse().context("name the source")?;
        let (log, run) = (LogName { source, kind: Kind::Logical }, taken.run());
        Ok(Self { report: taken.report, is_taken_up, work, has_target, repo, log, run })
    }

    /// Loads the tables into a running server. If that fails after it has begun, the rows are kept, and the
    /// same command continues with them.
    pub fn load(self, options: &LoadOptions, listener: &dyn Listener, cancel: &Cancel) -> Result<LoadReport> {
        let begun = Begun { listener, has: AtomicBool::new(false) };
        let options = LoadOptions { called: Some(self.report.backup.to_string()), ..options.clone() };
        if self.has_target {
            self.work.set_begun()?;
        }
        match load::run(&self.repo, &self.log, self.run, &options, &begun, cancel) {
            Ok(report) => {
                self.work.remove()?;
                Ok(report)
            }
            Err(error) if self.is_taken_up || self.has_target && begun.has.load(Ordering::SeqCst) => {
                let place = self.work.path().display().to_string();
                self.work.keep();
                Err(error.also_hinted(format_args!(
                    "the rows are kept in {place}, and the same command continues with them; to start over, \
                     remove the directory"
                )))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the tables as files.
    pub fn export(
        self,
        options: &ExportOptions,
        listener: &dyn Listener,
        cancel: &Cancel,
    ) -> Result<Exported> {
        let history = History::read(&self.repo, &self.log)?;
        let backup = Backup::open(&self.repo, &history, self.run)?;
        let exported = export::export(&backup, options, listener, cancel)?;
        drop(backup);
        self.work.remove()?;
        Ok(exported)
    }
}

/// Checks, before anything is extracted, that a load could begin or continue: the server answers, and no
/// table of the wanted names exists.
pub fn look_at_target(options: &LoadOptions) -> Result<Target> {
    let mut session = Session::open(&options.connect, Purpose::Load)?;
    let query = "SHOW GLOBAL VARIABLES WHERE variable_name IN ('server_uuid', 'hostname', 'port', 'datadir')";
    let mut server = Vec::new();
    for row in session.rows(query)? {
        server.push(format!("{}={}", row.text("Variable_name")?, row.text("Value")?));
    }
    server.sort();
    let unfinished = load::unfinished(&mut session)?;
    let target = Target { server: server.join(" "), unfinished };
    // Existing tables may belong to the load that is to continue.
    if options.overwrite || target.unfinished.is_some() {
        return Ok(target);
    }
    for pattern in &options.selection.tables {
        let Some((schema, table)) = pattern.name() else { continue };
        let (schema, table) = options.renames.table(&schema, &table);
        let (quoted_schema, quoted_table) = (quoted_text(&schema), quoted_text(&table));
        let query = format!(
            "SELECT table_name AS t FROM information_schema.tables \
             WHERE table_schema = {quoted_schema} AND table_name = {quoted_table}"
        );
        if session.row(&query)?.is_some() {
            let text = format!("{schema}.{table} exists already");
            return Err(Error::new(ErrorKind::Usage, text)
                .hinted("load under another name (--as), or drop it: --overwrite"));
        }
    }
    Ok(target)
}

/// Notices when a load begins to change the target.
struct Begun<'a> {
    listener: &'a dyn Listener,
    has: AtomicBool,
}

impl Listener for Begun<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Phase { name: CREATE }) {
            self.has.store(true, Ordering::SeqCst);
        }
        self.listener.event(event);
    }
}
