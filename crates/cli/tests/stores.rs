//! A repository beyond a network, with options and environment as on a command line:
//! everything a repository is for.

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use holdfast_testkit::{
    Server, ServerKind, ServerOptions,
    azurite::{ACCOUNT_KEY, Azurite, CONTAINER},
    object_storage::{BUCKET, Keeps, ObjectStorage, ObjectStorageKind, SECRET_KEY},
    sshd::Sshd,
};
use rustix::process::{getegid, geteuid};

use crate::{
    backups::ids,
    program::{LOCKS, PASSWORD, Program, Run, run},
};

/// The program, with options and environment that lead to the repository.
pub(crate) struct Scene {
    pub(crate) program: Program,
    location: String,
    options: Vec<String>,
    environment: Vec<(&'static str, String)>,
    pub(crate) server: Server,
}

impl Scene {
    pub(crate) fn new(
        location: String,
        options: Vec<String>,
        environment: Vec<(&'static str, String)>,
    ) -> Self {
        let server = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
        let fill = "INSERT INTO d.t SELECT seq, SHA2(RAND(), 512) FROM seq_1_to_100000";
        server
            .exec_all([
                "CREATE DATABASE d",
                "USE d",
                "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(200)) ENGINE=InnoDB",
                fill,
            ])
            .unwrap();
        Self { program: Program::new(), location, options, environment, server }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.program.command(words);
        command.arg("--repo").arg(&self.location).args(&self.options);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    #[track_caller]
    pub(crate) fn run(&self, words: &[&str]) -> Run {
        let it = run(&mut self.command(words));
        for secret in [SECRET_KEY, ACCOUNT_KEY] {
            assert!(!it.out.contains(secret) && !it.err.contains(secret), "{it:#?}");
        }
        it
    }

    #[track_caller]
    pub(crate) fn backup(&self, words: &[&str]) {
        self.backup_as("db1", words);
    }

    #[track_caller]
    fn backup_as(&self, name: &str, words: &[&str]) {
        let socket = self.server.socket().display().to_string();
        let mut all =
            vec!["backup", "--name", name, "--no-defaults", "--user", "root", "--socket", &socket, "--json"];
        all.extend(LOCKS.iter().chain(words));
        self.run(&all).expect_code(0);
    }

    pub(crate) fn rows(&self) -> Vec<(u32, String)> {
        rows(&self.server)
    }

    #[track_caller]
    pub(crate) fn restored(&self, id: &str, target: &Path) -> Vec<(u32, String)> {
        self.restored_with(&[id], target)
    }

    #[track_caller]
    fn restored_as_of(&self, id: &str, time: &str, target: &Path) -> Vec<(u32, String)> {
        self.restored_with(&[id, "--as-of", time], target)
    }

    #[track_caller]
    fn restored_with(&self, words: &[&str], target: &Path) -> Vec<(u32, String)> {
        let mut server = self.restored_server(words, target);
        let rows = rows(&server);
        server.stop().unwrap();
        rows
    }

    #[track_caller]
    fn restored_server(&self, words: &[&str], target: &Path) -> Server {
        let owner = format!("{}:{}", geteuid().as_raw(), getegid().as_raw());
        let program = self.server.kind().server_program().unwrap().display().to_string();
        let target_dir = target.display().to_string();
        let all = ["--owner", &owner, "--target-dir", &target_dir, "--server-binary", &program];
        self.run(&[&["restore"], words, &all].concat()).expect_code(0);
        Server::attach(self.server.kind(), target, ServerOptions::default()).unwrap()
    }
}

fn rows(server: &Server) -> Vec<(u32, String)> {
    server.query("SELECT id, v FROM d.t ORDER BY id").unwrap()
}

/// Everything from the first backup to the last deletion.
fn serves_for_everything(scene: &Scene) {
    let made = scene.run(&["init", "--json"]).expect_code(0).last();
    assert_eq!(made["data"]["one_writer"], false);
    assert_eq!(made["data"]["location"], scene.location.as_str());
    let again = scene.run(&["init"]).expect_code(1);
    assert!(again.err.contains("holdfast.json"), "{again:#?}");

    scene.backup(&[]);
    let before = scene.rows();
    scene.server.exec_all(["UPDATE d.t SET v = 'changed' WHERE id % 5000 = 0"]).unwrap();
    scene.backup(&[]);
    let list = scene.run(&["list", "--json"]).expect_code(0).last();
    let bytes = |backup: usize, which: &str| list["data"]["backups"][backup][which].as_u64().unwrap();
    assert!(bytes(1, "new_bytes") < bytes(1, "size_bytes") / 2, "{list:#}");
    let after = scene.rows();

    let checked = scene.run(&["check", "--read-data", "--json"]).expect_code(0).last();
    assert_eq!(checked["data"]["backups"], 2);
    assert!(scene.restored("db1#1", &scene.program.path("first")) == before);
    assert!(scene.restored("latest", &scene.program.path("second")) == after);

    scene.backup(&["--full"]);
    scene.run(&["expire", "--name", "db1", "--keep-last", "1"]).expect_code(0);
    scene.run(&["prune", "--grace", "0s", "--json"]).expect_code(0);
    let pruned = scene.run(&["prune", "--grace", "0s", "--json"]).expect_code(0).last();
    assert!(pruned["data"]["logs"][0]["deleted_packs"].as_u64() > Some(0), "{pruned:#}");
    assert_eq!(ids(&scene.run(&["list", "--json"]).expect_code(0).last()), ["db1#3"]);
    scene.run(&["check", "--read-data"]).expect_code(0);
    assert!(scene.restored("latest", &scene.program.path("third")) == after);
}

/// Hosts back up and expire concurrently in separate processes, while others prune, check and list.
fn serves_many_at_once(scene: &Scene) {
    scene.run(&["init"]).expect_code(0);
    let names = ["db1", "db2", "db3"];
    let add_rows = "CREATE TABLE d.added (id INT AUTO_INCREMENT PRIMARY KEY, name CHAR(3), v VARCHAR(200))";
    scene.server.exec(add_rows).unwrap();
    let is_over = AtomicBool::new(false);
    let written: Vec<_> = thread::scope(|scope| {
        let hosts: Vec<_> = names.map(|name| scope.spawn(move || backs_up_often(scene, name))).into();
        let keepers = [&["prune", "--grace", "0s"][..], &["check", "--read-data"], &["list"]];
        let is_over = &is_over;
        let keepers: Vec<_> = keepers
            .map(|words| {
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        // Another run may hold the log at the moment; no other failure is allowed.
                        let it = scene.run(words);
                        assert!(it.code == 0 || it.code == 8, "{words:?}: {it:#?}");
                    }
                })
            })
            .into();
        let written = hosts.into_iter().map(|host| host.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        for keeper in keepers {
            keeper.join().unwrap();
        }
        written
    });
    scene.run(&["check", "--read-data"]).expect_code(0);
    for (name, written) in names.into_iter().zip(written) {
        let target = scene.program.path(name);
        let server = scene.restored_server(&["latest", "--name", name], &target);
        assert_eq!(added(&server, name), written.unwrap(), "{name}");
    }
}

/// Returns the rows that existed before the last backup.
fn backs_up_often(scene: &Scene, name: &str) -> Vec<u32> {
    for _ in 0..4 {
        let row =
            format!("INSERT INTO d.added (name, v) SELECT '{name}', SHA2(RAND(), 512) FROM d.seq_1_to_2000");
        scene.server.exec(row).unwrap();
        scene.backup_as(name, &[]);
        let expired = scene.run(&["expire", "--name", name, "--keep-last", "1"]);
        assert!(expired.code == 0 || expired.code == 8, "{expired:#?}");
    }
    added(&scene.server, name)
}

fn added(server: &Server, name: &str) -> Vec<u32> {
    server.query(format!("SELECT id FROM d.added WHERE name = '{name}' ORDER BY id")).unwrap()
}

#[test]
fn a_bucket_serves_many_at_once() {
    let storage = ObjectStorage::start(ObjectStorageKind::Versitygw).unwrap();
    let location = format!("s3://{BUCKET}/backups/db");
    serves_many_at_once(&Scene::new(location, Vec::new(), storage.environment().into()));
}

#[test]
fn a_host_behind_ssh_serves_many_at_once() {
    let server = Sshd::start("internal-sftp").unwrap();
    let folder = tempfile::tempdir().unwrap();
    serves_many_at_once(&scene_behind_ssh(&server, folder.path()));
}

#[test]
fn a_bucket_serves_for_everything() {
    let storage = ObjectStorage::start(ObjectStorageKind::Versitygw).unwrap();
    let location = format!("s3://{BUCKET}/backups/db");
    let scene = Scene::new(location, Vec::new(), storage.environment().into());
    serves_for_everything(&scene);

    let mut wrong = scene.command(&["list"]);
    let denied = run(wrong.env("AWS_SECRET_ACCESS_KEY", "a-guess")).expect_code(5);
    assert!(
        denied.err.contains("the credentials were refused at s3://") && denied.err.contains("hint: "),
        "{denied:#?}"
    );
    let mut absent = scene.program.command(&["list", "--repo", "s3://no-such-bucket/x"]);
    let absent = run(absent.envs(storage.environment()));
    assert!(absent.code == 5 && absent.err.contains("no-such-bucket"), "{absent:#?}");
    drop(storage);
    let gone = scene.run(&["list"]).expect_code(5);
    assert!(gone.err.contains("the store cannot be reached"), "{gone:#?}");
}

#[test]
fn a_container_of_azure_serves_for_everything() {
    let storage = Azurite::start().unwrap();
    let location = format!("az://{CONTAINER}/backups/db");
    let scene = Scene::new(location, Vec::new(), storage.environment().into());
    let locked = scene.run(&["init", "--object-lock", "30d"]).expect_code(1);
    assert!(locked.err.contains("cannot lock objects") && locked.err.contains("s3:// only"), "{locked:#?}");
    serves_for_everything(&scene);
    let past = scene.run(&["list", "--as-of", "2026-01-01 00:00:00"]).expect_code(2);
    assert!(past.err.contains("cannot be read as of a time"), "{past:#?}");

    // Typed options work as well as the environment; without a container, an account or the
    // right key, nothing works.
    let (endpoint, account, key) =
        (&storage.environment()[0].1, &storage.environment()[1].1, "AZURE_STORAGE_KEY");
    let mut typed = scene.program.command(&["list", "--repo", &scene.location, "--az-endpoint", endpoint]);
    run(typed.args(["--az-account", account]).env(key, ACCOUNT_KEY)).expect_code(0);
    let mut nameless = scene.program.command(&["list", "--repo", &scene.location]);
    let nameless = run(nameless.env(key, ACCOUNT_KEY)).expect_code(2);
    assert!(nameless.err.contains("--az-account"), "{nameless:#?}");
    let mut absent = scene.program.command(&["list", "--repo", "az://no-such-container/x"]);
    let absent = run(absent.envs(storage.environment())).expect_code(5);
    assert!(absent.err.contains("no-such-container") && absent.err.contains("hint: "), "{absent:#?}");
    drop(storage);
    let gone = scene.run(&["list"]).expect_code(5);
    assert!(gone.err.contains("the store cannot be reached"), "{gone:#?}");
}

/// A time in the second that ends now; the next second contains nothing of what was done before.
pub(crate) fn a_moment() -> String {
    let moment = jiff::Timestamp::now();
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    (moment + jiff::SignedDuration::from_secs(1)).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Someone with the credentials deletes all current objects, and overwrites every third one.
const ATTACK: &str = "\
    n = 0\n\
    for page in s3.get_paginator('list_objects_v2').paginate(Bucket=BUCKET):\n\
    \x20   for it in page['Contents']:\n\
    \x20       n += 1\n\
    \x20       if n % 3 == 0:\n\
    \x20           s3.put_object(Bucket=BUCKET, Key=it['Key'], Body=b'ransom')\n\
    \x20       else:\n\
    \x20           s3.delete_object(Bucket=BUCKET, Key=it['Key'])\n\
    print(n)";

#[test]
fn after_an_attack_the_repository_is_read_as_it_was() {
    let storage = ObjectStorage::start_keeping(ObjectStorageKind::Versitygw, Keeps::Versions).unwrap();
    let location = format!("s3://{BUCKET}/backups/db");
    let scene = Scene::new(location, Vec::new(), storage.environment().into());
    scene.run(&["init"]).expect_code(0);
    scene.backup(&[]);
    let before = scene.rows();
    scene.server.exec_all(["UPDATE d.t SET v = 'changed' WHERE id % 5000 = 0"]).unwrap();
    scene.backup(&[]);
    let after = scene.rows();
    let list = |run: Run| {
        let list = run.expect_code(0).last();
        ids(&list).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let was = list(scene.run(&["list", "--json"]));
    let time = a_moment();

    let count: usize = storage.boto(ATTACK).unwrap().trim().parse().unwrap();
    assert!(count > 10, "{count}");
    let lost = scene.run(&["list"]);
    assert!(lost.code == 5 && lost.err.contains("there is no repository at"), "{lost:#?}");
    assert!(lost.err.contains("hint: ") && lost.err.contains("--as-of"), "{lost:#?}");
    assert_eq!(list(scene.run(&["list", "--as-of", &time, "--json"])), was);
    let checked = scene.run(&["check", "--as-of", &time, "--read-data", "--json"]).expect_code(0).last();
    assert_eq!(checked["data"]["backups"], 2);
    assert!(scene.restored_as_of("db1#1", &time, &scene.program.path("first")) == before);
    assert!(scene.restored_as_of("latest", &time, &scene.program.path("second")) == after);

    // A copy of it is an ordinary repository again, which is not in the past.
    scene.program.run(&["init"]).expect_code(0);
    let copy = scene.program.repository().display().to_string();
    let password = scene.program.write("password", PASSWORD).display().to_string();
    let to = ["--to", &copy, "--to-password-file", &password];
    scene.run(&[&["copy", "--all", "--as-of", &time][..], &to].concat()).expect_code(0);
    assert_eq!(list(scene.program.run(&["list", "--json"])), was);
    let refused = scene.program.run(&["list", "--as-of", &time]).expect_code(2);
    assert!(refused.err.contains("keeps no versions"), "{refused:#?}");
    for verb in [&["prune"][..], &["expire", "--keep-last", "1"], &["init"], &["doctor"], &["key", "rotate"]]
    {
        let refused = scene.run(&[verb, &["--as-of", &time]].concat());
        assert!(refused.code == 2 && refused.err.contains("--as-of is for reading"), "{refused:#?}");
    }
    let early = scene.run(&["list", "--as-of", "2020-01-01 00:00:00"]).expect_code(5);
    assert!(early.err.contains("as of 2020-01-01T00:00:00Z"), "{early:#?}");
}

fn scene_behind_ssh(server: &Sshd, folder: &Path) -> Scene {
    let location = format!("sftp://backup-host{}/repo", folder.display());
    let options = vec!["--ssh-config".to_owned(), server.ssh_config().display().to_string()];
    Scene::new(location, options, Vec::new())
}

#[test]
fn a_host_behind_ssh_serves_for_everything() {
    let server = Sshd::start("internal-sftp").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let scene = scene_behind_ssh(&server, folder.path());
    serves_for_everything(&scene);
    // Only the repository is left.
    assert_eq!(std::fs::read_dir(folder.path().join("repo/.tmp")).map_or(0, Iterator::count), 0);
}
