//! Extends locks that are about to end on objects that backups need (`docs/guide/stores.md`).
//!
//! The objects needed are known by name, from outcomes and refs. Every version of such a name is locked,
//! including versions that have since been covered or hidden. Garbage is left until its locks end. If an
//! outcome is hidden, the visible history may be shorter than the real one: then everything counts as needed.
//! If one outcome covers another, as when a run was ended after its outcome had been hidden, then everything
//! counts as needed that the covered outcome may have needed.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use crate::{
    error::{Damage, RepoError},
    format::names::{Folder, LogName, PackId, RunNo},
    interrupt::Interrupt,
    keys::KeyId,
    log::{
        beneath::{last_covered, outcomes_beneath},
        history::History,
    },
    ops::prune::needed_packs,
    repo::Repo,
    store::{
        ObjectPath,
        locks::{Extend, Extended, ObjectLock, Versioned},
    },
};

/// Objects outside all logs that are needed to open the repository.
const COMMON: [&str; 6] = ["holdfast.json", "one-writer", "keys/", "signers/", "removals/", "rotations/"];
/// Folders of a log whose objects may be needed for long.
const LASTING: [Folder; 5] = [Folder::Packs, Folder::Index, Folder::Refs, Folder::Outcomes, Folder::Reports];

/// How to extend locks.
#[derive(Clone, Debug)]
pub struct ExtendOptions {
    /// Extends locks that end within this time.
    pub margin: Duration,
    /// Only report, and change nothing.
    pub dry_run: bool,
    /// Ends it early, with [`RepoError::Interrupted`]: locks extended by then stay extended.
    pub interrupt: Interrupt,
}

/// The result for one part of the repository.
#[derive(Debug)]
pub struct PartExtended {
    /// The log; `None` for the objects that all logs share.
    pub log: Option<LogName>,
    /// What was extended.
    pub extended: Extended,
    /// Why it is not known what of this log is needed. Then everything in it counts as needed, or everything
    /// up to the run whose outcome covers another: the object that says otherwise may have been hidden.
    pub unknown: Option<RepoError>,
}

/// Extends locks, one part of the repository after the other, and calls `each` with each result. Returns the
/// time until which objects are locked.
pub fn extend(
    repo: &Repo,
    options: &ExtendOptions,
    each: &mut dyn FnMut(PartExtended),
) -> Result<SystemTime, RepoError> {
    let (lock, versioned) = locks_of(repo)?;
    // Asking for the store's clock writes to the store, which a dry run may not.
    let now = if options.dry_run { SystemTime::now() } else { repo.store().now()? };
    let beyond =
        || RepoError::malformed("holdfast.json", "its lock period exceeds the largest possible time");
    let until = now.checked_add(lock.period()).ok_or_else(beyond)?;
    let ends_before = now.checked_add(options.margin).ok_or_else(beyond)?;
    let within = |prefix: &str, wanted: &dyn Fn(&ObjectPath) -> bool, done: &mut Extended| {
        let go_on = || options.interrupt.check().is_ok();
        let what = Extend { wanted, now, ends_before, until, dry_run: options.dry_run, go_on: &go_on };
        *done += versioned.extend(prefix, &what)?;
        options.interrupt.check()
    };
    let mut done = Extended::default();
    let trust = repo.look_again()?;
    let is_removed = |path: &ObjectPath| {
        let key_id = path.as_str().strip_prefix("keys/").and_then(|name| name.parse::<KeyId>().ok());
        key_id.is_some_and(|key_id| trust.is_removed(key_id))
    };
    for prefix in COMMON {
        // A name matches only itself, a folder everything in it.
        let wanted =
            |path: &ObjectPath| (prefix.ends_with('/') || path.as_str() == prefix) && !is_removed(path);
        within(prefix, &wanted, &mut done)?;
    }
    each(PartExtended { log: None, extended: done, unknown: None });
    for log in repo.logs_ever(versioned)? {
        let (needed, unknown) = match Needed::of(repo, &log, &options.interrupt) {
            Ok(needed) => {
                let covered = needed.covered.map(|run| RepoError::damaged(log.outcome(run), Damage::Covered));
                (Some(needed), covered)
            }
            Err(error) if is_of_the_log(&error) => (None, Some(error)),
            Err(error) => return Err(error),
        };
        let mut done = Extended::default();
        for folder in LASTING {
            let prefix = log.folder(folder);
            let wanted = |path: &ObjectPath| {
                let name = path.as_str().strip_prefix(&prefix);
                let is_needed = |(run, part)| needed.as_ref().is_none_or(|it| it.has(folder, run, part));
                name.and_then(|name| folder.parse(name)).is_some_and(is_needed)
            };
            within(&prefix, &wanted, &mut done)?;
        }
        each(PartExtended { log: Some(log), extended: done, unknown });
    }
    Ok(until)
}

fn locks_of(repo: &Repo) -> Result<(ObjectLock, &dyn Versioned), RepoError> {
    let location = || repo.store().location();
    let lock = repo.info().object_lock.ok_or_else(|| RepoError::NothingToLock { location: location() })?;
    let versioned = repo.store().versioned();
    Ok((lock, versioned.ok_or_else(|| repo.no_locks("making locks longer"))?))
}

/// Whether an error concerns only what one log holds, so that other logs are not affected.
fn is_of_the_log(error: &RepoError) -> bool {
    match error {
        RepoError::Interrupted => false,
        RepoError::Store(error) => error.is_of_one_object(),
        _ => true,
    }
}

/// The needed objects of a log, by name.
struct Needed {
    history: History,
    packs: HashSet<PackId>,
    runs: HashSet<RunNo>,
    /// Everything that runs up to this one have stored is needed, too.
    covered: Option<RunNo>,
}

impl Needed {
    fn of(repo: &Repo, log: &LogName, interrupt: &Interrupt) -> Result<Self, RepoError> {
        let beneath = outcomes_beneath(repo, log)?;
        if let Some((run, _)) = beneath.iter().find(|(_, it)| it.is_hidden) {
            return Err(RepoError::damaged(log.outcome(*run), Damage::Hidden));
        }
        let history = History::read(repo, log)?;
        let packs = needed_packs(repo, &history, interrupt)?;
        let runs = packs.iter().map(|pack| pack.run).collect();
        let covered = last_covered(beneath, &history);
        Ok(Self { history, packs, runs, covered })
    }

    fn has(&self, folder: Folder, run: RunNo, part: u32) -> bool {
        if self.covered.is_some_and(|covered| run <= covered) {
            return true;
        }
        match folder {
            Folder::Packs => self.packs.contains(&PackId { run, part }),
            Folder::Index => self.runs.contains(&run) || self.history.stands(run),
            Folder::Refs | Folder::Reports => self.history.keeps_records(run),
            Folder::Outcomes => true,
            Folder::Runs | Folder::Segments | Folder::Checks | Folder::Asks => false,
        }
    }
}
