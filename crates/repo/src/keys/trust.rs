//! Whose signatures are believed (`docs/reference/repository.md` section 4).
//!
//! A key object lists the signers that were known when it was made. Later ones are vouched for by records
//! that an operator has signed (`signers/`). What a removed key signs from then on is not believed
//! (`removals/`: a numbered log, each record created once, which decides between two concurrent removals).
//!
//! Invariants:
//! - Nobody is believed except through a chain of operators that begins in the key object that was opened.
//! - What a key signed before it was removed stays believed. What it signs afterwards cannot take the
//!   place of anything that exists: the removal has the hash of the last outcome, and of two outcomes that
//!   disagree, the later one is right. If what follows an outcome is damaged or gone, nothing tells;
//!   then the outcome is believed, since an existing backup must not be lost with another.
//! - A record that cannot be believed counts for nothing, is reported, and blocks all writing if writers
//!   would have to go by it. An object that is not named like a record is none.
//! - Nothing that somebody without a key can add makes a removed key believed: after a gap in the log of
//!   removals, those that an operator has signed still count against the keys that they name.

use std::{
    cmp::Ordering::{Equal, Greater, Less},
    collections::{BTreeMap, HashMap, HashSet},
};

use serde::{Deserialize, Serialize};

use super::{
    FORMAT, KeyId, RepositoryId, Role, Signer, object_path,
    signed::{self, Sort},
};
use crate::{
    error::Damage,
    format::{
        hash::{NO_OBJECT, ObjectHash, object_hash},
        hex::Hex,
        names::{LogName, RunNo},
    },
    store::{ObjectPath, Store, StoreError, StoreErrorKind, read_all},
};

pub(crate) const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Records that are read, at most; that there are more is reported.
const RECORDS_MAX: usize = 65_536;
/// Vouchers of operators, at most: far more than there are keys.
const VOUCHERS_MAX: usize = 4096;
/// Problems that are kept, at most: more would say nothing new.
const PROBLEMS_MAX: usize = 256;

/// What is wrong with a record that nobody who may has signed.
pub(super) const NOT_BELIEVED: &str = "no operator of this repository signed it";

/// An operator's voucher for a signer, as stored below `signers/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Voucher {
    pub(crate) format: u32,
    pub(crate) signer: Signer,
    pub(crate) label: String,
    pub(crate) created_at: String,
}

/// The removal of a key, as stored below `removals/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Removal {
    pub(crate) format: u32,
    pub(crate) number: u64,
    /// Hash of the previous record; zeros for the first.
    pub(crate) previous: Hex<32>,
    pub(crate) key_id: KeyId,
    pub(crate) at: String,
    /// The last run that had ended in each log (`<source>/<kind>`): up to there, the key's signatures stay
    /// believed. In logs that are not named, none are.
    pub(crate) runs: BTreeMap<String, u64>,
    /// Hashes of the outcomes of these runs.
    #[serde(default)]
    pub(crate) tips: BTreeMap<String, ObjectHash>,
    /// Runs that were under way, and may end with the key.
    #[serde(default)]
    pub(crate) may_end: BTreeMap<String, u64>,
    /// Keys that the removed key had vouched for by then, and that stay.
    pub(crate) kept: Vec<KeyId>,
    /// Hashes of the records by which it did.
    #[serde(default)]
    pub(crate) kept_records: BTreeMap<KeyId, ObjectHash>,
    /// Number of rotations by then.
    pub(crate) rotations: u8,
    /// Hash of the last of them; zeros if there was none.
    #[serde(default)]
    pub(crate) last_rotation: Option<ObjectHash>,
}

impl Removal {
    /// Whether the record `hash` is a voucher of the removed key for `key_id`, and still counts.
    fn keeps(&self, key_id: KeyId, hash: ObjectHash) -> bool {
        self.kept.contains(&key_id) && self.kept_records.get(&key_id).is_none_or(|kept| *kept == hash)
    }
}

/// An operator's voucher for a signer, as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Vouched {
    pub(crate) voucher: Voucher,
    /// Public key of the operator.
    pub(crate) by: Hex<32>,
    /// Hash of the record.
    pub(crate) record: ObjectHash,
}

/// A signer, and what is known of it.
#[derive(Clone, Debug)]
pub(crate) struct Believed {
    pub(crate) signer: Signer,
    /// An operator's voucher; `None` for a signer that only the key object itself lists.
    pub(crate) voucher: Option<Vouched>,
}

/// A key for which only an operator has vouched who was removed then, before anybody knew of it.
#[derive(Clone, Copy, Debug)]
struct Dropped {
    key_id: KeyId,
    /// The operator's key.
    by: KeyId,
}

/// The key behind a signature that is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Author {
    /// Its id.
    pub key_id: KeyId,
    /// What its holder may do.
    pub role: Role,
    /// Whether the key was removed since: then this counts for nothing if the next
    /// outcome names another in its place.
    pub(crate) yields_to_what_follows: bool,
}

/// Whose signatures are believed, as of one look at the store.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    believed: HashMap<Hex<32>, Believed>,
    /// By public signing key, like those that are believed.
    dropped: HashMap<Hex<32>, Dropped>,
    removals: Vec<Removal>,
    /// Removals after a gap, or after a damaged one: for readers, they count against the keys that they name.
    unchained: Vec<Removal>,
    /// Hash of the last removal.
    last_removal: Hex<32>,
    /// Records that count for nothing.
    problems: Vec<(String, Damage)>,
    /// The first of them that blocks all writing, since writers should have gone by it.
    blocking: Option<(String, Damage)>,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            believed: HashMap::new(),
            dropped: HashMap::new(),
            removals: Vec::new(),
            unchained: Vec::new(),
            last_removal: NO_OBJECT,
            problems: Vec::new(),
            blocking: None,
        }
    }
}

impl Trust {
    /// Believes those that a key object lists, and nobody else.
    pub(crate) fn of_anchors(anchors: &[Signer]) -> Self {
        Self { believed: believed(anchors, &[], &Self::default()), ..Self::default() }
    }

    /// Reads what the store holds.
    pub(crate) fn read(
        store: &dyn Store,
        repository: RepositoryId,
        anchors: &[Signer],
    ) -> Result<Self, StoreError> {
        let mut trust = Self::default();
        let vouchers = trust.read_vouchers(store, repository, anchors)?;
        let removals = trust.listed(store, "removals/", &|name| is_number(name, 10))?;
        let mut is_chained = true;
        let mut known = believed(anchors, &vouchers, &trust);
        for path in removals {
            let bytes = record(store, &path)?;
            let expected = removal_path(trust.next_removal());
            if is_chained && path == expected {
                match trust.read_removal(repository, &known, &bytes) {
                    Ok(removal) => {
                        trust.last_removal = object_hash(&bytes);
                        trust.removals.push(removal);
                        known = believed(anchors, &vouchers, &trust);
                        continue;
                    }
                    // What follows builds on it.
                    Err(what) => trust.block(&path, Damage::Malformed { what }),
                }
            } else if is_chained {
                trust.block(&expected, Damage::Missing);
            }
            is_chained = false;
            // Anybody can copy a genuine record as often as they like: the first one of a key says it all.
            match trust.read_signed_removal(repository, &known, &bytes) {
                Ok(removal) if !trust.is_removed(removal.key_id) => {
                    trust.unchained.push(removal);
                    known = believed(anchors, &vouchers, &trust);
                }
                Ok(_) | Err(_) => {}
            }
        }
        trust.believed = known;
        let mut others: Vec<_> =
            vouchers.iter().filter(|it| !trust.believed.contains_key(&it.voucher.signer.public)).collect();
        // Whoever was dropped may have vouched for others, whose records may come first.
        loop {
            let before = others.len();
            others.retain(|vouched| {
                let Some(by) = trust.dropped_by(vouched) else { return true };
                let Signer { key_id, public, .. } = vouched.voucher.signer;
                trust.dropped.insert(public, Dropped { key_id, by });
                let what = "the operator's key that signed it was removed at the same time or before";
                trust.tell(&signer_path(key_id), Damage::Malformed { what });
                false
            });
            if others.len() == before {
                break;
            }
        }
        for vouched in others {
            let what = NOT_BELIEVED;
            trust.tell(&signer_path(vouched.voucher.signer.key_id), Damage::Malformed { what });
        }
        Ok(trust)
    }

    /// The removed operator behind a voucher that does not count, unless it should: one that the removal keeps
    /// was altered since, and whoever it was for may still be believed.
    fn dropped_by(&self, vouched: &Vouched) -> Option<KeyId> {
        let by = self.believed.get(&vouched.by).map(|by| by.signer.key_id);
        let by = by.or_else(|| Some(self.dropped.get(&vouched.by)?.by))?;
        let is_kept = self.removal_of(by)?.kept.contains(&vouched.voucher.signer.key_id);
        (!is_kept).then_some(by)
    }

    /// What operators have signed of signers, whether or not they still may; nothing is kept of others.
    fn read_vouchers(
        &mut self,
        store: &dyn Store,
        repository: RepositoryId,
        anchors: &[Signer],
    ) -> Result<Vec<Vouched>, StoreError> {
        let operators = anchors.iter().filter(|signer| signer.role == Role::Operator);
        let mut operators: HashSet<Hex<32>> = operators.map(|signer| signer.public).collect();
        let mut vouchers: Vec<Vouched> = Vec::new();
        let mut left: Vec<(ObjectPath, Option<Hex<32>>)> =
            self.listed(store, "signers/", &is_key_id)?.into_iter().map(|path| (path, None)).collect();
        // A signer is vouched for by signers that are vouched for themselves,
        // in whatever order they are listed.
        loop {
            let mut others = Vec::new();
            let known = vouchers.len();
            for (path, signed_by) in left {
                // Anybody who can write can make as many as they like, signed by
                // themselves: none is read twice for that.
                if signed_by.is_some_and(|by| !operators.contains(&by)) {
                    others.push((path, signed_by));
                    continue;
                }
                let bytes = match record(store, &path) {
                    // Whoever writes might go on without somebody who is vouched for.
                    Err(error) if error.is_unreadable() => {
                        self.block(&path, Damage::Malformed { what: "it cannot be read at the moment" });
                        continue;
                    }
                    bytes => bytes?,
                };
                match read_voucher(repository, &path, &bytes) {
                    Ok((voucher, by)) if operators.contains(&by) => {
                        if vouchers.len() >= VOUCHERS_MAX {
                            self.block(&path, Damage::Malformed { what: "there are too many of them" });
                            return Ok(vouchers);
                        }
                        if voucher.signer.role == Role::Operator {
                            operators.insert(voucher.signer.public);
                        }
                        vouchers.push(Vouched { voucher, by, record: object_hash(&bytes) });
                    }
                    Ok((_, by)) => others.push((path, Some(by))),
                    Err(what) => self.tell(&path, Damage::Malformed { what }),
                }
            }
            if others.is_empty() || vouchers.len() == known {
                let what = NOT_BELIEVED;
                others.iter().for_each(|(path, _)| self.tell(path, Damage::Malformed { what }));
                return Ok(vouchers);
            }
            left = others;
        }
    }

    /// The objects below a prefix that are named like records, in order. Others count for nothing, and
    /// the first of them is reported.
    fn listed(
        &mut self,
        store: &dyn Store,
        prefix: &str,
        is_name: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<ObjectPath>, StoreError> {
        let Listed { paths, stranger, is_cut } = listed(store, prefix, is_name)?;
        if let Some(stranger) = stranger {
            self.tell(&stranger, Damage::Malformed { what: "it is not named like a record" });
        }
        if let Some(last) = paths.last().filter(|_| is_cut) {
            self.block(last, Damage::Malformed { what: "there are too many of them: the rest is not read" });
        }
        Ok(paths)
    }

    /// Every removal that counts for readers.
    fn every_removal(&self) -> impl Iterator<Item = &Removal> {
        self.removals.iter().chain(&self.unchained)
    }

    /// Reports a record that counts for nothing.
    fn tell(&mut self, path: &ObjectPath, damage: Damage) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push((path.to_string(), damage));
        }
    }

    /// As [`tell`](Self::tell), for a record that writers would have to go by: blocks all writing.
    pub(crate) fn block(&mut self, path: &ObjectPath, damage: Damage) {
        self.tell(path, damage.clone());
        self.blocking.get_or_insert_with(|| (path.to_string(), damage));
    }

    fn read_removal(
        &self,
        repository: RepositoryId,
        believed: &HashMap<Hex<32>, Believed>,
        bytes: &[u8],
    ) -> Result<Removal, &'static str> {
        let removal = self.read_signed_removal(repository, believed, bytes)?;
        if removal.number != self.next_removal() || removal.previous != self.last_removal {
            return Err("it does not continue the removals before it");
        }
        Ok(removal)
    }

    /// Reads a removal that an operator has signed, wherever it is stored.
    fn read_signed_removal(
        &self,
        repository: RepositoryId,
        believed: &HashMap<Hex<32>, Believed>,
        bytes: &[u8],
    ) -> Result<Removal, &'static str> {
        let (removal, by): (Removal, _) = signed::read(repository, Sort::Removal, bytes)?;
        let by = believed.get(&by).map(|by| &by.signer);
        let is_operator = by.is_some_and(|by| by.role == Role::Operator && !self.is_removed(by.key_id));
        if !is_operator {
            return Err(NOT_BELIEVED);
        }
        if removal.format != FORMAT {
            return Err("it is of another format");
        }
        Ok(removal)
    }

    /// Path of the next removal.
    pub(crate) fn next_removal_path(&self) -> ObjectPath {
        removal_path(self.next_removal())
    }

    /// Number of the next removal.
    pub(crate) fn next_removal(&self) -> u64 {
        self.removals.len() as u64 + 1
    }

    /// The hash that the next removal names as that of the one before it.
    pub(crate) fn last_removal(&self) -> Hex<32> {
        self.last_removal
    }

    /// Whether the key was removed.
    pub(crate) fn is_removed(&self, key_id: KeyId) -> bool {
        self.removal_of(key_id).is_some()
    }

    pub(crate) fn removal_of(&self, key_id: KeyId) -> Option<&Removal> {
        self.every_removal().find(|removal| removal.key_id == key_id)
    }

    #[cfg(test)]
    pub(crate) fn removals_known(&self) -> usize {
        self.every_removal().count()
    }

    /// Whether somebody vouches for a key, and it was not removed.
    pub(crate) fn stands(&self, key_id: KeyId) -> bool {
        self.standing().any(|known| known.signer.key_id == key_id)
    }

    /// All signers that are believed and were not removed.
    pub(crate) fn standing(&self) -> impl Iterator<Item = &Believed> {
        self.all().filter(|known| !self.is_removed(known.signer.key_id))
    }

    /// Keys for which only an operator has vouched who was removed then, each with that operator's key.
    pub(crate) fn dropped(&self) -> impl Iterator<Item = (KeyId, KeyId)> {
        self.dropped.values().map(|dropped| (dropped.key_id, dropped.by))
    }

    /// Whether nobody vouches for a key any more, since the operator who did was removed.
    pub(crate) fn is_dropped(&self, key_id: KeyId) -> bool {
        self.dropped().any(|(dropped, _)| dropped == key_id)
    }

    /// All signers that are or were believed.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Believed> {
        self.believed.values()
    }

    /// The signer of a key.
    pub(crate) fn of_key(&self, key_id: KeyId) -> Option<&Believed> {
        self.believed.values().find(|believed| believed.signer.key_id == key_id)
    }

    /// Whether `public` is known at all.
    pub(crate) fn knows(&self, public: Hex<32>) -> bool {
        self.believed.contains_key(&public) || self.dropped.contains_key(&public)
    }

    /// The newest rotation that a removal records, and its hash.
    pub(crate) fn last_rotation(&self) -> Option<(u8, ObjectHash)> {
        let known =
            self.every_removal().filter_map(|removal| Some((removal.rotations, removal.last_rotation?)));
        known.filter(|(_, hash)| *hash != NO_OBJECT).max_by_key(|(number, _)| *number)
    }

    /// Whether a rotation signed by `public`, whose record has the hash `record`, counts.
    pub(crate) fn may_rotate(&self, public: Hex<32>, number: u8, record: ObjectHash) -> bool {
        self.believed.get(&public).is_some_and(|by| {
            // Those before the last are vouched for by what each says of the one before it.
            let was_there = |removal: &Removal| {
                let is_last = removal.last_rotation.is_none_or(|last| last == record);
                number < removal.rotations || (number == removal.rotations && is_last)
            };
            let removal = self.removal_of(by.signer.key_id);
            by.signer.role == Role::Operator && removal.is_none_or(was_there)
        })
    }

    /// The key of `public`, if what it has signed about `run` of `log` is believed. `outcome` holds the bytes
    /// of the outcome, if the signature is in one that is stored.
    pub(crate) fn author(
        &self,
        public: Hex<32>,
        log: &LogName,
        run: RunNo,
        outcome: Option<&[u8]>,
    ) -> Result<Author, Damage> {
        let Some(known) = self.believed.get(&public) else { return Err(self.unbelieved(public, log, run)) };
        let signer = &known.signer;
        if !signer.sources.is_empty() && !signer.sources.iter().any(|source| source == log.source.as_str()) {
            return Err(Damage::SignerElsewhere { key_id: signer.key_id });
        }
        let author = Author { key_id: signer.key_id, role: signer.role, yields_to_what_follows: false };
        let Some(removal) = self.removal_of(signer.key_id) else { return Ok(author) };
        let name = log.to_string();
        let last = removal.runs.get(&name).copied().unwrap_or(0);
        let yields = Author { yields_to_what_follows: true, ..author };
        match (run.0.cmp(&last), removal.tips.get(&name), outcome) {
            (Less, ..) | (Equal, None, _) => Ok(yields),
            (Equal, Some(_), None) => Ok(author),
            (Equal, Some(tip), Some(outcome)) if *tip == object_hash(outcome) => Ok(author),
            (Greater, ..) if self.may_end(signer.key_id, log) == Some(run) => Ok(yields),
            (Equal | Greater, ..) => Err(Damage::SignerRemoved { key_id: signer.key_id }),
        }
    }

    /// What is wrong with a signature by somebody who is not believed. What the holder of a dropped key has
    /// signed is known to count for nothing only after the last run that the removal knows.
    fn unbelieved(&self, public: Hex<32>, log: &LogName, run: RunNo) -> Damage {
        let Some(Dropped { key_id, by }) = self.dropped.get(&public) else { return Damage::Signature };
        let removal = self.removal_of(*by);
        let last = removal.and_then(|removal| removal.runs.get(&log.to_string())).copied().unwrap_or(0);
        match run.0 > last {
            true => Damage::SignerRemoved { key_id: *key_id },
            false => Damage::Signature,
        }
    }

    /// The run of a log that was under way when the key was removed, and may end with it.
    /// If the key was removed several times, a run that one of the removals refuses is refused.
    pub(crate) fn may_end(&self, key_id: KeyId, log: &LogName) -> Option<RunNo> {
        let log = log.to_string();
        let of_key = self.every_removal().filter(|removal| removal.key_id == key_id);
        let mut runs = of_key.map(|removal| removal.may_end.get(&log).copied());
        let first = runs.next().flatten()?;
        runs.all(|run| run == Some(first)).then_some(RunNo(first))
    }

    /// The last run of a log that has an outcome, according to the removals.
    pub(crate) fn newest_known(&self, log: &LogName) -> Option<RunNo> {
        let log = log.to_string();
        let known = self.every_removal().filter(|removal| removal.tips.contains_key(&log));
        known.filter_map(|removal| removal.runs.get(&log)).max().copied().map(RunNo)
    }

    /// Records that cannot be believed, and what is wrong with them.
    pub(crate) fn problems(&self) -> &[(String, Damage)] {
        &self.problems
    }

    /// The first of them that blocks all writing.
    pub(crate) fn blocking(&self) -> Option<&(String, Damage)> {
        self.blocking.as_ref()
    }
}

pub(crate) fn signer_path(key_id: KeyId) -> ObjectPath {
    object_path(&format!("signers/{key_id}"))
}

fn removal_path(number: u64) -> ObjectPath {
    object_path(&format!("removals/{number:010}"))
}

/// The objects below a prefix.
pub(crate) struct Listed {
    /// Those named like records, in order: the first [`RECORDS_MAX`].
    pub(crate) paths: Vec<ObjectPath>,
    /// The first that is named otherwise.
    pub(crate) stranger: Option<ObjectPath>,
    is_cut: bool,
}

/// The objects below a prefix whose names are those of records.
pub(crate) fn listed(
    store: &dyn Store,
    prefix: &str,
    is_name: &dyn Fn(&str) -> bool,
) -> Result<Listed, StoreError> {
    let mut found = Listed { paths: Vec::new(), stranger: None, is_cut: false };
    store.list(prefix, &mut |object| {
        if !object.path.as_str().strip_prefix(prefix).is_some_and(is_name) {
            found.stranger.get_or_insert(object.path);
        } else if found.paths.len() < RECORDS_MAX {
            found.paths.push(object.path);
        } else {
            found.is_cut = true;
        }
        !found.is_cut
    })?;
    Ok(found)
}

/// Whether `name` is a number from 1, in `digits` digits.
pub(crate) fn is_number(name: &str, digits: usize) -> bool {
    name.len() == digits && name.bytes().all(|b| b.is_ascii_digit()) && name.bytes().any(|b| b != b'0')
}

fn is_key_id(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The bytes of a record; empty if it is too large or cut short.
pub(crate) fn record(store: &dyn Store, path: &ObjectPath) -> Result<Vec<u8>, StoreError> {
    match read_all(store, path, RECORD_BYTES_MAX) {
        Err(StoreError {
            kind: StoreErrorKind::TooLarge { .. } | StoreErrorKind::ShortRead { .. }, ..
        }) => Ok(Vec::new()),
        read => read,
    }
}

fn read_voucher(
    repository: RepositoryId,
    path: &ObjectPath,
    bytes: &[u8],
) -> Result<(Voucher, Hex<32>), &'static str> {
    let (voucher, by): (Voucher, _) = signed::read(repository, Sort::Signer, bytes)?;
    if voucher.format != FORMAT || *path != signer_path(voucher.signer.key_id) {
        return Err("it is of another key or format");
    }
    Ok((voucher, by))
}

/// Everybody whom an operator vouches for, directly or through others, beginning with `anchors`.
fn believed(anchors: &[Signer], vouchers: &[Vouched], trust: &Trust) -> HashMap<Hex<32>, Believed> {
    let mut believed: HashMap<Hex<32>, Believed> = anchors
        .iter()
        .map(|signer| (signer.public, Believed { signer: signer.clone(), voucher: None }))
        .collect();
    loop {
        let before = believed.len();
        for vouched in vouchers {
            let Vouched { voucher, by, record } = vouched;
            let counts = believed.get(by).is_some_and(|by| {
                let removal = trust.removal_of(by.signer.key_id);
                by.signer.role == Role::Operator
                    && removal.is_none_or(|removal| removal.keeps(voucher.signer.key_id, *record))
            });
            if counts {
                let signer = voucher.signer.clone();
                let of_voucher = Believed { signer, voucher: Some(vouched.clone()) };
                let known = believed.entry(voucher.signer.public).or_insert(of_voucher);
                // A key object lists signers without their labels.
                if known.voucher.is_none() && known.signer == voucher.signer {
                    known.voucher = Some(vouched.clone());
                }
            }
        }
        if believed.len() == before {
            return believed;
        }
    }
}
