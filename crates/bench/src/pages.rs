//! Data files as pages: which exist, which have changed, and how well the changed ones compress.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use holdfast_pipe::Compression;
use holdfast_pipe::codec::Compressor;

pub(crate) const PAGE_BYTES: usize = 16 << 10;
const CHUNK_BYTES: usize = 1 << 20;

/// All regular files of a data directory except logs, temporary files and doublewrite
/// files, which no backup needs.
pub(crate) fn data_files(datadir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    walk(datadir, &mut files).with_context(|| datadir.display().to_string())?;
    files.sort();
    Ok(files)
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_no_data(&name.to_string_lossy()) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            match walk(&entry.path(), files) {
                // A schema that was dropped since.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                walked => walked?,
            }
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn is_no_data(name: &str) -> bool {
    const BEGINNINGS: [&str; 7] =
        ["ib_logfile", "#innodb_redo", "#innodb_temp", "ibtmp", "binlog.", "relay.", "ib_buffer_pool"];
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) || name.ends_with(".dblwr")
}

/// The size of all files that still exist.
pub(crate) fn total_bytes(files: &[PathBuf]) -> Result<u64> {
    let mut bytes = 0;
    for path in files {
        bytes += match path.metadata() {
            Ok(meta) => meta.len(),
            // The server has removed it since the files were listed.
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
    }
    Ok(bytes)
}

/// A hash of every page, for finding changed pages later.
pub(crate) struct PageHashes(HashMap<PathBuf, Vec<[u8; 16]>>);

/// Changes since the hashes were taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changes {
    pub(crate) pages: u64,
    pub(crate) pages_changed: u64,
    /// The compressed size of the changed pages alone, packed into full chunks.
    pub(crate) compressed_bytes: u64,
}

impl PageHashes {
    /// Reads all files; the server must be stopped.
    pub(crate) fn take(files: &[PathBuf]) -> Result<PageHashes> {
        let mut hashes = HashMap::new();
        for path in files {
            let mut of_file = Vec::new();
            for_each_page(path, |page| {
                of_file.push(hash(page));
                Ok(())
            })?;
            hashes.insert(path.clone(), of_file);
        }
        Ok(PageHashes(hashes))
    }

    /// Reads all files again; the server must be stopped.
    pub(crate) fn changes(&self, files: &[PathBuf], compression: Compression) -> Result<Changes> {
        let mut changes = Changes::default();
        let mut gathered = Gathered::new(compression)?;
        for path in files {
            let before = self.0.get(path).map_or(&[][..], Vec::as_slice);
            let mut number = 0;
            for_each_page(path, |page| {
                changes.pages += 1;
                if before.get(number) != Some(&hash(page)) {
                    changes.pages_changed += 1;
                    gathered.add(page)?;
                }
                number += 1;
                Ok(())
            })?;
        }
        changes.compressed_bytes = gathered.finish()?;
        Ok(changes)
    }
}

fn hash(page: &[u8]) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::hash(page).as_bytes()[..16]);
    short
}

/// Pages packed into full chunks, compressed and counted.
struct Gathered {
    compressor: Compressor,
    chunk: Vec<u8>,
    out: Vec<u8>,
    bytes: u64,
}

impl Gathered {
    fn new(compression: Compression) -> Result<Gathered> {
        Ok(Gathered {
            compressor: Compressor::new(compression)?,
            chunk: Vec::new(),
            out: Vec::new(),
            bytes: 0,
        })
    }

    fn add(&mut self, page: &[u8]) -> Result<()> {
        if self.chunk.len() + page.len() > CHUNK_BYTES {
            self.flush()?;
        }
        self.chunk.extend_from_slice(page);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.chunk.is_empty() {
            self.compressor.compress(&self.chunk, &mut self.out)?;
            self.bytes += self.out.len() as u64;
            self.chunk.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> Result<u64> {
        self.flush()?;
        Ok(self.bytes)
    }
}

fn for_each_page(path: &Path, mut work: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        // The server has removed it since the files were listed.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let mut filled = 0;
        while filled < chunk.len() {
            match file.read(&mut chunk[filled..]).with_context(|| path.display().to_string())? {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            return Ok(());
        }
        chunk[..filled].chunks(PAGE_BYTES).try_for_each(&mut work)?;
    }
}

/// Chunks spread evenly over the largest files, `bytes` in total: typical input of a codec
/// for this data directory.
pub(crate) fn sample(files: &[PathBuf], bytes: u64) -> Result<Vec<Vec<u8>>> {
    let mut chunks_of_files = Vec::new();
    let mut total_chunks = 0;
    for path in files {
        let chunks = path.metadata()?.len() / CHUNK_BYTES as u64;
        total_chunks += chunks;
        chunks_of_files.push((path, chunks));
    }
    let step = (total_chunks * CHUNK_BYTES as u64 / bytes.max(1)).max(1);
    let mut sample = Vec::new();
    let mut next = 0;
    let mut first_of_file = 0;
    for (path, chunks) in chunks_of_files {
        let file = File::open(path)?;
        while next < first_of_file + chunks {
            let mut chunk = vec![0; CHUNK_BYTES];
            let offset = (next - first_of_file) * CHUNK_BYTES as u64;
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut chunk, offset)
                .with_context(|| path.display().to_string())?;
            sample.push(chunk);
            next += step;
        }
        first_of_file += chunks;
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use holdfast_pipe::Compression;

    use super::{CHUNK_BYTES, PAGE_BYTES, PageHashes, data_files, sample};

    /// Exactly the changed and new pages are found; logs are not data files.
    #[test]
    fn changed_pages_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.ibd");
        fs::write(&path, vec![7; 100 * PAGE_BYTES]).unwrap();
        fs::write(dir.path().join("ib_logfile0"), [1]).unwrap();
        let files = data_files(dir.path()).unwrap();
        assert_eq!(files, std::slice::from_ref(&path));
        let hashes = PageHashes::take(&files).unwrap();

        let mut bytes = vec![7; 101 * PAGE_BYTES];
        bytes[5 * PAGE_BYTES + 9] = 8;
        fs::write(&path, bytes).unwrap();
        let changes = hashes.changes(&files, Compression::None).unwrap();
        assert_eq!((changes.pages, changes.pages_changed), (101, 2));
        assert_eq!(changes.compressed_bytes, 2 * PAGE_BYTES as u64);
    }

    #[test]
    fn a_sample_is_spread_over_all_files() {
        let dir = tempfile::tempdir().unwrap();
        for (name, byte) in [("a.ibd", 1), ("b.ibd", 2)] {
            fs::write(dir.path().join(name), vec![byte; 4 * CHUNK_BYTES]).unwrap();
        }
        let chunks = sample(&data_files(dir.path()).unwrap(), 4 * CHUNK_BYTES as u64).unwrap();
        assert_eq!(chunks.iter().map(|chunk| chunk[0]).collect::<Vec<u8>>(), [1, 1, 2, 2]);
    }
}
