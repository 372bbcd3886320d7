//! Reads the dump's bytes: files, standard input, compressed data, and the files of a directory in their
//! order.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufReader, Cursor, Read},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use holdfast_formats::dump::{
    Metadata,
    metadata::{FileName, Kind, Maker},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
};

use crate::{
    error::{Context, Error, ErrorKind, Result},
    event::Cancel,
    logical::selection::is_like_own_schema,
};

/// How many bytes tell how a file is compressed.
const MAGIC_BYTES: usize = 8;
/// How long to wait for a pipe before checking for cancellation again.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// The longest `metadata` of a directory: what it says of the server, and some hundred bytes for each table,
/// which has a file.
const METADATA_BYTES_MAX: u64 = 16 << 20;
const METADATA_BYTES_PER_FILE_MAX: u64 = 2 << 10;
/// A number and a line end.
const COUNT_BYTES_MAX: u64 = 64;
const READ_BYTES: usize = 128 << 10;

/// What to import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file with statements.
    File(PathBuf),
    /// A directory made by mydumper.
    Directory(PathBuf),
    /// Standard input.
    Stdin,
}

impl Input {
    /// What a path leads to; `-` is standard input.
    pub fn of(path: &Path) -> Result<Input> {
        if path == Path::new("-") {
            return Ok(Input::Stdin);
        }
        let meta =
            fs::metadata(path).context_kind(ErrorKind::Usage, format!("look at {}", path.display()))?;
        Ok(if meta.is_dir() { Input::Directory(path.to_owned()) } else { Input::File(path.to_owned()) })
    }

    /// Its name, without parent directories.
    pub(super) fn name(&self) -> String {
        match self {
            Input::File(path) | Input::Directory(path) => {
                let path = path.canonicalize().unwrap_or_else(|_| path.clone());
                path.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned())
            }
            Input::Stdin => "-".to_owned(),
        }
    }

    /// Whether it can be read twice.
    pub(super) fn can_be_read_again(&self) -> bool {
        match self {
            Input::File(path) => fs::metadata(path).is_ok_and(|meta| meta.is_file()),
            Input::Directory(_) => true,
            Input::Stdin => false,
        }
    }
}

/// Counts the bytes read, before they are decompressed.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter(Arc<AtomicU64>);

impl Meter {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A file that may never end, read until the import is cancelled.
struct Watched {
    file: File,
    cancel: Cancel,
    meter: Meter,
    is_regular: bool,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.cancel.is_cancelled() {
                return Err(io::Error::other("interrupted"));
            }
            if self.is_regular {
                break;
            }
            let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut fds, Some(&POLL)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let count = self.file.read(buffer)?;
        self.meter.0.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Something that the metadata lists and no file makes.
fn missing(metadata: &Metadata, files: &[(String, FileName)]) -> Option<String> {
    let is_there = |maker: &&Maker| {
        files.iter().map(|(_, file)| file).any(|file| {
            // Triggers of a table may be in the file for the whole database.
            let is_of_table =
                file.table == maker.table || (maker.kind == Kind::Triggers && file.table.is_none());
            let is_of_some = maker.table.is_none() && maker.kind == Kind::Triggers;
            file.kind == maker.kind && file.database == maker.database && (is_of_table || is_of_some)
        })
    };
    let missing = metadata
        .makers
        .iter()
        .filter(|maker| !is_like_own_schema(&maker.database))
        .find(|it| !is_there(it))?;
    let Maker { kind, database, table } = missing;
    let name = table.as_ref().map_or_else(|| database.clone(), |table| format!("{database}.{table}"));
    let what = match kind {
        Kind::View => "makes the view",
        Kind::Sequence => "makes the sequence",
        Kind::Triggers => "makes the triggers of",
        Kind::Programs => "makes the routines and events of",
        _ => "makes the table",
    };
    Some(format!("has no file that {what} {name}, which its metadata lists"))
}

/// A table whose number of rows is given nowhere.
fn uncounted<'a>(metadata: &Metadata, files: &'a [(String, FileName)]) -> Option<(&'a str, &'a str)> {
    let is_view = |of: &FileName| {
        files
            .iter()
            .any(|(_, it)| (it.kind, &it.database, &it.table) == (Kind::View, &of.database, &of.table))
    };
    let tables =
        files.iter().map(|(_, file)| file).filter(|file| matches!(file.kind, Kind::Table | Kind::Rows));
    tables.filter(|file| !is_like_own_schema(&file.database)).find_map(|file| {
        let table = file.table.as_ref()?;
        let is_counted = metadata.rows.contains_key(&(file.database.clone(), table.clone()));
        (!is_counted && !is_view(file)).then_some((file.database.as_str(), table.as_str()))
    })
}

/// Opens the text of a file that the user has named, or without a name, of standard input.
pub(super) fn open(path: Option<&Path>, meter: &Meter, cancel: &Cancel) -> Result<Box<dyn Read>> {
    let shown = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let doing = || format!("open {shown}");
    cancel.check()?;
    let file = match path {
        Some(path) => File::open(path).context_kind(ErrorKind::Usage, doing())?,
        None => File::from(io::stdin().as_fd().try_clone_to_owned().context(doing())?),
    };
    text_of(shown, file, meter, cancel)
}

/// Opens the text of a file in a directory.
pub(super) fn open_of_directory(path: &Path, meter: &Meter, cancel: &Cancel) -> Result<Box<dyn Read>> {
    cancel.check()?;
    text_of(path.display().to_string(), open_regular(path)?, meter, cancel)
}

/// Opens a file in a directory that someone else made: nothing that leads elsewhere, or has no end.
fn open_regular(path: &Path) -> Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
    let opened = File::options().read(true).custom_flags(flags).open(path);
    let doing = || format!("open {}", path.display());
    let file = opened.context_kind(ErrorKind::Usage, doing())?;
    if !file.metadata().context(doing())?.is_file() {
        return Err(irregular(path));
    }
    Ok(file)
}

fn irregular(path: &Path) -> Error {
    let text = format!("{} is not a regular file, but a link, a pipe or a directory", path.display());
    Error::new(ErrorKind::Usage, text)
        .hinted("links could lead to any file of this host: put the dump's own files there")
}

fn text_of(shown: String, file: File, meter: &Meter, cancel: &Cancel) -> Result<Box<dyn Read>> {
    let doing = || format!("open {shown}");
    let is_regular = file.metadata().context(doing())?.is_file();
    let mut file = Watched { file, cancel: cancel.clone(), meter: meter.clone(), is_regular };
    let mut begin = Vec::new();
    (&mut file).take(MAGIC_BYTES as u64).read_to_end(&mut begin).context(doing())?;
    unpacked(&shown, begin, file)
}

/// Decompresses data that begins like compressed data.
fn unpacked(shown: &str, begin: Vec<u8>, rest: impl Read + 'static) -> Result<Box<dyn Read>> {
    const OTHERS: [(&[u8], &str, &str); 4] = [
        (b"\xFD7zXZ\0", "xz", "xz -dc"),
        (b"BZh", "bzip2", "bzip2 -dc"),
        (b"\x04\x22\x4D\x18", "lz4", "lz4 -dc"),
        (b"PK\x03\x04", "zip", "unzip -p"),
    ];
    let is = |magic: &[u8]| begin.starts_with(magic);
    if let Some((_, name, program)) = OTHERS.iter().find(|(magic, _, _)| is(magic)) {
        return Err(Error::new(ErrorKind::Usage, format!("{shown} is compressed by {name}"))
            .hinted(format!("{program} FILE | holdfast import - ...")));
    }
    if is(b"\xFF\xFE") || is(b"\xFE\xFF") {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("{shown} is text in UTF-16, which no client reads"),
        )
        .hinted(
            "a shell that redirects output changes it so: let the tool write its file itself (--result-file)",
        ));
    }
    let is_gzip = is(&[0x1F, 0x8B]);
    let is_zstd = is(&[0x28, 0xB5, 0x2F, 0xFD]);
    let begin = begin.strip_prefix(b"\xEF\xBB\xBF").map(<[u8]>::to_vec).unwrap_or(begin);
    let whole = BufReader::with_capacity(READ_BYTES, Cursor::new(begin).chain(rest));
    Ok(match (is_gzip, is_zstd) {
        (true, _) => Box::new(flate2::bufread::MultiGzDecoder::new(whole)),
        (_, true) => Box::new(zstd::stream::read::Decoder::with_buffer(whole).context("start zstd")?),
        _ => Box::new(whole),
    })
}

/// A directory of mydumper.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    pub(super) metadata: Metadata,
    /// Files to execute, in this order.
    pub(super) files: Vec<(String, FileName)>,
    /// Files with rows that other files load: the names they use, and the real ones.
    contents: BTreeMap<String, String>,
    /// Files that mydumper does not make.
    pub(super) strange: Vec<String>,
    pub(super) bytes: u64,
    /// Whether the number of rows is given for every table.
    pub(super) is_counted: bool,
}

impl Directory {
    /// Looks at a directory. Refuses one that mydumper has not finished, and one in which files are missing,
    /// or could be, unless the user says that it is whole.
    pub(super) fn read(path: &Path, is_whole: bool) -> Result<Directory> {
        let Listed { files, contents, strange, rows, bytes } = Listed::of(path)?;
        let mut metadata = finished_metadata(&path.join("metadata"), files.len())?;
        metadata.rows.extend(rows);
        let uncounted = uncounted(&metadata, &files);
        let is_counted = uncounted.is_none();
        if !is_whole {
            const HINT: &str = "--without-end-mark takes the directory as it is, if it is known to be whole";
            let shown = path.display();
            if let Some(text) = missing(&metadata, &files) {
                return Err(usage(format!("{shown} {text}")).hinted(HINT));
            }
            if let Some((database, table)) = uncounted {
                return Err(usage(format!(
                    "{shown} does not say how many rows {database}.{table} has: missing files would not be noticed"
                ))
                .hinted(HINT));
            }
        }
        Ok(Directory { path: path.to_owned(), metadata, files, contents, strange, bytes, is_counted })
    }

    /// The file that a statement loads, which must be one of this directory.
    pub(super) fn content(&self, named: &str) -> Result<PathBuf> {
        // Older versions write the whole path that they dumped to.
        let name = named.rsplit('/').next().unwrap_or(named);
        let plain = [".gz", ".zst"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let found = self.contents.get(plain).map(|name| self.path.join(name));
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::Usage,
                format!("{} has no {name}, which a statement loads", self.path.display()),
            )
        })
    }
}

/// The files of a directory.
#[derive(Default)]
struct Listed {
    /// By kind, then by name, so that parts of a table are in order.
    files: Vec<(String, FileName)>,
    contents: BTreeMap<String, String>,
    strange: Vec<String>,
    /// Numbers of rows, from versions whose metadata lacks them.
    rows: BTreeMap<(String, String), u64>,
    bytes: u64,
}

impl Listed {
    fn of(path: &Path) -> Result<Self> {
        let doing = || format!("look at {}", path.display());
        let mut listed = Self::default();
        let mut has_metadata = false;
        for entry in fs::read_dir(path).context_kind(ErrorKind::Usage, doing())? {
            let entry = entry.context(doing())?;
            match entry.file_name().to_str() {
                Some(name) => {
                    has_metadata |= name == "metadata";
                    listed.add(path, name, &entry)?;
                }
                None => listed.strange.push(entry.file_name().to_string_lossy().into_owned()),
            }
        }
        if !has_metadata {
            return Err(usage(format!(
                "{} has no file called metadata: it is not a directory of mydumper, or not finished",
                path.display()
            )));
        }
        listed
            .files
            .sort_by(|(one, of_one), (other, of_other)| (of_one.kind, one).cmp(&(of_other.kind, other)));
        listed.strange.sort();
        Ok(listed)
    }

    fn add(&mut self, path: &Path, name: &str, entry: &fs::DirEntry) -> Result<()> {
        let shown = path.display();
        if name == "metadata.partial" {
            return Err(usage(format!(
                "{shown} is not finished: mydumper is still writing it, or was interrupted"
            ))
            .hinted(NOT_WHOLE));
        }
        // Of a link, its own metadata: it could lead to any file of this host.
        let meta = entry.metadata().context(format!("look at {shown}"))?;
        let file_name = FileName::parse(name);
        if !meta.is_file() && (file_name.is_some() || name == "metadata") {
            return Err(irregular(&entry.path()));
        }
        match file_name {
            Some(FileName { kind: Kind::Note, database, table }) => {
                if let Some(table) = table.filter(|_| name.ends_with("-metadata")) {
                    let count = first_bytes(&entry.path(), COUNT_BYTES_MAX)?;
                    let count = String::from_utf8_lossy(&count).trim().parse::<u64>();
                    self.rows.extend(count.ok().map(|count| ((database, table), count)));
                }
            }
            Some(FileName { kind: Kind::Content, .. }) => {
                let plain = [".gz", ".zst"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
                self.contents.insert(plain.to_owned(), name.to_owned());
                self.bytes += meta.len();
            }
            Some(file) => {
                self.bytes += meta.len();
                self.files.push((name.to_owned(), file));
            }
            None if name == "metadata" => {}
            None if name.contains(".sql") || name.contains(".dat") => {
                return Err(usage(format!("{shown} has {name}, which mydumper does not make")).hinted(
                    "take it out of the directory; what is compressed otherwise than by gzip or zstd must be decompressed",
                ));
            }
            None => self.strange.push(name.to_owned()),
        }
        Ok(())
    }
}

/// The metadata of a finished dump of so many files.
fn finished_metadata(file: &Path, files: usize) -> Result<Metadata> {
    let bytes_max = METADATA_BYTES_MAX + METADATA_BYTES_PER_FILE_MAX * files as u64;
    let text = first_bytes(file, bytes_max + 1)?;
    if text.len() as u64 > bytes_max {
        return Err(usage(format!("{} is longer than that of any dump with these files", file.display())));
    }
    let metadata = Metadata::parse(&String::from_utf8_lossy(&text));
    if metadata.finished_at.is_none() {
        return Err(usage(format!(
            "{} does not say when the dump was finished: it was interrupted",
            file.display()
        ))
        .hinted(NOT_WHOLE));
    }
    Ok(metadata)
}

const NOT_WHOLE: &str = "a dump that is not whole is no backup: dump again";

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

fn first_bytes(path: &Path, count: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(count).read_to_end(&mut bytes).context(format!("read {}", path.display()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn text(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("dump");
        fs::write(&path, bytes)?;
        let mut text = Vec::new();
        let opened = open(Some(&path), &Meter::default(), &Cancel::default());
        opened.map_err(|error| io::Error::other(error.to_string()))?.read_to_end(&mut text)?;
        Ok(text)
    }

    /// Only as much is read of a `metadata` as a dump with these files can have.
    #[test]
    fn metadata_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("metadata")).unwrap();
        file.set_len(1 << 40).unwrap();
        let error = Directory::read(dir.path(), true).unwrap_err();
        assert!(error.to_string().contains("longer than that of any dump"), "{error}");
    }

    /// Compressed data is decompressed to its end, even if in several parts; damaged or unknown data is
    /// refused.
    #[test]
    fn compressed_files() {
        let gzip = |text: &[u8]| {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            out.write_all(text).unwrap();
            out.finish().unwrap()
        };
        let zstd = |text: &[u8]| zstd::stream::encode_all(text, 1).unwrap();
        assert_eq!(text(b"SELECT").unwrap(), b"SELECT");
        assert_eq!(text(b"x").unwrap(), b"x");
        assert_eq!(text(b"\xEF\xBB\xBF-- x").unwrap(), b"-- x");
        assert_eq!(text(&[gzip(b"one"), gzip(b"two")].concat()).unwrap(), b"onetwo");
        assert_eq!(text(&[zstd(b"one"), zstd(b"two")].concat()).unwrap(), b"onetwo");
        for whole in [gzip(&[7; 1000]), zstd(&[7; 1000])] {
            text(&whole[..whole.len() - 3]).unwrap_err();
            let mut other = whole.clone();
            let middle = other.len() / 2;
            other[middle] ^= 0x55;
            assert!(text(&other).map_or(true, |found| found != [7; 1000]));
        }
        assert!(text(b"\xFD7zXZ\0...").unwrap_err().to_string().contains("xz"));
    }
}
