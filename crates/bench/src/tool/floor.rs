//! Lower bounds for any tool: copying the files, and reading them.

use std::fs;
use std::path::Path;

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Job, Tool, Verb};
use crate::process::Script;
use crate::source::Source;

/// `cp` of the data directory and `sync`.
/// Not a backup: a copy of a running server's files cannot be restored.
pub(crate) struct CopyDatadir;

impl Tool for CopyDatadir {
    fn id(&self) -> &'static str {
        "floor"
    }

    fn label(&self) -> &'static str {
        "floor: cp -a; sync"
    }

    fn missing(&self, _kind: ServerKind) -> Option<String> {
        None
    }

    fn expected_s_per_gb(&self, _verb: Verb) -> f64 {
        1.8
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let target = dir.join("copy");
        let script = Script::new("cp -a -- \"$DATADIR\" \"$TARGET\"\nsync -f -- \"$TARGET\"");
        Ok(Job::new(script.var("DATADIR", source.datadir()).var("TARGET", &target), &target))
    }
}

/// `cat` of the data files: the least that an incremental backup has to read if the
/// server does not track pages.
pub(crate) struct ReadOnce;

impl Tool for ReadOnce {
    fn id(&self) -> &'static str {
        "read-once"
    }

    fn label(&self) -> &'static str {
        "floor: cat > /dev/null"
    }

    fn missing(&self, _kind: ServerKind) -> Option<String> {
        None
    }

    fn expected_s_per_gb(&self, _verb: Verb) -> f64 {
        1.1
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        use std::os::unix::ffi::OsStrExt;
        let mut list = Vec::new();
        for path in source.data_files()? {
            list.extend_from_slice(path.as_os_str().as_bytes());
            list.push(0);
        }
        let files = dir.join("files");
        fs::write(&files, list)?;
        let timed = Script::new("xargs -0 cat -- < \"$FILES\" > /dev/null").var("FILES", files);
        Ok(Job { before: None, timed, stored_in: None })
    }

    fn incremental(&self, source: &Source, _base: &Path, dir: &Path) -> Result<Job> {
        self.backup(source, dir)
    }
}
