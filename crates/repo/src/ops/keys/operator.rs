//! Who may change keys.

use std::sync::Arc;

use holdfast_pipe::Suite;

use crate::{
    keys::{KeyError, KeyMaterial, Role, damaged, trust::Trust},
    repo::Repo,
};

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
