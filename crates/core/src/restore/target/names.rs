//! The names that a restore gives to what is its own, and to files that are not complete.

use holdfast_formats::redo;
use holdfast_repo::format::item::ItemPath;

use crate::error::{Error, Result};

/// The file that says a restore is not complete.
pub(in crate::restore) const MARKER: &str = "holdfast-restore.incomplete";
/// The marker that will take its place.
pub(in crate::restore) const NEW_MARKER: &str = "holdfast-restore.new";
/// The report of a finished restore.
pub(in crate::restore) const REPORT: &str = "holdfast-restore.json";
/// The directory for what no server but the recovering one may find: redo, and the log of Aria.
pub(in crate::restore) const PRIVATE: &str = "holdfast-restore.partial";
/// Prefix of the names of everything that a restore puts at the top of its target for itself.
const OWN_PREFIX: &str = "holdfast-restore.";
/// Suffix of the names of files without which no server starts, until all others are durable.
pub(in crate::restore) const PARTIAL: &str = ".partial";

/// MariaDB's redo log.
pub(in crate::restore) const REDO_MARIADB: &str = "ib_logfile0";
/// The directory of MySQL's redo log.
pub(in crate::restore) const REDO_MYSQL_DIR: &str = redo::mysql::DIRECTORY;

/// Whether only a restore gives such a name. Backups leave these files out now; older backups may hold some,
/// which mean nothing there.
pub(in crate::restore) fn is_of_a_restore(path: &ItemPath) -> bool {
    let path = path.as_bytes();
    let of_ours = |part: &[u8]| part.ends_with(PARTIAL.as_bytes());
    path.starts_with(OWN_PREFIX.as_bytes()) || path.split(|byte| *byte == b'/').any(of_ours)
}

/// The name of a held file until it gets its final one.
pub(in crate::restore) fn partial_of(path: &ItemPath) -> Result<ItemPath> {
    ItemPath::new([path.as_bytes(), PARTIAL.as_bytes()].concat())
        .map_err(|error| Error::damaged(format!("{path}: {error}")))
}

/// The path of something while only the recovering server may find it.
pub(in crate::restore) fn private_of(path: &ItemPath) -> Result<ItemPath> {
    ItemPath::new([PRIVATE.as_bytes(), b"/", path.as_bytes()].concat())
        .map_err(|error| Error::damaged(format!("{path}: {error}")))
}

/// A path that this program chose.
pub(in crate::restore) fn own_path(path: &str) -> Result<ItemPath> {
    ItemPath::new(path).map_err(|error| Error::failed(format!("path {path}")).caused_by(error))
}
