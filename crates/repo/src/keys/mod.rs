//! The keys of a repository (`docs/reference/repository.md` sections 3 and 4): what a key holds, how it is kept,
//! and whom it believes. [`ops::keys`](crate::ops::keys) adds, removes and rotates them.
//!
//! `holdfast.json` is read without a key and not believed: only its copy inside the sealed key object counts.

mod error;
mod identity;
pub(crate) mod material;
mod opening;
mod password;
mod repository;
pub(crate) mod rotation;
pub(crate) mod signed;
mod signer;
pub(crate) mod slot;
pub(crate) mod trust;
pub(crate) mod wrap;

use crate::store::ObjectPath;

pub use crate::format::{
    names::KeyId,
    role::{Act, Role},
};
pub use error::KeyError;
pub(crate) use error::damaged;
pub use identity::{Identity, IdentityError, PublicKey, Trusted};
pub use material::KeyMaterial;
pub use opening::Protection;
pub(crate) use opening::{init, look, open};
pub use password::{KdfError, KdfParams, Password};
pub(crate) use repository::lasts;
pub use repository::{RepositoryId, RepositoryInfo};
pub use signer::Signer;
pub use slot::{NewSlot, Unlock};
pub use trust::Author;

use material::SIGNATURE_BYTES;

/// The format that this version reads and writes.
pub const FORMAT: u32 = 2;

const SMALL_OBJECT_LIMIT_BYTES: u64 = 1 << 20;
/// Keys of one repository, at most: opening tries them one after another.
pub const KEYS_LIMIT: usize = 64;

pub(crate) fn random<const N: usize>() -> Result<[u8; N], getrandom::Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn object_path(name: &str) -> ObjectPath {
    match ObjectPath::new(name) {
        Some(path) => path,
        None => unreachable!("a fixed name, or hex"),
    }
}

/// The object of a key.
pub(crate) fn key_path(key_id: KeyId) -> ObjectPath {
    object_path(&format!("keys/{key_id}"))
}

pub(crate) fn info_path() -> ObjectPath {
    object_path("holdfast.json")
}

pub(crate) fn rfc3339(time: std::time::SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}
