//! How long a look at a data directory of many small tables takes, as it is done while definitions cannot change:
//! `listing_speed [TABLES [SCHEMAS]]`. The directory is invented, the copies of its files are pretended.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
    time::{Duration, Instant},
};

use holdfast_core::{
    Result,
    source::{
        FileId, FileSpec, Pages, Role, Sink,
        files::{Entry, FileKey, Inode, Signature, walk},
        inventory::{Before, Inventory, Verdict},
        plain::CopiedFile,
        running_clock::RunningClock,
        tablespace::{CopiedTablespace, TablespaceEntry},
    },
};
use holdfast_formats::{Flavor, Lsn, SpaceId};

/// Of this many tables one has been written to since it was copied.
const WRITTEN_EVERY: usize = 50;
const READERS: usize = 4;

struct Nowhere;

impl Sink for Nowhere {
    fn file_begin(&self, _: FileSpec) -> Result<FileId> {
        Ok(FileId(0))
    }
    fn pages(&self, _: FileId, _: Pages<'_>) -> Result<()> {
        Ok(())
    }
    fn file_end(&self, _: FileId, _: u64) -> Result<()> {
        Ok(())
    }
    fn file_renamed(&self, _: FileId, _: &str) -> Result<()> {
        Ok(())
    }
    fn file_gone(&self, _: FileId) -> Result<()> {
        Ok(())
    }
    fn directory(&self, _: &str, _: u16) -> Result<()> {
        Ok(())
    }
    fn directory_gone(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn is_drained(&self) -> Result<bool> {
        Ok(true)
    }
}

/// The first page of a table of MariaDB.
fn first_page(space: u32) -> Vec<u8> {
    let mut page = vec![0; 16_384];
    page[24..26].copy_from_slice(&8_u16.to_be_bytes());
    page[34..38].copy_from_slice(&space.to_be_bytes());
    page[38..42].copy_from_slice(&space.to_be_bytes());
    page[54..58].copy_from_slice(&0x15_u32.to_be_bytes());
    page
}

fn tables(found: &BTreeMap<String, Entry>) -> Vec<TablespaceEntry> {
    let tables = found.values().filter(|entry| entry.path.ends_with(".ibd"));
    tables.map(|entry| TablespaceEntry::new(entry.clone(), Role::Tablespace)).collect()
}

fn others(found: &BTreeMap<String, Entry>) -> impl Iterator<Item = &Entry> {
    found.values().filter(|entry| entry.path.ends_with(".frm"))
}

fn pretend_copies(found: &BTreeMap<String, Entry>) -> Inventory {
    let mut inventory = Inventory::default();
    for (number, table) in (1..).zip(tables(found)) {
        let file = File::open(&table.entry.real).unwrap();
        let key = FileKey { space: Some(SpaceId(number)), inode: Inode::of(&file).unwrap() };
        let signature = Signature::of(&file.metadata().unwrap());
        let file = FileId(u64::from(number));
        let copied =
            CopiedTablespace { file, key, signature, says_encryption: false, unended: None, unwritten: None };
        let before = Before { lsn: Lsn(1), space: None, after_quiet: false };
        inventory.add_tablespace(&Nowhere, &table.entry.path, copied, before).unwrap();
    }
    let read_at = RunningClock::start().unwrap().now();
    for entry in others(found) {
        let signature = Signature::of(&fs::metadata(&entry.real).unwrap());
        inventory.add_file(
            &entry.path,
            CopiedFile { file: FileId(0), inode: entry.stat.inode, signature, size_bytes: 0, read_at },
        );
    }
    inventory
}

fn make(datadir: &Path, count: usize, schemas: usize) {
    for schema in 0..schemas {
        fs::create_dir_all(datadir.join(format!("s{schema}"))).unwrap();
    }
    for number in 1..=count {
        let table = datadir.join(format!("s{}/t{number:06}", number % schemas));
        fs::write(table.with_extension("frm"), b"definition").unwrap();
        fs::write(table.with_extension("ibd"), [0; 0]).unwrap();
    }
    let found = walk(datadir, &|_, _| false).unwrap();
    for (number, table) in (1..).zip(tables(&found)) {
        fs::write(table.entry.real, first_page(number)).unwrap();
    }
}

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse().unwrap());
    let (count, schemas) = (words.next().unwrap_or(20_000), words.next().unwrap_or(20));
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), count, schemas);
    std::thread::sleep(Duration::from_millis(50));
    let mut inventory = pretend_copies(&walk(dir.path(), &|_, _| false).unwrap());
    let written = tables(&walk(dir.path(), &|_, _| false).unwrap()).into_iter().step_by(WRITTEN_EVERY);
    for table in written {
        let page = fs::read(&table.entry.real).unwrap();
        fs::write(&table.entry.real, page).unwrap();
    }
    for look in 1..=5 {
        let begin = Instant::now();
        let found = walk(dir.path(), &|_, _| false).unwrap();
        let walked = begin.elapsed();
        let now = tables(&found);
        let rescan = inventory.rescan(Flavor::MariaDb, &Nowhere, now, READERS, &|_| Verdict::Keep).unwrap();
        let rescanned = begin.elapsed();
        let changed = others(&found).filter(|entry| !inventory.has_unchanged(entry)).count();
        let all = begin.elapsed();
        assert_eq!((rescan.copy.len(), rescan.gone, changed), (0, 0, 0));
        println!(
            "look {look}: {count} tables in {schemas} schemas: walk {walked:?}, tablespaces {:?}, other files {:?}, in all {all:?}",
            rescanned - walked,
            all - rescanned
        );
    }
}
