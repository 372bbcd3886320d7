//! What searches for records in MySQL's redo share: the bytes of a block that are records, and compressed numbers.

use super::mysql::{BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_TRAILER_BYTES, BlockHeader};
use crate::{Lsn, be};

/// What begins at a byte.
pub(super) enum Look<T> {
    /// A whole record of the kind that is looked for.
    Record(T),
    /// None of them.
    Nothing,
    /// More bytes are needed to tell.
    Incomplete,
}

/// Looks for records of one kind in consecutive blocks. Every byte may begin one, and records continue across blocks.
#[derive(Clone, Debug)]
pub(super) struct Search {
    next_lsn: Lsn,
    /// The end of the last block's records, from the first byte that may begin a record.
    held: Vec<u8>,
}

impl Search {
    /// For blocks from the one at `start` on.
    pub(super) fn new(start: Lsn) -> Search {
        Search { next_lsn: start, held: Vec::new() }
    }

    /// Searches whole blocks that are full and follow those fed before; bytes after the last whole block are ignored.
    /// `on_find` is given the block that a record ends in, too.
    pub(super) fn feed<T>(
        &mut self,
        blocks: &[u8],
        look: impl Fn(&[u8]) -> Look<T>,
        mut on_find: impl FnMut(T, Lsn),
    ) -> Result<(), EncryptedBlock> {
        blocks.chunks_exact(BLOCK_BYTES).try_for_each(|block| self.block(block, &look, &mut on_find))
    }

    /// Searches the partly filled block that the log ends with for now, without taking it as fed: it will come again
    /// when it has grown.
    pub(super) fn peek<T>(
        &self,
        block: &[u8],
        look: impl Fn(&[u8]) -> Look<T>,
        mut on_find: impl FnMut(T, Lsn),
    ) -> Result<(), EncryptedBlock> {
        self.clone().block(block, &look, &mut on_find)
    }

    fn block<T>(
        &mut self,
        block: &[u8],
        look: &impl Fn(&[u8]) -> Look<T>,
        on_find: &mut impl FnMut(T, Lsn),
    ) -> Result<(), EncryptedBlock> {
        let Some(records) = records_of(block, self.next_lsn)? else { return Ok(()) };
        self.held.extend_from_slice(records);
        let mut searched = 0;
        while let Some(rest) = self.held.get(searched..).filter(|rest| !rest.is_empty()) {
            match look(rest) {
                Look::Record(record) => on_find(record, self.next_lsn),
                Look::Nothing => (),
                Look::Incomplete => break,
            }
            searched += 1;
        }
        self.held.drain(..searched);
        self.next_lsn = Lsn(self.next_lsn.0.wrapping_add(BLOCK_BYTES as u64));
        Ok(())
    }
}

/// Set in the type of a record that is alone in its mini-transaction.
pub(super) const SINGLE_RECORD: u8 = 0x80;
/// A compressed number has no more.
pub(super) const NUMBER_BYTES_MAX: usize = 5;

/// The search stopped at an encrypted block: without the key, nothing can be found in it, and the copy must hold the DDL
/// lock all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("redo block at {lsn} is encrypted, no records can be found in it")]
pub struct EncryptedBlock {
    /// The block.
    pub lsn: Lsn,
}

/// The bytes in use of the block at `lsn`, without header and trailer. `None`: shorter than a header.
pub(super) fn records_of(block: &[u8], lsn: Lsn) -> Result<Option<&[u8]>, EncryptedBlock> {
    let Some(header) = BlockHeader::parse(block) else { return Ok(None) };
    if header.encrypted {
        return Err(EncryptedBlock { lsn });
    }
    let end = usize::from(header.used_bytes).min(BLOCK_BYTES - BLOCK_TRAILER_BYTES).min(block.len());
    Ok(Some(block.get(BLOCK_HEADER_BYTES..end).unwrap_or_default()))
}

/// A compressed 32-bit number, and what follows it. (The forms from 0xF8 on, for numbers just below 2^32 such as the
/// space id of `mysql.ibd`: from the server's description, not observed.)
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

    /// Records in blocks; the last one is filled with zeros.
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
