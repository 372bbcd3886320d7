//! What is remembered of chunks of rows that were read, so that a leaf's entries need not be read again.

use std::{
    collections::{HashSet, hash_map::RandomState},
    hash::BuildHasher,
    sync::Mutex,
};

use holdfast_pipe::{PageHash, lock::lock};

use crate::{
    data::reader::{ChunkSource, rows::Joints},
    error::{Damage, RepoError},
    format::{
        names::ChunkRef,
        rows::{RowChunk, RowEntry, RowHashKey, RowTotals},
    },
};

/// Fingerprints of chunks of whole rows that were read.
#[derive(Default)]
pub(super) struct ProvenRows {
    /// The hash key differs in each process, so nobody can make up a chunk with the fingerprint of another.
    random: RandomState,
    known: Mutex<HashSet<u64>>,
}

impl ProvenRows {
    fn fingerprint(&self, chunk: ChunkRef, hash: PageHash, totals: RowTotals) -> u64 {
        self.random.hash_one((chunk, hash, totals.rows, totals.bytes, totals.checksum.0))
    }

    /// Notes what a chunk of rows holds.
    pub(super) fn take(&self, source: &ChunkSource, chunk: ChunkRef, plain: &[u8]) -> Result<(), RepoError> {
        let damaged = |damage| source.damaged(chunk, damage);
        let rows = RowChunk::parse(plain).map_err(|error| damaged(Damage::from(error)))?;
        if let RowChunk::Piece(..) = rows {
            return Ok(());
        }
        let hash_key = source.repo().hash_key()?;
        let totals = Joints::summed(RowHashKey::new(hash_key)).next(&rows);
        let totals = totals.map_err(|what| damaged(Damage::Malformed { what }))?;
        let hash = hash_key.hash(plain);
        lock(&self.known).insert(self.fingerprint(chunk, hash, totals));
        Ok(())
    }

    /// Whether the chunk of an entry was read, and holds what the entry says.
    pub(super) fn knows(&self, entry: &RowEntry) -> bool {
        lock(&self.known).contains(&self.fingerprint(entry.chunk, entry.hash, entry.totals))
    }
}
