//! The history of a log: all outcomes, verified; which backups stand; what prunes declared.
//!
//! Nothing is believed that is not signed, in its place, and in the chain.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt::Display,
    time::SystemTime,
};

use jiff::Timestamp;

use crate::{
    error::{Damage, RepoError},
    hold::Hold,
    names::{ChunkRef, Folder, Kind, LogName, PackId, RunNo},
    object::{ObjectKind, Place, sealed_limit_bytes},
    outcome::{self, Intent, NO_OUTCOME, OUTCOME_BYTES_MAX, Outcome, OutcomeType, object_hash},
    reader::catalog::is_of_the_object,
    refs::{BackupRefs, PruneRefs, REFS_BYTES_MAX},
    repo::Repo,
    store::{ObjectInfo, read_all, read_listed},
};

/// The outcomes of a log, and what follows from them.
#[derive(Clone, Debug)]
pub struct History {
    log: LogName,
    /// In order of runs; without gaps unless it was salvaged.
    outcomes: Vec<Outcome>,
    standing: BTreeSet<RunNo>,
    /// Of backups that stand, the last that was said; it may have ended by itself.
    holds: BTreeMap<RunNo, Hold>,
    is_salvaged: bool,
}

impl History {
    /// Reads and verifies all outcomes.
    ///
    /// # Errors
    /// [`RepoError::History`] where one is damaged or missing.
    pub fn read(repo: &Repo, log: &LogName) -> Result<Self, RepoError> {
        let mut history = Self::empty(log);
        history.refresh(repo)?;
        Ok(history)
    }

    fn empty(log: &LogName) -> Self {
        Self {
            log: log.clone(),
            outcomes: Vec::new(),
            standing: BTreeSet::new(),
            holds: BTreeMap::new(),
            is_salvaged: false,
        }
    }

    /// Reads what is whole, for those who only read: one damaged outcome shall not take all backups with it. Tells
    /// `each` what is not whole, and passes over it.
    ///
    /// What is there is signed and in its place; what a damaged outcome dropped stands again, what it held is not known
    /// to be held, and where a damaged prune
    /// moved chunks is not known, so that they are missing. Nothing may be written on the ground of such a history.
    pub fn salvage(
        repo: &Repo,
        log: &LogName,
        each: &mut dyn FnMut(RunNo, RepoError),
    ) -> Result<Self, RepoError> {
        let mut history = Self { is_salvaged: true, ..Self::empty(log) };
        let mut expected = history.next_run();
        for ((run, _), info) in list_folder(repo, log, Folder::Outcomes)? {
            while expected < run {
                each(expected, RepoError::damaged(log.outcome(expected), Damage::Missing));
                expected = RunNo(expected.0 + 1);
            }
            expected = RunNo(run.0.saturating_add(1));
            let appended = read_listed(&**repo.store(), &info, OUTCOME_BYTES_MAX)
                .map_err(RepoError::from)
                .and_then(|bytes| outcome::parse(repo, log, run, &bytes, info.created_at))
                .and_then(|outcome| history.append(outcome));
            match appended {
                Err(error) if is_of_the_object(&error) => each(run, error),
                appended => appended?,
            }
        }
        Ok(history)
    }

    /// The same as it is now: salvaged, if it was.
    pub(crate) fn renewed(&self, repo: &Repo) -> Result<Self, RepoError> {
        if self.is_salvaged {
            return Self::salvage(repo, &self.log, &mut |_, _| {});
        }
        let mut renewed = self.clone();
        renewed.refresh(repo)?;
        Ok(renewed)
    }

    /// Reads what has come since.
    pub fn refresh(&mut self, repo: &Repo) -> Result<(), RepoError> {
        self.read_on(repo).map_err(|error| error.of_history(&self.log))
    }

    fn read_on(&mut self, repo: &Repo) -> Result<(), RepoError> {
        for (run, info) in
            list_folder(repo, &self.log, Folder::Outcomes)?.iter().map(|(key, info)| (key.0, info))
        {
            if run < self.next_run() {
                continue;
            }
            if run != self.next_run() {
                return Err(RepoError::damaged(self.log.outcome(self.next_run()), Damage::Missing));
            }
            let bytes = read_listed(&**repo.store(), info, OUTCOME_BYTES_MAX)?;
            let outcome = outcome::parse(repo, &self.log, run, &bytes, info.created_at)?;
            self.append(outcome)?;
        }
        Ok(())
    }

    fn append(&mut self, outcome: Outcome) -> Result<(), RepoError> {
        // Across a gap, which only a salvaged history has, there is nothing to compare with.
        if outcome.run == self.next_run() && outcome.previous != self.last_hash() {
            return Err(RepoError::damaged(self.log.outcome(outcome.run), Damage::Chain));
        }
        if outcome.dropped.iter().any(|dropped| *dropped >= outcome.run) {
            return Err(RepoError::malformed(self.log.outcome(outcome.run), "it drops what came later"));
        }
        if outcome.backups.iter().any(|named| *named >= outcome.run) {
            return Err(RepoError::malformed(self.log.outcome(outcome.run), "it holds what came later"));
        }
        match outcome.outcome_type {
            OutcomeType::Backup => drop(self.standing.insert(outcome.run)),
            OutcomeType::Expire => {
                for dropped in &outcome.dropped {
                    self.standing.remove(dropped);
                    self.holds.remove(dropped);
                }
            }
            OutcomeType::Hold => {
                let hold = Hold { since: outcome.at, until: outcome.until, reason: outcome.why.clone() };
                let standing = outcome.backups.iter().filter(|run| self.standing.contains(run));
                self.holds.extend(standing.map(|run| (*run, hold.clone())));
            }
            OutcomeType::Release => {
                for released in &outcome.backups {
                    self.holds.remove(released);
                }
            }
            OutcomeType::Prune | OutcomeType::Tombstone | OutcomeType::Abandoned => {}
        }
        self.outcomes.push(outcome);
        Ok(())
    }

    /// Whose.
    #[must_use]
    pub fn log(&self) -> &LogName {
        &self.log
    }

    /// All outcomes, in order.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// The outcome of a run.
    #[must_use]
    pub fn outcome(&self, run: RunNo) -> Option<&Outcome> {
        let index = self.outcomes.binary_search_by_key(&run, |outcome| outcome.run).ok()?;
        self.outcomes.get(index)
    }

    /// The number after the last outcome.
    #[must_use]
    pub fn next_run(&self) -> RunNo {
        self.outcomes.last().map_or(RunNo(1), |last| RunNo(last.run.0.saturating_add(1)))
    }

    pub(crate) fn last_hash(&self) -> outcome::ObjectHash {
        self.outcomes.last().map_or(NO_OUTCOME, |last| last.hash)
    }

    /// The backups that stand, oldest first.
    pub fn standing(&self) -> impl DoubleEndedIterator<Item = &Outcome> {
        self.standing.iter().filter_map(|run| self.outcome(*run))
    }

    /// Whether `run` is a backup that stands.
    #[must_use]
    pub fn stands(&self, run: RunNo) -> bool {
        self.standing.contains(&run)
    }

    /// The hold of a backup that stands, if it has not ended by `now`.
    #[must_use]
    pub fn hold(&self, run: RunNo, now: Timestamp) -> Option<&Hold> {
        self.holds.get(&run).filter(|hold| hold.is_active(now))
    }

    /// The newest backup that stands.
    #[must_use]
    pub fn newest_backup(&self) -> Option<RunNo> {
        self.standing.last().copied()
    }

    /// Runs that were to become backups, and ended without effect after the newest that did: what they stored may be
    /// adopted. What other runs leave never is, so that it can go at once; nor what is left of logical backups, whose
    /// chunks of rows are found by what lists them, which a run that died has not written.
    #[must_use]
    pub fn adoptable(&self) -> Vec<RunNo> {
        if self.log.kind == Kind::Logical {
            return Vec::new();
        }
        let mut runs: Vec<RunNo> = self
            .outcomes
            .iter()
            .rev()
            .take_while(|outcome| outcome.outcome_type != OutcomeType::Backup)
            .filter(|outcome| {
                matches!(outcome.outcome_type, OutcomeType::Tombstone | OutcomeType::Abandoned)
                    && outcome.intent == Some(Intent::Backup)
            })
            .map(|outcome| outcome.run)
            .collect();
        runs.reverse();
        runs
    }

    /// The manifest head of a backup, as JSON.
    pub fn head(&self, repo: &Repo, run: RunNo) -> Result<Vec<u8>, RepoError> {
        let path = self.log.outcome(run);
        let recorded = self.outcome(run).ok_or_else(|| RepoError::damaged(&path, Damage::Missing))?;
        let bytes = read_all(&**repo.store(), &path, OUTCOME_BYTES_MAX).map_err(RepoError::of_needed)?;
        if object_hash(&bytes) != recorded.hash {
            return Err(RepoError::damaged(&path, Damage::NotAsRecorded));
        }
        outcome::open_head(repo, &self.log, run, &bytes)
    }

    /// What a backup needs.
    pub fn backup_refs(&self, repo: &Repo, run: RunNo) -> Result<BackupRefs, RepoError> {
        let (path, bytes) = self.refs(repo, run)?;
        BackupRefs::decode(run, &bytes).map_err(|e| RepoError::damaged(path, Damage::Format(e)))
    }

    fn refs(&self, repo: &Repo, run: RunNo) -> Result<(impl Display, Vec<u8>), RepoError> {
        let place = Place { log: &self.log, kind: ObjectKind::Refs, run, part: 0 };
        let path = place.path();
        let recorded = self.outcome(run).and_then(|outcome| outcome.refs);
        let object = read_all(&**repo.store(), &path, sealed_limit_bytes(REFS_BYTES_MAX))
            .map_err(RepoError::of_needed)?;
        if recorded != Some(object_hash(&object)) {
            return Err(RepoError::damaged(path, Damage::NotAsRecorded));
        }
        let plain = repo.open_object(&place, &object, REFS_BYTES_MAX)?;
        Ok((path, plain))
    }

    /// What all prunes declared; of a salvaged history, as far as it can be read.
    ///
    /// # Errors
    /// [`RepoError::History`] where what one declared is damaged or missing.
    pub fn prunes(&self, repo: &Repo) -> Result<Prunes, RepoError> {
        self.prunes_or(repo, &mut |error| match self.is_salvaged {
            true => Ok(()),
            false => Err(error.of_history(&self.log)),
        })
    }

    /// What all prunes declared. `on_damage` is asked what shall become of it when that of one cannot be read.
    pub(crate) fn prunes_or(
        &self,
        repo: &Repo,
        on_damage: &mut dyn FnMut(RepoError) -> Result<(), RepoError>,
    ) -> Result<Prunes, RepoError> {
        let mut prunes = Prunes::default();
        for outcome in self.outcomes.iter().filter(|outcome| outcome.outcome_type == OutcomeType::Prune) {
            let added = self.prune_refs(repo, outcome.run).and_then(|refs| {
                let added = prunes.add(outcome.created_at, refs);
                added.map_err(|what| RepoError::malformed(self.log.refs(outcome.run), what))
            });
            match added {
                Err(error) if is_of_the_object(&error) => on_damage(error)?,
                added => added?,
            }
        }
        Ok(prunes)
    }

    fn prune_refs(&self, repo: &Repo, run: RunNo) -> Result<PruneRefs, RepoError> {
        let (path, bytes) = self.refs(repo, run)?;
        PruneRefs::decode(run, &bytes).map_err(|e| RepoError::damaged(path, Damage::Format(e)))
    }
}

/// What prunes declared, all together.
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
            // Named again only by a mistake, which does not make it younger.
            self.dead_since.entry(pack).or_insert(at);
        }
        Ok(())
    }

    /// Where the content of a chunk is now.
    #[must_use]
    pub fn resolve(&self, chunk: ChunkRef) -> ChunkRef {
        // Ends, since each move leads into a later run.
        let mut at = chunk;
        while let Some(next) = self.moves.get(&at) {
            at = *next;
        }
        at
    }

    /// Whether a prune declared the pack dead.
    #[must_use]
    pub fn is_dead(&self, pack: PackId) -> bool {
        self.dead_since.contains_key(&pack)
    }

    /// Whether a new backup may reference chunks of this pack: it is not dead and nothing was moved out of it.
    #[must_use]
    pub fn may_reference(&self, pack: PackId) -> bool {
        !self.is_dead(pack) && !self.moved_from.contains(&pack)
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

/// The objects of one folder, by run and part; strangers are not seen.
pub(crate) fn list_folder(
    repo: &Repo,
    log: &LogName,
    folder: Folder,
) -> Result<BTreeMap<(RunNo, u32), ObjectInfo>, RepoError> {
    let prefix = log.folder(folder);
    let mut objects = BTreeMap::new();
    repo.store().list(&prefix, &mut |info| {
        let name = info.path.as_str().strip_prefix(&prefix).unwrap_or_default();
        if let Some(key) = folder.parse(name) {
            objects.insert(key, info);
        }
        true
    })?;
    Ok(objects)
}
