//! Indexes whose pages are not created by redo: those built while the table is locked, those on columns added
//! along with them, and full-text indexes.
//! If nothing is written afterwards, a copy without these pages recovers without any error.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    thread::{self, JoinHandle},
};

use holdfast_core::source::CaptureStats;
use mysql::prelude::Queryable;

use super::*;
use crate::capture::races::{OnEvents, recovered, recovered_told};

/// A table's name, its special options, and what is done to it after the last check without a lock.
type Built = (&'static str, &'static str, &'static [&'static str]);

/// Rows written while the index exists.
const GONE: &[&str] = &[
    "ALTER TABLE @ ADD KEY k (v), ALGORITHM=INPLACE, LOCK=SHARED",
    "UPDATE @ SET v = REVERSE(v)",
    "ALTER TABLE @ DROP KEY k",
];

const BUILT: &[Built] = &[
    ("shared", "", &["ALTER TABLE @ ADD KEY k (v), ALGORITHM=INPLACE, LOCK=SHARED"]),
    ("exclusive", "", &["ALTER TABLE @ ADD KEY k (v), ALGORITHM=INPLACE, LOCK=EXCLUSIVE"]),
    ("uniquely", "", &["ALTER TABLE @ ADD UNIQUE KEY k (id, v), ALGORITHM=INPLACE, LOCK=SHARED"]),
    ("gone", "", GONE),
    ("packed_gone", "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8", GONE),
    ("rebuilt", "", &["ALTER TABLE @ FORCE, ADD KEY k (v), ALGORITHM=INPLACE, LOCK=SHARED"]),
    ("virtual_column", "", &["ALTER TABLE @ ADD COLUMN c VARCHAR(300) AS (UPPER(v)) VIRTUAL, ADD KEY k (c)"]),
    ("words", "", &["ALTER TABLE @ ADD FULLTEXT KEY w (v)"]),
    (
        "more_words",
        ", FULLTEXT KEY first_words (v)",
        &["ALTER TABLE @ ADD FULLTEXT KEY w (v), ADD KEY k (v)"],
    ),
    ("places", "", &["ALTER TABLE @ ADD SPATIAL KEY s (g), ADD KEY k (v)"]),
    (
        "partitions",
        "PARTITION BY HASH (id) PARTITIONS 3",
        &["ALTER TABLE @ ADD KEY k (v), ALGORITHM=INPLACE, LOCK=SHARED"],
    ),
    (
        "packed",
        "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8",
        &["ALTER TABLE @ ADD KEY k (v), ALGORITHM=INPLACE, LOCK=SHARED"],
    ),
];

const BUILT_ON_MYSQL: &[Built] = &[
    (
        "general_packed",
        "TABLESPACE packed ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8",
        &[
            "ALTER TABLE @ ADD KEY k (v), ALGORITHM=INPLACE, LOCK=SHARED",
            "UPDATE @ SET v = REVERSE(v)",
            "ALTER TABLE @ DROP KEY k, ADD KEY l (v), ALGORITHM=INPLACE, LOCK=SHARED",
        ],
    ),
    (
        "general_rebuilt",
        "TABLESPACE general",
        &[
            "ALTER TABLE @ FORCE, ADD KEY k (v), ALGORITHM=INPLACE, LOCK=SHARED",
            "UPDATE @ SET v = REVERSE(v)",
        ],
    ),
    ("general_gone", "TABLESPACE general_2", GONE),
    (
        "general_newer",
        "TABLESPACE general_3",
        &[
            "CREATE TABLE @_table (id INT PRIMARY KEY, v VARCHAR(300) NOT NULL) TABLESPACE general_3",
            "INSERT INTO @_table SELECT * FROM @",
            "ALTER TABLE @_table ADD KEY k ((LOWER(v)))",
        ],
    ),
    ("functional", "", &["ALTER TABLE @ ADD KEY k ((LOWER(v)))"]),
    ("general", "TABLESPACE general", &["ALTER TABLE @ ADD KEY k (v), ALGORITHM=INPLACE, LOCK=SHARED"]),
    (
        "within_system",
        "TABLESPACE innodb_system",
        &["ALTER TABLE @ ADD KEY k (v), ALGORITHM=INPLACE, LOCK=SHARED"],
    ),
];

/// Creates a schema `i` with a table for each case.
fn prepare(source: &Server, built: &[Built]) {
    source.exec("CREATE DATABASE i").unwrap();
    if !source.kind().is_mariadb() {
        for name in ["general", "general_2", "general_3"] {
            source.exec(format!("CREATE TABLESPACE {name} ADD DATAFILE '{name}.ibd'")).unwrap();
        }
        source.exec("CREATE TABLESPACE packed ADD DATAFILE 'packed.ibd' FILE_BLOCK_SIZE=8192").unwrap();
    }
    source.exec("CREATE TABLE i.numbers (n INT PRIMARY KEY AUTO_INCREMENT) ENGINE=InnoDB").unwrap();
    source.exec("INSERT INTO i.numbers VALUES ()").unwrap();
    for bits in 0..12 {
        source.exec(format!("INSERT INTO i.numbers SELECT n + {} FROM i.numbers", 1 << bits)).unwrap();
    }
    for (name, more, _) in built {
        let (keys, place) = if more.starts_with(',') { (*more, "") } else { ("", *more) };
        let (column, value) = match *name {
            "places" if source.kind().is_mariadb() => (", g POINT NOT NULL", ", POINT(n, n)"),
            "places" => (", g POINT NOT NULL SRID 0", ", POINT(n, n)"),
            _ => ("", ""),
        };
        source
            .exec_all([
                format!(
                    "CREATE TABLE i.{name} (id INT PRIMARY KEY, v VARCHAR(300) NOT NULL{column}{keys}) ENGINE=InnoDB {place}"
                ),
                format!("INSERT INTO i.{name} SELECT n, CONCAT('word', n % 7, ' ', SHA2(n, 512)){value} FROM i.numbers"),
            ])
            .unwrap();
    }
}

/// How often the full-text index finds a word.
fn found(server: &Server, table: &str) -> u64 {
    let query = format!("SELECT COUNT(*) FROM {table} WHERE MATCH (v) AGAINST ('word3')");
    server.query::<u64>(query).unwrap()[0]
}

fn indexes_are_captured(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    let own = if kind.is_mariadb() { &[][..] } else { BUILT_ON_MYSQL };
    let built = [BUILT, own].concat();
    prepare(&source, &built);
    let copy = recovered(&source, "stop", ServerOptions::default(), || {
        let mut conn = source.conn().unwrap();
        for (name, _, statements) in &built {
            for statement in *statements {
                let statement = statement.replace('@', &format!("i.{name}"));
                conn.query_drop(&statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
            }
        }
    });
    assert_equal_checksums(&source, &copy.server).unwrap();
    for table in ["i.words", "i.more_words"] {
        assert_eq!(found(&copy.server, table), found(&source, table), "{table}");
    }
}

#[test]
fn mariadb_10_11_indexes_built_under_locks_are_captured() {
    indexes_are_captured(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_indexes_built_under_locks_are_captured() {
    indexes_are_captured(ServerKind::MySql97);
}

/// Builds a full-text index from the beginning of the copy to its end.
struct Sorting<'a> {
    source: &'a Server,
    building: Mutex<Option<JoinHandle<()>>>,
}

impl Listener for Sorting<'_> {
    fn event(&self, event: Event) {
        match event {
            Event::Phase { name: "copy" } => {
                let mut conn = self.source.conn().unwrap();
                let build = move || conn.query_drop("ALTER TABLE i.t ADD FULLTEXT KEY w (v)").unwrap();
                *self.building.lock().unwrap() = Some(thread::spawn(build));
                let is_file_of_index = |entry: io::Result<fs::DirEntry>| {
                    let name = entry.unwrap().file_name().to_string_lossy().to_lowercase();
                    name.starts_with("fts_") && name.contains("_index_6")
                };
                while !fs::read_dir(self.source.datadir().join("i")).unwrap().any(is_file_of_index) {
                    sleep(Duration::from_millis(5));
                }
            }
            Event::Phase { name: "stop" } => {
                self.building.lock().unwrap().take().unwrap().join().unwrap();
            }
            _ => {}
        }
        Told.event(event);
    }
}

/// The files of a full-text index are created when its build begins, and filled when it ends.
/// Meanwhile, MySQL does not reveal which indexes exist.
fn words_that_are_sorted_meanwhile_are_captured(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    prepare(&source, &[]);
    // On MySQL, enough to take longer than a session waits for a lock.
    let times = if kind.is_mariadb() { 10 } else { 60 };
    source
        .exec_all([
            "USE i".to_owned(),
            "CREATE TABLE i.t (id INT PRIMARY KEY, v TEXT NOT NULL) ENGINE=InnoDB".to_owned(),
            format!(
                "INSERT INTO i.t SELECT a.n * 4096 + b.n, CONCAT('word', b.n % 7, ' ', SHA2(a.n, 224), ' ', SHA2(b.n, 224), ' ',
                 SHA2(a.n + b.n, 224)) FROM i.numbers a, i.numbers b WHERE a.n <= {times}"
            ),
        ])
        .unwrap();
    let sorting = Sorting { source: &source, building: Mutex::default() };
    let copy = recovered_told(&source, ServerOptions::default(), &sorting);
    assert_equal_checksums(&source, &copy.server).unwrap();
    assert_eq!(found(&copy.server, "i.t"), found(&source, "i.t"));
}

/// What a backup that meets the build of an index has to do with it.
#[derive(Clone, Copy)]
struct Meeting {
    /// What the table's definition says of its place.
    place: &'static str,
    /// The phase of the backup in which the build begins.
    from: &'static str,
    /// Where the backup waits for its end; its index is dropped then.
    until: &'static str,
}

/// Captures while indexes are being built. Returns whether they were still being built when the tablespaces had been
/// copied.
fn captured_while_built(source: &Server, options: &ServerOptions, meeting: Meeting) -> bool {
    let Meeting { from: phase, until, .. } = meeting;
    let building = Mutex::default();
    let begin = || {
        let mut conn = source.conn().unwrap();
        // Several indexes, sorted in small parts, so that it takes long.
        conn.query_drop(
            "SET innodb_ddl_buffer_size = 65536, innodb_ddl_threads = 1, innodb_parallel_read_threads = 1",
        )
        .unwrap();
        let keys = ["k", "l", "m", "n", "o"].map(|key| format!("ADD KEY {key} (v), ")).concat();
        let statement = format!("ALTER TABLE i.t {keys} ALGORITHM=INPLACE, LOCK=SHARED");
        let build = move || conn.query_drop(statement).unwrap();
        let build = thread::spawn(build);
        // The roots are created before this state is reached.
        let is_sorting = "SELECT COUNT(*) FROM information_schema.processlist
            WHERE info LIKE 'ALTER TABLE i.t ADD KEY%' AND state = 'altering table'";
        while source.value::<u64>(is_sorting).unwrap() == 0 && !build.is_finished() {
            sleep(Duration::from_millis(5));
        }
        if phase == "start" {
            // The redo that is followed begins later.
            let log = |name: &str| -> u64 {
                let query =
                    format!("SELECT storage_engines->>'$.InnoDB.{name}' FROM performance_schema.log_status");
                source.value::<String>(query).unwrap().parse().unwrap()
            };
            let begun = log("LSN");
            while log("LSN_checkpoint") < begun && !build.is_finished() {
                sleep(Duration::from_millis(50));
            }
        }
        *building.lock().unwrap() = Some(build);
        // The redo advances, so that the root was clearly created before the copy begins.
        source
            .exec_all(["INSERT INTO i.other SELECT n, SHA2(n, 512) FROM i.numbers", "FLUSH ENGINE LOGS"])
            .unwrap();
    };
    let half_built = AtomicBool::default();
    let end = || {
        let building: JoinHandle<()> = building.lock().unwrap().take().unwrap();
        half_built.store(!building.is_finished(), Ordering::Relaxed);
        building.join().unwrap();
        source
            .exec_all([
                "UPDATE i.t SET v = SHA2(id + 1000000, 512) WHERE id % 5000 = 0",
                "ALTER TABLE i.t DROP KEY k, DROP KEY l, DROP KEY m, DROP KEY n, DROP KEY o",
            ])
            .unwrap();
    };
    let in_use = Mutex::default();
    let (refused, recopied, recopied_before) =
        (AtomicU32::default(), AtomicU64::default(), AtomicU64::default());
    let at_events = OnEvents(|event| match event {
        Event::Phase { name } if *name == phase => begin(),
        Event::Note { text } => {
            let count = text.strip_prefix("DDL since the copy: ").and_then(|text| text.split(' ').next());
            recopied.fetch_add(count.map_or(0, |count| count.parse().unwrap()), Ordering::Relaxed);
        }
        Event::Phase { name: "stop" } => {
            let mut conn = source.conn().unwrap();
            conn.query_drop("LOCK TABLES i.in_use WRITE").unwrap();
            *in_use.lock().unwrap() = Some(conn);
        }
        // By the end of the second try, the redo up to the end of the first try has been read.
        Event::Warning { text }
            if text.contains("FLUSH TABLES") && refused.fetch_add(1, Ordering::Relaxed) == 1 =>
        {
            recopied_before.store(recopied.load(Ordering::Relaxed), Ordering::Relaxed);
            drop(in_use.lock().unwrap().take().unwrap());
        }
        _ => {}
    });
    let copy = at_point(until, end, || recovered_told(source, options.clone(), &at_events));
    assert!(in_use.into_inner().unwrap().is_none(), "nothing was tried a third time");
    assert_equal_checksums(source, &copy.server).unwrap();
    let recopied = copy.stats.files_recopied;
    println!("{recopied} copied again, and {} pages", copy.stats.pages_recopied);
    assert_eq!(recopied, recopied_before.into_inner(), "copied again for another try");
    let half_built = half_built.into_inner();
    assert!(!half_built || recopied > 0 || copy.stats.pages_recopied > 0);
    half_built
}

/// An index is being built while its locked table is copied: its root exists, but its leaves do not.
/// It is written to without a page being created, and dropped before the indexes are examined again.
/// The table is copied once more because of that, or twice if the end of the redo is read late, but not for
/// each try to lock the tables.
#[test]
fn mysql_an_index_half_built_at_the_copy_and_gone_since_is_captured() {
    an_index_half_built_at_the_copy_is_captured(Meeting { from: "copy", ..BEFORE_THE_BACKUP });
}

/// The same for a build that is under way when the backup begins: its index has an id, and its root exists, before
/// the redo that is followed. All that tells of the build is that it was under way.
#[test]
fn mysql_an_index_half_built_on_a_locked_table_before_the_backup_is_captured() {
    an_index_half_built_at_the_copy_is_captured(BEFORE_THE_BACKUP);
}

/// The same with other tables in the tablespace, and until definitions are about to be blocked: before that, there
/// is no moment without such a change.
#[test]
fn mysql_an_index_half_built_in_a_shared_tablespace_before_the_backup_is_captured() {
    let meeting = Meeting { place: "TABLESPACE general", until: "backup.copied", ..BEFORE_THE_BACKUP };
    an_index_half_built_at_the_copy_is_captured(meeting);
}

/// The same with other tables in the tablespace: then only pages are copied again.
#[test]
fn mysql_an_index_half_built_in_a_shared_tablespace_is_captured() {
    an_index_half_built_at_the_copy_is_captured(Meeting {
        place: "TABLESPACE general",
        from: "copy",
        ..BEFORE_THE_BACKUP
    });
}

const BEFORE_THE_BACKUP: Meeting = Meeting { place: "", from: "start", until: "backup.tablespaces.copied" };

fn an_index_half_built_at_the_copy_is_captured(meeting: Meeting) {
    let mut options = ServerOptions::default().arg("--innodb-fill-factor=80");
    if meeting.from == "start" {
        // So that a checkpoint passes the beginning of the build soon.
        options = options.arg("--innodb-max-dirty-pages-pct=0");
    }
    let source = Server::start(ServerKind::MySql97, options.clone()).unwrap();
    prepare(&source, &[]);
    source
        .exec_all([
            "USE i",
            &format!(
                "CREATE TABLE i.t (id INT PRIMARY KEY, v VARCHAR(300) NOT NULL) ENGINE=InnoDB {}",
                meeting.place
            ),
            "CREATE TABLE i.in_use (i INT) ENGINE=MyISAM",
            "CREATE TABLE i.other (n INT, v VARCHAR(300)) ENGINE=InnoDB",
        ])
        .unwrap();
    // More rows take longer to sort.
    let met = [(0, 100), (100, 200), (200, 400)].into_iter().find(|(from, to)| {
        source
            .exec_all([
                "TRUNCATE TABLE i.other".to_owned(),
                format!(
                    "INSERT INTO i.t SELECT a.n * 4096 + b.n, SHA2(a.n * 4096 + b.n, 512)
                     FROM i.numbers a, i.numbers b WHERE a.n > {from} AND a.n <= {to}"
                ),
            ])
            .unwrap();
        captured_while_built(&source, &options, meeting)
    });
    assert!(met.is_some(), "each time it was built before its table was copied");
}

/// A row may look like the load of an index in another table's tablespace. That table is copied again only if it
/// has, had or could have had this index.
#[test]
fn mysql_what_looks_like_the_load_of_an_index_is_judged_by_the_index() {
    let source = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    prepare(&source, &[]);
    source
        .exec_all([
            "CREATE TABLE i.large (id INT PRIMARY KEY, v CHAR(250))",
            "INSERT INTO i.large SELECT n, SHA2(n, 512) FROM i.numbers",
            "CREATE TABLE i.noise (id INT PRIMARY KEY AUTO_INCREMENT, v VARBINARY(250))",
        ])
        .unwrap();
    let ids =
        "FROM information_schema.innodb_indexes JOIN information_schema.innodb_tablespaces USING (space)
        WHERE innodb_tablespaces.name = 'i/large'";
    let space: u8 = source.value(format!("SELECT space {ids}")).unwrap();
    let own: u64 = source.value(format!("SELECT index_id {ids}")).unwrap();
    let is_copied_again = |index: u64| {
        let looks_like_it = format!(
            "INSERT INTO i.noise (v) VALUES (CONCAT(RANDOM_BYTES(50), X'BD{space:02X}04{index:016X}', RANDOM_BYTES(50)))"
        );
        let copied_again = AtomicBool::default();
        let notes = OnEvents(|event| match event {
            Event::Note { text } if text.contains("i/large.ibd") => {
                copied_again.store(true, Ordering::Relaxed)
            }
            _ => {}
        });
        let write = || source.exec(&looks_like_it).unwrap();
        let copy = at_point("backup.tablespaces.copied", write, || {
            recovered_told(&source, ServerOptions::default(), &notes)
        });
        assert_equal_checksums(&source, &copy.server).unwrap();
        // The next copy must begin well after this record: where it is, is known to the block.
        source.exec("INSERT INTO i.noise (v) SELECT REPEAT('x', 250) FROM i.numbers WHERE n <= 100").unwrap();
        copied_again.into_inner()
    };
    assert!(is_copied_again(own), "the row does not look like a record");
    assert!(!is_copied_again(7), "an index of the dictionary");
    assert!(!is_copied_again(own + 1), "the index of another table");
}

/// In shared tablespaces, tables are created, emptied, filled, and dropped again at every step.
/// Only pages allocated since then are copied again.
#[test]
fn mysql_tables_made_in_shared_tablespaces_cost_only_their_pages() {
    let options = ServerOptions::default().arg("--innodb-file-per-table=OFF");
    let source = Server::start(ServerKind::MySql97, options.clone()).unwrap();
    prepare(&source, &[]);
    let places = ["innodb_system", "general"];
    for place in places {
        source
            .exec_all([
                format!("CREATE TABLE i.large_{place} (id INT PRIMARY KEY, v CHAR(250)) TABLESPACE {place}"),
                format!(
                    "INSERT INTO i.large_{place} SELECT a.n * 4096 + b.n, SHA2(b.n, 512)
                     FROM i.numbers a, i.numbers b WHERE a.n <= 40"
                ),
                format!("CREATE TABLE i.emptied_{place} (id INT PRIMARY KEY, v CHAR(250), KEY (v)) TABLESPACE {place}"),
            ])
            .unwrap();
    }
    let made = AtomicU32::default();
    let make = || {
        let number = made.fetch_add(1, Ordering::Relaxed);
        for place in places {
            let kept = format!("i.kept_{place}_{number}");
            let gone = format!("i.gone_{place}_{number}");
            let create = |table: &str| {
                format!("CREATE TABLE {table} (id INT PRIMARY KEY, v CHAR(250), KEY (v)) TABLESPACE {place}")
            };
            let fill = |table: &str| format!("INSERT INTO {table} SELECT n, SHA2(n, 512) FROM i.numbers");
            let emptied = format!("i.emptied_{place}");
            source
                .exec_all([
                    create(&kept),
                    create(&gone),
                    fill(&kept),
                    fill(&gone),
                    format!("DROP TABLE {gone}"),
                    format!("TRUNCATE TABLE {emptied}"),
                    fill(&emptied),
                    format!("UPDATE i.large_{place} SET v = 'changed' WHERE id % 1000 = {number}"),
                ])
                .unwrap();
        }
    };
    let copied_again = Mutex::new(Vec::new());
    let each_phase = OnEvents(|event| match event {
        Event::Phase { name: "copy" | "stop" } => make(),
        Event::Note { text } if text.contains("tablespaces new or changed") => {
            copied_again.lock().unwrap().push(text.clone());
        }
        _ => {}
    });
    let copy =
        at_point("backup.tablespaces.copied", make, || recovered_told(&source, options.clone(), &each_phase));
    assert_equal_checksums(&source, &copy.server).unwrap();
    assert_eq!(made.into_inner(), 3);
    let CaptureStats { files_recopied, pages_recopied, bytes_under_ddl_lock, .. } = copy.stats;
    let size = |file: &str| fs::metadata(source.datadir().join(file)).unwrap().len();
    let shared_bytes = size("ibdata1") + size("general.ibd");
    println!(
        "{files_recopied} files, {pages_recopied} pages copied again; {bytes_under_ddl_lock} of {shared_bytes} bytes"
    );
    // A table of the server's own that was just created on a new server may be.
    let copied_again = copied_again.into_inner().unwrap();
    assert!(files_recopied <= 1, "{copied_again:?}");
    let is_whole = |text: &String| text.contains("ibdata1") || text.contains("general.ibd");
    assert!(!copied_again.iter().any(is_whole), "{copied_again:?}");
    assert!(pages_recopied > 0 && bytes_under_ddl_lock < shared_bytes / 2, "{bytes_under_ddl_lock}");
}

#[test]
fn mariadb_10_11_words_that_are_sorted_during_the_copy_are_captured() {
    words_that_are_sorted_meanwhile_are_captured(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_words_that_are_sorted_during_the_copy_are_captured() {
    words_that_are_sorted_meanwhile_are_captured(ServerKind::MySql97);
}
