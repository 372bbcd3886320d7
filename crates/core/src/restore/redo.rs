//! Lays the captured redo out as the log that the server recovers from.
//!
//! The captured bytes go where the log's layout wants them, like the pages of any file; the header is made
//! here. Then records that would bring back a discarded tablespace are made harmless, and absolute paths in
//! MariaDB's file records are replaced by relative ones. Every restore does that: recovery opens what they
//! name, and on the source's own host that is the source's file.
//! Redo that still leads outside after that is refused.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
};

use holdfast_formats::{
    Lsn, checksum,
    redo::{
        mariadb::{
            AbsolutePaths, Checkpoint, CopiedFiles, DATA_START, Dropped, FileOp, LinearLog, LogHeader,
            MtrWalker, PathRelocator,
        },
        mysql::{
            BLOCK_BYTES, FILE_HEADER_BYTES, RedoFile, RedoFileBuilder, RedoFileHeader, encryption_block,
        },
    },
};
use holdfast_repo::format::{
    hex::from_hex,
    item::{FileRole, Item, ItemPath},
};

use super::{
    opened::Opened,
    target::{
        Tree, io_failed,
        names::{REDO_MARIADB, REDO_MYSQL_DIR, own_path, partial_of},
    },
};
use crate::{
    captured_redo::CapturedRedo,
    error::{Context, Error, Result},
    event::Cancel,
};

/// The redo is walked in pieces of this size; a mini-transaction that does not fit makes the piece grow.
const PIECE_BYTES: usize = 8 << 20;
/// Bytes moved between files between two checks for cancellation.
const MOVE_BYTES: u64 = 256 << 20;
/// Mode of the redo log.
pub(super) const REDO_MODE: u16 = 0o640;
/// No mini-transaction is larger than this; damaged redo must not cost more memory.
const MTR_BYTES_MAX: usize = 64 << 20;

/// The layout of the log.
pub(super) struct RedoLayout {
    /// Its first file.
    pub(super) path: ItemPath,
    /// Its first bytes.
    pub(super) header: Vec<u8>,
    /// Where the captured bytes begin.
    pub(super) data_offset: u64,
    /// Size of the file while it has everything; what is not captured is a hole.
    pub(super) file_bytes: u64,
    /// The files that take the rest of it, in order.
    pub(super) rest: Vec<RestOfRedo>,
    /// Bytes captured.
    pub(super) captured_bytes: u64,
    relocate: Option<Relocate>,
}

impl RedoLayout {
    /// All files.
    pub(super) fn paths(&self) -> impl DoubleEndedIterator<Item = &ItemPath> {
        std::iter::once(&self.path).chain(self.rest.iter().map(|rest| &rest.path))
    }
}

/// A file that continues where another ends.
pub(super) struct RestOfRedo {
    pub(super) path: ItemPath,
    file: RedoFile,
}

impl RestOfRedo {
    /// Bytes that are moved into it.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.file.captured.end - self.file.captured.start
    }
}

struct Relocate {
    start: Lsn,
    directories: Vec<Vec<u8>>,
    copied: CopiedFiles,
}

/// The files of tablespaces in a backup, if redo that can be rewritten names any that was outside.
fn copied_files(opened: &Opened) -> Result<CopiedFiles> {
    let mut copied = CopiedFiles::default();
    match &opened.redo {
        CapturedRedo::MariaDb { encrypted: false, absolute_paths, .. } if !absolute_paths.is_empty() => {}
        _ => return Ok(copied),
    }
    for item in opened.backup.items() {
        let item = item?;
        if matches!(item.role, FileRole::Tablespace | FileRole::UndoTablespace) {
            let space = item.tablespace.map(|tablespace| tablespace.space);
            copied.add(item.path.as_bytes(), space, item.outside.is_some());
        }
    }
    Ok(copied)
}

/// Lays out the captured redo, in files of at most `file_bytes_max` on MySQL.
pub(super) fn lay_out(opened: &Opened, file_bytes_max: u64) -> Result<RedoLayout> {
    lay_out_among(&opened.redo, &opened.redo_item, file_bytes_max, copied_files(opened)?)
}

fn lay_out_among(
    redo: &CapturedRedo,
    item: &Item,
    file_bytes_max: u64,
    copied: CopiedFiles,
) -> Result<RedoLayout> {
    match redo {
        CapturedRedo::MariaDb {
            checkpoint_lsn,
            checkpoint_end_lsn,
            stop_lsn,
            source_size_bytes,
            header,
            encrypted,
            absolute_paths,
        } => {
            let checkpoint = Checkpoint { lsn: *checkpoint_lsn, end: *checkpoint_end_lsn };
            let header = mariadb_header(&hex(header)?, checkpoint, *source_size_bytes)?;
            check_length(item, stop_lsn.bytes_since(*checkpoint_lsn))?;
            if header.encrypted() != *encrypted {
                return Err(Error::damaged("the manifest and the captured redo disagree on encryption"));
            }
            let log = LinearLog::new(&header, checkpoint, item.size_bytes, *source_size_bytes)
                .map_err(|error| Error::damaged("lay out the redo").caused_by(error))?;
            let mut paths = AbsolutePaths::default();
            for path in absolute_paths {
                paths.observe(FileOp::Modify { space: holdfast_formats::SpaceId(0), path: path.as_bytes() });
            }
            let directories = paths.directories().into_iter().map(<[u8]>::to_vec).collect();
            let relocate = (!encrypted).then_some(Relocate { start: checkpoint.lsn, directories, copied });
            Ok(RedoLayout {
                path: own_path(REDO_MARIADB)?,
                header: log.header,
                data_offset: log.data_offset,
                file_bytes: log.file_bytes,
                rest: Vec::new(),
                captured_bytes: item.size_bytes,
                relocate,
            })
        }
        CapturedRedo::MySql { begin_lsn, checkpoint_lsn, stop_lsn, header, .. } => {
            let header = hex(header)?;
            let source = RedoFileHeader::parse(&header)
                .map_err(|error| Error::damaged("read the redo header").caused_by(error))?;
            let builder = RedoFileBuilder::new(&source, *checkpoint_lsn, encryption_block(&header));
            if builder.start_lsn() != *begin_lsn {
                return Err(Error::damaged(format!(
                    "captured redo begins at {begin_lsn}, not in the block of its checkpoint {checkpoint_lsn}"
                )));
            }
            let bytes = stop_lsn.bytes_since(*begin_lsn);
            check_length(item, bytes.and_then(|bytes| bytes.checked_next_multiple_of(BLOCK_BYTES as u64)))?;
            let too_large = || Error::damaged("the captured redo is larger than a log can be");
            let files = builder.files(item.size_bytes, file_bytes_max).ok_or_else(too_large)?;
            let path = |file: &RedoFile| own_path(&format!("{REDO_MYSQL_DIR}/{}", file.name));
            let mut rest = files.into_iter();
            let first = rest.next().ok_or_else(too_large)?;
            let rest: Vec<_> =
                rest.map(|file| Ok(RestOfRedo { path: path(&file)?, file })).collect::<Result<_>>()?;
            let data_offset = FILE_HEADER_BYTES as u64;
            Ok(RedoLayout {
                path: path(&first)?,
                header: first.header.to_vec(),
                data_offset,
                file_bytes: if rest.is_empty() { first.file_bytes } else { data_offset + item.size_bytes },
                rest,
                captured_bytes: item.size_bytes,
                relocate: None,
            })
        }
    }
}

/// Moves the end of the redo in `file` into the other files, the last part first,
/// so that little more room is needed than there is.
pub(super) fn split(layout: &RedoLayout, file: &File, tree: &Tree, cancel: &Cancel) -> Result<()> {
    let mut file = file;
    for RestOfRedo { path, file: part } in layout.rest.iter().rev() {
        let path = partial_of(path)?;
        let shown = tree.path_of(&path);
        let failed = |error| io_failed("write", &shown, error);
        tree.remove(&path).map_err(failed)?;
        let mut target = tree.create_file(&path, REDO_MODE).map_err(failed)?;
        let from = layout.data_offset + part.captured.start;
        let mut left = part.captured.end - part.captured.start;
        target.write_all(&part.header).map_err(failed)?;
        file.seek(SeekFrom::Start(from)).context("read the redo back")?;
        while left > 0 {
            cancel.check()?;
            let moved = io::copy(&mut file.take(left.min(MOVE_BYTES)), &mut target).map_err(failed)?;
            if moved == 0 {
                return Err(Error::damaged(format!("the redo ends {left} bytes before the end of {path}")));
            }
            left -= moved;
        }
        let finish = || target.set_len(part.file_bytes).and_then(|()| target.sync_all());
        finish().map_err(failed)?;
        file.set_len(from).context("shorten the redo")?;
    }
    Ok(())
}

fn check_length(item: &Item, expected: Option<u64>) -> Result<()> {
    if expected == Some(item.size_bytes) {
        return Ok(());
    }
    let expected =
        expected.map_or_else(|| "an end before its beginning".to_owned(), |bytes| format!("{bytes}"));
    Err(Error::damaged(format!(
        "the captured redo has {} bytes, but the manifest says {expected}",
        item.size_bytes
    )))
}

/// Makes the header. The manifest keeps the header block; the checkpoint,
/// which it keeps as numbers, is put where a log has it.
fn mariadb_header(block: &[u8], checkpoint: Checkpoint, file_bytes: u64) -> Result<LogHeader> {
    const CHECKPOINT_AT: usize = 0x1000;
    const CHECKSUM_AT: usize = 60;
    let mut prefix = block.to_vec();
    prefix.resize(DATA_START as usize, 0);
    let place = &mut prefix[CHECKPOINT_AT..];
    place[..8].copy_from_slice(&checkpoint.lsn.0.to_be_bytes());
    place[8..16].copy_from_slice(&checkpoint.end.0.to_be_bytes());
    let crc = checksum::crc32c(&place[..CHECKSUM_AT]);
    place[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&crc.to_be_bytes());
    LogHeader::parse(&prefix, file_bytes)
        .map_err(|error| Error::damaged("read the redo header").caused_by(error))
}

/// The header of a log is small.
const HEX_MAX: usize = 1 << 16;

fn hex(text: &str) -> Result<Vec<u8>> {
    let bad = || Error::damaged("the redo header in the manifest is not hexadecimal");
    (text.len() <= HEX_MAX).then(|| from_hex(text)).flatten().ok_or_else(bad)
}

/// Makes the redo in `file` lead nowhere outside, and bring back no tablespace that was discarded. Returns
/// how many paths were changed.
pub(super) fn relocate(layout: &RedoLayout, file: &File, cancel: &Cancel) -> Result<u64> {
    let Some(Relocate { start, directories, copied }) = &layout.relocate else { return Ok(0) };
    let refused = |error| Error::damaged("rewrite the redo so that it stays in the target").caused_by(error);
    let mut relocator = PathRelocator::new(directories).map_err(refused)?;
    // Without absolute paths, names are those that the source had.
    if !directories.is_empty() {
        let mut dropped = Dropped::default();
        let walker = MtrWalker::linear(false);
        each_piece(layout, file, cancel, &mut |piece, done| {
            Ok(walker.walk(piece, Lsn(done), None, |_, op| dropped.observe(op)).bytes)
        })?;
        relocator = relocator.among(copied, &dropped);
    }
    let mut changed = 0;
    each_piece(layout, file, cancel, &mut |piece, done| {
        let lsn = start
            .checked_add(done)
            .ok_or_else(|| Error::damaged("the captured redo ends after the largest possible LSN"))?;
        let relocated = relocator.rewrite(piece, lsn).map_err(refused)?;
        if relocated.paths_changed + relocated.kept_discarded > 0 {
            let at = layout.data_offset + done;
            file.write_all_at(&piece[..relocated.bytes], at).context("write the redo")?;
            changed += relocated.paths_changed;
        }
        Ok(relocated.bytes)
    })?;
    Ok(changed)
}

/// Reads the captured redo of MariaDB in pieces that begin with a mini-transaction. `walk` gets a piece and
/// the number of bytes before it, and returns how many of its bytes are whole mini-transactions.
pub(super) fn each_piece(
    layout: &RedoLayout,
    file: &File,
    cancel: &Cancel,
    walk: &mut dyn FnMut(&mut [u8], u64) -> Result<usize>,
) -> Result<()> {
    let mut piece = Vec::new();
    let mut done = 0_u64;
    let mut piece_bytes = PIECE_BYTES;
    while done < layout.captured_bytes {
        cancel.check()?;
        let left = layout.captured_bytes - done;
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(piece_bytes);
        piece.resize(len, 0);
        file.read_exact_at(&mut piece, layout.data_offset + done).context("read the redo back")?;
        let walked = walk(&mut piece, done)?;
        if walked > 0 {
            done += walked as u64;
            piece_bytes = PIECE_BYTES;
        } else if len as u64 == left || piece_bytes >= MTR_BYTES_MAX {
            return Err(Error::damaged(format!(
                "the captured redo ends within a mini-transaction, which begins {done} bytes into it"
            )));
        } else {
            piece_bytes = piece_bytes.saturating_mul(4).min(MTR_BYTES_MAX);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use holdfast_formats::SpaceId;
    use holdfast_repo::format::item::ItemType;

    use super::{super::plan::layout::tests::item, *};

    /// A mini-transaction of one FILE_MODIFY record.
    fn modify(path: &str) -> Vec<u8> {
        let payload = [&[7, 0][..], path.as_bytes()].concat();
        let mut mtr = Vec::new();
        if payload.len() < 16 {
            mtr.push(0xB0 | payload.len() as u8);
        } else {
            // Long form: the number of bytes after the first byte, less 15; one varint byte here.
            mtr.extend([0xB0, (payload.len() + 1 - 15) as u8]);
        }
        mtr.extend(payload);
        let crc = checksum::crc32c(&mtr);
        mtr.push(1);
        mtr.extend(crc.to_be_bytes());
        mtr
    }

    fn checkpoint_mtr(lsn: u64) -> Vec<u8> {
        let mut mtr = vec![0xFA, 0, 0];
        mtr.extend(lsn.to_be_bytes());
        let crc = checksum::crc32c(&mtr);
        mtr.push(1);
        mtr.extend(crc.to_be_bytes());
        mtr
    }

    fn captured(paths: &[&str], absolute: &[&str]) -> (CapturedRedo, Vec<u8>) {
        let lsn = 50_000;
        let mut bytes: Vec<u8> = paths.iter().flat_map(|path| modify(path)).collect();
        bytes.extend(checkpoint_mtr(lsn));
        let mut header = vec![0; 512];
        header[..4].copy_from_slice(b"Phys");
        header[8..16].copy_from_slice(&0x3000_u64.to_be_bytes());
        header[16..24].copy_from_slice(b"MariaDB ");
        let crc = checksum::crc32c(&header[..508]);
        header[508..].copy_from_slice(&crc.to_be_bytes());
        let redo = CapturedRedo::MariaDb {
            checkpoint_lsn: Lsn(lsn),
            checkpoint_end_lsn: Lsn(lsn),
            stop_lsn: Lsn(lsn + bytes.len() as u64),
            source_size_bytes: 1 << 20,
            header: header.iter().map(|byte| format!("{byte:02x}")).collect(),
            encrypted: false,
            absolute_paths: absolute.iter().map(ToString::to_string).collect(),
        };
        (redo, bytes)
    }

    /// The tablespace of [`modify`].
    fn copied() -> CopiedFiles {
        let mut copied = CopiedFiles::default();
        copied.add(b"db/u.ibd", Some(SpaceId(7)), true);
        copied
    }

    fn redo_item(size_bytes: u64) -> Item {
        Item { item_type: ItemType::CapturedRedo, size_bytes, ..item("#redo", FileRole::Other, 0, None) }
    }

    fn laid_out(paths: &[&str], absolute: &[&str]) -> (RedoLayout, File) {
        let (redo, bytes) = captured(paths, absolute);
        let layout = lay_out_among(&redo, &redo_item(bytes.len() as u64), u64::MAX, copied()).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&layout.header, 0).unwrap();
        file.write_all_at(&bytes, layout.data_offset).unwrap();
        file.set_len(layout.file_bytes).unwrap();
        (layout, file)
    }

    /// Paths outside are replaced, all others stay, and the log is as long as it was.
    #[test]
    fn relocating() {
        let (layout, file) = laid_out(&["./db/t.ibd", "/fast/shop/db/u.ibd"], &["/fast/shop/db/u.ibd"]);
        assert_eq!(relocate(&layout, &file, &Cancel::default()).unwrap(), 1);
        let mut bytes = vec![0; layout.captured_bytes as usize];
        file.read_exact_at(&mut bytes, layout.data_offset).unwrap();
        let (_, expected) = captured(&["./db/t.ibd", ".//////////db/u.ibd"], &[]);
        assert_eq!(bytes, expected);
        assert_eq!(relocate(&layout, &file, &Cancel::default()).unwrap(), 0);
    }

    /// A path that the manifest does not know of is refused, and so is damaged or cut redo.
    #[test]
    fn refusing() {
        let (layout, file) = laid_out(&["/elsewhere/db/u.ibd"], &["/fast/shop/db/u.ibd"]);
        let error = relocate(&layout, &file, &Cancel::default()).unwrap_err();
        assert!(error.to_string().contains("/elsewhere/db/u.ibd"), "{error}");
        let (layout, file) = laid_out(&["./db/../../t.ibd"], &[]);
        assert!(relocate(&layout, &file, &Cancel::default()).is_err());
        let (layout, file) = laid_out(&["./db/t.ibd"], &[]);
        file.write_all_at(b"x", layout.data_offset + 5).unwrap();
        assert!(relocate(&layout, &file, &Cancel::default()).is_err());
        let (mut layout, file) = laid_out(&["./db/t.ibd"], &[]);
        layout.captured_bytes -= 1;
        assert!(
            relocate(&layout, &file, &Cancel::default()).unwrap_err().to_string().contains("ends within")
        );
    }

    /// What the manifest says must agree with itself.
    #[test]
    fn disagreeing() {
        let (redo, bytes) = captured(&["./db/t.ibd"], &[]);
        let size = bytes.len() as u64;
        assert!(lay_out_among(&redo, &redo_item(size - 1), u64::MAX, copied()).is_err());
        let CapturedRedo::MariaDb { header, .. } = &redo else { unreachable!() };
        for bad in ["zz", "a", "é", &header[2..]] {
            let mut redo = redo.clone();
            if let CapturedRedo::MariaDb { header, .. } = &mut redo {
                *header = bad.to_owned();
            }
            assert!(lay_out_among(&redo, &redo_item(size), u64::MAX, copied()).is_err(), "{bad}");
        }
        let mysql = CapturedRedo::MySql {
            begin_lsn: Lsn(1024),
            checkpoint_lsn: Lsn(1100),
            stop_lsn: Lsn(1500),
            header: String::new(),
            encrypted: false,
        };
        assert!(lay_out_among(&mysql, &redo_item(512), u64::MAX, copied()).is_err());
    }
}
