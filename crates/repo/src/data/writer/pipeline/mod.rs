//! From complete chunks to confirmed packs: compress → place and seal → upload → make durable → index.
//!
//! - Chunks that need no compression bypass the compressing threads.
//! - Each place (part, ordinal) is given out once in a run, so no nonce ever seals two contents.
//! - Placing is cheap and done under a lock. Sealing needs no lock, so it scales; the
//!   uploader restores the order of chunks.
//! - A pack is made durable (by an fsync, or by ending a multipart upload) while the next packs are written.
//! - An index part lists only confirmed packs, in part order without gaps.
//! - Every queue that holds chunks is bounded. A stage that fails reports it to [`Stop`] and closes its
//!   queues; the other stages see that.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{SendTimeoutError, Sender, bounded, unbounded};
use holdfast_pipe::{Codec, Compression, Headroom, ObjectKey, PageHash, Stop, lock::lock, meter::Meter};
use rustix::process::setpriority_process;

use super::{
    chunk::{Buffers, Chunk, Ticket},
    error::WriteError,
    options::WriterOptions,
};
use crate::{
    data::reader::ChunkSource,
    format::{
        names::{ChunkRef, PackId},
        pack::{ChunkKind, ChunkRow},
    },
    hooks::Hooks,
    repo::Repo,
    sealed::RunSecrets,
    store::ahead::in_order,
};

mod index;
mod stages;
mod upload;

use index::Indexer;
use stages::Placer;

/// Niceness of the compressing threads (Linux has one for each thread).
const COMPRESS_NICENESS: i32 = 10;

/// How often a thread that waits for the stages checks whether they have been stopped.
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// What the stages of the pipeline did.
#[derive(Debug, Default)]
pub struct PipelineMeters {
    /// Plain bytes compressed.
    pub compress: Meter,
    /// Of the chunks compressed, those stored as patches; bytes are those of the patches.
    pub patched: Meter,
    /// Chunks of the base that could not be read when a patch was to be made on them.
    pub base_unreadable: Meter,
    /// Stored bytes sealed.
    pub seal: Meter,
    /// Stored bytes given to the store.
    pub upload: Meter,
    /// Packs made durable; bytes are those of the objects.
    pub finish: Meter,
}

/// How far the run's numbering has got; a pipeline continues where the one before it ended.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Next part of a pack.
    pub(super) pack_part: u32,
    /// Next part of the index.
    pub(super) index_part: u32,
    /// Size and chunk units of each pack so far, by part.
    pub(super) packs: Vec<OwnPack>,
}

/// A pack of this run, for the refs.
#[derive(Debug)]
pub(super) struct OwnPack {
    pub(super) size_bytes: u64,
    pub(super) units: Vec<u32>,
}

/// What all stages share.
struct Shared {
    repo: Arc<Repo>,
    secrets: Arc<RunSecrets>,
    stop: Stop<WriteError>,
    meters: Arc<PipelineMeters>,
    buffers: Arc<Buffers>,
    source: Arc<ChunkSource>,
    hooks: Hooks,
    headroom: Arc<Headroom>,
    compression: Compression,
    pack_target_bytes: u64,
    pack_age: Duration,
    index_every_bytes: u64,
    index_every: Duration,
    placer: Mutex<Placer>,
    unplaced: Mutex<u64>,
    placed: Condvar,
}

/// The running stages.
pub(super) struct Pipeline {
    input: Option<Sender<Chunk>>,
    /// Bypasses compression, for chunks that are compressed already.
    compressed: Option<Sender<Compressed>>,
    threads: Vec<JoinHandle<()>>,
    indexer: Option<JoinHandle<Progress>>,
    shared: Arc<Shared>,
}

/// What the pipeline works with.
pub(super) struct PipelineParts {
    pub(super) repo: Arc<Repo>,
    pub(super) secrets: Arc<RunSecrets>,
    pub(super) stop: Stop<WriteError>,
    pub(super) meters: Arc<PipelineMeters>,
    pub(super) buffers: Arc<Buffers>,
    /// Reads the chunks that patches are made on.
    pub(super) source: Arc<ChunkSource>,
}

/// A chunk that is complete and compressed.
pub(super) struct Compressed {
    pub(super) kind: ChunkKind,
    pub(super) codec: Codec,
    pub(super) plain_len: u32,
    pub(super) unit_count: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) hashes: Vec<PageHash>,
    pub(super) ticket: Arc<Ticket>,
    /// The base chunk, for codec 4.
    pub(super) base: Option<ChunkRef>,
}

struct Sealed {
    sequence: u64,
    part: u32,
    key: Arc<ObjectKey>,
    row: ChunkRow,
    bytes: Vec<u8>,
    hashes: Vec<PageHash>,
}

impl Pipeline {
    pub(super) fn start(
        parts: PipelineParts,
        options: &WriterOptions,
        queue_chunks: usize,
        progress: Progress,
    ) -> Result<Self, WriteError> {
        let first_part = progress.pack_part;
        let placer = Placer::new(first_part, parts.secrets.pack_key(first_part));
        let shared = Arc::new(Shared {
            repo: parts.repo,
            secrets: parts.secrets,
            stop: parts.stop,
            meters: parts.meters,
            buffers: parts.buffers,
            source: parts.source,
            hooks: options.hooks.clone(),
            headroom: Arc::clone(&options.headroom),
            compression: options.compression,
            pack_target_bytes: options.pack_target_bytes,
            pack_age: options.pack_age,
            index_every_bytes: options.index_every_bytes,
            index_every: options.index_every,
            placer: Mutex::new(placer),
            unplaced: Mutex::new(0),
            placed: Condvar::new(),
        });
        let (input, to_compress) = bounded(queue_chunks);
        let (compressed, to_seal) = bounded(queue_chunks);
        let (sealed, to_upload) = bounded(queue_chunks);
        // An unbuffered queue: while all finishers are busy, a finished pack holds up the uploader.
        let (uploaded, to_finish) = bounded(0);
        let (confirmed, to_index) = unbounded();
        let mut pipeline = Self {
            input: Some(input),
            compressed: Some(compressed.clone()),
            threads: Vec::new(),
            indexer: None,
            shared: Arc::clone(&shared),
        };
        let compress_threads = match options.compression {
            Compression::None => 0,
            _ => options.compress_threads.max(1),
        };
        for _ in 0..compress_threads {
            let (input, output) = (to_compress.clone(), compressed.clone());
            pipeline.spawn("compress", move |shared| {
                // Only this stage takes all the processor time it can get, beside
                // the server being backed up. Best effort.
                let _ = setpriority_process(None, COMPRESS_NICENESS);
                shared.compress(&input, &output)
            })?;
        }
        for _ in 0..options.encrypt_threads.max(1) {
            let (input, output) = (to_seal.clone(), sealed.clone());
            pipeline.spawn("seal", move |shared| shared.seal(&input, &output))?;
        }
        pipeline.spawn("upload", move |shared| shared.upload(&to_upload, &uploaded, first_part))?;
        for _ in 0..options.finishing_packs.max(1) {
            let (input, output) = (to_finish.clone(), confirmed.clone());
            pipeline.spawn("finish", move |shared| shared.finish_packs(&input, &output))?;
        }
        let indexer = thread::Builder::new().name("index".into()).spawn(move || {
            let mut indexer = Indexer::new(progress);
            if let Err(error) = indexer.run(&shared, &to_index) {
                shared.fail(error);
            }
            indexer.progress
        });
        pipeline.indexer = Some(indexer.map_err(WriteError::Thread)?);
        Ok(pipeline)
    }

    fn spawn(
        &mut self,
        name: &str,
        stage: impl Fn(&Shared) -> Result<(), WriteError> + Send + 'static,
    ) -> Result<(), WriteError> {
        let shared = Arc::clone(&self.shared);
        // The error is reported before the stage's queues close, so that a
        // thread that sees one closed can look up why.
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            let watched = FailsOnPanic(&shared);
            if let Err(error) = stage(watched.0) {
                watched.0.fail(error);
            }
        });
        self.threads.push(thread.map_err(WriteError::Thread)?);
        Ok(())
    }

    /// Submits a complete chunk; waits while the queue is full.
    pub(super) fn submit(&self, chunk: Chunk) -> Result<(), WriteError> {
        if self.shared.compression == Compression::None {
            let Chunk { kind, plain, unit_count, hashes, ticket, patch_base: _ } = chunk;
            let (codec, plain_len, base) = (Codec::None, plain.len() as u32, None);
            return self.submit_compressed(Compressed {
                kind,
                codec,
                plain_len,
                unit_count,
                bytes: plain,
                hashes,
                ticket,
                base,
            });
        }
        *lock(&self.shared.unplaced) += 1;
        let input = self.input.as_ref().ok_or(WriteError::Stopped)?;
        self.send(input, chunk)
    }

    /// Submits a chunk that is compressed already; waits while the queue is full.
    pub(super) fn submit_compressed(&self, chunk: Compressed) -> Result<(), WriteError> {
        *lock(&self.shared.unplaced) += 1;
        let compressed = self.compressed.as_ref().ok_or(WriteError::Stopped)?;
        self.send(compressed, chunk)
    }

    /// Waits while the queue is full, unless the pipeline has been stopped: its store may not answer.
    fn send<T>(&self, queue: &Sender<T>, it: T) -> Result<(), WriteError> {
        let mut it = it;
        loop {
            match queue.send_timeout(it, LOOKS_EVERY) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Timeout(back)) if !self.shared.stop.is_stopped() => it = back,
                Err(_) => return Err(WriteError::Stopped),
            }
        }
    }

    /// Whether every chunk that was submitted has its place.
    pub(super) fn has_placed_all(&self) -> Result<bool, WriteError> {
        if self.shared.stop.is_stopped() {
            return Err(WriteError::Stopped);
        }
        Ok(*lock(&self.shared.unplaced) == 0)
    }

    /// Waits until every chunk that was submitted has its place.
    pub(super) fn wait_placed(&self) -> Result<(), WriteError> {
        let mut unplaced = lock(&self.shared.unplaced);
        while *unplaced > 0 {
            unplaced = self.look_later(unplaced)?;
        }
        Ok(())
    }

    /// Waits until `is_enough` holds, checking it whenever chunks may have been
    /// placed. It may take locks of the writer.
    pub(super) fn wait_until(&self, is_enough: impl Fn() -> bool) -> Result<(), WriteError> {
        while !is_enough() {
            drop(self.look_later(lock(&self.shared.unplaced))?);
        }
        Ok(())
    }

    /// Waits until all chunks are placed, but at most for [`LOOKS_EVERY`].
    fn look_later<'a>(&self, unplaced: MutexGuard<'a, u64>) -> Result<MutexGuard<'a, u64>, WriteError> {
        if self.shared.stop.is_stopped() {
            return Err(WriteError::Stopped);
        }
        let waited = self.shared.placed.wait_timeout(unplaced, LOOKS_EVERY);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Ends the last pack, and waits until every pack is durable and listed. Then checks that all packs of
    /// the run still exist, since the first of them may have been stored days ago.
    pub(super) fn finish(mut self) -> Result<Progress, WriteError> {
        (self.input, self.compressed) = (None, None);
        let mut lost = false;
        for thread in self.threads.drain(..) {
            lost |= thread.join().is_err();
        }
        let progress = self.indexer.take().map(JoinHandle::join);
        match progress {
            _ if self.shared.stop.is_stopped() => Err(WriteError::Stopped),
            Some(Ok(progress)) if !lost => {
                self.shared.all_kept(&progress.packs)?;
                Ok(progress)
            }
            _ => Err(WriteError::Lost),
        }
    }
}

impl Shared {
    fn all_kept(&self, packs: &[OwnPack]) -> Result<(), WriteError> {
        let (log, run) = (self.secrets.log(), self.secrets.run());
        let packs: Vec<(u32, u64)> = (0..).zip(packs).map(|(part, pack)| (part, pack.size_bytes)).collect();
        let kept = |(part, size_bytes): &(u32, u64)| {
            self.repo.kept(&log.pack(PackId { run, part: *part }), *size_bytes)
        };
        in_order(self.repo.store().reads_at_once(), &packs, kept, |_, _| Ok(()))?;
        Ok(())
    }
}

/// Stops the other stages, and the threads that wait for them, if a stage panics.
struct FailsOnPanic<'a>(&'a Shared);

impl Drop for FailsOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(WriteError::Lost);
        }
    }
}

impl Drop for Pipeline {
    /// Stores and lists what the pipeline still holds, even if it is given up: a later run can adopt that.
    fn drop(&mut self) {
        (self.input, self.compressed) = (None, None);
        for thread in self.threads.drain(..) {
            // The error has no recipient left, and a panic has been printed.
            drop(thread.join());
        }
        if let Some(indexer) = self.indexer.take() {
            drop(indexer.join());
        }
    }
}

impl Shared {
    /// Records an error. Only the first one counts: closed queues are consequences of it.
    fn fail(&self, error: WriteError) {
        if !matches!(error, WriteError::Stopped) {
            self.stop.fail(error);
        }
        self.placed.notify_all();
    }
}
