//! Sealing for a public key: HPKE base mode (`docs/reference/repository.md` section 4).

use hpke::{
    Deserializable, Kem, OpModeR, OpModeS, Serializable, aead::AesGcm256, kdf::HkdfSha256,
    kem::X25519HkdfSha256, single_shot_open, single_shot_seal,
};
use zeroize::Zeroizing;

use super::RepositoryId;
use crate::format::hex::{Hex, Secret32};

/// Bytes of an encapsulated key.
pub(crate) const ENCAPSULATED_BYTES: usize = 32;
/// Bytes of a wrapped secret.
pub(crate) const WRAPPED_BYTES: usize = 48;

type PublicKey = <X25519HkdfSha256 as Kem>::PublicKey;
type PrivateKey = <X25519HkdfSha256 as Kem>::PrivateKey;
type EncapsulatedKey = <X25519HkdfSha256 as Kem>::EncappedKey;

/// What is sealed. No ciphertext of one purpose opens as one of another.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// The secret of an object, in its header.
    RunSecret,
    /// The payload of a key object.
    KeySlot,
    /// A key's share in a rotation.
    Rotation,
}

impl Purpose {
    fn info(self, repository: RepositoryId) -> Vec<u8> {
        let mut info = match self {
            Self::RunSecret => &b"holdfast run secret 1\0"[..],
            Self::KeySlot => b"holdfast key slot 1\0",
            Self::Rotation => b"holdfast rotation 1\0",
        }
        .to_vec();
        info.extend_from_slice(&repository.0.0);
        info
    }
}

/// A new key pair: public key, private key.
pub(super) fn key_pair() -> (Hex<32>, Secret32) {
    let (private, public) = X25519HkdfSha256::gen_keypair();
    (Hex(public.to_bytes().into()), Secret32(private.to_bytes().into()))
}

/// The public half of a private key; `None` if that is not a valid key.
pub(super) fn public_of(private: &Secret32) -> Option<Hex<32>> {
    let private = PrivateKey::from_bytes(&private.0).ok()?;
    Some(Hex(X25519HkdfSha256::sk_to_pk(&private).to_bytes().into()))
}

/// Seals `plain` for the holder of the private key. Returns the encapsulated key and the ciphertext;
/// `None` if `public` is no usable key.
pub(super) fn seal_for(
    repository: RepositoryId,
    purpose: Purpose,
    public: Hex<32>,
    plain: &[u8],
    associated: &[u8],
) -> Option<(Hex<32>, Vec<u8>)> {
    let public = PublicKey::from_bytes(&public.0).ok()?;
    let (encapsulated, sealed) = single_shot_seal::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
        &OpModeS::Base,
        &public,
        &purpose.info(repository),
        plain,
        associated,
    )
    .ok()?;
    Some((Hex(encapsulated.to_bytes().into()), sealed))
}

/// Opens what [`seal_for`] sealed; `None` if it was damaged, or is for another key, purpose or repository.
pub(super) fn open_sealed(
    repository: RepositoryId,
    purpose: Purpose,
    private: &Secret32,
    encapsulated: Hex<32>,
    sealed: &[u8],
    associated: &[u8],
) -> Option<Zeroizing<Vec<u8>>> {
    let private = PrivateKey::from_bytes(&private.0).ok()?;
    let encapsulated = EncapsulatedKey::from_bytes(&encapsulated.0).ok()?;
    single_shot_open::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
        &OpModeR::Base,
        &private,
        &encapsulated,
        &purpose.info(repository),
        sealed,
        associated,
    )
    .ok()
    .map(Zeroizing::new)
}

/// Wraps the secret of an object so that only the holder of the private key can have it.
/// `None` if `public` is no usable key.
pub(crate) fn wrap(
    repository: RepositoryId,
    public: Hex<32>,
    secret: &Secret32,
) -> Option<([u8; ENCAPSULATED_BYTES], [u8; WRAPPED_BYTES])> {
    let (encapsulated, wrapped) = seal_for(repository, Purpose::RunSecret, public, &secret.0, &[])?;
    Some((encapsulated.0, wrapped.try_into().ok()?))
}

/// Unwraps a secret; `None` if it was damaged, or wrapped for another key or repository.
pub(crate) fn unwrap(
    repository: RepositoryId,
    private: &Secret32,
    encapsulated: &[u8; ENCAPSULATED_BYTES],
    wrapped: &[u8; WRAPPED_BYTES],
) -> Option<Secret32> {
    let secret = open_sealed(repository, Purpose::RunSecret, private, Hex(*encapsulated), wrapped, &[])?;
    Some(Secret32(secret.as_slice().try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_unwrapped_by_its_key_in_its_repository_only() {
        let here = RepositoryId(Hex([1; 16]));
        let (public, private) = key_pair();
        assert_eq!(public_of(&private), Some(public));
        let (encapsulated, wrapped) = wrap(here, public, &Secret32([9; 32])).unwrap();
        assert_eq!(unwrap(here, &private, &encapsulated, &wrapped).unwrap().0, [9; 32]);
        assert!(unwrap(RepositoryId(Hex([2; 16])), &private, &encapsulated, &wrapped).is_none());
        assert!(unwrap(here, &key_pair().1, &encapsulated, &wrapped).is_none());
        let mut damaged = wrapped;
        damaged[0] ^= 1;
        assert!(unwrap(here, &private, &encapsulated, &damaged).is_none());
        assert!(wrap(here, Hex([0; 32]), &Secret32([9; 32])).is_none(), "an all-zero key agrees on zeros");
        let slot = Hex(encapsulated);
        assert!(open_sealed(here, Purpose::KeySlot, &private, slot, &wrapped, &[]).is_none());
        assert!(open_sealed(here, Purpose::RunSecret, &private, slot, &wrapped, b"x").is_none());
    }
}
