//! The keys of a repository: made at `init`, behind a password, never changed (`docs/repository.md` sections 3 and 4).
//!
//! `holdfast.json` is read without a key and not believed: what counts is its copy inside the sealed key object.

use std::fmt;

use holdfast_pipe::{HashKey, Suite};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    signature::{self, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

mod password;
pub(crate) mod wrap;

pub use password::{KdfError, KdfParams, Password};

use crate::{
    hex::{Hex, Secret32, from_hex, to_hex},
    store::{ObjectPath, Store, StoreError, read_all},
};

/// The format that this version reads and writes.
pub const FORMAT: u32 = 2;

const SMALL_OBJECT_LIMIT_BYTES: u64 = 1 << 20;
const KEYS_LIMIT: usize = 64;

/// Random, chosen at `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RepositoryId(pub Hex<16>);

impl fmt::Display for RepositoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Name of a key object.
pub type KeyId = Hex<8>;

/// `holdfast.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryInfo {
    /// Of everything stored.
    pub format: u32,
    /// Which repository.
    pub repository_id: RepositoryId,
    /// How objects are sealed.
    #[serde(with = "suite_name")]
    pub suite: Suite,
    /// RFC 3339, UTC, by the store's clock.
    pub created_at: String,
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

/// What the holder of a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// All.
    Operator,
    /// Add backups; read none.
    Writer,
    /// See what is dead and delete it; read none.
    Keeper,
}

impl Role {
    fn number(self) -> u8 {
        match self {
            Self::Operator => 1,
            Self::Writer => 2,
            Self::Keeper => 3,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operator => "operator",
            Self::Writer => "writer",
            Self::Keeper => "keeper",
        })
    }
}

/// Whose signatures are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signer {
    /// Ed25519.
    pub public: Hex<32>,
    /// What it may sign.
    pub role: Role,
    /// Whose it is.
    pub key_id: KeyId,
}

/// What a key object holds, as stored.
#[derive(Serialize, Deserialize)]
struct Payload {
    repository: RepositoryInfo,
    read_public: Hex<32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_private: Option<Secret32>,
    refs_public: Hex<32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refs_private: Option<Secret32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash_key: Option<Secret32>,
    signing_key: Secret32,
    signers: Vec<Signer>,
}

/// A key object, as stored.
#[derive(Serialize, Deserialize)]
struct KeyObject {
    format: u32,
    key_id: KeyId,
    role: Role,
    label: String,
    created_at: String,
    slot: Slot,
    sealed: String,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Slot {
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
    },
    None {},
}

/// The keys that an opened key object gives.
pub struct KeyMaterial {
    payload: Payload,
    key_id: KeyId,
    role: Role,
    signing: Ed25519KeyPair,
    hash_key: Option<HashKey>,
}

impl fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyMaterial")
            .field("repository", &self.payload.repository)
            .field("key_id", &self.key_id)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl KeyMaterial {
    /// `holdfast.json`, as authenticated by the key object.
    #[must_use]
    pub fn repository(&self) -> &RepositoryInfo {
        &self.payload.repository
    }

    /// What the holder may do.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The key object that was opened.
    #[must_use]
    pub fn key_id(&self) -> KeyId {
        self.key_id
    }

    /// For page and chunk hashes; keepers have none.
    #[must_use]
    pub fn hash_key(&self) -> Option<&HashKey> {
        self.hash_key.as_ref()
    }

    pub(crate) fn read_public(&self) -> Hex<32> {
        self.payload.read_public
    }

    pub(crate) fn read_private(&self) -> Option<&Secret32> {
        self.payload.read_private.as_ref()
    }

    pub(crate) fn refs_public(&self) -> Hex<32> {
        self.payload.refs_public
    }

    pub(crate) fn refs_private(&self) -> Option<&Secret32> {
        self.payload.refs_private.as_ref()
    }

    /// The own public signing key and a signature over `message`.
    pub(crate) fn sign(&self, message: &[u8]) -> (Hex<32>, [u8; 64]) {
        let mut public = [0; 32];
        public.copy_from_slice(self.signing.public_key().as_ref());
        let mut bytes = [0; 64];
        bytes.copy_from_slice(self.signing.sign(message).as_ref());
        (Hex(public), bytes)
    }

    /// The role of `public` if it is believed and signed `message`.
    pub(crate) fn verify(&self, public: Hex<32>, message: &[u8], signature: &[u8]) -> Option<Role> {
        let signer = self.payload.signers.iter().find(|signer| signer.public == public)?;
        UnparsedPublicKey::new(&signature::ED25519, public.0).verify(message, signature).ok()?;
        Some(signer.role)
    }

    fn from_payload(payload: Payload, key_id: KeyId, role: Role) -> Result<Self, &'static str> {
        let own = payload.signers.iter().find(|s| s.key_id == key_id).ok_or("own signing key not listed")?;
        if own.role != role {
            return Err("role contradicts the list of signers");
        }
        let signing = Ed25519KeyPair::from_seed_and_public_key(&payload.signing_key.0, &own.public.0)
            .map_err(|_| "signing key does not match its public key")?;
        let held =
            (payload.read_private.is_some(), payload.refs_private.is_some(), payload.hash_key.is_some());
        let needed = match role {
            Role::Operator => (true, true, true),
            Role::Writer => (false, false, true),
            Role::Keeper => (false, true, false),
        };
        if held != needed {
            return Err("keys contradict the role");
        }
        let hash_key = payload.hash_key.as_ref().map(|key| HashKey::new(key.0));
        Ok(Self { payload, key_id, role, signing, hash_key })
    }
}

/// Why keys could not be made or opened.
#[derive(Debug, Error)]
pub enum KeyError {
    /// Nothing of ours is there.
    #[error("{location} holds no repository")]
    NotARepository {
        /// Where.
        location: String,
    },
    /// `init` found something.
    #[error("{location} is not empty: it holds {object}")]
    NotEmpty {
        /// Where.
        location: String,
        /// What was found first.
        object: String,
    },
    /// Written by a later version.
    #[error("{location} has format {format}, and this version knows formats up to {FORMAT}")]
    NewerFormat {
        /// Where.
        location: String,
        /// What it says.
        format: String,
    },
    /// Written by a version before the first release.
    #[error("{location} has format {format}, and this version knows format {FORMAT}")]
    OlderFormat {
        /// Where.
        location: String,
        /// What it says.
        format: u32,
    },
    /// No key object opens with it.
    #[error("wrong password for the repository {location}")]
    WrongPassword {
        /// Where.
        location: String,
    },
    /// The repository is encrypted and no password was given.
    #[error("the repository {location} is encrypted: it needs its password")]
    PasswordNeeded {
        /// Where.
        location: String,
    },
    /// A password was given for a repository that has none: it may have been exchanged for another.
    #[error("a password was given, but the repository {location} is not encrypted")]
    NotEncrypted {
        /// Where.
        location: String,
    },
    /// An object is not what was written.
    #[error("{object}: damaged: {what}")]
    Damaged {
        /// Its name.
        object: String,
        /// How.
        what: String,
    },
    /// A key object asks for too little or too much work.
    #[error("{object}: {source}")]
    Kdf {
        /// Its name.
        object: String,
        /// Which.
        #[source]
        source: KdfError,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The host gives no random numbers.
    #[error("the operating system gives no random numbers: {0}")]
    NoRandom(getrandom::Error),
}

/// How the keys of a new repository are kept.
#[derive(Debug)]
pub enum Protection<'a> {
    /// Everything is encrypted; the keys are behind a password.
    Password {
        /// It.
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

fn damaged(object: impl fmt::Display, what: impl fmt::Display) -> KeyError {
    KeyError::Damaged { object: object.to_string(), what: what.to_string() }
}

fn associated_data(
    repository: RepositoryId,
    key_id: KeyId,
    role: Role,
    params: KdfParams,
    salt: Hex<16>,
) -> Vec<u8> {
    let mut data = b"holdfast key 1\0".to_vec();
    data.extend_from_slice(&repository.0.0);
    data.extend_from_slice(&key_id.0);
    data.push(role.number());
    for number in [params.m_kib, params.t, params.p] {
        data.extend_from_slice(&number.to_le_bytes());
    }
    data.extend_from_slice(&salt.0);
    data
}

fn slot_cipher(key: &[u8; 32]) -> LessSafeKey {
    match UnboundKey::new(&AES_256_GCM, key) {
        Ok(unbound) => LessSafeKey::new(unbound),
        Err(_) => unreachable!("AES-256-GCM takes 32 bytes"),
    }
}

fn to_json<T: Serialize>(value: &T) -> Zeroizing<Vec<u8>> {
    // Large enough that growing does not leave copies of secrets behind.
    let mut json = Zeroizing::new(Vec::with_capacity(4 << 10));
    if serde_json::to_writer(&mut *json, value).is_err() {
        unreachable!("plain structs into memory");
    }
    json
}

/// Makes a repository: its keys, then `holdfast.json`, whose creation decides between two who try at once.
pub fn init(store: &dyn Store, protection: &Protection<'_>) -> Result<KeyMaterial, KeyError> {
    let mut found = None;
    store.list("", &mut |info| {
        // A key whose init died before the end opens nothing: it is bound to a repository that never came to be.
        let is_left_over = info.path.as_str().starts_with("keys/");
        found = (!is_left_over).then_some(info.path);
        found.is_none()
    })?;
    if let Some(object) = found {
        return Err(KeyError::NotEmpty { location: store.location(), object: object.to_string() });
    }
    let material = new_material(store, protection)?;
    let key_path = object_path(&format!("keys/{}", material.key_id));
    let key_object = lock(&material, protection)?;
    store.create_if_absent(&key_path, &to_json(&key_object))?;
    match store.create_if_absent(&info_path(), &to_json(&material.payload.repository)) {
        Ok(_) => Ok(material),
        Err(error) if error.is_exists() => {
            store.delete(&[key_path])?;
            Err(KeyError::NotEmpty { location: store.location(), object: info_path().to_string() })
        }
        Err(error) => Err(error.into()),
    }
}

fn new_material(store: &dyn Store, protection: &Protection<'_>) -> Result<KeyMaterial, KeyError> {
    let created_at = rfc3339(store.now()?);
    let key_id = Hex(random().map_err(KeyError::NoRandom)?);
    let signing_key = Secret32(random().map_err(KeyError::NoRandom)?);
    let public = match Ed25519KeyPair::from_seed_unchecked(&signing_key.0) {
        Ok(pair) => {
            let mut public = [0; 32];
            public.copy_from_slice(pair.public_key().as_ref());
            Hex(public)
        }
        Err(_) => unreachable!("an Ed25519 seed is any 32 bytes"),
    };
    let (read_public, read_private) = wrap::key_pair();
    let (refs_public, refs_private) = wrap::key_pair();
    let suite = match protection {
        Protection::Password { .. } => Suite::X25519Aes256Gcm,
        Protection::None => Suite::None,
    };
    let payload = Payload {
        repository: RepositoryInfo {
            format: FORMAT,
            repository_id: RepositoryId(Hex(random().map_err(KeyError::NoRandom)?)),
            suite,
            created_at,
        },
        read_public,
        read_private: Some(read_private),
        refs_public,
        refs_private: Some(refs_private),
        hash_key: Some(Secret32(random().map_err(KeyError::NoRandom)?)),
        signing_key,
        signers: vec![Signer { public, role: Role::Operator, key_id }],
    };
    KeyMaterial::from_payload(payload, key_id, Role::Operator).map_err(|what| damaged("new keys", what))
}

fn lock(material: &KeyMaterial, protection: &Protection<'_>) -> Result<KeyObject, KeyError> {
    let mut bytes = to_json(&material.payload);
    let repository = &material.payload.repository;
    let slot = match *protection {
        Protection::None => Slot::None {},
        Protection::Password { password, kdf } => {
            let salt = Hex(random().map_err(KeyError::NoRandom)?);
            let nonce = Hex(random().map_err(KeyError::NoRandom)?);
            let kdf_error = |source| KeyError::Kdf { object: "new keys".to_owned(), source };
            let key = kdf.derive(password, &salt.0).map_err(kdf_error)?;
            let data = associated_data(repository.repository_id, material.key_id, material.role, kdf, salt);
            let nonce_once = Nonce::assume_unique_for_key(nonce.0);
            if slot_cipher(&key).seal_in_place_append_tag(nonce_once, Aad::from(data), &mut *bytes).is_err() {
                unreachable!("AES-256-GCM seals anything below 64 GiB");
            }
            Slot::Password { kdf: "argon2id".to_owned(), params: kdf, salt, nonce }
        }
    };
    Ok(KeyObject {
        format: FORMAT,
        key_id: material.key_id,
        role: material.role,
        label: String::new(),
        created_at: repository.created_at.clone(),
        slot,
        sealed: to_hex(&bytes),
    })
}

/// Opens the keys of a repository.
///
/// A password that is given is insisted on: a repository without encryption is refused then, because whoever can
/// write the store could have put it in the place of an encrypted one.
pub fn open(store: &dyn Store, password: Option<&Password>) -> Result<KeyMaterial, KeyError> {
    let info = read_info(store)?;
    match (info.suite, password) {
        (Suite::None, Some(_)) => return Err(KeyError::NotEncrypted { location: store.location() }),
        (Suite::X25519Aes256Gcm, None) => {
            return Err(KeyError::PasswordNeeded { location: store.location() });
        }
        _ => {}
    }
    let mut paths = Vec::new();
    store.list("keys/", &mut |object| {
        paths.push(object.path);
        paths.len() < KEYS_LIMIT
    })?;
    if paths.is_empty() {
        return Err(damaged("keys/", "no key is left"));
    }
    let mut first_error = None;
    for path in paths {
        match open_key(store, &path, &info, password) {
            Ok(Some(material)) => return Ok(material),
            Ok(None) => {}
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    Err(first_error.unwrap_or_else(|| KeyError::WrongPassword { location: store.location() }))
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

/// `None` where the password is not that of this key object.
fn open_key(
    store: &dyn Store,
    path: &ObjectPath,
    info: &RepositoryInfo,
    password: Option<&Password>,
) -> Result<Option<KeyMaterial>, KeyError> {
    let bytes = Zeroizing::new(read_all(store, path, SMALL_OBJECT_LIMIT_BYTES)?);
    let object: KeyObject = serde_json::from_slice(&bytes).map_err(|error| damaged(path, error))?;
    if object.format != FORMAT || path.file_name() != object.key_id.to_string() {
        return Err(damaged(path, "format or key id contradicts its name"));
    }
    let sealed = from_hex(&object.sealed).ok_or_else(|| damaged(path, "not hex"))?;
    let mut sealed = Zeroizing::new(sealed);
    let plain: &[u8] = match (object.slot, password) {
        (Slot::Password { kdf, params, salt, nonce }, Some(password)) => {
            if kdf != "argon2id" {
                return Err(damaged(path, format!("unknown key derivation \"{kdf}\"")));
            }
            let key = params
                .derive(password, &salt.0)
                .map_err(|source| KeyError::Kdf { object: path.to_string(), source })?;
            let data = associated_data(info.repository_id, object.key_id, object.role, params, salt);
            let nonce = Nonce::assume_unique_for_key(nonce.0);
            match slot_cipher(&key).open_in_place(nonce, Aad::from(data), &mut sealed) {
                Ok(plain) => plain,
                Err(_) => return Ok(None),
            }
        }
        (Slot::None {}, None) => &sealed,
        (Slot::Public { .. }, _) => return Ok(None),
        (Slot::Password { .. }, None) | (Slot::None {}, Some(_)) => {
            return Err(damaged(path, "its slot contradicts the repository's suite"));
        }
    };
    let payload: Payload = serde_json::from_slice(plain).map_err(|error| damaged(path, error))?;
    if payload.repository.repository_id != info.repository_id {
        // What an init that lost a race, and died then, left in a repository without encryption.
        return Ok(None);
    }
    if payload.repository != *info {
        return Err(damaged(info_path(), format!("contradicts its authenticated copy in {path}")));
    }
    KeyMaterial::from_payload(payload, object.key_id, object.role)
        .map(Some)
        .map_err(|what| damaged(path, what))
}

pub(crate) fn rfc3339(time: std::time::SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::mem::MemStore;

    fn password(text: &str) -> Password {
        Password::new(text.to_owned()).unwrap()
    }

    fn new_repository(text: &str) -> (MemStore, KeyMaterial) {
        let store = MemStore::new();
        let protection = Protection::Password { password: &password(text), kdf: KdfParams::MINIMUM };
        let material = init(&store, &protection).unwrap();
        (store, material)
    }

    fn key_path(material: &KeyMaterial) -> ObjectPath {
        object_path(&format!("keys/{}", material.key_id()))
    }

    fn edit(store: &MemStore, path: &ObjectPath, from: &str, to: &str) {
        let done = store.damage(path, |bytes| {
            let text = String::from_utf8(bytes.clone()).unwrap();
            assert!(text.contains(from), "{text}");
            *bytes = text.replace(from, to).into_bytes();
        });
        assert!(done);
    }

    #[test]
    fn keys_come_back_with_the_password_and_not_without() {
        let (store, made) = new_repository("right");
        let opened = open(&store, Some(&password("right"))).unwrap();
        assert_eq!(opened.repository(), made.repository());
        assert_eq!(opened.hash_key().unwrap().expose(), made.hash_key().unwrap().expose());
        let (public, signature) = made.sign(b"message");
        assert_eq!(opened.verify(public, b"message", &signature), Some(Role::Operator));
        assert_eq!(opened.verify(public, b"another", &signature), None);
        assert!(matches!(open(&store, Some(&password("wrong"))), Err(KeyError::WrongPassword { .. })));
        assert!(matches!(open(&store, None), Err(KeyError::PasswordNeeded { .. })));
        let json = read_all(&store, &key_path(&made), 1 << 20).unwrap();
        let secret = to_hex(made.hash_key().unwrap().expose());
        assert!(!String::from_utf8(json).unwrap().contains(&secret));
    }

    #[test]
    fn a_repository_without_encryption_is_never_taken_for_an_encrypted_one() {
        let store = MemStore::new();
        init(&store, &Protection::None).unwrap();
        assert_eq!(open(&store, None).unwrap().repository().suite, Suite::None);
        assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::NotEncrypted { .. })));
    }

    #[test]
    fn init_takes_empty_places_only() {
        let (store, _) = new_repository("x");
        assert!(matches!(init(&store, &Protection::None), Err(KeyError::NotEmpty { .. })));
        let store = MemStore::new();
        store.create_if_absent(&object_path("sources/db1/physical/outcomes/1"), b"").unwrap();
        assert!(matches!(init(&store, &Protection::None), Err(KeyError::NotEmpty { .. })));
        let store = MemStore::new();
        store.create_if_absent(&object_path("keys/0011223344556677"), b"died young").unwrap();
        init(&store, &Protection::None).unwrap();
        open(&store, None).unwrap();
    }

    #[test]
    fn what_is_wrong_is_told_apart() {
        let empty = MemStore::new();
        assert!(matches!(open(&empty, None), Err(KeyError::NotARepository { .. })));

        let (store, _) = new_repository("x");
        store.create_if_absent(&object_path("format/3"), b"").unwrap();
        let newer = open(&store, Some(&password("x"))).unwrap_err();
        assert!(matches!(newer, KeyError::NewerFormat { ref format, .. } if format == "3"), "{newer}");

        let (store, _) = new_repository("x");
        edit(&store, &info_path(), "\"format\":2", "\"format\":9");
        assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::NewerFormat { .. })));

        let (store, _) = new_repository("x");
        edit(&store, &info_path(), "\"format\":2", "\"format\":1");
        assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::OlderFormat { format: 1, .. })));

        let (store, _) = new_repository("x");
        store.damage(&info_path(), |bytes| bytes.truncate(20));
        assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::Damaged { .. })));

        let (store, material) = new_repository("x");
        store.damage(&key_path(&material), |bytes| bytes.truncate(100));
        let error = open(&store, Some(&password("x"))).unwrap_err();
        assert!(error.to_string().contains(&material.key_id().to_string()), "{error}");
    }

    #[test]
    fn what_is_readable_without_a_key_cannot_be_altered_unnoticed() {
        let (store, _) = new_repository("x");
        edit(&store, &info_path(), "\"created_at\":\"", "\"created_at\":\"1");
        assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::Damaged { .. })));
        let (store, _) = new_repository("x");
        edit(&store, &info_path(), "x25519-aes256gcm", "none");
        assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::NotEncrypted { .. })));
        let (store, material) = new_repository("x");
        edit(&store, &key_path(&material), "\"role\":\"operator\"", "\"role\":\"keeper\"");
        assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::WrongPassword { .. })));
        let (store, material) = new_repository("x");
        edit(&store, &key_path(&material), "19456", "8");
        assert!(matches!(
            open(&store, Some(&password("x"))),
            Err(KeyError::Kdf { source: KdfError::Weak { .. }, .. })
        ));
    }
}
