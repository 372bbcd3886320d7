//! Reading tables: leaves are whole and lead to as many rows as they say, and agree with the refs.

use super::{Check, Severity, maps::Mapped};
use crate::{
    error::RepoError,
    item::{Item, ItemMap},
    names::ChunkRef,
    reader::Backup,
    rows::{DefinitionText, RowEntry, TableRows},
};

impl Check {
    /// A table or a definition. Whether all that its chunks are listed in could be read.
    pub(super) fn walk_rows(
        &mut self,
        backup: &Backup,
        item: &Item,
        mapped: &mut Mapped,
    ) -> Result<bool, RepoError> {
        let text = match &item.map {
            ItemMap::Table(table) => &table.definition,
            ItemMap::Definition(definition) => &definition.text,
            ItemMap::Inline(_) | ItemMap::Leaves(_) => return Ok(true),
        };
        if let DefinitionText::Chunks { chunks, .. } = text {
            for (chunk, _) in chunks {
                self.need_rows(backup, item, mapped, *chunk);
            }
        }
        let ItemMap::Table(table) = &item.map else { return Ok(true) };
        let mut whole = true;
        match &table.rows {
            TableRows::Inline(entries) => self.walk_entries(backup, item, mapped, entries.clone()),
            TableRows::Leaves(leaves) => {
                for leaf in leaves {
                    self.options.interrupt.check()?;
                    self.need_rows(backup, item, mapped, leaf.chunk);
                    match self.source.row_leaf(leaf) {
                        Ok(entries) => self.walk_entries(backup, item, mapped, entries),
                        Err(error) => {
                            whole = false;
                            let position = self.finding(error, Severity::Lost, vec![backup.run()])?;
                            self.affects(position, backup.run(), item);
                        }
                    }
                }
            }
        }
        Ok(whole)
    }

    fn walk_entries(&mut self, backup: &Backup, item: &Item, mapped: &mut Mapped, entries: Vec<RowEntry>) {
        for entry in entries {
            self.need_rows(backup, item, mapped, entry.chunk);
            if let Some(base) = entry.base {
                self.need_rows(backup, item, mapped, base);
            }
        }
    }

    /// A chunk that the item leads to.
    fn need_rows(&mut self, backup: &Backup, item: &Item, mapped: &mut Mapped, chunk: ChunkRef) {
        let chunk = self.source.resolve(chunk);
        mapped.add(chunk, 0);
        let bad = self.bad_chunks.get(&chunk).or_else(|| self.bad_packs.get(&chunk.pack));
        if let Some(position) = bad.copied() {
            self.affects(position, backup.run(), item);
        }
    }
}
