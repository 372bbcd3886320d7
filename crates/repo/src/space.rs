//! What backups take of the space: told from refs, names and the index alone, as a prune tells what is garbage.
//!
//! Refs have no lengths of chunks. A chunk is taken for as large as the chunks of its pack are on average, so what is
//! said of single backups is near the truth, and what is said of all together is exact.

use std::collections::{BTreeMap, HashSet};

use crate::{
    checked::{Checked, Unread},
    compression::Compression,
    error::RepoError,
    history::History,
    interrupt::Interrupt,
    names::{ChunkRef, Folder, PackId, RunNo},
    repo::Repo,
};

/// The space of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Packs that are there.
    pub packs: u64,
    /// Their bytes.
    pub pack_bytes: u64,
    /// Bytes of packs of which no backup needs anything.
    pub unneeded_bytes: u64,
    /// What codecs have made of what is in them.
    pub compression: Compression,
    /// For how long no check has read what backups need.
    pub unread: Unread,
    /// Each standing backup's part, oldest first.
    pub backups: Vec<BackupSpace>,
}

/// What one backup takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupSpace {
    /// Its run.
    pub run: RunNo,
    /// Of all it needs.
    pub needed_bytes: u64,
    /// Of what no other backup needs: dropping it and pruning frees so much.
    pub own_bytes: u64,
}

/// Which group of backups needs a chunk. Four bytes, since there are as many as chunks.
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

/// A pack of which somebody needs something.
#[derive(Default)]
struct NeededPack {
    bytes_each: u64,
    chunks: Vec<Need>,
}

/// Bytes that only this group needs, by group.
fn own_bytes(packs: &BTreeMap<PackId, NeededPack>) -> BTreeMap<u32, u64> {
    let mut own = BTreeMap::new();
    for pack in packs.values() {
        for Need(group) in pack.chunks.iter().filter(|need| **need < Need::SEVERAL) {
            *own.entry(*group).or_default() += pack.bytes_each;
        }
    }
    own
}

/// What groups of backups need; bytes of all chunks for each backup, in order.
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
        for of_pack in refs?.packs {
            let bytes_each = of_pack.size_bytes / (of_pack.chunks.len() as u64).max(1);
            for (ordinal, _) in (0..).zip(&of_pack.chunks).filter(|(_, chunk)| chunk.needed > 0) {
                let chunk = prunes.resolve(ChunkRef { pack: of_pack.pack, ordinal });
                let pack = packs.entry(chunk.pack).or_default();
                pack.bytes_each = pack.bytes_each.max(bytes_each);
                let at = chunk.ordinal as usize;
                if pack.chunks.len() <= at {
                    pack.chunks.resize(at + 1, Need::NOBODY);
                }
                pack.chunks[at] = pack.chunks[at].and(group);
                needed_bytes += bytes_each;
            }
        }
        backups.push(BackupSpace { run, needed_bytes, own_bytes: 0 });
        Ok::<_, RepoError>(())
    })?;
    Ok((packs, backups))
}

impl Space {
    /// Looks at one log.
    pub fn of(repo: &Repo, history: &History, interrupt: &Interrupt) -> Result<Space, RepoError> {
        let (needed, mut backups) = needs(repo, history, |number, _| number, interrupt)?;
        let own = own_bytes(&needed);
        for (number, backup) in (0..).zip(&mut backups) {
            backup.own_bytes = own.get(&number).copied().unwrap_or(0);
        }
        // What is wrong with a record is for a check to tell.
        let checked = Checked::read(repo, history.log(), &mut |_| {})?;
        let there = repo.list_folder(history.log(), Folder::Packs)?;
        let compression = Compression::of(repo, history, &there, interrupt)?;
        let mut space = Space { backups, compression, ..Space::default() };
        for ((run, part), info) in there {
            space.packs += 1;
            space.pack_bytes += info.size_bytes;
            let pack = PackId { run, part };
            if needed.contains_key(&pack) {
                space.unread.add(&checked, pack, &info);
            } else if run < history.next_run() {
                // What a run without an outcome has stored is about to be needed.
                space.unneeded_bytes += info.size_bytes;
            }
        }
        Ok(space)
    }
}

/// How much a prune could free if these backups were dropped, beside what it can free anyway.
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
