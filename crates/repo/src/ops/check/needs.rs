//! What backups need of packs, by their refs, and which of them counts when they disagree.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    iter::repeat_n,
    sync::Arc,
};

use super::{Check, Finding, Remedy, Severity};
use crate::{
    error::RepoError,
    format::{
        names::{PackId, RunNo},
        ordinals::Ordinals,
        pack::PackRows,
        refs::NeededPack,
    },
    log::history::{Prunes, StoredRefs},
};

/// What all backups together need of a pack, and what is in it.
#[derive(Debug, Default)]
pub(super) struct Needed {
    /// From the first refs that name the pack; once the pack itself was asked, from that.
    pub(super) shape: Option<Shape>,
    /// Whether some refs, the index or the store give another size or other chunks.
    pub(super) is_disputed: bool,
    /// The chunks that are needed.
    pub(super) chunks: Ordinals,
}

/// Size and chunks of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) size_bytes: u64,
    /// Units of each chunk; `None` if the key at hand cannot tell.
    pub(super) units: Option<ChunkUnits>,
}

/// Units of each chunk of a pack, run-length encoded: nearly all chunks have equally many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkUnits(Box<[(u32, u32)]>);

impl ChunkUnits {
    fn of(units: impl Iterator<Item = u32>) -> Self {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for units in units {
            match runs.last_mut() {
                Some((of, chunks)) if *of == units => *chunks += 1,
                _ => runs.push((units, 1)),
            }
        }
        Self(runs.into())
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|(units, chunks)| repeat_n(*units, *chunks as usize))
    }
}

impl Shape {
    fn of_refs(pack: &NeededPack) -> Self {
        let units = ChunkUnits::of(pack.chunks.iter().map(|chunk| chunk.units));
        Self { size_bytes: pack.size_bytes, units: Some(units) }
    }

    pub(super) fn of_rows(rows: &PackRows) -> Self {
        let units = ChunkUnits::of(rows.rows().iter().map(|row| row.unit_count));
        Self { size_bytes: rows.size_bytes, units: Some(units) }
    }

    /// Whether it equals what the refs have, which cover all chunks.
    fn is_of_refs(&self, pack: &NeededPack) -> bool {
        let units = self.units.as_ref();
        self.size_bytes == pack.size_bytes
            && units.is_some_and(|units| units.iter().eq(pack.chunks.iter().map(|chunk| chunk.units)))
    }

    pub(super) fn fits(&self, other: &Self) -> bool {
        let units = self.units.as_ref().zip(other.units.as_ref());
        self.size_bytes == other.size_bytes && units.is_none_or(|(one, other)| one == other)
    }
}

impl Needed {
    pub(super) fn needs(&self, ordinal: u32) -> bool {
        self.chunks.contains(ordinal)
    }

    /// Takes in what the refs of a backup that needs something of the pack say of it.
    fn compare(&mut self, pack: &NeededPack) {
        match &self.shape {
            Some(shape) => self.is_disputed |= !shape.is_of_refs(pack),
            None => self.shape = Some(Shape::of_refs(pack)),
        }
    }
}

impl Check {
    /// Checks the refs of every backup: that they are intact, and that nothing they need is dead.
    pub(super) fn refs(&mut self) -> Result<(), RepoError> {
        self.report.backups += self.history.standing().count() as u64;
        let prunes = self.source.prunes();
        let mut wrong: BTreeSet<RunNo> = BTreeSet::new();
        loop {
            let mut needed = BTreeMap::new();
            let mut takes_too_much = false;
            self.each_refs(|check, run, refs| {
                if wrong.contains(&run) {
                    return Ok(());
                }
                let mut has_begun = false;
                let taken = refs.and_then(|refs| {
                    refs.each_pack(|pack| {
                        has_begun = true;
                        take_pack(&mut needed, &prunes, pack);
                    })
                });
                if let Err(error) = taken {
                    wrong.insert(run);
                    takes_too_much |= has_begun;
                    let position = check.finding(error, Severity::Lost, vec![run])?;
                    check.report.findings[position].remedy = Remedy::Refs;
                }
                Ok(())
            })?;
            // Nothing counts of refs that are not intact: go through all others again, without these.
            if !takes_too_much {
                self.needed = needed;
                break;
            }
        }
        let dead: Vec<PackId> =
            self.needed.keys().copied().filter(|pack| self.source.prunes().is_dead(*pack)).collect();
        for pack in dead {
            self.bad_pack(pack, Severity::Lost, "a prune has declared it dead, but a backup needs it");
        }
        self.report.packs = self.needed.len() as u64;
        Ok(())
    }

    /// Calls `each` with the refs of all backups, or with why they cannot be read.
    fn each_refs(
        &mut self,
        mut each: impl FnMut(&mut Self, RunNo, Result<StoredRefs<'_>, RepoError>) -> Result<(), RepoError>,
    ) -> Result<(), RepoError> {
        let (repo, history) = (Arc::clone(self.source.repo()), Arc::clone(&self.history));
        history.all_backup_refs(&repo, |run, refs| {
            self.options.interrupt.check()?;
            each(self, run, refs)
        })
    }

    /// Goes through all refs that are intact. `each` collects what it finds in one pack of a backup; `end`
    /// gets what was collected for that backup, once all of its refs have been read.
    fn each_whole<T: Default>(
        &mut self,
        each: impl Fn(&Self, &mut T, &NeededPack),
        mut end: impl FnMut(&mut Self, RunNo, T),
    ) -> Result<(), RepoError> {
        self.each_refs(|check, run, refs| {
            let mut found = T::default();
            let gone_through = refs.and_then(|refs| refs.each_pack(|pack| each(check, &mut found, pack)));
            match gone_through {
                Ok(()) => end(check, run, found),
                // Their damage is a finding already.
                Err(error) if error.is_of_the_object() => {}
                Err(error) => return Err(error),
            }
            Ok(())
        })
    }

    /// Settles packs about which refs or the store disagree: what the pack says of itself decides, and refs
    /// that differ must be rebuilt. So nobody can harm one backup by what another backup says of its packs.
    pub(super) fn disputes(&mut self) -> Result<(), RepoError> {
        let disputed = self.needed.iter().filter(|(_, needed)| needed.is_disputed);
        let disputed: Vec<PackId> = disputed.map(|(pack, _)| *pack).collect();
        for pack in &disputed {
            self.ask(*pack)?;
        }
        self.disputed_refs(&disputed.into_iter().collect())
    }

    /// Asks a pack itself what it holds. Without a key for that, only its size is known.
    pub(super) fn ask(&mut self, pack: PackId) -> Result<(), RepoError> {
        self.options.interrupt.check()?;
        let Some(size_bytes) = self.there.get(&pack).map(|info| info.size_bytes) else { return Ok(()) };
        let own = match self.source.repo().can_read() {
            true => self.source.confirmed_pack(pack).map(|rows| Shape::of_rows(&rows)),
            false => Ok(Shape { size_bytes, units: None }),
        };
        let needed = self.needed.entry(pack).or_default();
        needed.is_disputed = true;
        match own {
            Ok(own) => needed.shape = Some(own),
            Err(error) if error.is_of_the_object() => {
                let recorded = needed.shape.as_ref().map(|shape| shape.size_bytes);
                let Finding { severity, problem, .. } = Finding::of(&error, Severity::Lost);
                let problem = match recorded.filter(|recorded| *recorded != size_bytes) {
                    Some(recorded) if severity == Severity::Lost => {
                        format!("has {size_bytes} bytes instead of the recorded {recorded}")
                    }
                    _ => problem,
                };
                self.bad_pack(pack, severity, problem);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Finds the refs that disagree with these `packs`. If all refs that name a pack do, it may be another
    /// pack than the one they mean: their page maps tell.
    pub(super) fn disputed_refs(&mut self, packs: &BTreeSet<PackId>) -> Result<(), RepoError> {
        let asked = packs.iter().filter(|pack| !self.bad_packs.contains_key(pack));
        let asked: BTreeSet<PackId> = asked.copied().collect();
        if asked.is_empty() {
            return Ok(());
        }
        let mut agreed = BTreeSet::new();
        let mut wrong: Vec<(RunNo, PackId)> = Vec::new();
        self.each_whole(
            |check, said: &mut Vec<(PackId, bool)>, pack| {
                if asked.contains(&pack.pack) {
                    let own = check.needed.get(&pack.pack).and_then(|needed| needed.shape.as_ref());
                    said.push((pack.pack, own.is_none_or(|own| own.fits(&Shape::of_refs(pack)))));
                }
            },
            |_, run, said| {
                for (pack, agrees) in said {
                    match agrees {
                        true => drop(agreed.insert(pack)),
                        false => wrong.push((run, pack)),
                    }
                }
            },
        )?;
        if !self.source.repo().can_read() {
            // It is not known which refs are right, but it is known when none are.
            for pack in asked.difference(&agreed) {
                let size_bytes = self.there.get(pack).map_or(0, |info| info.size_bytes);
                let problem = format!("has {size_bytes} bytes, a size that no backup that needs it records");
                self.bad_pack(*pack, Severity::Lost, problem);
            }
            wrong.retain(|(_, pack)| agreed.contains(pack));
        }
        for of_run in wrong.chunk_by(|one, next| one.0 == next.0) {
            let run = of_run[0].0;
            let is_alone = |(_, pack): &&(RunNo, PackId)| !agreed.contains(pack);
            let alone = of_run.iter().find(is_alone);
            let (severity, pack) =
                alone.map_or((Severity::Repairable, of_run[0].1), |(_, pack)| (Severity::Lost, *pack));
            let problem = format!("disagree with pack {pack} about its size or its chunks");
            let object = self.source.log().refs(run).to_string();
            let finding = Finding::of_object(object, severity);
            self.find(Finding { problem, remedy: Remedy::Refs, backups: vec![run], ..finding });
        }
        Ok(())
    }

    /// Adds to each finding about a pack or a chunk the backups whose refs need it.
    pub(super) fn attribute(&mut self) -> Result<(), RepoError> {
        if !self.bad_packs.is_empty() || !self.bad_chunks.is_empty() {
            let prunes = self.source.prunes();
            let packs_with_bad: HashSet<PackId> = self
                .bad_packs
                .keys()
                .copied()
                .chain(self.bad_chunks.keys().map(|chunk| chunk.pack))
                .collect();
            self.each_whole(
                |check, hit: &mut HashSet<usize>, pack| {
                    let stays = prunes.left_in_place(pack.pack);
                    if stays && !packs_with_bad.contains(&pack.pack) {
                        return;
                    }
                    for chunk in pack.needed() {
                        let chunk = if stays { chunk } else { prunes.resolve(chunk) };
                        hit.extend(check.bad_chunks.get(&chunk));
                        hit.extend(check.bad_packs.get(&chunk.pack));
                    }
                },
                |check, run, hit| {
                    for position in hit {
                        if let Some(finding) = check.report.findings.get_mut(position)
                            && !finding.backups.contains(&run)
                        {
                            finding.backups.push(run);
                        }
                    }
                },
            )?;
        }
        self.report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(())
    }
}

/// Takes in what one backup needs of a pack, resolved to where it is now.
fn take_pack(needed: &mut BTreeMap<PackId, Needed>, prunes: &Prunes, pack: &NeededPack) {
    if prunes.left_in_place(pack.pack) {
        let mut ordinals = pack.ordinals().peekable();
        if ordinals.peek().is_some() {
            let needed = needed.entry(pack.pack).or_default();
            ordinals.for_each(|ordinal| needed.chunks.insert(ordinal));
            needed.compare(pack);
        }
        return;
    }
    let mut is_compared = false;
    for stored in pack.needed() {
        let chunk = prunes.resolve(stored);
        let needed = needed.entry(chunk.pack).or_default();
        needed.chunks.insert(chunk.ordinal);
        if chunk == stored && !is_compared {
            is_compared = true;
            needed.compare(pack);
        }
    }
}
