//! The keys that an opened key object gives.

use std::{
    fmt,
    sync::{Mutex, OnceLock},
};

use holdfast_pipe::{HashKey, lock::lock};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde::{Deserialize, Serialize};

use super::{Act, KeyError, KeyId, RepositoryInfo, Role, Signer, random, wrap};
use crate::{
    error::Damage,
    format::hex::{Hex, Secret32},
    store::ObjectPath,
};

/// Bytes of an Ed25519 signature.
pub(crate) const SIGNATURE_BYTES: usize = 64;

/// The key pairs that objects are sealed for between two rotations.
/// Private keys that a role does not hold are absent.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SealKeys {
    pub(crate) read_public: Hex<32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) read_private: Option<Secret32>,
    pub(crate) refs_public: Hex<32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refs_private: Option<Secret32>,
}

impl SealKeys {
    pub(crate) fn generate() -> Self {
        let (read_public, read_private) = wrap::key_pair();
        let (refs_public, refs_private) = wrap::key_pair();
        Self { read_public, read_private: Some(read_private), refs_public, refs_private: Some(refs_private) }
    }

    /// The part of them that a role holds.
    pub(crate) fn of_role(&self, role: Role) -> Self {
        let read_private = self.read_private.clone().filter(|_| role.may(Act::Read));
        Self { read_private, ..self.clone() }
    }

    pub(crate) fn fit(&self, role: Role) -> bool {
        self.read_private.is_some() == role.may(Act::Read) && self.refs_private.is_some()
    }
}

/// What a key object holds, as stored.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Payload {
    pub(crate) repository: RepositoryInfo,
    /// This and the next three: key pairs of the time before any rotation.
    pub(crate) read_public: Hex<32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) read_private: Option<Secret32>,
    pub(crate) refs_public: Hex<32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refs_private: Option<Secret32>,
    /// Key pairs of the rotations before this key was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rotated: Vec<SealKeys>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hash_key: Option<Secret32>,
    pub(crate) signing_key: Secret32,
    /// Rotations are sealed for its public half; absent in keys made by early versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exchange_key: Option<Secret32>,
    pub(crate) signers: Vec<Signer>,
}

impl Payload {
    /// Key pairs of the time before any rotation.
    fn first_seal_keys(&self) -> SealKeys {
        SealKeys {
            read_public: self.read_public,
            read_private: self.read_private.clone(),
            refs_public: self.refs_public,
            refs_private: self.refs_private.clone(),
        }
    }
}

/// The key pairs of one holder alone.
pub(crate) struct OwnKeys {
    pub(crate) key_id: KeyId,
    pub(crate) signing_key: Secret32,
    pub(crate) signing_public: Hex<32>,
    pub(crate) exchange_key: Secret32,
    pub(crate) exchange_public: Hex<32>,
}

impl OwnKeys {
    pub(crate) fn generate() -> Result<Self, KeyError> {
        let signing_key = Secret32(random().map_err(KeyError::NoRandom)?);
        let signing_public = match Ed25519KeyPair::from_seed_unchecked(&signing_key.0) {
            Ok(pair) => public_half(&pair),
            Err(_) => unreachable!("an Ed25519 seed is any 32 bytes"),
        };
        let (exchange_public, exchange_key) = wrap::key_pair();
        let key_id = Hex(random().map_err(KeyError::NoRandom)?);
        Ok(Self { key_id, signing_key, signing_public, exchange_key, exchange_public })
    }

    pub(crate) fn signer(&self, role: Role, sources: Vec<String>) -> Signer {
        let exchange = Some(self.exchange_public);
        Signer { public: self.signing_public, role, key_id: self.key_id, sources, exchange }
    }
}

fn public_half(pair: &Ed25519KeyPair) -> Hex<32> {
    let mut public = [0; 32];
    public.copy_from_slice(pair.public_key().as_ref());
    Hex(public)
}

/// Key pairs by number of the rotation; 0 is the time before any. Only ever grows: a long-running process
/// takes up rotations as they come.
struct SealKeyRing(Box<[OnceLock<SealKeys>]>);

impl SealKeyRing {
    fn new(known: impl IntoIterator<Item = SealKeys>) -> Self {
        let ring = Self((0..=u8::MAX).map(|_| OnceLock::new()).collect());
        for (place, keys) in ring.0.iter().zip(known) {
            let _ = place.set(keys);
        }
        ring
    }

    fn get(&self, rotation: u8) -> Option<&SealKeys> {
        self.0.get(usize::from(rotation))?.get()
    }

    fn len(&self) -> usize {
        self.0.iter().take_while(|keys| keys.get().is_some()).count()
    }

    fn last(&self) -> Option<&SealKeys> {
        self.0.get(self.len().checked_sub(1)?)?.get()
    }
}

/// The keys that an opened key object gives.
pub struct KeyMaterial {
    pub(crate) payload: Payload,
    seal_keys: SealKeyRing,
    /// The first rotation that could not be taken up, and why.
    rotation_problem: Mutex<Option<(ObjectPath, Damage)>>,
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

    /// Id of the key object that was opened.
    #[must_use]
    pub fn key_id(&self) -> KeyId {
        self.key_id
    }

    /// Key for page and chunk hashes; keepers have none.
    #[must_use]
    pub fn hash_key(&self) -> Option<&HashKey> {
        self.hash_key.as_ref()
    }

    /// How often keys have been rotated, as far as this key knows:
    /// what is sealed now is sealed for the last rotation.
    #[must_use]
    pub fn rotations(&self) -> u8 {
        // No more than a header can name.
        u8::try_from(self.seal_keys.len().saturating_sub(1)).unwrap_or(u8::MAX)
    }

    /// The first rotation that could not be taken up, and why.
    pub(crate) fn rotation_problem(&self) -> Option<(ObjectPath, Damage)> {
        lock(&self.rotation_problem).clone()
    }

    /// Records what keeps a rotation from being taken up; `None` if nothing does.
    pub(crate) fn set_rotation_problem(&self, problem: Option<(ObjectPath, Damage)>) {
        *lock(&self.rotation_problem) = problem;
    }

    /// Takes up the key pairs of the next rotation: what is sealed from now on is sealed for them.
    pub(crate) fn take_up(&self, rotation: u8, keys: SealKeys) {
        if let Some(place) = self.seal_keys.0.get(usize::from(rotation)) {
            let _ = place.set(keys);
        }
    }

    /// Key pairs of a rotation.
    pub(crate) fn seal_keys(&self, rotation: u8) -> Option<&SealKeys> {
        self.seal_keys.get(rotation)
    }

    pub(crate) fn read_public(&self) -> Hex<32> {
        self.seal_keys.last().map_or(self.payload.read_public, |keys| keys.read_public)
    }

    pub(crate) fn read_private(&self, rotation: u8) -> Option<&Secret32> {
        self.seal_keys(rotation)?.read_private.as_ref()
    }

    pub(crate) fn refs_public(&self) -> Hex<32> {
        self.seal_keys.last().map_or(self.payload.refs_public, |keys| keys.refs_public)
    }

    pub(crate) fn refs_private(&self, rotation: u8) -> Option<&Secret32> {
        self.seal_keys(rotation)?.refs_private.as_ref()
    }

    /// 32 secret bytes that only the holder of this key can derive, for what stays on the holder's host.
    pub(crate) fn local_key(&self, context: &str) -> Secret32 {
        Secret32(blake3::derive_key(context, &self.payload.signing_key.0))
    }

    /// The public signing key at hand, and its signature over `message`.
    pub(crate) fn sign(&self, message: &[u8]) -> (Hex<32>, [u8; SIGNATURE_BYTES]) {
        let mut bytes = [0; SIGNATURE_BYTES];
        bytes.copy_from_slice(self.signing.sign(message).as_ref());
        (self.signing_public(), bytes)
    }

    /// The public signing key at hand.
    pub(crate) fn signing_public(&self) -> Hex<32> {
        public_half(&self.signing)
    }

    /// Whether somebody had to vouch for this key: it is not the one made with the repository.
    pub(crate) fn needs_voucher(&self) -> bool {
        self.payload.signers.first().is_some_and(|first| first.key_id != self.key_id)
    }

    pub(crate) fn from_payload(payload: Payload, key_id: KeyId, role: Role) -> Result<Self, &'static str> {
        let own = payload.signers.iter().find(|s| s.key_id == key_id).ok_or("own signing key not listed")?;
        if own.role != role {
            return Err("role contradicts the list of signers");
        }
        let signing = Ed25519KeyPair::from_seed_and_public_key(&payload.signing_key.0, &own.public.0)
            .map_err(|_| "signing key does not match its public key")?;
        let mut seal_keys = vec![payload.first_seal_keys()];
        seal_keys.extend_from_slice(&payload.rotated);
        if seal_keys.len() > usize::from(u8::MAX) + 1 || !seal_keys.iter().all(|keys| keys.fit(role)) {
            return Err("keys contradict the role");
        }
        if payload.hash_key.is_some() != role.may(Act::Backup) {
            return Err("keys contradict the role");
        }
        let hash_key = payload.hash_key.as_ref().map(|key| HashKey::new(key.0));
        let (seal_keys, rotation_problem) = (SealKeyRing::new(seal_keys), Mutex::default());
        Ok(Self { payload, seal_keys, rotation_problem, key_id, role, signing, hash_key })
    }
}
