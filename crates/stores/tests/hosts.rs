//! Directories of another host, by a real SSH server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use holdfast_repo::store::{Creation, ObjectPath, Store, conformance, probe_creation};
use holdfast_stores::{StoreOptions, bucket::Retries, create_store, open_store, sftp::SftpOptions};
use holdfast_testkit::sshd::Sshd;
use tempfile::TempDir;

fn path(name: &str) -> ObjectPath {
    ObjectPath::new(name).unwrap()
}

fn options(server: &Sshd) -> StoreOptions {
    let sftp = SftpOptions {
        config_file: Some(server.ssh_config()),
        retries: Retries {
            count: 6,
            pause_max: Duration::from_millis(400),
            give_up_after: Duration::from_secs(20),
        },
        request_timeout: Duration::from_secs(20),
        ..SftpOptions::default()
    };
    StoreOptions { sftp, ..StoreOptions::default() }
}

fn store(server: &Sshd, folder: &TempDir) -> Arc<dyn Store> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let location = format!("sftp://backup-host{}/a/{count}", folder.path().display());
    create_store(&location, &options(server)).unwrap()
}

#[test]
fn openssh_keeps_the_contract() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    conformance::check(|| store(&server, &folder));
    conformance::check_large(|| store(&server, &folder), 1 << 20, 1_050);
    let it = store(&server, &folder);
    assert_eq!(probe_creation(&*it, "x").unwrap(), Creation::Exclusive);
    assert!(it.free_bytes().unwrap().is_some_and(|free| free > 0));
}

/// Then a file is renamed instead of linked, and nothing can be asked to be made durable.
#[test]
fn a_server_without_extensions_keeps_the_contract() {
    let server = Sshd::start("internal-sftp -P hardlink,fsync,statvfs,limits,posix-rename").unwrap();
    let folder = TempDir::new().unwrap();
    conformance::check(|| store(&server, &folder));
    let it = store(&server, &folder);
    assert_eq!(probe_creation(&*it, "x").unwrap(), Creation::Exclusive);
}

#[test]
fn a_directory_that_is_not_there_is_said_to_be_so() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let location = format!("sftp://backup-host{}/none", folder.path().display());
    let error = open_store(&location, &options(&server)).err().unwrap().to_string();
    assert!(error.contains("no such bucket or directory") && error.contains(&location), "{error}");
}

#[test]
fn what_ssh_says_is_said() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let nobody = format!("sftp://nobody-at-all@backup-host{}", folder.path().display());
    let error = open_store(&nobody, &options(&server)).err().unwrap().to_string();
    assert!(error.contains("the credentials were refused") && error.contains("Permission denied"), "{error}");
    let port = server.port();
    drop(server);
    let gone = format!("sftp://127.0.0.1:{port}/x");
    let error = open_store(&gone, &StoreOptions::default()).err().unwrap().to_string();
    assert!(error.contains("cannot be reached") && error.contains("refused"), "{error}");
}

#[test]
fn what_interrupted_uploads_left_is_swept_by_age() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let it = store(&server, &folder);
    let mut upload = it.put(&path("a")).unwrap();
    upload.write(&[0; 1000]).unwrap();
    std::mem::forget(upload);
    let location = it.location();
    let local = location.strip_prefix("sftp://backup-host").unwrap();
    let left = || std::fs::read_dir(format!("{local}/.tmp")).unwrap().count();
    it.sweep_uploads(Duration::from_secs(3600)).unwrap();
    assert_eq!(left(), 1);
    it.sweep_uploads(Duration::ZERO).unwrap();
    assert_eq!(left(), 0);
}
