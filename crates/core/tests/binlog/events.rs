//! Every kind of event that a server writes: archived unchanged, and parsed correctly.

use super::*;

/// Statements that generate different events.
pub(crate) fn write_all_kinds(server: &Server) {
    let big = "y".repeat(17 << 20);
    let mut statements = vec![
        "CREATE DATABASE d".to_owned(),
        "CREATE TABLE d.t (id INT PRIMARY KEY AUTO_INCREMENT, v LONGTEXT) ENGINE=InnoDB".to_owned(),
        "CREATE TABLE d.m (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(99)) ENGINE=MyISAM".to_owned(),
        "INSERT INTO d.t VALUES (1, 'one'), (2, 'two')".to_owned(),
        "UPDATE d.t SET v = 'zwei' WHERE id = 2".to_owned(),
        "DELETE FROM d.t WHERE id = 1".to_owned(),
        "INSERT INTO d.m VALUES (1, 'eins')".to_owned(),
        // More than one packet of the protocol.
        format!("INSERT INTO d.t VALUES (3, '{big}')"),
        "BEGIN".to_owned(),
        "INSERT INTO d.t VALUES (4, 'vier')".to_owned(),
        "SAVEPOINT s".to_owned(),
        "UPDATE d.t SET v = 'quattro' WHERE id = 4".to_owned(),
        "ROLLBACK TO s".to_owned(),
        "COMMIT".to_owned(),
        "XA START 'x'".to_owned(),
        "INSERT INTO d.t VALUES (5, 'fünf')".to_owned(),
        "XA END 'x'".to_owned(),
        "XA PREPARE 'x'".to_owned(),
        "XA COMMIT 'x'".to_owned(),
        "XA START 'y'".to_owned(),
        "INSERT INTO d.t VALUES (6, 'sechs')".to_owned(),
        "XA END 'y'".to_owned(),
        "XA COMMIT 'y' ONE PHASE".to_owned(),
        "SET SESSION binlog_format = STATEMENT".to_owned(),
        "SET @a = 'seven'".to_owned(),
        "INSERT INTO d.t (v) VALUES (@a)".to_owned(),
        "INSERT INTO d.m (v) VALUES (CONCAT(RAND(), LAST_INSERT_ID()))".to_owned(),
        "UPDATE d.t SET v = 'two' WHERE id = 2".to_owned(),
        "SET SESSION binlog_format = ROW".to_owned(),
        "FLUSH BINARY LOGS".to_owned(),
        "CREATE TABLE d.u AS SELECT * FROM d.t WHERE id < 3".to_owned(),
        "CREATE TEMPORARY TABLE d.x (i INT)".to_owned(),
        "DROP TEMPORARY TABLE d.x".to_owned(),
        "TRUNCATE d.u".to_owned(),
        "CREATE USER u@localhost IDENTIFIED BY 'p'".to_owned(),
    ];
    if server.kind().is_mariadb() {
        statements.extend(
            [
                "BEGIN",
                "INSERT INTO d.t VALUES (50, 'rolled back')",
                "INSERT INTO d.m VALUES (50, 'stays')",
                "ROLLBACK",
                "CREATE SEQUENCE d.s",
                "SELECT NEXT VALUE FOR d.s",
                "SET GLOBAL log_bin_compress = 1, GLOBAL log_bin_compress_min_len = 10",
                "INSERT INTO d.t VALUES (100, REPEAT('abc', 1000))",
                "UPDATE d.t SET v = REPEAT('abd', 1000) WHERE id = 100",
                "DELETE FROM d.t WHERE id = 100",
                "CREATE TABLE d.compressed_statement_that_is_rather_long (i INT, j INT, k INT, l INT, m INT, n INT)",
                "SET SESSION gtid_domain_id = 7, SESSION server_id = 99",
                "INSERT INTO d.t VALUES (101, 'other domain')",
                "SET SESSION gtid_domain_id = 0",
                "SET GLOBAL binlog_checksum = NONE",
                "INSERT INTO d.t VALUES (102, 'without checksum')",
                "SET GLOBAL binlog_checksum = CRC32",
                "SET GLOBAL log_bin_compress = 0",
            ]
            .map(str::to_owned),
        );
    } else {
        statements.extend(
            [
                "SET SESSION binlog_rows_query_log_events = 1",
                "INSERT INTO d.t VALUES (100, 'with its statement')",
                "SET SESSION binlog_transaction_compression = 1",
                "INSERT INTO d.t VALUES (101, REPEAT('abc', 1000))",
                "BEGIN",
                "UPDATE d.t SET v = 'x' WHERE id = 101",
                "INSERT INTO d.u VALUES (7, 'sieben')",
                "COMMIT",
                "SET SESSION binlog_transaction_compression = 0",
                "SET SESSION gtid_next = 'AUTOMATIC:a_tag'",
                "INSERT INTO d.t VALUES (102, 'tagged')",
                "INSERT INTO d.t VALUES (103, 'tagged')",
                "CREATE TABLE d.tagged (i INT)",
                "SET SESSION gtid_next = 'AUTOMATIC'",
                "SET GLOBAL binlog_checksum = NONE",
                "INSERT INTO d.t VALUES (104, 'without checksum')",
                "SET GLOBAL binlog_checksum = CRC32",
                "SET SESSION binlog_row_value_options = PARTIAL_JSON",
                "CREATE TABLE d.j (i INT PRIMARY KEY, j JSON)",
                "INSERT INTO d.j VALUES (1, '{\"a\": 1, \"b\": [1, 2, 3]}')",
                "UPDATE d.j SET j = JSON_SET(j, '$.a', 2)",
            ]
            .map(str::to_owned),
        );
    }
    statements.extend(["FLUSH BINARY LOGS".to_owned(), "DROP TABLE d.u".to_owned()]);
    let mut conn = server.conn().unwrap();
    for statement in &statements {
        if let Err(error) = conn.query_drop(statement) {
            panic!("{}: {error}", &statement[..statement.len().min(100)]);
        }
    }
}

/// Archived files equal the server's, and their contents are found: each transaction once, with its name, its
/// tables and its statements.
fn all_kinds(kind: ServerKind) {
    let begun = jiff::Timestamp::now().as_microsecond() as u64;
    let mut stage = Stage::new(kind);
    write_all_kinds(&stage.server);
    let first = stage.once();
    assert!(first.gaps.is_empty(), "{first:?}");
    assert!(stage.compare_files() >= 3);
    let executed: String = stage
        .server
        .value(if kind.is_mariadb() { "SELECT @@gtid_binlog_pos" } else { "SELECT @@gtid_executed" })
        .unwrap();
    let executed = executed.replace(['\n', ' '], "");
    let sorted = |text: &str| {
        let mut parts: Vec<_> = text.split(',').map(str::to_owned).collect();
        parts.sort();
        parts
    };
    assert_eq!(sorted(first.gtids.as_deref().unwrap()), sorted(&executed));

    let archive = stage.archive();
    let mut summaries = Vec::new();
    archive
        .summaries(&Search::default(), &mut |summary| {
            summaries.push(summary);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    let total: u64 = archive.stretches().iter().map(|archived| archived.stretch.transactions).sum();
    assert_eq!(summaries.len() as u64, total);
    let mentioning = |text: &str| {
        let mut found = 0;
        let search = Search { text: Some(text.to_owned()), ..Search::default() };
        let mut count = |_| {
            found += 1;
            Ok(ControlFlow::Continue(()))
        };
        archive.summaries(&search, &mut count).unwrap();
        found
    };
    assert_eq!(mentioning("drop table"), 1, "{summaries:#?}");
    assert!(mentioning("d.t") >= 9);
    assert!(mentioning("create user") == 1);
    match kind.is_mariadb() {
        true => {
            // The event is compressed.
            assert_eq!(mentioning("CREATE TABLE d.compressed_statement"), 1);
            // The statement is logged for all rows.
            assert_eq!(mentioning("zwei"), 1);
        }
        false => {
            assert_eq!(mentioning("with its statement"), 1);
            let tagged = summaries
                .iter()
                .filter(|summary| summary.gtid.as_ref().is_some_and(|gtid| gtid.contains(":a_tag:")));
            assert_eq!(tagged.count(), 3);
            let compressed = summaries.iter().filter(|summary| summary.tables == ["d.t", "d.u"]);
            assert_eq!(compressed.count(), 1);
        }
    }
    // MariaDB's binlog has a resolution of one second.
    let now = jiff::Timestamp::now().as_microsecond() as u64;
    for summary in &summaries {
        assert!((begun - 1_000_000..=now + 1_000_000).contains(&summary.at), "{summary:?}");
    }

    // Nothing new, then a little; then the end of a file that a server closes on shutdown, and server starts.
    stage.once();
    stage.server.exec("INSERT INTO d.t VALUES (200, 'x')").unwrap();
    stage.once();
    stage.server.restart().unwrap();
    stage.server.exec("INSERT INTO d.t VALUES (201, 'x')").unwrap();
    stage.server.kill9().unwrap();
    stage.server.run().unwrap();
    stage.server.exec("INSERT INTO d.t VALUES (202, 'x')").unwrap();
    let last = stage.once();
    assert!(last.gaps.is_empty(), "{last:?}");
    stage.compare_files();
    let after = stage.archive();
    assert!(after.stretches().iter().all(|archived| archived.gap.is_none()), "{:#?}", after.stretches());
    let names = gtids_after(&after, &After::Stretch(0));
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(names.len(), unique.len());
    assert!(names.len() as u64 > total);
}

#[test]
fn mariadb_10_11() {
    all_kinds(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8() {
    all_kinds(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7() {
    all_kinds(ServerKind::MySql97);
}
