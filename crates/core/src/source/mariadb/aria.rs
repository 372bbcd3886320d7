//! The Aria control file of the backup.
//!
//! Recovery begins at the checkpoint that the control file names and ends with the newest log that it names.
//! So the backup's control file has the checkpoint from before any Aria table was copied, and the newest of
//! the logs that were copied last.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    time::Duration,
};

use holdfast_formats::aria::control_with_newest_log;

use super::Capture;
use crate::{
    error::{Error, Result},
    source::{
        Role,
        files::{Entry, Signature, base_name, read_failed},
        plain::CopiedFile,
    },
};

/// A control file is written at once; one that is still not whole after this many reads is damaged.
const READS_MAX: u32 = 50;

/// Reads the control file. Returns `None` if it vanished.
pub(super) fn read_control(entry: &Entry) -> Result<Option<(Entry, Vec<u8>)>> {
    for _ in 0..READS_MAX {
        match std::fs::read(&entry.real) {
            Ok(bytes) if control_with_newest_log(&bytes, |_| false).is_some() => {
                return Ok(Some((entry.clone(), bytes)));
            }
            Ok(_) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(read_failed(&entry.real, error)),
        }
    }
    Err(Error::failed(format!("{}: not a complete Aria control file", entry.path)))
}

/// The number of an Aria log: 7 for `aria_log.00000007`.
pub(super) fn log_number(path: &str) -> Option<u32> {
    base_name(path).strip_prefix("aria_log.")?.parse().ok()
}

/// The index file of the table that a file belongs to, in a listing that has both. For a file without an
/// index file this is the file itself, which tells nothing.
pub(super) fn index_of<'a>(entry: &'a Entry, listed: &'a BTreeMap<String, Entry>) -> &'a Path {
    let table = entry.path.strip_suffix(".MAD").unwrap_or(&entry.path);
    listed.get(&format!("{table}.MAI")).map_or(&entry.real, |index| &index.real)
}

impl Capture<'_> {
    /// Sends the control file that belongs to the Aria logs with these numbers.
    pub(super) fn send_aria_control(&mut self, logs: &BTreeSet<u32>) -> Result<()> {
        let Some((entry, bytes)) = &self.aria_control else { return Ok(()) };
        let bytes = control_with_newest_log(bytes, |log| logs.contains(&log))
            .ok_or_else(|| Error::failed(format!("{} cannot be read", entry.path)))?;
        let metadata = std::fs::metadata(&entry.real).map_err(|error| read_failed(&entry.real, error))?;
        let file = self.copier.context.made(entry, Role::AriaControl, &bytes)?;
        let (signature, size_bytes) = (Signature::of(&metadata), bytes.len() as u64);
        let (inode, read_at) = (entry.stat.inode, self.copier.context.clock.now());
        let copied = CopiedFile { file, inode, signature, size_bytes, read_at };
        self.copier.inventory.add_file(&entry.path, copied);
        Ok(())
    }
}
