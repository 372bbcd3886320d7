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
/// The most parts that the name of an object has: `sources/<source>/<kind>/runs/<n>/<k>`.
const PARTS_MAX: usize = 6;

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
/// and a part of a name. No deeper folder is opened: whoever can write could make so many, each in the last one, that
/// no list would come to an end.
#[must_use]
pub fn may_hold_objects(prefix: &str, name: &str) -> bool {
    let is_own = prefix.is_empty() && matches!(name, TEMPORARY | LOST_AND_FOUND);
    let is_too_deep = prefix.matches('/').count() + 2 > PARTS_MAX;
    !is_own && !is_too_deep && ObjectPath::new(format!("{prefix}{name}")).is_some()
}

/// The folder of an object, and its name there.
#[must_use]
pub fn split(path: &ObjectPath) -> (&str, &str) {
    path.as_str().rsplit_once('/').unwrap_or(("", path.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::names::{Kind, LogName, RunNo};

    #[test]
    fn every_folder_of_an_object_is_opened_and_none_below_them() {
        let log = LogName { source: "a".parse().unwrap(), kind: Kind::Physical };
        for object in [log.lease(RunNo(1), 1), log.outcome(RunNo(1)), ObjectPath::new("signers/x").unwrap()] {
            let parts: Vec<&str> = object.as_str().split('/').collect();
            for at in 0..parts.len() - 1 {
                let above: String = parts[..at].iter().map(|part| format!("{part}/")).collect();
                assert!(may_hold_objects(&above, parts[at]), "{object}");
            }
        }
        assert!(!may_hold_objects(&format!("{}/", split(&log.lease(RunNo(1), 1)).0), "0"));
        assert!(!may_hold_objects("", TEMPORARY) && !may_hold_objects("", LOST_AND_FOUND));
    }

    #[test]
    fn temporary_files_are_told_by_their_names() {
        assert!(is_temporary_name(&temporary_name().unwrap()));
        for other in ["", "0", "notes.txt", &"0".repeat(33), &"A".repeat(32)] {
            assert!(!is_temporary_name(other), "{other}");
        }
    }
}
