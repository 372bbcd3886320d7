//! Names of schemas, tables, partitions and triggers.

use std::fs;

use holdfast_core::{Event, Listener};
use mysql::prelude::Queryable;

use super::*;

/// When the copy is complete, replaces a table by an exported copy, under a name that
/// differs from its file name.
struct Import<'a> {
    source: &'a Server,
    exported: std::path::PathBuf,
}

const IMPORTED: &str = "`s/l`.`t.ibd`";
const ITS_FILE: &str = "s@002fl/t@002eibd.ibd";

impl Listener for Import<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Phase { name: "stop" }) {
            self.source.exec(format!("ALTER TABLE {IMPORTED} DISCARD TABLESPACE")).unwrap();
            fs::copy(&self.exported, self.source.datadir().join(ITS_FILE)).unwrap();
            let statements = [
                format!("ALTER TABLE {IMPORTED} IMPORT TABLESPACE"),
                format!("INSERT INTO {IMPORTED} VALUES (100, 'later')"),
            ];
            self.source.exec_all(statements).unwrap();
        }
        Told.event(event);
    }
}

/// Everything is in the backup under its name, and table names passed to the server are correct.
fn every_name_comes_back(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    let schemas = names::create(&source).unwrap();
    assert!(schemas.len() > 20, "{schemas:?}");
    source.exec(format!("CREATE TABLE {IMPORTED} (i INT PRIMARY KEY, v VARCHAR(50)) ENGINE=InnoDB")).unwrap();
    source.exec(format!("INSERT INTO {IMPORTED} VALUES (1, 'a')")).unwrap();
    let stage = Stage::around(source);
    let first = stage.back_up();
    let later = if kind.is_mariadb() {
        let exported = stage.dir.path().join("exported.ibd");
        let mut conn = stage.source.conn().unwrap();
        conn.query_drop(format!("FLUSH TABLES {IMPORTED} FOR EXPORT")).unwrap();
        fs::copy(stage.source.datadir().join(ITS_FILE), &exported).unwrap();
        conn.query_drop("UNLOCK TABLES").unwrap();
        let import = Import { source: &stage.source, exported };
        backup::run(&stage.repo, &stage.options(), &import, &Cancel::default()).unwrap()
    } else {
        stage.source.exec("RENAME TABLE `s/l`.t TO `sche.ma`.`../t`, `s\\l`.t TO `s/l`.t").unwrap();
        stage.back_up()
    };
    for backup in [&later, &first] {
        let restored = stage.restore_recovered(backup);
        check_tables(&restored.server).unwrap();
        let found: Vec<String> =
            restored.server.query("SELECT schema_name FROM information_schema.schemata").unwrap();
        let missing: Vec<_> = schemas.iter().filter(|schema| !found.contains(schema)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        if backup.run.backup == later.run.backup {
            assert_equal_checksums(&stage.source, &restored.server).unwrap();
        }
        restored.server.exec("INSERT INTO `names`.`dot.ted.name` VALUES (9, 'y')").unwrap();
        let triggered: String =
            restored.server.value("SELECT v FROM `names`.`dot.ted.name` WHERE i = 9").unwrap();
        assert_eq!(triggered, "x");
    }
}

#[test]
fn mariadb_10_11_every_name_comes_back() {
    every_name_comes_back(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_every_name_comes_back() {
    every_name_comes_back(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_every_name_comes_back() {
    every_name_comes_back(ServerKind::MySql97);
}

/// Schemas without any table, of which one is there before the backup, one is dropped and one is made while it runs.
#[test]
fn schemas_without_tables_come_back() {
    for kind in ServerKind::all_kinds() {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        source
            .exec_all([
                "CREATE DATABASE `with`",
                "CREATE TABLE `with`.t (i INT PRIMARY KEY)",
                "CREATE DATABASE `emp-ty` CHARACTER SET latin1 COLLATE latin1_german2_ci",
                "CREATE DATABASE leaves_early",
                "CREATE DATABASE leaves_late",
            ])
            .unwrap();
        if kind.is_mariadb() {
            // What remains of a schema if its definition is lost.
            fs::create_dir(source.datadir().join("bare")).unwrap();
        }
        let stage = Stage::around(source);
        struct Meanwhile<'a>(&'a Server);
        impl Listener for Meanwhile<'_> {
            fn event(&self, event: Event) {
                let statements = match event {
                    Event::Phase { name: "copy" } => [
                        "CREATE DATABASE comes_early CHARACTER SET latin1".to_owned(),
                        "DROP DATABASE leaves_early".to_owned(),
                    ],
                    Event::Phase { name: "stop" } => [
                        "CREATE DATABASE `comes l@te` CHARACTER SET latin1".to_owned(),
                        "DROP DATABASE leaves_late".to_owned(),
                    ],
                    _ => return Told.event(event),
                };
                self.0.exec_all(statements).unwrap();
                Told.event(event);
            }
        }
        let meanwhile = Meanwhile(&stage.source);
        let backup = backup::run(&stage.repo, &stage.options(), &meanwhile, &Cancel::default()).unwrap();
        let restored = stage.restore_recovered(&backup);
        let schemas = |server: &Server| -> Vec<(String, String, String)> {
            let query = "SELECT schema_name, default_character_set_name, default_collation_name
                         FROM information_schema.schemata ORDER BY schema_name";
            server.query(query).unwrap()
        };
        let found = schemas(&restored.server);
        assert_eq!(found, schemas(&stage.source), "{kind}");
        for (name, expected) in [
            ("emp-ty", true),
            ("comes_early", true),
            ("comes l@te", true),
            ("leaves_early", false),
            ("leaves_late", false),
        ] {
            assert_eq!(found.iter().any(|schema| schema.0 == name), expected, "{kind}: {name}");
        }
        restored.server.exec("CREATE TABLE `comes l@te`.t (i INT PRIMARY KEY)").unwrap();
    }
}
