//! Tablespaces carried along since versions whose checksums no server writes any more, beside those of today.
//! MariaDB reads them; the pages that it changes become those of today.

use std::{fs, path::Path};

use holdfast_formats::checksum::{page_innodb_new, page_innodb_old};

use super::*;

const PAGE_BYTES: usize = 16 << 10;
/// The place of the second checksum, in the trailer.
const TRAILER: usize = PAGE_BYTES - 8;
/// What is in place of a checksum where none is computed.
const NO_CHECKSUM: u32 = 0xDEAD_BEEF;

/// Gives a third of the pages the checksum of InnoDB before 5.6, and a third none.
fn age(path: &Path) {
    let mut pages = fs::read(path).unwrap();
    for (number, page) in pages.chunks_exact_mut(PAGE_BYTES).enumerate() {
        if page.iter().all(|byte| *byte == 0) || number % 3 == 0 {
            continue;
        }
        let is_aged = number % 3 == 1;
        let new = if is_aged { page_innodb_new(page) } else { NO_CHECKSUM };
        page[..4].copy_from_slice(&new.to_be_bytes());
        let old = if is_aged { page_innodb_old(page) } else { NO_CHECKSUM };
        page[TRAILER..TRAILER + 4].copy_from_slice(&old.to_be_bytes());
    }
    fs::write(path, pages).unwrap();
}

fn old_tablespaces_are_restored(kind: ServerKind, seed: u64) {
    let options = ServerOptions::default().init_arg("--innodb-checksum-algorithm=crc32");
    let mut source = Server::start(kind, options).unwrap();
    let tables = pages::create(&source).unwrap();
    source.exec("SET GLOBAL innodb_fast_shutdown = 0").unwrap();
    source.stop().unwrap();
    let old = ["dynamic", "compact"].map(|table| source.datadir().join(format!("pages/{table}.ibd")));
    for path in &old {
        age(path);
    }
    source.run().unwrap();
    check_tables(&source).unwrap();
    let load = PageLoad::start(&source, &tables, 2, seed).unwrap();
    let stage = Stage::around(source);
    let [first, _] = stage.back_up_twice(load);
    let seen: Vec<_> = first.capture.pages_by_checksum.keys().copied().collect();
    assert!(seen.contains(&"innodb") && seen.contains(&"crc32"), "{seen:?}");
    assert!(first.capture.pages_unverifiable > 0, "no page without a checksum was seen");
}

#[test]
fn mariadb_10_11_tablespaces_from_older_versions_are_restored() {
    old_tablespaces_are_restored(ServerKind::MariaDb1011, 61);
}
