//! Servers that are not entirely intact, as in production: restoring a backup of one gives a
//! server in no worse state.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::FileExt,
};

use holdfast_formats::checksum::crc32c;
use holdfast_testkit::encryption::mariadb_key_options;
use mysql::prelude::Queryable;

use super::*;

/// Everything broken on the source is in the backup unchanged, and just as easily repaired; it does no harm
/// to anything else.
fn what_is_broken_stays_as_it_is(kind: ServerKind) {
    let options = ServerOptions::default().arg("--myisam-recover-options=OFF");
    let source = Server::start(kind, options).unwrap();
    source
        .exec_all([
            "CREATE DATABASE b",
            "CREATE TABLE b.good (i INT PRIMARY KEY, v TEXT) ENGINE=InnoDB",
            "INSERT INTO b.good VALUES (1, 'a'), (2, 'b')",
            "CREATE TABLE b.plain (i INT PRIMARY KEY, v TEXT) ENGINE=MyISAM",
            "INSERT INTO b.plain VALUES (1, 'a'), (2, 'b')",
            // Views on a dropped table, on a broken view, and on a dropped column.
            "CREATE TABLE b.lost (i INT, j INT) ENGINE=InnoDB",
            "CREATE VIEW b.view_on_nothing AS SELECT * FROM b.lost",
            "CREATE VIEW b.view_on_view AS SELECT * FROM b.view_on_nothing",
            "DROP TABLE b.lost",
            "CREATE TABLE b.narrow (i INT PRIMARY KEY, j INT) ENGINE=InnoDB",
            "CREATE VIEW b.view_on_no_column AS SELECT j FROM b.narrow",
            "ALTER TABLE b.narrow DROP COLUMN j",
            // A merge table with a dropped part.
            "CREATE TABLE b.part_1 (i INT, KEY (i)) ENGINE=MyISAM",
            "CREATE TABLE b.part_2 LIKE b.part_1",
            "CREATE TABLE b.merged (i INT, KEY (i)) ENGINE=MERGE UNION=(b.part_1, b.part_2) INSERT_METHOD=LAST",
            "INSERT INTO b.merged VALUES (1)",
            "DROP TABLE b.part_1",
            // A discarded table.
            "CREATE TABLE b.discarded (i INT PRIMARY KEY) ENGINE=InnoDB",
            "INSERT INTO b.discarded VALUES (1)",
            "ALTER TABLE b.discarded DISCARD TABLESPACE",
            "CREATE TABLE b.crashed (i INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(50), KEY (v)) ENGINE=MyISAM",
            "INSERT INTO b.crashed (v) VALUES ('a'), ('b'), ('c'), ('d')",
            "FLUSH TABLES b.crashed",
        ])
        .unwrap();
    crash(&source, "b/crashed.MYI");
    source.exec("CHECK TABLE b.crashed").unwrap();
    assert!(source.query::<(u64,)>("SELECT COUNT(*) FROM b.crashed WHERE v > ''").is_err());

    // Files left by a server that died while it created a table.
    File::create(source.datadir().join("b/empty.ibd")).unwrap();
    if kind.is_mariadb() {
        // Far beyond the newest log.
        let log = source.datadir().join("aria_log.00000001");
        fs::copy(&log, log.with_extension("00000100")).unwrap();
    }

    // Temporary tables of each engine, in a session that stays open.
    let mut session = source.conn().unwrap();
    for engine in ["InnoDB", "MyISAM", "MEMORY"] {
        let table = format!("b.temp_{engine}");
        session.query_drop(format!("CREATE TEMPORARY TABLE {table} (v CHAR(90)) ENGINE={engine}")).unwrap();
        session.query_drop(format!("INSERT INTO {table} VALUES ('x')")).unwrap();
    }
    let stage = Stage::around(source);
    let first = stage.back_up();
    stage.source.exec("INSERT INTO b.good VALUES (3, 'c')").unwrap();
    let second = stage.back_up();

    let (restored, _) = stage.restore(second.run.backup);
    let copy = &restored.server;
    for (table, rows) in [("b.good", 3), ("b.plain", 2), ("b.part_2", 1), ("b.narrow", 0)] {
        assert_eq!(copy.value::<u64>(format!("SELECT COUNT(*) FROM {table}")).unwrap(), rows, "{table}");
    }
    let views = "SELECT COUNT(*) FROM information_schema.views WHERE table_schema = 'b'";
    assert_eq!(copy.value::<u64>(views).unwrap(), 3);
    assert!(copy.query::<(u64,)>("SELECT COUNT(*) FROM b.view_on_view").is_err());
    assert!(copy.query::<(u64,)>("SELECT COUNT(*) FROM b.discarded").is_err());
    for server in [&stage.source, copy] {
        server
            .exec_all([
                "REPAIR TABLE b.crashed",
                "CREATE TABLE b.part_1 LIKE b.part_2",
                "DROP TABLE b.discarded",
            ])
            .unwrap();
    }
    assert_eq!(copy.value::<u64>("SELECT COUNT(*) FROM b.crashed WHERE v > ''").unwrap(), 4);
    assert_equal_checksums(&stage.source, copy).unwrap();
    let temporary: Vec<String> = copy
        .query("SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'temp\\_%'")
        .unwrap();
    assert!(temporary.is_empty(), "{temporary:?}");
    let (older, _) = stage.restore(first.run.backup);
    assert_eq!(older.server.value::<u64>("SELECT COUNT(*) FROM b.good").unwrap(), 2);
}

/// Corrupts the pages of an index.
fn crash(source: &Server, file: &str) {
    let path = source.datadir().join(file);
    let size = fs::metadata(&path).unwrap().len();
    let file = File::options().write(true).open(path).unwrap();
    for at in (1024..size).step_by(1024) {
        file.write_all_at(&[0xFF; 512], at).unwrap();
    }
}

#[test]
fn mariadb_10_11_what_is_broken_stays_as_it_is() {
    what_is_broken_stays_as_it_is(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_what_is_broken_stays_as_it_is() {
    what_is_broken_stays_as_it_is(ServerKind::MySql97);
}

/// When a new table's file is copied, its first pages exist only in the server's memory, and stay there.
#[test]
fn mariadb_a_table_whose_first_page_is_not_written_is_restored() {
    let kind = ServerKind::MariaDb1011;
    let source =
        Server::start(kind, ServerOptions::default().arg("--innodb-max-dirty-pages-pct=90")).unwrap();
    let zip = "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=4";
    source
        .exec_all([
            "CREATE DATABASE `z e`".to_owned(),
            "CREATE TABLE `z e`.`a b` (i INT PRIMARY KEY, v TEXT) ENGINE=InnoDB".to_owned(),
            format!("CREATE TABLE `z e`.zip (i INT PRIMARY KEY, v TEXT) ENGINE=InnoDB {zip}"),
            "INSERT INTO `z e`.`a b` VALUES (1, 'a'), (2, 'b')".to_owned(),
            "INSERT INTO `z e`.zip VALUES (1, 'a'), (2, 'b')".to_owned(),
        ])
        .unwrap();
    let stage = Stage::around(source);
    let unwritten = |file: &str| {
        let mut page = [1; 1024];
        File::open(stage.source.datadir().join(file)).unwrap().read_exact(&mut page).unwrap();
        page == [0; 1024]
    };
    let are_unwritten = || ["z@0020e/a@0020b.ibd", "z@0020e/zip.ibd"].map(unwritten);
    assert_eq!(are_unwritten(), [true; 2]);
    let backup = stage.back_up();
    assert_eq!(are_unwritten(), [true; 2], "they were written meanwhile");
    let restored = stage.restore_recovered(&backup);
    assert_equal_checksums(&stage.source, &restored.server).unwrap();
}

/// A table that the server knows and whose file is missing: MariaDB ignores it, and so does its copy; MySQL
/// could not recover without the file, so the backup is refused, and the table is named.
#[test]
fn a_table_without_its_file_is_not_hidden() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let mut source = Server::start(kind, ServerOptions::default()).unwrap();
        source
            .exec_all([
                "CREATE DATABASE g",
                "CREATE TABLE g.gone (i INT PRIMARY KEY) ENGINE=InnoDB",
                "CREATE TABLE g.there (i INT PRIMARY KEY) ENGINE=InnoDB",
                "INSERT INTO g.there VALUES (1), (2)",
                "SET GLOBAL innodb_fast_shutdown = 0",
            ])
            .unwrap();
        source.stop().unwrap();
        fs::remove_file(source.datadir().join("g/gone.ibd")).unwrap();
        source.run().unwrap();
        assert!(source.query::<(u64,)>("SELECT COUNT(*) FROM g.gone").is_err());
        let stage = Stage::around(source);
        let backup = backup::run(&stage.repo, &stage.options(), &Told, &Cancel::default());
        if kind.is_mariadb() {
            let (restored, _) = stage.restore(backup.unwrap().run.backup);
            assert_eq!(restored.server.value::<u64>("SELECT COUNT(*) FROM g.there").unwrap(), 2);
            assert!(restored.server.query::<(u64,)>("SELECT COUNT(*) FROM g.gone").is_err());
        } else {
            let error = backup.unwrap_err().to_string();
            assert!(error.contains("g/gone"), "{error}");
        }
    }
}

/// One byte of a page is wrong, in a table of each format whose pages can be verified: the backup fails, and
/// the page is named. After a repair, the backup succeeds.
fn a_damaged_page_is_named(kind: ServerKind) {
    let mut source = Server::start(kind, ServerOptions::default()).unwrap();
    pages::create(&source).unwrap();
    // So that nothing is written while it is damaged.
    source.restart().unwrap();
    let stage = Stage::around(source);
    const ROOT: u64 = 3;
    for (table, page_bytes) in
        [("compact", 16384), ("zip1", 1024), ("zip8", 8192), ("zlib", 16384), ("r_tree", 16384)]
    {
        let path = stage.source.datadir().join(format!("pages/{table}.ibd"));
        let file = File::options().read(true).write(true).open(path).unwrap();
        let flip = || {
            let (at, mut byte) = (ROOT * page_bytes + 91, [0]);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        };
        flip();
        let error = backup::run(&stage.repo, &stage.options(), &Told, &Cancel::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("page {ROOT} of pages/{table}.ibd")), "{text}");
        assert!(error.hint().is_some_and(|hint| hint.contains("CHECK TABLE")), "{error:?}");
        flip();
    }
    let backup = stage.back_up();
    let restored = stage.restore_recovered(&backup);
    assert_equal_checksums(&stage.source, &restored.server).unwrap();
}

#[test]
fn mariadb_10_11_a_damaged_page_is_named() {
    a_damaged_page_is_named(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_a_damaged_page_is_named() {
    a_damaged_page_is_named(ServerKind::MySql97);
}

/// The same in encrypted tables, compressed ones too, whatever the family of checksums: the server's keys are not
/// needed to see it. Only compressed pages from before `full_crc32` have no checksum of their bytes: nothing
/// can see a wrong byte there, and the report counts such pages.
#[test]
fn mariadb_a_damaged_encrypted_page_is_named() {
    let keys = tempfile::tempdir().unwrap();
    for (checksums, table, is_seen) in [
        ("full_crc32", "encrypted", true),
        ("full_crc32", "both", true),
        ("crc32", "encrypted", true),
        ("crc32", "both", false),
    ] {
        let options = mariadb_key_options(keys.path()).unwrap();
        let options = options.into_iter().fold(ServerOptions::default(), ServerOptions::init_arg);
        let options = options.init_arg(format!("--innodb-checksum-algorithm={checksums}"));
        let mut source = Server::start(ServerKind::MariaDb1011, options).unwrap();
        let compressed = if table == "both" { "PAGE_COMPRESSED=1" } else { "" };
        source
            .exec_all([
                "CREATE DATABASE e".to_owned(),
                format!(
                    "CREATE TABLE e.{table} (i INT PRIMARY KEY, v TEXT) ENGINE=InnoDB ENCRYPTED=YES {compressed}"
                ),
                format!("INSERT INTO e.{table} SELECT seq, REPEAT(MD5(seq), 9) FROM e.seq_1_to_3000"),
            ])
            .unwrap();
        source.restart().unwrap();
        let stage = Stage::around(source);
        const ROOT: u64 = 3;
        let path = stage.source.datadir().join(format!("e/{table}.ibd"));
        let file = File::options().read(true).write(true).open(path).unwrap();
        let (at, mut byte) = (ROOT * 16384 + 91, [0]);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        let backup = backup::run(&stage.repo, &stage.options(), &Told, &Cancel::default());
        let case = format!("{checksums} {table}");
        match is_seen {
            true => {
                let text = backup.expect_err(&case).to_string();
                assert!(
                    text.contains(&format!("page {ROOT} of e/{table}.ibd (table e.{table}")),
                    "{case}: {text}"
                );
            }
            false => assert!(backup.expect(&case).capture.pages_unverifiable > 0, "{case}"),
        }
    }
}

/// A page 0 of zeros belongs to a table that was just created, or it is lost: then the backup fails, whether
/// the server has the table open or not, and the page is named.
fn a_lost_first_page_is_named(kind: ServerKind) {
    let mut source = Server::start(kind, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE z",
            "CREATE TABLE z.open (i INT PRIMARY KEY, v TEXT) ENGINE=InnoDB",
            "CREATE TABLE z.closed (i INT PRIMARY KEY, v TEXT) ENGINE=InnoDB",
            "INSERT INTO z.open VALUES (1, 'a'), (2, 'b')",
            "INSERT INTO z.closed VALUES (1, 'a'), (2, 'b')",
        ])
        .unwrap();
    // So that nothing is written while it is damaged.
    source.restart().unwrap();
    assert_eq!(source.value::<u64>("SELECT COUNT(*) FROM z.open").unwrap(), 2);
    let stage = Stage::around(source);
    for table in ["closed", "open"] {
        let path = stage.source.datadir().join(format!("z/{table}.ibd"));
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut page = vec![0; 16384];
        file.read_exact_at(&mut page, 0).unwrap();
        file.write_all_at(&[0; 16384], 0).unwrap();
        let error = backup::run(&stage.repo, &stage.options(), &Told, &Cancel::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("page 0 of z/{table}.ibd")), "{text}");
        file.write_all_at(&page, 0).unwrap();
    }
    let backup = stage.back_up();
    let restored = stage.restore_recovered(&backup);
    assert_equal_checksums(&stage.source, &restored.server).unwrap();
}

#[test]
fn mariadb_10_11_a_lost_first_page_is_named() {
    a_lost_first_page_is_named(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_a_lost_first_page_is_named() {
    a_lost_first_page_is_named(ServerKind::MySql97);
}

/// Just before the low half of the LSN overflows, and so large that the high half has bits
/// that no young server's has.
const HUGE_LSN: u64 = 0x1000_FFFF_0000;

/// Makes a stopped MariaDB continue at an LSN that others take years to reach.
fn go_on_at_huge_lsn(datadir: &Path) {
    let path = datadir.join("ib_logfile0");
    let size = fs::metadata(&path).unwrap().len();
    let mut log = vec![0; 0x3000];
    File::open(&path).unwrap().read_exact(&mut log[..512]).unwrap();
    log[8..16].copy_from_slice(&HUGE_LSN.to_be_bytes());
    let sealed = crc32c(&log[..508]);
    log[508..512].copy_from_slice(&sealed.to_be_bytes());
    let checkpoint = &mut log[0x1000..0x1040];
    checkpoint[..8].copy_from_slice(&HUGE_LSN.to_be_bytes());
    checkpoint[8..16].copy_from_slice(&HUGE_LSN.to_be_bytes());
    let sealed = crc32c(&checkpoint[..60]);
    checkpoint[60..].copy_from_slice(&sealed.to_be_bytes());
    // The checkpoint's record in the log, the marker of the first lap, and the checksum.
    let note = [&[0xFA, 0, 0][..], &HUGE_LSN.to_be_bytes()].concat();
    log.extend([&note[..], &[1], &crc32c(&note).to_be_bytes()].concat());
    fs::write(&path, log).unwrap();
    File::options().write(true).open(path).unwrap().set_len(size).unwrap();
}

/// LSNs need all their bits.
#[test]
fn mariadb_10_11_huge_lsns_are_restored() {
    let mut source = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    let tables = pages::create(&source).unwrap();
    source.exec("SET GLOBAL innodb_fast_shutdown = 0").unwrap();
    source.stop().unwrap();
    go_on_at_huge_lsn(source.datadir());
    source.run().unwrap();
    let load = PageLoad::start(&source, &tables, 2, 41).unwrap();
    let stage = Stage::around(source);
    let first = stage.back_up();
    assert!(first.position.lsn.0 >= HUGE_LSN, "{:?}", first.position);
    stage.back_up_twice(load);
}
