//! Bytes that seem lost and are only hidden, or covered by others, in a store that keeps versions.
//!
//! Whoever may delete or write, and no versions, takes nothing away for good. What he has done can be undone by taking away
//! the mark of deletion, or what lies over; so nothing is to be given up for it.

use std::collections::{BTreeMap, HashMap};

use crate::{
    error::{Damage, RepoError},
    format::names::{Folder, LogName, RunNo},
    log::history::History,
    repo::Repo,
    store::{ObjectPath, StoreError, StoreErrorKind, locks::Beneath},
};

/// Looks for such bytes, once under each name.
pub struct BeneathFinder<'a> {
    repo: &'a Repo,
    prefix: String,
    known: HashMap<ObjectPath, Option<Beneath>>,
}

impl<'a> BeneathFinder<'a> {
    /// For objects of a log.
    #[must_use]
    pub fn new(repo: &'a Repo, log: &LogName) -> Self {
        Self { repo, prefix: log.prefix(), known: HashMap::new() }
    }

    /// Of the objects that a finding or an error names, the first that has such bytes.
    pub fn look(&mut self, named: &str) -> Result<Option<(ObjectPath, Beneath)>, RepoError> {
        let Some(versioned) = self.repo.store().versioned() else { return Ok(None) };
        let words = named.split([' ', ',', '(', ')']).filter(|word| word.starts_with(&self.prefix));
        for path in words.filter_map(ObjectPath::new) {
            let beneath = match self.known.get(&path) {
                Some(known) => *known,
                None => {
                    let found = versioned.beneath(&path)?;
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

/// The outcomes of a log under which there are bytes that are not what one gets who asks for them.
pub(crate) fn outcomes_beneath(repo: &Repo, log: &LogName) -> Result<BTreeMap<RunNo, Beneath>, RepoError> {
    let mut found = BTreeMap::new();
    let Some(versioned) = repo.store().versioned() else { return Ok(found) };
    let prefix = log.folder(Folder::Outcomes);
    versioned.all_beneath(&prefix, &mut |path, beneath| {
        let name = path.as_str().strip_prefix(&prefix).and_then(|name| Folder::Outcomes.parse(name));
        found.extend(name.map(|(run, _)| (run, beneath)));
    })?;
    Ok(found)
}

/// The last run of a history whose outcome lies over another, of those that have bytes `beneath`: what it came to is not
/// known, unless a repair has found it lost, so that what it and those before it have stored is not to be deleted.
pub(crate) fn last_covered(beneath: BTreeMap<RunNo, Beneath>, history: &History) -> Option<RunNo> {
    let mut runs = beneath.into_keys().rev();
    runs.find(|run| history.outcome(*run).is_some() && !history.is_lost(*run))
}

/// That nobody has hidden the outcome of a run that seems to have none, where everything is locked: what would be created
/// in its place would make it garbage. Whoever may not see versions goes on.
pub(crate) fn require_not_hidden(repo: &Repo, log: &LogName, run: RunNo) -> Result<(), RepoError> {
    let Some(versioned) = repo.store().versioned().filter(|_| repo.info().object_lock.is_some()) else {
        return Ok(());
    };
    let path = log.outcome(run);
    match versioned.beneath(&path) {
        Ok(Some(found)) if found.is_hidden => Err(RepoError::damaged(path, Damage::Hidden).of_history(log)),
        Err(StoreError { kind: StoreErrorKind::Remote(error), .. }) if error.cause.is_refusal() => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(()),
    }
}
