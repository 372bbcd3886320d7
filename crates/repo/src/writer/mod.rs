//! Writes a backup: pages in from several threads, durable packs and refs out.
//!
//! On the thread that gives a page it is hashed and compared: as in the base → its entry is kept; known to an adopted
//! run → that entry is taken; else the page is gathered into a chunk. The chunk goes through the [`pipeline`]; once
//! its place is known, the leaves that wait for it are sealed.
//!
//! Invariants:
//! - The last word about a page, and the last file of a path, count.
//! - A page that was never given, within the size of a file that stays, fails the backup.
//! - Nothing references a pack that a prune has named dead or emptied, nor one that is not there: the base is read
//!   through the moves of all prunes, and packs that are gone count as never stored.
//! - When [`BackupWriter::finish`] returns, all that the backup needs is durable and listed.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use holdfast_pipe::{HashKey, PageHash, Stop, meter::Meter};

use crate::{
    columns::{self, CHUNK_BYTES_MAX, PageEntry, StoredPage},
    error::RepoError,
    item::{INLINE_PAGES_MAX, ItemPath, leaf_count, page_count},
    lock::lock,
    names::RunNo,
    object::RunSecrets,
    pack::ChunkKind,
    page_map::{LEAVES_PER_CHUNK_MAX, Leaf, PAGES_PER_LEAF, encode_full, encode_leaf_chunk},
    reader::{ChunkSource, catalog::is_of_the_object},
    run::Run,
};

mod adopt;
mod base;
mod chunk;
mod error;
mod file;
mod finish;
mod leaf;
mod needs;
mod options;
mod pipeline;
mod rewrite;

use adopt::Adopted;
use base::Base;
use chunk::{Buffers, Chunk, PageGatherer, Pending};
pub use error::{FileProblem, WriteError};
use file::{File, FileState, Slot, leaf_of};
pub use file::{FileId, FileSpec};
pub use finish::FinishedData;
use leaf::{BaseLeaf, Change, ClosedLeaf, LeafAt, LeafPlace, LeafSlot, OpenLeaf, Sealed};
use needs::Needs;
use options::Budget;
pub use options::WriterOptions;
pub use pipeline::PipelineMeters;
use pipeline::{Pipeline, PipelineParts, Progress};
pub(crate) use pipeline::{chunk_context, directory_context};
pub use rewrite::ChunkRewriter;

/// A file gathers a chunk of its own when so much of what is given at once is new; less goes to the common one.
const OWN_CHUNK_BYTES_MIN: usize = 256 << 10;
const PAGE_SIZES: usize = 7;

/// What the writer can build on.
#[derive(Clone, Debug, Default)]
pub struct Foundation {
    /// The backup to compare with.
    pub base: Option<RunNo>,
    /// Runs that ended without effect, whose packs may be used again.
    pub adopted: Vec<RunNo>,
}

/// What the writer has done so far.
#[derive(Debug, Default)]
pub struct WriterMeters {
    /// Pages hashed and compared.
    pub compare: Meter,
    /// Pages that are new.
    pub new: Meter,
    /// Pages as in the base.
    pub reused: Meter,
    /// Pages that an adopted run had stored.
    pub adopted: Meter,
    /// Unchanged pages that were stored again.
    pub rewritten: Meter,
    /// Pages of zeros, and holes.
    pub empty: Meter,
    /// The stages behind.
    pub pipeline: Arc<PipelineMeters>,
    /// Parts of the base that could not be read, and were stored anew: findings for the user.
    pub base_unreadable: Meter,
}

/// Writes one backup. Shared between the threads that read.
pub struct BackupWriter {
    run: RunNo,
    hash_key: HashKey,
    options: WriterOptions,
    budget: Budget,
    source: Arc<ChunkSource>,
    secrets: Arc<RunSecrets>,
    base: Option<Base>,
    adopted: Adopted,
    stop: Stop<WriteError>,
    meters: Arc<WriterMeters>,
    buffers: Arc<Buffers>,
    pipeline: Option<Pipeline>,
    files: RwLock<Files>,
    gatherers: [Mutex<Option<PageGatherer>>; PAGE_SIZES],
    /// Files that gather a chunk of their own.
    gathering: Mutex<Vec<Arc<File>>>,
    leaves: Mutex<LeafGatherer>,
    waiting: Mutex<Waiting>,
    needs: Mutex<Needs>,
    /// Closed leaves of files that were dropped.
    undone: Mutex<Vec<LeafSlot>>,
    bytes_given: AtomicU64,
}

#[derive(Default)]
struct Files {
    list: Vec<Arc<File>>,
    by_path: HashMap<ItemPath, FileId>,
    directories: BTreeMap<ItemPath, u16>,
}

/// Encoded leaves on their way into a chunk.
#[derive(Default)]
struct LeafGatherer {
    leaves: Vec<Vec<u8>>,
    bytes: usize,
    ticket: Arc<chunk::Ticket>,
}

/// Leaves whose pages are known but for the places of some chunks, in order of completion.
#[derive(Default)]
struct Waiting {
    queue: VecDeque<(ClosedLeaf, Target)>,
    changes: usize,
}

enum Target {
    Leaf(LeafSlot),
    Small(Arc<File>, u64),
}

/// What was found out about a page before anything is locked.
enum Found {
    Change(Change),
    New(PageHash),
}

impl BackupWriter {
    /// Begins writing the backup of `run`.
    pub fn new(run: &Run, foundation: &Foundation, options: WriterOptions) -> Result<Self, WriteError> {
        let repo = run.repo();
        let budget = options.budget();
        let prunes = Arc::new(run.history().prunes(repo)?);
        let log = run.log().clone();
        let source = Arc::new(ChunkSource::new(Arc::clone(repo), log, prunes, budget.base_bytes));
        let meters = Arc::<WriterMeters>::default();
        let base = foundation.base.map(|base| Base::open(Arc::clone(&source), run.history(), base));
        let base = match base {
            Some(base) => readable(&meters, base)?,
            None => None,
        };
        if let Some(base) = &base {
            meters.base_unreadable.add_many(base.lost_packs() as u64, 0);
        }
        let adopted = Adopted::open(&source, &foundation.adopted, budget.adoption_bytes)?;
        let mut writer = Self {
            run: run.no(),
            hash_key: repo.hash_key()?.clone(),
            budget,
            source,
            secrets: Arc::clone(run.secrets()),
            base,
            adopted,
            stop: Stop::default(),
            meters,
            buffers: Arc::new(Buffers::new(budget.queue_chunks)),
            pipeline: None,
            files: RwLock::default(),
            gatherers: Default::default(),
            gathering: Mutex::default(),
            leaves: Mutex::default(),
            waiting: Mutex::default(),
            needs: Mutex::default(),
            undone: Mutex::default(),
            bytes_given: AtomicU64::new(0),
            options,
        };
        writer.start_pipeline(Progress::default())?;
        Ok(writer)
    }

    fn start_pipeline(&mut self, progress: Progress) -> Result<(), WriteError> {
        let parts = PipelineParts {
            repo: Arc::clone(self.source.repo()),
            secrets: Arc::clone(&self.secrets),
            stop: self.stop.clone(),
            meters: Arc::clone(&self.meters.pipeline),
            buffers: Arc::clone(&self.buffers),
        };
        self.pipeline = Some(Pipeline::start(parts, &self.options, self.budget.queue_chunks, progress)?);
        Ok(())
    }

    fn pipeline(&self) -> Result<&Pipeline, WriteError> {
        self.pipeline.as_ref().ok_or(WriteError::Stopped)
    }

    /// What has been done so far; can be watched while the writer works.
    #[must_use]
    pub fn meters(&self) -> &Arc<WriterMeters> {
        &self.meters
    }

    /// Begins a file. One that has the same path is dropped.
    pub fn begin_file(&self, spec: FileSpec) -> Result<FileId, WriteError> {
        if spec.mode > 0o777 {
            let rule = crate::wire::FormatError::rule("mode", "has more than permission bits");
            return Err(WriteError::File { path: spec.path, problem: FileProblem::Format(rule) });
        }
        let base = match &self.base {
            Some(base) => {
                let space = spec.tablespace.map(|tablespace| tablespace.space);
                readable(&self.meters, base.find(&spec.path, space, spec.page_size.bytes()))?.flatten()
            }
            None => None,
        };
        let path = spec.path.clone();
        let file = Arc::new(File::new(spec, base));
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let id = FileId(files.list.len());
        files.list.push(file);
        let replaced = files.by_path.insert(path, id);
        let replaced = replaced.and_then(|FileId(position)| files.list.get(position).cloned());
        drop(files);
        self.discard(replaced)?;
        Ok(id)
    }

    fn file(&self, id: FileId) -> Result<Arc<File>, WriteError> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.list.get(id.0).cloned().ok_or(WriteError::Stopped)
    }

    /// Gives whole pages of a file from page `first` on; the last page of a file is padded with zeros. Mostly
    /// ascending; a page that comes again replaces the one before.
    pub fn pages(&self, id: FileId, first: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let file = self.file(id)?;
        let page_bytes = file.page_size.bytes();
        if !bytes.len().is_multiple_of(page_bytes) {
            let problem = FileProblem::NotPages { len: bytes.len(), page_size: page_bytes };
            return Err(self.file_error(&file, problem));
        }
        self.bytes_given.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let hashes: Vec<Option<PageHash>> = self.meters.compare.time(|| {
            let pages = bytes.chunks_exact(page_bytes);
            pages.map(|page| (!is_zero(page)).then(|| self.hash_key.hash(page))).collect()
        });
        self.meters.compare.add_many(hashes.len() as u64, bytes.len() as u64);
        let mut done = 0;
        while done < hashes.len() {
            let (leaf, from) = leaf_of(first + done as u64);
            let count = (hashes.len() - done).min((PAGES_PER_LEAF - from) as usize);
            let range = done..done + count;
            let bytes = &bytes[range.start * page_bytes..range.end * page_bytes];
            self.pages_of_leaf(&file, leaf, from, &hashes[range], bytes)?;
            done += count;
        }
        self.seal_waiting()
    }

    /// Says that the source has no blocks for `count` pages from `first` on.
    pub fn holes(&self, id: FileId, first: u64, count: u64) -> Result<(), WriteError> {
        let file = self.file(id)?;
        let mut page = first;
        while page < first + count {
            let (leaf, from) = leaf_of(page);
            let pages = (first + count - page).min(u64::from(PAGES_PER_LEAF - from)) as u32;
            let base = self.base_leaf(&file, leaf)?;
            let changes = (from..from + pages).map(|page| {
                let same = base_entry(base.as_deref(), page) == Some(PageEntry::Hole);
                (page, if same { Change::Same } else { Change::Known(PageEntry::Hole) })
            });
            let changes = changes.collect();
            self.record(&file, leaf, base, changes)?;
            page += u64::from(pages);
        }
        self.meters.empty.add_many(count, count * file.page_size.bytes() as u64);
        self.seal_waiting()
    }

    fn pages_of_leaf(
        &self,
        file: &Arc<File>,
        leaf: u32,
        from: u32,
        hashes: &[Option<PageHash>],
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        let page_bytes = file.page_size.bytes();
        let base = self.base_leaf(file, leaf)?;
        let mut found = self.meters.compare.time(|| self.compare(base.as_deref(), from, hashes, page_bytes));
        self.adopt(&mut found, page_bytes)?;
        let new: Vec<(usize, PageHash)> = found
            .iter()
            .enumerate()
            .filter_map(|(position, found)| match found {
                Found::New(hash) => Some((position, *hash)),
                Found::Change(_) => None,
            })
            .collect();
        let mut places = self.gather(file, &new, bytes)?.into_iter();
        let changes = found.into_iter().zip(from..).filter_map(|(found, page)| match found {
            Found::Change(change) => Some((page, change)),
            Found::New(hash) => Some((page, Change::New(hash, places.next()?))),
        });
        let changes = changes.collect();
        self.record(file, leaf, base, changes)
    }

    fn compare(
        &self,
        base: Option<&BaseLeaf>,
        from: u32,
        hashes: &[Option<PageHash>],
        page_bytes: usize,
    ) -> Vec<Found> {
        let (mut empty, mut reused, mut rewritten) = (0_u64, 0_u64, 0_u64);
        let page_bytes = page_bytes as u64;
        let found = hashes.iter().zip(from..).map(|(hash, page)| {
            let before = base_entry(base, page);
            let Some(hash) = hash else {
                empty += 1;
                let same = before == Some(PageEntry::Zero);
                return Found::Change(if same { Change::Same } else { Change::Known(PageEntry::Zero) });
            };
            match before {
                Some(PageEntry::Stored(StoredPage { hash: known, chunk, .. })) if known == *hash => {
                    let Some(base) = &self.base else { return Found::New(*hash) };
                    if !base.is_there(chunk) {
                        Found::New(*hash)
                    } else if base.is_sparse(chunk) && self.may_rewrite(page_bytes) {
                        rewritten += 1;
                        Found::New(*hash)
                    } else {
                        reused += 1;
                        Found::Change(Change::Same)
                    }
                }
                _ => Found::New(*hash),
            }
        });
        let found = found.collect();
        self.meters.empty.add_many(empty, empty * page_bytes);
        self.meters.reused.add_many(reused, reused * page_bytes);
        // Counted by `may_rewrite` in bytes.
        self.meters.rewritten.add_many(rewritten, 0);
        found
    }

    /// Takes `bytes` of what may be stored again although unchanged.
    fn may_rewrite(&self, bytes: u64) -> bool {
        let most = self.bytes_given.load(Ordering::Relaxed) as f64 * self.options.max_rewrite_fraction;
        let may = (self.meters.rewritten.bytes() + bytes) as f64 <= most;
        if may {
            self.meters.rewritten.add_many(0, bytes);
        }
        may
    }

    fn adopt(&self, found: &mut [Found], page_bytes: usize) -> Result<(), WriteError> {
        if self.adopted.is_empty() {
            return Ok(());
        }
        let hashes: Vec<_> = found
            .iter()
            .map(|found| match found {
                Found::New(hash) => Some(*hash),
                Found::Change(_) => None,
            })
            .collect();
        let places = self.adopted.find(&self.source, &hashes)?;
        for (found, place) in found.iter_mut().zip(places) {
            if let Some(place) = place {
                self.meters.adopted.add(page_bytes as u64);
                *found = Found::Change(Change::Known(PageEntry::Stored(place)));
            }
        }
        Ok(())
    }

    /// Copies new pages into chunks; says where each went.
    fn gather(
        &self,
        file: &Arc<File>,
        new: &[(usize, PageHash)],
        bytes: &[u8],
    ) -> Result<Vec<Pending>, WriteError> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let page_bytes = file.page_size.bytes();
        let new_bytes = new.len() * page_bytes;
        self.meters.new.add_many(new.len() as u64, new_bytes as u64);
        let common = &self.gatherers[(file.page_size.log2() as usize - 10).min(PAGE_SIZES - 1)];
        let mut gatherer = lock(&file.gatherer);
        let own = gatherer.is_some() || new_bytes >= OWN_CHUNK_BYTES_MIN && self.may_gather(file);
        if !own {
            drop(gatherer);
            gatherer = lock(common);
        }
        let mut places = Vec::with_capacity(new.len());
        for (position, hash) in new {
            let page = &bytes[position * page_bytes..(position + 1) * page_bytes];
            let open = gatherer.get_or_insert_with(|| PageGatherer::new(file.page_size, &self.buffers));
            places.push(open.push(page, *hash));
            if open.is_full()
                && let Some(full) = gatherer.take()
            {
                self.pipeline()?.submit(full.into_chunk()).map_err(|error| self.first(error))?;
            }
        }
        if own && gatherer.is_none() {
            self.gathers_no_more(file);
        }
        Ok(places)
    }

    fn may_gather(&self, file: &Arc<File>) -> bool {
        let mut gathering = lock(&self.gathering);
        let may = gathering.len() < self.budget.gathering_files;
        if may {
            gathering.push(Arc::clone(file));
        }
        may
    }

    fn gathers_no_more(&self, file: &Arc<File>) {
        lock(&self.gathering).retain(|other| !Arc::ptr_eq(other, file));
    }

    /// The leaf of the base that covers leaf `leaf` of the file.
    fn base_leaf(&self, file: &File, leaf: u32) -> Result<Option<Arc<BaseLeaf>>, WriteError> {
        let inner = lock(&file.inner);
        if let Some(known) = inner.base_in_memory(leaf) {
            return Ok(known);
        }
        let Some(base_file) = inner.base.clone() else { return Ok(None) };
        drop(inner);
        let Some(base) = &self.base else { return Ok(None) };
        Ok(readable(&self.meters, base.leaf(&base_file, leaf))?.flatten().map(Arc::new))
    }

    /// Takes down what was found about pages of a leaf; a leaf that this completes waits for its chunks.
    fn record(
        &self,
        file: &Arc<File>,
        leaf: u32,
        base: Option<Arc<BaseLeaf>>,
        changes: Vec<(u32, Change)>,
    ) -> Result<(), WriteError> {
        let mut inner = lock(&file.inner);
        if inner.state != FileState::Open {
            let path = inner.spec.path.clone();
            return Err(WriteError::File { path, problem: FileProblem::NotOpen });
        }
        let slot = inner.slot(leaf);
        if let Slot::Empty = slot {
            *slot = Slot::Open(Box::new(OpenLeaf::new(base.clone())));
        }
        match slot {
            Slot::Open(open) => {
                for (page, change) in changes {
                    open.set(page, change);
                }
                if open.is_complete() {
                    self.close_leaf(slot, PAGES_PER_LEAF);
                }
            }
            Slot::Closed(_) | Slot::Empty => {
                let late = changes.into_iter().map(|(page, change)| {
                    let change = match (change, base_entry(base.as_deref(), page)) {
                        // As in the base is not as in the leaf that was closed.
                        (Change::Same, Some(entry)) => Change::Known(entry),
                        (change, _) => change,
                    };
                    (page as u16, change)
                });
                inner.late.entry(leaf).or_default().extend(late);
            }
        }
        Ok(())
    }

    fn close_leaf(&self, slot: &mut Slot, page_count: u32) {
        let place = LeafSlot::default();
        match std::mem::replace(slot, Slot::Closed(Arc::clone(&place))) {
            Slot::Open(open) => self.wait(open.close(page_count), Target::Leaf(place)),
            other => *slot = other,
        }
    }

    fn wait(&self, leaf: ClosedLeaf, target: Target) {
        let mut waiting = lock(&self.waiting);
        waiting.changes += leaf.change_count();
        waiting.queue.push_back((leaf, target));
    }

    /// Seals the leaves whose chunks are placed; if too much waits, sends gathered pages on their way.
    fn seal_waiting(&self) -> Result<(), WriteError> {
        loop {
            let mut waiting = lock(&self.waiting);
            let ready = waiting.queue.front().is_some_and(|(leaf, _)| leaf.is_placed());
            if !ready {
                let too_many = waiting.changes > self.budget.waiting_changes;
                drop(waiting);
                return if too_many { self.flush_all() } else { Ok(()) };
            }
            let Some((leaf, target)) = waiting.queue.pop_front() else { return Ok(()) };
            waiting.changes -= leaf.change_count();
            drop(waiting);
            self.seal(leaf, target)?;
        }
    }

    fn seal(&self, leaf: ClosedLeaf, target: Target) -> Result<(), WriteError> {
        let (entries, sealed) = leaf.seal(self.run);
        match target {
            Target::Small(file, size_bytes) => {
                let mut columns = Vec::with_capacity(entries.len() * 20 + 8);
                columns::encode(&entries, &mut columns);
                let mut inner = lock(&file.inner);
                if inner.state != FileState::Dropped {
                    inner.state = FileState::Small(size_bytes, columns.into());
                }
            }
            Target::Leaf(slot) => {
                lock(&self.needs).add_pages(&entries);
                let place = match sealed {
                    Sealed::Base(leaf, under) => LeafPlace { leaf: LeafAt::Known(leaf), under },
                    Sealed::Overlay(overlay) => {
                        let under = Some(overlay.under);
                        let mut encoded = Vec::with_capacity(overlay.patches.len() * 24 + 32);
                        Leaf::Overlay(overlay).encode(&mut encoded);
                        LeafPlace { leaf: LeafAt::Own(self.gather_leaf(encoded)?), under }
                    }
                    Sealed::Full => {
                        let mut encoded = Vec::with_capacity(entries.len() * 20 + 32);
                        encode_full(&entries, &mut encoded);
                        LeafPlace { leaf: LeafAt::Own(self.gather_leaf(encoded)?), under: None }
                    }
                };
                if slot.set(place).is_err() {
                    unreachable!("a leaf is sealed once");
                }
            }
        }
        Ok(())
    }

    fn gather_leaf(&self, encoded: Vec<u8>) -> Result<Pending, WriteError> {
        const LENGTH_BYTES: usize = 3;
        let mut gatherer = lock(&self.leaves);
        let bytes = encoded.len() + LENGTH_BYTES;
        let full = gatherer.bytes + bytes + LENGTH_BYTES > CHUNK_BYTES_MAX
            || gatherer.leaves.len() == LEAVES_PER_CHUNK_MAX as usize;
        if full {
            self.submit_leaves(&mut gatherer)?;
        }
        let pending = Pending { ticket: Arc::clone(&gatherer.ticket), slot: gatherer.leaves.len() as u32 };
        gatherer.bytes += bytes;
        gatherer.leaves.push(encoded);
        Ok(pending)
    }

    fn submit_leaves(&self, gatherer: &mut LeafGatherer) -> Result<(), WriteError> {
        let LeafGatherer { leaves, ticket, .. } = std::mem::take(gatherer);
        if leaves.is_empty() {
            return Ok(());
        }
        self.submit_small(ChunkKind::Leaves, encode_leaf_chunk(&leaves), leaves.len() as u32, ticket)
    }

    fn submit_small(
        &self,
        kind: ChunkKind,
        plain: Vec<u8>,
        unit_count: u32,
        ticket: Arc<chunk::Ticket>,
    ) -> Result<(), WriteError> {
        let chunk = Chunk { kind, plain, unit_count, hashes: Vec::new(), ticket };
        self.pipeline()?.submit(chunk).map_err(|error| self.first(error))
    }

    /// Sends everything that is being gathered for several files on its way.
    fn flush_pages(&self) -> Result<(), WriteError> {
        for common in &self.gatherers {
            let open = lock(common).take();
            if let Some(open) = open.filter(|open| !open.is_empty()) {
                self.pipeline()?.submit(open.into_chunk()).map_err(|error| self.first(error))?;
            }
        }
        Ok(())
    }

    /// Sends everything that is being gathered on its way.
    fn flush_all(&self) -> Result<(), WriteError> {
        let gathering = lock(&self.gathering).clone();
        gathering.iter().try_for_each(|file| self.flush_file(file))?;
        self.flush_pages()
    }

    fn flush_file(&self, file: &Arc<File>) -> Result<(), WriteError> {
        if let Some(open) = lock(&file.gatherer).take() {
            self.gathers_no_more(file);
            self.pipeline()?.submit(open.into_chunk()).map_err(|error| self.first(error))?;
        }
        Ok(())
    }

    /// No more pages come for the file, which is `size_bytes` long.
    pub fn end_file(&self, id: FileId, size_bytes: u64) -> Result<(), WriteError> {
        let file = self.file(id)?;
        self.flush_file(&file)?;
        let pages = page_count(size_bytes, file.page_size);
        let mut inner = lock(&file.inner);
        let problem = match inner.state {
            FileState::Open => wrong_page(&inner.leaves, pages),
            _ => Some(FileProblem::NotOpen),
        };
        if let Some(problem) = problem {
            let path = inner.spec.path.clone();
            return Err(WriteError::File { path, problem });
        }
        inner.state = FileState::Ended(size_bytes);
        inner.base = None;
        if pages <= INLINE_PAGES_MAX {
            let open = match inner.leaves.pop() {
                Some(Slot::Open(open)) => *open,
                _ => OpenLeaf::new(None),
            };
            inner.leaves = Vec::new();
            self.wait(open.close(pages as u32), Target::Small(Arc::clone(&file), size_bytes));
        } else if let Some(last) = inner.leaves.last_mut() {
            // Zero when the last leaf is full, and then it is closed already.
            self.close_leaf(last, (pages % u64::from(PAGES_PER_LEAF)) as u32);
        }
        drop(inner);
        self.seal_waiting()
    }

    /// The file is gone, and not part of the backup.
    pub fn drop_file(&self, id: FileId) -> Result<(), WriteError> {
        let file = self.file(id)?;
        let path = lock(&file.inner).spec.path.clone();
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        if files.by_path.get(&path) == Some(&id) {
            files.by_path.remove(&path);
        }
        drop(files);
        self.discard(Some(file))
    }

    fn discard(&self, file: Option<Arc<File>>) -> Result<(), WriteError> {
        let Some(file) = file else { return Ok(()) };
        // Closed leaves may wait for these pages; they are not needed, and not lost either.
        self.flush_file(&file)?;
        let mut inner = lock(&file.inner);
        inner.state = FileState::Dropped;
        inner.base = None;
        inner.late.clear();
        let leaves = std::mem::take(&mut inner.leaves);
        drop(inner);
        let closed = leaves.into_iter().filter_map(|slot| match slot {
            Slot::Closed(place) => Some(place),
            Slot::Empty | Slot::Open(_) => None,
        });
        lock(&self.undone).extend(closed);
        Ok(())
    }

    /// The file has another path now. One that had this path is dropped.
    pub fn rename_file(&self, id: FileId, path: &ItemPath) -> Result<(), WriteError> {
        let file = self.file(id)?;
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let mut inner = lock(&file.inner);
        if inner.spec.path == *path {
            return Ok(());
        }
        if files.by_path.get(&inner.spec.path) == Some(&id) {
            files.by_path.remove(&inner.spec.path);
        }
        inner.spec.path = path.clone();
        drop(inner);
        let replaced = files.by_path.insert(path.clone(), id);
        let replaced = replaced.and_then(|FileId(position)| files.list.get(position).cloned());
        drop(files);
        self.discard(replaced)
    }

    /// A directory of the backup.
    pub fn directory(&self, path: ItemPath, mode: u16) {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        files.directories.insert(path, mode & 0o777);
    }

    /// Forgets a directory.
    pub fn drop_directory(&self, path: &ItemPath) {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        files.directories.remove(path);
    }

    fn file_error(&self, file: &File, problem: FileProblem) -> WriteError {
        WriteError::File { path: lock(&file.inner).spec.path.clone(), problem }
    }

    /// The first error of all threads, for the one who sees only that something has failed.
    fn first(&self, error: WriteError) -> WriteError {
        match error {
            WriteError::Stopped => self.stop.take().unwrap_or(WriteError::Stopped),
            error => error,
        }
    }
}

/// What could not be read of the base counts as not there: it is stored anew. Only a store that fails is an error.
fn readable<T>(meters: &WriterMeters, result: Result<T, RepoError>) -> Result<Option<T>, WriteError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_of_the_object(&error) => {
            meters.base_unreadable.add(0);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn base_entry(base: Option<&BaseLeaf>, page: u32) -> Option<PageEntry> {
    base?.entries.get(page as usize).copied()
}

/// The first page that is missing among the first `pages`, or was given beyond them.
fn wrong_page(leaves: &[Slot], pages: u64) -> Option<FileProblem> {
    let per_leaf = u64::from(PAGES_PER_LEAF);
    let count = leaf_count(pages).max(leaves.len() as u64);
    (0..count).find_map(|leaf| {
        let first = leaf * per_leaf;
        let expected = pages.saturating_sub(first).min(per_leaf) as u32;
        let wrong = match usize::try_from(leaf).ok().and_then(|leaf| leaves.get(leaf)) {
            Some(Slot::Open(open)) => open.first_wrong(expected)?,
            Some(Slot::Closed(_)) if expected == PAGES_PER_LEAF => return None,
            Some(Slot::Closed(_)) => expected,
            Some(Slot::Empty) | None if expected == 0 => return None,
            Some(Slot::Empty) | None => 0,
        };
        let page = first + u64::from(wrong);
        Some(if wrong < expected {
            FileProblem::PageMissing { page }
        } else {
            FileProblem::PageBeyondEnd { page, page_count: pages }
        })
    })
}

/// Whether all bytes are 0; whole words, and out at the first that is not.
fn is_zero(page: &[u8]) -> bool {
    page.chunks(256).all(|block| block.iter().fold(0, |all, byte| all | byte) == 0)
}
