//! An opened repository: a store and the keys to it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex},
};

use holdfast_pipe::{HashKey, ObjectKey, Suite, lock::lock};
use jiff::Timestamp;
use ring::signature::{ED25519, UnparsedPublicKey};

use crate::{
    error::{Damage, RepoError},
    format::{
        hex::{Hex, Secret32},
        names::{Folder, Kind, LogName, RunNo, SourceName},
        place::{HEADER_BYTES, Place, SecretKind},
    },
    keys::{
        self, Act, Author, KeyError, KeyId, KeyMaterial, Password, Protection, RepositoryInfo, Role, Unlock,
        trust::Trust, wrap::unwrap,
    },
    sealed::{
        RunSecrets, WrappedSecret, check_header, key_from_secret, open_frames, seal_object,
        sealed_limit_bytes,
    },
    store::{
        ObjectInfo, ObjectPath, Store, StoreError,
        insistent::Insistent,
        listed::Listed,
        locks::{self, ObjectLock, StillLocked},
        read_all, read_known,
    },
    witness::Witness,
};

/// What a look at the keys found that began after something was listed; nothing as long as nobody has looked.
#[derive(Default)]
pub(crate) struct Looked(Mutex<Option<Arc<Trust>>>);

/// A store and the keys to it. Can be shared between threads.
pub struct Repo {
    store: Arc<dyn Store>,
    keys: Arc<KeyMaterial>,
    trust: Mutex<Arc<Trust>>,
    /// Signers that were still unknown after the keys in the store were read again.
    strangers: Mutex<HashSet<Hex<32>>>,
    /// Rotations that a header named before they were known, and for which the keys were read again.
    missed: Mutex<HashSet<u8>>,
    /// Cached, because unwrapping is a public-key operation, and all packs of a run share one secret.
    unwrapped: Mutex<HashMap<WrappedSecret, Secret32>>,
    /// What the client has seen of logs before.
    witness: Arc<Witness>,
}

impl fmt::Debug for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Repo({})", self.store.location())
    }
}

impl Repo {
    /// Creates a repository in an empty store.
    pub fn init(store: Arc<dyn Store>, protection: &Protection<'_>) -> Result<Self, KeyError> {
        Self::init_locked(store, protection, None)
    }

    /// As [`init`](Self::init); with `object_lock`, everything that lasts is to be locked.
    pub fn init_locked(
        store: Arc<dyn Store>,
        protection: &Protection<'_>,
        object_lock: Option<ObjectLock>,
    ) -> Result<Self, KeyError> {
        let (keys, trust) = keys::init(&*store, protection, object_lock)?;
        Ok(Self::with_keys(store, keys, trust))
    }

    /// Opens a repository with a password, if one is given; see [`unlock`](Self::unlock).
    pub fn open(store: Arc<dyn Store>, password: Option<&Password>) -> Result<Self, KeyError> {
        Self::unlock(store, password.map_or(Unlock::Nothing, Unlock::Password), None)
    }

    /// Opens a repository with any of its keys, or with the one that is named.
    ///
    /// If a password is given, a repository without encryption is refused: whoever can write the store could
    /// have put it in the place of an encrypted one.
    pub fn unlock(store: Arc<dyn Store>, unlock: Unlock<'_>, only: Option<KeyId>) -> Result<Self, KeyError> {
        let (keys, trust) = keys::open(&*store, unlock, only)?;
        Ok(Self::with_keys(store, keys, trust))
    }

    fn with_keys(store: Arc<dyn Store>, keys: KeyMaterial, trust: Trust) -> Self {
        Self::sharing(store, Arc::new(keys), Arc::new(trust))
    }

    fn sharing(store: Arc<dyn Store>, keys: Arc<KeyMaterial>, trust: Arc<Trust>) -> Self {
        let (strangers, missed, unwrapped) = Default::default();
        let witness = Arc::default();
        Self { store, keys, trust: Mutex::new(trust), strangers, missed, unwrapped, witness }
    }

    /// The same repository, whose logs are compared with what was seen of them before.
    #[must_use]
    pub fn witnessed(self, witness: Arc<Witness>) -> Self {
        Self { witness, ..self }
    }

    pub(crate) fn witness(&self) -> &Witness {
        &self.witness
    }

    /// The same repository for work that gives up what is lost: an object that cannot be read at the moment fails it.
    pub(crate) fn insisting(&self) -> Self {
        self.over(Arc::new(Insistent(Arc::new(Listed::new(Arc::clone(&self.store))))))
    }

    /// The same repository for work that tells what is missing: an object that is listed, but not delivered, is not.
    pub(crate) fn listed(&self) -> Self {
        self.over(Arc::new(Listed::new(Arc::clone(&self.store))))
    }

    fn over(&self, store: Arc<dyn Store>) -> Self {
        let repo = Self::sharing(store, Arc::clone(&self.keys), Arc::clone(&lock(&self.trust)));
        Self { witness: Arc::clone(&self.witness), ..repo }
    }

    /// Checks that the key at hand and the store allow `act`;
    /// `doing` names the operation in the error: "a restore".
    pub fn require(&self, act: Act, doing: &'static str) -> Result<(), RepoError> {
        if !self.keys.role().may(act) {
            return Err(RepoError::not_allowed(self.keys.role(), act, doing));
        }
        // A copy of the objects in a store without versions can be read, but nothing there keeps the promise
        // of locks. Whether a store that keeps versions can lock takes requests to find out;
        // that is checked when a run begins.
        if act != Act::Read && self.info().object_lock.is_some() && self.store.versioned().is_none() {
            return Err(self.no_locks(doing));
        }
        Ok(())
    }

    /// The error that `doing` takes a store that can lock.
    pub(crate) fn no_locks(&self, doing: &'static str) -> RepoError {
        RepoError::NoLocks { location: self.store.location(), doing }
    }

    /// Checks that the store can lock if the repository is to be locked:
    /// its objects may have been copied to another store.
    pub(crate) fn require_locks(&self, doing: &'static str) -> Result<(), RepoError> {
        match self.info().object_lock.is_some() && locks::why_none(&*self.store)?.is_some() {
            true => Err(self.no_locks(doing)),
            false => Ok(()),
        }
    }

    /// Deletes garbage for good. Returns the objects that stay because they are locked.
    pub(crate) fn discard(&self, paths: &[ObjectPath]) -> Result<Vec<StillLocked>, StoreError> {
        match self.store.versioned().filter(|_| self.info().object_lock.is_some()) {
            Some(versioned) => versioned.delete_versions(paths),
            None => self.store.delete(paths).map(|()| Vec::new()),
        }
    }

    /// Whether Holdfast itself never hides an object of this name with a delete marker.
    #[must_use]
    pub fn is_never_hidden(&self, path: &ObjectPath) -> bool {
        let trust = Arc::clone(&lock(&self.trust));
        let is_other_key = path
            .as_str()
            .strip_prefix("keys/")
            .is_some_and(|name| !name.parse().is_ok_and(|key_id| trust.stands(key_id)));
        self.info().object_lock.is_some() && keys::lasts(path) && !is_other_key
    }

    /// Whether backups made with the key at hand may rely, unread, on what a
    /// backup by `author` says is stored.
    ///
    /// If it says so wrongly, no backup that relies on it can be restored. The key's own backups are
    /// relied on, and those of operators, who can do everything anyway; not those of other writers, whose
    /// hosts may have been taken over.
    #[must_use]
    pub fn may_build_on(&self, author: &Author) -> bool {
        author.role == Role::Operator || author.key_id == self.keys.key_id()
    }

    /// Whether the key at hand can read the contents of backups.
    #[must_use]
    pub fn can_read(&self) -> bool {
        self.keys.role().may(Act::Read)
    }

    /// The store's clock, which decides everything that depends on time.
    pub fn now(&self) -> Result<Timestamp, RepoError> {
        // The epoch is earlier than any real time: it ends no hold, and is the worst that a broken
        // clock can put into an outcome.
        Ok(Timestamp::try_from(self.store.now()?).unwrap_or(Timestamp::UNIX_EPOCH))
    }

    /// Reads again whose signatures are believed, and keeps the result.
    pub(crate) fn look_again(&self) -> Result<Arc<Trust>, StoreError> {
        let trust = Arc::new(keys::look(&*self.store, &self.keys)?);
        *lock(&self.trust) = Arc::clone(&trust);
        Ok(trust)
    }

    /// Records about keys that are not believed and count for nothing, each with what is wrong with it.
    #[must_use]
    pub fn key_problems(&self) -> Vec<(String, Damage)> {
        let trust = Arc::clone(&lock(&self.trust));
        let rotation = self.keys.rotation_problem().map(|(path, damage)| (path.to_string(), damage));
        trust.problems().iter().cloned().chain(rotation).collect()
    }

    /// Keys that an operator had added who was removed then, so that nobody vouches for them.
    pub(crate) fn dropped_keys(&self) -> Vec<KeyId> {
        lock(&self.trust).dropped().map(|(dropped, _)| dropped).collect()
    }

    /// The first of the problems with keys that blocks all writing.
    pub(crate) fn blocking(&self, trust: &Trust) -> Option<(String, Damage)> {
        let rotation = || self.keys.rotation_problem().map(|(path, damage)| (path.to_string(), damage));
        trust.blocking().cloned().or_else(rotation)
    }

    /// Checks that nothing is wrong with the records of keys that every writer must go by.
    pub(crate) fn require_sound_keys(&self) -> Result<(), RepoError> {
        let trust = Arc::clone(&lock(&self.trust));
        match self.blocking(&trust) {
            Some((object, damage)) => Err(RepoError::Damaged { object, damage }),
            None => Ok(()),
        }
    }

    /// Checks that an outcome of `run`, signed by the key at hand, would be believed:
    /// the key may have been removed since the repository was opened, and an outcome that nobody
    /// believes would end the log for good.
    pub(crate) fn require_believed(&self, log: &LogName, run: RunNo) -> Result<(), RepoError> {
        match self.look_again()?.author(self.keys.signing_public(), log, run, None) {
            Ok(_) => Ok(()),
            Err(damage) => Err(RepoError::NotBelieved { log: log.clone(), damage }),
        }
    }

    /// Whether `message` was signed by the holder of `signer`, whoever that is.
    pub(crate) fn is_signature(signer: Hex<32>, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, signer.0).verify(message, signature).is_ok()
    }

    /// The key that signed `message`, which is about `run`, if the key is believed. If the signature is part
    /// of the run's outcome, `outcome` holds the bytes of that.
    pub(crate) fn author(
        &self,
        log: &LogName,
        run: RunNo,
        signer: Hex<32>,
        message: &[u8],
        signature: &[u8],
        outcome: Option<&[u8]>,
    ) -> Result<Result<Author, Damage>, RepoError> {
        if !Self::is_signature(signer, message, signature) {
            return Ok(Err(Damage::Signature));
        }
        let mut trust = Arc::clone(&lock(&self.trust));
        // The key may have been added since the last look.
        if !trust.knows(signer) && !lock(&self.strangers).contains(&signer) {
            trust = self.look_again()?;
            if !trust.knows(signer) {
                lock(&self.strangers).insert(signer);
            }
        }
        Ok(trust.author(signer, log, run, outcome))
    }

    /// Sees to it that the signer of an object listed before `looked` was made is known, or known to be a stranger.
    /// Whoever could have signed it was vouched for by then, so one look is enough for all that was listed.
    pub(crate) fn meet(&self, signer: Hex<32>, looked: &Looked) -> Result<(), StoreError> {
        if lock(&self.trust).knows(signer) || lock(&self.strangers).contains(&signer) {
            return Ok(());
        }
        let mut looked = lock(&looked.0);
        let trust = match &*looked {
            Some(trust) => trust,
            None => looked.insert(self.look_again()?),
        };
        if !trust.knows(signer) {
            lock(&self.strangers).insert(signer);
        }
        Ok(())
    }

    /// The last run of a log that has an outcome, according to the removals of keys.
    pub(crate) fn newest_known(&self, log: &LogName) -> Option<RunNo> {
        lock(&self.trust).newest_known(log)
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The keys.
    #[must_use]
    pub fn keys(&self) -> &KeyMaterial {
        &self.keys
    }

    /// Id, suite and age of the repository.
    #[must_use]
    pub fn info(&self) -> &RepositoryInfo {
        self.keys.repository()
    }

    /// The key for page hashes.
    pub fn hash_key(&self) -> Result<&HashKey, RepoError> {
        let refused = || RepoError::not_allowed(self.keys.role(), Act::Backup, "comparing pages");
        self.keys.hash_key().ok_or_else(refused)
    }

    /// Draws the secret for the packs and index parts of a run.
    pub fn draw_secrets(&self, log: &LogName, run: RunNo) -> Result<RunSecrets, RepoError> {
        let secrets = RunSecrets::draw(&self.keys, log, run)?;
        // This process can open what it has sealed, whatever the role of its key.
        let (wrapped, secret) = secrets.unwrapped();
        lock(&self.unwrapped).insert(wrapped, secret);
        Ok(secrets)
    }

    /// The key of the object at `place`, from the header of the object. Errors name the object.
    pub fn object_key(&self, place: &Place<'_>, header: &[u8; HEADER_BYTES]) -> Result<ObjectKey, RepoError> {
        let wrapped = match check_header(&self.keys, place, header) {
            // Keys may have been rotated since the last look.
            Err(RepoError::Damaged { damage: Damage::NewerKeys { rotation }, .. }) => {
                // Other threads that meet this rotation wait here.
                // If the look fails, the next one tries again.
                let mut missed = lock(&self.missed);
                if !missed.contains(&rotation) {
                    self.look_again()?;
                    missed.insert(rotation);
                }
                drop(missed);
                check_header(&self.keys, place, header)?
            }
            wrapped => wrapped?,
        };
        let secret = match self.info().suite {
            Suite::None => Secret32([0; 32]),
            Suite::X25519Aes256Gcm => self.unwrap(place, &wrapped)?,
        };
        Ok(key_from_secret(&self.keys, place, &secret))
    }

    fn unwrap(&self, place: &Place<'_>, wrapped: &WrappedSecret) -> Result<Secret32, RepoError> {
        if let Some(secret) = lock(&self.unwrapped).get(wrapped) {
            return Ok(secret.clone());
        }
        let private = match place.kind.secret() {
            SecretKind::Read => self.keys.read_private(wrapped.rotation),
            SecretKind::Refs => self.keys.refs_private(wrapped.rotation),
        };
        let private = private
            .ok_or_else(|| RepoError::NotReadable { object: place.to_string(), role: self.keys.role() })?;
        let secret = unwrap(self.info().repository_id, private, &wrapped.encapsulated, &wrapped.wrapped)
            .ok_or_else(|| RepoError::damaged(place, Damage::Sealed { what: "its secret" }))?;
        lock(&self.unwrapped).insert(*wrapped, secret.clone());
        Ok(secret)
    }

    /// Opens a whole sealed object that is in memory, of at most `plain_limit` bytes before sealing.
    pub fn open_object(
        &self,
        place: &Place<'_>,
        object: &[u8],
        plain_limit: u64,
    ) -> Result<Vec<u8>, RepoError> {
        open_frames(&self.key_of(place, object)?, place, object, plain_limit)
    }

    /// The key of a whole object that is in memory.
    pub(crate) fn key_of(&self, place: &Place<'_>, object: &[u8]) -> Result<ObjectKey, RepoError> {
        let header = object.first_chunk::<HEADER_BYTES>();
        self.object_key(place, header.ok_or_else(|| RepoError::damaged(place, Damage::NoHeader))?)
    }

    /// Reads a sealed object of at most `plain_limit` bytes before sealing.
    pub fn read_object(&self, place: &Place<'_>, plain_limit: u64) -> Result<Vec<u8>, RepoError> {
        self.read_known_object(place, None, plain_limit)
    }

    /// As [`read_object`](Self::read_object), for an object that a listing may have returned.
    pub(crate) fn read_known_object(
        &self,
        place: &Place<'_>,
        listed: Option<&ObjectInfo>,
        plain_limit: u64,
    ) -> Result<Vec<u8>, RepoError> {
        let object = read_known(&*self.store, &place.path(), listed, sealed_limit_bytes(plain_limit))?;
        self.open_object(place, &object, plain_limit)
    }

    /// Seals and writes an object with a secret of its own: refs, a report.
    pub fn write_object(&self, place: &Place<'_>, plain: &[u8]) -> Result<ObjectInfo, RepoError> {
        let object = seal_object(&self.keys, place, plain)?;
        self.put(place, &object)
    }

    /// Stores a whole object that was sealed for `place`.
    pub fn put(&self, place: &Place<'_>, object: &[u8]) -> Result<ObjectInfo, RepoError> {
        let mut upload = self.store.put(&place.path())?;
        for block in object.chunks(1 << 20) {
            upload.write(block)?;
        }
        match upload.finish() {
            // An earlier attempt stored it, and its reply got lost.
            Err(error) if error.is_exists() && self.holds(place, object) => {}
            done => drop(done?),
        }
        self.kept(&place.path(), object.len() as u64)
    }

    /// Looks once more for an object after the store has confirmed it: no backup, nor a prune that gives up
    /// the originals, may rely on an object that a store has confirmed but does not have.
    pub(crate) fn kept(&self, path: &ObjectPath, size_bytes: u64) -> Result<ObjectInfo, RepoError> {
        let info = self.store.head(path).map_err(RepoError::of_needed)?;
        match info.size_bytes == size_bytes {
            true => Ok(info),
            false => Err(RepoError::malformed(path, "it is not as long as what was stored")),
        }
    }

    fn holds(&self, place: &Place<'_>, object: &[u8]) -> bool {
        read_all(&*self.store, &place.path(), object.len() as u64).is_ok_and(|found| found == object)
    }

    /// The objects of one folder of a log, by run and part. Unknown names are skipped.
    pub(crate) fn list_folder(
        &self,
        log: &LogName,
        folder: Folder,
    ) -> Result<BTreeMap<(RunNo, u32), ObjectInfo>, RepoError> {
        let prefix = log.folder(folder);
        let mut objects = BTreeMap::new();
        self.store.list(&prefix, &mut |info| {
            let name = info.path.as_str().strip_prefix(&prefix).unwrap_or_default();
            if let Some(key) = folder.parse(name) {
                objects.insert(key, info);
            }
            true
        })?;
        Ok(objects)
    }

    /// All logs that have objects, in order. Unknown names are skipped.
    pub fn logs(&self) -> Result<Vec<LogName>, RepoError> {
        self.logs_in(&|prefix| self.store.list_folders(prefix))
    }

    /// As [`logs`](Self::logs), with the logs of which everything was deleted,
    /// in a store that keeps versions.
    pub(crate) fn logs_ever(
        &self,
        versioned: &dyn crate::store::locks::Versioned,
    ) -> Result<Vec<LogName>, RepoError> {
        self.logs_in(&|prefix| versioned.folders_ever(prefix))
    }

    fn logs_in(
        &self,
        folders: &dyn Fn(&str) -> Result<Vec<String>, StoreError>,
    ) -> Result<Vec<LogName>, RepoError> {
        let mut logs = Vec::new();
        for source in folders("sources/")? {
            let Ok(source) = source.parse::<SourceName>() else { continue };
            let kinds = folders(&format!("sources/{source}/"))?;
            let kinds = kinds.iter().filter_map(|kind| kind.parse::<Kind>().ok());
            logs.extend(kinds.map(|kind| LogName { source: source.clone(), kind }));
        }
        logs.sort();
        Ok(logs)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{format::place::ObjectKind, keys::KdfParams, store::mem::MemStore};

    /// Larger than any object here.
    const LIMIT: u64 = 1 << 20;

    pub(crate) fn new_repo(suite: Suite) -> (MemStore, Repo) {
        new_repo_at(suite, &|store| store)
    }

    /// The same, with the store wrapped by `way`.
    pub(crate) fn new_repo_at(
        suite: Suite,
        way: &dyn Fn(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> (MemStore, Repo) {
        let store = MemStore::new();
        let password = Password::new("x".to_owned()).unwrap();
        let protection = match suite {
            Suite::None => Protection::None,
            Suite::X25519Aes256Gcm => Protection::Password { password: &password, kdf: KdfParams::MINIMUM },
        };
        let repo = Repo::init(way(Arc::new(store.clone())), &protection).unwrap();
        (store, repo)
    }

    pub(crate) fn log() -> LogName {
        LogName { source: "db1".parse().unwrap(), kind: Kind::Physical }
    }

    fn place(log: &LogName, kind: ObjectKind, run: u64) -> Place<'_> {
        Place { log, kind, run: RunNo(run), part: 0 }
    }

    #[test]
    fn objects_of_any_length_come_back() {
        for suite in [Suite::None, Suite::X25519Aes256Gcm] {
            let (_, repo) = new_repo(suite);
            let log = log();
            for (run, len) in [(1, 0), (2, 1), (3, 1 << 20), (4, (1 << 20) + 1), (5, 3 << 20)] {
                let plain: Vec<u8> = (0..len).map(|i: usize| ((i * i) >> 7) as u8).collect();
                let place = place(&log, ObjectKind::Refs, run);
                repo.write_object(&place, &plain).unwrap();
                assert!(repo.read_object(&place, 3 << 20).unwrap() == plain);
            }
            let index = Place { part: 3, ..place(&log, ObjectKind::Index, 9) };
            let secrets = repo.draw_secrets(&log, RunNo(9)).unwrap();
            repo.put(&index, &secrets.seal_index(3, b"rows").unwrap()).unwrap();
            assert_eq!(repo.read_object(&index, 10).unwrap(), b"rows");
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found_and_named() {
        for suite in [Suite::None, Suite::X25519Aes256Gcm] {
            let (_, repo) = new_repo(suite);
            let log = log();
            let place = place(&log, ObjectKind::Refs, 7);
            let object = seal_object(repo.keys(), &place, b"what backup 7 needs").unwrap();
            for byte in 0..object.len() {
                let mut damaged = object.clone();
                damaged[byte] ^= 1 << (byte % 8);
                let error = repo.open_object(&place, &damaged, LIMIT).unwrap_err();
                assert!(matches!(error, RepoError::Damaged { .. }), "{byte}: {error}");
                assert!(error.to_string().contains("refs/0000000007"), "{error}");
            }
            for len in 0..object.len() {
                assert!(repo.open_object(&place, &object[..len], LIMIT).is_err(), "{len}");
            }
            let mut longer = object.clone();
            longer.push(0);
            assert!(repo.open_object(&place, &longer, LIMIT).is_err());
        }
    }

    #[test]
    fn an_object_that_shrank_well_is_bounded_by_what_it_becomes() {
        let (_, repo) = new_repo(Suite::None);
        let log = log();
        let place = place(&log, ObjectKind::Refs, 7);
        let object = seal_object(repo.keys(), &place, &vec![0; 5 << 20]).unwrap();
        assert!(object.len() < 1 << 20);
        assert_eq!(repo.open_object(&place, &object, 5 << 20).unwrap().len(), 5 << 20);
        let error = repo.open_object(&place, &object, (5 << 20) - 1).unwrap_err();
        assert!(matches!(error, RepoError::Damaged { .. }), "{error}");
    }

    #[test]
    fn an_object_opens_in_its_own_place_only() {
        for suite in [Suite::None, Suite::X25519Aes256Gcm] {
            let (_, repo) = new_repo(suite);
            let (_, other_repo) = new_repo(suite);
            let log = log();
            let other_log = LogName { source: "db2".parse().unwrap(), kind: Kind::Physical };
            let here = place(&log, ObjectKind::Refs, 7);
            let object = seal_object(repo.keys(), &here, b"x").unwrap();
            let refused = |repo: &Repo, place: Place<'_>| match repo.open_object(&place, &object, LIMIT) {
                Err(RepoError::Damaged { damage, .. }) => damage,
                other => panic!("{other:?}"),
            };
            assert_eq!(refused(&other_repo, here), Damage::OtherRepository);
            assert!(matches!(refused(&repo, Place { run: RunNo(8), ..here }), Damage::Misplaced { .. }));
            assert!(matches!(refused(&repo, Place { part: 1, ..here }), Damage::Misplaced { .. }));
            let report = Place { kind: ObjectKind::OutcomePublic, ..here };
            assert!(matches!(refused(&repo, report), Damage::Misplaced { .. }));
            // What the header does not say is bound into the key.
            let moved = Place { log: &other_log, ..here };
            assert!(matches!(refused(&repo, moved), Damage::Sealed { .. }));
            // A header that lies about its place does not help.
            let mut forged = object.clone();
            forged[24] = 8;
            let error = repo.open_object(&Place { run: RunNo(8), ..here }, &forged, LIMIT).unwrap_err();
            assert!(matches!(error, RepoError::Damaged { damage: Damage::Sealed { .. }, .. }), "{error}");
        }
    }

    #[test]
    fn no_two_writings_share_a_key() {
        let (_, repo) = new_repo(Suite::X25519Aes256Gcm);
        let log = log();
        let place = place(&log, ObjectKind::Refs, 7);
        let first = seal_object(repo.keys(), &place, b"x").unwrap();
        let second = seal_object(repo.keys(), &place, b"x").unwrap();
        assert_ne!(first[36..68], second[36..68]);
        assert_ne!(first[HEADER_BYTES..], second[HEADER_BYTES..]);
    }
}
