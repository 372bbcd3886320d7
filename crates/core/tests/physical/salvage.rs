//! A server with a damaged page: its backup is never reported as good.

use std::{fs::OpenOptions, os::unix::fs::FileExt};

use holdfast_repo::format::manifest::DAMAGED_PAGES;
use mysql::prelude::Queryable;

use super::*;

const PAGE_BYTES: u64 = 16_384;

/// A leaf page of the index `by_v`, found by its id in the file of the stopped server.
fn a_page_of_the_index(file: &std::fs::File, index: u64) -> u64 {
    let pages = file.metadata().unwrap().len() / PAGE_BYTES;
    let mut page = vec![0_u8; PAGE_BYTES as usize];
    (4..pages)
        .rev()
        .find(|number| {
            file.read_exact_at(&mut page, number * PAGE_BYTES).unwrap();
            page[66..74] == index.to_be_bytes()
        })
        .expect("the index has pages")
}

/// Flips a bit in the middle of the page.
fn flip(file: &std::fs::File, page: u64) {
    let at = page * PAGE_BYTES + PAGE_BYTES / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

fn salvage(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE `sh op`",
            "CREATE TABLE `sh op`.orders (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(200), KEY by_v (v)) ENGINE=InnoDB",
            "CREATE TABLE `sh op`.well (id INT PRIMARY KEY) ENGINE=InnoDB",
            "INSERT INTO `sh op`.well VALUES (1)",
            "INSERT INTO `sh op`.orders (v) VALUES (REPEAT('v', 150))",
        ])
        .unwrap();
    for _ in 0..11 {
        source.exec("INSERT INTO `sh op`.orders (v) SELECT CONCAT(id, v) FROM `sh op`.orders").unwrap();
    }
    let of_system = if kind.is_mariadb() { "SYS_" } else { "" };
    let index: u64 = source
        .value(format!(
            "SELECT index_id FROM information_schema.innodb_{of_system}indexes WHERE name = 'by_v'"
        ))
        .unwrap();
    let mut stage = Stage::around(source);
    stage.source.stop().unwrap();
    let path = stage.source.datadir().join("sh@0020op/orders.ibd");
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let page = a_page_of_the_index(&file, index);
    flip(&file, page);
    stage.source.run().unwrap();

    let name = format!("page {page} of sh@0020op/orders.ibd (table sh op.orders, index by_v)");
    let error = backup::run(&stage.repo, &stage.options(), &Told, &Cancel::default()).unwrap_err();
    assert!(error.to_string().starts_with(&format!("{name} is damaged")), "{error}");
    assert!(error.hint().unwrap().contains("--allow-corrupt"), "{error:?}");

    let options = BackupOptions { allow_corrupt: true, ..stage.options() };
    let report = backup::run(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    let damaged: Vec<String> = report.capture.damaged_pages.iter().map(ToString::to_string).collect();
    assert_eq!(damaged, [name]);
    let history = holdfast_repo::log::history::History::read(&stage.repo, &log()).unwrap();
    let head = history.head(&stage.repo, RunNo(report.run.backup)).unwrap();
    let head = holdfast_repo::format::manifest::Head::decode(&head).unwrap();
    assert_eq!(head.flags, [DAMAGED_PAGES]);

    // Undamaged data are restored.
    let (restored, _) = stage.restore(report.run.backup);
    let mut conn = restored.server.conn().unwrap();
    assert_eq!(conn.query_first::<u64, _>("SELECT COUNT(*) FROM `sh op`.well").unwrap(), Some(1));
    let by_key = "SELECT COUNT(*) FROM `sh op`.orders FORCE INDEX (PRIMARY) WHERE id > 0";
    assert_eq!(conn.query_first::<u64, _>(by_key).unwrap(), Some(1 << 11));
    drop(restored);

    // The page is not shared with later backups: they read it, and fail until it is repaired.
    backup::run(&stage.repo, &stage.options(), &Told, &Cancel::default()).unwrap_err();
    stage.source.stop().unwrap();
    flip(&file, page);
    stage.source.run().unwrap();
    let sound = stage.back_up();
    assert!(sound.capture.damaged_pages.is_empty());
    let (restored, _) = stage.restore(sound.run.backup);
    assert_equal_checksums(&stage.source, &restored.server).unwrap();
}

#[test]
fn mariadb_10_11_with_a_damaged_page_is_saved_on_request() {
    salvage(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_with_a_damaged_page_is_saved_on_request() {
    salvage(ServerKind::MySql97);
}

/// The list of damaged pages is that of the backup: under the names that the tables have when it ends, and
/// without those that are not in it any more.
fn damaged_tables_change(kind: ServerKind) {
    let mut source = Server::start(kind, ServerOptions::default()).unwrap();
    source.exec("CREATE DATABASE s").unwrap();
    const TABLES: [&str; 3] = ["renamed", "dropped", "rebuilt"];
    for table in TABLES {
        source
            .exec_all([
                format!("CREATE TABLE s.{table} (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(200), KEY by_v (v)) ENGINE=InnoDB"),
                format!("INSERT INTO s.{table} (v) VALUES (REPEAT('v', 150))"),
            ])
            .unwrap();
        for _ in 0..8 {
            source.exec(format!("INSERT INTO s.{table} (v) SELECT CONCAT(id, v) FROM s.{table}")).unwrap();
        }
    }
    if kind.is_mariadb() {
        source
            .exec_all([
                "CREATE TABLE s.aria (id INT PRIMARY KEY, v VARCHAR(200)) ENGINE=Aria TRANSACTIONAL=1",
                "INSERT INTO s.aria SELECT id, v FROM s.renamed",
                "CREATE TABLE s.well LIKE s.aria",
                "INSERT INTO s.well SELECT * FROM s.aria",
            ])
            .unwrap();
    }
    let of_system = if kind.is_mariadb() { "SYS_" } else { "" };
    let indexes = TABLES.map(|table| -> u64 {
        source
            .value(format!(
                "SELECT i.index_id FROM information_schema.innodb_{of_system}indexes i
                 JOIN information_schema.innodb_{of_system}tables t ON t.table_id = i.table_id
                 WHERE i.name = 'by_v' AND t.name = 's/{table}'"
            ))
            .unwrap()
    });
    source.stop().unwrap();
    let mut pages = Vec::new();
    for (table, index) in TABLES.into_iter().zip(indexes) {
        let path = source.datadir().join(format!("s/{table}.ibd"));
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let page = a_page_of_the_index(&file, index);
        flip(&file, page);
        pages.push(page);
    }
    if kind.is_mariadb() {
        let file =
            OpenOptions::new().read(true).write(true).open(source.datadir().join("s/aria.MAD")).unwrap();
        // In the middle of the first page with rows.
        const AT: u64 = 8192 + 4000;
        let mut byte = [0];
        file.read_exact_at(&mut byte, AT).unwrap();
        file.write_all_at(&[byte[0] ^ 1], AT).unwrap();
    }
    source.run().unwrap();
    let stage = Stage::around(source);
    let options = BackupOptions { allow_corrupt: true, ..stage.options() };
    let back_up = |statements: &[&str]| {
        let listener = AtStop(|| stage.source.exec_all(statements).unwrap());
        backup::run(&stage.repo, &options, &listener, &Cancel::default()).unwrap()
    };
    let names = |report: &BackupReport| -> Vec<String> {
        report.capture.damaged_pages.iter().map(ToString::to_string).collect()
    };
    let flags = |report: &BackupReport| {
        let history = holdfast_repo::log::history::History::read(&stage.repo, &log()).unwrap();
        let head = history.head(&stage.repo, RunNo(report.run.backup)).unwrap();
        holdfast_repo::format::manifest::Head::decode(&head).unwrap().flags
    };
    let of_others = ["RENAME TABLE s.aria TO s.between, s.well TO s.aria, s.between TO s.well"];
    let of_others = if kind.is_mariadb() { &of_others[..] } else { &[] };
    let of_innodb = [
        "RENAME TABLE s.renamed TO s.`a name`",
        "DROP TABLE s.dropped",
        "ALTER TABLE s.rebuilt DROP KEY by_v, FORCE, ALGORITHM=INPLACE",
    ];
    let first = back_up(&[&of_innodb, of_others].concat());
    let mut expected = vec![format!("page {} of s/a@0020name.ibd (table s.a name, index by_v)", pages[0])];
    // The two have swapped their names.
    expected.extend(kind.is_mariadb().then(|| "page 1 of s/well.MAD (table s.well)".to_owned()));
    assert_eq!(names(&first), expected);
    assert_eq!(flags(&first), [DAMAGED_PAGES]);
    if kind.is_mariadb() {
        let renamed = back_up(&["DROP TABLE s.`a name`", "RENAME TABLE s.well TO s.elsewhere"]);
        assert_eq!(names(&renamed), ["page 1 of s/elsewhere.MAD (table s.elsewhere)"]);
        assert_eq!(flags(&renamed), [DAMAGED_PAGES]);
    }
    // Nothing damaged is left in this one.
    let second = back_up(&["DROP TABLE IF EXISTS s.`a name`, s.elsewhere"]);
    assert_eq!(names(&second), Vec::<String>::new());
    assert_eq!(flags(&second), Vec::<String>::new());
}

#[test]
fn mariadb_10_11_damaged_tables_that_change_are_listed_as_they_are_at_the_end() {
    damaged_tables_change(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_damaged_tables_that_change_are_listed_as_they_are_at_the_end() {
    damaged_tables_change(ServerKind::MySql97);
}
