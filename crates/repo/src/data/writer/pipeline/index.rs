//! Lists confirmed packs, in part order without gaps.

use std::{collections::BTreeMap, time::Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::{OwnPack, Progress, Shared, WriteError};
use crate::format::{
    index::{self, IndexedPack, ROWS_PER_PART_MAX},
    place::{ObjectKind, Place},
};

/// Chunks after which a part is written: half of what readers accept, since packs come several at once.
const ROWS_PER_PART: usize = ROWS_PER_PART_MAX / 2;

pub(super) struct Indexer {
    pub(super) progress: Progress,
    /// Packs that were confirmed before one of a lower part.
    early: BTreeMap<u32, IndexedPack>,
    listed: Vec<IndexedPack>,
    listed_bytes: u64,
    listed_rows: usize,
    written_at: Instant,
}

impl Indexer {
    pub(super) fn new(progress: Progress) -> Self {
        Self {
            progress,
            early: BTreeMap::new(),
            listed: Vec::new(),
            listed_bytes: 0,
            listed_rows: 0,
            written_at: Instant::now(),
        }
    }

    pub(super) fn run(&mut self, shared: &Shared, input: &Receiver<IndexedPack>) -> Result<(), WriteError> {
        loop {
            let wait = shared.index_every.saturating_sub(self.written_at.elapsed());
            match input.recv_timeout(wait) {
                Ok(pack) => self.take(pack),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let due = self.written_at.elapsed() >= shared.index_every;
            let is_large = self.listed_bytes >= shared.index_every_bytes || self.listed_rows >= ROWS_PER_PART;
            if due || is_large {
                self.write(shared)?;
            }
        }
        // Confirmed packs are worth listing even if the run has failed: a later run can adopt them.
        self.write(shared)
    }

    fn take(&mut self, pack: IndexedPack) {
        self.early.insert(pack.part, pack);
        while let Some(pack) = self.early.remove(&self.progress.pack_part) {
            self.progress.pack_part += 1;
            self.listed_bytes += pack.size_bytes;
            self.listed_rows += pack.rows.len();
            let units = pack.rows.iter().map(|row| row.unit_count).collect();
            self.progress.packs.push(OwnPack { size_bytes: pack.size_bytes, units });
            self.listed.push(pack);
        }
    }

    fn write(&mut self, shared: &Shared) -> Result<(), WriteError> {
        self.written_at = Instant::now();
        if self.listed.is_empty() {
            return Ok(());
        }
        let part = self.progress.index_part;
        // The number is used up even if the write fails, so that no number ever seals two contents.
        self.progress.index_part += 1;
        let sealed = shared.secrets.seal_index(part, &index::encode(&self.listed))?;
        let (log, run) = (shared.secrets.log(), shared.secrets.run());
        shared.hooks.point("writer.index.before_put");
        shared.repo.put(&Place { log, kind: ObjectKind::Index, run, part }, &sealed)?;
        shared.hooks.point("writer.index.after_put");
        self.listed.clear();
        self.listed_bytes = 0;
        self.listed_rows = 0;
        Ok(())
    }
}
