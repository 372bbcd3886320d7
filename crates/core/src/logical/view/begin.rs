//! Step 3: makes the readers' views, by each of the methods, and reads their position.

use std::{collections::HashSet, time::Duration};

use holdfast_formats::Flavor;

use super::{
    READER_SILENCE_MAX, View, ViewRequest, changed,
    in_the_way::InTheWay,
    method::{Method, Methods},
    position::{
        Placed, channels, channels_without_places, moves_with_every_change, position, snapshot_place,
        snapshot_position,
    },
    stopped::{Stopped, granted},
};
use crate::{
    error::{Error, ErrorKind},
    logical::catalog::{
        listing::{Listed, Listing, TableKind},
        tables::EngineKind,
    },
    position::{Position, Precision},
    server::{
        BackupStages, HeldSession, Purpose, Session, SqlCause, SqlError, Stage, TableLock, TableName,
        status::{BinlogPosition, LogStatus, XaDecisions, applied, clock, refuse_gaps},
    },
};

/// How many times views are begun before giving up on a common position.
const AGREEMENT_TRIES: u32 = 50;
/// How long the server may take to report where the binlog ends.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// How long `FLUSH TABLES WITH READ LOCK` waits; servers count whole seconds.
const READ_LOCK_WAIT_MAX: Duration = Duration::from_secs(1);
/// Makes a view at once.
const BEGIN_VIEW: &str = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

impl View {
    /// Step 3, with the lock that nobody blocks.
    pub(super) fn begin_under_a_lock(
        &mut self,
        control: &mut Session,
        wanted: &ViewRequest<'_>,
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

    /// Step 3, with MariaDB's stages.
    fn begin_in_stages(&mut self, control: &mut Session, wanted: &ViewRequest<'_>) -> Result<(), Stopped> {
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
        wanted: &ViewRequest<'_>,
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
            // A prepared transaction whose session is gone is committed in spite of locks of tables.
            let may_commit = method == Method::TableLocks
                && control.flavor() == Flavor::MariaDb
                && !control.rows("XA RECOVER")?.is_empty();
            let before = match may_commit {
                true => position_under(lock.session(), control, wanted)?,
                false => None,
            };
            self.read_first()?;
            self.position = position_under(lock.session(), control, wanted)?;
            if may_commit && place(before.as_ref()) != place(self.position.as_ref()) {
                return Err(Stopped::Changed(changed("a prepared transaction may have been committed")));
            }
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
    pub(super) fn begin_agreeing(
        &mut self,
        control: &mut Session,
        wanted: &ViewRequest<'_>,
        has_locks: bool,
    ) -> Result<(), Stopped> {
        if !moves_with_every_change(control)? {
            return Err(nothing_to_compare_by());
        }
        // This session holds nothing and can be given up.
        let mut looks = Session::open_patiently(wanted.connect, Purpose::Monitor)?;
        looks.set_answer_timeout(match control.flavor() {
            // It has a view of its own, and reads in it.
            Flavor::MariaDb => READER_SILENCE_MAX,
            Flavor::MySql => LOOK_MAX,
        })?;
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
        let decisions = XaDecisions::read(looks)?;
        let before = LogStatus::read(looks).map_err(unanswered)?;
        if before.binlog.is_none() {
            return Err(nothing_to_compare_by());
        }
        self.with_all_readers(|reader| reader.exec(BEGIN_VIEW))?;
        let after = LogStatus::read(looks).map_err(unanswered)?;
        let has_moved = (&before.binlog, &before.gtid_executed) != (&after.binlog, &after.gtid_executed);
        if has_moved || !decisions.are_none_until(XaDecisions::read(looks)?) {
            return Ok(None);
        }
        let replica_of = channels_without_places(looks)?;
        Ok(Some(Position {
            precision: Precision::Exact,
            lsn: after.lsn,
            binlog: after.binlog,
            gtid: Some(after.gtid_executed).filter(|gtid| !gtid.is_empty()),
            replica_gtid: None,
            replica_of,
            at: Some(clock(looks).map_err(unanswered)?),
        }))
    }

    /// Makes the view by its first read.
    pub(super) fn read_first(&mut self) -> Result<(), Stopped> {
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
}

/// What moves with every transaction.
fn place(position: Option<&Position>) -> Option<(Option<&BinlogPosition>, Option<&str>)> {
    position.map(|position| (position.binlog.as_ref(), position.gtid.as_deref()))
}

/// Reads the position while `holder` has a lock. Refuses a replica whose applied transactions no position
/// describes.
fn position_under(
    holder: &HeldSession,
    control: &mut Session,
    wanted: &ViewRequest<'_>,
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
