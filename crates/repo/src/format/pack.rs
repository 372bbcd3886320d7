//! The contents of a pack: chunk rows, the directory, the trailer (`docs/reference/repository.md` section 6).
//!
//! A chunk's offset is not stored: it follows from the header and the sealed lengths before it, so rows are
//! all that a reader needs, whether from the index or from the pack itself.

use holdfast_formats::PageSize;
use holdfast_pipe::{Codec, PageHash, SealContext, TAG_BYTES};

use crate::format::{
    columns::{CHUNK_BYTES_MAX, CHUNKS_PER_PACK_MAX, get_chunk, put_chunk},
    item::page_size_from_log2,
    names::ChunkRef,
    place::{HEADER_BYTES, ObjectKind},
    wire::{Decoder, FormatError, put_varint},
};

/// Bytes of the trailer that every pack ends with.
pub const TRAILER_BYTES: usize = 20;
/// Pages in a pack, at most; bounds the directory.
pub const PAGES_PER_PACK_MAX: u32 = 262_144;
/// Bytes of a directory, at most.
pub const DIRECTORY_BYTES_MAX: usize =
    PAGES_PER_PACK_MAX as usize * 16 + CHUNKS_PER_PACK_MAX as usize * 32 + 16;
/// Ordinal under which the directory is sealed.
pub const DIRECTORY_ORDINAL: u64 = 1 << 32;
/// Chunk kind of the directory in its seal.
pub const DIRECTORY_KIND: u8 = 15;

const ROW_BYTES_MIN: usize = 6;
const TRAILER_MAGIC: [u8; 4] = *b"HFPT";

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkKind {
    /// Pages of one size.
    Pages(PageSize),
    /// Encoded leaves.
    Leaves,
    /// Items one after another.
    Items,
    /// Entries of the item table's root.
    Roots,
    /// Rows.
    Rows,
    /// A leaf of chunks of rows.
    RowLeaf,
}

impl ChunkKind {
    /// The number as stored.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Pages(_) => 1,
            Self::Leaves => 2,
            Self::Items => 3,
            Self::Roots => 4,
            Self::Rows => 5,
            Self::RowLeaf => 6,
        }
    }
}

/// One chunk, as the directory and the index list it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRow {
    /// What it holds.
    pub kind: ChunkKind,
    /// How it is compressed.
    pub codec: Codec,
    /// Bytes before compression, at most 1 MiB.
    pub plain_len: u32,
    /// Bytes in the pack, with the seal's tag.
    pub sealed_len: u32,
    /// Pages, leaves, items or root entries in it; 1 for chunks of rows and their
    /// leaves, which are needed as a whole.
    pub unit_count: u32,
    /// For codec 4: the chunk whose plain bytes are the prefix.
    pub base: Option<ChunkRef>,
}

impl ChunkRow {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind.number());
        out.push(self.codec as u8);
        out.push(match self.kind {
            ChunkKind::Pages(size) => size.log2() as u8,
            _ => 0,
        });
        put_varint(out, u64::from(self.plain_len));
        put_varint(out, u64::from(self.sealed_len));
        put_varint(out, u64::from(self.unit_count));
        if let Some(base) = self.base {
            put_chunk(out, base);
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let kind = decoder.u8("chunk kind")?;
        let codec = decoder.u8("codec")?;
        let codec = Codec::try_from(codec).map_err(|_| FormatError::unknown("codec", codec))?;
        let log2 = decoder.u8("page size")?;
        let kind = match (kind, log2) {
            (1, log2) => ChunkKind::Pages(page_size_from_log2(log2)?),
            (2, 0) => ChunkKind::Leaves,
            (3, 0) => ChunkKind::Items,
            (4, 0) => ChunkKind::Roots,
            (5, 0) => ChunkKind::Rows,
            (6, 0) => ChunkKind::RowLeaf,
            (2..=6, _) => return Err(FormatError::rule("page size", "is given, and there are no pages")),
            (kind, _) => return Err(FormatError::unknown("chunk kind", kind)),
        };
        let plain_len = decoder.u32_most("plain length", CHUNK_BYTES_MAX as u32)?;
        let sealed_len = decoder.u32_most("sealed length", (CHUNK_BYTES_MAX + TAG_BYTES) as u32)?;
        let unit_count = decoder.u32_most("unit count", CHUNK_BYTES_MAX as u32)?;
        if (sealed_len as usize) < TAG_BYTES {
            return Err(FormatError::rule("sealed length", "is below that of a tag"));
        }
        if let ChunkKind::Pages(size) = kind
            && u64::from(unit_count) * size.bytes() as u64 != u64::from(plain_len)
        {
            return Err(FormatError::rule("unit count", "does not match the plain length"));
        }
        let base = match codec {
            Codec::ZstdPatch if kind == ChunkKind::Rows => Some(get_chunk(decoder)?),
            Codec::ZstdPatch => {
                return Err(FormatError::unknown("codec 4 of chunk kind", kind.number()));
            }
            _ => None,
        };
        if matches!(kind, ChunkKind::Rows | ChunkKind::RowLeaf) && unit_count != 1 {
            return Err(FormatError::rule("unit count", "of rows is not 1"));
        }
        Ok(Self { kind, codec, plain_len, sealed_len, unit_count, base })
    }
}

/// Appends the count and rows of a pack.
pub(crate) fn encode_rows(rows: &[ChunkRow], out: &mut Vec<u8>) {
    put_varint(out, rows.len() as u64);
    for row in rows {
        row.encode(out);
    }
}

/// Reads the count and rows of a pack.
pub(crate) fn decode_rows(decoder: &mut Decoder<'_>) -> Result<Vec<ChunkRow>, FormatError> {
    let count = decoder.count("chunk count", CHUNKS_PER_PACK_MAX as usize, ROW_BYTES_MIN)?;
    (0..count).map(|_| ChunkRow::decode(decoder)).collect()
}

/// The directory of a pack: its rows, and the hashes of all its pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// The chunks, by ordinal.
    pub rows: Vec<ChunkRow>,
    /// Hashes of the pages in the chunks of pages, chunk after chunk.
    pub hashes: Vec<PageHash>,
}

impl Directory {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.rows.len() * 12 + self.hashes.len() * 16 + 4);
        encode_rows(&self.rows, &mut out);
        for hash in &self.hashes {
            out.extend_from_slice(&hash.0);
        }
        out
    }

    /// Reads the stored form.
    pub fn decode(plain: &[u8]) -> Result<Self, FormatError> {
        let mut decoder = Decoder::new(plain);
        let rows = decode_rows(&mut decoder)?;
        let pages: u64 = rows.iter().map(|row| u64::from(pages_in(row))).sum();
        if pages > u64::from(PAGES_PER_PACK_MAX) || pages * 16 != decoder.left() as u64 {
            return Err(FormatError::rule("hashes", "are not one for each page"));
        }
        let hashes = (0..pages).map(|_| Ok(PageHash(decoder.array("hash")?))).collect::<Result<_, _>>()?;
        Ok(Self { rows, hashes })
    }

    /// Every chunk with the hashes of its pages (none if it holds no pages), by ordinal.
    pub fn chunks(&self) -> impl Iterator<Item = (&ChunkRow, &[PageHash])> {
        let mut at = 0;
        self.rows.iter().map(move |row| {
            let begin = at;
            at += pages_in(row) as usize;
            (row, self.hashes.get(begin..at).unwrap_or_default())
        })
    }
}

/// Pages in a chunk; 0 if it holds something else.
pub(crate) fn pages_in(row: &ChunkRow) -> u32 {
    match row.kind {
        ChunkKind::Pages(_) => row.unit_count,
        _ => 0,
    }
}

/// The last bytes of a pack: where its directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Where the sealed directory begins.
    pub offset: u64,
    /// Its length with the tag.
    pub sealed_len: u32,
    /// Its length before compression.
    pub plain_len: u32,
}

impl Trailer {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut out = [0; TRAILER_BYTES];
        out[..8].copy_from_slice(&self.offset.to_le_bytes());
        out[8..12].copy_from_slice(&self.sealed_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.plain_len.to_le_bytes());
        out[16..].copy_from_slice(&TRAILER_MAGIC);
        out
    }

    /// Reads the stored form in a pack of `size_bytes`: the directory lies between header and trailer and
    /// ends where the trailer begins.
    pub fn decode(bytes: &[u8; TRAILER_BYTES], size_bytes: u64) -> Result<Self, FormatError> {
        let mut decoder = Decoder::new(bytes);
        let trailer = Self {
            offset: u64::from_le_bytes(decoder.array("directory offset")?),
            sealed_len: decoder.u32("directory sealed length")?,
            plain_len: decoder.u32("directory plain length")?,
        };
        if decoder.array("trailer magic")? != TRAILER_MAGIC {
            return Err(FormatError::rule("trailer magic", "is not HFPT"));
        }
        let most = (DIRECTORY_BYTES_MAX + TAG_BYTES) as u64;
        let end = trailer.offset.checked_add(u64::from(trailer.sealed_len));
        let good = trailer.offset >= HEADER_BYTES as u64
            && end.and_then(|end| end.checked_add(TRAILER_BYTES as u64)) == Some(size_bytes)
            && u64::from(trailer.sealed_len) <= most
            && u64::from(trailer.plain_len) + TAG_BYTES as u64 == u64::from(trailer.sealed_len);
        if good { Ok(trailer) } else { Err(FormatError::rule("directory", "does not lie within the pack")) }
    }
}

impl ChunkRow {
    /// What the seal of this chunk, number `ordinal` of its pack, is bound to.
    #[must_use]
    pub fn seal_context(&self, ordinal: u32) -> SealContext {
        SealContext {
            object_kind: ObjectKind::Pack as u8,
            chunk_kind: self.kind.number(),
            codec: self.codec as u8,
            last: false,
            ordinal: u64::from(ordinal),
            plain_len: self.plain_len,
        }
    }
}

/// What the seal of a directory of `plain_len` bytes is bound to.
#[must_use]
pub fn directory_seal_context(plain_len: u32) -> SealContext {
    SealContext {
        object_kind: ObjectKind::Pack as u8,
        chunk_kind: DIRECTORY_KIND,
        codec: Codec::None as u8,
        last: false,
        ordinal: DIRECTORY_ORDINAL,
        plain_len,
    }
}

/// Where each chunk of a pack is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackRows {
    /// Bytes of the whole object.
    pub size_bytes: u64,
    rows: Vec<ChunkRow>,
    offsets: Vec<u64>,
}

impl PackRows {
    /// Takes rows that fit in a pack of `size_bytes`.
    pub fn new(size_bytes: u64, rows: Vec<ChunkRow>) -> Result<Self, FormatError> {
        let mut offsets = Vec::with_capacity(rows.len());
        let mut at = HEADER_BYTES as u64;
        for row in &rows {
            offsets.push(at);
            at += u64::from(row.sealed_len);
        }
        if at.saturating_add((TAG_BYTES + TRAILER_BYTES) as u64) > size_bytes {
            return Err(FormatError::rule("sealed lengths", "are more than the pack"));
        }
        Ok(Self { size_bytes, rows, offsets })
    }

    /// The rows by ordinal.
    #[must_use]
    pub fn rows(&self) -> &[ChunkRow] {
        &self.rows
    }

    /// A chunk and where it begins.
    #[must_use]
    pub fn chunk(&self, ordinal: u32) -> Option<(&ChunkRow, u64)> {
        let ordinal = ordinal as usize;
        Some((self.rows.get(ordinal)?, *self.offsets.get(ordinal)?))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::names::{PackId, RunNo};

    pub(crate) fn any_row() -> impl Strategy<Value = ChunkRow> {
        let kind = prop_oneof![
            (10..=16_u32).prop_map(|log2| ChunkKind::Pages(PageSize::from_bytes(1 << log2).unwrap())),
            Just(ChunkKind::Leaves),
            Just(ChunkKind::Items),
            Just(ChunkKind::Roots),
            Just(ChunkKind::Rows),
            Just(ChunkKind::RowLeaf),
        ];
        let codec = prop_oneof![Just(Codec::None), Just(Codec::Zstd), Just(Codec::Lz4), Just(Codec::Gzip)];
        (kind, codec, 1..16_u32, 16..1_000_000_u32).prop_map(|(kind, codec, unit_count, sealed_len)| {
            let plain_len = match kind {
                ChunkKind::Pages(size) => size.bytes() as u32 * unit_count,
                _ => 77,
            };
            let (codec, base) = match kind {
                ChunkKind::Rows if sealed_len % 2 == 0 => {
                    let pack = PackId { run: RunNo(u64::from(sealed_len)), part: unit_count };
                    (Codec::ZstdPatch, Some(ChunkRef { pack, ordinal: unit_count }))
                }
                _ => (codec, None),
            };
            let unit_count = match kind {
                ChunkKind::Rows | ChunkKind::RowLeaf => 1,
                _ => unit_count,
            };
            ChunkRow { kind, codec, plain_len, sealed_len, unit_count, base }
        })
    }

    fn any_directory() -> impl Strategy<Value = Directory> {
        prop::collection::vec(any_row(), 0..40).prop_map(|rows| {
            let pages = rows.iter().map(pages_in).sum::<u32>();
            Directory { rows, hashes: (0..pages).map(|page| PageHash([page as u8; 16])).collect() }
        })
    }

    proptest! {
        #[test]
        fn directories_come_back_and_give_each_chunk_its_hashes(directory in any_directory()) {
            let again = Directory::decode(&directory.encode()).unwrap();
            prop_assert_eq!(&again, &directory);
            for (row, hashes) in again.chunks() {
                prop_assert_eq!(hashes.len(), pages_in(row) as usize);
            }
        }

        #[test]
        fn damaged_directories_never_panic(
            directory in any_directory(), cut in any::<prop::sample::Index>(), flip in any::<prop::sample::Index>()
        ) {
            let mut bytes = directory.encode();
            prop_assert!(Directory::decode(&bytes[..cut.index(bytes.len())]).is_err());
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(Directory::decode(&bytes), Ok(directory));
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), trailer in any::<[u8; 20]>(), size in any::<u64>()) {
            let _ = Directory::decode(&bytes);
            let _ = Trailer::decode(&trailer, size);
        }

        #[test]
        fn a_trailer_is_believed_only_at_the_end_of_its_own_pack(before in 0..1_000_000_u64, len in 0..1_000_000_u32, other in any::<u64>()) {
            let trailer = Trailer { offset: 116 + before, sealed_len: len + 16, plain_len: len };
            let size = trailer.offset + u64::from(trailer.sealed_len) + 20;
            prop_assert_eq!(Trailer::decode(&trailer.encode(), size), Ok(trailer));
            prop_assert!(other == size || Trailer::decode(&trailer.encode(), other).is_err());
        }
    }
}
