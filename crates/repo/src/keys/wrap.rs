//! Wrapping a secret for a public key: HPKE base mode (`docs/repository.md` section 4).

use hpke::{
    Deserializable, Kem, OpModeR, OpModeS, Serializable, aead::AesGcm256, kdf::HkdfSha256,
    kem::X25519HkdfSha256, single_shot_open, single_shot_seal,
};
use zeroize::Zeroizing;

use super::RepositoryId;
use crate::hex::{Hex, Secret32};

/// Bytes of an encapsulated key.
pub(crate) const ENCAPSULATED_BYTES: usize = 32;
/// Bytes of a wrapped secret.
pub(crate) const WRAPPED_BYTES: usize = 48;

type PublicKey = <X25519HkdfSha256 as Kem>::PublicKey;
type PrivateKey = <X25519HkdfSha256 as Kem>::PrivateKey;
type EncapsulatedKey = <X25519HkdfSha256 as Kem>::EncappedKey;

fn info(repository: RepositoryId) -> Vec<u8> {
    let mut info = b"holdfast run secret 1\0".to_vec();
    info.extend_from_slice(&repository.0.0);
    info
}

/// A new key pair: public, private.
pub(super) fn key_pair() -> (Hex<32>, Secret32) {
    let (private, public) = X25519HkdfSha256::gen_keypair();
    (Hex(public.to_bytes().into()), Secret32(private.to_bytes().into()))
}

/// Wraps `secret` so that only the holder of the private key has it. `None` if `public` is no usable key.
pub(crate) fn wrap(
    repository: RepositoryId,
    public: Hex<32>,
    secret: &Secret32,
) -> Option<([u8; ENCAPSULATED_BYTES], [u8; WRAPPED_BYTES])> {
    let public = PublicKey::from_bytes(&public.0).ok()?;
    let (encapsulated, wrapped) = single_shot_seal::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
        &OpModeS::Base,
        &public,
        &info(repository),
        &secret.0,
        &[],
    )
    .ok()?;
    Some((encapsulated.to_bytes().into(), wrapped.try_into().ok()?))
}

/// Unwraps a secret; `None` if it was damaged, or wrapped for another key or repository.
pub(crate) fn unwrap(
    repository: RepositoryId,
    private: &Secret32,
    encapsulated: &[u8; ENCAPSULATED_BYTES],
    wrapped: &[u8; WRAPPED_BYTES],
) -> Option<Secret32> {
    let private = PrivateKey::from_bytes(&private.0).ok()?;
    let encapsulated = EncapsulatedKey::from_bytes(encapsulated).ok()?;
    let secret = single_shot_open::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
        &OpModeR::Base,
        &private,
        &encapsulated,
        &info(repository),
        wrapped,
        &[],
    )
    .ok()?;
    let secret = Zeroizing::new(secret);
    Some(Secret32(secret.as_slice().try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_unwrapped_by_its_key_in_its_repository_only() {
        let here = RepositoryId(Hex([1; 16]));
        let (public, private) = key_pair();
        let (encapsulated, wrapped) = wrap(here, public, &Secret32([9; 32])).unwrap();
        assert_eq!(unwrap(here, &private, &encapsulated, &wrapped).unwrap().0, [9; 32]);
        assert!(unwrap(RepositoryId(Hex([2; 16])), &private, &encapsulated, &wrapped).is_none());
        assert!(unwrap(here, &key_pair().1, &encapsulated, &wrapped).is_none());
        let mut damaged = wrapped;
        damaged[0] ^= 1;
        assert!(unwrap(here, &private, &encapsulated, &damaged).is_none());
        assert!(wrap(here, Hex([0; 32]), &Secret32([9; 32])).is_none(), "an all-zero key agrees on zeros");
    }
}
