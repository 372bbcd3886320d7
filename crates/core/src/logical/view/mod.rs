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

mod begin;
mod in_the_way;
pub(super) mod method;
mod position;
mod readers;
mod stopped;

use std::time::Duration;

use holdfast_formats::Flavor;

use super::{
    catalog::{
        self, accounts,
        listing::{Listing, TableKind},
        privileges::Privileges,
        programs,
        tables::Table,
    },
    selection::Selection,
    stored::definition::Definition,
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    position::Position,
    server::{
        Attempt, ConnectOptions, InstanceLock, LockLimits, LockRecord, ServerFacts, Session, SqlError,
        TableInventory, TableLock,
    },
    source::attempt::{self, Tries},
};

use method::{Method, Methods};
use readers::open_reader;
use stopped::{Stopped, not_granted};

/// How long a reader may be silent before the server drops it; each reader sends something more often.
const READER_SILENCE_MAX: Duration = Duration::from_secs(600);

/// What is asked of a view.
pub(super) struct ViewRequest<'a> {
    pub(super) connect: &'a ConnectOptions,
    /// What the server was found to be. `connect` leads to no other.
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

impl View {
    /// Makes a view. `control` is a session for queries.
    pub(super) fn open(
        control: &mut Session,
        wanted: &ViewRequest<'_>,
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
        wanted: &ViewRequest<'_>,
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
        catalog::configure(control)?;
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
        wanted: &ViewRequest<'_>,
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
    let mut definitions = programs::programs(session, listing, selection)?;
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
