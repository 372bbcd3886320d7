//! The signatures of packs: they show those who cannot open a pack whether it is as it was written.

use super::{
    Check, Finding, Severity,
    pack_read::{PackRead, READ_BYTES},
    sealed::trailer_of,
};
use crate::{
    data::{
        pack_signature::{Judgement, PACK_SIGNATURE_BYTES, is_signature, judge},
        reader::ChunkSource,
    },
    error::{Damage, RepoError},
    format::{names::PackId, place::HEADER_BYTES},
};

impl Check {
    /// Reads all bytes of a pack and compares them with its signature.
    pub(super) fn read_signed(&self, pack: PackId) -> Result<PackRead, RepoError> {
        let mut read = PackRead::default();
        match self.judge(pack) {
            Ok((bytes, judgement)) => {
                read.bytes = bytes;
                read.is_unproven = judgement == Judgement::None;
            }
            Err(error) if error.is_of_the_object() => {
                read.findings.push((None, Finding::of(&error, Severity::Lost)));
            }
            Err(error) => return Err(error),
        }
        Ok(read)
    }

    fn judge(&self, pack: PackId) -> Result<(u64, Judgement), RepoError> {
        let source = &*self.source;
        let size_bytes = match self.there.get(&pack) {
            Some(info) => info.size_bytes,
            None => source.repo().store().head(&source.place(pack).path())?.size_bytes,
        };
        let directory_at = trailer_of(source, pack, size_bytes)?.offset;
        let block_at = directory_at.saturating_sub(PACK_SIGNATURE_BYTES as u64);
        if block_at < HEADER_BYTES as u64 {
            return Ok((size_bytes, Judgement::None));
        }
        let mut signed = SignedBytes::begin(source, pack, block_at, (directory_at, size_bytes))?;
        // An early version's last chunk is there, not a signature.
        if !signed.block.as_ref().is_some_and(is_signature) {
            return Ok((size_bytes, Judgement::None));
        }
        signed.read(source, pack, block_at)?;
        Ok((size_bytes, signed.end(source, pack)?))
    }
}

/// What a pack's signature covers, as it is read from the front.
pub(super) struct SignedBytes {
    /// Where the signature would be.
    block: Option<[u8; PACK_SIGNATURE_BYTES]>,
    /// The directory and what follows it.
    directory: (u64, u64),
    others: blake3::Hasher,
    /// Up to where `others` has hashed.
    at: u64,
}

impl SignedBytes {
    /// For a pack whose chunks end at `chunks_end`, and whose directory and trailer lie at `directory`.
    pub(super) fn begin(
        source: &ChunkSource,
        pack: PackId,
        chunks_end: u64,
        directory: (u64, u64),
    ) -> Result<Self, RepoError> {
        let block = match directory.0.checked_sub(chunks_end) {
            Some(0) => None,
            Some(gap) if gap == PACK_SIGNATURE_BYTES as u64 => {
                let mut block = [0; PACK_SIGNATURE_BYTES];
                read(source, pack, chunks_end, &mut block)?;
                Some(block)
            }
            _ => {
                let path = source.place(pack).path();
                return Err(RepoError::malformed(
                    path,
                    "there is a gap between its chunks and its directory",
                ));
            }
        };
        let mut header = [0; HEADER_BYTES];
        if block.is_some() {
            read(source, pack, 0, &mut header)?;
        }
        let mut others = blake3::Hasher::new();
        others.update(&header);
        Ok(Self { block, directory, others, at: HEADER_BYTES as u64 })
    }

    /// Takes in `bytes`, which were read at `offset` and continue or overlap what came before.
    pub(super) fn take(&mut self, offset: u64, bytes: &[u8]) {
        if self.block.is_none() {
            return;
        }
        let known = self.at.checked_sub(offset).and_then(|known| usize::try_from(known).ok());
        let new = known.and_then(|known| bytes.get(known..)).unwrap_or_default();
        self.others.update(new);
        self.at += new.len() as u64;
    }

    /// Reads and takes in all up to `end`.
    fn read(&mut self, source: &ChunkSource, pack: PackId, end: u64) -> Result<(), RepoError> {
        let mut buffer = Vec::new();
        while self.at < end {
            let size = READ_BYTES.min(end - self.at);
            buffer.resize(usize::try_from(size).unwrap_or(usize::MAX), 0);
            read(source, pack, self.at, &mut buffer)?;
            self.take(self.at, &buffer);
        }
        Ok(())
    }

    /// What the signature says of the pack, all chunks of which were taken in.
    pub(super) fn end(mut self, source: &ChunkSource, pack: PackId) -> Result<Judgement, RepoError> {
        let Some(block) = self.block else { return Ok(Judgement::None) };
        if !is_signature(&block) {
            return Err(RepoError::damaged(source.place(pack), Damage::NotAsWritten));
        }
        let (begin, end) = self.directory;
        self.at = begin;
        self.read(source, pack, end)?;
        judge(source.repo(), &source.place(pack), &self.others, &block)
    }
}

fn read(source: &ChunkSource, pack: PackId, offset: u64, buffer: &mut [u8]) -> Result<(), RepoError> {
    let path = source.place(pack).path();
    source.repo().store().read_exact_at(&path, offset, buffer).map_err(RepoError::of_needed)
}
