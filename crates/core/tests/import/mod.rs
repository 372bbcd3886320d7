//! Imports of dumps by other tools.
//! The reference is the dumped server: a backup of it must not differ from the imported dump.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::sleep,
    time::Duration,
};

use holdfast_core::{
    Cancel, Error, ErrorKind, Result,
    backup::BackupOptions,
    logical::{
        LogicalReport, Selection,
        diff::{DiffOptions, DiffSink, ObjectChange, RowChange, TableDiff, TablePair, diff},
        import::{self, ImportOptions, Input},
        load::{self, LoadOptions},
    },
    points::set_hook,
    server::{ConnectOptions, programs::RunAs},
};
use holdfast_repo::{
    Repo, RunNo,
    data::reader::Backup,
    log::history::History,
    ops::{
        expire::{ExpireRequest, Rules, plan_expire},
        retention::{Reason, RetentionPolicy},
    },
    store::fs::FsStore,
};
use holdfast_testkit::{Server, ServerKind};
use jiff::tz::TimeZone;
use rustix::process::{Signal, getegid, geteuid, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::{
    listeners::Told,
    logical::{Stage, load_torture, log},
    physical::password,
};

mod directories;
mod killed;
mod refused;

/// Removes everything that the dump programs write incorrectly, or cannot write at all.
const WITHOUT_WHAT_DUMPS_CANNOT_SAY: [&str; 14] = [
    "DROP VIEW torture.broken",
    // FLOAT values with more than six digits.
    "UPDATE torture.numbers SET f = 1.5, fm = 2.5",
    // The sign of a zero.
    "UPDATE torture.numbers SET d = 0, dm = 0 WHERE id = 3",
    // Two letters of a character set that share one code with those of others.
    "ALTER TABLE torture.texts DROP COLUMN sj, DROP COLUMN sw",
    // Comments of stored programs in the character set of the program.
    "ALTER PROCEDURE torture.latin_procedure COMMENT 'plain'",
    // Comments of stored programs under NO_BACKSLASH_ESCAPES, which servers print as if escapes were enabled.
    "ALTER PROCEDURE torture.`odd;; procedure` COMMENT 'plain'",
    "DROP EVENT torture.of_modes",
    // Backticks in names of foreign keys and their columns, which MariaDB 11 does not double.
    "ALTER TABLE `odd ``name.with/all%#`.`ba``ck` DROP FOREIGN KEY `k``k`",
    // An invalid date, which needs a mode that dumps do not set.
    "DELETE FROM torture.times WHERE id = 3",
    // Members are dumped by name: invalid ones have none, and the first name that the collation
    // considers equal is used.
    "DELETE FROM torture.members WHERE id IN (6, 7)",
    "UPDATE torture.members SET s = 1 WHERE s = 4",
    "UPDATE torture.members SET e = 1 WHERE e = 4",
    "CREATE DATABASE `empty` CHARACTER SET utf8mb4",
    "CREATE TABLE torture.stamped (id INT PRIMARY KEY, at TIMESTAMP(3) NOT NULL)",
];
const AND_OF_MARIADB: [&str; 5] = [
    "DELETE FROM torture.documents WHERE id = 10",
    "ALTER TABLE torture.own_types ALTER COLUMN e SET DEFAULT 'x'",
    "DROP TABLE torture.versioned",
    "DROP TABLE torture.versioned_named",
    "DROP TABLE torture.versioned_parts",
];
const DATABASES: [&str; 4] = ["torture", "größe", "odd `name.with/all%#", "empty"];

/// Collects every difference.
#[derive(Default)]
struct Differences(Vec<String>);

impl DiffSink for Differences {
    fn object(&mut self, change: &ObjectChange) -> Result<()> {
        let text = |it: &Option<serde_json::Value>| it.as_ref().map(ToString::to_string);
        let (before, after) = (serde_json::to_value(&change.before), serde_json::to_value(&change.after));
        let (before, after) = (text(&before.ok()), text(&after.ok()));
        self.0.push(format!("{} {}:\n{before:?}\n{after:?}", change.name.object, change.name.name));
        Ok(())
    }

    fn row(&mut self, _: &TablePair, change: RowChange<'_>) -> Result<()> {
        if self.0.len() < 20 {
            self.0.push(format!("{change:?}").chars().take(400).collect());
        }
        Ok(())
    }

    fn table(&mut self, table: TableDiff<'_>) -> Result<()> {
        if !table.counts.is_empty() || table.rows_before != table.rows_after {
            self.0.push(format!("{table:?}"));
        }
        Ok(())
    }
}

fn opened(repo: &Arc<Repo>, run: u64) -> Backup {
    Backup::open(repo, &History::read(repo, &log()).unwrap(), RunNo(run)).unwrap()
}

fn assert_no_difference(repo: &Arc<Repo>, before: u64, after: u64) {
    let mut found = Differences::default();
    let (one, other) = (opened(repo, before), opened(repo, after));
    let totals = diff(&one, &other, &DiffOptions::default(), &mut found, &Cancel::default()).unwrap();
    assert!(totals.is_equal() && totals.tables > 0, "{}", found.0.join("\n"));
}

fn standing(repo: &Arc<Repo>) -> usize {
    History::read(repo, &log()).unwrap().standing().count()
}

/// A working directory, which must be empty in the end.
fn work_dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn assert_empty(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn options(input: &Path, kind: ServerKind, work_dir: &Path) -> ImportOptions {
    ImportOptions {
        server_binary: Some(kind.server_program().unwrap()),
        // No other user can enter our scratch directories.
        run_as: Some(RunAs { uid: geteuid().as_raw(), gid: getegid().as_raw() }),
        work_dir: work_dir.to_owned(),
        server_memory_bytes: 64 << 20,
        ..ImportOptions::new(Input::of(input).unwrap())
    }
}

fn backup_options() -> BackupOptions {
    BackupOptions { name: Some(log().source), parallel: 2, ..BackupOptions::new(ConnectOptions::default()) }
}

fn import(repo: &Arc<Repo>, options: &ImportOptions) -> Result<LogicalReport, Error> {
    import::run(repo, options, &backup_options(), &Told, &Cancel::default())
}

/// Runs the server's own dump program, with output to a file.
fn dump(server: &Server, more: &[&str], to: &Path) {
    let is_mariadb = server.kind().is_mariadb();
    let program = server.kind().program(if is_mariadb { "mariadb-dump" } else { "mysqldump" }).unwrap();
    let output = Command::new(program)
        .args(["--no-defaults", "--user=root", "--max-allowed-packet=64M"])
        .arg(format!("--socket={}", server.socket().display()))
        .args(["--routines", "--triggers", "--events", "--single-transaction"])
        .args(more)
        .stdout(File::create(to).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// An imported dump of everything equals a backup of the server, and takes next to no additional space.
fn becomes_the_same(kind: ServerKind) {
    let mut stage = Stage::new(kind);
    let source = &stage.source;
    load_torture(source);
    source.exec_all(WITHOUT_WHAT_DUMPS_CANNOT_SAY).unwrap();
    source.exec("INSERT INTO torture.stamped VALUES (1, '2026-10-25 01:30:00.123')").unwrap();
    if kind.is_mariadb() {
        source.exec_all(AND_OF_MARIADB).unwrap();
    }
    let selection = Selection { without_accounts: true, ..Selection::default() };
    let taken = stage.back_up(&stage.options(), &selection).unwrap();

    let (work, files) = (work_dir(), tempfile::tempdir().unwrap());
    let path = files.path().join("dump.sql");
    let position = if kind.is_mariadb() { "--master-data=2" } else { "--source-data=2" };
    dump(&stage.source, &[&[position, "--databases"], &DATABASES[..]].concat(), &path);
    let imported = import(&stage.repo, &options(&path, kind, work.path())).unwrap();
    assert_empty(work.path());
    assert_no_difference(&stage.repo, taken.run.backup, imported.run.backup);
    assert_eq!((imported.run.base, imported.read.rows), (Some(taken.run.backup), taken.read.rows));
    let stored = (imported.run.totals.bytes_stored, taken.run.totals.bytes_stored);
    assert!(stored.0 < stored.1 / 10, "{stored:?}");

    // The facts in the dump about itself are preserved.
    let origin = imported.import.unwrap();
    let found = origin.position.unwrap().binlog.unwrap();
    let at = taken.position.unwrap().binlog.unwrap();
    assert_eq!(found, at);
    let version: String = stage.source.value("SELECT @@version").unwrap();
    assert!(
        version.starts_with(origin.server_version.as_deref().unwrap().trim_end_matches("-log")),
        "{version}"
    );
    assert!(
        origin.dumped_at.is_some()
            && origin.tool.is_some()
            && origin.bytes == fs::metadata(&path).unwrap().len()
    );
    assert!(imported.position.is_none());

    // The history is still the server's, which continues it.
    let again = stage.back_up(&stage.options(), &selection).unwrap();
    assert_no_difference(&stage.repo, imported.run.backup, again.run.backup);

    // Written and compressed differently, the dump is still the same.
    if kind.is_mariadb() {
        dump(&stage.source, &[&["--hex-blob", "--databases"], &DATABASES[..]].concat(), &path);
    } else {
        // Then mysqldump switches a statistic of the server off, too.
        dump(&stage.source, &["--hex-blob", "--all-databases"], &path);
    }
    let packed = files.path().join("dump.sql.gz");
    let mut gzip = flate2::write::GzEncoder::new(File::create(&packed).unwrap(), flate2::Compression::fast());
    gzip.write_all(&fs::read(&path).unwrap()).unwrap();
    gzip.finish().unwrap();
    let of_everything =
        ImportOptions { without_accounts: !kind.is_mariadb(), ..options(&packed, kind, work.path()) };
    let second = import(&stage.repo, &of_everything).unwrap();
    assert_no_difference(&stage.repo, imported.run.backup, second.run.backup);
    assert!(second.run.totals.bytes_stored < stored.1 / 10, "{:?}", second.run.totals);
    assert!(second.import.unwrap().position.is_none_or(|it| it.binlog.is_none()));

    // Retention rules do not apply to dumps, and none is the latest backup.
    let history = History::read(&stage.repo, &log()).unwrap();
    assert_eq!(history.newest_taken(), Some(RunNo(again.run.backup)));
    let policy = RetentionPolicy { last: 1, daily: 7, ..RetentionPolicy::default() };
    let rules = ExpireRequest::ByRules(Rules::by_age(policy, TimeZone::UTC));
    let plan = plan_expire(&stage.repo, &history, &rules, stage.repo.now().unwrap()).unwrap();
    assert_eq!(plan.dropped, [RunNo(taken.run.backup)]);
    let kept: Vec<_> = plan.kept.iter().map(|kept| (kept.run.0, kept.reasons[0])).collect();
    let imports = [imported.run.backup, second.run.backup].map(|run| (run, Reason::Imported));
    assert_eq!(kept, [imports[0], (again.run.backup, Reason::Last), imports[1]]);

    // A different server is still detected, although a dump came in between.
    stage.source = crate::logical::start(kind);
    stage.source.exec("CREATE DATABASE other").unwrap();
    let error = stage.back_up(&stage.options(), &selection).unwrap_err();
    assert!(error.to_string().contains("is another server"), "{error}");
}

#[test]
fn dumps_of_mariadb_10_11() {
    becomes_the_same(ServerKind::MariaDb1011);
}

#[test]
fn dumps_of_mariadb_11_8() {
    becomes_the_same(ServerKind::MariaDb118);
}

#[test]
fn dumps_of_mysql_9_7() {
    becomes_the_same(ServerKind::MySql97);
}

/// A dump without rows becomes a part that a load does not take for all; tables that are only empty are whole.
#[test]
fn dumps_without_rows_are_parts() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let stage = Stage::new(kind);
        stage
            .source
            .exec_all([
                "CREATE DATABASE shop",
                "CREATE TABLE shop.orders (id INT PRIMARY KEY, v INT)",
                "CREATE TABLE shop.untouched (id INT PRIMARY KEY)",
                "CREATE VIEW shop.shown AS SELECT id FROM shop.orders",
                "INSERT INTO shop.orders VALUES (1, 2)",
            ])
            .unwrap();
        let (work, files) = (work_dir(), tempfile::tempdir().unwrap());
        let path = files.path().join("dump.sql");
        let imported = |more: &[&str]| {
            dump(&stage.source, more, &path);
            let report = import(&stage.repo, &options(&path, kind, work.path())).unwrap();
            let history = History::read(&stage.repo, &log()).unwrap();
            let is_part = history.outcome(RunNo(report.run.backup)).unwrap().part.is_some();
            (report.run.backup, report.import.unwrap().left_out, is_part, report.read.rows)
        };
        let (backup, left_out, is_part, rows) = imported(&["--no-data", "--databases", "shop"]);
        assert!(is_part && rows == 0 && left_out.len() == 1, "{left_out:?}");
        assert!(
            left_out[0].starts_with("rows of shop.orders, shop.untouched: the dump holds none"),
            "{left_out:?}"
        );
        let target = crate::logical::start(kind);
        let load = |leave_out| {
            let chosen = LoadOptions { leave_out, ..LoadOptions::new(crate::server::options(&target)) };
            load::run(&stage.repo, &log(), RunNo(backup), &chosen, &Told, &Cancel::default())
        };
        let error = load(false).unwrap_err();
        assert!(error.to_string().contains("rows of table shop.orders"), "{error}");
        load(true).unwrap();
        assert_eq!(target.query::<u64>("SELECT COUNT(*) FROM shop.shown").unwrap(), [0]);

        for less in ["--comments", "--skip-comments", "--skip-add-locks"] {
            dump(&stage.source, &[less, "--databases", "shop"], &path);
            let options = ImportOptions { without_end_mark: true, ..options(&path, kind, work.path()) };
            let report = import(&stage.repo, &options).unwrap();
            let history = History::read(&stage.repo, &log()).unwrap();
            assert!(report.import.unwrap().left_out.is_empty());
            assert!(history.outcome(RunNo(report.run.backup)).unwrap().part.is_none());
        }
        // The rows of one table only.
        dump(&stage.source, &["--databases", "shop"], &path);
        let with_all = fs::read_to_string(&path).unwrap();
        let words = ["data for table `orders`", "`orders` WRITE", "INTO `orders`", "(1,2);"];
        let of_orders = |line: &&str| !words.iter().any(|word| line.contains(word));
        fs::write(&path, with_all.lines().filter(of_orders).collect::<Vec<_>>().join("\n")).unwrap();
        let options = ImportOptions { without_end_mark: true, ..options(&path, kind, work.path()) };
        let left_out = import(&stage.repo, &options).unwrap().import.unwrap().left_out;
        assert!(left_out[0].starts_with("rows of shop.orders: the dump"), "{left_out:?}");
        // Other tools do not announce what is empty.
        let of_another = fs::read_to_string(&path).unwrap().replace(" dump ", " export ");
        fs::write(&path, of_another).unwrap();
        let left_out = import(&stage.repo, &options).unwrap().import.unwrap().left_out;
        assert!(left_out.is_empty(), "{left_out:?}");
    }
}
