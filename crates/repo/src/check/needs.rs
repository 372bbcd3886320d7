//! What backups need of packs, as their refs say, and whose word counts where they disagree.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use super::{Check, Finding, Remedy, Severity};
use crate::{
    error::RepoError,
    names::{ChunkRef, PackId, RunNo},
    pack::PackRows,
    refs::{BackupRefs, NeededPack},
};

/// What all backups together need of a pack, and what is in it.
#[derive(Debug, Default)]
pub(super) struct Needed {
    /// As the first refs have it that name the pack; of a pack that was asked, what it says itself.
    pub(super) shape: Option<Shape>,
    /// Whether some refs, the index or the store have another size or other chunks.
    pub(super) is_disputed: bool,
    /// Of each chunk up to the last needed one, whether it is.
    pub(super) chunks: Vec<bool>,
}

/// Size and chunks of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) size_bytes: u64,
    /// Units of each chunk; `None` where the key at hand cannot tell.
    pub(super) units: Option<Vec<u32>>,
}

impl Shape {
    fn of_refs(pack: &NeededPack) -> Self {
        let units = pack.chunks.iter().map(|chunk| chunk.units).collect();
        Self { size_bytes: pack.size_bytes, units: Some(units) }
    }

    pub(super) fn of_rows(rows: &PackRows) -> Self {
        let units = rows.rows().iter().map(|row| row.unit_count).collect();
        Self { size_bytes: rows.size_bytes, units: Some(units) }
    }

    pub(super) fn fits(&self, other: &Self) -> bool {
        let units = self.units.as_ref().zip(other.units.as_ref());
        self.size_bytes == other.size_bytes && units.is_none_or(|(one, other)| one == other)
    }
}

impl Needed {
    fn need(&mut self, ordinal: u32) {
        let chunk = ordinal as usize;
        if self.chunks.len() <= chunk {
            self.chunks.resize(chunk + 1, false);
        }
        self.chunks[chunk] = true;
    }

    pub(super) fn needs(&self, ordinal: u32) -> bool {
        self.chunks.get(ordinal as usize).is_some_and(|needed| *needed)
    }
}

impl Check {
    /// Refs of every backup: whole, and what they need is not dead.
    pub(super) fn refs(&mut self) -> Result<(), RepoError> {
        self.each_refs(|check, run, refs| {
            check.report.backups += 1;
            match refs {
                Ok(refs) => check.take_refs(refs),
                Err(error) => {
                    let position = check.finding(error, Severity::Lost, vec![run])?;
                    check.report.findings[position].remedy = Remedy::Refs;
                }
            }
            Ok(())
        })?;
        let dead: Vec<PackId> =
            self.needed.keys().copied().filter(|pack| self.source.prunes().is_dead(*pack)).collect();
        for pack in dead {
            self.bad_pack(pack, Severity::Lost, "a prune has named it dead, and a backup needs it");
        }
        self.report.packs = self.needed.len() as u64;
        Ok(())
    }

    /// The refs of all backups, or why they cannot be read.
    fn each_refs(
        &mut self,
        mut each: impl FnMut(&mut Self, RunNo, Result<BackupRefs, RepoError>) -> Result<(), RepoError>,
    ) -> Result<(), RepoError> {
        let (repo, history) = (Arc::clone(self.source.repo()), Arc::clone(&self.history));
        history.all_backup_refs(&repo, |run, refs| {
            self.options.interrupt.check()?;
            each(self, run, refs)
        })
    }

    fn take_refs(&mut self, refs: BackupRefs) {
        for pack in refs.packs {
            let mut is_compared = false;
            for (ordinal, _) in (0..).zip(&pack.chunks).filter(|(_, need)| need.needed > 0) {
                let stored = ChunkRef { pack: pack.pack, ordinal };
                let chunk = self.source.resolve(stored);
                let needed = self.needed.entry(chunk.pack).or_default();
                needed.need(chunk.ordinal);
                if chunk == stored && !is_compared {
                    is_compared = true;
                    let shape = Shape::of_refs(&pack);
                    needed.is_disputed |= *needed.shape.get_or_insert_with(|| shape.clone()) != shape;
                }
            }
        }
    }

    /// Packs of which refs or the store say different things: what a pack says of itself decides, and refs that say
    /// something else are to be made anew. Nobody can harm one backup by what he says of its packs in another.
    pub(super) fn disputes(&mut self) -> Result<(), RepoError> {
        let disputed = self.needed.iter().filter(|(_, needed)| needed.is_disputed);
        let disputed: Vec<PackId> = disputed.map(|(pack, _)| *pack).collect();
        for pack in &disputed {
            self.ask(*pack)?;
        }
        self.disputed_refs(&disputed.into_iter().collect())
    }

    /// Asks a pack itself what is in it. Without a key for that its size is all that can be told.
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
                let problem = match recorded.filter(|recorded| *recorded != size_bytes) {
                    Some(recorded) => format!("is {size_bytes} bytes, recorded are {recorded}"),
                    None => Finding::of(&error, Severity::Lost).problem,
                };
                self.bad_pack(pack, Severity::Lost, problem);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Finds the refs that say something else of `packs` than these do. If all that name one do, it may be another pack
    /// than they mean: their page maps tell.
    pub(super) fn disputed_refs(&mut self, packs: &BTreeSet<PackId>) -> Result<(), RepoError> {
        let asked = packs.iter().filter(|pack| !self.bad_packs.contains_key(pack));
        let asked: BTreeSet<PackId> = asked.copied().collect();
        if asked.is_empty() {
            return Ok(());
        }
        let mut agreed = BTreeSet::new();
        let mut wrong: Vec<(RunNo, PackId)> = Vec::new();
        self.each_refs(|check, run, refs| {
            let Ok(refs) = refs else { return Ok(()) };
            for pack in refs.packs.iter().filter(|pack| asked.contains(&pack.pack)) {
                let said = Shape::of_refs(pack);
                let own = check.needed.get(&pack.pack).and_then(|needed| needed.shape.as_ref());
                match own.is_none_or(|own| own.fits(&said)) {
                    true => drop(agreed.insert(pack.pack)),
                    false => wrong.push((run, pack.pack)),
                }
            }
            Ok(())
        })?;
        if !self.source.repo().can_read() {
            // Whose word is right cannot be told; that nobody's is can.
            for pack in asked.difference(&agreed) {
                let size_bytes = self.there.get(pack).map_or(0, |info| info.size_bytes);
                let problem = format!("is {size_bytes} bytes, and no backup that needs it says so");
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
            let problem =
                format!("say something else of the size or the chunks of pack {pack} than it does itself");
            let object = self.source.log().refs(run).to_string();
            let finding = Finding::of_object(object, severity);
            self.find(Finding { problem, remedy: Remedy::Refs, backups: vec![run], ..finding });
        }
        Ok(())
    }

    /// Adds to each finding about a pack or a chunk the backups whose refs need it.
    pub(super) fn attribute(&mut self) -> Result<(), RepoError> {
        if !self.bad_packs.is_empty() || !self.bad_chunks.is_empty() {
            self.each_refs(|check, run, refs| {
                let Ok(refs) = refs else { return Ok(()) };
                let mut hit: HashSet<usize> = HashSet::new();
                for chunk in refs.chunks() {
                    let chunk = check.source.resolve(chunk);
                    hit.extend(check.bad_chunks.get(&chunk));
                    hit.extend(check.bad_packs.get(&chunk.pack));
                }
                for position in hit {
                    if let Some(finding) = check.report.findings.get_mut(position)
                        && !finding.backups.contains(&run)
                    {
                        finding.backups.push(run);
                    }
                }
                Ok(())
            })?;
        }
        self.report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(())
    }
}
