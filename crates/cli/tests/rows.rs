//! Rows of logical backups as seen by people and programs.

use std::process::Stdio;

use holdfast_testkit::{Server, ServerKind, ServerOptions};
use serde_json::{Value, json};

use crate::program::{Program, Run, run};

fn back_up(program: &Program, server: &Server) {
    back_up_part(program, server, &[]);
}

fn back_up_part(program: &Program, server: &Server, words: &[&str]) -> Run {
    let mut command = program.command(&[
        "backup",
        "--name",
        "db1",
        "--method",
        "logical",
        "--no-defaults",
        "--user",
        "root",
        "--socket",
    ]);
    run(command.arg(server.socket()).args(words)).expect_code(0)
}

fn lines(run: &Run) -> Vec<&str> {
    run.out.lines().collect()
}

/// MariaDB hides events while their scheduler is disabled: a backup, and a check before
/// it, say how to get at them.
#[test]
fn disabled_events_are_told_with_a_way_out() {
    let options = ServerOptions::default().arg("--event-scheduler=DISABLED");
    let server = Server::start(ServerKind::MariaDb118, options).unwrap();
    let program = Program::with_repository();
    server.exec("CREATE DATABASE shop").unwrap();
    let told = |words: &[&str]| {
        run(program.command(words).args(["--no-defaults", "--user", "root", "--socket"]).arg(server.socket()))
    };
    let failed = told(&["backup", "--name", "db1", "--method", "logical"]).expect_code(4);
    assert!(failed.err.contains("event_scheduler=OFF"), "{failed:#?}");
    let examined = told(&["doctor", "--name", "db1"]).expect_code(0);
    assert!(examined.out.contains("event_scheduler is DISABLED"), "{examined:#?}");
}

/// An added row, a removed row, a changed row and a changed view; then no difference;
/// then the history of all.
#[test]
fn differences_and_history() {
    let server = Server::start(ServerKind::MariaDb118, ServerOptions::default()).unwrap();
    let program = Program::with_repository();
    server
        .exec_all([
            "SET NAMES utf8mb4",
            "CREATE DATABASE shop",
            "USE shop",
            "CREATE TABLE orders (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(20) CHARACTER SET latin1, total DECIMAL(8,2), raw VARBINARY(4), size ENUM('s', 'l'), at TIMESTAMP NULL, big BIGINT)",
            "INSERT INTO orders VALUES (5, 'tea', 7, x'00FF', 's', '2026-01-01', 9007199254740993), (7, 'müsli', 1, NULL, 'l', NULL, 1)",
            "CREATE TABLE other (id INT PRIMARY KEY)",
            "CREATE VIEW cheap AS SELECT id FROM orders WHERE total < 5",
        ])
        .unwrap();
    back_up(&program, &server);
    server
        .exec_all([
            "SET NAMES utf8mb4",
            "USE shop",
            "DELETE FROM orders WHERE id = 5",
            "UPDATE orders SET total = 2, raw = x'27' WHERE id = 7",
            "INSERT INTO orders VALUES (9, 'it''s', 1.5, x'', 's', NULL, NULL)",
            "CREATE OR REPLACE VIEW cheap AS SELECT id FROM orders WHERE total < 6",
        ])
        .unwrap();
    back_up(&program, &server);
    back_up(&program, &server);

    let told = program.run(&["diff", "1", "2", "--name", "db1", "--table", "shop.orders"]).expect_code(3);
    assert_eq!(
        lines(&told),
        [
            "rows of shop.orders",
            "- id = 5, name = 'tea', total = 7.00, raw = x'00FF', size = 1, at = '2026-01-01 00:00:00', big = 9007199254740993",
            "~ id = 7; total: 1.00 -> 2.00, raw: NULL -> x'27'",
            "+ id = 9, name = 'it\\'s', total = 1.50, raw = x'', size = 1, at = NULL, big = NULL",
            "shop.orders: +1 -1 ~1, now 2 rows",
            "db1/logical#1 to db1/logical#2: 0 definitions and the rows of 1 table differ: 1 row added, 1 removed, 1 changed",
        ]
    );
    let told = program.run(&["diff", "db1/logical#1", "db1#2", "--rows", "0"]).expect_code(3);
    assert_eq!(lines(&told)[..2], ["shop.orders: +1 -1 ~1, now 2 rows", "changed view shop.cheap"]);
    assert!(lines(&told)[2].starts_with("- ") && lines(&told)[3].contains(" < 6"), "{told:#?}");
    let same = program.run(&["diff", "2", "latest", "--name", "db1"]).expect_code(0);
    assert_eq!(same.out, "no difference between db1/logical#2 and db1/logical#3\n");
    let unknown = program.run(&["diff", "1", "2", "--name", "db1", "--table", "shop.ordres"]).expect_code(1);
    assert!(unknown.err.contains("shop.ordres"), "{unknown:#?}");

    let told = program.run(&["diff", "1", "2", "--name", "db1", "--json"]).expect_code(3);
    let items: Vec<Value> = told.json().into_iter().map(|line| line["data"].clone()).collect();
    let rows: Vec<&Value> = items.iter().filter(|item| item["difference"] == "row").collect();
    assert_eq!(
        rows[0]["row"],
        json!({"id": 5, "name": "tea", "total": "7.00", "raw": "00FF", "size": "s", "at": "2026-01-01 00:00:00", "big": "9007199254740993"})
    );
    assert_eq!(
        *rows[1],
        json!({"difference": "row", "table": "shop.orders", "change": "changed", "key": {"id": 7},
            "before": {"total": "1.00", "raw": null}, "after": {"total": "2.00", "raw": "27"}})
    );
    assert_eq!(
        (rows.len(), &told.last()["exit_code"], &told.last()["data"]["changed"]),
        (3, &json!(3), &json!(1))
    );

    let log = program.run(&["log", "--table", "shop.orders", "--json"]).expect_code(0);
    let entries = log.last()["data"]["entries"].clone();
    let changes: Vec<&Value> = entries.as_array().unwrap().iter().map(|entry| &entry["change"]).collect();
    let none = json!({"added": 0, "removed": 0, "changed": 0});
    assert_eq!(changes, [&none, &json!({"added": 1, "removed": 1, "changed": 1}), &Value::Null]);
    let log = program.run(&["log", "--table", "shop.orders"]).expect_code(0);
    assert_eq!(lines(&log).len(), 4, "{log:#?}");

    // A reader of rows may stop early.
    let rows: Vec<String> = (0..20_000).map(|id| format!("({id})")).collect();
    server.exec(format!("INSERT INTO shop.other VALUES {}", rows.join(", "))).unwrap();
    back_up(&program, &server);
    let mut cat = program.command(&["cat", "latest", "shop.other", "--format", "csv", "--name", "db1"]);
    let mut cat = cat.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(cat.stdout.take());
    let gone = cat.wait_with_output().unwrap();
    assert!(gone.status.success() && gone.stderr.is_empty(), "{gone:?}");

    // Rows of a table that only one of the two backups has count, too.
    server
        .exec_all(["CREATE TABLE shop.fresh (id INT PRIMARY KEY)", "INSERT INTO shop.fresh VALUES (1), (2)"])
        .unwrap();
    back_up(&program, &server);
    for (words, rows) in [(["4", "5"], "2 rows added, 0 removed"), (["5", "4"], "0 rows added, 2 removed")] {
        let told = program.run(&[&["diff"], &words[..], &["--name", "db1"]].concat()).expect_code(3);
        assert!(told.out.contains(rows), "{told:#?}");
    }
}

/// A partial backup under the name of the whole server does not replace a whole one, neither for rules nor as
/// the latest.
/// It makes no table appear dropped, and the next whole backup is compared with the previous whole one.
#[test]
fn a_part_stands_beside_the_whole() {
    let server = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    let program = Program::with_repository();
    server
        .exec_all([
            "CREATE DATABASE shop",
            "USE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, v VARCHAR(100))",
            "CREATE TABLE shop.hot (id INT PRIMARY KEY)",
            "INSERT INTO shop.orders SELECT seq, REPEAT('x', 90) FROM seq_1_to_20000",
            "INSERT INTO shop.hot VALUES (1)",
        ])
        .unwrap();
    let part = |words: &[&str]| back_up_part(&program, &server, words);
    back_up(&program, &server);
    part(&["--table", "shop.hot"]);
    server.exec("INSERT INTO shop.hot VALUES (2)").unwrap();
    part(&["--table", "shop.hot"]);
    part(&["--where", "shop.orders=id < 5"]);

    let listed = program.run(&["list"]).expect_code(0).out;
    assert_eq!(listed.matches("!partial").count(), 3, "{listed}");
    let shown = program.run(&["show", "4", "--name", "db1"]).expect_code(0).out;
    assert!(shown.contains("only rows") && shown.contains("shop.orders: id < 5"), "{shown}");
    let shown = program.run(&["show", "latest", "--name", "db1"]).expect_code(0);
    assert!(shown.out.contains("db1/logical#1"), "{shown:#?}");
    assert!(shown.err.contains("later imports and partial backups are skipped"), "{shown:#?}");

    let log = program.run(&["log", "--table", "shop.*", "--json"]).expect_code(0).last();
    let entries = log["data"]["entries"].as_array().unwrap();
    assert!(entries.iter().all(|entry| entry["rows"].is_u64()), "nothing is gone: {entries:#?}");
    let added: Vec<&Value> = entries.iter().map(|entry| &entry["change"]["added"]).collect();
    assert_eq!(added.iter().filter(|added| **added == &json!(1)).count(), 1, "{entries:#?}");

    back_up(&program, &server);
    let whole = program.run(&["show", "5", "--name", "db1", "--json"]).expect_code(0).last();
    assert_eq!(whole["data"]["head"]["base"], json!(1), "{whole:#}");

    // Kept are the newest whole backup, and the newest of each part that came later: no rule
    // keeps a part for longer.
    part(&["--table", "shop.hot"]);
    let plan = program.run(&["expire", "--name", "db1", "--kind", "logical", "--keep-last", "1", "--json"]);
    let plan = plan.expect_code(0).last();
    let kept: Vec<&Value> = plan["data"]["kept"].as_array().unwrap().iter().map(|kept| &kept["id"]).collect();
    assert_eq!(kept, ["db1/logical#5", "db1/logical#6"], "{plan:#}");
}

/// Rows as text; the table must be named.
#[test]
fn rows_as_text() {
    let server = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    let program = Program::with_repository();
    server
        .exec_all([
            "SET NAMES utf8mb4",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20) CHARACTER SET latin1)",
            "INSERT INTO shop.orders VALUES (5, 'Müsli \"fein\"'), (7, NULL)",
        ])
        .unwrap();
    back_up(&program, &server);
    let cat =
        |format: &str| program.run(&["cat", "latest", "--name", "db1", "shop.orders", "--format", format]);
    assert_eq!(cat("csv").expect_code(0).out, "\"id\",\"name\"\r\n5,\"Müsli \"\"fein\"\"\"\r\n7,NULL\r\n");
    assert_eq!(
        cat("jsonl").expect_code(0).out,
        "{\"id\":5,\"name\":\"Müsli \\\"fein\\\"\"}\n{\"id\":7,\"name\":null}\n"
    );
    program.run(&["cat", "latest", "--name", "db1", "--format", "csv"]).expect_code(2);
    program.run(&["cat", "latest", "--name", "db1", "shop.*s", "--format", "csv"]).expect_code(0);
    program.run(&["cat", "latest", "--name", "db1", "shop.no", "--format", "csv"]).expect_code(1);
}

/// Exports files for other programs; nothing is overwritten.
#[test]
fn export_to_files() {
    let server = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    let program = Program::with_repository();
    server
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
            "INSERT INTO shop.orders VALUES (5), (7)",
        ])
        .unwrap();
    back_up(&program, &server);
    let export = |format: &str| {
        program.run(&[
            "export",
            "latest",
            "--name",
            "db1",
            "--target-dir",
            "dump",
            "--format",
            format,
            "--compress",
            "gzip",
            "--json",
        ])
    };
    let done = export("mydumper").expect_code(0).last();
    assert_eq!(
        (&done["data"]["rows"], &done["data"]["tables"], &done["data"]["id"]),
        (&json!(2), &json!(1), &json!("db1/logical#1"))
    );
    assert!(
        program.path("dump/shop.orders.00000.sql.gz").is_file() && program.path("dump/metadata").is_file()
    );
    assert!(export("csv").expect_code(2).err.contains("exists already"));
}
