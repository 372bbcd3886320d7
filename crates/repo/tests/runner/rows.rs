//! Rows in, the same rows out; and how much a second backup of nearly the same rows stores.

use std::{collections::BTreeMap, ops::Range, thread};

use holdfast_pipe::Suite;
use holdfast_repo::{
    RepoError, RunNo,
    data::{
        reader::{Backup, ReadRows, TableReader},
        writer::{BackupWriter, RangeStart, TableId, TableSpec, WriteError, WriterOptions},
    },
    format::{
        item::{ItemMap, ItemPath, ItemType},
        manifest::Totals,
        rows::{Piece, RowChunk, RowHashKey, RowTotals},
    },
};

use crate::world::*;

/// Rows by key, in key order.
pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
/// Tables by path.
pub type Tables = BTreeMap<String, Rows>;

pub fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// A row of about `len` bytes that compresses to about half.
pub fn row(random: &mut Random, len: usize) -> Vec<u8> {
    random.page(len).iter().map(|byte| b' ' + byte % 64).collect()
}

pub fn rows(random: &mut Random, count: u64, len: usize) -> Rows {
    (0..count).map(|number| (key(number * 16), row(random, len))).collect()
}

pub fn path(path: &str) -> ItemPath {
    ItemPath::new(path).unwrap()
}

pub fn totals(rows: &Rows, row_key: &RowHashKey) -> RowTotals {
    let mut totals = RowTotals::default();
    rows.values().for_each(|row| totals.add_row(row.len() as u64, row_key.checksum(row)));
    totals
}

/// The writer's totals cover all rows given. The checksum is verified by those who read them.
pub fn assert_taken(given: RowTotals, rows: &Rows) {
    let bytes: usize = rows.values().map(Vec::len).sum();
    assert_eq!((given.rows, given.bytes), (rows.len() as u64, bytes as u64));
}

pub fn definition(name: &str) -> Vec<u8> {
    format!("{{\"create\":\"CREATE TABLE {name}\"}}").into_bytes()
}

/// Where to split: at first keys of the base's chunks, or without a base, anywhere.
fn cuts(writer: &BackupWriter, id: TableId, rows: &Rows, parts: u64) -> Vec<(Vec<u8>, Option<u64>)> {
    let mut cuts = vec![(Vec::new(), None)];
    match writer.base_chunks(id).unwrap() {
        Some(mut chunks) => {
            for part in 1..parts {
                let chunk = chunks.get(chunks.count() * part / parts).unwrap();
                cuts.extend(chunk.and_then(|chunk| Some((chunk.key?.into(), Some(chunk.number)))));
            }
        }
        None => {
            let step = (rows.len() / parts as usize).max(1);
            cuts.extend(rows.keys().step_by(step).skip(1).map(|key| (key.clone(), None)));
        }
    }
    cuts.sort();
    cuts.dedup_by(|a, b| a.0 == b.0);
    cuts
}

/// Writes a table in several concurrent ranges.
pub fn give_table(
    writer: &BackupWriter,
    name: &str,
    rows: &Rows,
    parts: u64,
) -> Result<RowTotals, WriteError> {
    let id = writer.begin_table(TableSpec { path: path(name), has_key: true })?;
    let cuts = cuts(writer, id, rows, parts);
    thread::scope(|scope| {
        let mut after = None;
        let mut threads = Vec::new();
        for (position, (from, base_chunk)) in cuts.iter().enumerate() {
            let reserved = after.map(|after| writer.reserve_range(id, after)).transpose()?;
            let mut range = writer.begin_range(id, RangeStart { reserved, base_chunk: *base_chunk })?;
            after = Some(range.no());
            let to = cuts.get(position + 1).map(|(key, _)| key);
            threads.push(scope.spawn(move || {
                let of_range =
                    rows.range(from.clone()..).take_while(|(key, _)| to.is_none_or(|to| *key < to));
                for (key, row) in of_range {
                    range.row(key, row)?;
                }
                range.finish()
            }));
        }
        threads.into_iter().try_for_each(|thread| thread.join().unwrap().map(drop))
    })?;
    writer.end_table(id, &definition(name))
}

pub fn give_tables(writer: &BackupWriter, tables: &Tables, parts: u64) -> Result<(), WriteError> {
    for (name, rows) in tables {
        assert_taken(give_table(writer, name, rows, parts)?, rows);
    }
    Ok(())
}

pub fn back_up(world: &World, tables: &Tables, parts: u64) -> (RunNo, Totals) {
    world.backup_with(small_packs(), |writer| give_tables(writer, tables, parts))
}

/// Reads all rows of a range of chunks.
pub fn read(
    table: &TableReader<'_>,
    range: Range<u64>,
    options: ReadRows,
) -> Result<Vec<Vec<u8>>, RepoError> {
    let mut all = Vec::new();
    let mut open = Vec::new();
    let totals = table.read(range, options, &mut |read| {
        match read.rows {
            RowChunk::Whole(rows) => all.extend(rows.map(<[u8]>::to_vec)),
            RowChunk::Piece(piece, bytes) => {
                open.extend_from_slice(bytes);
                if piece == Piece::Last {
                    all.push(std::mem::take(&mut open));
                }
            }
        }
        Ok::<_, RepoError>(())
    })?;
    assert!(open.is_empty());
    assert_eq!(totals.rows, all.len() as u64);
    Ok(all)
}

/// The backup has exactly these tables, with these rows in this order, however it is read;
/// and a check finds nothing.
pub fn assert_is(world: &World, run: RunNo, tables: &Tables) {
    let backup = world.open(run).unwrap();
    let items: Vec<_> = backup.items().map(Result::unwrap).collect();
    let paths: Vec<_> = items.iter().map(|item| item.path.to_string()).collect();
    assert_eq!(paths, tables.keys().cloned().collect::<Vec<_>>(), "{run}");
    for item in &items {
        assert_eq!(item.item_type, ItemType::Table);
        let name = item.path.to_string();
        let expected = &tables[&name];
        let table = backup.table(item).unwrap();
        assert_eq!(table.totals(), totals(expected, &backup.row_key().unwrap()), "{name} of {run}");
        assert_eq!(backup.definition(item).unwrap().unwrap(), definition(&name));
        let count = table.chunk_count();
        let options = ReadRows { checksum: true, ..ReadRows::default() };
        let whole = read(&table, 0..count, options).unwrap();
        assert!(whole.iter().eq(expected.values()), "{name} of {run}");
        let middle = count / 2;
        let mut halves = read(&table, 0..middle, ReadRows { threads: 0, ..options }).unwrap();
        halves.extend(read(&table, middle..count, ReadRows { threads: 3, ..options }).unwrap());
        assert!(halves == whole, "{name} of {run} in two ranges");
    }
    world.assert_sound();
}

fn stored(world: &World, run: RunNo) -> u64 {
    Backup::open(&world.repo, &world.history(), run).unwrap().head().totals.bytes_stored
}

#[test]
fn tables_of_every_size_come_back_with_every_codec_and_suite() {
    for (seed, (suite, compression)) in [
        (Suite::X25519Aes256Gcm, "zstd"),
        (Suite::X25519Aes256Gcm, "none"),
        (Suite::None, "lz4"),
        (Suite::None, "gzip:1"),
    ]
    .into_iter()
    .enumerate()
    {
        let world = World::logical(suite);
        let mut random = Random::new(seed as u64);
        let mut tables = Tables::new();
        for (name, count, len) in [
            ("none", 0, 0),
            ("one", 1, 5),
            ("empty rows", 3_000, 0),
            ("few", 20, 100),
            ("many", 20_000, 100),
            ("wide", 40, 90_000),
        ] {
            tables.insert(format!("db/{name}"), rows(&mut random, count, len));
        }
        let mut long = Rows::new();
        for (number, len) in (0..).zip([
            10,
            (1 << 20) - 5,
            (1 << 20) - 4,
            (1 << 20) - 3,
            (1 << 20) - 1,
            1 << 20,
            7,
            3_500_000,
            2_097_150,
            1,
        ]) {
            long.insert(key(number), row(&mut random, len));
        }
        tables.insert("db/long".into(), long);
        let options = WriterOptions { compression: compression.parse().unwrap(), ..small_packs() };
        let (run, of_first) = world.backup_with(options.clone(), |writer| give_tables(writer, &tables, 1));
        assert_eq!(of_first.tables, tables.len() as u64);
        assert_eq!(of_first.rows, tables.values().map(|rows| rows.len() as u64).sum::<u64>());
        assert_is(&world, run, &tables);
        let (again, of_second) = world.backup_with(options.clone(), |writer| give_tables(writer, &tables, 1));
        assert_is(&world, again, &tables);
        assert_eq!((of_second.bytes_new, of_second.packs), (0, 0), "as before, and {of_second:?}");
        let (parted, _) = world.backup_with(options, |writer| give_tables(writer, &tables, 3));
        assert_is(&world, parted, &tables);
    }
}

#[test]
fn definitions_of_any_length_come_back() {
    let world = World::logical(Suite::X25519Aes256Gcm);
    let mut random = Random::new(7);
    let texts: Vec<Vec<u8>> = [0, 1, 65_536, 65_537, (1 << 20) - 1, 1 << 20, 5 << 20]
        .into_iter()
        .map(|len| random.page(len))
        .collect();
    let give = |writer: &BackupWriter| {
        for (number, text) in texts.iter().enumerate() {
            writer.definition(path(&format!("db/routine/{number}")), "routine", text)?;
        }
        let id = writer.begin_table(TableSpec { path: path("db/t"), has_key: false })?;
        writer.end_table(id, &texts[6]).map(drop)
    };
    for _ in 0..2 {
        let (run, totals) = world.backup_with(small_packs(), give);
        assert_eq!((totals.items, totals.tables), (8, 1));
        let backup = world.open(run).unwrap();
        for (item, text) in backup.items().map(Result::unwrap).zip(texts.iter().chain([&texts[6]])) {
            assert!(backup.definition(&item).unwrap().as_ref() == Some(text), "{}", item.path);
            if let ItemMap::Definition(definition) = &item.map {
                assert_eq!(definition.kind, "routine");
            }
        }
        world.assert_sound();
        assert!(run.0 == 1 || totals.packs == 0, "stored again: {totals:?}");
    }
}

/// Scattered edits: changed, removed and inserted rows in proportion.
pub fn edit(random: &mut Random, rows: &mut Rows, changes: u64) {
    let keys: Vec<Vec<u8>> = rows.keys().cloned().collect();
    for change in 0..changes {
        let key = keys[random.below(keys.len() as u64) as usize].clone();
        match change % 10 {
            0 => drop(rows.remove(&key)),
            1 => {
                let number = u64::from_be_bytes(key[..8].try_into().unwrap());
                let len = rows.values().next().map_or(10, Vec::len);
                rows.insert(self::key(number + 1 + random.below(14)), row(random, len));
            }
            _ => {
                if let Some(bytes) = rows.get_mut(&key) {
                    let len = bytes.len().min(20);
                    let new = row(random, len);
                    bytes[..len].copy_from_slice(&new);
                }
            }
        }
    }
}

const ROWS: u64 = 100_000;

#[test]
fn a_second_backup_after_scattered_edits_stores_little() {
    let world = World::logical(Suite::X25519Aes256Gcm);
    let mut random = Random::new(11);
    let mut tables = Tables::from([("shop/orders".to_owned(), rows(&mut random, ROWS, 200))]);
    let (first, _) = back_up(&world, &tables, 3);
    let full = stored(&world, first);
    for round in 0..2 {
        edit(&mut random, tables.get_mut("shop/orders").unwrap(), ROWS / 1_000);
        let (run, totals) = back_up(&world, &tables, 2 + round);
        assert_is(&world, run, &tables);
        let ratio = stored(&world, run) as f64 / full as f64;
        println!(
            "0.1 % of rows of 200 bytes changed: {:.2} % of {full} bytes stored, {totals:?}",
            ratio * 100.0
        );
        assert!(ratio < 0.02, "{ratio}");
    }
    assert_is(
        &world,
        first,
        &Tables::from([("shop/orders".to_owned(), rows(&mut Random::new(11), ROWS, 200))]),
    );
}
