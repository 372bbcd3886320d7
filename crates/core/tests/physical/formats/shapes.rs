//! Settings that are fixed when a data directory is made: a server with another value does not start on it, or
//! reads it wrongly.

use holdfast_testkit::encryption::Encryption;

use super::*;

/// A server with these settings is restored by one that was told nothing but what the restore says.
fn comes_back(kind: ServerKind, settings: &[&str], seed: u64) {
    let options = settings.iter().fold(ServerOptions::default(), |options, it| options.init_arg(*it));
    let source = Server::start(kind, options.clone()).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 4, ..shop::ShopOptions::default() }).unwrap();
    source
        .exec_all([
            "CREATE DATABASE Mixed",
            "CREATE TABLE Mixed.CamelCase (Id INT PRIMARY KEY, v TEXT) ENGINE=InnoDB",
            "INSERT INTO Mixed.CamelCase VALUES (1, 'one')",
        ])
        .unwrap();
    let stage = Stage { server_options: options, ..Stage::around(source) };
    let load = WriteLoad::start(&stage.source, 1, seed).unwrap();
    let first = stage.back_up();
    let second = stage.back_up();
    load.stop().unwrap();
    stage.prove(&second);
    stage.prove(&first);
}

#[test]
fn mariadb_names_in_lower_case_and_large_aria_pages_come_back() {
    let settings = ["--lower-case-table-names=1", "--aria-block-size=16384"];
    comes_back(ServerKind::MariaDb1011, &settings, 62);
}

#[test]
fn mysql_names_in_lower_case_come_back() {
    comes_back(ServerKind::MySql97, &["--lower-case-table-names=1"], 63);
}

/// Of encrypted pages only the checksum of the ciphertext can be verified, and of pages that are compressed
/// first, in the older family, none.
#[test]
fn mariadb_encrypted_pages_of_the_older_checksum_family_are_restored() {
    let (kind, dir) = (ServerKind::MariaDb1011, tempfile::tempdir().unwrap());
    let family = ServerOptions::default().init_arg("--innodb-checksum-algorithm=crc32");
    let Encryption { server_options, prepare_options, keyring } =
        Encryption::new(kind, dir.path(), family).unwrap();
    let source = Server::start(kind, server_options.clone()).unwrap();
    let tables = pages::create(&source).unwrap();
    let load = PageLoad::start(&source, &tables, 2, 64).unwrap();
    let repo = new_repo(&dir.path().join("repo"));
    let stage = Stage { server_options, prepare_options, keyring, ..Stage::with_repo(source, repo, dir) };
    let [first, _] = stage.back_up_twice(load);
    let seen: Vec<_> = first.capture.pages_by_checksum.keys().copied().collect();
    assert_eq!(seen, ["crc32"]);
}
