//! Walking mini-transactions (mtrs).
//!
//! An mtr is `record* marker [nonce] crc`:
//! - a record's first byte is 2 or more; its low nibble is the number of bytes that follow, or 0: then a
//!   varint A follows and the number of bytes, the varint included, is A + 15;
//! - the marker is 1 or 0, the sequence bit of the lap that contains *the marker*; it alternates, the first
//!   lap is 1;
//! - the nonce, 8 bytes, exists in an encrypted log only;
//! - the CRC-32C covers records and nonce, **not the marker**: so the marker can be rewritten, and a
//!   mini-transaction moved to another file offset.
//!
//! Nothing in an mtr tells its LSN.
//!
//! In an encrypted log, the kind and length of each record stay in clear; the page or file that it belongs to
//! does not. Encryption keeps every length.

use std::ops::Range;

use super::header::LogHeader;
use crate::{Lsn, PageNo, SpaceId, be, checksum};

/// Bit 7 of a record's first byte: the record has no page id. If it is the first of an mtr, it is a file
/// record.
const WITHOUT_PAGE: u8 = 0x80;
const NONCE_BYTES: usize = 8;
const CRC_BYTES: usize = 4;

/// Walks mini-transactions of one log. Stateless: the caller keeps the position.
#[derive(Clone, Copy, Debug)]
pub struct MtrWalker {
    first_lsn: Lsn,
    /// Never 0.
    capacity: u64,
    nonce_bytes: usize,
}

/// The result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Bytes of complete mini-transactions, from the start of the buffer.
    pub bytes: usize,
    /// How many mini-transactions those are.
    pub mtrs: u64,
    /// Why the walk stopped.
    pub stop: WalkStop,
}

/// Why a walk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkStop {
    /// The buffer ends inside a mini-transaction, or right after one. Stale bytes can look like the start of
    /// a long one, so a walk with more bytes may stop for another reason.
    NeedMore,
    /// Nothing was written here in this lap: the end of the log, or overwritten redo if the checkpoint is
    /// past it.
    SequenceMismatch,
    /// Being written, stale, or overwritten.
    CrcMismatch,
    /// The limit is reached: the position is the first mtr boundary at or after it.
    Limit,
}

/// A file operation noted in the redo. Paths have no terminator and are as the server wrote them:
/// `./db/t.ibd`, or absolute for a table with DATA DIRECTORY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOp<'a> {
    /// A tablespace was created.
    Create {
        /// The tablespace.
        space: SpaceId,
        /// Its file.
        path: &'a [u8],
    },
    /// A tablespace was dropped or discarded. Recovery ignores all its records, including later ones of an
    /// IMPORT that kept the id.
    Delete {
        /// The tablespace.
        space: SpaceId,
        /// Its file.
        path: &'a [u8],
    },
    /// A file was renamed.
    Rename {
        /// The tablespace.
        space: SpaceId,
        /// The file's name before.
        from: &'a [u8],
        /// The file's name after.
        to: &'a [u8],
    },
    /// The first change of a tablespace since a checkpoint, or a repetition for the next one.
    Modify {
        /// The tablespace.
        space: SpaceId,
        /// Its file.
        path: &'a [u8],
    },
    /// Ends the group of FILE_MODIFY records of a checkpoint.
    Checkpoint {
        /// The checkpoint's LSN.
        lsn: Lsn,
    },
    /// One of the operations above, in an encrypted log.
    Hidden {
        /// Which one.
        kind: FileOpKind,
        /// Bytes after the record's length field: [`hidden_bytes`] of what the record names.
        bytes: usize,
    },
    /// A record of a kind or form not known here. The server's recovery refuses such a log; so should a copy.
    Unknown {
        /// The record's first byte.
        kind: u8,
    },
}

/// The kind of a file operation, where nothing more can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOpKind {
    /// [`FileOp::Create`].
    Create,
    /// [`FileOp::Delete`].
    Delete,
    /// [`FileOp::Rename`].
    Rename,
    /// [`FileOp::Modify`].
    Modify,
    /// [`FileOp::Checkpoint`].
    Checkpoint,
}

impl FileOpKind {
    fn of(kind: u8) -> Option<FileOpKind> {
        match kind & 0xF0 {
            0x80 => Some(FileOpKind::Create),
            0x90 => Some(FileOpKind::Delete),
            0xA0 => Some(FileOpKind::Rename),
            0xB0 => Some(FileOpKind::Modify),
            0xF0 => Some(FileOpKind::Checkpoint),
            _ => None,
        }
    }
}

/// The length of a file record for `space` with `path_bytes` bytes of paths: one path, or two with a zero
/// between them.
pub fn hidden_bytes(space: SpaceId, path_bytes: usize) -> usize {
    let space_bytes = match space.0 {
        0..0x80 => 1,
        0x80..0x4080 => 2,
        0x4080..0x20_4080 => 3,
        0x20_4080..0x1020_4080 => 4,
        0x1020_4080.. => 5,
    };
    const PAGE_BYTES: usize = 1;
    space_bytes + PAGE_BYTES + path_bytes
}

impl<'a> FileOp<'a> {
    /// The tablespace, if the operation tells it.
    pub fn space(self) -> Option<SpaceId> {
        match self {
            FileOp::Create { space, .. }
            | FileOp::Delete { space, .. }
            | FileOp::Rename { space, .. }
            | FileOp::Modify { space, .. } => Some(space),
            FileOp::Checkpoint { .. } | FileOp::Hidden { .. } | FileOp::Unknown { .. } => None,
        }
    }

    /// The paths in the operation: none, one, or old and new.
    pub fn paths(self) -> impl Iterator<Item = &'a [u8]> {
        let (first, second) = match self {
            FileOp::Create { path, .. } | FileOp::Delete { path, .. } | FileOp::Modify { path, .. } => {
                (Some(path), None)
            }
            FileOp::Rename { from, to, .. } => (Some(from), Some(to)),
            FileOp::Checkpoint { .. } | FileOp::Hidden { .. } | FileOp::Unknown { .. } => (None, None),
        };
        first.into_iter().chain(second)
    }
}

impl MtrWalker {
    /// A walker for the circle that `header` describes.
    pub fn new(header: &LogHeader) -> MtrWalker {
        MtrWalker {
            first_lsn: header.first_lsn(),
            capacity: header.capacity(),
            nonce_bytes: if header.encrypted() { NONCE_BYTES } else { 0 },
        }
    }

    /// A walker for captured redo, in which every marker is 1.
    pub fn linear(encrypted: bool) -> MtrWalker {
        let nonce_bytes = if encrypted { NONCE_BYTES } else { 0 };
        MtrWalker { first_lsn: Lsn(0), capacity: u64::MAX, nonce_bytes }
    }

    /// Walks the complete mini-transactions at the start of `buf`. Its first byte is the one at `at`, which
    /// must be the start of a mini-transaction.
    ///
    /// Rewrites each marker to 1, so that the walked bytes are linear. Calls `on_file` with the LSN of the
    /// mini-transaction and each file operation in it, [hidden](FileOp::Hidden) ones if the log is encrypted.
    /// Stops at the first boundary at or after `limit`.
    pub fn walk(
        &self,
        buf: &mut [u8],
        at: Lsn,
        limit: Option<Lsn>,
        mut on_file: impl FnMut(Lsn, FileOp<'_>),
    ) -> Walked {
        let hidden = self.nonce_bytes > 0;
        self.each(buf, at, limit, |buf, lsn, mtr| {
            let bytes = &mut buf[..mtr.bytes];
            bytes[mtr.marker_at] = 1;
            if begins_with_files(bytes) {
                for record in file_records(&bytes[..mtr.marker_at]) {
                    on_file(lsn, if hidden { record.hidden_op() } else { record.op(bytes) });
                }
            }
        })
    }

    /// Walks like [`MtrWalker::walk`] but changes nothing, and calls `on_page` with each page that records
    /// name: every page that they change, and the page where a tablespace is truncated. In an encrypted log
    /// no page can be read.
    pub fn walk_pages(&self, buf: &mut [u8], at: Lsn, mut on_page: impl FnMut(SpaceId, PageNo)) -> Walked {
        let hidden = self.nonce_bytes > 0;
        self.each(buf, at, None, |buf, _, mtr| {
            if !hidden {
                pages(&buf[..mtr.marker_at]).for_each(|(space, page)| on_page(space, page));
            }
        })
    }

    /// Calls `on_mtr` with each complete mini-transaction: the buffer from its start on, its LSN, and where
    /// its parts are.
    fn each(
        &self,
        buf: &mut [u8],
        at: Lsn,
        limit: Option<Lsn>,
        mut on_mtr: impl FnMut(&mut [u8], Lsn, Mtr),
    ) -> Walked {
        let mut walked = Walked { bytes: 0, mtrs: 0, stop: WalkStop::Limit };
        loop {
            let lsn = Lsn(at.0.wrapping_add(walked.bytes as u64));
            if limit.is_some_and(|limit| lsn >= limit) {
                return walked;
            }
            let rest = &mut buf[walked.bytes..];
            let mtr = match self.next(rest, lsn) {
                Ok(mtr) => mtr,
                Err(stop) => return Walked { stop, ..walked },
            };
            on_mtr(rest, lsn, mtr);
            walked.bytes += mtr.bytes;
            walked.mtrs += 1;
        }
    }

    /// The mini-transaction at the start of `buf`, if it is complete and valid.
    pub(super) fn next(&self, buf: &[u8], lsn: Lsn) -> Result<Mtr, WalkStop> {
        let mut at = 0;
        let marker = loop {
            match *buf.get(at).ok_or(WalkStop::NeedMore)? {
                marker @ (0 | 1) => break marker,
                _ => at = record_end(buf, at)?,
            }
        };
        if at == 0 || marker != self.marker(Lsn(lsn.0.wrapping_add(at as u64))) {
            return Err(WalkStop::SequenceMismatch);
        }
        let crc_at = at + 1 + self.nonce_bytes;
        let stored = be::u32_at(buf, crc_at).ok_or(WalkStop::NeedMore)?;
        let crc = checksum::crc32c_append(checksum::crc32c(&buf[..at]), &buf[at + 1..crc_at]);
        if crc != stored {
            return Err(WalkStop::CrcMismatch);
        }
        Ok(Mtr { marker_at: at, crc_at, bytes: crc_at + CRC_BYTES })
    }

    fn marker(&self, lsn: Lsn) -> u8 {
        let lap = lsn.0.wrapping_sub(self.first_lsn.0) / self.capacity;
        u8::from(lap & 1 == 0)
    }
}

/// Whether an mtr begins with file records.
pub(super) fn begins_with_files(mtr: &[u8]) -> bool {
    mtr.first().is_some_and(|&kind| kind & WITHOUT_PAGE != 0)
}

/// One mini-transaction, by offsets from its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mtr {
    /// Also the end of the records.
    pub(super) marker_at: usize,
    pub(super) crc_at: usize,
    pub(super) bytes: usize,
}

/// The end of the record at `at`, which must lie within `buf`.
fn record_end(buf: &[u8], at: usize) -> Result<usize, WalkStop> {
    /// No record needs more than three bytes for its length: pages are at most 64 KiB.
    const LENGTH_BYTES_MAX: usize = 3;
    let body = at + 1;
    let bytes = match buf[at] & 15 {
        0 => {
            let length = &buf[body..];
            let length_bytes = varint_bytes(*length.first().ok_or(WalkStop::NeedMore)?);
            if length_bytes > LENGTH_BYTES_MAX {
                return Err(WalkStop::CrcMismatch);
            }
            let (more, _) = varint(length).ok_or(WalkStop::NeedMore)?;
            more as usize + 15
        }
        bytes => usize::from(bytes),
    };
    let end = body + bytes;
    if end < buf.len() { Ok(end) } else { Err(WalkStop::NeedMore) }
}

/// The length of a varint, by its first byte.
fn varint_bytes(first: u8) -> usize {
    match first {
        0..0x80 => 1,
        0x80..0xC0 => 2,
        0xC0..0xE0 => 3,
        0xE0..0xF0 => 4,
        _ => 5,
    }
}

/// A varint and how many bytes it took; `None` if `bytes` ends within it. The values of each length begin
/// where those of the shorter one end. (Lengths above two bytes: from the server's description, not
/// observed.)
fn varint(bytes: &[u8]) -> Option<(u32, usize)> {
    let first = u32::from(*bytes.first()?);
    let (value, used) = match varint_bytes(bytes[0]) {
        1 => (first, 1),
        2 => (u32::from(be::u16_at(bytes, 0)? & 0x3FFF) + 0x80, 2),
        3 => (((first & 0x1F) << 16 | u32::from(be::u16_at(bytes, 1)?)) + 0x4080, 3),
        4 => ((be::u32_at(bytes, 0)? & 0x0FFF_FFFF) + 0x20_4080, 4),
        _ => (be::u32_at(bytes, 1)?.checked_add(0x1020_4080)?, 5),
    };
    Some((value, used))
}

/// A file record, by offsets from the start of its mini-transaction.
#[derive(Clone, Debug)]
pub(super) struct FileRecord {
    /// Where it begins.
    at: usize,
    kind: u8,
    /// Bytes after the record's length field.
    bytes: usize,
    space: SpaceId,
    /// Paths or LSN; `None` when the head of the record makes no sense.
    payload: Option<Range<usize>>,
}

impl FileRecord {
    pub(super) fn op<'a>(&self, mtr: &'a [u8]) -> FileOp<'a> {
        self.known(mtr).unwrap_or(FileOp::Unknown { kind: self.kind })
    }

    /// The operation as far as it can be read without the key.
    fn hidden_op(&self) -> FileOp<'static> {
        match FileOpKind::of(self.kind) {
            Some(kind) => FileOp::Hidden { kind, bytes: self.bytes },
            None => FileOp::Unknown { kind: self.kind },
        }
    }

    fn known<'a>(&self, mtr: &'a [u8]) -> Option<FileOp<'a>> {
        let space = self.space;
        let payload = mtr.get(self.payload.clone()?)?;
        let path = || (!payload.is_empty() && !payload.contains(&0)).then_some(payload);
        match FileOpKind::of(self.kind)? {
            FileOpKind::Create => Some(FileOp::Create { space, path: path()? }),
            FileOpKind::Delete => Some(FileOp::Delete { space, path: path()? }),
            FileOpKind::Rename => {
                let mut names = payload.split(|&byte| byte == 0);
                let (from, to) = (names.next()?, names.next()?);
                let well_formed = names.next().is_none() && !from.is_empty() && !to.is_empty();
                well_formed.then_some(FileOp::Rename { space, from, to })
            }
            FileOpKind::Modify => Some(FileOp::Modify { space, path: path()? }),
            FileOpKind::Checkpoint if payload.len() == 8 => {
                Some(FileOp::Checkpoint { lsn: Lsn(be::u64_at(payload, 0)?) })
            }
            FileOpKind::Checkpoint => None,
        }
    }

    /// Turns the record into a deletion of its tablespace, of the same length. Two paths become one.
    pub(super) fn make_deletion(&self, mtr: &mut [u8]) {
        const DELETE: u8 = 0x90;
        mtr[self.at] = DELETE | (self.kind & 0x0F);
        if let Some(name) = self.payload.clone().and_then(|payload| mtr.get_mut(payload)) {
            name.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'/');
        }
    }

    /// Where its paths lie within the mini-transaction, in the order of [`FileOp::paths`].
    pub(super) fn path_ranges(&self, mtr: &[u8]) -> Vec<Range<usize>> {
        let mut start = self.payload.as_ref().map_or(0, |payload| payload.start);
        let after = |path: &[u8]| {
            let range = start..start + path.len();
            start = range.end + 1;
            range
        };
        self.op(mtr).paths().map(after).collect()
    }
}

/// The file records that `records`, the records of a mini-transaction, begin with. They come first: after a
/// page record, the same bit means "same page as before".
pub(super) fn file_records(records: &[u8]) -> impl Iterator<Item = FileRecord> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let kind = *records.get(at).filter(|&&kind| kind & WITHOUT_PAGE != 0)?;
        let (body, end) = record_body(records, at)?;
        let begin = std::mem::replace(&mut at, end);
        Some(file_record(begin, kind, records, body, end))
    })
}

/// The pages that `records`, the records of a mini-transaction, name. A record for the same page as the one
/// before names none.
fn pages(records: &[u8]) -> impl Iterator<Item = (SpaceId, PageNo)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let kind = *records.get(at)?;
            let (body, end) = record_body(records, at)?;
            at = end;
            let named = || {
                let bytes = records.get(body..end)?;
                let (space, space_bytes) = varint(bytes)?;
                let (page, _) = varint(&bytes[space_bytes..])?;
                Some((SpaceId(space), PageNo(page)))
            };
            if kind & WITHOUT_PAGE == 0
                && let Some(named) = named()
            {
                return Some(named);
            }
        }
    })
}

/// Where the body of the record at `at`, after its length, begins and ends.
fn record_body(records: &[u8], at: usize) -> Option<(usize, usize)> {
    let body = at + 1;
    match records.get(at)? & 15 {
        0 => {
            let (more, used) = varint(records.get(body..)?)?;
            Some((body + used, body + more as usize + 15))
        }
        bytes => Some((body, body + usize::from(bytes))),
    }
}

fn file_record(at: usize, kind: u8, records: &[u8], body: usize, end: usize) -> FileRecord {
    let bytes = end - body;
    let head = || {
        let bytes = records.get(body..end)?;
        let (space, space_bytes) = varint(bytes)?;
        let (_page, page_bytes) = varint(&bytes[space_bytes..])?;
        Some((SpaceId(space), body + space_bytes + page_bytes..end))
    };
    match head() {
        Some((space, payload)) => FileRecord { at, kind, bytes, space, payload: Some(payload) },
        None => FileRecord { at, kind, bytes, space: SpaceId::SYSTEM, payload: None },
    }
}
