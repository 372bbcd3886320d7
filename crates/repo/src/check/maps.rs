//! Reading page maps: leaves are whole, entries agree with the directories of packs, and all of it with the refs.

use std::{collections::BTreeMap, sync::Arc};

use super::{Check, Finding, Severity};
use crate::{
    columns::{PageEntry, StoredPage},
    error::RepoError,
    item::{Item, ItemMap},
    names::{ChunkRef, PackId, RunNo},
    pack::{ChunkKind, Directory},
    page_map::{LeafRef, PAGES_PER_LEAF},
    reader::{Backup, ChunkSource, cache::Cache, catalog::is_of_the_object},
};

/// Files that a finding names, at most.
const FILES_NAMED: usize = 20;
const DIRECTORY_CACHE_BYTES: usize = 32 << 20;

impl Check {
    /// Every backup opens; with `read_data` its page maps are read, compared with its refs and the directories.
    pub(super) fn backups(&mut self) -> Result<(), RepoError> {
        let standing: Vec<RunNo> = self.history.standing().map(|outcome| outcome.run).collect();
        let mut directories = Directories::new();
        for run in standing {
            self.options.interrupt.check()?;
            let backup = match Backup::open_with(Arc::clone(&self.source), &self.history, run) {
                Ok(backup) => backup,
                Err(error) => {
                    self.finding(error, Severity::Lost, vec![run])?;
                    continue;
                }
            };
            if self.options.read_data.is_some() {
                self.walk(&backup, &mut directories)?;
            }
        }
        Ok(())
    }

    fn walk(&mut self, backup: &Backup, directories: &mut Directories) -> Result<(), RepoError> {
        let run = backup.run();
        let mut units: BTreeMap<ChunkRef, Bits> = BTreeMap::new();
        let mut whole = true;
        for place in &backup.head().roots {
            let chunk = self.source.resolve(place.chunk());
            units.entry(chunk).or_default().all = true;
        }
        for root in backup.roots() {
            units.entry(self.source.resolve(root.chunk)).or_default().all = true;
            let items = match backup.items_of(root) {
                Ok(items) => items,
                Err(error) => {
                    whole = false;
                    self.finding(error, Severity::Lost, vec![run])?;
                    continue;
                }
            };
            for item in items.iter() {
                self.report.items_walked += 1;
                whole &= self.walk_item(backup, item, &mut units, directories)?;
            }
        }
        if whole {
            self.compare_refs(run, &units)?;
        }
        Ok(())
    }

    fn walk_item(
        &mut self,
        backup: &Backup,
        item: &Item,
        units: &mut BTreeMap<ChunkRef, Bits>,
        directories: &mut Directories,
    ) -> Result<bool, RepoError> {
        let run = backup.run();
        let leaves = match &item.map {
            ItemMap::Inline(_) => u64::from(item.page_count() > 0),
            ItemMap::Leaves(leaves) => {
                for leaf in leaves {
                    self.need_leaf(*leaf, units);
                }
                leaves.len() as u64
            }
        };
        let mut whole = true;
        for leaf in 0..leaves {
            self.options.interrupt.check()?;
            let entries = match backup.leaf(item, leaf) {
                Ok(entries) => entries,
                Err(error) => {
                    whole = false;
                    let position = self.finding(error, Severity::Lost, vec![run])?;
                    self.affects(position, run, item);
                    continue;
                }
            };
            for (page, entry) in entries.iter().enumerate() {
                let PageEntry::Stored(stored) = entry else { continue };
                units.entry(stored.chunk).or_default().set(stored.slot);
                let bad =
                    self.bad_chunks.get(&stored.chunk).or_else(|| self.bad_packs.get(&stored.chunk.pack));
                if let Some(position) = bad.copied() {
                    self.affects(position, run, item);
                    continue;
                }
                let number = leaf * u64::from(PAGES_PER_LEAF) + page as u64;
                match directories.has(&self.source, stored) {
                    Ok(true) => {}
                    Ok(false) => {
                        let object = format!(
                            "{} page {number} ({}, chunk {})",
                            item.path,
                            self.source.log().pack(stored.chunk.pack),
                            stored.chunk.ordinal
                        );
                        let problem = "the page map has another hash than the pack's directory".to_owned();
                        let finding = Finding {
                            problem,
                            backups: vec![run],
                            ..Finding::of_object(object, Severity::Lost)
                        };
                        let position = self.find(finding);
                        self.affects(position, run, item);
                    }
                    Err(error) => {
                        let position = self.finding(error, Severity::Lost, vec![run])?;
                        self.bad_packs.insert(stored.chunk.pack, position);
                        self.affects(position, run, item);
                    }
                }
            }
        }
        Ok(whole)
    }

    fn need_leaf(&self, leaf: LeafRef, units: &mut BTreeMap<ChunkRef, Bits>) {
        units.entry(self.source.resolve(leaf.chunk)).or_default().set(leaf.slot);
        // An unreadable leaf is found when its pages are read.
        if let Ok(Some(under)) = self.source.under(leaf) {
            units.entry(under.chunk).or_default().set(under.slot);
        }
    }

    fn affects(&mut self, position: usize, run: RunNo, item: &Item) {
        let Some(finding) = self.report.findings.get_mut(position) else { return };
        if !finding.backups.contains(&run) {
            finding.backups.push(run);
        }
        if finding.files.contains(&item.path) {
            return;
        }
        if finding.files.len() < FILES_NAMED {
            finding.files.push(item.path.clone());
        } else {
            finding.files_more += 1;
        }
    }

    fn compare_refs(&mut self, run: RunNo, units: &BTreeMap<ChunkRef, Bits>) -> Result<(), RepoError> {
        let refs = match self.history.backup_refs(self.source.repo(), run) {
            Ok(refs) => refs,
            // Found before.
            Err(error) if is_of_the_object(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut recorded: BTreeMap<ChunkRef, (u32, u32)> = BTreeMap::new();
        for pack in &refs.packs {
            for (ordinal, need) in pack.chunks.iter().enumerate() {
                if need.needed > 0 {
                    let stored = ChunkRef { pack: pack.pack, ordinal: ordinal as u32 };
                    let (units, needed) = recorded.entry(self.source.resolve(stored)).or_default();
                    *units = need.units;
                    *needed += need.needed;
                }
            }
        }
        for (chunk, bits) in units {
            let (total, needed) = recorded.remove(chunk).unwrap_or_default();
            let mapped = if bits.all { total.max(1) } else { bits.count() };
            if mapped != needed {
                let object = format!("{}, chunk {}", self.source.log().pack(chunk.pack), chunk.ordinal);
                let problem =
                    format!("the page maps of backup {run} need {mapped} units, its refs say {needed}");
                // What refs say too little of could be pruned.
                let severity = if needed == 0 { Severity::Lost } else { Severity::Repairable };
                self.find(Finding { problem, backups: vec![run], ..Finding::of_object(object, severity) });
            }
        }
        for (chunk, (_, needed)) in recorded {
            let object = format!("{}, chunk {}", self.source.log().pack(chunk.pack), chunk.ordinal);
            let problem = format!("the refs of backup {run} need {needed} units, its page maps none");
            self.find(Finding {
                problem,
                backups: vec![run],
                ..Finding::of_object(object, Severity::Repairable)
            });
        }
        Ok(())
    }
}

/// Units of one chunk.
#[derive(Debug, Default)]
struct Bits {
    words: Vec<u64>,
    /// All of it, however many.
    all: bool,
}

impl Bits {
    fn set(&mut self, slot: u32) {
        let word = slot as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (slot % 64);
    }

    fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }
}

/// The page hashes of packs that are looked at just now.
struct Directories(Cache<PackId, PackHashes>);

struct PackHashes {
    hashes: Directory,
    /// Where the hashes of each chunk begin; `None` where it holds no pages.
    begins: Vec<Option<usize>>,
}

impl Directories {
    fn new() -> Self {
        Self(Cache::new(DIRECTORY_CACHE_BYTES))
    }

    /// Whether the directory has this hash for this page.
    fn has(&mut self, source: &ChunkSource, stored: &StoredPage) -> Result<bool, RepoError> {
        let pack = stored.chunk.pack;
        let hashes = match self.0.get(&pack) {
            Some(hashes) => hashes,
            None => {
                let (_, directory) = source.directory(pack)?;
                let mut at = 0;
                let mut begins = Vec::with_capacity(directory.rows.len());
                for (row, hashes) in directory.chunks() {
                    begins.push(matches!(row.kind, ChunkKind::Pages(_)).then_some(at));
                    at += hashes.len();
                }
                let bytes = directory.hashes.len() * 16 + directory.rows.len() * 48;
                let hashes = Arc::new(PackHashes { hashes: directory, begins });
                self.0.insert(pack, Arc::clone(&hashes), bytes);
                hashes
            }
        };
        let ordinal = stored.chunk.ordinal as usize;
        let Some(Some(begin)) = hashes.begins.get(ordinal) else { return Ok(false) };
        let row = hashes.hashes.rows.get(ordinal);
        let within = row.is_some_and(|row| stored.slot < row.unit_count);
        Ok(within && hashes.hashes.hashes.get(begin + stored.slot as usize) == Some(&stored.hash))
    }
}
