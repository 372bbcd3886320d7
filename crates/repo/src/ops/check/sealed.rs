//! Checks packs and indexes as far as possible without opening them.

use std::{collections::BTreeSet, sync::Arc};

use super::{Check, Finding, Remedy, Severity};
use crate::{
    data::reader::ChunkSource,
    error::{Damage, RepoError},
    format::{
        names::{Folder, PackId, RunNo},
        pack::{TRAILER_BYTES, Trailer},
        place::HEADER_BYTES,
    },
    log::check_record::{self, Checked, Unread},
    sealed::check_header,
    store::ahead::in_order,
};

impl Check {
    /// Checks that every run whose packs are needed has index parts, if its outcome counts any.
    pub(super) fn index_names(&mut self) -> Result<(), RepoError> {
        let there = self.source.repo().list_folder(self.source.log(), Folder::Index)?;
        let runs: BTreeSet<RunNo> = self.needed.keys().map(|pack| pack.run).collect();
        for run in runs {
            let recorded = self.history.outcome(run).map_or(0, |outcome| outcome.index_parts);
            // Parts may be gone if all of their packs are; which parts these are is sealed.
            if recorded > 0 && there.range((run, 0)..=(run, u32::MAX)).next().is_none() {
                let object = self.source.log().index(run, 0).to_string();
                let problem = Damage::Missing.to_string();
                self.find(Finding {
                    problem,
                    remedy: Remedy::Index(run),
                    ..Finding::of_object(object, Severity::Repairable)
                });
            }
        }
        Ok(())
    }

    /// Reports needed packs that an earlier check, which could read them, found damaged.
    pub(super) fn found_bad(&mut self) {
        let bad = self.needed.keys().copied().filter(|pack| self.checked.is_bad(*pack));
        let bad: Vec<PackId> = bad.filter(|pack| !self.bad_packs.contains_key(pack)).collect();
        for pack in bad {
            let problem = "the last check that could read it found all or part of it damaged; a check with \
                           an operator's key shows what these backups have lost";
            self.bad_pack(pack, Severity::Lost, problem);
        }
    }

    /// Records which needed packs are gone, so that lists mark the backups that need them.
    pub(super) fn record_missing(&mut self) {
        let missing = self.needed.keys().copied().filter(|pack| !self.there.contains_key(pack));
        let missing: Vec<PackId> = missing.filter(|pack| !self.checked.is_bad(*pack)).collect();
        if !missing.is_empty() {
            let recorded = check_record::record_gone(self.source.repo(), self.source.log(), &missing);
            self.note_unrecorded(recorded);
        }
    }

    /// Forgets which packs were bad, of those that are dead or gone and that no backup needs: as long as any are
    /// known, every list reads the refs of all backups, and a keeper's sweep cannot write records. Nothing
    /// references a dead pack any more, and one that is gone is missed by any check, if it is needed after all.
    pub(super) fn forget_useless(&mut self) {
        let prunes = self.source.prunes();
        let is_useless = |pack| {
            let is_left = self.there.contains_key(&pack) && !prunes.is_dead(pack);
            !is_left && !self.needed.contains_key(&pack)
        };
        let (repo, log) = (self.source.repo(), self.source.log());
        let recorded = check_record::forget_bad(repo, log, &self.checked, &is_useless);
        self.note_unrecorded(recorded);
    }

    /// Checks that needed packs begin with the header of their place and end with a valid trailer.
    pub(super) fn sealed_packs(&mut self) -> Result<(), RepoError> {
        let packs = self.needed.keys().filter(|pack| !self.bad_packs.contains_key(pack));
        let packs: Vec<(PackId, u64)> =
            packs.filter_map(|pack| Some((*pack, self.there.get(pack)?.size_bytes))).collect();
        let source = Arc::clone(&self.source);
        let look = |(pack, size_bytes): &(PackId, u64)| match sealed_pack(&source, *pack, *size_bytes) {
            Err(error) if !error.is_of_the_object() => Err(error),
            looked => Ok(looked.err()),
        };
        in_order(source.repo().store().reads_at_once(), &packs, look, |(pack, _), wrong| {
            self.options.interrupt.check()?;
            if let Some(error) = wrong {
                let Finding { severity, problem, .. } = Finding::of(&error, Severity::Lost);
                self.bad_pack(*pack, severity, problem);
            }
            Ok(())
        })
    }

    /// Checks that every needed pack exists, and is as the refs say.
    pub(super) fn packs(&mut self) -> Result<(), RepoError> {
        let there = self.source.repo().list_folder(self.source.log(), Folder::Packs)?;
        self.there = there.into_iter().map(|((run, part), info)| (PackId { run, part }, info)).collect();
        // A listing may lag behind or be incomplete: only the object itself shows that it is gone.
        let unlisted: Vec<PackId> =
            self.needed.keys().copied().filter(|pack| !self.there.contains_key(pack)).collect();
        for pack in unlisted {
            self.options.interrupt.check()?;
            match self.source.repo().store().head(&self.source.log().pack(pack)) {
                Ok(info) => drop(self.there.insert(pack, info)),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut missing = Vec::new();
        for (pack, needed) in &mut self.needed {
            match self.there.get(pack).map(|info| info.size_bytes) {
                None => missing.push(*pack),
                Some(size) => {
                    needed.is_disputed |= needed.shape.as_ref().is_some_and(|shape| shape.size_bytes != size);
                }
            }
        }
        for pack in missing {
            self.bad_pack(pack, Severity::Lost, "is missing");
        }
        self.disputes()
    }

    /// Determines for how long data that backups need has not been read. A record that cannot be trusted is a
    /// finding, unless a check has written another one since.
    pub(super) fn unread(&mut self) -> Result<(), RepoError> {
        let mut damaged = Vec::new();
        let (repo, log) = (self.source.repo(), self.source.log());
        self.checked = Checked::read(repo, log, &mut |error| damaged.push(error))?;
        self.report.unread = self.unread_by(&self.checked);
        for error in damaged {
            let finding = Finding::of(&error, Severity::Repairable);
            self.find(Finding { remedy: Remedy::Discard, ..finding });
        }
        Ok(())
    }

    pub(super) fn unread_by(&self, checked: &Checked) -> Unread {
        let mut unread = Unread::default();
        for pack in self.needed.keys() {
            if let Some(info) = self.there.get(pack) {
                unread.add(checked, *pack, info, self.history.stored_by(pack.run));
            }
        }
        unread
    }
}

fn sealed_pack(source: &ChunkSource, pack: PackId, size_bytes: u64) -> Result<(), RepoError> {
    let place = source.place(pack);
    let path = place.path();
    let store = source.repo().store();
    let mut header = [0; HEADER_BYTES];
    store.read_exact_at(&path, 0, &mut header).map_err(RepoError::of_needed)?;
    check_header(source.repo().keys(), &place, &header)?;
    trailer_of(source, pack, size_bytes).map(drop)
}

pub(super) fn trailer_of(source: &ChunkSource, pack: PackId, size_bytes: u64) -> Result<Trailer, RepoError> {
    let path = source.place(pack).path();
    let trailer_at = size_bytes
        .checked_sub(TRAILER_BYTES as u64)
        .ok_or_else(|| RepoError::malformed(&path, "it is too short for a pack"))?;
    let mut trailer = [0; TRAILER_BYTES];
    source.repo().store().read_exact_at(&path, trailer_at, &mut trailer).map_err(RepoError::of_needed)?;
    Trailer::decode(&trailer, size_bytes).map_err(|error| RepoError::damaged(&path, Damage::from(error)))
}
