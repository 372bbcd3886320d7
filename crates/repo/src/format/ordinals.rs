//! A set of chunks of one pack: one bit per chunk, up to the last one in the set.

const BITS: u32 = u64::BITS;

/// Chunks of one pack, by ordinal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ordinals(Vec<u64>);

impl Ordinals {
    pub(crate) fn insert(&mut self, ordinal: u32) {
        let word = (ordinal / BITS) as usize;
        if self.0.len() <= word {
            // Packs have some 200 chunks: with room for twice as many, half of the memory would be unused.
            self.0.reserve_exact(word + 1 - self.0.len());
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (ordinal % BITS);
    }

    pub(crate) fn contains(&self, ordinal: u32) -> bool {
        self.0.get((ordinal / BITS) as usize).is_some_and(|word| word >> (ordinal % BITS) & 1 == 1)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) fn last(&self) -> Option<u32> {
        let word = self.0.iter().rposition(|word| *word != 0)?;
        Some(word as u32 * BITS + self.0[word].ilog2())
    }

    /// The ordinals, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.0).flat_map(|(at, word)| {
            (0..BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * BITS + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_a_set(all in prop::collection::vec(0..4_096_u32, 0..40)) {
            let mut ordinals = Ordinals::default();
            all.iter().for_each(|ordinal| ordinals.insert(*ordinal));
            let set: BTreeSet<u32> = all.into_iter().collect();
            prop_assert_eq!(ordinals.iter().collect::<BTreeSet<_>>(), set.clone());
            prop_assert!(ordinals.iter().is_sorted());
            prop_assert_eq!(ordinals.count(), set.len());
            prop_assert_eq!(ordinals.last(), set.last().copied());
            prop_assert!((0..5_000).all(|ordinal| ordinals.contains(ordinal) == set.contains(&ordinal)));
        }
    }
}
