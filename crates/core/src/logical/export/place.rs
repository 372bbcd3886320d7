//! The directory that an export is made in, which gets its name only once it is complete.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use flate2::write::GzEncoder;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::error::{Context, Error, ErrorKind, Result};

const BUFFER_BYTES: usize = 256 << 10;

/// How files are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Not at all.
    #[default]
    None,
    /// Like `gzip`, at its default level.
    Gzip,
    /// Like `zstd`, at level 1.
    Zstd,
}

impl Packing {
    fn extension(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        }
    }
}

/// Fails if something exists at `target`.
pub(super) fn refuse_existing(target: &Path) -> Result<()> {
    if fs::symlink_metadata(target).is_ok() { Err(there_already(target)) } else { Ok(()) }
}

/// A directory being made. Unless it is finished, nothing of it remains.
pub(super) struct Place {
    target: PathBuf,
    partial: PathBuf,
    packing: Packing,
    is_finished: bool,
}

impl Place {
    /// Makes a directory beside `target`, which must not exist.
    pub(super) fn create(target: &Path, packing: Packing) -> Result<Self> {
        refuse_existing(target)?;
        let Some(name) = target.file_name() else {
            let text = format!("{} names no directory", target.display());
            return Err(Error::new(ErrorKind::Usage, text));
        };
        let mut partial_name = name.to_owned();
        partial_name.push(".partial");
        let partial = target.with_file_name(partial_name);
        DirBuilder::new().mode(0o700).create(&partial).map_err(|error| {
            let is_there = error.kind() == io::ErrorKind::AlreadyExists;
            let error = Error::failed(format!("make {}", partial.display())).caused_by(error);
            if is_there {
                error.hinted(
                    "it is left from an interrupted export, or another export is running: remove it if none is",
                )
            } else {
                error
            }
        })?;
        Ok(Self { target: target.to_owned(), partial, packing, is_finished: false })
    }

    /// Makes a subdirectory.
    pub(super) fn directory(&self, name: &str) -> Result<()> {
        let path = self.partial.join(name);
        DirBuilder::new().mode(0o700).create(&path).context(format_args!("make {}", path.display()))
    }

    /// Makes a file in it, compressed like all files with rows.
    pub(super) fn rows_file(&self, name: &str) -> Result<OutFile> {
        self.open(format!("{name}{}", self.packing.extension()), self.packing)
    }

    /// Makes a file in it that programs read to find the others: it is not compressed.
    pub(super) fn file(&self, name: &str) -> Result<OutFile> {
        self.open(name.to_owned(), Packing::None)
    }

    fn open(&self, name: String, packing: Packing) -> Result<OutFile> {
        let path = self.partial.join(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.context(format_args!("make {}", path.display()))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let writer = match packing {
            Packing::None => Writer::Plain(file),
            Packing::Gzip => Writer::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Packing::Zstd => {
                let encoder = zstd::stream::write::Encoder::new(file, 1);
                Writer::Zstd(encoder.context(format_args!("compress {}", path.display()))?)
            }
        };
        Ok(OutFile { path, writer })
    }

    /// Adds to a failure to write where room is needed.
    pub(super) fn explain(&self, error: Error) -> Error {
        let is_full = |cause: &io::Error| {
            matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        };
        if !error.cause::<io::Error>().is_some_and(is_full) {
            return error;
        }
        error.also_hinted(format_args!("make room for {}, and export again", self.target.display()))
    }

    /// Gives the directory its name. All of its files are durable by then.
    pub(super) fn finish(mut self, directories: &[String]) -> Result<()> {
        let sync = |path: &Path| {
            let synced = File::open(path).and_then(|directory| directory.sync_all());
            synced.context(format_args!("make {} durable", path.display()))
        };
        directories.iter().try_for_each(|name| sync(&self.partial.join(name)))?;
        sync(&self.partial)?;
        match renameat_with(CWD, &self.partial, CWD, &self.target, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Err(there_already(&self.target)),
            // File systems without it: a process that makes the directory at this very moment is not noticed.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                if fs::symlink_metadata(&self.target).is_ok() {
                    return Err(there_already(&self.target));
                }
                fs::rename(&self.partial, &self.target)
                    .context(format_args!("name {}", self.target.display()))?;
            }
            Err(error) => {
                return Err(Error::failed(format!("name {}", self.target.display())).caused_by(error));
            }
        }
        self.is_finished = true;
        match self.target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
            _ => sync(Path::new(".")),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_finished {
            // Remains that cannot be removed block the next export, which says so.
            let _left = fs::remove_dir_all(&self.partial);
        }
    }
}

fn there_already(target: &Path) -> Error {
    Error::new(ErrorKind::Usage, format!("{} exists already", target.display()))
        .hinted("an export makes its directory itself: name one that does not exist")
}

/// A file being written.
pub(super) struct OutFile {
    path: PathBuf,
    writer: Writer,
}

enum Writer {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<File>>),
}

impl OutFile {
    /// Ends the file and makes it durable. Returns its size.
    pub(super) fn finish(self) -> Result<u64> {
        let ended = match self.writer {
            Writer::Plain(file) => Ok(file),
            Writer::Gzip(encoder) => encoder.finish(),
            Writer::Zstd(encoder) => encoder.finish(),
        };
        let file = ended.and_then(|file| file.into_inner().map_err(io::IntoInnerError::into_error));
        let len = file.and_then(|file| file.sync_all().and_then(|()| Ok(file.metadata()?.len())));
        len.context(format_args!("write {}", self.path.display()))
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.writer {
            Writer::Plain(file) => file.write(bytes),
            Writer::Gzip(encoder) => encoder.write(bytes),
            Writer::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.writer {
            Writer::Plain(file) => file.flush(),
            Writer::Gzip(encoder) => encoder.flush(),
            Writer::Zstd(encoder) => encoder.flush(),
        }
    }
}
