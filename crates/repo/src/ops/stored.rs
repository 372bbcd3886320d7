//! Whether what backups need is stored, as far as that can be told without reading data.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    error::RepoError,
    format::names::{Folder, PackId, RunNo},
    log::{
        check_record::Checked,
        history::{History, Prunes},
    },
    repo::Repo,
    store::{ObjectInfo, exists},
};

/// The backups that need a pack that a check has found damaged or gone. Whether they need the damaged part of it,
/// only a check can tell. Reading this takes an operator's key.
///
/// As long as no check has found damage, this costs one small object for each log; otherwise the refs of all its
/// backups, until a check has seen that nothing needs the damaged packs any more.
pub fn suspects(repo: &Repo, history: &History) -> Result<BTreeSet<RunNo>, RepoError> {
    let checked = Checked::read(repo, history.log(), &mut |_| {})?;
    if !checked.has_found_damage() {
        return Ok(BTreeSet::new());
    }
    Ok(bad_packs(repo, history, &checked)?.into_keys().collect())
}

/// The packs that a check has found damaged or gone, by the backups that need them. Costs the refs of all backups.
pub(super) fn bad_packs(
    repo: &Repo,
    history: &History,
    checked: &Checked,
) -> Result<BTreeMap<RunNo, Vec<PackId>>, RepoError> {
    let needs = Needs::read(repo, history)?;
    let mut found = BTreeMap::new();
    for backup in history.standing() {
        // Refs that cannot be read are a finding of their own.
        let packs = needs.packs_of(backup.run)?.unwrap_or_default();
        let bad: Vec<PackId> = packs.into_keys().filter(|pack| checked.is_bad(*pack)).collect();
        if !bad.is_empty() {
            found.insert(backup.run, bad);
        }
    }
    Ok(found)
}

/// Which packs backups need.
struct Needs<'a> {
    repo: &'a Repo,
    history: &'a History,
    prunes: Prunes,
}

impl<'a> Needs<'a> {
    fn read(repo: &'a Repo, history: &'a History) -> Result<Self, RepoError> {
        // Chunks moved by a prune whose own record is damaged seem missing.
        Ok(Self { repo, history, prunes: history.all_prunes_or(repo, &mut |_, _| Ok(()))? })
    }

    /// The packs that the backup needs, with their sizes as far as it has recorded them; `None` if its refs are
    /// damaged.
    fn packs_of(&self, run: RunNo) -> Result<Option<BTreeMap<PackId, Option<u64>>>, RepoError> {
        let mut recorded: BTreeMap<PackId, u64> = BTreeMap::new();
        let mut needed: BTreeSet<PackId> = BTreeSet::new();
        let refs = self.history.stored_refs(self.repo, run).and_then(|refs| {
            refs.each_pack(|of| {
                recorded.insert(of.pack, of.size_bytes);
                if !self.prunes.left_in_place(of.pack) {
                    needed.extend(of.needed().map(|chunk| self.prunes.resolve(chunk).pack));
                } else if of.ordinals().next().is_some() {
                    needed.insert(of.pack);
                }
            })
        });
        match refs {
            Err(error) if error.is_of_the_object() => Ok(None),
            refs => refs.map(|()| {
                Some(needed.into_iter().map(|pack| (pack, recorded.get(&pack).copied())).collect())
            }),
        }
    }
}

/// What shows, without reading data, whether a backup has lost something.
pub(super) struct Stored<'a> {
    needs: Needs<'a>,
    packs: BTreeMap<(RunNo, u32), ObjectInfo>,
    checked: Checked,
}

impl<'a> Stored<'a> {
    pub(super) fn look(repo: &'a Repo, history: &'a History) -> Result<Self, RepoError> {
        let log = history.log();
        Ok(Self {
            needs: Needs::read(repo, history)?,
            packs: repo.list_folder(log, Folder::Packs)?,
            checked: Checked::read(repo, log, &mut |_| {})?,
        })
    }

    /// Whether every pack that the backup needs exists, and no check has found it damaged.
    pub(super) fn has_all_of(&self, run: RunNo) -> Result<bool, RepoError> {
        let Some(needed) = self.needs.packs_of(run)? else { return Ok(false) };
        for (pack, size_bytes) in needed {
            if self.needs.prunes.is_dead(pack) || self.checked.is_bad(pack) || !self.has(pack, size_bytes)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn has(&self, pack: PackId, recorded: Option<u64>) -> Result<bool, RepoError> {
        match self.packs.get(&(pack.run, pack.part)) {
            Some(info) => Ok(recorded.is_none_or(|size_bytes| info.size_bytes == size_bytes)),
            // A listing may lag behind.
            None => {
                let Needs { repo, history, .. } = &self.needs;
                Ok(exists(&**repo.store(), &history.log().pack(pack))?)
            }
        }
    }
}
