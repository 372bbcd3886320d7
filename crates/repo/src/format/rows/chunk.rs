//! Chunks of rows: whole ones, or a piece of one that is longer than a chunk.

use crate::format::{
    columns::CHUNK_BYTES_MAX,
    wire::{Decoder, FormatError, put_prefixed},
};

/// Bytes of a row that one chunk holds after its first byte, if the row takes several chunks.
pub const PIECE_BYTES: usize = CHUNK_BYTES_MAX - 1;
/// The first byte of a chunk of whole rows.
const WHOLE_ROWS: u8 = 0;

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
