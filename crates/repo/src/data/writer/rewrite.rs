//! Rewrites the live chunks of mostly dead packs, for a prune.
//!
//! A chunk is opened and decompressed, and its pages are hashed, before it is sealed again in its new place:
//! damage is not carried over under a fresh seal.

use std::{collections::VecDeque, sync::Arc};

use holdfast_formats::PageSize;
use holdfast_pipe::{PageHash, Stop};

use super::{
    WriteError,
    chunk::{Buffers, Ticket},
    options::WriterOptions,
    pipeline::{Compressed, Pipeline, PipelineParts, Progress},
};
use crate::{
    data::reader::ChunkSource,
    error::RepoError,
    format::{
        names::{ChunkRef, Folder, PackId},
        pack::{ChunkKind, ChunkRow},
        refs::Move,
        units::Units,
    },
    interrupt::Interrupt,
    log::{
        history::History,
        run::{PartCounts, Run},
    },
    repo::Repo,
    steps::Steps,
    store::{StoreError, StoreErrorKind, ahead::in_order},
};

/// Receives the stored bytes of each chunk of a pack.
pub type TakeChunkBytes<'a> = &'a mut dyn FnMut(PackId, Result<Vec<u64>, RepoError>) -> Result<(), RepoError>;

/// How chunks are rewritten.
pub trait Rewrite {
    /// Passes to `take`, for one pack after the other, the stored bytes of each
    /// chunk by ordinal, or why they cannot be read.
    fn chunk_bytes(&mut self, packs: &[PackId], take: TakeChunkBytes<'_>) -> Result<(), RepoError>;

    /// Announces, before anything is checked, how many bytes will be, so that progress can be shown.
    fn expect(&mut self, bytes: u64);

    /// Reads and verifies `chunks`, which are of one pack, as [`copy`](Self::copy) will.
    fn check(&mut self, chunks: &[ChunkRef]) -> Result<(), RepoError>;

    /// Writes `chunks`, in the order of their packs, into packs of `run`, with index parts for these.
    /// Everything is durable on return.
    fn copy(&mut self, run: &Run, chunks: &[ChunkRef]) -> Result<Rewritten, RepoError>;
}

/// The result of [`Rewrite::copy`].
#[derive(Clone, Debug, Default)]
pub struct Rewritten {
    /// Where each chunk is now.
    pub moves: Vec<Move>,
    /// How many packs and index parts were stored.
    pub parts: PartCounts,
}

/// Copies chunks for a prune.
pub struct ChunkRewriter {
    source: Arc<ChunkSource>,
    options: WriterOptions,
    interrupt: Interrupt,
    steps: Steps,
    bytes_checked: u64,
    bytes_to_check: u64,
    /// Chunks that have been read and are intact, each as a unit of its own: they cannot change.
    whole: Units,
}

impl ChunkRewriter {
    /// Reads the chunks of the log of `history`, within the memory that `options` allow. The compression in
    /// `options` does not matter: chunks stay as they are.
    pub fn open(repo: &Arc<Repo>, history: &History, options: WriterOptions) -> Result<Self, RepoError> {
        let source = ChunkSource::new(Arc::clone(repo), history, options.budget().base_bytes)?;
        Ok(Self::new(Arc::new(source), options))
    }

    /// Reads from `source`. The compression in `options` does not matter: chunks stay as they are.
    #[must_use]
    pub fn new(source: Arc<ChunkSource>, options: WriterOptions) -> Self {
        Self {
            source,
            options,
            interrupt: Interrupt::default(),
            steps: Steps::default(),
            bytes_checked: 0,
            bytes_to_check: 0,
            whole: Units::default(),
        }
    }

    /// Sets what can end the rewriting early, with [`RepoError::Interrupted`].
    #[must_use]
    pub fn interrupted_by(self, interrupt: Interrupt) -> Self {
        Self { interrupt, ..self }
    }

    /// Sets what is told how far reading and writing are.
    #[must_use]
    pub fn telling(self, steps: Steps) -> Self {
        Self { steps, ..self }
    }

    /// How many packs or chunks to read at once: as many as suit the store, within the memory in
    /// which a backup would gather a chunk for each of several files. Each chunk read is in
    /// memory twice, as stored and decompressed.
    fn reads_at_once(&self) -> usize {
        self.source.repo().store().reads_at_once().min(self.options.budget().gathering_files / 2)
    }

    fn copy_all(&self, run: &Run, chunks: &[ChunkRef]) -> Result<Rewritten, WriteError> {
        let stop = Stop::default();
        let queue_chunks = self.options.budget().queue_chunks;
        let parts = PipelineParts {
            repo: Arc::clone(run.repo()),
            secrets: Arc::clone(run.secrets()),
            stop: stop.clone(),
            meters: Arc::default(),
            buffers: Arc::new(Buffers::new(queue_chunks)),
            source: Arc::clone(&self.source),
        };
        let pipeline = Pipeline::start(parts, &self.options, queue_chunks, Progress::default())?;
        let copied = self.feed(run, pipeline, chunks);
        copied.map_err(|error| stop.take().unwrap_or(error))
    }

    fn feed(&self, run: &Run, pipeline: Pipeline, chunks: &[ChunkRef]) -> Result<Rewritten, WriteError> {
        let mut moves = Vec::with_capacity(chunks.len());
        // Chunks submitted but not placed yet, in order.
        let mut tickets: VecDeque<(ChunkRef, Arc<Ticket>)> = VecDeque::new();
        let mut bytes_done = 0;
        self.steps.phase("rewrite");
        let read = |from: &ChunkRef| {
            self.interrupt.check()?;
            let mut plain = Vec::new();
            let (row, compressed) = self.source.read_compressed(*from, &mut plain)?;
            let hashes = self.hashes(&row, &plain)?;
            Ok::<_, WriteError>((row, compressed, hashes))
        };
        in_order(self.reads_at_once(), chunks, read, |from, (row, bytes, hashes)| {
            bytes_done += u64::from(row.sealed_len);
            // The total is known, since all chunks were checked before.
            self.steps.bytes(bytes_done, self.bytes_checked);
            let ticket = Arc::<Ticket>::default();
            pipeline.submit_compressed(Compressed {
                kind: row.kind,
                codec: row.codec,
                plain_len: row.plain_len,
                unit_count: row.unit_count,
                bytes,
                hashes,
                ticket: Arc::clone(&ticket),
                base: row.base,
            })?;
            tickets.push_back((*from, ticket));
            while let Some(moved) = tickets.front().and_then(|(from, ticket)| moved(*from, ticket, run)) {
                moves.push(moved);
                tickets.pop_front();
            }
            Ok(())
        })?;
        let progress = pipeline.finish()?;
        for (from, ticket) in tickets {
            moves.push(moved(from, &ticket, run).ok_or(WriteError::Lost)?);
        }
        Ok(Rewritten { moves, parts: PartCounts { index: progress.index_part, pack: progress.pack_part } })
    }

    /// Checks chunks of one pack. A page that differs from the hash in its pack's own
    /// directory would get a new hash in the directory of the new pack, and the damage that a
    /// check has found would never be found again.
    fn check_within(&mut self, pack: PackId, chunks: &[ChunkRef]) -> Result<(), RepoError> {
        let size_bytes = self.source.confirmed_pack(pack)?.size_bytes;
        let directory = self.source.directory_of(pack, Some(size_bytes))?.directory;
        let hashes: Vec<&[PageHash]> = directory.chunks().map(|(_, hashes)| hashes).collect();
        let read = |chunk: &ChunkRef| {
            self.interrupt.check()?;
            let mut plain = Vec::new();
            let (row, _) = self.source.read_compressed(*chunk, &mut plain)?;
            let expected = hashes.get(chunk.ordinal as usize).copied().unwrap_or_default();
            if row.kind != ChunkKind::Rows {
                self.source.compare_pages(*chunk, &row, &plain, expected)?;
            }
            Ok(u64::from(row.sealed_len))
        };
        in_order(self.reads_at_once(), chunks, read, |chunk, bytes| {
            self.whole.insert(*chunk, 0);
            self.bytes_checked += bytes;
            self.steps.bytes(self.bytes_checked, self.bytes_to_check);
            Ok(())
        })
    }

    fn hashes(&self, row: &ChunkRow, plain: &[u8]) -> Result<Vec<PageHash>, RepoError> {
        let hash_key = self.source.repo().hash_key()?;
        Ok(match row.kind {
            ChunkKind::Pages(size) => {
                plain.chunks(PageSize::bytes(size)).map(|page| hash_key.hash(page)).collect()
            }
            _ => Vec::new(),
        })
    }
}

/// Where a chunk went, once it is placed.
fn moved(from: ChunkRef, ticket: &Ticket, run: &Run) -> Option<Move> {
    Some(Move { from, to: ticket.chunk(run.no())? })
}

impl Rewrite for ChunkRewriter {
    fn chunk_bytes(&mut self, packs: &[PackId], take: TakeChunkBytes<'_>) -> Result<(), RepoError> {
        let read = |pack: &PackId| {
            self.interrupt.check()?;
            let directory = self.source.pack(*pack);
            let bytes =
                directory.map(|it| it.rows().iter().map(|row| u64::from(row.sealed_len)).collect::<Vec<_>>());
            Ok(bytes)
        };
        in_order(self.reads_at_once(), packs, read, |pack, bytes| take(*pack, bytes))
    }

    fn expect(&mut self, bytes: u64) {
        self.bytes_to_check = bytes;
    }

    fn check(&mut self, chunks: &[ChunkRef]) -> Result<(), RepoError> {
        let unread: Vec<ChunkRef> =
            chunks.iter().copied().filter(|chunk| self.whole.count(*chunk) == 0).collect();
        unread
            .chunk_by(|a, b| a.pack == b.pack)
            .try_for_each(|chunks| self.check_within(chunks[0].pack, chunks))
    }

    fn copy(&mut self, run: &Run, chunks: &[ChunkRef]) -> Result<Rewritten, RepoError> {
        self.copy_all(run, chunks).map_err(|error| match error {
            WriteError::Repo(error) => error,
            other => {
                let reason = StoreErrorKind::Io(std::io::Error::other(other));
                StoreError::new(run.log().folder(Folder::Packs), reason).into()
            }
        })
    }
}
