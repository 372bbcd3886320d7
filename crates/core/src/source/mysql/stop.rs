//! The end of the copy, under `LOCK INSTANCE FOR BACKUP`: names are settled, and position and end of redo are
//! read together.

use std::{collections::HashSet, fmt, thread, time::Duration};

use holdfast_formats::{Lsn, SpaceId};
use holdfast_repo::format::hex::to_hex;

use super::{Capture, consumer::redo_was_switched_off, copy::Look, looks::Looks};
use crate::{
    captured_redo::CapturedRedo,
    error::{Error, ErrorKind, Result},
    event::{Event, Listener},
    points::point,
    position::{Position, Precision, ReplicaPosition},
    server::{
        Attempt, ConnectOptions, InstanceLock, LockLimits, ServerVersion, Session, SqlError, TableInventory,
        TableName,
        status::{self, MySqlPosition, MySqlRedoStatus, ReplicaChannel, XaDecisions},
        tables::{self, TablespaceRow},
    },
    source::{
        CaptureOptions,
        attempt::{Stopped, Tries, granted},
        copy::zeroed_first_page,
        imported::Imported,
        inventory::Spaces,
        redo::mysql::Start,
        rewritten::catch_up,
        tablespace::TablespaceEntry,
    },
};

/// The tables that the server itself writes to, if `log_output` says so.
const LOG_TABLES: [&str; 2] = ["general_log", "slow_log"];
/// The redo reader lags by milliseconds; much more means that the disk is stuck.
pub(super) const REDO_WAIT: Duration = Duration::from_secs(30);

/// How often the position is read while XA transactions end, and the pause in between.
const DECISION_LOOKS_MAX: u32 = 200;
const DECISION_PAUSE: Duration = Duration::from_millis(5);

/// Why definitions may not change during the whole copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blind {
    /// Bulk loads of indexes and deletions of files cannot be found in the redo.
    Encrypted,
    /// What they look like in the redo was verified on another series only.
    UntriedSeries,
}

impl Blind {
    pub(super) fn of(version: &ServerVersion, is_encrypted: bool) -> Option<Self> {
        match is_encrypted {
            true => Some(Self::Encrypted),
            false => (!version.is_verified_mysql()).then_some(Self::UntriedSeries),
        }
    }
}

impl fmt::Display for Blind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Encrypted => "the redo log is encrypted, so index builds cannot be seen in it",
            Self::UntriedSeries => "how this MySQL series logs index builds has not been verified",
        })
    }
}

/// Blocks definitions for the whole capture, whatever `--ddl-lock-max` says.
pub(super) fn lock_for_the_copy(
    why: Blind,
    connect: &ConnectOptions,
    options: &CaptureOptions,
    listener: &dyn Listener,
) -> Result<InstanceLock> {
    let limits = LockLimits { held_max: None, ..options.locks.ddl_limits() };
    let mut lock = InstanceLock::open(connect, limits)?;
    for _ in 0..options.locks.tries {
        if lock.try_lock()? == Attempt::Granted {
            let text = format!(
                "{why}: DDL is blocked until the copy ends (LOCK INSTANCE FOR BACKUP); on a replica, the \
                 applier stops at the first DDL statement"
            );
            listener.event(Event::Warning { text });
            return Ok(lock);
        }
    }
    Err(Error::new(ErrorKind::Server, "LOCK INSTANCE FOR BACKUP was not granted in time").hinted(format!(
        "{why}: no DDL may run during the copy, and a DDL statement is running: see SHOW PROCESSLIST"
    )))
}

impl Capture<'_> {
    /// Runs steps 3 to 5 of the order in [`super`], and tries again if a lock is not granted or was held too
    /// long. `held` is the lock, if it is already held.
    pub(super) fn stop(&mut self, held: Option<InstanceLock>) -> Result<Position> {
        let limits = self.options.locks.ddl_limits();
        let for_the_copy = held.is_some();
        let mut held = held;
        let mut tries = Tries::new(self.options.locks.tries, self.options.locks.patience);
        loop {
            let mut lock = match held.take() {
                Some(lock) => lock,
                None => InstanceLock::open(self.connect, limits)?,
            };
            let stopped = match self.try_to_stop(&mut lock) {
                Ok(position) => {
                    drop(lock.release());
                    self.stats.add_locks(lock.records(), self.listener);
                    return Ok(position);
                }
                Err(stopped) => stopped,
            };
            self.follower.go_on();
            let again = tries.after(stopped);
            // Failing to lock tables is no reason to release the lock that the copy depends on.
            let stays = for_the_copy && !lock.has_tables() && lock.alive().is_ok();
            if let (true, Ok(again)) = (stays, &again) {
                let text = format!("{}; trying again ({})", again.error, tries.count());
                self.listener.event(Event::Warning { text });
                again.wait(self.copier.context.cancel)?;
                held = Some(lock);
                continue;
            }
            // If the session was lost, the server has released its locks.
            drop(lock.release());
            self.stats.add_locks(lock.records(), self.listener);
            let again = again?;
            if for_the_copy {
                return Err(again.error);
            }
            self.listener.event(again.told(tries.count()));
            drop(lock);
            self.copier.context.restore_limits(self.options.read_bytes_per_s_max);
            again.wait(self.copier.context.cancel)?;
            let rewritten = catch_up(&mut || self.pass())?;
            if again.was_held {
                // The last attempt ran out of time, and so would another.
                rewritten.after(self.tried.clone()).refuse_beyond(&self.limit_of_rewriting())?;
            }
        }
    }

    fn try_to_stop(&mut self, lock: &mut InstanceLock) -> std::result::Result<Position, Stopped> {
        self.copier.context.lift_limits();
        self.copier.context.drain()?;
        let mut looks = Looks::open(self.connect, self.options.locks.wait_max)?;
        // As long as this has to wait, no lock is worth taking.
        looks.status()?;
        // A redo reader that does not keep up must fail before anything is blocked.
        self.wait_for_redo(&mut looks)?;
        granted(lock.try_lock()?, "LOCK INSTANCE FOR BACKUP")?;
        point("backup.ddl.blocked");
        let read_before = self.copier.context.counters.bytes_read();
        // Asked before any table is locked: after that the session may read no other table.
        let tables = lock.session().with(tables_of_other_engines)?;
        let imported = self.follow_names(lock, &mut looks, &tables)?;
        self.stats.bytes_under_ddl_lock += self.copier.context.counters.bytes_read() - read_before;
        granted(self.lock_tables(lock, tables)?, "FLUSH TABLES .. WITH READ LOCK")?;
        point("backup.tables.locked");
        let mut listing = self.list()?;
        if let Some(imported) = imported {
            listing.others.retain(|path, _| !imported.is_note(path));
        }
        self.tried = Some(self.copy_other_files(&listing.others)?);
        let MySqlPosition { status, channels, unmoved } = self.read_position(&mut looks)?;
        status::refuse_gaps(self.facts, &channels)?;
        let redo_is_on = lock.session().with(MySqlRedoStatus::read)?.is_enabled;
        let alter_instance_count = lock.session().with(status::alter_instance_count)?;
        if self.follower.begin().encrypted {
            // The last block stays whole. What it has beyond the position must not be a change of a
            // definition.
            self.questions.ask(status::flush_engine_logs)?;
            self.follower.stop_at(status.lsn, REDO_WAIT)?;
        }
        lock.session().alive()?;
        lock.release()?;
        if !redo_is_on {
            return Err(redo_was_switched_off().into());
        }
        if self.alter_instance_count.is_some_and(|before| before != alter_instance_count) {
            return Err(Error::failed(
                "ALTER INSTANCE was run during the backup, which may have switched redo logging off and on \
                 again",
            )
            .hinted(
                "run the backup again; ALTER INSTANCE ROTATE and RELOAD count, too, since they cannot be \
                 told apart afterwards",
            )
            .into());
        }
        // The end is written by now, or about to be: no lock is needed to read on to it.
        lock.session().with(status::flush_engine_logs)?;
        self.follower.durable(status.lsn);
        self.follower.wait_for(status.lsn, REDO_WAIT)?;
        let place = |channel: ReplicaChannel| {
            if unmoved.contains(&channel) {
                return channel.into();
            }
            let of = ReplicaPosition::without_place(channel);
            if !of.by_gtid {
                self.listener.event(Event::Warning { text: of.is_not_recorded(NEVER_PAUSED) });
            }
            of
        };
        Ok(Position {
            precision: Precision::Exact,
            lsn: status.lsn,
            binlog: status.binlog,
            gtid: Some(status.gtid_executed).filter(|gtid| !gtid.is_empty()),
            replica_gtid: None,
            replica_of: channels.into_iter().map(place).collect(),
            at: Some(lock.session().with(status::clock)?),
        })
    }

    /// Reads the position while no decision about an XA branch is under way.
    fn read_position(&mut self, looks: &mut Looks) -> std::result::Result<MySqlPosition, Stopped> {
        let questions = &mut *self.questions;
        for _ in 0..DECISION_LOOKS_MAX {
            let before = questions.ask(XaDecisions::read)?;
            let found = status::mysql_position::<Stopped>(
                || looks.status(),
                || Ok(questions.ask(ReplicaChannel::read_all)?),
            )?;
            if before.are_none_until(questions.ask(XaDecisions::read)?) {
                return Ok(found);
            }
            thread::sleep(DECISION_PAUSE);
        }
        let text = "an XA COMMIT or XA ROLLBACK was under way whenever the position was read, which such statements make \
                    wrong";
        let error = Error::new(ErrorKind::Server, text);
        Err(Stopped::TryAgain(error.hinted("take the backup when fewer XA transactions end")))
    }

    /// Closes the tables of other engines to writes. Those that are broken, so that nobody can open them, are closed
    /// already.
    fn lock_tables(
        &self,
        lock: &mut InstanceLock,
        mut tables: Vec<TableName>,
    ) -> std::result::Result<Attempt, Stopped> {
        let held_max = Some(self.options.locks.held_max);
        let error = match lock.try_lock_tables(&tables, held_max) {
            Ok(attempt) => return Ok(attempt),
            Err(error) => error,
        };
        let broken = lock.not_to_be_opened(&tables)?;
        if broken.is_empty() {
            return Err(error.into());
        }
        for (table, why) in broken {
            tables.retain(|other| *other != table);
            let text = format!("the server cannot open {table}; its files are copied as they are: {why}");
            self.listener.event(Event::Warning { text });
        }
        Ok(lock.try_lock_tables(&tables, held_max)?)
    }

    /// Waits until the reader has captured what is on disk by now, and returns where that ends.
    fn wait_for_redo(&self, looks: &mut Looks) -> std::result::Result<Lsn, Stopped> {
        let end = looks.durable_end()?;
        self.follower.durable(end);
        self.follower.wait_for(end, REDO_WAIT)?;
        Ok(end)
    }

    /// Makes the copied files those that exist now, under the names they have now. `others` are the tables
    /// that are to be locked next.
    ///
    /// Returns imported tables, which are closed to writes until the lock is released.
    fn follow_names(
        &mut self,
        lock: &mut InstanceLock,
        looks: &mut Looks,
        others: &[TableName],
    ) -> std::result::Result<Option<Imported>, Stopped> {
        let end = self.wait_for_redo(looks)?;
        let spaces = lock.session().with(tables::tablespaces)?;
        let listing = self.list()?;
        let mut rescan = self.rescan(listing.tablespaces, &spaces, Look::Locked { end })?;
        rescan.refuse_second_names()?;
        // A tablespace that is discarded and not imported: nobody can write to it or lock it.
        let is_open = |space: &Option<SpaceId>| {
            space.and_then(|space| spaces.get(&space)).is_some_and(|row| !is_discarded(row))
        };
        let (closed, not_open): (Vec<_>, Vec<_>) =
            rescan.copy_closed.into_iter().partition(|(_, space)| is_open(space));
        rescan.copy.extend(not_open.into_iter().map(|(found, _)| found));
        self.copier.tablespaces(rescan.copy, &spaces)?;
        self.amend(rescan.amend)?;
        self.copier.inventory.lacks_nothing()?;
        self.tried = Some(self.copy_other_files(&listing.others)?);
        let closed: Vec<_> = closed.into_iter().map(|(found, _)| found).collect();
        let imported = match closed.is_empty() {
            true => None,
            false => Some(self.copy_closed(lock, closed, others, &spaces)?),
        };
        self.every_space_has_its_file(&spaces)?;
        Ok(imported)
    }

    /// Closes the tables that `found` belong to, and copies them.
    fn copy_closed(
        &mut self,
        lock: &mut InstanceLock,
        found: Vec<TablespaceEntry>,
        others: &[TableName],
        spaces: &Spaces,
    ) -> std::result::Result<Imported, Stopped> {
        let imported = Imported::of(&found)?;
        if let Some(other) = others.first() {
            return Err(Error::failed(format!(
                "imported during the backup: {imported}; such tables can be copied only while they are \
                 blocked for writes, which the server does not do together with tables of other engines, \
                 such as {other}"
            ))
            .hinted("run the backup again: it begins after the import")
            .into());
        }
        // For recovery, the record of a DISCARD ends what the server knows of where the files of that id are
        // (verified on 9.7.4): it opens the file at its old place, if it is there.
        if let Some(TablespaceEntry { entry, .. }) = found.iter().find(|found| found.entry.outside) {
            return Err(Error::failed(format!(
                "imported during the backup: {imported}; of such tables, a server recovers only those in its data \
                 directory, and {} is elsewhere, in {}",
                entry.path,
                entry.real.display()
            ))
            .hinted("run the backup again: it begins after the import")
            .into());
        }
        imported.report("imported during the backup", self.listener);
        granted(lock.try_close_tables(&imported.tables)?, &format!("FLUSH TABLES {imported} FOR EXPORT"))?;
        point("backup.tables.exported");
        self.stats.files_recopied += found.len() as u64;
        self.copier.tablespaces(found, spaces)?;
        Ok(imported)
    }

    /// Checks that each tablespace the server lists was copied, and none twice.
    fn every_space_has_its_file(&self, spaces: &Spaces) -> Result<()> {
        // Page 0 is written when the file is created, before the dictionary has its name.
        let is_kept = |row: &&TablespaceRow| !is_discarded(row) && !is_temporary(row.space);
        let names: HashSet<_> = spaces.values().filter(is_kept).map(|row| row.name.as_str()).collect();
        let is_listed = |path: &str| path.strip_suffix(".ibd").is_some_and(|name| names.contains(name));
        if let Some(found) = self.copier.inventory.unwritten().find(|found| is_listed(&found.entry.path)) {
            return Err(zeroed_first_page(&found.entry.path));
        }
        // None can go: whoever removes one waits for the lock.
        self.copier.inventory.holds_all(spaces.values().filter(is_kept), || Ok(spaces.clone()))
    }
}

/// MySQL: the global temporary tablespace.
const TEMPORARY_SPACE: SpaceId = SpaceId(0xFFFF_FFFD);
/// The lowest number of an undo tablespace; 127 of them have 512 numbers each, downwards from 0xFFFFFFEF.
const UNDO_SPACES_FROM: u32 = 0xFFFF_FFEF - 127 * 512 + 1;
/// Session temporary tablespaces have this many numbers below those.
const SESSION_TEMPORARY_SPACES: u32 = 400_000;

/// Whether a tablespace has no file, or one that the server has not adopted yet.
fn is_discarded(row: &TablespaceRow) -> bool {
    row.state.as_deref() == Some("discarded")
}

/// Whether a tablespace is one of those that are created anew at each start.
fn is_temporary(space: SpaceId) -> bool {
    let session = UNDO_SPACES_FROM - SESSION_TEMPORARY_SPACES..UNDO_SPACES_FROM;
    space == TEMPORARY_SPACE || session.contains(&space.0)
}

/// Why a channel's place is not recorded: one newer than the data would be worse than none.
const NEVER_PAUSED: &str = "its applier never paused: after a restore, take the later of \
                            mysql.slave_relay_log_info and mysql.slave_worker_info";

/// User tables of engines that keep their data in files of their own. Tables that the account may not select
/// from are not listed; the grants were checked for that.
fn tables_of_other_engines(session: &mut Session) -> std::result::Result<Vec<TableName>, SqlError> {
    let mut tables = TableInventory::read(session)?.others;
    // Nobody may lock the server's own log tables.
    let is_log = |name: &TableName| name.schema == "mysql" && LOG_TABLES.contains(&name.table.as_str());
    tables.retain(|table| !is_log(&table.name));
    Ok(tables.into_iter().map(|table| table.name).collect())
}

/// The position, as precise as it is certain. Where the redo continues after it, or where `log_status` may
/// report a place in the binlog that is ahead of the redo, the restored server has the last word. What the
/// redo has beyond the position are transactions of InnoDB tables, which bring their GTIDs; the place in
/// binlogs, its own and its primaries', remains unknown.
pub(super) fn as_precise_as(
    position: Position,
    redo_is_exact: bool,
    version: &ServerVersion,
    listener: &dyn Listener,
) -> Position {
    if redo_is_exact && version.is_verified_mysql() {
        return position;
    }
    if position.gtid.is_none() && position.binlog.is_some() {
        let text = "the binlog position of the backup is not recorded, because it is not certain: enable \
                    GTIDs (gtid_mode=ON) to replicate or recover from backups of this server";
        listener.event(Event::Warning { text: text.to_owned() });
    }
    let no_place = |channel| ReplicaPosition { executed: None, ..channel };
    let replica_of = position.replica_of.into_iter().map(no_place).collect();
    Position { precision: Precision::AtRestore, binlog: None, replica_of, ..position }
}

/// What a restore must know about the captured redo.
pub(super) fn describe_redo(start: &Start, position: &Position) -> CapturedRedo {
    CapturedRedo::MySql {
        begin_lsn: start.begin,
        checkpoint_lsn: start.checkpoint,
        stop_lsn: position.lsn,
        header: to_hex(&start.header),
        encrypted: start.encrypted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::Silent, server::status::BinlogPosition};

    #[test]
    fn only_what_was_tried_is_copied_while_definitions_change() {
        let blind = |text: &str, encrypted| Blind::of(&ServerVersion::parse(text).unwrap(), encrypted);
        assert_eq!(blind("9.7.4-2", false), None);
        assert_eq!(blind("9.7.4-2", true), Some(Blind::Encrypted));
        for text in ["8.0.30", "8.4.7", "9.6.0", "10.1.0"] {
            assert_eq!(blind(text, false), Some(Blind::UntriedSeries), "{text}");
        }
    }

    /// A place in the binlog is recorded only where it is known to belong to the end of the redo.
    #[test]
    fn only_what_was_tried_tells_a_place_in_the_binlog() {
        let position = Position {
            precision: Precision::Exact,
            lsn: Lsn(1_000),
            binlog: Some(BinlogPosition { file: "binlog.000001".to_owned(), offset: 792 }),
            gtid: Some("9915e34c-e812-11f1-8b24-02fc00000001:1-3".to_owned()),
            replica_gtid: None,
            replica_of: Vec::new(),
            at: None,
        };
        let told = |text: &str, is_exact| {
            let version = ServerVersion::parse(text).unwrap();
            as_precise_as(position.clone(), is_exact, &version, &Silent)
        };
        assert_eq!(told("9.7.4-2", true), position);
        let at_restore = Position { precision: Precision::AtRestore, binlog: None, ..position.clone() };
        assert_eq!(told("9.7.4-2", false), at_restore);
        for text in ["8.0.36", "8.4.7", "9.6.0"] {
            assert_eq!(told(text, true), at_restore, "{text}");
        }
    }
}
