//! Definitions that change at the worst moments: before the files are listed, between that and the opening of a
//! table's file, in the middle of it, and when everything has been copied. Each change has its own schema at
//! each moment, and rows are changed afterwards, so that a copy without the necessary pages is detected.

use std::time::Instant;

use mysql::{Conn, prelude::Queryable};

use super::*;
use crate::capture::races::{AtPhase, is_whole, recovered};

/// When a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// After the checkpoint that the capture starts from, before the files are listed.
    Copy,
    /// When the files are listed, and the first one of the schema is about to be opened.
    Listed,
    /// When the first pages of a file of the schema have been read.
    MidFile,
    /// When the rows of a table of another engine have been read, and its indexes have not. For changes of such
    /// tables.
    MidTable,
    /// After the last check without a lock.
    Stop,
}

const MOMENTS: [Moment; 5] = [Moment::Copy, Moment::Listed, Moment::MidFile, Moment::MidTable, Moment::Stop];

/// The extensions of files that hold rows of other engines.
const ROWS: [&str; 3] = [".MYD", ".MAD", ".ARZ"];

/// A change: its name, the statements that prepare it besides creating the tables `a` and `b`, and its own
/// statements. In them `@` stands for the schema; a statement that begins with `!` must fail.
type Change = (&'static str, &'static [&'static str], &'static [&'static str]);

/// The table `p`, which is `a` with partitions, and `x` with the rows of the first partition.
const PARTITIONED: &[&str] = &[
    "CREATE TABLE p LIKE a",
    "ALTER TABLE p PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (300),
     PARTITION p1 VALUES LESS THAN (600), PARTITION p2 VALUES LESS THAN MAXVALUE)",
    "INSERT INTO p SELECT * FROM a",
    "CREATE TABLE x LIKE b",
    "INSERT INTO x SELECT * FROM b WHERE id < 200",
];

const OTHER_ENGINES: &[&str] = &[
    "CREATE TABLE m (id INT PRIMARY KEY, v VARCHAR(50)) ENGINE=MyISAM",
    "CREATE TABLE c (id INT NOT NULL, v VARCHAR(50) NOT NULL) ENGINE=CSV",
    "INSERT INTO m SELECT id, 'm' FROM b",
    "INSERT INTO c SELECT id, 'c' FROM b",
];

/// Tables of MyISAM, and one that merges them.
const MERGED: &[&str] = &[
    "CREATE TABLE m (id INT NOT NULL, v VARCHAR(50), KEY (id)) ENGINE=MyISAM",
    "CREATE TABLE n LIKE m",
    "CREATE TABLE u (id INT NOT NULL, v VARCHAR(50), KEY (id)) ENGINE=MERGE UNION=(m, n) INSERT_METHOD=LAST",
    "INSERT INTO m SELECT id, 'm' FROM b",
    "INSERT INTO u SELECT id, 'u' FROM b",
];

/// Tables of each format that Aria has besides the one that its log covers.
const ARIA_KINDS: &[&str] = &[
    "CREATE TABLE pages (id INT PRIMARY KEY, v VARCHAR(50), KEY v (v)) ENGINE=Aria TRANSACTIONAL=0 ROW_FORMAT=PAGE",
    "CREATE TABLE fixed (id INT PRIMARY KEY, v CHAR(50), KEY v (v)) ENGINE=Aria TRANSACTIONAL=0 ROW_FORMAT=FIXED",
    "CREATE TABLE dynamic (id INT PRIMARY KEY, v VARCHAR(50), KEY v (v)) ENGINE=Aria TRANSACTIONAL=0
     ROW_FORMAT=DYNAMIC",
    "CREATE TABLE bare (id INT PRIMARY KEY, v VARCHAR(50), KEY v (v)) ENGINE=Aria TRANSACTIONAL=1 PAGE_CHECKSUM=0",
    "INSERT INTO pages SELECT id, 'pages' FROM b",
    "INSERT INTO fixed SELECT id, 'fixed' FROM b",
    "INSERT INTO dynamic SELECT id, 'dynamic' FROM b",
    "INSERT INTO bare SELECT id, 'bare' FROM b",
];

/// Partitioned tables of Aria, with a log and without.
const ARIA_PARTITIONED: &[&str] = &[
    "CREATE TABLE p (id INT PRIMARY KEY, v VARCHAR(50), KEY v (v)) ENGINE=Aria TRANSACTIONAL=1
     PARTITION BY HASH (id) PARTITIONS 4",
    "CREATE TABLE q (id INT PRIMARY KEY, v VARCHAR(50), KEY v (v)) ENGINE=Aria TRANSACTIONAL=0 ROW_FORMAT=DYNAMIC
     PARTITION BY HASH (id) PARTITIONS 3",
    "INSERT INTO p SELECT id, 'p' FROM b",
    "INSERT INTO q SELECT id, 'q' FROM b",
    "CREATE TABLE r LIKE p",
    "INSERT INTO r SELECT id, 'r' FROM b",
    "CREATE TABLE s LIKE q",
    "INSERT INTO s SELECT id, 's' FROM b",
];

const CHANGES: [Change; 29] = [
    ("rename", &[], &["RENAME TABLE a TO z"]),
    ("there_and_back", &[], &["RENAME TABLE a TO z", "RENAME TABLE z TO a"]),
    (
        "selected",
        &[],
        &["CREATE TABLE s (PRIMARY KEY (id)) ENGINE=InnoDB AS SELECT id, n, v FROM a", "DROP TABLE b"],
    ),
    (
        "chain",
        &[],
        &["RENAME TABLE a TO y", "RENAME TABLE b TO a", "RENAME TABLE y TO z", "RENAME TABLE z TO b"],
    ),
    ("swap", &[], &["RENAME TABLE a TO z, b TO a, z TO b"]),
    ("over", &[], &["DROP TABLE a", "RENAME TABLE b TO a"]),
    ("away", &[], &["CREATE DATABASE @_away", "RENAME TABLE a TO @_away.a"]),
    ("drop_it", &[], &["DROP TABLE a"]),
    ("again", &[], &["DROP TABLE a", "CREATE TABLE a LIKE b", "INSERT INTO a SELECT * FROM b"]),
    ("emptied", &[], &["TRUNCATE TABLE a", "INSERT INTO a SELECT * FROM b WHERE id < 500"]),
    ("rebuilt", &[], &["ALTER TABLE a FORCE, ALGORITHM=INPLACE"]),
    ("copied", &[], &["ALTER TABLE a FORCE, ALGORITHM=COPY"]),
    ("optimized", &[], &["OPTIMIZE TABLE a"]),
    (
        "instant",
        &[],
        &[
            "ALTER TABLE a ADD COLUMN z INT NOT NULL DEFAULT 7, ALGORITHM=INSTANT",
            "UPDATE a SET z = id WHERE id % 2 = 0",
            "ALTER TABLE a DROP COLUMN u, ALGORITHM=INSTANT",
        ],
    ),
    ("indexed", &[], &["ALTER TABLE a ADD KEY k (v)"]),
    (
        "index_gone",
        &[],
        &[
            "ALTER TABLE a ADD KEY gone (v)",
            "UPDATE a SET v = CONCAT('n', v) WHERE id % 2 = 0",
            "ALTER TABLE a DROP KEY gone",
        ],
    ),
    ("not_unique", &[], &["!ALTER TABLE a ADD UNIQUE KEY k (n)"]),
    (
        "words",
        &[],
        &["ALTER TABLE a ADD FULLTEXT KEY w (v)", "UPDATE a SET v = CONCAT('word ', v) WHERE id % 5 = 0"],
    ),
    (
        "words_gone",
        &[],
        &[
            "ALTER TABLE a ADD FULLTEXT KEY w (v)",
            "UPDATE a SET v = CONCAT('word ', v) WHERE id % 5 = 0",
            "ALTER TABLE a DROP KEY w",
        ],
    ),
    ("zipped", &[], &["ALTER TABLE a ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=4"]),
    ("exchanged", PARTITIONED, &["ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE x"]),
    (
        "partitions",
        PARTITIONED,
        &[
            "ALTER TABLE p TRUNCATE PARTITION p1",
            "ALTER TABLE p REORGANIZE PARTITION p2 INTO
             (PARTITION p2 VALUES LESS THAN (900), PARTITION p3 VALUES LESS THAN MAXVALUE)",
            "ALTER TABLE p DROP PARTITION p0",
            "ALTER TABLE p REBUILD PARTITION p2",
        ],
    ),
    (
        "whole",
        PARTITIONED,
        &["ALTER TABLE p REMOVE PARTITIONING", "ALTER TABLE x PARTITION BY HASH (id) PARTITIONS 2"],
    ),
    (
        "schema_again",
        &[],
        &[
            "DROP DATABASE @",
            "CREATE DATABASE @",
            "USE @",
            "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(300)) ENGINE=InnoDB",
            "INSERT INTO a SELECT n, SHA2(n, 256) FROM d.numbers WHERE n < 500",
        ],
    ),
    ("engines", OTHER_ENGINES, &["ALTER TABLE a ENGINE=MyISAM", "ALTER TABLE m ENGINE=InnoDB"]),
    (
        "other_engines",
        OTHER_ENGINES,
        &[
            "RENAME TABLE m TO m2, c TO c2",
            "TRUNCATE TABLE m2",
            "TRUNCATE TABLE c2",
            "INSERT INTO m2 SELECT id, 'later' FROM b WHERE id < 9",
            "INSERT INTO c2 SELECT id, 'later' FROM b WHERE id < 9",
            "CREATE TABLE m LIKE m2",
            "INSERT INTO m VALUES (1, 'new')",
        ],
    ),
    ("other_engines_gone", OTHER_ENGINES, &["DROP TABLE c, m"]),
    (
        "merged",
        MERGED,
        &[
            "CREATE TABLE o LIKE m",
            "INSERT INTO o SELECT id, 'o' FROM b",
            "ALTER TABLE u UNION=(m, o)",
            "INSERT INTO u VALUES (1, 'last')",
            "DROP TABLE n",
            "RENAME TABLE u TO w",
            "CREATE TABLE x (id INT NOT NULL, v VARCHAR(50), KEY (id)) ENGINE=MERGE UNION=(o)",
        ],
    ),
    (
        "archive",
        &[
            "CREATE TABLE r (id INT, v VARCHAR(50)) ENGINE=ARCHIVE",
            "CREATE TABLE s LIKE r",
            "INSERT INTO r SELECT id, 'r' FROM b",
        ],
        &[
            "RENAME TABLE r TO z, s TO r, z TO s",
            "INSERT INTO s SELECT id, 'later' FROM b WHERE id < 9",
            "ALTER TABLE s ADD COLUMN w INT",
            "DROP TABLE r",
            "CREATE TABLE r LIKE s",
            "INSERT INTO r SELECT id, 'again', 1 FROM b WHERE id < 99",
        ],
    ),
];

const MYSQL_CHANGES: [Change; 4] = [
    (
        "into_general",
        &["CREATE TABLESPACE @ ADD DATAFILE '@.ibd'"],
        &["ALTER TABLE a TABLESPACE @", "ALTER TABLESPACE @ RENAME TO @_2"],
    ),
    (
        "out_of_general",
        &["CREATE TABLESPACE @ ADD DATAFILE '@.ibd'", "ALTER TABLE a TABLESPACE @"],
        &["ALTER TABLE a TABLESPACE innodb_file_per_table", "DROP TABLESPACE @"],
    ),
    (
        "in_general",
        &[
            "CREATE TABLESPACE @ ADD DATAFILE '@.ibd'",
            "ALTER TABLE a TABLESPACE @",
            "ALTER TABLE b TABLESPACE @",
        ],
        &[
            "ALTER TABLE a ADD KEY gone (v)",
            "UPDATE a SET v = CONCAT('n', v) WHERE id % 2 = 0",
            "ALTER TABLE a DROP KEY gone",
            "!ALTER TABLE a FORCE, ADD UNIQUE KEY k (n)",
            "TRUNCATE TABLE b",
            "INSERT INTO b SELECT * FROM a WHERE id < 300",
        ],
    ),
    ("statistics", &[], &["ANALYZE TABLE a UPDATE HISTOGRAM ON n", "ALTER TABLE a COMMENT 'later'"]),
];

const MARIADB_CHANGES: [Change; 10] = [
    ("page_compressed", &[], &["ALTER TABLE a PAGE_COMPRESSED=1"]),
    ("versioned", &[], &["ALTER TABLE a ADD SYSTEM VERSIONING"]),
    (
        "sequence",
        &["CREATE SEQUENCE s"],
        &["SELECT NEXTVAL(s)", "ALTER SEQUENCE s RESTART 500", "SELECT NEXTVAL(s)"],
    ),
    (
        "aria",
        &[
            "CREATE TABLE l (id INT PRIMARY KEY, v VARCHAR(50)) ENGINE=Aria",
            "CREATE TABLE k LIKE l",
            "INSERT INTO l SELECT id, 'l' FROM b",
            "INSERT INTO k SELECT id, 'k' FROM b",
        ],
        &[
            "RENAME TABLE l TO z, k TO l, z TO k",
            "TRUNCATE TABLE l",
            "INSERT INTO l SELECT id, 'later' FROM b",
            "ALTER TABLE k ADD KEY v (v)",
            "ALTER TABLE b ENGINE=Aria",
        ],
    ),
    (
        "aria_keys",
        ARIA_KINDS,
        &[
            "ALTER TABLE pages DISABLE KEYS",
            "INSERT INTO pages SELECT id + 100000, 'later' FROM b",
            "ALTER TABLE fixed DISABLE KEYS",
            "INSERT INTO fixed SELECT id + 100000, 'later' FROM b",
            "ALTER TABLE fixed ENABLE KEYS",
            "ALTER TABLE dynamic DISABLE KEYS",
            "INSERT INTO dynamic SELECT id + 100000, 'later' FROM b",
            "ALTER TABLE bare DISABLE KEYS",
            "INSERT INTO bare SELECT id + 100000, 'later' FROM b",
            "ALTER TABLE bare ENABLE KEYS",
        ],
    ),
    (
        "aria_into_innodb",
        ARIA_KINDS,
        &[
            "ALTER TABLE pages ENGINE=InnoDB ROW_FORMAT=DEFAULT",
            "ALTER TABLE fixed ENGINE=InnoDB ROW_FORMAT=DEFAULT",
            "ALTER TABLE dynamic ENGINE=InnoDB",
            "ALTER TABLE bare ENGINE=InnoDB",
            "ALTER TABLE a ENGINE=Aria TRANSACTIONAL=0 ROW_FORMAT=PAGE",
            "ALTER TABLE b ENGINE=Aria TRANSACTIONAL=0 ROW_FORMAT=DYNAMIC",
        ],
    ),
    (
        "aria_away",
        ARIA_KINDS,
        &[
            "CREATE DATABASE @_away",
            "RENAME TABLE pages TO @_away.pages, fixed TO @_away.fixed, dynamic TO @_away.dynamic, bare TO @_away.bare",
            "INSERT INTO @_away.pages SELECT id + 100000, 'later' FROM b",
            "INSERT INTO @_away.fixed SELECT id + 100000, 'later' FROM b",
            "INSERT INTO @_away.dynamic SELECT id + 100000, 'later' FROM b",
            "INSERT INTO @_away.bare SELECT id + 100000, 'later' FROM b",
        ],
    ),
    (
        "aria_gone",
        ARIA_KINDS,
        &[
            "TRUNCATE TABLE pages",
            "INSERT INTO pages SELECT id, 'later' FROM b WHERE id < 99",
            "TRUNCATE TABLE fixed",
            "DROP TABLE dynamic",
            "CREATE TABLE dynamic LIKE bare",
            "INSERT INTO dynamic SELECT id, 'again' FROM b",
            "DROP TABLE bare",
        ],
    ),
    (
        "aria_partitions",
        ARIA_PARTITIONED,
        &[
            "ALTER TABLE p COALESCE PARTITION 2",
            "ALTER TABLE q ADD PARTITION PARTITIONS 1",
            "RENAME TABLE p TO z",
            "CREATE TABLE p LIKE q",
            "INSERT INTO p SELECT id, 'later' FROM b",
            "ALTER TABLE r REMOVE PARTITIONING",
            "DROP TABLE s",
            "CREATE TABLE s (id INT PRIMARY KEY, v VARCHAR(50)) ENGINE=Aria PARTITION BY KEY () PARTITIONS 2",
            "INSERT INTO s SELECT id, 'again' FROM b",
        ],
    ),
    (
        "myisam_partitions",
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, v VARCHAR(50)) ENGINE=MyISAM PARTITION BY RANGE (id)
             (PARTITION p0 VALUES LESS THAN (300), PARTITION p1 VALUES LESS THAN (2000000))",
            "INSERT INTO p SELECT id, 'p' FROM b",
        ],
        &[
            "ALTER TABLE p DROP PARTITION p0",
            "ALTER TABLE p ADD PARTITION (PARTITION p2 VALUES LESS THAN MAXVALUE)",
            "INSERT INTO p VALUES (3000000, 'later')",
            "ALTER TABLE p TRUNCATE PARTITION p1",
        ],
    ),
];

/// A server with a schema for each change at each moment.
struct Changing<'a> {
    server: &'a Server,
    changes: Vec<Change>,
}

/// Whether a change has a moment: only some have tables of other engines.
fn has(moment: Moment, change: &Change) -> bool {
    let of_others =
        |statement: &&str| ["=MyISAM", "=Aria", "=ARCHIVE"].iter().any(|engine| statement.contains(engine));
    moment != Moment::MidTable || change.1.iter().any(of_others)
}

fn schema(moment: Moment, change: &Change) -> String {
    format!("d_{moment:?}_{}", change.0).to_lowercase()
}

/// Runs statements, each of which must succeed or fail as expected.
fn run(conn: &mut Conn, schema: &str, statements: &[&str]) {
    for statement in statements {
        let statement = statement.replace('@', schema);
        match statement.strip_prefix('!') {
            Some(statement) => assert!(conn.query_drop(statement).is_err(), "{schema}: {statement}"),
            None => {
                conn.query_drop(&statement).unwrap_or_else(|error| panic!("{schema}: {statement}: {error}"))
            }
        }
    }
}

impl Changing<'_> {
    fn prepare(&self) {
        self.server
            .exec_all([
                "CREATE DATABASE d",
                "CREATE TABLE d.numbers (n INT PRIMARY KEY AUTO_INCREMENT) ENGINE=InnoDB",
                "INSERT INTO d.numbers VALUES ()",
            ])
            .unwrap();
        for bits in 0..13 {
            self.server
                .exec(format!("INSERT INTO d.numbers SELECT n + {} FROM d.numbers", 1 << bits))
                .unwrap();
        }
        let mut conn = self.server.conn().unwrap();
        for moment in MOMENTS {
            // More rows than are read at once, where that matters.
            let rows = if moment == Moment::MidFile { 8000 } else { 1200 };
            for change in self.changes.iter().filter(|change| has(moment, change)) {
                let fill = format!(
                    "INSERT INTO a SELECT n, n % 97, 0, SHA2(n, 512) FROM d.numbers WHERE n < {rows}"
                );
                run(
                    &mut conn,
                    &schema(moment, change),
                    &[
                        "CREATE DATABASE @",
                        "USE @",
                        "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, n INT, u INT, v VARCHAR(300), KEY (n))
                         ENGINE=InnoDB",
                        "CREATE TABLE b LIKE a",
                        &fill,
                        "INSERT INTO b SELECT * FROM a WHERE id % 7 = 0",
                    ],
                );
                run(&mut conn, &schema(moment, change), change.1);
            }
        }
    }

    fn change(&self, moment: Moment, change: &Change) {
        let mut conn = self.server.conn().unwrap();
        let schema = schema(moment, change);
        conn.query_drop(format!("USE {schema}")).unwrap();
        run(&mut conn, &schema, change.2);
        self.write(&mut conn, &schema);
    }

    /// Changes rows of all InnoDB tables.
    fn write(&self, conn: &mut Conn, schema: &str) {
        let tables: Vec<String> = conn
            .query(format!(
                "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables
                 WHERE table_schema IN ('{schema}', '{schema}_away') AND engine = 'InnoDB'
                 AND table_type <> 'SEQUENCE'"
            ))
            .unwrap();
        for table in tables {
            conn.query_drop(format!("UPDATE {table} SET v = REVERSE(v) WHERE id % 3 = 0")).unwrap();
        }
    }

    /// The change whose schema at this moment has the file at `path`.
    fn of_file(&self, moment: Moment, path: &str) -> Option<&Change> {
        self.changes.iter().find(|change| {
            let rest = path.strip_prefix(&schema(moment, change));
            rest.is_some_and(|rest| rest.starts_with('/') || rest == ".ibd")
        })
    }

    fn at_stop(&self) {
        let mut conn = self.server.conn().unwrap();
        for change in &self.changes {
            for moment in [Moment::Copy, Moment::Listed, Moment::MidFile, Moment::MidTable] {
                self.write(&mut conn, &schema(moment, change));
            }
            self.change(Moment::Stop, change);
        }
    }
}

fn changes_are_captured(kind: ServerKind) {
    let own = if kind.is_mariadb() { &MARIADB_CHANGES[..] } else { &MYSQL_CHANGES[..] };
    these_are_captured(kind, [&CHANGES[..], own].concat());
}

fn these_are_captured(kind: ServerKind, changes: Vec<Change>) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    if kind.is_mariadb() {
        source.exec("INSTALL SONAME 'ha_archive'").unwrap();
    }
    let changing = Changing { server: &source, changes };
    changing.prepare();
    let dir = tempfile::tempdir().unwrap();
    let changed: Mutex<BTreeSet<(Moment, &str)>> = Mutex::default();
    let change_once = |moment: Moment, path: &str| {
        let change = changing.of_file(moment, path);
        if let Some(change) = change.filter(|change| changed.lock().unwrap().insert((moment, change.0))) {
            changing.change(moment, change);
        }
    };
    let sink = Watched {
        inner: DirectorySink::new(dir.path().join("staging")),
        on_pages: |path: &str, _: &Pages<'_>| {
            change_once(Moment::MidFile, path);
            if ROWS.iter().any(|rows| path.ends_with(rows)) {
                change_once(Moment::MidTable, path);
            }
        },
    };
    struct AtPhases<'a>(&'a Changing<'a>);
    impl Listener for AtPhases<'_> {
        fn event(&self, event: Event) {
            match event {
                Event::Phase { name: "copy" } => {
                    self.0.changes.iter().for_each(|change| self.0.change(Moment::Copy, change));
                }
                Event::Phase { name: "stop" } => self.0.at_stop(),
                _ => {}
            }
            Told.event(event);
        }
    }
    let captured = at_openings(
        &source,
        |path| change_once(Moment::Listed, path),
        || capture_told(&source, &sink, dir.path(), &AtPhases(&changing)),
    );
    let changed = changed.lock().unwrap();
    for moment in [Moment::Listed, Moment::MidFile, Moment::MidTable] {
        let due = changing.changes.iter().filter(|change| has(moment, change)).map(|change| change.0);
        let missed: Vec<_> = due.filter(|name| !changed.contains(&(moment, name))).collect();
        assert!(missed.is_empty(), "{moment:?}: {missed:?}");
    }
    // Those that were dropped or renamed between the listing and the opening.
    assert!(captured.stats.files_vanished > 0, "{:?}", captured.stats);
    let target = dir.path().join("data");
    sink.inner.place(&target);
    lay_out_redo(&target, &captured.redo);
    let copy = Server::attach(kind, target, ServerOptions::default()).unwrap();
    let tables = assert_equal_checksums(&source, &copy).unwrap();
    println!("{tables} tables equal");
    let of_others: Vec<String> = copy
        .query(
            "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables
             WHERE table_schema LIKE 'd\\_%' AND engine IN ('MyISAM', 'Aria', 'ARCHIVE')",
        )
        .unwrap();
    for table in of_others {
        is_whole(&copy, &table);
    }
}

#[test]
fn mariadb_10_11_definitions_that_change_at_any_moment_are_captured() {
    changes_are_captured(ServerKind::MariaDb1011);
}

/// Changes that MariaDB makes in another way since 10.11: 11.2 and later copy a table while it is written to.
const CHANGED_SINCE_10_11: [Change; 4] = [
    ("copied_online", &[], &["ALTER TABLE a FORCE, ALGORITHM=COPY, LOCK=NONE"]),
    ("retyped", &[], &["ALTER TABLE a MODIFY n BIGINT, DROP KEY n, ADD KEY n (n, u), ALGORITHM=COPY"]),
    (
        "split",
        PARTITIONED,
        &["ALTER TABLE p REMOVE PARTITIONING", "ALTER TABLE x PARTITION BY HASH (id) PARTITIONS 2"],
    ),
    ("again", &[], &["DROP TABLE a", "CREATE TABLE a LIKE b", "INSERT INTO a SELECT * FROM b"]),
];

#[test]
fn mariadb_11_8_definitions_that_change_at_any_moment_are_captured() {
    these_are_captured(ServerKind::MariaDb118, CHANGED_SINCE_10_11.to_vec());
}

#[test]
fn mysql_9_7_definitions_that_change_at_any_moment_are_captured() {
    changes_are_captured(ServerKind::MySql97);
}

/// Two tables swap their names just before the file of the first one is opened, so that it is the other's file, and
/// swap them back when its first pages have been read. A third one is away while its file would be opened.
#[test]
fn tables_renamed_around_the_opening_of_their_files_are_captured() {
    const SWAP: &str = "RENAME TABLE d.a TO d.z, d.b TO d.a, d.z TO d.b";
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        Changing { server: &source, changes: Vec::new() }.prepare();
        for (table, sort) in [("a", "ASC"), ("b", "DESC"), ("c", "ASC")] {
            source
                .exec_all([
                    format!("CREATE TABLE d.{table} (id INT PRIMARY KEY, v VARCHAR(300)) ENGINE=InnoDB"),
                    format!(
                        "INSERT INTO d.{table} SELECT n, SHA2('{table}', 512) FROM d.numbers ORDER BY n {sort}"
                    ),
                ])
                .unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let [swapped, back, away, here] = [(); 4].map(|()| Mutex::new(false));
        let once = |done: &Mutex<bool>, statement: &str| {
            if !std::mem::replace(&mut *done.lock().unwrap(), true) {
                source.exec(statement).unwrap();
            }
        };
        let sink = Watched {
            inner: DirectorySink::new(dir.path().join("staging")),
            on_pages: |path: &str, _: &Pages<'_>| {
                if path == "d/a.ibd" {
                    once(&back, SWAP);
                    source.exec("UPDATE d.a SET v = REVERSE(v) WHERE id % 3 = 0").unwrap();
                }
            },
        };
        let action = |path: &str| match path {
            "d/a.ibd" => once(&swapped, SWAP),
            "d/c.ibd" => once(&away, "RENAME TABLE d.c TO d.away"),
            _ => {}
        };
        let come_back = || once(&here, "RENAME TABLE d.away TO d.c");
        // One file after the other.
        let options = CaptureOptions { parallel: 1, ..capture_options(&source, dir.path()) };
        let listener = AtPhase { phase: "stop", action: come_back };
        let captured =
            at_openings(&source, action, || capture_with(&source, &sink, &listener, options).unwrap());
        assert!([&swapped, &back, &away, &here].into_iter().all(|done| *done.lock().unwrap()));
        assert!(captured.stats.files_vanished > 0, "{kind}: {:?}", captured.stats);
        let target = dir.path().join("data");
        sink.inner.place(&target);
        lay_out_redo(&target, &captured.redo);
        let copy = Server::attach(kind, target, ServerOptions::default()).unwrap();
        assert_equal_checksums(&source, &copy).unwrap();
    }
}

/// Builds an index while rows are inserted, the last of which is a duplicate: the build fails after it has
/// written pages, when it is about to catch up.
/// Only redo is left, for pages whose creation is not in the redo.
fn fail_late(server: &Server, table: &str, build: &str) {
    const TRIES_MAX: u32 = 50;
    const DUPLICATE: u16 = 1062;
    const WAIT_MAX: Duration = Duration::from_secs(300);
    for number in 0..TRIES_MAX {
        let failed = std::thread::scope(|scope| {
            let mut builder = server.conn().unwrap();
            let id = builder.connection_id();
            let building = scope.spawn(move || builder.query_drop(format!("ALTER TABLE {table} {build}")));
            let state = format!(
                "SELECT COALESCE(MAX(state), '') FROM information_schema.processlist WHERE id = {id}"
            );
            let (mut watcher, mut writer) = (server.conn().unwrap(), server.conn().unwrap());
            let begun = Instant::now();
            while watcher.query_first::<String, _>(&state).unwrap().unwrap() != "altering table"
                && !building.is_finished()
            {
                assert!(begun.elapsed() < WAIT_MAX, "{table} is not altered");
            }
            let first = 1_000_000 * (number + 1);
            // One transaction, because the build waits for its end before it ends.
            // If the index exists already, the last row comes too late.
            for statement in [
                "BEGIN".to_owned(),
                format!(
                    "INSERT INTO {table} SELECT {first} + n, 0, 0, SHA2({first} + n, 512) FROM d.numbers WHERE n < 600"
                ),
                format!("INSERT INTO {table} SELECT {first}, 0, 0, v FROM {table} ORDER BY id LIMIT 1"),
            ] {
                let _ = writer.query_drop(statement);
            }
            writer.query_drop("COMMIT").unwrap();
            let built = building.join().unwrap();
            matches!(&built, Err(mysql::Error::MySqlError(error)) if error.code == DUPLICATE)
        });
        if failed {
            return;
        }
        server.exec(format!("ALTER TABLE {table} DROP KEY k")).unwrap();
    }
    panic!("{table}: it never failed late");
}

fn late_failures_are_captured(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    let changing = Changing { server: &source, changes: Vec::new() };
    changing.prepare();
    let general = if kind.is_mariadb() { "" } else { "TABLESPACE g" };
    if !kind.is_mariadb() {
        source.exec("CREATE TABLESPACE g ADD DATAFILE 'g.ibd'").unwrap();
    }
    for (table, place) in [("one", ""), ("two", ""), ("rebuilt", ""), ("general", general)] {
        source
            .exec_all([
                format!(
                    "CREATE TABLE d.{table} (id INT PRIMARY KEY, n INT, u INT, v VARCHAR(300), KEY (n)) ENGINE=InnoDB {place}"
                ),
                format!(
                    "INSERT INTO d.{table} SELECT a.n + 8192 * b.n, a.n % 97, 0, SHA2(a.n + 8192 * b.n, 512)
                     FROM d.numbers a, d.numbers b WHERE b.n < 6"
                ),
            ])
            .unwrap();
    }
    let action = || {
        fail_late(&source, "d.one", "ADD UNIQUE KEY k (v)");
        fail_late(&source, "d.two", "ADD UNIQUE KEY k (v), ADD KEY l (v, n)");
        fail_late(&source, "d.rebuilt", "FORCE, ADD UNIQUE KEY k (v)");
        fail_late(&source, "d.general", "FORCE, ADD UNIQUE KEY k (v)");
    };
    let copy = recovered(&source, "stop", ServerOptions::default(), action);
    assert_equal_checksums(&source, &copy.server).unwrap();
}

#[test]
fn mariadb_10_11_a_unique_index_that_fails_late_is_captured() {
    late_failures_are_captured(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_a_unique_index_that_fails_late_is_captured() {
    late_failures_are_captured(ServerKind::MySql97);
}
