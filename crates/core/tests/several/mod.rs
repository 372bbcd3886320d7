//! One backup into several repositories: whatever happens to one, the others get it, and
//! the server is read once.

use std::{
    hash::{DefaultHasher, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_core::{
    Cancel, ErrorKind, Listener, Result,
    backup::{self, BackupOptions, BackupReport},
    event::Silent,
    server::ConnectOptions,
    source::{Captured, FileId, FileSpec, Pages, Sink, Source},
};
use holdfast_repo::{
    Kind, LogName, Protection, Repo, RunNo,
    data::{reader::Backup, writer::WriterOptions},
    log::{
        history::History,
        run::{Run, RunOptions},
    },
    ops::{
        check::{CheckOptions, check},
        copy::{Copied, Copier, CopyOptions, Verdict},
    },
    store::{
        faulty::{Call, Fault, FaultyStore, Op},
        mem::{ManualClock, MemStore},
    },
};

use crate::scale::source::{FakeServer, Size};

mod rows;

fn log() -> LogName {
    LogName { source: "db1".parse().unwrap(), kind: Kind::Physical }
}

/// A repository, and another handle of it that can fail.
struct Place {
    store: MemStore,
    clock: ManualClock,
    repo: Arc<Repo>,
    log: LogName,
}

impl Place {
    fn new() -> Self {
        Self::of(log())
    }

    fn of(log: LogName) -> Self {
        let clock = ManualClock::default();
        let store = MemStore::with_clock(clock.clone());
        let repo = Arc::new(Repo::init(Arc::new(store.clone()), &Protection::None).unwrap());
        Self { store, clock, repo, log }
    }

    fn through(&self, decide: impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync + 'static) -> Arc<Repo> {
        let store = FaultyStore::new(Arc::new(self.store.clone()), decide);
        Arc::new(Repo::open(Arc::new(store), None).unwrap())
    }

    fn history(&self) -> History {
        History::read(&self.repo, &self.log).unwrap()
    }

    fn newest(&self) -> Backup {
        let history = self.history();
        Backup::open(&self.repo, &history, history.newest_backup().unwrap()).unwrap()
    }

    fn standing(&self) -> Vec<u64> {
        self.history().standing().map(|outcome| outcome.run.0).collect()
    }

    fn assert_whole(&self) {
        let options = CheckOptions { read_data: Some(1.0), ..CheckOptions::default() };
        let findings = check(&self.repo, &self.log, options).unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }

    /// Checks that its newest backup equals that of `other`, page by page.
    fn assert_same_as(&self, other: &Self) {
        let (one, two) = (self.newest(), other.newest());
        assert_eq!(one.item_count(), two.item_count());
        for (one_item, two_item) in one.items().zip(two.items()) {
            let (one_item, two_item) = (one_item.unwrap(), two_item.unwrap());
            assert_eq!((&one_item.path, one_item.size_bytes), (&two_item.path, two_item.size_bytes));
            let hash = |backup: &Backup, item| {
                let mut hasher = DefaultHasher::new();
                let each = &mut |bytes: &[u8]| {
                    hasher.write(bytes);
                    Ok::<_, holdfast_repo::RepoError>(())
                };
                backup.read_file(item, each).unwrap();
                hasher.finish()
            };
            assert_eq!(hash(&one, &one_item), hash(&two, &two_item), "{}", one_item.path);
        }
    }
}

/// Counts what is read from a server.
struct Counted {
    server: FakeServer,
    pages: AtomicU64,
}

struct CountingSink<'a>(&'a dyn Sink, &'a AtomicU64);

impl Source for Counted {
    fn capture(&mut self, sink: &dyn Sink, listener: &dyn Listener, cancel: &Cancel) -> Result<Captured> {
        self.server.capture(&CountingSink(sink, &self.pages), listener, cancel)
    }
}

impl Sink for CountingSink<'_> {
    fn file_begin(&self, spec: FileSpec) -> Result<FileId> {
        self.0.file_begin(spec)
    }
    fn pages(&self, file: FileId, pages: Pages<'_>) -> Result<()> {
        let count = pages.bytes.len() / pages.page_size.bytes();
        self.1.fetch_add(count as u64, Ordering::Relaxed);
        self.0.pages(file, pages)
    }
    fn file_end(&self, file: FileId, size_bytes: u64) -> Result<()> {
        self.0.file_end(file, size_bytes)
    }
    fn file_renamed(&self, file: FileId, path: &str) -> Result<()> {
        self.0.file_renamed(file, path)
    }
    fn file_gone(&self, file: FileId) -> Result<()> {
        self.0.file_gone(file)
    }
    fn directory(&self, path: &str, mode: u16) -> Result<()> {
        self.0.directory(path, mode)
    }
    fn directory_gone(&self, path: &str) -> Result<()> {
        self.0.directory_gone(path)
    }
    fn is_drained(&self) -> Result<bool> {
        self.0.is_drained()
    }
}

fn options() -> BackupOptions {
    let usual = BackupOptions::new(ConnectOptions::default());
    BackupOptions {
        memory_bytes: 80 << 20,
        writer: WriterOptions { pack_target_bytes: 8 << 10, ..usual.writer },
        run: RunOptions { renew_every: None, ..RunOptions::of_this_process() },
        ..usual
    }
}

/// Backs up the server in the state of `generation`.
fn back_up(repos: &[Arc<Repo>], generation: u64, options: &BackupOptions) -> Vec<Result<BackupReport>> {
    let server = FakeServer { size: Size { bytes: 96 << 20, files: 60 }, generation };
    let mut server = Counted { server, pages: AtomicU64::new(0) };
    let taken = backup::of_source_to(repos, &log(), &mut server, options, &Silent, &Cancel::default());
    if taken.iter().any(Result::is_ok) {
        let read = server.pages.into_inner();
        assert_eq!(read, server.server.all_pages() + 1, "each page once, and the redo's");
    }
    taken
}

fn plan(from: &Place, to: &Place) -> Vec<Verdict> {
    let history = from.history();
    let runs: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
    let mut copier = copier(from, &history, to);
    copier.plan(&runs).unwrap().into_iter().map(|(_, verdict)| verdict).collect()
}

fn copier<'a>(from: &'a Place, history: &'a History, to: &'a Place) -> Copier<'a> {
    Copier::new(&from.repo, history, &to.repo, from.log.source.clone(), CopyOptions::default()).unwrap()
}

/// Copies a missing backup, based on what both have of the previous one.
fn make_up(from: &Place, to: &Place, run: RunNo) {
    // A run that could not record its end is ignored once its lease has expired.
    to.clock.advance(Duration::from_secs(16 * 60));
    assert_eq!(plan(from, to).last(), Some(&Verdict::Copy));
    let history = from.history();
    let Copied::Now(copied) = copier(from, &history, to).copy(run).unwrap() else { panic!("it was there") };
    assert!(copied.compared_by_maps, "the one before is the same as the other's");
    println!("made up for: {:?}", copied.totals);
}

/// The number of failure scenarios.
const TROUBLES: usize = 7;

/// The repository of `place` in a failure scenario, the kind of error to expect, and a run that must be kept
/// alive: a full store, another active run, or a store that fails from some call on.
fn in_trouble(place: &Place, trouble: usize) -> (Arc<Repo>, ErrorKind, Option<Run>) {
    match trouble {
        0 => {
            place.store.set_capacity(Some(place.store.used_bytes() + 20_000));
            (Arc::clone(&place.repo), ErrorKind::Store, None)
        }
        1 => {
            let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
            let active = Run::begin(&place.repo, &place.log, &options).unwrap();
            (Arc::clone(&place.repo), ErrorKind::Active, Some(active))
        }
        // Fails from some call on: at the beginning, while data are sent, or when only the outcome is
        // missing.
        trouble => {
            let from = [0, 1, 10, 30, u64::MAX - 8][trouble - 2];
            let calls = AtomicU64::new(0);
            let fault = move |call: &Call<'_>| {
                let is_end = call.op == Op::Create && call.path.ends_with("outcomes/0000000002");
                (is_end || calls.fetch_add(1, Ordering::SeqCst) >= 8 + from).then_some(Fault::Error)
            };
            (place.through(fault), ErrorKind::Store, None)
        }
    }
}

/// Each repository has each backup, is complete in itself, and knows that both have the same.
#[test]
fn two_repositories_get_the_same_backup() {
    let (one, two) = (Place::new(), Place::new());
    let repos = [Arc::clone(&one.repo), Arc::clone(&two.repo)];
    for generation in [1, 2] {
        let taken = back_up(&repos, generation, &options());
        let [Ok(first), Ok(second)] = &taken[..] else { panic!("{taken:?}") };
        assert_eq!((first.run.backup, second.run.backup), (generation, generation));
        assert_eq!(first.run.totals.bytes_new, second.run.totals.bytes_new);
        assert!(generation == 1 || first.run.totals.bytes_new < first.run.totals.bytes / 2, "{first:?}");
        one.assert_same_as(&two);
    }
    one.assert_whole();
    two.assert_whole();
    assert_eq!(plan(&one, &two), [Verdict::IsThere(RunNo(1)), Verdict::IsThere(RunNo(2))]);
    assert_eq!(plan(&two, &one), [Verdict::IsThere(RunNo(1)), Verdict::IsThere(RunNo(2))]);
}

/// One store fails from some call on, is full, or has another active run: the other repository gets its
/// backup, a copy supplies the missing one, and the next backup goes to both.
#[test]
fn what_fails_in_one_repository_does_not_fail_in_the_other() {
    for trouble in 0..TROUBLES {
        let (good, bad) = (Place::new(), Place::new());
        let first = [Arc::clone(&bad.repo), Arc::clone(&good.repo)];
        assert!(back_up(&first, 1, &options()).iter().all(Result::is_ok));
        let (repo, kind, active) = in_trouble(&bad, trouble);
        let taken = back_up(&[repo, Arc::clone(&good.repo)], 2, &options());
        let [Err(error), Ok(_)] = &taken[..] else { panic!("{trouble}: {taken:?}") };
        assert_eq!(error.kind(), kind, "{trouble}: {error}");
        assert_eq!((bad.standing(), good.standing()), (vec![1], vec![1, 2]), "{trouble}");
        bad.store.set_capacity(None);
        drop(active);
        make_up(&good, &bad, RunNo(2));
        bad.assert_same_as(&good);
        let next = back_up(&[Arc::clone(&bad.repo), Arc::clone(&good.repo)], 3, &options());
        assert!(next.iter().all(|taken| taken.as_ref().unwrap().run.totals.bytes_new == 0), "{next:?}");
        bad.assert_whole();
        good.assert_whole();
    }
}

/// A store that finishes no pack until the other repository has the backup: a program that waits for the
/// wrong one never ends.
fn hangs_until_there(other: Arc<Repo>, log: LogName) -> impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync {
    move |call| {
        while call.op == Op::Finish
            && call.path.contains("/packs/")
            && History::read(&other, &log).unwrap().newest_backup().is_none()
        {
            sleep(Duration::from_millis(20));
        }
        None
    }
}

/// A store that does not respond holds up the other for no longer than allowed.
#[test]
fn a_repository_that_hangs_is_given_up() {
    let (good, bad) = (Place::new(), Place::new());
    let waits_for = Arc::clone(&good.repo);
    let hanging = bad.through(hangs_until_there(waits_for, log()));
    let options = BackupOptions { hold_up_max: Duration::from_secs(1), ..options() };
    let began = Instant::now();
    let taken = back_up(&[hanging, Arc::clone(&good.repo)], 1, &options);
    let [Err(error), Ok(_)] = &taken[..] else { panic!("{taken:?}") };
    assert!(error.to_string().contains("given up"), "{error}");
    assert!(began.elapsed() > options.hold_up_max);
    assert_eq!((bad.standing(), good.standing()), (vec![], vec![1]));
    good.assert_whole();
    // What it had accepted until then is adopted.
    let next = back_up(&[Arc::clone(&bad.repo)], 1, &options);
    assert!(next[0].as_ref().unwrap().run.totals.bytes_adopted > 0, "{next:?}");
}

/// A source may hold locks while it delivers pages. Therefore even the only repository is given up if its
/// store does not respond, and the source learns that while the store still hangs.
#[test]
fn the_only_repository_is_given_up_when_its_store_hangs() {
    /// Lets the store continue when the source has been informed.
    struct Heard<'a>(&'a mut dyn Source, Arc<AtomicBool>);

    impl Source for Heard<'_> {
        fn capture(&mut self, sink: &dyn Sink, listener: &dyn Listener, cancel: &Cancel) -> Result<Captured> {
            let captured = self.0.capture(sink, listener, cancel);
            self.1.store(true, Ordering::SeqCst);
            captured
        }
    }

    let place = Place::new();
    let heard = Arc::new(AtomicBool::new(false));
    let hangs = Arc::clone(&heard);
    let repo = place.through(move |call| {
        while call.op == Op::Write && call.path.contains("/packs/") && !hangs.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(20));
        }
        None
    });
    let options = BackupOptions { silence_max: Duration::from_secs(1), ..options() };
    let mut server = FakeServer { size: Size { bytes: 1 << 30, files: 60 }, generation: 1 };
    let mut source = Heard(&mut server, heard);
    let mut taken = backup::of_source_to(&[repo], &log(), &mut source, &options, &Silent, &Cancel::default());
    let error = taken.remove(0).unwrap_err();
    assert!(error.to_string().contains("its store accepted no data for 1 s"), "{error}");
    assert_eq!((error.kind(), place.standing()), (ErrorKind::Store, vec![]));
    assert!(back_up(&[Arc::clone(&place.repo)], 1, &options)[0].is_ok());
}

/// If no repository gets it, the backup has failed, with a reason for each.
#[test]
fn a_backup_that_no_repository_gets_has_failed() {
    let places = [Place::new(), Place::new()];
    let down = |place: &Place| {
        place.through(|call| (call.op == Op::Finish && call.path.contains("/packs/")).then_some(Fault::Error))
    };
    let taken = back_up(&[down(&places[0]), down(&places[1])], 1, &options());
    assert!(taken.iter().all(|taken| taken.as_ref().unwrap_err().kind() == ErrorKind::Store), "{taken:?}");
    let taken = back_up(&[Arc::clone(&places[0].repo), Arc::clone(&places[1].repo)], 1, &options());
    assert!(taken.iter().all(Result::is_ok), "{taken:?}");
}
