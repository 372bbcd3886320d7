//! The `ib_logfile0` of a restored server: header, one checkpoint, captured redo, zeros.
//!
//! Verified on MariaDB 10.11.19 and 11.8.6: the server recovers from it, even if the captured redo is larger
//! than the log it came from, and then makes a log of its own size. The file is larger than the captured redo
//! because recovery prints an alarming error when a log is more than 80 % full; its tail is zeros, so it can
//! be sparse.

use super::header::{
    CHECKPOINTS_AT, Checkpoint, DATA_START, FIRST_LSN_AT, HEADER_BYTES, HEADER_CRC_AT, LogHeader,
};
use crate::{Lsn, checksum};

/// LSN and file offset must agree modulo this, the server's block.
const BLOCK: u64 = 4096;

/// How to lay out the restored log. The file is `header`, then the captured redo at `data_offset`, then zeros
/// up to `file_bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearLog {
    /// The first [`DATA_START`] bytes.
    pub header: Vec<u8>,
    /// Where the captured redo begins; between it and `header` are zeros.
    pub data_offset: u64,
    /// Size of the file.
    pub file_bytes: u64,
}

/// Why captured redo cannot become a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinearLogError {
    /// Recovery needs the checkpoint's own group of records.
    #[error("captured redo ends at {stop}, before the records of checkpoint {} at {} are complete", .checkpoint.lsn, .checkpoint.end)]
    EndsBeforeCheckpoint {
        /// The checkpoint the capture began with.
        checkpoint: Checkpoint,
        /// Where the capture ends.
        stop: Lsn,
    },
    /// Sizes or positions beyond 64 bits.
    #[error("{captured_bytes} bytes of redo after {start} are more than a log can hold")]
    TooLarge {
        /// Where the capture begins.
        start: Lsn,
        /// Its length.
        captured_bytes: u64,
    },
}

impl LinearLog {
    /// Lays out `captured_bytes` of linear redo that begin at `checkpoint.lsn`. `source` gives format,
    /// creator and encryption. The file has at least `file_bytes_min` bytes, which should be the size of the
    /// source's log.
    pub fn new(
        source: &LogHeader,
        checkpoint: Checkpoint,
        captured_bytes: u64,
        file_bytes_min: u64,
    ) -> Result<LinearLog, LinearLogError> {
        /// Size of a FILE_CHECKPOINT mini-transaction, without and with its nonce.
        const FILE_CHECKPOINT_BYTES: u64 = 16;
        const FILE_CHECKPOINT_BYTES_ENCRYPTED: u64 = 24;

        let start = checkpoint.lsn;
        let too_large = LinearLogError::TooLarge { start, captured_bytes };
        let stop = start.checked_add(captured_bytes).ok_or(too_large)?;
        let group = if source.encrypted() { FILE_CHECKPOINT_BYTES_ENCRYPTED } else { FILE_CHECKPOINT_BYTES };
        if stop.bytes_since(checkpoint.end).is_none_or(|bytes| bytes < group) {
            return Err(LinearLogError::EndsBeforeCheckpoint { checkpoint, stop });
        }
        let first_lsn = start.align_down(BLOCK);
        let data_offset = DATA_START + (start.0 - first_lsn.0);
        let file_bytes = (|| {
            let roomy = captured_bytes.checked_mul(2)?.checked_add(data_offset)?;
            let with_zeros = captured_bytes.checked_add(data_offset)?.checked_add(BLOCK)?;
            file_bytes_min.max(roomy).max(with_zeros).checked_next_multiple_of(BLOCK)
        })()
        .ok_or(too_large)?;
        Ok(LinearLog { header: header(source, first_lsn, checkpoint), data_offset, file_bytes })
    }
}

fn header(source: &LogHeader, first_lsn: Lsn, checkpoint: Checkpoint) -> Vec<u8> {
    let mut raw = *source.raw();
    raw[FIRST_LSN_AT..FIRST_LSN_AT + 8].copy_from_slice(&first_lsn.0.to_be_bytes());
    let crc = checksum::crc32c(&raw[..HEADER_CRC_AT]);
    raw[HEADER_CRC_AT..].copy_from_slice(&crc.to_be_bytes());
    // The second checkpoint block stays zero: its CRC is wrong and the server ignores it.
    let [checkpoint_at, _] = CHECKPOINTS_AT;
    let mut header = vec![0; DATA_START as usize];
    header[..HEADER_BYTES].copy_from_slice(&raw);
    header[checkpoint_at..checkpoint_at + Checkpoint::BYTES].copy_from_slice(&checkpoint.to_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::super::header::tests::prefix;
    use super::*;
    use proptest::prelude::*;

    const CHECKPOINT: Checkpoint = Checkpoint { lsn: Lsn(1_000_123), end: Lsn(1_000_200) };

    fn source(encrypted: bool) -> LogHeader {
        LogHeader::parse(&prefix(encrypted, 0x3000, CHECKPOINT), 96 << 20).unwrap()
    }

    #[test]
    fn the_rebuilt_header_reads_as_a_log_that_never_wrapped() {
        let log = LinearLog::new(&source(false), CHECKPOINT, 5_000, 0).unwrap();
        let header = LogHeader::parse(&log.header, log.file_bytes).unwrap();
        assert_eq!(header.checkpoint(), CHECKPOINT);
        assert_eq!(header.creator(), "MariaDB 10.11.19");
        assert_eq!(header.first_lsn(), Lsn(1_000_123 / 4096 * 4096));
        assert_eq!(header.offset(CHECKPOINT.lsn), log.data_offset);
        assert_eq!(log.data_offset % 4096, CHECKPOINT.lsn.0 % 4096);
        assert_eq!(log.header.len() as u64, DATA_START);
    }

    #[test]
    fn the_file_is_as_large_as_the_source_or_twice_the_capture() {
        let size =
            |captured, min| LinearLog::new(&source(false), CHECKPOINT, captured, min).unwrap().file_bytes;
        assert_eq!(size(5_000, 96 << 20), 96 << 20);
        assert_eq!(size(5_000, (96 << 20) + 1), (96 << 20) + 4096);
        let big = size(200 << 20, 96 << 20);
        assert!((400 << 20..(400 << 20) + 20_000).contains(&big) && big % 4096 == 0);
    }

    #[test]
    fn a_capture_without_its_checkpoint_group_is_refused() {
        let stop = |captured| LinearLog::new(&source(false), CHECKPOINT, captured, 0).is_ok();
        assert!(!stop(0) && !stop(77) && !stop(92) && stop(93));
        assert!(LinearLog::new(&source(true), CHECKPOINT, 93, 0).is_err());
        assert_eq!(
            LinearLog::new(&source(false), CHECKPOINT, u64::MAX / 2, 0),
            Err(LinearLogError::TooLarge { start: CHECKPOINT.lsn, captured_bytes: u64::MAX / 2 })
        );
    }

    proptest! {
        #[test]
        fn any_numbers_give_an_answer(lsn: u64, end: u64, captured: u64, min: u64) {
            let checkpoint = Checkpoint { lsn: Lsn(lsn), end: Lsn(end) };
            let _ = LinearLog::new(&source(false), checkpoint, captured, min);
        }
    }
}
