//! Creating the keys of a new repository, and opening those of one that exists.

use holdfast_pipe::Suite;
use serde::Deserialize;

use super::{
    FORMAT, KEYS_LIMIT, KdfParams, KeyError, KeyId, KeyMaterial, NewSlot, Password, RepositoryId,
    RepositoryInfo, Role, SMALL_OBJECT_LIMIT_BYTES, Unlock, damaged, info_path, key_path,
    material::{OwnKeys, Payload, SealKeys},
    random, rfc3339, rotation,
    slot::{self, Described, to_json},
    trust::{Trust, signer_path},
};
use crate::{
    error::Damage,
    format::hex::{Hex, Secret32},
    store::{
        ObjectPath, Store, StoreError,
        locks::{self, ObjectLock},
        read_all, writers,
    },
};

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
    let key_path = key_path(material.key_id());
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
        Some(key_id) => paths.push(key_path(key_id)),
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
