//! What tells a data directory from other directories.

use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// What only a data directory has at its top, or a directory that a server looks through for tablespaces.
pub(crate) const SIGNS: [&str; 3] = ["ibdata1", "mysql.ibd", "aria_log_control"];

/// Whether a directory has one of them.
pub(crate) fn is_data_directory(dir: &Path) -> bool {
    SIGNS.iter().any(|sign| dir.join(sign).symlink_metadata().is_ok())
}

/// Refuses a place that is a data directory or in one. A server takes directories there for schemas; MySQL looks
/// through all of them for tablespaces, and does not start if it finds one twice.
pub(crate) fn refuse_inside(place: &Path) -> Result<()> {
    let Some(dir) = place.ancestors().find(|dir| is_data_directory(dir)) else { return Ok(()) };
    let (place, dir) = (place.display(), dir.display());
    let text = format!(
        "{place} is in {dir}, which looks like a data directory: its server would take what is there for its own"
    );
    Err(Error::new(ErrorKind::Usage, text).hinted("name a directory outside of it"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A data directory is known by its files, and everything below it is refused, whether it exists or not.
    #[test]
    fn places_inside() {
        for sign in SIGNS {
            let dir = tempfile::tempdir().unwrap();
            let (data, beside) = (dir.path().join("data"), dir.path().join("beside/new"));
            fs::create_dir(&data).unwrap();
            refuse_inside(&data.join("new")).unwrap();
            fs::write(data.join(sign), "").unwrap();
            for place in [data.clone(), data.join("new"), data.join("new/er")] {
                let error = refuse_inside(&place).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Usage);
                assert!(error.to_string().contains(&format!("is in {}", data.display())), "{error}");
            }
            refuse_inside(&beside).unwrap();
        }
    }
}
