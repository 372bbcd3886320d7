//! A store that keeps versions, and an attacker who hides its contents.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    Damage, Folder, Kind, LogName, Password, Protection, Repo, RepoError, RunNo,
    data::writer::WriterOptions,
    forward_store,
    interrupt::Interrupt,
    keys::KdfParams,
    log::run::{BeginError, Run},
    ops::{
        expire::{ExpireRequest, expire},
        object_lock::{ExtendOptions, extend},
        prune::{PruneOptions, prune, sweep},
    },
    store::{
        ObjectPath, RemoteCause, RemoteError, Store, StoreError, StoreErrorKind,
        locks::{self, Extend, Extended, LockMode, NoncurrentVersion, ObjectLock, Overwritten, Versioned},
        mem::{ManualClock, MemStore},
    },
};

use crate::world::*;

/// A store in which deletion without a version id only hides: the objects beneath a deletion marker, or
/// beneath another object, are kept.
#[derive(Clone)]
struct Keeping {
    memory: MemStore,
    beneath: Arc<Mutex<BTreeSet<ObjectPath>>>,
    extended: Arc<Mutex<BTreeSet<ObjectPath>>>,
    /// Whether versions cannot be listed.
    is_secret: bool,
}

impl Keeping {
    fn hide(&self, path: &ObjectPath) {
        self.memory.delete(std::slice::from_ref(path)).unwrap();
        self.lock().insert(path.clone());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<ObjectPath>> {
        self.beneath.lock().unwrap()
    }

    /// The same store as seen by other clients.
    fn seen(&self, is_secret: bool) -> Self {
        Self { is_secret, ..self.clone() }
    }

    fn require_shown(&self, path: &str) -> Result<(), StoreError> {
        if !self.is_secret {
            return Ok(());
        }
        let (place, detail) = Default::default();
        let error = RemoteError { place, cause: RemoteCause::Denied, detail };
        Err(StoreError { path: path.to_owned(), kind: StoreErrorKind::Remote(error) })
    }
}

impl Store for Keeping {
    forward_store!(
        self => self.memory;
        location, put, create_if_absent, read_exact_at, head, list, list_folders, now, free_bytes
    );

    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError> {
        paths.iter().for_each(|path| self.hide(path));
        Ok(())
    }

    fn versioned(&self) -> Option<&dyn Versioned> {
        Some(self)
    }
}

impl Versioned for Keeping {
    fn protection(&self) -> Result<locks::VersionProtection, StoreError> {
        let (versions, locks) = (Some(true), Some(true));
        Ok(locks::VersionProtection { versions, suspended: false, locks, locks_by_default: false })
    }

    fn lock_new(&self, _: ObjectLock, _: fn(&ObjectPath) -> bool) {}

    fn locked_until(&self, _: &ObjectPath) -> Result<Option<SystemTime>, StoreError> {
        Ok(Some(SystemTime::now() + Duration::from_secs(365 * 86_400)))
    }

    fn extend(&self, prefix: &str, what: &Extend<'_>) -> Result<Extended, StoreError> {
        let mut wanted: BTreeSet<ObjectPath> = self.lock().clone();
        self.memory.list(prefix, &mut |info| {
            wanted.insert(info.path);
            true
        })?;
        wanted.retain(|path| path.as_str().starts_with(prefix) && (what.wanted)(path));
        self.extended.lock().unwrap().extend(wanted);
        Ok(Extended::default())
    }

    /// All locks have ended.
    fn delete_versions(&self, paths: &[ObjectPath]) -> Result<Vec<locks::StillLocked>, StoreError> {
        self.memory.delete(paths).map(|()| Vec::new())
    }

    fn noncurrent_version(&self, path: &ObjectPath) -> Result<Option<NoncurrentVersion>, StoreError> {
        self.require_shown(path.as_str())?;
        let is_hidden = self.memory.head(path).is_err();
        Ok(self
            .lock()
            .contains(path)
            .then_some(NoncurrentVersion { is_hidden, since: SystemTime::UNIX_EPOCH }))
    }

    fn folders_ever(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.memory.list_folders(prefix)
    }

    fn noncurrent_versions(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(ObjectPath, NoncurrentVersion),
    ) -> Result<(), StoreError> {
        self.require_shown(prefix)?;
        let below: Vec<ObjectPath> =
            self.lock().iter().filter(|path| path.as_str().starts_with(prefix)).cloned().collect();
        for path in below {
            if let Some(beneath) = self.noncurrent_version(&path)? {
                each(path, beneath);
            }
        }
        Ok(())
    }

    fn overwritten(&self, _: &mut dyn FnMut(Overwritten)) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A repository in which everything is locked, and its store.
fn locked_world(clock: &ManualClock) -> (Keeping, World) {
    let memory = MemStore::with_clock(clock.clone());
    let (beneath, extended) = Default::default();
    let store = Keeping { memory: memory.clone(), beneath, extended, is_secret: false };
    let lock = ObjectLock::new(LockMode::Governance, Duration::from_secs(30 * 86_400)).unwrap();
    let password = Password::new("x".to_owned()).unwrap();
    let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
    let repo = Arc::new(Repo::init_locked(Arc::new(store.clone()), &protection, Some(lock)).unwrap());
    let log = LogName { source: "db1".parse().unwrap(), kind: Kind::Physical };
    (store, World { store: memory, repo, log, suite: Suite::X25519Aes256Gcm })
}

fn at_once() -> PruneOptions {
    PruneOptions { grace: Duration::ZERO, resume_window: Duration::ZERO, ..PruneOptions::default() }
}

/// The number of objects in a folder of the log, by run.
fn stored(world: &World, folder: Folder) -> BTreeMap<u64, usize> {
    let mut runs = BTreeMap::new();
    world
        .store
        .list(&world.log.folder(folder), &mut |info| {
            let name = info.path.as_str().rsplit('/').next().unwrap();
            *runs.entry(name[..10].parse().unwrap()).or_default() += 1;
            true
        })
        .unwrap();
    runs
}

/// Two full backups; the outcome of the second is hidden, and its lease has expired.
fn world_with_a_hidden_end() -> (Keeping, World) {
    let clock = ManualClock::default();
    let (store, world) = locked_world(&clock);
    let mut random = Random::new(31);
    let mut source = Source::new();
    for _ in 0..2 {
        source.insert("t".into(), SourceFile::random(&mut random, 1024, 3_000 * 1024));
        world.backup(&source, WriterOptions::default());
    }
    clock.advance(Duration::from_secs(20 * 60));
    store.hide(&world.log.outcome(RunNo(2)));
    (store, world)
}

fn is_hidden(error: &RepoError) -> bool {
    let RepoError::History { damage, .. } = error else { return false };
    matches!(&**damage, RepoError::Damaged { damage: Damage::Hidden, .. })
}

#[test]
fn a_run_whose_outcome_is_hidden_is_not_ended_again() {
    let (store, world) = world_with_a_hidden_end();
    let packs = stored(&world, Folder::Packs);
    let refused = |what: &str| {
        match Run::begin(&world.repo, &world.log, &run_options()) {
            Err(BeginError::Repo(error)) => assert!(is_hidden(&error), "{what}: {error}"),
            other => panic!("{what}: {:?}", other.map(|run| run.no())),
        }
        // A sweep needs no run, and a prune with nothing to declare does not begin one.
        let _ = prune(&world.repo, &world.log, &at_once(), None, &run_options());
        assert_eq!(stored(&world, Folder::Packs), packs, "{what}");
        assert_eq!(stored(&world, Folder::Outcomes).keys().collect::<Vec<_>>(), [&1], "{what}");
    };
    refused("with its lease");
    store
        .memory
        .list(&world.log.folder(Folder::Runs), &mut |info| {
            store.hide(&info.path);
            true
        })
        .unwrap();
    refused("without");
}

#[test]
fn what_a_hidden_outcome_stood_for_stays_after_it_was_covered() {
    let (store, world) = world_with_a_hidden_end();
    // A host that may not list versions does not notice it.
    let host = Arc::new(open_repo(Arc::new(store.seen(true)), world.suite));
    let host = world.with_repo(host);
    let mut random = Random::new(32);
    let source: Source = [("t".into(), SourceFile::random(&mut random, 1024, 3_000 * 1024))].into();
    for _ in 3..=5 {
        host.backup_with(WriterOptions::default(), |writer| give_all(writer, &source, 1));
    }
    let dropped = ExpireRequest::Exactly(vec![RunNo(1), RunNo(4)]);
    expire(&world.repo, &world.log, &dropped, &run_options()).unwrap();

    let packs = stored(&world, Folder::Packs);
    for _ in 0..2 {
        prune(&world.repo, &world.log, &at_once(), None, &run_options()).unwrap();
    }
    let left = stored(&world, Folder::Packs);
    for run in [1, 2, 3, 5] {
        assert_eq!(left.get(&run), packs.get(&run), "packs of {run}");
    }
    for folder in [Folder::Index, Folder::Refs] {
        let left = stored(&world, folder);
        assert!(left.contains_key(&1) && left.contains_key(&2), "{folder:?}: {left:?}");
    }
    let swept = sweep(&world.repo, &world.history(), &at_once()).unwrap();
    assert_eq!(swept.kept_packs as usize, packs[&1] + packs[&2], "{swept:?}");

    let options =
        ExtendOptions { margin: Duration::from_secs(1), dry_run: false, interrupt: Interrupt::default() };
    let mut told = Vec::new();
    extend(&world.repo, &options, &mut |part| told.extend(part.unknown.map(|error| error.to_string())))
        .unwrap();
    assert!(told.len() == 1 && told[0].contains("0000000002: was overwritten"), "{told:?}");
    let extended = store.extended.lock().unwrap();
    for run in [1, 2] {
        let pack = world.log.pack(holdfast_repo::PackId { run: RunNo(run), part: 0 });
        assert!(extended.contains(&pack) && extended.contains(&world.log.refs(RunNo(run))), "{run}");
    }
}
