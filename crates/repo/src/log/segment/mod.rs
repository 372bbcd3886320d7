//! Segments: what a run has so far, durable and readable before the run ends
//! (`docs/reference/repository.md` section 6a).
//!
//! - Each contains the hash of the one before it, the first that of the outcome before the run:
//!   none can be dropped from the middle, reordered, or taken from another run unnoticed.
//! - They are needed until the run has an outcome as a backup, which has the same bytes in packs, or until
//!   such an outcome of a later run says that it has taken them over.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    error::{Damage, RepoError},
    format::{
        hash::{NO_OBJECT, ObjectHash, object_hash},
        names::{Folder, LogName, RunNo},
        place::{ObjectKind, Place},
    },
    keys::Act,
    log::{
        history::History,
        outcome::OutcomeType,
        signed::{signed_bytes, split_signed},
    },
    repo::Repo,
    sealed::{seal_object, sealed_limit_bytes},
    store::{ahead, exists, read_all},
};

/// Plain bytes of a segment, at most: a server's largest event, and what came before it.
pub const SEGMENT_BYTES_MAX: u64 = (1 << 30) + (32 << 20);
/// Bytes of a segment's public part, at most.
const PUBLIC_BYTES_MAX: u64 = 2 << 20;
/// Bytes of a sealed segment, at most.
pub const OBJECT_BYTES_MAX: u64 =
    sealed_limit_bytes(SEGMENT_BYTES_MAX) + sealed_limit_bytes(PUBLIC_BYTES_MAX) + 128;

const MAGIC: &[u8; 4] = b"HFG1";
const CONTEXT: &[u8] = b"holdfast segment 1\0";

#[derive(Serialize, Deserialize)]
struct Public {
    run: u64,
    part: u32,
    previous: ObjectHash,
    tail: Map<String, Value>,
}

/// Writes the segments of a run, in order.
pub struct SegmentWriter {
    repo: Arc<Repo>,
    log: LogName,
    run: RunNo,
    next: u32,
    previous: ObjectHash,
}

/// A sealed segment. Storing it can be repeated until it succeeds.
#[derive(Debug)]
pub struct SealedSegment {
    part: u32,
    object: Vec<u8>,
}

impl SealedSegment {
    /// Its number in the run.
    #[must_use]
    pub fn part(&self) -> u32 {
        self.part
    }

    /// The object as it is stored.
    #[must_use]
    pub fn object(&self) -> &[u8] {
        &self.object
    }
}

impl SegmentWriter {
    /// For `run`, which has begun after `history`.
    pub(super) fn new(repo: &Arc<Repo>, history: &History, run: RunNo) -> Self {
        let (repo, log) = (Arc::clone(repo), history.log().clone());
        Self { repo, log, run, next: 0, previous: history.last_hash() }
    }

    /// Seals the next segment: `bytes`, and `tail`, which says where they end and which every role can read.
    pub fn seal(&mut self, tail: Map<String, Value>, bytes: &[u8]) -> Result<SealedSegment, RepoError> {
        let (part, log) = (self.next, &self.log);
        let place = Place { log, kind: ObjectKind::SegmentPublic, run: self.run, part };
        let public = Public { run: self.run.0, part, previous: self.previous, tail };
        let public = serde_json::to_vec(&public)
            .map_err(|_| RepoError::malformed(place, "its public part cannot be written as JSON"))?;
        let parts = [
            ("content", bytes.len() as u64, SEGMENT_BYTES_MAX),
            ("public part", public.len() as u64, PUBLIC_BYTES_MAX),
        ];
        for (what, size_bytes, limit_bytes) in parts {
            if size_bytes > limit_bytes {
                return Err(RepoError::TooLarge { object: place.to_string(), what, size_bytes, limit_bytes });
            }
        }
        let public = seal_object(self.repo.keys(), &place, &public)?;
        let bytes = seal_object(self.repo.keys(), &Place { kind: ObjectKind::SegmentBytes, ..place }, bytes)?;
        let object = signed_bytes(&self.repo, &place, MAGIC, CONTEXT, &[&public, &bytes]);
        self.next += 1;
        self.previous = object_hash(&object);
        Ok(SealedSegment { part, object })
    }

    /// Stores a segment; it is durable on return.
    ///
    /// # Errors
    /// [`RepoError::is_exists`] if another process, acting as the same run, has stored
    /// another segment: this one has lost.
    pub fn store(&self, segment: &SealedSegment) -> Result<(), RepoError> {
        store_sealed(&self.repo, &self.log, self.run, segment.part, &segment.object)
    }

    /// Whether the run has an outcome. If the run's own process has not ended it, another has taken its place
    /// and read its segments: segments stored later count for nobody.
    pub fn is_ended(&self) -> Result<bool, RepoError> {
        is_ended(&self.repo, &self.log, self.run)
    }

    /// How many segments were sealed.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.next
    }
}

/// A segment that was read.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its number in the run.
    pub part: u32,
    /// Where its bytes end.
    pub tail: Map<String, Value>,
    /// Its bytes; `None` for a key that cannot read.
    pub bytes: Option<Vec<u8>>,
}

/// Reads the segments of one run, in order, as far as they are stored; more may be read later.
///
/// If the store is far away, listed segments are fetched several at a time; a run has thousands in an hour.
pub struct SegmentReader {
    repo: Arc<Repo>,
    log: LogName,
    run: RunNo,
    next: u32,
    previous: ObjectHash,
    /// Segments from `next` on that were listed, with their sizes. `None` until they are.
    listed: Option<VecDeque<(u32, u64)>>,
    /// Segments from `next` on that were fetched.
    fetched: VecDeque<Vec<u8>>,
    /// Whether nothing from `next` on is believed.
    is_cut: bool,
}

impl SegmentReader {
    /// For a run whose predecessors `history` knows.
    #[must_use]
    pub fn new(repo: &Arc<Repo>, history: &History, run: RunNo) -> Self {
        let before = run.0.checked_sub(1).and_then(|before| history.hash_of(RunNo(before)));
        let previous = before.unwrap_or(NO_OBJECT);
        let (repo, log) = (Arc::clone(repo), history.log().clone());
        Self { repo, log, run, next: 0, previous, listed: None, fetched: VecDeque::new(), is_cut: false }
    }

    /// Number of the segment that is read next.
    #[must_use]
    pub fn next_part(&self) -> u32 {
        self.next
    }

    /// The bytes of the next segment; `None` if there is none yet.
    fn fetch(&mut self) -> Result<Option<Vec<u8>>, RepoError> {
        if let Some(object) = self.fetched.pop_front() {
            return Ok(Some(object));
        }
        let (repo, log, run, next) = (&self.repo, &self.log, self.run, self.next);
        let store = repo.store();
        let read = |part| {
            let path = Place { log, kind: ObjectKind::SegmentPublic, run, part }.path();
            match read_all(&**store, &path, OBJECT_BYTES_MAX) {
                Err(error) if error.is_not_found() => Ok(None),
                object => object.map(Some).map_err(RepoError::from),
            }
        };
        let at_once = store.reads_at_once();
        let listed = match &mut self.listed {
            Some(listed) => listed,
            None => self.listed.insert(if at_once > 1 {
                list_from(repo, log, run, next)?
            } else {
                VecDeque::new()
            }),
        };
        let count = ahead::batch(at_once, listed.make_contiguous(), &|(_, size_bytes)| *size_bytes);
        let parts: Vec<u32> = listed.drain(..count.min(listed.len())).map(|(part, _)| part).collect();
        // Segments after a missing one are of no use, and after the last one listed there may be more by now.
        if !parts.iter().copied().eq(next..next + parts.len() as u32) || parts.is_empty() {
            listed.clear();
            return read(next);
        }
        let fetched = &mut self.fetched;
        let mut is_missing = false;
        ahead::in_order(
            at_once,
            &parts,
            |part| read(*part),
            |_, object| {
                is_missing |= object.is_none();
                fetched.extend(object.filter(|_| !is_missing));
                Ok(())
            },
        )?;
        Ok(self.fetched.pop_front())
    }

    /// The next segment; `None` if there is none yet.
    pub fn read_next(&mut self) -> Result<Option<Segment>, RepoError> {
        if self.is_cut {
            return Ok(None);
        }
        let Some(object) = self.fetch()? else { return Ok(None) };
        let (repo, part) = (&self.repo, self.next);
        let place = Place { log: &self.log, kind: ObjectKind::SegmentPublic, run: self.run, part };
        let (public, bytes) = match open_public(repo, place, &object) {
            // Its key was removed before: it came too late to be believed, and so did all after it.
            Err(error) if error.is_of_removed_signer() => {
                self.is_cut = true;
                return Ok(None);
            }
            opened => opened?,
        };
        if public.previous != self.previous {
            return Err(RepoError::damaged(place, Damage::SegmentChain));
        }
        let bytes = match repo.can_read() {
            true => {
                let place = Place { kind: ObjectKind::SegmentBytes, ..place };
                Some(repo.open_object(&place, bytes, SEGMENT_BYTES_MAX)?)
            }
            false => None,
        };
        self.next += 1;
        self.previous = object_hash(&object);
        Ok(Some(Segment { part, tail: public.tail, bytes }))
    }

    /// Checks that no segment is stored beyond the last that was read: the one before it would be lost.
    pub fn check_end(&self) -> Result<(), RepoError> {
        if self.is_cut {
            return Ok(());
        }
        let stored = list_segments(&self.repo, &self.log)?;
        let is_last =
            stored.get(&self.run).and_then(|parts| parts.last()).is_none_or(|last| *last <= self.next);
        let next = self.log.segment(self.run, self.next);
        // The run may have stored it, and more, since it was looked for: a long listing takes time.
        if is_last || exists(&**self.repo.store(), &next)? {
            return Ok(());
        }
        Err(RepoError::damaged(next, Damage::Missing))
    }
}

/// The public part of a segment, and its sealed bytes.
fn open_public<'a>(repo: &Repo, place: Place<'_>, object: &'a [u8]) -> Result<(Public, &'a [u8]), RepoError> {
    let (parts, role) = split_signed(repo, &place, MAGIC, CONTEXT, object)?;
    if !role.may(Act::Backup) {
        return Err(RepoError::damaged(place, Damage::Role { act: "segment", role }));
    }
    let [public, bytes] = parts;
    let json = repo.open_object(&place, public, PUBLIC_BYTES_MAX)?;
    let public: Public = serde_json::from_slice(&json)
        .map_err(|error| RepoError::damaged(place, Damage::unknown("a public part", &error)))?;
    if (public.run, public.part) != (place.run.0, place.part) {
        let found = format!("segment {} of run #{}", public.part, public.run);
        return Err(RepoError::damaged(place, Damage::Misplaced { found }));
    }
    Ok((public, bytes))
}

/// The stored form of a segment with any contents.
#[cfg(any(fuzzing, test))]
pub(crate) fn encode_raw(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    public: &[u8],
    bytes: &[u8],
) -> Result<Vec<u8>, RepoError> {
    let place = Place { log, kind: ObjectKind::SegmentPublic, run, part: 0 };
    let public = seal_object(repo.keys(), &place, public)?;
    let bytes = seal_object(repo.keys(), &Place { kind: ObjectKind::SegmentBytes, ..place }, bytes)?;
    Ok(signed_bytes(repo, &place, MAGIC, CONTEXT, &[&public, &bytes]))
}

/// Stores a sealed segment of a run; it is durable on return. Something under its name that nobody has signed
/// makes way: anyone who may write to the store could stop an archiver with it.
///
/// # Errors
/// [`RepoError::is_exists`] if another segment is stored.
pub fn store_sealed(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    part: u32,
    object: &[u8],
) -> Result<(), RepoError> {
    let place = Place { log, kind: ObjectKind::SegmentPublic, run, part };
    match repo.put(&place, object) {
        Err(error) if error.is_exists() => {
            let Some(problem) = made_up(repo, &place)? else { return Err(error) };
            if !repo.discard(&[place.path()])?.is_empty() {
                return Err(problem);
            }
            repo.put(&place, object).map(drop)
        }
        stored => stored.map(drop),
    }
}

/// Whether a segment is stored that a believed key has signed.
pub(crate) fn is_signed(repo: &Repo, log: &LogName, run: RunNo, part: u32) -> Result<bool, RepoError> {
    let place = Place { log, kind: ObjectKind::SegmentPublic, run, part };
    Ok(exists(&**repo.store(), &place.path())? && made_up(repo, &place)?.is_none())
}

/// The hash of the outcome before `run`, as the first segment of the run names it: `None` if there is none that a
/// believed key has signed. If the outcome is lost, nothing else may record its hash.
pub(crate) fn hash_before(repo: &Repo, log: &LogName, run: RunNo) -> Result<Option<ObjectHash>, RepoError> {
    let place = Place { log, kind: ObjectKind::SegmentPublic, run, part: 0 };
    let object = read_all(&**repo.store(), &place.path(), OBJECT_BYTES_MAX).map_err(RepoError::from);
    match object.and_then(|object| Ok(open_public(repo, place, &object)?.0.previous)) {
        Ok(previous) => Ok(Some(previous)),
        // What a later version has signed names a hash, too.
        Err(error) if error.is_damage() && !error.is_unknown() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The last run after `history` that has signed segments. A run begins once all before it have ended: those of
/// which `history` has no outcome have lost it.
pub(crate) fn last_archived(repo: &Repo, history: &History) -> Result<Option<RunNo>, RepoError> {
    let log = history.log();
    let stored = list_segments(repo, log)?;
    let begun = stored.range(history.next_run()..=history.last_foreseen());
    for (run, _) in begun.filter(|(_, parts)| parts.contains(&0)).rev() {
        if hash_before(repo, log, *run)?.is_some() {
            return Ok(Some(*run));
        }
    }
    Ok(None)
}

/// What is wrong with the object in a segment's place, if no key that is believed has signed it for this place.
fn made_up(repo: &Repo, place: &Place<'_>) -> Result<Option<RepoError>, RepoError> {
    let object = match read_all(&**repo.store(), &place.path(), OBJECT_BYTES_MAX) {
        Ok(object) => object,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return made_up_or(error.into()),
    };
    match split_signed(repo, place, MAGIC, CONTEXT, &object) {
        Ok(_) => Ok(None),
        Err(error) => made_up_or(error),
    }
}

fn made_up_or(error: RepoError) -> Result<Option<RepoError>, RepoError> {
    // One that cannot be read at the moment may be signed.
    if error.is_damage() { Ok(Some(error)) } else { Err(error) }
}

/// The tail of a sealed segment, which says where its bytes end.
pub fn tail_of_sealed(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    part: u32,
    object: &[u8],
) -> Result<Map<String, Value>, RepoError> {
    let place = Place { log, kind: ObjectKind::SegmentPublic, run, part };
    Ok(open_public(repo, place, object)?.0.tail)
}

/// Whether a run has an outcome.
pub fn is_ended(repo: &Repo, log: &LogName, run: RunNo) -> Result<bool, RepoError> {
    Ok(exists(&**repo.store(), &log.outcome(run))?)
}

/// Whether the archive has continued after a run: then nothing that is stored as of that run from now on is a
/// part of it. To be asked once the next run has begun, so that nobody continues meanwhile.
pub fn is_followed(repo: &Repo, history: &History, run: RunNo) -> Result<bool, RepoError> {
    let mut later = history.outcomes().iter().rev().take_while(|outcome| outcome.run > run);
    if later.any(|outcome| outcome.outcome_type == OutcomeType::Backup && !outcome.is_filing()) {
        return Ok(true);
    }
    let log = history.log();
    for (later, parts) in list_segments(repo, log)? {
        if later <= run || !parts.contains(&0) {
            continue;
        }
        // Anyone can have made up an object with such a name.
        let place = Place { log, kind: ObjectKind::SegmentPublic, run: later, part: 0 };
        if made_up(repo, &place)?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The numbers of the segments that are stored, by run.
pub fn list_segments(repo: &Repo, log: &LogName) -> Result<BTreeMap<RunNo, Vec<u32>>, RepoError> {
    let mut runs: BTreeMap<RunNo, Vec<u32>> = BTreeMap::new();
    for (run, part) in repo.list_folder(log, Folder::Segments)?.into_keys() {
        runs.entry(run).or_default().push(part);
    }
    Ok(runs)
}

/// The segments of a run from `next` on, with their sizes.
fn list_from(repo: &Repo, log: &LogName, run: RunNo, next: u32) -> Result<VecDeque<(u32, u64)>, RepoError> {
    let listed = repo.list_folder(log, Folder::Segments)?;
    Ok(listed
        .range((run, next)..=(run, u32::MAX))
        .map(|((_, part), info)| (*part, info.size_bytes))
        .collect())
}

/// Deletes the segments of those `runs` that nobody needs any more, as far as the store
/// allows; a later sweep does the rest.
pub fn discard_segments(repo: &Repo, history: &History, runs: &BTreeSet<RunNo>) -> Result<(), RepoError> {
    let superseded: BTreeSet<RunNo> =
        runs.iter().copied().filter(|run| is_superseded(history, *run)).collect();
    let there = repo.list_folder(history.log(), Folder::Segments)?.into_iter();
    let paths: Vec<_> =
        there.filter(|((run, _), _)| superseded.contains(run)).map(|(_, info)| info.path).collect();
    for batch in paths.chunks(1000) {
        // The next prune deletes what is refused here.
        repo.discard(batch)?;
    }
    Ok(())
}

/// Whether an outcome says that the contents of the segments of `run` are in packs.
#[must_use]
pub fn is_superseded(history: &History, run: RunNo) -> bool {
    let is_backup = |outcome: &crate::log::outcome::Outcome| outcome.outcome_type == OutcomeType::Backup;
    // An outcome names earlier runs only.
    history.outcome(run).is_some_and(is_backup)
        || history
            .outcomes()
            .iter()
            .rev()
            .take_while(|outcome| outcome.run > run)
            .any(|outcome| is_backup(outcome) && outcome.taken.contains(&run))
}

#[cfg(test)]
mod tests;
