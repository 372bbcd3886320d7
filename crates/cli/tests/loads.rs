//! Loads into a running server as people and programs see them.

use std::process::Command;

use holdfast_testkit::{Server, ServerKind, ServerOptions};
use serde_json::{Value, json};

use crate::program::{Program, Run, run};

struct Scene {
    program: Program,
    server: Server,
}

impl Scene {
    fn command(&self, words: &[&str], server: &Server) -> Command {
        let mut command = self.program.command(words);
        command.args(["--no-defaults", "--user", "root", "--socket"]).arg(server.socket());
        command
    }

    fn load(&self, server: &Server, words: &[&str]) -> Run {
        run(self.command(&["restore", "db1/logical#1", "--to-server"], server).args(words))
    }
}

/// A shop of MariaDB's, backed up.
fn scene() -> Scene {
    let server = Server::start(ServerKind::MariaDb118, ServerOptions::default()).unwrap();
    server
        .exec_all([
            "SET NAMES utf8mb4",
            "CREATE DATABASE shop CHARACTER SET latin1",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20), KEY (name)) ENGINE = MyISAM",
            "INSERT INTO shop.orders VALUES (1, 'tea'), (2, 'müsli')",
            "CREATE TABLE shop.parts (id INT PRIMARY KEY, no UUID)",
            "INSERT INTO shop.parts VALUES (1, '00112233-4455-6677-8899-aabbccddeeff')",
            "CREATE SEQUENCE shop.numbers",
            "CREATE VIEW shop.cheap AS SELECT id FROM shop.orders",
        ])
        .unwrap();
    let scene = Scene { program: Program::with_repository(), server };
    let backup = ["backup", "--name", "db1", "--method", "logical"];
    run(&mut scene.command(&backup, &scene.server)).expect_code(0);
    scene
}

fn orders(server: &Server, table: &str) -> Vec<(u32, String)> {
    server.query(format!("SELECT id, name FROM {table} ORDER BY id")).unwrap()
}

/// What a plan or a report says in text of what is not copied as it was.
fn changes<'a>(told: &'a Run, label: &str) -> Vec<&'a str> {
    let lines = told.out.lines().skip_while(|line| !line.starts_with(label));
    let belongs = |line: &&str| line.starts_with(label) || line.starts_with(' ');
    lines.take_while(belongs).map(|line| line.trim_start_matches(label).trim()).collect()
}

/// Beside the table it was taken from, one comes back under another name, in another engine and character set; what
/// is there is touched only when asked to be.
#[test]
fn a_table_comes_back_beside_the_one_that_is_there() {
    let scene = scene();
    let server = &scene.server;
    let wanted = orders(server, "shop.orders");
    server.exec("DELETE FROM shop.orders").unwrap();

    let table = ["--table", "shop.orders"];
    let other =
        ["--as", "shop.orders=shop.orders_old", "--engine", "MyISAM=InnoDB", "--charset", "latin1=utf8mb4"];
    let words = [&table[..], &other].concat();
    let shown = scene.load(server, &[&words[..], &["--dry-run"]].concat()).expect_code(0);
    assert!(shown.out.ends_with("\nnothing was changed (dry run)\n"), "{shown:#?}");
    let found = "SELECT CONCAT(engine, ' ', table_collation) FROM information_schema.tables WHERE table_name = 'orders_old'";
    assert_eq!(server.query::<String>(found).unwrap(), [""; 0]);
    let told = scene.load(server, &words).expect_code(0);
    for told in [&shown, &told] {
        assert_eq!(
            changes(told, "adapted"),
            [
                "table shop.orders_old: character set latin1 becomes utf8mb4",
                "table shop.orders_old: collation latin1_swedish_ci becomes utf8mb4_uca1400_ai_ci",
                "table shop.orders_old: engine MyISAM becomes InnoDB",
            ]
        );
    }
    assert_eq!(server.query::<String>(found).unwrap(), ["InnoDB utf8mb4_uca1400_ai_ci"]);
    assert_eq!(orders(server, "shop.orders_old"), wanted);
    assert_eq!(orders(server, "shop.orders"), []);

    let refused = scene.load(server, &table).expect_code(2);
    assert!(
        refused.err.contains("shop.orders exists already") && refused.err.contains("--overwrite"),
        "{refused:#?}"
    );
    let shown = scene.load(server, &[&table[..], &["--overwrite", "--dry-run", "--json"]].concat());
    let plan = &shown.expect_code(0).last()["data"]["plan"];
    assert_eq!(plan["overwritten"], json!(["shop.orders"]), "{plan:#}");
    assert_eq!(orders(server, "shop.orders"), []);
    scene.load(server, &[&table[..], &["--overwrite"]].concat()).expect_code(0);
    assert_eq!(orders(server, "shop.orders"), wanted);
    let database: String = server
        .value("SELECT default_collation_name FROM information_schema.schemata WHERE schema_name = 'shop'")
        .unwrap();
    assert_eq!(database, "latin1_swedish_ci");
}

/// What a server of the other kind cannot hold is named before anything is made, and left out when asked to be.
#[test]
fn a_server_of_the_other_kind_gets_what_it_can_hold() {
    let scene = scene();
    let target = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    let refused = scene.load(&target, &[]).expect_code(2);
    for named in ["accounts", "sequence shop.numbers", "--leave-out"] {
        assert!(refused.err.contains(named), "{refused:#?}");
    }
    assert_eq!(target.query::<String>("SHOW DATABASES LIKE 'shop'").unwrap(), [""; 0]);
    let report =
        scene.load(&target, &["--leave-out", "--json"]).expect_code(0).last()["data"]["report"].clone();
    let named = |list: &str| -> Vec<Value> {
        report[list].as_array().unwrap().iter().map(|change| change["object"].clone()).collect()
    };
    assert_eq!(named("left_out"), ["accounts (--without-accounts)", "sequence shop.numbers"], "{report:#}");
    assert_eq!(named("adapted"), ["table shop.parts", "view shop.cheap"], "{report:#}");
    assert_eq!((&report["rows_loaded"], &report["tables_verified"]), (&json!(3), &json!(2)), "{report:#}");
    assert_eq!(orders(&target, "shop.orders"), orders(&scene.server, "shop.orders"));
    assert_eq!(orders(&target, "shop.cheap JOIN shop.orders USING (id)"), orders(&target, "shop.orders"));
    let number: String = target.value("SELECT no FROM shop.parts").unwrap();
    assert_eq!(number, "00112233-4455-6677-8899-aabbccddeeff");
}
