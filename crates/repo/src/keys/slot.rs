//! Key objects: key material behind a password, or sealed for a public key
//! (`docs/reference/repository.md` section 4).

use holdfast_pipe::Suite;
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    signature::{ED25519, UnparsedPublicKey},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    FORMAT, Identity, KdfParams, KeyError, KeyId, KeyMaterial, Password, PublicKey, RepositoryId,
    RepositoryInfo, Role, SIGNATURE_BYTES, SMALL_OBJECT_LIMIT_BYTES, Trusted,
    error::damaged,
    info_path,
    material::Payload,
    random,
    wrap::{Purpose, open_sealed, seal_for},
};
use crate::{
    format::hex::{Hex, from_hex, to_hex},
    store::{ObjectPath, Store, read_all},
};

/// A key object, as stored.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeyObject {
    format: u32,
    pub(crate) key_id: KeyId,
    pub(crate) role: Role,
    pub(crate) label: String,
    pub(crate) created_at: String,
    /// How many rotations the sealed part has the keys of; absent in objects made by earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rotations: Option<u8>,
    pub(crate) slot: Slot,
    sealed: String,
}

/// What protects the key material.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Slot {
    Password {
        kdf: String,
        #[serde(flatten)]
        params: KdfParams,
        salt: Hex<16>,
        nonce: Hex<12>,
    },
    Public {
        recipient: Hex<32>,
        enc: Hex<32>,
        /// Public key of the operator who made it, and that operator's signature:
        /// anybody can seal for a public key.
        by: Hex<32>,
        signature: Hex<SIGNATURE_BYTES>,
    },
    None {},
}

/// How new key material is to be protected.
#[derive(Clone, Copy, Debug)]
pub enum NewSlot<'a> {
    /// Behind a password.
    Password {
        /// The password.
        password: &'a Password,
        /// Cost of a guess; [`KdfParams::DEFAULT`] unless there is a reason.
        kdf: KdfParams,
    },
    /// For the holder of an [`Identity`].
    Public(PublicKey),
}

/// What opens a key object.
#[derive(Clone, Copy, Debug)]
pub enum Unlock<'a> {
    /// The repository is not encrypted.
    Nothing,
    /// A password.
    Password(&'a Password),
    /// A key pair.
    Identity(&'a Identity),
}

fn associated_data(repository: RepositoryId, key_id: KeyId, role: Role) -> Vec<u8> {
    let mut data = b"holdfast key 1\0".to_vec();
    data.extend_from_slice(&repository.0.0);
    data.extend_from_slice(&key_id.0);
    data.push(role.number());
    data
}

fn of_password(mut data: Vec<u8>, params: KdfParams, salt: Hex<16>) -> Vec<u8> {
    for number in [params.m_kib, params.t, params.p] {
        data.extend_from_slice(&number.to_le_bytes());
    }
    data.extend_from_slice(&salt.0);
    data
}

fn of_public(mut data: Vec<u8>, recipient: Hex<32>) -> Vec<u8> {
    data.extend_from_slice(&recipient.0);
    data
}

/// The message that an operator signs to make a key object for a public key.
fn slot_message(associated: &[u8], enc: Hex<32>, sealed: &[u8]) -> Vec<u8> {
    let mut message = b"holdfast key object 1\0".to_vec();
    message.extend_from_slice(associated);
    message.extend_from_slice(&enc.0);
    message.extend_from_slice(blake3::hash(sealed).as_bytes());
    message
}

fn slot_cipher(key: &[u8; 32]) -> LessSafeKey {
    match UnboundKey::new(&AES_256_GCM, key) {
        Ok(unbound) => LessSafeKey::new(unbound),
        Err(_) => unreachable!("AES-256-GCM takes 32 bytes"),
    }
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> Zeroizing<Vec<u8>> {
    // Large enough that growing does not leave copies of secrets behind.
    let mut json = Zeroizing::new(Vec::with_capacity(64 << 10));
    if serde_json::to_writer(&mut *json, value).is_err() {
        unreachable!("plain structs into memory");
    }
    json
}

/// What is stored beside the sealed part, for people.
pub(crate) struct Described {
    pub(crate) label: String,
    pub(crate) created_at: String,
}

/// The key object for `material`, made by `by`. Without a slot, it is not encrypted.
pub(crate) fn seal(
    material: &KeyMaterial,
    slot: Option<NewSlot<'_>>,
    described: Described,
    by: &KeyMaterial,
) -> Result<KeyObject, KeyError> {
    let mut bytes = to_json(&material.payload);
    let repository = material.repository().repository_id;
    let (key_id, role) = (material.key_id(), material.role());
    let associated = associated_data(repository, key_id, role);
    let slot = match slot {
        None => Slot::None {},
        Some(NewSlot::Password { password, kdf }) => {
            let salt = Hex(random().map_err(KeyError::NoRandom)?);
            let nonce = Hex(random().map_err(KeyError::NoRandom)?);
            let kdf_error = |source| KeyError::Kdf { object: "new keys".to_owned(), source };
            let key = kdf.derive(password, &salt.0).map_err(kdf_error)?;
            let data = of_password(associated, kdf, salt);
            let nonce_once = Nonce::assume_unique_for_key(nonce.0);
            if slot_cipher(&key).seal_in_place_append_tag(nonce_once, Aad::from(data), &mut *bytes).is_err() {
                unreachable!("AES-256-GCM seals anything below 64 GiB");
            }
            Slot::Password { kdf: "argon2id".to_owned(), params: kdf, salt, nonce }
        }
        Some(NewSlot::Public(PublicKey(recipient))) => {
            let associated = of_public(associated, recipient);
            let sealed = seal_for(repository, Purpose::KeySlot, recipient, &bytes, &associated);
            let (enc, sealed) = sealed.ok_or_else(|| damaged("the public key", "it is no usable key"))?;
            let (by, signature) = by.sign(&slot_message(&associated, enc, &sealed));
            bytes = Zeroizing::new(sealed);
            Slot::Public { recipient, enc, by, signature: Hex(signature) }
        }
    };
    let Described { label, created_at } = described;
    let rotations = u8::try_from(material.payload.rotated.len()).ok();
    Ok(KeyObject { format: FORMAT, key_id, role, label, created_at, rotations, slot, sealed: to_hex(&bytes) })
}

/// Reads a key object, without opening it.
pub(crate) fn read(store: &dyn Store, path: &ObjectPath) -> Result<KeyObject, KeyError> {
    let bytes = Zeroizing::new(read_all(store, path, SMALL_OBJECT_LIMIT_BYTES)?);
    let object: KeyObject = serde_json::from_slice(&bytes).map_err(|error| damaged(path, error))?;
    if object.format != FORMAT || path.file_name() != object.key_id.to_string() {
        return Err(damaged(path, "format or key id contradicts its name"));
    }
    Ok(object)
}

/// Reads a key object that could be opened by whoever has its password or identity, as far as that can be told
/// without.
pub(crate) fn read_sound(
    store: &dyn Store,
    path: &ObjectPath,
    info: &RepositoryInfo,
) -> Result<KeyObject, KeyError> {
    let object = read(store, path)?;
    let sealed = from_hex(&object.sealed).ok_or_else(|| damaged(path, "not hex"))?;
    match &object.slot {
        Slot::Password { kdf, .. } if kdf != "argon2id" => {
            return Err(damaged(path, format!("unknown key derivation \"{kdf}\"")));
        }
        Slot::Password { params, .. } => params.check().map_err(|error| damaged(path, error))?,
        Slot::Public { recipient, enc, by, signature } => {
            let associated = associated_data(info.repository_id, object.key_id, object.role);
            let message = slot_message(&of_public(associated, *recipient), *enc, &sealed);
            if UnparsedPublicKey::new(&ED25519, by.0).verify(&message, &signature.0).is_err() {
                return Err(damaged(path, "its signature is wrong"));
            }
        }
        Slot::None {} => {}
    }
    if matches!(object.slot, Slot::None {}) != (info.suite == Suite::None) {
        return Err(damaged(path, "its slot contradicts the repository's suite"));
    }
    Ok(object)
}

/// Opens a key object; `None` if it is for another password or identity.
pub(crate) fn open(
    store: &dyn Store,
    path: &ObjectPath,
    info: &RepositoryInfo,
    unlock: Unlock<'_>,
) -> Result<Option<KeyMaterial>, KeyError> {
    let object = read(store, path)?;
    let sealed = from_hex(&object.sealed).ok_or_else(|| damaged(path, "not hex"))?;
    let mut sealed = Zeroizing::new(sealed);
    let associated = associated_data(info.repository_id, object.key_id, object.role);
    let opened;
    let plain: &[u8] = match (object.slot, unlock) {
        (Slot::Password { kdf, params, salt, nonce }, Unlock::Password(password)) => {
            if kdf != "argon2id" {
                return Err(damaged(path, format!("unknown key derivation \"{kdf}\"")));
            }
            let key = params
                .derive(password, &salt.0)
                .map_err(|source| KeyError::Kdf { object: path.to_string(), source })?;
            let data = of_password(associated, params, salt);
            let nonce = Nonce::assume_unique_for_key(nonce.0);
            match slot_cipher(&key).open_in_place(nonce, Aad::from(data), &mut sealed) {
                Ok(plain) => plain,
                Err(_) => return Ok(None),
            }
        }
        (Slot::Public { recipient, enc, by, signature }, Unlock::Identity(identity)) => {
            if recipient != identity.public().0 {
                return Ok(None);
            }
            let associated = of_public(associated, recipient);
            let message = slot_message(&associated, enc, &sealed);
            if UnparsedPublicKey::new(&ED25519, by.0).verify(&message, &signature.0).is_err() {
                return Err(damaged(path, "its signature is wrong"));
            }
            let trusted = Trusted { repository: info.repository_id, operator: by };
            if !identity.trusts(trusted) {
                return Err(KeyError::Untrusted { object: path.to_string(), trusted });
            }
            let private = identity.private();
            let plain = open_sealed(info.repository_id, Purpose::KeySlot, private, enc, &sealed, &associated);
            opened = plain.ok_or_else(|| damaged(path, "it does not open"))?;
            &opened
        }
        (Slot::None {}, Unlock::Nothing) => &sealed,
        (Slot::Public { .. }, Unlock::Password(_)) | (Slot::Password { .. }, Unlock::Identity(_)) => {
            return Ok(None);
        }
        (Slot::Password { .. } | Slot::Public { .. }, Unlock::Nothing) | (Slot::None {}, _) => {
            return Err(damaged(path, "its slot contradicts the repository's suite"));
        }
    };
    let payload: Payload = serde_json::from_slice(plain).map_err(|error| damaged(path, error))?;
    if payload.repository.repository_id != info.repository_id {
        // Left in a repository without encryption by an init that lost a race and died then.
        return Ok(None);
    }
    if payload.repository != *info {
        return Err(damaged(info_path(), format!("contradicts its authenticated copy in {path}")));
    }
    KeyMaterial::from_payload(payload, object.key_id, object.role)
        .map(Some)
        .map_err(|what| damaged(path, what))
}
