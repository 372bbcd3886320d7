//! Restores of backups that the repository's own writer made of invented files. No server is involved.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Read},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, symlink},
        process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use holdfast_formats::{Flavor, PageSize, SpaceId, checksum};
use holdfast_repo::{
    Kind, LogName, Protection, Repo, RunNo,
    data::writer::{BackupWriter, FileSpec, Foundation, WriterOptions},
    format::item::{FileRole, ItemPath, ItemType, Tablespace},
    log::run::{Ending, Run, RunOptions},
    store::fs::FsStore,
};
use serde_json::json;

use super::{
    Piece, Reached, RestoreMode, RestoreOptions, RestoreReport, Transactions,
    assemble::least_bytes,
    target::{
        names::{MARKER, REPORT},
        survey::survey,
    },
};
use crate::{
    error::{ErrorKind, Result},
    event::{Cancel, Event, Listener, Silent},
    physical::{BinlogPosition, CapturedRedo, Position, Precision, REDO_ITEM},
    points::set_hook,
    server::{
        ServerFacts, ServerVersion,
        facts::{Capabilities, EncryptionFacts, Identity, InnodbFacts, Paths, ReplicaFacts, SqlFacts},
    },
};

/// A file of an invented source.
#[derive(Clone)]
struct Fake {
    role: FileRole,
    page_size: u32,
    content: Vec<u8>,
    /// Pages that are holes: first and count.
    hole: Option<(u64, u64)>,
    outside: Option<&'static str>,
    space: Option<u32>,
}

impl Fake {
    fn new(role: FileRole, page_size: u32, content: Vec<u8>) -> Self {
        Self { role, page_size, content, hole: None, outside: None, space: None }
    }
}

type Files = BTreeMap<String, Fake>;

/// Bytes that do not repeat.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// More pages than a window holds, and more files than a window holds.
fn source() -> Files {
    let mut files = Files::new();
    let system =
        Fake { space: Some(0), ..Fake::new(FileRole::SystemTablespace, 16 << 10, noise(1, 70 * 16384)) };
    files.insert("ibdata1".into(), system);
    files.insert("aria_log_control".into(), Fake::new(FileRole::AriaControl, 16 << 10, noise(2, 52)));
    let mut big = noise(3, 19_000 * 1024);
    big[100 * 1024..5_000 * 1024].fill(0);
    big[9_000 * 1024..9_100 * 1024].fill(0);
    let big =
        Fake { space: Some(5), hole: Some((100, 4_900)), ..Fake::new(FileRole::Tablespace, 1 << 10, big) };
    files.insert("db/big.ibd".into(), big);
    let outside = Fake {
        space: Some(6),
        outside: Some("/fast/shop/db/o.ibd"),
        ..Fake::new(FileRole::Tablespace, 16 << 10, noise(4, 7 * 16384))
    };
    files.insert("db/o.ibd".into(), outside);
    files.insert("db/o.isl".into(), Fake::new(FileRole::Other, 16 << 10, b"/fast/shop/db/o.ibd".to_vec()));
    let linked =
        Fake { outside: Some("/x/y.MYD"), ..Fake::new(FileRole::TableFile, 16 << 10, noise(5, 999)) };
    files.insert("db/y.MYD".into(), linked);
    files.insert("master.info".into(), Fake::new(FileRole::Other, 16 << 10, b"go on".to_vec()));
    files.insert(".my.cnf".into(), Fake::new(FileRole::Other, 16 << 10, b"theirs".to_vec()));
    files.insert("empty.file".into(), Fake::new(FileRole::Other, 16 << 10, Vec::new()));
    for n in 0..300_u64 {
        let small = Fake::new(FileRole::Other, 16 << 10, noise(100 + n, 20 + n as usize));
        files.insert(format!("many/{}/t{n}.frm", n % 7), small);
    }
    files
}

/// What a restore of `files` leaves below its target.
fn restored(files: &Files) -> BTreeMap<String, Vec<u8>> {
    let dropped = |path: &str| path == "master.info" || path.starts_with('.') || path.ends_with(".isl");
    files
        .iter()
        .filter(|(path, _)| !dropped(path))
        .map(|(path, fake)| (path.clone(), fake.content.clone()))
        .collect()
}

struct World {
    dir: tempfile::TempDir,
    repo: Arc<Repo>,
}

fn log_name() -> LogName {
    LogName { source: "db1".parse().unwrap(), kind: Kind::Physical }
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = FsStore::create(dir.path().join("repo")).unwrap();
        let repo = Arc::new(Repo::init(Arc::new(store), &Protection::None).unwrap());
        Self { dir, repo }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn backup(&self, files: &Files) -> RunNo {
        let mut run = Run::begin(&self.repo, &log_name(), &RunOptions::of_this_process()).unwrap();
        let foundation = Foundation { base: run.history().newest_backup(), ..Foundation::default() };
        let writer = BackupWriter::new(&run, &foundation, WriterOptions::default()).unwrap();
        for (path, fake) in files {
            write(&writer, path, ItemType::File, fake);
        }
        for directory in ["db", "empty", "many"] {
            writer.directory(ItemPath::new(directory).unwrap(), 0o750);
        }
        let (redo, bytes) = redo();
        write(&writer, REDO_ITEM, ItemType::CapturedRedo, &Fake::new(FileRole::Other, 16 << 10, bytes));
        let data = writer.finish(&run).unwrap();
        let position = Position {
            precision: Precision::Exact,
            lsn: redo.stop_lsn().0,
            binlog: Some(BinlogPosition { file: "binlog.000007".into(), offset: 1234 }),
            gtid: Some("0-1-99".into()),
            replica_gtid: None,
            replica_of: Vec::new(),
            at: None,
        };
        let head = json!({
            "schema": 1, "run": run.no().0, "source": "db1", "kind": "physical", "method": "physical",
            "started_at": "2026-11-21T01:00:00Z", "finished_at": "2026-11-21T01:10:00Z",
            "server": facts(), "redo": redo, "position": position, "totals": data.totals, "roots": data.roots,
        });
        let head = serde_json::to_vec(&head).unwrap();
        run.finish(Ending::Backup { head, refs: data.refs, parts: data.parts }).unwrap();
        run.no()
    }

    fn options(&self, target: &str) -> RestoreOptions {
        RestoreOptions {
            prepare: false,
            parallel: 2,
            memory_bytes: least_bytes(2),
            ..RestoreOptions::new(self.path(target))
        }
    }

    fn restore(&self, which: RunNo, options: &RestoreOptions) -> Result<RestoreReport> {
        super::run(&self.repo, &log_name(), which, options, &Silent, &Cancel::default())
    }

    /// Runs a restore in a process of its own, which does `what` at `point`.
    fn child(&self, which: RunNo, target: &str, what: &str, point: &str) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "restore::tests::child", "--ignored", "--nocapture"])
            .env("CHILD_DIR", self.dir.path())
            .env("CHILD_RUN", which.0.to_string())
            .env("CHILD_TARGET", target)
            .env("CHILD_WHAT", what)
            .env("CHILD_POINT", point)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }
}

fn write(writer: &BackupWriter, path: &str, item_type: ItemType, fake: &Fake) {
    let page_size = PageSize::from_bytes(fake.page_size).unwrap();
    let spec = FileSpec {
        path: ItemPath::new(path).unwrap(),
        item_type,
        role: fake.role,
        mode: 0o660,
        page_size,
        tablespace: fake.space.map(|space| Tablespace { space: SpaceId(space), flags: 0x15 }),
        outside: fake.outside.map(|outside| outside.as_bytes().to_vec()),
    };
    let file = writer.begin_file(spec).unwrap();
    let mut padded = fake.content.clone();
    padded.resize(padded.len().next_multiple_of(page_size.bytes()), 0);
    for (piece, first) in padded.chunks(64 * page_size.bytes()).zip((0..).step_by(64)) {
        writer.pages(file, first, piece).unwrap();
    }
    if let Some((first, count)) = fake.hole {
        writer.holes(file, first, count).unwrap();
    }
    writer.end_file(file, fake.content.len() as u64).unwrap();
}

const LOG_BYTES: u64 = 1 << 20;

/// Linear redo of MariaDB: one FILE_MODIFY with a path outside, one FILE_CHECKPOINT.
fn redo() -> (CapturedRedo, Vec<u8>) {
    let lsn = 50_000_u64;
    let outside = "/fast/shop/db/o.ibd";
    let sealed = |mut mtr: Vec<u8>| {
        let crc = checksum::crc32c(&mtr);
        mtr.push(1);
        mtr.extend(crc.to_be_bytes());
        mtr
    };
    let payload = [&[6, 0][..], outside.as_bytes()].concat();
    let mut bytes = sealed([&[0xB0, (payload.len() + 1 - 15) as u8][..], &payload].concat());
    bytes.extend(sealed([&[0xFA, 0, 0][..], &lsn.to_be_bytes()].concat()));
    let mut header = vec![0; 512];
    header[..4].copy_from_slice(b"Phys");
    header[8..16].copy_from_slice(&0x3000_u64.to_be_bytes());
    let crc = checksum::crc32c(&header[..508]);
    header[508..].copy_from_slice(&crc.to_be_bytes());
    let redo = CapturedRedo::MariaDb {
        checkpoint_lsn: lsn,
        checkpoint_end_lsn: lsn,
        stop_lsn: lsn + bytes.len() as u64,
        source_size_bytes: LOG_BYTES,
        header: header.iter().map(|byte| format!("{byte:02x}")).collect(),
        encrypted: false,
        absolute_paths: vec![outside.to_owned()],
    };
    (redo, bytes)
}

fn facts() -> ServerFacts {
    ServerFacts {
        version: ServerVersion::parse("10.11.19-MariaDB").unwrap(),
        vendor: "Debian".into(),
        identity: Identity {
            server_uuid: None,
            server_uid: None,
            aria_uuid: None,
            server_id: 1,
            hostname: "db1".into(),
            port: 3306,
            socket: "/run/s".into(),
        },
        paths: Paths {
            datadir: "/var/lib/mysql".into(),
            basedir: "/usr".into(),
            plugin_dir: "/usr/lib/mysql/plugin".into(),
            lc_messages_dir: None,
            character_sets_dir: "/usr/share/mysql/charsets".into(),
            tmpdir: "/tmp".into(),
            pid_file: None,
            log_error: None,
            general_log: None,
            slow_log: None,
            plugin_logs: Vec::new(),
        },
        innodb: InnodbFacts {
            page_size: 16384,
            data_file_path: "ibdata1:12M:autoextend".into(),
            data_home_dir: None,
            undo_directory: None,
            undo_tablespaces: Some(0),
            log_group_home_dir: None,
            directories: Vec::new(),
            doublewrite_dir: None,
            temp_tablespaces_dir: None,
            temp_data_file_path: "ibtmp1:12M:autoextend".into(),
            buffer_pool_filename: None,
            flush_method: "O_DIRECT".into(),
            data_file_buffering: None,
            checksum_algorithm: "full_crc32".into(),
            redo_size: 96 << 20,
            flush_log_at_trx_commit: 1,
            force_recovery: 0,
            read_only: false,
        },
        aria: None,
        binlog: None,
        replica: ReplicaFacts {
            relay_log_basename: None,
            relay_log_index: None,
            parallel_workers: 0,
            preserve_commit_order: true,
            commits_late: false,
        },
        encryption: EncryptionFacts {
            redo: false,
            undo: false,
            key_providers: Vec::new(),
            key_file: None,
            more_key_files: Vec::new(),
        },
        sql: SqlFacts {
            lower_case_table_names: 0,
            sql_mode: String::new(),
            character_set_server: "utf8mb4".into(),
            collation_server: "utf8mb4_general_ci".into(),
            explicit_defaults_for_timestamp: None,
            system_time_zone: None,
            time_zone: None,
            default_storage_engine: "InnoDB".into(),
            performance_schema: false,
            myisam_use_mmap: false,
            deciding: BTreeMap::new(),
        },
        plugins: Vec::new(),
        components: Vec::new(),
        capabilities: Capabilities::default(),
        started_at: None,
    }
}

/// Every file below `target`, links by what they lead to.
fn listing(target: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![target.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(target).unwrap().to_str().unwrap().to_owned();
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() {
                todo.push(path);
            } else if metadata.is_symlink() {
                found.insert(name, fs::read_link(path).unwrap().into_os_string().into_encoded_bytes());
            } else {
                found.insert(name, fs::read(path).unwrap());
            }
        }
    }
    found
}

fn assert_restored(target: &Path, files: &Files) {
    let mut found = listing(target);
    let log = found.remove("ib_logfile0").expect("redo log");
    let (_, bytes) = redo();
    let begin = 0x3000 + 50_000 % 4096;
    assert_eq!(log.len() as u64, LOG_BYTES);
    assert_eq!(&log[..4], b"Phys");
    let relocated = &log[begin..begin + bytes.len()];
    assert_ne!(relocated, bytes);
    let text = String::from_utf8_lossy(relocated);
    assert!(text.contains(".//////////db/o.ibd"), "{text}");
    assert!(log[begin + bytes.len()..].iter().all(|byte| *byte == 0));
    let report: RestoreReport = serde_json::from_slice(&found.remove(REPORT).expect("report")).unwrap();
    assert_eq!(report.position.unwrap().gtid.as_deref(), Some("0-1-99"));
    let expected = restored(files);
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (path, content) in &expected {
        assert!(found[path] == *content, "{path} differs");
        assert_eq!(fs::metadata(target.join(path)).unwrap().permissions().mode() & 0o7777, 0o660);
    }
    assert!(target.join("empty").is_dir());
}

/// Whether a server could start on it: what it needs has its name, and there is nothing else of that name.
fn is_startable(target: &Path) -> bool {
    let is_real = |name| fs::read(target.join(name)).is_ok_and(|bytes| !bytes.starts_with(b"holdfast: "));
    ["ibdata1", "aria_log_control", "ib_logfile0"].into_iter().all(is_real)
}

/// Everything is there as it was: holes are holes, zeros take space, and nothing comes back that should not.
#[test]
fn into_an_empty_directory() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = world.options("target");
    let plan = super::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).unwrap();
    assert!(!options.target_dir.exists());
    assert_eq!((plan.mode, plan.files), (RestoreMode::Fresh, restored(&files).len() as u64));
    assert_eq!(plan.create.len() as u64, plan.files + 1);
    assert!(plan.delete.is_empty() && plan.replace.is_empty());
    assert_eq!(plan.external.len(), 2);
    assert_eq!(plan.dropped.len(), 3);
    let dropped = plan.dropped;
    assert!(plan.room[0].needed_bytes > plan.bytes);

    let phases = Mutex::new(Vec::new());
    struct Phases<'a>(&'a Mutex<Vec<String>>);
    impl Listener for Phases<'_> {
        fn event(&self, event: Event) {
            if let Event::Phase { name } = event {
                self.0.lock().unwrap().push(name.to_owned());
            }
        }
    }
    let report =
        super::run(&world.repo, &log_name(), run, &options, &Phases(&phases), &Cancel::default()).unwrap();
    assert_restored(&options.target_dir, &files);
    assert_eq!(*phases.lock().unwrap(), ["plan", "assemble", "place", "complete"]);
    assert_eq!(report.phases.len(), 4);
    assert_eq!(report.dropped, dropped);
    assert_eq!(report.server_version.flavor, Flavor::MariaDb);
    assert!(report.replicate_statement.unwrap().contains("gtid_slave_pos = '0-1-99'"));
    let big = fs::metadata(options.target_dir.join("db/big.ibd")).unwrap();
    let room = big.blocks() * 512;
    let stored = 14_100 << 10;
    assert!((stored..stored + (64 << 10)).contains(&room), "{room}");

    let error = world.restore(run, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert_restored(&options.target_dir, &files);
}

/// With a mapping, a table's file goes where the user wants it, and the target leads there.
#[test]
fn mapped() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let mut options = world.options("target");
    options.maps = vec![("/x".into(), world.path("elsewhere"))];
    world.restore(run, &options).unwrap();
    let found = listing(&options.target_dir);
    let goes_to = world.path("elsewhere/y.MYD");
    assert_eq!(found["db/y.MYD"], goes_to.as_os_str().as_encoded_bytes());
    assert_eq!(fs::read(&goes_to).unwrap(), files["db/y.MYD"].content);

    let mut again = world.options("second");
    again.maps = options.maps.clone();
    assert_eq!(world.restore(run, &again).unwrap_err().kind(), ErrorKind::Usage);
    assert!(!again.target_dir.exists());
    // A tablespace gets its place after recovery only.
    again.maps = vec![("/fast/shop".into(), world.path("fast"))];
    assert_eq!(world.restore(run, &again).unwrap_err().kind(), ErrorKind::Usage);
    again.maps = vec![("/x".into(), again.target_dir.join("x"))];
    assert_eq!(world.restore(run, &again).unwrap_err().kind(), ErrorKind::Usage);
}

/// What was in a mapped place before keeps its owner; what the restore makes there goes to the given one.
#[test]
fn mapped_places_of_others() {
    let world = World::new();
    let mut files = source();
    let deep = Fake { outside: Some("/x/old/new/z.MYD"), ..files["db/y.MYD"].clone() };
    files.insert("db/z.MYD".into(), deep);
    let run = world.backup(&files);
    let is_root = rustix::process::geteuid().is_root();
    let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owner = if is_root { (ours.0 + 4711, ours.1 + 4711) } else { ours };
    let place = world.path("place");
    fs::create_dir_all(place.join("old")).unwrap();
    let maps = vec![("/x".into(), place.clone())];
    let options = RestoreOptions { owner: Some(owner), maps, ..world.options("target") };
    world.restore(run, &options).unwrap();
    let owner_of = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.uid(), metadata.gid())
    };
    for (path, whose) in
        [("", ours), ("old", ours), ("old/new", owner), ("old/new/z.MYD", owner), ("y.MYD", owner)]
    {
        assert_eq!(owner_of(&place.join(path)), whose, "{path}");
    }
}

/// Two tables that the source kept in different directories under one name are never put into one file,
/// however the place that both would go to is spelled.
#[test]
fn two_mappings_to_one_place() {
    let world = World::new();
    let mut files = source();
    for (table, outside) in [("db/m.MYD", "/my/m.MYD"), ("db2/m.MYD", "/my2/m.MYD")] {
        files.insert(table.into(), Fake { outside: Some(outside), ..files["db/y.MYD"].clone() });
    }
    let run = world.backup(&files);
    let place = world.path("both");
    fs::create_dir(&place).unwrap();
    symlink(&place, world.path("link")).unwrap();
    let target = world.path("target");
    for other in [place.clone(), world.path("link"), world.path("no/../both/."), place.join("../both")] {
        let maps = vec![("/my".into(), place.clone()), ("/my2".into(), other)];
        let options = RestoreOptions { maps, ..world.options("target") };
        for error in [
            super::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).unwrap_err(),
            world.restore(run, &options).unwrap_err(),
        ] {
            assert!(error.to_string().contains("would both go to"), "{error}");
        }
    }
    // Nor into the target, which has files of its own.
    fs::create_dir(&target).unwrap();
    symlink(&target, world.path("alias")).unwrap();
    files.get_mut("db/m.MYD").unwrap().outside = Some("/target/m.MYD");
    let run = world.backup(&files);
    for (from, to) in [
        ("/target", world.path("alias")),
        ("/target", world.path("no/../target/db")),
        ("/", world.path("no/..")),
    ] {
        let options = RestoreOptions { maps: vec![(from.into(), to)], ..world.options("target") };
        let error = world.restore(run, &options).unwrap_err();
        assert!(error.to_string().contains("in the target"), "{error}");
        assert!(listing(&target).is_empty());
    }
}

/// A mapping that covers no file is an error of spelling if some file is not covered, which would go into the
/// target.
#[test]
fn a_mapping_that_covers_nothing() {
    let world = World::new();
    let run = world.backup(&source());
    let maps = vec![("/x".into(), world.path("a")), ("/fsat".into(), world.path("b"))];
    let options = RestoreOptions { maps, ..world.options("target") };
    let error = world.restore(run, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("/fsat"), "{error}");
    assert!(error.hint().unwrap().contains("/fast/shop/db"), "{error}");
    assert!(!options.target_dir.exists());
    // It is of another source, if all are covered.
    let mut files = source();
    files.remove("db/o.ibd");
    let run = world.backup(&files);
    world.restore(run, &options).unwrap();
    assert_eq!(fs::read(world.path("a/y.MYD")).unwrap(), files["db/y.MYD"].content);
    assert!(!world.path("b").exists());
}

/// No restore deletes the repository that it reads from, or writes into it.
#[test]
fn beside_the_repository() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    fs::write(world.path("ibdata1"), "pages").unwrap();
    symlink(world.path("repo"), world.path("alias")).unwrap();
    let before = listing(&world.path("repo"));
    for (delta, target) in
        [(true, "."), (true, ""), (false, "repo/new"), (true, "repo"), (false, "alias/x/y")]
    {
        let options = RestoreOptions { delta, ..world.options(target) };
        let error = world.restore(run, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{target}: {error}");
        assert!(error.to_string().contains("the repository"), "{target}: {error}");
        assert!(super::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).is_err());
    }
    let maps = vec![("/x".into(), world.path("alias/x"))];
    let error = world.restore(run, &RestoreOptions { maps, ..world.options("target") }).unwrap_err();
    assert!(error.to_string().contains("the repository"), "{error}");
    assert!(listing(&world.path("repo")) == before);
    // Nor by a mapping to a directory around it.
    let outside = Fake { outside: Some("/x/repo/y.MYD"), ..files["db/y.MYD"].clone() };
    let run = world.backup(&Files::from([("db/y.MYD".into(), outside)]));
    let before = listing(&world.path("repo"));
    let maps = vec![("/x".into(), world.path("."))];
    let error = world.restore(run, &RestoreOptions { maps, ..world.options("target") }).unwrap_err();
    assert!(error.to_string().contains("the repository"), "{error}");
    assert!(listing(&world.path("repo")) == before);
}

/// Files outside of the target are replaced only if they belong to the data directory in it, and nobody uses
/// them.
#[test]
fn mapped_files_that_exist() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let place = world.path("place");
    let theirs = place.join("y.MYD");
    fs::create_dir(&place).unwrap();
    fs::write(&theirs, "of the running source").unwrap();
    let maps = vec![("/x".into(), place.clone())];
    let onto = RestoreOptions { delta: true, maps, ..world.options("target") };
    let plan = || super::plan(&world.repo, &log_name(), run, &onto, &Cancel::default());
    let refused = |why: &str| {
        for error in [plan().unwrap_err(), world.restore(run, &onto).unwrap_err()] {
            assert!(error.to_string().contains(why), "{error}");
        }
        assert_eq!(fs::read(&theirs).unwrap(), b"of the running source");
    };
    // A new directory, and one whose table is elsewhere.
    refused("exists already");
    assert!(!onto.target_dir.exists());
    let elsewhere = vec![("/x".into(), world.path("elsewhere"))];
    world.restore(run, &RestoreOptions { maps: elsewhere, ..onto.clone() }).unwrap();
    refused("exists already");

    let link = onto.target_dir.join("db/y.MYD");
    fs::remove_file(&link).unwrap();
    symlink(world.path("no/../place/y.MYD"), &link).unwrap();
    let open = fs::File::open(&theirs).unwrap();
    refused("another process");
    drop(open);
    let planned = plan().unwrap();
    assert!(planned.replace.iter().any(|file| file.path == theirs), "{:?}", planned.replace);
    world.restore(run, &onto).unwrap();
    assert_eq!(fs::read(&theirs).unwrap(), files["db/y.MYD"].content);
    // Its report says so as well, which is all that there is on MySQL.
    fs::remove_file(&link).unwrap();
    fs::write(&theirs, "stale").unwrap();
    world.restore(run, &onto).unwrap();
    assert_eq!(fs::read(&theirs).unwrap(), files["db/y.MYD"].content);
}

/// A file that somebody puts into a mapped place after it was looked at is not the restore's, however often
/// that is run again.
#[test]
fn mapped_files_that_appear() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    world.restore(run, &world.options("used")).unwrap();
    fs::create_dir(world.path("new")).unwrap();
    for (target, delta) in [("new", false), ("used", true)] {
        let place = world.path(&format!("place of {target}"));
        let theirs = place.join("y.MYD");
        let maps = vec![("/x".into(), place.clone())];
        let options = RestoreOptions { delta, maps, ..world.options(target) };
        let child = |what: &str| {
            let mut child = world.child(run, target, what, "restore.claimed");
            child.env("CHILD_MAP", &place).envs(delta.then_some(("CHILD_DELTA", "1")));
            child
        };
        let before = listing(&options.target_dir);
        let mut paused = child("pause").stderr(Stdio::piped()).spawn().unwrap();
        let _output = wait_for(&mut paused, "paused");
        fs::create_dir(&place).unwrap();
        fs::write(&theirs, "theirs").unwrap();
        drop(paused.stdin.take());
        let mut said = String::new();
        paused.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!paused.wait().unwrap().success() && said.contains("has changed since"), "{said}");
        assert!(listing(&options.target_dir) == before, "{target}");

        // Nor if the restore was killed before it looked again.
        fs::remove_file(&theirs).unwrap();
        assert_eq!(child("kill").status().unwrap().signal(), Some(9));
        fs::write(&theirs, "theirs").unwrap();
        for _ in 0..2 {
            let error = world.restore(run, &options).unwrap_err();
            assert!(error.to_string().contains("exists already"), "{error}");
            assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
        }
    }
}

/// What is put into the target after it was looked at is not overwritten, and not mixed with.
#[test]
fn changed_since_it_was_planned() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let other = world.backup(&files);
    let meanwhile = |name: &str, delta: bool, what: &dyn Fn(&Path)| {
        let mut child = world.child(run, name, "pause", "restore.planned");
        if delta {
            child.env("CHILD_DELTA", "1");
        }
        let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
        let _output = wait_for(&mut child, "paused");
        what(&world.path(name));
        let before = listing(&world.path(name));
        drop(child.stdin.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!child.wait().unwrap().success(), "{name}");
        assert!(said.contains("has changed since"), "{name}: {said}");
        assert!(listing(&world.path(name)) == before, "{name}");
    };
    let data = |target: &Path| {
        fs::create_dir_all(target).unwrap();
        fs::write(target.join("ibdata1"), "production").unwrap();
    };
    meanwhile("absent", false, &data);
    fs::create_dir(world.path("empty")).unwrap();
    meanwhile("empty", false, &data);
    meanwhile("restored", false, &|_| drop(world.restore(other, &world.options("restored")).unwrap()));
    data(&world.path("used"));
    meanwhile("used", true, &|target| fs::write(target.join("ibdata1"), "PRODUCTION").unwrap());
    let killed = world.child(run, "left", "kill", "restore.files.written").output().unwrap();
    assert_eq!(killed.status.signal(), Some(9));
    meanwhile("left", false, &|_| drop(world.restore(run, &world.options("left")).unwrap()));
}

/// A restore that was killed when a server could already be started on its target is completed without a page
/// being written; if a server was started, nothing is touched without --delta.
#[test]
fn killed_in_its_last_instant() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    for point in ["restore.files.named", "restore.report.written"] {
        let target = format!("killed {point}");
        let options = world.options(&target);
        let kill = || {
            let killed = world.child(run, &target, "kill", point).output().unwrap();
            assert_eq!(killed.status.signal(), Some(9));
        };
        let changed = || fs::metadata(options.target_dir.join("db/big.ibd")).unwrap().ctime_nsec();
        kill();
        let before = changed();
        let plan = super::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).unwrap();
        assert!(plan.create.is_empty() && plan.replace.is_empty() && plan.delete.is_empty());
        let other = RestoreOptions { maps: vec![("/x".into(), world.path("x"))], ..options.clone() };
        assert_eq!(world.restore(run, &other).unwrap_err().kind(), ErrorKind::Usage);
        world.restore(run, &options).unwrap();
        assert_eq!(changed(), before, "{point}");
        assert_restored(&options.target_dir, &files);

        fs::remove_dir_all(&options.target_dir).unwrap();
        kill();
        let used = options.target_dir.join("ib_logfile0");
        let mut redo = fs::read(&used).unwrap();
        redo[LOG_BYTES as usize - 1] = 7;
        fs::write(&used, &redo).unwrap();
        let before = listing(&options.target_dir);
        let error = world.restore(run, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("used since"), "{error}");
        assert!(listing(&options.target_dir) == before, "{point}");
        world.restore(run, &RestoreOptions { delta: true, ..options.clone() }).unwrap();
        assert_restored(&options.target_dir, &files);
    }
}

/// What is complete was replayed up to some moment, and is not passed off as another.
#[test]
fn finished_only_if_it_is_the_same_moment() {
    struct Archive(u64);
    impl Transactions for Archive {
        fn each(&mut self, _: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<Reached> {
            Ok(Reached { transactions: self.0, ..Reached::default() })
        }
    }
    let world = World::new();
    let run = world.backup(&source());
    let options = world.options("target");
    let killed = world.child(run, "target", "kill", "restore.report.written").output().unwrap();
    assert_eq!(killed.status.signal(), Some(9));
    let marker = options.target_dir.join(MARKER);
    let mut said: serde_json::Value = serde_json::from_slice(&fs::read(&marker).unwrap()).unwrap();
    let gone = serde_json::Value::Null;
    said["named"]["report"]["replayed"] =
        json!({ "transactions": 7, "binlog": gone, "gtids": gone, "bytes": 1, "ms": 1 });
    fs::write(&marker, said.to_string()).unwrap();
    let plan = super::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).unwrap();
    let finish = |archive: Option<&mut Archive>| {
        let survey = survey(&options.target_dir, false, &plan.backup).unwrap();
        super::finish::run(&plan, &survey, &options, archive.map(|archive| archive as &mut dyn Transactions))
    };
    assert_eq!(finish(None).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(finish(Some(&mut Archive(8))).unwrap_err().kind(), ErrorKind::Usage);
    let report = finish(Some(&mut Archive(7))).unwrap().unwrap();
    assert_eq!(report.replayed.unwrap().reached.transactions, 7);
    assert!(!marker.exists());
}

/// A delta does what the user has agreed to, or nothing.
#[test]
fn agreed() {
    let world = World::new();
    let run = world.backup(&source());
    let options = RestoreOptions { delta: true, ..world.options("target") };
    world.restore(run, &options).unwrap();
    let plan = super::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).unwrap();
    let options = RestoreOptions { agreed: Some(Box::new(plan)), ..options };
    let new = options.target_dir.join("db/new.ibd");
    fs::write(&new, "rows").unwrap();
    let error = world.restore(run, &options).unwrap_err();
    assert!(error.to_string().contains("has changed since"), "{error}");
    assert!(new.exists());
    fs::remove_file(&new).unwrap();
    world.restore(run, &options).unwrap();
}

/// A delta that was killed before it changed anything has left somebody's data, not its own.
#[test]
fn a_delta_that_has_changed_nothing() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = world.options("target");
    world.restore(run, &options).unwrap();
    fs::write(options.target_dir.join("db/new.ibd"), "rows").unwrap();
    let before = listing(&options.target_dir);
    for (point, is_changed) in [("restore.claimed", false), ("restore.set.aside", true)] {
        let status = world.child(run, "target", "kill", point).env("CHILD_DELTA", "1").status().unwrap();
        assert_eq!(status.signal(), Some(9), "{point}");
        assert_eq!(is_startable(&options.target_dir), !is_changed);
        if !is_changed {
            assert_eq!(world.restore(run, &options).unwrap_err().kind(), ErrorKind::Usage);
            let mut found = listing(&options.target_dir);
            assert!(found.remove(MARKER).is_some() && found == before);
        }
    }
    world.restore(run, &options).unwrap();
    assert_restored(&options.target_dir, &files);
}

/// Only its owner and group get into a new data directory; whoever may enter the directories above still may.
#[test]
fn modes_of_new_directories() {
    let world = World::new();
    let run = world.backup(&source());
    let maps = vec![("/x".into(), world.path("above/place"))];
    let options = RestoreOptions { maps, ..world.options("over/target") };
    world.restore(run, &options).unwrap();
    let mode = |path: &str| fs::metadata(world.path(path)).unwrap().permissions().mode() & 0o777;
    let usual = {
        fs::create_dir(world.path("usual")).unwrap();
        mode("usual")
    };
    assert_eq!(["over/target", "above/place"].map(mode), [usual & 0o750; 2]);
    assert_eq!(["over", "above"].map(mode), [usual; 2]);
}

/// A stale directory becomes the backup: equal pages are not fetched, and what does not belong is removed.
#[test]
fn delta_onto_a_stale_directory() {
    let world = World::new();
    let mut files = source();
    let first = world.backup(&files);
    let options = world.options("target");
    world.restore(first, &options).unwrap();

    for page in [0, 77, 8_000, 18_999] {
        let big = &mut files.get_mut("db/big.ibd").unwrap().content;
        big[page * 1024..(page + 1) * 1024].copy_from_slice(&noise(page as u64, 1024));
    }
    files.get_mut("db/big.ibd").unwrap().content[6_000 * 1024..6_500 * 1024].fill(0);
    files.get_mut("ibdata1").unwrap().content.truncate(60 * 16384);
    let moved = files.remove("many/3/t3.frm").unwrap();
    files.insert("many/3/renamed.frm".into(), moved);
    files.insert("new/t.frm".into(), Fake::new(FileRole::Other, 16 << 10, noise(9, 70_000)));
    let second = world.backup(&files);

    for (name, content) in [
        ("binlog.000001", "events"),
        ("relay-log.info", "position"),
        ("ib_buffer_pool", "pages"),
        ("aria_log.00000001", "log"),
        ("#sql-ib7.ibd", "half a table"),
        ("dropped/db.opt", "utf8"),
    ] {
        let path = options.target_dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    assert_eq!(world.restore(second, &options).unwrap_err().kind(), ErrorKind::Usage);
    let options = RestoreOptions { delta: true, ..options };
    let plan = super::plan(&world.repo, &log_name(), second, &options, &Cancel::default()).unwrap();
    assert_eq!(plan.mode, RestoreMode::Delta);
    let deleted: Vec<_> = plan
        .delete
        .iter()
        .map(|path| path.strip_prefix(&plan.target_dir).unwrap().to_str().unwrap())
        .collect();
    for name in ["binlog.000001", "#sql-ib7.ibd", "dropped", "ib_logfile0", "many/3/t3.frm", REPORT] {
        assert!(deleted.contains(&name), "{name}: {deleted:?}");
    }
    let report = world.restore(second, &options).unwrap();
    assert_restored(&options.target_dir, &files);
    assert_eq!(report.written.files_reused, report.written.files - 2);
    // Four pages, two files, the redo.
    assert!(report.written.bytes_written < 200_000, "{:?}", report.written);
}

/// Whatever happened to the directory, delta makes it right, and never writes through a link or into a file
/// that has another name elsewhere.
#[test]
fn delta_onto_a_spoiled_directory() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = RestoreOptions { delta: true, ..world.options("target") };
    world.restore(run, &options).unwrap();
    let at = |name: &str| options.target_dir.join(name);
    let theirs = world.path("theirs");
    fs::create_dir(&theirs).unwrap();

    let mut big = fs::read(at("db/big.ibd")).unwrap();
    for page in [0, 500, 4_999, 9_050, 12_345, 18_999] {
        big[page * 1024 + 5] ^= 1;
    }
    big.truncate(18_500 * 1024 + 7);
    fs::write(at("db/big.ibd"), &big).unwrap();
    fs::hard_link(at("ibdata1"), theirs.join("ibdata1")).unwrap();
    let mut longer = fs::read(at("db/o.ibd")).unwrap();
    longer.extend(noise(8, 50_000));
    fs::write(at("db/o.ibd"), longer).unwrap();
    fs::rename(at("many/2"), theirs.join("2")).unwrap();
    symlink(theirs.join("2"), at("many/2")).unwrap();
    let victim = fs::read(theirs.join("2/t2.frm")).unwrap();
    fs::write(theirs.join("2/t2.frm"), "precious").unwrap();
    fs::remove_file(at("db/y.MYD")).unwrap();
    fs::create_dir_all(at("db/y.MYD/inner")).unwrap();
    fs::write(at("db/y.MYD/inner/x"), "x").unwrap();
    fs::remove_file(at("aria_log_control")).unwrap();
    symlink("/etc/hostname", at("aria_log_control")).unwrap();
    fs::write(at("ibdata1.partial"), "from another time").unwrap();

    // Once set aside, none of these comes back in place of what keeps servers away.
    for point in ["restore.deleted", "restore.files.written"] {
        let status = world.child(run, "target", "kill", point).env("CHILD_DELTA", "1").status().unwrap();
        assert_eq!(status.signal(), Some(9), "{point}");
        for held in ["ibdata1", "aria_log_control"] {
            let text = fs::read_to_string(at(held)).unwrap_or_default();
            assert!(text.starts_with("holdfast: "), "{held} at {point}: {text:?}");
        }
        fs::remove_file(at("aria_log_control")).unwrap();
        symlink("/etc/hostname", at("aria_log_control")).unwrap();
        fs::remove_file(at("ibdata1")).unwrap();
        fs::hard_link(theirs.join("ibdata1"), at("ibdata1")).unwrap();
    }
    world.restore(run, &options).unwrap();
    assert_restored(&options.target_dir, &files);
    assert_eq!(fs::read(theirs.join("2/t2.frm")).unwrap(), b"precious");
    assert_ne!(victim, b"precious");
    assert_eq!(fs::metadata(theirs.join("ibdata1")).unwrap().nlink(), 1);
    assert_eq!(fs::read(theirs.join("ibdata1")).unwrap(), files["ibdata1"].content);
}

/// No server has a directory in the place of a system file: whoever made it must look at it.
#[test]
fn delta_onto_a_directory_in_the_place_of_a_system_file() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = RestoreOptions { delta: true, ..world.options("target") };
    fs::create_dir_all(options.target_dir.join("ibdata1/inner")).unwrap();
    let error = world.restore(run, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("ibdata1 is a directory"), "{error}");
    assert!(options.target_dir.join("ibdata1/inner").is_dir());
}

/// Damage in the repository fails the restore by name, and leaves nothing a server starts on.
#[test]
fn damaged_repository() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let packs = world.path("repo/sources/db1/physical/packs");
    // The pack of pages: others are smaller, and come first in some directories.
    let packs = fs::read_dir(packs).unwrap().map(|entry| entry.unwrap().path());
    let pack = packs.max_by_key(|pack| fs::metadata(pack).unwrap().len()).unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    bytes[200_000] ^= 1;
    fs::set_permissions(&pack, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&pack, bytes).unwrap();
    let options = world.options("target");
    let error = world.restore(run, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(!is_startable(&options.target_dir));
    assert!(options.target_dir.join(MARKER).exists());
}

/// A cancelled restore stops, and continues when it is run again.
#[test]
fn cancelled() {
    struct CancelAtOnce(Cancel);
    impl Listener for CancelAtOnce {
        fn event(&self, event: Event) {
            if matches!(event, Event::Phase { name: "assemble" }) {
                self.0.cancel();
            }
        }
    }
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = world.options("target");
    let cancel = Cancel::default();
    let error = super::run(&world.repo, &log_name(), run, &options, &CancelAtOnce(cancel.clone()), &cancel)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert!(!is_startable(&options.target_dir));
    world.restore(run, &options).unwrap();
    assert_restored(&options.target_dir, &files);
}

/// Killed at any named point, a restore leaves nothing that a server would start
/// on unless it is complete; run again, it completes.
#[test]
fn killed_at_every_point() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let output = world.child(run, "names", "names", "").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<_> = text.lines().filter_map(|line| line.split("point ").nth(1)).collect();
    names.dedup();
    assert!(names.len() >= 10, "{text}");
    for name in names {
        let target = format!("killed {name}");
        let status = world.child(run, &target, "kill", name).output().unwrap().status;
        assert_eq!(status.signal(), Some(9), "{name}");
        let options = world.options(&target);
        let whole = ["restore.files.named", "restore.report.written"].contains(&name);
        assert_eq!(is_startable(&options.target_dir), whole, "{name}");
        assert!(whole || name == "restore.planned" || options.target_dir.join(MARKER).exists(), "{name}");
        // Another backup does not take it over.
        if name == "restore.files.written" {
            let other = world.backup(&files);
            assert_eq!(world.restore(other, &options).unwrap_err().kind(), ErrorKind::Usage);
        }
        world.restore(run, &options).unwrap();
        assert_restored(&options.target_dir, &files);
    }
}

/// A file that cannot be written is named, and the restore continues once there is room.
#[test]
fn no_room() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    // With the signal ignored, a file beyond the limit is an error, as on a full disk.
    let inner = world.child(run, "target", "restore", "");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 8192; exec \"$0\" \"$@\""]).arg(inner.get_program());
    command.args(inner.get_args()).envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("db/big.ibd: file too large"), "{text}");
    let options = world.options("target");
    assert!(!is_startable(&options.target_dir));
    world.restore(run, &options).unwrap();
    assert_restored(&options.target_dir, &files);
}

/// While a server has its files locked, nothing is changed; nor while another restore is at work.
#[test]
fn locked() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = RestoreOptions { delta: true, ..world.options("target") };
    world.restore(run, &options).unwrap();
    // Whatever the names of that server's files are, and wherever they are.
    for name in ["ibdata1", "aria_log_control", "ibdata_a", "sub/system"] {
        if !options.target_dir.join(name).exists() {
            fs::create_dir_all(options.target_dir.join(name).parent().unwrap()).unwrap();
            fs::write(options.target_dir.join(name), "pages").unwrap();
        }
        let before = listing(&options.target_dir);
        let mut child = world.child(run, "target", "lock", name).spawn().unwrap();
        let _output = wait_for(&mut child, "locked");
        let error = world.restore(run, &options).unwrap_err();
        assert!(error.to_string().contains("a server is running on"), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(super::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).is_err());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(listing(&options.target_dir) == before, "{name}");
    }
    world.restore(run, &options).unwrap();
    assert_restored(&options.target_dir, &files);
    let mut child = world.child(run, "busy", "pause", "restore.set.aside").spawn().unwrap();
    let _output = wait_for(&mut child, "paused");
    let busy = world.options("busy");
    assert_eq!(world.restore(run, &busy).unwrap_err().kind(), ErrorKind::Active);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_restored(&busy.target_dir, &files);
}

/// Returns what the child writes to, which must stay open.
fn wait_for(child: &mut Child, word: &str) -> impl Sized + use<> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(word)), "the child ended");
    lines
}

/// Not a test: what the other tests run as a process of its own.
#[test]
#[ignore = "run by other tests"]
fn child() {
    let var = |name: &str| env::var(name).unwrap();
    let dir = PathBuf::from(var("CHILD_DIR"));
    let (what, at) = (var("CHILD_WHAT"), var("CHILD_POINT"));
    let target = dir.join(var("CHILD_TARGET"));
    let until_told = || drop(std::io::stdin().read_to_end(&mut Vec::new()));
    if what == "lock" {
        let file = fs::File::options().write(true).open(target.join(at)).unwrap();
        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        say("locked");
        return until_told();
    }
    set_hook(move |name| match what.as_str() {
        "names" => say(&format!("point {name}")),
        "kill" if name == at => {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
        }
        "pause" if name == at => {
            say("paused");
            until_told();
        }
        _ => {}
    });
    let store = FsStore::open(dir.join("repo")).unwrap();
    let repo = Arc::new(Repo::open(Arc::new(store), None).unwrap());
    let options = RestoreOptions {
        delta: env::var_os("CHILD_DELTA").is_some(),
        maps: env::var_os("CHILD_MAP").map(|to| ("/x".into(), to.into())).into_iter().collect(),
        prepare: false,
        parallel: 2,
        memory_bytes: least_bytes(2),
        ..RestoreOptions::new(target)
    };
    let run = RunNo(var("CHILD_RUN").parse().unwrap());
    super::run(&repo, &log_name(), run, &options, &Silent, &Cancel::default()).unwrap();
}

fn say(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout();
    writeln!(out, "{text}").unwrap();
    out.flush().unwrap();
}

/// A backup can say which settings the source had, and no other option of the server that is started here.
#[test]
fn no_option_is_the_backups_choice() {
    let mut facts = facts();
    for (name, value) in [
        ("old_mode", ""),
        ("plugin_load_add", "evil.so"),
        ("init_file", "/x"),
        ("x_stopword_table", "a/b"),
        ("=", ""),
    ] {
        facts.sql.deciding.insert(name.to_owned(), value.to_owned());
    }
    assert_eq!(super::server_options::deciding_options(&facts, false), ["--loose-old_mode="]);
}
