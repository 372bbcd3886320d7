//! Reads packs: every chunk can be opened and decompressed, and its pages have the hashes in the directory. With
//! a key that cannot open them: all bytes are as they were signed.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use holdfast_pipe::lock::lock;

use super::{
    Check, CheckOptions, Finding, Proven, Severity,
    pack_read::{PackRead, READ_BYTES},
    proven::ProvenRows,
    signed::SignedBytes,
};
use crate::{
    data::reader::catalog::OwnDirectory,
    error::{Damage, RepoError},
    format::{
        names::{ChunkRef, PackId},
        pack::{ChunkKind, ChunkRow, PackRows},
        place::HEADER_BYTES,
    },
    log::check_record,
};

/// After this many packs, about 64 GiB, it is recorded which ones are good.
const BATCH_PACKS: usize = 1024;
/// Memory of a thread: a read, a plain chunk, and the largest
/// directory, both as stored and as rows and hashes.
pub(super) const THREAD_BYTES: usize = 20 << 20;

impl Check {
    /// Reads needed packs: every chunk can be opened and decompressed, and its pages have the hashes in the
    /// directory. Packs that are `proven` have been read already. Records which packs are good as it goes.
    /// With a key that cannot open packs, compares them with their signatures instead, and records nothing.
    /// Without `read_data`, reads only packs that the last check to read them found damaged: they must not
    /// count as intact before they are read again.
    pub(super) fn read_packs(&mut self, proven: &mut Proven) -> Result<(), RepoError> {
        let Proven { packs: whole, rows, .. } = proven;
        let known: Vec<(PackId, u64)> = whole.iter().map(|(pack, bytes)| (*pack, *bytes)).collect();
        for (pack, bytes) in known {
            if self.needed.contains_key(&pack) && !self.bad_packs.contains_key(&pack) {
                self.read.insert(pack);
                self.report.packs_read += 1;
                self.report.bytes_read += bytes;
            }
        }
        let chosen = self.choose()?;
        let deadline = self.options.time_max.and_then(|time| Instant::now().checked_add(time));
        let sizes = chosen.iter().filter_map(|pack| self.there.get(pack));
        let progress = Progress {
            bytes_read: AtomicU64::new(0),
            bytes_total: sizes.map(|info| info.size_bytes).sum(),
            deadline,
        };
        let mut found = HashMap::new();
        for batch in chosen.chunks(BATCH_PACKS) {
            let (results, stopped) = self.read_batch(batch, rows, &progress)?;
            for (pack, read) in results {
                self.take_in(pack, read, whole, &mut found);
            }
            if let Some(error) = stopped {
                return Err(error);
            }
        }
        for pack in chosen.iter().filter(|pack| !self.read.contains(pack)) {
            self.report.packs_left += 1;
            self.report.bytes_left += self.there.get(pack).map_or(0, |info| info.size_bytes);
        }
        Ok(())
    }

    /// The packs to read now, in order.
    fn choose(&mut self) -> Result<Vec<PackId>, RepoError> {
        let CheckOptions { read_data, seed, unread_for, bytes_max, time_max, .. } = &self.options;
        let share = read_data.unwrap_or(0.0);
        let is_due = |pack: PackId| self.checked.is_bad(pack) || is_chosen(pack, share, *seed);
        let chosen =
            self.needed.keys().copied().filter(|pack| {
                !self.bad_packs.contains_key(pack) && !self.read.contains(pack) && is_due(*pack)
            });
        let chosen: Vec<PackId> = chosen.collect();
        if unread_for.is_none() && bytes_max.is_none() && time_max.is_none() {
            return Ok(chosen);
        }
        let now = self.source.repo().store().now()?;
        let unread = |pack: PackId| {
            let info = self.there.get(&pack)?;
            let ended = self.history.stored_by(pack.run);
            Some((self.checked.unread_for(pack, info, ended, now), pack, info.size_bytes))
        };
        let mut due: Vec<_> = chosen.into_iter().filter_map(unread).collect();
        due.retain(|(unread, ..)| unread_for.is_none_or(|least| *unread >= least));
        due.sort_by_key(|(unread, pack, _)| (Reverse(*unread), *pack));
        let mut bytes = 0;
        let within = |(_, _, size_bytes): &&(_, _, u64)| {
            let is_within = bytes_max.is_none_or(|most| bytes < most);
            bytes += size_bytes;
            is_within
        };
        let count = due.iter().take_while(within).count();
        for (_, _, size_bytes) in due.split_off(count) {
            self.report.packs_left += 1;
            self.report.bytes_left += size_bytes;
        }
        Ok(due.into_iter().map(|(_, pack, _)| pack).collect())
    }

    /// Reads some packs, and records which of them are good and which are bad. Returns what was read, and the
    /// error that ended it early, if any.
    fn read_batch(
        &mut self,
        batch: &[PackId],
        rows: &ProvenRows,
        progress: &Progress,
    ) -> Result<(BatchRead, Option<RepoError>), RepoError> {
        let can_read = self.source.repo().can_read();
        let began_at = self.source.repo().store().now();
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        let stopped = Mutex::new(None);
        let work = || {
            while let Some(pack) = batch.get(next.fetch_add(1, Ordering::Relaxed)) {
                if progress.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    break;
                }
                let interrupt = self.options.interrupt.check();
                let read = interrupt.and_then(|()| match can_read {
                    true => self.read_pack(rows, *pack),
                    false => self.read_signed(*pack),
                });
                match read {
                    Ok(result) => {
                        let before = progress.bytes_read.fetch_add(result.bytes, Ordering::Relaxed);
                        self.options.steps.bytes(before + result.bytes, progress.bytes_total);
                        lock(&results).push((*pack, result));
                    }
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
            for _ in 1..self.options.budget().threads.clamp(1, batch.len().max(1)) {
                scope.spawn(work);
            }
            work();
        });
        let mut results = std::mem::take(&mut *lock(&results));
        results.sort_by_key(|(pack, _)| *pack);
        let good = results.iter().filter(|(_, read)| read.findings.is_empty());
        let good: Vec<_> = good.map(|(pack, read)| (*pack, read.bytes)).collect();
        // Damage in chunks that no backup needs makes a pack neither good nor bad, nor does what is not known.
        let is_bad = |(pack, read): &&(PackId, PackRead)| {
            read.findings.iter().any(|(ordinal, finding)| {
                finding.severity == Severity::Lost
                    && ordinal.is_none_or(|ordinal| self.needs(ChunkRef { pack: *pack, ordinal }))
            })
        };
        let bad: Vec<PackId> = results.iter().filter(is_bad).map(|(pack, _)| *pack).collect();
        if !results.is_empty() && can_read {
            let (repo, log) = (self.source.repo(), self.source.log());
            let recorded = began_at.map_err(RepoError::from);
            let recorded = recorded.and_then(|at| check_record::record(repo, log, &good, &bad, at));
            self.note_unrecorded(recorded);
        }
        let stopped = lock(&stopped).take();
        Ok((results, stopped))
    }

    fn read_pack(&self, rows_proven: &ProvenRows, pack: PackId) -> Result<PackRead, RepoError> {
        let source = &*self.source;
        let mut read = PackRead::default();
        let mut note = |ordinal, error: RepoError| {
            if error.is_of_the_object() {
                read.findings.push((ordinal, Finding::of(&error, Severity::Lost)));
                Ok(())
            } else {
                Err(error)
            }
        };
        let listed_bytes = self.there.get(&pack).map(|info| info.size_bytes);
        let OwnDirectory { size_bytes, offset: directory_at, directory, key } =
            match source.directory_of(pack, listed_bytes) {
                Ok(own) => own,
                Err(error) => {
                    note(None, error)?;
                    return Ok(read);
                }
            };
        let path = source.log().pack(pack);
        let rows = match PackRows::new(size_bytes, directory.rows.clone()) {
            Ok(rows) => rows,
            Err(error) => {
                note(None, RepoError::damaged(&path, Damage::from(error)))?;
                return Ok(read);
            }
        };
        // If the index differs, that is reported once all packs are read.
        if let Err(error) = source.take_own(pack, rows.clone()) {
            note(None, error)?;
            return Ok(read);
        }
        let last = (rows.rows().len() as u32).checked_sub(1).and_then(|last| rows.chunk(last));
        let chunks_end = last.map_or(HEADER_BYTES as u64, |(row, offset)| offset + u64::from(row.sealed_len));
        let mut signed = match SignedBytes::begin(source, pack, chunks_end, (directory_at, size_bytes)) {
            Ok(signed) => signed,
            Err(error) => {
                note(None, error)?;
                return Ok(read);
            }
        };
        let mut hashes = directory.chunks().map(|(_, hashes)| hashes);
        let (mut sealed, mut plain) = (Vec::new(), Vec::new());
        let (mut buffer_begin, mut buffer_end) = (0, 0);
        for ordinal in 0..rows.rows().len() as u32 {
            let Some((row, offset)) = rows.chunk(ordinal) else { break };
            let end = offset + u64::from(row.sealed_len);
            if end > buffer_end {
                buffer_begin = offset;
                buffer_end = (offset + READ_BYTES).max(end).min(chunks_end);
                sealed.resize(usize::try_from(buffer_end - buffer_begin).unwrap_or(usize::MAX), 0);
                if let Err(error) = source.repo().store().read_exact_at(&path, buffer_begin, &mut sealed) {
                    note(None, error.into())?;
                    return Ok(read);
                }
                signed.take(buffer_begin, &sealed);
            }
            let page_hashes = hashes.next().unwrap_or_default();
            let chunk = ChunkRef { pack, ordinal };
            if self.is_cut_off(chunk, row) {
                continue;
            }
            let from = usize::try_from(offset - buffer_begin).unwrap_or(usize::MAX);
            let bytes = &mut sealed[from..from + row.sealed_len as usize];
            if let Err(error) = source.open_chunk(chunk, row, &key, bytes, &mut plain) {
                // If something is missing, it is the base of a patch: the chunk's own bytes were read.
                if !error.is_missing() || self.needs(chunk) {
                    note(Some(ordinal), error)?;
                }
                continue;
            }
            let compared = match row.kind {
                ChunkKind::Rows => rows_proven.take(source, chunk, &plain),
                _ => source.compare_pages(chunk, row, &plain, page_hashes),
            };
            if let Err(error) = compared {
                note(Some(ordinal), error)?;
            }
        }
        read.bytes = size_bytes;
        if read.findings.is_empty() {
            match signed.end(source, pack) {
                Ok(_) => {}
                // Whoever can open the chunks needs no signature.
                Err(error) if error.is_of_the_object() => {
                    read.findings.push((None, Finding::of(&error, Severity::Repairable)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Whether a backup needs the chunk.
    fn needs(&self, chunk: ChunkRef) -> bool {
        self.needed.get(&chunk.pack).is_some_and(|needed| needed.needs(chunk.ordinal))
    }

    /// Whether the chunk is a patch whose base is gone: nothing keeps
    /// the base of a patch that no backup needs.
    fn is_cut_off(&self, chunk: ChunkRef, row: &ChunkRow) -> bool {
        let is_gone = |base| !self.there.contains_key(&self.source.resolve(base).pack);
        row.base.is_some_and(is_gone) && !self.needs(chunk)
    }

    /// Takes in the result of reading a pack.
    fn take_in(
        &mut self,
        pack: PackId,
        read: PackRead,
        whole: &mut HashMap<PackId, u64>,
        found: &mut HashMap<(String, String), usize>,
    ) {
        self.read.insert(pack);
        if read.is_unproven {
            self.report.packs_unproven += 1;
            return;
        }
        self.report.packs_read += 1;
        self.report.bytes_read += read.bytes;
        if read.findings.is_empty() {
            whole.insert(pack, read.bytes);
        }
        for (ordinal, finding) in read.findings {
            match ordinal {
                Some(ordinal) if self.needs(ChunkRef { pack, ordinal }) => {
                    // Many chunks may be patches on one that cannot be read: that is a single finding.
                    let same = (finding.object.clone(), finding.problem.clone());
                    let position = *found.entry(same).or_insert_with(|| self.find(finding));
                    self.bad_chunks.insert(ChunkRef { pack, ordinal }, position);
                }
                // A dead chunk affects no backup, but whatever damaged it may have done more.
                Some(_) => {
                    let severity = match finding.severity {
                        Severity::Newer => Severity::Newer,
                        Severity::Lost | Severity::Repairable => Severity::Repairable,
                    };
                    self.find(Finding { severity, ..finding });
                }
                None if finding.severity == Severity::Repairable => drop(self.find(finding)),
                None => {
                    let position = self.find(finding);
                    self.bad_packs.entry(pack).or_insert(position);
                }
            }
        }
    }
}

/// Progress of reading packs, shared by all threads.
struct Progress {
    bytes_read: AtomicU64,
    bytes_total: u64,
    /// No pack is begun after this time.
    deadline: Option<Instant>,
}

type BatchRead = Vec<(PackId, PackRead)>;

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
