//! Rotating the key pairs that objects are sealed for.

use super::operator::as_operator;
use crate::{
    keys::{KeyError, KeyId, look, rfc3339, rotation},
    repo::Repo,
};

/// What a rotation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotated {
    /// Its number, from 1.
    pub number: u8,
    /// Keys that have their share in it.
    pub keys: usize,
    /// Keys that were added at the same time and have none: they open nothing sealed from now on.
    pub without_share: Vec<KeyId>,
}

/// Makes new key pairs for what is sealed from now on, with a share for every key that is not removed.
pub fn rotate(repo: &Repo) -> Result<Rotated, KeyError> {
    let (keys, trust) = as_operator(repo, "rotate keys")?;
    let store = &**repo.store();
    // More rotations may be known by now than when the repository was opened.
    let (latest, previous) = rotation::latest(store, &trust, keys)?;
    let Some(number) = latest.rotations().checked_add(1) else {
        return Err(KeyError::RotatedOut { count: usize::from(latest.rotations()) });
    };
    let at = rfc3339(store.now()?);
    let (record, keys) = rotation::new_record(keys, &trust, (number, previous), at)?;
    match store.create_if_absent(&rotation::path(number), &record) {
        Ok(_) => {}
        Err(error) if error.is_exists() => return Err(KeyError::Crowded),
        Err(error) => return Err(error.into()),
    }
    // The key may have been removed meanwhile, or others added.
    let trust = look(store, &latest)?;
    rotation::require_counted(&latest)?;
    let without_share = rotation::without_share(store, &trust, &latest)?;
    let without_share = without_share.into_iter().map(|(key_id, _)| key_id).collect();
    Ok(Rotated { number, keys, without_share })
}
