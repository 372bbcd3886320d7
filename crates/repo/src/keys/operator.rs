//! Who may change keys, and where they are.

use std::sync::Arc;

use holdfast_pipe::Suite;

use super::{KeyError, KeyId, KeyMaterial, Role, error::damaged, object_path, trust::Trust};
use crate::{
    repo::Repo,
    store::{ObjectPath, exists},
};

/// The object of a key.
pub(super) fn key_path(key_id: KeyId) -> ObjectPath {
    object_path(&format!("keys/{key_id}"))
}

/// Whether it exists.
pub(super) fn has_object(repo: &Repo, key_id: KeyId) -> Result<bool, KeyError> {
    Ok(exists(&**repo.store(), &key_path(key_id))?)
}

/// The keys at hand, if they are an operator's, and whom to believe as of now.
pub(super) fn as_operator<'a>(
    repo: &'a Repo,
    act: &'static str,
) -> Result<(&'a KeyMaterial, Arc<Trust>), KeyError> {
    let keys = repo.keys();
    if repo.info().suite == Suite::None {
        return Err(KeyError::NothingToProtect { location: repo.store().location() });
    }
    if keys.role() != Role::Operator {
        return Err(KeyError::NotOperator { role: keys.role(), act });
    }
    let trust = repo.look_again()?;
    if trust.is_removed(keys.key_id()) {
        return Err(KeyError::Removed { key_id: keys.key_id() });
    }
    match repo.blocking(&trust) {
        Some((object, what)) => Err(damaged(object, what)),
        None => Ok((keys, trust)),
    }
}
