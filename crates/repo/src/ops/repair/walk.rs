//! Finds everything that a backup needs, from its page maps.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use holdfast_pipe::PageHash;

use crate::{
    data::reader::{Backup, ChunkSource},
    error::RepoError,
    format::{
        columns::PageEntry,
        item::{Item, ItemMap},
        names::{ChunkRef, PackId, RunNo},
        refs::{BackupRefs, ChunkNeed, NeededPack},
        rows::{DefinitionText, TableRows},
        units::Units,
    },
    interrupt::Interrupt,
    log::history::History,
};

/// What a reference says about the chunk that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The chunk has this hash.
    Plain(PageHash),
    /// The chunk has a page with this hash at this slot.
    Page(u32, PageHash),
    /// Nothing.
    Unsaid,
}

/// A reference to a chunk, resolved to where that is now, as far as is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    pub(super) chunk: ChunkRef,
    /// The unit of the chunk; `None` for all.
    pub(super) slot: Option<u32>,
    pub(super) content: Content,
}

struct Walk<'a> {
    source: &'a Arc<ChunkSource>,
    each: &'a mut dyn FnMut(Reference),
    interrupt: &'a Interrupt,
    is_whole: bool,
}

/// Calls `each` with every reference of the backup. Returns whether all of its page maps could be read.
pub(super) fn walk(
    source: &Arc<ChunkSource>,
    history: &History,
    run: RunNo,
    interrupt: &Interrupt,
    each: &mut dyn FnMut(Reference),
) -> Result<bool, RepoError> {
    let mut walk = Walk { source, each, interrupt, is_whole: true };
    walk.backup(history, run)?;
    Ok(walk.is_whole)
}

impl Walk<'_> {
    /// The value read, or `None` if the object is damaged.
    fn read<T>(&mut self, read: Result<T, RepoError>) -> Result<Option<T>, RepoError> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.is_of_the_object() => {
                self.is_whole = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn refer(&mut self, chunk: ChunkRef, slot: Option<u32>, content: Content) {
        (self.each)(Reference { chunk: self.source.resolve(chunk), slot, content });
    }

    fn backup(&mut self, history: &History, run: RunNo) -> Result<(), RepoError> {
        let head = self.source.head(history, run);
        let Some(head) = self.read(head)? else { return Ok(()) };
        for place in &head.roots {
            self.refer(place.chunk(), None, Content::Plain(place.page_hash()));
        }
        let backup = Backup::open_with(Arc::clone(self.source), history, run);
        let Some(backup) = self.read(backup)? else { return Ok(()) };
        for root in backup.roots() {
            self.refer(root.chunk, None, Content::Plain(root.hash));
            let Some(items) = self.read(backup.items_of(root))? else { continue };
            for item in items.iter() {
                self.interrupt.check()?;
                self.item(&backup, item)?;
            }
        }
        Ok(())
    }

    fn item(&mut self, backup: &Backup, item: &Item) -> Result<(), RepoError> {
        match &item.map {
            ItemMap::Inline(_) => self.pages(backup, item, 0),
            ItemMap::Leaves(leaves) => {
                for (number, leaf) in (0..).zip(leaves) {
                    self.interrupt.check()?;
                    self.refer(leaf.chunk, Some(leaf.slot), Content::Plain(leaf.hash));
                    if let Some(Some(under)) = self.read(self.source.under(*leaf))? {
                        self.refer(under.chunk, Some(under.slot), Content::Plain(under.hash));
                    }
                    self.pages(backup, item, number)?;
                }
                Ok(())
            }
            ItemMap::Definition(definition) => {
                self.text(&definition.text);
                Ok(())
            }
            ItemMap::Table(table) => {
                self.text(&table.definition);
                self.rows(&table.rows)
            }
        }
    }

    fn pages(&mut self, backup: &Backup, item: &Item, leaf: u64) -> Result<(), RepoError> {
        let Some(entries) = self.read(backup.leaf(item, leaf))? else { return Ok(()) };
        for entry in entries {
            if let PageEntry::Stored(page) = entry {
                self.refer(page.chunk, Some(page.slot), Content::Page(page.slot, page.hash));
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &DefinitionText) {
        if let DefinitionText::Chunks { chunks, .. } = text {
            for (chunk, hash) in chunks {
                self.refer(*chunk, Some(0), Content::Plain(*hash));
            }
        }
    }

    fn rows(&mut self, rows: &TableRows) -> Result<(), RepoError> {
        let leaves = match rows {
            TableRows::Inline(entries) => return self.entries(entries),
            TableRows::Leaves(leaves) => leaves,
        };
        for leaf in leaves {
            self.refer(leaf.chunk, Some(0), Content::Plain(leaf.hash));
            if let Some(entries) = self.read(self.source.row_leaf(leaf))? {
                self.entries(&entries)?;
            }
        }
        Ok(())
    }

    fn entries(&mut self, entries: &[crate::format::rows::RowEntry]) -> Result<(), RepoError> {
        for entry in entries {
            self.interrupt.check()?;
            self.refer(entry.chunk, Some(0), Content::Plain(entry.hash));
            if let Some(base) = entry.base {
                self.refer(base, Some(0), Content::Unsaid);
            }
        }
        Ok(())
    }
}

/// The refs of a backup; `None` if they cannot be known, since something that lists chunks is lost.
pub(super) fn refs(
    source: &Arc<ChunkSource>,
    history: &History,
    run: RunNo,
    interrupt: &Interrupt,
) -> Result<Option<BackupRefs>, RepoError> {
    let mut units = Units::default();
    let mut whole: BTreeMap<PackId, BTreeSet<u32>> = BTreeMap::new();
    let mut chunks: BTreeMap<PackId, BTreeSet<u32>> = BTreeMap::new();
    let is_whole = walk(source, history, run, interrupt, &mut |Reference { chunk, slot, .. }| {
        // Ordinals beyond the format's limit are kept out of the set of units,
        // which makes room for all before the last.
        let is_sane = chunk.ordinal < crate::format::columns::CHUNKS_PER_PACK_MAX;
        match slot.filter(|_| is_sane) {
            Some(slot) => drop(units.insert(chunk, slot)),
            None => drop(whole.entry(chunk.pack).or_default().insert(chunk.ordinal)),
        }
        chunks.entry(chunk.pack).or_default().insert(chunk.ordinal);
    })?;
    if !is_whole {
        return Ok(None);
    }
    let mut refs = BackupRefs::default();
    for (pack, ordinals) in chunks {
        let rows = match source.confirmed_pack(pack) {
            Err(error) if error.is_of_the_object() => return Ok(None),
            rows => rows?,
        };
        let wholly = whole.remove(&pack).unwrap_or_default();
        let mut needs = Vec::with_capacity(rows.rows().len());
        for (ordinal, row) in (0..).zip(rows.rows()) {
            let needed = match ordinals.contains(&ordinal) {
                true if wholly.contains(&ordinal) => row.unit_count,
                true => units.count(ChunkRef { pack, ordinal }).min(row.unit_count),
                false => 0,
            };
            needs.push(ChunkNeed { units: row.unit_count, needed });
        }
        if ordinals.last().is_some_and(|last| *last as usize >= needs.len()) {
            return Ok(None);
        }
        refs.packs.push(NeededPack { pack, size_bytes: rows.size_bytes, chunks: needs });
    }
    Ok(Some(refs))
}
