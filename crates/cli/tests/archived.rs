//! What `binlog list`, `binlog cat`, `restore --at` and `doctor` say of an archive.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_testkit::{ServerKind, ServerOptions};
use rustix::process::{getegid, geteuid};
use serde_json::{Value, json};

use crate::{
    binlogs::{Killed, Scene},
    program::{LOCKS, Run, run},
};

const PHYSICAL: &[&str] = &[];
const LOGICAL: &[&str] = &["--method", "logical"];

impl Scene {
    fn back_up(&self, words: &[&str]) {
        let mut command =
            self.program.command(&["backup", "--name", "db1", "--no-defaults", "--user", "root"]);
        let locks = if words.contains(&"logical") { &LOCKS[..2] } else { &LOCKS[..] };
        run(command.arg("--socket").arg(self.server.socket()).args(locks).args(words)).expect_code(0);
    }

    /// What a recovery of everything would do.
    fn plan(&self, words: &[&str]) -> Run {
        let target = self.program.path("new");
        let latest = ["--at", "latest", "--dry-run", "--target-dir", target.to_str().unwrap()];
        let by = self.recovering();
        self.program.run(&[&["restore"], words, &latest, &by.each_ref().map(String::as_str)].concat())
    }

    /// With which program a recovery is done, and as which user: no other can run the servers of the tests.
    fn recovering(&self) -> [String; 4] {
        let program = self.server.kind().server_program().unwrap().display().to_string();
        let own = format!("{}:{}", geteuid().as_raw(), getegid().as_raw());
        ["--server-binary".to_owned(), program, "--owner".to_owned(), own]
    }

    fn doctor(&self, lag: &str) -> Run {
        self.program.run(&["doctor", "--no-server", "--max-lag", lag])
    }
}

/// Nothing can be replayed behind a part of a server, and nothing claims otherwise.
#[test]
fn nothing_recovers_from_a_part() {
    let scene = Scene::new(ServerKind::MariaDb118);
    scene.back_up(&[LOGICAL, &["--database", "d"]].concat());
    scene.archive_once();
    let list = scene.list(&[]).expect_code(0).last();
    assert_eq!(list["data"]["recoverable"], json!([]), "{list:#}");
    let none = scene.plan(&["db1/physical#latest"]).expect_code(1);
    assert!(none.err.contains("nothing of kind physical"), "{none:#?}");
    for (id, why) in [
        (&[][..], "holds only a part of its server"),
        (&["db1/logical#1"], "holds only a part of its server"),
        (&["db1/logical#latest"], "holds only a part of its server"),
        (&["db1/binlog#1"], "is no backup"),
    ] {
        let refused = scene.plan(id).expect_code(2);
        assert!(refused.err.contains(why), "{refused:#?}");
    }
}

/// A recovery begins with a physical backup if there is one, since files are restored faster than rows are loaded;
/// and what is of which kind is listed.
#[test]
fn recovery_begins_with_the_quickest_backup() {
    let scene = Scene::new(ServerKind::MariaDb118);
    scene.back_up(LOGICAL);
    scene.archive_once();
    let list = scene.list(&[]).expect_code(0).last();
    assert_eq!(list["data"]["recoverable"][0]["from"], "db1/logical#1", "{list:#}");
    for (kind, count) in [("logical", 1), ("binlog", 1), ("physical", 0)] {
        let list = scene.program.run(&["list", "--json", "--kind", kind]).expect_code(0).last();
        let listed = list["data"]["backups"].as_array().unwrap();
        assert!(listed.len() == count && listed.iter().all(|listed| listed["kind"] == kind), "{list:#}");
    }
    let planned = scene.plan(&["--json"]).expect_code(0).last();
    let plan = &planned["data"]["plan"];
    assert_eq!(
        (&plan["backup"]["kind"], &plan["rows"]["tables"]),
        (&json!("logical"), &json!(1)),
        "{plan:#}"
    );
    let shown = scene.plan(&[]);
    assert!(shown.out.contains("tables          1 table, "), "{shown:#?}");

    scene.back_up(PHYSICAL);
    scene.archive_once();
    // Nothing was committed since the backup.
    assert!(scene.program.run(&["binlog", "list"]).out.contains("and no later time yet"));
    let planned = scene.plan(&["--json"]).expect_code(0).last();
    assert_eq!(planned["data"]["plan"]["backup"]["kind"], "physical", "{planned:#}");
}

/// Lost data is found by its statement and its time, and the recoverable period is told.
#[test]
fn what_was_lost_is_found() {
    let scene = Scene::new(ServerKind::MariaDb118);
    scene.back_up(LOGICAL);
    // MariaDB's binlog has a resolution of one second: the second before the last must come after the backup.
    sleep(Duration::from_millis(2_100));
    scene.server.exec_all(["INSERT INTO d.t VALUES (1, 'x')", "DROP TABLE d.t"]).unwrap();
    let before = jiff::Timestamp::now();
    scene.archive_once();
    let list = scene.list(&[]).expect_code(0).last();
    let recoverable = &list["data"]["recoverable"][0];
    assert_eq!(recoverable["from"], "db1/logical#1", "{list:#}");
    let until: jiff::Timestamp = recoverable["until_at"].as_str().unwrap().parse().unwrap();
    assert!(until >= before - jiff::SignedDuration::from_secs(60), "{list:#}");
    assert!(recoverable["until_age_s"].as_u64().is_some_and(|seconds| seconds < 120), "{list:#}");
    let text = scene.program.run(&["binlog", "list"]).expect_code(0);
    for part in ["recoverable from ", "(db1/logical#1) until ", " ago\n"] {
        assert!(text.out.contains(part), "{part}: {text:#?}");
    }

    let around = before.to_string();
    let found = scene.list(&["--around", &around, "--grep", "drop table"]).expect_code(0);
    let items: Vec<Value> = found.json().into_iter().filter(|line| line["type"] == "item").collect();
    assert_eq!(items.len(), 1, "{found:#?}");
    assert!(items[0]["data"]["gtid"].is_string(), "{found:#?}");
    let long_ago = scene.list(&["--around", "2020-01-01 00:00:00"]).expect_code(0).last();
    assert_eq!(long_ago["data"]["transactions"], 0, "{long_ago:#}");
    let long_ago = scene.program.run(&["binlog", "list", "--around", "2020-01-01 00:00:00"]).expect_code(0);
    for part in ["2020-01-01 00:01:00", "nearest"] {
        assert!(long_ago.out.contains(part), "{part}: {long_ago:#?}");
    }
}

/// Step 3a of the guide: a dropped table, as it was before that, comes back into the running server under another
/// name, and as files.
fn a_dropped_table_comes_back(kind: ServerKind) {
    let scene = Scene::with(kind, ServerOptions::default().arg("--binlog-format=ROW"));
    let server = &scene.server;
    server.exec("INSERT INTO d.t VALUES (1, 'of the backup')").unwrap();
    scene.back_up(PHYSICAL);
    server
        .exec_all(["INSERT INTO d.t VALUES (2, x'00ff')", "UPDATE d.t SET v = 'later' WHERE id = 1"])
        .unwrap();
    let rows = |table: &str| -> Vec<(u64, Vec<u8>)> {
        server.query(format!("SELECT id, v FROM {table} ORDER BY id")).unwrap()
    };
    let wanted = rows("d.t");
    server.exec("DROP TABLE d.t").unwrap();
    scene.archive_once();
    let found = scene.list(&["--grep", "drop table"]).expect_code(0).json();
    let gtid = found[0]["data"]["gtid"].as_str().unwrap();

    let work = scene.program.path("work");
    let before = ["--before-gtid", gtid, "--table", "d.t", "--work-dir", work.to_str().unwrap()];
    let by = scene.recovering();
    let by = by.each_ref().map(String::as_str);
    let restore = |more: &[&str]| {
        let mut command = scene.program.command(&["restore", "--to-server", "--as", "d.t=d.t_old"]);
        command.args(before).args(by).args(["--no-defaults", "--user", "root", "--socket"]);
        run(command.arg(server.socket()).args(more)).expect_code(0)
    };
    let shown = restore(&["--dry-run"]);
    assert!(!shown.out.contains("all of it"), "{shown:#?}");
    let told = restore(&[]);
    assert!(told.out.contains("1 table, by number and checksum of all rows"), "{told:#?}");
    assert_eq!(rows("d.t_old"), wanted);

    let files = scene.program.path("files");
    let export = ["export", "--target-dir", files.to_str().unwrap()];
    let exported = scene.program.run(&[&export, &before[..], &by].concat()).expect_code(0);
    assert!(exported.out.contains("2 rows of 1 table in 1 file"), "{exported:#?}");
    let mut client = Command::new(kind.client_program().unwrap());
    client.args(["--no-defaults", "--user=root", "--binary-mode", "--database=d", "--socket"]);
    client.arg(server.socket());
    let loaded = client.stdin(fs::File::open(files.join("backup.sql")).unwrap()).output().unwrap();
    assert!(loaded.status.success(), "{loaded:?}");
    assert_eq!(rows("d.t"), wanted);
    assert!(fs::read_dir(&work).unwrap().next().is_none());
}

#[test]
fn mariadb_11_8_a_dropped_table_comes_back() {
    a_dropped_table_comes_back(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_a_dropped_table_comes_back() {
    a_dropped_table_comes_back(ServerKind::MySql97);
}

/// A file of the archive is one that the server's own program reads; whoever reads it may stop early.
#[test]
fn a_file_is_read_by_others() {
    let scene = Scene::new(ServerKind::MariaDb118);
    scene.server.exec("DROP TABLE d.t").unwrap();
    scene.archive_once();
    let file = scene.files().pop().unwrap().0;
    let path = scene.program.path("out");
    scene.program.run(&["binlog", "cat", &file, "--output", path.to_str().unwrap(), "--json"]).expect_code(0);
    let reader = scene.server.kind().program("mariadb-binlog").unwrap();
    let read = Command::new(reader).arg("--no-defaults").arg("-v").arg(&path).output().unwrap();
    let read_text = String::from_utf8_lossy(&read.stdout).into_owned();
    assert!(read.status.success() && read_text.contains("DROP TABLE"), "{read:?}");
    let (gone, out) = std::io::pipe().unwrap();
    drop(gone);
    let mut cat = scene.program.command(&["binlog", "cat", &file]);
    let cat = cat.stdout(out).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert!(cat.status.success() && cat.stderr.is_empty(), "{cat:?}");
    scene.compare_files();
}

/// Rules for backups drop nothing of the archive that recovery from the others needs.
#[test]
fn rules_keep_what_recovery_needs() {
    let scene = Scene::new(ServerKind::MariaDb118);
    for _ in 0..2 {
        scene.back_up(PHYSICAL);
        scene.archive_once();
    }
    let rules = ["expire", "--keep-last", "1", "--kind", "physical", "--json"];
    let expired = scene.program.run(&rules).expect_code(0).last();
    assert_eq!(expired["data"]["dropped"].as_array().unwrap().len(), 1, "{expired:#}");
    scene.compare_files();
}

/// A server that was reset is a finding, of the archiver, of the list and of the doctor.
#[test]
fn a_gap_is_a_finding() {
    let scene = Scene::new(ServerKind::MariaDb118);
    scene.back_up(PHYSICAL);
    scene.archive_once();
    scene.server.exec("RESET MASTER").unwrap();
    scene.server.exec("CREATE TABLE d.u (i INT)").unwrap();
    let reset = run(&mut scene.archive(&["--once", "--json"])).expect_code(3).last();
    assert_eq!(reset["data"]["report"]["gaps"][0]["kind"], "reset", "{reset:#}");
    let shown = scene.program.run(&["binlog", "list"]).expect_code(3);
    assert!(shown.out.contains("GAP: the server has reset its binlogs"), "{shown:#?}");
    let behind = scene.doctor("1d").expect_code(0);
    for part in ["the archive has a gap: the server has reset its binlogs", "there is no backup after it"] {
        assert!(behind.out.contains(part), "{part}: {behind:#?}");
    }
}

/// The last run of an archiver must not have ended too long ago, unless one is running. One that is running keeps
/// others out, and one that is stopped by a signal ends in good order.
#[test]
fn an_archiver_runs_until_it_is_stopped() {
    let scene = Scene::new(ServerKind::MariaDb118);
    scene.archive_once();
    let runs = || -> BTreeSet<_> {
        let runs = fs::read_dir(scene.program.repository().join("sources/db1/binlog/runs"));
        runs.into_iter().flatten().map(|entry| entry.unwrap().file_name()).collect()
    };
    sleep(Duration::from_millis(20));
    let gone = scene.doctor("1ms").expect_code(3);
    assert!(gone.out.contains("db1/binlog: no archiver is running: the last run ended at"), "{gone:#?}");
    let before = runs();
    let mut child = Killed(scene.archive(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let begin = Instant::now();
    while runs().is_subset(&before) {
        assert!(begin.elapsed() < Duration::from_secs(120), "it never begins");
        sleep(Duration::from_millis(20));
    }
    scene.doctor("1ms").expect_code(0);
    let busy = run(&mut scene.archive(&["--once"])).expect_code(8);
    assert!(busy.err.contains("is active"), "{busy:#?}");
    let pid = rustix::process::Pid::from_raw(child.0.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}
