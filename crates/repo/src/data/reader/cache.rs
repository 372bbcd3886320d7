//! LRU cache within a budget of bytes.

use std::{collections::HashMap, hash::Hash, sync::Arc};

/// Keeps the values used most recently. Meant for few, large values: eviction scans all of them.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    entries: HashMap<K, Entry<V>>,
    bytes: usize,
    budget_bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: Arc<V>,
    bytes: usize,
    used_at: u64,
}

impl<K: Hash + Eq + Copy, V> Cache<K, V> {
    pub(crate) fn new(budget_bytes: usize) -> Self {
        Self { entries: HashMap::new(), bytes: 0, budget_bytes, clock: 0 }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<Arc<V>> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used_at = self.clock;
        Some(Arc::clone(&entry.value))
    }

    /// Inserts `value`, evicting those used longest ago. The value itself always stays.
    pub(crate) fn insert(&mut self, key: K, value: Arc<V>, bytes: usize) {
        self.clock += 1;
        let entry = Entry { value, bytes, used_at: self.clock };
        self.bytes += bytes;
        if let Some(old) = self.entries.insert(key, entry) {
            self.bytes -= old.bytes;
        }
        while self.bytes > self.budget_bytes && self.entries.len() > 1 {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used_at).map(|(key, _)| *key);
            if let Some(entry) = oldest.and_then(|key| self.entries.remove(&key)) {
                self.bytes -= entry.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes_first_and_the_budget_holds() {
        let mut cache = Cache::new(100);
        for key in 0..10 {
            cache.insert(key, Arc::new(key), 30);
            assert!(cache.get(&0).is_some(), "used all the time");
            assert!(cache.bytes <= 100);
        }
        assert!(cache.get(&9).is_some() && cache.get(&8).is_some() && cache.get(&7).is_none());
        cache.insert(99, Arc::new(99), 1_000);
        assert!(cache.get(&99).is_some() && cache.entries.len() == 1);
    }
}
