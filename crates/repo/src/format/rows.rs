//! Rows as they are stored: chunks of rows, leaves that list such chunks, and what the items of tables and
//! definitions lead to (`docs/reference/repository.md`, "Rows").
//!
//! The repository never looks into a row: it is bytes, in whatever order the writer gives them.

use std::hash::Hasher;

use holdfast_pipe::{HashKey, PageHash};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::format::{
    columns::{CHUNK_BYTES_MAX, get_chunk, put_chunk},
    names::ChunkRef,
    wire::{Decoder, FormatError, put_prefixed, put_varint},
};

/// Bytes of a key that a leaf records, at most; longer keys are not recorded.
pub const KEY_BYTES_MAX: usize = 4_096;
/// Entries in a leaf, at most.
pub const ENTRIES_PER_LEAF_MAX: usize = 4_096;
/// A leaf is cut before it would become longer than this.
pub const LEAF_BYTES_MAX: usize = 512 << 10;
/// Entries of a table that its item holds itself, at most.
pub const INLINE_ENTRIES_MAX: usize = 64;
/// Definitions longer than this are stored in chunks.
pub const INLINE_DEFINITION_BYTES_MAX: usize = 64 << 10;
/// Bytes of the name of a kind of definition, at most.
pub const DEFINITION_KIND_BYTES_MAX: usize = 32;
/// Bytes of a row that one chunk holds after its first byte, if the row takes several chunks.
pub const PIECE_BYTES: usize = CHUNK_BYTES_MAX - 1;

/// Bytes of a definition in one chunk, at most: as many as fit as a whole row, so that it is clear whether
/// there is one chunk or several.
pub const DEFINITION_PIECE_BYTES: usize = PIECE_BYTES - 3;

/// Mean length of a chunk, as a power of two.
const MEAN_CHUNK_BYTES_LOG2: u32 = 18;
/// Mean number of entries in a leaf, as a power of two.
const MEAN_LEAF_ENTRIES_LOG2: u32 = 10;
/// Chunks of a definition, at most: enough for the 4 GiB that a server can hold of one.
const DEFINITION_CHUNKS_MAX: usize = 4_200;
/// Forms of a table. Lower numbers were for rows with checksums of other kinds.
const FORM_INLINE: u8 = 4;
const FORM_LEAVES: u8 = 5;
const ENTRY_BYTES_MIN: usize = 2 + 16 + 16 + 3 + 1 + 1;
const LEAF_REF_BYTES_MIN: usize = 3 + 16 + 3;

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

impl std::fmt::Debug for RowHashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// Which part of a row a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// It begins the row.
    First,
    /// Neither begins nor ends it.
    Middle,
    /// It ends the row.
    Last,
}

impl Piece {
    fn form(self) -> u8 {
        match self {
            Self::First => 1,
            Self::Middle => 2,
            Self::Last => 3,
        }
    }
}

/// The first byte of a chunk of whole rows.
const WHOLE_ROWS: u8 = 0;

/// Begins the plain bytes of a chunk of whole rows.
pub fn begin_rows(plain: &mut Vec<u8>) {
    plain.clear();
    plain.push(WHOLE_ROWS);
}

/// Appends a row to a chunk of whole rows.
pub fn put_row(plain: &mut Vec<u8>, row: &[u8]) {
    put_prefixed(plain, row);
}

/// Whether a row of `row_bytes` still fits in a chunk that has `plain_bytes`.
#[must_use]
pub fn has_room(plain_bytes: usize, row_bytes: usize) -> bool {
    const LENGTH_BYTES_MAX: usize = 3;
    plain_bytes + row_bytes + LENGTH_BYTES_MAX <= CHUNK_BYTES_MAX
}

/// Begins the plain bytes of a chunk that holds one piece of a row and nothing else.
pub fn begin_piece(plain: &mut Vec<u8>, piece: Piece) {
    plain.clear();
    plain.push(piece.form());
}

/// What a chunk of rows holds.
#[derive(Clone, Debug)]
pub enum RowChunk<'a> {
    /// Rows.
    Whole(Rows<'a>),
    /// A piece of a row that is longer than a chunk.
    Piece(Piece, &'a [u8]),
}

impl<'a> RowChunk<'a> {
    /// Reads the plain bytes.
    pub fn parse(plain: &'a [u8]) -> Result<Self, FormatError> {
        let (form, rest) = plain.split_first().ok_or(FormatError::rule("rows", "are no bytes at all"))?;
        let piece = match *form {
            WHOLE_ROWS => return Ok(Self::Whole(Rows::parse(rest)?)),
            1 => Piece::First,
            2 => Piece::Middle,
            3 => Piece::Last,
            form => return Err(FormatError::unknown("form of rows", form)),
        };
        if rest.is_empty() {
            return Err(FormatError::rule("piece of a row", "is empty"));
        }
        Ok(Self::Piece(piece, rest))
    }
}

/// Whole rows, one after another.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    decoder: Decoder<'a>,
    left: usize,
}

impl<'a> Rows<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let mut decoder = Decoder::new(bytes);
        let mut count = 0;
        while decoder.left() > 0 {
            decoder.prefixed("row length", CHUNK_BYTES_MAX)?;
            count += 1;
        }
        if count == 0 {
            return Err(FormatError::rule("rows", "are none"));
        }
        Ok(Self { decoder: Decoder::new(bytes), left: count })
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        // All lengths were checked by `parse`.
        self.decoder.prefixed("row length", CHUNK_BYTES_MAX).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Rows<'_> {}

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

fn get_totals(decoder: &mut Decoder<'_>) -> Result<RowTotals, FormatError> {
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

fn get_entries(decoder: &mut Decoder<'_>, most: usize) -> Result<Vec<RowEntry>, FormatError> {
    let count = decoder.count("entry count", most, ENTRY_BYTES_MIN)?;
    (0..count).map(|_| get_entry(decoder)).collect()
}

fn sum(all: impl Iterator<Item = RowTotals>) -> Result<RowTotals, FormatError> {
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

/// What the item of anything but a table leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionMap {
    /// What is defined: a word chosen by whoever wrote it.
    pub kind: String,
    /// What is needed to create it.
    pub text: DefinitionText,
}

/// A definition: bytes that the repository does not look into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefinitionText {
    /// In the item.
    Inline(Vec<u8>),
    /// In chunks of rows, as the only row that they hold.
    Chunks {
        /// Length in bytes.
        len: u64,
        /// The chunks, in order, with the hashes of their plain bytes.
        chunks: Vec<(ChunkRef, PageHash)>,
    },
}

impl DefinitionText {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Chunks { len, .. } => *len,
        }
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(bytes) => {
                out.push(0);
                put_prefixed(out, bytes);
            }
            Self::Chunks { len, chunks } => {
                out.push(1);
                put_varint(out, *len);
                put_varint(out, chunks.len() as u64);
                for (chunk, hash) in chunks {
                    put_chunk(out, *chunk);
                    out.extend_from_slice(&hash.0);
                }
            }
        }
    }

    fn get(decoder: &mut Decoder<'_>) -> Result<Self, FormatError> {
        match decoder.u8("form of a definition")? {
            0 => {
                let bytes = decoder.prefixed("definition length", INLINE_DEFINITION_BYTES_MAX)?;
                Ok(Self::Inline(bytes.to_vec()))
            }
            1 => {
                let len = decoder.varint("definition length")?;
                let count = decoder.count("definition chunk count", DEFINITION_CHUNKS_MAX, 19)?;
                let mut chunks = Vec::with_capacity(count);
                for _ in 0..count {
                    chunks.push((get_chunk(decoder)?, PageHash(decoder.array("definition chunk hash")?)));
                }
                if len <= INLINE_DEFINITION_BYTES_MAX as u64 || len > (count * DEFINITION_PIECE_BYTES) as u64
                {
                    return Err(FormatError::rule("definition length", "does not match its chunks"));
                }
                Ok(Self::Chunks { len, chunks })
            }
            form => Err(FormatError::unknown("form of a definition", form)),
        }
    }
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

/// Whether `kind` can be the kind of a definition: lower-case letters, digits and `-`.
#[must_use]
pub fn is_definition_kind(kind: &str) -> bool {
    let good = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    (1..=DEFINITION_KIND_BYTES_MAX).contains(&kind.len()) && kind.as_bytes().iter().all(good)
}

/// Appends what follows the map kind in the item of a definition.
pub(crate) fn put_definition(out: &mut Vec<u8>, definition: &DefinitionMap) {
    put_prefixed(out, definition.kind.as_bytes());
    definition.text.put(out);
}

/// Reads what follows the map kind in the item of a definition of `size_bytes`.
pub(crate) fn get_definition(
    decoder: &mut Decoder<'_>,
    size_bytes: u64,
) -> Result<DefinitionMap, FormatError> {
    let kind = decoder.prefixed("kind of a definition", DEFINITION_KIND_BYTES_MAX)?;
    let kind = std::str::from_utf8(kind).ok().filter(|kind| is_definition_kind(kind));
    let kind =
        kind.ok_or(FormatError::rule("kind of a definition", "is not a word of a-z, 0-9 and -"))?.to_owned();
    let text = DefinitionText::get(decoder)?;
    if text.len() != size_bytes {
        return Err(FormatError::rule("definition length", "does not match the size"));
    }
    Ok(DefinitionMap { kind, text })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::format::names::{PackId, RunNo};

    fn any_chunk() -> impl Strategy<Value = ChunkRef> {
        (1..9_u64, 0..9_u32, 0..9_u32)
            .prop_map(|(run, part, ordinal)| ChunkRef { pack: PackId { run: RunNo(run), part }, ordinal })
    }

    fn any_totals() -> impl Strategy<Value = RowTotals> {
        (0..1_000_000_u64, 0..1_000_000_u64, any::<u128>()).prop_map(|(rows, bytes, checksum)| RowTotals {
            rows,
            bytes,
            checksum: RowsChecksum(checksum),
        })
    }

    pub(crate) fn any_entry() -> impl Strategy<Value = RowEntry> {
        let key = prop::option::of(vec(any::<u8>(), 0..20));
        (any_totals(), any::<[u8; 16]>(), any_chunk(), prop::option::of(any_chunk()), key).prop_map(
            |(totals, hash, chunk, base, key)| RowEntry {
                totals,
                hash: PageHash(hash),
                chunk,
                base,
                key: key.map(Vec::into_boxed_slice),
            },
        )
    }

    fn any_text() -> impl Strategy<Value = DefinitionText> {
        prop_oneof![
            vec(any::<u8>(), 0..200).prop_map(DefinitionText::Inline),
            vec((any_chunk(), any::<[u8; 16]>()), 1..5).prop_map(|chunks| DefinitionText::Chunks {
                len: (chunks.len() * DEFINITION_PIECE_BYTES) as u64,
                chunks: chunks.into_iter().map(|(chunk, hash)| (chunk, PageHash(hash))).collect(),
            }),
        ]
    }

    pub(crate) fn any_definition() -> impl Strategy<Value = DefinitionMap> {
        ("[a-z0-9-]{1,32}", any_text()).prop_map(|(kind, text)| DefinitionMap { kind, text })
    }

    pub(crate) fn any_table() -> impl Strategy<Value = TableMap> {
        let rows = prop_oneof![
            vec(any_entry(), 0..9).prop_map(TableRows::Inline),
            vec((any_chunk(), any::<[u8; 16]>(), 1..4_097_u32, any_totals()), 0..9).prop_map(|leaves| {
                let leaves = leaves.into_iter().map(|(chunk, hash, entries, totals)| RowLeafRef {
                    chunk,
                    hash: PageHash(hash),
                    entries,
                    totals,
                });
                TableRows::Leaves(leaves.collect())
            }),
        ];
        (any_text(), rows).prop_map(|(definition, rows)| {
            let totals = match &rows {
                TableRows::Inline(entries) => totals_of(entries),
                TableRows::Leaves(leaves) => sum(leaves.iter().map(|leaf| leaf.totals)),
            };
            TableMap { definition, totals: totals.unwrap(), rows }
        })
    }

    proptest! {
        #[test]
        fn leaves_come_back_and_no_cut_is_taken_for_them(entries in vec(any_entry(), 1..20)) {
            let mut encoded = Vec::new();
            entries.iter().for_each(|entry| put_entry(&mut encoded, entry));
            let plain = encode_leaf(entries.len(), &encoded);
            for cut in 0..plain.len() {
                prop_assert!(decode_leaf(&plain[..cut]).is_err());
            }
            prop_assert_eq!(decode_leaf(&plain), Ok(entries));
        }

        #[test]
        fn rows_come_back_from_their_chunk(rows in vec(vec(any::<u8>(), 0..40), 1..40)) {
            let mut plain = Vec::new();
            begin_rows(&mut plain);
            rows.iter().for_each(|row| put_row(&mut plain, row));
            let RowChunk::Whole(read) = RowChunk::parse(&plain).unwrap() else { panic!("a piece") };
            prop_assert_eq!(read.len(), rows.len());
            prop_assert!(read.eq(rows.iter().map(Vec::as_slice)));
        }

        /// The checksum is the same whether a row comes whole or in pieces.
        #[test]
        fn a_row_in_pieces_has_the_same_checksum(row in vec(any::<u8>(), 0..80), cut in 0..80_usize) {
            let key = RowHashKey::new(&HashKey::new([7; 32]));
            let (first, last) = row.split_at(cut.min(row.len()));
            let mut hasher = key.begin();
            hasher.update(first);
            hasher.update(last);
            prop_assert_eq!(hasher.checksum(), key.checksum(&row));
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
            let _ = decode_leaf(&bytes);
            let _ = RowChunk::parse(&bytes);
        }
    }

    #[test]
    fn the_checksum_does_not_depend_on_the_order_and_knows_how_often_a_row_is_there() {
        let key = RowHashKey::new(&HashKey::new([7; 32]));
        let of = |rows: &[&str]| {
            rows.iter().fold(RowsChecksum::default(), |sum, row| sum.and(key.checksum(row.as_bytes())))
        };
        assert_eq!(of(&["a", "b", "c"]), of(&["c", "a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["a", "b", "b"]));
        assert_ne!(of(&["a"]), of(&["a", "b", "b"]));
    }

    /// Borders are as rare as rows are short, so that the mean length of chunks does
    /// not depend on the length of rows.
    #[test]
    fn borders_come_after_as_many_bytes_whatever_the_length_of_rows() {
        let hash_key = RowHashKey::new(&HashKey::new([7; 32]));
        for len in [16_usize, 256, 4_096] {
            let count = (512 << 18) / len;
            let borders = (0..count as u64)
                .filter(|number| Border::after(&hash_key, &number.to_le_bytes(), len) != Border::None);
            let borders = borders.count();
            assert!((400..640).contains(&borders), "{borders} borders in 512 times the mean, rows of {len}");
        }
        assert_ne!(Border::after(&hash_key, b"x", 1 << 18), Border::None);
    }
}
