//! The redo that a physical backup captures, as a restore lays it out.
//!
//! Stored as JSON in the manifest head, field `redo` (`docs/reference/repository.md` section 9).

use holdfast_formats::Lsn;
use serde::{Deserialize, Serialize};

/// Path of the item that holds the captured redo; its type is *captured redo*.
pub const REDO_ITEM: &str = "#redo";

/// The captured redo, as a restore needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "kebab-case")]
pub enum CapturedRedo {
    /// MariaDB 10.8 and later: one circular file of mini-transactions. The item holds the mini-transactions
    /// from `checkpoint_lsn` to `stop_lsn`, with every marker byte rewritten for a log that never wrapped.
    MariaDb {
        /// Checkpoint that recovery starts from (C0).
        checkpoint_lsn: Lsn,
        /// Where the checkpoint's own records begin (E0).
        checkpoint_end_lsn: Lsn,
        /// End of the captured redo: recovery must end exactly here.
        stop_lsn: Lsn,
        /// Size of the source's log file.
        source_size_bytes: u64,
        /// First 512 bytes of the source's log file, hex.
        header: String,
        /// Whether the records are encrypted.
        encrypted: bool,
        /// Absolute paths of tablespaces that file records name (known only if not encrypted).
        absolute_paths: Vec<String>,
    },
    /// MySQL 8.0.30 and later: 512-byte blocks. The item holds whole blocks from `begin_lsn`; the last one is
    /// cut at `stop_lsn`, unless it is encrypted.
    MySql {
        /// LSN of the first block.
        begin_lsn: Lsn,
        /// Checkpoint that recovery starts from.
        checkpoint_lsn: Lsn,
        /// End of the redo that belongs to the position.
        stop_lsn: Lsn,
        /// First 2,048 bytes of the source's redo file that held the checkpoint, hex.
        header: String,
        /// Whether blocks are encrypted.
        encrypted: bool,
    },
}

impl CapturedRedo {
    /// Where recovery must end.
    #[must_use]
    pub fn stop_lsn(&self) -> Lsn {
        match self {
            Self::MariaDb { stop_lsn, .. } | Self::MySql { stop_lsn, .. } => *stop_lsn,
        }
    }

    /// Where recovery starts.
    #[must_use]
    pub fn checkpoint_lsn(&self) -> Lsn {
        match self {
            Self::MariaDb { checkpoint_lsn, .. } | Self::MySql { checkpoint_lsn, .. } => *checkpoint_lsn,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is stored has bare numbers.
    #[test]
    fn the_stored_form() {
        let stored = json!({
            "format": "my-sql", "begin_lsn": 1_024, "checkpoint_lsn": 1_100, "stop_lsn": u64::MAX, "header": "00",
            "encrypted": false,
        });
        let redo = CapturedRedo::MySql {
            begin_lsn: Lsn(1_024),
            checkpoint_lsn: Lsn(1_100),
            stop_lsn: Lsn(u64::MAX),
            header: "00".to_owned(),
            encrypted: false,
        };
        assert_eq!(serde_json::to_value(&redo).unwrap(), stored);
        assert_eq!(serde_json::from_value::<CapturedRedo>(stored).unwrap(), redo);
    }
}
