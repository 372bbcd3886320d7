//! The page maps of a writer's last backup, kept on its own host.
//!
//! A writer's key cannot read the backup that it builds on. The writer therefore keeps what it compares with,
//! which it has written itself: hashes of pages and where they are stored. These are the manifest head, and
//! the plain chunks of leaves, items and roots, named by their hash.
//!
//! Invariants:
//! - A file that is lost, damaged, replaced, or of another repository, source, key or run means that pages
//!   are stored anew, never that a reference leads to the wrong page: the head has a MAC made with a key that
//!   only this writer has, and keyed hashes tie everything else to the head.
//! - A new backup builds on these maps only if their backup stands, with exactly the recorded outcome.
//! - Memory holds only the hash of each chunk (of some 50,000 pages).

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Mutex,
};

use holdfast_pipe::{HashKey, PageHash, lock::lock};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, open, unlinkat};
use serde::{Deserialize, Serialize};

use crate::{
    error::RepoError,
    format::{
        columns::CHUNK_BYTES_MAX,
        hash::ObjectHash,
        hex::{Secret32, to_hex},
        names::{LogName, RunNo},
    },
    log::{
        history::History,
        outcome::{HEAD_BYTES_MAX, Outcome},
    },
    repo::Repo,
};

const MAGIC: &[u8; 8] = b"HFMAPS1\n";
const MAC_BYTES: usize = 32;
const MAC_CONTEXT: &str = "holdfast 2026-11 local maps 1";
const DESCRIPTION_BYTES_MAX: u64 = 4096;
/// What the names of files that are being written begin with.
const TEMPORARY: &str = "tmp-";
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The backup that the maps belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Description {
    repository: String,
    log: String,
    run: u64,
    /// Hash of its outcome.
    outcome: ObjectHash,
}

/// The head as found on disk when the maps were opened.
struct Remembered {
    run: RunNo,
    outcome: ObjectHash,
    head: Vec<u8>,
}

/// The page maps of the last backup that this key has added to a log. Shared between threads.
pub struct LocalMaps {
    directory: PathBuf,
    description: Description,
    mac_key: Secret32,
    hash_key: HashKey,
    remembered: Option<Remembered>,
    /// Chunks that the backup being written needs.
    kept: Mutex<HashSet<PageHash>>,
    /// The first write that failed.
    failure: Mutex<Option<io::Error>>,
}

impl std::fmt::Debug for LocalMaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LocalMaps({})", self.directory.display())
    }
}

impl LocalMaps {
    /// Opens the maps of `log` below `directory`, which may hold those of many repositories and sources.
    /// Writes nothing yet.
    ///
    /// # Errors
    /// The key adds no backups. Anything that cannot be read or trusted counts as absent.
    pub fn open(directory: &Path, repo: &Repo, log: &LogName) -> Result<Self, RepoError> {
        let repository = repo.info().repository_id.to_string();
        let directory = directory.join(&repository).join(format!("{}-{}", log.source, log.kind));
        let mac_key = repo.keys().local_key(MAC_CONTEXT);
        let nothing =
            Description { repository, log: log.to_string(), run: 0, outcome: crate::format::hash::NO_OBJECT };
        let remembered = read_head(&directory.join("head"), &mac_key, &nothing);
        Ok(Self {
            directory,
            description: nothing,
            mac_key,
            hash_key: repo.hash_key()?.clone(),
            remembered,
            kept: Mutex::default(),
            failure: Mutex::default(),
        })
    }

    /// The directory of these maps.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The backup whose maps are kept, if it stands and still has the recorded outcome.
    #[must_use]
    pub fn backup(&self, history: &History) -> Option<RunNo> {
        let known = self.remembered.as_ref()?;
        let is_same = history.outcome(known.run).is_some_and(|outcome| outcome.hash == known.outcome);
        (is_same && history.stands(known.run)).then_some(known.run)
    }

    /// The manifest head of a backup, as JSON, if its maps are kept.
    #[must_use]
    pub fn head(&self, history: &History, run: RunNo) -> Option<&[u8]> {
        let known = self.remembered.as_ref()?;
        (self.backup(history) == Some(run)).then_some(&known.head)
    }

    fn chunk_path(&self, hash: PageHash) -> PathBuf {
        self.directory.join("maps").join(to_hex(&hash.0))
    }

    /// The plain chunk with this hash, if it is kept and intact.
    pub(crate) fn get(&self, hash: PageHash) -> Option<Vec<u8>> {
        let path = self.chunk_path(hash);
        let plain = read_bounded(&path, CHUNK_BYTES_MAX as u64).ok()?;
        if self.hash_key.hash(&plain) == hash {
            return Some(plain);
        }
        // Removed, so that an intact chunk can be written in its place.
        let _ = fs::remove_file(path);
        None
    }

    /// Notes that the backup being written needs the chunk with this hash, which is kept already.
    pub(crate) fn keep(&self, hash: PageHash) {
        lock(&self.kept).insert(hash);
    }

    /// Keeps this chunk, which the backup being written needs.
    pub(crate) fn remember(&self, hash: PageHash, plain: &[u8]) {
        self.keep(hash);
        let path = self.chunk_path(hash);
        let is_there = fs::metadata(&path).is_ok_and(|found| found.len() == plain.len() as u64);
        if is_there {
            return;
        }
        if let Err(error) = self.write(&path, &[plain]) {
            lock(&self.failure).get_or_insert(error);
        }
    }

    /// Commits the maps of this backup, which stands now: from now on, exactly what it needs is kept.
    ///
    /// # Errors
    /// Not all of it could be written, in which case the maps kept before are still in place; or chunks that
    /// are no longer needed could not be deleted.
    pub fn commit(&self, outcome: &Outcome, head: &[u8]) -> io::Result<()> {
        if let Some(error) = lock(&self.failure).take() {
            return Err(error);
        }
        let description =
            Description { run: outcome.run.0, outcome: outcome.hash, ..self.description.clone() };
        let description = serde_json::to_vec(&description)?;
        let length = (description.len() as u32).to_le_bytes();
        let mac = mac(&self.mac_key, &[&length, &description, head]);
        self.write(&self.directory.join("head"), &[MAGIC, &mac, &length, &description, head])?;
        self.forget_the_rest()
    }

    fn forget_the_rest(&self) -> io::Result<()> {
        let kept: HashSet<String> = lock(&self.kept).iter().map(|hash| to_hex(&hash.0)).collect();
        // Whoever could put a link in its place must not have deleted what is there.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let maps = open(self.directory.join("maps"), flags, Mode::empty())?;
        for entry in Dir::read_from(&maps)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if is_own_name(name) && !kept.contains(name) {
                unlinkat(&maps, name, AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// Puts a file in its place atomically. It need not survive a crash of the host:
    /// files that are not whole are not trusted.
    fn write(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        let maps = self.directory.join("maps");
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&maps)?;
        if !fs::symlink_metadata(&maps)?.is_dir() {
            return Err(io::Error::other(format!("{} is a link: remove it", maps.display())));
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let temporary = maps.join(format!("{TEMPORARY}{}", to_hex(&random)));
        let written = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&temporary)?;
            parts.iter().try_for_each(|part| file.write_all(part))?;
            fs::rename(&temporary, path)
        };
        written().inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
    }
}

/// Whether a file among the maps is named as chunks are, or files that are being written.
fn is_own_name(name: &str) -> bool {
    let is_chunk = name.len() == 2 * size_of::<PageHash>()
        && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_chunk || name.starts_with(TEMPORARY)
}

fn mac(key: &Secret32, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

/// `None` unless this key wrote the file for this log.
fn read_head(path: &Path, key: &Secret32, expected: &Description) -> Option<Remembered> {
    let fixed = (MAGIC.len() + MAC_BYTES + 4) as u64;
    let bytes = read_bounded(path, fixed + DESCRIPTION_BYTES_MAX + HEAD_BYTES_MAX).ok()?;
    parse_head(&bytes, key, expected)
}

fn parse_head(bytes: &[u8], key: &Secret32, expected: &Description) -> Option<Remembered> {
    let after = bytes.strip_prefix(MAGIC)?;
    let (found, after) = after.split_first_chunk::<MAC_BYTES>()?;
    // Hashes of equal length are compared in constant time.
    if blake3::Hash::from_bytes(mac(key, &[after])) != blake3::Hash::from_bytes(*found) {
        return None;
    }
    let (length, after) = after.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (description, head) = after.split_at_checked(length)?;
    let description: Description = serde_json::from_slice(description).ok()?;
    let is_of_this_log = (&description.repository, &description.log) == (&expected.repository, &expected.log);
    let Description { run, outcome, .. } = description;
    is_of_this_log.then(|| Remembered { run: RunNo(run), outcome, head: head.to_vec() })
}

/// Reads a head made up by the fuzzer, once after a correct MAC and once as it is.
#[cfg(any(fuzzing, test))]
pub(crate) fn read_made_up(repo: &Repo, log: &LogName, made_up: &[u8]) -> bool {
    let key = repo.keys().local_key(MAC_CONTEXT);
    let expected = Description {
        repository: repo.info().repository_id.to_string(),
        log: log.to_string(),
        run: 0,
        outcome: crate::format::hash::NO_OBJECT,
    };
    let sealed = [MAGIC, &mac(&key, &[made_up])[..], made_up].concat();
    assert!(parse_head(made_up, &key, &expected).is_none(), "believed without its MAC");
    let read = parse_head(&sealed, &key, &expected);
    read.is_some_and(|read| made_up.ends_with(&read.head))
}

/// What a valid head has after its MAC.
#[cfg(any(fuzzing, test))]
pub(crate) fn honest_head(repo: &Repo, log: &LogName) -> Vec<u8> {
    let (repository, outcome) = (repo.info().repository_id.to_string(), crate::format::hash::NO_OBJECT);
    let description = Description { repository, log: log.to_string(), run: 1, outcome };
    let description = serde_json::to_vec(&description).unwrap_or_default();
    [&(description.len() as u32).to_le_bytes()[..], &description, b"{}"].concat()
}
