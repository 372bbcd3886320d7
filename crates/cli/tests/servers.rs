//! `backup` and `restore` on the command line, with real servers.

use std::{
    fs::{OpenOptions, Permissions},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    },
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_testkit::{Server, ServerKind, ServerOptions};
use rustix::{
    fs::OFlags,
    process::{Pid, Signal, getegid, geteuid, kill_process},
};
use serde_json::{Value, json};

use crate::{
    backups::ids,
    program::{LOCKS, Program, Run, run},
    terminal::Terminal,
};

const ACCOUNT: &str = "keeper";
const SECRET: &str = "of-the-account";

/// A small server with a backup account that has no privileges yet, and a repository.
struct Scene {
    server: Server,
    program: Program,
}

impl Scene {
    fn new(kind: ServerKind) -> Self {
        // So little redo that `doctor` mentions it.
        let server_options = ServerOptions { redo_mib: Some(96), ..ServerOptions::default() };
        let server = Server::start(kind, server_options).unwrap();
        let account = format!("CREATE USER {ACCOUNT}@localhost IDENTIFIED BY '{SECRET}'");
        server
            .exec_all([
                "CREATE DATABASE d",
                "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(80)) ENGINE=InnoDB",
                "CREATE TABLE d.m (id INT PRIMARY KEY, v VARCHAR(80)) ENGINE=MyISAM",
                "INSERT INTO d.t VALUES (1, 'one'), (2, 'two')",
                "INSERT INTO d.m VALUES (1, 'eins')",
                &account,
            ])
            .unwrap();
        let program = Program::with_repository();
        program.write("password", &format!("{SECRET}\n"));
        program.write("wrong-password", "a-guess\n");
        program.write("options.cnf", &format!("[client]\nuser = {ACCOUNT}\npassword = \"{SECRET}\"\n"));
        Self { server, program }
    }

    /// A backup by socket, on the host with the files.
    fn backup(&self, words: &[&str]) -> Command {
        let mut command = self.program.command(&["backup", "--name", "db1", "--socket"]);
        command.arg(self.server.socket()).args(LOCKS).args(words);
        command
    }

    /// The same with the backup account, whose password is in a file.
    fn backup_as_account(&self, words: &[&str]) -> Command {
        let mut command = self.backup(&["--no-defaults", "--user", ACCOUNT]);
        command.args(["--server-password-file", "password"]).args(words);
        command
    }

    fn list(&self) -> Value {
        self.program.run(&["list", "--json"]).expect_code(0).last()
    }

    fn restore(&self, id: &str, target: &Path, words: &[&str]) -> Run {
        run(&mut self.restore_command(id, target, words))
    }

    fn restore_command(&self, id: &str, target: &Path, words: &[&str]) -> Command {
        let mut command = self.program.command(&["restore", id, "--target-dir"]);
        // No other user can enter the directories of a test.
        let ourselves = format!("{}:{}", geteuid().as_raw(), getegid().as_raw());
        command.arg(target).args(["--owner", &ourselves]);
        command.arg("--server-binary").arg(self.server.kind().server_program().unwrap());
        command.args(words);
        command
    }

    /// The rows on a server that is started on `target` for the query.
    fn rows_in(&self, target: &Path) -> Vec<(u32, String)> {
        let mut server = Server::attach(self.server.kind(), target, ServerOptions::default()).unwrap();
        let rows = rows(&server);
        server.stop().unwrap();
        rows
    }
}

fn rows(server: &Server) -> Vec<(u32, String)> {
    server.query("SELECT id, v FROM d.t UNION ALL SELECT id, v FROM d.m ORDER BY id, v").unwrap()
}

/// A program that writes `--json` while the test continues.
struct Background {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Background {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn until_phase(&mut self, name: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "it ended before {name}");
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["type"] == "phase" && line["name"] == name {
                return;
            }
        }
    }

    fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Fills its standard output, so that whatever writes there has to wait for ever.
    fn fill(&self) {
        let path = format!("/proc/self/fd/{}", self.out.get_ref().as_raw_fd());
        // A description of our own: that of the program stays as it is.
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
        let mut full = OpenOptions::new().write(true).custom_flags(nonblocking).open(path).unwrap();
        for size in [4096, 1] {
            while full.write(&vec![b'\n'; size]).is_ok() {}
        }
    }

    /// Its last line and its exit code.
    fn ended(mut self) -> (Value, i32) {
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        let last = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        (last, self.child.wait().unwrap().code().unwrap_or(-1))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn backed_up_and_restored(kind: ServerKind) {
    let mut scene = Scene::new(kind);
    refused(&scene);
    assert!(ids(&scene.list()).is_empty());

    let options = ["--defaults-extra-file", "options.cnf", "--compress", "lz4", "--tag", "first", "--json"];
    let first = run(&mut scene.backup(&options)).expect_code(0);
    let last = first.last();
    assert_eq!((&last["type"], &last["data"]["id"]), (&json!("result"), &json!("db1#1")));
    assert_eq!(last["data"]["report"]["compression"], "lz4");
    assert!(first.json().iter().any(|line| line["type"] == "phase" && line["name"] == "copy"), "{first:#?}");
    let before = rows(&scene.server);
    scene
        .server
        .exec_all([
            "INSERT INTO d.t VALUES (3, 'three')",
            "UPDATE d.t SET v = 'zwei' WHERE id = 2",
            "DELETE FROM d.m",
        ])
        .unwrap();
    let options = ["--compress", "zstd:3", "--tag", "second", "--tag", "again"];
    let hooks = [
        "--hook-before",
        "echo begun > told",
        "--hook-after",
        "echo $HOLDFAST_HOOK_OUTCOME $HOLDFAST_HOOK_BACKUPS >> told",
    ];
    let second = run(scene.backup_as_account(&options).args(hooks)).expect_code(0);
    assert_eq!(std::fs::read_to_string(scene.program.path("told")).unwrap(), "begun\ndone db1#2\n");
    assert_eq!(second.out.lines().last(), Some("backup db1/physical #2 completed OK"), "{second:#?}");
    for said in [&first, &second] {
        assert!(!said.out.contains(SECRET) && !said.err.contains(SECRET), "{said:#?}");
    }
    let list = scene.list();
    assert_eq!(ids(&list), ["db1#1", "db1#2"]);
    let backups = &list["data"]["backups"];
    assert_eq!((&backups[0]["tags"], &backups[1]["tags"]), (&json!(["first"]), &json!(["second", "again"])));
    assert!(backups[1]["new_bytes"].as_u64() < backups[1]["size_bytes"].as_u64(), "{list:#}");
    let tagged = scene.program.run(&["list", "--tag", "again", "--json"]).expect_code(0).last();
    assert_eq!(ids(&tagged), ["db1#2"]);

    interrupted(&scene);
    interrupted_unread(&scene);
    assert_eq!(ids(&scene.list()), ["db1#1", "db1#2"]);

    let words = ["--no-defaults", "--user", ACCOUNT, "-p", "--hook-after", "exit 1"];
    let mut asked = Terminal::start(&scene.backup(&words));
    asked.type_hidden("password of the server: ", &format!("{SECRET}\n"));
    let third = asked.ended().expect_code(3);
    assert!(third.out.contains("completed OK") && !third.out.contains(SECRET), "{third:#?}");
    assert_eq!(ids(&scene.list()).len(), 3);
    let after = rows(&scene.server);
    assert_ne!(before, after);

    let target = scene.program.path("restored");
    let plan = scene.restore("db1#1", &target, &["--dry-run"]).expect_code(0);
    assert!(plan.out.contains("recovery") && plan.out.contains(", at least "), "{plan:#?}");
    let restored = scene.restore("db1#1", &target, &["--json"]).expect_code(0).last();
    assert!(restored["data"]["report"]["prepared"].is_object(), "{restored:#}");
    assert_eq!(scene.rows_in(&target), before);

    let mute = scene.restore("latest", &target, &["--delta"]).expect_code(2);
    assert!(mute.err.contains("hint: ") && mute.err.contains("--yes"), "{mute:#?}");
    let plan = scene.restore("latest", &target, &["--delta", "--dry-run"]).expect_code(0);
    assert!(plan.out.contains("DELETE") && plan.out.contains("nothing was changed"), "{plan:#?}");
    // No is a valid answer, and Ctrl-C works while the question is shown.
    for (typed, code) in [("n\n", 1), ("\x03", 130)] {
        let mut asked = Terminal::start(&scene.restore_command("latest", &target, &["--delta"]));
        asked.type_shown("continue? [y/N] ", typed);
        asked.ended().expect_code(code);
    }
    assert_eq!(scene.rows_in(&target), before);
    let delta = scene.restore("latest", &target, &["--delta", "--yes"]).expect_code(0);
    assert!(delta.out.ends_with("completed OK\n"), "{delta:#?}");
    assert_eq!(scene.rows_in(&target), after);
    by_a_writer(&scene);
    beyond_repair(&mut scene);
}

/// A page is damaged on the server: its backup is refused, or is one with a finding, whoever speaks of it.
fn beyond_repair(scene: &mut Scene) {
    const PAGE_BYTES: u64 = 16 << 10;
    scene
        .server
        .exec_all([
            "CREATE TABLE d.bad (id INT PRIMARY KEY, v VARCHAR(9000)) ENGINE=InnoDB CHARACTER SET latin1",
            "INSERT INTO d.bad VALUES (1, REPEAT('v', 9000)), (2, REPEAT('w', 9000))",
        ])
        .unwrap();
    scene.server.stop().unwrap();
    let path = scene.server.datadir().join("d/bad.ibd");
    let mut pages = std::fs::read(&path).unwrap();
    let at = pages.windows(8).position(|bytes| bytes == b"vvvvvvvv").unwrap();
    pages[at] = b'x';
    std::fs::write(&path, pages).unwrap();
    scene.server.run().unwrap();
    let page = at as u64 / PAGE_BYTES;

    let refused = run(&mut scene.backup_as_account(&[])).expect_code(1);
    let name = format!("page {page} of d/bad.ibd (table d.bad");
    assert!(refused.err.contains(&name) && refused.err.contains("--allow-corrupt"), "{refused:#?}");
    let taken = run(&mut scene.backup_as_account(&["--allow-corrupt"])).expect_code(3);
    let last = taken.out.lines().last().unwrap();
    assert!(last.ends_with("completed, with 1 damaged page of the server in it"), "{taken:#?}");
    let list = scene.list();
    let newest = list["data"]["backups"].as_array().unwrap().last().unwrap();
    assert_eq!(newest["flags"], json!(["damaged-pages"]), "{list:#}");
    let id = newest["id"].as_str().unwrap();
    let report = scene.program.run(&["report", id]).expect_code(0);
    assert!(report.out.contains("DAMAGED ON THE SERVER") && report.out.contains("d/bad.ibd"), "{report:#?}");
    let target = scene.program.path("damaged");
    let restored = scene.restore(id, &target, &[]).expect_code(0);
    assert!(restored.err.contains("pages that were already damaged on the source"), "{restored:#?}");
    let doctor = scene.program.run(&["doctor", "--name", "db1", "--no-server"]).expect_code(0);
    assert!(doctor.out.contains("damaged"), "{doctor:#?}");
}

/// With a key that cannot read, the second backup builds on what the first has left in
/// the user's cache directory.
fn by_a_writer(scene: &Scene) {
    let mut add = scene.program.command(&["key", "add", "--role", "writer", "--source", "db1"]);
    run(add.env("HOLDFAST_NEW_PASSWORD", "of the host")).expect_code(0);
    let mut new_bytes = Vec::new();
    for is_first in [true, false] {
        let mut backup = scene.backup_as_account(&[]);
        let taken = run(backup.env("HOLDFAST_PASSWORD", "of the host")).expect_code(0);
        assert!(taken.out.ends_with("completed OK\n"), "{taken:#?}");
        assert_eq!(taken.err.contains("everything is stored again"), is_first, "{taken:#?}");
        let list = scene.list();
        new_bytes.push(list["data"]["backups"].as_array().unwrap().last().unwrap()["new_bytes"].as_u64());
    }
    assert!(new_bytes[1] < new_bytes[0], "{new_bytes:?}");
    assert!(scene.program.path(".cache/holdfast").is_dir());
    let target = scene.program.path("of-the-writer");
    scene.restore("latest", &target, &[]).expect_code(0);
    assert_eq!(scene.rows_in(&target), rows(&scene.server));
}

/// Unreachable and refusing servers give exit code 4; for a missing privilege, the hint is the
/// statement that grants it.
fn refused(scene: &Scene) {
    let words = ["backup", "--no-defaults", "--socket", "absent", "--json"];
    let unreachable = scene.program.run(&words).expect_code(4).last();
    assert_eq!((&unreachable["type"], &unreachable["kind"]), (&json!("error"), &json!("server")));

    let wrong = ["--no-defaults", "--user", ACCOUNT, "--server-password-file", "wrong-password"];
    let denied = run(&mut scene.backup(&wrong)).expect_code(4);
    assert!(denied.err.contains("Access denied") && !denied.err.contains("a-guess"), "{denied:#?}");

    examined(scene);
    let lacking = run(&mut scene.backup_as_account(&["--json"])).expect_code(4).last();
    scene.server.exec(lacking["hint"].as_str().unwrap()).unwrap();
}

/// All problems are reported at once, and a server examined as root has none.
fn examined(scene: &Scene) {
    let doctor = |words: &[&str]| {
        let mut command = scene.program.command(&["doctor", "--name", "db1", "--no-defaults", "--socket"]);
        run(command.arg(scene.server.socket()).args(words))
    };
    let as_account = ["--user", ACCOUNT, "--server-password-file", "password"];
    let verdicts = |run: &Run, subject: &str, verdict: &str| -> Vec<String> {
        let findings = run.last()["data"][subject].as_array().unwrap().clone();
        let of_verdict = findings.into_iter().filter(|finding| finding["verdict"] == verdict);
        of_verdict.map(|finding| finding["hint"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let lacking = doctor(&[&as_account[..], &["--json"]].concat()).expect_code(3);
    assert!(verdicts(&lacking, "server", "problem")[0].starts_with("GRANT "), "{lacking:#?}");
    assert!(verdicts(&lacking, "repository", "problem").is_empty(), "{lacking:#?}");
    // The examination continues where a backup would fail: the data directory is examined all the same.
    let elsewhere = doctor(&["--user", "root", "--datadir", "absent", "--json"]).expect_code(3);
    assert!(!verdicts(&elsewhere, "server", "problem").is_empty(), "{elsewhere:#?}");
    assert!(!verdicts(&elsewhere, "server", "notice").is_empty(), "{elsewhere:#?}");
    // What is no problem for a backup is said all the same.
    let flush_at = "SET GLOBAL innodb_flush_log_at_trx_commit";
    scene.server.exec(format!("{flush_at} = 2")).unwrap();
    let told = doctor(&["--user", "root"]).expect_code(0);
    for part in ["the redo log has only 96", "innodb_flush_log_at_trx_commit is 2"] {
        assert!(told.out.contains(part), "{part}: {told:#?}");
    }
    scene.server.exec(format!("{flush_at} = 1")).unwrap();
    let open_to_all = scene.program.write("open-password", &format!("{SECRET}\n"));
    std::fs::set_permissions(&open_to_all, Permissions::from_mode(0o644)).unwrap();
    let told = doctor(&["--user", ACCOUNT, "--server-password-file", "open-password"]).expect_code(3);
    assert!(told.out.contains("open-password can be read by others (mode 644)"), "{told:#?}");
    let sound = doctor(&["--user", "root"]).expect_code(0);
    assert!(sound.out.contains("no problems"), "{sound:#?}");
}

/// A second run of the source is refused while the first is active; the first is then interrupted,
/// and leaves nothing behind.
fn interrupted(scene: &Scene) {
    let mut slow = Background::start(&mut scene.backup_as_account(&["--limit-rate", "1M", "--json"]));
    slow.until_phase("copy");
    let other = run(&mut scene.backup_as_account(&["--json"])).expect_code(8).last();
    assert_eq!(other["kind"], "active", "{other:#}");
    slow.interrupt();
    let begin = Instant::now();
    let (last, code) = slow.ended();
    assert!(begin.elapsed() < Duration::from_secs(60), "it took {:?}", begin.elapsed());
    assert_eq!(
        (code, &last["type"], &last["kind"]),
        (130, &json!("error"), &json!("interrupted")),
        "{last:#}"
    );
    free(&scene.server);
}

/// A backup whose output nobody reads ends all the same when it is asked to, and leaves nothing behind.
fn interrupted_unread(scene: &Scene) {
    let mut slow = Background::start(&mut scene.backup_as_account(&["--limit-rate", "1M", "--json"]));
    slow.until_phase("copy");
    slow.fill();
    // Meanwhile progress is due, which has nowhere to go.
    sleep(Duration::from_secs(3));
    for _ in 0..2 {
        slow.signal(Signal::TERM);
        sleep(Duration::from_secs(1));
    }
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = slow.child.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it waits for its reader");
        sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(130));
    free(&scene.server);
}

/// No sessions are left, and nothing is locked.
fn free(server: &Server) {
    let schema = if server.kind().is_mariadb() { "information_schema" } else { "performance_schema" };
    let sessions = format!("SELECT COUNT(*) FROM {schema}.processlist WHERE user = '{ACCOUNT}'");
    let begin = Instant::now();
    while server.value::<u64>(&sessions).unwrap() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(120), "sessions stay");
        sleep(Duration::from_millis(20));
    }
    let lock = match server.kind().is_mariadb() {
        true => ["BACKUP STAGE START", "BACKUP STAGE END"],
        false => ["LOCK INSTANCE FOR BACKUP", "UNLOCK INSTANCE"],
    };
    let writes = ["ALTER TABLE d.t COMMENT 'x'", "REPLACE INTO d.m VALUES (4, 'vier')"];
    let statements = ["SET SESSION lock_wait_timeout = 1"].into_iter().chain(writes).chain(lock);
    server.exec_all(statements).unwrap();
}

#[test]
fn mariadb_10_11_is_backed_up_and_restored() {
    backed_up_and_restored(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_is_backed_up_and_restored() {
    backed_up_and_restored(ServerKind::MySql97);
}
