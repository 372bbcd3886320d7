//! SIGKILL and SIGSTOP while a backup keeps an imported table closed, which takes locks that no other backup
//! takes: tables closed for export and, on MariaDB, InnoDB's purge stopped.

use super::*;

impl Scene {
    /// Backs up while `f.moved` is imported, with a trap after that.
    fn begin_importing(&self, trap: Trap) -> Child {
        let file = self.stage.dir.path().join("held");
        let copied =
            Trap { point: "backup.tablespaces.copied".to_owned(), nth: 1, deed: Deed::Hold(file.clone()) };
        let mut child = Child::start(&self.place(), Work::BackUp, [copied, trap]);
        child.held(&file);
        self.import();
        fs::remove_file(&file).unwrap();
        child
    }

    /// Imports the table's own file, so that the binlog need not tell of it.
    fn import(&self) {
        let own = self.source().datadir().join("f/moved.ibd");
        let kept = self.stage.dir.path().join("moved.ibd");
        let mut conn = self.source().conn().unwrap();
        conn.query_drop("SET sql_log_bin = 0").unwrap();
        conn.query_drop("FLUSH TABLES f.moved FOR EXPORT").unwrap();
        fs::copy(&own, &kept).unwrap();
        conn.query_drop("UNLOCK TABLES").unwrap();
        conn.query_drop("ALTER TABLE f.moved DISCARD TABLESPACE").unwrap();
        fs::copy(&kept, &own).unwrap();
        conn.query_drop("ALTER TABLE f.moved IMPORT TABLESPACE").unwrap();
        conn.query_drop("SET sql_log_bin = 1").unwrap();
        conn.query_drop("INSERT INTO f.moved (v) VALUES ('after the import')").unwrap();
    }

    /// Waits until the imported table, and the one through which the purge is stopped, are open again.
    fn until_open(&self) {
        let limited = "SET SESSION lock_wait_timeout = 1";
        eventually(FREE_MAX, "the tables are open", || {
            let statements = [
                limited,
                "INSERT INTO f.moved (v) VALUES ('open')",
                "ANALYZE TABLE f.moved",
                "TRUNCATE TABLE f.gone",
            ];
            self.source().exec_all(statements).is_ok()
        });
    }
}

fn imported_tables_are_let_go(kind: ServerKind, seed: u64, points: &[&str]) {
    let scene = Scene::new(kind, seed);
    scene
        .source()
        .exec_all([
            "CREATE TABLE f.moved (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(99)) ENGINE=InnoDB",
            "INSERT INTO f.moved (v) VALUES ('before')",
            "CREATE TABLE f.gone (id INT PRIMARY KEY) ENGINE=InnoDB",
        ])
        .unwrap();
    // With tables of other engines, MySQL cannot close imported ones.
    let others = "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
                  WHERE table_schema IN ('f', 'shop') AND engine <> 'InnoDB'";
    for table in scene.source().query::<String>(others).unwrap() {
        scene.source().exec(format!("ALTER TABLE {table} ENGINE = InnoDB")).unwrap();
    }
    let first = scene.stage.back_up();
    let deeds = |point| [Deed::Kill, Deed::Freeze].map(|deed| (point, deed));
    for (point, deed) in points.iter().flat_map(deeds) {
        scene.change();
        let before = scene.standing();
        let trap = Trap { point: (*point).to_owned(), nth: 1, deed: deed.clone() };
        let mut child = scene.begin_importing(trap);
        match deed {
            Deed::Freeze => {
                child.frozen();
                let took = scene.until_free();
                scene.until_open();
                child.thaw();
                let ended = child.ended();
                println!("{kind}: frozen at {point}, free after {took:?}, then {}", ended.status);
                scene.assert_over(&before, &ended, point);
            }
            _ => {
                child.killed();
                println!("{kind}: killed at {point}");
                scene.assert_survived(&before, false);
                scene.assert_next_works();
            }
        }
        scene.until_open();
    }
    scene.end(&first);
}

#[test]
fn mariadb_10_11_opens_an_imported_table_again() {
    let points = ["backup.purge.stopped", "backup.tables.exported"];
    imported_tables_are_let_go(ServerKind::MariaDb1011, 71, &points);
}

#[test]
fn mysql_9_7_opens_an_imported_table_again() {
    imported_tables_are_let_go(ServerKind::MySql97, 72, &["backup.tables.exported"]);
}
