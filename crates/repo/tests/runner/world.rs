//! A repository in memory, changing files, backups of them, and the proof that a backup equals those files.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    sync::{Arc, Mutex},
    thread,
};

use holdfast_formats::{PageSize, SpaceId};
use holdfast_pipe::Suite;
use holdfast_repo::{
    ChunkRef, Kind, LogName, Password, Protection, Repo, RepoError, RunNo,
    data::{
        reader::{Backup, FetchOptions, PageWant},
        writer::{BackupWriter, FileId, FileSpec, Foundation, WriteError, WriterOptions},
    },
    format::{
        columns::PageEntry,
        item::{FileRole, Item, ItemPath, ItemType, Tablespace},
        manifest::{HEAD_SCHEMA, Head, Totals},
    },
    keys::KdfParams,
    log::{
        history::History,
        run::{Ending, Run, RunOptions},
    },
    ops::check::{CheckOptions, CheckReport, check},
    store::{Store, mem::MemStore},
};

/// Random numbers from a seed, which a failing test prints.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A page that compresses to about a third.
    pub fn page(&mut self, len: usize) -> Vec<u8> {
        let mut page = vec![0_u8; len];
        for block in page.chunks_mut(24) {
            let bytes = self.next().to_le_bytes();
            let len = block.len().min(8);
            block[..len].copy_from_slice(&bytes[..len]);
        }
        page
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    pub page_size: PageSize,
    pub bytes: Vec<u8>,
    pub holes: BTreeSet<u64>,
    pub space: Option<u32>,
}

pub fn page_size(bytes: u32) -> PageSize {
    PageSize::from_bytes(bytes).unwrap()
}

impl SourceFile {
    /// A file of random pages.
    pub fn random(random: &mut Random, page_bytes: u32, len: usize) -> Self {
        let bytes = random.page(len);
        Self { page_size: page_size(page_bytes), bytes, holes: BTreeSet::new(), space: None }
    }

    pub fn pages(&self) -> u64 {
        self.bytes.len().div_ceil(self.page_size.bytes()) as u64
    }

    pub fn page_range(&self, page: u64) -> std::ops::Range<usize> {
        let len = self.page_size.bytes();
        let begin = page as usize * len;
        begin..(begin + len).min(self.bytes.len())
    }

    pub fn change(&mut self, random: &mut Random, page: u64) {
        let range = self.page_range(page);
        let new = random.page(range.len());
        self.bytes[range].copy_from_slice(&new);
        self.holes.remove(&page);
    }

    pub fn zero(&mut self, page: u64, hole: bool) {
        let range = self.page_range(page);
        self.bytes[range].fill(0);
        if hole {
            self.holes.insert(page);
        }
    }

    /// The whole pages of a range, padded.
    pub fn padded(&self, pages: std::ops::Range<u64>) -> Vec<u8> {
        let len = self.page_size.bytes();
        let begin = pages.start as usize * len;
        let mut bytes = self.bytes[begin..self.bytes.len().min(pages.end as usize * len)].to_vec();
        bytes.resize((pages.end - pages.start) as usize * len, 0);
        bytes
    }
}

/// Reads the bytes of a file.
pub fn read_whole(backup: &Backup, item: &Item) -> Result<Vec<u8>, RepoError> {
    let mut bytes = Vec::new();
    backup.read_file(item, &mut |part| {
        bytes.extend_from_slice(part);
        Ok::<_, RepoError>(())
    })?;
    Ok(bytes)
}

pub type Source = BTreeMap<String, SourceFile>;

pub struct World {
    pub store: MemStore,
    pub repo: Arc<Repo>,
    pub log: LogName,
    pub suite: Suite,
}

/// Options of runs in these tests: nothing happens outside of calls.
pub fn run_options() -> RunOptions {
    RunOptions { renew_every: None, ..RunOptions::of_this_process() }
}

/// Opens a repository that [`World::new`] made.
pub fn open_repo(store: Arc<dyn Store>, suite: Suite) -> Repo {
    let password = Password::new("x".to_owned()).unwrap();
    Repo::open(store, (suite != Suite::None).then_some(&password)).unwrap()
}

impl World {
    pub fn new(suite: Suite) -> Self {
        Self::over(MemStore::new(), suite)
    }

    pub fn over(store: MemStore, suite: Suite) -> Self {
        let password = Password::new("x".to_owned()).unwrap();
        let protection = match suite {
            Suite::None => Protection::None,
            Suite::X25519Aes256Gcm => Protection::Password { password: &password, kdf: KdfParams::MINIMUM },
        };
        let repo = Arc::new(Repo::init(Arc::new(store.clone()), &protection).unwrap());
        let log = LogName { source: "db1".parse().unwrap(), kind: Kind::Physical };
        Self { store, repo, log, suite }
    }

    /// A new repository, with the log of logical backups.
    pub fn logical(suite: Suite) -> Self {
        let world = Self::new(suite);
        Self { log: LogName { kind: Kind::Logical, ..world.log.clone() }, ..world }
    }

    /// The same repository through another handle.
    pub fn with_repo(&self, repo: Arc<Repo>) -> Self {
        Self { repo, store: self.store.clone(), log: self.log.clone(), suite: self.suite }
    }

    /// The same repository through another store.
    pub fn through(&self, store: impl Store + 'static) -> Self {
        self.with_repo(Arc::new(open_repo(Arc::new(store), self.suite)))
    }

    pub fn begin(&self) -> Run {
        Run::begin(&self.repo, &self.log, &run_options()).unwrap()
    }

    pub fn history(&self) -> History {
        History::read(&self.repo, &self.log).unwrap()
    }

    /// Backs up `source` on the newest base.
    pub fn backup(&self, source: &Source, options: WriterOptions) -> (RunNo, Totals) {
        self.backup_with(options, |writer| give_all(writer, source, 2))
    }

    pub fn backup_with(
        &self,
        options: WriterOptions,
        give: impl FnOnce(&BackupWriter) -> Result<(), WriteError>,
    ) -> (RunNo, Totals) {
        self.try_backup(options, give).unwrap()
    }

    pub fn try_backup(
        &self,
        options: WriterOptions,
        give: impl FnOnce(&BackupWriter) -> Result<(), WriteError>,
    ) -> Result<(RunNo, Totals), Box<dyn Error>> {
        self.try_backup_on(Foundation::newest, options, give)
    }

    pub fn try_backup_on(
        &self,
        foundation: impl FnOnce(&History) -> Foundation,
        options: WriterOptions,
        give: impl FnOnce(&BackupWriter) -> Result<(), WriteError>,
    ) -> Result<(RunNo, Totals), Box<dyn Error>> {
        let mut run = Run::begin(&self.repo, &self.log, &run_options())?;
        let foundation = foundation(run.history());
        let writer = BackupWriter::new(&run, &foundation, options)?;
        give(&writer)?;
        let data = writer.finish(&run)?;
        let base = foundation.base.map(|run| run.0);
        let head = Head { totals: data.totals, roots: data.roots, base, ..self.head(run.no()) };
        let head = head.encode()?;
        let ending = Ending::Backup { head: head.clone(), refs: data.refs, parts: data.parts };
        let outcome = run.finish(ending)?;
        if let Some(local) = &foundation.local {
            local.commit(&outcome, &head)?;
        }
        Ok((run.no(), data.totals))
    }

    /// The head of an empty backup.
    pub fn head(&self, run: RunNo) -> Head {
        Head {
            schema: HEAD_SCHEMA,
            run: run.0,
            source: "db1".into(),
            kind: self.log.kind.to_string(),
            method: self.log.kind.to_string(),
            started_at: jiff::Timestamp::UNIX_EPOCH,
            finished_at: jiff::Timestamp::UNIX_EPOCH,
            tags: Vec::new(),
            server: serde_json::Map::new(),
            redo: None,
            position: None,
            totals: Totals::default(),
            flags: Vec::new(),
            roots: Vec::new(),
            base: None,
            more: serde_json::Map::new(),
        }
    }

    /// Checks everything, all data too.
    pub fn check_all(&self) -> CheckReport {
        let options = CheckOptions { read_data: Some(1.0), ..CheckOptions::default() };
        check(&self.repo, &self.log, options).unwrap()
    }

    /// Fails if [such a check](Self::check_all) finds anything.
    pub fn assert_sound(&self) {
        let report = self.check_all();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }

    pub fn open(&self, run: RunNo) -> Result<Backup, RepoError> {
        Backup::open(&self.repo, &self.history(), run)
    }

    /// Checks that the backup equals `source`, both read in order and fetched by pages.
    pub fn assert_is(&self, run: RunNo, source: &Source) {
        let backup = self.open(run).unwrap();
        let items: Vec<Item> = backup.items().collect::<Result<_, _>>().unwrap();
        let paths: Vec<_> = items.iter().map(|item| item.path.to_string()).collect();
        assert_eq!(paths, source.keys().cloned().collect::<Vec<_>>(), "{run}");
        // Reading in order opens a chunk per file, so of many files only a sample is read.
        for item in items.iter().step_by(1 + items.len() / 200) {
            let expected = &source[&item.path.to_string()];
            assert_eq!(item.size_bytes, expected.bytes.len() as u64, "{} {run}", item.path);
            let bytes = read_whole(&backup, item).unwrap();
            assert!(bytes == expected.bytes, "{} of {run} differs", item.path);
            assert_eq!(backup.find(&item.path).unwrap().as_ref(), Some(item));
        }
        for (item, holes) in items.iter().zip(items.iter().map(|item| holes(&backup, item))) {
            assert_eq!(holes, source[&item.path.to_string()].holes, "{} of {run}", item.path);
        }
        assert_fetched(&backup, &items, &wants(&backup, &items), source);
        self.assert_refs(run, &backup, &items);
    }

    /// Checks that the refs agree exactly with the page maps, for chunks of pages.
    fn assert_refs(&self, run: RunNo, backup: &Backup, items: &[Item]) {
        let mut mapped: BTreeMap<ChunkRef, BTreeSet<u32>> = BTreeMap::new();
        for item in items {
            for entry in entries(backup, item) {
                if let PageEntry::Stored(stored) = entry {
                    mapped.entry(stored.chunk).or_default().insert(stored.slot);
                }
            }
        }
        let refs = self.history().backup_refs(&self.repo, run).unwrap();
        for pack in &refs.packs {
            for (ordinal, need) in (0..).zip(&pack.chunks) {
                let chunk = backup.source().resolve(ChunkRef { pack: pack.pack, ordinal });
                if need.needed == 0 {
                    continue;
                }
                let rows = backup.source().pack(chunk.pack).unwrap();
                let row = rows.rows()[chunk.ordinal as usize];
                assert_eq!(row.unit_count, need.units);
                assert!(chunk.pack != pack.pack || rows.size_bytes == pack.size_bytes);
                if row.kind.number() == 1 {
                    let count = mapped.remove(&chunk).map_or(0, |slots| slots.len());
                    assert_eq!(count as u32, need.needed, "{chunk} in the refs of {run}");
                }
            }
        }
        assert!(mapped.is_empty(), "the refs of {run} miss {:?}", mapped.keys());
    }
}

fn holes(backup: &Backup, item: &Item) -> BTreeSet<u64> {
    let entries = (0..).zip(entries(backup, item));
    entries.filter(|(_, entry)| *entry == PageEntry::Hole).map(|(page, _)| page).collect()
}

/// Requests for all stored pages of a backup at their current places.
/// The token is the item's position and the page.
pub fn wants(backup: &Backup, items: &[Item]) -> Vec<PageWant> {
    let mut wants = Vec::new();
    for (file, item) in (0..).zip(items) {
        for (page, entry) in (0..).zip(entries(backup, item)) {
            if let PageEntry::Stored(stored) = entry {
                let token = file << 32 | page;
                wants.push(PageWant { chunk: stored.chunk, slot: stored.slot, hash: stored.hash, token });
            }
        }
    }
    wants.sort_by_key(|want| (want.chunk, want.slot));
    wants
}

/// Checks that fetching `wants` gives `source`.
pub fn assert_fetched(backup: &Backup, items: &[Item], wants: &[PageWant], source: &Source) {
    let blank = |item: &Item| vec![0; item.page_count() as usize * item.page_size.bytes()];
    let files: Mutex<Vec<Vec<u8>>> = Mutex::new(items.iter().map(blank).collect());
    backup
        .source()
        .fetch_pages(wants, FetchOptions { threads: 3 }, &|token| format!("page {token}"), &|pages| {
            for (position, want) in pages.wants.iter().enumerate() {
                let len = pages.page_size.bytes();
                let begin = (want.token & 0xffff_ffff) as usize * len;
                files.lock().unwrap()[(want.token >> 32) as usize][begin..begin + len]
                    .copy_from_slice(pages.page(position));
            }
            Ok::<_, RepoError>(())
        })
        .unwrap();
    for (item, bytes) in items.iter().zip(files.into_inner().unwrap()) {
        let expected = &source[&item.path.to_string()].bytes;
        assert!(bytes[..expected.len()] == expected[..], "{} differs", item.path);
    }
}

pub fn entries(backup: &Backup, item: &Item) -> Vec<PageEntry> {
    let leaves = item.page_count().div_ceil(4_096);
    (0..leaves).flat_map(|leaf| backup.leaf(item, leaf).unwrap()).collect()
}

pub fn spec(path: &str, file: &SourceFile) -> FileSpec {
    FileSpec {
        path: ItemPath::new(path).unwrap(),
        item_type: ItemType::File,
        role: FileRole::Tablespace,
        mode: 0o640,
        page_size: file.page_size,
        tablespace: file.space.map(|space| Tablespace { space: SpaceId(space), flags: 0x15 }),
        outside: None,
    }
}

/// Writes the pages `pages` of a file; holes are given as holes.
pub fn give_pages(
    writer: &BackupWriter,
    id: FileId,
    file: &SourceFile,
    pages: std::ops::Range<u64>,
) -> Result<(), WriteError> {
    let mut from = pages.start;
    while from < pages.end {
        let hole = file.holes.contains(&from);
        let mut to = from + 1;
        while to < pages.end && file.holes.contains(&to) == hole {
            to += 1;
        }
        if hole {
            writer.holes(id, from, to - from)?;
        } else {
            writer.pages(id, from, &file.padded(from..to))?;
        }
        from = to;
    }
    Ok(())
}

pub fn give_file(writer: &BackupWriter, path: &str, file: &SourceFile) -> Result<FileId, WriteError> {
    let id = writer.begin_file(spec(path, file))?;
    let extent = ((1 << 20) / file.page_size.bytes()) as u64;
    for first in (0..file.pages()).step_by(extent as usize) {
        give_pages(writer, id, file, first..(first + extent).min(file.pages()))?;
    }
    writer.end_file(id, file.bytes.len() as u64)?;
    Ok(id)
}

pub fn give_all(writer: &BackupWriter, source: &Source, threads: usize) -> Result<(), WriteError> {
    let next = Mutex::new(source.iter());
    thread::scope(|scope| {
        let work = || {
            loop {
                let file = next.lock().unwrap().next();
                let Some((path, file)) = file else { return Ok(()) };
                give_file(writer, path, file)?;
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

pub fn small_packs() -> WriterOptions {
    // With several threads, what a pack holds depends on how busy the machine is.
    WriterOptions {
        pack_target_bytes: 1 << 20,
        memory_bytes: 64 << 20,
        compress_threads: 1,
        ..WriterOptions::default()
    }
}
