//! What to do about an operation on a directory that failed.

use std::{io, path::Path};

use rustix::io::Errno;

use crate::error::{Error, ErrorKind};

/// An error that says what failed and on which path, with a hint for the usual causes.
pub(in crate::restore) fn io_failed(doing: &str, path: impl AsRef<Path>, error: io::Error) -> Error {
    let path = path.as_ref().display();
    let failed = |hint: &str| {
        let error = Error::new(ErrorKind::Failed, format!("{doing} {path}: {}", plain(&error)));
        if hint.is_empty() { error } else { error.hinted(hint) }
    };
    match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => {
            failed("a link stands in the way; restore into an empty directory, or remove it")
        }
        Some(Errno::XDEV) => failed("the path leads out of the target"),
        Some(Errno::NOSPC | Errno::DQUOT) => {
            failed("make room and run the same restore again: it continues with what is there")
        }
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            failed("restore as root, or as the owner of the target")
        }
        Some(Errno::NOSYS) => failed("restoring needs Linux 5.6 or later (openat2)"),
        _ => failed(""),
    }
}

/// An operating system's error without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}
