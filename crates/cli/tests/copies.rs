//! `copy`: output and exit codes, with two repositories that have different keys.

use std::{fs, path::PathBuf, thread::sleep, time::Duration};

use holdfast_testkit::{Server, ServerKind, ServerOptions};
use mysql::prelude::Queryable as _;
use rustix::process::{getegid, geteuid};
use serde_json::Value;

use crate::{
    backups::{ids, take, three},
    program::{LOCKS, Program, Run, run},
};

const OTHER_PASSWORD: &str = "battery staple";

/// Three backups of db1, and another repository with another password.
fn scene() -> Program {
    let program = three();
    at_other(&program, &["init"]).expect_code(0);
    program
}

/// Runs the program on the other repository.
fn at_other(program: &Program, words: &[&str]) -> Run {
    let mut command = program.command(words);
    run(command.env("HOLDFAST_REPO", program.path("other")).env("HOLDFAST_PASSWORD", OTHER_PASSWORD))
}

fn copy(program: &Program, words: &[&str]) -> Run {
    let mut command = program.command(&["copy"]);
    let to = program.path("other");
    run(command.args(words).env("HOLDFAST_TO", to).env("HOLDFAST_TO_PASSWORD", OTHER_PASSWORD))
}

fn states(copied: &Value) -> Vec<&str> {
    copied["data"]["backups"].as_array().unwrap().iter().map(|it| it["state"].as_str().unwrap()).collect()
}

#[test]
fn copies_are_listed_as_what_they_are_and_made_once() {
    let program = scene();
    let planned = copy(&program, &["--all", "--dry-run", "--json"]).expect_code(0).last();
    assert_eq!(states(&planned), ["to-copy"; 3]);
    let one = copy(&program, &["2"]).expect_code(0);
    assert!(one.out.contains("db1#2 copied as db1#1") && one.out.contains("completed OK"), "{one:#?}");
    let again = copy(&program, &["2"]).expect_code(0);
    assert!(again.out.contains("db1#2 exists there already, as db1#1"), "{again:#?}");
    let all = copy(&program, &["--all", "--json"]).expect_code(0).last();
    assert_eq!(states(&all), ["older", "was-there", "copied"]);
    assert_eq!(all["data"]["backups"][2]["report"]["compared_by_maps"], true);
    let older = copy(&program, &["1"]).expect_code(1);
    assert!(older.err.contains("older than backup #2") && older.err.contains("--as"), "{older:#?}");

    let list = at_other(&program, &["list"]).expect_code(0);
    assert!(list.out.contains("COPY OF") && list.out.contains("db1#3"), "{list:#?}");
    let list = at_other(&program, &["list", "--json"]).expect_code(0).last();
    assert_eq!(ids(&list), ["db1#1", "db1#2"]);
    assert_eq!(list["data"]["backups"][1]["copy_of"]["run"], 3);
    assert_eq!(list["data"]["backups"][1]["tags"][0], "turn-3", "what it was called goes along");
    let shown = at_other(&program, &["show", "latest"]).expect_code(0);
    assert!(shown.out.contains("copy of         db1#3 of repository "), "{shown:#?}");
    at_other(&program, &["report", "latest"]).expect_code(0);
    at_other(&program, &["check", "--read-data"]).expect_code(0);
    assert!(!program.run(&["list"]).expect_code(0).out.contains("COPY OF"));
}

#[test]
fn what_is_in_the_way_of_a_copy_is_told_with_the_repository_that_it_is_about() {
    let program = scene();
    for words in [&[][..], &["2", "--all"], &["latest", "--as", "db/1"]] {
        copy(&program, words).expect_code(2);
    }
    let mut to_itself = program.command(&["copy", "latest", "--to"]);
    to_itself.arg(program.repository()).env("HOLDFAST_TO_PASSWORD", crate::program::PASSWORD);
    let refused = run(&mut to_itself).expect_code(2);
    assert!(refused.err.contains("the same repository"), "{refused:#?}");
    let mut wrong = program.command(&["copy", "latest", "--to"]);
    wrong.arg(program.path("other")).env("HOLDFAST_TO_PASSWORD", "guess");
    let refused = run(&mut wrong).expect_code(6);
    assert!(refused.err.contains(&program.path("other").display().to_string()), "{refused:#?}");
    let absent =
        run(program.command(&["copy", "latest", "--to"]).arg(program.path("nowhere"))).expect_code(5);
    assert!(absent.err.contains("nowhere"), "{absent:#?}");
    let relative = run(program.command(&["copy", "latest", "--to"]).arg("./other")).expect_code(2);
    let meant = format!("is {} meant?", program.path("other").display());
    assert!(relative.err.contains("\"./other\"") && relative.err.contains(&meant), "{relative:#?}");

    // Damage in the source: backups before and after it are copied, and the exit code reports a failure.
    let pack = program.repository().join("sources/db1/physical/packs/0000000002-000000");
    let mut bytes = fs::read(&pack).unwrap();
    bytes[200] ^= 1;
    fs::write(&pack, bytes).unwrap();
    let damaged = copy(&program, &["--all", "--json"]).expect_code(7);
    let lines = damaged.json();
    let item = lines.iter().find(|line| line["type"] == "item").unwrap();
    assert_eq!(states(item)[..2], ["copied", "failed"], "{item}");
    assert!(item["data"]["backups"][1]["error"].as_str().unwrap().contains("packs/0000000002-000000"));
    at_other(&program, &["check", "--read-data"]).expect_code(0);
}

/// A copy of which the target has lost a pack is not told as one that is there: the others are, and the code is that of
/// damage.
#[test]
fn a_copy_that_is_damaged_in_the_target_is_told() {
    let program = scene();
    copy(&program, &["--all"]).expect_code(0);
    let pack = program.path("other").join("sources/db1/physical/packs/0000000003-000000");
    fs::remove_file(pack).unwrap();
    let damaged = copy(&program, &["--all", "--json"]).expect_code(7);
    let lines = damaged.json();
    let item = lines.iter().find(|line| line["type"] == "item").unwrap();
    assert_eq!(states(item), ["was-there", "was-there", "there-damaged"], "{item}");
    let one = copy(&program, &["3"]).expect_code(7);
    assert!(one.out.contains("db1#3 exists there already, as db1#3, but is damaged there"), "{one:#?}");
    assert!(one.err.contains("repair") && !one.out.contains("completed OK"), "{one:#?}");
}

#[test]
fn a_repository_of_the_configuration_is_known_by_its_name() {
    let program = scene();
    take(&program, "db2", 1, 8);
    let password = program.write("other.pw", OTHER_PASSWORD);
    let config = format!(
        "[[repository]]\nname = \"offsite\"\nrepo = \"{}\"\npassword-file = \"{}\"\n",
        program.path("other").display(),
        password.display()
    );
    let config = program.write("holdfast.toml", &config).display().to_string();
    let copied = program
        .run(&["copy", "--all", "--to", "offsite", "--config", &config, "--json"])
        .expect_code(0)
        .last();
    assert_eq!(states(&copied), ["copied"; 4], "of both sources");
    let name = program.run(&["copy", "--all", "--as", "x", "--to", "offsite", "--config", &config]);
    assert!(name.expect_code(2).err.contains("--name"));
    let as_name = ["copy", "db2#1", "--as", "dev", "--to", "offsite", "--config", &config];
    program.run(&as_name).expect_code(0);
    let list = at_other(&program, &["list", "--json"]).expect_code(0).last();
    assert_eq!(ids(&list), ["db1#1", "db1#2", "db1#3", "db2#1", "dev#1"]);
}

/// If only another writer vouches for a copy in the target, the report names that writer's key.
#[test]
fn a_copy_that_only_another_writer_tells_of_is_named() {
    let program = scene();
    let add = |label: &str| {
        let mut command = program.command(&["key", "add", "--role", "writer", "--label", label, "--json"]);
        command.env("HOLDFAST_REPO", program.path("other")).env("HOLDFAST_PASSWORD", OTHER_PASSWORD);
        let added = run(command.env("HOLDFAST_NEW_PASSWORD", label)).expect_code(0).last();
        added["data"]["id"].as_str().unwrap().to_owned()
    };
    let by = |password: &str, words: &[&str]| {
        let mut command = program.command(&["copy"]);
        command.env("HOLDFAST_TO", program.path("other")).env("HOLDFAST_TO_PASSWORD", password);
        run(command.args(words))
    };
    let (host, _) = (add("of db1"), add("of another"));
    by("of db1", &["2"]).expect_code(0);
    for password in ["of another", OTHER_PASSWORD] {
        let told = by(password, &["--all", "--dry-run"]).expect_code(0);
        let older = "db1#1 is not copied: db1#1 in the target is newer";
        for line in [older, "db1#2 exists there already, as db1#1"] {
            let line = format!("{line}, according to the writer's key {host}");
            assert!(told.out.contains(&line), "{line}: {told:#?}");
        }
        assert!(told.out.contains("db1#3 is to be copied"), "{told:#?}");
    }
    let own = by("of db1", &["--all", "--dry-run", "--json"]).expect_code(0).last();
    assert_eq!(states(&own), ["older", "was-there", "to-copy"]);
    assert!(own["data"]["backups"].as_array().unwrap().iter().all(|it| it["word_of"].is_null()), "{own}");
}

/// One reading of a server for two repositories; a copy makes up for what one has missed.
#[test]
fn a_backup_goes_to_several_repositories() {
    let program = Program::with_repository();
    at_other(&program, &["init"]).expect_code(0);
    let server = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    server.exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)"]).unwrap();
    let socket = server.socket().display().to_string();
    let other = program.path("other").display().to_string();
    let password = program.write("other.pw", OTHER_PASSWORD).display().to_string();
    let backup_of = |locks: &[&'static str], words: &[&str]| {
        let own = ["backup", "--name", "db1", "--no-defaults", "--user", "root", "--socket", &socket];
        program.run(&[&own, locks, words].concat())
    };
    let backup = |words: &[&str]| backup_of(&LOCKS, words);
    let into_both = ["--also-to", &other, "--also-to-password-file", &password];
    let taken = backup(&into_both).expect_code(0);
    assert_eq!(taken.out.matches("backup db1/physical #1 completed OK").count(), 2, "{taken:#?}");
    let same = program.write("same.pw", crate::program::PASSWORD).display().to_string();
    let repository = program.repository().display().to_string();
    let twice = backup(&["--also-to", &repository, "--also-to-password-file", &same]).expect_code(2);
    assert!(twice.err.contains("is one of the other repositories"), "{twice:#?}");

    let away = program.path("away");
    fs::rename(&other, &away).unwrap();
    let one = backup(&into_both).expect_code(3);
    assert!(one.out.contains("backup db1/physical #2 completed OK"), "{one:#?}");
    assert!(one.out.contains(&format!("backup to {other} FAILED: ")), "{one:#?}");
    fs::rename(&away, &other).unwrap();
    copy(&program, &["latest"]).expect_code(0);

    let config = format!(
        "[[repository]]\nname = \"offsite\"\nrepo = \"{other}\"\npassword-file = \"{password}\"\nbackup = true\n"
    );
    let config = program.write("holdfast.toml", &config).display().to_string();
    let taken = backup(&["--config", &config, "--json"]).expect_code(0).last();
    let places = taken["data"]["repositories"].as_array().unwrap();
    assert_eq!(places.len(), 2);
    assert!(places.iter().all(|it| it["id"] == "db1#3" && it["exit_code"] == 0), "{taken}");
    assert_eq!(taken["data"]["report"]["backup"], 3);
    let all = copy(&program, &["--all", "--json"]).expect_code(0).last();
    assert_eq!(states(&all), ["was-there"; 3], "the same backups are there, whoever brought them");

    // Logical backups as well.
    let logical = |words: &[&str]| {
        backup_of(&LOCKS[..2], &[&["--method", "logical", "--config", &config], words].concat())
    };
    let taken = logical(&[]).expect_code(0);
    assert_eq!(taken.out.matches("backup db1/logical #1 completed OK").count(), 2, "{taken:#?}");
    fs::rename(&other, &away).unwrap();
    let one = logical(&["--json"]).expect_code(3).last();
    let places = one["data"]["repositories"].as_array().unwrap();
    assert_eq!((&places[0]["id"], &places[1]["exit_code"]), (&"db1/logical#2".into(), &5.into()), "{one}");
    fs::rename(&away, &other).unwrap();
    let all = copy(&program, &["--all", "--json"]).expect_code(0).last();
    assert_eq!(states(&all).iter().filter(|it| **it == "copied").count(), 1, "{all}");
    at_other(&program, &["check", "--read-data"]).expect_code(0);
}

/// A copy of backups and archive is sufficient: when the first repository is gone, the server is recovered
/// from the other one to a transaction, to a time and to the end, each time from the last preceding backup;
/// moments not copied yet are refused.
fn moments_are_recovered_from_a_copy(kind: ServerKind) {
    let program = Program::with_repository();
    at_other(&program, &["init"]).expect_code(0);
    let server = Server::start(kind, ServerOptions::default()).unwrap();
    server.exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY) ENGINE = InnoDB"]).unwrap();
    let socket = server.socket().display().to_string();
    let of_server = |words: &[&str]| {
        let reach = ["--name", "db1", "--no-defaults", "--user", "root", "--socket", &socket];
        program.run(&[words, &reach].concat()).expect_code(0);
    };
    let archive = || of_server(&["binlog", "archive", "--once"]);
    let back_up = || of_server(&[&["backup"], &LOCKS[..]].concat());
    let copied = || {
        let all = copy(&program, &["--all", "--json"]).expect_code(0).last();
        states(&all).into_iter().filter(|state| *state == "copied").count()
    };
    // Returns the last of these transactions.
    let insert = |first: u32| -> String {
        let mut conn = server.conn().unwrap();
        for id in first..first + 5 {
            conn.query_drop(format!("INSERT INTO d.t VALUES ({id})")).unwrap();
        }
        let last = if kind.is_mariadb() { "SELECT @@last_gtid" } else { "SELECT @@GLOBAL.gtid_executed" };
        let last: String = conn.query_first(last).unwrap().unwrap();
        // MySQL returns the whole set: `UUID:1-17`.
        match last.rsplit_once('-') {
            Some((all, number)) if !kind.is_mariadb() => {
                format!("{}:{number}", all.rsplit_once(':').unwrap().0)
            }
            _ => last,
        }
    };
    let target = program.path("target");
    let restore = |words: &[&str]| {
        let own = format!("{}:{}", geteuid().as_raw(), getegid().as_raw());
        let binary = kind.server_program().unwrap().display().to_string();
        let target = target.display().to_string();
        let words = [&["restore"], words, &["--target-dir", &target, "--owner", &own]].concat();
        at_other(&program, &[&words[..], &["--server-binary", &binary, "--json"]].concat())
    };
    let rows = |words: &[&str], base: u64| -> Vec<u32> {
        let restored = restore(words).expect_code(0).last();
        assert_eq!(restored["data"]["report"]["backup"]["run"], base, "{restored:#}");
        let mut server = Server::attach(kind, &target, ServerOptions::default()).unwrap();
        let rows = server.query("SELECT id FROM d.t ORDER BY id").unwrap();
        server.stop().unwrap();
        fs::remove_dir_all(&target).unwrap();
        rows
    };

    insert(0);
    archive();
    back_up();
    insert(5);
    archive();
    assert_eq!(copied(), 3, "two runs of the archive, and a backup");
    let wanted = insert(10);
    sleep(Duration::from_millis(1_100));
    let at = jiff::Timestamp::now().to_string();
    sleep(Duration::from_millis(1_100));
    server.exec("FLUSH BINARY LOGS").unwrap();
    insert(15);
    back_up();
    insert(20);
    archive();
    // The first repository could recover it; the copy does not have it yet.
    let early = restore(&["--gtid", &wanted]).expect_code(2);
    assert!(early.err.contains("does not contain transaction"), "{early:#?}");
    assert!(!target.exists());
    // Past damage in the archive nothing is copied: what was left out could not follow.
    insert(25);
    archive();
    let of_third = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("0000000003");
    let stored =
        ["packs", "segments"].map(|folder| program.repository().join("sources/db1/binlog").join(folder));
    let stored = stored.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let damaged = stored.map(|entry| entry.unwrap().path()).find(of_third).unwrap();
    let intact = fs::read(&damaged).unwrap();
    let mut bytes = intact.clone();
    bytes[200] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    for _ in 0..2 {
        copy(&program, &["--all", "--json"]).expect_code(7);
    }
    fs::write(&damaged, intact).unwrap();
    assert_eq!(copied(), 2, "the damaged run, and the one behind it");
    fs::rename(program.repository(), program.path("gone")).unwrap();

    assert_eq!(rows(&["--gtid", &wanted], 1), (0..15).collect::<Vec<_>>());
    assert_eq!(rows(&["--at", &at], 1), (0..15).collect::<Vec<_>>());
    assert_eq!(rows(&["--at", "latest"], 2), (0..30).collect::<Vec<_>>());
}

#[test]
fn moments_of_mariadb_10_11_are_recovered_from_a_copy() {
    moments_are_recovered_from_a_copy(ServerKind::MariaDb1011);
}

#[test]
fn moments_of_mysql_9_7_are_recovered_from_a_copy() {
    moments_are_recovered_from_a_copy(ServerKind::MySql97);
}
