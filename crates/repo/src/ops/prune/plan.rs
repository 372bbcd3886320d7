//! Plans what to declare: which packs nothing needs, and which are mostly dead.

use std::{
    collections::{BTreeMap, HashSet},
    time::SystemTime,
};

use super::PruneOptions;
use crate::{
    data::writer::Rewrite,
    error::{Damage, RepoError},
    format::{
        names::{ChunkRef, Folder, LogName, PackId, RunNo},
        ordinals::Ordinals,
    },
    interrupt::Interrupt,
    log::{
        history::{History, Prunes},
        outcome::OutcomeType,
    },
    ops::check::{Finding, Severity},
    repo::Repo,
    store::ObjectInfo,
};

/// How many chunks one prune moves at most: as many as its refs have room for,
/// besides all the packs that it can declare dead.
const MOVES_MAX: u64 = 1 << 22;

/// What a prune declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunePlan {
    /// Packs that nothing needs, with their sizes.
    pub dead: Vec<(PackId, u64)>,
    /// Packs of which little is needed, to be rewritten.
    pub rewrite: Vec<RewritePack>,
    /// Packs that would be rewritten if the needed chunks could be read.
    pub unreadable: Vec<UnreadablePack>,
    /// Packs that a backup needs, but that are missing or declared dead.
    pub missing: Vec<UnreadablePack>,
    /// Bytes of packs that would be rewritten if there were more room, or if one prune could rewrite more.
    pub postponed_bytes: u64,
    /// Bytes in packs that backups need.
    pub live_bytes: u64,
    /// Bytes in packs that an earlier prune declared dead and that still exist.
    pub waiting_bytes: u64,
    /// Bytes in packs of unfinished runs, kept for a run that may take them up.
    pub unfinished_bytes: u64,
}

/// A pack to be rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewritePack {
    /// The pack.
    pub pack: PackId,
    /// Size of the pack.
    pub size_bytes: u64,
    /// Stored bytes of the needed chunks.
    pub live_bytes: u64,
    /// The needed chunks.
    pub ordinals: Vec<u32>,
}

impl RewritePack {
    /// The needed chunks.
    pub(super) fn chunks(&self) -> impl Iterator<Item = ChunkRef> {
        self.ordinals.iter().map(|ordinal| ChunkRef { pack: self.pack, ordinal: *ordinal })
    }
}

/// A pack that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadablePack {
    /// The pack.
    pub pack: PackId,
    /// The object, down to the chunk.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
}

impl UnreadablePack {
    /// Converts an error about one object. Accepts that the pack is missing only if packs are known to be
    /// missing: otherwise others may have moved it meanwhile.
    fn of(pack: PackId, error: RepoError, is_something_missing: bool) -> Result<Self, RepoError> {
        if (error.is_missing() && !is_something_missing) || !error.is_of_the_object() {
            return Err(error);
        }
        Ok(Self::damaged(pack, &error))
    }

    fn damaged(pack: PackId, error: &RepoError) -> Self {
        let Finding { object, problem, .. } = Finding::of(error, Severity::Lost);
        Self { pack, object, problem }
    }
}

/// Which chunks of a pack are needed.
#[derive(Default)]
struct Needed {
    ordinals: Ordinals,
    /// How many chunks the pack has, if a backup tells.
    chunk_count: Option<usize>,
}

impl PrunePlan {
    /// Whether there is nothing to declare, so that no run is needed.
    #[must_use]
    pub fn declares_nothing(&self) -> bool {
        self.dead.is_empty() && self.rewrite.is_empty()
    }

    /// Bytes that sweeping will free for what this declares.
    #[must_use]
    pub fn freed_bytes(&self) -> u64 {
        let dead: u64 = self.dead.iter().map(|(_, size)| size).sum();
        let rewritten: u64 =
            self.rewrite.iter().map(|pack| pack.size_bytes.saturating_sub(pack.live_bytes)).sum();
        dead + rewritten
    }

    /// Makes the plan from outcomes, refs and names only. Packs of runs without an outcome are ignored.
    pub(super) fn make(
        now: SystemTime,
        repo: &Repo,
        history: &History,
        options: &PruneOptions,
        rewrite: Option<&mut dyn Rewrite>,
    ) -> Result<Self, RepoError> {
        let log = history.log();
        let prunes = history.all_prunes(repo)?;
        let mut packs = BTreeMap::new();
        for ((run, part), info) in repo.list_folder(log, Folder::Packs)? {
            if run < history.next_run() {
                packs.insert(PackId { run, part }, info);
            }
        }
        let mut needed = needed(repo, history, &prunes, &options.interrupt)?;
        let mut plan = Self::default();
        needed.retain(|pack, _| {
            let damage = match (prunes.is_dead(*pack), packs.contains_key(pack)) {
                (false, true) => return true,
                (true, _) => Damage::Malformed { what: "it is declared dead, but a backup needs it" },
                (false, false) => Damage::Missing,
            };
            plan.missing.push(UnreadablePack::damaged(*pack, &RepoError::damaged(log.pack(*pack), damage)));
            false
        });
        let kept_for_resume = kept_for_resume(history, options, now);
        // Missing packs may have been moved by a prune whose outcome is lost, into packs that look like the
        // remains of an unfinished run: a repair finds them there.
        let oldest_missing = plan.missing.iter().map(|it| it.pack.run).min();
        let may_be_moved =
            |run| oldest_missing.is_some_and(|oldest| run > oldest) && may_have_moved(history, run);
        let may_be_wanted: HashSet<RunNo> = packs
            .keys()
            .map(|pack| pack.run)
            .filter(|run| kept_for_resume.contains(run) || may_be_moved(*run))
            .collect();
        for (pack, info) in &packs {
            if prunes.is_dead(*pack) {
                plan.waiting_bytes += info.size_bytes;
            } else if needed.contains_key(pack) {
                plan.live_bytes += info.size_bytes;
            } else if may_be_wanted.contains(&pack.run) {
                plan.unfinished_bytes += info.size_bytes;
            } else {
                plan.dead.push((*pack, info.size_bytes));
            }
        }
        if let Some(rewrite) = rewrite {
            // Half of the free space: the other half is for backups that
            // come before the old packs can be deleted.
            let free = repo.store().free_bytes()?;
            let bytes = free.map_or(u64::MAX, |free| free / 2).min(options.rewrite_bytes_max);
            let budget = Budget { bytes, moves: MOVES_MAX };
            plan.choose_rewrites(log, &needed, &packs, budget, options, rewrite)?;
        }
        Ok(plan)
    }

    /// Chooses mostly dead packs to rewrite, as many as `budget` allows, and only those that can be read.
    fn choose_rewrites(
        &mut self,
        log: &LogName,
        needed: &BTreeMap<PackId, Needed>,
        packs: &BTreeMap<PackId, ObjectInfo>,
        mut budget: Budget,
        options: &PruneOptions,
        rewrite: &mut dyn Rewrite,
    ) -> Result<(), RepoError> {
        let mut found = Vec::new();
        let in_part = needed.iter().filter(|(_, needed)| needed.chunk_count != Some(needed.ordinals.count()));
        let in_part: Vec<PackId> = in_part.map(|(pack, _)| *pack).collect();
        rewrite.chunk_bytes(&in_part, &mut |pack, bytes| {
            options.interrupt.check()?;
            let (Some(needed), Some(info)) = (needed.get(&pack), packs.get(&pack)) else { return Ok(()) };
            match bytes.and_then(|bytes| mostly_dead(log, pack, info.size_bytes, needed, options, &bytes)) {
                Ok(mostly_dead) => found.extend(mostly_dead),
                Err(error) => {
                    self.unreadable.push(UnreadablePack::of(pack, error, !self.missing.is_empty())?);
                }
            }
            Ok(())
        })?;
        // Packs that free the most for the bytes written come first.
        found.sort_by(|a, b| {
            let of = |pack: &RewritePack, other: &RewritePack| {
                u128::from(pack.live_bytes) * u128::from(other.size_bytes)
            };
            of(a, b).cmp(&of(b, a)).then(a.pack.cmp(&b.pack))
        });
        let mut expected = budget;
        let fitting = found.iter().filter(|pack| expected.take(pack));
        rewrite.expect(fitting.map(|pack| pack.live_bytes).sum());
        for pack in found {
            options.interrupt.check()?;
            let mut left = budget;
            if !left.take(&pack) {
                self.postponed_bytes += pack.size_bytes;
                continue;
            }
            // Checked before any run begins: otherwise every prune would begin a run in vain for packs that
            // cannot be rewritten.
            match rewrite.check(&pack.chunks().collect::<Vec<_>>()) {
                Ok(()) => {
                    budget = left;
                    self.rewrite.push(pack);
                }
                Err(error) => {
                    self.unreadable.push(UnreadablePack::of(pack.pack, error, !self.missing.is_empty())?);
                }
            }
        }
        self.rewrite.sort_by_key(|pack| pack.pack);
        Ok(())
    }
}

/// What one prune may still rewrite.
#[derive(Clone, Copy)]
struct Budget {
    bytes: u64,
    moves: u64,
}

impl Budget {
    /// Takes what is needed of a pack from the budget; returns `false`,
    /// and takes nothing, if that is not enough.
    fn take(&mut self, pack: &RewritePack) -> bool {
        let left = self.bytes.checked_sub(pack.live_bytes);
        let moves = self.moves.checked_sub(pack.ordinals.len() as u64);
        let Some((bytes, moves)) = left.zip(moves) else { return false };
        *self = Self { bytes, moves };
        true
    }
}

/// The packs that standing backups need.
pub(crate) fn needed_packs(
    repo: &Repo,
    history: &History,
    interrupt: &Interrupt,
) -> Result<HashSet<PackId>, RepoError> {
    let prunes = history.prunes(repo)?;
    Ok(needed(repo, history, &prunes, interrupt)?.into_keys().collect())
}

/// The chunks that standing backups need, where they are now.
fn needed(
    repo: &Repo,
    history: &History,
    prunes: &Prunes,
    interrupt: &Interrupt,
) -> Result<BTreeMap<PackId, Needed>, RepoError> {
    let mut all: BTreeMap<PackId, Needed> = BTreeMap::new();
    history.all_backup_refs(repo, |_, refs| {
        interrupt.check()?;
        refs?.each_pack(|of_pack| {
            if !prunes.may_reference(of_pack.pack) {
                for chunk in of_pack.needed().map(|chunk| prunes.resolve(chunk)) {
                    all.entry(chunk.pack).or_default().ordinals.insert(chunk.ordinal);
                }
                return;
            }
            let mut ordinals = of_pack.ordinals().peekable();
            if ordinals.peek().is_some() {
                let needed = all.entry(of_pack.pack).or_default();
                ordinals.for_each(|ordinal| needed.ordinals.insert(ordinal));
                needed.chunk_count = Some(of_pack.chunks.len());
            }
        })
    })?;
    Ok(all)
}

/// Whether the run can have been a prune whose outcome is lost: another run may have ended it since. A run
/// that ended itself without effect has moved nothing.
fn may_have_moved(history: &History, run: RunNo) -> bool {
    history.outcome(run).is_none_or(|outcome| outcome.outcome_type == OutcomeType::Tombstone)
}

/// Runs whose remains may still be taken up.
fn kept_for_resume(history: &History, options: &PruneOptions, now: SystemTime) -> HashSet<RunNo> {
    let is_recent = |run: &RunNo| {
        history
            .ended_at(*run)
            .is_some_and(|ended| now.duration_since(ended).unwrap_or_default() < options.resume_window)
    };
    history.adoptable().into_iter().filter(is_recent).collect()
}

/// The pack as one to rewrite, if less of it is needed than is worth keeping.
fn mostly_dead(
    log: &LogName,
    pack: PackId,
    size_bytes: u64,
    needed: &Needed,
    options: &PruneOptions,
    bytes: &[u64],
) -> Result<Option<RewritePack>, RepoError> {
    let ordinals: Vec<u32> = needed.ordinals.iter().collect();
    let live = ordinals.iter().map(|ordinal| bytes.get(*ordinal as usize).copied());
    let Some(live_bytes) = live.sum::<Option<u64>>() else {
        return Err(RepoError::malformed(log.pack(pack), "a backup needs a chunk that is not in it"));
    };
    let all_bytes = bytes.iter().sum::<u64>();
    let is_mostly_dead =
        u128::from(live_bytes) * 100 < u128::from(all_bytes) * u128::from(options.rewrite_below_percent);
    Ok(is_mostly_dead.then_some(RewritePack { pack, size_bytes, live_bytes, ordinals }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::refs::{Move, PruneRefs, REFS_BYTES_MAX};

    /// Packs that fit are taken, even after one that did not fit, and no
    /// more chunks are moved than refs can record.
    #[test]
    fn a_budget_is_kept() {
        let pack = |live_bytes, chunks| RewritePack {
            pack: PackId { run: RunNo(1), part: 0 },
            size_bytes: 100,
            live_bytes,
            ordinals: (0..chunks).collect(),
        };
        let mut budget = Budget { bytes: 10, moves: 5 };
        let taken: Vec<bool> = [pack(6, 2), pack(5, 1), pack(1, 4), pack(4, 3), pack(0, 1)]
            .iter()
            .map(|pack| budget.take(pack))
            .collect();
        assert_eq!(taken, [true, false, false, true, false]);
        // The longest possible names.
        let at = |run, ordinal| ChunkRef { pack: PackId { run: RunNo(run), part: 999_999 }, ordinal };
        let moved = Move { from: at(9_999_999_998, 99_999), to: at(9_999_999_999, 99_999) };
        let bytes_of = |refs: &PruneRefs| refs.encode().len() as u64;
        let of_one = bytes_of(&PruneRefs { dead: vec![moved.from.pack], moves: vec![moved] });
        assert!(MOVES_MAX * (of_one - bytes_of(&PruneRefs::default())) + 64 < REFS_BYTES_MAX, "{of_one}");
    }
}
