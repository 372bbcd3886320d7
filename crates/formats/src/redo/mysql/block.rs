//! Blocks of 512 bytes: header 12, records, checksum 4.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | number: 1 + (lsn / 512) mod 2^30, of the block's first byte; bit 31 is to be ignored |
//! | 4 | 2 | used bytes, header included: 512 = full, less = the log ends here for now; bit 15 = encrypted |
//! | 6 | 2 | offset of the first record group that starts here, 0 = none |
//! | 8 | 4 | epoch: 1 + (lsn / 512) / 2^30 |
//! | 12 | 496 | records |
//! | 508 | 4 | CRC-32C of bytes 0 to 507 |
//!
//! In an encrypted block everything from offset 12 on is ciphertext, the checksum included: without the key
//! only the header can be judged, and the block cannot be cut.

use crate::{Lsn, be, checksum};

/// Size of a block.
pub const BLOCK_BYTES: usize = 512;
/// Bytes before a block's records.
pub const BLOCK_HEADER_BYTES: usize = 12;
/// Bytes after them.
pub const BLOCK_TRAILER_BYTES: usize = 4;

const CRC_AT: usize = BLOCK_BYTES - BLOCK_TRAILER_BYTES;
const NUMBER_MASK: u32 = 0x7FFF_FFFF;
const NUMBERS: u64 = 0x4000_0000;
const ENCRYPTED: u16 = 0x8000;

/// The first twelve bytes of a block, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// Place within the epoch, from 1.
    pub number: u32,
    /// Counts the wraps of `number`, from 1.
    pub epoch: u32,
    /// Bytes in use, this header included.
    pub used_bytes: u16,
    /// Where in the block the first group of records begins; 0 = none begins here.
    pub first_group: u16,
    /// Whether the rest of the block is ciphertext.
    pub encrypted: bool,
}

impl BlockHeader {
    /// `None` on fewer than twelve bytes.
    pub fn parse(block: &[u8]) -> Option<BlockHeader> {
        let used = be::u16_at(block, 4)?;
        Some(BlockHeader {
            number: be::u32_at(block, 0)? & NUMBER_MASK,
            epoch: be::u32_at(block, 8)?,
            used_bytes: used & !ENCRYPTED,
            first_group: be::u16_at(block, 6)?,
            encrypted: used & ENCRYPTED != 0,
        })
    }

    /// The LSN of the block's first byte; `None` if the number or the epoch is out of range.
    pub fn lsn(&self) -> Option<Lsn> {
        let within = u64::from(self.number).checked_sub(1).filter(|&within| within < NUMBERS)?;
        let blocks = u64::from(self.epoch).checked_sub(1)?.checked_mul(NUMBERS)?.checked_add(within)?;
        blocks.checked_mul(BLOCK_BYTES as u64).map(Lsn)
    }

    /// The header of the block that contains `lsn`.
    fn of(lsn: Lsn, used_bytes: u16, first_group: u16) -> BlockHeader {
        let blocks = lsn.0 / BLOCK_BYTES as u64;
        // Both fit: 2^64 / 512 / 2^30 is less than 2^32.
        let (number, epoch) = ((blocks % NUMBERS) as u32 + 1, (blocks / NUMBERS) as u32 + 1);
        BlockHeader { number, epoch, used_bytes, first_group, encrypted: false }
    }

    fn write(&self, block: &mut [u8; BLOCK_BYTES]) {
        block[0..4].copy_from_slice(&self.number.to_be_bytes());
        block[4..6].copy_from_slice(&self.used_bytes.to_be_bytes());
        block[6..8].copy_from_slice(&self.first_group.to_be_bytes());
        block[8..12].copy_from_slice(&self.epoch.to_be_bytes());
    }
}

/// What was found where the block of an LSN is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The block, complete: it no longer changes.
    Full {
        /// If so, its content could not be checked. It is certain once the server says that it has flushed
        /// past the block, or the next block has its right number.
        encrypted: bool,
    },
    /// The block, and the log ends within it for now.
    Partial {
        /// Bytes in use, header included.
        used_bytes: u16,
        /// As for [`BlockState::Full`].
        encrypted: bool,
    },
    /// An earlier block, or zeros: the log ends before this block for now.
    Old,
    /// A later block: the file was reused and the expected block is lost.
    Overwritten {
        /// The block that is here instead.
        by: Lsn,
    },
    /// Being written, or never a block: the log ends before it for now. If the flushed LSN is past it, it is
    /// torn for good.
    Torn,
}

/// Judges the block found where the one that begins at `expected` should be.
pub fn classify(block: &[u8], expected: Lsn) -> BlockState {
    let (Ok(block), Some(header)) = (<&[u8; BLOCK_BYTES]>::try_from(block), BlockHeader::parse(block)) else {
        return BlockState::Torn;
    };
    if block.iter().all(|&byte| byte == 0) {
        return BlockState::Old;
    }
    if !header.encrypted && !sealed(block) {
        return BlockState::Torn;
    }
    let Some(lsn) = header.lsn() else { return BlockState::Torn };
    match (lsn.cmp(&expected), usize::from(header.used_bytes)) {
        (std::cmp::Ordering::Less, _) => BlockState::Old,
        (std::cmp::Ordering::Greater, _) => BlockState::Overwritten { by: lsn },
        (_, BLOCK_BYTES) => BlockState::Full { encrypted: header.encrypted },
        (_, BLOCK_HEADER_BYTES..CRC_AT) => {
            BlockState::Partial { used_bytes: header.used_bytes, encrypted: header.encrypted }
        }
        _ => BlockState::Torn,
    }
}

/// Why a block cannot end at an LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// The LSN lies within the header or the checksum of a block, where no record can end.
    #[error("redo cannot end at {lsn}: no record ends there")]
    NoBoundary {
        /// Where to cut.
        lsn: Lsn,
    },
    /// Cutting the block needs the key. Keep the block whole, and take the position from the restored server.
    #[error("redo cannot be cut at {lsn}: the block is encrypted")]
    Encrypted {
        /// Where to cut.
        lsn: Lsn,
    },
    /// The bytes given are not the block, or the block does not reach that far.
    #[error("redo cannot be cut at {lsn}: its block is {state:?}")]
    NotThere {
        /// Where to cut.
        lsn: Lsn,
        /// What was found instead.
        state: BlockState,
    },
}

/// The last block of a log that ends exactly at `lsn`, made from `block`, the captured block that contains
/// it. If `lsn` is the start of a block or of its records, `block` is ignored: the answer is an
/// [`empty_block`].
///
/// If no group begins before the cut, the header says that the next one begins at it. With 0 there instead,
/// recovery warns of a corruption, which it then repairs (verified on MySQL 9.7.4: `first_rec_group`, 0 ->
/// 128 for a cut at 128).
pub fn cut_block(block: &[u8], lsn: Lsn) -> Result<[u8; BLOCK_BYTES], CutError> {
    let at = lsn.align_down(BLOCK_BYTES as u64);
    // Less than 512.
    let keep_bytes = (lsn.0 - at.0) as u16;
    let keep = usize::from(keep_bytes);
    if keep == 0 || keep == BLOCK_HEADER_BYTES {
        return Ok(empty_block(at));
    }
    if !(BLOCK_HEADER_BYTES..CRC_AT).contains(&keep) {
        return Err(CutError::NoBoundary { lsn });
    }
    let state = classify(block, at);
    match state {
        BlockState::Full { encrypted: true } | BlockState::Partial { encrypted: true, .. } => {
            return Err(CutError::Encrypted { lsn });
        }
        BlockState::Full { .. } => (),
        BlockState::Partial { used_bytes, .. } if used_bytes >= keep_bytes => (),
        _ => return Err(CutError::NotThere { lsn, state }),
    }
    let (Some(header), Ok(mut cut)) = (BlockHeader::parse(block), <[u8; BLOCK_BYTES]>::try_from(block))
    else {
        return Err(CutError::NotThere { lsn, state });
    };
    cut[keep..].fill(0);
    let begins_before = (1..keep_bytes).contains(&header.first_group);
    let first_group = if begins_before { header.first_group } else { keep_bytes };
    BlockHeader { used_bytes: keep_bytes, first_group, ..header }.write(&mut cut);
    seal(&mut cut);
    Ok(cut)
}

/// The block that contains `lsn`, without records: the end of a log whose last record fills the block before.
/// Without this block, recovery reports an end that is 12 bytes short.
pub fn empty_block(lsn: Lsn) -> [u8; BLOCK_BYTES] {
    const HEADER: u16 = BLOCK_HEADER_BYTES as u16;
    let mut block = [0; BLOCK_BYTES];
    BlockHeader::of(lsn, HEADER, HEADER).write(&mut block);
    seal(&mut block);
    block
}

/// Whether a block's checksum is right.
pub(super) fn sealed(block: &[u8; BLOCK_BYTES]) -> bool {
    be::u32_at(block, CRC_AT) == Some(checksum::crc32c(&block[..CRC_AT]))
}

/// Writes a block's checksum.
pub(super) fn seal(block: &mut [u8; BLOCK_BYTES]) {
    let crc = checksum::crc32c(&block[..CRC_AT]);
    block[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: Lsn = Lsn(19_049_472);

    fn block(lsn: Lsn, used_bytes: u16, first_group: u16) -> [u8; BLOCK_BYTES] {
        let mut block = [0x5A; BLOCK_BYTES];
        BlockHeader::of(lsn, used_bytes, first_group).write(&mut block);
        seal(&mut block);
        block
    }

    fn encrypted(lsn: Lsn, used_bytes: u16) -> [u8; BLOCK_BYTES] {
        block(lsn, used_bytes | ENCRYPTED, 12).also(|block| block[CRC_AT] ^= 1)
    }

    trait Also: Sized {
        fn also(mut self, change: impl FnOnce(&mut Self)) -> Self {
            change(&mut self);
            self
        }
    }
    impl Also for [u8; BLOCK_BYTES] {}

    #[test]
    fn what_a_reader_finds() {
        let full = block(AT, 512, 0);
        let next = Lsn(AT.0 + 512);
        assert_eq!(classify(&full, AT), BlockState::Full { encrypted: false });
        assert_eq!(classify(&full, next), BlockState::Old);
        assert_eq!(classify(&full, Lsn(AT.0 - 512)), BlockState::Overwritten { by: AT });
        let partial = block(AT, 100, 12);
        assert_eq!(classify(&partial, AT), BlockState::Partial { used_bytes: 100, encrypted: false });
        assert_eq!(classify(&[0; 512], AT), BlockState::Old);
        assert_eq!(classify(&full[..511], AT), BlockState::Torn);
        for at in 0..512 {
            assert_eq!(classify(&full.also(|block| block[at] ^= 1), AT), BlockState::Torn, "byte {at}");
        }
        for used in [0, 11, 508, 511, 513] {
            assert_eq!(classify(&block(AT, used, 0), AT), BlockState::Torn, "{used} bytes used");
        }
        // Bit 31 of the number is not part of it.
        let marked = full.also(|block| block[0] |= 0x80).also(seal);
        assert_eq!(classify(&marked, AT), BlockState::Full { encrypted: false });
    }

    #[test]
    fn an_encrypted_block_is_judged_by_its_header() {
        assert_eq!(classify(&encrypted(AT, 512), AT), BlockState::Full { encrypted: true });
        assert_eq!(classify(&encrypted(AT, 90), AT), BlockState::Partial { used_bytes: 90, encrypted: true });
        assert_eq!(classify(&encrypted(AT, 512), Lsn(AT.0 + 512)), BlockState::Old);
        assert_eq!(classify(&encrypted(AT, 512), Lsn(AT.0 - 512)), BlockState::Overwritten { by: AT });
        let lsn = Lsn(AT.0 + 50);
        assert_eq!(cut_block(&encrypted(AT, 512), lsn), Err(CutError::Encrypted { lsn }));
    }

    #[test]
    fn numbers_wrap_into_epochs() {
        let header = BlockHeader::of(Lsn(600 << 30), 512, 0);
        assert_eq!((header.number, header.epoch), (1 + 600 * (1 << 21) % (1 << 30), 2));
        assert_eq!(header.lsn(), Some(Lsn(600 << 30)));
        assert_eq!(BlockHeader { number: 0, ..header }.lsn(), None);
        assert_eq!(BlockHeader { epoch: 0, ..header }.lsn(), None);
        assert_eq!(BlockHeader { number: (1 << 30) + 1, ..header }.lsn(), None);
        assert_eq!(BlockHeader::of(Lsn(u64::MAX), 512, 0).lsn(), Some(Lsn(u64::MAX - 511)));
    }

    #[test]
    fn a_cut_block_ends_exactly_there() {
        for (source, used) in [(block(AT, 512, 98), 512), (block(AT, 300, 98), 300)] {
            for keep in 13..508.min(used + 1) {
                let cut = cut_block(&source, Lsn(AT.0 + keep)).unwrap();
                assert_eq!(
                    classify(&cut, AT),
                    BlockState::Partial { used_bytes: keep as u16, encrypted: false }
                );
                let header = BlockHeader::parse(&cut).unwrap();
                assert_eq!(
                    header.first_group,
                    if keep > 98 { 98 } else { keep as u16 },
                    "never behind the cut"
                );
                let keep = keep as usize;
                assert_eq!(cut[12..keep], source[12..keep]);
                assert!(cut[keep..508].iter().all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    fn a_block_without_a_group_gets_one_at_the_cut() {
        let cut = cut_block(&block(AT, 512, 0), Lsn(AT.0 + 128)).unwrap();
        assert_eq!(BlockHeader::parse(&cut).unwrap().first_group, 128);
    }

    #[test]
    fn where_no_record_ends_there_is_no_cut() {
        let source = block(AT, 300, 0);
        let cut = |keep| cut_block(&source, Lsn(AT.0 + keep));
        for keep in [1, 11, 508, 511] {
            assert_eq!(cut(keep), Err(CutError::NoBoundary { lsn: Lsn(AT.0 + keep) }));
        }
        let state = BlockState::Partial { used_bytes: 300, encrypted: false };
        assert_eq!(cut(301), Err(CutError::NotThere { lsn: Lsn(AT.0 + 301), state }));
        let other = Lsn(AT.0 + 512 + 100);
        assert_eq!(cut_block(&source, other), Err(CutError::NotThere { lsn: other, state: BlockState::Old }));
    }

    #[test]
    fn at_the_start_of_a_block_the_cut_is_empty() {
        for keep in [0, 12] {
            let cut = cut_block(&[], Lsn(AT.0 + keep)).unwrap();
            assert_eq!(classify(&cut, AT), BlockState::Partial { used_bytes: 12, encrypted: false });
            assert_eq!(BlockHeader::parse(&cut).unwrap().first_group, 12);
        }
    }

    proptest! {
        #[test]
        fn any_block_gets_a_verdict(bytes in proptest::collection::vec(any::<u8>(), 0..600), seal_it: bool, lsn: u64) {
            let mut bytes = bytes;
            if let (true, Some(block)) = (seal_it, bytes.first_chunk_mut()) {
                seal(block);
            }
            classify(&bytes, Lsn(lsn));
            let _ = cut_block(&bytes, Lsn(lsn));
            if let Some(lsn) = BlockHeader::parse(&bytes).and_then(|header| header.lsn()) {
                classify(&bytes, lsn);
                let _ = cut_block(&bytes, Lsn(lsn.0 + 200));
            }
        }

        #[test]
        fn every_lsn_has_a_block_of_its_own(lsn: u64) {
            let block = empty_block(Lsn(lsn));
            let at = Lsn(lsn).align_down(512);
            prop_assert_eq!(classify(&block, at), BlockState::Partial { used_bytes: 12, encrypted: false });
        }
    }
}
