//! What backups need, prunes declare and repairs have made anew: the refs of runs, as their outcomes recorded them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use holdfast_pipe::{ObjectKey, lock::lock};

use super::History;
use crate::{
    error::{Damage, RepoError},
    format::{
        hash::object_hash,
        names::{Folder, RunNo},
        place::{ObjectKind, Place},
        refs::{BackupRefs, NeededPack, REFS_BYTES_MAX, RebuiltRefs, RepairRefs, each_needed_pack},
    },
    log::outcome::OutcomeType,
    repo::Repo,
    sealed::{Frames, sealed_limit_bytes},
    store::{ObjectInfo, ObjectPath, ahead::sized_in_order, read_known},
};

impl History {
    /// What a backup needs.
    pub fn backup_refs(&self, repo: &Repo, run: RunNo) -> Result<BackupRefs, RepoError> {
        let mut packs = Vec::new();
        self.stored_refs(repo, run)?.each_pack(|pack| packs.push(pack.clone()))?;
        Ok(BackupRefs { packs })
    }

    /// As [`backup_refs`](Self::backup_refs), to be decoded pack by pack.
    pub(crate) fn stored_refs(&self, repo: &Repo, run: RunNo) -> Result<StoredRefs<'_>, RepoError> {
        let sealed = self.sealed_refs(repo, run, None);
        let refs = sealed.and_then(|sealed| self.open_backup_refs(repo, run, sealed));
        *lock(&self.repair) = None;
        refs
    }

    /// What each backup that stands needs, oldest first, to be decoded pack by pack. Several are read at a
    /// time if the store is far away.
    pub fn all_backup_refs<E: From<RepoError> + Send>(
        &self,
        repo: &Repo,
        each: impl FnMut(RunNo, Result<StoredRefs<'_>, RepoError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let standing: Vec<RunNo> = self.standing.iter().copied().collect();
        self.in_order_of_refs(repo, &standing, |run, sealed| self.open_backup_refs(repo, run, sealed), each)
    }

    /// Reads the refs of `runs`. Several are read at a time, but only one is open: for a backup that needs
    /// all of nearly every chunk, 200 KB become 200 MB.
    pub(super) fn in_order_of_refs<R, E: From<RepoError> + Send>(
        &self,
        repo: &Repo,
        runs: &[RunNo],
        open: impl Fn(RunNo, SealedRefs) -> Result<R, RepoError>,
        mut take: impl FnMut(RunNo, Result<R, RepoError>) -> Result<(), E>,
    ) -> Result<(), E> {
        // A listing is not worth it for a single one.
        let listed = match runs {
            [] | [_] => BTreeMap::new(),
            _ => repo.list_folder(&self.log, Folder::Refs)?,
        };
        let listed = |run: &RunNo| listed.get(&(*run, 0));
        let done = sized_in_order(
            repo.store().reads_at_once(),
            runs,
            &|run| listed(run).map_or(0, |info| info.size_bytes),
            |run| Ok(self.sealed_refs(repo, *run, listed(run))),
            |run, sealed| take(*run, sealed.and_then(|sealed| open(*run, sealed))),
        );
        *lock(&self.repair) = None;
        done
    }

    fn open_backup_refs(
        &self,
        repo: &Repo,
        run: RunNo,
        sealed: SealedRefs,
    ) -> Result<StoredRefs<'_>, RepoError> {
        let place = self.place_of_refs(run);
        if let Some(made) = self.rebuilt_by(repo, run)? {
            return match made.rebuilt.get(&run) {
                Some(RebuiltRefs::Backup(_)) => Ok(StoredRefs { place, form: FormOfRefs::Rebuilt(made) }),
                _ => Err(self.not_as_rebuilt(run)),
            };
        }
        let Some(object) = sealed else { return Err(self.not_as_rebuilt(run)) };
        let key = repo.key_of(&place, &object)?;
        Ok(StoredRefs { place, form: FormOfRefs::Sealed { key, object } })
    }

    /// What a repair has made anew, or is about to, if the refs of `run` are part of it.
    pub(super) fn rebuilt_by(&self, repo: &Repo, run: RunNo) -> Result<Option<Arc<RepairRefs>>, RepoError> {
        if self.planned.rebuilt.contains_key(&run) {
            return Ok(Some(Arc::clone(&self.planned)));
        }
        let Some((repair, _)) = self.rebuilt.get(&run) else { return Ok(None) };
        let made = self.last_repair_refs(repo, *repair)?;
        match made.rebuilt.contains_key(&run) {
            true => Ok(Some(made)),
            false => Err(self.not_as_rebuilt(*repair)),
        }
    }

    /// The refs of `repair`, read and opened once, by one thread at a time,
    /// however many ask for parts of them.
    fn last_repair_refs(&self, repo: &Repo, repair: RunNo) -> Result<Arc<RepairRefs>, RepoError> {
        let mut last = lock(&self.repair);
        if let Some((_, refs)) = last.as_ref().filter(|(run, _)| *run == repair) {
            return Ok(Arc::clone(refs));
        }
        // Never hold two in memory.
        *last = None;
        let refs = Arc::new(self.repair_refs(repo, repair)?);
        *last = Some((repair, Arc::clone(&refs)));
        Ok(refs)
    }

    pub(super) fn not_as_rebuilt(&self, run: RunNo) -> RepoError {
        RepoError::malformed(self.log.refs(run), "it does not hold the refs that its repair made anew")
    }

    pub(super) fn repair_refs(&self, repo: &Repo, repair: RunNo) -> Result<RepairRefs, RepoError> {
        let sealed = self.sealed_object_of_refs(repo, repair, None)?;
        let (path, bytes) = self.open_refs(repo, repair, Some(sealed))?;
        RepairRefs::decode(repair, &bytes).map_err(|e| RepoError::damaged(path, Damage::from(e)))
    }

    /// Index parts that count for nothing, since a repair has written others in their place.
    /// If what a repair recorded is damaged, the parts count: readers skip what they cannot read of an index.
    pub(crate) fn void_index(&self, repo: &Repo) -> Result<BTreeSet<(RunNo, u32)>, RepoError> {
        let mut void = BTreeSet::new();
        for repair in self.outcomes.iter().filter(|outcome| outcome.outcome_type == OutcomeType::Repair) {
            match self.repair_refs(repo, repair.run) {
                Ok(refs) => void.extend(refs.void_index),
                Err(error) if error.is_of_the_object() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(void)
    }

    /// The refs of a run as they are stored, unless a repair has made them anew.
    pub(super) fn sealed_refs(
        &self,
        repo: &Repo,
        run: RunNo,
        listed: Option<&ObjectInfo>,
    ) -> Result<SealedRefs, RepoError> {
        if self.planned.rebuilt.contains_key(&run) || self.rebuilt.contains_key(&run) {
            return Ok(None);
        }
        self.sealed_object_of_refs(repo, run, listed).map(Some)
    }

    fn sealed_object_of_refs(
        &self,
        repo: &Repo,
        run: RunNo,
        listed: Option<&ObjectInfo>,
    ) -> Result<Vec<u8>, RepoError> {
        let path = self.place_of_refs(run).path();
        let recorded = self.outcome(run).and_then(|outcome| outcome.refs);
        let object = read_known(&**repo.store(), &path, listed, sealed_limit_bytes(REFS_BYTES_MAX))
            .map_err(RepoError::of_needed)?;
        if recorded != Some(object_hash(&object)) {
            return Err(RepoError::damaged(path, Damage::NotAsRecorded));
        }
        Ok(object)
    }

    pub(super) fn open_refs(
        &self,
        repo: &Repo,
        run: RunNo,
        sealed: SealedRefs,
    ) -> Result<(ObjectPath, Vec<u8>), RepoError> {
        let place = self.place_of_refs(run);
        let Some(object) = sealed else { return Err(self.not_as_rebuilt(run)) };
        let plain = repo.open_object(&place, &object, REFS_BYTES_MAX)?;
        Ok((place.path(), plain))
    }

    pub(super) fn place_of_refs(&self, run: RunNo) -> Place<'_> {
        Place { log: &self.log, kind: ObjectKind::Refs, run, part: 0 }
    }
}

/// Refs as they are stored and as their outcome recorded them; `None` if a repair has made them anew.
pub(super) type SealedRefs = Option<Vec<u8>>;

/// What a backup needs, still sealed: decoded, it would take some 300 MB for 20 TB.
pub struct StoredRefs<'a> {
    place: Place<'a>,
    form: FormOfRefs,
}

enum FormOfRefs {
    Sealed {
        key: ObjectKey,
        object: Vec<u8>,
    },
    /// Among those that a repair has made anew.
    Rebuilt(Arc<RepairRefs>),
}

impl StoredRefs<'_> {
    /// Passes the packs to `each`, one after another, in order.
    ///
    /// # Errors
    /// Whatever is wrong with the refs, as soon as it is found: packs passed to `each`
    /// before that count for nothing.
    pub fn each_pack(&self, mut each: impl FnMut(&NeededPack)) -> Result<(), RepoError> {
        match &self.form {
            FormOfRefs::Sealed { key, object } => {
                let mut frames = Frames::new(key, &self.place, object, REFS_BYTES_MAX)?;
                let more = |plain: &mut Vec<u8>| frames.open_next(plain).map(|()| !frames.are_over());
                let broken = |error| RepoError::damaged(self.place, Damage::from(error));
                each_needed_pack(self.place.run, more, broken, each)
            }
            FormOfRefs::Rebuilt(made) => {
                if let Some(RebuiltRefs::Backup(refs)) = made.rebuilt.get(&self.place.run) {
                    refs.packs.iter().for_each(&mut each);
                }
                Ok(())
            }
        }
    }
}
