//! An operation in its own process, which is interrupted at a named point: this test binary, run again.
//!
//! Named points are those of the operation (`holdfast_core::points`), and one for each call that changes the
//! store: `store.create outcomes`, `store.finish packs`, `store.delete refs`.
//! The latter are passed just before the call.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child as Process, Command, ExitStatus},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_core::{
    Cancel, Error, ErrorKind, Event, Listener,
    backup::{self, BackupOptions},
    points::{point, set_hook},
    restore::{self, RestoreOptions},
    server::{ConnectOptions, LockPolicy},
};
use holdfast_repo::{
    Repo, RunNo,
    hooks::Hooks,
    store::{
        faulty::{Call, FaultyStore},
        fs::FsStore,
    },
};
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use super::{
    super::{log, password},
    prune::prune_everything,
};
use crate::{freeze::freeze_here, server::backup_options};

const ORDERS: &str = "HOLDFAST_TEST_ORDERS";
/// No step of a small backup takes this long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(600);

/// If a connection goes silent, the test does not wait for ten minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Locations, for a process that shares nothing but the disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) repo: PathBuf,
    pub(super) spool: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) redo_spool_max_bytes: u64,
    pub(super) lock_max: Duration,
}

impl Place {
    fn backup_options(&self) -> BackupOptions {
        let connect = ConnectOptions {
            socket: Some(self.socket.clone()),
            user: Some("root".to_owned()),
            answer_timeout: Some(ANSWER_TIMEOUT),
            run: format!("child-{}", std::process::id()),
            ..ConnectOptions::default()
        };
        let usual = backup_options(connect);
        BackupOptions {
            locks: LockPolicy { held_max: self.lock_max, tries: 10, ..usual.locks },
            name: Some(log().source),
            spool_dir: Some(self.spool.clone()),
            redo_spool_max_bytes: self.redo_spool_max_bytes,
            ..usual
        }
    }
}

/// The operation to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Work {
    BackUp,
    Prune,
    Restore { backup: u64, target: PathBuf, server: PathBuf },
}

/// The interruption of the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Deed {
    /// SIGKILL.
    Kill,
    /// SIGKILL after this delay.
    KillAfter(Duration),
    /// SIGSTOP.
    Freeze,
    /// The thread that passes the point creates this file and waits while it exists; other threads continue.
    Hold(PathBuf),
}

/// When and how to interrupt the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Trap {
    pub(super) point: String,
    /// Which passing of the point, counted from 1.
    pub(super) nth: u64,
    pub(super) deed: Deed,
}

#[derive(Serialize, Deserialize)]
struct Orders {
    place: Place,
    work: Work,
    traps: Vec<Trap>,
    /// Receives the name of each point that is passed.
    record: PathBuf,
}

/// Not a test by itself: does what it is told to.
#[test]
#[ignore = "a process for the tests of this module"]
fn operation() {
    let orders: Orders = serde_json::from_str(&std::env::var(ORDERS).unwrap()).unwrap();
    let record = Mutex::new(File::create(&orders.record).unwrap());
    let traps: Vec<_> = orders.traps.into_iter().map(|trap| (trap, AtomicU64::new(0))).collect();
    set_hook(move |name| {
        writeln!(record.lock().unwrap(), "{name}").unwrap();
        for (trap, passings) in &traps {
            if trap.point == name && passings.fetch_add(1, Ordering::SeqCst) + 1 == trap.nth {
                meet(&trap.deed);
            }
        }
    });
    let store = FaultyStore::new(Arc::new(FsStore::open(&orders.place.repo).unwrap()), |call| {
        if call.op.changes() {
            point(&name_of(call));
        }
        None
    });
    let repo = Arc::new(Repo::open(Arc::new(store), Some(&password())).unwrap());
    work(&orders.place, &orders.work, &repo);
}

fn name_of(call: &Call<'_>) -> String {
    let folder = call.path.split('/').nth(3).unwrap_or(call.path);
    format!("store.{} {folder}", format!("{:?}", call.op).to_lowercase())
}

fn meet(deed: &Deed) {
    match deed {
        Deed::Kill => {
            kill_process(getpid(), Signal::KILL).unwrap();
            sleep(PATIENCE);
        }
        Deed::KillAfter(delay) => {
            let delay = *delay;
            std::thread::spawn(move || {
                sleep(delay);
                kill_process(getpid(), Signal::KILL).unwrap();
            });
        }
        Deed::Freeze => freeze_here(),
        Deed::Hold(file) => {
            File::create(file).unwrap();
            while file.exists() {
                sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Prints only errors.
struct Quiet;

impl Listener for Quiet {
    fn event(&self, event: Event) {
        if let Event::Warning { text } = event {
            println!("warning: {text}");
        }
    }
}

fn work(place: &Place, work: &Work, repo: &Arc<Repo>) {
    match work {
        Work::BackUp => {
            let report = backup::run(repo, &place.backup_options(), &Quiet, &Cancel::default())
                .unwrap_or_else(failed_operation);
            println!("backup {}", report.run.backup);
        }
        Work::Prune => {
            prune_everything(repo, Hooks::new(point)).unwrap_or_else(failed);
        }
        Work::Restore { backup, target, server } => {
            let options =
                RestoreOptions { server_binary: Some(server.clone()), ..RestoreOptions::new(target.clone()) };
            restore::run(repo, &log(), RunNo(*backup), &options, &Quiet, &Cancel::default())
                .unwrap_or_else(failed_operation);
        }
    }
}

fn failed_operation<T>(error: Error) -> T {
    println!("kind: {:?}", error.kind());
    println!("hint: {}", error.hint().unwrap_or_default());
    failed(error)
}

fn failed<T>(error: impl std::error::Error) -> T {
    println!("error: {error}");
    std::process::exit(1);
}

/// The result of a process.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Its output.
    pub(super) output: String,
    /// The points it passed, in order.
    pub(super) points: Vec<String>,
}

impl Ended {
    /// Checks that it succeeded.
    pub(super) fn succeeded(self) -> Self {
        assert!(self.status.success(), "{}: {}", self.status, self.output);
        self
    }

    /// Checks that it ended with an error of its own; returns the error.
    pub(super) fn error(&self) -> &str {
        assert_eq!(self.status.code(), Some(1), "{}: {}", self.status, self.output);
        self.line("error: ")
    }

    /// Checks an operation's failure: its `kind`, all of `words` in its message, and `hint` in its hint.
    pub(super) fn assert_said(&self, kind: ErrorKind, words: &[&str], hint: &str) {
        let error = self.error();
        println!("it said: {error} (hint: {})", self.line("hint: "));
        assert_eq!(self.line("kind: "), format!("{kind:?}"), "{error}");
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(self.line("hint: ").contains(hint), "{error}: {}", self.line("hint: "));
    }

    fn line(&self, begin: &str) -> &str {
        let line = self.output.lines().find_map(|line| line.strip_prefix(begin));
        line.unwrap_or_else(|| panic!("no line {begin}: {}", self.output))
    }
}

/// A running operation.
pub(super) struct Child {
    process: Process,
    dir: tempfile::TempDir,
}

impl Child {
    pub(super) fn start(place: &Place, work: Work, traps: impl IntoIterator<Item = Trap>) -> Child {
        let dir = tempfile::tempdir().unwrap();
        let (traps, record) = (traps.into_iter().collect(), dir.path().join("points"));
        let orders = Orders { place: place.clone(), work, traps, record };
        let output = File::create(dir.path().join("output")).unwrap();
        // It must not outlive a test that is itself killed.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "SIGKILL", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "physical::faults::child::operation", "--ignored", "--nocapture"])
            .env(ORDERS, serde_json::to_string(&orders).unwrap())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Child { process, dir }
    }

    /// Waits for it to end by itself.
    pub(super) fn ended(mut self) -> Ended {
        let status = self.until("it to end", |child| child.process.try_wait().unwrap());
        let read = |name| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        Ended { status, output: read("output"), points: read("points").lines().map(str::to_owned).collect() }
    }

    /// Waits until its trap has killed it.
    pub(super) fn killed(self) -> Ended {
        let ended = self.ended();
        let signal = ended.status.signal();
        assert_eq!(signal, Some(Signal::KILL.as_raw()), "its point was not passed: {}", ended.output);
        ended
    }

    /// Waits until it is frozen.
    pub(super) fn frozen(&mut self) {
        self.until("it to freeze", |child| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.process.id())).ok()?;
            stat.rsplit_once(") ").unwrap().1.starts_with('T').then_some(())
        });
    }

    /// Waits until one of its threads has created `file` and is held.
    pub(super) fn held(&mut self, file: &Path) {
        self.until("it to be held", |_| file.exists().then_some(()));
    }

    /// Like [`Child::held`], unless it ends earlier.
    pub(super) fn held_or_ended(&mut self, file: &Path) {
        while !file.exists() && self.process.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(5));
        }
    }

    /// Lets it continue.
    pub(super) fn thaw(&self) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        kill_process(pid, Signal::CONT).unwrap();
    }

    fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            // Looked at before: it may end between the two.
            let ended = self.process.try_wait().unwrap();
            if let Some(value) = done(self) {
                return value;
            }
            let output = || fs::read_to_string(self.dir.path().join("output")).unwrap_or_default();
            assert!(ended.is_none(), "waiting for {what}: {ended:?}: {}", output());
            assert!(begin.elapsed() < PATIENCE, "waiting for {what}: {}", output());
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
