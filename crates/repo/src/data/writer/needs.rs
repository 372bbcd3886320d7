//! Counts what a backup needs of every chunk, for its refs.
//!
//! A unit (page, leaf, item) counts once however often it is mapped. Each mapping can be taken back exactly,
//! when the file that made it is replaced.

use std::collections::HashMap;

use crate::format::{
    columns::PageEntry,
    names::{ChunkRef, PackId},
    units::Units,
};

#[derive(Debug, Default)]
pub(super) struct Needs {
    units: Units,
    /// How often units are mapped beyond the first time; empty unless adoption found duplicates.
    again: HashMap<(ChunkRef, u32), u32>,
}

impl Needs {
    /// Adds one mapping of a unit.
    pub(super) fn add(&mut self, chunk: ChunkRef, slot: u32) {
        if !self.units.insert(chunk, slot) {
            *self.again.entry((chunk, slot)).or_default() += 1;
        }
    }

    /// Marks a unit as needed, however often it is called. For chunks that are
    /// needed whole, which each leaf names anew.
    pub(super) fn need(&mut self, chunk: ChunkRef, slot: u32) {
        self.units.insert(chunk, slot);
    }

    /// Removes one mapping of a unit.
    pub(super) fn remove(&mut self, chunk: ChunkRef, slot: u32) {
        match self.again.get_mut(&(chunk, slot)) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                self.again.remove(&(chunk, slot));
            }
            None => self.units.remove(chunk, slot),
        }
    }

    /// Adds the pages that `entries` map.
    pub(super) fn add_pages<'a>(&mut self, entries: impl IntoIterator<Item = &'a PageEntry>) {
        for page in entries.into_iter().filter_map(PageEntry::stored) {
            self.add(page.chunk, page.slot);
        }
    }

    /// Undoes [`Self::add_pages`].
    pub(super) fn remove_pages<'a>(&mut self, entries: impl IntoIterator<Item = &'a PageEntry>) {
        for page in entries.into_iter().filter_map(PageEntry::stored) {
            self.remove(page.chunk, page.slot);
        }
    }

    /// Every needed pack, in order, with the needed units of its chunks up to the last needed one.
    pub(super) fn packs(&self) -> impl Iterator<Item = (PackId, Vec<u32>)> + '_ {
        self.units.packs()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;
    use crate::format::names::RunNo;

    proptest! {
        #[test]
        fn units_count_once_and_can_be_taken_back(units in prop::collection::vec((1..3_u64, 0..3_u32, 0..200_u32, any::<bool>()), 0..300)) {
            let mut needs = Needs::default();
            let mut model: HashMap<(ChunkRef, u32), u32> = HashMap::new();
            for (run, ordinal, slot, add) in units {
                let chunk = ChunkRef { pack: PackId { run: RunNo(run), part: 0 }, ordinal };
                let count = model.entry((chunk, slot)).or_default();
                if add {
                    *count += 1;
                    needs.add(chunk, slot);
                } else if *count > 0 {
                    *count -= 1;
                    needs.remove(chunk, slot);
                }
            }
            let live: HashSet<_> = model.iter().filter(|(_, count)| **count > 0).map(|(unit, _)| *unit).collect();
            for (pack, counts) in needs.packs() {
                for (ordinal, count) in counts.iter().enumerate() {
                    let expected = live.iter().filter(|(chunk, _)| chunk.pack == pack && chunk.ordinal as usize == ordinal).count();
                    prop_assert_eq!(*count as usize, expected);
                }
            }
            let packs: HashSet<_> = live.iter().map(|(chunk, _)| chunk.pack).collect();
            prop_assert_eq!(needs.packs().map(|(pack, _)| pack).collect::<HashSet<_>>(), packs);
        }
    }
}
