use std::{
    sync::{Arc, Barrier, Mutex},
    thread,
    time::{Duration, SystemTime},
};

use super::{
    manage::{NewKey, UnderWay, add, change, list, trusted},
    *,
};
use crate::{
    error::RepoError,
    format::{
        hex::to_hex,
        manifest::{HEAD_SCHEMA, Head, Totals},
        names::{Folder, Kind, LogName, RunNo},
        object::{ObjectHash, ObjectKind, Place},
        refs::BackupRefs,
    },
    forward_store,
    log::{
        history::History,
        outcome::{self, Intent, LostOutcome, OutcomeType, PublicPart},
        run::{BeginError, Ending, FinishError, PartCounts, Run, RunOptions},
        segment::{SegmentReader, SegmentWriter as Segments},
    },
    ops::{
        check::CheckOptions,
        expire::ExpireRequest,
        hold::HoldTerms,
        repair::{RepairPlan, repair},
    },
    repo::Repo,
    store::{
        faulty::{Call, Fault, FaultyStore, Op},
        locks::{self, Beneath, Extend, Extended, Kept, LockMode, Overwritten, Versioned},
        mem::{ManualClock, MemStore},
    },
};

fn password(text: &str) -> Password {
    Password::new(text.to_owned()).unwrap()
}

fn new_repository(text: &str) -> (MemStore, KeyMaterial) {
    let store = MemStore::new();
    let protection = Protection::Password { password: &password(text), kdf: KdfParams::MINIMUM };
    let material = init(&store, &protection, None).unwrap().0;
    (store, material)
}

fn open(store: &MemStore, password: Option<&Password>) -> Result<KeyMaterial, KeyError> {
    super::open(store, password.map_or(Unlock::Nothing, Unlock::Password), None).map(|(keys, _)| keys)
}

fn key_path(material: &KeyMaterial) -> ObjectPath {
    object_path(&format!("keys/{}", material.key_id()))
}

fn edit(store: &MemStore, path: &ObjectPath, from: &str, to: &str) {
    let done = store.damage(path, |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.contains(from), "{text}");
        *bytes = text.replace(from, to).into_bytes();
    });
    assert!(done);
}

#[test]
fn keys_come_back_with_the_password_and_not_without() {
    let (store, made) = new_repository("right");
    let opened = open(&store, Some(&password("right"))).unwrap();
    assert_eq!(opened.repository(), made.repository());
    assert_eq!(opened.hash_key().unwrap().expose(), made.hash_key().unwrap().expose());
    assert!(matches!(open(&store, Some(&password("wrong"))), Err(KeyError::WrongPassword { .. })));
    assert!(matches!(open(&store, None), Err(KeyError::PasswordNeeded { .. })));
    let json = read_all(&store, &key_path(&made), 1 << 20).unwrap();
    let secret = to_hex(made.hash_key().unwrap().expose());
    assert!(!String::from_utf8(json).unwrap().contains(&secret));
}

#[test]
fn a_repository_without_encryption_is_never_taken_for_an_encrypted_one() {
    let store = MemStore::new();
    init(&store, &Protection::None, None).unwrap();
    assert_eq!(open(&store, None).unwrap().repository().suite, Suite::None);
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::NotEncrypted { .. })));
}

#[test]
fn init_takes_empty_places_only() {
    let (store, _) = new_repository("x");
    assert!(matches!(init(&store, &Protection::None, None), Err(KeyError::NotEmpty { .. })));
    let store = MemStore::new();
    store.create_if_absent(&object_path("sources/db1/physical/outcomes/1"), b"").unwrap();
    assert!(matches!(init(&store, &Protection::None, None), Err(KeyError::NotEmpty { .. })));
    let store = MemStore::new();
    store.create_if_absent(&object_path("keys/0011223344556677"), b"died young").unwrap();
    init(&store, &Protection::None, None).unwrap();
    open(&store, None).unwrap();
}

#[test]
fn what_is_wrong_is_told_apart() {
    let empty = MemStore::new();
    assert!(matches!(open(&empty, None), Err(KeyError::NotARepository { .. })));

    let (store, _) = new_repository("x");
    store.create_if_absent(&object_path("format/3"), b"").unwrap();
    let newer = open(&store, Some(&password("x"))).unwrap_err();
    assert!(matches!(newer, KeyError::NewerFormat { ref format, .. } if format == "3"), "{newer}");

    let (store, _) = new_repository("x");
    edit(&store, &info_path(), "\"format\":2", "\"format\":9");
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::NewerFormat { .. })));

    let (store, _) = new_repository("x");
    edit(&store, &info_path(), "\"format\":2", "\"format\":1");
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::OlderFormat { format: 1, .. })));

    let (store, _) = new_repository("x");
    store.damage(&info_path(), |bytes| bytes.truncate(20));
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::Damaged { .. })));

    let (store, material) = new_repository("x");
    store.damage(&key_path(&material), |bytes| bytes.truncate(100));
    let error = open(&store, Some(&password("x"))).unwrap_err();
    assert!(error.to_string().contains(&material.key_id().to_string()), "{error}");
}

#[test]
fn what_is_readable_without_a_key_cannot_be_altered_unnoticed() {
    let (store, _) = new_repository("x");
    edit(&store, &info_path(), "\"created_at\":\"", "\"created_at\":\"1");
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::Damaged { .. })));
    let (store, _) = new_repository("x");
    edit(&store, &info_path(), "x25519-aes256gcm", "none");
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::NotEncrypted { .. })));
    let (store, material) = new_repository("x");
    edit(&store, &key_path(&material), "\"role\":\"operator\"", "\"role\":\"keeper\"");
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::WrongPassword { .. })));
    let (store, material) = new_repository("x");
    edit(&store, &key_path(&material), "19456", "8");
    assert!(matches!(
        open(&store, Some(&password("x"))),
        Err(KeyError::Kdf { source: KdfError::Weak { .. }, .. })
    ));
}

type NewLocks = (ObjectLock, fn(&ObjectPath) -> bool);

/// A store that claims to lock, and lets the memory behind it be tampered with.
struct Vault {
    memory: MemStore,
    new: Mutex<Option<NewLocks>>,
}

impl Vault {
    fn new(memory: MemStore) -> Self {
        Self { memory, new: Mutex::new(None) }
    }
}

impl Store for Vault {
    forward_store!(
        self => self.memory;
        location, put, create_if_absent, read_exact_at, head, list, list_folders, delete, now, free_bytes
    );

    fn versioned(&self) -> Option<&dyn Versioned> {
        Some(self)
    }
}

impl Versioned for Vault {
    fn protection(&self) -> Result<locks::Protection, StoreError> {
        Ok(locks::Protection {
            versions: Some(true),
            suspended: false,
            locks: Some(true),
            locks_by_default: false,
        })
    }

    fn lock_new(&self, lock: ObjectLock, lasts: fn(&ObjectPath) -> bool) {
        *self.new.lock().unwrap() = Some((lock, lasts));
    }

    fn locked_until(&self, path: &ObjectPath) -> Result<Option<SystemTime>, StoreError> {
        let new = self.new.lock().unwrap().filter(|(_, lasts)| lasts(path));
        new.map(|(lock, _)| self.now().map(|now| now + lock.period())).transpose()
    }

    fn extend(&self, _: &str, _: &Extend<'_>) -> Result<Extended, StoreError> {
        Ok(Extended::default())
    }

    fn delete_versions(&self, paths: &[ObjectPath]) -> Result<Vec<Kept>, StoreError> {
        self.memory.delete(paths).map(|()| Vec::new())
    }

    fn beneath(&self, _: &ObjectPath) -> Result<Option<Beneath>, StoreError> {
        Ok(None)
    }

    fn folders_ever(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.memory.list_folders(prefix)
    }

    fn all_beneath(&self, _: &str, _: &mut dyn FnMut(ObjectPath, Beneath)) -> Result<(), StoreError> {
        Ok(())
    }

    fn overwritten(&self, _: &mut dyn FnMut(Overwritten)) -> Result<(), StoreError> {
        Ok(())
    }
}

#[test]
fn nobody_who_has_no_key_makes_locks_shorter() {
    let lock = ObjectLock::new(LockMode::Compliance, Duration::from_secs(30 * 86_400)).unwrap();
    let memory = MemStore::new();
    let password = password("x");
    let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
    let made = Repo::init_locked(Arc::new(Vault::new(memory.clone())), &protection, Some(lock)).unwrap();
    assert_eq!(made.info().object_lock, Some(lock));

    // Opening the repository locks what lasts, and nothing else.
    let vault = Arc::new(Vault::new(memory.clone()));
    let opened = Repo::open(Arc::clone(&vault) as Arc<dyn Store>, Some(&password)).unwrap();
    opened.require(Act::Backup, "a backup").unwrap();
    let (found, lasts) = vault.new.lock().unwrap().unwrap();
    assert_eq!(found, lock);
    for (name, is_lasting) in [
        ("holdfast.json", true),
        ("keys/0123456789abcdef", true),
        ("removals/0000000001", true),
        ("sources/db1/physical/packs/0000000001-000000", true),
        ("sources/db1/physical/outcomes/0000000001", true),
        ("sources/runs/physical/packs/0000000001-000000", true),
        ("sources/db1/physical/runs/0000000001/000000", false),
        ("sources/db1/binlog/segments/0000000001-000000", false),
        ("sources/db1/physical/checks/0000000001", false),
        ("probe/x", false),
        (".tmp/x", false),
    ] {
        assert_eq!(lasts(&object_path(name)), is_lasting, "{name}");
    }

    // A copy in a store without locks can be read, but not written.
    let copy = Repo::open(Arc::new(memory.clone()), Some(&password)).unwrap();
    copy.require(Act::Read, "a restore").unwrap();
    assert!(matches!(copy.require(Act::Backup, "a backup"), Err(RepoError::NoLocks { .. })));
    let plain = Repo::init_locked(Arc::new(MemStore::new()), &protection, Some(lock));
    assert!(matches!(plain, Err(KeyError::NoLocks { .. })));

    let told = "\"object_lock\":{\"mode\":\"compliance\",\"period_s\":2592000}";
    for shorter in [
        "\"object_lock\":{\"mode\":\"compliance\",\"period_s\":1}",
        "\"object_lock\":{\"mode\":\"governance\",\"period_s\":2592000}",
        "\"object_lock\":{\"mode\":\"compliance\",\"period_s\":0}",
        "\"object_lock\":{\"mode\":\"compliance\",\"period_s\":18446744073709551615}",
        "\"object_lock\":{\"mode\":\"none\",\"period_s\":2592000}",
        "\"object_lock\":null",
    ] {
        edit(&memory, &info_path(), told, shorter);
        let refused = Repo::open(Arc::new(memory.clone()), Some(&password)).map(|_| ());
        assert!(matches!(refused, Err(KeyError::Damaged { .. })), "{shorter}: {refused:?}");
        edit(&memory, &info_path(), shorter, told);
    }
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
    init(&store, &protection, None).unwrap();
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
    manage::remove(repo, key_id, UnderWay::MayEnd).map(|removed| removed.too_late)
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

#[test]
fn passwords_come_and_go_and_the_last_operator_stays() {
    let (store, root) = new_repo();
    let own = root.keys().key_id();
    assert!(matches!(remove(&root, own), Err(KeyError::LastOperator { .. })));
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    assert_eq!(second.keys().hash_key().unwrap().expose(), root.keys().hash_key().unwrap().expose());
    let listed = list(&second).unwrap();
    assert!(listed.problems.is_empty(), "{listed:?}");
    let seen: Vec<_> = listed.keys.iter().map(|key| (key.label.as_str(), key.role, key.is_own)).collect();
    assert!(
        seen.contains(&("", Role::Operator, false)) && seen.contains(&("the operator", Role::Operator, true))
    );

    remove(&second, own).unwrap();
    assert!(matches!(by_password(&store, "root"), Err(KeyError::WrongPassword { .. })));
    assert!(matches!(remove(&second, second.keys().key_id()), Err(KeyError::LastOperator { .. })));
    assert!(matches!(remove(&second, Hex([9; 8])), Err(KeyError::NoSuchKey { .. })));
    remove(&second, own).unwrap();
    // The removed operator continues with what is in memory.
    let error = add(&root, &key(Role::Writer, &[]), behind(&password("back door"))).unwrap_err();
    assert!(matches!(error, KeyError::Removed { .. }), "{error}");
    assert!(matches!(remove(&root, second.keys().key_id()), Err(KeyError::Removed { .. })));

    let (changed, ..) = change(&second, behind(&password("third"))).unwrap();
    assert_eq!(changed.label, "the operator");
    assert!(matches!(by_password(&store, "second"), Err(KeyError::WrongPassword { .. })));
    assert_eq!(list(&by_password(&store, "third").unwrap()).unwrap().keys.len(), 1);
}

#[test]
fn a_removed_key_object_that_is_put_back_opens_nothing() {
    let (store, root) = new_repo();
    let info = add(&root, &key(Role::Operator, &[]), behind(&password("second"))).unwrap();
    let path = object_path(&format!("keys/{}", info.key_id));
    let copy = read_all(&store, &path, 1 << 20).unwrap();
    remove(&root, info.key_id).unwrap();
    store.create_if_absent(&path, &copy).unwrap();
    assert!(matches!(by_password(&store, "second"), Err(KeyError::Removed { .. })));
    assert_eq!(list(&root).unwrap().problems.len(), 1);
    remove(&root, info.key_id).unwrap();
    assert!(list(&root).unwrap().problems.is_empty());
}

#[test]
fn of_two_operators_who_remove_each_other_at_once_one_stays() {
    for _ in 0..3 {
        let (store, root) = new_repo();
        let second = added(&store, &root, &key(Role::Operator, &[]), "second");
        let start = Barrier::new(2);
        let removes = |by: &Repo, other: &Repo| {
            start.wait();
            remove(by, other.keys().key_id())
        };
        let (one, other) = thread::scope(|scope| {
            let one = scope.spawn(|| removes(&root, &second));
            let other = scope.spawn(|| removes(&second, &root));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        assert!(by_password(&store, "root").is_ok() != by_password(&store, "second").is_ok());
        // Each removes its own key: the same race with both ends open.
        let left = by_password(&store, "root").or_else(|_| by_password(&store, "second")).unwrap();
        let third = added(&store, &left, &key(Role::Operator, &[]), "third");
        let leaves = |repo: &Repo| {
            start.wait();
            remove(repo, repo.keys().key_id())
        };
        let (one, other) = thread::scope(|scope| {
            let one = scope.spawn(|| leaves(&left));
            let other = scope.spawn(|| leaves(&third));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    }
}

#[test]
fn a_writer_adds_and_neither_reads_nor_drops() {
    let (store, root) = new_repo();
    let log = log("db1");
    backup(&root, &log).unwrap();
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    assert_eq!(backup(&writer, &log).unwrap(), RunNo(2));
    // A repository opened before the writer was known believes it all the same.
    let history = History::read(&root, &log).unwrap();
    assert_eq!(history.standing().count(), 2);
    assert_eq!(history.head(&root, RunNo(2)).unwrap(), head_of(&log, RunNo(2)));
    let own = History::read(&writer, &log).unwrap();
    for run in [RunNo(1), RunNo(2)] {
        assert!(matches!(own.head(&writer, run), Err(RepoError::NotReadable { role: Role::Writer, .. })));
        let report = Place { log: &log, kind: ObjectKind::Report, run, part: 0 };
        assert!(matches!(writer.read_object(&report, 100), Err(RepoError::NotReadable { .. })));
    }
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    let error = Run::begin_as(Intent::Expire, &writer, &own, &options).err().unwrap();
    assert!(error.to_string().contains("a writer's key: dropping and pruning takes a keeper's"), "{error}");
    assert!(matches!(
        add(&writer, &key(Role::Writer, &[]), behind(&password("x"))),
        Err(KeyError::NotOperator { .. })
    ));

    let forged = forge(&writer, &log, 3, OutcomeType::Expire, history.last_hash());
    store.create_if_absent(&log.outcome(RunNo(3)), &forged).unwrap();
    let (object, damage) = refused(&root, &log);
    assert_eq!(object, log.outcome(RunNo(3)).to_string());
    assert_eq!(damage, Damage::Role { act: "expire", role: Role::Writer });
}

#[test]
fn a_writer_neither_holds_nor_releases() {
    for outcome_type in [OutcomeType::Hold, OutcomeType::Release] {
        let (store, root) = new_repo();
        let log = log("db1");
        backup(&root, &log).unwrap();
        let writer = added(&store, &root, &key(Role::Writer, &["db1"]), "writer");
        let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
        let error = crate::ops::hold::hold(&writer, &log, &[RunNo(1)], &HoldTerms::default(), &options);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("a writer's key: holding and releasing backups"), "{error}");
        let previous = History::read(&root, &log).unwrap().last_hash();
        let forged = forge(&writer, &log, 2, outcome_type, previous);
        store.create_if_absent(&log.outcome(RunNo(2)), &forged).unwrap();
        let (_, damage) = refused(&root, &log);
        assert_eq!(damage, Damage::Role { act: outcome_type.as_str(), role: Role::Writer });
    }
}

#[test]
fn a_keeper_drops_and_neither_reads_nor_adds() {
    let (store, root) = new_repo();
    let log = log("db1");
    backup(&root, &log).unwrap();
    backup(&root, &log).unwrap();
    let keeper = added(&store, &root, &key(Role::Keeper, &[]), "keeper");
    assert!(keeper.keys().hash_key().is_none());
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    let history = History::read(&keeper, &log).unwrap();
    let mut run = Run::begin_as(Intent::Expire, &keeper, &history, &options).unwrap();
    run.finish(Ending::Expire { dropped: vec![RunNo(1)] }).unwrap();
    let history = History::read(&root, &log).unwrap();
    assert_eq!(history.standing().count(), 1);
    let own = History::read(&keeper, &log).unwrap();
    assert!(matches!(own.head(&keeper, RunNo(2)), Err(RepoError::NotReadable { role: Role::Keeper, .. })));
    let error = begin(&keeper, &log).err().unwrap();
    assert!(error.to_string().contains("a backup takes a writer's or an operator's"), "{error}");
}

#[test]
fn a_key_for_one_source_signs_for_no_other() {
    let (store, root) = new_repo();
    let writer = added(&store, &root, &key(Role::Writer, &["db1"]), "writer");
    backup(&writer, &log("db1")).unwrap();
    let elsewhere = log("db2");
    let forged = forge(&writer, &elsewhere, 1, OutcomeType::Abandoned, Hex([0; 32]));
    store.create_if_absent(&elsewhere.outcome(RunNo(1)), &forged).unwrap();
    let (object, damage) = refused(&root, &elsewhere);
    assert!(object.contains("db2") && matches!(damage, Damage::SignerElsewhere { .. }), "{object}: {damage}");
    History::read(&root, &log("db1")).unwrap();
    let of_all = NewKey { sources: vec!["db1".parse().unwrap()], ..key(Role::Operator, &[]) };
    assert!(matches!(add(&root, &of_all, behind(&password("x"))), Err(KeyError::OperatorOfSources)));
}

/// What the key signed before it was removed stays; a run that had begun may end.
#[test]
fn what_a_removed_key_signs_is_not_believed() {
    let (store, root) = new_repo();
    let (log, quiet) = (log("db1"), log("db2"));
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    backup(&writer, &log).unwrap();
    let begun = begin(&writer, &log).unwrap();
    remove(&root, writer.keys().key_id()).unwrap();
    begun.abandon("late").unwrap();
    let history = History::read(&root, &log).unwrap();
    assert_eq!(history.outcomes().len(), 2);
    // Whoever continues with the key learns of the removal before doing harm.
    let error = begin(&writer, &log).err().unwrap();
    assert!(matches!(error, BeginError::Repo(RepoError::NotBelieved { .. })), "{error}");
    let forged = forge(&writer, &log, 3, OutcomeType::Abandoned, history.last_hash());
    store.create_if_absent(&log.outcome(RunNo(3)), &forged).unwrap();
    let (object, damage) = refused(&root, &log);
    assert_eq!(object, log.outcome(RunNo(3)).to_string());
    assert_eq!(damage, Damage::SignerRemoved { key_id: writer.keys().key_id() });
    let forged = forge(&writer, &quiet, 1, OutcomeType::Abandoned, Hex([0; 32]));
    store.create_if_absent(&quiet.outcome(RunNo(1)), &forged).unwrap();
    assert!(matches!(refused(&root, &quiet).1, Damage::SignerRemoved { .. }));
}

/// All outcomes of a log, as bytes.
fn outcomes_of(store: &MemStore, log: &LogName, runs: u64) -> Vec<(ObjectPath, Vec<u8>)> {
    let paths = (1..=runs).map(|run| log.outcome(RunNo(run)));
    paths.map(|path| (path.clone(), read_all(store, &path, 1 << 20).unwrap())).collect()
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

/// The holder of a removed key can write to the store, and puts what the key signs now in
/// the place of earlier outcomes.
#[test]
fn what_a_removed_key_signs_takes_the_place_of_nothing_that_is_there() {
    let (store, root, clock) = new_repo_with_clock();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    for repo in [&writer, &root, &writer, &writer] {
        backup(repo, &log).unwrap();
    }
    remove(&root, writer.keys().key_id()).unwrap();
    let whole = outcomes_of(&store, &log, 4);
    let previous = {
        let history = History::read(&root, &log).unwrap();
        move |run: u64| history.outcome(RunNo(run)).unwrap().previous
    };
    // The removal has the hash of the newest outcome; any other is displaced by the next
    // one, which names the original.
    for (run, first_wrong) in [(4, 4), (3, 4), (2, 3)] {
        let path = log.outcome(RunNo(run));
        put(&store, &path, &forge(&writer, &log, run, OutcomeType::Abandoned, previous(run)));
        let again = by_password(&store, "root").unwrap();
        let (object, damage) = refused(&again, &log);
        assert_eq!(object, log.outcome(RunNo(first_wrong)).to_string(), "{run}: {damage:?}");
        let (standing, told) = salvaged(&again, &log);
        assert_eq!((told, standing.len()), (vec![run], 3), "{run}");
        assert!(!standing.contains(&run));
        whole.iter().for_each(|(path, bytes)| put(&store, path, bytes));
        assert_eq!(History::read(&again, &log).unwrap().standing().count(), 4);
    }
    // A log that ends too early is noticed: it could end with what the key's holder has put there.
    // A repair records that it does.
    for gone in [3, 4] {
        (gone..=4).for_each(|run| store.delete(&[log.outcome(RunNo(run))]).unwrap());
        let again = by_password(&store, "root").unwrap();
        let (object, damage) = refused(&again, &log);
        assert_eq!((object, damage), (log.outcome(RunNo(gone)).to_string(), Damage::Missing));
        assert_eq!(salvaged(&again, &log), ((1..gone).collect(), vec![gone]));
        clock.advance(Duration::from_secs(3600));
        let plan = repaired(&again, &log);
        assert!(!plan.outcomes.is_empty() && plan.dropped.is_empty(), "{plan:?}");
        let history = History::read(&again, &log).unwrap();
        assert_eq!(history.standing().count() as u64, gone - 1);
        assert_eq!(salvaged(&again, &log).1, [] as [u64; 0]);
        backup(&again, &log).unwrap();
        (1..=9).for_each(|run| store.delete(&[log.outcome(RunNo(run))]).unwrap());
        whole.iter().for_each(|(path, bytes)| put(&store, path, bytes));
    }
}

/// A damaged outcome takes nothing with it but itself: the signatures on those before it still count.
#[test]
fn damage_loses_nothing_of_a_removed_key_but_itself() {
    let (store, root) = new_repo();
    let log = log("db1");
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    for _ in 1..=5 {
        backup(&second, &log).unwrap();
    }
    remove(&root, second.keys().key_id()).unwrap();
    backup(&root, &log).unwrap();
    assert_eq!(History::read(&root, &log).unwrap().standing().count(), 6);
    store.damage(&log.outcome(RunNo(3)), |bytes| bytes[40] ^= 1);
    assert_eq!(salvaged(&root, &log), (vec![1, 2, 4, 5, 6], vec![3]));
    repaired(&root, &log);
    let standing = History::read(&root, &log).unwrap().standing().map(|it| it.run.0).collect::<Vec<_>>();
    assert_eq!(standing, [1, 2, 4, 5, 6]);

    // What a repair has found lost stays lost, and nothing in its place counts;
    // nor can anything be put before it.
    let history = History::read(&root, &log).unwrap();
    let first = history.outcome(RunNo(1)).unwrap().hash;
    let lost = |run| LostOutcome { run, hash: first, before: None };
    let forged = forge_with(&second, &log, 3, OutcomeType::Repair, first, |public| {
        public.lost = vec![lost(1), lost(2)];
    });
    put(&store, &log.outcome(RunNo(3)), &forged);
    let again = by_password(&store, "root").unwrap();
    assert_eq!(History::read(&again, &log).unwrap().standing().count(), 5);
    assert_eq!(salvaged(&again, &log), (standing.clone(), Vec::new()));
    put(&store, &log.outcome(RunNo(2)), &forge(&second, &log, 2, OutcomeType::Abandoned, first));
    assert_eq!(refused(&by_password(&store, "root").unwrap(), &log).1, Damage::Chain);
    assert_eq!(salvaged(&again, &log), (vec![1, 4, 5, 6], vec![2]));
}

/// A log with a run under way when a key is removed can continue, however that run ends.
#[test]
fn a_key_is_removed_while_somebody_is_at_work() {
    for under_way in [UnderWay::MayEnd, UnderWay::Refused] {
        for dies in [false, true] {
            let (store, root, clock) = new_repo_with_clock();
            let log = log("db1");
            let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
            for _ in 1..=3 {
                backup(&writer, &log).unwrap();
            }
            let begun = begin(&root, &log).unwrap();
            let removed = manage::remove(&root, writer.keys().key_id(), under_way).unwrap();
            assert_eq!(removed.may_end.len(), usize::from(under_way == UnderWay::MayEnd));
            assert_eq!(History::read(&root, &log).unwrap().standing().count(), 3);
            assert_eq!(salvaged(&root, &log), (vec![1, 2, 3], Vec::new()));
            match dies {
                true => {
                    begun.leave();
                    clock.advance(Duration::from_secs(3600));
                }
                false => begun.abandon("over").unwrap(),
            }
            let plan = repaired(&root, &log);
            assert!(plan.is_empty(), "{plan:?}");
            backup(&root, &log).unwrap();
            assert_eq!(History::read(&root, &log).unwrap().standing().count(), 4);
        }
    }
}

/// Whoever learns later that somebody else has the key can refuse what was to end with it.
#[test]
fn a_removed_key_is_removed_at_once_after_all() {
    let (store, root) = new_repo();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let id = writer.keys().key_id();
    let run = begin(&writer, &log).unwrap();
    let may_end = vec![(log.clone(), run.no())];
    for _ in 0..2 {
        assert_eq!(manage::remove(&root, id, UnderWay::MayEnd).unwrap().may_end, may_end);
    }
    assert_eq!(manage::remove(&root, id, UnderWay::Refused).unwrap().may_end, []);
    assert!(run.abandon("over").is_err());
    assert_eq!(History::read(&root, &log).unwrap().outcomes().len(), 0);
    backup(&root, &log).unwrap();
}

/// What an archiver has stored before it died stays, to be taken over, unless its key was somebody else's.
#[test]
fn what_an_archiver_has_left_outlives_its_key() {
    for (under_way, segments) in [(UnderWay::MayEnd, 2), (UnderWay::Refused, 0)] {
        let (store, root, clock) = new_repo_with_clock();
        let log = LogName { kind: Kind::Binlog, ..log("db1") };
        let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
        begin(&writer, &log).unwrap().abandon("nothing came").unwrap();
        let run = begin(&writer, &log).unwrap();
        let dead = run.no();
        let mut to = Segments::new(&run);
        for bytes in [b"one", b"two"] {
            let sealed = to.seal(serde_json::Map::new(), bytes).unwrap();
            to.store(&sealed).unwrap();
        }
        run.leave();
        clock.advance(Duration::from_secs(3600));
        let removed = manage::remove(&root, writer.keys().key_id(), under_way).unwrap();
        assert_eq!(removed.may_end.len(), usize::from(segments > 0));
        let read = || {
            let history = History::read(&root, &log).unwrap();
            let mut reader = SegmentReader::new(&root, &history, dead);
            let mut read = 0;
            while reader.read_next().unwrap().is_some() {
                read += 1;
            }
            reader.check_end().unwrap();
            read
        };
        assert_eq!(read(), segments);
        // The next run ends the dead one, and finds the segments all the same.
        begin(&root, &log).unwrap().abandon("nothing came").unwrap();
        assert_eq!(read(), segments);
    }
}

/// A run that was under way may end, once; or may not, as whoever removes the key decides.
#[test]
fn a_run_that_is_under_way_may_end_or_may_not() {
    for (under_way, may) in [(UnderWay::MayEnd, true), (UnderWay::Refused, false)] {
        let (store, root) = new_repo();
        let log = log("db1");
        let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
        let run = begin(&writer, &log).unwrap();
        let removed = manage::remove(&root, writer.keys().key_id(), under_way).unwrap();
        assert_eq!(removed.may_end, if may { vec![(log.clone(), run.no())] } else { Vec::new() });
        assert_eq!(run.abandon("over").is_ok(), may);
        assert_eq!(History::read(&root, &log).unwrap().outcomes().len(), usize::from(may));
        let again = manage::remove(&root, writer.keys().key_id(), under_way).unwrap();
        assert_eq!(again, manage::Removed::default(), "what has ended well is not told as if it had not");
    }
}

/// An operator who was removed meanwhile writes no record that nobody would believe.
#[test]
fn whoever_was_removed_removes_nobody() {
    let (store, root) = new_repo();
    let log = log("db1");
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    let id = second.keys().key_id();
    let _under_way = begin(&root, &log).unwrap();
    let may_end = manage::remove(&root, id, UnderWay::MayEnd).unwrap().may_end;
    assert_eq!(manage::remove(&second, id, UnderWay::Refused).unwrap().may_end, may_end);
    by_password(&store, "root").unwrap().require_sound_keys().unwrap();
    assert_eq!(manage::remove(&root, id, UnderWay::Refused).unwrap().may_end, []);
    by_password(&store, "root").unwrap().require_sound_keys().unwrap();
}

/// No removal is based on rotations whose records are gone.
#[test]
fn no_key_is_removed_while_a_rotation_is_missing() {
    let (store, root) = new_repo();
    rotate(&root).unwrap();
    let root = by_password(&store, "root").unwrap();
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let path = object_path("rotations/001");
    let record = read_all(&store, &path, 1 << 20).unwrap();
    store.delete(std::slice::from_ref(&path)).unwrap();
    let error = remove(&second, writer.keys().key_id()).unwrap_err();
    assert!(error.to_string().contains("rotations/001"), "{error}");
    store.create_if_absent(&path, &record).unwrap();
    remove(&second, writer.keys().key_id()).unwrap();
    by_password(&store, "second").unwrap().require_sound_keys().unwrap();
}

/// However much is missing at the end of a log, one repair is enough.
#[test]
fn a_log_that_has_lost_its_end_is_mended_at_once() {
    let (store, root, clock) = new_repo_with_clock();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    for _ in 1..=40 {
        backup(&writer, &log).unwrap();
    }
    remove(&root, writer.keys().key_id()).unwrap();
    (5..=40).for_each(|run| store.delete(&[log.outcome(RunNo(run))]).unwrap());
    clock.advance(Duration::from_secs(3600));
    repaired(&root, &log);
    assert_eq!(History::read(&root, &log).unwrap().standing().count(), 4);
    backup(&root, &log).unwrap();
}

/// A removed operator cannot promote anybody by the name of a key that the operator had added, nor
/// make anybody seal for other keys.
#[test]
fn a_removed_operator_changes_no_word_of_before() {
    let (store, root) = new_repo();
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    let writer = added(&store, &second, &key(Role::Writer, &[]), "writer");
    let path = signer_path(writer.keys().key_id());
    let (voucher, _): (trust::Voucher, _) = signed::read(
        root.info().repository_id,
        signed::Sort::Signer,
        &read_all(&store, &path, 1 << 20).unwrap(),
    )
    .unwrap();
    // Another rotation that the same operator could have made.
    let beside = MemStore::new();
    let mut paths = Vec::new();
    store
        .list("", &mut |object| {
            paths.push(object.path);
            true
        })
        .unwrap();
    for path in &paths {
        beside.create_if_absent(path, &read_all(&store, path, 1 << 20).unwrap()).unwrap();
    }
    rotate(&by_password(&beside, "second").unwrap()).unwrap();
    let another = read_all(&beside, &object_path("rotations/001"), 1 << 20).unwrap();
    rotate(&second).unwrap();
    remove(&root, second.keys().key_id()).unwrap();
    let signer = Signer { role: Role::Operator, ..voucher.signer.clone() };
    let promoted = signed::sign(second.keys(), signed::Sort::Signer, &trust::Voucher { signer, ..voucher });
    store.damage(&path, |bytes| *bytes = promoted.clone());
    let listed = list(&by_password(&store, "root").unwrap()).unwrap();
    assert!(listed.problems.iter().any(|(object, _)| *object == path.to_string()), "{listed:?}");

    let again = |store: &MemStore| by_password(store, "root").unwrap();
    // Another rotation cannot take the place of the operator's last.
    let path = object_path("rotations/001");
    assert_eq!(by_password(&store, "root").unwrap().keys().rotations(), 1);
    store.damage(&path, |bytes| *bytes = another.clone());
    assert_eq!(by_password(&store, "root").unwrap().keys().rotations(), 0);
    assert!(again(&store).require_sound_keys().is_err());

    // Nor can an earlier one, when the last is gone.
    store.delete(&[path]).unwrap();
    assert!(again(&store).require_sound_keys().is_err(), "nothing is sealed for what he made");
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

/// Looking at all logs takes a while, in which the holder of the key continues.
#[test]
fn what_ends_while_a_key_is_being_removed_stays_or_is_named() {
    let (store, root) = new_repo();
    let (first, second) = (log("db1"), log("db2"));
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let id = writer.keys().key_id();
    backup(&writer, &first).unwrap();
    backup(&writer, &second).unwrap();
    let (goes_on, prefix) = (Arc::clone(&writer), second.folder(Folder::Outcomes));
    let at_the_second = move |call: &Call<'_>| call.op == Op::List && call.path == prefix;
    let slow = beside(
        &store,
        "root",
        once(at_the_second, move || {
            backup(&goes_on, &log("db1")).unwrap();
            None
        }),
    );
    assert_eq!(remove(&slow, id).unwrap(), []);
    assert_eq!(History::read(&root, &first).unwrap().standing().count(), 2);

    let writer = added(&store, &root, &key(Role::Writer, &[]), "second");
    let id = writer.keys().key_id();
    let goes_on = Arc::clone(&writer);
    let at_the_last = |call: &Call<'_>| call.op == Op::Create && call.path.starts_with("removals/");
    let slow = beside(
        &store,
        "root",
        once(at_the_last, move || {
            backup(&goes_on, &log("db1")).unwrap();
            None
        }),
    );
    let late = [first.outcome(RunNo(3))];
    assert_eq!(remove(&slow, id).unwrap(), late);
    root.look_again().unwrap();
    assert_eq!(refused(&root, &first).1, Damage::SignerRemoved { key_id: id });
    assert_eq!(remove(&root, id).unwrap(), late, "whoever asks again is told again");
}

/// A run that was frozen before its outcome was created, until its key was
/// removed, is not told that all is well.
#[test]
fn what_nobody_believes_has_not_ended_well() {
    let (store, root, clock) = new_repo_with_clock();
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let id = writer.keys().key_id();
    let at_the_end = |call: &Call<'_>| call.op == Op::Create && call.path.contains("/outcomes/");
    let frozen = beside(
        &store,
        "writer",
        once(at_the_end, move || {
            clock.advance(Duration::from_secs(3600));
            assert_eq!(remove(&root, id).unwrap(), []);
            None
        }),
    );
    let error = backup(&frozen, &log("db1")).unwrap_err();
    assert!(matches!(error, FinishError::Repo(RepoError::NotBelieved { .. })), "{error}");
}

/// Anybody can copy records, and a look can fail temporarily.
#[test]
fn a_removal_is_kept_once_and_a_signer_who_could_not_be_looked_for_is_no_stranger() {
    let (store, root) = new_repo();
    let removed = added(&store, &root, &key(Role::Writer, &[]), "removed");
    remove(&root, removed.keys().key_id()).unwrap();
    let removal = read_all(&store, &object_path("removals/0000000001"), 1 << 20).unwrap();
    store.delete(&[object_path("removals/0000000001")]).unwrap();
    for number in 2..40 {
        store.create_if_absent(&object_path(&format!("removals/{number:010}")), &removal).unwrap();
    }
    let trust = root.look_again().unwrap();
    assert!(trust.is_removed(removed.keys().key_id()));
    assert_eq!(trust.removals_known(), 1);

    let (store, root) = new_repo();
    let is_armed = Arc::new(Mutex::new(false));
    let armed = Arc::clone(&is_armed);
    let reader = beside(&store, "root", move |call| {
        let fails =
            call.op == Op::List && call.path == "signers/" && std::mem::take(&mut *armed.lock().unwrap());
        fails.then_some(Fault::Error)
    });
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    backup(&writer, &log("db1")).unwrap();
    *is_armed.lock().unwrap() = true;
    let error = History::read(&reader, &log("db1")).unwrap_err();
    assert!(matches!(error, RepoError::Store(_)), "{error}");
    assert_eq!(History::read(&reader, &log("db1")).unwrap().standing().count(), 1);
}

/// Keys that an operator added stay when the operator goes; what is added afterwards counts for nothing.
#[test]
fn a_removed_operator_vouches_for_nobody_any_more() {
    let (store, root) = new_repo();
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    let writer = added(&store, &second, &key(Role::Writer, &[]), "writer");
    remove(&root, second.keys().key_id()).unwrap();
    backup(&writer, &log("db1")).unwrap();
    assert_eq!(History::read(&root, &log("db1")).unwrap().standing().count(), 1);

    // Written by other means than this program, which refuses.
    let own = OwnKeys::generate().unwrap();
    let signer = own.signer(Role::Operator, Vec::new());
    let voucher = trust::Voucher { format: FORMAT, signer, label: String::new(), created_at: String::new() };
    let record = signed::sign(second.keys(), signed::Sort::Signer, &voucher);
    store.create_if_absent(&signer_path(own.key_id), &record).unwrap();
    let listed = list(&root).unwrap();
    assert!(listed.problems[0].0.contains(&own.key_id.to_string()), "{listed:?}");
    // The record is reported, and blocks nothing.
    backup(&root, &log("db1")).unwrap();
}

#[test]
fn records_of_keys_that_were_tampered_with_count_for_nothing() {
    let (store, root) = new_repo();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let id = writer.keys().key_id();
    let voucher = read_all(&store, &signer_path(id), 1 << 20).unwrap();
    // A writer makes itself an operator.
    edit(&store, &signer_path(id), "writer\\\"", "operator\\\"");
    let error = begin(&by_password(&store, "writer").unwrap(), &log).err().unwrap();
    assert!(error.to_string().contains(&format!("signers/{id}")), "{error}");
    store.damage(&signer_path(id), |bytes| *bytes = voucher.clone());
    // A voucher of another repository.
    let (other_store, other) = new_repo();
    let stranger = added(&other_store, &other, &key(Role::Writer, &[]), "writer");
    let path = signer_path(stranger.keys().key_id());
    store.create_if_absent(&path, &read_all(&other_store, &path, 1 << 20).unwrap()).unwrap();
    assert_eq!(list(&root).unwrap().problems.len(), 1);
    backup(&root, &log).unwrap();

    for name in ["one", "two"] {
        let more = added(&store, &root, &key(Role::Writer, &[]), name);
        remove(&root, more.keys().key_id()).unwrap();
    }
    // The record of a removal is taken away, and whatever builds on it names it.
    let first = object_path("removals/0000000001");
    let removal = read_all(&store, &first, 1 << 20).unwrap();
    store.delete(std::slice::from_ref(&first)).unwrap();
    let again = by_password(&store, "root").unwrap();
    let error = begin(&again, &log).err().unwrap();
    assert!(error.to_string().starts_with("removals/0000000001: is missing"), "{error}");
    let error = add(&again, &key(Role::Writer, &[]), behind(&password("x"))).unwrap_err();
    assert!(
        matches!(error, KeyError::Damaged { ref object, .. } if object == "removals/0000000001"),
        "{error}"
    );
    // Readers are not affected.
    assert_eq!(History::read(&again, &log).unwrap().standing().count(), 1);
    store.create_if_absent(&first, b"{}").unwrap();
    assert!(begin(&by_password(&store, "root").unwrap(), &log).is_err());
    store.damage(&first, |bytes| *bytes = removal);
    begin(&by_password(&store, "root").unwrap(), &log).unwrap();
}

/// Whoever can only create objects cannot make a removed key believed, nor hide one that was added.
#[test]
fn objects_without_a_signature_change_nobodys_mind() {
    let (store, root) = new_repo();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let stolen = added(&store, &root, &key(Role::Writer, &[]), "stolen");
    backup(&writer, &log).unwrap();
    backup(&stolen, &log).unwrap();
    // While the thief still has the key, it takes numbers far ahead: they are of no use later.
    let far = [object_path("sources/db1/physical/runs/9999999998/000000"), log.outcome(RunNo(9_999_999_998))];
    let signed = forge(&stolen, &log, 9_999_999_998, OutcomeType::Abandoned, Hex([1; 32]));
    store.create_if_absent(&far[0], b"{}").unwrap();
    store.create_if_absent(&far[1], &signed).unwrap();
    remove(&root, stolen.keys().key_id()).unwrap();
    store.delete(&far).unwrap();
    let last = History::read(&root, &log).unwrap().last_hash();
    let forged = forge(&stolen, &log, 3, OutcomeType::Abandoned, last);
    let third = log.outcome(RunNo(3));
    store.create_if_absent(&third, &forged).unwrap();
    let assert_removed = |what: &str| {
        let again = by_password(&store, "root").unwrap();
        let removed = Damage::SignerRemoved { key_id: stolen.keys().key_id() };
        assert_eq!(refused(&again, &log), (third.to_string(), removed), "{what}");
        let mut whole = 0;
        History::salvage(&again, &log, &mut |_, _| whole += 1).unwrap();
        assert_eq!(whole, 1, "{what}: the others are believed");
    };
    assert_removed("as it is");
    let voucher = read_all(&store, &signer_path(writer.keys().key_id()), 1 << 20).unwrap();
    for name in ["removals/0", "removals/0000000000", "removals/x", "signers/0", "signers/zz", "rotations/0"]
    {
        store.create_if_absent(&object_path(name), b"{}").unwrap();
        assert_removed(name);
        let again = by_password(&store, "root").unwrap();
        let is_told = again.key_problems().iter().any(|(object, _)| object == name);
        assert!(is_told || name.starts_with("rotations/"), "{name} is told");
        // It blocks no writing.
        begin(&again, &LogName { source: "other".parse().unwrap(), ..log.clone() }).unwrap();
        store.delete(&[object_path(name)]).unwrap();
    }
    for number in 0..300 {
        store.create_if_absent(&object_path(&format!("signers/{number:016x}")), &voucher).unwrap();
    }
    assert_removed("many");
    // These are for operators to look at, and writers wait.
    for name in ["removals/0000000002", "removals/0000000007", "rotations/001"] {
        store.create_if_absent(&object_path(name), b"{}").unwrap();
        assert_removed(name);
        store.delete(&[object_path(name)]).unwrap();
    }
    // Even if the first is gone, those that operators have signed after it count
    // against the keys that they name.
    let more = added(&store, &root, &key(Role::Writer, &[]), "more");
    remove(&root, more.keys().key_id()).unwrap();
    let first = object_path("removals/0000000001");
    let bytes = read_all(&store, &first, 1 << 20).unwrap();
    store.delete(std::slice::from_ref(&first)).unwrap();
    store.create_if_absent(&object_path("removals/0000000003"), &bytes).unwrap();
    assert_removed("moved");
}

#[test]
fn a_key_pair_opens_what_an_operator_it_trusts_sealed_for_it() {
    let (store, root) = new_repo();
    let identity = Identity::generate();
    let unlock = |identity: &Identity| {
        Repo::unlock(Arc::new(store.clone()), Unlock::Identity(identity), None).map(Arc::new)
    };
    assert!(matches!(unlock(&identity), Err(KeyError::WrongIdentity { .. })));
    let info = add(&root, &key(Role::Operator, &[]), NewSlot::Public(identity.public())).unwrap();
    assert_eq!(info.slot, manage::SlotInfo::Public(identity.public()));
    let Err(KeyError::Untrusted { trusted: found, .. }) = unlock(&identity) else {
        panic!("believed anybody")
    };
    assert_eq!(found, trusted(&root));
    let identity = identity.trusting(found);
    let opened = unlock(&identity).unwrap();
    backup(&opened, &log("db1")).unwrap();
    assert_eq!(History::read(&root, &log("db1")).unwrap().standing().count(), 1);
    assert!(matches!(unlock(&Identity::generate()), Err(KeyError::WrongIdentity { .. })));

    // Somebody who can write to the store seals other keys for it.
    let (other_store, other) = new_repo();
    let theirs = add(&other, &key(Role::Operator, &[]), NewSlot::Public(identity.public())).unwrap();
    let path = |id| object_path(&format!("keys/{id}"));
    let forged = read_all(&other_store, &path(theirs.key_id), 1 << 20).unwrap();
    store.delete(&[path(info.key_id)]).unwrap();
    store.create_if_absent(&path(theirs.key_id), &forged).unwrap();
    let error = unlock(&identity).unwrap_err();
    assert!(matches!(error, KeyError::Untrusted { .. } | KeyError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains(&theirs.key_id.to_string()), "{error}");
}

#[test]
fn after_a_rotation_what_is_new_opens_for_those_who_have_a_share() {
    let (store, root) = new_repo();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let leaving = added(&store, &root, &key(Role::Operator, &[]), "leaving");
    backup(&writer, &log).unwrap();
    remove(&root, leaving.keys().key_id()).unwrap();
    assert_eq!(rotate(&root).unwrap(), Rotated { number: 1, keys: 2 });
    assert!(matches!(rotate(&leaving), Err(KeyError::Removed { .. })));

    // A process that has run since before seals for the new keys with its next run, and reads
    // what others have sealed for them.
    let run = backup(&writer, &log).unwrap();
    for path in [log.report(run), log.outcome(run)] {
        let bytes = read_all(&store, &path, 1 << 20).unwrap();
        let header = if path == log.report(run) { 0 } else { 8 };
        assert_eq!(bytes[header + 7], 1, "{path}");
    }
    assert_eq!(root.keys().rotations(), 0);
    assert_eq!(History::read(&root, &log).unwrap().head(&root, run).unwrap(), head_of(&log, run));
    let expire = ExpireRequest::Exactly(vec![run]);
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    crate::ops::expire::expire(&root, &log, &expire, &options).unwrap();

    // New keys, on the same pages.
    let writer = by_password(&store, "writer").unwrap();
    assert_eq!(writer.keys().rotations(), 1);
    backup(&writer, &log).unwrap();
    let root = by_password(&store, "root").unwrap();
    let late = added(&store, &root, &key(Role::Operator, &[]), "late");
    for repo in [&root, &late] {
        let history = History::read(repo, &log).unwrap();
        for run in [RunNo(1), RunNo(4)] {
            assert_eq!(history.head(repo, run).unwrap(), head_of(&log, run));
        }
    }
    assert_eq!(root.keys().hash_key().unwrap().expose(), leaving.keys().hash_key().unwrap().expose());
    // The copied keys open what was sealed before, and nothing since.
    let report = |run| Place { log: &log, kind: ObjectKind::Report, run, part: 0 };
    leaving.read_object(&report(RunNo(1)), 100).unwrap();
    let error = leaving.read_object(&report(RunNo(4)), 100).unwrap_err();
    assert!(matches!(error, RepoError::Damaged { damage: Damage::NewerKeys { rotation: 1 }, .. }), "{error}");

    assert_eq!(rotate(&late).unwrap(), Rotated { number: 2, keys: 3 });
    assert_eq!(rotate(&root).unwrap().number, 3, "with keys that were opened before");
    // Without the record, nobody silently goes back to the old keys.
    let second = object_path("rotations/002");
    store.damage(&second, |bytes| bytes[40] ^= 1);
    let error = begin(&by_password(&store, "root").unwrap(), &log).err().unwrap();
    assert!(error.to_string().starts_with("rotations/002: "), "{error}");
    store.delete(&[second]).unwrap();
    let error = begin(&by_password(&store, "writer").unwrap(), &log).err().unwrap();
    assert!(error.to_string().starts_with("rotations/002: is missing"), "{error}");
}

/// An operator rotates while another removes his key: either the rotation counts, or somebody is told.
#[test]
fn a_rotation_beside_a_removal_counts_or_is_named() {
    let sound = |store: &MemStore| by_password(store, "root").unwrap().require_sound_keys().is_ok();
    let first = object_path("rotations/001");
    let named =
        |error: KeyError| matches!(error, KeyError::RotationRefused { object } if object == "rotations/001");
    let beside_removal = |is_it: fn(&Call<'_>) -> bool| {
        let (store, root) = new_repo();
        let leaving = added(&store, &root, &key(Role::Operator, &[]), "leaving");
        let id = leaving.keys().key_id();
        let rotates = once(is_it, move || {
            assert_eq!(rotate(&leaving).unwrap().number, 1);
            None
        });
        let removed = remove(&beside(&store, "root", rotates), id);
        (store, root, id, removed)
    };

    let (store, .., removed) = beside_removal(|call| call.op == Op::Now);
    assert_eq!(removed.unwrap(), []);
    assert!(sound(&store), "the removal knows the rotation");

    let (store, root, id, removed) =
        beside_removal(|call| call.op == Op::Create && call.path.starts_with("removals/"));
    assert!(named(removed.unwrap_err()));
    assert!(!sound(&store));
    store.delete(std::slice::from_ref(&first)).unwrap();
    assert_eq!(remove(&root, id).unwrap(), []);
    assert!(sound(&store));

    let (store, root) = new_repo();
    let id = added(&store, &root, &key(Role::Operator, &[]), "leaving").keys().key_id();
    let late = once(
        |call| call.op == Op::Create && call.path.starts_with("rotations/"),
        move || {
            assert_eq!(remove(&root, id).unwrap(), []);
            None
        },
    );
    assert!(named(rotate(&beside(&store, "leaving", late)).unwrap_err()));
    store.delete(&[first]).unwrap();
    assert!(sound(&store));
    assert_eq!(rotate(&by_password(&store, "root").unwrap()).unwrap(), Rotated { number: 1, keys: 1 });
}

/// Each of these is refused by name, whoever wrote it.
#[test]
fn outcomes_are_believed_in_their_own_place_only() {
    let (store, root) = new_repo();
    let (log, twin) = (log("db1"), log("db2"));
    for _ in 0..3 {
        backup(&root, &log).unwrap();
    }
    backup(&root, &twin).unwrap();
    let (other_store, other) = new_repo();
    backup(&other, &log).unwrap();
    let bytes =
        |store: &MemStore, log: &LogName, run| read_all(store, &log.outcome(RunNo(run)), 1 << 20).unwrap();
    let honest: Vec<Vec<u8>> = (1..=3).map(|run| bytes(&store, &log, run)).collect();
    let history = History::read(&root, &log).unwrap();
    let put = |run, bytes: &[u8]| store.damage(&log.outcome(RunNo(run)), |there| *there = bytes.to_vec());

    let cases: [(u64, &str, Vec<u8>); 7] = [
        (3, "an older outcome", honest[1].clone()),
        (1, "another source's", bytes(&store, &twin, 1)),
        (1, "another repository's", bytes(&other_store, &log, 1)),
        (2, "cut off", honest[1][..honest[1].len() - 1].to_vec()),
        (2, "longer", [&honest[1][..], &[0]].concat()),
        (2, "signed over", [&honest[1][..honest[1].len() - 64], &[7; 64]].concat()),
        (3, "out of the chain", forge(&root, &log, 3, OutcomeType::Abandoned, history.outcomes()[0].hash)),
    ];
    for (run, what, forged) in cases {
        assert!(put(run, &forged), "{what}");
        let (object, damage) = refused(&root, &log);
        assert_eq!(object, log.outcome(RunNo(run)).to_string(), "{what}");
        let expected = match what {
            "out of the chain" => damage == Damage::Chain,
            "cut off" | "longer" => matches!(damage, Damage::Format(_)),
            _ => damage == Damage::Signature,
        };
        assert!(expected, "{what}: {damage}");
        assert!(put(run, &honest[run as usize - 1]));
    }
    store.delete(&[log.outcome(RunNo(2))]).unwrap();
    let (object, damage) = refused(&root, &log);
    assert_eq!((object, damage), (log.outcome(RunNo(2)).to_string(), Damage::Missing));
}
