//! `binlog` on the command line: an archiver that is killed repeatedly, and the contents of its archive.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use holdfast_testkit::{Server, ServerKind, ServerOptions, replica, rng::Rng, sshd::Sshd};
use mysql::prelude::Queryable as _;
use serde_json::{Value, json};

use crate::program::{LOCKS, PASSWORD, Program, Run, run};

/// A server and a repository.
pub(crate) struct Scene {
    pub(crate) server: Server,
    pub(crate) program: Program,
}

impl Scene {
    pub(crate) fn new(kind: ServerKind) -> Self {
        Self::with(kind, ServerOptions::default())
    }

    pub(crate) fn with(kind: ServerKind, options: ServerOptions) -> Self {
        let server = Server::start(kind, options).unwrap();
        server
            .exec_all([
                "CREATE DATABASE d",
                "CREATE TABLE d.t (id BIGINT PRIMARY KEY, v VARBINARY(4000)) ENGINE=InnoDB",
            ])
            .unwrap();
        Self { server, program: Program::with_repository() }
    }

    pub(crate) fn archive(&self, words: &[&str]) -> Command {
        let mut command = self.program.command(&["binlog", "archive", "--name", "db1", "--no-defaults"]);
        command.args(["--user", "root", "--socket"]).arg(self.server.socket()).args(words);
        command
    }

    /// Archives what there is.
    pub(crate) fn archive_once(&self) {
        run(&mut self.archive(&["--once"])).expect_code(0);
    }

    pub(crate) fn list(&self, words: &[&str]) -> Run {
        self.program.run(&[&["binlog", "list", "--json"], words].concat())
    }

    /// Names and sizes of the server's binlog files.
    pub(crate) fn files(&self) -> Vec<(String, u64)> {
        let rows: Vec<mysql::Row> = self.server.query("SHOW BINARY LOGS").unwrap();
        rows.iter().map(|row| (row.get(0).unwrap(), row.get(1).unwrap())).collect()
    }

    fn is_archived(&self) -> bool {
        let (file, size) = self.files().pop().unwrap();
        let list = self.list(&[]);
        if list.code == 1 {
            // Nothing is archived yet.
            return false;
        }
        let last = list.expect_code(0).last()["data"]["files"].as_array().unwrap().last().cloned();
        last.is_some_and(|last| last["file"] == file && last["end"].as_u64() >= Some(size))
    }

    /// Checks that each binlog file comes out of the archive as it is on the server.
    pub(crate) fn compare_files(&self) {
        for (name, _) in self.files() {
            let cat = self.program.command(&["binlog", "cat", &name]).output().unwrap();
            assert!(cat.status.success(), "{cat:?}");
            let mut own = fs::read(self.server.datadir().join(&name)).unwrap();
            // The flag that is set while the file is being written.
            own[4 + 17] &= !1;
            assert!(
                cat.stdout == own,
                "{name}: {} bytes came out, {} are there",
                cat.stdout.len(),
                own.len()
            );
        }
    }
}

pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// An archiver that is killed at random moments and restarted leaves no gap and stores nothing twice; data
/// stored before a kill is adopted. The output equals what the server's own program reads.
fn killed(kind: ServerKind, seed: u64) {
    killed_at(&Scene::new(kind), seed, 6, &[], Scene::compare_files);
}

/// The same with encrypted binlogs, whose files reveal nothing about their contents.
#[test]
fn mariadb_11_8_archiver_of_encrypted_binlogs_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    fs::write(&keys, format!("1;{}\n", "0123456789abcdef".repeat(4))).unwrap();
    let options = ServerOptions::default()
        .init_arg("--plugin-load-add=file_key_management")
        .init_arg(format!("--file-key-management-filename={}", keys.display()))
        .init_arg("--encrypt-binlog=ON");
    killed_at(&Scene::with(ServerKind::MariaDb118, options), seed(), 3, &[], |_| {});
}

/// Data that was durable only on this host when the archiver was killed reaches the
/// repository with the next run.
#[test]
fn mysql_9_7_archiver_that_spools_is_killed() {
    let scene = Scene::new(ServerKind::MySql97);
    let dir = scene.program.path("spool");
    let words = ["--ack", "local", "--spool-dir", dir.to_str().unwrap()];
    killed_at(&scene, seed(), 4, &words, Scene::compare_files);
    let left = files_below(&dir).into_iter().filter(|path| !path.ends_with("lock")).collect::<Vec<_>>();
    assert!(left.is_empty(), "{left:?}");
}

/// All files below a directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

fn killed_at(scene: &Scene, seed: u64, rounds: u32, words: &[&str], compare_files: fn(&Scene)) {
    let mut rng = Rng::new(seed);
    let mut conn = scene.server.conn().unwrap();
    let mut row = 0_u64;
    for round in 0..rounds {
        let mut command = scene.archive(&["--segment-age", "50ms", "--run-size", "300K", "--run-age", "3s"]);
        command.args(words);
        let log = fs::File::create(scene.program.path("archive.log")).unwrap();
        let mut child = Killed(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let begin = Instant::now();
        let moment = Duration::from_millis(100 + rng.below(1500));
        while begin.elapsed() < moment {
            row += 1;
            let len = row * 37 % 3000;
            conn.query_drop(format!("INSERT INTO d.t VALUES ({row}, REPEAT('x', {len}))")).unwrap();
        }
        if round % 3 == 1 {
            conn.query_drop("FLUSH BINARY LOGS").unwrap();
        }
        let log = || fs::read_to_string(scene.program.path("archive.log")).unwrap();
        assert!(
            child.0.try_wait().unwrap().is_none(),
            "seed {seed}, round {round}: it ended by itself: {}",
            log()
        );
        drop(child);
    }
    let last = run(scene.archive(&["--once", "--json"]).args(words)).expect_code(0).last();
    assert_eq!(last["data"]["report"]["gaps"], json!([]), "seed {seed}: {last:#}");
    assert!(scene.is_archived(), "seed {seed}");
    compare_files(scene);
    let found = scene.list(&["--grep", "d.t"]).expect_code(0);
    let inserts = found.json().iter().filter(|line| line["data"]["tables"] == json!(["d.t"])).count();
    assert_eq!(inserts as u64, row, "seed {seed}");
    let check = scene.program.run(&["check", "--read-data"]);
    assert_eq!(check.code, 0, "seed {seed}: {check:#?}");
}

/// The seed; `HOLDFAST_FAULTS_SEED` repeats a run.
#[allow(clippy::print_stdout, reason = "how to repeat a run")]
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("HOLDFAST_FAULTS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed
        .unwrap_or_else(|| u64::from(std::process::id()) ^ jiff::Timestamp::now().as_microsecond() as u64);
    println!("HOLDFAST_FAULTS_SEED={seed}");
    seed
}

#[test]
fn mariadb_10_11_archiver_is_killed() {
    killed(ServerKind::MariaDb1011, seed());
}

#[test]
fn mysql_9_7_archiver_is_killed() {
    killed(ServerKind::MySql97, seed());
}

/// After loading a logical backup that was taken under writes, the target server executes the archived
/// transactions with its own programs: up to the one before the table was dropped, across files, and no
/// further. A MySQL server that has executed a part of it must not skip that part.
fn behind_a_logical_backup(kind: ServerKind) {
    let scene = Scene::new(kind);
    let conn = || scene.server.conn().unwrap();
    let insert = |conn: &mut mysql::Conn, row: u64| {
        conn.query_drop(format!("INSERT INTO d.t VALUES ({row}, REPEAT('x', {}))", row % 900)).unwrap();
    };
    let rows = |server: &Server| -> Vec<(u64, u64)> {
        server.query("SELECT id, LENGTH(v) FROM d.t ORDER BY id").unwrap()
    };
    scene.server.exec("INSERT INTO d.t VALUES (0, '')").unwrap();
    let is_taken = AtomicBool::new(false);
    let (taken, mut row) = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut conn, mut row) = (conn(), 0);
            while !is_taken.load(Ordering::Acquire) {
                row += 1;
                insert(&mut conn, row);
            }
            row
        });
        let mut command =
            scene.program.command(&["backup", "--name", "db1", "--method", "logical", "--json"]);
        let taken = run(command
            .args(["--no-defaults", "--user", "root", "--socket"])
            .arg(scene.server.socket())
            .args(&LOCKS[..2]));
        is_taken.store(true, Ordering::Release);
        (taken.expect_code(0).last(), writer.join().unwrap())
    });
    assert!(row > 0, "{taken:#}");
    let mut conn = conn();
    for number in 0..40 {
        row += 1;
        insert(&mut conn, row);
        if number == 20 {
            conn.query_drop("FLUSH BINARY LOGS").unwrap();
            conn.query_drop("ALTER TABLE d.t ADD COLUMN note VARCHAR(9) DEFAULT 'later'").unwrap();
            conn.query_drop("ALTER TABLE d.t DROP COLUMN note").unwrap();
        }
    }
    let wanted = rows(&scene.server);
    conn.query_drop("DROP TABLE d.t").unwrap();
    conn.query_drop("CREATE TABLE d.t (i INT)").unwrap();
    run(&mut scene.archive(&["--once"])).expect_code(0);
    let found = scene.list(&["--grep", "drop table"]).expect_code(0).json();
    let gtid = found[0]["data"]["gtid"].as_str().unwrap().to_owned();

    let target = Server::start(kind, ServerOptions::default()).unwrap();
    let load = |words: &[&str]| {
        let mut load = scene.program.command(&["restore", "db1/logical#1", "--to-server", "--no-defaults"]);
        load.args(["--user", "root", "--leave-out", "--socket"]).arg(target.socket()).args(words);
        run(&mut load).expect_code(0);
    };
    load(&[]);
    let file = scene.program.path("behind");
    let cat = |words: &[&str]| {
        drop(fs::remove_file(&file));
        let words = [&["binlog", "cat"], words, &["--output", file.to_str().unwrap(), "--json"]].concat();
        scene.program.run(&words)
    };
    cat(&["binlog.000001", "--at", "latest"]).expect_code(2);
    cat(&["--after", "db1/logical#1"]).expect_code(2);
    cat(&["--after", "db1/physical#1", "--at", "latest"]).expect_code(2);
    let replay = |words: &[&str]| {
        let done = cat(&[&["--after", "db1/logical#1"], words].concat()).expect_code(0).last();
        let reader = if kind.is_mariadb() { "mariadb-binlog" } else { "mysqlbinlog" };
        let reader =
            Command::new(kind.program(reader).unwrap()).arg("--no-defaults").arg(&file).output().unwrap();
        assert!(reader.status.success(), "{reader:?}");
        let statements = scene.program.path("statements");
        fs::write(&statements, &reader.stdout).unwrap();
        let mut client = Command::new(kind.client_program().unwrap());
        client.args(["--no-defaults", "--user=root", "--binary-mode"]).arg("--socket").arg(target.socket());
        let client = client.stdin(fs::File::open(&statements).unwrap()).output().unwrap();
        let told = String::from_utf8_lossy(&client.stderr).into_owned();
        (done, if client.status.success() { Ok(()) } else { Err(told) })
    };
    let mut words = vec!["--before-gtid", &*gtid];
    if !kind.is_mariadb() {
        // The first attempt ends midway.
        // A second attempt on freshly loaded tables would skip what the first one has executed.
        let found = scene.list(&["--grep", "add column"]).expect_code(0).json();
        let middle = found[0]["data"]["gtid"].as_str().unwrap();
        replay(&["--gtid", middle]).1.unwrap();
        let half = rows(&target).len();
        assert!(half > 0 && half < wanted.len(), "{half} of {}", wanted.len());
        load(&["--overwrite"]);
        let loaded = rows(&target);
        let told = replay(&words).1.unwrap_err();
        assert!(told.contains("NOTHING WAS DONE") && told.contains("--skip-gtids"), "{told}");
        assert_eq!(rows(&target), loaded);
        words.push("--skip-gtids");
    } else {
        cat(&["--after", "db1/logical#1", "--at", "latest", "--skip-gtids"]).expect_code(2);
    }
    let (done, replayed) = replay(&words);
    assert!(done["data"]["transactions"].as_u64().is_some_and(|count| count >= 42), "{done:#}");
    replayed.unwrap();
    assert_eq!(rows(&target), wanted, "{done:#}");
}

#[test]
fn mariadb_10_11_goes_on_behind_a_logical_backup() {
    behind_a_logical_backup(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_goes_on_behind_a_logical_backup() {
    behind_a_logical_backup(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_goes_on_behind_a_logical_backup() {
    behind_a_logical_backup(ServerKind::MySql97);
}

/// What an archiver with a writer's key leaves when it is killed stays in segments, since the next one cannot read
/// it, until an operator prunes. A damaged one is named, and given up by a repair.
#[test]
fn a_prune_files_what_writers_leave() {
    const WRITER: (&str, &str) = ("HOLDFAST_PASSWORD", "of the writer");
    let scene = Scene::new(ServerKind::MariaDb1011);
    let mut add = scene.program.command(&["key", "add", "--role", "writer"]);
    run(add.env("HOLDFAST_NEW_PASSWORD", WRITER.1)).expect_code(0);
    let segments = scene.program.repository().join("sources/db1/binlog/segments");
    let there = || -> Vec<PathBuf> {
        let mut all = if segments.exists() { files_below(&segments) } else { Vec::new() };
        all.sort();
        all
    };
    let is_killed_after = |segments: usize| {
        let before = there().len();
        let mut command = scene.archive(&["--segment-age", "50ms"]);
        let child = command.env(WRITER.0, WRITER.1).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = Killed(child.unwrap());
        let begin = Instant::now();
        while there().len() < before + segments {
            scene.server.exec("INSERT INTO d.t SELECT COALESCE(MAX(id), 0) + 1, 'v' FROM d.t").unwrap();
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", there());
            sleep(Duration::from_millis(50));
        }
        drop(child);
    };
    let once = || {
        scene.server.exec("INSERT INTO d.t SELECT COALESCE(MAX(id), 0) + 1, 'v' FROM d.t").unwrap();
        // The lease of the one that was killed has to run out.
        let begin = Instant::now();
        loop {
            let ended = run(scene.archive(&["--once"]).env(WRITER.0, WRITER.1));
            if ended.code != 8 || begin.elapsed() > Duration::from_secs(150) {
                return ended.expect_code(0);
            }
            sleep(Duration::from_secs(1));
        }
    };
    is_killed_after(3);
    once();
    let left = there();
    assert!(left.len() >= 3, "{left:?}");
    scene.compare_files();
    let other = scene.program.path("other");
    let at_other =
        |words: &[&str]| run(scene.program.command(words).env("HOLDFAST_REPO", &other)).expect_code(0);
    at_other(&["init"]);
    let copy_all = || {
        let mut command = scene.program.command(&["copy", "--all"]);
        run(command.env("HOLDFAST_TO", &other).env("HOLDFAST_TO_PASSWORD", PASSWORD))
    };
    let copy = || copy_all().expect_code(0);
    let copied = copy();
    assert!(copied.err.contains("have left in segments is not copied"), "{copied:#?}");
    let told = scene.program.run(&["prune", "--dry-run", "--json"]).expect_code(0).last();
    assert_eq!((&told["data"]["logs"][0]["filed_runs"], there()), (&json!(1), left));
    let pruned = scene.program.run(&["prune"]).expect_code(0);
    assert!(pruned.out.contains("segments of 1 run that died"), "{pruned:#?}");
    assert!(there().is_empty(), "{:?}", there());
    let listed = scene.list(&[]).expect_code(0).last();
    scene.compare_files();
    // A copy passes over no run that it cannot read, which may be readable again when it is too late.
    let listed_runs = scene.program.run(&["list", "--kind", "binlog", "--json"]).expect_code(0).last();
    let first = listed_runs["data"]["backups"][0]["run"].as_u64().unwrap();
    let outcome = scene.program.repository().join(format!("sources/db1/binlog/outcomes/{first:010}"));
    let whole = fs::read(&outcome).unwrap();
    fs::write(&outcome, b"damaged").unwrap();
    let stopped = copy_all().expect_code(7);
    assert!(stopped.err.contains("db1/binlog: ") && !stopped.out.contains("copied as"), "{stopped:#?}");
    fs::write(&outcome, whole).unwrap();
    let copied = copy();
    assert!(!copied.err.contains("segments"), "{copied:#?}");
    let there_too = at_other(&["binlog", "list", "--json"]).last();
    let files = |listed: &Value| -> Vec<Value> {
        let each = listed["data"]["files"].as_array().unwrap().iter();
        each.map(|file| json!([file["file"], file["begin"], file["end"], file["gap"]])).collect()
    };
    assert_eq!(files(&there_too), files(&listed));

    is_killed_after(3);
    let left = there();
    fs::write(&left[1], b"damaged").unwrap();
    once();
    let name = left[1].file_name().unwrap().to_str().unwrap();
    let listed = scene.program.run(&["binlog", "list"]).expect_code(3);
    assert!(listed.out.contains("UNREADABLE: ") && listed.out.contains(name), "{listed:#?}");
    scene.compare_files();
    let pruned = scene.program.run(&["prune"]).expect_code(3);
    assert!(pruned.out.contains(name), "{pruned:#?}");
    let repaired = scene.program.run(&["repair", "--yes"]).expect_code(0);
    assert!(repaired.out.contains(name), "{repaired:#?}");
    scene.program.run(&["check"]).expect_code(0);
    scene.program.run(&["prune"]).expect_code(0);
    scene.list(&[]).expect_code(0);
    scene.compare_files();

    // The server is gone: nobody continues.
    is_killed_after(3);
    let close = |writer: bool| {
        let mut command = scene.program.command(&["binlog", "close", "--json"]);
        run(if writer { command.env(WRITER.0, WRITER.1) } else { &mut command })
    };
    close(true).expect_code(6);
    let begin = Instant::now();
    let closed = loop {
        let closed = close(false);
        if closed.code != 8 || begin.elapsed() > Duration::from_secs(150) {
            break closed.expect_code(0).last();
        }
        sleep(Duration::from_secs(1));
    };
    assert!(closed["data"]["bytes"].as_u64() > Some(0) && there().is_empty(), "{closed:#}");
    assert!(copy().expect_code(0).err.find("segments").is_none());
    let listed = scene.list(&[]).expect_code(0).last();
    let there_too = at_other(&["binlog", "list", "--json"]).last();
    assert_eq!(files(&there_too), files(&listed));
}

/// Transactions that the server keeps out of its binlog prevent exit code 0.
#[test]
fn what_is_left_out_is_a_finding() {
    let scene =
        Scene::with(ServerKind::MariaDb1011, ServerOptions::default().arg("--binlog-ignore-db=other"));
    let archived = run(&mut scene.archive(&["--once"])).expect_code(3);
    assert!(archived.out.contains("LEFT OUT by the server"), "{archived:#?}");
}

/// Through a tunnel, a server can be archived, backed up logically and examined; a physical backup is
/// refused, because it reads files. When killed, the program leaves no ssh behind.
#[test]
fn through_a_tunnel() {
    let scene = Scene::new(ServerKind::MariaDb1011);
    let sshd = Sshd::start("internal-sftp").unwrap();
    scene.server.exec("INSERT INTO d.t VALUES (1, 'x')").unwrap();
    scene.program.write(
        "holdfast.toml",
        &format!("name = \"db1\"\n[store]\nssh-config = \"{}\"\n[source]\nno-defaults = true\nuser = \"root\"\nport = {}\nssh-tunnel = \"backup-host\"\n",
            sshd.ssh_config().display(), scene.server.port()),
    );
    let config = scene.program.path("holdfast.toml");
    let command = |words: &[&str]| {
        let mut command = scene.program.command(words);
        command.arg("--config").arg(&config).env("PATH", "/usr/bin:/bin");
        command
    };
    run(&mut command(&["binlog", "archive", "--once", "--ssh-compress"])).expect_code(0);
    scene.compare_files();
    // Without compression, by the key of an agent.
    let agent = sshd.agent().unwrap();
    let keyless = sshd.ssh_config_without_key().unwrap();
    let by_agent = ["doctor", "--ssh-compress=false", "--ssh-config", keyless.to_str().unwrap()];
    run(command(&by_agent).env("SSH_AUTH_SOCK", agent.socket())).expect_code(0);
    drop(agent);
    let refused = run(&mut command(&by_agent));
    assert!(refused.out.contains("Permission denied"), "{refused:#?}");
    run(&mut command(&["backup", "--method", "logical"])).expect_code(0);
    let doctor = run(&mut command(&["doctor"])).expect_code(0);
    assert!(doctor.out.contains("through the SSH tunnel of backup-host"), "{doctor:#?}");
    let physical = run(&mut command(&["backup"])).expect_code(2);
    assert!(physical.err.contains("--ssh-tunnel is for logical backups"), "{physical:#?}");
    let odd = run(&mut command(&["doctor", "--ssh-tunnel=-oProxyCommand=id"])).expect_code(2);
    assert!(odd.err.contains("is not a host for ssh"), "{odd:#?}");

    let ours = || {
        let all = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
        let place = sshd.ssh_config().display().to_string();
        all.filter(|line| line.starts_with(b"ssh\0") && String::from_utf8_lossy(line).contains(&place))
            .count()
    };
    let quiet = || Stdio::null();
    let child = Killed(command(&["binlog", "archive"]).stdout(quiet()).stderr(quiet()).spawn().unwrap());
    let wait = |count: usize| {
        let begin = Instant::now();
        while ours() != count {
            assert!(begin.elapsed() < Duration::from_secs(30), "{} of ssh are there", ours());
            sleep(Duration::from_millis(20));
        }
    };
    wait(1);
    drop(child);
    wait(0);
}

/// Two archivers of one archive, one at a primary and one at its replica: the standby takes over when the
/// other is killed, and with `back` the other way round when it is stopped.
/// Every commit is archived exactly once, without a gap.
fn standby(kind: ServerKind, seed: u64, back: bool) {
    let mut rng = Rng::new(seed);
    let scene = Scene::new(kind);
    let options = match kind.is_mariadb() {
        true => ServerOptions::default(),
        false => ServerOptions::default().arg("--log-replica-updates=ON"),
    };
    let second = Server::start(kind, options).unwrap();
    let limit = replica::CATCH_UP_MAX;
    replica::catch_up(&scene.server, &second, &replica::Position::Gtid(String::new()), limit).unwrap();
    let start = |server: &Server, log: &str, more: &[&str]| {
        let words = ["binlog", "archive", "--name", "db1", "--no-defaults", "--segment-age", "100ms"];
        let mut command = scene.program.command(&words);
        command.args(["--run-age", "3s", "--user", "root", "--socket"]).arg(server.socket()).args(more);
        let log = fs::File::create(scene.program.path(log)).unwrap();
        Killed(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    };
    let mut conn = scene.server.conn().unwrap();
    let mut row = 0_u64;
    let mut write = |time: Duration| {
        let begin = Instant::now();
        while begin.elapsed() < time {
            row += 1;
            let len = row * 37 % 3000;
            conn.query_drop(format!("INSERT INTO d.t VALUES ({row}, REPEAT('x', {len}))")).unwrap();
        }
        row
    };
    // Names of the transactions that wrote rows.
    let archived = || -> Vec<String> {
        let list = scene.list(&["--grep", "d.t"]);
        if list.code != 0 {
            return Vec::new();
        }
        let lines = list.json().into_iter().filter(|line| line["data"]["tables"] == json!(["d.t"]));
        lines.map(|line| line["data"]["gtid"].as_str().unwrap().to_owned()).collect()
    };
    let said = |log: &str| fs::read_to_string(scene.program.path(log)).unwrap();
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is_so() {
            let logs = ["one", "two", "three"]
                .map(|log| fs::read_to_string(scene.program.path(log)).unwrap_or_default());
            assert!(begin.elapsed() < limit, "seed {seed}: not {what}: {logs:#?} {:#?}", scene.list(&[]).out);
            sleep(Duration::from_millis(100));
        }
    };
    let one = start(&scene.server, "one", &[]);
    wait("begun", &|| scene.is_archived());
    let two = start(&second, "two", &["--standby"]);
    wait("told", &|| said("two").contains("standing by"));
    write(Duration::from_millis(500 + rng.below(2000)));
    drop(one);
    let mut rows = write(Duration::from_millis(500));
    wait("taken over", &|| archived().len() as u64 >= rows);

    if back {
        let mut three = start(&scene.server, "three", &["--standby"]);
        wait("told", &|| said("three").contains("standing by"));
        let pid = rustix::process::Pid::from_raw(two.0.id().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        rows = write(Duration::from_millis(300));
        wait("given back", &|| archived().len() as u64 >= rows);
        assert!(three.0.try_wait().unwrap().is_none(), "seed {seed}: {}", said("three"));
    }
    let mut names = archived();
    names.sort();
    names.dedup();
    assert_eq!((names.len() as u64, archived().len() as u64), (rows, rows), "seed {seed}");
    let list = scene.list(&[]).expect_code(0).last();
    assert_eq!(list["data"]["gaps"], json!([]), "seed {seed}: {list:#}");
}

#[test]
fn mariadb_10_11_standby() {
    standby(ServerKind::MariaDb1011, seed(), true);
}

#[test]
fn mysql_9_7_standby() {
    standby(ServerKind::MySql97, seed(), false);
}
