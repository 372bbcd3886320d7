//! Entries of a data directory that do not belong to the server.

/// Whether a path in a data directory is to be left alone, in backups and restores: at its top is something of a
/// file system (`lost+found`, often unreadable; `.snapshot`, which nobody can write to), or of the user whose home
/// this is, with keys and passwords (`.ssh`). Servers give no file such a name.
pub(crate) fn is_foreign(path: &[u8]) -> bool {
    let top = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    top == b"lost+found" || top.starts_with(b".")
}
