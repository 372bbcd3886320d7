//! Sets of units (pages, leaves, items), by the chunk that they are in.
//!
//! One bit per unit: 8 bytes for a chunk of up to 64 units, which is 1 MiB of 16 KiB pages.
//! Every chunk up to the last one named takes space: callers that take names from outside must check that
//! the pack has that many chunks.

use std::collections::{BTreeMap, HashMap};

use crate::format::names::{ChunkRef, PackId};

const BITS: u32 = u64::BITS;

/// A set of units.
#[derive(Debug, Default)]
pub(crate) struct Units {
    packs: BTreeMap<PackId, PackUnits>,
}

#[derive(Debug, Default)]
struct PackUnits {
    /// The first 64 units of each chunk.
    first: Vec<u64>,
    /// The other units, of the chunks that have more.
    more: HashMap<u32, Vec<u64>>,
}

impl PackUnits {
    fn word(&mut self, ordinal: u32, slot: u32) -> &mut u64 {
        let (chunk, word) = (ordinal as usize, (slot / BITS) as usize);
        if self.first.len() <= chunk {
            self.first.resize(chunk + 1, 0);
        }
        match word.checked_sub(1) {
            None => &mut self.first[chunk],
            Some(word) => {
                let more = self.more.entry(ordinal).or_default();
                if more.len() <= word {
                    more.resize(word + 1, 0);
                }
                &mut more[word]
            }
        }
    }

    fn count(&self, ordinal: u32) -> u32 {
        let first = self.first.get(ordinal as usize).map_or(0, |word| word.count_ones());
        let more = self.more.get(&ordinal).into_iter().flatten().map(|word| word.count_ones());
        first + more.sum::<u32>()
    }
}

impl Units {
    fn word(&mut self, chunk: ChunkRef, slot: u32) -> &mut u64 {
        self.packs.entry(chunk.pack).or_default().word(chunk.ordinal, slot)
    }

    /// Adds a unit. Returns whether it is new.
    pub(crate) fn insert(&mut self, chunk: ChunkRef, slot: u32) -> bool {
        let bit = 1 << (slot % BITS);
        let word = self.word(chunk, slot);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Removes a unit.
    pub(crate) fn remove(&mut self, chunk: ChunkRef, slot: u32) {
        *self.word(chunk, slot) &= !(1 << (slot % BITS));
    }

    /// Number of units in a chunk.
    pub(crate) fn count(&self, chunk: ChunkRef) -> u32 {
        self.packs.get(&chunk.pack).map_or(0, |pack| pack.count(chunk.ordinal))
    }

    /// Every pack with units in it, in order, with the number of units in each of its
    /// chunks up to the last one named.
    pub(crate) fn packs(&self) -> impl Iterator<Item = (PackId, Vec<u32>)> + '_ {
        self.packs
            .iter()
            .map(|(id, pack)| (*id, (0..).zip(&pack.first).map(|(ordinal, _)| pack.count(ordinal)).collect()))
            .filter(|(_, counts): &(_, Vec<u32>)| counts.iter().any(|count| *count > 0))
    }
}
