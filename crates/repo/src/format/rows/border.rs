//! Where chunks and leaves end: chosen by content, so that an inserted row moves one border only.

use super::{RowHashKey, RowsChecksum};

/// Mean length of a chunk, as a power of two.
const MEAN_CHUNK_BYTES_LOG2: u32 = 18;
/// Mean number of entries in a leaf, as a power of two.
const MEAN_LEAF_ENTRIES_LOG2: u32 = 10;

/// What ends after a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// Nothing.
    None,
    /// A chunk.
    Chunk,
    /// A chunk and the leaf that lists it.
    Leaf,
}

impl Border {
    /// What ends after a row of `row_bytes` with this key.
    ///
    /// The keyed hash of the key decides, so that it does not depend on the rows around it. A border is as
    /// likely as the row is long, so that the mean length of chunks does not depend on the length of rows.
    #[must_use]
    pub fn after(hash_key: &RowHashKey, key: &[u8], row_bytes: usize) -> Self {
        Self::by(hash_key.checksum(key), row_bytes)
    }

    /// What ends after a row of `row_bytes` whose key, which may be the row itself, has this hash.
    #[must_use]
    pub fn by(hash: RowsChecksum, row_bytes: usize) -> Self {
        let hash = hash.0 as u64;
        let len_log2 = row_bytes.max(1).next_power_of_two().trailing_zeros();
        // Bits of the hash that must be 0 for a border.
        let chunk_bits = MEAN_CHUNK_BYTES_LOG2.saturating_sub(len_log2);
        let zeros = hash.leading_zeros();
        if zeros < chunk_bits {
            Self::None
        } else if zeros < chunk_bits + MEAN_LEAF_ENTRIES_LOG2 {
            Self::Chunk
        } else {
            Self::Leaf
        }
    }
}
