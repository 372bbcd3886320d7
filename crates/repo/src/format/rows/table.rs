//! What the item of a table leads to: its definition, and its rows, by entries or by leaves.

use holdfast_pipe::PageHash;

use super::{
    DefinitionText, ENTRIES_PER_LEAF_MAX, RowEntry, RowTotals, RowsChecksum,
    leaf::{get_entries, get_totals, sum},
    put_entry, totals_of,
};
use crate::format::{
    columns::{CHUNK_BYTES_MAX, get_chunk, put_chunk},
    names::ChunkRef,
    wire::{Decoder, FormatError, put_varint},
};

/// Entries of a table that its item holds itself, at most.
pub const INLINE_ENTRIES_MAX: usize = 64;
/// Forms of a table. Lower numbers were for rows with checksums of other kinds.
const FORM_INLINE: u8 = 4;
const FORM_LEAVES: u8 = 5;
const LEAF_REF_BYTES_MIN: usize = 3 + 16 + 3;

/// What the item of a table leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMap {
    /// What is needed to create the table.
    pub definition: DefinitionText,
    /// Totals of all rows.
    pub totals: RowTotals,
    /// Where the rows are.
    pub rows: TableRows,
}

/// Where the rows of a table are, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableRows {
    /// In these chunks.
    Inline(Vec<RowEntry>),
    /// In the chunks that these leaves list.
    Leaves(Vec<RowLeafRef>),
}

/// A leaf, as the item of its table names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLeafRef {
    /// The chunk that it is.
    pub chunk: ChunkRef,
    /// Hash of the chunk's plain bytes.
    pub hash: PageHash,
    /// Number of entries.
    pub entries: u32,
    /// Totals of the entries.
    pub totals: RowTotals,
}

/// Appends what follows the map kind in the item of a table.
pub(crate) fn put_table(out: &mut Vec<u8>, table: &TableMap) {
    table.definition.put(out);
    put_varint(out, table.totals.rows);
    out.extend_from_slice(&table.totals.checksum.0.to_le_bytes());
    match &table.rows {
        TableRows::Inline(entries) => {
            out.push(FORM_INLINE);
            put_varint(out, entries.len() as u64);
            for entry in entries {
                put_entry(out, entry);
            }
        }
        TableRows::Leaves(leaves) => {
            out.push(FORM_LEAVES);
            put_varint(out, leaves.len() as u64);
            for leaf in leaves {
                put_chunk(out, leaf.chunk);
                out.extend_from_slice(&leaf.hash.0);
                put_varint(out, u64::from(leaf.entries));
                put_varint(out, leaf.totals.rows);
                put_varint(out, leaf.totals.bytes);
                out.extend_from_slice(&leaf.totals.checksum.0.to_le_bytes());
            }
        }
    }
}

/// Reads what follows the map kind in the item of a table of `size_bytes`.
pub(crate) fn get_table(decoder: &mut Decoder<'_>, size_bytes: u64) -> Result<TableMap, FormatError> {
    let definition = DefinitionText::get(decoder)?;
    let totals = RowTotals {
        rows: decoder.varint("rows")?,
        bytes: size_bytes,
        checksum: RowsChecksum(u128::from_le_bytes(decoder.array("checksum of rows")?)),
    };
    let rows = match decoder.u8("form of a table")? {
        0..FORM_INLINE => {
            return Err(FormatError::rule("form of a table", "is of a version that was never released"));
        }
        FORM_INLINE => TableRows::Inline(get_entries(decoder, INLINE_ENTRIES_MAX)?),
        FORM_LEAVES => {
            let count = decoder.count("leaf count", CHUNK_BYTES_MAX, LEAF_REF_BYTES_MIN)?;
            let mut leaves = Vec::with_capacity(count);
            for _ in 0..count {
                let (chunk, hash) = (get_chunk(decoder)?, PageHash(decoder.array("leaf hash")?));
                let entries = decoder.between("leaf entry count", 1, ENTRIES_PER_LEAF_MAX as u64)? as u32;
                leaves.push(RowLeafRef { chunk, hash, entries, totals: get_totals(decoder)? });
            }
            TableRows::Leaves(leaves)
        }
        form => return Err(FormatError::unknown("form of a table", form)),
    };
    let found = match &rows {
        TableRows::Inline(entries) => totals_of(entries)?,
        TableRows::Leaves(leaves) => sum(leaves.iter().map(|leaf| leaf.totals))?,
    };
    if found != totals {
        return Err(FormatError::rule("table", "has other rows than it leads to"));
    }
    Ok(TableMap { definition, totals, rows })
}
