//! Keys in the data directory are in no backup, and no restore deletes them.

use std::fs;

use holdfast_testkit::keyring::with_keyring;

use super::*;

/// `1;0123…` as encrypted by `openssl enc -aes-256-cbc -md sha1`, and the password.
const ENCRYPTED_KEYS: &str = "53616c7465645f5fefe6ed80247d6a3e0bdca1c9818beecc26f20458f23a1f5488ed6e92427e56184a9cdc17d0d0\
    5175a3fe1930dd02874301220ca77a11f1f2eae830ecacd85b5d8401a8e4004999136c3354d4508959450d8c5b5ab7ce3a1c";
const OF_KEYS: &str = "mypassword";

fn warned_by<T>(run: impl FnOnce(&Warnings) -> T) -> (T, String) {
    let warnings = Warnings::default();
    let result = run(&warnings);
    (result, warnings.heard().concat())
}

/// Takes a backup, restores it elsewhere, and over the source itself.
/// `keys` are the key files in the source's data directory, the first of which the settings name; `without`
/// contains the options by which a server elsewhere gets them.
fn keys_stay_where_they_are(mut stage: Stage, keys: &[&str], without: RestoreOptions) {
    stage.source.exec_all(["INSERT INTO e.t VALUES (1), (2)", "CREATE DATABASE later"]).unwrap();
    let (backup, warnings) =
        warned_by(|told| backup::run(&stage.repo, &stage.options(), told, &Cancel::default()).unwrap());
    let restore = |options: &RestoreOptions| {
        warned_by(|told| {
            restore::run(&stage.repo, &log(), RunNo(backup.run.backup), options, told, &Cancel::default())
                .unwrap()
        })
    };
    assert!(
        warnings
            .contains(&format!("{} holds encryption keys", stage.source.datadir().join(keys[0]).display())),
        "{warnings}"
    );

    let (_, warnings) = restore(&without);
    assert!(
        warnings.contains(&format!("the source had the key file {} in its data directory", keys[0])),
        "{warnings}"
    );
    let found = |dir: &Path| keys.iter().filter(|key| dir.join(key).exists()).count();
    assert_eq!(found(&without.target_dir), 0, "keys were in the backup");

    stage.source.exec_all(["INSERT INTO e.t VALUES (3)", "DROP DATABASE later"]).unwrap();
    stage.source.stop().unwrap();
    // With this file beside it, a keyring cannot be opened read-only.
    fs::remove_file(stage.source.datadir().join("keyring.backup")).ok();
    let over = RestoreOptions {
        delta: true,
        target_dir: stage.source.datadir().to_owned(),
        prepare_options: stage.prepare_options.clone(),
        keyring: None,
        ..without
    };
    let (_, warnings) = restore(&over);
    assert!(!warnings.contains("in its data directory"), "{warnings}");
    stage.source.run().unwrap();
    assert_eq!(stage.source.value::<u64>("SELECT COUNT(*) FROM e.t").unwrap(), 2);
}

#[test]
fn mariadb_keys_in_the_data_directory_are_in_no_backup() {
    let kind = ServerKind::MariaDb1011;
    let mut plain = Server::start(kind, ServerOptions::default()).unwrap();
    plain.stop().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..ENCRYPTED_KEYS.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&ENCRYPTED_KEYS[at..at + 2], 16).unwrap())
        .collect();
    for place in [plain.datadir(), dir.path()] {
        fs::create_dir_all(place.join("private")).unwrap();
        fs::write(place.join("private/keys.enc"), &bytes).unwrap();
        fs::write(place.join("of_keys"), OF_KEYS).unwrap();
    }
    fs::hard_link(plain.datadir().join("of_keys"), plain.datadir().join("another_name")).unwrap();
    let key_options = |dir: &str| {
        [
            "--plugin-load-add=file_key_management".to_owned(),
            format!("--file-key-management-filename={dir}private/keys.enc"),
            format!("--file-key-management-filekey=FILE:{dir}of_keys"),
        ]
    };
    let options = key_options("").into_iter().fold(ServerOptions::default(), ServerOptions::arg);
    let source = Server::attach(kind, plain.datadir(), options).unwrap();
    source.exec_all(["CREATE DATABASE e", "CREATE TABLE e.t (i INT PRIMARY KEY) ENCRYPTED=YES"]).unwrap();
    let repo = new_repo(&dir.path().join("repo"));
    let mut stage = Stage::with_repo(source, repo, dir);
    stage.prepare_options = key_options("").to_vec();
    let elsewhere = key_options(&format!("{}/", stage.dir.path().display())).to_vec();
    let without = RestoreOptions { prepare_options: elsewhere, ..stage.restore_options(1) };
    keys_stay_where_they_are(stage, &["private/keys.enc", "of_keys", "another_name"], without);
}

#[test]
fn mysql_a_keyring_in_the_data_directory_is_in_no_backup() {
    let dir = tempfile::tempdir().unwrap();
    let (keyring, program) = (dir.path().join("keyring"), dir.path().join("server"));
    fs::create_dir(&program).unwrap();
    let options = with_keyring(ServerOptions::default(), &program, &keyring).unwrap();
    let mut source = Server::start(ServerKind::MySql97, options).unwrap();
    source.exec_all(["CREATE DATABASE e", "CREATE TABLE e.t (i INT PRIMARY KEY) ENCRYPTION='Y'"]).unwrap();
    source.stop().unwrap();
    give_keyring(source.datadir(), &keyring, &source.datadir().join("keyring")).unwrap();
    source.run().unwrap();
    fs::write(source.datadir().join("component_keyring_vault.cnf"), "a token").unwrap();
    fs::copy(&keyring, source.datadir().join("keyring.backup")).unwrap();
    let repo = new_repo(&dir.path().join("repo"));
    let stage = Stage::with_repo(source, repo, dir);
    let without = RestoreOptions { keyring: Some(keyring), ..stage.restore_options(1) };
    keys_stay_where_they_are(stage, &["keyring", "keyring.backup", "component_keyring_vault.cnf"], without);
}
