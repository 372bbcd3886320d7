//! Listing, adding, removing and changing the keys of a repository
//! (`docs/reference/repository.md` section 4).
//!
//! - A key is vouched for before its object exists, so that nobody can sign what no one would believe.
//! - A removal takes effect once its record exists, whether or not the key object is deleted then.
//!   Records are numbered and created once, so that two concurrent removals see each
//!   other, and one operator's key stays.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use holdfast_pipe::lock::lock;

use super::{
    FORMAT, KEYS_LIMIT, KdfParams, KeyError, KeyId, KeyMaterial, NewSlot, PublicKey, Role, Signer, Trusted,
    error::damaged,
    material::{OwnKeys, Payload},
    operator::{as_operator, has_object, key_path},
    rfc3339, rotation,
    signed::{self, Sort},
    slot::{self, Described, KeyObject, Slot, to_json},
    trust::{Believed, RECORD_BYTES_MAX, Removal, Trust, Vouched, Voucher, signer_path},
};
use crate::{
    error::{Damage, RepoError},
    format::{
        names::{Folder, Kind, LogName, RunNo, SourceName},
        object::ObjectHash,
    },
    log::{
        history::History,
        lease,
        outcome::{self, OUTCOME_BYTES_MAX},
    },
    repo::Repo,
    store::{ObjectPath, StoreError, ahead::in_order, exists, read_listed},
};

/// Bytes of a label, at most.
pub const LABEL_BYTES_MAX: usize = 128;

/// How often a removal tries again after another was first to create a record.
const ATTEMPTS: u32 = 20;

/// How many runs after the last that it may have signed are searched for a removed key's outcomes.
const LATE_MAX: u64 = 64;

/// A key to be added.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// What its holder may do.
    pub role: Role,
    /// Sources whose outcomes a writer or keeper may sign; empty: all.
    pub sources: Vec<SourceName>,
    /// For people; readable without a key.
    pub label: String,
}

/// What protects a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotInfo {
    /// A password, with the cost of a guess.
    Password(KdfParams),
    /// A key pair.
    Public(PublicKey),
    /// Nothing: the repository is not encrypted.
    Nothing,
}

/// A key of the repository.
#[derive(Clone, Debug)]
pub struct KeyInfo {
    /// Its id.
    pub key_id: KeyId,
    /// What its holder may do.
    pub role: Role,
    /// What protects it.
    pub slot: SlotInfo,
    /// For people.
    pub label: String,
    /// RFC 3339, UTC, by the store's clock.
    pub created_at: String,
    /// Sources whose outcomes it may sign; empty: all.
    pub sources: Vec<String>,
    /// Whether the repository was opened with it.
    pub is_own: bool,
}

/// The keys of a repository.
#[derive(Clone, Debug, Default)]
pub struct KeyList {
    /// In order of age.
    pub keys: Vec<KeyInfo>,
    /// Objects that count for nothing, and what is wrong with them.
    pub problems: Vec<(String, String)>,
    /// Key objects that open nothing sealed since a rotation, and why.
    pub without_share: Vec<(String, String)>,
}

fn key_paths(repo: &Repo) -> Result<Vec<ObjectPath>, KeyError> {
    let mut paths = Vec::new();
    repo.store().list("keys/", &mut |object| {
        paths.push(object.path);
        paths.len() < KEYS_LIMIT
    })?;
    Ok(paths)
}

/// Lists the keys of the repository, for everybody who can open it.
pub fn list(repo: &Repo) -> Result<KeyList, KeyError> {
    let trust = repo.look_again()?;
    let mut list = KeyList::default();
    for (object, damage) in repo.key_problems() {
        list.problems.push((object, damage.to_string()));
    }
    let paths = key_paths(repo)?;
    // A key is believed, but has no object that could be opened.
    for known in trust.standing() {
        let path = key_path(known.signer.key_id);
        if !paths.contains(&path) {
            list.problems.push((path.to_string(), "is missing: its holder can open nothing".to_owned()));
        }
    }
    for path in paths {
        match slot::read_sound(&**repo.store(), &path, repo.info()) {
            Ok(object) => match described(repo, &trust, &object) {
                Ok(key) => list.keys.push(key),
                Err(what) => list.problems.push((path.to_string(), what.to_owned())),
            },
            // Removed by another since the listing.
            Err(KeyError::Store(error)) if error.is_not_found() => {}
            Err(KeyError::Damaged { object, what }) => list.problems.push((object, what)),
            Err(other) => return Err(other),
        }
    }
    list.without_share = without_share_by(repo, &trust)?;
    list.keys.sort_by(|a, b| (&a.created_at, a.key_id).cmp(&(&b.created_at, b.key_id)));
    Ok(list)
}

/// The objects of keys that have no share in a rotation, and so open nothing sealed since, and what to do.
pub fn without_share(repo: &Repo) -> Result<Vec<(String, String)>, StoreError> {
    without_share_by(repo, &*repo.look_again()?)
}

fn without_share_by(repo: &Repo, trust: &Trust) -> Result<Vec<(String, String)>, StoreError> {
    let keys = rotation::without_share(&**repo.store(), trust, repo.keys())?;
    let told = |(key_id, rotation)| {
        let problem = format!(
            "has no share in rotation {rotation}, and opens nothing stored since: remove the key, and add \
             it again"
        );
        (key_path(key_id).to_string(), problem)
    };
    Ok(keys.into_iter().map(told).collect())
}

fn described(repo: &Repo, trust: &Trust, object: &KeyObject) -> Result<KeyInfo, &'static str> {
    let known = trust.of_key(object.key_id).ok_or(match trust.is_dropped(object.key_id) {
        true => "the operator's key that added it was removed at the same time or before: remove it, too",
        false => "no operator of this repository vouches for it",
    })?;
    if known.signer.role != object.role {
        return Err("it claims another role than its operator gave it");
    }
    if trust.is_removed(object.key_id) {
        return Err("its key was removed, but the object still exists");
    }
    // Anybody can write anything outside the seal.
    let (label, created_at) = match &known.voucher {
        Some(Vouched { voucher, .. }) => (&voucher.label, &voucher.created_at),
        None => (&object.label, &object.created_at),
    };
    Ok(KeyInfo {
        key_id: object.key_id,
        role: object.role,
        slot: match object.slot {
            Slot::Password { params, .. } => SlotInfo::Password(params),
            Slot::Public { recipient, .. } => SlotInfo::Public(PublicKey(recipient)),
            Slot::None {} => SlotInfo::Nothing,
        },
        label: label.clone(),
        created_at: created_at.clone(),
        sources: known.signer.sources.clone(),
        is_own: repo.keys().key_id() == object.key_id,
    })
}

/// What an identity must trust to open a slot that the key at hand adds for it.
#[must_use]
pub fn trusted(repo: &Repo) -> Trusted {
    Trusted { repository: repo.info().repository_id, operator: repo.keys().signing_public() }
}

/// Adds a key.
///
/// # Errors
/// Among others [`KeyError::NotOperator`].
pub fn add(repo: &Repo, new: &NewKey, slot: NewSlot<'_>) -> Result<KeyInfo, KeyError> {
    add_signed(repo, new, slot, SlotSigner::Adder).map(|(key, _)| key)
}

/// Who signs the object of a new key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotSigner {
    /// The key that adds it.
    Adder,
    /// The new key, since the key that adds it is about to go.
    Itself,
}

fn add_signed(
    repo: &Repo,
    new: &NewKey,
    slot: NewSlot<'_>,
    signer_of_slot: SlotSigner,
) -> Result<(KeyInfo, Trusted), KeyError> {
    let (keys, trust) = as_operator(repo, "add a key")?;
    if new.label.len() > LABEL_BYTES_MAX || new.label.contains(char::is_control) {
        return Err(KeyError::BadLabel { most: LABEL_BYTES_MAX });
    }
    if new.role == Role::Operator && !new.sources.is_empty() {
        return Err(KeyError::OperatorOfSources);
    }
    let count = key_paths(repo)?.len();
    if count >= KEYS_LIMIT {
        return Err(KeyError::TooMany { count });
    }
    let own = OwnKeys::generate()?;
    let sources = new.sources.iter().map(ToString::to_string).collect();
    let signer = own.signer(new.role, sources);
    let created_at = rfc3339(repo.store().now()?);
    let voucher = Voucher { format: FORMAT, signer, label: new.label.clone(), created_at };
    let sealed = |trust: &Trust| {
        let Voucher { signer, label, created_at, .. } = voucher.clone();
        let key_id = signer.key_id;
        let material = KeyMaterial::from_payload(payload(keys, trust, &own, signer), key_id, new.role)
            .map_err(|what| damaged("new keys", what))?;
        let slot_signer = if signer_of_slot == SlotSigner::Itself { &material } else { keys };
        let object = slot::seal(&material, Some(slot), Described { label, created_at }, slot_signer)?;
        Ok::<_, KeyError>((object, slot_signer.signing_public()))
    };
    let (mut object, mut operator) = sealed(&trust)?;
    let record = signed::sign(keys, Sort::Signer, &voucher);
    repo.store().create_if_absent(&signer_path(own.key_id), &record)?;
    // A rotation made by now need not have a share for the key: what is sealed must hold its key pairs.
    loop {
        let (_, trust) = as_operator(repo, "add a key")?;
        if object.rotations == Some(keys.rotations()) {
            break;
        }
        (object, operator) = sealed(&trust)?;
    }
    let trusted = Trusted { repository: repo.info().repository_id, operator };
    repo.store().create_if_absent(&key_path(object.key_id), &to_json(&object))?;
    let trust = repo.look_again()?;
    if trust.is_dropped(object.key_id) {
        repo.store().delete(&[key_path(object.key_id)])?;
        return Err(KeyError::Removed { key_id: keys.key_id() });
    }
    let key = described(repo, &trust, &object).map_err(|what| damaged(key_path(object.key_id), what))?;
    let without_share = rotation::without_share(&**repo.store(), &trust, keys)?;
    if let Some((key_id, rotation)) = without_share.into_iter().find(|(key_id, _)| *key_id == key.key_id) {
        return Err(KeyError::NoShare { key_id, rotation });
    }
    Ok((key, trusted))
}

/// The part of the keys at hand that another role gets, with key pairs of its own.
fn payload(keys: &KeyMaterial, trust: &Trust, own: &OwnKeys, signer: Signer) -> Payload {
    let role = signer.role;
    let of_role = |rotation: u8| keys.seal_keys(rotation).map(|keys| keys.of_role(role));
    let others = trust.all().filter(|known| known.signer.key_id != signer.key_id);
    let mut signers: Vec<Signer> = others.map(|known| known.signer.clone()).collect();
    signers.sort_by_key(|signer| signer.key_id);
    signers.push(signer);
    let first = of_role(0);
    Payload {
        repository: keys.repository().clone(),
        read_public: keys.payload.read_public,
        read_private: first.as_ref().and_then(|keys| keys.read_private.clone()),
        refs_public: keys.payload.refs_public,
        refs_private: first.and_then(|keys| keys.refs_private),
        rotated: (1..=keys.rotations()).filter_map(of_role).collect(),
        hash_key: keys.payload.hash_key.clone().filter(|_| role.may(super::Act::Backup)),
        signing_key: own.signing_key.clone(),
        exchange_key: Some(own.exchange_key.clone()),
        signers,
    }
}

/// What becomes of runs that are under way when a key is removed.
/// Nothing tells which key they were begun with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnderWay {
    /// They may end with an outcome signed by the key.
    MayEnd,
    /// None may: for a key that somebody else has.
    Refused,
}

/// What a removal leaves for somebody to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Outcomes that the key, or one of those `dropped`, has signed and nobody believes, since they came
    /// between the last look at their logs and the removal. These logs can continue after a repair.
    pub too_late: Vec<ObjectPath>,
    /// Keys that the key has added between the last look and the removal: nobody believes them.
    pub dropped: Vec<KeyId>,
    /// Runs that were under way, and may end with the key.
    pub may_end: Vec<(LogName, RunNo)>,
}

/// Removes a key: what it signs from now on is not believed, and its object is deleted.
/// The last operator's key stays.
///
/// A key that was removed can be removed again, to refuse what may still end with it.
pub fn remove(repo: &Repo, key_id: KeyId, under_way: UnderWay) -> Result<Removed, KeyError> {
    let mut newest = Newest { under_way, logs: BTreeMap::new() };
    for _ in 0..ATTEMPTS {
        // Everything slow comes first: what begins and ends between the last look and the
        // creation of the record is lost.
        newest.catch_up(repo).map_err(of_listing)?;
        let (keys, trust, may_sign) = match as_operator(repo, "remove a key") {
            Ok((keys, trust)) => (keys, trust, true),
            // Removed in the previous attempt, whose reply got lost, or by another.
            Err(KeyError::Removed { key_id: own }) if own == key_id => {
                (repo.keys(), repo.look_again()?, false)
            }
            Err(other) => return Err(other),
        };
        let Some(signer) = trust.of_key(key_id).map(|known| known.signer.clone()) else {
            // Nobody vouches for the key: it never counted.
            return if has_object(repo, key_id)? {
                repo.store().delete(&[key_path(key_id)])?;
                Ok(Removed::default())
            } else {
                Err(KeyError::NoSuchKey { key_id })
            };
        };
        let is_removed = trust.is_removed(key_id);
        let refuses_more =
            may_sign && under_way == UnderWay::Refused && !may_end(repo, &trust, key_id)?.is_empty();
        if is_removed && !refuses_more {
            return delete(repo, key_id, &newest);
        }
        if !is_removed && signer.role == Role::Operator && !has_other_operator(repo, &trust, key_id)? {
            return Err(KeyError::LastOperator { key_id });
        }
        let at = rfc3339(repo.store().now()?);
        let known = newest.seen();
        newest.look(repo).map_err(of_listing)?;
        if newest.seen() != known {
            continue;
        }
        // Last, since the look takes long: a rotation by the key, or a key that it has added, counts for
        // nobody if the removal does not know it.
        let now = repo.look_again()?;
        let kept = vouched_for(&now, &signer);
        let (rotations, last_rotation) = rotation::known(&**repo.store(), &now, repo.keys())?;
        let removal = Removal {
            format: FORMAT,
            number: trust.next_removal(),
            previous: trust.last_removal(),
            key_id,
            at,
            runs: newest.runs(),
            tips: newest.tips(),
            may_end: newest.may_end(),
            kept: kept.keys().copied().collect(),
            kept_records: kept,
            rotations,
            last_rotation: Some(last_rotation),
        };
        let record = signed::sign(keys, Sort::Removal, &removal);
        if record.len() as u64 > RECORD_BYTES_MAX {
            return Err(KeyError::TooManyLogs { count: removal.runs.len().max(removal.may_end.len()) });
        }
        match repo.store().create_if_absent(&trust.next_removal_path(), &record) {
            Ok(_) => return delete(repo, key_id, &newest),
            // Another key was removed meanwhile: it may have been the last other operator's.
            Err(error) if error.is_exists() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(KeyError::Crowded)
}

/// Deletes the object of a removed key, and looks for outcomes that the key signed too late, or after so many
/// missing ones that its removal could not reach them.
fn delete(repo: &Repo, key_id: KeyId, newest: &Newest) -> Result<Removed, KeyError> {
    let trust = repo.look_again()?;
    let Some(removal) = trust.removal_of(key_id) else {
        return Err(damaged("removals/", "the removal of the key cannot be read, and the key stays"));
    };
    repo.store().delete(&[key_path(key_id)])?;
    rotation::require_counted(repo.keys())?;
    let mut dropped: Vec<KeyId> =
        trust.dropped().filter(|(_, by)| *by == key_id).map(|(dropped, _)| dropped).collect();
    let mut too_late: BTreeSet<ObjectPath> =
        signed_too_late(repo, |by| by == key_id || dropped.contains(&by), &removal.runs)
            .map_err(of_listing)?
            .into_iter()
            .collect();
    for (log, known) in &newest.logs {
        let last = removal.runs.get(&log.to_string()).copied().unwrap_or(0);
        let may_end = trust.may_end(key_id, log);
        let by_it = known.history.outcomes().iter().filter(|outcome| outcome.author.key_id == key_id);
        let beyond = by_it.filter(|outcome| outcome.run.0 > last && Some(outcome.run) != may_end);
        too_late.extend(beyond.map(|outcome| log.outcome(outcome.run)));
    }
    // Of a key that has been removed, too, nobody need be told.
    let objects = key_paths(repo)?;
    dropped.retain(|dropped| objects.contains(&key_path(*dropped)));
    let too_late = too_late.into_iter().collect();
    Ok(Removed { too_late, dropped, may_end: may_end(repo, &trust, key_id)? })
}

/// Runs without an outcome that may still end with a removed key.
fn may_end(repo: &Repo, trust: &Trust, key_id: KeyId) -> Result<Vec<(LogName, RunNo)>, KeyError> {
    let mut may_end = Vec::new();
    for log in repo.logs().map_err(of_listing)? {
        if let Some(run) = trust.may_end(key_id, &log)
            && !exists(&**repo.store(), &log.outcome(run))?
        {
            may_end.push((log, run));
        }
    }
    Ok(may_end)
}

/// Whether the key has an object that its holder can open, as far as that can be told without.
fn can_be_opened(repo: &Repo, key: &Signer) -> Result<bool, KeyError> {
    match slot::read_sound(&**repo.store(), &key_path(key.key_id), repo.info()) {
        Ok(object) => Ok(object.role == key.role),
        Err(KeyError::Damaged { .. }) => Ok(false),
        Err(KeyError::Store(error)) if error.is_not_found() => Ok(false),
        Err(other) => Err(other),
    }
}

fn has_other_operator(repo: &Repo, trust: &Trust, key_id: KeyId) -> Result<bool, KeyError> {
    for other in trust.standing().map(|known| &known.signer) {
        let counts = other.role == Role::Operator && other.key_id != key_id;
        if counts && can_be_opened(repo, other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The keys that a signer has vouched for, and the records by which it did.
fn vouched_for(trust: &Trust, signer: &Signer) -> BTreeMap<KeyId, ObjectHash> {
    let by_it = |known: &Believed| {
        let vouched = known.voucher.as_ref().filter(|vouched| vouched.by == signer.public)?;
        Some((known.signer.key_id, vouched.record))
    };
    trust.all().filter_map(by_it).collect()
}

/// How far each log has come. Object names, which anybody can create, say nothing about that.
struct Newest {
    under_way: UnderWay,
    logs: BTreeMap<LogName, Known>,
}

/// How far a log has come.
struct Known {
    history: History,
    /// The run after the history, if it may end.
    under_way: Option<RunNo>,
}

impl Known {
    fn last(&self) -> RunNo {
        RunNo(self.history.next_unforeseen().0 - 1)
    }
}

impl Newest {
    /// Looks until nothing has been added since the previous look, at most [`ATTEMPTS`] times.
    fn catch_up(&mut self, repo: &Repo) -> Result<(), RepoError> {
        for _ in 0..ATTEMPTS {
            let before = self.seen();
            self.look(repo)?;
            if self.seen() == before {
                break;
            }
        }
        Ok(())
    }

    /// Looks at all logs, several at a time if the store is far away.
    fn look(&mut self, repo: &Repo) -> Result<(), RepoError> {
        let mut known = std::mem::take(&mut self.logs);
        let mut logs = Vec::new();
        for log in repo.logs()? {
            let history = match known.remove(&log) {
                Some(known) => known.history,
                // This reads all of it, and several outcomes at a time already.
                None => History::salvage(repo, &log, &mut |_, _| {})?,
            };
            logs.push((log, Mutex::new(Some(history))));
        }
        let may_end = self.under_way == UnderWay::MayEnd;
        let fetch = |(log, history): &(LogName, Mutex<Option<History>>)| {
            let history = lock(history).take();
            let history = match history.map(|mut history| history.refresh(repo).map(|()| history)) {
                Some(Ok(history)) => history,
                Some(Err(error)) if !matches!(error, RepoError::History { .. }) => return Err(error),
                _ => History::salvage(repo, log, &mut |_, _| {})?,
            };
            let next = history.next_unforeseen();
            let may_end = may_end && (is_alive(repo, log, next)? || has_segments(repo, log, next)?);
            Ok(Known { history, under_way: may_end.then_some(next) })
        };
        in_order(repo.store().reads_at_once(), &logs, fetch, |(log, _), newest| {
            self.logs.insert(log.clone(), newest);
            Ok(())
        })
    }

    fn seen(&self) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
        (self.runs(), self.may_end())
    }

    fn runs(&self) -> BTreeMap<String, u64> {
        // In a log without an outcome, there is nothing to be believed.
        let ended = self.logs.iter().filter(|(_, known)| known.last() > RunNo(0));
        ended.map(|(log, known)| (log.to_string(), known.last().0)).collect()
    }

    /// Hashes of the outcomes of these runs.
    fn tips(&self) -> BTreeMap<String, ObjectHash> {
        let tip = |known: &Known| Some(known.history.outcome(known.last())?.hash);
        self.logs.iter().filter_map(|(log, known)| Some((log.to_string(), tip(known)?))).collect()
    }

    /// Runs that are under way, and may end.
    fn may_end(&self) -> BTreeMap<String, u64> {
        self.logs.iter().filter_map(|(log, known)| Some((log.to_string(), known.under_way?.0))).collect()
    }
}

fn is_alive(repo: &Repo, log: &LogName, run: RunNo) -> Result<bool, RepoError> {
    Ok(lease::look(repo, log, run)?.is_some_and(|lease| lease.is_alive))
}

/// Whether a run of an archiver has left segments, which the next one takes over.
fn has_segments(repo: &Repo, log: &LogName, run: RunNo) -> Result<bool, RepoError> {
    Ok(log.kind == Kind::Binlog && exists(&**repo.store(), &log.segment(run, 0))?)
}

/// Outcomes after `runs` that bear the signature of a removed key, if it `is_one_of` those in question.
fn signed_too_late(
    repo: &Repo,
    is_one_of: impl Fn(KeyId) -> bool + Sync,
    runs: &BTreeMap<String, u64>,
) -> Result<Vec<ObjectPath>, RepoError> {
    let mut late = Vec::new();
    let fetch = |log: &LogName| {
        let last = runs.get(&log.to_string()).copied().unwrap_or(0);
        let mut late = Vec::new();
        let behind = RunNo(last.saturating_add(1))..=RunNo(last.saturating_add(LATE_MAX));
        for ((run, _), info) in repo.list_folder(log, Folder::Outcomes)? {
            if !behind.contains(&run) {
                continue;
            }
            let read = read_listed(&**repo.store(), &info, OUTCOME_BYTES_MAX).map_err(RepoError::from);
            match read.and_then(|bytes| outcome::parse(repo, log, run, &bytes, info.created_at)) {
                Err(RepoError::Damaged { damage: Damage::SignerRemoved { key_id: by }, .. })
                    if is_one_of(by) =>
                {
                    late.push(info.path);
                }
                Err(error) if !error.is_of_the_object() => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(late)
    };
    in_order(repo.store().reads_at_once(), &repo.logs()?, fetch, |_, of_log| {
        late.extend(of_log);
        Ok(())
    })?;
    Ok(late)
}

fn of_listing(error: RepoError) -> KeyError {
    match error {
        RepoError::Store(error) => error.into(),
        other => damaged("sources/", other),
    }
}

/// Puts another key in the place of the operator's key at hand: with the same rights,
/// behind another password or key pair.
///
/// Returns the new key; what an identity must trust to open it, which is not the removed
/// key; and what [`remove`] returns.
pub fn change(repo: &Repo, slot: NewSlot<'_>) -> Result<(KeyInfo, Trusted, Removed), KeyError> {
    let (keys, trust) = as_operator(repo, "change a key")?;
    let own = keys.key_id();
    let label = trust.of_key(own).and_then(|known| Some(known.voucher.as_ref()?.voucher.label.clone()));
    let new = NewKey { role: Role::Operator, sources: Vec::new(), label: label.unwrap_or_default() };
    let (key, trusted) = add_signed(repo, &new, slot, SlotSigner::Itself)?;
    Ok((key, trusted, remove(repo, own, UnderWay::MayEnd)?))
}
