//! Servers that encrypt everything they can. Only the servers have the keys; Holdfast never does.

use std::{
    fs::{self, File},
    io::Read,
    thread::sleep,
    time::Instant,
};

use holdfast_core::Error;
use holdfast_testkit::encryption::Encryption;
use mysql::prelude::Queryable;

use super::*;

/// Whether the redo log in a MariaDB data directory is encrypted.
fn log_is_encrypted(datadir: &Path) -> bool {
    let mut format = [0; 4];
    File::open(datadir.join("ib_logfile0")).unwrap().read_exact(&mut format).unwrap();
    &format != b"Phys"
}

fn mariadb_stage(kind: ServerKind, size_mib: u64) -> Stage {
    let dir = TempDir::new().unwrap();
    let encryption = Encryption::new(kind, dir.path(), ServerOptions::default()).unwrap();
    let source = Server::start(kind, encryption.server_options.clone()).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib, ..shop::ShopOptions::default() }).unwrap();
    misc::create(&source, misc::MiscOptions { outside: false, ..misc::MiscOptions::default() }).unwrap();
    let repo = new_repo(&dir.path().join("repo"));
    let Encryption { server_options, prepare_options, keyring } = encryption;
    Stage { server_options, prepare_options, keyring, ..Stage::with_repo(source, repo, dir) }
}

/// Without the keys, a restore fails and says which keys are missing; no server can start on what it leaves.
fn fails_without_keys(stage: &Stage, options: &RestoreOptions, backup: u64, missing: [&str; 2]) {
    let error: Error =
        restore::run(&stage.repo, &log(), RunNo(backup), options, &Told, &Cancel::default()).unwrap_err();
    let hint = error.hint().unwrap_or_else(|| panic!("{error:?}"));
    assert!(missing.iter().all(|missing| hint.contains(missing)), "{error}: {hint}");
    assert!(fs::read_to_string(options.target_dir.join("ibdata1")).unwrap().starts_with("holdfast: "));
    fs::remove_dir_all(&options.target_dir).unwrap();
}

fn mariadb_full_and_incremental(kind: ServerKind, seed: u64) {
    let stage = mariadb_stage(kind, 16);
    assert!(log_is_encrypted(stage.source.datadir()));
    let [full, second] = stage.two_backups(seed);
    let without = RestoreOptions { prepare_options: Vec::new(), ..stage.restore_options(second.run.backup) };
    fails_without_keys(&stage, &without, second.run.backup, ["file_key_management", "--prepare-option"]);
    stage.prove(&second);
    stage.prove(&full);
    // Files written by the recovering server are encrypted, too.
    assert!(log_is_encrypted(&stage.restore_options(full.run.backup).target_dir));
}

#[test]
fn encrypted_mariadb_10_11_restores_to_the_recorded_position_under_writes_and_ddl() {
    mariadb_full_and_incremental(ServerKind::MariaDb1011, 41);
}

#[test]
fn encrypted_mariadb_11_8_restores_to_the_recorded_position_under_writes_and_ddl() {
    mariadb_full_and_incremental(ServerKind::MariaDb118, 42);
}

/// A table outside the data directory is named in redo that cannot be rewritten: it is restored to its
/// original place, or the restore is refused.
#[test]
fn encrypted_mariadb_tables_elsewhere_are_refused_where_they_were() {
    let stage = mariadb_stage(ServerKind::MariaDb1011, 5);
    let outside = stage.source.outside();
    stage
        .source
        .exec_all([
            "CREATE DATABASE e".to_owned(),
            format!("CREATE TABLE e.t (i INT PRIMARY KEY) DATA DIRECTORY='{}'", outside.display()),
            "INSERT INTO e.t VALUES (1), (2)".to_owned(),
        ])
        .unwrap();
    let backup = stage.back_up();
    let options = stage.restore_options(backup.run.backup);
    for maps in [
        Vec::new(),
        vec![(outside.clone(), stage.dir.path().join("elsewhere"))],
        vec![(outside.clone(), outside)],
    ] {
        let options = RestoreOptions { maps, ..options.clone() };
        restore::run(&stage.repo, &log(), RunNo(backup.run.backup), &options, &Told, &Cancel::default())
            .unwrap_err();
        assert!(!options.target_dir.exists());
    }
    assert_eq!(stage.source.value::<u64>("SELECT COUNT(*) FROM e.t").unwrap(), 2);
}

fn mysql_stage(size_mib: u64) -> Stage {
    let (kind, dir) = (ServerKind::MySql97, TempDir::new().unwrap());
    let encryption = Encryption::new(kind, dir.path(), ServerOptions::default()).unwrap();
    let source = Server::start(kind, encryption.server_options.clone()).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib, ..shop::ShopOptions::default() }).unwrap();
    misc::create(&source, misc::MiscOptions::default()).unwrap();
    encryption.encrypt_tables(&source).unwrap();
    let repo = new_repo(&dir.path().join("repo"));
    let Encryption { server_options, prepare_options, keyring } = encryption;
    Stage { server_options, prepare_options, keyring, ..Stage::with_repo(source, repo, dir) }
}

#[test]
fn encrypted_mysql_9_7_restores_to_its_position_under_writes_and_ddl() {
    let stage = mysql_stage(16);
    let [full, second] = stage.two_backups(43);
    let keyring = stage.keyring.clone().unwrap();
    let keys = fs::read(&keyring).unwrap();

    let away = keyring.with_extension("away");
    fs::rename(&keyring, &away).unwrap();
    let options = stage.restore_options(second.run.backup);
    fails_without_keys(&stage, &options, second.run.backup, ["component_keyring_file", "--keyring"]);
    // With the location of the keys given; afterwards the backup's own configuration is back.
    let options = RestoreOptions { keyring: Some(away.clone()), ..options };
    restore::run(&stage.repo, &log(), RunNo(second.run.backup), &options, &Told, &Cancel::default()).unwrap();
    let config = fs::read_to_string(options.target_dir.join("component_keyring_file.cnf")).unwrap();
    assert!(config.contains(&format!("\"{}\"", keyring.display())), "{config}");
    assert!(!options.target_dir.join("auto.cnf").exists());
    fs::remove_dir_all(&options.target_dir).unwrap();
    fs::rename(&away, &keyring).unwrap();

    stage.prove(&second);
    stage.prove(&full);
    assert!(fs::read(&keyring).unwrap() == keys, "a restore wrote to the source's keyring");
}

/// If the log ends exactly at the position, the backup records an exact position, including the binlog's.
/// Purge, statistics and the backup's own statements write a few bytes now and then, so not every backup of
/// an idle server is that lucky.
#[test]
fn encrypted_mysql_9_7_at_rest_has_an_exact_position() {
    let stage = mysql_stage(5);
    let load = WriteLoad::start(&stage.source, 2, 44).unwrap();
    sleep(Duration::from_secs(1));
    load.stop().unwrap();
    let backup = (0..60)
        .map(|_| stage.back_up())
        .find(|backup| backup.position.precision == Precision::Exact)
        .expect("no log of the idle server ended at its position");
    assert!(backup.position.binlog.is_some());
    stage.prove(&backup);
}

/// The lock held by such a backup prevents changes of the master key and of redo logging: statements that do
/// not wait for its end are refused.
/// These do not make a backup fail, and its copy is opened with the keys as they are afterwards.
#[test]
fn encrypted_mysql_9_7_changes_its_master_key_when_the_backup_has_ended() {
    const ROTATE: &str = "ALTER INSTANCE ROTATE INNODB MASTER KEY";
    const WAITING: &str = "SELECT COUNT(*) FROM information_schema.processlist
                           WHERE info LIKE 'ALTER INSTANCE%' AND state LIKE 'Waiting for backup lock%'";
    const WAITING_MAX: Duration = Duration::from_secs(120);
    let stage = mysql_stage(5);
    // Tables of other engines cannot be locked while a rotation waits: the server reports a deadlock each
    // time.
    stage.source.exec("DROP DATABASE misc").unwrap();
    let keys = || fs::read(stage.keyring.as_ref().unwrap()).unwrap();
    let before = keys();
    let source = &stage.source;
    let backup = std::thread::scope(|scope| {
        let at_stop = || {
            let mut conn = source.conn().unwrap();
            conn.query_drop("SET lock_wait_timeout = 1").unwrap();
            for statement in
                [ROTATE, "ALTER INSTANCE DISABLE INNODB REDO_LOG", "ALTER INSTANCE ENABLE INNODB REDO_LOG"]
            {
                let error = conn.query_drop(statement).unwrap_err().to_string();
                assert!(error.contains("Lock wait timeout exceeded"), "{statement}: {error}");
            }
            scope.spawn(move || source.exec(ROTATE).unwrap());
            let begun = Instant::now();
            while source.value::<u64>(WAITING).unwrap() == 0 {
                assert!(begun.elapsed() < WAITING_MAX, "the statement does not wait");
                sleep(Duration::from_millis(20));
            }
            assert!(keys() == before, "the key was changed while a backup held the lock");
        };
        backup::run(&stage.repo, &stage.options(), &AtStop(at_stop), &Cancel::default()).unwrap()
    });
    assert!(keys() != before, "the key was never changed");
    let restored = stage.restore_recovered(&backup);
    stage.catch_up(&backup, &restored);
}
