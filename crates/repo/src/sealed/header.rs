//! The header of a sealed object: it names the object's place and carries its wrapped secret.

use holdfast_pipe::{ObjectKey, Suite};

use crate::{
    error::{Damage, RepoError},
    format::{
        hex::Secret32,
        names::RunNo,
        place::{HEADER_BYTES, Place, SecretKind},
    },
    keys::{
        KeyMaterial, RepositoryId, random,
        wrap::{ENCAPSULATED_BYTES, WRAPPED_BYTES, wrap},
    },
};

const MAGIC: &[u8; 4] = b"HFD1";

/// A fresh secret, wrapped for those who may open what it seals.
pub(super) struct Secret {
    suite: Suite,
    repository: RepositoryId,
    pub(super) secret: Secret32,
    pub(super) wrapped: WrappedSecret,
}

impl Secret {
    pub(super) fn draw(keys: &KeyMaterial, kind: SecretKind) -> Result<Self, RepoError> {
        let suite = keys.repository().suite;
        let repository = keys.repository().repository_id;
        let (secret, wrapped) = match suite {
            Suite::None => (Secret32([0; 32]), WrappedSecret::NONE),
            Suite::X25519Aes256Gcm => {
                let secret = Secret32(random().map_err(RepoError::NoRandom)?);
                let public = match kind {
                    SecretKind::Read => keys.read_public(),
                    SecretKind::Refs => keys.refs_public(),
                };
                let (encapsulated, wrapped) = wrap(repository, public, &secret).ok_or_else(|| {
                    RepoError::malformed(format!("keys/{}", keys.key_id()), "a public key that is none")
                })?;
                (secret, WrappedSecret { rotation: keys.rotations(), encapsulated, wrapped })
            }
        };
        Ok(Self { suite, repository, secret, wrapped })
    }

    pub(super) fn header(&self, place: &Place<'_>) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(MAGIC);
        header[4] = place.kind as u8;
        header[5] = self.suite as u8;
        header[6] = place.kind.secret() as u8;
        header[7] = self.wrapped.rotation;
        header[8..24].copy_from_slice(&self.repository.0.0);
        header[24..32].copy_from_slice(&place.run.0.to_le_bytes());
        header[32..36].copy_from_slice(&place.part.to_le_bytes());
        header[36..68].copy_from_slice(&self.wrapped.encapsulated);
        header[68..].copy_from_slice(&self.wrapped.wrapped);
        header
    }

    pub(super) fn object_key(&self, place: &Place<'_>) -> ObjectKey {
        object_key(place, self.suite, self.repository, &self.secret)
    }
}

/// What a header carries besides the object's place.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WrappedSecret {
    /// Number of the rotation whose public key it is wrapped for.
    pub(crate) rotation: u8,
    pub(crate) encapsulated: [u8; ENCAPSULATED_BYTES],
    pub(crate) wrapped: [u8; WRAPPED_BYTES],
}

impl WrappedSecret {
    /// Used with suite `none`.
    const NONE: Self =
        Self { rotation: 0, encapsulated: [0; ENCAPSULATED_BYTES], wrapped: [0; WRAPPED_BYTES] };
}

/// Checks that a header is of this repository and of `place`.
pub(crate) fn check_header(
    keys: &KeyMaterial,
    place: &Place<'_>,
    header: &[u8; HEADER_BYTES],
) -> Result<WrappedSecret, RepoError> {
    let info = keys.repository();
    let damaged = |damage| Err(RepoError::damaged(place, damage));
    if field(header, 0) != *MAGIC {
        return damaged(Damage::NoHeader);
    }
    if field(header, 8) != info.repository_id.0.0 {
        return damaged(Damage::OtherRepository);
    }
    let [kind, suite, secret, rotation] = field(header, 4);
    if (suite, secret) != (info.suite as u8, place.kind.secret() as u8) {
        return damaged(Damage::Malformed { what: "its header contradicts the repository" });
    }
    let run = RunNo(u64::from_le_bytes(field(header, 24)));
    let part = u32::from_le_bytes(field(header, 32));
    if (kind, run, part) != (place.kind as u8, place.run, place.part) {
        return damaged(Damage::Misplaced { found: format!("kind {kind} of run {run}, part {part}") });
    }
    if rotation > keys.rotations() {
        return damaged(Damage::NewerKeys { rotation });
    }
    let wrapped = WrappedSecret { rotation, encapsulated: field(header, 36), wrapped: field(header, 68) };
    if info.suite == Suite::None && wrapped != WrappedSecret::NONE {
        return damaged(Damage::Malformed { what: "a wrapped secret in a repository without encryption" });
    }
    Ok(wrapped)
}

/// N bytes at a fixed offset.
fn field<const N: usize>(header: &[u8; HEADER_BYTES], offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[offset..offset + N]);
    bytes
}

/// The key of an object whose header was checked to be of `place`, from its unwrapped secret.
pub(crate) fn key_from_secret(keys: &KeyMaterial, place: &Place<'_>, secret: &Secret32) -> ObjectKey {
    object_key(place, keys.repository().suite, keys.repository().repository_id, secret)
}

/// Binds the place into the key.
fn object_key(place: &Place<'_>, suite: Suite, repository: RepositoryId, secret: &Secret32) -> ObjectKey {
    let source = place.log.source.as_str();
    let mut bytes = Vec::with_capacity(16 + 1 + source.len() + 2 + 12);
    bytes.extend_from_slice(&repository.0.0);
    // At most 64, by the rules for names.
    bytes.push(u8::try_from(source.len()).unwrap_or(u8::MAX));
    bytes.extend_from_slice(source.as_bytes());
    bytes.push(place.log.kind as u8);
    bytes.push(place.kind as u8);
    bytes.extend_from_slice(&place.run.0.to_le_bytes());
    bytes.extend_from_slice(&place.part.to_le_bytes());
    ObjectKey::derive(suite, &secret.0, &bytes)
}
