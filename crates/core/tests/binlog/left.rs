//! What archivers that died have left in segments: filed later by somebody who can read it; read as far as it can be
//! read if a part of it is damaged.

use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_core::{
    binlog::{close, file_segments},
    recovery::{self, Until},
};
use holdfast_repo::{
    Kind, LogName, RunNo,
    data::writer::WriterOptions,
    keys::{NewSlot, Role},
    log::{history::History, run::RunOptions, segment::list_segments},
    ops::{
        check::{CheckOptions, check},
        copy::{Copier, CopyOptions},
        keys::{NewKey, add},
        repair::repair,
    },
    store::{
        ObjectPath, Store,
        faulty::{Fault, FaultyStore},
        read_all,
    },
};

use super::*;

fn log() -> LogName {
    LogName { source: source(), kind: Kind::Binlog }
}

/// Opens the stage's repository with a password. While the flag is set, no run can become a backup.
fn repo_of_the_dying(stage: &Stage, password: &str) -> (Arc<Repo>, Arc<AtomicBool>) {
    let is_dying = Arc::new(AtomicBool::new(false));
    let store: Arc<dyn Store> = Arc::new(FaultyStore::new(Arc::clone(stage.repo.store()), {
        let is_dying = Arc::clone(&is_dying);
        move |call| {
            let ends = call.op.changes() && call.path.contains("/refs/");
            (ends && is_dying.load(Ordering::Acquire)).then_some(Fault::Error)
        }
    }));
    let password = Password::new(password.to_owned()).unwrap();
    (Arc::new(Repo::open(store, Some(&password)).unwrap()), is_dying)
}

/// Archives some commits, in more than one file, in a run that ends as a backup or dies.
fn archived(stage: &Stage, repo: &Arc<Repo>, is_dying: &AtomicBool, dies: bool) {
    let options = ArchiveOptions { segment_age: Duration::from_millis(100), ..stage.options() };
    let mut archiver = Archiver::start(repo, options);
    for _ in 0..3 {
        let counter = Counter::start(&stage.server);
        sleep(Duration::from_millis(300));
        counter.stop();
        stage.server.exec("DELETE FROM c.t").unwrap();
        stage.server.exec("FLUSH BINARY LOGS").unwrap();
        wait_archived_by(stage, &mut archiver);
    }
    is_dying.store(dies, Ordering::Release);
    archiver.cancel.cancel();
    let ended = archiver.thread.take().unwrap().join().unwrap();
    assert_eq!(ended.is_err(), dies, "{ended:?}");
    is_dying.store(false, Ordering::Release);
}

#[track_caller]
fn is_whole(archive: &Archive, server: &Server) {
    assert!(compare_files(archive, server) > 3);
    assert_eq!(archive.chains().unwrap().len(), 1, "{:#?}", archive.stretches());
    assert!(archive.unreadable().is_empty(), "{:?}", archive.unreadable());
}

/// An archiver that cannot read continues after what others have left in segments, which thus come before what is
/// in packs already. Whoever can read files them: the archive remains the same, also in a copy.
#[test]
fn segments_of_writers_are_filed() {
    let stage = Stage::new(ServerKind::MySql97);
    let password = Password::new("writer".to_owned()).unwrap();
    let key = NewKey { role: Role::Writer, sources: Vec::new(), label: String::new() };
    add(&stage.repo, &key, NewSlot::Password { password: &password, kdf: KdfParams::MINIMUM }).unwrap();
    let (writer, is_dying) = repo_of_the_dying(&stage, "writer");
    for dies in [true, true, false, true, false, true] {
        archived(&stage, &writer, &is_dying, dies);
    }
    is_whole(&stage.archive(), &stage.server);
    let dead: Vec<RunNo> = list_segments(&stage.repo, &log()).unwrap().into_keys().collect();
    assert_eq!(dead.len(), 4, "{dead:?}");
    let options = RunOptions::of_this_process();
    let file = |repo| file_segments(repo, &log(), &options, WriterOptions::default());
    assert_eq!(file(&writer).unwrap_err().kind(), holdfast_core::ErrorKind::Key);
    // One more is at work; it makes room, and goes on afterwards.
    let mut archiver = Archiver::start(&writer, stage.options());
    wait_archived_by(&stage, &mut archiver);
    let filed = file(&stage.repo).unwrap();
    // The archive had not continued after the last of them yet.
    let (last, before_last) = dead.split_last().unwrap();
    assert!(filed.runs == before_last && filed.unreadable.is_empty() && filed.bytes > 0, "{filed:?}");
    stage.server.exec("CREATE DATABASE later").unwrap();
    wait_archived_by(&stage, &mut archiver);
    let there = || list_segments(&stage.repo, &log()).unwrap().into_keys().filter(|run| dead.contains(run));
    assert_eq!(there().collect::<Vec<_>>(), [*last]);
    is_whole(&stage.archive(), &stage.server);
    archiver.stop();
    is_whole(&stage.archive(), &stage.server);
    assert_eq!(file(&stage.repo).unwrap().runs, [*last]);
    assert_eq!(there().count(), 0);
    is_whole(&stage.archive(), &stage.server);
    assert!(file(&stage.repo).unwrap().into.is_none(), "nothing is left");

    let (_dir, other) = new_repo();
    let history = History::read(&stage.repo, &log()).unwrap();
    let mut copier = Copier::new(&stage.repo, &history, &other, source(), CopyOptions::default()).unwrap();
    let runs: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
    for run in runs {
        copier.copy(run).unwrap();
    }
    is_whole(&Archive::open(&other, &source()).unwrap(), &stage.server);
    let filings = |history: &History| history.standing().filter(|outcome| outcome.is_filing()).count();
    assert_eq!(filings(&History::read(&other, &log()).unwrap()), 2);
}

/// The server is gone, and so is its archiver: what it has left goes into packs, and into copies. If the server comes
/// back nevertheless, the archive continues.
#[test]
fn an_archive_is_closed_without_its_server() {
    let stage = Stage::new(ServerKind::MySql97);
    let password = Password::new("writer".to_owned()).unwrap();
    let key = NewKey { role: Role::Writer, sources: Vec::new(), label: String::new() };
    add(&stage.repo, &key, NewSlot::Password { password: &password, kdf: KdfParams::MINIMUM }).unwrap();
    let (writer, is_dying) = repo_of_the_dying(&stage, "writer");
    let close = |repo| close(repo, &log(), &RunOptions::of_this_process(), &WriterOptions::default());
    assert!(close(&stage.repo).unwrap().until.is_none());
    for dies in [false, true, true] {
        archived(&stage, &writer, &is_dying, dies);
    }
    let end = stage.archive().stretches().last().unwrap().ends_at();
    assert_eq!(close(&writer).unwrap_err().kind(), holdfast_core::ErrorKind::Key);
    let closed = close(&stage.repo).unwrap();
    assert!(closed.into.is_some() && closed.bytes > 0 && closed.unreadable.is_empty(), "{closed:?}");
    assert_eq!(closed.until, Some(end));
    assert!(list_segments(&stage.repo, &log()).unwrap().is_empty());
    is_whole(&stage.archive(), &stage.server);
    let again = close(&stage.repo).unwrap();
    assert!(again.into.is_none() && again.until == closed.until, "{again:?}");

    let mut archiver = Archiver::start(&writer, stage.options());
    wait_archived_by(&stage, &mut archiver);
    archiver.stop();
    is_whole(&stage.archive(), &stage.server);

    archived(&stage, &writer, &is_dying, true);
    let (dead, parts) = list_segments(&stage.repo, &log()).unwrap().pop_first().unwrap();
    let path = damage(&stage, dead, parts[parts.len() / 2]);
    let closed = close(&stage.repo).unwrap();
    assert!(matches!(&closed.unreadable[..], [it] if it.contains(path.as_str())), "{closed:?}");
}

fn damage(stage: &Stage, run: RunNo, part: u32) -> ObjectPath {
    let path = log().segment(run, part);
    let mut bytes = read_all(&**stage.repo.store(), &path, 1 << 30).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    stage.repo.store().delete(std::slice::from_ref(&path)).unwrap();
    stage.repo.store().create_if_absent(&path, &bytes).unwrap();
    path
}

/// One damaged object makes unreadable what its own run had after it, and no more. The next archiver fetches that
/// from the server again.
#[test]
fn damage_in_segments_costs_no_more_than_their_run() {
    let stage = Stage::new(ServerKind::MySql97);
    let (repo, is_dying) = repo_of_the_dying(&stage, "a password");
    archived(&stage, &repo, &is_dying, false);
    archived(&stage, &repo, &is_dying, true);
    let (dead, parts) = list_segments(&repo, &log()).unwrap().pop_first().unwrap();
    let whole = stage.archive().stretches().last().unwrap().ends_at();
    let path = damage(&stage, dead, parts[parts.len() / 2]);

    let damaged = stage.archive();
    let [unreadable] = damaged.unreadable() else { panic!("{:?}", damaged.unreadable()) };
    assert!(unreadable.run == dead.0 && unreadable.problem.contains(path.as_str()), "{unreadable:?}");
    let end = damaged.stretches().last().unwrap().ends_at();
    assert!((&end.file, end.position) < (&whole.file, whole.position), "{end} {whole}");
    // The end that cannot be read is not passed over in silence.
    let latest = || recovery::choose(&stage.repo, &source(), None, Until::End).err().unwrap().to_string();
    assert!(latest().contains(path.as_str()), "{}", latest());
    let mut events = 0;
    damaged
        .events(0..damaged.stretches().len(), &mut |_, _, _| {
            events += 1;
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    assert!(events > 100, "{events}");
    // Somebody without a key puts something where the next segments will be, and where later runs will be.
    let next = History::read(&repo, &log()).unwrap().next_run();
    for (run, part) in [(next, 1), (RunNo(next.0 + 1), 0), (RunNo(next.0 + 70), 0)] {
        stage.repo.store().create_if_absent(&log().segment(run, part), b"made up").unwrap();
    }
    archived(&stage, &repo, &is_dying, false);
    archived(&stage, &repo, &is_dying, false);
    let mended = stage.archive();
    compare_files(&mended, &stage.server);
    assert_eq!(mended.chains().unwrap().len(), 1, "{:#?}", mended.stretches());
    let found = check(&repo, &log(), CheckOptions::default()).unwrap().findings;
    assert!(found.iter().any(|it| it.object.contains(path.as_str())), "{found:?}");
}

/// What died before a run that cannot be read is not taken over without it: it would come after it. It stays where it
/// is, and is filed.
#[test]
fn what_died_before_a_damaged_run_keeps_its_place() {
    let stage = Stage::new(ServerKind::MySql97);
    let (repo, is_dying) = repo_of_the_dying(&stage, "a password");
    for dies in [false, true, true] {
        archived(&stage, &repo, &is_dying, dies);
    }
    let there = || list_segments(&stage.repo, &log()).unwrap();
    let (damaged, parts) = there().pop_last().unwrap();
    let (intact, _) = there().pop_first().unwrap();
    damage(&stage, damaged, parts[parts.len() / 2]);
    archived(&stage, &repo, &is_dying, false);
    assert_eq!(there().into_keys().collect::<Vec<_>>(), [intact, damaged]);
    let is_complete = || {
        let archive = stage.archive();
        assert!(compare_files(&archive, &stage.server) > 3);
        assert_eq!(archive.chains().unwrap().len(), 1, "{:#?}", archive.stretches());
    };
    is_complete();
    let options = RunOptions::of_this_process();
    let file = || file_segments(&stage.repo, &log(), &options, WriterOptions::default()).unwrap();
    let filed = file();
    assert!(filed.runs == [intact] && filed.unreadable.len() == 1, "{filed:?}");
    is_complete();
    // What is readable of the other is filed once the rest has been given up.
    repair(&repo, &log(), &CheckOptions::default(), &mut |_| true, &options).unwrap();
    assert!(check(&repo, &log(), CheckOptions::default()).unwrap().findings.is_empty());
    assert_eq!(file().runs, [damaged]);
    assert!(there().is_empty());
    is_complete();
}
