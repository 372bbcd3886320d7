//! How a store is laid out in a directory, of this host or of another: one repository may be
//! reached in both ways, by turns.
//!
//! - The name of an object is its path below the root.
//! - An object that is being uploaded is a file under [`TEMPORARY`].

use std::io;

use super::ObjectPath;

/// The folder at the root that holds uploads until they are complete.
pub const TEMPORARY: &str = ".tmp";
/// A folder that the file system makes itself, if the store is the root of one.
pub const LOST_AND_FOUND: &str = "lost+found";

/// The name of a temporary file: 128 random bits.
pub fn temporary_name() -> io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(format!("{:032x}", u128::from_le_bytes(random)))
}

/// Whether a file under [`TEMPORARY`] is named as ours are.
#[must_use]
pub fn is_temporary_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether objects may be in the folder `name` below `prefix`: it is none of those at the root that hold no objects,
/// and a part of a name.
#[must_use]
pub fn may_hold_objects(prefix: &str, name: &str) -> bool {
    let is_own = prefix.is_empty() && matches!(name, TEMPORARY | LOST_AND_FOUND);
    !is_own && ObjectPath::new(format!("{prefix}{name}")).is_some()
}

/// The folder of an object, and its name there.
#[must_use]
pub fn split(path: &ObjectPath) -> (&str, &str) {
    path.as_str().rsplit_once('/').unwrap_or(("", path.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_are_told_by_their_names() {
        assert!(is_temporary_name(&temporary_name().unwrap()));
        for other in ["", "0", "notes.txt", &"0".repeat(33), &"A".repeat(32)] {
            assert!(!is_temporary_name(other), "{other}");
        }
    }
}
