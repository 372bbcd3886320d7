//! The binlog position, and MariaDB's GTID positions.

use holdfast_formats::Flavor;
use serde::{Deserialize, Serialize};

use crate::server::{Row, Session, SqlError, code};

/// A position in a binlog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinlogPosition {
    /// File name without the directory.
    pub file: String,
    /// Offset in bytes.
    pub offset: u64,
}

impl BinlogPosition {
    /// A sort key: earlier positions of one binlog are less.
    pub(crate) fn order(&self) -> (usize, &str, u64) {
        binlog_order(&self.file, self.offset)
    }
}

/// A sort key for the positions of one binlog: file numbers grow longer when they have to.
pub(crate) fn binlog_order(file: &str, offset: u64) -> (usize, &str, u64) {
    (file.len(), file, offset)
}

/// The positions of MariaDB's binlog and GTIDs. Consistent only while nothing commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MariaDbPosition {
    /// `None` if there is no binlog.
    pub binlog: Option<BinlogPosition>,
    /// `gtid_binlog_pos`.
    pub gtid_binlog_pos: String,
    /// `gtid_current_pos`.
    pub gtid_current_pos: String,
    /// `gtid_slave_pos`.
    pub gtid_slave_pos: String,
}

/// The end of the binlog, and what is left out of it; `None` if the server writes none.
pub fn binlog_status(session: &mut Session) -> Result<Option<Row>, SqlError> {
    const OLD_NAME: &str = "SHOW MASTER STATUS";
    match session.flavor() {
        Flavor::MariaDb => session.row(OLD_NAME),
        // MySQL 8.4 removed the old name.
        Flavor::MySql => match session.row("SHOW BINARY LOG STATUS") {
            Err(error) if error.code() == Some(code::SYNTAX_ERROR) => session.row(OLD_NAME),
            status => status,
        },
    }
}

impl MariaDbPosition {
    /// Queries the server: `SHOW MASTER STATUS` and the GTID variables.
    pub fn read(session: &mut Session) -> Result<MariaDbPosition, SqlError> {
        let binlog = match binlog_status(session)? {
            Some(row) => {
                Some(BinlogPosition { file: row.text("File")?.to_owned(), offset: row.number("Position")? })
            }
            None => None,
        };
        let query = "SELECT @@GLOBAL.gtid_binlog_pos AS b, @@GLOBAL.gtid_current_pos AS c, @@GLOBAL.gtid_slave_pos AS s";
        let row = session.row(query)?.ok_or_else(|| SqlError::unexpected("no row"))?;
        let text = |column| Ok::<_, SqlError>(row.text_or_null(column)?.unwrap_or_default().to_owned());
        Ok(MariaDbPosition {
            binlog,
            gtid_binlog_pos: text("b")?,
            gtid_current_pos: text("c")?,
            gtid_slave_pos: text("s")?,
        })
    }
}
