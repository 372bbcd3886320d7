//! Keys, roles and trust, each with the repository that they guard.

use std::{
    sync::{Arc, Barrier, Mutex},
    thread,
    time::{Duration, SystemTime},
};

mod bucket_locks;
mod damage;
mod opening;
mod removal;
mod roles;
mod rotation;

use holdfast_pipe::Suite;

use super::*;
use crate::{
    error::{Damage, RepoError},
    format::{
        hash::ObjectHash,
        hex::{Hex, to_hex},
        manifest::{HEAD_SCHEMA, Head, Totals},
        names::{Folder, Kind, LogName, RunNo},
        place::{ObjectKind, Place},
        refs::BackupRefs,
    },
    forward_store,
    keys::{self, material::OwnKeys, trust::signer_path, *},
    log::{
        history::History,
        outcome::{self, Intent, LostOutcome, OutcomeType, PublicPart},
        run::{BeginError, Ending, FinishError, PartCounts, Run, RunOptions},
        segment::SegmentReader,
    },
    ops::{
        check::CheckOptions,
        expire::ExpireRequest,
        hold::HoldTerms,
        repair::{RepairPlan, repair},
    },
    store::{
        Store, StoreError,
        faulty::{Call, Fault, FaultyStore, Op},
        locks::{
            self, Extend, Extended, LockMode, NoncurrentVersion, ObjectLock, Overwritten, StillLocked,
            Versioned,
        },
        mem::{ManualClock, MemStore},
        read_all,
    },
};

fn password(text: &str) -> Password {
    Password::new(text.to_owned()).unwrap()
}

fn new_repository(text: &str) -> (MemStore, KeyMaterial) {
    let store = MemStore::new();
    let protection = Protection::Password { password: &password(text), kdf: KdfParams::MINIMUM };
    let material = keys::init(&store, &protection, None).unwrap().0;
    (store, material)
}

fn open(store: &MemStore, password: Option<&Password>) -> Result<KeyMaterial, KeyError> {
    keys::open(store, password.map_or(Unlock::Nothing, Unlock::Password), None).map(|(keys, _)| keys)
}

fn key_path(material: &KeyMaterial) -> ObjectPath {
    keys::key_path(material.key_id())
}

fn edit(store: &MemStore, path: &ObjectPath, from: &str, to: &str) {
    let done = store.damage(path, |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.contains(from), "{text}");
        *bytes = text.replace(from, to).into_bytes();
    });
    assert!(done);
}

const SLOW_ENOUGH: KdfParams = KdfParams::MINIMUM;

fn log(source: &str) -> LogName {
    LogName { source: source.parse().unwrap(), kind: Kind::Physical }
}

fn new_repo() -> (MemStore, Arc<Repo>) {
    let (store, _) = new_repository("root");
    let repo = by_password(&store, "root").unwrap();
    (store, repo)
}

fn new_repo_with_clock() -> (MemStore, Arc<Repo>, ManualClock) {
    let clock = ManualClock::default();
    let store = MemStore::with_clock(clock.clone());
    let protection = Protection::Password { password: &password("root"), kdf: KdfParams::MINIMUM };
    keys::init(&store, &protection, None).unwrap();
    let root = by_password(&store, "root").unwrap();
    (store, root, clock)
}

fn by_password(store: &MemStore, text: &str) -> Result<Arc<Repo>, KeyError> {
    Repo::open(Arc::new(store.clone()), Some(&password(text))).map(Arc::new)
}

fn behind(password: &Password) -> NewSlot<'_> {
    NewSlot::Password { password, kdf: SLOW_ENOUGH }
}

fn key(role: Role, sources: &[&str]) -> NewKey {
    let sources = sources.iter().map(|source| source.parse().unwrap()).collect();
    NewKey { role, sources, label: format!("the {role}") }
}

/// Adds a key and opens the repository with it.
fn added(store: &MemStore, repo: &Repo, new: &NewKey, text: &str) -> Arc<Repo> {
    add(repo, new, behind(&password(text))).unwrap();
    by_password(store, text).unwrap()
}

fn remove(repo: &Repo, key_id: KeyId) -> Result<Vec<ObjectPath>, KeyError> {
    super::remove(repo, key_id, UnderWay::MayEnd).map(|removed| removed.too_late)
}

fn begin(repo: &Arc<Repo>, log: &LogName) -> Result<Run, BeginError> {
    Run::begin(repo, log, &RunOptions { renew_every: None, ..RunOptions::of_this_process() })
}

fn head_of(log: &LogName, run: RunNo) -> Vec<u8> {
    let head = Head {
        schema: HEAD_SCHEMA,
        run: run.0,
        source: log.source.to_string(),
        kind: log.kind.to_string(),
        method: log.kind.to_string(),
        started_at: jiff::Timestamp::UNIX_EPOCH,
        finished_at: jiff::Timestamp::UNIX_EPOCH,
        tags: Vec::new(),
        server: serde_json::Map::new(),
        redo: None,
        position: None,
        totals: Totals::default(),
        flags: Vec::new(),
        roots: Vec::new(),
        base: None,
        more: serde_json::Map::new(),
    };
    head.encode().unwrap()
}

fn backup(repo: &Arc<Repo>, log: &LogName) -> Result<RunNo, FinishError> {
    let mut run = begin(repo, log).unwrap();
    let refs = run.write_backup_refs(&BackupRefs::default()).unwrap();
    run.write_report(b"{}").unwrap();
    let ending = Ending::Backup { head: head_of(log, run.no()), refs, parts: PartCounts::default() };
    run.finish(ending).map(|outcome| outcome.run)
}

/// What is wrong with the history, and with which object.
#[track_caller]
fn refused(repo: &Repo, log: &LogName) -> (String, Damage) {
    match History::read(repo, log) {
        Err(RepoError::History { damage, .. }) => match *damage {
            RepoError::Damaged { object, damage } => (object, damage),
            other => panic!("{other}"),
        },
        other => panic!("{other:?}"),
    }
}

/// What somebody who has all keys of a role can write by other means than this program.
fn forge(repo: &Repo, log: &LogName, run: u64, outcome_type: OutcomeType, previous: ObjectHash) -> Vec<u8> {
    forge_with(repo, log, run, outcome_type, previous, |public| public.dropped = vec![1])
}

fn forge_with(
    repo: &Repo,
    log: &LogName,
    run: u64,
    outcome_type: OutcomeType,
    previous: ObjectHash,
    say: impl FnOnce(&mut PublicPart),
) -> Vec<u8> {
    let mut public = PublicPart {
        intent: Some(Intent::Expire),
        ..PublicPart::bare(RunNo(run), outcome_type, previous, jiff::Timestamp::UNIX_EPOCH)
    };
    say(&mut public);
    let json = serde_json::to_vec(&public).unwrap();
    outcome::encode_raw(repo, log, RunNo(run), &json, None).unwrap()
}

/// All outcomes of a log, as bytes.
fn outcomes_of(store: &MemStore, log: &LogName, runs: u64) -> Vec<(ObjectPath, Vec<u8>)> {
    let paths = (1..=runs).map(|run| log.outcome(RunNo(run)));
    paths.map(|path| (path.clone(), read_all(store, &path, 1 << 20).unwrap())).collect()
}

/// The same objects, beside.
fn copy_of(store: &MemStore, clock: ManualClock) -> MemStore {
    let copy = MemStore::with_clock(clock);
    let mut paths = Vec::new();
    store
        .list("", &mut |object| {
            paths.push(object.path);
            true
        })
        .unwrap();
    for path in &paths {
        copy.create_if_absent(path, &read_all(store, path, 1 << 20).unwrap()).unwrap();
    }
    copy
}

fn put(store: &MemStore, path: &ObjectPath, bytes: &[u8]) {
    store.delete(std::slice::from_ref(path)).unwrap();
    store.create_if_absent(path, bytes).unwrap();
}

/// What is left when everything damaged is skipped: the backups that stand, and what was reported.
fn salvaged(repo: &Repo, log: &LogName) -> (Vec<u64>, Vec<u64>) {
    let mut told = Vec::new();
    let history = History::salvage(repo, log, &mut |run, _| told.push(run.0)).unwrap();
    (history.standing().map(|outcome| outcome.run.0).collect(), told)
}

fn repaired(repo: &Arc<Repo>, log: &LogName) -> RepairPlan {
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    repair(repo, log, &CheckOptions::default(), &mut |_| true, &options).unwrap()
}

/// The same repository, opened with a password through a store whose calls `happens` may interfere with.
fn beside(
    store: &MemStore,
    text: &str,
    happens: impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync + 'static,
) -> Arc<Repo> {
    let store = FaultyStore::new(Arc::new(store.clone()), happens);
    Repo::open(Arc::new(store), Some(&password(text))).map(Arc::new).unwrap()
}

/// Calls `act` at the first call that `is_it`.
fn once(
    is_it: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static,
    act: impl FnOnce() -> Option<Fault> + Send + 'static,
) -> impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync + 'static {
    let act = Mutex::new(Some(act));
    move |call| match is_it(call) {
        true => act.lock().unwrap().take().and_then(|act| act()),
        false => None,
    }
}
