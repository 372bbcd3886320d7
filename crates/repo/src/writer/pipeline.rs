//! From complete chunks to confirmed packs: compress → place and seal → upload → make durable → index.
//!
//! - A place (part, ordinal) is given out once in a run, so no nonce seals two contents.
//! - Placing is cheap and under a lock; sealing is not under it, so it scales; the uploader puts chunks back in order.
//! - Making a pack durable (an fsync, the end of a multipart upload) runs beside the packs that follow.
//! - An index part lists confirmed packs only, in part order without gaps.
//! - Every queue is bounded. Whoever fails says so in [`Stop`] and hangs up; the others see their queue close.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use holdfast_pipe::{
    Codec, Compression, ObjectKey, PageHash, SealContext, Stop, codec::Compressor, meter::Meter,
};

use super::{
    chunk::{Buffers, Chunk, Ticket},
    error::WriteError,
    options::WriterOptions,
};
use crate::{
    columns::CHUNKS_PER_PACK_MAX,
    error::RepoError,
    hooks::Hooks,
    index::{self, IndexedPack},
    lock::lock,
    names::PackId,
    object::{ObjectKind, Place, RunSecrets},
    pack::{ChunkKind, ChunkRow, DIRECTORY_KIND, DIRECTORY_ORDINAL, Directory, PAGES_PER_PACK_MAX, Trailer},
    repo::Repo,
    store::Upload,
};

/// What the stages of the pipeline did.
#[derive(Debug, Default)]
pub struct PipelineMeters {
    /// Plain bytes compressed.
    pub compress: Meter,
    /// Stored bytes sealed.
    pub seal: Meter,
    /// Stored bytes given to the store.
    pub upload: Meter,
    /// Packs made durable; bytes are those of the objects.
    pub finish: Meter,
}

/// Where the run's numbering stands; a pipeline continues where the one before it ended.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Next part of a pack.
    pub(super) pack_part: u32,
    /// Next part of the index.
    pub(super) index_part: u32,
    /// Size and units of the chunks of each pack so far, by part.
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
    hooks: Hooks,
    compression: Compression,
    pack_target_bytes: u64,
    index_every_bytes: u64,
    index_every: Duration,
    placer: Mutex<Placer>,
    unplaced: Mutex<u64>,
    placed: Condvar,
}

/// The running stages.
pub(super) struct Pipeline {
    input: Option<Sender<Chunk>>,
    /// Past compression, for chunks that are compressed already.
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
}

struct Sealed {
    sequence: u64,
    part: u32,
    key: Arc<ObjectKey>,
    row: ChunkRow,
    bytes: Vec<u8>,
    hashes: Vec<PageHash>,
}

struct Uploaded {
    part: u32,
    size_bytes: u64,
    rows: Vec<ChunkRow>,
    upload: Box<dyn Upload>,
}

/// Gives out places in packs.
struct Placer {
    sequence: u64,
    part: u32,
    ordinal: u32,
    stored_bytes: u64,
    pages: u32,
    key: Arc<ObjectKey>,
}

impl Pipeline {
    pub(super) fn start(
        parts: PipelineParts,
        options: &WriterOptions,
        queue_chunks: usize,
        progress: Progress,
    ) -> Result<Self, WriteError> {
        let first_part = progress.pack_part;
        let placer = Placer {
            sequence: 0,
            part: first_part,
            ordinal: 0,
            stored_bytes: 0,
            pages: 0,
            key: Arc::new(parts.secrets.pack_key(first_part)),
        };
        let shared = Arc::new(Shared {
            repo: parts.repo,
            secrets: parts.secrets,
            stop: parts.stop,
            meters: parts.meters,
            buffers: parts.buffers,
            hooks: options.hooks.clone(),
            compression: options.compression,
            pack_target_bytes: options.pack_target_bytes,
            index_every_bytes: options.index_every_bytes,
            index_every: options.index_every,
            placer: Mutex::new(placer),
            unplaced: Mutex::new(0),
            placed: Condvar::new(),
        });
        let (input, to_compress) = bounded(queue_chunks);
        let (compressed, to_seal) = bounded(queue_chunks);
        let (sealed, to_upload) = bounded(queue_chunks);
        // A pack waits here only while all finishers are busy, which then holds up the uploader.
        let (uploaded, to_finish) = bounded(0);
        let (confirmed, to_index) = unbounded();
        let mut pipeline = Self {
            input: Some(input),
            compressed: Some(compressed.clone()),
            threads: Vec::new(),
            indexer: None,
            shared: Arc::clone(&shared),
        };
        for _ in 0..options.compress_threads.max(1) {
            let (input, output) = (to_compress.clone(), compressed.clone());
            pipeline.spawn("compress", move |shared| shared.compress(&input, &output))?;
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
        stage: impl FnOnce(&Shared) -> Result<(), WriteError> + Send + 'static,
    ) -> Result<(), WriteError> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            if let Err(error) = stage(&shared) {
                shared.fail(error);
            }
        });
        self.threads.push(thread.map_err(WriteError::Thread)?);
        Ok(())
    }

    /// Gives a complete chunk to the pipeline; waits while it is full.
    pub(super) fn submit(&self, chunk: Chunk) -> Result<(), WriteError> {
        *lock(&self.shared.unplaced) += 1;
        let input = self.input.as_ref().ok_or(WriteError::Stopped)?;
        input.send(chunk).map_err(|_| WriteError::Stopped)
    }

    /// Gives a chunk that is compressed already to the pipeline; waits while it is full.
    pub(super) fn submit_compressed(&self, chunk: Compressed) -> Result<(), WriteError> {
        *lock(&self.shared.unplaced) += 1;
        let compressed = self.compressed.as_ref().ok_or(WriteError::Stopped)?;
        compressed.send(chunk).map_err(|_| WriteError::Stopped)
    }

    /// Waits until every chunk that was submitted has its place.
    pub(super) fn wait_placed(&self) -> Result<(), WriteError> {
        let mut unplaced = lock(&self.shared.unplaced);
        while *unplaced > 0 {
            if self.shared.stop.is_stopped() {
                return Err(WriteError::Stopped);
            }
            let (guard, _) = self
                .shared
                .placed
                .wait_timeout(unplaced, Duration::from_millis(50))
                .unwrap_or_else(PoisonError::into_inner);
            unplaced = guard;
        }
        Ok(())
    }

    /// Ends the last pack and waits until every pack is durable and listed.
    pub(super) fn finish(mut self) -> Result<Progress, WriteError> {
        (self.input, self.compressed) = (None, None);
        let mut lost = false;
        for thread in self.threads.drain(..) {
            lost |= thread.join().is_err();
        }
        let progress = self.indexer.take().map(JoinHandle::join);
        match progress {
            _ if self.shared.stop.is_stopped() => Err(WriteError::Stopped),
            Some(Ok(progress)) if !lost => Ok(progress),
            _ => Err(WriteError::Lost),
        }
    }
}

impl Drop for Pipeline {
    /// A pipeline that is given up stores and lists what it holds: a later run can adopt it.
    fn drop(&mut self) {
        (self.input, self.compressed) = (None, None);
        for thread in self.threads.drain(..) {
            // Nobody is left to tell, and a panic has been printed.
            drop(thread.join());
        }
        if let Some(indexer) = self.indexer.take() {
            drop(indexer.join());
        }
    }
}

impl Shared {
    /// The first error counts; closed queues are what follows from it.
    fn fail(&self, error: WriteError) {
        if !matches!(error, WriteError::Stopped) {
            self.stop.fail(error);
        }
        self.placed.notify_all();
    }

    fn compress(&self, input: &Receiver<Chunk>, output: &Sender<Compressed>) -> Result<(), WriteError> {
        let mut compressor = Compressor::new(self.compression)?;
        for chunk in input {
            if self.stop.is_stopped() {
                return Err(WriteError::Stopped);
            }
            let Chunk { kind, plain, unit_count, hashes, ticket } = chunk;
            let plain_len = plain.len();
            let (codec, bytes) = self.meters.compress.time(|| match self.compression {
                Compression::None => Ok((Codec::None, plain)),
                _ => {
                    let mut bytes = self.buffers.take();
                    let codec = compressor.compress(&plain, &mut bytes)?;
                    self.buffers.give(plain);
                    Ok::<_, WriteError>((codec, bytes))
                }
            })?;
            self.meters.compress.add(plain_len as u64);
            let compressed =
                Compressed { kind, codec, plain_len: plain_len as u32, unit_count, bytes, hashes, ticket };
            output.send(compressed).map_err(|_| WriteError::Stopped)?;
        }
        Ok(())
    }

    fn seal(&self, input: &Receiver<Compressed>, output: &Sender<Sealed>) -> Result<(), WriteError> {
        for mut chunk in input {
            let sealed_len = (chunk.bytes.len() + holdfast_pipe::TAG_BYTES) as u32;
            let row = ChunkRow {
                kind: chunk.kind,
                codec: chunk.codec,
                plain_len: chunk.plain_len,
                sealed_len,
                unit_count: chunk.unit_count,
            };
            let (sequence, part, ordinal, key) = self.place(&row, &chunk.ticket);
            let context = chunk_context(&row, u64::from(ordinal));
            self.meters.seal.time(|| key.seal(context, &mut chunk.bytes));
            self.meters.seal.add(u64::from(sealed_len));
            let sealed = Sealed { sequence, part, key, row, bytes: chunk.bytes, hashes: chunk.hashes };
            output.send(sealed).map_err(|_| WriteError::Stopped)?;
        }
        Ok(())
    }

    fn place(&self, row: &ChunkRow, ticket: &Ticket) -> (u64, u32, u32, Arc<ObjectKey>) {
        let mut placer = lock(&self.placer);
        let pages = crate::pack::pages_in(row);
        let full = placer.stored_bytes >= self.pack_target_bytes
            || placer.ordinal == CHUNKS_PER_PACK_MAX
            || placer.pages + pages > PAGES_PER_PACK_MAX;
        if full {
            placer.part += 1;
            placer.ordinal = 0;
            placer.stored_bytes = 0;
            placer.pages = 0;
            placer.key = Arc::new(self.secrets.pack_key(placer.part));
        }
        let place = (placer.sequence, placer.part, placer.ordinal, Arc::clone(&placer.key));
        ticket.place(placer.part, placer.ordinal);
        placer.sequence += 1;
        placer.ordinal += 1;
        placer.stored_bytes += u64::from(row.sealed_len);
        placer.pages += pages;
        drop(placer);
        let mut unplaced = lock(&self.unplaced);
        *unplaced -= 1;
        if *unplaced == 0 {
            self.placed.notify_all();
        }
        place
    }

    fn upload(
        &self,
        input: &Receiver<Sealed>,
        output: &Sender<Uploaded>,
        first_part: u32,
    ) -> Result<(), WriteError> {
        let mut early = BTreeMap::new();
        let mut next = 0;
        let mut open: Option<OpenPack> = None;
        let mut expected_part = first_part;
        for sealed in input {
            early.insert(sealed.sequence, sealed);
            while let Some(sealed) = early.remove(&next) {
                next += 1;
                if let Some(pack) = open.take_if(|pack| pack.part != sealed.part) {
                    let uploaded = self.meters.upload.time(|| pack.close(self))?;
                    output.send(uploaded).map_err(|_| WriteError::Stopped)?;
                    expected_part += 1;
                }
                debug_assert_eq!(sealed.part, expected_part);
                let pack = match &mut open {
                    Some(pack) => pack,
                    None => open.insert(OpenPack::begin(self, sealed.part, Arc::clone(&sealed.key))?),
                };
                self.meters.upload.time(|| pack.upload.write(&sealed.bytes))?;
                self.meters.upload.add(sealed.bytes.len() as u64);
                pack.offset += sealed.bytes.len() as u64;
                pack.directory.rows.push(sealed.row);
                pack.directory.hashes.extend_from_slice(&sealed.hashes);
                self.buffers.give(sealed.bytes);
            }
            if self.stop.is_stopped() {
                return Err(WriteError::Stopped);
            }
        }
        // The queue also closes when an earlier stage has failed: then nothing may look complete.
        match open {
            Some(pack) if !self.stop.is_stopped() && early.is_empty() => {
                let uploaded = self.meters.upload.time(|| pack.close(self))?;
                output.send(uploaded).map_err(|_| WriteError::Stopped)
            }
            _ => Ok(()),
        }
    }

    fn finish_packs(
        &self,
        input: &Receiver<Uploaded>,
        output: &Sender<IndexedPack>,
    ) -> Result<(), WriteError> {
        for pack in input {
            let place = self.pack_place(pack.part);
            self.hooks.point("writer.pack.before_finish");
            let info = self.meters.finish.time(|| pack.upload.finish())?;
            self.hooks.point("writer.pack.after_finish");
            if info.size_bytes != pack.size_bytes {
                let what = "the store holds another number of bytes than it was given";
                return Err(RepoError::malformed(place.path(), what).into());
            }
            self.meters.finish.add(pack.size_bytes);
            let indexed = IndexedPack { part: pack.part, size_bytes: pack.size_bytes, rows: pack.rows };
            output.send(indexed).map_err(|_| WriteError::Stopped)?;
        }
        Ok(())
    }

    fn pack_place(&self, part: u32) -> Place<'_> {
        Place { log: self.secrets.log(), kind: ObjectKind::Pack, run: self.secrets.run(), part }
    }
}

/// The seal's context of a chunk of a pack.
pub(crate) fn chunk_context(row: &ChunkRow, ordinal: u64) -> SealContext {
    SealContext {
        object_kind: ObjectKind::Pack as u8,
        chunk_kind: row.kind.number(),
        codec: row.codec as u8,
        last: false,
        ordinal,
        plain_len: row.plain_len,
    }
}

/// The seal's context of a pack's directory.
pub(crate) fn directory_context(plain_len: u32) -> SealContext {
    SealContext {
        object_kind: ObjectKind::Pack as u8,
        chunk_kind: DIRECTORY_KIND,
        codec: Codec::None as u8,
        last: false,
        ordinal: DIRECTORY_ORDINAL,
        plain_len,
    }
}

struct OpenPack {
    part: u32,
    key: Arc<ObjectKey>,
    upload: Box<dyn Upload>,
    offset: u64,
    directory: Directory,
}

impl OpenPack {
    fn begin(shared: &Shared, part: u32, key: Arc<ObjectKey>) -> Result<Self, WriteError> {
        let pack = PackId { run: shared.secrets.run(), part };
        shared.hooks.point("writer.pack.before_put");
        let mut upload = shared.repo.store().put(&shared.secrets.log().pack(pack))?;
        shared.hooks.point("writer.pack.after_put");
        let header = shared.secrets.pack_header(part);
        upload.write(&header)?;
        shared.meters.upload.add_many(0, header.len() as u64);
        Ok(Self { part, key, upload, offset: header.len() as u64, directory: Directory::default() })
    }

    fn close(mut self, shared: &Shared) -> Result<Uploaded, WriteError> {
        let mut sealed = self.directory.encode();
        let plain_len = sealed.len() as u32;
        self.key.seal(directory_context(plain_len), &mut sealed);
        let trailer = Trailer { offset: self.offset, sealed_len: sealed.len() as u32, plain_len }.encode();
        self.upload.write(&sealed)?;
        self.upload.write(&trailer)?;
        let written = (sealed.len() + trailer.len()) as u64;
        shared.meters.upload.add_many(0, written);
        Ok(Uploaded {
            part: self.part,
            size_bytes: self.offset + written,
            rows: mem::take(&mut self.directory.rows),
            upload: self.upload,
        })
    }
}

/// Lists confirmed packs.
struct Indexer {
    progress: Progress,
    /// Confirmed before a pack of a lower part.
    early: BTreeMap<u32, IndexedPack>,
    listed: Vec<IndexedPack>,
    listed_bytes: u64,
    written_at: Instant,
}

impl Indexer {
    fn new(progress: Progress) -> Self {
        Self {
            progress,
            early: BTreeMap::new(),
            listed: Vec::new(),
            listed_bytes: 0,
            written_at: Instant::now(),
        }
    }

    fn run(&mut self, shared: &Shared, input: &Receiver<IndexedPack>) -> Result<(), WriteError> {
        loop {
            let wait = shared.index_every.saturating_sub(self.written_at.elapsed());
            match input.recv_timeout(wait) {
                Ok(pack) => self.take(pack),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let due = self.written_at.elapsed() >= shared.index_every;
            if due || self.listed_bytes >= shared.index_every_bytes {
                self.write(shared)?;
            }
        }
        // What is confirmed is worth listing even when the run has failed: a later run can adopt it.
        self.write(shared)
    }

    fn take(&mut self, pack: IndexedPack) {
        self.early.insert(pack.part, pack);
        while let Some(pack) = self.early.remove(&self.progress.pack_part) {
            self.progress.pack_part += 1;
            self.listed_bytes += pack.size_bytes;
            let units = pack.rows.iter().map(|row| row.unit_count).collect();
            self.progress.packs.push(OwnPack { size_bytes: pack.size_bytes, units });
            self.listed.push(pack);
        }
    }

    fn write(&mut self, shared: &Shared) -> Result<(), WriteError> {
        self.written_at = Instant::now();
        if self.listed.is_empty() {
            return Ok(());
        }
        let part = self.progress.index_part;
        // The number is used up even if the writing fails: no number seals two contents.
        self.progress.index_part += 1;
        let sealed = shared.secrets.seal_index(part, &index::encode(&self.listed))?;
        let (log, run) = (shared.secrets.log(), shared.secrets.run());
        shared.hooks.point("writer.index.before_put");
        shared.repo.put(&Place { log, kind: ObjectKind::Index, run, part }, &sealed)?;
        shared.hooks.point("writer.index.after_put");
        self.listed.clear();
        self.listed_bytes = 0;
        Ok(())
    }
}
