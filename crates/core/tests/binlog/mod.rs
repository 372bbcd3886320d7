//! The binlog archive.
//! The reference is the server's own files: their archived contents must be identical, byte for byte.

use std::{
    fs,
    ops::ControlFlow,
    sync::Arc,
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use holdfast_core::{
    Cancel, Error,
    binlog::{After, Archive, ArchiveOptions, ArchiveReport, Search, archive},
};
use holdfast_formats::binlog::{FILE_MAGIC, Part};
use holdfast_repo::{Password, Protection, Repo, keys::KdfParams, store::fs::FsStore};
use holdfast_testkit::{
    Server, ServerKind, ServerOptions,
    replica::{self, CATCH_UP_MAX},
    tls,
};
use mysql::prelude::Queryable;
use tempfile::TempDir;

use crate::listeners::{Told, Warnings};

mod elsewhere;
mod events;
pub(crate) use events::write_all_kinds;
mod gaps;
pub(crate) use gaps::purge;
mod left;
mod live;
mod spooled;
mod waiting;

/// A server and a repository.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) repo: Arc<Repo>,
    pub(crate) dir: TempDir,
}

impl Stage {
    pub(crate) fn new(kind: ServerKind) -> Self {
        Self::with(kind, ServerOptions::default())
    }

    pub(crate) fn with(kind: ServerKind, options: ServerOptions) -> Self {
        Self::of(Server::start(kind, options).unwrap())
    }

    pub(crate) fn of(server: Server) -> Self {
        let (dir, repo) = new_repo();
        Self { server, repo, dir }
    }

    pub(crate) fn options(&self) -> ArchiveOptions {
        options(&self.server)
    }

    pub(crate) fn once(&self) -> ArchiveReport {
        once(&self.repo, &self.server)
    }

    /// Starts a continuous archiver.
    pub(crate) fn start(&self) -> Archiver {
        Archiver::start(&self.repo, self.options())
    }

    pub(crate) fn archive(&self) -> Archive {
        Archive::open(&self.repo, &source()).unwrap()
    }

    /// Compares the server's files except the last, and all of them if it is stopped.
    pub(crate) fn compare_files(&self) -> usize {
        compare_files(&self.archive(), &self.server)
    }
}

fn new_repo() -> (TempDir, Arc<Repo>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(FsStore::create(dir.path().join("repo")).unwrap());
    let password = Password::new("a password".to_owned()).unwrap();
    let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
    let repo = Arc::new(Repo::init(store, &protection).unwrap());
    (dir, repo)
}

pub(crate) fn source() -> holdfast_repo::SourceName {
    "db1".parse().unwrap()
}

pub(crate) fn options(server: &Server) -> ArchiveOptions {
    ArchiveOptions { name: Some(source()), ..ArchiveOptions::new(super::server::options(server)) }
}

/// Archives what the server has so far.
pub(crate) fn once(repo: &Arc<Repo>, server: &Server) -> ArchiveReport {
    let options = ArchiveOptions { once: true, ..options(server) };
    archive(repo, &options, &Told, &Cancel::default()).unwrap()
}

/// A replica that has everything its source has, also in its own binlog.
pub(crate) fn start_replica(source: &Server, options: ServerOptions) -> Server {
    let is_mariadb = source.kind().is_mariadb();
    let updates = if is_mariadb { "--log-slave-updates=ON" } else { "--log-replica-updates=ON" };
    let replica = Server::start(source.kind(), options.arg(updates)).unwrap();
    let position = replica::Position::Gtid(String::new());
    replica::catch_up(source, &replica, &position, CATCH_UP_MAX).unwrap();
    replica
}

/// An archiver on its own thread.
pub(crate) struct Archiver {
    pub(crate) cancel: Cancel,
    thread: Option<JoinHandle<Result<ArchiveReport, Error>>>,
}

impl Archiver {
    pub(crate) fn start(repo: &Arc<Repo>, options: ArchiveOptions) -> Self {
        Self::start_heard(repo, options).0
    }

    /// The same, with what it warns of.
    pub(crate) fn start_heard(repo: &Arc<Repo>, options: ArchiveOptions) -> (Self, Arc<Warnings>) {
        let (cancel, heard) = (Cancel::default(), Arc::new(Warnings::default()));
        let thread = thread::spawn({
            let (repo, cancel, heard) = (Arc::clone(repo), cancel.clone(), Arc::clone(&heard));
            move || archive(&repo, &options, &*heard, &cancel)
        });
        (Self { cancel, thread: Some(thread) }, heard)
    }

    /// Waits until it has warned of something.
    pub(crate) fn wait_for_warning(&mut self, heard: &Warnings, text: &str) {
        let begin = Instant::now();
        while !heard.heard().iter().any(|warning| warning.contains(text)) {
            self.check();
            assert!(begin.elapsed() < CATCH_UP_MAX, "{text}: {:?}", heard.heard());
            sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn stop(mut self) -> ArchiveReport {
        self.cancel.cancel();
        self.thread.take().unwrap().join().unwrap().unwrap()
    }

    /// The error with which it ends within a minute, without being asked to.
    pub(crate) fn ended_by_itself(mut self) -> Error {
        let (begin, thread) = (Instant::now(), self.thread.take().unwrap());
        while !thread.is_finished() {
            if begin.elapsed() > Duration::from_secs(60) {
                self.cancel.cancel();
                panic!("it goes on: {:?}", thread.join().unwrap());
            }
            sleep(Duration::from_millis(50));
        }
        thread.join().unwrap().unwrap_err()
    }

    /// Fails if it has ended by itself.
    #[track_caller]
    pub(crate) fn check(&mut self) {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            panic!("{:?}", self.thread.take().unwrap().join().unwrap());
        }
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Names and contents of the server's files, as they would be when closed.
pub(crate) fn files_of(server: &Server) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(server.datadir())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let number = name.strip_prefix("binlog.")?;
            number.parse::<u64>().ok()?;
            let mut bytes = fs::read(entry.path()).unwrap();
            // The flag is set while the file is being written, or if the server has crashed.
            if let Some(flags) = bytes.get_mut(4 + 17) {
                *flags &= !1;
            }
            Some((name, bytes))
        })
        .collect();
    files.sort();
    files
}

/// The archived contents of each file, with consecutive stretches joined.
pub(crate) fn archived_files(archive: &Archive) -> Vec<(String, u64, Vec<u8>)> {
    let mut files: Vec<(String, u64, Vec<u8>)> = Vec::new();
    let mut last = None;
    archive
        .events(0..archive.stretches().len(), &mut |at, begin, bytes| {
            let archived = &archive.stretches()[at];
            let file = &archived.stretch.file;
            let goes_on = files.last().is_some_and(|(name, first, content)| {
                name == file && archived.gap.is_none() && first + content.len() as u64 == begin
            });
            if last != Some(at) && !goes_on {
                files.push((file.clone(), begin, Vec::new()));
            }
            last = Some(at);
            files.last_mut().unwrap().2.extend_from_slice(bytes);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    files
}

/// Checks that each of the server's files is in the archive once, without a gap and with the same bytes.
/// Returns their number.
pub(crate) fn compare_files(archive: &Archive, server: &Server) -> usize {
    let own = files_of(server);
    let archived = archived_files(archive);
    for (name, bytes) in &own {
        let found: Vec<_> = archived.iter().filter(|(file, ..)| file == name).collect();
        let [(_, begin, content)] = &found[..] else {
            panic!("{name} is there {} times: {:#?}", found.len(), archive.stretches())
        };
        assert_eq!(*begin, 4, "{name}");
        let content = [&FILE_MAGIC[..], content].concat();
        if content != *bytes {
            let at = content.iter().zip(bytes).position(|(one, other)| one != other);
            panic!(
                "{name}: {} bytes archived, {} in the file, differing at {at:?}",
                content.len(),
                bytes.len()
            );
        }
    }
    own.len()
}

/// Waits until the archive contains everything that the server has now.
pub(crate) fn wait_archived(stage: &Stage) {
    wait_while(stage, &mut || {});
}

/// The same; also fails if the archiver ends meanwhile.
pub(crate) fn wait_archived_by(stage: &Stage, archiver: &mut Archiver) {
    wait_while(stage, &mut || archiver.check());
}

fn wait_while(stage: &Stage, check: &mut dyn FnMut()) {
    let status =
        if stage.server.kind().is_mariadb() { "SHOW MASTER STATUS" } else { "SHOW BINARY LOG STATUS" };
    let rows: Vec<mysql::Row> = stage.server.query(status).unwrap();
    let last = rows.last().unwrap();
    let (file, size): (String, u64) = (last.get(0).unwrap(), last.get(1).unwrap());
    let begin = Instant::now();
    loop {
        let archive = stage.archive();
        let end = archive.stretches().last().map(|archived| archived.ends_at());
        if end.as_ref().is_some_and(|end| (&end.file, end.position) >= (&file, size)) {
            return;
        }
        check();
        assert!(begin.elapsed() < CATCH_UP_MAX, "{end:?}, the server is at {file}:{size}");
        sleep(Duration::from_millis(50));
    }
}

/// Commits transactions in sequence, each with its own number, until stopped; returns
/// the last committed number.
pub(crate) struct Counter {
    cancel: Cancel,
    thread: Option<JoinHandle<u64>>,
}

impl Counter {
    pub(crate) fn start(server: &Server) -> Self {
        server
            .exec_all([
                "CREATE DATABASE IF NOT EXISTS c",
                "CREATE TABLE IF NOT EXISTS c.t (id BIGINT PRIMARY KEY, v VARBINARY(4000)) ENGINE=InnoDB",
            ])
            .unwrap();
        let cancel = Cancel::default();
        let opts = server.opts();
        let thread = thread::spawn({
            let cancel = cancel.clone();
            move || {
                let mut number = 0;
                let mut conn = None;
                while !cancel.is_cancelled() {
                    // The server may be down.
                    let Some(open) = &mut conn else {
                        conn = mysql::Conn::new(opts.clone()).ok();
                        if let Some(open) = &mut conn {
                            let row: Option<u64> =
                                open.query_first("SELECT COALESCE(MAX(id), 0) FROM c.t").ok().flatten();
                            number = row.unwrap_or(number);
                        }
                        sleep(Duration::from_millis(5));
                        continue;
                    };
                    let next = number + 1;
                    let len = next * 37 % 3000;
                    match open.query_drop(format!("INSERT INTO c.t VALUES ({next}, REPEAT('x', {len}))")) {
                        Ok(()) => number = next,
                        Err(_) => conn = None,
                    }
                }
                number
            }
        });
        Self { cancel, thread: Some(thread) }
    }

    pub(crate) fn stop(mut self) -> u64 {
        self.cancel.cancel();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Makes a server's commits wait until a replica has acknowledged.
pub(crate) fn enable_semi_sync(server: &Server) {
    let settings: &[&str] = if server.kind().is_mariadb() {
        &["SET GLOBAL rpl_semi_sync_master_enabled = 1, GLOBAL rpl_semi_sync_master_timeout = 60000, \
           GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'"]
    } else {
        &[
            "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'",
            "SET GLOBAL rpl_semi_sync_source_enabled = 1, GLOBAL rpl_semi_sync_source_timeout = 60000",
        ]
    };
    server.exec_all(settings).unwrap();
}

/// The transactions after a position, by name.
pub(crate) fn gtids_after(archive: &Archive, after: &After) -> Vec<String> {
    let mut all = Vec::new();
    archive
        .transactions(after, &mut |event| {
            if event.part == Part::Last {
                all.push(event.transaction.unwrap().gtid.as_ref().unwrap().to_string());
            }
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    all
}
