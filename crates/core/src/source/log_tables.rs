//! The tables that the server logs statements to: `mysql.general_log` and `mysql.slow_log`.
//!
//! The server writes to them at any time, lets nobody lock them, and no backup lock stops it (verified on
//! MySQL 9.7.4 and MariaDB 10.11.19, there under `BACKUP STAGE BLOCK_COMMIT`). A copy of them is often a
//! table that is marked as crashed, and can be gigabytes. So a backup has empty ones, ready for use.

use super::{Role, copier::Copier, files::Entry};
use crate::error::Result;

const LOG_TABLES: &[&str] = &["mysql/general_log.", "mysql/slow_log."];

/// A file of a log table of the CSV engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogTableFile {
    /// The rows.
    Rows,
    /// The number of rows, and whether the table was closed cleanly.
    Meta,
}

impl LogTableFile {
    /// Which file of a log table `path` is, if any.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        match extension(path)? {
            "CSV" => Some(Self::Rows),
            "CSM" => Some(Self::Meta),
            _ => None,
        }
    }

    /// Its bytes if there are no rows (`storage/csv/ha_tina.cc`): magic, version, four counters, "not dirty".
    #[must_use]
    pub fn when_empty(self) -> &'static [u8] {
        const META: [u8; 35] = {
            let mut bytes = [0; 35];
            bytes[0] = 254;
            bytes[1] = 1;
            bytes
        };
        match self {
            Self::Rows => &[],
            Self::Meta => &META,
        }
    }
}

/// Whether `path` is a file of a log table that was altered to another engine. Such an engine keeps in memory
/// what belongs in its files.
pub(super) fn is_of_another_engine(path: &str) -> bool {
    extension(path).is_some_and(|extension| ["MYD", "MYI", "MAD", "MAI"].contains(&extension))
}

fn extension(path: &str) -> Option<&str> {
    LOG_TABLES.iter().find_map(|table| path.strip_prefix(table))
}

impl Copier<'_> {
    /// Sends the files of empty log tables in place of the server's own.
    pub(super) fn empty_log_tables<'a>(&mut self, entries: impl Iterator<Item = &'a Entry>) -> Result<()> {
        for entry in entries {
            let Some(file) = LogTableFile::of(&entry.path) else { continue };
            if !self.inventory.has_same_file(entry)
                && let Some(copied) = self.context.made_of(entry, Role::EngineFile, file.when_empty())?
            {
                self.inventory.add_file(&entry.path, copied);
            }
        }
        Ok(())
    }
}
