//! Large tables with keys of every kind are split while they are read, without losing or duplicating a row.

use std::{
    io::{self, Read},
    net::{Shutdown, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use holdfast_core::{
    event::{Event, Listener},
    server::ConnectOptions,
};
use holdfast_repo::format::rows::RowTotals;

use super::*;

const ROWS: u32 = 60_000;
/// Finding a split point can take longer than the reader is held up.
const TRIES: u32 = 5;

/// Holds up the reader that first completes its first segment, long enough for others to find
/// split points in its table.
#[derive(Default)]
struct HoldFirst(AtomicBool);

impl Listener for HoldFirst {
    fn event(&self, event: Event) {
        if matches!(event, Event::Progress { .. }) && !self.0.swap(true, Ordering::Relaxed) {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

/// Tables large enough to be split: about 60 MiB each, in rows of 1 KiB.
fn create(server: &Server) {
    let mut conn = server.conn().unwrap();
    let digits = (0..10).map(|n| format!("SELECT {n} AS n")).collect::<Vec<_>>().join(" UNION ALL ");
    conn.query_drop("CREATE DATABASE keys_").unwrap();
    conn.query_drop("CREATE TABLE keys_.d (n INT PRIMARY KEY)").unwrap();
    conn.query_drop(format!("INSERT INTO keys_.d {digits}")).unwrap();
    let numbers = format!(
        "(SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n AS n \
         FROM keys_.d a, keys_.d b, keys_.d c, keys_.d d, keys_.d e HAVING n < {ROWS}) AS numbers"
    );
    for (name, columns, key, values) in [
        // Half of the rows at one end, the rest far away.
        ("skewed", "k BIGINT", "k", "IF(n < 30000, n, n * 1000000007 - 4000000000000)"),
        (
            "tenants",
            "a INT, b VARCHAR(20) CHARACTER SET utf8mb4",
            "a, b",
            "1, CONCAT(IF(n % 2, 'ä', 'A'), LPAD(n, 6, '0'))",
        ),
        ("digests", "k BINARY(32)", "k", "UNHEX(SHA2(n, 256))"),
        ("no_key", "k INT", "", "n"),
        // MariaDB keeps a hash of such a key, and sorts only by the beginnings of values.
        ("hashed", "k TEXT CHARACTER SET utf8mb4 NOT NULL", "UNIQUE", "CONCAT(REPEAT('x', 600), 99999 - n)"),
    ] {
        let key = match key {
            "" => String::new(),
            "UNIQUE" if server.kind().is_mariadb() => ", UNIQUE (k)".to_owned(),
            "UNIQUE" => continue,
            columns => format!(", PRIMARY KEY ({columns})"),
        };
        conn.query_drop(format!(
            "CREATE TABLE keys_.{name} ({columns}, v VARCHAR(1000) CHARACTER SET latin1{key})"
        ))
        .unwrap();
        conn.query_drop(format!("INSERT INTO keys_.{name} SELECT {values}, REPEAT(CHAR(65 + n % 26), 900 + n % 100) FROM {numbers}")).unwrap();
        conn.query_drop(format!("ANALYZE TABLE keys_.{name}")).unwrap();
    }
}

/// The totals of each table's rows, independent of the order in which they were read.
fn totals(stage: &Stage, backup: u64) -> Vec<(String, RowTotals)> {
    let history = History::read(&stage.repo, &log()).unwrap();
    let backup = Backup::open(&stage.repo, &history, RunNo(backup)).unwrap();
    let items = backup.items().map(Result::unwrap);
    let tables = items.filter_map(|item| Some((item.path.to_string(), backup.table(&item)?.totals())));
    tables.collect()
}

fn cut(kind: ServerKind) {
    let stage = Stage::new(kind);
    create(&stage.source);
    let alone = BackupOptions { parallel: 1, ..stage.options() };
    let whole = stage.back_up(&alone, &Selection::default()).unwrap();
    let expected = totals(&stage, whole.run.backup);
    let large = if kind.is_mariadb() { 5 } else { 4 };
    assert_eq!((whole.read.rows, whole.read.ranges), (large * u64::from(ROWS) + 10, large + 1));
    for table in ["skewed", "tenants", "digests"] {
        let selection =
            Selection { tables: vec![format!("keys_.{table}").parse().unwrap()], ..Selection::default() };
        // Without a base, the server is asked where to split; with one, the base is used.
        for full in [true, false] {
            let options = BackupOptions { parallel: 3, full, ..stage.options() };
            let is_cut = (0..TRIES).any(|_| {
                let held = HoldFirst::default();
                let report =
                    logical::run(&stage.repo, &options, &selection, &held, &Cancel::default()).unwrap();
                println!("{kind} {table} full {full}: {:?} {:?}", report.read, report.run.totals);
                for (name, found) in totals(&stage, report.run.backup) {
                    assert!(expected.contains(&(name.clone(), found)), "{name}: {found:?} {expected:?}");
                }
                if !full {
                    assert!(
                        report.run.totals.bytes_new < report.run.totals.bytes_reused / 10,
                        "{:?}",
                        report.run.totals
                    );
                }
                report.read.ranges > 1
            });
            assert!(is_cut, "{table} was never cut");
        }
    }
}

#[test]
fn mariadb_11_8_tables_are_cut() {
    cut(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_tables_are_cut() {
    cut(ServerKind::MySql97);
}

/// The keys of the last backup are no values of the column any more, or of another order: they cut nothing off.
fn keys_of_another_type(kind: ServerKind, before: &str, after: &str, changed: &str) {
    let stage = Stage::new(kind);
    create(&stage.source);
    stage
        .source
        .exec(format!(
            "CREATE TABLE keys_.changed (a INT, b {before}, v VARCHAR(1000) CHARACTER SET latin1, PRIMARY KEY (a, b)) \
             SELECT k % 20 AS a, CONCAT('10.0.', k DIV 250, '.', k % 250) AS b, v FROM keys_.no_key"
        ))
        .unwrap();
    let table = Selection { tables: vec!["keys_.changed".parse().unwrap()], ..Selection::default() };
    let alone = BackupOptions { parallel: 1, ..stage.options() };
    stage.back_up(&alone, &table).unwrap();
    stage
        .source
        .exec_all([
            format!("UPDATE keys_.changed SET b = {changed}"),
            format!("ALTER TABLE keys_.changed MODIFY b {after}"),
            "ANALYZE TABLE keys_.changed".to_owned(),
        ])
        .unwrap();
    let expected = {
        let full = BackupOptions { name: Some("other".parse().unwrap()), ..alone };
        stage.back_up(&full, &table).unwrap().read.rows
    };
    let options = BackupOptions { parallel: 3, ..stage.options() };
    let held = HoldFirst::default();
    let report = logical::run(&stage.repo, &options, &table, &held, &Cancel::default()).unwrap();
    println!("{kind} {before} to {after}: {:?}", report.read);
    assert_eq!((expected, report.read.rows), (u64::from(ROWS), u64::from(ROWS)));
}

#[test]
fn mariadb_10_11_keys_of_another_type_cut_nothing_off() {
    keys_of_another_type(ServerKind::MariaDb1011, "VARCHAR(45)", "UUID NOT NULL", "UUID()");
}

#[test]
fn mysql_9_7_keys_of_another_type_cut_nothing_off() {
    keys_of_another_type(ServerKind::MySql97, "VARCHAR(45)", "INT UNSIGNED NOT NULL", "INET_ATON(b)");
}

/// What a statement finds beyond a key is not what comes after it in the index: no row is lost all the same.
fn a_key_that_the_server_misjudges(kind: ServerKind, columns: &str, values: &str) {
    let stage = Stage::new(kind);
    create(&stage.source);
    let mut conn = stage.source.conn().unwrap();
    conn.query_drop(format!("CREATE TABLE keys_.misjudged {columns}")).unwrap();
    conn.query_drop("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'").unwrap();
    conn.query_drop(format!("INSERT INTO keys_.misjudged SELECT {values}, v FROM keys_.no_key")).unwrap();
    conn.query_drop("ANALYZE TABLE keys_.misjudged").unwrap();
    let table = Selection { tables: vec!["keys_.misjudged".parse().unwrap()], ..Selection::default() };
    for parallel in [1, 4] {
        let options = BackupOptions { parallel, full: true, ..stage.options() };
        let held = HoldFirst::default();
        let report = logical::run(&stage.repo, &options, &table, &held, &Cancel::default()).unwrap();
        // Where a cut would lose rows is chance, so none may be made.
        assert_eq!((report.read.rows, report.read.ranges), (u64::from(ROWS), 1));
    }
}

const NOT_PADDED: &str =
    "IF(k % 2, CONCAT('k', LPAD(k DIV 2, 5, '0')), CONCAT('k', LPAD(k DIV 2, 5, '0'), CHAR(9), '1'))";

#[test]
fn mariadb_10_11_keys_that_are_padded_only_in_the_index() {
    let columns = "(k CHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL PRIMARY KEY, \
                    v VARCHAR(1000) CHARACTER SET latin1)";
    a_key_that_the_server_misjudges(ServerKind::MariaDb1011, columns, NOT_PADDED);
}

#[test]
fn mariadb_11_8_keys_that_are_padded_only_in_the_index() {
    let columns = "(k CHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci NOT NULL PRIMARY KEY, \
                    v VARCHAR(1000) CHARACTER SET latin1)";
    a_key_that_the_server_misjudges(ServerKind::MariaDb118, columns, NOT_PADDED);
}

#[test]
fn mysql_9_7_keys_with_dates_that_do_not_exist_in_partitions() {
    let columns = "(d DATE NOT NULL, k INT NOT NULL, v VARCHAR(1000) CHARACTER SET latin1, PRIMARY KEY (d, k)) \
                   PARTITION BY RANGE (TO_DAYS(d)) (PARTITION a VALUES LESS THAN (TO_DAYS('2020-03-01')), \
                   PARTITION b VALUES LESS THAN MAXVALUE)";
    let values = "IF(k < 10000, '2020-02-01', IF(k < 50000, '2020-02-31', '2020-04-01')), k";
    a_key_that_the_server_misjudges(ServerKind::MySql97, columns, values);
}

/// Longest wait for ordinary answers.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A port before a server that orders text otherwise than it compares it: each statement finds the last row of the
/// one before once more. It takes long to count.
fn misjudging(port: u16) -> u16 {
    let count = b"COUNT(*) FROM `shop`";
    let (asked, changed) = (b"> _latin1 x", b">=_latin1 x");
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let own = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut near in listener.incoming().flatten() {
            let mut far = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (mut answers, mut back) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut answers, &mut back));
            thread::spawn(move || {
                let mut buffer = vec![0; 1 << 20];
                while let Ok(len @ 1..) = near.read(&mut buffer) {
                    let sent = &mut buffer[..len];
                    while let Some(at) = sent.windows(asked.len()).position(|it| it == asked) {
                        sent[at..at + asked.len()].copy_from_slice(changed);
                    }
                    if sent.windows(count.len()).any(|it| it == count) {
                        thread::sleep(ANSWER_MAX + Duration::from_secs(2));
                    }
                    far.write_all(sent).unwrap();
                }
                far.shutdown(Shutdown::Both).ok();
            });
        }
    });
    own
}

/// Rows of a table that is read in parts are counted, in case the server finds others beyond a key than come after
/// it.
#[test]
fn other_rows_than_there_are_fail_the_backup() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (k VARCHAR(20) CHARACTER SET latin1 PRIMARY KEY, v VARCHAR(1000) CHARACTER SET latin1)",
            "INSERT INTO shop.orders SELECT CONCAT('k', seq), REPEAT('x', 900) FROM shop.seq_1_to_30000",
            "ANALYZE TABLE shop.orders",
        ])
        .unwrap();
    let connect = ConnectOptions {
        host: Some("127.0.0.1".to_owned()),
        port: Some(misjudging(stage.source.port())),
        socket: None,
        answer_timeout: Some(ANSWER_MAX),
        ..stage.options().connect
    };
    let options = BackupOptions { parallel: 1, connect, ..stage.options() };
    let error = stage.back_up(&options, &Selection::default()).unwrap_err().to_string();
    assert!(error.contains("read table shop.orders") && error.contains("the server counts 30000"), "{error}");
    let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
    assert_eq!(report.read.rows, 30_000);
    // A condition may hold for other rows when it is asked again.
    let some =
        Selection { filters: vec!["shop.orders=RAND() < 0.5".parse().unwrap()], ..Selection::default() };
    let report = stage.back_up(&stage.options(), &some).unwrap();
    assert!((10_000..20_000).contains(&report.read.rows), "{}", report.read.rows);
}
