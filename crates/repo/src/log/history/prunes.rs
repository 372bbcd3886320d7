//! What prunes declared: which packs are dead, and where chunks have been moved.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::SystemTime,
};

use super::{History, refs::SealedRefs};
use crate::{
    error::{Damage, RepoError},
    format::{
        names::{ChunkRef, PackId, RunNo},
        refs::{PruneRefs, RebuiltRefs},
    },
    log::outcome::OutcomeType,
    repo::Repo,
};

impl History {
    /// What all prunes declared; in a salvaged history, as far as it can be read.
    ///
    /// # Errors
    /// [`RepoError::History`] if what one declared is damaged or missing.
    pub fn prunes(&self, repo: &Repo) -> Result<Prunes, RepoError> {
        self.prunes_or(repo, &mut |_, error| match self.is_salvaged {
            true => Ok(()),
            false => Err(error.of_history(&self.log)),
        })
    }

    /// What all prunes declared. `on_damage` decides what to do when the refs of one cannot be read.
    pub(crate) fn prunes_or(
        &self,
        repo: &Repo,
        on_damage: &mut dyn FnMut(RunNo, RepoError) -> Result<(), RepoError>,
    ) -> Result<Prunes, RepoError> {
        let mut prunes = Prunes::default();
        let own = self.outcomes.iter().filter(|outcome| outcome.outcome_type == OutcomeType::Prune);
        // A prune whose outcome is lost has declared what a repair has found of it.
        let planned = self.planned.rebuilt.iter();
        let planned = planned.filter(|(_, refs)| matches!(refs, RebuiltRefs::Prune(_))).map(|(run, _)| *run);
        let rebuilt = self.rebuilt.iter().filter(|(_, (_, is_prune))| *is_prune).map(|(run, _)| *run);
        let runs: BTreeSet<RunNo> = own.map(|outcome| outcome.run).chain(rebuilt).chain(planned).collect();
        let runs: Vec<RunNo> = runs.into_iter().collect();
        let open = |run, sealed| self.open_prune_refs(repo, run, sealed);
        self.in_order_of_refs(repo, &runs, open, |run, refs| {
            let added = refs.and_then(|(at, refs)| {
                let added = prunes.add(at, refs);
                added.map_err(|what| RepoError::malformed(self.log.refs(run), what))
            });
            match added {
                Err(error) if error.is_of_the_object() => on_damage(run, error),
                added => added,
            }
        })?;
        Ok(prunes)
    }

    /// What a prune declared, and since when that is in effect.
    fn open_prune_refs(
        &self,
        repo: &Repo,
        run: RunNo,
        sealed: SealedRefs,
    ) -> Result<(SystemTime, PruneRefs), RepoError> {
        let since = |run| self.ended_at(run).unwrap_or(SystemTime::UNIX_EPOCH);
        if let Some(made) = self.rebuilt_by(repo, run)? {
            let Some(RebuiltRefs::Prune(refs)) = made.rebuilt.get(&run) else {
                return Err(self.not_as_rebuilt(run));
            };
            let by = self.rebuilt.get(&run).map_or(run, |(repair, _)| *repair);
            return Ok((since(by), refs.clone()));
        }
        let (path, bytes) = self.open_refs(repo, run, sealed)?;
        let refs = PruneRefs::decode(run, &bytes).map_err(|e| RepoError::damaged(path, Damage::from(e)))?;
        Ok((since(run), refs))
    }
}

/// What all prunes declared, together.
#[derive(Clone, Debug, Default)]
pub struct Prunes {
    dead_since: BTreeMap<PackId, SystemTime>,
    moves: HashMap<ChunkRef, ChunkRef>,
    moved_from: HashSet<PackId>,
}

impl Prunes {
    fn add(&mut self, at: SystemTime, refs: PruneRefs) -> Result<(), &'static str> {
        for moved in refs.moves {
            if self.moves.insert(moved.from, moved.to).is_some() {
                return Err("it moves a chunk that an earlier prune moved");
            }
            self.moved_from.insert(moved.from.pack);
        }
        for pack in refs.dead {
            // A pack is named again only by mistake, which does not make it younger.
            self.dead_since.entry(pack).or_insert(at);
        }
        Ok(())
    }

    /// Where the content of a chunk is now.
    #[must_use]
    pub fn resolve(&self, chunk: ChunkRef) -> ChunkRef {
        // Terminates, since each move leads into a later run.
        let mut at = chunk;
        while let Some(next) = self.moves.get(&at) {
            at = *next;
        }
        at
    }

    /// Whether every chunk of a pack is where it was stored, so that none of them needs
    /// to be [resolved](Self::resolve).
    #[must_use]
    pub fn left_in_place(&self, pack: PackId) -> bool {
        !self.moved_from.contains(&pack)
    }

    /// Whether a prune declared the pack dead.
    #[must_use]
    pub fn is_dead(&self, pack: PackId) -> bool {
        self.dead_since.contains_key(&pack)
    }

    /// Whether a new backup may reference chunks of this pack:
    /// it is not dead and nothing was moved out of it.
    #[must_use]
    pub fn may_reference(&self, pack: PackId) -> bool {
        !self.is_dead(pack) && self.left_in_place(pack)
    }

    /// Packs into which chunks were moved.
    pub(crate) fn targets(&self) -> HashSet<PackId> {
        self.moves.values().map(|chunk| chunk.pack).collect()
    }

    /// When a prune declared the pack dead.
    #[must_use]
    pub fn dead_since(&self, pack: PackId) -> Option<SystemTime> {
        self.dead_since.get(&pack).copied()
    }
}
