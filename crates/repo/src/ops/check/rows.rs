//! Reads tables: leaves are intact, chunks hold what leaves say, rows add up to what their table says, and
//! everything agrees with the refs.
//!
//! Packs have been read before, each once, and the content of each chunk of whole rows is known by a
//! fingerprint of 8 bytes. If that of a leaf's entry differs, the chunk is read again, to tell what is wrong.
//! Only rows that span several chunks are read twice, since their totals cover all of these chunks.

use super::{Check, Severity, maps::Mapped, proven::ProvenRows};
use crate::{
    data::reader::{
        Backup,
        rows::{Joints, verified},
    },
    error::{Damage, RepoError},
    format::{
        item::{Item, ItemMap},
        names::ChunkRef,
        rows::{DefinitionText, RowChunk, RowEntry, RowHashKey, TableRows},
    },
};

/// Progress through the rows of a table.
struct Progress {
    /// Number of the next entry.
    number: u64,
    joints: Joints,
    /// The current row was not read from its beginning.
    is_partial: bool,
}

impl Progress {
    /// Continues after entries that cannot be read.
    fn skip_to(&mut self, number: u64) {
        self.number = number;
        self.is_partial = true;
        self.joints.forget();
    }
}

impl Check {
    /// Checks a table or a definition. Returns whether everything that lists its chunks could be read.
    pub(super) fn walk_rows(
        &mut self,
        backup: &Backup,
        item: &Item,
        mapped: &mut Mapped,
        proven: &ProvenRows,
    ) -> Result<bool, RepoError> {
        let text = match &item.map {
            ItemMap::Table(table) => &table.definition,
            ItemMap::Definition(definition) => &definition.text,
            ItemMap::Inline(_) | ItemMap::Leaves(_) => return Ok(true),
        };
        if let DefinitionText::Chunks { chunks, .. } = text {
            let mut is_read = true;
            for (chunk, _) in chunks {
                is_read &= self.need_rows(backup, item, mapped, *chunk);
            }
            if is_read && let Err(error) = backup.definition(item) {
                self.lost(backup, item, error)?;
            }
        }
        let ItemMap::Table(table) = &item.map else { return Ok(true) };
        let joints = Joints::summed(RowHashKey::new(self.source.repo().hash_key()?));
        let mut progress = Progress { number: 0, joints, is_partial: false };
        let mut whole = true;
        match &table.rows {
            TableRows::Inline(entries) => {
                let mut entries = entries.clone();
                self.source.resolve_rows(&mut entries);
                self.walk_entries(backup, item, mapped, proven, &entries, &mut progress)?;
            }
            TableRows::Leaves(leaves) => {
                for leaf in leaves {
                    self.need_rows(backup, item, mapped, leaf.chunk);
                    match self.source.row_leaf(leaf) {
                        Ok(entries) => {
                            self.walk_entries(backup, item, mapped, proven, &entries, &mut progress)?;
                        }
                        Err(error) => {
                            whole = false;
                            self.lost(backup, item, error)?;
                            progress.skip_to(progress.number + u64::from(leaf.entries));
                        }
                    }
                }
            }
        }
        if progress.joints.is_open() && !progress.is_partial {
            self.lost(backup, item, RepoError::malformed(&item.path, "its last row is incomplete"))?;
        }
        Ok(whole)
    }

    fn walk_entries(
        &mut self,
        backup: &Backup,
        item: &Item,
        mapped: &mut Mapped,
        proven: &ProvenRows,
        entries: &[RowEntry],
        progress: &mut Progress,
    ) -> Result<(), RepoError> {
        for entry in entries {
            self.options.interrupt.check()?;
            let number = progress.number;
            progress.number += 1;
            let mut is_read = self.need_rows(backup, item, mapped, entry.chunk);
            if let Some(base) = entry.base {
                is_read &= self.need_rows(backup, item, mapped, base);
            }
            if !is_read {
                progress.skip_to(number + 1);
                continue;
            }
            let is_whole = !progress.joints.is_open() && proven.knows(entry);
            let result = match is_whole {
                true => {
                    progress.is_partial = false;
                    Ok(())
                }
                false => self.compare_rows_of(entry, progress),
            };
            let result = result.and_then(|()| self.compare_base(entry));
            if let Err(error) = result {
                progress.skip_to(number + 1);
                let error = match error {
                    RepoError::Damaged { object, damage } => RepoError::Damaged {
                        object: format!("{} rows {number} ({object})", item.path),
                        damage,
                    },
                    other => other,
                };
                self.lost(backup, item, error)?;
            }
        }
        Ok(())
    }

    /// Checks that the chunk holds what the leaf says.
    fn compare_rows_of(&self, entry: &RowEntry, progress: &mut Progress) -> Result<(), RepoError> {
        let damaged = |damage| self.source.damaged(entry.chunk, damage);
        let plain = verified(&self.source, entry.chunk, entry.hash)?;
        let rows = RowChunk::parse(&plain).map_err(|error| damaged(Damage::from(error)))?;
        let begins =
            matches!(rows, RowChunk::Whole(_) | RowChunk::Piece(crate::format::rows::Piece::First, _));
        if progress.is_partial && !begins {
            return Ok(());
        }
        progress.is_partial = false;
        let totals = progress.joints.next(&rows);
        let totals = totals.map_err(|what| damaged(Damage::Malformed { what }))?;
        match totals == entry.totals {
            true => Ok(()),
            false => {
                Err(damaged(Damage::Malformed { what: "its rows differ from those that its leaf records" }))
            }
        }
    }

    /// Checks that the leaf, from which refs are made, names the same base chunk as the pack.
    fn compare_base(&self, entry: &RowEntry) -> Result<(), RepoError> {
        let row = self.source.pack(entry.chunk.pack).and_then(|rows| self.source.row(&rows, entry.chunk));
        match row {
            Ok((row, _)) if row.base.map(|base| self.source.resolve(base)) != entry.base => {
                let what = "its leaf and its pack name different base chunks";
                Err(self.source.damaged(entry.chunk, Damage::Malformed { what }))
            }
            Err(error) if !error.is_of_the_object() => Err(error),
            // If this cannot be told, reading the pack made that a finding.
            _ => Ok(()),
        }
    }

    fn lost(&mut self, backup: &Backup, item: &Item, error: RepoError) -> Result<(), RepoError> {
        let position = self.finding(error, Severity::Lost, vec![backup.run()])?;
        self.affects(position, backup.run(), item);
        Ok(())
    }

    /// Notes that the item needs a chunk. Returns whether the chunk was read, and nothing is wrong with it.
    fn need_rows(&mut self, backup: &Backup, item: &Item, mapped: &mut Mapped, chunk: ChunkRef) -> bool {
        let chunk = self.source.resolve(chunk);
        mapped.add(chunk, 0);
        let bad = self.bad_chunks.get(&chunk).or_else(|| self.bad_packs.get(&chunk.pack));
        if let Some(position) = bad.copied() {
            self.affects(position, backup.run(), item);
            return false;
        }
        self.read.contains(&chunk.pack)
    }
}
