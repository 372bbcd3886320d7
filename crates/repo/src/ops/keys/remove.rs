//! Removing a key. A removal takes effect once its record exists, whether or not the key object is deleted then.
//! Records are numbered and created once, so that two concurrent removals see each other, and one operator's key
//! stays.

use std::collections::{BTreeMap, BTreeSet};

use super::{ATTEMPTS, key_paths, newest::Newest, of_listing, operator::as_operator};
use crate::{
    error::{Damage, RepoError},
    format::{
        hash::ObjectHash,
        names::{Folder, LogName, RunNo},
    },
    keys::{
        FORMAT, KeyError, KeyId, Role, Signer, damaged, key_path, rfc3339, rotation,
        signed::{self, Sort},
        slot,
        trust::{Believed, RECORD_BYTES_MAX, Removal, Trust},
    },
    log::outcome::{self, OUTCOME_BYTES_MAX},
    repo::Repo,
    store::{ObjectPath, ahead::in_order, exists, read_listed},
};

/// How many runs after the last that it may have signed are searched for a removed key's outcomes.
const LATE_MAX: u64 = 64;

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
    let mut newest = Newest::new(under_way == UnderWay::MayEnd);
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

/// Whether the key has an object.
fn has_object(repo: &Repo, key_id: KeyId) -> Result<bool, KeyError> {
    Ok(exists(&**repo.store(), &key_path(key_id))?)
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
