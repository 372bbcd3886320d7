//! Reads page maps: leaves are intact, and their entries agree with
//! the directories of packs and with the refs.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, btree_map::Entry},
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

use super::{Check, Finding, Remedy, Severity, proven::ProvenRows};
use crate::{
    data::reader::{Backup, ChunkSource, cache::Cache},
    error::RepoError,
    format::{
        columns::{PageEntry, StoredPage},
        item::{Item, ItemMap},
        names::{ChunkRef, PackId, RunNo},
        pack::{ChunkKind, Directory},
        page_map::{LeafRef, PAGES_PER_LEAF},
        refs::{ChunkNeed, NeededPack},
        units::Units,
    },
};

/// Files already added to findings: many pages of a file lead to the same finding.
#[derive(Default)]
pub(super) struct Affected {
    /// Positions of findings, with hashes of paths.
    told: HashSet<(usize, u64)>,
    hashes: RandomState,
}

/// How many pairs are remembered, at 16 bytes each. Files beyond that are named like others, but not counted.
const AFFECTED_MAX: usize = 1 << 20;

impl Affected {
    fn add(&mut self, finding: &mut Finding, position: usize, run: RunNo, item: &Item, files_named: usize) {
        let path = &item.path;
        if finding.backups.last() != Some(&run) && !finding.backups.contains(&run) {
            finding.backups.push(run);
        }
        let of_path = (position, self.hashes.hash_one(path.as_bytes()));
        let is_full = self.told.len() >= AFFECTED_MAX;
        let is_new = if is_full { !finding.files.contains(path) } else { self.told.insert(of_path) };
        if is_new && finding.files.len() < files_named {
            finding.files.push(path.clone());
            let table = item.table().filter(|table| !finding.tables.contains(table));
            finding.tables.extend(table);
        } else if is_new && !is_full {
            finding.files_more += 1;
        }
    }
}

impl Check {
    /// Checks that every backup opens. With `read_data`, also reads its page maps, and compares them with its
    /// refs and with the directories of packs.
    pub(super) fn backups(&mut self, rows: &ProvenRows) -> Result<(), RepoError> {
        let standing: Vec<RunNo> = self.history.standing().map(|outcome| outcome.run).collect();
        let mut directories = Directories::new(self.options.budget().directories_bytes);
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
                self.walk(&backup, &mut directories, rows)?;
            }
        }
        Ok(())
    }

    fn walk(
        &mut self,
        backup: &Backup,
        directories: &mut Directories,
        rows: &ProvenRows,
    ) -> Result<(), RepoError> {
        let run = backup.run();
        let mut mapped = self.recorded(run)?;
        let mut whole = true;
        for place in &backup.head().roots {
            mapped.add_all(self.source.resolve(place.chunk()));
        }
        for root in backup.roots() {
            mapped.add_all(self.source.resolve(root.chunk));
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
                whole &= match item.item_type.is_logical() {
                    true => self.walk_rows(backup, item, &mut mapped, rows)?,
                    false => self.walk_item(backup, item, &mut mapped, directories)?,
                };
            }
        }
        if whole {
            self.compare_refs(run, &mapped);
        }
        Ok(())
    }

    fn walk_item(
        &mut self,
        backup: &Backup,
        item: &Item,
        mapped: &mut Mapped,
        directories: &mut Directories,
    ) -> Result<bool, RepoError> {
        let run = backup.run();
        let leaves = match &item.map {
            ItemMap::Inline(_) => u64::from(item.page_count() > 0),
            ItemMap::Leaves(leaves) => {
                for leaf in leaves {
                    self.need_leaf(*leaf, mapped);
                }
                leaves.len() as u64
            }
            ItemMap::Table(_) | ItemMap::Definition(_) => 0,
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
                mapped.add(stored.chunk, stored.slot);
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
                        let problem =
                            "the hash in the page map differs from that in the directory of the pack"
                                .to_owned();
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

    fn need_leaf(&self, leaf: LeafRef, mapped: &mut Mapped) {
        mapped.add(self.source.resolve(leaf.chunk), leaf.slot);
        // An unreadable leaf becomes a finding when its pages are read.
        if let Ok(Some(under)) = self.source.under(leaf) {
            mapped.add(under.chunk, under.slot);
        }
    }

    pub(super) fn affects(&mut self, position: usize, run: RunNo, item: &Item) {
        let Some(finding) = self.report.findings.get_mut(position) else { return };
        self.affected.add(finding, position, run, item, self.options.files_named);
    }

    /// What the refs of a backup record, resolved to where it is now. Refs that cannot be read became a
    /// finding earlier; then there is nothing to compare with.
    fn recorded(&self, run: RunNo) -> Result<Mapped, RepoError> {
        let prunes = self.source.prunes();
        let mut mapped = Mapped { is_compared: true, ..Mapped::default() };
        let refs = self.history.stored_refs(self.source.repo(), run).and_then(|refs| {
            refs.each_pack(|pack| {
                if prunes.may_reference(pack.pack) {
                    return mapped.record_pack(pack);
                }
                for (ordinal, need) in (0..).zip(&pack.chunks).filter(|(_, need)| need.needed > 0) {
                    mapped.record(prunes.resolve(ChunkRef { pack: pack.pack, ordinal }), *need);
                }
            })
        });
        match refs {
            Ok(()) => Ok(mapped),
            Err(error) if error.is_of_the_object() => Ok(Mapped::default()),
            Err(error) => Err(error),
        }
    }

    fn compare_refs(&mut self, run: RunNo, mapped: &Mapped) {
        for (chunk, ChunkNeed { units, needed }) in mapped.recorded() {
            let mapped = if mapped.whole.contains(&chunk) { units.max(1) } else { mapped.units.count(chunk) };
            if mapped != needed {
                let mapped = if mapped == 0 { "none".to_owned() } else { mapped.to_string() };
                let problem = format!(
                    "the refs of backup {run} record {needed} units as needed, its page maps need {mapped}"
                );
                self.differs(run, chunk, Severity::Repairable, problem);
            }
        }
        for chunk in &mapped.strangers {
            // A prune could delete it.
            let problem = format!("the page maps of backup {run} need it, but its refs do not record it");
            self.differs(run, *chunk, Severity::Lost, problem);
        }
    }

    fn differs(&mut self, run: RunNo, chunk: ChunkRef, severity: Severity, problem: String) {
        let object = format!("{}, chunk {}", self.source.log().pack(chunk.pack), chunk.ordinal);
        let finding = Finding::of_object(object, severity);
        self.find(Finding { problem, remedy: Remedy::Refs, backups: vec![run], ..finding });
    }
}

/// What page maps need, beside what the refs record, everything resolved to where it is now.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Whether there are refs to compare with.
    is_compared: bool,
    recorded: BTreeMap<PackId, Vec<ChunkNeed>>,
    /// The needed units of recorded chunks.
    units: Units,
    /// Chunks that are needed whole, however many units they have.
    whole: BTreeSet<ChunkRef>,
    /// Needed chunks that the refs do not record.
    strangers: BTreeSet<ChunkRef>,
}

impl Mapped {
    fn record(&mut self, chunk: ChunkRef, need: ChunkNeed) {
        let chunks = self.recorded.entry(chunk.pack).or_default();
        let ordinal = chunk.ordinal as usize;
        if chunks.len() <= ordinal {
            chunks.resize(ordinal + 1, ChunkNeed { units: 0, needed: 0 });
        }
        chunks[ordinal].units = need.units;
        chunks[ordinal].needed = chunks[ordinal].needed.saturating_add(need.needed);
    }

    /// Records all chunks of a pack from which none has moved.
    fn record_pack(&mut self, NeededPack { pack, chunks, .. }: &NeededPack) {
        let pack = *pack;
        if let Entry::Vacant(entry) = self.recorded.entry(pack) {
            entry.insert(chunks.clone());
            return;
        }
        for (ordinal, need) in (0..).zip(chunks).filter(|(_, need)| need.needed > 0) {
            self.record(ChunkRef { pack, ordinal }, *need);
        }
    }

    fn is_recorded(&self, chunk: ChunkRef) -> bool {
        let chunks = self.recorded.get(&chunk.pack);
        chunks.and_then(|chunks| chunks.get(chunk.ordinal as usize)).is_some_and(|need| need.needed > 0)
    }

    fn recorded(&self) -> impl Iterator<Item = (ChunkRef, ChunkNeed)> + '_ {
        self.recorded.iter().flat_map(|(pack, chunks)| {
            let needed = (0..).zip(chunks).filter(|(_, need)| need.needed > 0);
            needed.map(|(ordinal, need)| (ChunkRef { pack: *pack, ordinal }, *need))
        })
    }

    pub(super) fn add(&mut self, chunk: ChunkRef, slot: u32) {
        if self.is_recorded(chunk) {
            self.units.insert(chunk, slot);
        } else if self.is_compared {
            self.strangers.insert(chunk);
        }
    }

    fn add_all(&mut self, chunk: ChunkRef) {
        if self.is_recorded(chunk) {
            self.whole.insert(chunk);
        } else if self.is_compared {
            self.strangers.insert(chunk);
        }
    }
}

/// Cache of the page hashes of packs.
struct Directories(Cache<PackId, PackHashes>);

struct PackHashes {
    hashes: Directory,
    /// Where the hashes of each chunk begin; `None` if it holds no pages.
    begins: Vec<Option<usize>>,
}

impl Directories {
    fn new(budget_bytes: usize) -> Self {
        Self(Cache::new(budget_bytes))
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
