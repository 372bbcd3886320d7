//! What this host has seen of repositories, kept in the user's cache directory: whoever can write a store can put an
//! old state of it back, in which everything is genuine, but not change what others remember of it.
//!
//! `seen/REPOSITORY-ID.json` has, for each location of the repository (a replica elsewhere may lag behind), the newest
//! outcome of each log. It is only a memory: without it, or if it cannot be written, everything works as usual.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex},
};

use holdfast_pipe::lock::lock;
use holdfast_repo::{
    LogName, Repo, RunNo,
    format::hash::ObjectHash,
    witness::{Seen, SetBack, Witness},
};
use serde::{Deserialize, Serialize};

use crate::output::Output;

/// Larger files are none of ours.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// An outcome, as it is written down.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Noted {
    run: u64,
    outcome: ObjectHash,
}

/// Locations, with their logs.
type Notes = BTreeMap<String, BTreeMap<String, Noted>>;

/// What was seen of one repository.
struct SeenRepository {
    path: PathBuf,
    location: String,
    witness: Arc<Witness>,
}

/// What was seen of the repositories that a command has opened.
#[derive(Default)]
pub(crate) struct SeenRepositories(Mutex<Vec<SeenRepository>>);

impl SeenRepositories {
    /// The repository, compared with what was seen of it before. Warns if it was set back.
    pub(crate) fn witness(&self, cache_dir: &Path, repo: Repo, output: &Arc<Output>) -> Repo {
        let path = cache_dir.join("seen").join(format!("{}.json", repo.info().repository_id));
        let location = repo.store().location();
        let noted = read(&path).remove(&location).unwrap_or_default();
        let parsed = noted.into_iter().filter_map(|(log, noted)| {
            Some((log.parse().ok()?, Seen { run: RunNo(noted.run), outcome: noted.outcome }))
        });
        let (output, file) = (Arc::clone(output), path.display().to_string());
        let tell = move |log: &LogName, set_back: SetBack| {
            let outcome = log.outcome(set_back.run);
            output.warning(format!(
                "{outcome} {set_back}; if somebody did that on purpose, delete {file}, in which this host \
                 remembers it"
            ));
        };
        let witness = Arc::new(Witness::new(parsed.collect(), tell));
        lock(&self.0).push(SeenRepository { path, location, witness: Arc::clone(&witness) });
        repo.witnessed(witness)
    }

    /// The outcomes that were seen before and are gone or replaced, by their names.
    pub(crate) fn set_back(&self) -> Vec<(String, SetBack)> {
        let all = lock(&self.0);
        let set_back = all.iter().flat_map(|repository| repository.witness.set_back());
        set_back.map(|(log, set_back)| (log.outcome(set_back.run).to_string(), set_back)).collect()
    }

    /// Remembers what was seen.
    pub(crate) fn save(&self) {
        for repository in lock(&self.0).drain(..) {
            // Who has no memory is told nothing, and nothing else depends on it.
            let _ = repository.save();
        }
    }
}

impl SeenRepository {
    fn save(&self) -> io::Result<()> {
        // Another command may have written it meanwhile.
        let mut notes = read(&self.path);
        let noted = notes.entry(self.location.clone()).or_default();
        let mut is_changed = false;
        for (log, Seen { run, outcome }) in self.witness.seen() {
            let log = log.to_string();
            if noted.get(&log).is_none_or(|noted| noted.run < run.0) {
                noted.insert(log, Noted { run: run.0, outcome });
                is_changed = true;
            }
        }
        if is_changed { write(&self.path, &notes) } else { Ok(()) }
    }
}

/// What is written down; nothing, if that cannot be read.
fn read(path: &Path) -> Notes {
    let read = || -> io::Result<Notes> {
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    };
    read().unwrap_or_default()
}

/// Replaces the file by a whole one.
fn write(path: &Path, notes: &Notes) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let unfinished = path.with_extension(format!("{}.tmp", process::id()));
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).and_then(|mut file| {
            file.write_all(&serde_json::to_vec(notes)?).and_then(|()| fs::rename(&unfinished, path))
        });
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}
