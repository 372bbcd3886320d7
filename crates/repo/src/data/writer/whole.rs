//! Chunks of pages that are compressed already: a copy of a backup
//! has them, and need not compress them again.

use std::sync::{Arc, atomic::Ordering};

use holdfast_pipe::PageHash;

use super::{
    BackupWriter, FileId, WriteError,
    chunk::{Pending, Ticket},
    file::leaf_of,
    give::{base_entry, is_zero},
    leaf::Change,
    pipeline::Compressed,
};
use crate::{
    data::reader::WholeChunk,
    format::{
        columns::{PageEntry, StoredPage},
        pack::ChunkKind,
    },
};

impl BackupWriter {
    /// Gives all pages of a chunk, which are those of `pages` in order, and stores the chunk as it is.
    /// Returns `false` and takes none of them if the chunk does not fit `pages`, or if any page is zero or
    /// known already: the new ones must then be given one by one.
    pub fn whole_chunk(&self, pages: &[(FileId, u64)], chunk: &WholeChunk<'_>) -> Result<bool, WriteError> {
        let page_bytes = chunk.page_size.bytes();
        if pages.is_empty() || chunk.plain.len() != pages.len() * page_bytes {
            return Ok(false);
        }
        let each = || chunk.plain.chunks_exact(page_bytes);
        if each().any(is_zero) {
            return Ok(false);
        }
        let hashes: Vec<PageHash> =
            self.meters.compare.time(|| each().map(|page| self.hash_key.hash(page)).collect());
        let mut leaves = Vec::new();
        let is_of_one_leaf =
            |a: &(FileId, u64), b: &(FileId, u64)| (a.0, leaf_of(a.1).0) == (b.0, leaf_of(b.1).0);
        let mut slot = 0;
        for pages in pages.chunk_by(is_of_one_leaf) {
            let file = self.file(pages[0].0)?;
            let leaf = leaf_of(pages[0].1).0;
            let base = self.base_leaf(&file, leaf)?;
            let is_known = |((_, page), hash): (&(FileId, u64), &PageHash)| match base_entry(
                base.as_deref(),
                leaf_of(*page).1,
            ) {
                Some(PageEntry::Stored(StoredPage { hash: known, .. })) => known == *hash,
                _ => false,
            };
            if file.page_size != chunk.page_size || pages.iter().zip(&hashes[slot..]).any(is_known) {
                return Ok(false);
            }
            leaves.push((file, leaf, base, slot..slot + pages.len()));
            slot += pages.len();
        }
        if !self.adopted.is_empty() {
            let wanted: Vec<_> = hashes.iter().copied().map(Some).collect();
            let found = self.adopted.find(&self.source, &wanted, &self.meters.adopted_unreadable)?;
            if found.iter().any(Option::is_some) {
                return Ok(false);
            }
        }
        let ticket = Arc::<Ticket>::default();
        for (file, leaf, base, slots) in leaves {
            let change = |slot: usize| {
                let pending = Pending { ticket: Arc::clone(&ticket), slot: slot as u32 };
                (leaf_of(pages[slot].1).1, Change::New(hashes[slot], pending))
            };
            self.record(&file, leaf, base, slots.map(change).collect())?;
        }
        let (count, bytes) = (pages.len() as u64, chunk.plain.len() as u64);
        self.bytes_given.fetch_add(bytes, Ordering::Relaxed);
        self.meters.compare.add_many(count, bytes);
        self.meters.new.add_many(count, bytes);
        self.pipeline()?.submit_compressed(Compressed {
            kind: ChunkKind::Pages(chunk.page_size),
            codec: chunk.codec,
            plain_len: chunk.plain.len() as u32,
            unit_count: pages.len() as u32,
            bytes: chunk.compressed.to_vec(),
            hashes,
            ticket,
            base: None,
        })?;
        self.seal_waiting()?;
        Ok(true)
    }
}
