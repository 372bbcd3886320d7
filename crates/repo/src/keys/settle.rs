//! What an operator does about objects among the records of keys that nobody has signed
//! (`docs/reference/repository.md` section 4).
//!
//! Everybody who can write to the store can put such objects there, and a genuine record may be damaged so that it
//! looks like one. So whoever may have been removed by what is lost is removed again first. What is settled stays
//! where it is: a number that became free again would be another's to take, before the records that follow it.

use std::collections::BTreeMap;

use super::{
    FORMAT, KeyError, KeyId, Role,
    error::damaged,
    manage::{UnderWay, remove_as},
    operator::as_settler,
    rfc3339, rotation,
    signed::{self, Sort},
    trust::{RECORD_BYTES_MAX, Removal, Trust},
};
use crate::{
    error::{Damage, RepoError},
    format::{hex::Hex, object::NO_OBJECT},
    log::history::History,
    repo::Repo,
    store::ObjectPath,
};

/// In a record that removes nobody.
const NOBODY: KeyId = Hex([0; 8]);
/// How often settling tries again after something was added.
const ATTEMPTS: u32 = 20;
const DOING: &str = "settle the records of keys";

/// What is to be settled, or was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Objects that count for nothing then, each with what is wrong with it.
    pub objects: Vec<(String, String)>,
    /// Keys that are removed again: they stand, but have no object, and a removal may be lost.
    pub removed: Vec<KeyId>,
}

impl Settlement {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.removed.is_empty()
    }
}

/// What there is to settle for an operator. Changes nothing.
pub fn plan_settling(repo: &Repo) -> Result<Settlement, KeyError> {
    let trust = repo.look_again()?;
    if repo.keys().role() != Role::Operator {
        return Ok(Settlement::default());
    }
    plan(repo, &trust)
}

fn plan(repo: &Repo, trust: &Trust) -> Result<Settlement, KeyError> {
    let unsettled = &trust.unsettled;
    let mut objects: Vec<(String, String)> =
        unsettled.strangers.iter().map(|(path, what)| (path.to_string(), (*what).to_owned())).collect();
    if !unsettled.broken.is_empty()
        && let Some((object, damage)) = trust.blocking().filter(|(object, _)| object.starts_with("removals/"))
        && !objects.iter().any(|(known, _)| known == object)
    {
        objects.push((object.clone(), damage.to_string()));
    }
    let made_up = rotation::made_up(&**repo.store(), trust, repo.keys())?;
    let what = "no operator of this repository signed it";
    objects.extend(trust.stray_rotations.iter().chain(&made_up).map(|it| (it.to_string(), what.to_owned())));
    Ok(Settlement { objects, removed: unsettled.without_object.clone() })
}

/// Settles what [`plan_settling`] shows: objects that nobody has signed keep nobody from writing any more.
pub fn settle(repo: &Repo) -> Result<Settlement, KeyError> {
    let settlement = plan_settling(repo)?;
    if settlement.is_empty() {
        return Ok(settlement);
    }
    let (_, trust) = as_settler(repo, DOING)?;
    // Anything else is not settled by this, and what is signed now might not be believed.
    match trust.blocking() {
        Some((object, damage)) if !object.starts_with("removals/") => return Err(damaged(object, damage)),
        _ => {}
    }
    if let Some(made_up) = rotation::made_up(&**repo.store(), &trust, repo.keys())? {
        require_unused(repo, &made_up)?;
        repo.discard(&[made_up])?;
    }
    for key_id in &settlement.removed {
        remove_as(repo, *key_id, UnderWay::Refused, as_settler)?;
    }
    for _ in 0..ATTEMPTS {
        let (_, trust) = as_settler(repo, DOING)?;
        if trust.unsettled.doubtful == 0 && trust.unsettled.broken.is_empty() {
            // No honest program continues the log there.
            let after_gap = trust.unsettled.strangers.iter().map(|(path, _)| path);
            let left: Vec<ObjectPath> = after_gap.chain(&trust.stray_rotations).cloned().collect();
            repo.discard(&left)?;
            repo.look_again()?;
            return Ok(settlement);
        }
        // Whoever has lost the object of a key meanwhile is not settled with the rest.
        if trust.unsettled.without_object.iter().any(|key_id| !settlement.removed.contains(key_id)) {
            return Err(KeyError::Crowded);
        }
        create_record(repo, &trust)?;
    }
    Err(KeyError::Crowded)
}

/// Creates the record that settles the removals, unless another is first.
fn create_record(repo: &Repo, trust: &Trust) -> Result<(), KeyError> {
    let record = Removal {
        format: FORMAT,
        number: trust.next_removal(),
        previous: trust.last_removal(),
        key_id: NOBODY,
        at: rfc3339(repo.store().now()?),
        runs: BTreeMap::new(),
        tips: BTreeMap::new(),
        may_end: BTreeMap::new(),
        kept: Vec::new(),
        kept_records: BTreeMap::new(),
        rotations: 0,
        last_rotation: Some(NO_OBJECT),
        settles: Some(trust.unsettled.broken.clone()),
    };
    let record = signed::sign(repo.keys(), Sort::Removal, &record);
    if record.len() as u64 > RECORD_BYTES_MAX {
        return Err(damaged("removals/", "too many removals are out of order"));
    }
    match repo.store().create_if_absent(&trust.next_removal_path(), &record) {
        Err(error) if !error.is_exists() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Checks that no outcome was sealed for the rotation that may have been in the place of `made_up`: its shares may be
/// all that opens it.
fn require_unused(repo: &Repo, made_up: &ObjectPath) -> Result<(), KeyError> {
    let failed = |error: RepoError| match error {
        RepoError::Store(error) => error.into(),
        other => damaged("sources/", other),
    };
    let mut is_used = false;
    for log in repo.logs().map_err(failed)? {
        let mut each = |_, error: RepoError| {
            is_used |= matches!(error, RepoError::Damaged { damage: Damage::NewerKeys { .. }, .. });
        };
        History::salvage(repo, &log, &mut each).map_err(failed)?;
    }
    match is_used {
        true => Err(damaged(made_up, "backups were sealed for this rotation: put it back from a copy")),
        false => Ok(()),
    }
}
