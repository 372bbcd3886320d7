//! Whether a repository is fit for several writers: `docs/reference/repository.md`, section 12.

use jiff::Timestamp;
use serde::Serialize;

use crate::store::{Creation, ObjectPath, Store, StoreError, StoreErrorKind, exists, probe_creation};

/// Name of the object that marks a repository for one writer at a time.
pub const ONE_WRITER: &str = "one-writer";
/// Prefix of the objects that a probe creates and deletes.
pub const PROBES: &str = "probe/";

/// Contents of the object, for people.
#[derive(Serialize)]
struct OneWriter {
    why: &'static str,
    found_at: String,
}

fn one_writer() -> Result<ObjectPath, StoreError> {
    let no_name = || StoreErrorKind::Io(std::io::ErrorKind::InvalidFilename.into());
    ObjectPath::new(ONE_WRITER).ok_or_else(|| StoreError::new(ONE_WRITER, no_name()))
}

/// Finds out what `store` does when several callers create one name, and records it if that makes the store
/// unfit for several writers. Must be called before a repository is made in it.
pub fn examine(store: &dyn Store) -> Result<Creation, StoreError> {
    let mut random = [0; 8];
    let no_random = |error: getrandom::Error| StoreErrorKind::Io(std::io::Error::other(error));
    getrandom::fill(&mut random).map_err(|error| StoreError::new(PROBES, no_random(error)))?;
    let creation = probe_creation(store, &format!("{:016x}", u64::from_le_bytes(random)))?;
    if creation == Creation::Shared {
        let found = OneWriter {
            why: "several clients were told that they had created the same object",
            found_at: Timestamp::try_from(store.now()?).unwrap_or(Timestamp::UNIX_EPOCH).to_string(),
        };
        let bytes = serde_json::to_vec(&found)
            .map_err(|error| StoreError::new(ONE_WRITER, StoreErrorKind::Io(std::io::Error::other(error))))?;
        match store.create_if_absent(&one_writer()?, &bytes) {
            Err(error) if !error.is_exists() => return Err(error),
            _ => {}
        }
    }
    Ok(creation)
}

/// Whether the repository in `store` is for one writer at a time.
pub fn is_for_one(store: &dyn Store) -> Result<bool, StoreError> {
    exists(store, &one_writer()?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        keys::Protection,
        repo::Repo,
        store::{mem::MemStore, probe::tests::Careless},
    };

    #[test]
    fn what_was_found_is_there_before_the_repository_is() {
        for (store, is_one) in [
            (Arc::new(MemStore::new()) as Arc<dyn Store>, false),
            (Arc::new(Careless(MemStore::new())), true),
        ] {
            let creation = examine(&*store).unwrap();
            assert_eq!(creation == Creation::Shared, is_one);
            // An earlier attempt began and died: the next one begins anew.
            assert_eq!(examine(&*store).unwrap(), creation);
            let repo = Repo::init(Arc::clone(&store), &Protection::None).unwrap();
            assert_eq!(is_for_one(&**repo.store()).unwrap(), is_one);
        }
    }
}
