//! Stores by their URL: a directory, object storage, a host behind SSH.
//!
//! The contract of a store is that of [`holdfast_repo::store::Store`]. How each kind of store keeps it is
//! described at the head of its module, and for users in `docs/guide/stores.md`. Calls block; the one small
//! runtime that moves bytes beneath them stays inside this crate.

use std::{sync::Arc, time::SystemTime};

use holdfast_repo::store::{Store, StoreError, fs::FsStore};
use thiserror::Error;

use self::bucket::Service;

pub mod bucket;
pub mod limited;
mod location;
mod pause;
mod runtime;
pub mod sftp;

pub use location::{BadLocation, Location};

/// Variables that hold passwords: of repositories, and of a server as MySQL's clients look for it. No program that
/// we start gets them.
pub const SECRET_VARIABLES: [&str; 4] =
    ["HOLDFAST_PASSWORD", "HOLDFAST_NEW_PASSWORD", "HOLDFAST_TO_PASSWORD", "MYSQL_PWD"];

/// How stores are reached. Nothing here is read from the environment: the caller has done that.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// For `s3://` and `az://`.
    pub bucket: bucket::BucketOptions,
    /// For `sftp://`.
    pub sftp: sftp::SftpOptions,
    /// For all stores, since even a directory may be on a disk of another host.
    pub limits: limited::Limits,
    /// Opens the store read-only, as it was at this time: for buckets that keep versions.
    pub as_of: Option<SystemTime>,
}

/// Why a location did not become a store.
#[derive(Debug, Error)]
pub enum OpenStoreError {
    /// The location names no place.
    #[error(transparent)]
    BadLocation(#[from] BadLocation),
    /// An option contradicts itself.
    #[error("{0}")]
    BadOption(String),
    /// The place does not exist or cannot be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OpenStoreError {
    /// `place` cannot be read as of an earlier time.
    fn no_versions(place: &str) -> Self {
        Self::BadOption(format!(
            "{place} keeps no versions of its objects, so an earlier state cannot be read"
        ))
    }
}

/// Opens a store that exists.
pub fn open_store(location: &str, options: &StoreOptions) -> Result<Arc<dyn Store>, OpenStoreError> {
    connect(location, options, Missing::IsAnError)
}

/// Opens a store, and makes its directory if it does not exist: for `init`. Buckets are not made.
pub fn create_store(location: &str, options: &StoreOptions) -> Result<Arc<dyn Store>, OpenStoreError> {
    connect(location, options, Missing::IsMade)
}

/// What to do about a directory that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    IsAnError,
    IsMade,
}

fn connect(
    location: &str,
    options: &StoreOptions,
    missing: Missing,
) -> Result<Arc<dyn Store>, OpenStoreError> {
    let place = Location::parse(location)?;
    if let Some(time) = options.as_of {
        let past = match place {
            Location::Bucket { service: Service::S3, bucket, prefix } => {
                bucket::PastBucket::open(&bucket, &prefix, &options.bucket, time)?
            }
            Location::Bucket { .. } => {
                let what = format!("{location} cannot be read as of a time: that is for s3:// only");
                return Err(OpenStoreError::BadOption(what));
            }
            Location::Directory(_) | Location::Sftp(_) => {
                return Err(OpenStoreError::no_versions(location));
            }
        };
        return Ok(limited::limited(Arc::new(past), options.limits));
    }
    let store: Arc<dyn Store> = match place {
        Location::Directory(path) => Arc::new(match missing {
            Missing::IsAnError => FsStore::open(path)?,
            Missing::IsMade => FsStore::create(path)?,
        }),
        Location::Bucket { service, bucket, prefix } => {
            Arc::new(bucket::BucketStore::open(service, &bucket, &prefix, &options.bucket)?)
        }
        Location::Sftp(place) => Arc::new(sftp::SftpStore::open(place, &options.sftp, missing)?),
    };
    Ok(limited::limited(store, options.limits))
}
