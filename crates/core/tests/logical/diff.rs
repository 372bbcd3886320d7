//! The differences between two backups are those that a client of the server finds, row by row; and only
//! chunks that can differ are read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};

use holdfast_core::logical::diff::{
    Counts, DiffOptions, DiffSink, DiffTotals, ObjectChange, RowChange, Side, TableDiff, TablePair, diff,
};
use holdfast_repo::store::{
    faulty::{FaultyStore, Op},
    fs::FsStore,
};
use holdfast_testkit::rng::Rng;

use super::*;

/// A row as a client sees it: columns by name, text as UTF-8.
type Seen = BTreeMap<String, Option<Vec<u8>>>;
/// The rows of each table.
type Tables = BTreeMap<&'static str, Vec<Seen>>;

/// Table names, with the columns that identify a row; empty if none do.
const TABLES: [(&str, &[&str]); 6] = [
    ("people", &["name", "born"]),
    ("numbered", &["id"]),
    ("bag", &[]),
    ("films", &["id"]),
    ("grows", &["id"]),
    ("recoded", &["word"]),
];

fn create(server: &Server, rng: &mut Rng) {
    let mut conn = server.conn().unwrap();
    for statement in [
        "CREATE DATABASE d",
        "CREATE TABLE d.people (v VARCHAR(300) CHARACTER SET latin1, n DECIMAL(10,2), born INT, name VARCHAR(40) CHARACTER SET utf8mb4 NOT NULL, PRIMARY KEY (name, born))",
        "CREATE TABLE d.numbered (id BIGINT PRIMARY KEY, v VARBINARY(300))",
        "CREATE TABLE d.bag (w INT, v VARCHAR(200) CHARACTER SET latin1)",
        "CREATE TABLE d.films (id INT PRIMARY KEY, v LONGBLOB)",
        "CREATE TABLE d.grows (id INT PRIMARY KEY, v VARCHAR(100), w INT)",
        "CREATE TABLE d.recoded (word VARCHAR(60) CHARACTER SET latin1 PRIMARY KEY, v VARCHAR(100) CHARACTER SET latin1)",
        "CREATE TABLE d.still (id INT PRIMARY KEY, v VARCHAR(300))",
        "CREATE VIEW d.gone AS SELECT 1 AS one",
        "CREATE VIEW d.other AS SELECT 1 AS one",
    ] {
        conn.query_drop(statement).unwrap();
    }
    for (table, count) in [
        ("people", 24_000),
        ("numbered", 24_000),
        ("bag", 9_000),
        ("films", 6),
        ("grows", 4_000),
        ("recoded", 3_000),
    ] {
        for _ in 0..count / 500 + 1 {
            let rows: Vec<String> = (0..count.min(500)).map(|_| values(table, rng, 50_000)).collect();
            conn.query_drop(format!("INSERT IGNORE INTO d.{table} VALUES {}", rows.join(", "))).unwrap();
        }
    }
    conn.query_drop("INSERT INTO d.still SELECT id, LEFT(HEX(v), 300) FROM d.numbered WHERE id < 30000000")
        .unwrap();
}

/// A random row as a literal.
fn values(table: &str, rng: &mut Rng, ids: u64) -> String {
    let id = rng.below(ids);
    let filler =
        |rng: &mut Rng, count| (0..count).map(|_| format!("{:016x}", rng.next_u64())).collect::<String>();
    match table {
        "people" => format!(
            "('{}', {}, {}, CONCAT('{}', {id}))",
            filler(rng, 12),
            if rng.percent(20) {
                "NULL".to_owned()
            } else {
                format!("{}.{:02}", rng.below(999), rng.below(99))
            },
            rng.below(3),
            rng.pick(&["a", "Ä", "ö", "Z", "😀"]),
        ),
        "numbered" => format!("({}, x'{}')", id * 7919, filler(rng, 20)),
        "bag" => format!("({}, REPEAT('{}', 20))", rng.below(40), rng.pick(&["a", "b", "\u{e4}"])),
        "films" => {
            let size = rng.between(1, 3_000_000);
            format!("({}, CONCAT(REPEAT(x'{}', {size}), x'{}'))", id % 12, rng.below(90) + 10, filler(rng, 2))
        }
        "grows" => format!("({id}, '{}', {})", filler(rng, 3), rng.below(9)),
        _ => format!("(CONCAT('ü', {id}), '{}ß')", filler(rng, 2)),
    }
}

/// Inserts, deletes and changes some rows.
fn change(server: &Server, rng: &mut Rng, share: u64) {
    let mut conn = server.conn().unwrap();
    for (table, _) in TABLES {
        let some =
            |rng: &mut Rng| format!("CRC32(CONCAT(COALESCE(v, ''), '{}')) % {share} = 0", rng.below(1000));
        let columns: Vec<String> = conn.query(format!("SELECT column_name FROM information_schema.columns WHERE table_schema = 'd' AND table_name = '{table}' AND column_name <> 'later' ORDER BY ordinal_position")).unwrap();
        let columns = columns.join(", ");
        let new: Vec<String> = (0..rng.between(1, 30)).map(|_| values(table, rng, 90_000)).collect();
        let fill = format!("{:08x}", rng.next_u64());
        for statement in [
            format!("DELETE FROM d.{table} WHERE {}", some(rng)),
            format!("UPDATE d.{table} SET v = CONCAT('{fill}', SUBSTR(v, 9)) WHERE {}", some(rng)),
            format!("INSERT IGNORE INTO d.{table} ({columns}) VALUES {}", new.join(", ")),
        ] {
            conn.query_drop(statement).unwrap();
        }
    }
    conn.query_drop("UPDATE d.people SET n = IF(n IS NULL, 1, NULL) WHERE born = 1 AND v < '01'").unwrap();
}

/// Reads all rows with a client of the server.
fn seen(server: &Server) -> Tables {
    let mut conn = server.conn().unwrap();
    conn.query_drop("SET NAMES utf8mb4").unwrap();
    let mut read = |table: &str| -> Vec<Seen> {
        let rows: Vec<Row> = conn.query(format!("SELECT * FROM d.{table}")).unwrap();
        let seen = |row: Row| -> Seen {
            let names: Vec<String> =
                row.columns_ref().iter().map(|column| column.name_str().into_owned()).collect();
            let value = |value: Value| match value {
                Value::Bytes(bytes) => Some(bytes),
                _ => None,
            };
            names.into_iter().zip(row.unwrap().into_iter().map(value)).collect()
        };
        rows.into_iter().map(seen).collect()
    };
    TABLES.iter().map(|(table, _)| (*table, read(table))).collect()
}

/// Differences in one table: rows that exist only before, only after, or changed, each with a count.
type Differences = BTreeSet<(Option<Seen>, Option<Seen>, u64)>;

/// Computes the differences in a slow but simple way. Columns that one side lacks are ignored.
fn expected(before: &[Seen], after: &[Seen], key: &[&str]) -> Differences {
    let names = |rows: &[Seen]| {
        rows.first().map(|row| row.keys().cloned().collect::<BTreeSet<_>>()).unwrap_or_default()
    };
    let common: BTreeSet<String> = names(before).intersection(&names(after)).cloned().collect();
    let cut = |row: &Seen| -> Seen {
        row.iter().filter(|(name, _)| common.contains(*name)).map(|(n, v)| (n.clone(), v.clone())).collect()
    };
    let id = |row: &Seen| -> Seen {
        if key.is_empty() {
            cut(row)
        } else {
            key.iter().map(|name| ((*name).to_owned(), row[*name].clone())).collect()
        }
    };
    let mut rows: BTreeMap<Seen, (Vec<Seen>, Vec<Seen>)> = BTreeMap::new();
    before.iter().for_each(|row| rows.entry(id(row)).or_default().0.push(cut(row)));
    after.iter().for_each(|row| rows.entry(id(row)).or_default().1.push(cut(row)));
    let mut found = Bag::default();
    for (before, after) in rows.into_values() {
        for place in 0..before.len().max(after.len()) {
            if before.get(place) != after.get(place) {
                found.add(before.get(place).cloned(), after.get(place).cloned());
            }
        }
    }
    found.0.into_iter().map(|((before, after), count)| (before, after, count)).collect()
}

#[derive(Default)]
struct Bag(BTreeMap<(Option<Seen>, Option<Seen>), u64>);

impl Bag {
    fn add(&mut self, before: Option<Seen>, after: Option<Seen>) {
        *self.0.entry((before, after)).or_default() += 1;
    }
}

/// Records the reported differences.
#[derive(Default)]
struct Noted {
    rows: BTreeMap<String, Bag>,
    objects: Vec<String>,
    tables: BTreeMap<String, (Option<u64>, Option<u64>, Counts)>,
}

fn seen_row(pair: &TablePair, side: Side, row: &[u8]) -> Seen {
    let has = |name: &str| pair.columns(side.other()).iter().any(|column| column.name == name);
    let columns = pair.columns(side).iter().zip(pair.values(side, row).unwrap());
    let text = |charset: Option<&str>, value: &[u8]| match charset {
        Some("latin1") => value.iter().copied().map(char::from).collect::<String>().into_bytes(),
        _ => value.to_vec(),
    };
    columns
        .filter(|(column, _)| has(&column.name))
        .map(|(column, value)| {
            (column.name.clone(), value.map(|value| text(column.charset.as_deref(), value)))
        })
        .collect()
}

impl DiffSink for Noted {
    fn object(&mut self, change: &ObjectChange) -> Result<()> {
        let sign = match (&change.before, &change.after) {
            (None, _) => '+',
            (_, None) => '-',
            _ => '~',
        };
        self.objects.push(format!("{sign}{} {}", change.name.object, change.name.name));
        Ok(())
    }

    fn row(&mut self, table: &TablePair, change: RowChange<'_>) -> Result<()> {
        let (before, after) = match change {
            RowChange::Added(row) => (None, Some(row)),
            RowChange::Removed(row) => (Some(row), None),
            RowChange::Changed { before, after } => {
                assert!(!table.differing(before, after).unwrap().is_empty());
                (Some(before), Some(after))
            }
        };
        let bag = self.rows.entry(table.definition(Side::After).name.clone()).or_default();
        bag.add(
            before.map(|row| seen_row(table, Side::Before, row)),
            after.map(|row| seen_row(table, Side::After, row)),
        );
        Ok(())
    }

    fn table(&mut self, table: TableDiff<'_>) -> Result<()> {
        self.tables.insert(table.name.to_owned(), (table.rows_before, table.rows_after, table.counts));
        Ok(())
    }
}

fn open(repo: &Arc<Repo>, run: u64) -> Backup {
    Backup::open(repo, &History::read(repo, &log()).unwrap(), RunNo(run)).unwrap()
}

fn compare(repo: &Arc<Repo>, before: u64, after: u64, memory_bytes: u64) -> (DiffTotals, Noted) {
    let options = DiffOptions { memory_bytes, ..DiffOptions::default() };
    let mut noted = Noted::default();
    let (before, after) = (open(repo, before), open(repo, after));
    let totals = diff(&before, &after, &options, &mut noted, &Cancel::default()).unwrap();
    (totals, noted)
}

fn assert_as_seen(noted: &Noted, before: &Tables, after: &Tables) {
    for (table, key) in TABLES {
        let told = noted.rows.get(table).map(|bag| &bag.0);
        let told: Differences =
            told.into_iter().flatten().map(|((b, a), n)| (b.clone(), a.clone(), *n)).collect();
        let expected = expected(&before[table], &after[table], key);
        let first = |one: &Differences, other: &Differences| {
            let show = |row: &Option<Seen>| format!("{row:?}").chars().take(300).collect::<String>();
            one.difference(other).next().map(|(b, a, n)| format!("{n}: {} {}", show(b), show(a)))
        };
        assert!(
            told == expected,
            "{table}: told {} expected {}\n{:?}\n{:?}",
            told.len(),
            expected.len(),
            first(&told, &expected),
            first(&expected, &told)
        );
    }
}

/// Random changes of every kind of table, including its definition, in single steps and across
/// several; and back again.
fn differences_are_those_of_a_client(kind: ServerKind) {
    let seed = 0x5EED ^ u64::from(std::process::id());
    println!("{kind} seed {seed}");
    let mut rng = Rng::new(seed);
    let stage = Stage::new(kind);
    create(&stage.source, &mut rng);
    let back_up = || stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let (mut backups, mut states) = (vec![back_up()], vec![seen(&stage.source)]);
    for (share, also) in [
        (2_000, &["DROP VIEW d.gone", "CREATE OR REPLACE VIEW d.other AS SELECT 2 AS two"][..]),
        (
            50,
            &[
                "ALTER TABLE d.grows ADD COLUMN later VARCHAR(10) DEFAULT 'x' AFTER id",
                "ALTER TABLE d.recoded CONVERT TO CHARACTER SET utf8mb4",
            ][..],
        ),
        (3, &["CREATE TABLE d.fresh (id INT PRIMARY KEY)", "DELETE FROM d.people WHERE name > 'm'"][..]),
    ] {
        stage.source.exec_all(also).unwrap();
        change(&stage.source, &mut rng, share);
        backups.push(back_up());
        states.push(seen(&stage.source));
        let (last, run) = (backups.len() - 1, &backups);
        let (totals, noted) = compare(&stage.repo, run[last - 1], run[last], 128 << 20);
        println!("{kind} 1 of {share}: {totals:?} {:?}", noted.objects);
        assert_as_seen(&noted, &states[last - 1], &states[last]);
        assert!(!noted.rows.contains_key("still"));
        let expected: &[&str] = match last {
            1 => &["-view d.gone", "~view d.other"],
            2 => &["~table d.grows", "~table d.recoded"],
            _ => &["+table d.fresh"],
        };
        assert_eq!(noted.objects, expected);
    }
    // Across all steps and back, with memory for only a few rows.
    for (from, to) in [(0, 3), (3, 0)] {
        let (totals, noted) = compare(&stage.repo, backups[from], backups[to], 600 << 10);
        assert_as_seen(&noted, &states[from], &states[to]);
        let gone = |pair: (Option<u64>, Option<u64>)| if from == 0 { pair } else { (pair.1, pair.0) };
        let (before, after, _) = noted.tables["fresh"];
        assert_eq!(gone((before, after)), (None, Some(0)));
        assert!(!totals.is_equal() && totals.tables == 8, "{totals:?}");
    }
    let (totals, noted) = compare(&stage.repo, backups[3], backups[3], 128 << 20);
    assert!(totals.is_equal() && noted.rows.is_empty() && noted.objects.is_empty());
}

#[test]
fn differences_are_those_of_a_client_on_mariadb() {
    differences_are_those_of_a_client(ServerKind::MariaDb118);
}

#[test]
fn differences_are_those_of_a_client_on_mysql() {
    differences_are_those_of_a_client(ServerKind::MySql97);
}

/// A changed row costs reads of the metadata about it, of the chunk that contains it and of the patch on that
/// chunk, but not of the table.
#[test]
fn equal_chunks_are_not_read() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage
        .source
        .exec_all([
            "CREATE DATABASE d",
            "USE d",
            "CREATE TABLE d.large (id INT PRIMARY KEY, v VARCHAR(500))",
            "INSERT INTO d.large SELECT seq, CONCAT(SHA2(seq, 512), SHA2(seq + 1, 512), SHA2(seq + 2, 512)) FROM seq_1_to_90000",
        ])
        .unwrap();
    let back_up = || stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let before = back_up();
    stage.source.exec("UPDATE d.large SET v = 'x' WHERE id = 45000").unwrap();
    let after = back_up();

    let reads = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&reads);
    let store = FaultyStore::new(Arc::new(FsStore::open(stage.repo_dir()).unwrap()), move |call| {
        if call.op == Op::Read && call.path.contains("/packs/") {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        None
    });
    let password = crate::physical::password();
    let repo = Arc::new(Repo::open(Arc::new(store), Some(&password)).unwrap());
    let one = open(&repo, before);
    let other = one.beside(&History::read(&repo, &log()).unwrap(), RunNo(after)).unwrap();
    let tables = one.items().map(Result::unwrap).filter_map(|item| one.table(&item).map(|t| t.chunk_count()));
    let chunks: u64 = tables.sum();
    let mut noted = Noted::default();
    let opened = reads.load(Ordering::SeqCst);
    diff(&one, &other, &DiffOptions::default(), &mut noted, &Cancel::default()).unwrap();
    let read = reads.load(Ordering::SeqCst) - opened;
    println!("{read} reads for a row among {chunks} chunks");
    assert_eq!(noted.tables["large"].2, Counts { changed: 1, ..Counts::default() });
    assert!(chunks > 100 && read < 8, "{read} reads, {chunks} chunks");
}
