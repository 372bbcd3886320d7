//! What a look at the data directory finds.

use std::collections::BTreeMap;

use super::{files::Entry, tablespace::TablespaceEntry};

/// A listing of the data directory, and of what the server has elsewhere.
pub(super) struct Listing {
    pub(super) tablespaces: Vec<TablespaceEntry>,
    pub(super) others: BTreeMap<String, Entry>,
}

impl Listing {
    /// The size of all files.
    pub(super) fn size_bytes(&self) -> u64 {
        self.tablespaces
            .iter()
            .map(|found| &found.entry)
            .chain(self.others.values())
            .map(|it| it.size_bytes)
            .sum()
    }
}
