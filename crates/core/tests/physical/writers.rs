//! A host with a writer's key: it backs up its server and cannot read any backup, and its
//! local files are not trusted.

use std::fs;

use holdfast_core::ErrorKind;
use holdfast_repo::{
    Role,
    keys::NewSlot,
    ops::keys::{NewKey, add},
};

use super::*;

/// A host that has only its own password, and a directory for page maps.
struct Host<'a> {
    stage: &'a Stage,
    password: Password,
    cache: PathBuf,
}

impl<'a> Host<'a> {
    fn new(stage: &'a Stage) -> Self {
        let password = Password::new("of the host".to_owned()).unwrap();
        let new = NewKey { role: Role::Writer, sources: vec![log().source], label: "host".to_owned() };
        let slot = NewSlot::Password { password: &password, kdf: KdfParams::MINIMUM };
        add(&stage.repo, &new, slot).unwrap();
        Self { stage, password, cache: stage.dir.path().join("cache") }
    }

    fn repo(&self) -> Arc<Repo> {
        let store = Arc::new(FsStore::open(self.stage.dir.path().join("repo")).unwrap());
        Arc::new(Repo::open(store, Some(&self.password)).unwrap())
    }

    /// Takes a backup; returns the report and the warnings.
    fn back_up(&self) -> (BackupReport, String) {
        let options = BackupOptions { cache_dir: Some(self.cache.clone()), ..self.stage.options() };
        let warnings = Warnings::default();
        let report = backup::run(&self.repo(), &options, &warnings, &Cancel::default()).unwrap();
        (report, warnings.heard().concat())
    }

    /// All files that the host has kept.
    fn kept(&self) -> Vec<PathBuf> {
        let files = |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        let mut open: Vec<PathBuf> = files(&self.cache);
        let mut found = Vec::new();
        while let Some(path) = open.pop() {
            if path.is_dir() { open.extend(files(&path) as Vec<_>) } else { found.push(path) }
        }
        found
    }
}

fn a_writers_host_is_backed_up(kind: ServerKind) {
    let stage = Stage::new(kind, 8);
    let host = Host::new(&stage);
    let load = WriteLoad::start(&stage.source, 2, 5).unwrap();
    sleep(Duration::from_secs(1));
    let (full, _) = host.back_up();
    sleep(Duration::from_secs(1));
    let (second, warned) = host.back_up();
    assert_eq!(second.run.base, Some(full.run.backup));
    assert!(!warned.contains("page maps") && !warned.contains("stored again"), "{warned}");
    assert!(second.run.totals.bytes_reused > 0, "{:?}", second.run.totals);

    let refused = restore::run(
        &host.repo(),
        &log(),
        RunNo(second.run.backup),
        &stage.restore_options(second.run.backup),
        &Told,
        &Cancel::default(),
    );
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Key, "{error}");
    assert!(error.to_string().contains("this is a writer's key"), "{error}");

    // Someone flips a bit in all maps, and swaps them: the pages are stored again.
    let maps: Vec<_> = host.kept().into_iter().filter(|path| !path.ends_with("head")).collect();
    for (path, other) in maps.iter().zip(maps.iter().skip(1)) {
        let mut bytes = fs::read(other).unwrap();
        bytes[0] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    let (third, warned) = host.back_up();
    assert!(
        warned.contains("parts of the page maps kept from the last backup are lost or damaged"),
        "{warned}"
    );
    assert!(third.run.totals.bytes_reused < second.run.totals.bytes_reused, "{:?}", third.run.totals);
    let (fourth, _) = host.back_up();
    assert_eq!(fourth.run.base, Some(third.run.backup));
    assert!(fourth.run.totals.bytes_reused > 0, "{:?}", fourth.run.totals);

    fs::remove_dir_all(&host.cache).unwrap();
    let (fifth, warned) = host.back_up();
    assert_eq!((fifth.run.base, fifth.run.totals.bytes_reused), (None, 0));
    assert!(warned.contains("everything is stored again"), "{warned}");
    assert!(load.stop().unwrap().committed > 10, "there was no load to speak of");
    for backup in [&second, &fourth, &fifth] {
        stage.prove(backup);
    }
}

#[test]
fn mariadb_is_backed_up_by_a_host_that_reads_nothing() {
    a_writers_host_is_backed_up(ServerKind::MariaDb1011);
}

#[test]
fn mysql_is_backed_up_by_a_host_that_reads_nothing() {
    a_writers_host_is_backed_up(ServerKind::MySql97);
}
