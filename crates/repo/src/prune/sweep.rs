//! Deleting what earlier prunes declared dead, what prunes left that came to nothing, and what ended runs left lying.
//!
//! Every rule here holds for good once it holds, so it does no harm to sweep late, twice, at once with others, or from
//! a process that was frozen since it looked.

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use super::PruneOptions;
use crate::{
    checked,
    error::RepoError,
    history::{History, list_folder},
    interrupt::Interrupt,
    names::{Folder, LogName, PackId, RunNo},
    outcome::{Intent, OutcomeType},
    repo::Repo,
    segment::is_superseded,
    store::ObjectPath,
};

/// Objects are deleted in batches of so many.
const BATCH: usize = 1000;
/// Uploads that began so long ago will not be finished.
const UPLOAD_AGE: Duration = Duration::from_secs(24 * 3600);

/// What was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Packs.
    pub packs: u64,
    /// Their bytes.
    pub pack_bytes: u64,
    /// Other objects.
    pub others: u64,
}

/// Deletes what earlier prunes declared dead, after the grace, in the order in which things depend on each other:
/// packs, index parts, refs and reports, segments whose bytes are in packs, leases.
pub fn sweep(repo: &Repo, log: &LogName, options: &PruneOptions) -> Result<Swept, RepoError> {
    let PruneOptions { grace, interrupt, .. } = options;
    let history = &History::read(repo, log)?;
    let mut swept = Swept::default();
    let prunes = history.prunes(repo)?;
    let now = repo.store().now()?;
    let targets = prunes.targets();
    let is_due = |pack: PackId| {
        prunes.dead_since(pack).is_some_and(|since| since + *grace <= now)
            || (is_for_nobody(history, pack.run) && !targets.contains(&pack))
    };
    let mut runs_with_packs = BTreeSet::new();
    let mut stay = HashSet::new();
    let mut due = Vec::new();
    for ((run, part), info) in list_folder(repo, log, Folder::Packs)? {
        if is_due(PackId { run, part }) {
            swept.packs += 1;
            swept.pack_bytes += info.size_bytes;
            due.push(info.path);
        } else {
            runs_with_packs.insert(run);
            stay.insert(PackId { run, part });
        }
    }
    delete(repo, &due, interrupt)?;

    let is_useful = |folder, run| {
        run >= history.next_run()
            || match folder {
                Folder::Index => history.stands(run) || runs_with_packs.contains(&run),
                Folder::Refs => keeps_records(history, run) && !history.is_rebuilt(run),
                Folder::Reports => keeps_records(history, run),
                Folder::Segments => !is_superseded(history, run),
                Folder::Runs => false,
                Folder::Outcomes => !history.is_lost(run),
                Folder::Packs | Folder::Checks => true,
            }
    };
    let void = history.void_index(repo)?;
    let folders =
        [Folder::Index, Folder::Refs, Folder::Reports, Folder::Segments, Folder::Runs, Folder::Outcomes];
    for folder in folders {
        let is_void = |key: &(RunNo, u32)| folder == Folder::Index && void.contains(key);
        let useless: Vec<ObjectPath> = list_folder(repo, log, folder)?
            .into_iter()
            .filter(|(key, _)| !is_useful(folder, key.0) || is_void(key))
            .map(|(_, info)| info.path)
            .collect();
        delete(repo, &useless, interrupt)?;
        swept.others += useless.len() as u64;
    }
    let records = checked::sweep(repo, log, &|pack| stay.contains(&pack))?;
    delete(repo, &records, interrupt)?;
    swept.others += records.len() as u64;
    repo.store().sweep_uploads(UPLOAD_AGE)?;
    Ok(swept)
}

/// Whether nothing can ever reference packs of this run but moves of its own: it has ended, and neither became a backup
/// nor was to become one. Nobody waits for such packs, so there is no grace for them.
fn is_for_nobody(history: &History, run: RunNo) -> bool {
    history.outcome(run).is_some_and(|outcome| match outcome.outcome_type {
        OutcomeType::Backup => false,
        OutcomeType::Prune
        | OutcomeType::Expire
        | OutcomeType::Hold
        | OutcomeType::Release
        | OutcomeType::Repair => true,
        OutcomeType::Tombstone | OutcomeType::Abandoned => outcome.intent != Some(Intent::Backup),
    })
}

/// Deletes all packs of a prune that has not ended, and their index: nothing references them before its outcome does,
/// and nobody takes over what a prune leaves, even where another has ended it.
pub(super) fn discard(repo: &Repo, log: &LogName, run: RunNo) -> Result<(), RepoError> {
    for folder in [Folder::Packs, Folder::Index] {
        let own = list_folder(repo, log, folder)?.into_iter().filter(|((of, _), _)| *of == run);
        let own: Vec<ObjectPath> = own.map(|(_, info)| info.path).collect();
        delete(repo, &own, &Interrupt::default())?;
    }
    Ok(())
}

/// Refs and reports are of use as long as a backup stands; those of prunes for good, since moves are.
fn keeps_records(history: &History, run: RunNo) -> bool {
    history.outcome(run).is_some_and(|outcome| match outcome.outcome_type {
        OutcomeType::Backup => history.stands(run),
        OutcomeType::Prune
        | OutcomeType::Expire
        | OutcomeType::Hold
        | OutcomeType::Release
        | OutcomeType::Repair => true,
        OutcomeType::Tombstone | OutcomeType::Abandoned => false,
    })
}

fn delete(repo: &Repo, paths: &[ObjectPath], interrupt: &Interrupt) -> Result<(), RepoError> {
    for batch in paths.chunks(BATCH) {
        interrupt.check()?;
        repo.store().delete(batch)?;
    }
    Ok(())
}
