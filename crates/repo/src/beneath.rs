//! Bytes that seem lost and are only hidden, or covered by others, in a store that keeps versions.
//!
//! Whoever may delete or write, and no versions, takes nothing away for good. What he has done can be undone by taking away
//! the mark of deletion, or what lies over; so nothing is to be given up for it.

use std::collections::HashMap;

use crate::{
    error::RepoError,
    names::{Folder, LogName, RunNo},
    repo::Repo,
    store::{ObjectPath, locks::Beneath},
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

/// The first outcome of a log that was deleted and has bytes all the same, of the runs that `counts` chooses.
pub(crate) fn hidden_outcome(
    repo: &Repo,
    log: &LogName,
    counts: &dyn Fn(RunNo) -> bool,
) -> Result<Option<ObjectPath>, RepoError> {
    let Some(versioned) = repo.store().versioned() else { return Ok(None) };
    let prefix = log.folder(Folder::Outcomes);
    let mut hidden = None;
    versioned.hidden(&prefix, &mut |path| {
        let name = path.as_str().strip_prefix(&prefix).and_then(|name| Folder::Outcomes.parse(name));
        if name.is_some_and(|(run, _)| counts(run)) {
            hidden.get_or_insert(path);
        }
    })?;
    Ok(hidden)
}
