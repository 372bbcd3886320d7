//! The end of the copy, under `LOCK INSTANCE FOR BACKUP`: names settled, position and end of redo read together.

use std::time::Duration;

use holdfast_formats::SpaceId;

use super::Capture;
use crate::{
    error::{Error, Result},
    event::Event,
    physical::{CapturedRedo, Position, Precision},
    points::point,
    server::{
        ConnectOptions, InstanceLock, LockRecord, Session, SqlError, TableInventory,
        inventory::TableName,
        status::{self, LogStatus, MySqlRedoStatus, ReplicaChannel, TablespaceRow},
    },
    source::{
        attempt::{Stopped, granted},
        inventory::Spaces,
        redo::mysql::Start,
    },
};

/// The redo reader is behind by milliseconds; much more means that the disk is stuck.
pub(super) const REDO_WAIT: Duration = Duration::from_secs(30);

impl Capture<'_> {
    fn note_locks(&mut self, locks: &[LockRecord]) {
        for lock in locks {
            lock.report(self.listener);
        }
        self.stats.locks.extend_from_slice(locks);
    }

    /// Steps 3 to 5 of the order in [`super`], tried again when a lock is not to be had or held too long.
    pub(super) fn stop(&mut self, connect: &ConnectOptions) -> Result<Position> {
        let limits = self.options.stage_limits();
        let mut tries = 0;
        loop {
            let mut lock = InstanceLock::open(connect, limits)?;
            let stopped = self.try_to_stop(&mut lock);
            // What was lost with the session was released by the server.
            drop(lock.release());
            self.note_locks(lock.records());
            let error = match stopped {
                Ok(position) => return Ok(position),
                Err(Stopped::Failed(error)) => return Err(error),
                Err(Stopped::TryAgain(error)) => error,
            };
            tries += 1;
            if tries >= self.options.lock_tries {
                return Err(error);
            }
            self.listener.event(Event::Warning {
                text: format!("{error}; everything was released, trying again ({tries})"),
            });
            drop(lock);
            self.catch_up()?;
        }
    }

    fn try_to_stop(&mut self, lock: &mut InstanceLock) -> std::result::Result<Position, Stopped> {
        self.copier.context.drain()?;
        granted(lock.try_lock()?, "LOCK INSTANCE FOR BACKUP")?;
        point("backup.ddl.blocked");
        let read_before = self.copier.context.counters.bytes_read();
        self.settle(lock)?;
        self.stats.bytes_under_ddl_lock += self.copier.context.counters.bytes_read() - read_before;
        let tables = lock.session().with(tables_of_other_engines)?;
        granted(
            lock.try_lock_tables(&tables, Some(self.options.lock_max))?,
            "FLUSH TABLES .. WITH READ LOCK",
        )?;
        point("backup.tables.locked");
        let listing = self.list()?;
        self.copy_other_files(&listing.others)?;
        let status = lock.session().with(LogStatus::read)?;
        let redo_is_on = lock.session().with(MySqlRedoStatus::read)?.is_enabled;
        let alter_instance_count = lock.session().with(status::alter_instance_count)?;
        let channels = lock.session().with(ReplicaChannel::read_all)?;
        lock.session().alive()?;
        lock.release()?;
        if !redo_is_on {
            return Err(Error::failed("redo logging was switched off during the backup")
                .hinted("ALTER INSTANCE ENABLE INNODB REDO_LOG, then run the backup again")
                .into());
        }
        if alter_instance_count != self.alter_instance_count {
            return Err(Error::failed(
                "ALTER INSTANCE was run during the backup, which can have switched redo logging off and on again",
            )
            .hinted("run the backup again; ROTATE and RELOAD statements count, too, since no trace tells them apart")
            .into());
        }
        // The end is written by now, or about to be: no lock is needed to read on to it.
        lock.session().with(status::flush_engine_logs)?;
        self.follower.wait_for(status.lsn, REDO_WAIT)?;
        Ok(Position {
            precision: Precision::Exact,
            lsn: status.lsn.0,
            binlog: status.binlog.map(Into::into),
            gtid: Some(status.gtid_executed).filter(|gtid| !gtid.is_empty()),
            replica_of: channels.into_iter().map(Into::into).collect(),
        })
    }

    /// Makes the copied files those that exist now, under the names they have now.
    fn settle(&mut self, lock: &mut InstanceLock) -> std::result::Result<(), Stopped> {
        let end = lock.session().with(status::mysql_durable_end)?;
        self.follower.wait_for(end, REDO_WAIT)?;
        let spaces = lock.session().with(status::tablespaces)?;
        let listing = self.list()?;
        let rescan = self.rescan(listing.tablespaces, &spaces)?;
        self.copier.tablespaces(rescan.copy, &spaces)?;
        self.copy_other_files(&listing.others)?;
        Ok(self.every_space_has_its_file(&spaces)?)
    }

    /// Each tablespace that the server lists must have been copied, and none twice.
    fn every_space_has_its_file(&self, spaces: &Spaces) -> Result<()> {
        let is_kept =
            |row: &&TablespaceRow| row.state.as_deref() != Some("discarded") && !is_temporary(row.space);
        self.copier.inventory.holds_all(spaces.values().filter(is_kept))
    }
}

/// MySQL: the global temporary tablespace.
const TEMPORARY_SPACE: u32 = 0xFFFF_FFFD;
/// The lowest number of an undo tablespace; 127 of them have 512 numbers each, downwards from 0xFFFFFFEF.
const UNDO_SPACES_FROM: u32 = 0xFFFF_FFEF - 127 * 512 + 1;
/// Session temporary tablespaces have so many numbers below those.
const SESSION_TEMPORARY_SPACES: u32 = 400_000;

/// Whether a tablespace is one of those that are made anew at each start.
fn is_temporary(space: SpaceId) -> bool {
    let session = UNDO_SPACES_FROM - SESSION_TEMPORARY_SPACES..UNDO_SPACES_FROM;
    space.0 == TEMPORARY_SPACE || session.contains(&space.0)
}

/// User tables of engines that keep their data in files of their own. What the account may not select from is not
/// listed: the grants were checked for that.
fn tables_of_other_engines(session: &mut Session) -> std::result::Result<Vec<TableName>, SqlError> {
    let mut tables = TableInventory::read(session)?.others;
    // Nobody may lock the server's own log tables.
    tables.retain(|table| table.name.schema != "mysql");
    Ok(tables.into_iter().map(|table| table.name).collect())
}

/// What restore must know of the captured redo.
pub(super) fn describe_redo(start: &Start, position: &Position) -> CapturedRedo {
    CapturedRedo::MySql {
        begin_lsn: start.begin.0,
        checkpoint_lsn: start.checkpoint.0,
        stop_lsn: position.lsn,
        header: start.header.iter().map(|byte| format!("{byte:02x}")).collect(),
        encrypted: start.encrypted,
    }
}
