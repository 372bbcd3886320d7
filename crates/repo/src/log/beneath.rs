//! Bytes that seem lost, but are only hidden or covered by others, in a store that keeps versions.
//!
//! Whoever may delete and write objects, but not versions, destroys nothing for good. Removing the delete
//! marker, or the version on top, undoes the damage; so nothing may be given up because of it.

use std::collections::{BTreeMap, HashMap};

use crate::{
    error::{Damage, RepoError},
    format::names::{Folder, LogName, RunNo},
    log::history::History,
    repo::Repo,
    store::{ObjectPath, StoreError, StoreErrorKind, locks::NoncurrentVersion},
};

/// Finds such bytes. Asks the store about each name only once.
pub struct BeneathFinder<'a> {
    repo: &'a Repo,
    prefix: String,
    known: HashMap<ObjectPath, Option<NoncurrentVersion>>,
}

impl<'a> BeneathFinder<'a> {
    /// For the objects of a log.
    #[must_use]
    pub fn new(repo: &'a Repo, log: &LogName) -> Self {
        Self { repo, prefix: log.prefix(), known: HashMap::new() }
    }

    /// The first object with such bytes, of those that a finding or an error names.
    pub fn look(&mut self, named: &str) -> Result<Option<(ObjectPath, NoncurrentVersion)>, RepoError> {
        let Some(versioned) = self.repo.store().versioned() else { return Ok(None) };
        let words = named.split([' ', ',', '(', ')']).filter(|word| word.starts_with(&self.prefix));
        for path in words.filter_map(ObjectPath::new) {
            let beneath = match self.known.get(&path) {
                Some(known) => *known,
                None => {
                    let found = versioned.noncurrent_version(&path)?;
                    self.known.insert(path.clone(), found);
                    found
                }
            };
            if let Some(beneath) = beneath {
                return Ok(Some((path, beneath)));
            }
        }
        Ok(None)
    }
}

/// The outcomes of a log under whose names there are bytes that a plain read does not return.
pub(crate) fn outcomes_beneath(
    repo: &Repo,
    log: &LogName,
) -> Result<BTreeMap<RunNo, NoncurrentVersion>, RepoError> {
    let mut found = BTreeMap::new();
    let Some(versioned) = repo.store().versioned() else { return Ok(found) };
    let prefix = log.folder(Folder::Outcomes);
    versioned.noncurrent_versions(&prefix, &mut |path, beneath| {
        let name = path.as_str().strip_prefix(&prefix).and_then(|name| Folder::Outcomes.parse(name));
        found.extend(name.map(|(run, _)| (run, beneath)));
    })?;
    Ok(found)
}

/// The last run of a history whose outcome covers another one, of the runs that have bytes `beneath`.
///
/// The real outcome of that run is not known, unless a repair has found it lost. So nothing that this run or
/// those before it have stored may be deleted.
pub(crate) fn last_covered(beneath: BTreeMap<RunNo, NoncurrentVersion>, history: &History) -> Option<RunNo> {
    let mut runs = beneath.into_keys().rev();
    runs.find(|run| history.outcome(*run).is_some() && !history.is_lost(*run))
}

/// Checks, in a repository with locks, that nobody has hidden the outcome of a run that seems to have none:
/// an outcome created in its place would make the run garbage. Skipped if the store refuses to show versions.
pub(crate) fn require_not_hidden(repo: &Repo, log: &LogName, run: RunNo) -> Result<(), RepoError> {
    let Some(versioned) = repo.store().versioned().filter(|_| repo.info().object_lock.is_some()) else {
        return Ok(());
    };
    let path = log.outcome(run);
    match versioned.noncurrent_version(&path) {
        Ok(Some(found)) if found.is_hidden => Err(RepoError::damaged(path, Damage::Hidden).of_history(log)),
        Err(StoreError { kind: StoreErrorKind::Remote(error), .. }) if error.cause.is_refusal() => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(()),
    }
}
