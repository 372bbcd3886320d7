//! The keys of a repository (`docs/reference/repository.md` sections 3 and 4).
//!
//! `holdfast.json` is read without a key and not believed: only its copy inside the sealed key object counts.

use std::fmt;

use holdfast_pipe::Suite;
use serde::{Deserialize, Serialize};

mod error;
#[cfg(any(fuzzing, test))]
pub(crate) mod fuzzing;
mod identity;
pub mod manage;
mod material;
mod operator;
mod password;
pub(crate) mod role;
mod rotation;
mod signed;
mod slot;
pub(crate) mod trust;
pub(crate) mod wrap;

pub use crate::format::names::KeyId;
pub use error::KeyError;
pub use identity::{Identity, IdentityError, PublicKey, Trusted};
pub use material::KeyMaterial;
pub use password::{KdfError, KdfParams, Password};
pub use role::{Act, Role};
pub use rotation::{Rotated, rotate};
pub use slot::{NewSlot, Unlock};
pub use trust::Author;

use error::damaged;
use material::{OwnKeys, Payload, SIGNATURE_BYTES, SealKeys};
use slot::{Described, to_json};
use trust::{Trust, signer_path};

use crate::{
    error::Damage,
    format::{
        hex::{Hex, Secret32},
        names::Folder,
    },
    store::{
        ObjectPath, Store, StoreError,
        locks::{self, ObjectLock},
        read_all, writers,
    },
};

/// The format that this version reads and writes.
pub const FORMAT: u32 = 2;

const SMALL_OBJECT_LIMIT_BYTES: u64 = 1 << 20;
/// Keys of one repository, at most: opening tries them one after another.
pub const KEYS_LIMIT: usize = 64;

/// Identifies a repository. Random, chosen at `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RepositoryId(pub Hex<16>);

impl fmt::Display for RepositoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Contents of `holdfast.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryInfo {
    /// Format of everything stored.
    pub format: u32,
    /// Identifies the repository.
    pub repository_id: RepositoryId,
    /// How objects are sealed.
    #[serde(with = "suite_name")]
    pub suite: Suite,
    /// RFC 3339, UTC, by the store's clock.
    pub created_at: String,
    /// The lock that everybody who writes here asks of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_lock: Option<ObjectLock>,
}

impl RepositoryInfo {
    /// Locks what is written from now on and lasts, if the repository asks for that.
    /// Whoever only reads needs no lock.
    pub(crate) fn apply_lock(&self, store: &dyn Store) {
        if let (Some(lock), Some(versioned)) = (self.object_lock, store.versioned()) {
            versioned.lock_new(lock, lasts);
        }
    }
}

/// Whether an object stays for as long as a backup may need it. Others are replaced, or deleted
/// when a run ends: leases, requests for room, segments, records of checks, and objects that
/// the store itself is probed with.
pub(crate) fn lasts(path: &ObjectPath) -> bool {
    const SHORT: [Folder; 4] = [Folder::Runs, Folder::Segments, Folder::Checks, Folder::Asks];
    let mut parts = path.as_str().split('/');
    match (parts.next(), parts.nth(2)) {
        (Some("sources"), Some(folder)) => SHORT.iter().all(|short| short.as_str() != folder),
        (Some(first), _) => first != writers::PROBES.trim_end_matches('/') && !first.starts_with('.'),
        (None, _) => false,
    }
}

mod suite_name {
    use holdfast_pipe::Suite;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(suite: &Suite, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match suite {
            Suite::None => "none",
            Suite::X25519Aes256Gcm => "x25519-aes256gcm",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Suite, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "none" => Ok(Suite::None),
            "x25519-aes256gcm" => Ok(Suite::X25519Aes256Gcm),
            other => Err(D::Error::custom(format!("unknown suite \"{other}\""))),
        }
    }
}

/// A key whose signatures are believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signer {
    /// Ed25519 public key.
    pub public: Hex<32>,
    /// What it may sign.
    pub role: Role,
    /// The key that it belongs to.
    pub key_id: KeyId,
    /// Sources whose outcomes it may sign; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// X25519 public key for its share in rotations; absent in keys made by early versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Hex<32>>,
}

/// How the keys of a new repository are kept.
#[derive(Debug)]
pub enum Protection<'a> {
    /// Everything is encrypted; the keys are behind a password.
    Password {
        /// The password.
        password: &'a Password,
        /// Cost of a guess; [`KdfParams::DEFAULT`] unless there is a reason.
        kdf: KdfParams,
    },
    /// Nothing is encrypted; seals are checksums.
    None,
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], getrandom::Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

fn object_path(name: &str) -> ObjectPath {
    match ObjectPath::new(name) {
        Some(path) => path,
        None => unreachable!("a fixed name, or hex"),
    }
}

fn info_path() -> ObjectPath {
    object_path("holdfast.json")
}

/// Creates a repository: its keys, then `holdfast.json`, whose creation decides between two that try at once.
pub(crate) fn init(
    store: &dyn Store,
    protection: &Protection<'_>,
    object_lock: Option<ObjectLock>,
) -> Result<(KeyMaterial, Trust), KeyError> {
    let mut found = None;
    store.list("", &mut |info| {
        // A key whose init died early opens nothing: it is bound to a repository that never came to exist.
        let is_left_over = ["keys/", writers::PROBES].iter().any(|it| info.path.as_str().starts_with(it))
            || info.path.as_str() == writers::ONE_WRITER;
        found = (!is_left_over).then_some(info.path);
        found.is_none()
    })?;
    if let Some(object) = found {
        return Err(KeyError::NotEmpty { location: store.location(), object: object.to_string() });
    }
    // Checked before any lock is requested.
    if object_lock.is_some()
        && let Some(why) = locks::why_none(store)?
    {
        return Err(KeyError::NoLocks { location: store.location(), why });
    }
    let material = new_material(store, protection, object_lock)?;
    material.repository().apply_lock(store);
    let key_path = object_path(&format!("keys/{}", material.key_id()));
    let slot = match *protection {
        Protection::Password { password, kdf } => Some(NewSlot::Password { password, kdf }),
        Protection::None => None,
    };
    let created_at = material.repository().created_at.clone();
    let described = Described { label: String::new(), created_at };
    let key_object = slot::seal(&material, slot, described, &material)?;
    store.create_if_absent(&key_path, &to_json(&key_object))?;
    require_locked(store, object_lock, &key_path)?;
    match store.create_if_absent(&info_path(), &to_json(material.repository())) {
        Ok(_) => {
            let trust = Trust::of_anchors(&material.payload.signers);
            Ok((material, trust))
        }
        Err(error) if error.is_exists() => {
            store.delete(&[key_path])?;
            Err(KeyError::NotEmpty { location: store.location(), object: info_path().to_string() })
        }
        Err(error) => Err(error.into()),
    }
}

/// Checks that the store has locked the object, if it was asked to.
fn require_locked(store: &dyn Store, lock: Option<ObjectLock>, path: &ObjectPath) -> Result<(), KeyError> {
    let (Some(_), Some(versioned)) = (lock, store.versioned()) else { return Ok(()) };
    match versioned.locked_until(path)? {
        Some(_) => Ok(()),
        None => {
            let why = "the first object was stored without a lock, or its lock may not be read \
                       (s3:GetObjectRetention)";
            Err(KeyError::NoLocks { location: store.location(), why })
        }
    }
}

fn new_material(
    store: &dyn Store,
    protection: &Protection<'_>,
    object_lock: Option<ObjectLock>,
) -> Result<KeyMaterial, KeyError> {
    let created_at = rfc3339(store.now()?);
    let own = OwnKeys::generate()?;
    let signer = own.signer(Role::Operator, Vec::new());
    let SealKeys { read_public, read_private, refs_public, refs_private } = SealKeys::generate();
    let suite = match protection {
        Protection::Password { .. } => Suite::X25519Aes256Gcm,
        Protection::None => Suite::None,
    };
    let repository_id = RepositoryId(Hex(random().map_err(KeyError::NoRandom)?));
    let payload = Payload {
        repository: RepositoryInfo { format: FORMAT, repository_id, suite, created_at, object_lock },
        read_public,
        read_private,
        refs_public,
        refs_private,
        rotated: Vec::new(),
        hash_key: Some(Secret32(random().map_err(KeyError::NoRandom)?)),
        signing_key: own.signing_key,
        exchange_key: Some(own.exchange_key),
        signers: vec![signer],
    };
    KeyMaterial::from_payload(payload, own.key_id, Role::Operator).map_err(|what| damaged("new keys", what))
}

/// Opens the keys of a repository: any of them, or only the one that is named.
///
/// If a password is given, a repository without encryption is refused: whoever can write the store could have
/// put it in the place of an encrypted one.
pub(crate) fn open(
    store: &dyn Store,
    unlock: Unlock<'_>,
    only: Option<KeyId>,
) -> Result<(KeyMaterial, Trust), KeyError> {
    let info = read_info(store)?;
    match (info.suite, unlock) {
        (Suite::None, Unlock::Password(_) | Unlock::Identity(_)) => {
            return Err(KeyError::NotEncrypted { location: store.location() });
        }
        (Suite::X25519Aes256Gcm, Unlock::Nothing) => {
            return Err(KeyError::PasswordNeeded { location: store.location() });
        }
        _ => {}
    }
    let material = open_any(store, &info, unlock, only)?;
    // Only what the key object says is believed.
    material.repository().apply_lock(store);
    let trust = look(store, &material)?;
    if trust.is_removed(material.key_id()) {
        return Err(KeyError::Removed { key_id: material.key_id() });
    }
    Ok((material, trust))
}

fn open_any(
    store: &dyn Store,
    info: &RepositoryInfo,
    unlock: Unlock<'_>,
    only: Option<KeyId>,
) -> Result<KeyMaterial, KeyError> {
    let mut paths = Vec::new();
    match only {
        Some(key_id) => paths.push(object_path(&format!("keys/{key_id}"))),
        None => store.list("keys/", &mut |object| {
            paths.push(object.path);
            paths.len() < KEYS_LIMIT
        })?,
    }
    if paths.is_empty() {
        return Err(damaged("keys/", "no key is left"));
    }
    let mut first_error = None;
    for path in paths {
        match slot::open(store, &path, info, unlock) {
            Ok(Some(material)) => return Ok(material),
            Ok(None) => {}
            Err(KeyError::Store(error)) if error.is_not_found() => {
                if let Some(key_id) = only {
                    return Err(KeyError::NoSuchKey { key_id });
                }
            }
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    let location = store.location();
    Err(first_error.unwrap_or(match unlock {
        Unlock::Identity(_) => KeyError::WrongIdentity { location },
        Unlock::Password(_) | Unlock::Nothing => KeyError::WrongPassword { location },
    }))
}

/// Reads whom to believe, beginning with those that the key object lists.
/// Takes up the key pairs of rotations made since.
pub(crate) fn look(store: &dyn Store, material: &KeyMaterial) -> Result<Trust, StoreError> {
    if material.repository().suite == Suite::None {
        // There is one key, and everybody has it.
        return Ok(Trust::of_anchors(&material.payload.signers));
    }
    let repository = material.repository().repository_id;
    let mut trust = Trust::read(store, repository, &material.payload.signers)?;
    let is_vouched_for = trust.of_key(material.key_id()).is_some_and(|own| own.voucher.is_some());
    if material.needs_voucher() && !is_vouched_for {
        // Nobody else would believe what it signs.
        trust.block(&signer_path(material.key_id()), Damage::Missing);
    }
    rotation::read(store, &trust, material)?;
    Ok(trust)
}

fn read_info(store: &dyn Store) -> Result<RepositoryInfo, KeyError> {
    let path = info_path();
    let bytes = match read_all(store, &path, SMALL_OBJECT_LIMIT_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => {
            return Err(KeyError::NotARepository { location: store.location() });
        }
        Err(error) => return Err(error.into()),
    };
    #[derive(Deserialize)]
    struct Version {
        format: u64,
    }
    let version: Version = serde_json::from_slice(&bytes).map_err(|error| damaged(&path, error))?;
    let mut later = (version.format > u64::from(FORMAT)).then(|| version.format.to_string());
    store.list("format/", &mut |object| {
        later = Some(object.path.file_name().to_owned());
        true
    })?;
    if let Some(format) = later {
        return Err(KeyError::NewerFormat { location: store.location(), format });
    }
    let info: RepositoryInfo = serde_json::from_slice(&bytes).map_err(|error| damaged(&path, error))?;
    match info.format {
        FORMAT => Ok(info),
        format => Err(KeyError::OlderFormat { location: store.location(), format }),
    }
}

pub(crate) fn rfc3339(time: std::time::SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
mod tests;
