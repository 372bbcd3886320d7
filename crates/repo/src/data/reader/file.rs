//! Whole files in order: for listings, small files and tests. A restore of many files uses
//! [`super::ChunkSource::fetch_pages`].

use std::{collections::HashMap, sync::Arc};

use super::Backup;
use crate::{
    error::{Damage, RepoError},
    format::{columns::PageEntry, item::Item, names::ChunkRef, pack::ChunkKind, page_map::PAGES_PER_LEAF},
};

/// Number of chunks kept while a file is read in order.
const CHUNKS_KEPT: usize = 16;

impl Backup {
    /// Calls `sink` with the bytes of a file from the first to the
    /// last, holes as zeros. Every page is verified.
    pub fn read_file<E: From<RepoError>>(
        &self,
        item: &Item,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let page_bytes = item.page_size.bytes();
        let zeros = vec![0; page_bytes];
        let mut kept: HashMap<ChunkRef, Arc<Vec<u8>>> = HashMap::new();
        let mut left = item.size_bytes;
        for leaf in 0..crate::format::item::leaf_count(item.page_count()) {
            for (position, entry) in self.leaf(item, leaf)?.iter().enumerate() {
                let plain;
                let page = match entry {
                    PageEntry::Zero | PageEntry::Hole => &zeros[..],
                    PageEntry::Stored(stored) => {
                        let number = leaf * u64::from(PAGES_PER_LEAF) + position as u64;
                        let damaged = |damage| {
                            let pack = self.source().log().pack(stored.chunk.pack);
                            let chunk = stored.chunk.ordinal;
                            RepoError::damaged(
                                format!("{} page {number} ({pack}, chunk {chunk})", item.path),
                                damage,
                            )
                        };
                        plain = match kept.get(&stored.chunk) {
                            Some(plain) => Arc::clone(plain),
                            None => {
                                let pack = self.source().resolve(stored.chunk).pack;
                                let plain = self.source().past_the_index(pack, &mut || {
                                    let (row, plain) = self.source().follow_chunk(stored.chunk)?;
                                    if row.kind != ChunkKind::Pages(item.page_size) {
                                        let what = "its chunk holds no pages of its size";
                                        return Err(damaged(Damage::Malformed { what }));
                                    }
                                    Ok(plain)
                                })?;
                                if kept.len() >= CHUNKS_KEPT {
                                    kept.clear();
                                }
                                let plain = Arc::new(plain);
                                kept.insert(stored.chunk, Arc::clone(&plain));
                                plain
                            }
                        };
                        let begin = stored.slot as usize * page_bytes;
                        let page = plain.get(begin..begin + page_bytes).unwrap_or_default();
                        if page.is_empty() || !self.source().is_page(page, stored.hash)? {
                            return Err(damaged(Damage::NotAsRecorded).into());
                        }
                        page
                    }
                };
                let len = left.min(page_bytes as u64);
                sink(page.get(..len as usize).unwrap_or_default())?;
                left -= len;
            }
        }
        Ok(())
    }
}
