//! Where a backup's bytes come from.
//!
//! A [`Source`] pushes events, addressed by file id, into a [`Sink`]. It exposes neither file descriptors nor
//! paths of the host, so that a source need not be on this host. The last write of (file, page) wins: a source
//! may send a page, or a whole file, again.
//!
//! Where what is, in order of use:
//!
//! - asking: [`options`] (what the user decides), [`questions`] (to the server, between long copies),
//!   [`attempt`] (to take the locks, and whether another follows);
//! - finding: [`files`] (a listing, and what tells that a file is the same), [`tablespace`], [`outside`] (of
//!   the data directory), [`listing`] (all of these), what is left out ([`own_logs`], [`log_tables`],
//!   [`keys`]), and what has been copied ([`inventory`]);
//! - pages: [`page_reader`], those that are bad at first ([`reread`]) or for good ([`damage`]), those that
//!   cannot be checked ([`unproven`]), and Aria's ([`aria_pages`]); [`running_clock`] says when a write must be
//!   over;
//! - copying: [`context`] (what each copy needs), [`workers`] (threads), [`plain`] (files), [`mod@copy`]
//!   (tablespaces), [`copier`] (many of both); what is copied again under locks ([`rewritten`], [`imported`]);
//! - redo: [`redo`] follows the log, [`spool`] keeps it until the end;
//! - the order of it all: [`mysql`], [`mariadb`].

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use holdfast_formats::{
    Lsn, PageSize, SpaceId,
    page::{self, Checksum},
    tablespace::COMPRESSION_ALGORITHMS,
};
use serde::Serialize;

use crate::{
    captured_redo::CapturedRedo,
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    position::Position,
    server::{LockRecord, ServerFacts},
};

mod aria_pages;
pub(crate) mod attempt;
mod context;
mod copier;
mod copy;
mod damage;
pub mod files;
mod imported;
pub mod inventory;
mod keys;
mod listing;
mod log_tables;
pub mod mariadb;
pub mod mysql;
pub(crate) mod options;
mod outside;
mod own_logs;
pub mod page_reader;
pub mod plain;
mod questions;
pub mod redo;
mod reread;
mod rewritten;
pub mod running_clock;
pub mod spool;
pub mod tablespace;
mod unproven;
pub(crate) mod workers;

pub use damage::DamagedPage;
pub use options::CaptureOptions;

/// Names a file within one capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// What a file is to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// None of the roles below: definitions, certificates, settings.
    Other,
    /// An InnoDB tablespace.
    Tablespace,
    /// An undo tablespace: may shrink while it is copied.
    Undo,
    /// The system tablespace.
    System,
    /// An Aria log.
    AriaLog,
    /// The Aria control file.
    AriaControl,
    /// Data or index of an Aria table.
    Aria,
    /// A binlog, or its index.
    Binlog,
    /// Data or index of a table of another engine.
    EngineFile,
}

/// Describes a file whose events follow.
#[derive(Clone, Debug)]
pub struct FileSpec {
    /// Relative to the data directory, `/` between parts.
    pub path: String,
    /// Its role.
    pub role: Role,
    /// Permission bits.
    pub mode: u16,
    /// The size of its pages.
    pub page_size: PageSize,
    /// Space id and flags of a tablespace.
    pub space: Option<(SpaceId, u32)>,
    /// Its real path, if it lies outside the data directory.
    pub outside: Option<String>,
}

/// Whole pages, contiguous.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    /// The number of the first page within the file.
    pub first: u64,
    /// Their size.
    pub page_size: PageSize,
    /// Their bytes. A short last page of a file is padded with zeros.
    pub bytes: &'a [u8],
    /// Which of them lie in a hole of the source's file, according to the file system. Empty if none do.
    pub holes: &'a [bool],
}

impl Pages<'_> {
    /// Whether to restore the page at `index` as a hole. A page that was read with content is none, whatever
    /// the file system says: OpenZFS has reported data that was not on disk yet as a hole (its issue 15526).
    #[must_use]
    pub fn is_hole(&self, index: usize) -> bool {
        let page_bytes = self.page_size.bytes();
        let bytes = || self.bytes.get(index * page_bytes..(index + 1) * page_bytes);
        self.holes.get(index).copied().unwrap_or(false) && bytes().is_some_and(page::is_zero)
    }
}

/// Receives a capture. Called from several threads, for several files at once.
pub trait Sink: Sync {
    /// Begins a file. Beginning a path again replaces what was sent for it.
    fn file_begin(&self, spec: FileSpec) -> Result<FileId>;
    /// Adds whole pages to a file.
    fn pages(&self, file: FileId, pages: Pages<'_>) -> Result<()>;
    /// Ends a file, which is complete and `size_bytes` long.
    fn file_end(&self, file: FileId, size_bytes: u64) -> Result<()>;
    /// Gives a file another path.
    fn file_renamed(&self, file: FileId, path: &str) -> Result<()>;
    /// Drops a file, which is not part of the backup after all.
    fn file_gone(&self, file: FileId) -> Result<()>;
    /// Adds a directory.
    fn directory(&self, path: &str, mode: u16) -> Result<()>;
    /// Drops a directory, which is not part of the backup after all.
    fn directory_gone(&self, path: &str) -> Result<()>;
    /// Whether the processors are no longer busy with what was sent.
    fn is_drained(&self) -> Result<bool>;
}

/// What a capture did to get its bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CaptureStats {
    /// Pages read from tablespaces, repeats included.
    pub pages_read: u64,
    /// Bytes read from files of any kind.
    pub bytes_read: u64,
    /// Bad pages that were read again (a page counts once).
    pub pages_torn: u64,
    /// Reads needed to get them right.
    pub torn_reads: u64,
    /// Pages whose checksum cannot be checked, accepted after two equal reads.
    pub pages_unverifiable: u64,
    /// Pages that were good when first read, by checksum algorithm.
    pub pages_by_checksum: BTreeMap<&'static str, u64>,
    /// Files that vanished while they were copied.
    pub files_vanished: u64,
    /// Files copied at the end because of DDL: of new tables, or again.
    pub files_recopied: u64,
    /// Pages of shared tablespaces copied again at the end because tables or indexes were created in them.
    pub pages_recopied: u64,
    /// Files renamed between their copy and the end.
    pub files_renamed: u64,
    /// Bytes read while DDL was blocked.
    pub bytes_under_ddl_lock: u64,
    /// Redo captured.
    pub redo_bytes: u64,
    /// The largest lag of the redo reader behind what the server had on disk, once it had first caught up;
    /// `None` if it was not measured, as on MySQL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redo_lag_bytes_max: Option<u64>,
    /// Locks, in the order they were released.
    pub locks: Vec<LockRecord>,
    /// Whether reads of tablespaces bypassed the page cache.
    pub direct_io: bool,
    /// Pages that are damaged on the source and were copied as found.
    pub damaged_pages: Vec<DamagedPage>,
    /// MariaDB: the algorithms of page compression that are found in headers of pages, not in flags of tablespaces.
    #[serde(skip)]
    pub compressed_with: BTreeSet<&'static str>,
}

impl CaptureStats {
    /// Adds locks that were released, and reports them to `listener`.
    pub(crate) fn add_locks(&mut self, locks: &[LockRecord], listener: &dyn Listener) {
        for lock in locks {
            lock.report(listener);
        }
        self.locks.extend_from_slice(locks);
    }

    /// Adds the result of a rescan for DDL, and reports it to `listener`.
    pub(crate) fn add_rescan(&mut self, rescan: &inventory::Rescan, listener: &dyn Listener) {
        let copied = rescan.copy.len() as u64;
        self.files_renamed += rescan.renamed;
        self.files_recopied += copied;
        if copied + rescan.renamed + rescan.gone > 0 {
            const NAMED: usize = 3;
            let mut names: Vec<&str> =
                rescan.copy.iter().take(NAMED).map(|found| found.entry.path.as_str()).collect();
            if rescan.copy.len() > NAMED {
                names.push("…");
            }
            let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
            let text = format!(
                "DDL since the copy: {copied} tablespaces new or changed{names}, {} renamed, {} dropped",
                rescan.renamed, rescan.gone
            );
            listener.event(Event::Note { text });
        }
    }

    /// Adds the counters of the copies.
    fn count(&mut self, counters: &context::CopyCounters) {
        use std::sync::atomic::Ordering::Relaxed;
        self.pages_read += counters.pages.load(Relaxed);
        self.bytes_read += counters.bytes.load(Relaxed);
        self.pages_torn += counters.torn_pages.load(Relaxed);
        self.torn_reads += counters.torn_reads.load(Relaxed);
        self.pages_unverifiable += counters.unverifiable.load(Relaxed);
        for (checksum, count) in Checksum::ALL.iter().zip(&counters.by_checksum) {
            let count = count.load(Relaxed);
            if count > 0 {
                *self.pages_by_checksum.entry(checksum.name()).or_default() += count;
            }
        }
        let told = counters.compressed_with.load(Relaxed);
        let algorithms = COMPRESSION_ALGORITHMS.iter().enumerate();
        self.compressed_with
            .extend(algorithms.filter(|(bit, _)| told & 1 << bit != 0).map(|(_, name)| *name));
        self.files_vanished += counters.vanished.load(Relaxed);
    }
}

/// The result of a capture, besides the pages it sent.
#[derive(Clone, Debug)]
pub struct Captured {
    /// The server it came from.
    pub facts: ServerFacts,
    /// The redo, sent as the item [`crate::captured_redo::REDO_ITEM`].
    pub redo: CapturedRedo,
    /// The state it restores to.
    pub position: Position,
    /// What the capture did.
    pub stats: CaptureStats,
}

/// A running server whose files can be captured.
pub trait Source {
    /// Sends every file and the redo into `sink`, so that the server's own recovery turns them into one
    /// consistent state.
    fn capture(&mut self, sink: &dyn Sink, listener: &dyn Listener, cancel: &Cancel) -> Result<Captured>;
}

/// How far a follower of the redo has safely captured it.
pub trait RedoProgress: Sync {
    /// Everything before this LSN is captured.
    fn captured(&self) -> Lsn;
    /// Fails if the follower has failed: copying on would be pointless.
    fn check(&self) -> Result<()>;
    /// Whether the follower has failed.
    fn has_failed(&self) -> bool;
}

/// The error for a redo log that does not belong to the server that answered.
fn not_this_server(log: &Path) -> Error {
    Error::failed(format!("{} is not the redo log of the server that was connected to", log.display()))
        .hinted("connect to the server that owns this data directory; see --datadir and --path-map")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that were read take precedence over what the file system says about holes.
    #[test]
    fn holes() {
        let page_size = PageSize::from_bytes(4096).unwrap();
        let mut bytes = vec![0; 3 * 4096];
        bytes[4096 + 38] = 1;
        let pages = Pages { first: 7, page_size, bytes: &bytes, holes: &[true, true, false] };
        assert_eq!([0, 1, 2, 3].map(|index| pages.is_hole(index)), [true, false, false, false]);
        assert!(!Pages { holes: &[], ..pages }.is_hole(0));
    }

    /// A report does not claim that redo which nobody measured never lagged.
    #[test]
    fn an_unmeasured_lag_is_absent() {
        let lag = |redo_lag_bytes_max| {
            let stats = CaptureStats { redo_lag_bytes_max, ..CaptureStats::default() };
            serde_json::to_value(stats).unwrap().get("redo_lag_bytes_max").cloned()
        };
        assert_eq!((lag(None), lag(Some(0))), (None, Some(0.into())));
    }
}
