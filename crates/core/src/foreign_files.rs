//! Entries of a data directory that do not belong to the server.

/// Whether a path in a data directory is to be left alone, in backups and restores. At its top that is what belongs
/// to the user whose home this is, with keys and passwords (`.ssh`), or to a file system (`.snapshot`, which nobody
/// can write to); at any depth, `lost+found`, often unreadable: the directory of a schema can be the root of a file
/// system, too. Servers give no file such a name: they write the plus in the name of a table as `@002b`.
pub(crate) fn is_foreign(path: &[u8]) -> bool {
    path.starts_with(b".") || path.split(|byte| *byte == b'/').any(|name| name == b"lost+found")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_alone() {
        for (path, is_left) in [
            ("lost+found", true),
            ("lost+found/#12", true),
            ("shop/lost+found", true),
            ("shop/lost+found/#12", true),
            ("shop/lost@002bfound.ibd", false),
            ("lost+found.ibd", false),
            (".ssh/key", true),
            ("shop/.hidden", false),
            ("shop/t.ibd", false),
        ] {
            assert_eq!(is_foreign(path.as_bytes()), is_left, "{path}");
        }
    }
}
