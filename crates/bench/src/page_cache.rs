//! The state of the kernel's page cache before a measurement.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, Result};

use crate::results::Cache;

/// Why the cache cannot be put into this state here.
pub(crate) fn missing(cache: Cache) -> Option<String> {
    let root = rustix::process::geteuid().is_root();
    (cache == Cache::Cold && !root).then(|| "only root can empty the page cache".to_owned())
}

/// Writes back all dirty data, and then empties the page cache or reads `files` into it.
pub(crate) fn prepare<'a>(cache: Cache, files: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    rustix::fs::sync();
    match cache {
        Cache::Cold => {
            const PAGES_AND_METADATA: &str = "3";
            fs::write("/proc/sys/vm/drop_caches", PAGES_AND_METADATA).context("empty the page cache")
        }
        Cache::Warm => {
            let mut buffer = vec![0; 1 << 20];
            for path in files {
                let mut file = match File::open(path) {
                    Ok(file) => file,
                    // The server has removed it since the files were listed.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(error) => return Err(error).with_context(|| path.display().to_string()),
                };
                while file.read(&mut buffer)? > 0 {}
            }
            Ok(())
        }
    }
}
