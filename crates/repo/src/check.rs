//! Is the repository whole? Structure from outcomes, refs and index; with `read_data`, every byte that backups need.
//!
//! Nothing stops at the first finding. Each names the object, what is wrong with it, and the backups and files that
//! it takes down.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    num::NonZero,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::{
    columns::{PageEntry, StoredPage},
    error::{Damage, RepoError},
    history::History,
    item::{Item, ItemMap, ItemPath},
    lock::lock,
    names::{ChunkRef, LogName, PackId, RunNo},
    pack::{ChunkKind, Directory, PackRows},
    page_map::{LeafRef, PAGES_PER_LEAF},
    reader::{
        Backup, ChunkSource,
        cache::Cache,
        catalog::{is_of_the_object, list_index_parts, list_packs, read_index_part},
    },
    repo::Repo,
};

/// Files that a finding names, at most.
const FILES_NAMED: usize = 20;
const CACHE_BYTES: usize = 64 << 20;
const DIRECTORY_CACHE_BYTES: usize = 32 << 20;
/// One read of a pack is at most about so long.
const READ_BYTES: u64 = 8 << 20;

/// What to check.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Reads every chunk of this share of the packs (1: of all), and all page maps.
    pub read_data: Option<f64>,
    /// Chooses which, where the share is below 1.
    pub seed: u64,
    /// Threads that read packs; each holds about 10 MiB.
    pub threads: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        Self { read_data: None, seed: 0, threads }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Backups can be restored; what is wrong can be made anew from what is there.
    Repairable,
    /// Data of a backup is gone, or cannot be trusted.
    Lost,
}

/// Something that is not as it should be.
#[derive(Clone, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The object, down to the chunk.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// The backups that need it.
    pub backups: Vec<RunNo>,
    /// The files that need it, as far as page maps were read: the first few.
    pub files: Vec<ItemPath>,
    /// How many more files.
    pub files_more: u64,
}

/// What a check did and found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// What is wrong, worst first.
    pub findings: Vec<Finding>,
    /// Backups that stand.
    pub backups: u64,
    /// Packs that they need.
    pub packs: u64,
    /// Of these, packs that were read.
    pub packs_read: u64,
    /// Bytes of them.
    pub bytes_read: u64,
    /// Items whose page maps were read.
    pub items_walked: u64,
}

/// Checks one log. Errors are those of the store; what is wrong with the repository is a finding.
pub fn check(repo: &Arc<Repo>, log: &LogName, options: CheckOptions) -> Result<CheckReport, RepoError> {
    let history = match History::read(repo, log) {
        Ok(history) => history,
        Err(error) if is_of_the_object(&error) => {
            let mut report = CheckReport::default();
            report.findings.push(Finding::of(&error, Severity::Lost));
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    let prunes = match history.prunes(repo) {
        Ok(prunes) => prunes,
        Err(error) if is_of_the_object(&error) => {
            let backups = history.standing().map(|outcome| outcome.run).collect();
            let finding = Finding { backups, ..Finding::of(&error, Severity::Lost) };
            return Ok(CheckReport { findings: vec![finding], ..CheckReport::default() });
        }
        Err(error) => return Err(error),
    };
    let source = ChunkSource::new(Arc::clone(repo), log.clone(), Arc::new(prunes), CACHE_BYTES);
    let mut check = Check {
        source: Arc::new(source),
        history,
        options,
        report: CheckReport::default(),
        needed: BTreeMap::new(),
        bad_packs: HashMap::new(),
        bad_chunks: HashMap::new(),
    };
    check.refs()?;
    check.index()?;
    check.packs()?;
    if options.read_data.is_some() {
        check.read_packs()?;
    }
    check.backups()?;
    check.attribute()?;
    Ok(check.report)
}

impl Finding {
    fn of(error: &RepoError, severity: Severity) -> Self {
        let (object, problem) = match error {
            RepoError::Damaged { object, damage } => (object.clone(), damage.to_string()),
            RepoError::Store(error) => (error.path.clone(), error.kind.to_string()),
            other => (String::new(), other.to_string()),
        };
        Self { severity, object, problem, backups: Vec::new(), files: Vec::new(), files_more: 0 }
    }
}

/// What all backups together need of a pack, and what its size should be.
#[derive(Debug, Default)]
struct Needed {
    size_bytes: Option<u64>,
    /// Units of each chunk, as refs have them; 0 where no refs do.
    units: Vec<u32>,
    chunks: BTreeSet<u32>,
}

struct Check {
    source: Arc<ChunkSource>,
    history: History,
    options: CheckOptions,
    report: CheckReport,
    needed: BTreeMap<PackId, Needed>,
    /// Findings about packs and chunks, to which backups and files are still to be added.
    bad_packs: HashMap<PackId, usize>,
    bad_chunks: HashMap<ChunkRef, usize>,
}

impl Check {
    fn find(&mut self, finding: Finding) -> usize {
        self.report.findings.push(finding);
        self.report.findings.len() - 1
    }

    /// Makes an error that is about an object a finding.
    fn finding(
        &mut self,
        error: RepoError,
        severity: Severity,
        backups: Vec<RunNo>,
    ) -> Result<usize, RepoError> {
        if is_of_the_object(&error) {
            Ok(self.find(Finding { backups, ..Finding::of(&error, severity) }))
        } else {
            Err(error)
        }
    }

    fn bad_pack(&mut self, pack: PackId, severity: Severity, problem: impl ToString) {
        let object = self.source.log().pack(pack).to_string();
        let finding = Finding { problem: problem.to_string(), ..Finding::of_object(object, severity) };
        let position = self.find(finding);
        if severity == Severity::Lost {
            self.bad_packs.entry(pack).or_insert(position);
        }
    }

    /// Refs of every backup: whole, and what they need is not dead.
    fn refs(&mut self) -> Result<(), RepoError> {
        let standing: Vec<RunNo> = self.history.standing().map(|outcome| outcome.run).collect();
        self.report.backups = standing.len() as u64;
        for run in standing {
            let refs = match self.history.backup_refs(self.source.repo(), run) {
                Ok(refs) => refs,
                Err(error) => {
                    self.finding(error, Severity::Lost, vec![run])?;
                    continue;
                }
            };
            for pack in refs.packs {
                for (ordinal, need) in pack.chunks.iter().enumerate() {
                    let stored = ChunkRef { pack: pack.pack, ordinal: ordinal as u32 };
                    let chunk = self.source.resolve(stored);
                    if need.needed > 0 {
                        let needed = self.needed.entry(chunk.pack).or_default();
                        needed.chunks.insert(chunk.ordinal);
                        if chunk == stored {
                            needed.size_bytes = Some(pack.size_bytes);
                            if needed.units.len() < pack.chunks.len() {
                                needed.units = pack.chunks.iter().map(|chunk| chunk.units).collect();
                            }
                        }
                    }
                }
            }
        }
        let dead: Vec<PackId> =
            self.needed.keys().copied().filter(|pack| self.source.prunes().is_dead(*pack)).collect();
        for pack in dead {
            self.bad_pack(pack, Severity::Lost, "a prune has named it dead, and a backup needs it");
        }
        self.report.packs = self.needed.len() as u64;
        Ok(())
    }

    /// The index of every run whose packs are needed: whole, and agreeing with the refs.
    fn index(&mut self) -> Result<(), RepoError> {
        let exist = list_index_parts(self.source.repo(), self.source.log())?;
        let runs: BTreeSet<RunNo> = self.needed.keys().map(|pack| pack.run).collect();
        for run in runs {
            let recorded = self.history.outcome(run).map_or(0, |outcome| outcome.index_parts);
            let parts: BTreeSet<u32> = exist.get(&run).into_iter().flatten().copied().collect();
            let mut listed: BTreeSet<PackId> = BTreeSet::new();
            for part in &parts {
                match read_index_part(self.source.repo(), self.source.log(), run, *part) {
                    Ok(packs) => {
                        for (part, rows) in packs {
                            let pack = PackId { run, part };
                            listed.insert(pack);
                            self.compare_rows(pack, &rows, "the index");
                        }
                    }
                    Err(error) => {
                        self.finding(error, Severity::Repairable, Vec::new())?;
                    }
                }
            }
            let unlisted = self.needed.range(PackId { run, part: 0 }..=PackId { run, part: u32::MAX });
            let unlisted: Vec<PackId> =
                unlisted.map(|(pack, _)| *pack).filter(|pack| !listed.contains(pack)).collect();
            for pack in unlisted {
                self.bad_pack(pack, Severity::Repairable, "no index part lists it");
            }
            // Parts all of whose packs are gone may be gone; that is seen by what they should list.
            if recorded > 0 && parts.is_empty() {
                let object = self.source.log().index(run, 0).to_string();
                let problem = format!("none of {recorded} index parts is there");
                self.find(Finding { problem, ..Finding::of_object(object, Severity::Repairable) });
            }
        }
        Ok(())
    }

    /// Size and units of a pack as `whose` has them, against those of the refs.
    fn compare_rows(&mut self, pack: PackId, rows: &PackRows, whose: &str) {
        let Some(needed) = self.needed.get_mut(&pack) else { return };
        let size = *needed.size_bytes.get_or_insert(rows.size_bytes);
        let units: Vec<u32> = rows.rows().iter().map(|row| row.unit_count).collect();
        let beyond = needed.chunks.last().is_some_and(|last| *last as usize >= units.len());
        if size != rows.size_bytes || beyond || (!needed.units.is_empty() && needed.units != units) {
            let problem = format!("{whose} and the refs disagree about its size or its chunks");
            self.bad_pack(pack, Severity::Lost, problem);
        }
    }

    /// Every needed pack is there, with the size that was recorded.
    fn packs(&mut self) -> Result<(), RepoError> {
        let there = list_packs(self.source.repo(), self.source.log())?;
        let mut bad = Vec::new();
        for (pack, needed) in &self.needed {
            match (there.get(pack), needed.size_bytes) {
                (None, _) => bad.push((*pack, "is missing".to_owned())),
                (Some(size), Some(recorded)) if *size != recorded => {
                    bad.push((*pack, format!("is {size} bytes, recorded are {recorded}")));
                }
                _ => {}
            }
        }
        for (pack, problem) in bad {
            self.bad_pack(pack, Severity::Lost, problem);
        }
        Ok(())
    }

    /// Reads needed packs: every chunk opens, decompresses, and its pages have the hashes of the directory.
    fn read_packs(&mut self) -> Result<(), RepoError> {
        let share = self.options.read_data.unwrap_or(1.0);
        let chosen: Vec<PackId> = self
            .needed
            .keys()
            .copied()
            .filter(|pack| !self.bad_packs.contains_key(pack) && is_chosen(*pack, share, self.options.seed))
            .collect();
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        let stopped = Mutex::new(None);
        let work = || {
            while let Some(pack) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                match read_pack(&self.source, *pack) {
                    Ok(result) => lock(&results).push((*pack, result)),
                    Err(error) => {
                        lock(&stopped).get_or_insert(error);
                    }
                }
                if lock(&stopped).is_some() {
                    break;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.options.threads.clamp(1, chosen.len().max(1)) {
                scope.spawn(work);
            }
            work();
        });
        if let Some(error) = lock(&stopped).take() {
            return Err(error);
        }
        let mut results = std::mem::take(&mut *lock(&results));
        results.sort_by_key(|(pack, _)| *pack);
        for (pack, read) in results {
            self.report.packs_read += 1;
            self.report.bytes_read += read.bytes;
            let needed = self.needed.get(&pack).map(|needed| needed.chunks.clone()).unwrap_or_default();
            for (ordinal, finding) in read.findings {
                match ordinal {
                    Some(ordinal) if needed.contains(&ordinal) => {
                        let position = self.find(finding);
                        self.bad_chunks.insert(ChunkRef { pack, ordinal }, position);
                    }
                    // A dead chunk takes nothing down, but whoever damaged it may have done more.
                    Some(_) => {
                        self.find(Finding { severity: Severity::Repairable, ..finding });
                    }
                    None => {
                        let position = self.find(finding);
                        if self.report.findings[position].severity == Severity::Lost {
                            self.bad_packs.entry(pack).or_insert(position);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Every backup opens; with `read_data` its page maps are read, compared with its refs and the directories.
    fn backups(&mut self) -> Result<(), RepoError> {
        let standing: Vec<RunNo> = self.history.standing().map(|outcome| outcome.run).collect();
        let mut directories = Directories::new();
        for run in standing {
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

    /// Adds to each finding about a pack or a chunk the backups whose refs need it.
    fn attribute(&mut self) -> Result<(), RepoError> {
        if !self.bad_packs.is_empty() || !self.bad_chunks.is_empty() {
            let standing: Vec<RunNo> = self.history.standing().map(|outcome| outcome.run).collect();
            for run in standing {
                let Ok(refs) = self.history.backup_refs(self.source.repo(), run) else { continue };
                let mut hit: HashSet<usize> = HashSet::new();
                for pack in &refs.packs {
                    for (ordinal, _) in pack.chunks.iter().enumerate().filter(|(_, need)| need.needed > 0) {
                        let stored = ChunkRef { pack: pack.pack, ordinal: ordinal as u32 };
                        let chunk = self.source.resolve(stored);
                        hit.extend(self.bad_chunks.get(&chunk));
                        hit.extend(self.bad_packs.get(&chunk.pack));
                    }
                }
                for position in hit {
                    if let Some(finding) = self.report.findings.get_mut(position)
                        && !finding.backups.contains(&run)
                    {
                        finding.backups.push(run);
                    }
                }
            }
        }
        self.report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(())
    }
}

impl Finding {
    fn of_object(object: String, severity: Severity) -> Self {
        Self {
            severity,
            object,
            problem: String::new(),
            backups: Vec::new(),
            files: Vec::new(),
            files_more: 0,
        }
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

/// What reading one pack came to.
#[derive(Default)]
struct PackRead {
    bytes: u64,
    /// With the chunk, or without where the whole pack is meant.
    findings: Vec<(Option<u32>, Finding)>,
}

fn read_pack(source: &ChunkSource, pack: PackId) -> Result<PackRead, RepoError> {
    let mut read = PackRead::default();
    let mut note = |ordinal, error: RepoError| {
        if is_of_the_object(&error) {
            read.findings.push((ordinal, Finding::of(&error, Severity::Lost)));
            Ok(())
        } else {
            Err(error)
        }
    };
    let (size_bytes, directory) = match source.directory(pack) {
        Ok(directory) => directory,
        Err(error) => {
            note(None, error)?;
            return Ok(read);
        }
    };
    let path = source.log().pack(pack);
    let rows = match PackRows::new(size_bytes, directory.rows.clone()) {
        Ok(rows) => rows,
        Err(error) => {
            note(None, RepoError::damaged(&path, Damage::Format(error)))?;
            return Ok(read);
        }
    };
    match source.pack(pack) {
        Ok(indexed) if indexed.rows() != rows.rows() => {
            note(None, RepoError::malformed(&path, "its directory and the index disagree"))?;
        }
        Ok(_) => {}
        Err(error) => note(None, error)?,
    }
    let key = match source.key(pack) {
        Ok(key) => key,
        Err(error) => {
            note(None, error)?;
            return Ok(read);
        }
    };
    let hash_key = source.repo().hash_key()?;
    let mut hashes = directory.chunks().map(|(_, hashes)| hashes);
    let (mut sealed, mut plain) = (Vec::new(), Vec::new());
    let (mut buffer_begin, mut buffer_end) = (0, 0);
    for ordinal in 0..rows.rows().len() as u32 {
        let Some((row, offset)) = rows.chunk(ordinal) else { break };
        let end = offset + u64::from(row.sealed_len);
        if end > buffer_end {
            buffer_begin = offset;
            buffer_end = (offset + READ_BYTES).max(end).min(size_bytes);
            sealed.resize(usize::try_from(buffer_end - buffer_begin).unwrap_or(usize::MAX), 0);
            if let Err(error) = source.repo().store().read_exact_at(&path, buffer_begin, &mut sealed) {
                note(None, error.into())?;
                return Ok(read);
            }
        }
        let from = usize::try_from(offset - buffer_begin).unwrap_or(usize::MAX);
        let chunk = ChunkRef { pack, ordinal };
        let page_hashes = hashes.next().unwrap_or_default();
        let bytes = &mut sealed[from..from + row.sealed_len as usize];
        if let Err(error) = source.open_chunk(chunk, row, &key, bytes, &mut plain) {
            note(Some(ordinal), error)?;
            continue;
        }
        if let ChunkKind::Pages(size) = row.kind {
            let pages = plain.chunks_exact(size.bytes());
            if !pages.zip(page_hashes).all(|(page, hash)| hash_key.hash(page) == *hash) {
                let what = "a page has another hash than in the directory";
                note(Some(ordinal), source.damaged(chunk, Damage::Malformed { what }))?;
            }
        }
    }
    read.bytes = size_bytes;
    Ok(read)
}

/// Whether a sample of `share` of all packs contains this one.
fn is_chosen(pack: PackId, share: f64, seed: u64) -> bool {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(&pack.run.0.to_le_bytes());
    hasher.update(&pack.part.to_le_bytes());
    let mut number = [0; 4];
    number.copy_from_slice(&hasher.finalize().as_bytes()[..4]);
    f64::from(u32::from_le_bytes(number)) < share * 4_294_967_296.0
}
