//! Databases with similar names: like those of the server, or differing only by case or accents.

use holdfast_core::ErrorKind;

use super::*;

fn schemas(all: &[&str]) -> Selection {
    Selection { schemas: all.iter().map(|it| it.parse().unwrap()).collect(), ..Selection::default() }
}

/// The server's own databases are refused if selected by name, since the backup would be empty.
#[test]
fn databases_of_the_server_are_refused_by_name() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage.source.exec("CREATE DATABASE shop").unwrap();
    for name in ["mysql", "sys", "performance_schema", "information_schema"] {
        for selection in [schemas(&[name]), schemas(&["shop", name])] {
            let error = stage.back_up(&stage.options(), &selection).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            assert!(error.to_string().contains(&format!("database {name} is the server's own")), "{error}");
        }
    }
    assert_eq!(stage.backups(), 0);
    // Wildcards that also match them are not refused.
    stage.back_up(&stage.options(), &schemas(&["s*"])).unwrap();
}

/// A database whose name only resembles one of the server's is an ordinary database.
#[test]
fn databases_that_look_like_the_servers_are_saved() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let stage = Stage::new(kind);
        let names = ["SYS", "Mysql", "NdbInfo", "HOLDFAST_LOAD"];
        for name in names {
            stage
                .source
                .exec_all([
                    format!("CREATE DATABASE {name}"),
                    format!("CREATE TABLE {name}.t (id INT PRIMARY KEY)"),
                    format!("INSERT INTO {name}.t VALUES (1)"),
                    format!("CREATE VIEW {name}.v AS SELECT id FROM {name}.t"),
                ])
                .unwrap();
        }
        let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
        let target = start(kind);
        let options = holdfast_core::logical::load::LoadOptions::new(crate::server::options(&target));
        let run = RunNo(report.run.backup);
        holdfast_core::logical::load::run(&stage.repo, &log(), run, &options, &Told, &Cancel::default())
            .unwrap();
        for name in names {
            let found = target.query::<i32>(format!("SELECT id FROM {name}.v"));
            assert_eq!(found.unwrap(), [1], "{kind} {name}");
        }
        assert_same_objects(&stage.source, &target);
        // A database that cannot be told from the server's own by its name is not left out silently.
        stage.source.exec("CREATE DATABASE ndbinfo").unwrap();
        let error = stage.back_up(&stage.options(), &Selection::default()).unwrap_err();
        assert!(error.to_string().contains("the database ndbinfo has the name of one of NDB's"), "{error}");
        let without =
            Selection { schemas_excluded: vec!["ndbinfo".parse().unwrap()], ..Selection::default() };
        stage.back_up(&stage.options(), &without).unwrap();
    }
}

/// Databases, triggers, events and routines whose names differ only by case or accents.
#[test]
fn databases_that_differ_by_case_or_accents() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let stage = Stage::new(kind);
        for (number, schema) in ["shop", "Shop", "SHOP", "shöp"].into_iter().enumerate() {
            let collation = ["utf8mb4_bin", "latin1_bin", "utf8mb4_general_ci", "latin1_swedish_ci"][number];
            let charset = collation.split('_').next().unwrap();
            let mut conn = stage.source.conn().unwrap();
            for statement in [
                "SET NAMES utf8mb4".to_owned(),
                format!("CREATE DATABASE `{schema}` CHARACTER SET {charset} COLLATE {collation}"),
                format!("CREATE TABLE `{schema}`.t (id INT PRIMARY KEY)"),
                format!(
                    "CREATE TRIGGER `{schema}`.both BEFORE INSERT ON `{schema}`.t FOR EACH ROW SET NEW.id = {number}"
                ),
                format!(
                    "CREATE TRIGGER `{schema}`.tr{number} BEFORE DELETE ON `{schema}`.t FOR EACH ROW SET @x = {number}"
                ),
                format!(
                    "CREATE EVENT `{schema}`.both ON SCHEDULE EVERY 1 YEAR STARTS '2030-01-01' DO SELECT {number}"
                ),
                format!(
                    "CREATE EVENT `{schema}`.e{number} ON SCHEDULE EVERY 1 YEAR STARTS '2030-01-01' DO SELECT {number}"
                ),
                format!("CREATE PROCEDURE `{schema}`.both () SELECT {number}"),
                format!("CREATE PROCEDURE `{schema}`.p{number} () SELECT {number}"),
            ] {
                conn.query_drop(statement).unwrap();
            }
        }
        let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
        assert_same_objects(&stage.source, &stage.loaded(report.run.backup));
    }
}
