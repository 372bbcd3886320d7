//! Checksums of rows in any order, and what else is counted of rows.

use std::{fmt, hash::Hasher};

use holdfast_pipe::HashKey;
use siphasher::sip128::{Hasher128, SipHasher13};

/// Hashes rows and their keys: 128-bit SipHash-1-3, with a key derived from the repository's hash key.
///
/// Rows are short, and a hash for long messages would take more of a dump's time than everything else.
/// The key is secret, since sums of hashes that anybody can compute are easily made equal.
#[derive(Clone)]
pub struct RowHashKey(SipHasher13);

impl RowHashKey {
    const CONTEXT: &str = "holdfast 2026-11 rows 2";

    /// Derives the key from the repository's hash key.
    #[must_use]
    pub fn new(hash_key: &HashKey) -> Self {
        let derived = blake3::derive_key(Self::CONTEXT, hash_key.expose());
        let mut key = [0; 16];
        key.copy_from_slice(&derived[..16]);
        Self(SipHasher13::new_with_key(&key))
    }

    /// The checksum of one row.
    #[must_use]
    pub fn checksum(&self, row: &[u8]) -> RowsChecksum {
        RowsChecksum(self.0.hash(row).into())
    }

    /// Begins the checksum of a row that comes piece by piece.
    #[must_use]
    pub fn begin(&self) -> RowHasher {
        RowHasher(self.0)
    }
}

impl fmt::Debug for RowHashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowHashKey(secret)")
    }
}

/// The checksum of a row that comes piece by piece.
#[derive(Clone)]
pub struct RowHasher(SipHasher13);

impl RowHasher {
    /// Adds the next bytes of the row.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The checksum of all bytes added.
    #[must_use]
    pub fn checksum(&self) -> RowsChecksum {
        RowsChecksum(self.0.finish128().into())
    }
}

/// Checksum of rows in any order: the sum modulo 2^128 of the hashes of all rows ([`RowHashKey`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowsChecksum(pub u128);

impl RowsChecksum {
    /// The checksum of both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }
}

/// Number of rows, their bytes, and their checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowTotals {
    /// Number of rows.
    pub rows: u64,
    /// Bytes of the rows alone.
    pub bytes: u64,
    /// Checksum of all rows.
    pub checksum: RowsChecksum,
}

impl RowTotals {
    /// Adds one row.
    pub fn add_row(&mut self, bytes: u64, checksum: RowsChecksum) {
        self.rows += 1;
        self.bytes += bytes;
        self.checksum = self.checksum.and(checksum);
    }

    /// The totals of both together; `None` on overflow.
    #[must_use]
    pub fn and(self, other: Self) -> Option<Self> {
        Some(Self {
            rows: self.rows.checked_add(other.rows)?,
            bytes: self.bytes.checked_add(other.bytes)?,
            checksum: self.checksum.and(other.checksum),
        })
    }
}
