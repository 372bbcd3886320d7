//! The end of the copy: names are settled, and position and end of redo are read together. Locks are held
//! here and nowhere else, each as briefly as possible. If one is not granted in time, everything is released
//! and tried again.

use std::time::Duration;

use holdfast_formats::{
    Lsn, SpaceId,
    redo::mariadb::LogHeader,
    table_name::{TableFile, is_of_fulltext_index},
};
use holdfast_repo::format::hex::to_hex;

use super::{
    Capture, aria,
    copy::{ARIA_LOG_BUFFERS_BYTES, Look},
    discarded::Baseline,
    layout::When,
};
use crate::{
    captured_redo::CapturedRedo,
    error::{Context, Error, ErrorKind, Result},
    event::Event,
    points::point,
    position::Position,
    server::{
        Attempt, BackupStages, ConnectOptions, LockLimits, Session, SqlError, Stage, TableLock,
        locks::is_held_to_stop_purge,
        status::{self, MariaDbLsns, ReplicaChannel, ServerStart},
        tables,
    },
    source::{
        CaptureOptions, Role,
        attempt::{Stopped, Tries, granted},
        copier::Copier,
        copy::zeroed_first_page,
        files::walk,
        imported::Imported,
        inventory::Spaces,
        plain::{PlainFile, is_logged},
        redo::mariadb::Captured,
        rewritten::catch_up,
        tablespace::TablespaceEntry,
        workers::Buffers,
    },
};

/// The redo reader lags by milliseconds; much more means that the disk is stuck.
const REDO_WAIT: Duration = Duration::from_secs(30);
/// The purge stops after the work it has begun: within milliseconds, unless a statement that alters a table
/// is in its way.
const PURGE_WAIT: Duration = Duration::from_secs(10);
/// How many times the lock wait the server may, in the end, take to write out imported tables.
const WRITING_TRIES: u32 = 5;
/// The tablespace of temporary tables.
const TEMPORARY_SPACE: SpaceId = SpaceId(0xFFFF_FFFE);

/// Enters the first stage, which blocks nothing but may have to wait.
pub(super) fn start(stages: &mut BackupStages, options: &CaptureOptions) -> Result<()> {
    for _ in 0..options.locks.tries {
        if stages.enter(Stage::Start)? == Attempt::Granted {
            return Ok(());
        }
    }
    Err(Error::new(ErrorKind::Server, "BACKUP STAGE START was not granted in time")
        .hinted("another backup may be running, or LOCK TABLES .. WRITE is held: see SHOW PROCESSLIST"))
}

/// Fails if the server was restarted since the capture began.
pub(super) fn refuse_another_start(begun: &ServerStart, now: &ServerStart) -> Result<()> {
    if begun.is_before(now) {
        return Err(Error::new(ErrorKind::Server, "the server was restarted during the backup")
            .hinted("run the backup again"));
    }
    Ok(())
}

/// Blocks definitions for a moment and calls `read` to note which tables exist. Called before the first stage
/// that counts.
pub(super) fn baseline(
    stages: &mut BackupStages,
    options: &CaptureOptions,
    read: impl Fn(&mut Session) -> std::result::Result<Baseline, SqlError>,
) -> Result<Baseline> {
    for _ in 0..options.locks.tries {
        start(stages, options)?;
        let found = match stages.enter(Stage::BlockDdl)? {
            Attempt::Granted => Some(stages.session().with(&read)?),
            Attempt::TimedOut => None,
        };
        stages.release()?;
        if let Some(found) = found {
            return Ok(found);
        }
    }
    Err(Error::new(ErrorKind::Server, "BACKUP STAGE BLOCK_DDL was not granted in time").hinted(
        "the redo log is encrypted, so the list of tables must be read under this lock when the backup \
         begins; a long statement is in the way: see SHOW PROCESSLIST",
    ))
}

impl Capture<'_> {
    /// Runs steps 4 to 6 of the order in [`super`], and tries again if a lock is not granted or was held too
    /// long.
    pub(super) fn stop(&mut self, mut stages: BackupStages, connect: &ConnectOptions) -> Result<Position> {
        let mut tries = Tries::new(self.options.locks.tries, self.options.locks.patience);
        loop {
            // Tables that one attempt has written out need not be written out by the next.
            let writing_max =
                self.options.locks.wait_max.saturating_mul((1 + tries.count()).min(WRITING_TRIES));
            let writing_max = self.options.locks.ddl_held_max.min(writing_max);
            let stopped = self.try_to_stop(&mut stages, connect, writing_max);
            // If the session was lost, the server has released its locks.
            drop(stages.release());
            if stopped.is_err() {
                self.follower.go_on();
            }
            self.stats.add_locks(stages.records(), self.listener);
            let again = match stopped {
                Ok(position) => return Ok(position),
                Err(stopped) => tries.after(stopped)?,
            };
            self.listener.event(again.told(tries.count()));
            again.wait(self.copier.context.cancel)?;
            stages = self.start_anew(&mut tries, connect)?;
            // The server is not restarted while this session lasts.
            refuse_another_start(&self.begun, &stages.session().with(ServerStart::read)?)?;
            // Between two stages the server may purge Aria logs, so what relied on them is copied anew.
            let layout = &self.layout;
            let Copier { context, inventory, .. } = &mut self.copier;
            self.aria_control = None;
            inventory.forget(context.sink, |path| {
                let when = layout.when(path);
                let relies_on_logs = matches!(when, When::Early(Role::Aria) | When::Late(Role::Aria));
                relies_on_logs || matches!(when, When::AriaControl | When::AriaLog)
            })?;
            self.copier.context.restore_limits(self.options.read_bytes_per_s_max);
            let rewritten = catch_up(&mut || self.pass())?;
            if again.was_held {
                // The last attempt ran out of time, and so would another.
                rewritten.after(self.tried.clone()).refuse_beyond(&self.limit_of_rewriting())?;
            }
        }
    }

    /// Begins the stages again, and waits for sessions that are in the way of that, too.
    fn start_anew(&self, tries: &mut Tries, connect: &ConnectOptions) -> Result<BackupStages> {
        loop {
            let mut stages = BackupStages::open(connect, self.options.locks.ddl_limits())?;
            let Err(error) = start(&mut stages, self.options) else { return Ok(stages) };
            let again = tries.after(Stopped::TryAgain(error))?;
            self.listener.event(again.told(tries.count()));
            again.wait(self.copier.context.cancel)?;
        }
    }

    fn try_to_stop(
        &mut self,
        stages: &mut BackupStages,
        connect: &ConnectOptions,
        writing_max: Duration,
    ) -> std::result::Result<Position, Stopped> {
        self.copier.context.lift_limits();
        self.copier.context.drain()?;
        // A redo reader that does not keep up must fail before anything is blocked.
        let now = stages.session().with(MariaDbLsns::read)?.flushed;
        self.follower.wait_for(now, REDO_WAIT)?;
        let purge = self.closes_tables.then(|| self.stop_purge(connect)).transpose()?;
        granted(stages.enter(Stage::Flush)?, "BACKUP STAGE FLUSH")?;
        point("backup.stage.flush");
        granted(stages.enter(Stage::BlockDdl)?, "BACKUP STAGE BLOCK_DDL")?;
        point("backup.ddl.blocked");
        let read_before = self.copier.context.counters.bytes_read();
        let closed = self.follow_names(stages, connect, writing_max, purge)?;
        self.stats.bytes_under_ddl_lock += self.copier.context.counters.bytes_read() - read_before;
        // Waits here for most of what the flush under the commit lock would otherwise have to wait for.
        stages.session().with(status::flush_engine_logs)?;
        granted(stages.enter(Stage::BlockCommit)?, "BACKUP STAGE BLOCK_COMMIT")?;
        stages.session().limit(self.options.locks.held_max);
        point("backup.commit.blocked");
        // Transactions keep writing redo. None of it after the position may be captured.
        self.follower.hold();
        self.copy_tails()?;
        stages.session().with(status::flush_engine_logs)?;
        let position = stages.session().with(position)?;
        self.follower.stop_at(position.lsn);
        stages.session().alive()?;
        stages.release()?;
        for of in position.replica_of.iter().filter(|of| of.executed.is_none() && !of.by_gtid) {
            let why = "parallel appliers that log what they apply tell it late: let it use GTIDs \
                       (MASTER_USE_GTID=slave_pos)";
            self.listener.event(Event::Warning { text: of.is_not_recorded(why) });
        }
        for mut lock in closed {
            lock.alive()?;
            lock.release()?;
            self.stats.add_locks(lock.records(), self.listener);
        }
        Ok(position)
    }

    /// Ends an attempt that has found that tables must be closed; the next one stops the purge first.
    fn purge_runs(&mut self, what: &str) -> Stopped {
        self.closes_tables = true;
        let text =
            format!("{what} must be blocked for writes, which requires stopping the InnoDB purge first");
        Stopped::TryAgain(Error::new(ErrorKind::Server, text))
    }

    /// Stops the purge before anything is blocked: a statement that the purge waits for may itself wait for
    /// the block to end.
    fn stop_purge(&mut self, connect: &ConnectOptions) -> std::result::Result<TableLock, Stopped> {
        let LockLimits { wait_max, held_max } = self.options.locks.ddl_limits();
        // The stages, which are waited for twice, reach their limit earlier.
        let held_max = held_max.map(|held_max| held_max + wait_max * 3 + PURGE_WAIT);
        let mut purge = TableLock::open(connect, LockLimits { wait_max, held_max })?;
        if !purge.can_stop_purge()? {
            let text = "imported tables must be blocked for writes, which requires stopping the InnoDB purge \
                        through mysql.innodb_table_stats, but that table has no file of its own";
            return Err(Error::new(ErrorKind::Server, text)
                .hinted(
                    "SET GLOBAL innodb_file_per_table = ON, then ALTER TABLE mysql.innodb_table_stats FORCE; \
                     where it is missing: mariadb-upgrade --force",
                )
                .into());
        }
        let stopped = purge.try_stopping_purge(PURGE_WAIT);
        if !matches!(stopped, Ok(Attempt::Granted)) {
            self.stats.add_locks(purge.records(), self.listener);
        }
        granted(stopped?, "a stop of InnoDB's purge")?;
        point("backup.purge.stopped");
        Ok(purge)
    }

    /// Makes the copied files those that exist now, under the names they have now, and copies again what
    /// non-transactional writers have changed.
    ///
    /// Returns the locks that keep imported tables closed to writes. The server has `writing_max` to write
    /// these tables out, and the locks must be held until the stages have ended. Without `purge`, which keeps
    /// the purge stopped, no table can be closed.
    fn follow_names(
        &mut self,
        stages: &mut BackupStages,
        connect: &ConnectOptions,
        writing_max: Duration,
        purge: Option<TableLock>,
    ) -> std::result::Result<Vec<TableLock>, Stopped> {
        stages.session().with(status::flush_engine_logs)?;
        // Rows that a statement writes to Aria without a log are in the files once it ends, and none ends from
        // here on: it waits for the stages (verified on 10.11.19 and 11.8.9).
        //
        // What DDL notes about files is on disk when the statement ends, whatever
        // innodb_flush_log_at_trx_commit says.
        let now = stages.session().with(MariaDbLsns::read)?.flushed;
        self.follower.wait_for(now, REDO_WAIT)?;
        let open = stages.session().with(tables::tablespaces)?;
        let listing = self.list(Look::Settled)?;
        let mut rescan = self.rescan(listing.tablespaces, Look::Settled)?;
        rescan.refuse_second_names()?;
        // A tablespace that the server does not have open is discarded and not imported: nobody can write to
        // it or lock it.
        let is_open = |space: &Option<SpaceId>| space.is_some_and(|space| open.contains_key(&space));
        let (closed, not_open): (Vec<_>, Vec<_>) =
            rescan.copy_closed.into_iter().partition(|(_, space)| is_open(space));
        let discarded: Vec<_> = match self.baseline {
            Some(_) => closed.iter().filter_map(|(found, space)| Some((found.clone(), (*space)?))).collect(),
            None => Vec::new(),
        };
        let mut closed: Vec<_> = closed.into_iter().map(|(found, _)| found).collect();
        if let (Some(found), None) = (closed.first(), &purge) {
            return Err(self.purge_runs(&found.entry.path));
        }
        rescan.copy.extend(not_open.into_iter().map(|(found, _)| found));
        self.copy_tablespaces(rescan.copy)?;
        self.tried = Some(self.copy_other_files(&listing.others)?);
        let why = match (closed.is_empty(), &self.baseline) {
            (true, _) => "page 0 is in the server's memory only",
            (false, None) => "imported during the backup",
            (false, Some(_)) => {
                "perhaps imported during the backup (the encrypted redo log does not show it)"
            }
        };
        let unwritten = self.unwritten_of_old_tables(&open)?;
        let Copier { context, inventory, .. } = &mut self.copier;
        closed.extend(inventory.forget_unwritten(context.sink, &unwritten)?);
        if closed.is_empty() {
            self.holds_all(stages, &open)?;
            return Ok(Vec::new());
        }
        let imported = Imported::of(&closed)?;
        let Some(purge) = purge else { return Err(self.purge_runs(&imported.to_string())) };
        // If this session was lost meanwhile, the purge runs.
        purge.session().exec("DO 0")?;
        imported.report(why, self.listener);
        let mut export = TableLock::open(connect, self.options.locks.ddl_limits())?;
        let others = imported.tables.iter().filter(|table| !is_held_to_stop_purge(table)).cloned();
        let exported = export.try_export(&others.collect::<Vec<_>>(), writing_max);
        if !matches!(exported, Ok(Attempt::Granted)) {
            self.stats.add_locks(export.records(), self.listener);
        }
        granted(exported?, &format!("FLUSH TABLES {imported} FOR EXPORT"))?;
        point("backup.tables.exported");
        // The export may have been granted because the stages were lost meanwhile.
        stages.session().alive()?;
        self.refuse_renamed_imports(&discarded)?;
        self.stats.files_recopied += closed.len() as u64;
        self.copy_tablespaces(closed)?;
        let mut zeros = self.copier.inventory.unwritten().map(|found| &found.entry.path);
        if let Some(path) = zeros.find(|path| unwritten.contains(*path)) {
            return Err(zeroed_first_page(path).into());
        }
        self.holds_all(stages, &open)?;
        Ok(vec![export, purge])
    }

    /// Fails unless every tablespace that the server has open was copied. Some may be gone since `open` was read:
    /// a statement that copies a table gives up while definitions are blocked, and removes what it has made.
    fn holds_all(&self, stages: &mut BackupStages, open: &Spaces) -> Result<()> {
        let lasting = open.values().filter(|row| row.space != TEMPORARY_SPACE);
        self.copier.inventory.holds_all(lasting, || Ok(stages.session().with(tables::tablespaces)?))
    }

    /// Fails if one of these closed tablespaces was imported and renamed: recovery would apply redo from
    /// before the import.
    fn refuse_renamed_imports(&mut self, discarded: &[(TablespaceEntry, SpaceId)]) -> Result<()> {
        let Some(baseline) = self.baseline.as_ref().filter(|_| !discarded.is_empty()) else { return Ok(()) };
        let (notes, now) = (self.follower.file_notes().hidden, self.questions.ask(tables::mariadb_tables)?);
        let is_lost =
            |(found, space): &&(_, _)| baseline.was_imported_and_renamed(&notes, &now, *space, found);
        match discarded.iter().find(is_lost) {
            None => Ok(()),
            Some((found, _)) => Err(Error::failed(format!(
                "{} may have been imported and renamed during or shortly before the backup: recovery would \
                 bring back its old contents, and the redo log cannot be corrected because it is encrypted",
                found.entry.path
            ))
            .hinted("run the backup again after the next checkpoint, while no other tables are dropped or \
                     renamed; once an imported table is rebuilt (OPTIMIZE TABLE), it is never suspected again")),
        }
    }

    /// Copies, under the commit lock, the server's own tables, the DDL log, and last the Aria log to its end.
    fn copy_tails(&mut self) -> Result<()> {
        // Not the whole tree: walking it would take long if there are many tables.
        let found = walk(&self.options.datadir, &|path, _| {
            path != "mysql" && !matches!(self.layout.when(path), When::Late(_) | When::AriaLog)
        })?;
        let outside = self.outside()?.aria;
        let files = || found.values().chain(&outside).filter(|entry| !entry.is_dir);
        let mut late = Vec::new();
        for entry in files() {
            let When::Late(role) = self.layout.when(&entry.path) else { continue };
            let inventory = &self.copier.inventory;
            // What a statement is still writing to a table that the log covers, the log undoes.
            let is_good = inventory.has_unchanged(entry)
                || role == Role::Aria
                    && inventory.has_same_file(entry)
                    && is_logged(entry, aria::index_of(entry, &found))?;
            if !is_good {
                late.push(PlainFile::whole(entry.clone(), role));
            }
        }
        self.copier.files(late)?;
        self.forget_what_is_cleaned_up()?;
        let logs = self.copy_aria_logs(files())?;
        let Copier { context, inventory, .. } = &mut self.copier;
        let mut buffers = Buffers::default();
        for entry in &logs {
            if let Some(copied) = inventory.file_mut(&entry.path) {
                // A statement that cannot end yet still writes rows, and so does a checkpoint.
                context.send_tail_again(entry, copied, ARIA_LOG_BUFFERS_BYTES, &mut buffers)?;
                context.end(copied)?;
            }
        }
        let numbers = logs.iter().filter_map(|entry| aria::log_number(&entry.path)).collect();
        self.send_aria_control(&numbers)
    }

    /// Drops the copies of files of statements that have given up and cleaned up since definitions are blocked.
    /// Called when the DDL log has been copied: for what is still there, it has an entry from which a restored
    /// server cleans up. That the tablespaces are gone was in the redo before their files went. Recovery does not
    /// remove them, and the purge, which would, may be done with them on the source (seen on 11.8.9).
    fn forget_what_is_cleaned_up(&mut self) -> Result<()> {
        let datadir = &self.options.datadir;
        let is_missing = |path: &str| {
            let found = std::fs::symlink_metadata(datadir.join(path));
            found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        let is_gone = |path: &str| match path.strip_suffix(".ibd") {
            // One that is elsewhere has a link here.
            Some(name) => is_missing(path) && is_missing(&format!("{name}.isl")),
            None => is_missing(path),
        };
        let Copier { context, inventory, .. } = &mut self.copier;
        inventory.forget(context.sink, |path| is_of_a_statement(path) && is_gone(path))?;
        if inventory.tablespace_paths().any(is_of_a_statement) {
            let may_go = |path: &str| is_of_a_statement(path) || is_of_a_full_text(path);
            inventory.forget_tablespaces(context.sink, |path| may_go(path) && is_gone(path))?;
        }
        Ok(())
    }
}

/// Files of statements that are at work, below their schema's directory.
fn is_of_a_statement(path: &str) -> bool {
    TableFile::from_path(path).is_some_and(|file| file.is_temporary())
}

/// Tables behind a full-text index, which go with the table that has it.
fn is_of_a_full_text(path: &str) -> bool {
    TableFile::from_path(path).is_some_and(|file| is_of_fulltext_index(&file.table))
}

/// Position and end of redo, read by the session that blocks commits.
fn position(session: &mut Session) -> std::result::Result<Position, SqlError> {
    let channels = ReplicaChannel::read_all(session)?;
    let applied = status::applied(session, &channels)?;
    Position::of_mariadb(session, &channels, applied)
}

/// What a restore must know about the captured redo.
pub(super) fn describe_redo(header: &LogHeader, redo: &Captured, position_lsn: Lsn) -> Result<CapturedRedo> {
    if redo.stop != position_lsn {
        return Err(Error::failed(format!(
            "the captured redo ends at LSN {}, the position was read at {position_lsn}",
            redo.stop
        )));
    }
    let checkpoint = header.checkpoint();
    let hex = to_hex(header.raw());
    let absolute_paths = redo
        .absolute_paths
        .iter()
        .map(|path| String::from_utf8(path.to_vec()))
        .collect::<std::result::Result<Vec<_>, _>>()
        .context("a path in the redo log is not UTF-8")?;
    Ok(CapturedRedo::MariaDb {
        checkpoint_lsn: checkpoint.lsn,
        checkpoint_end_lsn: checkpoint.end,
        stop_lsn: redo.stop,
        source_size_bytes: header.file_bytes(),
        header: hex,
        encrypted: header.encrypted(),
        absolute_paths,
    })
}
