//! The capture alone, into a plain directory: no repository, no restore. A server started on the directory
//! recovers it, becomes a replica at the position, and must then equal the source.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        mpsc::{Sender, channel},
    },
    thread::sleep,
    time::Duration,
};

use holdfast_core::{
    Cancel, Result,
    captured_redo::{CapturedRedo, REDO_ITEM},
    event::{Event, Listener},
    points::set_hook_of_files,
    server::{ConnectOptions, LockPolicy, Purpose, ServerFacts, Session},
    source::{
        CaptureOptions, Captured, FileId, FileSpec, Pages, Sink, Source, mariadb::MariaDbSource,
        mysql::MySqlSource,
    },
};
use holdfast_formats::{
    SpaceId, checksum,
    redo::{
        mariadb::{AbsolutePaths, FileOp, LinearLog, LogHeader, PathRelocator},
        mysql::{FILE_BYTES_MAX, RedoFileBuilder, RedoFileHeader, encryption_block},
    },
};
use holdfast_testkit::{
    Server, ServerKind, ServerOptions,
    checksum::assert_equal_checksums,
    data::{misc, shop},
    load::{DdlStorm, WriteLoad, writes::check_ledger},
    replica::{self, CATCH_UP_MAX, Position},
};

use crate::{
    listeners::Told,
    server::{backup_options, options},
};

mod bulk;
pub(crate) mod copying;
mod decisions;
mod definitions;
mod encryption;
mod engines;
mod growth;
mod imports;
mod indexes;
mod killed_imports;
mod logs;
mod places;
mod races;
mod replicas;
mod roles;
mod vectors;

/// Stores files under their numbers until their names are final.
struct DirectorySink {
    staging: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<u64, (FileSpec, u64)>,
    directories: BTreeSet<String>,
    next: u64,
}

impl DirectorySink {
    fn new(staging: PathBuf) -> Self {
        fs::create_dir_all(&staging).unwrap();
        Self { staging, state: Mutex::default() }
    }

    fn open(&self, file: FileId) -> File {
        File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.staging.join(file.0.to_string()))
            .unwrap()
    }

    /// Moves all files to their places.
    fn place(self, target: &Path) -> BTreeMap<String, (FileSpec, u64)> {
        let state = self.state.into_inner().unwrap();
        for directory in &state.directories {
            fs::create_dir_all(target.join(directory)).unwrap();
        }
        let mut placed = BTreeMap::new();
        for (id, (spec, size)) in state.files {
            let path = target.join(&spec.path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::rename(self.staging.join(id.to_string()), &path).unwrap();
            let before = placed.insert(spec.path.clone(), (spec, size));
            assert!(before.is_none(), "two files have one path: {before:?}");
        }
        placed
    }
}

impl Sink for DirectorySink {
    fn file_begin(&self, spec: FileSpec) -> Result<FileId> {
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        let id = state.next;
        state.files.retain(|_, (other, _)| other.path != spec.path);
        state.files.insert(id, (spec, 0));
        Ok(FileId(id))
    }

    fn pages(&self, file: FileId, pages: Pages<'_>) -> Result<()> {
        self.open(file).write_all_at(pages.bytes, pages.first * pages.page_size.bytes() as u64).unwrap();
        Ok(())
    }

    fn file_end(&self, file: FileId, size_bytes: u64) -> Result<()> {
        self.open(file).set_len(size_bytes).unwrap();
        self.state.lock().unwrap().files.get_mut(&file.0).unwrap().1 = size_bytes;
        Ok(())
    }

    fn file_renamed(&self, file: FileId, path: &str) -> Result<()> {
        self.state.lock().unwrap().files.get_mut(&file.0).unwrap().0.path = path.to_owned();
        Ok(())
    }

    fn file_gone(&self, file: FileId) -> Result<()> {
        self.state.lock().unwrap().files.remove(&file.0);
        Ok(())
    }

    fn directory(&self, path: &str, _mode: u16) -> Result<()> {
        self.state.lock().unwrap().directories.insert(path.to_owned());
        Ok(())
    }

    fn directory_gone(&self, path: &str) -> Result<()> {
        self.state.lock().unwrap().directories.remove(path);
        Ok(())
    }

    fn is_drained(&self) -> Result<bool> {
        Ok(true)
    }
}

/// Reports pages before they are stored.
struct Watched<F: Fn(&str, &Pages<'_>) + Sync> {
    inner: DirectorySink,
    /// Gets the path of the file.
    on_pages: F,
}

impl<F: Fn(&str, &Pages<'_>) + Sync> Sink for Watched<F> {
    fn file_begin(&self, spec: FileSpec) -> Result<FileId> {
        self.inner.file_begin(spec)
    }

    fn pages(&self, file: FileId, pages: Pages<'_>) -> Result<()> {
        let path = self.inner.state.lock().unwrap().files[&file.0].0.path.clone();
        (self.on_pages)(&path, &pages);
        self.inner.pages(file, pages)
    }

    fn file_end(&self, file: FileId, size_bytes: u64) -> Result<()> {
        self.inner.file_end(file, size_bytes)
    }

    fn file_renamed(&self, file: FileId, path: &str) -> Result<()> {
        self.inner.file_renamed(file, path)
    }

    fn file_gone(&self, file: FileId) -> Result<()> {
        self.inner.file_gone(file)
    }

    fn directory(&self, path: &str, mode: u16) -> Result<()> {
        self.inner.directory(path, mode)
    }

    fn directory_gone(&self, path: &str) -> Result<()> {
        self.inner.directory_gone(path)
    }

    fn is_drained(&self) -> Result<bool> {
        self.inner.is_drained()
    }
}

fn capture(server: &Server, sink: &dyn Sink, dir: &Path) -> Captured {
    capture_told(server, sink, dir, &Told)
}

fn capture_told(server: &Server, sink: &dyn Sink, dir: &Path, listener: &dyn Listener) -> Captured {
    try_to_capture(server, sink, dir, listener, Vec::new()).unwrap()
}

fn try_to_capture(
    server: &Server,
    sink: &dyn Sink,
    dir: &Path,
    listener: &dyn Listener,
    path_map: Vec<(PathBuf, PathBuf)>,
) -> Result<Captured> {
    capture_with(server, sink, listener, CaptureOptions { path_map, ..capture_options(server, dir) })
}

fn capture_options(server: &Server, dir: &Path) -> CaptureOptions {
    let datadir = server.datadir().to_owned();
    let mariadb = server.kind().is_mariadb();
    let limits = backup_options(options(server));
    CaptureOptions {
        locks: LockPolicy {
            held_max: limits.locks.held_max,
            ddl_held_max: limits.locks.ddl_held_max,
            wait_max: limits.locks.wait_max,
            tries: 5,
            patience: limits.locks.patience,
        },
        redo_dir: if mariadb { datadir.clone() } else { datadir.join("#innodb_redo") },
        datadir,
        path_map: Vec::new(),
        read_bytes_per_s_max: None,
        headroom: Arc::default(),
        parallel: 2,
        spool_dir: dir.to_owned(),
        redo_spool_max_bytes: 1 << 30,
        spool_reserve_bytes: 0,
        allow_corrupt: false,
    }
}

fn capture_with(
    server: &Server,
    sink: &dyn Sink,
    listener: &dyn Listener,
    capture: CaptureOptions,
) -> Result<Captured> {
    capture_by(server, options(server), sink, listener, capture)
}

fn capture_by(
    server: &Server,
    connect: ConnectOptions,
    sink: &dyn Sink,
    listener: &dyn Listener,
    capture: CaptureOptions,
) -> Result<Captured> {
    let mut session = Session::open(&connect, Purpose::Control).unwrap();
    let facts = ServerFacts::probe(&mut session).unwrap();
    let mut source: Box<dyn Source> = if server.kind().is_mariadb() {
        Box::new(MariaDbSource::new(connect, facts, session, capture))
    } else {
        Box::new(MySqlSource::new(connect, facts, session, capture))
    };
    source.capture(sink, listener, &Cancel::default())
}

/// Dropped when the waiting thread may continue.
type Waiting = Sender<()>;

thread_local! {
    /// The point at which this thread waits, and the channel that is notified.
    static AT_POINT: RefCell<Option<(&'static str, Sender<Waiting>)>> = const { RefCell::new(None) };
}

/// A server's data directory, and where a file of it is announced that is about to be opened.
type Opening = (PathBuf, Sender<(PathBuf, Waiting)>);

/// Files are opened on threads of the capture's own, so these are found by the path of the file.
static OPENINGS: Mutex<Vec<Opening>> = Mutex::new(Vec::new());

/// A process has one hook, so this one serves both kinds of waits.
fn hook_points() {
    set_hook_of_files(|passed, file| {
        AT_POINT.with_borrow(|waits| {
            if let Some((name, tell)) = waits
                && *name == passed
            {
                let (done, is_done) = channel();
                tell.send(done).unwrap();
                // Returns when the other side has dropped it.
                let _ = is_done.recv();
            }
        });
        if passed == "backup.file.before_copy"
            && let Some(file) = file
        {
            let openings = OPENINGS.lock().unwrap();
            let tell =
                openings.iter().find(|(datadir, _)| file.starts_with(datadir)).map(|(_, tell)| tell.clone());
            drop(openings);
            let (done, is_done) = channel();
            // A test that has failed hears nothing more.
            if tell.is_some_and(|tell| tell.send((file.to_owned(), done)).is_ok()) {
                let _ = is_done.recv();
            }
        }
    });
}

/// Runs `body` on another thread, and `action` each time that thread passes the point `name`.
fn at_point<T: Send>(name: &'static str, action: impl Fn(), body: impl FnOnce() -> T + Send) -> T {
    hook_points();
    let (tell, passings) = channel();
    std::thread::scope(|scope| {
        let running = scope.spawn(move || {
            AT_POINT.set(Some((name, tell)));
            let result = body();
            AT_POINT.set(None);
            result
        });
        for done in passings {
            action();
            drop(done);
        }
        running.join().unwrap()
    })
}

/// Runs `body`, which captures `server`, on another thread, and `action` before each file of a tablespace is opened,
/// with its path in the data directory.
fn at_openings<T: Send>(server: &Server, action: impl Fn(&str), body: impl FnOnce() -> T + Send) -> T {
    struct Listed<'a>(&'a Path);
    impl Drop for Listed<'_> {
        fn drop(&mut self) {
            OPENINGS.lock().unwrap().retain(|(datadir, _)| datadir != self.0);
        }
    }
    hook_points();
    let (tell, openings) = channel();
    let datadir = server.datadir();
    OPENINGS.lock().unwrap().push((datadir.to_owned(), tell));
    std::thread::scope(|scope| {
        let running = scope.spawn(move || {
            let _listed = Listed(datadir);
            body()
        });
        for (file, done) in openings {
            action(file.strip_prefix(datadir).unwrap().to_str().unwrap());
            drop(done);
        }
        running.join().unwrap()
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// Lays out the redo log for recovery.
fn lay_out_redo(target: &Path, redo: &CapturedRedo) {
    let mut captured = fs::read(target.join(REDO_ITEM)).unwrap();
    fs::remove_file(target.join(REDO_ITEM)).unwrap();
    match redo {
        CapturedRedo::MariaDb {
            checkpoint_lsn,
            checkpoint_end_lsn,
            source_size_bytes,
            header,
            encrypted,
            absolute_paths,
            ..
        } => {
            if !encrypted {
                let mut paths = AbsolutePaths::default();
                for path in absolute_paths {
                    paths.observe(FileOp::Modify { space: SpaceId(0), path: path.as_bytes() });
                }
                let mut relocator = PathRelocator::new(paths.directories()).unwrap();
                let done = relocator.rewrite(&mut captured, *checkpoint_lsn).unwrap();
                assert_eq!(done.bytes, captured.len());
            }
            let mut prefix = unhex(header);
            prefix.resize(0x3000, 0);
            prefix[0x1000..0x1008].copy_from_slice(&checkpoint_lsn.0.to_be_bytes());
            prefix[0x1008..0x1010].copy_from_slice(&checkpoint_end_lsn.0.to_be_bytes());
            let crc = checksum::crc32c(&prefix[0x1000..0x103C]);
            prefix[0x103C..0x1040].copy_from_slice(&crc.to_be_bytes());
            let source = LogHeader::parse(&prefix, *source_size_bytes).unwrap();
            let log = LinearLog::new(&source, source.checkpoint(), captured.len() as u64, *source_size_bytes)
                .unwrap();
            let file = File::create(target.join("ib_logfile0")).unwrap();
            file.write_all_at(&log.header, 0).unwrap();
            file.write_all_at(&captured, log.data_offset).unwrap();
            file.set_len(log.file_bytes).unwrap();
        }
        CapturedRedo::MySql { checkpoint_lsn, header, .. } => {
            let header = unhex(header);
            let source = RedoFileHeader::parse(&header).unwrap();
            let builder = RedoFileBuilder::new(&source, *checkpoint_lsn, encryption_block(&header));
            fs::create_dir_all(target.join("#innodb_redo")).unwrap();
            for part in builder.files(captured.len() as u64, FILE_BYTES_MAX).unwrap() {
                let file = File::create(target.join("#innodb_redo").join(part.name.to_string())).unwrap();
                file.write_all_at(&part.header, 0).unwrap();
                let bytes = &captured[part.captured.start as usize..part.captured.end as usize];
                file.write_all_at(bytes, part.header.len() as u64).unwrap();
                file.set_len(part.file_bytes).unwrap();
            }
        }
    }
}

fn captured_server_equals_its_source(kind: ServerKind, seed: u64, options: &ServerOptions) {
    let source = Server::start(kind, options.clone()).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 12, ..shop::ShopOptions::default() }).unwrap();
    misc::create(&source, misc::MiscOptions { outside: false, ..misc::MiscOptions::default() }).unwrap();
    let load = WriteLoad::start(&source, 2, seed).unwrap();
    let storm = DdlStorm::start(&source, 2, seed).unwrap();
    sleep(Duration::from_secs(1));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("data");
    let sink = DirectorySink::new(dir.path().join("staging"));
    let captured = capture(&source, &sink, dir.path());
    let ddl = storm.stop().unwrap();
    let writes = load.stop().unwrap();
    println!(
        "{kind} seed {seed}: {} transactions, {} DDL statements, {:#?}",
        writes.committed, ddl.done, captured.stats
    );
    let checksums: Vec<_> = captured.stats.pages_by_checksum.keys().copied().collect();
    match kind.is_mariadb() {
        // Since the storm truncates undo and imports tablespaces, some of them have the older checksum.
        true => assert!(checksums == ["full_crc32"] || checksums == ["crc32", "full_crc32"], "{checksums:?}"),
        false => assert_eq!(checksums, ["crc32"]),
    }
    sink.place(&target);
    lay_out_redo(&target, &captured.redo);
    let copy = Server::attach(kind, target, options.clone()).unwrap();
    check_ledger(&copy).unwrap();
    let gtid = captured.position.gtid.clone().unwrap();
    if !kind.is_mariadb() {
        // GTIDs of writes to other engines are only in the binlog until it rotates, so the
        // copy's own list has gaps.
        copy.exec_all([
            "RESET BINARY LOGS AND GTIDS".to_owned(),
            format!("SET GLOBAL gtid_purged = '{gtid}'"),
        ])
        .unwrap();
    }
    let position = Position::Gtid(gtid);
    replica::catch_up(&source, &copy, &position, CATCH_UP_MAX).unwrap();
    let tables = assert_equal_checksums(&source, &copy).unwrap();
    println!("{tables} tables equal");
    assert!(tables > 20);
}

#[test]
fn mariadb_10_11_captured_under_writes_and_ddl_equals_its_source() {
    captured_server_equals_its_source(ServerKind::MariaDb1011, 11, &ServerOptions::default());
}

#[test]
fn mariadb_11_8_captured_under_writes_and_ddl_equals_its_source() {
    // Here, a commit does not wait for the disk, and `FLUSH ENGINE LOGS` writes nothing: the end of the redo
    // becomes durable up to a second late.
    let relaxed = ServerOptions::default().arg("--innodb-flush-log-at-trx-commit=0");
    captured_server_equals_its_source(ServerKind::MariaDb118, 12, &relaxed);
}

#[test]
fn mysql_9_7_captured_under_writes_and_ddl_equals_its_source() {
    captured_server_equals_its_source(ServerKind::MySql97, 13, &ServerOptions::default());
}

#[test]
fn a_system_tablespace_of_two_files_is_captured_whole() {
    for (kind, seed) in [(ServerKind::MariaDb1011, 14), (ServerKind::MySql97, 15)] {
        let options =
            ServerOptions::default().init_arg("--innodb-data-file-path=ibdata1:12M;ibdata2:12M:autoextend");
        captured_server_equals_its_source(kind, seed, &options);
    }
}
