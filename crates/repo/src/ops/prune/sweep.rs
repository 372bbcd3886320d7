//! Deletes what earlier prunes declared dead, the remains of prunes that had no
//! effect, and what ended runs left behind.
//!
//! Every condition for deletion here holds for good once it holds, so it does no harm to sweep late, twice,
//! at the same time as others, or from a process that was frozen since it looked.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::{Duration, SystemTime},
};

use super::PruneOptions;
use crate::{
    error::RepoError,
    format::names::{Folder, LogName, PackId, RunNo},
    interrupt::Interrupt,
    log::check_record::{self, Checked},
    log::{
        beneath::{last_covered, outcomes_beneath},
        history::History,
        outcome::{Intent, OutcomeType},
        segment::is_superseded,
    },
    ops::stored::bad_packs,
    repo::Repo,
    store::{ObjectPath, exists, locks::StillLocked},
};

/// Objects are deleted in batches of this many.
const BATCH: usize = 1000;
/// Uploads that began this long ago will never be finished: far longer than
/// it takes to fill a pack, or to close it.
const UPLOAD_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// What was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Packs deleted.
    pub packs: u64,
    /// Bytes of these packs.
    pub pack_bytes: u64,
    /// Other objects deleted.
    pub others: u64,
    /// Packs that nothing needs, but that stay because the store does not allow deleting them.
    pub kept_packs: u64,
    /// Bytes of these packs.
    pub kept_bytes: u64,
    /// When the last of their locks ends, as far as the store tells.
    pub kept_until: Option<SystemTime>,
}

/// Deletes what earlier prunes declared dead, after the grace, in the order of dependencies: packs, index
/// parts, refs and reports, segments whose bytes are in packs, leases. `history` may be outdated.
pub fn sweep(repo: &Repo, history: &History, options: &PruneOptions) -> Result<Swept, RepoError> {
    let prunes = history.all_prunes(repo)?;
    let now = repo.store().now()?;
    // If a run's outcome was hidden, and another one covers it by now, then
    // what the run stored may be needed by it.
    let spared_to = match repo.info().object_lock {
        Some(_) => last_covered(outcomes_beneath(repo, history.log())?, history),
        None => None,
    };
    let is_dead = |pack: PackId| {
        let due = prunes.dead_since(pack).and_then(|since| since.checked_add(options.grace));
        due.is_some_and(|due| due <= now) || (is_for_nobody(history, pack.run) && !prunes.is_target(pack))
    };
    let sweep = Sweep { repo, history, interrupt: &options.interrupt, spared_to };
    let mut swept = Swept::default();
    let stay = sweep.packs(&is_dead, &mut swept)?;
    swept.others = sweep.others(&stay)?;
    repo.store().sweep_uploads(UPLOAD_AGE)?;
    Ok(swept)
}

struct Sweep<'a> {
    repo: &'a Repo,
    history: &'a History,
    interrupt: &'a Interrupt,
    /// What runs up to this one stored is spared: outcomes that nobody sees may need it.
    spared_to: Option<RunNo>,
}

impl Sweep<'_> {
    fn is_spared(&self, run: RunNo) -> bool {
        self.spared_to.is_some_and(|spared_to| run <= spared_to)
    }

    /// Deletes the packs that are dead. Returns those that stay, dead or not.
    fn packs(
        &self,
        is_dead: &dyn Fn(PackId) -> bool,
        swept: &mut Swept,
    ) -> Result<HashSet<PackId>, RepoError> {
        let mut stay = HashSet::new();
        let mut due = BTreeMap::new();
        for ((run, part), info) in self.repo.list_folder(self.history.log(), Folder::Packs)? {
            let pack = PackId { run, part };
            let is_due = is_dead(pack);
            if is_due && !self.is_spared(run) {
                due.insert(info.path, (pack, info.size_bytes));
                continue;
            }
            if is_due {
                swept.kept_packs += 1;
                swept.kept_bytes += info.size_bytes;
            }
            stay.insert(pack);
        }
        let paths: Vec<ObjectPath> = due.keys().cloned().collect();
        for kept in delete(self.repo, &paths, self.interrupt)? {
            let Some((pack, size_bytes)) = due.remove(&kept.path) else { continue };
            swept.kept_packs += 1;
            swept.kept_bytes += size_bytes;
            swept.kept_until = swept.kept_until.max(kept.until);
            stay.insert(pack);
        }
        swept.packs = due.len() as u64;
        swept.pack_bytes = due.values().map(|(_, size_bytes)| size_bytes).sum();
        Ok(stay)
    }

    /// Deletes everything else that is useless while only the packs in `stay`
    /// stay. Returns how many objects were deleted.
    fn others(&self, stay: &HashSet<PackId>) -> Result<u64, RepoError> {
        let (repo, log) = (self.repo, self.history.log());
        let runs_with_packs: BTreeSet<RunNo> = stay.iter().map(|pack| pack.run).collect();
        let void = self.history.void_index(repo)?;
        let folders = [
            Folder::Index,
            Folder::Refs,
            Folder::Reports,
            Folder::Segments,
            Folder::Asks,
            Folder::Runs,
            Folder::Outcomes,
        ];
        let mut gone = 0;
        for folder in folders {
            let is_void = |key: &(RunNo, u32)| folder == Folder::Index && void.contains(key);
            let useless: Vec<ObjectPath> = repo
                .list_folder(log, folder)?
                .into_iter()
                .filter(|(key, _)| !self.is_useful(folder, key.0, &runs_with_packs) || is_void(key))
                .map(|(_, info)| info.path)
                .collect();
            gone += deleted(repo, &useless, self.interrupt)?;
        }
        let missed =
            |checked: &Checked| Ok(bad_packs(repo, self.history, checked)?.into_values().flatten().collect());
        let records = check_record::sweep(repo, log, &|pack| stay.contains(&pack), &missed)?;
        Ok(gone + deleted(repo, &records, self.interrupt)?)
    }

    /// Whether what a run has in a folder may still be needed.
    fn is_useful(&self, folder: Folder, run: RunNo, runs_with_packs: &BTreeSet<RunNo>) -> bool {
        let history = self.history;
        run >= history.next_run()
            || (self.is_spared(run) && matches!(folder, Folder::Index | Folder::Refs | Folder::Reports))
            || match folder {
                Folder::Index => history.stands(run) || runs_with_packs.contains(&run),
                Folder::Refs => history.keeps_records(run) && !history.is_rebuilt(run),
                Folder::Reports => history.keeps_records(run),
                Folder::Segments => !is_superseded(history, run),
                // The newest lease shows that its number is taken, even if the outcome is lost.
                Folder::Runs => run.0 + 1 >= history.next_run().0,
                Folder::Outcomes => !history.is_lost(run),
                Folder::Asks => false,
                Folder::Packs | Folder::Checks => true,
            }
    }
}

/// Whether nothing but the run's own moves can ever reference packs of this run: the run
/// has ended, did not become a backup, and was not meant to become one. Nothing waits for
/// such packs, so there is no grace for them.
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

/// Deletes all packs of a prune that has not ended, and their index: nothing references them before its
/// outcome does, and nothing takes over the remains of a prune that has stored no refs.
pub(super) fn discard(repo: &Repo, log: &LogName, run: RunNo) -> Result<(), RepoError> {
    // If another run has ended it, that run may have found in these packs what is lost elsewhere.
    if exists(&**repo.store(), &log.outcome(run))? {
        return Ok(());
    }
    for folder in [Folder::Packs, Folder::Index] {
        let own = repo.list_folder(log, folder)?.into_iter().filter(|((of, _), _)| *of == run);
        let own: Vec<ObjectPath> = own.map(|(_, info)| info.path).collect();
        delete(repo, &own, &Interrupt::default())?;
    }
    Ok(())
}

/// Deletes objects; returns how many are gone.
fn deleted(repo: &Repo, paths: &[ObjectPath], interrupt: &Interrupt) -> Result<u64, RepoError> {
    let kept = delete(repo, paths, interrupt)?.len();
    Ok(paths.len().saturating_sub(kept) as u64)
}

/// Deletes objects; returns those that stay because they are locked.
fn delete(repo: &Repo, paths: &[ObjectPath], interrupt: &Interrupt) -> Result<Vec<StillLocked>, RepoError> {
    let mut kept = Vec::new();
    for batch in paths.chunks(BATCH) {
        interrupt.check()?;
        kept.extend(repo.discard(batch)?);
    }
    Ok(kept)
}
