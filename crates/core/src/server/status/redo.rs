//! Where the redo log stands.

use holdfast_formats::Lsn;

use super::values::Status;
use crate::server::{Session, SqlError};

/// MariaDB's LSNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MariaDbLsns {
    /// End of the log in memory.
    pub current: Lsn,
    /// End of what is surely on disk.
    pub flushed: Lsn,
    /// The newest checkpoint.
    pub last_checkpoint: Lsn,
}

impl MariaDbLsns {
    /// Asks the server. Needs no privilege.
    pub fn read(session: &mut Session) -> Result<MariaDbLsns, SqlError> {
        let status = Status::read(session, "Innodb_lsn%")?;
        Ok(MariaDbLsns {
            current: status.lsn("Innodb_lsn_current")?,
            flushed: status.lsn("Innodb_lsn_flushed")?,
            last_checkpoint: status.lsn("Innodb_lsn_last_checkpoint")?,
        })
    }
}

/// MySQL's redo log, as its status values show it. The server refreshes these now and then: on 9.7 they were seen to be
/// behind by up to a second, right after a flush too. Good for a forecast; what must hold is
/// [`mysql_durable_end`](super::mysql_durable_end)'s to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MySqlRedoStatus {
    /// The newest checkpoint.
    pub checkpoint: Lsn,
    /// End of the log in memory.
    pub current: Lsn,
    /// End of what is surely on disk.
    pub flushed: Lsn,
    /// Identity of the log; a new one at every restore or clone.
    pub uuid: u32,
    /// Whether redo is written at all.
    pub is_enabled: bool,
    /// How much the log may hold, as far as a change of that is carried out.
    pub capacity_bytes: u64,
}

impl MySqlRedoStatus {
    /// Asks the server. Needs no privilege.
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

/// How often `ALTER INSTANCE` was run since the server started (MySQL). It is the statement that switches redo logging
/// off and on, and leaves no other trace when both were done. Needs no privilege.
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
