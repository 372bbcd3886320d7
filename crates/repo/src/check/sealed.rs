//! What can be checked of packs and indexes without opening them.

use std::collections::BTreeSet;

use super::{Check, Finding, Remedy, Severity};
use crate::{
    error::{Damage, RepoError},
    names::{PackId, RunNo},
    object::{HEADER_BYTES, check_header},
    pack::{TRAILER_BYTES, Trailer},
    reader::catalog::{is_of_the_object, list_index_parts},
};

impl Check {
    /// Every run whose packs are needed has the index parts that its outcome counts.
    pub(super) fn index_names(&mut self) -> Result<(), RepoError> {
        let exist = list_index_parts(self.source.repo(), self.source.log())?;
        let runs: BTreeSet<RunNo> = self.needed.keys().map(|pack| pack.run).collect();
        for run in runs {
            let recorded = self.history.outcome(run).map_or(0, |outcome| outcome.index_parts);
            let parts = exist.get(&run).map_or(&[][..], Vec::as_slice);
            // Those all of whose packs are gone may be gone; which these are is sealed.
            if recorded > 0 && parts.is_empty() {
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

    /// Needed packs begin with the header of their place and end with a trailer that fits.
    pub(super) fn sealed_packs(&mut self) -> Result<(), RepoError> {
        let packs: Vec<PackId> =
            self.needed.keys().copied().filter(|pack| !self.bad_packs.contains_key(pack)).collect();
        for pack in packs {
            self.options.interrupt.check()?;
            match self.sealed_pack(pack) {
                Ok(()) => {}
                Err(error) if is_of_the_object(&error) => {
                    let problem = Finding::of(&error, Severity::Lost).problem;
                    self.bad_pack(pack, Severity::Lost, problem);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sealed_pack(&self, pack: PackId) -> Result<(), RepoError> {
        let place = self.source.place(pack);
        let path = place.path();
        let store = self.source.repo().store();
        let size_bytes = store.head(&path).map_err(RepoError::of_needed)?.size_bytes;
        let mut header = [0; HEADER_BYTES];
        store.read_exact_at(&path, 0, &mut header).map_err(RepoError::of_needed)?;
        check_header(self.source.repo().keys(), &place, &header)?;
        let trailer_at = size_bytes
            .checked_sub(TRAILER_BYTES as u64)
            .ok_or_else(|| RepoError::malformed(&path, "it is too short for a pack"))?;
        let mut trailer = [0; TRAILER_BYTES];
        store.read_exact_at(&path, trailer_at, &mut trailer).map_err(RepoError::of_needed)?;
        let trailer = Trailer::decode(&trailer, size_bytes);
        trailer.map_err(|error| RepoError::damaged(&path, Damage::Format(error)))?;
        Ok(())
    }
}
