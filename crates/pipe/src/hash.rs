//! The page hash, which decides whether a page has changed.
//!
//! Keyed, because an attacker who controls the bytes of a page must not be able to construct a change that
//! the backup overlooks; 16 bytes, because hashes are compared as sets too. See
//! `docs/reference/repository.md` section 1.

use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

/// The repository's hash key. Anyone who has it can confirm a guess of a page's content.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct HashKey([u8; 32]);

impl HashKey {
    /// Takes the key as stored in the key material.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// `hash16` of one page, or of a plain chunk.
    #[must_use]
    pub fn hash(&self, bytes: &[u8]) -> PageHash {
        let full = blake3::keyed_hash(&self.0, bytes);
        let mut short = [0; 16];
        short.copy_from_slice(&full.as_bytes()[..16]);
        PageHash(short)
    }

    /// The key itself, to be stored sealed.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

/// First 16 bytes of BLAKE3 keyed with the repository's hash key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageHash(pub [u8; 16]);

impl fmt::Debug for PageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
