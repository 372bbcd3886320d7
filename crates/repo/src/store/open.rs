//! From what the user typed to a store.

use std::{path::PathBuf, sync::Arc};

use thiserror::Error;

use super::{Store, StoreError, fs::FsStore};

/// Why a location did not become a store.
#[derive(Debug, Error)]
pub enum OpenStoreError {
    /// Neither an absolute path nor a URL.
    #[error("\"{location}\" is not a repository: use /directory or file:///directory")]
    BadLocation {
        /// What was typed.
        location: String,
    },
    /// A kind of store that this version cannot use.
    #[error("repositories in {scheme}:// are not supported yet: use /directory")]
    NotYet {
        /// Its scheme.
        scheme: String,
    },
    /// The place does not exist or cannot be reached.
    #[error("cannot open the repository's place")]
    Store(#[from] StoreError),
}

/// Opens a store that exists: `/dir` or `file:///dir`.
pub fn open_store(location: &str) -> Result<Arc<dyn Store>, OpenStoreError> {
    Ok(Arc::new(FsStore::open(directory(location)?)?))
}

/// Opens a store and makes its directory if need be: for `init`.
pub fn create_store(location: &str) -> Result<Arc<dyn Store>, OpenStoreError> {
    Ok(Arc::new(FsStore::create(directory(location)?)?))
}

fn directory(location: &str) -> Result<PathBuf, OpenStoreError> {
    let path = match location.split_once("://") {
        Some(("file", path)) => path,
        Some((scheme @ ("s3" | "sftp"), _)) => {
            return Err(OpenStoreError::NotYet { scheme: scheme.to_owned() });
        }
        Some(_) => "",
        None => location,
    };
    if path.starts_with('/') {
        Ok(PathBuf::from(path))
    } else {
        Err(OpenStoreError::BadLocation { location: location.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_understood_or_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").display().to_string();
        assert!(matches!(open_store(&path), Err(OpenStoreError::Store(error)) if error.is_not_found()));
        create_store(&path).unwrap();
        assert_eq!(open_store(&format!("file://{path}")).unwrap().location(), path);
        for later in ["s3://bucket/prefix", "sftp://user@host/dir"] {
            assert!(matches!(open_store(later), Err(OpenStoreError::NotYet { .. })), "{later}");
        }
        for bad in ["", "relative", "http://host/", "file://relative", "s3:bucket"] {
            assert!(matches!(open_store(bad), Err(OpenStoreError::BadLocation { .. })), "{bad}");
        }
    }
}
