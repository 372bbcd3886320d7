//! Redo files: names, the four header blocks, and the files a restored server is given.
//!
//! | block | content |
//! |---|---|
//! | 0 | format, log uuid, start LSN, creator, flags, checksum |
//! | 1, 3 | a checkpoint LSN at offset 8 each; valid by checksum; 0 = none |
//! | 2 | encryption: zero, or magic, key id and wrapped key |
//!
//! A checkpoint is written into the file that contains its LSN, so the newest is the largest over all files
//! in use.

use std::fmt;

use super::block::{BLOCK_BYTES, seal, sealed};
use crate::{Lsn, be};

/// Bytes before a file's first data block.
pub const FILE_HEADER_BYTES: usize = 4 * BLOCK_BYTES;

/// The format of MySQL 8.0.30 and later.
const FORMAT: u32 = 6;
const FLAG_FULL: u32 = 8;
const CREATOR: std::ops::Range<usize> = 16..48;
const CHECKPOINT_BLOCKS: [usize; 2] = [1, 3];
const ENCRYPTION_BLOCK: usize = 2;

/// The name of a file in `#innodb_redo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RedoFileName {
    /// `#ib_redoN`: in use.
    Active(u64),
    /// `#ib_redoN_tmp`: spare, for a later N; may hold old content.
    Spare(u64),
}

impl RedoFileName {
    /// `None` for other names.
    pub fn parse(name: &str) -> Option<RedoFileName> {
        let rest = name.strip_prefix("#ib_redo")?;
        let (digits, spare) = rest.strip_suffix("_tmp").map_or((rest, false), |digits| (digits, true));
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number = digits.parse().ok()?;
        Some(if spare { RedoFileName::Spare(number) } else { RedoFileName::Active(number) })
    }
}

impl fmt::Display for RedoFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedoFileName::Active(number) => write!(f, "#ib_redo{number}"),
            RedoFileName::Spare(number) => write!(f, "#ib_redo{number}_tmp"),
        }
    }
}

/// The first block of a redo file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedoFileHeader {
    log_uuid: u32,
    start_lsn: Lsn,
    creator: [u8; CREATOR.end - CREATOR.start],
    flags: u32,
}

/// Why a file is not a readable redo file. A file that the server is preparing gives one of these errors for
/// a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedoFileError {
    /// Fewer bytes than a block.
    #[error("redo file header ends after {bytes} bytes")]
    TooShort {
        /// Bytes given.
        bytes: usize,
    },
    /// Torn, zeroed for reuse, or damaged.
    #[error("redo file header has a wrong checksum")]
    WrongChecksum,
    /// Written by another server series.
    #[error("redo file has format {format}, not {FORMAT} (MySQL 8.0.30 and later)")]
    UnknownFormat {
        /// As stored.
        format: u32,
    },
    /// The start LSN is not that of a block.
    #[error("redo file starts at {start_lsn}, which is not the start of a block")]
    UnalignedStart {
        /// As stored.
        start_lsn: Lsn,
    },
}

impl RedoFileHeader {
    /// Reads the first block of a file; more bytes are ignored.
    pub fn parse(header: &[u8]) -> Result<RedoFileHeader, RedoFileError> {
        let too_short = RedoFileError::TooShort { bytes: header.len() };
        let block: &[u8; BLOCK_BYTES] = header.first_chunk().ok_or(too_short)?;
        if !sealed(block) {
            return Err(RedoFileError::WrongChecksum);
        }
        let field = |at| be::u32_at(block, at).ok_or(too_short);
        let format = field(0)?;
        if format != FORMAT {
            return Err(RedoFileError::UnknownFormat { format });
        }
        let start_lsn = Lsn(be::u64_at(block, 8).ok_or(too_short)?);
        if start_lsn != start_lsn.align_down(BLOCK_BYTES as u64) {
            return Err(RedoFileError::UnalignedStart { start_lsn });
        }
        let mut creator = [0; CREATOR.end - CREATOR.start];
        creator.copy_from_slice(&block[CREATOR]);
        Ok(RedoFileHeader { log_uuid: field(4)?, start_lsn, creator, flags: field(48)? })
    }

    /// Random per data directory; a restore or clone has another one. Equals the status variable
    /// `Innodb_redo_log_uuid`.
    pub fn log_uuid(&self) -> u32 {
        self.log_uuid
    }

    /// The LSN of the first data block.
    pub fn start_lsn(&self) -> Lsn {
        self.start_lsn
    }

    /// The first LSN after a file of `file_bytes` bytes, which is where the next file starts. `None` if the
    /// file is too small or the LSN exceeds 64 bits. Sizes differ between files, and the newest file may
    /// shrink: use each file's own size.
    pub fn end_lsn(&self, file_bytes: u64) -> Option<Lsn> {
        self.start_lsn.checked_add(file_bytes.checked_sub(FILE_HEADER_BYTES as u64)?)
    }

    /// Where the byte at `lsn` lies in the file; `None` before its start. The caller checks whether the file
    /// is that long.
    pub fn offset(&self, lsn: Lsn) -> Option<u64> {
        lsn.bytes_since(self.start_lsn)?.checked_add(FILE_HEADER_BYTES as u64)
    }

    /// The program that wrote the file: `MySQL 9.7.4`, `MySQL Clone`.
    pub fn creator(&self) -> String {
        let end = self.creator.iter().position(|&byte| byte == 0).unwrap_or(self.creator.len());
        String::from_utf8_lossy(&self.creator[..end]).into_owned()
    }

    /// The flags as stored.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Whether the server has moved on to the next file.
    pub fn is_full(&self) -> bool {
        self.flags & FLAG_FULL != 0
    }

    fn to_block(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[0..4].copy_from_slice(&FORMAT.to_be_bytes());
        block[4..8].copy_from_slice(&self.log_uuid.to_be_bytes());
        block[8..16].copy_from_slice(&self.start_lsn.0.to_be_bytes());
        block[CREATOR].copy_from_slice(&self.creator);
        block[48..52].copy_from_slice(&self.flags.to_be_bytes());
        seal(&mut block);
        block
    }
}

/// The `index`-th block of a file header.
fn header_block(header: &[u8], index: usize) -> Option<&[u8; BLOCK_BYTES]> {
    header.get(index * BLOCK_BYTES..)?.first_chunk()
}

/// The newer checkpoint in the first [`FILE_HEADER_BYTES`] of a file; `None` if they hold none.
pub fn checkpoint(header: &[u8]) -> Option<Lsn> {
    CHECKPOINT_BLOCKS
        .iter()
        .filter_map(|&index| header_block(header, index).filter(|block| sealed(block)))
        .filter_map(|block| be::u64_at(block, 8))
        .filter(|&lsn| lsn != 0)
        .max()
        .map(Lsn)
}

/// The encryption block in the first [`FILE_HEADER_BYTES`] of a file; `None` if it is all zero, as in a log
/// that was never encrypted.
pub fn encryption_block(header: &[u8]) -> Option<&[u8; BLOCK_BYTES]> {
    header_block(header, ENCRYPTION_BLOCK).filter(|block| block.iter().any(|&byte| byte != 0))
}

/// Puts an encryption block into the first [`FILE_HEADER_BYTES`] of a file; a shorter header stays as it is.
pub fn set_encryption_block(header: &mut [u8], block: &[u8; BLOCK_BYTES]) {
    if let Some(place) = header.get_mut(ENCRYPTION_BLOCK * BLOCK_BYTES..).and_then(<[u8]>::first_chunk_mut) {
        *place = *block;
    }
}

/// The largest file that a server accepts (9.7.4 says so).
pub const FILE_BYTES_MAX: u64 = 16 << 30;
/// The server refuses a size that is not a multiple of `innodb_page_size`, so sizes are multiples of the
/// largest one.
const STEP_BYTES: u64 = 64 << 10;
/// With files of [`FILE_BYTES_MAX`], far beyond what any server can be configured for (512 GiB), and few
/// enough to list.
const FILES_MAX: u64 = 4096;

/// A redo file made of captured redo, or of a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedoFile {
    /// Its name.
    pub name: RedoFileName,
    /// The bytes that it begins with.
    pub header: [u8; FILE_HEADER_BYTES],
    /// The range of captured bytes that follows.
    pub captured: std::ops::Range<u64>,
    /// Its size.
    pub file_bytes: u64,
}

/// Lays out the redo files for captured redo: `#ib_redo0` and, if that would be too large, the files after
/// it. Each is a header and captured blocks; the last ends with zeros. These files are all the redo that a
/// restored server needs, whatever capacity it is configured for (verified on 9.7.4 with one file and with
/// several).
#[derive(Clone, Debug)]
pub struct RedoFileBuilder {
    file: RedoFileHeader,
    checkpoint: Lsn,
    encryption: [u8; BLOCK_BYTES],
}

impl RedoFileBuilder {
    /// For redo captured from the block that contains `checkpoint` on. `source` is the header of any of the
    /// source's files, `encryption` the encryption block of the newest one.
    pub fn new(
        source: &RedoFileHeader,
        checkpoint: Lsn,
        encryption: Option<&[u8; BLOCK_BYTES]>,
    ) -> RedoFileBuilder {
        let start_lsn = checkpoint.align_down(BLOCK_BYTES as u64);
        RedoFileBuilder {
            file: RedoFileHeader { start_lsn, flags: 0, ..source.clone() },
            checkpoint,
            encryption: encryption.copied().unwrap_or([0; BLOCK_BYTES]),
        }
    }

    /// The LSN of the first captured block.
    pub fn start_lsn(&self) -> Lsn {
        self.file.start_lsn
    }

    /// The bytes before the captured blocks, if all of them are in one file.
    pub fn header(&self) -> [u8; FILE_HEADER_BYTES] {
        self.header_of(&self.file, self.checkpoint)
    }

    /// The files for this many captured bytes, none larger than `file_bytes_max`. `None` if they would take
    /// more files, or higher LSNs, than there can be.
    pub fn files(&self, captured_bytes: u64, file_bytes_max: u64) -> Option<Vec<RedoFile>> {
        let full_bytes = (file_bytes_max / STEP_BYTES).max(2) * STEP_BYTES;
        let mut files = Vec::new();
        let mut begin = 0_u64;
        for number in 0..FILES_MAX {
            let file =
                RedoFileHeader { start_lsn: self.file.start_lsn.checked_add(begin)?, ..self.file.clone() };
            let checkpoint = if number == 0 { self.checkpoint } else { Lsn(0) };
            let name = RedoFileName::Active(number);
            let last_bytes = last_file_bytes(captured_bytes - begin)?;
            if last_bytes <= full_bytes {
                let header = self.header_of(&file, checkpoint);
                files.push(RedoFile {
                    name,
                    header,
                    captured: begin..captured_bytes,
                    file_bytes: last_bytes,
                });
                return Some(files);
            }
            let header =
                self.header_of(&RedoFileHeader { flags: file.flags | FLAG_FULL, ..file }, checkpoint);
            // One step less than the last file may have: then more captured bytes are left than this file
            // takes.
            let cut_bytes = full_bytes - STEP_BYTES;
            let end = begin + cut_bytes - FILE_HEADER_BYTES as u64;
            files.push(RedoFile { name, header, captured: begin..end, file_bytes: cut_bytes });
            begin = end;
        }
        None
    }

    /// The bytes before the captured blocks of a file. A checkpoint LSN of 0 means that there is no
    /// checkpoint.
    fn header_of(&self, file: &RedoFileHeader, checkpoint_lsn: Lsn) -> [u8; FILE_HEADER_BYTES] {
        let mut checkpoint = [0; BLOCK_BYTES];
        checkpoint[8..16].copy_from_slice(&checkpoint_lsn.0.to_be_bytes());
        seal(&mut checkpoint);
        let mut header = [0; FILE_HEADER_BYTES];
        let blocks = [file.to_block(), checkpoint, self.encryption, checkpoint];
        for (target, block) in header.chunks_exact_mut(BLOCK_BYTES).zip(blocks) {
            target.copy_from_slice(&block);
        }
        header
    }
}

/// The size of the file that ends with this many captured bytes, followed by at least one step of zeros.
fn last_file_bytes(captured_bytes: u64) -> Option<u64> {
    captured_bytes
        .checked_add(FILE_HEADER_BYTES as u64)?
        .checked_next_multiple_of(STEP_BYTES)?
        .checked_add(STEP_BYTES)
}

#[cfg(test)]
mod tests {
    use super::super::block::{BlockState, classify, empty_block};
    use super::*;
    use proptest::prelude::*;

    fn source() -> RedoFileHeader {
        let mut creator = [0; 32];
        creator[..11].copy_from_slice(b"MySQL 9.7.4");
        RedoFileHeader { log_uuid: 290_600_019, start_lsn: Lsn(1 << 20), creator, flags: FLAG_FULL }
    }

    #[test]
    fn names() {
        assert_eq!(RedoFileName::parse("#ib_redo17"), Some(RedoFileName::Active(17)));
        assert_eq!(RedoFileName::parse("#ib_redo18_tmp"), Some(RedoFileName::Spare(18)));
        for other in
            ["#ib_redo", "#ib_redo_tmp", "#ib_redo+1", "#ib_redo1.bak", "ib_logfile0", "#ib_redo1_tmp_tmp"]
        {
            assert_eq!(RedoFileName::parse(other), None, "{other}");
        }
        for name in ["#ib_redo0", "#ib_redo18446744073709551615_tmp"] {
            assert_eq!(RedoFileName::parse(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn a_header_reads_back() {
        let block = source().to_block();
        let header = RedoFileHeader::parse(&block).unwrap();
        assert_eq!(header, source());
        assert_eq!(header.creator(), "MySQL 9.7.4");
        assert!(header.is_full());
        assert_eq!(header.end_lsn(2048 + 512), Some(Lsn((1 << 20) + 512)));
        assert_eq!(header.end_lsn(2047), None);
        assert_eq!(header.offset(Lsn((1 << 20) + 5)), Some(2053));
        assert_eq!(header.offset(Lsn(5)), None);
    }

    #[test]
    fn what_is_no_redo_file_is_refused() {
        let good = source().to_block();
        assert_eq!(RedoFileHeader::parse(&[0; 512]), Err(RedoFileError::WrongChecksum));
        assert_eq!(RedoFileHeader::parse(&good[..511]), Err(RedoFileError::TooShort { bytes: 511 }));
        let mut bad = good;
        bad[3] = 5;
        seal(&mut bad);
        assert_eq!(RedoFileHeader::parse(&bad), Err(RedoFileError::UnknownFormat { format: 5 }));
        let unaligned = RedoFileHeader { start_lsn: Lsn(513), ..source() }.to_block();
        assert_eq!(
            RedoFileHeader::parse(&unaligned),
            Err(RedoFileError::UnalignedStart { start_lsn: Lsn(513) })
        );
    }

    #[test]
    fn the_built_file_is_one_a_server_could_have_left() {
        let checkpoint_lsn = Lsn(1_413_101_042);
        let mut encryption = [0; BLOCK_BYTES];
        encryption[48..51].copy_from_slice(b"lCC");
        for given in [None, Some(&encryption)] {
            let builder = RedoFileBuilder::new(&source(), checkpoint_lsn, given);
            let header = builder.header();
            let parsed = RedoFileHeader::parse(&header).unwrap();
            assert_eq!((parsed.log_uuid(), parsed.creator()), (290_600_019, "MySQL 9.7.4".into()));
            assert_eq!((parsed.start_lsn(), parsed.flags()), (Lsn(1_413_101_042 / 512 * 512), 0));
            assert_eq!(checkpoint(&header), Some(checkpoint_lsn));
            assert_eq!(encryption_block(&header), given);
        }
    }

    #[test]
    fn what_is_too_large_for_a_file_goes_on_in_the_next() {
        const MAX: u64 = 256 << 10;
        let builder = RedoFileBuilder::new(&source(), Lsn(5000), Some(&[1; BLOCK_BYTES]));
        let one = builder.files(MAX - (64 << 10) - 2048, MAX).unwrap();
        assert_eq!((one.len(), one[0].header), (1, builder.header()));
        let captured = 3 * (MAX - (64 << 10) - 2048) + (128 << 10);
        let files = builder.files(captured, MAX).unwrap();
        assert_eq!(files.len(), 4);
        let (mut begin, mut lsn) = (0, builder.start_lsn());
        for (number, file) in files.iter().enumerate() {
            let header = RedoFileHeader::parse(&file.header).unwrap();
            assert_eq!((header.start_lsn(), file.captured.start), (lsn, begin));
            assert_eq!(file.name.to_string(), format!("#ib_redo{number}"));
            assert_eq!(checkpoint(&file.header), (number == 0).then_some(Lsn(5000)));
            assert_eq!(encryption_block(&file.header), Some(&[1; BLOCK_BYTES]));
            assert_eq!(header.is_full(), number < 3);
            assert!(file.file_bytes <= MAX);
            (begin, lsn) = (file.captured.end, header.end_lsn(file.file_bytes).unwrap());
        }
        assert_eq!(begin, captured);
    }

    #[test]
    fn the_newer_of_two_checkpoints_counts_if_it_is_whole() {
        let mut header = RedoFileBuilder::new(&source(), Lsn(5000), None).header();
        let newer = RedoFileBuilder::new(&source(), Lsn(6000), None).header();
        header[1536..2048].copy_from_slice(&newer[1536..2048]);
        assert_eq!(checkpoint(&header), Some(Lsn(6000)));
        header[1600] = 1;
        assert_eq!(checkpoint(&header), Some(Lsn(5000)));
        assert_eq!(checkpoint(&RedoFileBuilder::new(&source(), Lsn(0), None).header()), None);
        assert_eq!(checkpoint(&header[..600]), None);
    }

    #[test]
    fn file_sizes_go_in_steps_of_the_largest_page() {
        let builder = RedoFileBuilder::new(&source(), Lsn(5000), None);
        let file_bytes = |captured| Some(builder.files(captured, FILE_BYTES_MAX)?.pop()?.file_bytes);
        assert_eq!(file_bytes(0), Some(128 << 10));
        assert_eq!(file_bytes((64 << 10) - 2048), Some(128 << 10));
        assert_eq!(file_bytes((64 << 10) - 2047), Some(192 << 10));
        assert_eq!(file_bytes(u64::MAX), None);
        assert_eq!(file_bytes(u64::MAX / 2), None);
        let block = empty_block(builder.start_lsn());
        assert!(matches!(classify(&block, builder.start_lsn()), BlockState::Partial { used_bytes: 12, .. }));
    }

    proptest! {
        /// Every byte is in one file, in order, and no file is too large.
        #[test]
        fn files_take_all(captured in 0_u64..1 << 22, max in 0_u64..1 << 20) {
            let files = RedoFileBuilder::new(&source(), Lsn(5000), None).files(captured, max).unwrap();
            let mut end = 0;
            for file in &files {
                prop_assert_eq!(file.captured.start, end);
                end = file.captured.end;
                prop_assert!(end > file.captured.start || captured == 0);
                prop_assert!(file.file_bytes <= max.max(128 << 10) && file.file_bytes % (64 << 10) == 0);
                prop_assert!(end - file.captured.start + 2048 <= file.file_bytes);
            }
            prop_assert_eq!(end, captured);
        }

        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..2100), name in ".*", lsn: u64) {
            let mut bytes = bytes;
            let _ = RedoFileHeader::parse(&bytes);
            checkpoint(&bytes);
            encryption_block(&bytes);
            set_encryption_block(&mut bytes.clone(), &[0; BLOCK_BYTES]);
            RedoFileName::parse(&name);
            if let Some(block) = bytes.first_chunk_mut() {
                block[0..4].copy_from_slice(&6u32.to_be_bytes());
                block[15] = 0;
                block[14] &= 0xFE;
                seal(block);
                let header = RedoFileHeader::parse(&bytes).unwrap();
                header.end_lsn(lsn);
                header.offset(Lsn(lsn));
                header.creator();
            }
        }
    }
}
