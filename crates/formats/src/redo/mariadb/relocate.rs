//! Makes captured redo fit the copy: file records with absolute paths, and those of discarded tablespaces.
//!
//! A table with DATA DIRECTORY has the absolute path of its file in the redo, and recovery *opens that file*:
//! on the source's host, that is the file of the running source. Replacing `/abs/dir/` by as many bytes of
//! `./////` keeps every length, so only the CRC of the mini-transaction changes; the file is then an ordinary
//! one below the data directory. Verified on MariaDB 10.11.19: recovery, CHECK TABLE and later use are right.
//!
//! DISCARD logs a deletion, after which recovery ignores all redo of the tablespace, also earlier redo, and
//! also after an IMPORT that keeps the id. But a later record that gives its file another name, a rename or a
//! record after it, makes recovery accept the tablespace again. Recovery then applies all of that redo,
//! including redo from before the DISCARD, to pages of the IMPORT, which have no LSN to protect them: old
//! rows come back, and imported ones are lost, silently. So every such record is turned into another deletion
//! of the same length: a copy that was made while the table was closed to writes needs no redo. Verified on
//! MariaDB 10.11.19 and 11.8.9, both ways.
//!
//! A tablespace that was dropped is known to recovery by the name in the redo, until another one gets *that* name:
//! a purge may still delete the file of that name. If one of the two was outside, they had different names on the
//! source, and get the same file in the copy, by names that differ in their slashes. Recovery then deletes the file
//! of the table that exists. So records of a dropped tablespace name a place where nothing can be. Verified on MariaDB
//! 10.11.19 and 11.8.9, both ways.
//!
//! Nothing of this is possible in an encrypted log.

use std::collections::BTreeSet;

use super::mtr::{FileOp, MtrWalker, WalkStop, begins_with_files, file_records};
use crate::{Lsn, SpaceId, checksum};

/// The absolute paths in file records. Pass it every [`FileOp`] of a walk.
#[derive(Clone, Debug, Default)]
pub struct AbsolutePaths {
    paths: BTreeSet<Vec<u8>>,
}

impl AbsolutePaths {
    /// Notes the paths in `op`.
    pub fn observe(&mut self, op: FileOp<'_>) {
        for path in op.paths().filter(|path| path.starts_with(b"/")) {
            if !self.paths.contains(path) {
                self.paths.insert(path.to_vec());
            }
        }
    }

    /// Whether there are none: then the redo can be recovered anywhere.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The paths, each once.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.paths.iter().map(Vec::as_slice)
    }

    /// The directories of the paths, as DATA DIRECTORY names them: `/abs/dir` of `/abs/dir/db/t.ibd`. The
    /// input of [`PathRelocator::new`].
    pub fn directories(&self) -> BTreeSet<&[u8]> {
        self.iter().filter_map(|path| parent(parent(path)?)).collect()
    }
}

/// Before a schema's name, in the place of a slash: no server gives a directory such a name.
const NOWHERE: u8 = b'#';

fn parent(path: &[u8]) -> Option<&[u8]> {
    path.iter().rposition(|&byte| byte == b'/').map(|slash| &path[..slash])
}

/// The tablespaces that the redo deletes and does not create again. Pass it every [`FileOp`] of a walk.
#[derive(Clone, Debug, Default)]
pub struct Dropped {
    spaces: BTreeSet<SpaceId>,
}

impl Dropped {
    /// Notes what `op` deletes or creates.
    pub fn observe(&mut self, op: FileOp<'_>) {
        match op {
            FileOp::Delete { space, .. } => drop(self.spaces.insert(space)),
            FileOp::Create { space, .. } => drop(self.spaces.remove(&space)),
            _ => {}
        }
    }
}

/// The files of the copy.
#[derive(Clone, Debug, Default)]
pub struct CopiedFiles {
    spaces: BTreeSet<SpaceId>,
    from_outside: BTreeSet<Vec<u8>>,
}

impl CopiedFiles {
    /// Notes a file that the copy has as `name` below the data directory (`db/t.ibd`); `space` if it tells that. A new
    /// one may not: the redo makes its first page.
    pub fn add(&mut self, name: &[u8], space: Option<SpaceId>, is_from_outside: bool) {
        self.spaces.extend(space);
        if is_from_outside {
            self.from_outside.insert(name.to_vec());
        }
    }
}

/// Replaces absolute directories in linear redo, records that would make recovery accept a discarded
/// tablespace again, and names by which a dropped one would take a file of the copy for its own. Afterwards, no path
/// in the redo leads outside the data directory.
#[derive(Clone, Debug)]
pub struct PathRelocator {
    /// Dropped tablespaces of which the copy has no file.
    gone: BTreeSet<SpaceId>,
    /// Files of the copy that were outside, by their names below the data directory.
    from_outside: BTreeSet<Vec<u8>>,
    /// In the redo rewritten so far.
    deleted: Dropped,
    /// Each ends with a slash; longest first, so that a directory within another wins.
    prefixes: Vec<Vec<u8>>,
}

/// Why redo could not be confined to the data directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// Only an absolute directory other than the root has a relative form of the same length.
    #[error("directory {} cannot be replaced by a relative one of the same length", .directory.escape_ascii())]
    BadDirectory {
        /// As given.
        directory: Vec<u8>,
    },
    /// A path that no given directory covers, or that climbs out with `..`.
    #[error("redo at {lsn} names {}, outside of the data directory", .path.escape_ascii())]
    OutsidePath {
        /// The mini-transaction.
        lsn: Lsn,
        /// The path as it would remain.
        path: Vec<u8>,
    },
    /// A file record of unknown form: the paths in it cannot be made safe.
    #[error("redo at {lsn} has a file record of unknown kind {kind:#04x}")]
    UnknownRecord {
        /// The mini-transaction.
        lsn: Lsn,
        /// The record's first byte.
        kind: u8,
    },
    /// Not linear redo, or damaged, or encrypted.
    #[error("captured redo is damaged at {lsn}: {stop:?}")]
    Damaged {
        /// Where the walk stopped.
        lsn: Lsn,
        /// Why it stopped.
        stop: WalkStop,
    },
}

/// What one call of [`PathRelocator::rewrite`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocated {
    /// Bytes that are done. The rest of the buffer is the start of a mini-transaction and belongs in front of
    /// the next bytes.
    pub bytes: usize,
    /// Paths replaced.
    pub paths_changed: u64,
    /// Records that would have made recovery accept a discarded tablespace again.
    pub kept_discarded: u64,
}

impl PathRelocator {
    /// A relocator for these absolute directories; a final slash makes no difference.
    pub fn new<D: AsRef<[u8]>>(
        directories: impl IntoIterator<Item = D>,
    ) -> Result<PathRelocator, RelocateError> {
        let mut prefixes = directories
            .into_iter()
            .map(|directory| {
                let directory = directory.as_ref();
                let name_bytes = directory.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
                if !directory.starts_with(b"/") || name_bytes == 0 {
                    return Err(RelocateError::BadDirectory { directory: directory.to_vec() });
                }
                Ok([&directory[..name_bytes], b"/"].concat())
            })
            .collect::<Result<Vec<_>, _>>()?;
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
        let (gone, from_outside) = Default::default();
        Ok(PathRelocator { gone, from_outside, deleted: Dropped::default(), prefixes })
    }

    /// Lets it know what the redo drops, and what the copy has. One that was discarded and imported is dropped, and
    /// there. Without this, dropped tablespaces keep their names.
    #[must_use]
    pub fn among(self, copied: &CopiedFiles, dropped: &Dropped) -> PathRelocator {
        let gone = dropped.spaces.difference(&copied.spaces).copied().collect();
        PathRelocator { gone, from_outside: copied.from_outside.clone(), ..self }
    }

    /// Rewrites the complete mini-transactions at the start of `buf`, linear redo whose first byte is at
    /// `at`. Call it with all of the redo, in order.
    pub fn rewrite(&mut self, buf: &mut [u8], at: Lsn) -> Result<Relocated, RelocateError> {
        let walker = MtrWalker::linear(false);
        let mut done = Relocated { bytes: 0, paths_changed: 0, kept_discarded: 0 };
        loop {
            let lsn = Lsn(at.0.wrapping_add(done.bytes as u64));
            let mtr = match walker.next(&buf[done.bytes..], lsn) {
                Ok(mtr) => mtr,
                Err(WalkStop::NeedMore) => return Ok(done),
                Err(stop) => return Err(RelocateError::Damaged { lsn, stop }),
            };
            let bytes = &mut buf[done.bytes..done.bytes + mtr.bytes];
            if begins_with_files(bytes) {
                let (records, rest) = bytes.split_at_mut(mtr.marker_at);
                let kept_discarded = self.keep_discarded(records);
                let changed = self.rewrite_records(records, lsn)?;
                if changed + kept_discarded > 0 {
                    let crc_at = mtr.crc_at - mtr.marker_at;
                    rest[crc_at..].copy_from_slice(&checksum::crc32c(records).to_be_bytes());
                    done.paths_changed += changed;
                    done.kept_discarded += kept_discarded;
                }
            }
            done.bytes += mtr.bytes;
        }
    }

    /// Turns records that name an already deleted tablespace into deletions; returns how many.
    fn keep_discarded(&mut self, records: &mut [u8]) -> u64 {
        let mut changed = 0;
        let found: Vec<_> = file_records(records).collect();
        for record in found {
            match record.op(records) {
                FileOp::Modify { space, .. } | FileOp::Rename { space, .. }
                    if self.deleted.spaces.contains(&space) =>
                {
                    record.make_deletion(records);
                    changed += 1;
                }
                op => self.deleted.observe(op),
            }
        }
        changed
    }

    fn rewrite_records(&self, records: &mut [u8], lsn: Lsn) -> Result<u64, RelocateError> {
        let mut changed = 0;
        let found: Vec<_> = file_records(records).collect();
        for record in found {
            if let FileOp::Unknown { kind } = record.op(records) {
                return Err(RelocateError::UnknownRecord { lsn, kind });
            }
            let space = record.op(records).space();
            for range in record.path_ranges(records) {
                let path = &mut records[range];
                let was_outside = self.rewrite_path(path);
                let is_buried = space.is_some_and(|space| self.bury(space, path, was_outside));
                changed += u64::from(was_outside || is_buried);
                if path.starts_with(b"/") || path.split(|&byte| byte == b'/').any(|part| part == b"..") {
                    return Err(RelocateError::OutsidePath { lsn, path: path.to_vec() });
                }
            }
        }
        Ok(changed)
    }

    /// Leads the name of a tablespace that is gone to where no file can be, if it was outside, or is that of a file
    /// that was.
    fn bury(&self, space: SpaceId, path: &mut [u8], was_outside: bool) -> bool {
        if !self.gone.contains(&space) {
            return false;
        }
        let Some(file) = path.iter().rposition(|&byte| byte == b'/') else { return false };
        let Some(schema) = path[..file].iter().rposition(|&byte| byte == b'/') else { return false };
        if !was_outside && !self.from_outside.contains(&path[schema + 1..]) {
            return false;
        }
        path[schema] = NOWHERE;
        true
    }

    fn rewrite_path(&self, path: &mut [u8]) -> bool {
        let Some(prefix) = self.prefixes.iter().find(|prefix| path.starts_with(prefix)) else { return false };
        let (dot, slashes) = path[..prefix.len()].split_at_mut(1);
        dot.fill(b'.');
        slashes.fill(b'/');
        true
    }
}
