//! Memory and time of every operation on a server that is too large for any test machine.
//! What must scale are page maps, index, refs, the item table and the listing, and all of these are real;
//! only the pages are made up ([`source`]), and compress to next to nothing.
//!
//! Each operation runs in its own process, which reports its peak memory.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use holdfast_core::{
    Cancel,
    backup::{self, BackupOptions},
    event::Silent,
    restore::{self, RestoreOptions},
    server::ConnectOptions,
    usage,
};
use holdfast_repo::{
    Kind, LogName, Password, Protection, Repo, RunNo,
    data::{
        reader::Backup,
        writer::{ChunkRewriter, WriterOptions},
    },
    format::manifest::Head,
    keys::KdfParams,
    log::{history::History, run::RunOptions},
    ops::{
        check::{CheckOptions, check},
        copy::{Copier, CopyOptions},
        expire::{ExpireRequest, expire},
        prune::{PruneOptions, prune},
    },
    store::fs::FsStore,
};
use serde::{Deserialize, Serialize};

pub(crate) mod source;

use source::{FakeServer, Size};

const ORDERS: &str = "HOLDFAST_TEST_ORDERS";
/// `2048,200000`: GiB and files, instead of a size that takes less than a minute (`make scale`).
const SCALE: &str = "HOLDFAST_SCALE";
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Some 200 chunks, as in a pack of 64 MiB with chunks compressed to a third: real data of this size have no
/// more packs than this.
const PACK_BYTES: u64 = 32 << 10;
/// With small packs, small servers have enough of them for a prune to rewrite some.
const SMALL_PACK_BYTES: u64 = 4 << 10;
/// How much 8,750 more files and 3.5 GiB more may take: half of the memory, which the queues of the smaller
/// backup need not have filled.
const GROWTH_BYTES: u64 = RestoreOptions::MEMORY_BYTES_MIN / 2;
/// How much an operation may take in addition to `--memory`.
const BESIDE_BYTES: u64 = 128 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Operation {
    /// A backup of this generation of the server.
    Backup(u64),
    List,
    RestorePlan,
    Check,
    CheckData,
    /// Copies all backups into a new repository.
    Copy,
    /// Drops all but the newest.
    Expire,
    Prune,
}

#[derive(Serialize, Deserialize)]
struct Orders {
    operation: Operation,
    size: Size,
    repo: PathBuf,
    memory_bytes: u64,
    pack_bytes: u64,
    /// Receives the measurements.
    measured: PathBuf,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Measured {
    memory_bytes_max: u64,
    wall: Duration,
    cpu: Duration,
}

fn log() -> LogName {
    LogName { source: "huge".parse().unwrap(), kind: Kind::Physical }
}

fn password() -> Password {
    Password::new("of no use to anybody".to_owned()).unwrap()
}

/// Not a test by itself: does what it is told to.
#[test]
#[ignore = "a process for the tests of this module"]
fn operation() {
    usage::give_memory_back();
    let orders: Orders = serde_json::from_str(&std::env::var(ORDERS).unwrap()).unwrap();
    let began = Instant::now();
    operate(&orders);
    let measured = Measured {
        memory_bytes_max: usage::memory_bytes_max(),
        wall: began.elapsed(),
        cpu: usage::cpu_time(),
    };
    std::fs::write(&orders.measured, serde_json::to_vec(&measured).unwrap()).unwrap();
}

fn operate(orders: &Orders) {
    let store = Arc::new(FsStore::open(&orders.repo).unwrap());
    let repo = Arc::new(Repo::open(store, Some(&password())).unwrap());
    let history = History::read(&repo, &log()).unwrap();
    let memory_bytes = orders.memory_bytes;
    match orders.operation {
        Operation::Backup(generation) => {
            let mut server = FakeServer { size: orders.size, generation };
            let mut options = BackupOptions::new(ConnectOptions::default());
            options.memory_bytes = memory_bytes as usize;
            options.writer.pack_target_bytes = orders.pack_bytes;
            let report =
                backup::of_source(&repo, &log(), &mut server, &options, &Silent, &Cancel::default()).unwrap();
            assert_eq!(report.run.totals.pages, server.all_pages() + 1, "and the redo's");
            println!("{:?}", report.run.totals);
            for stage in &report.run.stages {
                println!("{} {} ms, {} bytes", stage.name, stage.busy_ms, stage.bytes);
            }
        }
        Operation::List => {
            for outcome in history.standing() {
                Head::decode(&history.head(&repo, outcome.run).unwrap()).unwrap();
            }
            let backup = Backup::open(&repo, &history, history.newest_backup().unwrap()).unwrap();
            let files =
                backup.items().filter(|item| item.as_ref().unwrap().path.as_bytes().ends_with(b".ibd"));
            assert_eq!(files.count() as u64, orders.size.files);
        }
        Operation::RestorePlan => {
            let options = RestoreOptions {
                prepare: false,
                memory_bytes,
                ..RestoreOptions::new(orders.repo.with_file_name("nowhere"))
            };
            let newest = history.newest_backup().unwrap();
            match restore::plan(&repo, &log(), newest, &options, &Cancel::default()) {
                Ok(plan) => assert_eq!(plan.files, orders.size.files),
                // The last check of the plan, after everything else in it is done.
                Err(error) => {
                    assert!(error.to_string().contains("free, and the restore needs"), "{error}")
                }
            }
        }
        Operation::Check | Operation::CheckData => {
            let read_data = (orders.operation == Operation::CheckData).then_some(1.0);
            let options =
                CheckOptions { read_data, memory_bytes: memory_bytes as usize, ..CheckOptions::default() };
            let report = check(&repo, &log(), options).unwrap();
            assert!(report.findings.is_empty(), "{:?}", report.findings);
            println!("{report:?}");
        }
        Operation::Copy => {
            let store = FsStore::create(orders.repo.with_file_name("copy")).unwrap();
            let to = Arc::new(Repo::init(Arc::new(store), &Protection::None).unwrap());
            let mut options = CopyOptions { memory_bytes: memory_bytes as usize, ..CopyOptions::default() };
            options.writer.pack_target_bytes = orders.pack_bytes;
            let mut copier = Copier::new(&repo, &history, &to, log().source, options).unwrap();
            for outcome in history.standing() {
                println!("{:?}", copier.copy(outcome.run).unwrap());
            }
        }
        Operation::Expire => {
            let newest = history.newest_backup();
            let dropped = history.standing().map(|outcome| outcome.run).filter(|run| Some(*run) != newest);
            let request = ExpireRequest::Exactly(dropped.collect::<Vec<RunNo>>());
            expire(&repo, &log(), &request, &RunOptions::of_this_process()).unwrap();
        }
        Operation::Prune => {
            let writing = WriterOptions {
                memory_bytes: memory_bytes as usize,
                pack_target_bytes: orders.pack_bytes,
                ..WriterOptions::default()
            };
            let mut rewriter = ChunkRewriter::open(&repo, &history, writing).unwrap();
            let options = PruneOptions { grace: Duration::ZERO, ..PruneOptions::default() };
            let run_options = RunOptions::of_this_process();
            let pruned = prune(&repo, &log(), &options, Some(&mut rewriter), &run_options).unwrap();
            assert!(!pruned.declared.rewrite.is_empty(), "{:?}", pruned.declared);
            println!("{} packs rewritten, {:?}", pruned.declared.rewrite.len(), pruned.swept);
        }
    }
}

/// A repository, and the parameters of operations on it.
struct World {
    dir: tempfile::TempDir,
    size: Size,
    memory_bytes: u64,
    pack_bytes: u64,
}

impl World {
    fn new(size: Size, memory_bytes: u64, pack_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = FsStore::create(dir.path().join("repo")).unwrap();
        let password = password();
        // Deriving a key takes memory, too.
        let protection = Protection::Password { password: &password, kdf: KdfParams::DEFAULT };
        Repo::init(Arc::new(store), &protection).unwrap();
        Self { dir, size, memory_bytes, pack_bytes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn measure(&self, operation: Operation) -> Measured {
        let orders = Orders {
            operation,
            size: self.size,
            repo: self.path("repo"),
            memory_bytes: self.memory_bytes,
            pack_bytes: self.pack_bytes,
            measured: self.path("measured"),
        };
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "scale::operation", "--ignored", "--nocapture"])
            .env(ORDERS, serde_json::to_string(&orders).unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{operation:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
        let measured: Measured = serde_json::from_slice(&std::fs::read(&orders.measured).unwrap()).unwrap();
        let pages = FakeServer { size: self.size, generation: 1 }.all_pages() as f64 / 1e6;
        println!(
            "{:<12} {:>5} MiB {:>8.1} s wall {:>8.1} s cpu {:>7.2} s cpu/million pages; {} in the repository",
            format!("{operation:?}"),
            measured.memory_bytes_max / MIB,
            measured.wall.as_secs_f64(),
            measured.cpu.as_secs_f64(),
            measured.cpu.as_secs_f64() / pages,
            size_of_dir(&orders.repo),
        );
        if std::env::var_os("HOLDFAST_SCALE_TELL").is_some() {
            println!("{said}");
        }
        measured
    }

    /// Measures a history with everything in it, operation by operation.
    fn measure_all(&self) -> Vec<(Operation, Measured)> {
        use Operation::{Backup, Check, CheckData, Copy, Expire, List, Prune, RestorePlan};
        let operations = [
            Backup(1),
            Backup(2),
            List,
            RestorePlan,
            Copy,
            Check,
            Expire,
            Prune,
            // On a base of which much has moved.
            Backup(3),
            RestorePlan,
            CheckData,
        ];
        operations.into_iter().map(|operation| (operation, self.measure(operation))).collect()
    }
}

fn size_of_dir(dir: &Path) -> String {
    let output = Command::new("du").arg("-sh").arg(dir).output().unwrap();
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().unwrap_or_default().to_owned()
}

/// Checks that any operation takes at most `--memory` and the fixed allowance, whatever the size.
fn assert_within(measured: &[(Operation, Measured)], memory_bytes: u64) {
    for (operation, measured) in measured {
        let held = measured.memory_bytes_max;
        let most = memory_bytes + BESIDE_BYTES;
        assert!(held <= most, "{operation:?} held {} MiB of {}", held / MIB, most / MIB);
    }
}

/// The size requested by the environment.
fn asked_for() -> Option<Size> {
    let asked = std::env::var(SCALE).ok()?;
    let (gib, files) = asked.split_once(',').unwrap_or_else(|| panic!("{SCALE} is GiB,files: {asked}"));
    Some(Size { bytes: gib.parse::<u64>().unwrap() * GIB, files: files.parse().unwrap() })
}

/// No operation takes more than `--memory` and 128 MiB, and none needs more for a larger server.
#[test]
fn memory_is_bounded() {
    if let Some(size) = asked_for() {
        let memory_bytes = 256 * MIB;
        assert_within(&World::new(size, memory_bytes, PACK_BYTES).measure_all(), memory_bytes);
        return;
    }
    let memory_bytes = RestoreOptions::MEMORY_BYTES_MIN;
    let measure = |size| World::new(size, memory_bytes, SMALL_PACK_BYTES).measure_all();
    let small = measure(Size { bytes: GIB / 2, files: 1_250 });
    let large = measure(Size { bytes: 4 * GIB, files: 10_000 });
    assert_within(&large, memory_bytes);
    for ((operation, small), (_, large)) in small.iter().zip(&large) {
        let grown = large.memory_bytes_max.saturating_sub(small.memory_bytes_max);
        assert!(grown <= GROWTH_BYTES, "{operation:?} holds {} MiB more for 8 times as much", grown / MIB);
    }
}
