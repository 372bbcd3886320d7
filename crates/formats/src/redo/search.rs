//! Shared by the searches for records in MySQL's redo: the record bytes of a block, and compressed numbers.

use super::mysql::{BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_TRAILER_BYTES, BlockHeader};
use crate::{Lsn, SpaceId, be};

/// What begins at a byte.
pub(super) enum Look<T> {
    /// A whole record of a wanted kind.
    Record(T),
    /// No such record.
    Nothing,
    /// More bytes are needed to tell.
    Incomplete,
}

impl<T> Look<T> {
    /// Continues with `next` if the bytes so far begin a record.
    pub(super) fn and_then<U>(self, next: impl FnOnce(T) -> Look<U>) -> Look<U> {
        match self {
            Look::Record(begun) => next(begun),
            Look::Nothing => Look::Nothing,
            Look::Incomplete => Look::Incomplete,
        }
    }
}

impl<T> From<Option<T>> for Look<T> {
    /// `None` means that there are too few bytes.
    fn from(read: Option<T>) -> Look<T> {
        read.map_or(Look::Incomplete, Look::Record)
    }
}

/// A byte that can begin a record.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    /// That byte, a record's type.
    pub(super) kind: u8,
    /// The bytes after it.
    pub(super) following: &'a [u8],
    /// The bytes before it: as many as the search looks back, or all there are.
    pub(super) preceding: &'a [u8],
}

/// Searches consecutive blocks for records. Any byte may begin one, and records continue across blocks.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// The bytes that a record can begin with.
    kinds: [u8; 3],
    /// How many bytes before a candidate it is shown with.
    look_back_bytes: usize,
    next_lsn: Lsn,
    /// Bytes already fed: from the first one on that may begin a record still incomplete, or the end; and before it
    /// what to look back at.
    held: Vec<u8>,
    /// How many of them, the first ones, are only looked back at.
    behind_bytes: usize,
}

impl Search {
    /// A search of the blocks from `start` on.
    pub(super) fn new(start: Lsn, kinds: [u8; 3]) -> Search {
        Search { kinds, look_back_bytes: 0, next_lsn: start, held: Vec::new(), behind_bytes: 0 }
    }

    /// The same search, which shows candidates with this many bytes before them.
    pub(super) fn looking_back(self, look_back_bytes: usize) -> Search {
        Search { look_back_bytes, ..self }
    }

    /// The block that [`Search::feed`] expects next.
    pub(super) fn next_lsn(&self) -> Lsn {
        self.next_lsn
    }

    /// Searches whole blocks that are full and follow those fed before; bytes after the last whole block are
    /// ignored.
    ///
    /// `look` gets each candidate. `on_find` gets what `look` made of a record, and the block in which the record
    /// begins, which is right for records shorter than a block.
    pub(super) fn feed<T>(
        &mut self,
        blocks: &[u8],
        look: impl Fn(Candidate<'_>) -> Look<T>,
        mut on_find: impl FnMut(T, Lsn),
    ) -> Result<(), EncryptedBlock> {
        for block in blocks.chunks_exact(BLOCK_BYTES) {
            let Some(records) = records_of(block, self.next_lsn)? else { continue };
            if self.held.is_empty() {
                let rest = self.find(records, (0, 0), &look, &mut on_find);
                self.hold(records, rest);
            } else {
                let mut bytes = std::mem::take(&mut self.held);
                let before_bytes = bytes.len();
                bytes.extend_from_slice(records);
                let rest = self.find(&bytes, (self.behind_bytes, before_bytes), &look, &mut on_find);
                self.hold(&bytes, rest);
            }
            self.next_lsn = Lsn(self.next_lsn.0.wrapping_add(BLOCK_BYTES as u64));
        }
        Ok(())
    }

    /// Keeps what the next block may continue, from `rest` on, and what to look back at.
    fn hold(&mut self, bytes: &[u8], rest: usize) {
        let from = rest.saturating_sub(self.look_back_bytes);
        self.behind_bytes = rest - from;
        self.held.clear();
        self.held.extend_from_slice(bytes.get(from..).unwrap_or_default());
    }

    /// Searches the partly filled block at the current end of the log without counting it as fed: pass it
    /// again when it has grown.
    pub(super) fn peek<T>(
        &self,
        block: &[u8],
        look: impl Fn(Candidate<'_>) -> Look<T>,
        mut on_find: impl FnMut(T, Lsn),
    ) -> Result<(), EncryptedBlock> {
        let Some(records) = records_of(block, self.next_lsn)? else { return Ok(()) };
        let bytes = [&self.held, records].concat();
        let mut from = self.behind_bytes;
        // A candidate that is still incomplete must not hide records after it.
        while from < bytes.len() {
            from = self.find(&bytes, (from, self.held.len()), &look, &mut on_find) + 1;
        }
        Ok(())
    }

    /// Finds records in `bytes` that begin at `from` or later. The first `before_bytes` bytes are from the block
    /// before. Returns where the first candidate is that needs more bytes, or the end.
    fn find<T>(
        &self,
        bytes: &[u8],
        (from, before_bytes): (usize, usize),
        look: &impl Fn(Candidate<'_>) -> Look<T>,
        on_find: &mut impl FnMut(T, Lsn),
    ) -> usize {
        let [one, other, third] = self.kinds;
        for after in memchr::memchr3_iter(one, other, third, bytes.get(from..).unwrap_or_default()) {
            let at = from + after;
            let (preceding, rest) = bytes.split_at(at);
            let Some((kind, following)) = rest.split_first() else { break };
            let preceding = &preceding[at.saturating_sub(self.look_back_bytes)..];
            match look(Candidate { kind: *kind, following, preceding }) {
                Look::Record(record) if at < before_bytes => {
                    on_find(record, Lsn(self.next_lsn.0.wrapping_sub(BLOCK_BYTES as u64)));
                }
                Look::Record(record) => on_find(record, self.next_lsn),
                Look::Nothing => (),
                Look::Incomplete => return at,
            }
        }
        bytes.len()
    }
}

/// Set in the type of a record that is alone in its mini-transaction.
pub(super) const SINGLE_RECORD: u8 = 0x80;

/// The search stopped at an encrypted block: without the key, nothing can be found in it, so the copy must
/// hold the DDL lock throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("redo block at {lsn} is encrypted, no records can be found in it")]
pub struct EncryptedBlock {
    /// The block.
    pub lsn: Lsn,
}

/// The record bytes of the block at `lsn`: those in use, without header and trailer. `None` if it is shorter
/// than a header.
fn records_of(block: &[u8], lsn: Lsn) -> Result<Option<&[u8]>, EncryptedBlock> {
    let Some(header) = BlockHeader::parse(block) else { return Ok(None) };
    if header.encrypted {
        return Err(EncryptedBlock { lsn });
    }
    let end = usize::from(header.used_bytes).min(BLOCK_BYTES - BLOCK_TRAILER_BYTES).min(block.len());
    Ok(Some(block.get(BLOCK_HEADER_BYTES..end).unwrap_or_default()))
}

/// The tablespace of a record for page 0, and the bytes after the page number. `bytes` begin after the
/// record's type.
pub(super) fn on_first_page(bytes: &[u8]) -> Look<(SpaceId, &[u8])> {
    const FIRST_PAGE: u8 = 0;
    let head = compressed(bytes).and_then(|(space, bytes)| Some((space, bytes.split_first()?)));
    Look::from(head).and_then(|(space, (page, rest))| match *page {
        FIRST_PAGE => Look::Record((SpaceId(space), rest)),
        _ => Look::Nothing,
    })
}

/// A compressed 32-bit number, and the bytes after it. (The forms from 0xF8 on are for numbers just below
/// 2^32, such as the space id of `mysql.ibd`; those from 0xFC on are from the server's description, not
/// observed.)
pub(super) fn compressed(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let first = *bytes.first()?;
    let (value, used) = match first {
        0..0x80 => (u32::from(first), 1),
        0x80..0xC0 => (u32::from(be::u16_at(bytes, 0)? & 0x3FFF), 2),
        0xC0..0xE0 => (u32::from(first & 0x1F) << 16 | u32::from(be::u16_at(bytes, 1)?), 3),
        0xE0..0xF0 => (be::u32_at(bytes, 0)? & 0x0FFF_FFFF, 4),
        0xF0..0xF8 => (be::u32_at(bytes, 1)?, 5),
        0xF8..0xFC => (0xFFFF_FC00 | u32::from(be::u16_at(bytes, 0)? & 0x3FF), 2),
        0xFC..0xFE => (0xFFFE_0000 | u32::from(first & 1) << 16 | u32::from(be::u16_at(bytes, 1)?), 3),
        0xFE.. => (0xFF00_0000 | be::u32_at(bytes, 0)? & 0x00FF_FFFF, 4),
    };
    Some((value, bytes.get(used..)?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::redo) fn compress(value: u32) -> Vec<u8> {
        match value {
            0..0x80 => vec![value as u8],
            0x80..0x4000 => (value as u16 | 0x8000).to_be_bytes().to_vec(),
            0x4000..0x20_0000 => (value | 0xC0_0000).to_be_bytes()[1..].to_vec(),
            0x20_0000..0x1000_0000 => (value | 0xE000_0000).to_be_bytes().to_vec(),
            0xFFFF_FC00.. => (value as u16 & 0x3FF | 0xF800).to_be_bytes().to_vec(),
            0xFFFE_0000.. => (value & 0x1_FFFF | 0xFC_0000).to_be_bytes()[1..].to_vec(),
            0xFF00_0000.. => (value & 0xFF_FFFF | 0xFE00_0000).to_be_bytes().to_vec(),
            _ => [&[0xF0][..], &value.to_be_bytes()].concat(),
        }
    }

    /// Puts records into blocks; the last block is padded with zeros.
    pub(in crate::redo) fn blocks(records: &[u8]) -> Vec<u8> {
        records
            .chunks(496)
            .flat_map(|chunk| {
                let mut block = [0xBD; BLOCK_BYTES];
                block[4..6].copy_from_slice(&512u16.to_be_bytes());
                block[12..508].fill(0);
                block[12..12 + chunk.len()].copy_from_slice(chunk);
                block
            })
            .collect()
    }

    proptest! {
        #[test]
        fn numbers_read_back(value: u32) {
            let bytes = compress(value);
            prop_assert_eq!(compressed(&bytes), Some((value, &[][..])));
            prop_assert_eq!(compressed(&bytes[..bytes.len() - 1]), None);
        }
    }
}
