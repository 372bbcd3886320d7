//! Checks what is stored beside data: missing outcomes, segments, reports.

use std::sync::Arc;

use super::{Check, Finding, Remedy, Severity};
use crate::{
    error::RepoError,
    format::names::{Folder, LogName, RunNo},
    log::{
        history::read_report,
        lease::look,
        segment::{SegmentReader, is_signed, is_superseded, list_segments},
    },
    repo::Repo,
    store::{ahead::sized_in_order, exists},
};

impl Check {
    /// Finds missing outcomes that leave a trace. After the newest existing outcome, the only traces are what
    /// the run stored before its outcome, and what later runs did.
    pub(super) fn endings(&mut self) -> Result<(), RepoError> {
        let (repo, log) = (Arc::clone(self.source.repo()), self.source.log().clone());
        let next = self.history.next_run();
        let foreseen = self.history.last_foreseen();
        let mut strangers = self.history.strangers().first().map(|run| log.outcome(*run).to_string());
        let mut begun = Vec::new();
        let mut stored = Vec::new();
        for folder in [Folder::Runs, Folder::Refs, Folder::Reports] {
            let runs = repo.list_folder(&log, folder)?.into_keys().map(|(run, _)| run);
            let mut runs: Vec<RunNo> = runs.filter(|run| *run >= next).collect();
            if let Some(far) = runs.iter().find(|run| **run > foreseen) {
                strangers.get_or_insert_with(|| format!("{}{:010}", log.folder(folder), far.0));
            }
            runs.retain(|run| *run <= foreseen);
            if folder == Folder::Refs {
                stored.clone_from(&runs);
            }
            begun.extend(runs);
        }
        if let Some(object) = strangers {
            let problem = "has a run number far beyond the newest run: it is ignored".to_owned();
            self.find(Finding { problem, ..Finding::of_object(object, Severity::Repairable) });
        }
        if let Some(run) = self.history.uncertain_hold() {
            let problem =
                "is missing, and may have held or released backups: hold or release them again".to_owned();
            let object = log.outcome(run).to_string();
            self.find(Finding { problem, ..Finding::of_object(object, Severity::Repairable) });
        }
        let Some(newest) = begun.into_iter().max() else { return Ok(()) };
        // The outcome may have been written since the history was read.
        let is_there = |run| exists(&**repo.store(), &log.outcome(run));
        if is_there(next)? {
            return Ok(());
        }
        if newest > next {
            self.report.stops_runs = true;
            let problem = format!("is missing, although run {newest} began after it");
            let object = log.outcome(next).to_string();
            self.find(Finding {
                problem,
                remedy: Remedy::Outcome,
                ..Finding::of_object(object, Severity::Lost)
            });
        }
        if stored.contains(&newest) && is_dead(&repo, &log, newest)? && !is_there(newest)? {
            let problem = format!(
                "is missing, although run {newest} had stored everything else: either the run died at that \
                 moment, or its outcome was deleted, and with it what it recorded"
            );
            let object = log.outcome(newest).to_string();
            self.find(Finding {
                problem,
                remedy: Remedy::Outcome,
                ..Finding::of_object(object, Severity::Lost)
            });
        }
        Ok(())
    }

    /// Checks segments that are needed: signed, intact, and without gaps between them.
    pub(super) fn segments(&mut self) -> Result<(), RepoError> {
        let (repo, log) = (Arc::clone(self.source.repo()), self.source.log().clone());
        for (run, parts) in list_segments(&repo, &log)? {
            if is_superseded(&self.history, run) {
                continue;
            }
            let mut reader = SegmentReader::new(&repo, &self.history, run);
            let read = loop {
                self.options.interrupt.check()?;
                match reader.read_next() {
                    Ok(Some(_)) => {}
                    Ok(None) => break reader.check_end(),
                    Err(error) => break Err(error),
                }
            };
            // If the outcome before the run is lost, there is nothing to compare with.
            let before = run.0.checked_sub(1).map(RunNo).filter(|before| before.0 > 0);
            let is_after_gap = before.is_some_and(|before| self.history.hash_of(before).is_none());
            if let Err(error) = read
                && !(is_after_gap && reader.next_part() == 0 && error.is_of_segment_chain())
                // The run may have ended meanwhile, and its segments may be gone.
                && !is_superseded(&self.history.renewed(&repo)?, run)
            {
                let position = self.finding(error, Severity::Lost, Vec::new())?;
                // Of a run that may go on, packs will have the same. What a key has signed is no damage, even if
                // this program cannot use it.
                let has_ended = self.history.outcome(run).is_some() || run > self.history.last_foreseen();
                if has_ended && !is_signed(&repo, &log, run, reader.next_part())? {
                    self.report.findings[position].remedy = Remedy::Discard;
                    let later = parts.into_iter().filter(|part| *part > reader.next_part());
                    for object in later.map(|part| log.segment(run, part).to_string()) {
                        let problem = "comes after one that cannot be read".to_owned();
                        let finding = Finding::of_object(object, Severity::Lost);
                        self.find(Finding { problem, remedy: Remedy::Discard, ..finding });
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks the report of every backup that has one. No restore needs it.
    pub(super) fn reports(&mut self) -> Result<(), RepoError> {
        let (repo, log) = (Arc::clone(self.source.repo()), self.source.log().clone());
        let recorded = |run: RunNo| self.history.outcome(run).and_then(|outcome| outcome.report);
        let there = repo.list_folder(&log, Folder::Reports)?.into_iter();
        let there: Vec<_> = there.map(|((run, _), info)| (run, recorded(run), info)).collect();
        sized_in_order(
            repo.store().reads_at_once(),
            &there,
            &|(.., info)| info.size_bytes,
            |(run, recorded, info)| Ok(read_report(&repo, &log, *run, *recorded, Some(info)).err()),
            |(run, ..), wrong| {
                self.options.interrupt.check()?;
                let Some(error) = wrong else { return Ok(()) };
                // The backup may have been dropped, and its report deleted, before this check or during it.
                if self.history.renewed(&repo)?.keeps_records(*run) {
                    let position = self.finding(error, Severity::Repairable, Vec::new())?;
                    self.report.findings[position].remedy = Remedy::Discard;
                }
                Ok(())
            },
        )
    }
}

/// Whether the lease of `run` shows that it is dead. Reading the store's clock takes a write: where only reading
/// is allowed, nothing shows that, and the run may be alive.
fn is_dead(repo: &Repo, log: &LogName, run: RunNo) -> Result<bool, RepoError> {
    match look(repo, log, run) {
        Err(RepoError::Store(error)) if error.is_refused() => Ok(false),
        lease => Ok(!lease?.is_some_and(|lease| lease.is_alive)),
    }
}
