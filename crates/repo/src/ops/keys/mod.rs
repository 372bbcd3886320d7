//! Listing, adding, removing, changing and rotating the keys of a repository
//! (`docs/reference/repository.md` section 4).

mod add;
mod change;
#[cfg(any(fuzzing, test))]
pub(crate) mod fuzzing;
mod list;
mod newest;
mod operator;
mod remove;
mod rotate;
#[cfg(test)]
mod tests;

use crate::{
    error::RepoError,
    keys::{KEYS_LIMIT, KeyError, damaged},
    repo::Repo,
    store::ObjectPath,
};

pub use add::{LABEL_BYTES_MAX, NewKey, add, trusted};
pub use change::change;
pub use list::{KeyInfo, KeyList, SlotInfo, list, without_share};
pub use remove::{Removed, UnderWay, remove};
pub use rotate::{Rotated, rotate};

/// How often a removal tries again after another was first to create a record.
const ATTEMPTS: u32 = 20;

fn key_paths(repo: &Repo) -> Result<Vec<ObjectPath>, KeyError> {
    let mut paths = Vec::new();
    repo.store().list("keys/", &mut |object| {
        paths.push(object.path);
        paths.len() < KEYS_LIMIT
    })?;
    Ok(paths)
}

fn of_listing(error: RepoError) -> KeyError {
    match error {
        RepoError::Store(error) => error.into(),
        other => damaged("sources/", other),
    }
}
