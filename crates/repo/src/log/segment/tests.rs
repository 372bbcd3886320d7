use std::{
    sync::{
        Barrier, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use holdfast_pipe::Suite;
use serde_json::json;

use super::*;
use crate::{
    format::{
        names::{Kind, LogName},
        place::ObjectKind,
        refs::BackupRefs,
    },
    keys::{KdfParams, NewSlot, Password, Protection, Role},
    log::run::{Ending, Run, RunOptions},
    ops::{
        check::{CheckOptions, check},
        keys::{NewKey, add},
        prune::{PruneOptions, sweep},
        repair::{plan_repair, repair},
    },
    repo::tests::new_repo_at,
    store::{
        Store,
        faulty::{FaultyStore, Op},
        mem::{ManualClock, MemStore},
    },
};

fn log() -> LogName {
    LogName { source: "db1".parse().unwrap(), kind: Kind::Binlog }
}

fn tail(number: usize) -> Map<String, Value> {
    json!({ "at": number }).as_object().unwrap().clone()
}

fn begin(repo: &Arc<Repo>) -> Run {
    Run::begin(repo, &log(), &RunOptions { renew_every: None, ..RunOptions::of_this_process() }).unwrap()
}

fn write(run: &Run, segments: &[&[u8]]) {
    let mut writer = run.segment_writer();
    for (number, bytes) in segments.iter().enumerate() {
        let sealed = writer.seal(tail(number), bytes).unwrap();
        writer.store(&sealed).unwrap();
        // Storing it again, as after a lost reply, does no harm.
        writer.store(&sealed).unwrap();
    }
}

fn read(repo: &Arc<Repo>, run: RunNo) -> Result<Vec<Vec<u8>>, RepoError> {
    let history = History::read(repo, &log())?;
    let mut reader = SegmentReader::new(repo, &history, run);
    let mut all = Vec::new();
    while let Some(segment) = reader.read_next()? {
        assert_eq!(segment.tail, tail(all.len()));
        all.push(segment.bytes.unwrap());
    }
    reader.check_end()?;
    Ok(all)
}

#[test]
fn what_is_too_large_is_named_with_its_own_limit() {
    let (_store, _repo, run) = world(Suite::None);
    let tail = json!({ "at": "x".repeat(PUBLIC_BYTES_MAX as usize) }).as_object().unwrap().clone();
    let error = run.segment_writer().seal(tail, b"small").unwrap_err();
    let RepoError::TooLarge { what, size_bytes, limit_bytes, .. } = error else { panic!("{error}") };
    assert!(what == "public part" && size_bytes > limit_bytes && limit_bytes == PUBLIC_BYTES_MAX);
}

/// One suite with a store that is near, the other with one far away, where segments are fetched ahead.
fn world(suite: Suite) -> (MemStore, Arc<Repo>, Run) {
    let at_once = if suite == Suite::None { 1 } else { 2 };
    let (store, repo) =
        new_repo_at(suite, &|store| Arc::new(FaultyStore::far_away(store, at_once, |_| None)));
    let repo = Arc::new(repo);
    let run = begin(&repo);
    write(&run, &[b"one", b"", b"three"]);
    (store, repo, run)
}

/// Stored segments can be read while the run is active, and after it has died.
#[test]
fn segments_come_back() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let (_, repo, run) = world(suite);
        let expected: [&[u8]; 3] = [b"one", b"", b"three"];
        assert_eq!(read(&repo, run.no()).unwrap(), expected);
        run.abandon("test").unwrap();
        let second = begin(&repo);
        write(&second, &[b"four"]);
        assert_eq!(read(&repo, RunNo(1)).unwrap(), expected);
        assert_eq!(read(&repo, RunNo(2)).unwrap(), [b"four"]);
    }
}

/// A segment that is missing, replaced by another or by that of another run,
/// cut or flipped is found and named.
#[test]
fn tampering_is_found() {
    let bytes_of = |store: &MemStore, run: u64, part: u32| {
        read_all(store, &log().segment(RunNo(run), part), 1 << 20).unwrap()
    };
    let replace = |store: &MemStore, part: u32, bytes: Option<&[u8]>| {
        let path = log().segment(RunNo(1), part);
        store.delete(std::slice::from_ref(&path)).unwrap();
        if let Some(bytes) = bytes {
            store.create_if_absent(&path, bytes).unwrap();
        }
    };
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        for part in 0..2 {
            let (store, repo, _run) = world(suite);
            replace(&store, part, None);
            let error = read(&repo, RunNo(1)).unwrap_err();
            assert!(error.to_string().contains("segments/0000000001-"), "{error}");
        }
        let (store, repo, run) = world(suite);
        let good = bytes_of(&store, 1, 1);
        for byte in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[byte] ^= 4;
            replace(&store, 1, Some(&bad));
            assert!(read(&repo, RunNo(1)).is_err(), "{byte}");
            replace(&store, 1, Some(&good[..byte]));
            assert!(read(&repo, RunNo(1)).is_err(), "cut at {byte}");
        }
        // Its own neighbor, and its counterpart of a later run.
        replace(&store, 1, Some(&bytes_of(&store, 1, 2)));
        assert!(read(&repo, RunNo(1)).is_err());
        replace(&store, 1, Some(&good));
        assert!(read(&repo, RunNo(1)).is_ok());
        run.abandon("test").unwrap();
        write(&begin(&repo), &[b"one", b"", b"three"]);
        replace(&store, 1, Some(&bytes_of(&store, 2, 1)));
        assert!(read(&repo, RunNo(1)).is_err());
    }
}

/// A run may store segments while it is read: those stored between the last look for the next one
/// and the listing are not missing.
#[test]
fn a_run_is_faster_than_its_reader() {
    type Hook = Box<dyn FnOnce() + Send>;
    let hook: Arc<Mutex<Option<Hook>>> = Arc::default();
    let at_list = Arc::clone(&hook);
    let store = FaultyStore::new(Arc::new(MemStore::new()), move |call| {
        if call.op == Op::List && call.path.contains("segments") {
            let hook = at_list.lock().unwrap().take();
            hook.into_iter().for_each(|hook| hook());
        }
        None
    });
    let repo = Arc::new(Repo::init(Arc::new(store), &Protection::None).unwrap());
    let run = begin(&repo);
    let mut writer = run.segment_writer();
    let mut store = move |number: usize| {
        let sealed = writer.seal(tail(number), b"bytes").unwrap();
        writer.store(&sealed).unwrap();
    };
    store(0);
    *hook.lock().unwrap() = Some(Box::new(move || (1..4).for_each(store)));
    assert_eq!(read(&repo, run.no()).unwrap().len(), 1);
    assert_eq!(read(&repo, run.no()).unwrap().len(), 4);
}

/// In a far store, segments are fetched together, and those that come later one by one.
#[test]
fn many_are_fetched_at_once() {
    const AT_ONCE: usize = 8;
    // No reader passes it alone.
    let barrier = Barrier::new(AT_ONCE);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let store = FaultyStore::far_away(Arc::new(MemStore::new()), AT_ONCE, move |call| {
        if call.op == Op::Read
            && call.path.contains("segments")
            && counted.fetch_add(1, Ordering::SeqCst) < 2 * AT_ONCE
        {
            barrier.wait();
        }
        None
    });
    let repo = Arc::new(Repo::init(Arc::new(store), &Protection::None).unwrap());
    let run = begin(&repo);
    let mut writer = run.segment_writer();
    let mut store = |number: usize| {
        let sealed = writer.seal(tail(number), &[number as u8; 100]).unwrap();
        writer.store(&sealed).unwrap();
    };
    (0..2 * AT_ONCE).for_each(&mut store);
    let history = History::read(&repo, &log()).unwrap();
    let mut reader = SegmentReader::new(&repo, &history, run.no());
    let mut next = || reader.read_next().unwrap().map(|segment| segment.bytes.unwrap()[0]);
    assert!((0..2 * AT_ONCE).all(|number| next() == Some(number as u8)));
    assert_eq!(next(), None);
    store(2 * AT_ONCE);
    assert_eq!((next(), next()), (Some(2 * AT_ONCE as u8), None));
    assert_eq!(calls.load(Ordering::SeqCst), 2 * AT_ONCE + 1);
}

/// A check names what is wrong with segments that are needed.
#[test]
fn check_reads_segments() {
    let (store, repo, _run) = world(Suite::X25519Aes256Gcm);
    let findings = || check(&repo, &log(), CheckOptions::default()).unwrap().findings;
    assert!(findings().is_empty(), "{:?}", findings());
    store.delete(&[log().segment(RunNo(1), 1)]).unwrap();
    let found = findings();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].object.contains("segments/0000000001-000001"), "{found:?}");
}

/// A repair gives up segments of a run that has ended, from the first that cannot be read.
#[test]
fn repair_gives_up_what_cannot_be_read() {
    let (store, repo, run) = world(Suite::X25519Aes256Gcm);
    let repaired = || {
        let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
        repair(&repo, &log(), &CheckOptions::default(), &mut |_| true, &options).unwrap().discarded.len()
    };
    let there = || list_segments(&repo, &log()).unwrap().remove(&RunNo(1)).unwrap_or_default();
    let path = log().segment(RunNo(1), 1);
    store.delete(std::slice::from_ref(&path)).unwrap();
    store.create_if_absent(&path, b"damaged").unwrap();
    let planned = plan_repair(&repo, &log(), &CheckOptions::default(), repo.now().unwrap()).unwrap();
    assert!(planned.is_empty(), "its run goes on: {planned:?}");
    run.abandon("test").unwrap();
    assert_eq!((repaired(), there()), (2, vec![0]));
    assert_eq!(read(&repo, RunNo(1)).unwrap(), [b"one"]);
    assert!(check(&repo, &log(), CheckOptions::default()).unwrap().findings.is_empty());
}

/// Two processes that act as the same run cannot both store.
#[test]
fn another_segment_of_the_same_number_is_refused() {
    let (_, repo, run) = world(Suite::X25519Aes256Gcm);
    let mut other = run.segment_writer();
    let sealed = other.seal(tail(0), b"other").unwrap();
    assert!(other.store(&sealed).unwrap_err().is_exists());
    drop(repo);
}

/// Segments are deleted once an outcome vouches for their bytes, and not before.
#[test]
fn sweeping() {
    let (_, repo, run) = world(Suite::X25519Aes256Gcm);
    let parts = |run: u64| {
        sweep(&repo, &History::read(&repo, &log()).unwrap(), &PruneOptions::default()).unwrap();
        list_segments(&repo, &log()).unwrap().get(&RunNo(run)).map_or(0, Vec::len)
    };
    assert_eq!(parts(1), 3);
    run.abandon("test").unwrap();
    assert_eq!(parts(1), 3);
    let end = |taken: Vec<RunNo>| {
        let mut run = begin(&repo);
        write(&run, &[b"x"]);
        let refs = run.write_backup_refs(&BackupRefs::default()).unwrap();
        let (head, tail, parts) = (b"{}".to_vec(), tail(7), Default::default());
        let outcome = run.finish(Ending::Archive { head, refs, parts, tail: tail.clone(), taken }).unwrap();
        assert_eq!(outcome.tail, Some(tail));
    };
    end(Vec::new());
    assert_eq!((parts(1), parts(2)), (3, 0));
    end(vec![RunNo(1)]);
    assert_eq!((parts(1), parts(3)), (0, 0));
    let place = Place { log: &log(), kind: ObjectKind::SegmentBytes, run: RunNo(1), part: 0 };
    assert!(repo.read_object(&place, 1).unwrap_err().is_not_found());
}

/// What is filed of an older run does not continue the archive: a spool may still have what comes next.
#[test]
fn filing_continues_nothing() {
    let (_, repo, first) = world(Suite::X25519Aes256Gcm);
    first.abandon("test").unwrap();
    let end = |mut run: Run, taken: Vec<RunNo>| {
        let refs = run.write_backup_refs(&BackupRefs::default()).unwrap();
        let (head, parts) = (b"{}".to_vec(), Default::default());
        run.finish(Ending::Archive { head, refs, parts, tail: tail(0), taken }).unwrap();
    };
    end(begin(&repo), Vec::new());
    begin(&repo).abandon("it has left something in a spool").unwrap();
    let history = || History::read(&repo, &log()).unwrap();
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    end(Run::begin_filing(&repo, &history(), &options).unwrap(), vec![RunNo(1)]);
    assert!(is_superseded(&history(), RunNo(1)));
    assert!(is_followed(&repo, &history(), RunNo(1)).unwrap());
    assert!(!is_followed(&repo, &history(), RunNo(3)).unwrap());
}

/// A key that cannot read what a run has archived has not taken it over, and nobody has taken over what is
/// still to come: no segment is deleted on such a claim.
#[test]
fn segments_do_not_go_by_the_word_of_who_cannot_have_them() {
    let (store, repo, first) = world(Suite::X25519Aes256Gcm);
    first.abandon("test").unwrap();
    let password = Password::new("writer".to_owned()).unwrap();
    let new = NewKey { role: Role::Writer, sources: Vec::new(), label: String::new() };
    add(&repo, &new, NewSlot::Password { password: &password, kdf: KdfParams::MINIMUM }).unwrap();
    let writer = Arc::new(Repo::open(Arc::new(store), Some(&password)).unwrap());
    let parts = |run: u64| {
        sweep(&repo, &History::read(&repo, &log()).unwrap(), &PruneOptions::default()).unwrap();
        list_segments(&repo, &log()).unwrap().get(&RunNo(run)).map_or(0, Vec::len)
    };
    let end = |repo: &Arc<Repo>, taken: &[u64]| {
        let mut run = begin(repo);
        let refs = run.write_backup_refs(&BackupRefs::default()).unwrap();
        let taken = taken.iter().copied().map(RunNo).collect();
        let (head, parts) = (b"{}".to_vec(), Default::default());
        run.finish(Ending::Archive { head, refs, parts, tail: tail(0), taken }).unwrap();
    };
    end(&writer, &[1]);
    assert_eq!(parts(1), 3, "a writer's word");
    end(&repo, &[4]);
    let fourth = begin(&repo);
    write(&fourth, &[b"four"]);
    fourth.abandon("test").unwrap();
    assert_eq!(parts(4), 1, "an earlier word");
    assert_eq!(read(&repo, RunNo(1)).unwrap().len() + read(&repo, RunNo(4)).unwrap().len(), 4);
    end(&repo, &[1, 4]);
    assert_eq!((parts(1), parts(4)), (0, 0));
}

/// Whoever can write to the store and has no key can neither stop an archiver with objects in the way of its
/// segments, nor make it seem that the archive has continued.
#[test]
fn what_nobody_signed_is_no_segment() {
    let (store, repo, run) = world(Suite::X25519Aes256Gcm);
    let history = History::read(&repo, &log()).unwrap();
    let elsewhere = read_all(&store, &log().segment(RunNo(1), 2), 1 << 20).unwrap();
    for made_up in [&b""[..], b"made up", &elsewhere] {
        for path in [log().segment(RunNo(1), 3), log().segment(RunNo(7), 0)] {
            store.delete(std::slice::from_ref(&path)).unwrap();
            store.create_if_absent(&path, made_up).unwrap();
        }
        assert!(!is_followed(&repo, &history, RunNo(1)).unwrap());
        let mut writer = run.segment_writer();
        let sealed: Vec<_> = (0..4).map(|at| writer.seal(tail(at), &[at as u8; 9]).unwrap()).collect();
        writer.store(&sealed[3]).unwrap();
        assert!(read_all(&store, &log().segment(RunNo(1), 3), 1 << 20).unwrap() == sealed[3].object);
        // One that a key has signed stays.
        assert!(writer.store(&sealed[2]).unwrap_err().is_exists());
    }
    run.abandon("test").unwrap();
    write(&begin(&repo), &[b"two"]);
    assert!(is_followed(&repo, &history, RunNo(1)).unwrap());
}

/// A repository in which two runs have ended.
fn after_two_runs() -> (MemStore, ManualClock, Arc<Repo>) {
    let clock = ManualClock::default();
    let store = MemStore::with_clock(clock.clone());
    let repo = Arc::new(Repo::init(Arc::new(store.clone()), &Protection::None).unwrap());
    for _ in 0..2 {
        begin(&repo).abandon("test").unwrap();
    }
    (store, clock, repo)
}

/// An archiver has died, and the outcome before its run is lost: its segments continue an outcome that nothing else
/// names, and stay readable.
#[test]
fn a_repair_of_the_outcome_before_them_leaves_segments_readable() {
    for (is_gone, lost) in [(false, 2), (true, 2), (true, 1)] {
        let (store, clock, repo) = after_two_runs();
        let run = begin(&repo);
        write(&run, &[b"one", b"two"]);
        std::mem::forget(run);
        clock.advance(Duration::from_secs(3600));
        for run in lost..=2 {
            match is_gone {
                true => store.delete(&[log().outcome(RunNo(run))]).unwrap(),
                false => assert!(store.damage(&log().outcome(RunNo(run)), |bytes| bytes[300] ^= 1)),
            }
        }
        let (options, by) =
            (CheckOptions::default(), RunOptions { renew_every: None, ..RunOptions::of_this_process() });
        let shown = plan_repair(&repo, &log(), &options, jiff::Timestamp::now()).unwrap();
        let done = repair(&repo, &log(), &options, &mut |_| true, &by).unwrap();
        let names = (lost..=2).map(|run| log().outcome(RunNo(run)).to_string());
        let names: Vec<String> = names.collect();
        for plan in [shown, done] {
            let named: Vec<&String> = plan.outcomes.iter().map(|it| &it.object).collect();
            assert_eq!(named, names.iter().collect::<Vec<_>>());
            assert!(plan.left.is_empty(), "{:?}", plan.left);
        }
        assert_eq!(read(&repo, RunNo(3)).unwrap(), [b"one", b"two"], "gone: {is_gone}, from {lost}");
        let history = History::read(&repo, &log()).unwrap();
        assert!((lost..=2).all(|run| history.is_lost(RunNo(run))));
        let found = check(&repo, &log(), options).unwrap().findings;
        assert!(found.is_empty(), "{found:?}");
    }
}

/// The outcomes before an archiver's run and of it are lost: segments alone show that there was the one before.
#[test]
fn segments_stay_readable_when_the_outcome_of_their_run_is_lost_too() {
    let (store, clock, repo) = after_two_runs();
    let run = begin(&repo);
    write(&run, &[b"one"]);
    run.abandon("test").unwrap();
    clock.advance(Duration::from_secs(3600));
    store.delete(&[log().outcome(RunNo(2))]).unwrap();
    assert!(store.damage(&log().outcome(RunNo(3)), |bytes| bytes[300] ^= 1));
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    repair(&repo, &log(), &CheckOptions::default(), &mut |_| true, &options).unwrap();
    let history = History::read(&repo, &log()).unwrap();
    assert!(history.is_lost(RunNo(2)) && history.is_lost(RunNo(3)));
    assert_eq!(read(&repo, RunNo(3)).unwrap(), [b"one"]);
}
