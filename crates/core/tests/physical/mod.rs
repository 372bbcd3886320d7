//! Hot backups of busy servers. The reference is always the server: a restored copy, attached as a replica at
//! the recorded position, must catch up and then hold the same rows in every table.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::sleep,
    time::Duration,
};

use holdfast_core::{
    Cancel, Event, Listener,
    backup::{self, BackupOptions, BackupReport},
    position::Precision,
    restore::{self, RestoreOptions, RestoreReport},
};
use holdfast_repo::{Kind, LogName, Password, Protection, Repo, RunNo, keys::KdfParams, store::fs::FsStore};
use holdfast_testkit::{
    Server, ServerKind, ServerOptions,
    checksum::assert_equal_checksums,
    data::{misc, shop},
    keyring::give_keyring,
    load::{DdlStorm, StormOptions, WriteLoad, ddl::finish_imports, writes::check_ledger},
    replica::{self, CATCH_UP_MAX, Position},
    rng::Rng,
    tables::check_tables,
};
use tempfile::TempDir;

use crate::listeners::{Told, Warnings};

mod consistency;
mod elsewhere;
mod encrypted;
mod faults;
mod formats;
mod generations;
mod imports;
mod keys;
mod replicas;
mod roles;
mod salvage;
mod slow_ddl;
mod writers;
mod xa;

/// A server with data, a repository, and a directory to restore into.
struct Stage {
    source: Server,
    repo: Arc<Repo>,
    dir: TempDir,
    /// Options of servers on restored directories.
    server_options: ServerOptions,
    /// Options for recovery during restores.
    prepare_options: Vec<String>,
    /// The file with the source's keys, of which each server on a restored directory gets its own copy.
    keyring: Option<PathBuf>,
}

pub(crate) fn password() -> Password {
    Password::new("a password".to_owned()).unwrap()
}

fn log() -> LogName {
    LogName { source: "db1".parse().unwrap(), kind: Kind::Physical }
}

/// A new repository in a directory.
pub(crate) fn new_repo(dir: &Path) -> Arc<Repo> {
    let store = Arc::new(FsStore::create(dir).unwrap());
    let protection = Protection::Password { password: &password(), kdf: KdfParams::MINIMUM };
    Arc::new(Repo::init(store, &protection).unwrap())
}

/// Runs an action when everything has been copied, before anything else is locked.
struct AtStop<F: Fn() + Send + Sync>(F);

impl<F: Fn() + Send + Sync> Listener for AtStop<F> {
    fn event(&self, event: Event) {
        if matches!(&event, Event::Phase { name: "stop" }) {
            (self.0)();
        }
        Told.event(event);
    }
}

/// Acts when the copy begins, and when everything has been copied.
struct AtPhases<F: Fn(&str) + Send + Sync>(F);

impl<F: Fn(&str) + Send + Sync> Listener for AtPhases<F> {
    fn event(&self, event: Event) {
        if let Event::Phase { name: name @ ("copy" | "stop") } = &event {
            (self.0)(name);
        }
        Told.event(event);
    }
}

/// Lets a paused storm go on when the copy begins.
struct OnceBegun<'a>(&'a DdlStorm);

impl Listener for OnceBegun<'_> {
    fn event(&self, event: Event) {
        if let Event::Phase { name: "copy" } = event {
            self.0.go_on();
        }
        Told.event(event);
    }
}

impl Stage {
    fn new(kind: ServerKind, size_mib: u64) -> Self {
        Self::new_with(kind, ServerOptions::default(), size_mib)
    }

    fn new_with(kind: ServerKind, options: ServerOptions, size_mib: u64) -> Self {
        let source = Server::start(kind, options).unwrap();
        shop::load(&source, shop::ShopOptions { size_mib, ..shop::ShopOptions::default() }).unwrap();
        misc::create(&source, misc::MiscOptions::default()).unwrap();
        Self::around(source)
    }

    /// A new repository for a server.
    fn around(source: Server) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let repo = new_repo(&dir.path().join("repo"));
        Self::with_repo(source, repo, dir)
    }

    /// A server and an existing repository.
    fn with_repo(source: Server, repo: Arc<Repo>, dir: TempDir) -> Self {
        std::fs::create_dir(dir.path().join("spool")).unwrap();
        let (server_options, prepare_options) = (ServerOptions::default(), Vec::new());
        Self { source, repo, dir, server_options, prepare_options, keyring: None }
    }

    fn options(&self) -> BackupOptions {
        BackupOptions {
            name: Some(log().source),
            spool_dir: Some(self.dir.path().join("spool")),
            ..super::server::backup_options(super::server::options(&self.source))
        }
    }

    fn back_up(&self) -> BackupReport {
        backup::run(&self.repo, &self.options(), &Told, &Cancel::default()).unwrap()
    }

    /// Two backups of the busy server, the second based on the first.
    fn two_backups(&self, seed: u64) -> [BackupReport; 2] {
        self.two_backups_in(StormOptions { imports: true, ..StormOptions::new(2, seed) })
    }

    /// The same with the given storm.
    fn two_backups_in(&self, options: StormOptions) -> [BackupReport; 2] {
        let seed = options.seed;
        let load = WriteLoad::start(&self.source, 2, seed).unwrap();
        let storm = DdlStorm::start_with(&self.source, options).unwrap();
        sleep(Duration::from_secs(2));
        let full = self.back_up_in(&storm);
        sleep(Duration::from_secs(2));
        let second = self.back_up_in(&storm);
        let imported = storm.imported();
        let ddl = storm.stop().unwrap();
        let writes = load.stop().unwrap();
        let kind = self.source.kind();
        println!(
            "{kind} seed {seed}: {} transactions, {} DDL statements, {imported} imports",
            writes.committed, ddl.done
        );
        for backup in [&full, &second] {
            println!("{:?} {:#?}", backup.position, backup.locks);
        }
        assert!(writes.committed > 50 && ddl.done > 5, "there was no load to speak of");
        assert_eq!(second.run.base, Some(full.run.backup));
        assert!(
            second.run.totals.bytes_reused > 0,
            "nothing was taken from the first backup: {:?}",
            second.run.totals
        );
        [full, second]
    }

    /// A backup during a storm. If it has to be refused because of an import, the next one begins after all
    /// imports, and as the error says: after a checkpoint, while nothing is dropped or renamed.
    fn back_up_in(&self, storm: &DdlStorm) -> BackupReport {
        let imported = storm.imported();
        match backup::run(&self.repo, &self.options(), &Told, &Cancel::default()) {
            Ok(report) => report,
            Err(error) => {
                assert!(storm.excuses(&error.to_string(), imported), "{error}");
                println!("refused: {error}");
                storm.stop_imports();
                storm.pause();
                if self.source.kind().is_mariadb() {
                    self.source.exec("SET GLOBAL innodb_log_checkpoint_now = ON").unwrap();
                }
                let begun = OnceBegun(storm);
                backup::run(&self.repo, &self.options(), &begun, &Cancel::default()).unwrap()
            }
        }
    }

    fn restore_options(&self, backup: u64) -> RestoreOptions {
        RestoreOptions {
            server_binary: Some(self.source.program().unwrap()),
            prepare_options: self.prepare_options.clone(),
            ..RestoreOptions::new(self.dir.path().join(format!("restored-{backup}")))
        }
    }

    fn restore(&self, backup: u64) -> (Restored, RestoreReport) {
        let options = self.restore_options(backup);
        let report =
            restore::run(&self.repo, &log(), RunNo(backup), &options, &Told, &Cancel::default()).unwrap();
        let target = options.target_dir;
        if let Some(keyring) = &self.keyring {
            give_keyring(&target, keyring, &self.dir.path().join(format!("keyring-{backup}"))).unwrap();
        }
        // The options that the restore reports as needed must be sufficient.
        let needed = report.server_options.iter().fold(self.server_options.clone(), ServerOptions::arg);
        let server = Server::attach(self.source.kind(), target, needed).unwrap();
        (Restored { server }, report)
    }

    /// Restores `backup`, lets it catch up with the source, and compares all tables. The source must be idle.
    fn prove(&self, backup: &BackupReport) {
        let restored = self.restore_recovered(backup);
        check_ledger(&restored.server).unwrap();
        self.catch_up(backup, &restored);
    }

    /// Restores `backup`, and checks that the server's recovery ended exactly where the backup ends.
    fn restore_recovered(&self, backup: &BackupReport) -> Restored {
        let (restored, report) = self.restore(backup.run.backup);
        let prepared = report.prepared.expect("the server recovered it");
        let beyond =
            prepared.lsn.bytes_since(backup.position.lsn).expect("recovery ended before the position");
        match backup.position.precision {
            Precision::Exact => assert_eq!(beyond, 0, "recovery ended elsewhere"),
            Precision::AtRestore => assert!(beyond < 512, "recovery ended {beyond} bytes later"),
        }
        restored
    }

    /// Lets a server restored from `backup` catch up with the source, and compares all tables.
    fn catch_up(&self, backup: &BackupReport, restored: &Restored) {
        let gtid = backup.position.gtid.clone().unwrap();
        let position = if self.source.kind().is_mariadb() { Position::Gtid(gtid) } else { Position::Held };
        let imported = finish_imports(&self.source, &restored.server).unwrap();
        println!("backup {}: {imported} tables were discarded", backup.run.backup);
        // Check before replication, since applied changes may repair what they modify.
        check_tables(&restored.server).unwrap();
        replica::catch_up(&self.source, &restored.server, &position, CATCH_UP_MAX).unwrap();
        let tables = assert_equal_checksums(&self.source, &restored.server).unwrap();
        println!("backup {}: {tables} tables equal", backup.run.backup);
    }
}

/// A server on a restored directory.
struct Restored {
    server: Server,
}
