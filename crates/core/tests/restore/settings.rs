//! Options for the recovering server, and which versions it may have.

use std::sync::Mutex;

use holdfast_testkit::{
    checksum::{checksums, differences},
    tables::check_tables,
};

use super::*;

fn write_program(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A small server and its backup.
fn backed_up(kind: ServerKind, dir: &Path) -> (Server, Arc<Repo>, BackupReport) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    source
        .exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (i INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)"])
        .unwrap();
    let repo = new_repo();
    let backup = back_up(&repo, &source, dir);
    (source, repo, backup)
}

/// Settings persisted by the source apply to the restored server: the recovering one must not write to the
/// places that they name.
#[test]
fn mysql_persisted_settings_are_for_the_restored_server_only() {
    let kind = ServerKind::MySql97;
    let dir = tempfile::tempdir().unwrap();
    let log_file = dir.path().join("general.log");
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE d",
            "CREATE TABLE d.t (i INT PRIMARY KEY)",
            "INSERT INTO d.t VALUES (1)",
            &format!("SET PERSIST general_log_file = '{}'", log_file.display()),
            "SET PERSIST general_log = ON",
            "SET PERSIST_ONLY back_log = 77",
            "SET PERSIST super_read_only = ON",
        ])
        .unwrap();
    assert!(log_file.exists(), "the source does not log there");
    let repo = new_repo();
    let backup = back_up(&repo, &source, dir.path());
    source.exec("SET GLOBAL general_log = OFF").unwrap();
    fs::remove_file(&log_file).unwrap();
    let target = dir.path().join("target");
    let report = restore(&repo, &backup, &options(kind, target.clone())).unwrap();
    assert_eq!(report.prepared.unwrap().lsn, backup.position.lsn);
    assert!(!log_file.exists(), "the recovering server has logged there");
    // `--no-defaults` keeps a server from reading its persisted settings.
    let (program, no_file) = (dir.path().join("server"), dir.path().join("no.cnf"));
    fs::write(&no_file, "").unwrap();
    write_program(
        &program,
        &format!(
            "shift\nexec '{}' --defaults-file='{}' \"$@\"",
            kind.server_program().unwrap().display(),
            no_file.display()
        ),
    );
    let program = Some(program);
    let copy = Server::attach(kind, &target, ServerOptions { program, ..ServerOptions::default() }).unwrap();
    let settings = "SELECT CONCAT_WS(' ', @@general_log_file, @@general_log, @@back_log, @@super_read_only)";
    assert_eq!(copy.value::<String>(settings).unwrap(), format!("{} 1 77 1", log_file.display()));
    assert!(log_file.exists(), "the restored server does not log there");
    assert_equal_checksums(&source, &copy).unwrap();
}

/// A program that claims to be of another version than it is.
fn called(dir: &Path, kind: ServerKind, version: &str) -> PathBuf {
    let (program, real) = (dir.join(format!("server-{version}")), kind.server_program().unwrap());
    let real = real.display();
    let text = format!(
        "case \" $* \" in\n*' --version '*) '{real}' \"$@\" | sed 's/ Ver [0-9.]*/ Ver {version}/';;\n\
         *) exec '{real}' \"$@\";;\nesac"
    );
    write_program(&program, &text);
    program
}

/// A later release of the series recovers a backup; an earlier one, and another series,
/// only if the user allows it.
fn recovered_by_other_releases(kind: ServerKind, later: &str, others: [&str; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let (source, repo, backup) = backed_up(kind, dir.path());
    let by = |version: &str, allow_version| {
        let target = dir.path().join(format!("by-{version}"));
        let server_binary = Some(called(dir.path(), kind, version));
        let options = RestoreOptions { server_binary, allow_version, ..RestoreOptions::new(&target) };
        restore(&repo, &backup, &options).map(|report| (report.prepared.unwrap(), target))
    };
    for other in others {
        let error = by(other, false).unwrap_err();
        assert!(
            error.to_string().contains("it must be of the same release series, and not older"),
            "{error}"
        );
        assert!(error.to_string().contains(other), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("--allow-version")), "{error:?}");
        assert!(!dir.path().join(format!("by-{other}")).exists(), "it was refused when it had begun");
    }
    for (version, allow_version) in [(later, false), (others[0], true)] {
        let (prepared, target) = by(version, allow_version).unwrap();
        assert!(prepared.version.contains(version), "{}", prepared.version);
        assert_eq!(prepared.lsn, backup.position.lsn);
        let copy = Server::attach(kind, target, ServerOptions::default()).unwrap();
        assert_equal_checksums(&source, &copy).unwrap();
    }
}

#[test]
fn mariadb_other_releases_recover_what_they_may() {
    recovered_by_other_releases(ServerKind::MariaDb1011, "10.11.99", ["10.11.8", "11.4.2"]);
}

#[test]
fn mysql_other_releases_recover_what_they_may() {
    recovered_by_other_releases(ServerKind::MySql97, "9.7.99", ["9.7.0", "9.8.0"]);
}

/// Real minor releases: what the earlier one wrote under load, the later one recovers and continues; what the later
/// one wrote, the earlier one recovers only if the user allows it.
#[test]
fn mariadb_a_later_minor_release_recovers_an_earlier_one() {
    let [earlier, later] = [ServerKind::MariaDb1011Earlier, ServerKind::MariaDb1011];
    let [earlier_version, later_version] = [earlier, later].map(|kind| kind.version().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let source = Server::start(earlier, ServerOptions::default()).unwrap();
    assert!(source.value::<String>("SELECT VERSION()").unwrap().starts_with(&earlier_version));
    shop::load(&source, shop::ShopOptions { size_mib: 4, ..shop::ShopOptions::default() }).unwrap();
    for engine in ["Aria", "MyISAM"] {
        source
            .exec(format!(
                "CREATE TABLE shop.of_{engine} ENGINE={engine} AS SELECT id FROM shop.orders LIMIT 900"
            ))
            .unwrap();
    }
    let load = WriteLoad::start(&source, 2, 24).unwrap();
    while load.committed() < 100 {
        sleep(Duration::from_millis(10));
    }
    let repo = new_repo();
    let backup = back_up(&repo, &source, dir.path());
    load.stop().unwrap();
    let target = dir.path().join("by-later");
    let prepared = restore(&repo, &backup, &options(later, target.clone())).unwrap().prepared.unwrap();
    assert!(prepared.version.contains(&later_version), "{}", prepared.version);
    assert_eq!(prepared.lsn, backup.position.lsn);
    let copy = Server::attach(later, &target, ServerOptions::default()).unwrap();
    check_ledger(&copy).unwrap();
    let position = Position::Gtid(backup.position.gtid.unwrap());
    replica::catch_up(&source, &copy, &position, CATCH_UP_MAX).unwrap();
    check_tables(&copy).unwrap();
    let mut differing = differences(&checksums(&source).unwrap(), &checksums(&copy).unwrap());
    // With an account that it changes, a server notes its own release.
    differing.retain(|line| !line.starts_with("`mysql`.`global_priv`"));
    assert_eq!(differing, Vec::<String>::new());

    let (source, repo, backup) = backed_up(later, dir.path());
    let target = dir.path().join("by-earlier");
    let by_earlier = options(earlier, target.clone());
    let error = restore(&repo, &backup, &by_earlier).unwrap_err();
    let told = error.to_string();
    assert!(told.contains("and not older"), "{told}");
    assert!(told.contains(&earlier_version) && told.contains(&later_version), "{told}");
    assert!(!target.exists(), "it was refused when it had begun");
    let allowed = RestoreOptions { allow_version: true, ..by_earlier };
    assert_eq!(restore(&repo, &backup, &allowed).unwrap().prepared.unwrap().lsn, backup.position.lsn);
    let copy = Server::attach(earlier, &target, ServerOptions::default()).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}

/// A program that says, forever, that it searches the buffer pool for free pages, unless it gets `option`.
fn stuck_without(dir: &Path, option: &str) -> PathBuf {
    let (program, real) = (dir.join(format!("stuck{option}")), ServerKind::MySql97.server_program().unwrap());
    let text = format!(
        "case \" $* \" in\n*' --version '*|*' {option} '*) exec '{}' \"$@\";;\nesac\n\
         n=20; while sleep 0.2; do n=$((n + 1))\n\
         echo \"0 [Warning] [MY-011959] [InnoDB] Difficult to find free blocks in the buffer pool \
         ($n search iterations)! 5 OS file reads, 7 OS file writes, 3 OS fsyncs.\" >&2; done",
        real.display()
    );
    write_program(&program, &text);
    program
}

/// MySQL's recovery can wait for itself: it is started again, with settings that make that rare. If these do
/// not help, it does not go on forever.
#[test]
fn mysql_a_recovery_that_stands_still_is_started_again() {
    struct Notes(Mutex<Vec<String>>);
    impl Listener for Notes {
        fn event(&self, event: Event) {
            if let Event::Note { text } = event {
                self.0.lock().unwrap().push(text);
            }
        }
    }
    let kind = ServerKind::MySql97;
    let dir = tempfile::tempdir().unwrap();
    let (source, repo, backup) = backed_up(kind, dir.path());
    let by = |option: &str, prepare_memory_bytes| {
        let notes = Notes(Mutex::default());
        let target = dir.path().join(format!("by{option}"));
        let options = RestoreOptions {
            server_binary: Some(stuck_without(dir.path(), option)),
            prepare_memory_bytes,
            ..RestoreOptions::new(&target)
        };
        let number = RunNo(backup.run.backup);
        let result = restore::run(&repo, &log(), number, &options, &notes, &Cancel::default());
        let begun_again =
            notes.0.into_inner().unwrap().into_iter().filter(|note| note.contains("standstill"));
        (result, begun_again.collect::<Vec<_>>(), target)
    };
    let [(recovered, more, target), (given_up, same, unfinished)] = std::thread::scope(|scope| {
        let careful = scope.spawn(|| by("--innodb-read-io-threads=1", None));
        let hopeless = scope.spawn(|| by("--no-such-option", Some(96 << 20)));
        [careful.join().unwrap(), hopeless.join().unwrap()]
    });
    assert_eq!(recovered.unwrap().prepared.unwrap().lsn, backup.position.lsn);
    assert!(more.len() == 1 && more[0].ends_with("256 MiB"), "{more:?}");
    let copy = Server::attach(kind, target, ServerOptions::default()).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
    // The user's choice of memory stays.
    assert!(same.len() == 3 && same.iter().all(|note| note.ends_with("96 MiB")), "{same:?}");
    let error = given_up.unwrap_err();
    assert!(error.to_string().contains("waits for free pages"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--prepare-memory")), "{error:?}");
    assert!(Server::attach(kind, unfinished, ServerOptions::default()).is_err(), "a server starts on it");
}
