//! An isolated server: in a container, reachable only by its socket, and read-only.

use std::{fs, os::unix::fs::symlink};

use holdfast_core::{
    ErrorKind,
    server::{ConnectOptions, Secret, SslMode, facts::grants},
};
use holdfast_formats::Flavor;
use holdfast_testkit::{server::copy_datadir, tls};

use super::*;

/// The server's file paths cannot be followed by this process, the account has the minimal privileges, and
/// writes are not allowed: with a path map, the backup is whole, including tables elsewhere.
fn a_server_in_a_container_is_backed_up(kind: ServerKind) {
    let dir = tempfile::tempdir().unwrap();
    let (real, seen) = (dir.path().join("real"), dir.path().join("seen"));
    fs::create_dir_all(real.join("elsewhere")).unwrap();
    let mut plain = Server::start(kind, ServerOptions::default()).unwrap();
    plain.stop().unwrap();
    copy_datadir(plain.datadir(), &real.join("data")).unwrap();
    // The server opens its files through this link, which is removed afterwards.
    symlink(&real, &seen).unwrap();
    let elsewhere = seen.join("elsewhere");
    let mut options = ServerOptions::default()
        .arg(format!("--datadir={}", seen.join("data").display()))
        .arg("--skip-networking")
        .arg("--skip-name-resolve");
    if !kind.is_mariadb() {
        options = options.arg(format!("--innodb-directories={}", elsewhere.display()));
    }
    let source = Server::attach(kind, real.join("data"), options).unwrap();
    let flavor = if kind.is_mariadb() { Flavor::MariaDb } else { Flavor::MySql };
    let privileges: Vec<_> = grants::required(flavor).iter().map(|needed| needed.privilege).collect();
    let super_too =
        if kind.is_mariadb() { "SET GLOBAL read_only = ON" } else { "SET GLOBAL super_read_only = ON" };
    source
        .exec_all([
            "CREATE DATABASE c".to_owned(),
            "CREATE TABLE c.t (i INT PRIMARY KEY)".to_owned(),
            "INSERT INTO c.t VALUES (1), (2)".to_owned(),
            "CREATE TABLE c.m (i INT PRIMARY KEY) ENGINE=MyISAM".to_owned(),
            "INSERT INTO c.m VALUES (5)".to_owned(),
            format!("CREATE TABLE c.far (i INT PRIMARY KEY) DATA DIRECTORY='{}'", elsewhere.display()),
            "INSERT INTO c.far VALUES (3)".to_owned(),
            // A server that has pages to write and cannot open their file dies.
            "FLUSH TABLES c.far FOR EXPORT".to_owned(),
            "UNLOCK TABLES".to_owned(),
            "CREATE USER backup@localhost".to_owned(),
            format!("GRANT {} ON *.* TO backup@localhost", privileges.join(", ")),
            super_too.to_owned(),
        ])
        .unwrap();
    fs::remove_file(&seen).unwrap();
    let repo = new_repo(&dir.path().join("repo"));
    let stage = Stage::with_repo(source, repo, dir);
    let connect = ConnectOptions { user: Some("backup".to_owned()), ..stage.options().connect };
    let unmapped = BackupOptions { connect, ..stage.options() };
    let error = backup::run(&stage.repo, &unmapped, &Told, &Cancel::default()).unwrap_err();
    assert!(error.hint().unwrap_or_default().contains("--path-map"), "{error:?}");
    let mapped = BackupOptions { path_map: vec![(seen, real)], ..unmapped };
    let backup = backup::run(&stage.repo, &mapped, &Told, &Cancel::default()).unwrap();
    let (restored, _) = stage.restore(backup.run.backup);
    let rows: Vec<u32> = restored
        .server
        .query("SELECT i FROM c.t UNION ALL SELECT i FROM c.m UNION ALL SELECT i FROM c.far ORDER BY i")
        .unwrap();
    assert_eq!(rows, [1, 2, 3, 5]);
}

/// A server that accepts nothing but TLS is backed up by an account that must present the server's CA.
fn by_tls_only(kind: ServerKind) {
    let required = ["--require-secure-transport=ON", "--skip-name-resolve"].map(str::to_owned);
    let options =
        tls::server_options().into_iter().chain(required).fold(ServerOptions::default(), ServerOptions::arg);
    let source = Server::start(kind, options).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 4, ..shop::ShopOptions::default() }).unwrap();
    source
        .exec_all([
            "CREATE USER b@'127.0.0.1' IDENTIFIED BY 'pw' REQUIRE SSL",
            "GRANT ALL ON *.* TO b@'127.0.0.1' WITH GRANT OPTION",
        ])
        .unwrap();
    let stage = Stage::around(source);
    let load = WriteLoad::start(&stage.source, 1, 81).unwrap();
    let connect = |ssl_mode, ssl_ca: Option<&str>| ConnectOptions {
        host: Some("127.0.0.1".to_owned()),
        user: Some("b".to_owned()),
        password: Some(Secret::new("pw".to_owned())),
        ssl_mode: Some(ssl_mode),
        ssl_ca: ssl_ca.map(tls::file),
        ..crate::server::tcp(&stage.source)
    };
    let by = |connect| BackupOptions { connect, ..stage.options() };
    let backup = |options| backup::run(&stage.repo, &options, &Told, &Cancel::default());
    for refused in [connect(SslMode::Disabled, None), connect(SslMode::VerifyCa, Some("other-ca.pem"))] {
        assert_eq!(backup(by(refused)).unwrap_err().kind(), ErrorKind::Server);
    }
    let taken = backup(by(connect(SslMode::VerifyCa, Some("ca.pem")))).unwrap();
    load.stop().unwrap();
    // For the replicas of the proof.
    stage.source.exec("SET GLOBAL require_secure_transport = OFF").unwrap();
    stage.prove(&taken);
}

#[test]
fn mariadb_10_11_is_backed_up_by_tls_only() {
    by_tls_only(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_is_backed_up_by_tls_only() {
    by_tls_only(ServerKind::MySql97);
}

#[test]
fn mariadb_in_a_container_is_backed_up() {
    a_server_in_a_container_is_backed_up(ServerKind::MariaDb1011);
}

#[test]
fn mysql_in_a_container_is_backed_up() {
    a_server_in_a_container_is_backed_up(ServerKind::MySql97);
}
