//! How much space backups take, from refs, names and the index alone, just as a prune finds garbage.
//!
//! Refs do not record the lengths of chunks. Each chunk is assumed to be of the average size in its pack, so
//! figures for single backups are estimates, and figures for all together are exact.

use std::collections::{BTreeMap, HashSet};

use crate::{
    error::RepoError,
    format::names::{Folder, PackId, RunNo},
    interrupt::Interrupt,
    log::{
        check_record::{Checked, Unread},
        history::History,
    },
    ops::compression::Compression,
    repo::Repo,
};

/// The space of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// How many packs exist.
    pub packs: u64,
    /// Bytes of these packs.
    pub pack_bytes: u64,
    /// Bytes of packs of which no backup needs anything.
    pub unneeded_bytes: u64,
    /// What codecs have made of the packs' content.
    pub compression: Compression,
    /// For how long no check has read what backups need.
    pub unread: Unread,
    /// The space of each standing backup, oldest first.
    pub backups: Vec<BackupSpace>,
}

/// The space of one backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupSpace {
    /// Its run.
    pub run: RunNo,
    /// Bytes of everything that it needs.
    pub needed_bytes: u64,
    /// Bytes that no other backup needs: dropping this one and pruning frees this much.
    pub own_bytes: u64,
}

/// The group of backups that needs a chunk. Four bytes, since there is one for each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
struct Need(u32);

impl Need {
    const NOBODY: Need = Need(u32::MAX);
    const SEVERAL: Need = Need(u32::MAX - 1);

    fn and(self, group: u32) -> Need {
        match self {
            Need::NOBODY => Need(group),
            Need(before) if before == group => self,
            _ => Need::SEVERAL,
        }
    }
}

/// A pack of which some backup needs something.
#[derive(Default)]
struct NeededPack {
    bytes_each: u64,
    /// Which group needs each chunk.
    chunks: Vec<Need>,
    /// Replaces `chunks` once several groups need every chunk: how many chunks there are. That no longer
    /// changes, and holds for most packs.
    needed_by_several: usize,
}

impl NeededPack {
    fn need(&mut self, ordinal: u32, group: u32, bytes_each: u64) {
        self.bytes_each = self.bytes_each.max(bytes_each);
        let at = ordinal as usize;
        if at < self.needed_by_several {
            return;
        }
        if self.needed_by_several > 0 {
            self.chunks = vec![Need::SEVERAL; std::mem::take(&mut self.needed_by_several)];
        }
        if self.chunks.len() <= at {
            self.chunks.resize(at + 1, Need::NOBODY);
        }
        self.chunks[at] = self.chunks[at].and(group);
    }

    fn settle(&mut self) {
        if !self.chunks.is_empty() && self.chunks.iter().all(|need| *need == Need::SEVERAL) {
            self.needed_by_several = std::mem::take(&mut self.chunks).len();
        }
    }
}

/// For each group, the bytes that only it needs.
fn own_bytes(packs: &BTreeMap<PackId, NeededPack>) -> BTreeMap<u32, u64> {
    let mut own = BTreeMap::new();
    for pack in packs.values() {
        for Need(group) in pack.chunks.iter().filter(|need| **need < Need::SEVERAL) {
            *own.entry(*group).or_default() += pack.bytes_each;
        }
    }
    own
}

/// What groups of backups need of each pack; and for each backup, in order, the bytes of all its chunks.
fn needs(
    repo: &Repo,
    history: &History,
    group_of: impl Fn(u32, RunNo) -> u32,
    interrupt: &Interrupt,
) -> Result<(BTreeMap<PackId, NeededPack>, Vec<BackupSpace>), RepoError> {
    let prunes = history.prunes(repo)?;
    let mut packs: BTreeMap<PackId, NeededPack> = BTreeMap::new();
    let mut backups = Vec::new();
    let mut number = 0;
    history.all_backup_refs(repo, |run, refs| {
        interrupt.check()?;
        let group = group_of(number, run);
        number += 1;
        let mut needed_bytes = 0;
        refs?.each_pack(|of_pack| {
            let bytes_each = of_pack.size_bytes / (of_pack.chunks.len() as u64).max(1);
            if !prunes.left_in_place(of_pack.pack) {
                for chunk in of_pack.needed().map(|chunk| prunes.resolve(chunk)) {
                    packs.entry(chunk.pack).or_default().need(chunk.ordinal, group, bytes_each);
                    needed_bytes += bytes_each;
                }
                return;
            }
            let mut ordinals = of_pack.ordinals().peekable();
            if ordinals.peek().is_some() {
                let pack = packs.entry(of_pack.pack).or_default();
                for ordinal in ordinals {
                    pack.need(ordinal, group, bytes_each);
                    needed_bytes += bytes_each;
                }
                pack.settle();
            }
        })?;
        backups.push(BackupSpace { run, needed_bytes, own_bytes: 0 });
        Ok::<_, RepoError>(())
    })?;
    Ok((packs, backups))
}

impl Space {
    /// Measures the space of one log.
    pub fn of(repo: &Repo, history: &History, interrupt: &Interrupt) -> Result<Space, RepoError> {
        let (needed, mut backups) = needs(repo, history, |number, _| number, interrupt)?;
        let own = own_bytes(&needed);
        for (number, backup) in (0..).zip(&mut backups) {
            backup.own_bytes = own.get(&number).copied().unwrap_or(0);
        }
        // Problems of the records are for a check to report.
        let checked = Checked::read(repo, history.log(), &mut |_| {})?;
        let there = repo.list_folder(history.log(), Folder::Packs)?;
        let compression = Compression::of(repo, history, &there, interrupt)?;
        let mut space = Space { backups, compression, ..Space::default() };
        for ((run, part), info) in there {
            space.packs += 1;
            space.pack_bytes += info.size_bytes;
            let pack = PackId { run, part };
            if needed.contains_key(&pack) {
                space.unread.add(&checked, pack, &info, history.stored_by(run));
            } else if run < history.next_run() {
                // Packs of a run without an outcome are about to be needed.
                space.unneeded_bytes += info.size_bytes;
            }
        }
        Ok(space)
    }
}

/// How much a prune could free if these backups were dropped, on top of what it can free anyway.
pub fn freed_by(
    repo: &Repo,
    history: &History,
    dropped: &[RunNo],
    interrupt: &Interrupt,
) -> Result<u64, RepoError> {
    const KEPT: u32 = 0;
    const DROPPED: u32 = 1;
    let dropped: HashSet<RunNo> = dropped.iter().copied().collect();
    let group_of = |_, run| if dropped.contains(&run) { DROPPED } else { KEPT };
    let (needed, _) = needs(repo, history, group_of, interrupt)?;
    Ok(own_bytes(&needed).get(&DROPPED).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::names::{PackId, RunNo};

    proptest! {
        /// A pack whose chunks are only counted gives the same result as one whose chunks are listed.
        #[test]
        fn what_several_need_is_forgotten_without_a_trace(
            backups in prop::collection::vec(prop::collection::vec(0..6_u32, 0..9), 0..6),
        ) {
            let (mut settled, mut listed) = (NeededPack::default(), NeededPack::default());
            for (group, ordinals) in (0..).zip(&backups) {
                for ordinal in ordinals {
                    settled.need(*ordinal, group, 10);
                    listed.need(*ordinal, group, 10);
                }
                settled.settle();
            }
            let own = |pack| own_bytes(&BTreeMap::from([(PackId { run: RunNo(1), part: 0 }, pack)]));
            prop_assert_eq!(own(settled), own(listed));
        }
    }
}
