//! Logical backups of real servers. The reference is the servers: a loaded copy must have the checksums and
//! definitions of the source, and be at the recorded position.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use holdfast_core::{
    Cancel, Result,
    backup::BackupOptions,
    logical::{self, LogicalReport, Selection, script},
    server::LockPolicy,
};
use holdfast_repo::{Kind, LogName, Repo, RunNo, data::reader::Backup, log::history::History};
use holdfast_testkit::{
    Server, ServerKind, ServerOptions,
    checksum::{Checksums, checksums, differences},
};
use mysql::{Row, Value, prelude::Queryable};
use tempfile::TempDir;

use crate::listeners::Told;

mod charsets;
mod consistency;
pub(crate) mod delimited;
mod diff;
mod disturbed;
mod elsewhere;
pub(crate) mod export;
mod keys;
mod locks;
mod own_names;
mod privileges;
mod rate;
mod replica;
pub(crate) mod round_trip;

/// A server and a repository for it.
pub(crate) struct Stage {
    pub(crate) source: Server,
    pub(crate) repo: Arc<Repo>,
    dir: TempDir,
}

pub(crate) fn log() -> LogName {
    LogName { source: "db1".parse().unwrap(), kind: Kind::Logical }
}

/// A server with the plugins and settings that the tests need.
pub(crate) fn start(kind: ServerKind) -> Server {
    start_with(kind, &[])
}

fn start_with(kind: ServerKind, args: &[&str]) -> Server {
    let options =
        ServerOptions::default().arg("--log-bin-trust-function-creators=1").arg("--event-scheduler=OFF");
    let options = args.iter().fold(options, |options, arg| options.arg(*arg));
    Server::start(kind, options).unwrap()
}

impl Stage {
    pub(crate) fn new(kind: ServerKind) -> Stage {
        Stage::with(kind, &[])
    }

    /// Starts the server with additional options.
    fn with(kind: ServerKind, args: &[&str]) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        Stage {
            source: start_with(kind, args),
            repo: crate::physical::new_repo(&dir.path().join("repo")),
            dir,
        }
    }

    pub(crate) fn options(&self) -> BackupOptions {
        BackupOptions {
            locks: LockPolicy { held_max: crate::server::LOCK_MAX, ..LockPolicy::default() },
            name: Some(log().source),
            parallel: 3,
            ..BackupOptions::new(crate::server::options(&self.source))
        }
    }

    pub(crate) fn back_up(&self, options: &BackupOptions, selection: &Selection) -> Result<LogicalReport> {
        logical::run(&self.repo, options, selection, &Told, &Cancel::default())
    }

    pub(crate) fn script(&self, backup: u64, table: Option<&str>) -> Vec<u8> {
        let history = History::read(&self.repo, &log()).unwrap();
        let backup = Backup::open(&self.repo, &history, RunNo(backup)).unwrap();
        let table = table.map(|table| table.parse().unwrap());
        let mut script = Vec::new();
        script::write(&backup, table.as_ref(), &mut script, &Cancel::default()).unwrap();
        script
    }

    /// Loads the backup into another new server of this kind.
    fn loaded(&self, backup: u64) -> Server {
        let target = start(self.source.kind());
        load(&target, &self.script(backup, None));
        target
    }

    /// The directory of the repository.
    pub(crate) fn repo_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("repo")
    }

    /// The number of listed backups, to check that unfinished ones are not listed.
    fn backups(&self) -> usize {
        History::read(&self.repo, &log()).unwrap().standing().count()
    }
}

/// Loads a script as a user would, without writing to the binlog.
pub(crate) fn load(server: &Server, script: &[u8]) {
    let mut client = Command::new(server.kind().client_program().unwrap())
        .args(["--no-defaults", "--user=root", "--binary-mode", "--comments", "--max-allowed-packet=64M"])
        .arg("--init-command=SET SESSION sql_log_bin = 0")
        .arg(format!("--socket={}", server.socket().display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = client.stdin.take().unwrap();
    let fed = input.write_all(script);
    drop(input);
    let output = client.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", server.kind());
    fed.unwrap();
}

/// Removes from the torture schema what CSV cannot express.
pub(crate) const WITHOUT_WHAT_CSV_CANNOT_SAY: [&str; 4] = [
    "ALTER TABLE torture.texts DROP COLUMN sj, DROP COLUMN sw",
    // Invalid members have no name, and an unnamed member of a set is empty text.
    "DELETE FROM torture.members WHERE id IN (6, 7)",
    "UPDATE torture.members SET s = 1 WHERE s = 4",
    // The server uses the first member that its collation considers equal.
    "UPDATE torture.members SET e = 1 WHERE e = 4",
];

/// Loads a file from the directory of this module.
pub(crate) fn load_file(server: &Server, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logical").join(name);
    load(server, &fs::read(path).unwrap());
}

/// Checksums of the tables that are not the server's own.
pub(crate) fn user_checksums(server: &Server) -> Checksums {
    let mut sums = checksums(server).unwrap();
    // MySQL's checksum of a table with functional keys varies.
    sums.retain(|name, _| !name.starts_with("`mysql`.") && !name.ends_with("`expression_keys`"));
    sums
}

/// Fills a server with every type and every kind of object that it knows.
pub(crate) fn load_torture(server: &Server) {
    load_file(server, "torture.sql");
    load_file(server, if server.kind().is_mariadb() { "torture-mariadb.sql" } else { "torture-mysql.sql" });
    if server.kind() == ServerKind::MariaDb118 {
        let unlogged = "SET SESSION sql_log_bin = 0";
        let make = "CREATE TABLE torture.vectors (id INT PRIMARY KEY, e VECTOR(3) NOT NULL, n VECTOR(2), VECTOR INDEX (e))";
        let fill = "INSERT INTO torture.vectors SELECT id, VEC_FromText(CONCAT('[', id, ', -2.5, 3e-10]')), \
                    IF(id % 2, NULL, x'0000803F000080BF') FROM (SELECT 1 id UNION SELECT 2 UNION SELECT 3) t";
        server.exec_all([unlogged, make, fill]).unwrap();
    }
}

pub(crate) fn assert_same_rows(source: &Server, target: &Server) {
    let (left, right) = (user_checksums(source), user_checksums(target));
    let differing = differences(&left, &right);
    assert!(differing.is_empty(), "{}: {}", source.kind(), differing.join("\n"));
    assert!(!left.is_empty());
}

/// Descriptions of each object that is not the server's own: the queries and their results.
pub(crate) fn described(server: &Server) -> BTreeMap<String, Vec<Vec<Option<Vec<u8>>>>> {
    let mut conn = server.conn().unwrap();
    conn.query_drop("SET NAMES utf8mb4").unwrap();
    conn.query_drop("SET SESSION group_concat_max_len = 1000000").unwrap();
    let own = "('mysql', 'sys', 'information_schema', 'performance_schema')";
    let name = |schema: &str, name: &str| {
        format!("CONCAT('`', REPLACE({schema}, '`', '``'), '`.`', REPLACE({name}, '`', '``'), '`')")
    };
    let mut asked: Vec<String> = Vec::new();
    for query in [
        format!("SELECT CONCAT('SHOW CREATE DATABASE `', REPLACE(schema_name, '`', '``'), '`') FROM information_schema.schemata WHERE schema_name NOT IN {own}"),
        format!("SELECT CONCAT('SHOW CREATE TABLE ', {}) FROM information_schema.tables WHERE table_schema NOT IN {own}", name("table_schema", "table_name")),
        format!("SELECT CONCAT('SHOW CREATE ', routine_type, ' ', {}) FROM information_schema.routines WHERE routine_schema NOT IN {own}", name("routine_schema", "routine_name")),
        format!("SELECT CONCAT('SHOW CREATE TRIGGER ', {}) FROM information_schema.triggers WHERE trigger_schema NOT IN {own}", name("trigger_schema", "trigger_name")),
        format!("SELECT CONCAT('SHOW CREATE EVENT ', {}) FROM information_schema.events WHERE event_schema NOT IN {own}", name("event_schema", "event_name")),
        "SELECT CONCAT('SHOW GRANTS FOR ', IF(host = '', QUOTE(user), CONCAT(QUOTE(user), '@', QUOTE(host)))) FROM mysql.user WHERE user NOT IN ('root')".to_owned(),
        "SELECT CONCAT('SHOW CREATE USER ', QUOTE(user), '@', QUOTE(host)) FROM mysql.user WHERE host <> ''".to_owned(),
    ] {
        asked.extend(conn.query::<String, _>(query).unwrap());
    }
    // Names that the server's collation cannot tell apart come in any order without a cast.
    let as_bytes = |names: &[&str]| {
        names.iter().map(|name| format!("CAST({name} AS BINARY)")).collect::<Vec<_>>().join(", ")
    };
    for query in [
        format!(
            "SELECT trigger_schema, event_object_table, trigger_name, action_timing, event_manipulation, action_order FROM information_schema.triggers WHERE trigger_schema NOT IN {own} ORDER BY {}",
            as_bytes(&["trigger_schema", "event_object_table", "trigger_name"])
        ),
        format!(
            "SELECT table_schema, table_name, column_name, column_type, column_default, extra FROM information_schema.columns WHERE table_schema NOT IN {own} AND table_name <> 'broken' ORDER BY {}, ordinal_position",
            as_bytes(&["table_schema", "table_name"])
        ),
        format!(
            "SELECT routine_schema, routine_name, routine_type, sql_mode, routine_comment, routine_definition, definer FROM information_schema.routines WHERE routine_schema NOT IN {own} ORDER BY {}",
            as_bytes(&["routine_schema", "routine_name", "routine_type"])
        ),
    ] {
        asked.push(query);
    }
    // Text as it is stored, independent of the client that created it.
    conn.query_drop("SET SESSION character_set_results = NULL").unwrap();
    let mut answers = BTreeMap::new();
    for query in asked.into_iter().filter(|query| !query.ends_with("`.`broken`")) {
        let rows: Vec<Row> = conn.query(&query).unwrap();
        let value = |value: Option<Value>| match value {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        };
        // Times of creation differ.
        let timeless = |row: Row| {
            let made = row.columns_ref().iter().position(|column| column.name_str() == "Created");
            let mut values: Vec<_> = row.unwrap_raw().into_iter().map(value).collect();
            if let Some(made) = made {
                values.remove(made);
            }
            values
        };
        answers.insert(query, rows.into_iter().map(timeless).collect());
    }
    answers
}

/// Which of these introducers MySQL prints before ASCII text depends on whether the table was made by
/// `CREATE` or by `ALTER`.
fn without_introducers(rows: Vec<Vec<Option<String>>>) -> Vec<Vec<Option<String>>> {
    let plain = |text: String| {
        let mut plain = text;
        for introducer in ["_utf8mb4'", "_latin1'"] {
            let mut pieces = plain.split(introducer);
            let mut found = pieces.next().unwrap_or_default().to_owned();
            for piece in pieces {
                let is_ascii = piece.split('\'').next().is_some_and(str::is_ascii);
                found += if is_ascii { "'" } else { introducer };
                found += piece;
            }
            plain = found;
        }
        plain
    };
    rows.into_iter().map(|row| row.into_iter().map(|value| value.map(plain)).collect()).collect()
}

pub(crate) fn assert_same_objects(source: &Server, target: &Server) {
    let (left, right) = (described(source), described(target));
    for (query, answer) in &left {
        let shown = |rows: Option<&Vec<Vec<Option<Vec<u8>>>>>| {
            let text = |value: &Option<Vec<u8>>| {
                value.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            };
            rows.map(|rows| {
                rows.iter().map(|row| row.iter().map(text).collect::<Vec<_>>()).collect::<Vec<_>>()
            })
        };
        let other = right.get(query);
        let is_same = match query.starts_with("SHOW CREATE TABLE") && !source.kind().is_mariadb() {
            true => shown(other).map(without_introducers) == shown(Some(answer)).map(without_introducers),
            false => other == Some(answer),
        };
        assert!(is_same, "{}: {query}\n{:#?}\n{:#?}", source.kind(), shown(Some(answer)), shown(other));
    }
    let more: Vec<_> = right.keys().filter(|query| !left.contains_key(*query)).collect();
    assert!(more.is_empty(), "{more:?}");
}
