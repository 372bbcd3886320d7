//! Seals: every stored byte is bound to its place.
//! Layout and rules: `docs/reference/repository.md` section 5.

use std::fmt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use thiserror::Error;

/// A seal adds this many bytes.
pub const TAG_BYTES: usize = 16;

/// How objects are sealed; chosen once, at `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Suite {
    /// Plain bytes with a checksum against damage and misplacement.
    None = 0,
    /// Secrets wrapped for X25519 keys, AES-256-GCM.
    X25519Aes256Gcm = 1,
}

/// A seal that does not open.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SealError {
    /// Damaged, moved from another place, or sealed with another key.
    #[error("seal does not open: the bytes are damaged, from another place, or under another key")]
    Broken,
}

/// What a seal is bound to besides its object key (which is bound to repository, source, kind, run and part).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealContext {
    /// Object kind, first section of the specification.
    pub object_kind: u8,
    /// Chunk kind; 0 outside packs.
    pub chunk_kind: u8,
    /// Codec number.
    pub codec: u8,
    /// Whether this is the last frame of its object.
    pub last: bool,
    /// Position in the object; never repeated with other bytes.
    pub ordinal: u64,
    /// Length before compression.
    pub plain_len: u32,
}

impl SealContext {
    fn associated_data(&self) -> [u8; 20] {
        let mut data = [0; 20];
        data[..4].copy_from_slice(b"HFD1");
        data[4] = self.object_kind;
        data[5] = self.chunk_kind;
        data[6] = self.codec;
        data[7] = u8::from(self.last);
        data[8..16].copy_from_slice(&self.ordinal.to_le_bytes());
        data[16..].copy_from_slice(&self.plain_len.to_le_bytes());
        data
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.ordinal.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

enum Cipher {
    Checksum([u8; 32]),
    Aes256Gcm(LessSafeKey),
}

/// The key of one object. Cheap to share between threads.
pub struct ObjectKey(Cipher);

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObjectKey(secret)")
    }
}

impl ObjectKey {
    /// Derives the key from a run's secret and the name of the object, `place`.
    #[must_use]
    pub fn derive(suite: Suite, secret: &[u8; 32], place: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("holdfast 2026-11 object key 1");
        hasher.update(secret);
        hasher.update(place);
        let key = *hasher.finalize().as_bytes();
        match suite {
            Suite::None => Self(Cipher::Checksum(key)),
            Suite::X25519Aes256Gcm => match UnboundKey::new(&AES_256_GCM, &key) {
                Ok(unbound) => Self(Cipher::Aes256Gcm(LessSafeKey::new(unbound))),
                Err(_) => unreachable!("AES-256-GCM takes 32 bytes"),
            },
        }
    }

    /// Seals `bytes` in place and appends the tag.
    ///
    /// The caller must never seal two contents with the same ordinal of the same object.
    pub fn seal(&self, context: SealContext, bytes: &mut Vec<u8>) {
        let data = context.associated_data();
        match &self.0 {
            Cipher::Checksum(key) => {
                let tag = checksum(key, &data, bytes);
                bytes.extend_from_slice(&tag);
            }
            Cipher::Aes256Gcm(key) => {
                if key.seal_in_place_append_tag(context.nonce(), Aad::from(data), bytes).is_err() {
                    unreachable!("AES-256-GCM seals anything below 64 GiB");
                }
            }
        }
    }

    /// Opens `sealed` in place and returns the bytes without the tag.
    pub fn open<'a>(&self, context: SealContext, sealed: &'a mut [u8]) -> Result<&'a mut [u8], SealError> {
        let len = sealed.len().checked_sub(TAG_BYTES).ok_or(SealError::Broken)?;
        let data = context.associated_data();
        match &self.0 {
            Cipher::Checksum(key) => {
                let (bytes, tag) = sealed.split_at_mut(len);
                if checksum(key, &data, bytes) == *tag { Ok(bytes) } else { Err(SealError::Broken) }
            }
            Cipher::Aes256Gcm(key) => {
                key.open_in_place(context.nonce(), Aad::from(data), sealed).map_err(|_| SealError::Broken)
            }
        }
    }
}

fn checksum(key: &[u8; 32], data: &[u8], bytes: &[u8]) -> [u8; TAG_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(data);
    hasher.update(bytes);
    let mut tag = [0; TAG_BYTES];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES]);
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: SealContext =
        SealContext { object_kind: 1, chunk_kind: 1, codec: 0, last: false, ordinal: 7, plain_len: 5 };

    #[test]
    fn a_seal_opens_only_where_it_was_made() {
        for suite in [Suite::None, Suite::X25519Aes256Gcm] {
            let key = ObjectKey::derive(suite, &[1; 32], b"here");
            let mut sealed = b"bytes".to_vec();
            key.seal(CONTEXT, &mut sealed);
            assert_eq!(sealed.len(), 5 + TAG_BYTES);
            assert_eq!(key.open(CONTEXT, &mut sealed.clone()).unwrap(), b"bytes");
            let elsewhere = ObjectKey::derive(suite, &[1; 32], b"there");
            assert_eq!(elsewhere.open(CONTEXT, &mut sealed.clone()), Err(SealError::Broken));
            for other in [
                SealContext { object_kind: 2, ..CONTEXT },
                SealContext { chunk_kind: 2, ..CONTEXT },
                SealContext { codec: 1, ..CONTEXT },
                SealContext { last: true, ..CONTEXT },
                SealContext { ordinal: 8, ..CONTEXT },
                SealContext { plain_len: 6, ..CONTEXT },
            ] {
                assert_eq!(key.open(other, &mut sealed.clone()), Err(SealError::Broken), "{other:?}");
            }
        }
    }

    #[test]
    fn any_flipped_bit_breaks_the_seal() {
        for suite in [Suite::None, Suite::X25519Aes256Gcm] {
            let key = ObjectKey::derive(suite, &[1; 32], b"here");
            let mut sealed = b"bytes".to_vec();
            key.seal(CONTEXT, &mut sealed);
            for bit in 0..sealed.len() * 8 {
                let mut damaged = sealed.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(key.open(CONTEXT, &mut damaged), Err(SealError::Broken));
            }
            assert_eq!(key.open(CONTEXT, &mut sealed[..TAG_BYTES - 1]), Err(SealError::Broken));
        }
    }
}
