//! The end of a backup: late pages, the item table, its roots, the last packs, the refs.

use std::{collections::HashMap, sync::Arc};

use holdfast_pipe::lock::{lock, read};

use super::{
    BackupWriter, Pipeline, WriteError,
    chunk::Ticket,
    error::FileProblem,
    file::{FileInner, FileState, Slot},
    leaf::{BaseForm, BaseLeaf, Change, LeafPlace, LeafSlot, OpenLeaf},
    pipeline::Progress,
    rows::PlacedTable,
    seal::Target,
};
use crate::{
    data::reader::LoadedLeaf,
    error::{Damage, RepoError},
    format::{
        columns,
        item::{
            FileRole, Item, ItemChunk, ItemCutter, ItemMap, ItemPath, ItemType, RootEntry, encode_roots,
            page_count,
        },
        manifest::{RootPlace, Totals},
        names::{ChunkRef, PackId},
        pack::ChunkKind,
        page_map::LeafRef,
        refs::{BackupRefs, ChunkNeed, NeededPack},
        wire::Decoder,
    },
    log::run::{PartCounts, Run, WrittenRefs},
};

/// What a finished backup consists of, all of it durable.
#[derive(Debug)]
pub struct FinishedData {
    /// Chunks of the item table's roots, for the manifest head.
    pub roots: Vec<RootPlace>,
    /// Totals, for the manifest head.
    pub totals: Totals,
    /// What the outcome records of the refs.
    pub refs: WrittenRefs,
    /// How many part numbers the run gave out, for the outcome.
    pub parts: PartCounts,
}

/// A chunk of the item table whose place may not be known yet.
struct PlacedItems {
    chunk: ItemChunk,
    hash: holdfast_pipe::PageHash,
    place: Result<ChunkRef, Arc<Ticket>>,
}

impl BackupWriter {
    /// Writes everything that is still missing, and waits until all of it is durable.
    ///
    /// The caller writes the outcome: until that exists, there is no backup.
    pub fn finish(mut self, run: &Run) -> Result<FinishedData, WriteError> {
        let result = self.finish_all(run);
        // The first error is the reason, whichever thread sees it.
        result.map_err(|error| self.stop.take().unwrap_or(error))
    }

    fn finish_all(&mut self, run: &Run) -> Result<FinishedData, WriteError> {
        self.all_ended()?;
        self.place_pages()?;
        self.amend()?;
        // The pages are done: their buffers make room for what the item table takes.
        self.buffers.let_go();
        let (roots, items) = self.write_items()?;
        let pipeline = self.pipeline.take().ok_or(WriteError::Stopped)?;
        let progress = Pipeline::finish(pipeline)?;
        self.options.hooks.point("writer.packs.durable");
        let refs = self.refs(&progress)?;
        self.options.hooks.point("writer.refs.before_put");
        let refs = run.write_backup_refs(&refs)?;
        self.options.hooks.point("writer.refs.after_put");
        let meters = &self.meters;
        meters.base_unreadable.add_many(meters.pipeline.base_unreadable.units(), 0);
        let rewritten = meters.rewritten.bytes();
        let totals = Totals {
            bytes_new: meters.new.bytes() - rewritten,
            bytes_reused: meters.reused.bytes(),
            bytes_adopted: meters.adopted.bytes(),
            bytes_rewritten: rewritten,
            bytes_stored: progress.packs.iter().map(|pack| pack.size_bytes).sum(),
            chunks: progress.packs.iter().map(|pack| pack.units.len() as u64).sum(),
            packs: progress.packs.len() as u64,
            ..items
        };
        let parts = PartCounts { index: progress.index_part, pack: progress.pack_part };
        Ok(FinishedData { roots, totals, refs, parts })
    }

    fn all_ended(&self) -> Result<(), WriteError> {
        let files = read(&self.files);
        for file in &files.list {
            let inner = lock(&file.inner);
            if inner.state == FileState::Open {
                let path = inner.spec.path.clone();
                return Err(WriteError::File { path, problem: FileProblem::NotEnded });
            }
        }
        self.tables_ended()
    }

    /// Waits until every page has its place, and every leaf its slot in a placed chunk.
    fn place_pages(&self) -> Result<(), WriteError> {
        self.flush_pages()?;
        self.pipeline()?.wait_placed()?;
        self.seal_waiting()?;
        self.submit_leaves(&mut lock(&self.small_leaves))?;
        self.submit_leaves(&mut lock(&self.leaves))?;
        self.seal_tails()?;
        self.pipeline()?.wait_placed()
    }

    /// Handles pages that came after their leaf was closed, and files and tables that were dropped after some
    /// of their leaves were closed: reads those leaves back.
    fn amend(&mut self) -> Result<(), WriteError> {
        let undone = std::mem::take(&mut *lock(&self.undone));
        let files = read(&self.files).list.clone();
        let files: Vec<_> = files.into_iter().filter(|file| !lock(&file.inner).late.is_empty()).collect();
        let dropped = self.dropped_leaves()?;
        if undone.is_empty() && files.is_empty() && dropped.is_empty() {
            return Ok(());
        }
        // Leaves to be read back must be in finished packs: the last pack
        // is closed, and another pipeline continues.
        let pipeline = self.pipeline.take().ok_or(WriteError::Stopped)?;
        let progress = Pipeline::finish(pipeline)?;
        self.start_pipeline(progress)?;
        for slot in &undone {
            let leaf = self.load_closed(slot)?;
            lock(&self.needs).remove_pages(&leaf.entries);
        }
        for leaf in &dropped {
            let entries = self.source.row_leaf(leaf)?;
            let mut needs = lock(&self.needs);
            for entry in &entries {
                needs.remove(entry.chunk, 0);
                entry.base.inspect(|base| needs.remove(*base, 0));
            }
        }
        for file in files {
            let mut inner = lock(&file.inner);
            for (leaf, changes) in std::mem::take(&mut inner.late) {
                self.amend_leaf(&mut inner, leaf, changes)?;
            }
        }
        self.place_pages()
    }

    fn amend_leaf(
        &self,
        inner: &mut FileInner,
        leaf: u32,
        changes: Vec<(u16, Change)>,
    ) -> Result<(), WriteError> {
        let Some(Slot::Closed(slot)) = inner.leaves.get_mut(leaf as usize) else {
            return Err(WriteError::Lost);
        };
        let LoadedLeaf { entries, leaf, overlay, .. } = self.load_closed(slot)?;
        lock(&self.needs).remove_pages(&entries);
        let (under, patched) = overlay.map_or((leaf, Vec::new()), |(_, under, patched)| (under, patched));
        let form = BaseForm { leaf: None, under, patched };
        let base = BaseLeaf { entries, form: Some(form), moved: Vec::new() };
        let place = LeafSlot::default();
        self.wait(OpenLeaf::amend(base, changes), Target::Leaf(Arc::clone(&place)));
        *slot = place;
        Ok(())
    }

    fn load_closed(&self, slot: &LeafSlot) -> Result<LoadedLeaf, WriteError> {
        let leaf = slot.get().and_then(|place| place.leaf_ref(self.run)).ok_or(WriteError::Lost)?;
        Ok(self.source.load_leaf(leaf)?)
    }

    /// Writes the item table and its roots.
    fn write_items(&self) -> Result<(Vec<RootPlace>, Totals), WriteError> {
        let mut totals = Totals::default();
        let logical = self.place_tables()?;
        self.pipeline()?.wait_placed()?;
        let known = self.base.as_ref().map_or_else(HashMap::new, super::Base::item_chunks);
        let mut cutter = ItemCutter::default();
        let mut chunks = Vec::new();
        let mut encoded = Vec::new();
        for (path, entry) in self.entries(logical)? {
            let item = match entry {
                Entry::Directory(mode) => directory_item(path.clone(), mode)?,
                Entry::File(id) => self.item(id)?,
                Entry::Logical(placed) => self.logical_item(*placed)?,
            };
            totals.items += 1;
            totals.files += u64::from(item.item_type == ItemType::File);
            if let ItemMap::Table(table) = &item.map {
                totals.tables += 1;
                totals.rows += table.totals.rows;
            }
            totals.bytes += item.size_bytes;
            encoded.clear();
            item.encode(&mut encoded);
            let cut = cutter.push(&path, &encoded);
            let cut = cut.map_err(|error| WriteError::File { path, problem: FileProblem::Format(error) })?;
            for chunk in cut {
                chunks.push(self.place_items(chunk, &known)?);
            }
        }
        if let Some(chunk) = cutter.finish() {
            chunks.push(self.place_items(chunk, &known)?);
        }
        self.pipeline()?.wait_placed()?;
        let meters = &self.meters;
        let units = meters.new.units() + meters.reused.units() + meters.adopted.units();
        totals.pages = if totals.tables == 0 { units } else { 0 };
        let mut roots = Vec::with_capacity(chunks.len());
        for items in chunks {
            let chunk = match items.place {
                Ok(chunk) => Some(chunk),
                Err(ticket) => ticket.chunk(self.run),
            };
            let chunk = chunk.ok_or(WriteError::Lost)?;
            let mut needs = lock(&self.needs);
            for slot in 0..items.chunk.item_count {
                needs.add(chunk, slot);
            }
            let ItemChunk { first_path, item_count, .. } = items.chunk;
            roots.push(RootEntry { first_path, item_count, hash: items.hash, chunk });
        }
        Ok((self.write_roots(&roots)?, totals))
    }

    /// Everything that the backup keeps, in path order.
    fn entries(&self, logical: Vec<PlacedTable>) -> Result<Vec<(ItemPath, Entry)>, WriteError> {
        let files = read(&self.files);
        let directories =
            files.directories.iter().map(|(path, mode)| (path.clone(), Entry::Directory(*mode)));
        let of_files = files.by_path.iter().map(|(path, id)| (path.clone(), Entry::File(*id)));
        let logical =
            logical.into_iter().map(|placed| (placed.item.path.clone(), Entry::Logical(Box::new(placed))));
        let directories = directories.filter(|(path, _)| !files.by_path.contains_key(path));
        let mut entries: Vec<_> = directories.chain(of_files).chain(logical).collect();
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        match entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(WriteError::File { path: pair[0].0.clone(), problem: FileProblem::Twice }),
            None => Ok(entries),
        }
    }

    fn item(&self, id: super::FileId) -> Result<Item, WriteError> {
        let file = self.file(id)?;
        let inner = lock(&file.inner);
        let (size_bytes, map) = match &inner.state {
            FileState::Small(size_bytes, columns) => {
                let count = page_count(*size_bytes, file.page_size) as usize;
                let entries = columns::decode(&mut Decoder::new(columns), count);
                let entries = entries.map_err(|_| WriteError::Lost)?;
                lock(&self.needs).add_pages(&entries);
                (*size_bytes, ItemMap::Inline(entries))
            }
            FileState::Ended(size_bytes) => {
                let mut leaves = Vec::with_capacity(inner.leaves.len());
                for slot in &inner.leaves {
                    let Slot::Closed(slot) = slot else { return Err(WriteError::Lost) };
                    leaves.push(self.need_leaf(slot.get().ok_or(WriteError::Lost)?)?);
                }
                (*size_bytes, ItemMap::Leaves(leaves))
            }
            FileState::Open | FileState::Dropped => {
                let path = inner.spec.path.clone();
                return Err(WriteError::File { path, problem: FileProblem::NotEnded });
            }
        };
        let spec = &inner.spec;
        Ok(Item {
            path: spec.path.clone(),
            item_type: spec.item_type,
            role: spec.role,
            mode: spec.mode,
            size_bytes,
            page_size: file.page_size,
            tablespace: spec.tablespace,
            outside: spec.outside.clone(),
            map,
        })
    }

    fn need_leaf(&self, place: &LeafPlace) -> Result<LeafRef, WriteError> {
        let leaf = place.leaf_ref(self.run).ok_or(WriteError::Lost)?;
        if let Some(local) = &self.local {
            local.keep(leaf.hash);
            if let Some(under) = place.under {
                local.keep(under.hash);
            }
        }
        let mut needs = lock(&self.needs);
        needs.add(leaf.chunk, leaf.slot);
        if let Some(under) = place.under {
            needs.add(under.chunk, under.slot);
        }
        Ok(leaf)
    }

    fn place_items(
        &self,
        chunk: ItemChunk,
        known: &HashMap<holdfast_pipe::PageHash, ChunkRef>,
    ) -> Result<PlacedItems, WriteError> {
        let hash = self.hash_key.hash(&chunk.plain);
        self.remember(hash, &chunk.plain);
        let base = self.base.as_ref();
        let shared = known.get(&hash).filter(|chunk| base.is_some_and(|base| base.is_there(**chunk)));
        let place = match shared {
            Some(chunk) => Ok(*chunk),
            None => {
                let ticket = Arc::<Ticket>::default();
                let plain = chunk.plain.clone();
                self.submit_small(ChunkKind::Items, plain, chunk.item_count, Arc::clone(&ticket))?;
                Err(ticket)
            }
        };
        let chunk = ItemChunk { plain: Vec::new(), ..chunk };
        Ok(PlacedItems { chunk, hash, place })
    }

    /// Writes the roots. If nothing at all has changed, the base's roots are used.
    fn write_roots(&self, roots: &[RootEntry]) -> Result<Vec<RootPlace>, WriteError> {
        let base = self.base.as_ref().filter(|base| base.backup().roots() == roots);
        let of_base = base.and_then(|base| {
            let places = base.backup().head().roots.iter();
            let places = places.map(|place| (self.source.resolve(place.chunk()), place.page_hash()));
            places.map(|place| base.is_there(place.0).then_some(place)).collect::<Option<Vec<_>>>()
        });
        let encoded = encode_roots(roots);
        for (_, plain) in &encoded {
            self.remember(self.hash_key.hash(plain), plain);
        }
        let places = match of_base {
            Some(places) if places.len() == encoded.len() => places,
            _ => {
                let mut tickets = Vec::with_capacity(encoded.len());
                for (count, plain) in &encoded {
                    let ticket = Arc::<Ticket>::default();
                    ticket.set_hash(self.hash_key.hash(plain));
                    self.submit_small(ChunkKind::Roots, plain.clone(), *count, Arc::clone(&ticket))?;
                    tickets.push(ticket);
                }
                self.pipeline()?.wait_placed()?;
                let places = tickets.iter().map(|ticket| ticket.chunk(self.run).zip(ticket.hash()));
                places.collect::<Option<Vec<_>>>().ok_or(WriteError::Lost)?
            }
        };
        let mut needs = lock(&self.needs);
        for ((chunk, _), (count, _)) in places.iter().zip(&encoded) {
            for slot in 0..*count {
                needs.add(*chunk, slot);
            }
        }
        Ok(places.into_iter().map(|(chunk, hash)| RootPlace::new(chunk, hash)).collect())
    }

    /// The refs: what is needed of each pack, with the pack's size and units from wherever these are known.
    fn refs(&self, progress: &Progress) -> Result<BackupRefs, WriteError> {
        let needs = lock(&self.needs);
        let mut refs = BackupRefs::default();
        for (pack, needed) in needs.packs() {
            let (size_bytes, units) = self.pack_units(pack, progress)?;
            if needed.len() > units.len() || needed.iter().zip(&units).any(|(needed, units)| needed > units) {
                let what = "a page map refers to more pages than it has";
                return Err(
                    RepoError::damaged(self.source.log().pack(pack), Damage::Malformed { what }).into()
                );
            }
            let needed = needed.into_iter().chain(std::iter::repeat(0));
            let chunks = units.into_iter().zip(needed).map(|(units, needed)| ChunkNeed { units, needed });
            refs.packs.push(NeededPack { pack, size_bytes, chunks: chunks.collect() });
        }
        Ok(refs)
    }

    fn pack_units(&self, pack: PackId, progress: &Progress) -> Result<(u64, Vec<u32>), WriteError> {
        if pack.run == self.run {
            let own = progress.packs.get(pack.part as usize).ok_or(WriteError::Lost)?;
            return Ok((own.size_bytes, own.units.clone()));
        }
        if let Some(known) = self.base.as_ref().and_then(|base| base.pack(pack)) {
            return Ok((known.size_bytes, known.chunks.iter().map(|chunk| chunk.units).collect()));
        }
        // The index is signed by nobody, but what is recorded here must be reliable: the pack itself is read.
        let rows = self.source.confirmed_pack(pack)?;
        Ok((rows.size_bytes, rows.rows().iter().map(|row| row.unit_count).collect()))
    }
}

enum Entry {
    Directory(u16),
    File(super::FileId),
    /// Boxed: there are many files, and each entry has room for the largest variant.
    Logical(Box<PlacedTable>),
}

fn directory_item(path: ItemPath, mode: u16) -> Result<Item, WriteError> {
    Ok(Item {
        path,
        item_type: ItemType::Directory,
        role: FileRole::Other,
        mode,
        size_bytes: 0,
        page_size: holdfast_formats::PageSize::DEFAULT_FILE,
        tablespace: None,
        outside: None,
        map: ItemMap::Inline(Vec::new()),
    })
}
