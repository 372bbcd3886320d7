//! Writes a backup: takes pages from several threads, and produces durable packs and refs.
//!
//! The thread that gives a page hashes and compares it. A page as in the base keeps its entry; a page known
//! to an adopted run takes that run's entry; any other page is gathered into a chunk. The chunk goes through
//! the [`pipeline`]; once its place is known, the leaves that wait for it are sealed.
//!
//! Invariants:
//! - Of several versions of a page, and of several files with one path, the last one counts.
//! - A page that was never given fails the backup, if it is within the size of a file that stays.
//! - Pages that an adopted run stored are read and compared before they are
//!   referenced: no check has read them since.
//! - Nothing references a pack that a prune has declared dead or emptied, nor one that is missing: the base
//!   is read through the moves of all prunes, and packs that are gone count as never stored.
//! - When [`BackupWriter::finish`] returns, everything that the backup needs is durable and listed.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicU64, AtomicUsize},
    },
};

use holdfast_pipe::{
    HashKey, Stop,
    lock::{lock, read},
    meter::Meter,
};

use crate::{
    data::{local_maps::LocalMaps, reader::ChunkSource},
    error::RepoError,
    format::{item::ItemPath, names::RunNo, rows::RowHashKey},
    log::{history::History, outcome::Part, run::Run},
    repo::Repo,
    sealed::RunSecrets,
};

mod adopt;
mod base;
mod chunk;
mod error;
mod file;
mod finish;
mod give;
mod leaf;
mod lifecycle;
mod mapped;
mod needs;
mod options;
mod pipeline;
mod rewrite;
mod rows;
mod seal;
mod whole;

pub use crate::data::reader::WholeChunk;
use adopt::Adopted;
use base::Base;
use chunk::{Buffers, PageGatherer};
pub use error::{FileProblem, WriteError};
use file::File;
pub use file::{FileId, FileSpec};
pub use finish::FinishedData;
use leaf::LeafSlot;
pub use mapped::MappedPage;
use needs::Needs;
use options::Budget;
pub use options::{Expected, WriterOptions};
pub use pipeline::PipelineMeters;
use pipeline::{Pipeline, PipelineParts, Progress};
pub use rewrite::{ChunkRewriter, Rewrite, Rewritten, TakeChunkBytes};
use rows::Tables;
pub use rows::{BaseChunk, BaseChunks, LongRow, RangeNo, RangeStart, RowRange, TableId, TableSpec};
use seal::{LeafGatherer, Waiting};

const PAGE_SIZES: usize = 7;

/// What the writer can build on.
#[derive(Clone, Debug, Default)]
pub struct Foundation {
    /// The backup to compare with.
    pub base: Option<RunNo>,
    /// Runs that ended without effect, whose packs may be used again. A key that cannot read uses none.
    pub adopted: Vec<RunNo>,
    /// Where a writer keeps the page maps of the backups that it adds, and finds those of the base.
    pub local: Option<Arc<LocalMaps>>,
}

impl Foundation {
    /// Builds on the newest backup that stands, whichever key added it: stores only what has changed since.
    #[must_use]
    pub fn newest(history: &History) -> Self {
        Self { base: history.newest_backup(), ..Self::none(history) }
    }

    /// Like [`Self::newest`], but builds on the newest backup that the key at hand may build on, of the same
    /// part of the source if there is one, or else of all of it.
    #[must_use]
    pub fn newest_of(repo: &Repo, history: &History, part: Option<Part>) -> Self {
        Self { base: history.newest_base(repo, part), ..Self::none(history) }
    }

    /// Shares no data, and so no damage, with any backup. Pages that unfinished runs stored are used, since
    /// they are read first.
    #[must_use]
    pub fn none(history: &History) -> Self {
        Self { base: None, adopted: history.adoptable(), local: None }
    }

    /// For a key that cannot read: builds on the backup whose page maps are kept on this host, if it stands.
    #[must_use]
    pub fn remembered(history: &History, local: Arc<LocalMaps>) -> Self {
        Self { base: local.backup(history), adopted: Vec::new(), local: Some(local) }
    }
}

/// What the writer has done so far.
#[derive(Debug, Default)]
pub struct WriterMeters {
    /// Pages, or rows, hashed and compared.
    pub compare: Meter,
    /// New pages; rows in new chunks.
    pub new: Meter,
    /// Pages that are as in the base; rows in such chunks.
    pub reused: Meter,
    /// Pages that an adopted run had stored.
    pub adopted: Meter,
    /// Unchanged pages that were stored again.
    pub rewritten: Meter,
    /// Pages of zeros, and holes.
    pub empty: Meter,
    /// The stages of the pipeline.
    pub pipeline: Arc<PipelineMeters>,
    /// Parts of the base that could not be read and were stored anew: findings for the user.
    pub base_unreadable: Meter,
    /// Chunks of adopted runs that could not be read, and so were not adopted.
    pub adopted_unreadable: Meter,
    /// The largest number of leaves that waited for chunks at one time.
    pub leaves_waiting_max: AtomicUsize,
}

/// Writes one backup. Shared between the threads that read the source.
pub struct BackupWriter {
    run: RunNo,
    hash_key: HashKey,
    row_key: RowHashKey,
    options: WriterOptions,
    budget: Budget,
    source: Arc<ChunkSource>,
    secrets: Arc<RunSecrets>,
    base: Option<Base>,
    adopted: Adopted,
    local: Option<Arc<LocalMaps>>,
    stop: Stop<WriteError>,
    meters: Arc<WriterMeters>,
    buffers: Arc<Buffers>,
    pipeline: Option<Pipeline>,
    files: RwLock<Files>,
    gatherers: [Mutex<Option<Box<PageGatherer>>>; PAGE_SIZES],
    /// Files that gather a chunk of their own.
    gathering: Mutex<Vec<Arc<File>>>,
    leaves: Mutex<LeafGatherer>,
    /// Leaves of small files.
    small_leaves: Mutex<LeafGatherer>,
    waiting: Mutex<Waiting>,
    needs: Mutex<Needs>,
    /// Closed leaves of files that were dropped.
    undone: Mutex<Vec<LeafSlot>>,
    tables: Tables,
    /// Page entries that stay in memory until the item table is written.
    entries_inline: AtomicUsize,
    bytes_given: AtomicU64,
    /// Of `bytes_given`, those stored again although unchanged.
    bytes_again: AtomicU64,
}

#[derive(Default)]
struct Files {
    list: Vec<Arc<File>>,
    by_path: HashMap<ItemPath, FileId>,
    directories: BTreeMap<ItemPath, u16>,
}

impl BackupWriter {
    /// Begins writing the backup of `run`.
    pub fn new(run: &Run, foundation: &Foundation, options: WriterOptions) -> Result<Self, WriteError> {
        let repo = run.repo();
        let base_bytes = options.budget().base_bytes;
        let source = ChunkSource::new(Arc::clone(repo), run.history(), base_bytes)?;
        let source = Arc::new(source.with_local(foundation.local.clone()));
        let meters = Arc::<WriterMeters>::default();
        let base = foundation.base.map(|base| Base::open(Arc::clone(&source), run.history(), base));
        let base = match base {
            Some(base) => readable(&meters, base)?,
            None => None,
        };
        if let Some(base) = &base {
            meters.base_unreadable.add_many(base.lost_packs() as u64, 0);
        }
        let budget = match &base {
            Some(base) => options.budget_of(base.files(), base.chunks()),
            None => options.budget(),
        };
        let adopted: &[RunNo] = if repo.can_read() { &foundation.adopted } else { &[] };
        let adopted = Adopted::open(&source, adopted, budget.adoption_bytes)?;
        let mut writer = Self {
            run: run.no(),
            hash_key: repo.hash_key()?.clone(),
            row_key: RowHashKey::new(repo.hash_key()?),
            budget,
            source,
            secrets: Arc::clone(run.secrets()),
            base,
            adopted,
            local: foundation.local.clone(),
            stop: Stop::default(),
            meters,
            buffers: Arc::new(Buffers::new(budget.queue_chunks)),
            pipeline: None,
            files: RwLock::default(),
            gatherers: Default::default(),
            gathering: Mutex::default(),
            leaves: Mutex::default(),
            small_leaves: Mutex::default(),
            waiting: Mutex::default(),
            needs: Mutex::default(),
            undone: Mutex::default(),
            tables: Tables::default(),
            entries_inline: AtomicUsize::new(0),
            bytes_given: AtomicU64::new(0),
            bytes_again: AtomicU64::new(0),
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
            source: Arc::clone(&self.source),
        };
        self.pipeline = Some(Pipeline::start(parts, &self.options, self.budget.queue_chunks, progress)?);
        Ok(())
    }

    fn pipeline(&self) -> Result<&Pipeline, WriteError> {
        self.pipeline.as_ref().ok_or(WriteError::Stopped)
    }

    /// Whether every chunk that is complete has been compressed.
    ///
    /// # Errors
    /// The writer has stopped.
    pub fn is_drained(&self) -> Result<bool, WriteError> {
        self.pipeline()?.has_placed_all()
    }

    /// What has been done so far; may be watched while the writer works.
    #[must_use]
    pub fn meters(&self) -> &Arc<WriterMeters> {
        &self.meters
    }

    fn file(&self, id: FileId) -> Result<Arc<File>, WriteError> {
        let files = read(&self.files);
        files.list.get(id.0).cloned().ok_or(WriteError::Stopped)
    }

    fn file_error(&self, file: &File, problem: FileProblem) -> WriteError {
        WriteError::File { path: lock(&file.inner).spec.path.clone(), problem }
    }

    /// Stops the writer. Threads that give it pages or wait for it get an error soon, even if the store does
    /// not answer. Only dropping the writer waits for the store.
    pub fn give_up(&self) {
        self.stop.fail(WriteError::GivenUp);
    }

    /// Takes the reason why the writer has stopped, if it has; later calls return `None`. Threads that gave
    /// it pages only got [`WriteError::Stopped`].
    #[must_use]
    pub fn take_failure(&self) -> Option<WriteError> {
        self.stop.take()
    }
}

/// Treats parts of the base that cannot be read as absent, so that they are
/// stored anew. Only a failing store is an error.
fn readable<T>(meters: &WriterMeters, result: Result<T, RepoError>) -> Result<Option<T>, WriteError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_of_the_object() => {
            meters.base_unreadable.add(0);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
