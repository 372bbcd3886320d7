//! Leaves: chunks that list chunks of rows.

use holdfast_pipe::PageHash;

use super::{RowTotals, RowsChecksum};
use crate::format::{
    columns::{get_chunk, put_chunk},
    names::ChunkRef,
    wire::{Decoder, FormatError, put_varint},
};

/// Bytes of a key that a leaf records, at most; longer keys are not recorded.
pub const KEY_BYTES_MAX: usize = 4_096;
/// Entries in a leaf, at most.
pub const ENTRIES_PER_LEAF_MAX: usize = 4_096;
/// A leaf is cut before it would become longer than this.
pub const LEAF_BYTES_MAX: usize = 512 << 10;
const ENTRY_BYTES_MIN: usize = 2 + 16 + 16 + 3 + 1 + 1;

/// A chunk of rows, as a leaf lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowEntry {
    /// Totals of the rows that end in it.
    pub totals: RowTotals,
    /// Hash of its plain bytes.
    pub hash: PageHash,
    /// Where it is.
    pub chunk: ChunkRef,
    /// For codec 4: the chunk that is its prefix.
    pub base: Option<ChunkRef>,
    /// Key of its first row; absent if the table has no key, if the key is longer than [`KEY_BYTES_MAX`],
    /// or if the chunk continues a row.
    pub key: Option<Box<[u8]>>,
}

/// Appends the stored form of an entry.
pub fn put_entry(out: &mut Vec<u8>, entry: &RowEntry) {
    put_varint(out, entry.totals.rows);
    put_varint(out, entry.totals.bytes);
    out.extend_from_slice(&entry.totals.checksum.0.to_le_bytes());
    out.extend_from_slice(&entry.hash.0);
    put_chunk(out, entry.chunk);
    match entry.base {
        None => out.push(0),
        Some(base) => {
            out.push(1);
            put_chunk(out, base);
        }
    }
    match &entry.key {
        None => put_varint(out, 0),
        Some(key) => {
            put_varint(out, key.len() as u64 + 1);
            out.extend_from_slice(key);
        }
    }
}

pub(super) fn get_totals(decoder: &mut Decoder<'_>) -> Result<RowTotals, FormatError> {
    Ok(RowTotals {
        rows: decoder.varint("rows")?,
        bytes: decoder.varint("bytes of rows")?,
        checksum: RowsChecksum(u128::from_le_bytes(decoder.array("checksum of rows")?)),
    })
}

fn get_entry(decoder: &mut Decoder<'_>) -> Result<RowEntry, FormatError> {
    let totals = get_totals(decoder)?;
    let hash = PageHash(decoder.array("hash of a chunk of rows")?);
    let chunk = get_chunk(decoder)?;
    let base = match decoder.u8("base")? {
        0 => None,
        1 => Some(get_chunk(decoder)?),
        form => return Err(FormatError::unknown("base", form)),
    };
    let key_len = decoder.between("key length", 0, KEY_BYTES_MAX as u64 + 1)?;
    let key = match key_len.checked_sub(1) {
        None => None,
        Some(len) => Some(decoder.bytes("key", len as usize)?.into()),
    };
    Ok(RowEntry { totals, hash, chunk, base, key })
}

pub(super) fn get_entries(decoder: &mut Decoder<'_>, most: usize) -> Result<Vec<RowEntry>, FormatError> {
    let count = decoder.count("entry count", most, ENTRY_BYTES_MIN)?;
    (0..count).map(|_| get_entry(decoder)).collect()
}

pub(super) fn sum(all: impl Iterator<Item = RowTotals>) -> Result<RowTotals, FormatError> {
    all.into_iter()
        .try_fold(RowTotals::default(), RowTotals::and)
        .ok_or(FormatError::rule("rows", "are more than can be counted"))
}

/// Totals of the entries of a leaf, or of a table.
pub fn totals_of(entries: &[RowEntry]) -> Result<RowTotals, FormatError> {
    sum(entries.iter().map(|entry| entry.totals))
}

/// Plain bytes of a chunk that is a leaf of `count` entries, which are already encoded.
#[must_use]
pub fn encode_leaf(count: usize, entries: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.len() + 3);
    put_varint(&mut out, count as u64);
    out.extend_from_slice(entries);
    out
}

/// Reads a chunk that is a leaf.
pub fn decode_leaf(plain: &[u8]) -> Result<Vec<RowEntry>, FormatError> {
    let mut decoder = Decoder::new(plain);
    let entries = get_entries(&mut decoder, ENTRIES_PER_LEAF_MAX)?;
    decoder.end("leaf of rows")?;
    if entries.is_empty() {
        return Err(FormatError::rule("leaf of rows", "is empty"));
    }
    Ok(entries)
}
