//! One consistent view for several connections, with the least lock that the server and the account allow.
//!
//! The order is the same for every server:
//!
//! 1. List the objects, and read every definition that is not a table's.
//! 2. Every reader begins a transaction and touches every table. From then on it holds the tables' metadata
//!    locks, so that nobody changes a definition until the rows are read; and since all readers hold them,
//!    none of them ever waits behind a session that wants to. No rows are read, so there is no view yet
//!    (verified on MariaDB 10.11 and MySQL 9.7). The definitions of tables are read now: they do not change
//!    any more, and nobody waits yet.
//! 3. Under a lock that prevents all commits, every reader reads one row, which makes its view. The position
//!    is read. Tables whose engine has no views are locked until they are read. [`Methods`] decides which
//!    lock it is.
//! 4. The lock is released. The list and the definitions are read again; if they have changed, everything
//!    begins again.
//!
//! A session that blocks a lock is treated as in a physical backup: everything is released, and asked for
//! again after a pause, until the patience runs out. Then the view is made without a lock.
//!
//! If nothing can be locked, readers begin their views again until all have the same binlog position: MariaDB
//! reports it for each view, MySQL reports where the binlog ends before and after they were begun. If that is
//! impossible, one reader has to do.

use std::{
    collections::{BTreeMap, HashSet},
    thread,
    time::Duration,
};

use holdfast_formats::Flavor;

use super::{
    accounts,
    definition::Definition,
    in_the_way::InTheWay,
    method::{Method, Methods},
    objects::{self, Listed, Listing, TableKind},
    position::{
        Placed, channels, channels_without_places, moves_with_every_change, position, snapshot_place,
        snapshot_position,
    },
    privileges::Privileges,
    selection::Selection,
    tables::{self, EngineKind, Table},
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    physical::{Position, Precision},
    server::{
        Attempt, BackupStages, ConnectOptions, HeldSession, InstanceLock, LockLimits, LockRecord, Purpose,
        ServerFacts, Session, SqlCause, SqlError, Stage, TableInventory, TableLock, TableName, bulk,
        status::{LogStatus, applied, clock, refuse_gaps},
    },
    source::attempt::{self, Tries},
};

/// How many tables one statement touches; servers join at most 61.
const TOUCHED_AT_ONCE: usize = 50;
/// How many times views are begun before giving up on a common position.
const AGREEMENT_TRIES: u32 = 50;
/// How long the server may take to report where the binlog ends.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// How long `FLUSH TABLES WITH READ LOCK` waits; servers count whole seconds.
const READ_LOCK_WAIT_MAX: Duration = Duration::from_secs(1);
/// Makes a view at once.
const BEGIN_VIEW: &str = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";
/// How long a reader may be silent before the server drops it; each reader sends something more often.
const READER_SILENCE_MAX: Duration = Duration::from_secs(600);
/// The longest time that a server waits for a client to take what it sends.
const NET_TIMEOUT_MAX_S: u64 = 31_536_000;
/// If a server sorts after all, how many bytes of each key value it compares: more than an index holds of
/// one.
const SORTED_BYTES_MAX: u32 = 65_536;

/// What is asked of a view.
pub(super) struct Wanted<'a> {
    pub(super) connect: &'a ConnectOptions,
    /// What the server was found to be.
    pub(super) facts: &'a ServerFacts,
    pub(super) selection: &'a Selection,
    pub(super) readers: usize,
    pub(super) limits: LockLimits,
    /// How often a lock may be held too long, and how often changed definitions are read again at once.
    pub(super) tries: u32,
    /// How long to keep asking for locks that another session blocks.
    pub(super) patience: Duration,
    /// How long a reader may be kept from taking what the server sends.
    pub(super) hold_up_max: Duration,
}

/// A consistent view, held for as long as this lives.
pub(super) struct View {
    pub(super) readers: Vec<Session>,
    pub(super) listing: Listing,
    /// The tables with their definitions.
    pub(super) tables: Vec<Table>,
    /// Everything that is not a table or a sequence.
    pub(super) programs: Vec<Definition>,
    pub(super) position: Option<Position>,
    pub(super) method: Method,
    /// MySQL: keeps definitions from being changed.
    instance: Option<InstanceLock>,
    /// Locks tables whose engine has no views.
    others: Option<TableLock>,
    records: Vec<LockRecord>,
}

/// Why a try failed.
enum Stopped {
    /// Another session blocks the lock that makes the view; a different lock may be granted.
    Refused(Error),
    /// Same, for a lock that every method needs.
    InTheWay(Error),
    /// A lock was held for as long as permitted.
    HeldTooLong(Error),
    /// A definition changed.
    Changed(Error),
    /// The account may not do this.
    Less(Error),
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        match error.cause::<SqlError>().is_some_and(is_gone) {
            true => Self::Changed(error),
            false => Self::Failed(error),
        }
    }
}

impl From<SqlError> for Stopped {
    fn from(error: SqlError) -> Self {
        match error.cause() {
            SqlCause::Expired => Self::HeldTooLong(error.into()),
            _ if error.is_lock_timeout() => Self::InTheWay(not_granted(&error.to_string())),
            _ if is_gone(&error) => Self::Changed(error.into()),
            _ if error.is_denied() => Self::Less(error.into()),
            _ => Self::Failed(error.into()),
        }
    }
}

/// Whether a listed object is gone or was replaced: a table, a database, a view, a program, a trigger, an
/// event.
fn is_gone(error: &SqlError) -> bool {
    matches!(error.code(), Some(1146 | 1049 | 1412 | 1347 | 1305 | 1360 | 1539))
}

fn not_granted(lock: &str) -> Error {
    Error::new(ErrorKind::Server, format!("{lock} was not granted in time")).hinted(
        "a long statement, transaction or change of a definition is in the way: see SHOW PROCESSLIST; \
         --lock-max allows a longer wait",
    )
}

fn granted(attempt: Attempt, lock: &str) -> Result<(), Stopped> {
    match attempt {
        Attempt::Granted => Ok(()),
        Attempt::TimedOut => Err(Stopped::Refused(not_granted(lock))),
    }
}

impl View {
    /// Makes a view. `control` is a session for queries.
    pub(super) fn open(
        control: &mut Session,
        wanted: &Wanted<'_>,
        listener: &dyn Listener,
        cancel: &Cancel,
    ) -> Result<View> {
        let privileges = Privileges::read(control)?;
        let mut methods = Methods::of(control.flavor(), &privileges);
        let mut tries = Tries::new(wanted.tries, wanted.patience);
        let mut changes = 0;
        let mut records = Vec::new();
        loop {
            cancel.check()?;
            let mut view = View::unmade();
            let made = view.make(control, wanted, &mut methods, &privileges, cancel);
            if made.is_err() {
                view.let_go();
            }
            for record in &view.records {
                record.report(listener);
            }
            records.append(&mut view.records);
            let (stopped, is_about_the_lock) = match made {
                Ok(()) => {
                    view.records = records;
                    return Ok(view);
                }
                Err(Stopped::Failed(error)) => return Err(error),
                Err(Stopped::Less(error)) => match methods.denied() {
                    true => continue,
                    false => return Err(error),
                },
                Err(Stopped::Changed(error)) => {
                    changes += 1;
                    if changes % wanted.tries.max(1) != 0 {
                        listener.event(Event::Note { text: format!("making the view again: {error}") });
                        continue;
                    }
                    (attempt::Stopped::TryAgain(error), false)
                }
                Err(Stopped::InTheWay(error)) => (attempt::Stopped::TryAgain(error), false),
                Err(Stopped::Refused(error)) if methods.refused() => {
                    listener.event(Event::Note { text: format!("making the view in another way: {error}") });
                    continue;
                }
                Err(Stopped::Refused(error)) => (attempt::Stopped::TryAgain(error), true),
                Err(Stopped::HeldTooLong(error)) => {
                    methods.refused();
                    (attempt::Stopped::HeldTooLong(error), true)
                }
            };
            match tries.after(stopped) {
                Ok(again) => {
                    listener.event(again.told(tries.count()));
                    again.wait(cancel)?;
                }
                Err(error) if is_about_the_lock && methods.without_locks() => {
                    let text = format!("{error}; the view is made without a lock, which promises less");
                    listener.event(Event::Warning { text });
                    tries = Tries::new(wanted.tries, wanted.patience);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn unmade() -> View {
        View {
            readers: Vec::new(),
            listing: Listing::default(),
            tables: Vec::new(),
            programs: Vec::new(),
            position: None,
            method: Method::OneReader,
            instance: None,
            others: None,
            records: Vec::new(),
        }
    }

    /// Makes one try.
    fn make(
        &mut self,
        control: &mut Session,
        wanted: &Wanted<'_>,
        methods: &mut Methods,
        privileges: &Privileges,
        cancel: &Cancel,
    ) -> Result<(), Stopped> {
        let without_lock = methods.begin();
        self.lock_instance(wanted, privileges, control.flavor())?;
        self.listing = Listing::read(control, wanted.selection)?;
        let tables = self.listing.tables.iter();
        let tables = tables.map(|table| {
            (table.name.schema.as_str(), table.name.table.as_str(), table.kind == TableKind::View)
        });
        privileges.check(control.flavor(), wanted.selection, &self.listing.schemas, tables)?;
        objects::settle(control)?;
        self.programs = programs(control, &self.listing, wanted.selection)?;
        let count = if without_lock == Some(Method::OneReader) { 1 } else { wanted.readers };
        for _ in 0..count {
            self.readers.push(open_reader(wanted)?);
        }
        if without_lock == Some(Method::BinlogPosition) {
            // A rename after the views and before the readers touch would be in the definitions, but neither in
            // the rows' position nor anywhere else: until then this session keeps the definitions as they are.
            let begun = self
                .touch_by(control)
                .and_then(|()| self.begin_agreeing(control, wanted, methods.has_locks()));
            let released = control.exec("ROLLBACK");
            begun?;
            released?;
            self.read_tables(control, wanted.selection, cancel)?;
        } else {
            self.touch_all()?;
            // From here on they stay as they are, and nobody waits yet.
            self.read_tables(control, wanted.selection, cancel)?;
        }
        self.method = match without_lock {
            Some(Method::BinlogPosition) => Method::BinlogPosition,
            Some(method) => {
                // A single reader: its view is consistent with itself.
                self.read_first()?;
                method
            }
            None => self.begin_under_a_lock(control, wanted, methods)?,
        };
        let again = Listing::read_again(control, wanted.selection)?;
        if again != self.listing {
            return Err(Stopped::Changed(changed("tables came, went or changed")));
        }
        if programs(control, &again, wanted.selection)? != self.programs {
            return Err(Stopped::Changed(changed("a definition changed")));
        }
        if self.instance.is_some() && !may_hold_the_instance(control, privileges)? {
            self.release_instance()?;
        }
        Ok(())
    }

    /// Step 3, with the lock that nobody blocks.
    fn begin_under_a_lock(
        &mut self,
        control: &mut Session,
        wanted: &Wanted<'_>,
        methods: &mut Methods,
    ) -> Result<Method, Stopped> {
        let in_the_way = InTheWay::look(control, self.touched())?;
        let count = self.touched().count();
        let are_views = self.locked_while_read().next().is_none();
        let Some(method) = methods.lock(count, are_views, &in_the_way) else {
            if !methods.has_locks() {
                let text = "cannot see whether a query blocks FLUSH TABLES WITH READ LOCK";
                return Err(Stopped::Less(Error::new(ErrorKind::Server, text)));
            }
            let text = format!("no lock that makes a view was asked for: {}", in_the_way.names());
            return Err(Stopped::Refused(Error::new(ErrorKind::Server, text).hinted(
                "writers would have to wait behind the lock, which would wait for these sessions: see SHOW PROCESSLIST",
            )));
        };
        if !are_views {
            // Opened now, since every moment counts under the lock.
            self.others = Some(TableLock::open(wanted.connect, wanted.limits)?);
        }
        match method {
            Method::BackupStages => self.begin_in_stages(control, wanted)?,
            _ => self.begin_locked(control, wanted, method)?,
        }
        Ok(method)
    }

    /// Cleans up after a failed try, so that others need not wait until it is dropped, and records the locks
    /// that were held.
    fn let_go(&mut self) {
        self.readers.clear();
        if let Some(mut others) = self.others.take() {
            drop(others.release());
            self.records.extend_from_slice(others.records());
        }
        if let Some(mut instance) = self.instance.take() {
            drop(instance.release());
            self.records.extend_from_slice(instance.records());
        }
    }

    /// MySQL: a session that wants to change a definition waits for this lock before others wait for that
    /// session.
    fn lock_instance(
        &mut self,
        wanted: &Wanted<'_>,
        privileges: &Privileges,
        flavor: Flavor,
    ) -> Result<(), Stopped> {
        if flavor != Flavor::MySql || !privileges.has("BACKUP_ADMIN") {
            return Ok(());
        }
        let limits = LockLimits { held_max: None, ..wanted.limits };
        let instance = self.instance.insert(InstanceLock::open(wanted.connect, limits)?);
        match instance.try_lock()? {
            Attempt::Granted => Ok(()),
            Attempt::TimedOut => Err(Stopped::InTheWay(not_granted("LOCK INSTANCE FOR BACKUP"))),
        }
    }

    fn release_instance(&mut self) -> Result<(), SqlError> {
        let Some(mut instance) = self.instance.take() else { return Ok(()) };
        let released = instance.alive().and_then(|()| instance.release());
        self.records.extend_from_slice(instance.records());
        released
    }

    /// Step 3, with MariaDB's stages.
    fn begin_in_stages(&mut self, control: &mut Session, wanted: &Wanted<'_>) -> Result<(), Stopped> {
        let mut stages = BackupStages::open(wanted.connect, wanted.limits)?;
        let mut step = || -> Result<(), Stopped> {
            for stage in [Stage::Start, Stage::Flush, Stage::BlockDdl] {
                granted(stages.enter(stage)?, "BACKUP STAGE")?;
            }
            // A table created since the list was read would be missing.
            if stages.session().with(|session| Listing::read_again(session, wanted.selection))?
                != self.listing
            {
                return Err(Stopped::Changed(changed("tables came, went or changed")));
            }
            self.lock_others()?;
            granted(stages.enter(Stage::BlockCommit)?, "BACKUP STAGE BLOCK_COMMIT")?;
            self.read_first()?;
            self.position = position_under(stages.session(), control, wanted)?;
            Ok(())
        };
        let stepped = step();
        let ended = stages.release();
        self.records.extend_from_slice(stages.records());
        stepped?;
        Ok(ended?)
    }

    /// Step 3, with a lock of all tables, or of those that are saved.
    fn begin_locked(
        &mut self,
        control: &mut Session,
        wanted: &Wanted<'_>,
        method: Method,
    ) -> Result<(), Stopped> {
        let mut limits = wanted.limits;
        if method == Method::ReadLock {
            // Nobody blocked it just now. If a session does after all, everybody waits behind it.
            limits.wait_max = limits.wait_max.min(READ_LOCK_WAIT_MAX);
        }
        let mut lock = TableLock::open(wanted.connect, limits)?;
        let mut step = || -> Result<(), Stopped> {
            match method {
                Method::TableLocks => {
                    // Each table is locked by one session only: a read lock waits behind sessions that wait
                    // to write, and these would wait for the other session.
                    self.lock_others()?;
                    self.lock_tables_with_views(&mut lock)?;
                }
                _ => {
                    granted(lock.try_all()?, "FLUSH TABLES WITH READ LOCK")?;
                    self.lock_others()?;
                }
            }
            self.read_first()?;
            self.position = position_under(lock.session(), control, wanted)?;
            // While only some tables are locked, the session sees no others.
            if method == Method::ReadLock && self.instance.is_none() {
                let again = lock.session().with(|session| Listing::read_again(session, wanted.selection))?;
                if again != self.listing {
                    return Err(Stopped::Changed(changed("tables came, went or changed")));
                }
            }
            Ok(())
        };
        let stepped = step();
        let released = lock.release();
        self.records.extend_from_slice(lock.records());
        stepped?;
        Ok(released?)
    }

    fn lock_tables_with_views(&self, lock: &mut TableLock) -> Result<(), Stopped> {
        // Opening tables before they are locked shortens the time that they are blocked for writers.
        let touches = self.touches();
        lock.session().with(|session| touches.iter().try_for_each(|touch| session.exec(touch)))?;
        let others: HashSet<&TableName> = self.locked_while_read().map(|table| &table.name).collect();
        let names = self.touched().map(|table| &table.name).filter(|name| !others.contains(name));
        let names: Vec<TableName> = names.cloned().collect();
        match lock.try_reading(&names) {
            Err(error) if *error.cause() == SqlCause::Lost => Err(Stopped::Refused(error.into())),
            attempt => granted(attempt?, "LOCK TABLES .. READ"),
        }
    }

    /// Without a lock: begins views until all have the same position. `has_locks`: if that fails, a lock may
    /// be granted later.
    fn begin_agreeing(
        &mut self,
        control: &mut Session,
        wanted: &Wanted<'_>,
        has_locks: bool,
    ) -> Result<(), Stopped> {
        if !moves_with_every_change(control)? {
            return Err(nothing_to_compare_by());
        }
        // This session holds nothing and can be given up.
        let mut looks = Session::open_patiently(wanted.connect, Purpose::Monitor)?;
        match control.flavor() {
            // It has a view of its own, and reads in it.
            Flavor::MariaDb => {
                looks.exec("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")?;
                looks.set_answer_timeout(READER_SILENCE_MAX)?;
            }
            Flavor::MySql => looks.set_answer_timeout(LOOK_MAX)?,
        }
        for number in 1..=AGREEMENT_TRIES {
            let agreed = match control.flavor() {
                Flavor::MariaDb => self.begin_at_one_place(&mut looks, number == AGREEMENT_TRIES)?,
                Flavor::MySql => self.begin_while_nothing_is_committed(&mut looks)?.map(Some),
            };
            if let Some(position) = agreed {
                self.position = position;
                // Reading a table fails if it changed since the view was made.
                return self.touch_all_in_transactions();
            }
        }
        let text = format!(
            "could not make {} views at one position of the binlog in {AGREEMENT_TRIES} tries",
            self.readers.len()
        );
        let error = Error::new(ErrorKind::Server, text).hinted(
            "--parallel 1 needs no agreement; or GRANT RELOAD, LOCK TABLES ON *.* TO the backup's account;",
        );
        Err(match control.flavor() {
            _ if has_locks => Stopped::Refused(error),
            Flavor::MySql => Stopped::Less(error),
            Flavor::MariaDb => Stopped::Failed(error),
        })
    }

    /// MariaDB: begins a view in each reader, and compares their places in the binlog. If all are the same,
    /// returns the position, as far as the account may know it. One more view serves to read it and is let go
    /// at once: the server's own tables are in nobody's way.
    fn begin_at_one_place(
        &mut self,
        looks: &mut Session,
        is_last: bool,
    ) -> Result<Option<Option<Position>>, Stopped> {
        let mut places = Vec::with_capacity(self.readers.len() + 1);
        for session in self.readers.iter_mut().chain([&mut *looks]) {
            session.exec(BEGIN_VIEW)?;
            places.push(snapshot_place(session)?);
        }
        let Some(Some(first)) = places.first().cloned() else { return Err(nothing_to_compare_by()) };
        if places.iter().any(|place| place.as_ref() != Some(&first)) {
            return Ok(None);
        }
        let placed = snapshot_position(looks, first, is_last)?;
        looks.exec("ROLLBACK")?;
        Ok(match placed {
            Placed::At(position) => Some(position),
            Placed::Lagging => None,
        })
    }

    /// MySQL: begins a view in each reader while nothing is committed. The server reports where the binlog
    /// ends once everything in it is visible (`log_status` waits for commits under way). If it still ends
    /// there after all views are begun, nothing was committed between them.
    fn begin_while_nothing_is_committed(&mut self, looks: &mut Session) -> Result<Option<Position>, Stopped> {
        if !looks.version().is_verified_mysql() {
            let text =
                "whether log_status waits for commits under way is not verified for this release series";
            return Err(Stopped::Less(Error::new(ErrorKind::Server, text)));
        }
        let before = LogStatus::read(looks).map_err(unanswered)?;
        if before.binlog.is_none() {
            return Err(nothing_to_compare_by());
        }
        self.with_all_readers(|reader| reader.exec(BEGIN_VIEW))?;
        let after = LogStatus::read(looks).map_err(unanswered)?;
        let has_moved = (&before.binlog, &before.gtid_executed) != (&after.binlog, &after.gtid_executed);
        if has_moved {
            return Ok(None);
        }
        let replica_of = channels_without_places(looks)?;
        Ok(Some(Position {
            precision: Precision::Exact,
            lsn: after.lsn.0,
            binlog: after.binlog,
            gtid: Some(after.gtid_executed).filter(|gtid| !gtid.is_empty()),
            replica_gtid: None,
            replica_of,
            at: Some(clock(looks).map_err(unanswered)?),
        }))
    }

    /// Runs `work` for all readers at once.
    fn with_all_readers(
        &mut self,
        work: impl Fn(&mut Session) -> Result<(), SqlError> + Sync,
    ) -> Result<(), SqlError> {
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> =
                self.readers.iter_mut().map(|reader| scope.spawn(move || work(reader))).collect();
            let lost = || SqlError::new(SqlCause::Lost, "a thread ended early");
            let outcomes: Vec<_> =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(lost()))).collect();
            outcomes.into_iter().collect()
        })
    }

    /// Tables that readers touch and read.
    fn touched(&self) -> impl Iterator<Item = &Listed> {
        self.listing.with_rows().filter(|table| is_touched(table))
    }

    /// Tables whose engine has no views.
    fn locked_while_read(&self) -> impl Iterator<Item = &Listed> {
        let is_table = |table: &&Listed| matches!(table.kind, TableKind::Base | TableKind::Versioned);
        let kind = |table: &Listed| table.engine.as_deref().map(EngineKind::of);
        self.listing.with_rows().filter(is_table).filter(move |table| kind(table) == Some(EngineKind::Locked))
    }

    /// The statements that touch all tables that are read.
    fn touches(&self) -> Vec<String> {
        let names: Vec<String> = self.touched().map(|table| table.name.quoted()).collect();
        let chunks = names.chunks(TOUCHED_AT_ONCE);
        chunks.map(|names| format!("SELECT 1 FROM {} LIMIT 0", names.join(", "))).collect()
    }

    /// Step 2: begins transactions and touches all tables.
    fn touch_all(&mut self) -> Result<(), Stopped> {
        for reader in &mut self.readers {
            reader.exec("START TRANSACTION READ ONLY")?;
        }
        self.touch_all_in_transactions()
    }

    /// Touches all tables in a transaction of `session`.
    fn touch_by(&self, session: &mut Session) -> Result<(), Stopped> {
        session.exec("START TRANSACTION READ ONLY")?;
        self.touches().iter().try_for_each(|touch| session.exec(touch)).map_err(not_touched)
    }

    fn touch_all_in_transactions(&mut self) -> Result<(), Stopped> {
        let statements = self.touches();
        let touched =
            self.with_all_readers(|reader| statements.iter().try_for_each(|touch| reader.exec(touch)));
        touched.map_err(not_touched)
    }

    /// Reads the definitions of the tables whose metadata locks the readers hold.
    fn read_tables(
        &mut self,
        control: &mut Session,
        selection: &Selection,
        cancel: &Cancel,
    ) -> Result<(), Stopped> {
        let mut by_schema = BTreeMap::<&str, Vec<&Listed>>::new();
        for listed in self.listing.with_rows().filter(|listed| listed.kind != TableKind::Sequence) {
            by_schema.entry(&listed.name.schema).or_default().push(listed);
        }
        for (schema, listed) in by_schema {
            cancel.check()?;
            self.tables.extend(tables::of_schema(control, schema, &listed, selection)?);
        }
        Ok(())
    }

    /// Makes the view by its first read.
    fn read_first(&mut self) -> Result<(), Stopped> {
        let of_innodb = |table: &&Listed| {
            table.kind == TableKind::Base
                && table.engine.as_deref().is_some_and(|e| EngineKind::of(e) == EngineKind::Views)
        };
        let versioned = |table: &&Listed| {
            table.kind == TableKind::Versioned
                && table.engine.as_deref().is_some_and(|e| EngineKind::of(e) == EngineKind::Views)
        };
        let table =
            self.listing.with_rows().find(of_innodb).or_else(|| self.listing.with_rows().find(versioned));
        // Without such a table there is nothing to have a view of.
        let Some(table) = table else { return Ok(()) };
        let query = format!("SELECT HIGH_PRIORITY 1 FROM {} LIMIT 1", table.name.quoted());
        for reader in &mut self.readers {
            reader.rows(&query)?;
        }
        Ok(())
    }

    /// Locks tables whose engine has no views, until they are read.
    fn lock_others(&mut self) -> Result<(), Stopped> {
        let names: Vec<TableName> = self.locked_while_read().map(|table| table.name.clone()).collect();
        match &mut self.others {
            Some(lock) => granted(lock.try_reading(&names)?, "the lock of tables without transactions"),
            None => Ok(()),
        }
    }

    /// Whether tables are locked until they are read.
    pub(super) fn holds_tables(&self) -> bool {
        self.others.is_some()
    }

    /// Releases the tables whose engine has no views, now that all of them are read. Fails if they were not
    /// held until now.
    pub(super) fn release_tables(&mut self, listener: &dyn Listener) -> Result<()> {
        let Some(mut lock) = self.others.take() else { return Ok(()) };
        let released = lock.release();
        for record in lock.records() {
            record.report(listener);
        }
        self.records.extend_from_slice(lock.records());
        released.map_err(|error| {
            Error::from(error).context("tables without transactions were not read in time").hinted(
                "--lock-max sets how long writes to them may wait; move them to InnoDB, or leave them out by --exclude-table",
            )
        })
    }

    /// Ends the view, which is no longer needed. Fails if a lock that should have been held to the end was
    /// not. Returns all locks with their times.
    pub(super) fn close(mut self, listener: &dyn Listener) -> Result<Vec<LockRecord>> {
        self.release_tables(listener)?;
        let reported = self.records.len();
        self.release_instance()?;
        for record in &self.records[reported..] {
            record.report(listener);
        }
        Ok(self.records)
    }
}

/// Why tables were not touched. One that may not be read is not a matter of locks.
fn not_touched(error: SqlError) -> Stopped {
    match Stopped::from(error) {
        Stopped::Less(error) => Stopped::Failed(error),
        other => other,
    }
}

/// Reads the position while `holder` has a lock. Refuses a replica whose applied transactions no position
/// describes.
fn position_under(
    holder: &HeldSession,
    control: &mut Session,
    wanted: &Wanted<'_>,
) -> Result<Option<Position>, Stopped> {
    let Some(channels) = channels(control)? else { return Ok(None) };
    refuse_gaps(wanted.facts, &channels)?;
    let applied = applied(control, &channels)?;
    Ok(holder.with(|session| position(session, &channels, applied.clone()))?)
}

/// No `KILL` ends the wait for commits that wait for a silent replica.
fn unanswered(error: SqlError) -> Stopped {
    match error.cause() {
        SqlCause::Lost => Stopped::Refused(LogStatus::unanswered(error)),
        _ => error.into(),
    }
}

fn nothing_to_compare_by() -> Stopped {
    let text = "no lock may be taken, and there is no binlog of all changes to compare views by";
    Stopped::Less(Error::new(ErrorKind::Server, text))
}

fn changed(what: &str) -> Error {
    Error::failed(format!("{what} while the view was made"))
        .hinted("run it again when no definitions are being changed")
}

/// Reads everything that is not a table. If the account may not see accounts, the error says so.
fn programs(
    session: &mut Session,
    listing: &Listing,
    selection: &Selection,
) -> Result<Vec<Definition>, Stopped> {
    let mut definitions = objects::programs(session, listing, selection)?;
    if selection.has_accounts() {
        definitions.extend(accounts::accounts(session)?);
    }
    Ok(definitions)
}

/// Whether the instance lock may be held while rows are read. It may not if another backup would need what it
/// refuses for as long: `FLUSH TABLES .. WITH READ LOCK` of tables of engines other than InnoDB (verified on
/// 9.7). After its release, the readers' metadata locks alone keep definitions from being changed, as on
/// MariaDB. For InnoDB's own tables, a backup would need that statement only for one that was imported while
/// it copied.
fn may_hold_the_instance(control: &mut Session, privileges: &Privileges) -> Result<bool, SqlError> {
    if !privileges.sees_all_tables() {
        return Ok(false);
    }
    let others = TableInventory::read(control)?.others;
    // The exceptions are the server's own log tables, which no backup can lock.
    Ok(others.iter().all(|table| table.name.schema == "mysql"))
}

/// Opens a session to read rows: as they are stored, in one view, and not dropped while it waits.
fn open_reader(wanted: &Wanted<'_>) -> Result<Session, Stopped> {
    let mut session = Session::open_patiently(wanted.connect, Purpose::Rows)?;
    let silence = READER_SILENCE_MAX.as_secs();
    let stall = silence.saturating_add(wanted.hold_up_max.as_secs()).min(NET_TIMEOUT_MAX_S);
    session.exec("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")?;
    session.exec(&format!(
        "SET SESSION character_set_results = NULL, sql_mode = 'ALLOW_INVALID_DATES', \
         max_sort_length = {SORTED_BYTES_MAX}, wait_timeout = {silence}, net_write_timeout = {stall}"
    ))?;
    if session.flavor() == Flavor::MariaDb {
        session.exec("SET SESSION idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0")?;
    }
    bulk::expect_many_rows(&mut session)?;
    Ok(session)
}

/// Whether touching a table has an effect: there must be an engine that can open it.
fn is_touched(table: &Listed) -> bool {
    let kind = table.engine.as_deref().map(EngineKind::of);
    matches!(kind, Some(EngineKind::Views | EngineKind::Locked))
}
