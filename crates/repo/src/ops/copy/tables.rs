//! Copies the tables and definitions of a backup, chunk by chunk as they
//! are, into the writer of another repository.
//!
//! All chunks are read, since the hashes of two repositories cannot be compared. Chunks that the other
//! repository has are not stored again.

use super::{CopyError, Files};
use crate::{
    data::{
        reader::ReadRows,
        writer::{RangeStart, TableSpec},
    },
    format::item::{Item, ItemMap},
};

impl Files<'_> {
    /// Gives an item that has no pages. Returns its bytes.
    pub(super) fn logical(&self, item: &Item) -> Result<u64, CopyError> {
        let unknown = || CopyError::Unknown { path: item.path.clone() };
        let definition = self.from.definition(item)?.ok_or_else(unknown)?;
        let Some(table) = self.from.table(item) else {
            let ItemMap::Definition(map) = &item.map else { return Err(unknown()) };
            self.writer.definition(item.path.clone(), &map.kind, &definition)?;
            return Ok(item.size_bytes);
        };
        // The keys come with the chunks.
        let id = self.writer.begin_table(TableSpec { path: item.path.clone(), has_key: true })?;
        let mut range = self.writer.begin_range(id, RangeStart::default())?;
        let threads = self.budget.threads;
        let options = ReadRows { threads, ahead: threads * 4, checksum: true };
        table.read(0..table.chunk_count(), options, &mut |read| {
            self.interrupt.check()?;
            self.bytes_read.add_many(read.entry.totals.rows, read.plain.len() as u64);
            let key = read.entry.key.as_deref();
            Ok::<_, CopyError>(range.chunk(&read.rows, read.plain, key, read.ends_leaf)?)
        })?;
        range.finish()?;
        self.writer.end_table(id, &definition)?;
        Ok(item.size_bytes)
    }
}
