//! An import that is killed half way leaves a file of which a part is the table's and the rest is as it was put there.
//! Then the table is discarded and imported again, or left as it is.

use std::{thread, time::Instant};

use mysql::prelude::Queryable;

use super::*;
use crate::capture::races::OnEvents;

/// More than enough for a table of this size to be imported, or to be let go.
const IMPORT_MAX: Duration = Duration::from_secs(120);

/// A table that was exported: large enough that its import takes a while.
struct Exported<'a> {
    source: &'a Server,
    kept: tempfile::TempDir,
}

impl<'a> Exported<'a> {
    fn new(source: &'a Server) -> Self {
        source
            .exec_all([
                "CREATE DATABASE imp",
                "CREATE TABLE imp.numbers (n INT PRIMARY KEY AUTO_INCREMENT) ENGINE=InnoDB",
                "INSERT INTO imp.numbers VALUES ()",
            ])
            .unwrap();
        for bits in 0..13 {
            source
                .exec(format!("INSERT INTO imp.numbers SELECT n + {} FROM imp.numbers", 1 << bits))
                .unwrap();
        }
        source
            .exec_all([
                "CREATE TABLE imp.origin (id INT PRIMARY KEY, k INT NOT NULL, v VARCHAR(250), KEY (k)) ENGINE=InnoDB",
                "INSERT INTO imp.origin SELECT a.n * 8192 + b.n, b.n, REPEAT(SHA2(b.n, 256), 3)
                 FROM imp.numbers a, imp.numbers b WHERE a.n <= 8",
            ])
            .unwrap();
        let exported = Self { source, kept: tempfile::tempdir().unwrap() };
        let mut exporter = source.conn().unwrap();
        exporter.query_drop("FLUSH TABLES imp.origin FOR EXPORT").unwrap();
        exported.copy(exported.of("origin"), exported.kept.path().join("origin"));
        exporter.query_drop("UNLOCK TABLES").unwrap();
        exported
    }

    fn of(&self, table: &str) -> PathBuf {
        self.source.datadir().join("imp").join(table)
    }

    fn copy(&self, from: PathBuf, to: PathBuf) {
        for suffix in ["ibd", "cfg"] {
            fs::copy(from.with_extension(suffix), to.with_extension(suffix)).unwrap();
        }
    }

    /// Makes `table` a discarded one with the file of the exported table.
    fn put(&self, table: &str) {
        self.source.exec(format!("ALTER TABLE imp.{table} DISCARD TABLESPACE")).unwrap();
        self.copy(self.kept.path().join("origin"), self.of(table));
    }

    fn import(&self, table: &str) {
        self.put(table);
        self.source
            .exec_all([
                format!("ALTER TABLE imp.{table} IMPORT TABLESPACE"),
                format!(
                    "INSERT INTO imp.{table} SELECT -n, n, 'after the import' FROM imp.numbers WHERE n <= 500"
                ),
                format!("UPDATE imp.{table} SET k = k + 100000, v = 'changed' WHERE id % 100 = 0"),
            ])
            .unwrap();
    }

    /// The id of the tablespace that a page of the table's file says it belongs to.
    fn space_of(&self, table: &str, page: u64) -> u32 {
        let mut id = [0; 4];
        let file = File::open(self.of(table).with_extension("ibd")).unwrap();
        file.read_exact_at(&mut id, page * PAGE_BYTES + 34).unwrap();
        u32::from_be_bytes(id)
    }

    /// Kills an import of `table` when it has rewritten the first pages of its file, and not the last.
    fn kill_half_way(&self, table: &str) {
        let begun = Instant::now();
        loop {
            self.put(table);
            let before = self.space_of(table, 0);
            let pages = fs::metadata(self.of(table).with_extension("ibd")).unwrap().len() / PAGE_BYTES;
            // Behind it are pages that nothing was ever written to.
            let last = (0..pages).rev().find(|page| self.space_of(table, *page) == before).unwrap();
            let mut importer = self.source.conn().unwrap();
            let killed = format!("KILL QUERY {}", importer.connection_id());
            let statement = format!("ALTER TABLE imp.{table} IMPORT TABLESPACE");
            let importing = thread::spawn(move || importer.query_drop(statement));
            let mut killer = self.source.conn().unwrap();
            while self.space_of(table, 0) == before && !importing.is_finished() {
                thread::yield_now();
            }
            // It may have ended by itself.
            let _ = killer.query_drop(killed);
            let ended = importing.join().unwrap();
            let is_half = self.space_of(table, 0) != before && self.space_of(table, last) == before;
            if ended.is_err() && is_half {
                return;
            }
            assert!(begun.elapsed() < IMPORT_MAX, "{table} is never caught half way: {ended:?}");
        }
    }
}

const PAGE_BYTES: u64 = 16384;

fn killed_imports_are_whole(kind: ServerKind) {
    // What is written after an import stays in memory as long as it can.
    let lazy: &[&str] = match kind.is_mariadb() {
        true => &["--innodb-max-dirty-pages-pct=90"],
        false => &[
            "--innodb-idle-flush-pct=0",
            "--innodb-adaptive-flushing=OFF",
            "--innodb-max-dirty-pages-pct=99",
            "--innodb-max-dirty-pages-pct-lwm=0",
        ],
    };
    let options = lazy.iter().copied().fold(ServerOptions::default(), ServerOptions::arg);
    let source = Server::start(kind, options).unwrap();
    let exported = Exported::new(&source);
    // When the import is killed, and when the table is imported again.
    let tables = ["copy_copy", "copy_stop", "stop_stop", "copy_never", "stop_never"];
    for table in tables {
        source.exec(format!("CREATE TABLE imp.{table} LIKE imp.origin")).unwrap();
    }
    let at_phases = OnEvents(|event| {
        let Event::Phase { name: phase @ ("copy" | "stop") } = event else { return };
        for table in tables {
            let (killed, again) = table.split_once('_').unwrap();
            if killed == *phase {
                exported.kill_half_way(table);
            }
            if again == *phase {
                exported.import(table);
            }
        }
    });
    let copy = races::recovered_told(&source, ServerOptions::default(), &at_phases);
    let locks = &copy.stats.locks;
    assert!(
        locks.iter().any(|lock| lock.statement.contains("FLUSH TABLES FOR EXPORT") && !lock.held.is_zero())
    );
    for table in tables.into_iter().filter(|table| table.ends_with("_never")) {
        // The copy of a discarded table is one, too, and can be imported.
        for server in [&source, &copy.server] {
            let rows = server.query::<(i32, i32, String)>(format!("SELECT * FROM imp.{table} LIMIT 1"));
            assert!(rows.is_err(), "{table} can be read: {rows:?} {}", server.datadir().display());
            let it = Exported { source: server, kept: tempfile::tempdir().unwrap() };
            exported.copy(exported.kept.path().join("origin"), it.kept.path().join("origin"));
            it.import(table);
        }
    }
    for table in tables {
        let indexed = |server: &Server| -> (u64, u64) {
            let query = format!("SELECT COUNT(*), SUM(k + id % 1013) FROM imp.{table} FORCE INDEX (k)");
            server.query(query).unwrap()[0]
        };
        assert_eq!(indexed(&copy.server), indexed(&source), "{table}");
    }
    assert_equal_checksums(&source, &copy.server).unwrap();
}

#[test]
fn mariadb_10_11_imports_that_were_killed_are_whole() {
    killed_imports_are_whole(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_imports_that_were_killed_are_whole() {
    killed_imports_are_whole(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_imports_that_were_killed_are_whole() {
    killed_imports_are_whole(ServerKind::MySql97);
}
