//! The oracle: sees the whole store, unaffected by faults, and reports violations.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
};

use holdfast_repo::{
    Folder, LogName, PackId, Repo, RunNo,
    log::{history::History, outcome::OutcomeType},
    store::read_all,
};

use super::{
    actors::{Head, Report, chunk_of},
    chunks::{Content, read_pack},
};

pub(crate) struct Oracle {
    repo: Repo,
    log: LogName,
    /// Everything that users were told.
    told: Vec<Report>,
    /// The history as of the last check.
    history: History,
    /// Packs that the store confirmed but did not keep: they are exempt from checks, and everything else is
    /// checked as usual.
    lost: Arc<Mutex<HashSet<String>>>,
}

type Check = Result<(), String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Oracle {
    pub(crate) fn new(repo: Repo, log: LogName, lost: Arc<Mutex<HashSet<String>>>) -> Self {
        let history = History::read(&repo, &log).unwrap();
        Self { repo, log, told: Vec::new(), history, lost }
    }

    fn is_lost(&self, pack: PackId) -> bool {
        self.lost.lock().unwrap().contains(self.log.pack(pack).as_str())
    }

    /// Checks that copies are of different backups, in the order in which these were taken.
    fn check_copies(&self) -> Check {
        let runs = self.history.standing().filter_map(|outcome| Some(outcome.copy_of.as_ref()?.run));
        let runs: Vec<u64> = runs.collect();
        match runs.is_sorted_by(|one, next| one < next) {
            true => Ok(()),
            false => Err(format!("copies of {runs:?}, in this order")),
        }
    }

    pub(crate) fn tell(&mut self, report: &Report) -> Check {
        if let Report::Violation(what) = report {
            return Err(what.clone());
        }
        self.told.push(report.clone());
        Ok(())
    }

    /// Checks that no expire has dropped a backup that was held when it ended.
    /// Derived from the chain alone, not from the code that decides it.
    fn check_holds(&self) -> Check {
        let mut held = HashMap::new();
        for outcome in self.history.outcomes() {
            match outcome.outcome_type {
                OutcomeType::Hold => held.extend(outcome.backups.iter().map(|run| (*run, outcome.until))),
                OutcomeType::Release => held.retain(|run, _| !outcome.backups.contains(run)),
                _ => {}
            }
            for dropped in &outcome.dropped {
                if held.get(dropped).is_some_and(|until| until.is_none_or(|until| outcome.at < until)) {
                    return Err(format!("{dropped} was held, and {} dropped it", outcome.run));
                }
            }
        }
        Ok(())
    }

    /// Checks that the chain verifies, that listed backups are complete, correct and not declared dead, and
    /// that users were told the truth.
    pub(crate) fn check(&mut self) -> Check {
        let refreshed = self.history.refresh(&self.repo);
        refreshed.map_err(|error| format!("{error}; keys: {:?}", self.repo.key_problems()))?;
        self.check_holds()?;
        self.check_copies()?;
        let history = &self.history;
        let prunes = history.prunes(&self.repo).map_err(text)?;
        let mut packs: HashMap<PackId, Vec<Content>> = HashMap::new();
        for backup in history.standing() {
            history.backup_refs(&self.repo, backup.run).map_err(text)?;
            let head: Head =
                serde_json::from_slice(&history.head(&self.repo, backup.run).map_err(text)?).unwrap();
            for (content, chunk) in head {
                let at = prunes.resolve(chunk_of(chunk));
                let whose = || format!("backup {} needs {content} in {at}", backup.run);
                if self.is_lost(at.pack) {
                    continue;
                }
                if prunes.is_dead(at.pack) {
                    return Err(format!("{}: that pack is declared dead", whose()));
                }
                let contents = match packs.get(&at.pack) {
                    Some(contents) => contents,
                    None => {
                        let contents = read_pack(&**self.repo.store(), &self.log, at.pack)
                            .map_err(|error| format!("{}: {error}", whose()))?;
                        packs.entry(at.pack).or_insert(contents)
                    }
                };
                if contents.get(at.ordinal as usize) != Some(&content) {
                    return Err(format!("{}: found {contents:?}", whose()));
                }
            }
        }
        for report in &self.told {
            let found = |run: RunNo| history.outcome(run).map(|outcome| outcome.outcome_type);
            let (outcome, is_so) = match report {
                Report::BackedUp { run, .. } => (found(*run), found(*run) == Some(OutcomeType::Backup)),
                Report::Copied { run, pages } => {
                    let is_same = match history.stands(*run) {
                        true => {
                            let head = history.head(&self.repo, *run).map_err(text)?;
                            let head: Head = serde_json::from_slice(&head).unwrap();
                            head.iter().map(|(page, _)| page).eq(pages)
                        }
                        false => true,
                    };
                    (found(*run), is_same && found(*run) == Some(OutcomeType::Backup))
                }
                Report::Held { run, is_release: false } => {
                    (found(*run), found(*run) == Some(OutcomeType::Hold))
                }
                Report::Held { run, is_release: true } => {
                    (found(*run), found(*run) == Some(OutcomeType::Release))
                }
                Report::Lost { run } => (found(*run), found(*run) != Some(OutcomeType::Backup)),
                _ => continue,
            };
            if !is_so {
                return Err(format!("{report:?} was told, and its outcome is {outcome:?}"));
            }
        }
        Ok(())
    }

    fn runs_in(&self, folder: Folder) -> Vec<(RunNo, u32)> {
        let prefix = self.log.folder(folder);
        let mut found = Vec::new();
        let listed = self.repo.store().list(&prefix, &mut |info| {
            found.extend(folder.parse(info.path.as_str().strip_prefix(&prefix).unwrap()));
            true
        });
        listed.unwrap();
        found
    }

    /// Checks after the last prunes that no unneeded data are left.
    pub(crate) fn check_no_garbage(&self) -> Check {
        let history = History::read(&self.repo, &self.log).map_err(text)?;
        let prunes = history.prunes(&self.repo).map_err(text)?;
        let mut needed = BTreeSet::new();
        for backup in history.standing() {
            let refs = history.backup_refs(&self.repo, backup.run).map_err(text)?;
            for of_pack in refs.packs {
                for (ordinal, _) in (0..).zip(&of_pack.chunks).filter(|(_, chunk)| chunk.needed > 0) {
                    let chunk = holdfast_repo::ChunkRef { pack: of_pack.pack, ordinal };
                    needed.insert(prunes.resolve(chunk).pack);
                }
            }
        }
        // As far as a prune knows, missing data may have been moved: nothing that could be such data is
        // freed.
        if needed.iter().any(|pack| self.is_lost(*pack)) {
            return Ok(());
        }
        for (run, part) in self.runs_in(Folder::Packs) {
            if !needed.contains(&PackId { run, part }) {
                return Err(format!("pack {part} of {run} is garbage and was never freed"));
            }
        }
        for (run, _) in self.runs_in(Folder::Index) {
            if !history.stands(run) && !needed.iter().any(|pack| pack.run == run) {
                return Err(format!("the index of {run} was never freed"));
            }
        }
        for (run, _) in self.runs_in(Folder::Refs) {
            let is_prune = history.outcome(run).is_some_and(|o| o.outcome_type == OutcomeType::Prune);
            if !history.stands(run) && !is_prune {
                return Err(format!("the refs of {run} were never freed"));
            }
        }
        let leases = self.runs_in(Folder::Runs);
        if leases.iter().any(|(run, _)| run.0 + 1 < history.next_run().0) {
            return Err(format!("leases were never freed: {leases:?}"));
        }
        Ok(())
    }

    /// A hash of everything in the log except random numbers, which is the same for the same run of the
    /// model.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        let store = self.repo.store();
        store
            .list(&self.log.prefix(), &mut |info| {
                hasher.update(info.path.as_str().as_bytes());
                if info.path.as_str().contains("/packs/") {
                    hasher.update(&read_all(&**store, &info.path, 1 << 20).unwrap());
                }
                true
            })
            .unwrap();
        u64::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().unwrap())
    }
}
