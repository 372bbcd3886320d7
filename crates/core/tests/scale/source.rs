//! A made-up server: its pages are generated when they are requested, and none is zero or equal to another.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use holdfast_core::{
    Cancel, Listener, Result,
    captured_redo::{CapturedRedo, REDO_ITEM},
    server::{ServerFacts, ServerVersion, facts::Capabilities},
    source::{CaptureStats, Captured, FileId, FileSpec, Pages, Role, Sink, Source},
};
use holdfast_formats::{Lsn, PageSize, SpaceId, checksum};
use serde::{Deserialize, Serialize};
use serde_json::json;

const PAGE_BYTES: u64 = 16 << 10;
/// As much as the copy of a real server delivers at once.
const EXTENT_PAGES: u64 = 64;
/// The number of files that hold half of the data.
const HUGE_FILES: u64 = 8;
const READERS: usize = 2;

/// The size of the server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

/// The contents of the server.
///
/// Half of the bytes are in [`HUGE_FILES`] files. Of the other files, one in five is as large as needed for
/// the total, and the rest, as on real servers, have a few pages each. Between the first and the second
/// generation, one page in a hundred changes, spread evenly, and three quarters of the first two files, in
/// stretches; between the second and the third, nothing changes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct FakeServer {
    pub(crate) size: Size,
    pub(crate) generation: u64,
}

/// Mixes the bits of `n`.
fn mixed(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (n ^ n >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ n >> 32
}

impl FakeServer {
    fn pages(&self, file: u64) -> u64 {
        let Size { bytes, files } = self.size;
        let half = bytes / PAGE_BYTES / 2;
        match file {
            0..HUGE_FILES => half / HUGE_FILES,
            _ if file.is_multiple_of(5) => half / (files / 5),
            _ => 4 + mixed(file) % 61,
        }
    }

    fn path(file: u64) -> String {
        format!("shop_{:04}/orders_{file:06}.ibd", file % 2_000)
    }

    /// The generation in which the page got its contents.
    fn changed_in(&self, file: u64, page: u64) -> u64 {
        let scattered = mixed(file << 32 | page).is_multiple_of(100);
        let stretch = file < READERS as u64 && !(page / EXTENT_PAGES).is_multiple_of(4);
        if scattered || stretch { self.generation.min(2) } else { 1 }
    }

    /// The number of mapped pages.
    pub(crate) fn all_pages(&self) -> u64 {
        (0..self.size.files).map(|file| self.pages(file)).sum()
    }

    fn send(&self, file: u64, sink: &dyn Sink, extent: &mut [u8], cancel: &Cancel) -> Result<()> {
        let page_size = PageSize::from_bytes(PAGE_BYTES as u32).unwrap();
        let id = sink.file_begin(FileSpec {
            path: Self::path(file),
            role: if file == 0 { Role::System } else { Role::Tablespace },
            mode: 0o660,
            page_size,
            space: Some((SpaceId(file as u32), 0x15)),
            outside: None,
        })?;
        let pages = self.pages(file);
        for first in (0..pages).step_by(EXTENT_PAGES as usize) {
            cancel.check()?;
            let count = EXTENT_PAGES.min(pages - first);
            let extent = &mut extent[..(count * PAGE_BYTES) as usize];
            for (page, bytes) in (first..).zip(extent.chunks_exact_mut(PAGE_BYTES as usize)) {
                bytes[..8].copy_from_slice(&(file << 32 | page).to_le_bytes());
                bytes[8..16].copy_from_slice(&self.changed_in(file, page).to_le_bytes());
            }
            sink.pages(id, Pages { first, page_size, bytes: extent, holes: &[] })?;
        }
        sink.file_end(id, pages * PAGE_BYTES)
    }
}

impl Source for FakeServer {
    fn capture(&mut self, sink: &dyn Sink, _: &dyn Listener, cancel: &Cancel) -> Result<Captured> {
        for schema in 0..self.size.files.min(2_000) {
            sink.directory(&format!("shop_{schema:04}"), 0o750)?;
        }
        let next = AtomicU64::new(0);
        let work = || -> Result<()> {
            let mut extent = vec![0x5A; (EXTENT_PAGES * PAGE_BYTES) as usize];
            loop {
                let file = next.fetch_add(1, Ordering::Relaxed);
                if file >= self.size.files {
                    return Ok(());
                }
                self.send(file, sink, &mut extent, cancel)?;
            }
        };
        thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(work)).collect();
            readers.into_iter().try_for_each(|reader| reader.join().unwrap())
        })?;
        let (redo, bytes) = redo();
        send_redo(sink, &bytes)?;
        let position = json!({ "precision": "exact", "lsn": redo.stop_lsn(), "binlog": null, "gtid": null });
        let position = serde_json::from_value(position).unwrap();
        Ok(Captured { facts: facts(), redo, position, stats: CaptureStats::default() })
    }
}

fn send_redo(sink: &dyn Sink, bytes: &[u8]) -> Result<()> {
    let page_size = PageSize::from_bytes(PAGE_BYTES as u32).unwrap();
    let id: FileId = sink.file_begin(FileSpec {
        path: REDO_ITEM.to_owned(),
        role: Role::Other,
        mode: 0o660,
        page_size,
        space: None,
        outside: None,
    })?;
    let mut page = bytes.to_vec();
    page.resize(PAGE_BYTES as usize, 0);
    sink.pages(id, Pages { first: 0, page_size, bytes: &page, holes: &[] })?;
    sink.file_end(id, bytes.len() as u64)
}

/// The least that MariaDB could have written: one `FILE_CHECKPOINT`.
fn redo() -> (CapturedRedo, Vec<u8>) {
    let lsn = 50_000_u64;
    let mut bytes = [&[0xFA, 0, 0][..], &lsn.to_be_bytes()].concat();
    let crc = checksum::crc32c(&bytes);
    bytes.push(1);
    bytes.extend(crc.to_be_bytes());
    let mut header = vec![0; 512];
    header[..4].copy_from_slice(b"Phys");
    header[8..16].copy_from_slice(&0x3000_u64.to_be_bytes());
    let crc = checksum::crc32c(&header[..508]);
    header[508..].copy_from_slice(&crc.to_be_bytes());
    let redo = CapturedRedo::MariaDb {
        checkpoint_lsn: Lsn(lsn),
        checkpoint_end_lsn: Lsn(lsn),
        stop_lsn: Lsn(lsn + bytes.len() as u64),
        source_size_bytes: 1 << 20,
        header: header.iter().map(|byte| format!("{byte:02x}")).collect(),
        encrypted: false,
        absolute_paths: Vec::new(),
    };
    (redo, bytes)
}

/// Decoded as from a manifest, so that facts added to manifests later need not be given.
fn facts() -> ServerFacts {
    let facts = json!({
        "version": ServerVersion::parse("10.11.19-MariaDB").unwrap(),
        "vendor": "",
        "identity": {
            "server_uuid": null, "server_uid": null, "aria_uuid": null, "server_id": 1, "hostname": "nowhere",
            "port": 3306, "socket": "",
        },
        "paths": {
            "datadir": "/var/lib/mysql", "basedir": "/usr", "plugin_dir": "/usr/lib/mysql/plugin",
            "lc_messages_dir": null, "character_sets_dir": "/usr/share/mysql/charsets", "tmpdir": "/tmp",
            "pid_file": null, "log_error": null, "general_log": null, "slow_log": null,
        },
        "innodb": {
            "page_size": PAGE_BYTES, "data_file_path": format!("{}:12M:autoextend", FakeServer::path(0)),
            "data_home_dir": null, "undo_directory": null, "undo_tablespaces": 0, "log_group_home_dir": null,
            "directories": [], "doublewrite_dir": null, "temp_tablespaces_dir": null,
            "temp_data_file_path": "ibtmp1:12M:autoextend", "buffer_pool_filename": null,
            "flush_method": "O_DIRECT", "checksum_algorithm": "full_crc32", "redo_size": 96 << 20,
            "flush_log_at_trx_commit": 1, "force_recovery": 0,
        },
        "aria": null,
        "binlog": null,
        "replica": {
            "relay_log_basename": null, "relay_log_index": null, "parallel_workers": 0,
            "preserve_commit_order": true,
        },
        "encryption": { "redo": false, "undo": false, "key_providers": [], "key_file": null },
        "sql": {
            "lower_case_table_names": 0, "sql_mode": "", "character_set_server": "utf8mb4",
            "collation_server": "utf8mb4_general_ci", "explicit_defaults_for_timestamp": null,
            "system_time_zone": null, "default_storage_engine": "InnoDB", "performance_schema": false,
            "myisam_use_mmap": false,
        },
        "plugins": [],
        "components": [],
        "capabilities": Capabilities::default(),
    });
    serde_json::from_value(facts).unwrap()
}
