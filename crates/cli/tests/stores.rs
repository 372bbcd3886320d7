//! A repository beyond a network, with options and environment as on a command line:
//! everything a repository is for.

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use holdfast_testkit::{
    Server, ServerKind, ServerOptions,
    azurite::{ACCOUNT_KEY, Azurite, CONTAINER},
    object_storage::{BUCKET, Keeps, ObjectStorage, ObjectStorageKind, SECRET_KEY},
    proxy::{Fate, Proxy},
    sshd::Sshd,
};
use rustix::process::{getegid, geteuid};

use crate::{
    backups::{ids, take},
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

    pub(crate) fn command(&self, words: &[&str]) -> Command {
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
        self.try_backup_as(name, words).expect_code(0);
    }

    #[track_caller]
    pub(crate) fn try_backup_as(&self, name: &str, words: &[&str]) -> Run {
        let socket = self.server.socket().display().to_string();
        let mut all =
            vec!["backup", "--name", name, "--no-defaults", "--user", "root", "--socket", &socket, "--json"];
        // A logical backup has no such locks.
        let locks: &[&str] = if words.contains(&"logical") { &[] } else { &LOCKS };
        all.extend(locks.iter().chain(words));
        self.run(&all)
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
        self.run_owned(&self.restore_words(words, target)).expect_code(0);
        self.rows_in(target)
    }

    /// The words that restore into `target`.
    pub(crate) fn restore_words(&self, words: &[&str], target: &Path) -> Vec<String> {
        let owner = format!("{}:{}", geteuid().as_raw(), getegid().as_raw());
        let program = self.server.kind().server_program().unwrap().display().to_string();
        let target = target.display().to_string();
        let all = ["--owner", &owner, "--target-dir", &target, "--server-binary", &program];
        [&["restore"], words, &all].concat().into_iter().map(str::to_owned).collect()
    }

    #[track_caller]
    pub(crate) fn run_owned(&self, words: &[String]) -> Run {
        self.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The rows of a restored data directory.
    pub(crate) fn rows_in(&self, target: &Path) -> Vec<(u32, String)> {
        let mut server = Server::attach(self.server.kind(), target, ServerOptions::default()).unwrap();
        let rows = rows(&server);
        server.stop().unwrap();
        rows
    }

    #[track_caller]
    fn restored_server(&self, words: &[&str], target: &Path) -> Server {
        self.run_owned(&self.restore_words(words, target)).expect_code(0);
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

/// The host whose backups are logical.
const LOGICAL: &str = "db4";

/// Hosts back up and expire concurrently in separate processes, pages and rows, while others prune, check, list,
/// archive the binlog and restore.
fn serves_many_at_once(scene: &Scene) {
    scene.run(&["init"]).expect_code(0);
    let names = ["db1", "db2", "db3"];
    let add_rows = "CREATE TABLE d.added (id INT AUTO_INCREMENT PRIMARY KEY, name CHAR(3), v VARCHAR(200))";
    scene.server.exec(add_rows).unwrap();
    // Something to restore from the beginning.
    scene.backup(&[]);
    let socket = scene.server.socket().display().to_string();
    let connection = ["--no-defaults", "--user", "root", "--socket", &socket];
    let archive = [&["binlog", "archive", "--once", "--name", "db1"][..], &connection].concat();
    let is_over = AtomicBool::new(false);
    let written: Vec<_> = thread::scope(|scope| {
        let hosts: Vec<_> = names
            .iter()
            .chain([&LOGICAL])
            .map(|name| scope.spawn(move || backs_up_often(scene, name)))
            .collect();
        let keepers = [&["prune", "--grace", "0s"][..], &["check", "--read-data"], &["list"], &archive];
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
        let restorer = scope.spawn(move || restores_often(scene, is_over));
        let written = hosts.into_iter().map(|host| host.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        for keeper in keepers {
            keeper.join().unwrap();
        }
        restorer.join().unwrap();
        written
    });
    scene.run(&["check", "--read-data"]).expect_code(0);
    for (name, written) in names.into_iter().chain([LOGICAL]).zip(written) {
        let restored = match name {
            LOGICAL => loaded_server(scene, name),
            _ => scene.restored_server(&["latest", "--name", name], &scene.program.path(name)),
        };
        assert_eq!(added(&restored, name), written.unwrap(), "{name}");
    }
}

/// Restores the newest backup into one directory after the other. A prune without grace may delete what a backup
/// needed that was dropped meanwhile: a restore of that is refused, and says what is gone.
fn restores_often(scene: &Scene, is_over: &AtomicBool) {
    for turn in 0.. {
        // The last one, when nothing is dropped any more.
        let is_last = is_over.load(Ordering::Relaxed);
        let target = scene.program.path(&format!("restored-{turn}"));
        let it = scene.run_owned(&scene.restore_words(&["latest", "--name", "db1"], &target));
        let is_gone = it.code == 1 && it.err.contains("was dropped while it was restored");
        assert!(it.code == 0 || (is_gone && !is_last), "{it:#?}");
        if is_last {
            return;
        }
    }
}

/// A new server with the rows of the newest logical backup.
fn loaded_server(scene: &Scene, name: &str) -> Server {
    let server = Server::start(scene.server.kind(), ServerOptions::default()).unwrap();
    let socket = server.socket().display().to_string();
    let to = ["--to-server", "--no-defaults", "--user", "root", "--socket", &socket];
    scene.run(&[&["restore", "latest", "--name", name][..], &to].concat()).expect_code(0);
    server
}

/// Returns the rows that existed before the last backup.
fn backs_up_often(scene: &Scene, name: &str) -> Vec<u32> {
    let method: &[&str] = if name == LOGICAL { &["--method", "logical"] } else { &[] };
    for _ in 0..3 {
        let row =
            format!("INSERT INTO d.added (name, v) SELECT '{name}', SHA2(RAND(), 512) FROM d.seq_1_to_2000");
        scene.server.exec(row).unwrap();
        scene.backup_as(name, method);
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

/// A restore that is overtaken by an expire and prunes without grace says so, and not that the repository is damaged.
#[test]
fn a_restore_of_what_is_dropped_meanwhile_says_so() {
    let storage = ObjectStorage::start(ObjectStorageKind::Versitygw).unwrap();
    let location = format!("s3://{BUCKET}/backups/db");
    let scene = Scene::new(location, Vec::new(), storage.environment().into());
    scene.run(&["init"]).expect_code(0);
    scene.backup(&[]);
    scene.backup(&["--full"]);
    let (reads, has_read) = mpsc::channel();
    let (goes_on, may_go_on) = mpsc::channel();
    let first = Mutex::new(Some((reads, may_go_on)));
    let proxy = Proxy::start(storage.port(), move |request| {
        let is_first = || first.lock().unwrap().take();
        if let Some((reads, may_go_on)) = request.is("GET", "/packs/").then(is_first).flatten() {
            reads.send(()).unwrap();
            may_go_on.recv().unwrap();
        }
        Fate::Pass
    })
    .unwrap();
    let words = scene.restore_words(&["db1#1"], &scene.program.path("restored"));
    let mut restore = scene.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
    restore.env("AWS_ENDPOINT_URL", proxy.endpoint());
    let overtaken = thread::scope(|scope| {
        let restore = scope.spawn(|| run(&mut restore));
        has_read.recv().unwrap();
        scene.run(&["expire", "--name", "db1", "--keep-last", "1"]).expect_code(0);
        for _ in 0..2 {
            scene.run(&["prune", "--grace", "0s"]).expect_code(0);
        }
        goes_on.send(()).unwrap();
        restore.join().unwrap().expect_code(1)
    });
    for said in ["db1#1 was dropped while it was restored", "/packs/", "--grace"] {
        assert!(overtaken.err.contains(said), "{said}: {overtaken:#?}");
    }
}

/// Copies all files below a directory.
fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// How many requests `list` and `show` send for each backup, and besides.
#[test]
fn list_and_show_ask_a_bucket_little_for_each_backup() {
    const FEW: u8 = 20;
    const MANY: u8 = 60;
    let storage = ObjectStorage::start(ObjectStorageKind::Versitygw).unwrap();
    let requests = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&requests);
    let proxy = Proxy::start(storage.port(), move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
        Fate::Pass
    })
    .unwrap();
    let program = Program::with_repository();
    let asked = |location: &str, words: &[&str]| {
        let mut command = program.command(words);
        command.args(["--repo", location]).envs(storage.environment());
        requests.store(0, Ordering::Relaxed);
        run(command.env("AWS_ENDPOINT_URL", proxy.endpoint())).expect_code(0);
        requests.load(Ordering::Relaxed)
    };
    let mut counts = Vec::new();
    for turn in 1..=MANY {
        take(&program, "db1", turn, 2);
        if turn == FEW || turn == MANY {
            let place = format!("after-{turn}");
            copy_tree(&program.repository(), &storage.bucket_dir().unwrap().join(&place));
            let location = format!("s3://{BUCKET}/{place}");
            counts.push((asked(&location, &["list"]), asked(&location, &["show", "db1#7"])));
        }
    }
    let [(list_few, show_few), (list_many, show_many)] = counts[..] else { panic!("{counts:?}") };
    let (few, more) = (u64::from(FEW), u64::from(MANY - FEW));
    // An outcome and a manifest of each; of what is not shown, the outcome.
    assert!(list_many - list_few <= 2 * more && list_few - 2 * few <= 16, "list: {counts:?}");
    assert!(show_many - show_few <= more && show_few - few <= 16, "show: {counts:?}");
}
