//! What prunes declared: which packs are dead, and where chunks have been moved.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use super::{History, refs::SealedRefs};
use crate::{
    error::{Damage, RepoError},
    format::{
        names::{ChunkRef, Kind, PackId, RunNo},
        refs::{Move, PruneRefs, RebuiltRefs},
    },
    log::outcome::OutcomeType,
    repo::Repo,
};

/// Decides what to do when the refs of a prune cannot be read.
type OnDamage<'a> = &'a mut dyn FnMut(RunNo, RepoError) -> Result<(), RepoError>;

impl History {
    /// What prunes declared that a reader of the backups that stand needs to know; in a salvaged history, as far
    /// as it can be read.
    ///
    /// # Errors
    /// [`RepoError::History`] if what one declared is damaged or missing.
    pub fn prunes(&self, repo: &Repo) -> Result<Prunes, RepoError> {
        let after = self.moves_needed_after();
        self.declared_in(repo, Scope { after, moves_after: after }, &mut |_, error| self.stops_at(error))
    }

    /// What all prunes declared, for those who delete or check; in a salvaged history, as far as it can be read.
    ///
    /// # Errors
    /// [`RepoError::History`] if what one declared is damaged or missing.
    pub fn all_prunes(&self, repo: &Repo) -> Result<Prunes, RepoError> {
        self.all_prunes_or(repo, &mut |_, error| self.stops_at(error))
    }

    /// What all prunes declared. `on_damage` decides what to do when the refs of one cannot be read.
    pub(crate) fn all_prunes_or(&self, repo: &Repo, on_damage: OnDamage<'_>) -> Result<Prunes, RepoError> {
        let scope = Scope { after: None, moves_after: self.moves_needed_after() };
        self.declared_in(repo, scope, on_damage)
    }

    /// As `known`, which an earlier state of this history gave, with what was declared since: a backup that stood
    /// then may have been dropped, and is being read.
    pub(crate) fn prunes_since(&self, repo: &Repo, known: &Prunes) -> Result<Prunes, RepoError> {
        self.declared_in(repo, known.scope, &mut |_, error| self.stops_at(error))
    }

    fn stops_at(&self, error: RepoError) -> Result<(), RepoError> {
        match self.is_salvaged {
            true => Ok(()),
            false => Err(error.of_history(&self.log)),
        }
    }

    fn runs_that_pruned(&self) -> BTreeSet<RunNo> {
        let own = self.outcomes.iter().filter(|outcome| outcome.outcome_type == OutcomeType::Prune);
        // A prune whose outcome is lost has declared what a repair has found of it.
        let planned = self.planned.rebuilt.iter();
        let planned = planned.filter(|(_, refs)| matches!(refs, RebuiltRefs::Prune(_))).map(|(run, _)| *run);
        let rebuilt = self.rebuilt.iter().filter(|(_, (_, is_prune))| *is_prune).map(|(run, _)| *run);
        own.map(|outcome| outcome.run).chain(rebuilt).chain(planned).collect()
    }

    /// Whether a repair found what a lost prune had moved. Then a later run may have moved it in truth, which
    /// backups in between do not show.
    fn is_made_anew(&self, run: RunNo) -> bool {
        self.is_rebuilt(run) || self.planned.rebuilt.contains_key(&run)
    }

    /// The run up to which moves concern nothing that stands, which is the oldest backup: none references what
    /// had moved before it began. But chunks of rows name their base chunks as these were stored, for good.
    fn moves_needed_after(&self) -> Option<RunNo> {
        match self.log.kind {
            Kind::Physical | Kind::Binlog => self.standing.first().copied(),
            Kind::Logical => None,
        }
    }

    fn declared_in(&self, repo: &Repo, scope: Scope, on_damage: OnDamage<'_>) -> Result<Prunes, RepoError> {
        let is_after = |run: RunNo, after| Some(run) > after || self.is_made_anew(run);
        let runs: Vec<RunNo> =
            self.runs_that_pruned().into_iter().filter(|run| is_after(*run, scope.after)).collect();
        let mut prunes = Prunes { scope, ..Prunes::default() };
        let open = |run, sealed| self.open_prune_refs(repo, run, sealed);
        self.in_order_of_refs(repo, &runs, open, |run, refs| {
            let added = refs.and_then(|(at, refs)| {
                prunes.take_dead(at, &refs.dead);
                let taken = match is_after(run, scope.moves_after) {
                    true => prunes.take_moves(&refs.moves),
                    false => {
                        prunes.take_targets(&refs.moves);
                        Ok(())
                    }
                };
                taken.map_err(|what| RepoError::malformed(self.log.refs(run), what))
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

/// Which prunes count: those that ended later than this, and those that a repair made anew.
#[derive(Clone, Copy, Debug, Default)]
struct Scope {
    /// For anything.
    after: Option<RunNo>,
    /// For moves.
    moves_after: Option<RunNo>,
}

/// What prunes declared, together.
#[derive(Clone, Debug, Default)]
pub struct Prunes {
    scope: Scope,
    dead_since: BTreeMap<PackId, SystemTime>,
    /// What was moved out of each pack, by ordinal: some ten bytes a chunk, since years of prunes come together.
    moves: BTreeMap<PackId, Vec<MovedChunk>>,
    /// The packs into which chunks were moved, and the number by which `moves` know them.
    targets: BTreeMap<PackId, u32>,
    /// By these numbers.
    numbered: Vec<PackId>,
}

/// Where one chunk of a pack has gone.
#[derive(Clone, Copy, Debug)]
struct MovedChunk {
    ordinal: u32,
    to_pack: u32,
    to_ordinal: u32,
}

impl Prunes {
    fn take_targets(&mut self, moves: &[Move]) {
        for of_pack in moves.chunk_by(|a, b| a.to.pack == b.to.pack) {
            self.number_of(of_pack[0].to.pack);
        }
    }

    fn number_of(&mut self, target: PackId) -> u32 {
        *self.targets.entry(target).or_insert_with(|| {
            self.numbered.push(target);
            self.numbered.len() as u32 - 1
        })
    }

    fn take_moves(&mut self, moves: &[Move]) -> Result<(), &'static str> {
        for of_pack in moves.chunk_by(|a, b| a.from.pack == b.from.pack) {
            let added: Vec<MovedChunk> = of_pack
                .iter()
                .map(|Move { from, to }| MovedChunk {
                    ordinal: from.ordinal,
                    to_pack: self.number_of(to.pack),
                    to_ordinal: to.ordinal,
                })
                .collect();
            let of_pack = self.moves.entry(of_pack[0].from.pack).or_default();
            of_pack.extend(added);
            let named = of_pack.len();
            of_pack.sort_by_key(|moved| moved.ordinal);
            of_pack.dedup_by_key(|moved| moved.ordinal);
            of_pack.shrink_to_fit();
            if of_pack.len() != named {
                return Err("it moves a chunk that an earlier prune moved");
            }
        }
        Ok(())
    }

    fn take_dead(&mut self, at: SystemTime, dead: &[PackId]) {
        for pack in dead {
            // A pack is named again only by mistake, which does not make it younger.
            self.dead_since.entry(*pack).or_insert(at);
        }
    }

    fn moved(&self, chunk: ChunkRef) -> Option<ChunkRef> {
        let of_pack = self.moves.get(&chunk.pack)?;
        let at = of_pack.binary_search_by_key(&chunk.ordinal, |moved| moved.ordinal).ok()?;
        let MovedChunk { to_pack, to_ordinal, .. } = of_pack[at];
        Some(ChunkRef { pack: self.numbered[to_pack as usize], ordinal: to_ordinal })
    }

    /// Where the content of a chunk is now.
    #[must_use]
    pub fn resolve(&self, chunk: ChunkRef) -> ChunkRef {
        // Terminates, since each move leads into a later run.
        let mut at = chunk;
        while let Some(next) = self.moved(at) {
            at = next;
        }
        at
    }

    /// Whether every chunk of a pack is where it was stored, so that none of them needs
    /// to be [resolved](Self::resolve).
    #[must_use]
    pub fn left_in_place(&self, pack: PackId) -> bool {
        !self.moves.contains_key(&pack)
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

    /// Whether chunks were moved into this pack.
    pub(crate) fn is_target(&self, pack: PackId) -> bool {
        self.targets.contains_key(&pack)
    }

    /// When a prune declared the pack dead.
    #[must_use]
    pub fn dead_since(&self, pack: PackId) -> Option<SystemTime> {
        self.dead_since.get(&pack).copied()
    }
}
