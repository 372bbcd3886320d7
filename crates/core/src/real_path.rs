//! Where a path leads.

use std::path::{Component, Path, PathBuf};

use crate::error::{Context as _, Result};

/// `path` from the root on, without links and `..`, whether it exists or not: two paths to one place are equal.
/// (Two mounts of one directory are two places.)
pub(crate) fn real_path(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).context(format_args!("find {}", path.display()))?;
    let mut real = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(real.pop()),
            part => real.push(part),
        }
        // What does not exist leads nowhere else; what cannot be looked at cannot be opened, either.
        if let Ok(found) = real.canonicalize() {
            real = found;
        }
    }
    Ok(real)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn one_place_has_one_path() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().canonicalize().unwrap().join(path);
        fs::create_dir_all(at("a/b")).unwrap();
        symlink(at("a/b"), at("link")).unwrap();
        symlink("link", at("a/second")).unwrap();
        for (path, real) in [
            ("a/b", "a/b"),
            ("link/new/x", "a/b/new/x"),
            ("link/../y", "a/y"),
            ("new/../link/./z", "a/b/z"),
            ("new/../../x", "../x"),
        ] {
            let real = real.strip_prefix("../").map_or(at(real), |real| at("").parent().unwrap().join(real));
            assert_eq!(real_path(&at(path)).unwrap(), real, "{path}");
        }
        assert_eq!(real_path(Path::new("/..")).unwrap(), Path::new("/"));
    }
}
