//! Tables that `ALTER … ALGORITHM=COPY` is copying while the capture ends. Blocked definitions do not stop such a
//! statement until it has copied all rows, and do not keep it from giving up: then the new table goes, under
//! the locks. Nothing of it may be left in a copy of the server.

use std::{
    thread::{self, JoinHandle},
    time::Instant,
};

use mysql::prelude::Queryable;

use super::*;
use crate::capture::races::OnEvents;

/// When the statement ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// When definitions are blocked: it waits for that to end, and for no longer than a second.
    WaitingForTheLock,
    /// When its new file has been listed as one to be copied.
    Listed,
    /// When commits are blocked.
    CommitsBlocked,
    /// After the capture.
    Later,
}

const WAIT_MAX: Duration = Duration::from_secs(120);
const KILLED: u16 = 1317;
const LOCK_WAIT: u16 = 1205;

/// A statement that copies a table up to a row in the middle, which it has to wait for.
pub(crate) struct Copying<'a> {
    server: &'a Server,
    id: u32,
    running: JoinHandle<mysql::Result<()>>,
}

impl<'a> Copying<'a> {
    /// The row is locked by a prepared branch whose session has ended: that leaves the table itself free.
    pub(crate) fn start(server: &'a Server, table: &str) -> Self {
        server
            .exec_all([
                "XA START 'row'",
                &format!("UPDATE {table} SET v = REVERSE(v) WHERE id = 1500"),
                "XA END 'row'",
                "XA PREPARE 'row'",
            ])
            .unwrap();
        let mut conn = server.conn().unwrap();
        conn.query_drop("SET lock_wait_timeout = 1, innodb_lock_wait_timeout = 600").unwrap();
        let id = conn.connection_id();
        let statement = format!("ALTER TABLE {table} FORCE, ALGORITHM=COPY, LOCK=SHARED");
        let running = thread::spawn(move || conn.query_drop(statement));
        let waits = format!(
            "SELECT COUNT(*) FROM information_schema.innodb_trx
             WHERE trx_mysql_thread_id = {id} AND trx_state = 'LOCK WAIT'"
        );
        let begun = Instant::now();
        while server.value::<u64>(&waits).unwrap() == 0 {
            assert!(begun.elapsed() < WAIT_MAX && !running.is_finished(), "{table} is not copied");
            // The server keeps what it has told until nobody has asked for a tenth of a second.
            sleep(Duration::from_millis(200));
        }
        Self { server, id, running }
    }

    /// Gives it the row, and returns what it ends with.
    pub(crate) fn goes_on(self) -> mysql::Result<()> {
        self.server.exec("XA ROLLBACK 'row'").unwrap();
        self.running.join().unwrap()
    }

    /// Its error code when it is killed. It cleans up as after any error of its own.
    fn killed(self) -> u16 {
        self.server.exec(format!("KILL QUERY {}", self.id)).unwrap();
        code(self.running.join().unwrap())
    }
}

fn code(ended: mysql::Result<()>) -> u16 {
    match ended {
        Err(mysql::Error::MySqlError(error)) => error.code,
        other => panic!("{other:?}"),
    }
}

/// Tables and files of InnoDB, in the schema, that look like those of a copying statement, or of a full-text index.
fn left(server: &Server, pattern: &str) -> Vec<String> {
    let mut left: Vec<String> = server
        .query(format!(
            "SELECT name FROM information_schema.innodb_sys_tables WHERE name LIKE 'd/%{pattern}%'
             UNION SELECT name FROM information_schema.innodb_sys_tablespaces WHERE name LIKE 'd/%{pattern}%'"
        ))
        .unwrap();
    left.extend(files(server.datadir(), pattern));
    left
}

/// Such files in the schema of a data directory.
pub(crate) fn files(datadir: &Path, pattern: &str) -> Vec<String> {
    let files = fs::read_dir(datadir.join("d")).unwrap();
    files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(pattern))
        .collect()
}

/// `words`: how many tables and files the full-text index has.
fn captured_while_copying(source: &Server, table: &str, words: usize, ends: Ends) {
    println!("{}: {table}, {ends:?}", source.kind());
    let copying = Mutex::new(None);
    let running = || copying.lock().unwrap().take().unwrap();
    let listener = OnEvents(|event| match event {
        Event::Phase { name: "stop" } => *copying.lock().unwrap() = Some(Copying::start(source, table)),
        Event::Note { text } if ends == Ends::Listed && text.contains("#sql") => {
            assert_eq!(running().killed(), KILLED);
        }
        _ => {}
    });
    let (point, action): (_, &dyn Fn()) = match ends {
        Ends::WaitingForTheLock => {
            ("backup.ddl.blocked", &|| assert_eq!(code(running().goes_on()), LOCK_WAIT))
        }
        Ends::CommitsBlocked => ("backup.commit.blocked", &|| assert_eq!(running().killed(), KILLED)),
        Ends::Listed | Ends::Later => ("backup.locks.released", &|| {}),
    };
    let dir = tempfile::tempdir().unwrap();
    let sink = DirectorySink::new(dir.path().join("staging"));
    let captured = at_point(point, action, || {
        let captured = capture_told(source, &sink, dir.path(), &listener);
        assert_eq!(
            captured.stats.locks.iter().filter(|lock| lock.statement == "BACKUP STAGE FLUSH").count(),
            1
        );
        captured
    });
    if ends == Ends::Later {
        running().goes_on().unwrap();
    }
    assert!(copying.lock().unwrap().is_none());
    let target = dir.path().join("data");
    sink.place(&target);
    if ends == Ends::CommitsBlocked {
        // Whether a server would remove it does not matter then.
        assert_eq!(files(&target, "#sql"), Vec::<String>::new());
        assert_eq!(files(&target, "FTS_").len(), files(source.datadir(), "FTS_").len());
    }
    lay_out_redo(&target, &captured.redo);
    let mut copy = Server::attach(source.kind(), target, ServerOptions::default()).unwrap();
    let end = format!("End of log at LSN={}\n", captured.position.lsn);
    assert!(copy.log().contains(&end), "{end}: {}", copy.log());
    if ends != Ends::WaitingForTheLock {
        copy.exec("XA ROLLBACK 'row'").unwrap();
    }
    if !matches!(ends, Ends::WaitingForTheLock | Ends::Later) {
        source.exec("XA ROLLBACK 'row'").unwrap();
    }
    // The purge removes files of dropped tables. With this, the server does not end before it has.
    copy.exec("SET GLOBAL innodb_fast_shutdown = 0").unwrap();
    copy.restart().unwrap();
    assert_eq!(left(&copy, "#sql"), Vec::<String>::new());
    assert_eq!(left(&copy, "FTS_").len(), words, "{:?}", left(&copy, "FTS_"));
    assert_equal_checksums(source, &copy).unwrap();
    let checked: Vec<(String, String, String, String)> =
        copy.query(format!("CHECK TABLE {table} EXTENDED")).unwrap();
    assert!(checked.iter().all(|row| row.3 == "OK"), "{checked:?}");
    let found = "SELECT COUNT(*) FROM d.words WHERE MATCH (v) AGAINST ('word3')";
    assert_eq!(copy.value::<u64>(found).unwrap(), source.value::<u64>(found).unwrap());
}

fn captured_while_tables_are_copied(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE d",
            "CREATE TABLE d.plain (id INT PRIMARY KEY, v VARCHAR(150)) ENGINE=InnoDB",
            "CREATE TABLE d.words (id INT PRIMARY KEY, v VARCHAR(150), FULLTEXT KEY w (v)) ENGINE=InnoDB",
            "INSERT INTO d.plain SELECT seq, CONCAT('word', seq % 7, ' ', SHA2(seq, 512)) FROM d.seq_1_to_3000",
            "INSERT INTO d.words SELECT * FROM d.plain",
        ])
        .unwrap();
    let words = left(&source, "FTS_").len();
    captured_while_copying(&source, "d.plain", words, Ends::WaitingForTheLock);
    captured_while_copying(&source, "d.plain", words, Ends::Listed);
    captured_while_copying(&source, "d.words", words, Ends::CommitsBlocked);
    captured_while_copying(&source, "d.words", words, Ends::Later);
}

#[test]
fn mariadb_10_11_captured_while_tables_are_copied_leaves_nothing_of_them() {
    captured_while_tables_are_copied(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_captured_while_tables_are_copied_leaves_nothing_of_them() {
    captured_while_tables_are_copied(ServerKind::MariaDb118);
}
