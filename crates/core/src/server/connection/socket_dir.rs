//! Directories for the sockets that tunnels and relays listen on.

use std::io;

use tempfile::TempDir;

/// Longest path of a Unix socket.
const SOCKET_PATH_MAX: usize = 107;

/// A private directory whose path suits a socket: short enough, and without characters that ssh would
/// interpret.
pub(super) fn create() -> io::Result<TempDir> {
    const NAME_BYTES: usize = "/s".len();
    let dir = tempfile::Builder::new().prefix("holdfast-").tempdir()?;
    let path = dir.path().as_os_str();
    let is_plain = path.to_str().is_some_and(|path| path.chars().all(is_plain));
    if path.len() + NAME_BYTES <= SOCKET_PATH_MAX && is_plain {
        return Ok(dir);
    }
    tempfile::Builder::new().prefix("holdfast-").tempdir_in("/tmp")
}

/// Characters that ssh takes literally in an address to forward to.
pub(super) fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "./_-+,=".contains(c)
}
