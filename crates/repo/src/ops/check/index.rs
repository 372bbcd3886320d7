//! Checks the index of each run: that it is intact, and agrees with the packs.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use super::{
    Check, Finding, Remedy, Severity,
    needs::{Needed, Shape},
};
use crate::{
    data::reader::catalog::{IndexedRows, read_index_parts},
    error::RepoError,
    format::{
        names::{Folder, PackId, RunNo},
        pack::PackRows,
    },
};

impl Check {
    /// Checks the index of every run whose packs are needed: that it is intact, and agrees with the packs.
    pub(super) fn index(&mut self) -> Result<(), RepoError> {
        let source = Arc::clone(&self.source);
        let void = self.history.void_index(source.repo())?;
        // By run: the packs that its index lists. Every run whose packs are needed must have an index.
        let runs = self.needed.keys().map(|pack| pack.run);
        let mut listed: BTreeMap<RunNo, BTreeSet<PackId>> = runs.map(|run| (run, BTreeSet::new())).collect();
        let parts = source.repo().list_folder(source.log(), Folder::Index)?.into_iter();
        let parts: Vec<_> =
            parts.filter(|(part, _)| listed.contains_key(&part.0) && !void.contains(part)).collect();
        let (mut asked, mut newer) = (BTreeSet::new(), BTreeSet::new());
        read_index_parts(source.repo(), source.log(), &parts, |(run, part), packs| {
            self.options.interrupt.check()?;
            match packs {
                Ok(packs) => {
                    listed
                        .entry(run)
                        .or_default()
                        .extend(packs.iter().map(|(part, _)| PackId { run, part: *part }));
                    self.index_part((run, part), &packs, &mut asked)
                }
                Err(error) => {
                    if error.is_unknown() {
                        newer.insert(run);
                    }
                    let position = self.finding(error, Severity::Repairable, Vec::new())?;
                    self.report.findings[position].remedy = Remedy::Index(run);
                    Ok(())
                }
            }
        })?;
        for (run, listed) in listed {
            let unlisted = self.needed.range(PackId { run, part: 0 }..=PackId { run, part: u32::MAX });
            // What this version does not know may list them.
            let unlisted: Vec<PackId> = unlisted
                .map(|(pack, _)| *pack)
                .filter(|pack| !listed.contains(pack) && !newer.contains(&run))
                .collect();
            for pack in unlisted {
                let object = source.log().pack(pack).to_string();
                let problem = "no index part lists it".to_owned();
                let finding = Finding::of_object(object, Severity::Repairable);
                self.find(Finding { problem, remedy: Remedy::Index(run), ..finding });
            }
            // Parts may be gone if all of their packs are; lost parts
            // show by the packs that they should list.
            let recorded = self.history.outcome(run).map_or(0, |outcome| outcome.index_parts);
            if recorded > 0 && !parts.iter().any(|((of, _), _)| *of == run) {
                let object = source.log().index(run, 0).to_string();
                let problem = format!("none of its {recorded} index parts exists");
                self.find(Finding {
                    problem,
                    remedy: Remedy::Index(run),
                    ..Finding::of_object(object, Severity::Repairable)
                });
            }
        }
        self.disputed_refs(&asked)
    }

    /// Compares what one part lists with what backups and packs say.
    fn index_part(
        &mut self,
        (run, part): (RunNo, u32),
        packs: &IndexedRows,
        asked: &mut BTreeSet<PackId>,
    ) -> Result<(), RepoError> {
        let mut wrong = None;
        for (part, rows) in packs {
            let pack = PackId { run, part: *part };
            if !self.is_as_listed(pack, rows, asked)? {
                wrong.get_or_insert(pack);
            }
        }
        if let Some(pack) = wrong {
            let object = self.source.log().index(run, part).to_string();
            let problem = format!("disagrees with pack {pack} about its size or its chunks");
            let finding = Finding::of_object(object, Severity::Repairable);
            self.find(Finding { problem, remedy: Remedy::Index(run), ..finding });
        }
        Ok(())
    }

    /// Whether a needed pack is as the index says, as far as backups and the pack itself tell. Adds packs
    /// that were asked for this to `asked`.
    fn is_as_listed(
        &mut self,
        pack: PackId,
        rows: &PackRows,
        asked: &mut BTreeSet<PackId>,
    ) -> Result<bool, RepoError> {
        let listed = Shape::of_rows(rows);
        let Some(needed) = self.needed.get(&pack) else { return Ok(true) };
        let fits = |needed: &Needed| needed.shape.as_ref().is_none_or(|shape| shape.fits(&listed));
        let is_short = needed.chunks.last().is_some_and(|last| last as usize >= rows.rows().len());
        if (fits(needed) && !is_short) || !self.there.contains_key(&pack) {
            return Ok(true);
        }
        if !needed.is_disputed {
            self.ask(pack)?;
            asked.insert(pack);
        }
        Ok(self.bad_packs.contains_key(&pack) || self.needed.get(&pack).is_none_or(fits))
    }

    /// Reports packs from which the index was found to differ. Packs for which that was found `before` are
    /// compared once more.
    pub(super) fn misled(&mut self, before: &mut BTreeSet<PackId>) -> Result<(), RepoError> {
        for pack in before.iter().filter(|pack| self.needed.contains_key(pack)) {
            match self.source.confirmed_pack(*pack) {
                Err(error) if !error.is_of_the_object() => return Err(error),
                _ => {}
            }
        }
        before.extend(self.source.misled());
        let remedies = self.report.findings.iter().map(|it| it.remedy);
        let told: HashSet<Remedy> = remedies.collect();
        for pack in self.source.misled() {
            let remedy = Remedy::Index(pack.run);
            if told.contains(&remedy) {
                continue;
            }
            let object = self.source.log().pack(pack).to_string();
            let problem = "its directory and the index disagree: the directory is used".to_owned();
            let finding = Finding::of_object(object, Severity::Repairable);
            self.find(Finding { problem, remedy, ..finding });
        }
        Ok(())
    }
}
