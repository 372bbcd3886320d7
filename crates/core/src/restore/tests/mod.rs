//! Restores of backups that the repository's own writer made of invented files. No server is involved.

#![allow(clippy::unwrap_used)]

mod claimed;
mod delta;
mod fresh;
mod interrupted;
mod mapped;

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use holdfast_formats::{Lsn, PageSize, SpaceId, checksum};
use holdfast_repo::{
    Kind, LogName, Protection, Repo, RunNo,
    data::writer::{BackupWriter, FileSpec, Foundation, WriterOptions},
    format::item::{FileRole, ItemPath, ItemType, Tablespace},
    log::run::{Ending, Run, RunOptions},
    store::fs::FsStore,
};
use serde_json::json;

use super::{
    RestoreOptions, RestoreReport,
    assemble::least_bytes,
    target::names::{MARKER, REPORT},
};
use crate::{
    captured_redo::{CapturedRedo, REDO_ITEM},
    error::{ErrorKind, Result},
    event::{Cancel, Silent},
    points::set_hook,
    position::{Position, Precision},
    restore,
    server::{
        ServerFacts, ServerVersion,
        facts::{Capabilities, EncryptionFacts, Identity, InnodbFacts, Paths, ReplicaFacts, SqlFacts},
        status::BinlogPosition,
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
            lsn: redo.stop_lsn(),
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
        restore::run(&self.repo, &log_name(), which, options, &Silent, &Cancel::default())
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
        checkpoint_lsn: Lsn(lsn),
        checkpoint_end_lsn: Lsn(lsn),
        stop_lsn: Lsn(lsn + bytes.len() as u64),
        source_size_bytes: LOG_BYTES,
        header: header.iter().map(|byte| format!("{byte:02x}")).collect(),
        encrypted: false,
        absolute_paths: vec![outside.to_owned()],
    };
    (redo, bytes)
}

pub(super) fn facts() -> ServerFacts {
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
    restore::run(&repo, &log_name(), run, &options, &Silent, &Cancel::default()).unwrap();
}

fn say(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout();
    writeln!(out, "{text}").unwrap();
    out.flush().unwrap();
}
