//! The stages that compress, place and seal.

use std::{sync::Arc, time::Instant};

use crossbeam_channel::{Receiver, Sender};
use holdfast_pipe::{
    Codec, ObjectKey, TAG_BYTES,
    codec::{Compressor, compress_patch},
    lock::lock,
};

use super::{Chunk, Compressed, Sealed, Shared, Ticket, WriteError};
use crate::{
    data::writer::chunk::PatchBase,
    format::{
        columns::CHUNKS_PER_PACK_MAX,
        pack::{ChunkKind, ChunkRow, PAGES_PER_PACK_MAX, pages_in},
    },
};

/// Assigns places in packs.
pub(super) struct Placer {
    sequence: u64,
    part: u32,
    ordinal: u32,
    stored_bytes: u64,
    pages: u32,
    /// When the first chunk was placed in the pack.
    begun_at: Instant,
    key: Arc<ObjectKey>,
}

impl Placer {
    /// Begins with pack `part`, in which nothing is placed yet.
    pub(super) fn new(part: u32, key: ObjectKey) -> Self {
        let (begun_at, key) = (Instant::now(), Arc::new(key));
        Self { sequence: 0, part, ordinal: 0, stored_bytes: 0, pages: 0, begun_at, key }
    }
}

impl Shared {
    pub(super) fn compress(
        &self,
        input: &Receiver<Chunk>,
        output: &Sender<Compressed>,
    ) -> Result<(), WriteError> {
        let mut compressor = Compressor::new(self.compression)?;
        for chunk in input {
            if self.stop.is_stopped() {
                return Err(WriteError::Stopped);
            }
            let Chunk { kind, plain, unit_count, hashes, ticket, patch_base } = chunk;
            let plain_len = plain.len();
            let began = Instant::now();
            let (codec, bytes) = self.meters.compress.time(|| {
                let mut bytes = self.buffers.take();
                let patched = match patch_base {
                    Some(base) => self.patch(base, &plain, &mut bytes)?,
                    None => false,
                };
                let codec = match patched {
                    true => Codec::ZstdPatch,
                    false => compressor.compress(&plain, &mut bytes)?,
                };
                self.buffers.give(plain);
                Ok::<_, WriteError>((codec, bytes))
            })?;
            self.meters.compress.add(plain_len as u64);
            let base = patch_base.filter(|_| codec == Codec::ZstdPatch).map(|base| base.chunk);
            if base.is_some() {
                ticket.set_patch();
                self.meters.patched.add(bytes.len() as u64);
            }
            let plain_len = plain_len as u32;
            let compressed = Compressed { kind, codec, plain_len, unit_count, bytes, hashes, ticket, base };
            let worked = began.elapsed();
            output.send(compressed).map_err(|_| WriteError::Stopped)?;
            self.headroom.rest_after(worked);
        }
        Ok(())
    }

    /// Makes a patch, and returns whether it is worthwhile: shorter than half of what the full chunk would
    /// take, estimated from how well its base compressed. A chunk that changes with every backup gets a
    /// longer patch on the same base each time: such a patch must be shorter than an eighth, at which patches
    /// and full chunks together cost about the least, however much changes.
    fn patch(&self, base: PatchBase, plain: &[u8], out: &mut Vec<u8>) -> Result<bool, WriteError> {
        let read = match self.source.read_chunk(base.chunk) {
            Ok((row, prefix)) if row.kind == ChunkKind::Rows && row.base.is_none() => Some((row, prefix)),
            Ok(_) => None,
            Err(error) if error.is_of_the_object() => None,
            Err(error) => return Err(error.into()),
        };
        let Some((row, prefix)) = read else {
            self.meters.base_unreadable.add(0);
            return Ok(false);
        };
        compress_patch(&prefix, plain, out)?;
        let full = u64::from(row.sealed_len) * plain.len() as u64 / (prefix.len() as u64).max(1);
        let share = if base.is_again { 8 } else { 2 };
        Ok(out.len() as u64 * share < full)
    }

    pub(super) fn seal(
        &self,
        input: &Receiver<Compressed>,
        output: &Sender<Sealed>,
    ) -> Result<(), WriteError> {
        for mut chunk in input {
            let sealed_len = (chunk.bytes.len() + TAG_BYTES) as u32;
            let row = ChunkRow {
                kind: chunk.kind,
                codec: chunk.codec,
                plain_len: chunk.plain_len,
                sealed_len,
                unit_count: chunk.unit_count,
                base: chunk.base,
            };
            let (sequence, part, ordinal, key) = self.place(&row, &chunk.ticket);
            let context = row.seal_context(ordinal);
            self.meters.seal.time(|| key.seal(context, &mut chunk.bytes));
            self.meters.seal.add(u64::from(sealed_len));
            let sealed = Sealed { sequence, part, key, row, bytes: chunk.bytes, hashes: chunk.hashes };
            output.send(sealed).map_err(|_| WriteError::Stopped)?;
        }
        Ok(())
    }

    fn place(&self, row: &ChunkRow, ticket: &Ticket) -> (u64, u32, u32, Arc<ObjectKey>) {
        let mut placer = lock(&self.placer);
        let pages = pages_in(row);
        let now = Instant::now();
        if placer.ordinal == 0 {
            placer.begun_at = now;
        }
        let full = placer.stored_bytes >= self.pack_target_bytes
            || placer.ordinal == CHUNKS_PER_PACK_MAX
            || placer.pages + pages > PAGES_PER_PACK_MAX
            || (placer.ordinal > 0 && now.duration_since(placer.begun_at) >= self.pack_age);
        if full {
            placer.part += 1;
            placer.ordinal = 0;
            placer.stored_bytes = 0;
            placer.pages = 0;
            placer.begun_at = now;
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
}
