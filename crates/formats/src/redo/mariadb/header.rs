//! The first 0x3000 bytes of `ib_logfile0`: header and checkpoints.

use crate::{Lsn, be, checksum};

/// File offset of the circle's first byte.
pub const DATA_START: u64 = 0x3000;
pub(super) const HEADER_BYTES: usize = 512;
pub(super) const FIRST_LSN_AT: usize = 8;
pub(super) const HEADER_CRC_AT: usize = HEADER_BYTES - 4;
pub(super) const CHECKPOINTS_AT: [usize; 2] = [0x1000, 0x2000];
const CREATOR: std::ops::Range<usize> = 16..48;

/// "Phys".
const FORMAT: u32 = 0x5068_7973;
/// The UTF-8 of U+1F5DD, an old key.
const FORMAT_ENCRYPTED: u32 = 0xF09F_979D;

/// A checkpoint: recovery begins reading at `lsn` and needs the records that name the files, found at `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Checkpoint {
    /// Every change before it is in the data files.
    pub lsn: Lsn,
    /// Where this checkpoint's own group of FILE_MODIFY and FILE_CHECKPOINT records begins; never before
    /// `lsn`.
    pub end: Lsn,
}

impl Checkpoint {
    pub(super) const BYTES: usize = 64;
    const CRC_AT: usize = Checkpoint::BYTES - 4;

    /// `None` when the block was never written, is being written, or makes no sense.
    fn parse(block: &[u8]) -> Option<Checkpoint> {
        let covered = block.get(..Checkpoint::CRC_AT)?;
        if be::u32_at(block, Checkpoint::CRC_AT)? != checksum::crc32c(covered) {
            return None;
        }
        let checkpoint = Checkpoint { lsn: Lsn(be::u64_at(block, 0)?), end: Lsn(be::u64_at(block, 8)?) };
        (checkpoint.lsn <= checkpoint.end).then_some(checkpoint)
    }

    pub(super) fn to_bytes(self) -> [u8; Checkpoint::BYTES] {
        let mut block = [0; Checkpoint::BYTES];
        block[0..8].copy_from_slice(&self.lsn.0.to_be_bytes());
        block[8..16].copy_from_slice(&self.end.0.to_be_bytes());
        let crc = checksum::crc32c(&block[..Checkpoint::CRC_AT]);
        block[Checkpoint::CRC_AT..].copy_from_slice(&crc.to_be_bytes());
        block
    }
}

/// The header and the newest checkpoint of `ib_logfile0`. Read it again after each read of the circle: only
/// the header tells whether the bytes read still belong to the expected lap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHeader {
    raw: [u8; HEADER_BYTES],
    first_lsn: Lsn,
    capacity: u64,
    encrypted: bool,
    checkpoint: Checkpoint,
}

/// Why a file is not a redo log that can be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogHeaderError {
    /// Fewer bytes than header and checkpoints take.
    #[error("redo log header ends after {bytes} bytes")]
    TooShort {
        /// Bytes given.
        bytes: usize,
    },
    /// Not the format of MariaDB 10.8 and later.
    #[error("redo log has format {format:#010x}, not that of MariaDB 10.8 or later")]
    UnknownFormat {
        /// The first four bytes.
        format: u32,
    },
    /// The header is torn or damaged.
    #[error("redo log header has a wrong checksum")]
    WrongChecksum,
    /// Neither checkpoint block is valid.
    #[error("redo log has no valid checkpoint")]
    NoCheckpoint,
    /// The file has no circle.
    #[error("redo log of {file_bytes} bytes has no room for redo")]
    NoRoom {
        /// Size of the file.
        file_bytes: u64,
    },
}

impl LogHeader {
    /// How many bytes from the start of the file [`LogHeader::parse`] needs; reading [`DATA_START`] bytes
    /// will do.
    pub const PREFIX_BYTES_MIN: usize = CHECKPOINTS_AT[1] + Checkpoint::BYTES;

    /// Reads the start of a log file of `file_bytes` bytes.
    pub fn parse(prefix: &[u8], file_bytes: u64) -> Result<LogHeader, LogHeaderError> {
        let too_short = LogHeaderError::TooShort { bytes: prefix.len() };
        if prefix.len() < LogHeader::PREFIX_BYTES_MIN {
            return Err(too_short);
        }
        let raw: &[u8; HEADER_BYTES] = prefix.first_chunk().ok_or(too_short)?;
        let encrypted = match be::u32_at(raw, 0).ok_or(too_short)? {
            FORMAT => false,
            FORMAT_ENCRYPTED => true,
            format => return Err(LogHeaderError::UnknownFormat { format }),
        };
        if be::u32_at(raw, HEADER_CRC_AT) != Some(checksum::crc32c(&raw[..HEADER_CRC_AT])) {
            return Err(LogHeaderError::WrongChecksum);
        }
        let first_lsn = Lsn(be::u64_at(raw, FIRST_LSN_AT).ok_or(too_short)?);
        let capacity = file_bytes
            .checked_sub(DATA_START)
            .filter(|&capacity| capacity > 0)
            .ok_or(LogHeaderError::NoRoom { file_bytes })?;
        let checkpoint = CHECKPOINTS_AT
            .iter()
            .filter_map(|&at| Checkpoint::parse(prefix.get(at..at + Checkpoint::BYTES)?))
            .filter(|checkpoint| checkpoint.lsn >= first_lsn)
            .max()
            .ok_or(LogHeaderError::NoCheckpoint)?;
        Ok(LogHeader { raw: *raw, first_lsn, capacity, encrypted, checkpoint })
    }

    /// The 512 header bytes as read: what [`LinearLog`](super::LinearLog) is built from.
    pub fn raw(&self) -> &[u8; HEADER_BYTES] {
        &self.raw
    }

    /// The LSN of the circle's first byte in its first lap. Changes when the server makes a new log (resize).
    pub fn first_lsn(&self) -> Lsn {
        self.first_lsn
    }

    /// Bytes in the circle.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Size of the file.
    pub fn file_bytes(&self) -> u64 {
        self.capacity + DATA_START
    }

    /// Whether the records are encrypted. Mini-transactions can be walked and checked all the same; file
    /// names cannot be read.
    pub fn encrypted(&self) -> bool {
        self.encrypted
    }

    /// The program that made the file: `MariaDB 10.11.19`, `Backup 10.11.19`.
    pub fn creator(&self) -> String {
        let name = self.raw.get(CREATOR).unwrap_or_default();
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        String::from_utf8_lossy(&name[..end]).into_owned()
    }

    /// The newest valid checkpoint.
    pub fn checkpoint(&self) -> Checkpoint {
        self.checkpoint
    }

    /// Where the byte at `lsn` lies in the file.
    pub fn offset(&self, lsn: Lsn) -> u64 {
        let capacity = i128::from(self.capacity);
        let within = (i128::from(lsn.0) - i128::from(self.first_lsn.0)).rem_euclid(capacity);
        // rem_euclid of a u64 lies in 0..capacity.
        DATA_START + within as u64
    }

    /// Whether bytes read at `at` before this header was read may belong to a lap two or more later. The
    /// marker byte tells one lap from the next, not from the one after. The server never writes at or past
    /// its newest checkpoint plus the capacity, so the answer is certain.
    pub fn may_have_lapped(&self, at: Lsn) -> bool {
        self.checkpoint.lsn.bytes_since(at).is_some_and(|ahead| ahead > self.capacity)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The start of a log with one valid checkpoint in the second block.
    pub(in super::super) fn prefix(encrypted: bool, first_lsn: u64, checkpoint: Checkpoint) -> Vec<u8> {
        let mut bytes = vec![0; DATA_START as usize];
        bytes[0..4].copy_from_slice(&(if encrypted { FORMAT_ENCRYPTED } else { FORMAT }).to_be_bytes());
        bytes[8..16].copy_from_slice(&first_lsn.to_be_bytes());
        bytes[16..32].copy_from_slice(b"MariaDB 10.11.19");
        let crc = checksum::crc32c(&bytes[..508]);
        bytes[508..512].copy_from_slice(&crc.to_be_bytes());
        bytes[0x2000..0x2040].copy_from_slice(&checkpoint.to_bytes());
        bytes
    }

    const CHECKPOINT: Checkpoint = Checkpoint { lsn: Lsn(50_000), end: Lsn(50_100) };

    #[test]
    fn the_newest_valid_checkpoint_counts() {
        let mut bytes = prefix(false, 0x3000, CHECKPOINT);
        let header = LogHeader::parse(&bytes, 0x3000 + 10_000).unwrap();
        assert_eq!(header.checkpoint(), CHECKPOINT);
        assert_eq!(header.creator(), "MariaDB 10.11.19");
        assert_eq!((header.capacity(), header.first_lsn()), (10_000, Lsn(0x3000)));
        assert!(!header.encrypted());

        let newer = Checkpoint { lsn: Lsn(60_000), end: Lsn(60_000) };
        bytes[0x1000..0x1040].copy_from_slice(&newer.to_bytes());
        assert_eq!(LogHeader::parse(&bytes, 100_000).unwrap().checkpoint(), newer);
        bytes[0x1007] ^= 1;
        assert_eq!(
            LogHeader::parse(&bytes, 100_000).unwrap().checkpoint(),
            CHECKPOINT,
            "torn block is ignored"
        );
        bytes[0x2007] ^= 1;
        assert_eq!(LogHeader::parse(&bytes, 100_000), Err(LogHeaderError::NoCheckpoint));
        assert!(LogHeader::parse(&prefix(true, 0x3000, CHECKPOINT), 100_000).unwrap().encrypted());
    }

    #[test]
    fn what_is_not_a_log_is_refused() {
        let good = prefix(false, 0x3000, CHECKPOINT);
        assert_eq!(LogHeader::parse(&good, 0x3000), Err(LogHeaderError::NoRoom { file_bytes: 0x3000 }));
        assert_eq!(
            LogHeader::parse(&good[..0x203f], 1 << 20),
            Err(LogHeaderError::TooShort { bytes: 0x203f })
        );
        let mut bad = good.clone();
        bad[100] = 1;
        assert_eq!(LogHeader::parse(&bad, 1 << 20), Err(LogHeaderError::WrongChecksum));
        bad[0..4].copy_from_slice(b"PHYS");
        assert_eq!(
            LogHeader::parse(&bad, 1 << 20),
            Err(LogHeaderError::UnknownFormat { format: 0x5048_5953 })
        );
        let before_first = Checkpoint { lsn: Lsn(1), end: Lsn(2) };
        assert_eq!(
            LogHeader::parse(&prefix(false, 0x3000, before_first), 1 << 20),
            Err(LogHeaderError::NoCheckpoint)
        );
    }

    #[test]
    fn an_lsn_has_its_place_in_every_lap() {
        let header = LogHeader::parse(&prefix(false, 0x3000, CHECKPOINT), 0x3000 + 10_000).unwrap();
        assert_eq!(header.offset(Lsn(0x3000)), 0x3000);
        assert_eq!(header.offset(Lsn(0x3000 + 9_999)), 0x3000 + 9_999);
        assert_eq!(header.offset(Lsn(0x3000 + 30_001)), 0x3001);
        assert_eq!(header.offset(Lsn(0x3000 - 1)), 0x3000 + 9_999);
        assert!(header.offset(Lsn(u64::MAX)) < header.file_bytes());
        assert!(!header.may_have_lapped(Lsn(40_000)));
        assert!(header.may_have_lapped(Lsn(39_999)));
        assert!(!header.may_have_lapped(Lsn(u64::MAX)));
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..0x2100), size: u64) {
            let _ = LogHeader::parse(&bytes, size);
        }

        #[test]
        fn any_lsns_give_an_answer(first: u64, lsn: u64, end: u64, size: u64, at: u64) {
            let prefix = prefix(false, first, Checkpoint { lsn: Lsn(lsn), end: Lsn(end) });
            if let Ok(header) = LogHeader::parse(&prefix, size) {
                let offset = header.offset(Lsn(at));
                prop_assert!(DATA_START <= offset && offset < size);
                header.may_have_lapped(Lsn(at));
            }
        }
    }
}
