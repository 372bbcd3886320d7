//! Definitions: of tables, and of everything else that a server has.

use holdfast_pipe::PageHash;

use super::PIECE_BYTES;
use crate::format::{
    columns::{get_chunk, put_chunk},
    names::ChunkRef,
    wire::{Decoder, FormatError, put_prefixed, put_varint},
};

/// Definitions longer than this are stored in chunks.
pub const INLINE_DEFINITION_BYTES_MAX: usize = 64 << 10;
/// Bytes of the name of a kind of definition, at most.
pub const DEFINITION_KIND_BYTES_MAX: usize = 32;
/// Bytes of a definition in one chunk, at most: as many as fit as a whole row, so that it is clear whether
/// there is one chunk or several.
pub const DEFINITION_PIECE_BYTES: usize = PIECE_BYTES - 3;
/// Chunks of a definition, at most: enough for the 4 GiB that a server can hold of one.
const DEFINITION_CHUNKS_MAX: usize = 4_200;

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

    pub(super) fn put(&self, out: &mut Vec<u8>) {
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

    pub(super) fn get(decoder: &mut Decoder<'_>) -> Result<Self, FormatError> {
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
