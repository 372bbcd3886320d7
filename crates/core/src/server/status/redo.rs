//! Positions in the redo log.

use holdfast_formats::Lsn;

use super::values::Status;
use crate::server::{Session, SqlError};

/// MariaDB's LSNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MariaDbLsns {
    /// End of the log in memory.
    pub current: Lsn,
    /// End of what is certainly on disk.
    pub flushed: Lsn,
    /// The newest checkpoint.
    pub last_checkpoint: Lsn,
}

impl MariaDbLsns {
    /// Queries the server. Needs no privilege.
    pub fn read(session: &mut Session) -> Result<MariaDbLsns, SqlError> {
        let status = Status::read(session, "Innodb_lsn%")?;
        Ok(MariaDbLsns {
            current: status.lsn("Innodb_lsn_current")?,
            flushed: status.lsn("Innodb_lsn_flushed")?,
            last_checkpoint: status.lsn("Innodb_lsn_last_checkpoint")?,
        })
    }
}

/// MySQL's redo log, as its status values show it. The server refreshes them only now and then: on 9.7 they
/// lagged by up to a second, even right after a flush. Good enough for a forecast; for a guarantee use
/// [`mysql_durable_end`](super::mysql_durable_end).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MySqlRedoStatus {
    /// The newest checkpoint.
    pub checkpoint: Lsn,
    /// End of the log in memory.
    pub current: Lsn,
    /// End of what is certainly on disk.
    pub flushed: Lsn,
    /// Identity of the log; every restore or clone creates a new one.
    pub uuid: u32,
    /// Whether redo is written at all.
    pub is_enabled: bool,
    /// The log's capacity; a change counts as far as the server has carried it out.
    pub capacity_bytes: u64,
}

impl MySqlRedoStatus {
    /// Queries the server. Needs no privilege.
    pub fn read(session: &mut Session) -> Result<MySqlRedoStatus, SqlError> {
        let status = Status::read(session, "Innodb_redo_log%")?;
        Ok(MySqlRedoStatus {
            checkpoint: status.lsn("Innodb_redo_log_checkpoint_lsn")?,
            current: status.lsn("Innodb_redo_log_current_lsn")?,
            flushed: status.lsn("Innodb_redo_log_flushed_to_disk_lsn")?,
            uuid: status.number("Innodb_redo_log_uuid")?,
            is_enabled: status.get("Innodb_redo_log_enabled")?.eq_ignore_ascii_case("ON"),
            capacity_bytes: status.number("Innodb_redo_log_capacity_resized")?,
        })
    }
}

/// How often `ALTER INSTANCE` was executed since the server started (MySQL). This statement switches redo
/// logging off and on; doing both leaves no other trace. Needs no privilege.
pub fn alter_instance_count(session: &mut Session) -> Result<u64, SqlError> {
    Status::read(session, "Com_alter_instance")?.number("Com_alter_instance")
}

/// Bytes that InnoDB has written to its log since the server started. Needs no privilege.
pub fn log_bytes_written(session: &mut Session) -> Result<u64, SqlError> {
    Status::read(session, "Innodb_os_log_written")?.number("Innodb_os_log_written")
}

/// Makes the redo written so far durable, so that a reader of the log sees it.
pub fn flush_engine_logs(session: &mut Session) -> Result<(), SqlError> {
    session.exec("FLUSH LOCAL ENGINE LOGS")
}
