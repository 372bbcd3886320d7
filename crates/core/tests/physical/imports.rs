//! Imports of tables whose files are outside of the data directory.

use std::fs;

use mysql::prelude::Queryable;

use super::*;

/// Tables are imported when the copy begins, at the end, and from one to the other, and then written to. On MariaDB the
/// restored server has all rows, in its own directory. MySQL's recovery would not find such tables there: the backup
/// fails and says so, and the next one is whole.
fn tables_elsewhere_are_imported(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    let elsewhere = source.outside().join("imp");
    let tables = ["copy_copy", "copy_stop", "stop_stop"];
    let columns =
        "(id INT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, v VARCHAR(200), KEY (k)) ENGINE=InnoDB";
    let columns = format!("{columns} DATA DIRECTORY='{}'", source.outside().display());
    source.exec_all(["CREATE DATABASE imp", &format!("CREATE TABLE imp.origin {columns}")]).unwrap();
    source.exec("INSERT INTO imp.origin (k, v) VALUES (1, REPEAT('x', 150))").unwrap();
    for bits in 0..12 {
        source
            .exec(format!("INSERT INTO imp.origin (k, v) SELECT k + {}, v FROM imp.origin", 1 << bits))
            .unwrap();
    }
    for table in tables {
        source
            .exec_all([
                format!("CREATE TABLE imp.{table} {columns}"),
                format!("INSERT INTO imp.{table} (k, v) SELECT k, 'before' FROM imp.origin WHERE id < 500"),
            ])
            .unwrap();
    }
    let stage = Stage::around(source);
    let kept = stage.dir.path().join("kept");
    let copy = |from: PathBuf, to: PathBuf| {
        for suffix in ["ibd", "cfg"] {
            fs::copy(from.with_extension(suffix), to.with_extension(suffix)).unwrap();
        }
    };
    let mut exporter = stage.source.conn().unwrap();
    exporter.query_drop("FLUSH TABLES imp.origin FOR EXPORT").unwrap();
    copy(elsewhere.join("origin"), kept.clone());
    exporter.query_drop("UNLOCK TABLES").unwrap();
    stage.back_up();
    let imports = AtPhases(|phase: &str| {
        for table in tables {
            let (discarded, imported) = table.split_once('_').unwrap();
            if discarded == phase {
                let link = stage.source.datadir().join(format!("imp/{table}.isl"));
                let kept_link = kept.with_extension("isl");
                if kind.is_mariadb() {
                    fs::copy(&link, &kept_link).unwrap();
                }
                stage.source.exec(format!("ALTER TABLE imp.{table} DISCARD TABLESPACE")).unwrap();
                copy(kept.clone(), elsewhere.join(table));
                if kind.is_mariadb() {
                    // Without it, the server looks for the file in its data directory.
                    fs::copy(&kept_link, &link).unwrap();
                }
            }
            if imported == phase {
                stage
                    .source
                    .exec_all([
                        format!("ALTER TABLE imp.{table} IMPORT TABLESPACE"),
                        format!("INSERT INTO imp.{table} (k, v) SELECT k, REPEAT('y', 150) FROM imp.origin WHERE id < 300"),
                        format!("UPDATE imp.{table} SET k = k + 10000, v = REPEAT('z', 140) WHERE id % 10 = 0"),
                    ])
                    .unwrap();
                fs::remove_file(elsewhere.join(table).with_extension("cfg")).unwrap();
            }
        }
    });
    let backup = backup::run(&stage.repo, &stage.options(), &imports, &Cancel::default());
    let backup = match kind.is_mariadb() {
        true => backup.unwrap(),
        false => {
            let error = backup.unwrap_err();
            for text in ["imp.copy_copy, imp.copy_stop, imp.stop_stop", elsewhere.to_str().unwrap()] {
                assert!(error.to_string().contains(text), "{error}");
            }
            stage.back_up()
        }
    };
    assert!(backup.run.totals.bytes_reused > 0, "{:?}", backup.run.totals);
    let left = |dir: &Path| -> Vec<PathBuf> {
        let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|it| it == "cfg")).collect()
    };
    assert_eq!(left(&elsewhere), Vec::<PathBuf>::new(), "left by the backup");
    let restored = stage.restore_recovered(&backup);
    for table in tables {
        let indexed = |server: &Server| -> (u64, u64) {
            let query = format!("SELECT COUNT(*), SUM(k * (id % 1013)) FROM imp.{table} FORCE INDEX (k)");
            server.query(query).unwrap()[0]
        };
        assert_eq!(indexed(&restored.server), indexed(&stage.source), "{table}");
    }
    let open = crate::restore::open_files(&restored.server);
    assert!(!open.iter().any(|file| file.starts_with(stage.source.outside())), "{open:?}");
    assert_eq!(left(&restored.server.datadir().join("imp")), Vec::<PathBuf>::new());
    stage.catch_up(&backup, &restored);
}

#[test]
fn mariadb_10_11_tables_elsewhere_are_imported() {
    tables_elsewhere_are_imported(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_tables_elsewhere_are_imported() {
    tables_elsewhere_are_imported(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_tables_elsewhere_are_imported() {
    tables_elsewhere_are_imported(ServerKind::MySql97);
}
