//! What backups take of the space: told from refs and names alone, as a prune tells what is garbage.
//!
//! Refs have no lengths of chunks. A chunk is taken for as large as the chunks of its pack are on average, so what is
//! said of single backups is near the truth, and what is said of all together is exact.

use std::collections::{BTreeMap, HashSet};

use crate::{
    error::RepoError,
    history::{History, list_folder},
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

/// Who needs a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Need {
    #[default]
    Nobody,
    /// Those of this group only.
    One(u32),
    Several,
}

impl Need {
    fn and(self, group: u32) -> Need {
        match self {
            Need::Nobody => Need::One(group),
            Need::One(before) if before == group => self,
            _ => Need::Several,
        }
    }
}

/// A pack of which somebody needs something.
#[derive(Default)]
struct NeededPack {
    bytes_each: u64,
    chunks: Vec<Need>,
}

impl NeededPack {
    fn bytes_of(&self, group: u32) -> u64 {
        self.bytes_each * self.chunks.iter().filter(|need| **need == Need::One(group)).count() as u64
    }
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
    for (number, backup) in (0..).zip(history.standing()) {
        interrupt.check()?;
        let group = group_of(number, backup.run);
        let mut needed_bytes = 0;
        for of_pack in history.backup_refs(repo, backup.run)?.packs {
            let bytes_each = of_pack.size_bytes / (of_pack.chunks.len() as u64).max(1);
            for (ordinal, _) in (0..).zip(&of_pack.chunks).filter(|(_, chunk)| chunk.needed > 0) {
                let chunk = prunes.resolve(ChunkRef { pack: of_pack.pack, ordinal });
                let pack = packs.entry(chunk.pack).or_default();
                pack.bytes_each = pack.bytes_each.max(bytes_each);
                let at = chunk.ordinal as usize;
                if pack.chunks.len() <= at {
                    pack.chunks.resize(at + 1, Need::Nobody);
                }
                pack.chunks[at] = pack.chunks[at].and(group);
                needed_bytes += bytes_each;
            }
        }
        backups.push(BackupSpace { run: backup.run, needed_bytes, own_bytes: 0 });
    }
    Ok((packs, backups))
}

impl Space {
    /// Looks at one log.
    pub fn of(repo: &Repo, history: &History, interrupt: &Interrupt) -> Result<Space, RepoError> {
        let (needed, mut backups) = needs(repo, history, |number, _| number, interrupt)?;
        for (number, backup) in (0..).zip(&mut backups) {
            backup.own_bytes = needed.values().map(|pack| pack.bytes_of(number)).sum();
        }
        let mut space = Space { backups, ..Space::default() };
        for ((run, part), info) in list_folder(repo, history.log(), Folder::Packs)? {
            space.packs += 1;
            space.pack_bytes += info.size_bytes;
            // What a run without an outcome has stored is about to be needed.
            if run < history.next_run() && !needed.contains_key(&PackId { run, part }) {
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
    Ok(needed.values().map(|pack| pack.bytes_of(DROPPED)).sum())
}
