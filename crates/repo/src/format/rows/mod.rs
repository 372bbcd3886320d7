//! Rows as they are stored: chunks of rows, leaves that list such chunks, and what the items of tables and
//! definitions lead to (`docs/reference/repository.md`, "Rows").
//!
//! The repository never looks into a row: it is bytes, in whatever order the writer gives them.
//!
//! From the bytes up: rows have [`checksum`]s and are in [`chunk`]s, which end at [`border`]s and which a [`leaf`]
//! lists; a [`table`] leads to these, and to its [`definition`].

mod border;
mod checksum;
mod chunk;
mod definition;
mod leaf;
mod table;
#[cfg(test)]
pub(crate) mod tests;

pub use border::Border;
pub use checksum::{RowHashKey, RowHasher, RowTotals, RowsChecksum};
pub use chunk::{PIECE_BYTES, Piece, RowChunk, Rows, begin_piece, begin_rows, has_room, put_row};
pub use definition::{
    DEFINITION_KIND_BYTES_MAX, DEFINITION_PIECE_BYTES, DefinitionMap, DefinitionText,
    INLINE_DEFINITION_BYTES_MAX, is_definition_kind,
};
pub(crate) use definition::{get_definition, put_definition};
pub use leaf::{
    ENTRIES_PER_LEAF_MAX, KEY_BYTES_MAX, LEAF_BYTES_MAX, RowEntry, decode_leaf, encode_leaf, put_entry,
    totals_of,
};
pub use table::{INLINE_ENTRIES_MAX, RowLeafRef, TableMap, TableRows};
pub(crate) use table::{get_table, put_table};
