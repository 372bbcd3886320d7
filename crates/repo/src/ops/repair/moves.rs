//! Finds where a prune whose record is lost has moved chunks, by their content.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use holdfast_pipe::PageHash;

use super::{
    planning::{Planning, may_hold_moved},
    walk::{Content, Reference, walk},
};
use crate::{
    data::reader::ChunkSource,
    error::RepoError,
    format::{
        names::{ChunkRef, Folder, PackId, RunNo},
        pack::{ChunkKind, ChunkRow},
        refs::{Move, PruneRefs, RebuiltRefs},
    },
    ops::check::{CheckReport, Remedy, Severity},
};

/// Roots lead to items, items to leaves, leaves to other leaves, and these to
/// pages: each level found leads to the next.
const LEVELS_MAX: usize = 8;

/// Chunks to look for, by their content.
#[derive(Default)]
struct Wanted {
    /// By the hash of the whole chunk.
    plain: HashMap<PageHash, BTreeSet<ChunkRef>>,
    /// For chunks in existing packs: by the hashes of all their pages.
    alike: HashMap<[u8; 32], BTreeSet<ChunkRef>>,
    /// For chunks in missing packs: the pages known to be in them.
    pages: HashMap<ChunkRef, BTreeMap<u32, PageHash>>,
    /// Which chunks in missing packs have this page at this slot.
    having: HashMap<(u32, PageHash), BTreeSet<ChunkRef>>,
}

fn fingerprint(hashes: &[PageHash]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for hash in hashes {
        hasher.update(&hash.0);
    }
    *hasher.finalize().as_bytes()
}

impl Planning<'_> {
    /// Finds chunks that are missing, or that a prune may have moved. Returns whether this changes anything.
    pub(super) fn find_moves(&mut self, report: &CheckReport) -> Result<bool, RepoError> {
        let is_lost = report
            .findings
            .iter()
            .any(|it| it.severity == Severity::Lost && matches!(it.remedy, Remedy::Drop | Remedy::Refs));
        for run in self.lost_prunes.clone() {
            self.made.rebuilt.insert(run, RebuiltRefs::Prune(PruneRefs::default()));
        }
        if self.lost_prunes.is_empty() && !is_lost {
            return Ok(false);
        }
        let there = self.repo.list_folder(self.history.log(), Folder::Packs)?;
        let there: BTreeSet<PackId> = there.into_keys().map(|(run, part)| PackId { run, part }).collect();
        let mut known = BTreeSet::new();
        for _ in 0..LEVELS_MAX {
            let source = self.source()?;
            let prunes = source.prunes();
            let hold = |pack: &&PackId| may_hold_moved(&self.history, pack.run) && !prunes.is_dead(**pack);
            let candidates: Vec<PackId> = there.iter().filter(hold).copied().collect();
            if candidates.is_empty() {
                break;
            }
            let wanted = self.wanted(&source, &there)?;
            let found = self.find(&source, &wanted, &candidates, &there)?;
            let found: Vec<(RunNo, Move)> =
                found.into_iter().filter(|(_, moved)| known.insert(moved.from)).collect();
            if found.is_empty() {
                break;
            }
            for (run, moved) in found {
                let refs = self.made.rebuilt.entry(run);
                let refs = refs.or_insert_with(|| RebuiltRefs::Prune(PruneRefs::default()));
                if let RebuiltRefs::Prune(refs) = refs {
                    refs.moves.push(moved);
                    refs.moves.sort_unstable();
                }
            }
        }
        Ok(!self.made.rebuilt.is_empty())
    }

    /// Chunks that standing backups need and that are missing, or may have
    /// been moved by a prune whose record is lost.
    fn wanted(&self, source: &Arc<ChunkSource>, there: &BTreeSet<PackId>) -> Result<Wanted, RepoError> {
        let mut wanted = Wanted::default();
        let mut alike: BTreeMap<PackId, BTreeSet<u32>> = BTreeMap::new();
        let newest_lost = self.lost_prunes.last().copied();
        for backup in self.history.standing() {
            let interrupt = &self.options.interrupt;
            walk(source, &self.history, backup.run, interrupt, &mut |reference: Reference| {
                let Reference { chunk, content, .. } = reference;
                let is_there = there.contains(&chunk.pack);
                if is_there && newest_lost.is_none_or(|lost| lost <= chunk.pack.run) {
                    return;
                }
                match content {
                    Content::Plain(hash) => drop(wanted.plain.entry(hash).or_default().insert(chunk)),
                    Content::Page(..) if is_there => {
                        alike.entry(chunk.pack).or_default().insert(chunk.ordinal);
                    }
                    Content::Page(slot, hash) => {
                        wanted.pages.entry(chunk).or_default().insert(slot, hash);
                        wanted.having.entry((slot, hash)).or_default().insert(chunk);
                    }
                    Content::Unsaid => {}
                }
            })?;
        }
        for (pack, ordinals) in alike {
            let Some(directory) = readable(source.directory(pack))? else { continue };
            for (ordinal, (row, hashes)) in (0..).zip(directory.1.chunks()) {
                if ordinals.contains(&ordinal) && matches!(row.kind, ChunkKind::Pages(_)) {
                    let chunk = ChunkRef { pack, ordinal };
                    wanted.alike.entry(fingerprint(hashes)).or_default().insert(chunk);
                }
            }
        }
        Ok(wanted)
    }

    /// Searches the packs of runs that may have moved something.
    fn find(
        &self,
        source: &Arc<ChunkSource>,
        wanted: &Wanted,
        candidates: &[PackId],
        there: &BTreeSet<PackId>,
    ) -> Result<Vec<(RunNo, Move)>, RepoError> {
        let mut found = Vec::new();
        for pack in candidates {
            self.options.interrupt.check()?;
            let Some((_, directory)) = readable(source.directory(*pack))? else { continue };
            for (ordinal, (row, hashes)) in (0..).zip(directory.chunks()) {
                let to = ChunkRef { pack: *pack, ordinal };
                let mut from: BTreeSet<ChunkRef> = BTreeSet::new();
                if let ChunkKind::Pages(_) = row.kind {
                    from.extend(wanted.alike.get(&fingerprint(hashes)).into_iter().flatten());
                    for (slot, hash) in (0..).zip(hashes) {
                        let having = wanted.having.get(&(slot, *hash)).into_iter().flatten();
                        from.extend(having.filter(|chunk| {
                            let pages = wanted.pages.get(chunk).into_iter().flatten();
                            pages.into_iter().all(|(slot, hash)| hashes.get(*slot as usize) == Some(hash))
                        }));
                    }
                } else if !wanted.plain.is_empty()
                    && let Some((_, plain)) = readable(source.read_chunk(to))?
                {
                    let hash = source.repo().hash_key()?.hash(&plain);
                    from.extend(wanted.plain.get(&hash).into_iter().flatten());
                }
                let moved = from.into_iter().filter_map(|from| {
                    let run = self.moved_by(from, to, there.contains(&from.pack))?;
                    Some((run, Move { from, to }))
                });
                let moved: Vec<(RunNo, Move)> = moved.collect();
                // A directory only says what should be in its pack, and nothing may rely on what is not.
                if !moved.is_empty() && holds(source, to, row, hashes)? {
                    found.extend(moved);
                }
            }
        }
        Ok(found)
    }

    /// The run that can have moved the chunk: the first run after it whose record is lost. An existing chunk
    /// was moved only by a run that is known to have been a prune.
    fn moved_by(&self, from: ChunkRef, to: ChunkRef, is_there: bool) -> Option<RunNo> {
        let between = |run: &RunNo| from.pack.run < *run && *run <= to.pack.run;
        let lost = self.lost_prunes.iter().copied().find(between);
        let is_prune = self.history.outcome(to.pack.run).map(|outcome| outcome.outcome_type)
            == Some(crate::log::outcome::OutcomeType::Prune);
        let is_told = is_prune || self.lost_prunes.contains(&to.pack.run);
        lost.filter(|_| is_told || !is_there)
            .or_else(|| Some(to.pack.run).filter(|run| !is_there && !is_prune && between(run)))
    }
}

/// Whether the chunk can be read in full, and matches the directory of its pack.
fn holds(
    source: &ChunkSource,
    chunk: ChunkRef,
    listed: &ChunkRow,
    hashes: &[PageHash],
) -> Result<bool, RepoError> {
    let is_asked = readable(source.confirmed_pack(chunk.pack))?.is_some();
    let Some((row, plain)) = readable(source.read_chunk(chunk))?.filter(|_| is_asked) else {
        return Ok(false);
    };
    Ok(row == *listed && readable(source.compare_pages(chunk, &row, &plain, hashes))?.is_some())
}

/// The value read, or `None` if the object is damaged. What a later version has written may be what is looked for.
fn readable<T>(read: Result<T, RepoError>) -> Result<Option<T>, RepoError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.is_of_the_object() && !error.is_unknown() => Ok(None),
        Err(error) => Err(error),
    }
}
