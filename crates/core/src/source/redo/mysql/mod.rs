//! Follows `#innodb_redo/#ib_redoN` of MySQL 8.0.30 and later.
//!
//! The log is a chain of files of 512-byte blocks. A registered consumer keeps the server from reusing what
//! was not yet captured, so falling behind stalls the server instead of losing redo; the guard in the caller
//! gives up before that. A block that was lost all the same is recognised by its number.
//!
//! Of an encrypted block only the header can be read, so its checksum cannot be checked, bulk loads of
//! indexes cannot be found, and it cannot be cut. So in an encrypted log
//!
//! - a block is taken once the server has said that its end is on disk ([`Follower::durable`]); the block
//!   that the log ends in is taken once two reads of it are equal;
//! - the last block is kept whole, and the capture is told to go no further ([`Follower::stop_at`]) while
//!   definitions are blocked: what the block has beyond the position are changes of rows;
//! - the caller must keep definitions blocked from before its first file is copied.

mod log;
mod notes;

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use holdfast_formats::{
    Lsn, SpaceId,
    redo::{
        mysql::{BLOCK_BYTES, BLOCK_HEADER_BYTES, BlockState, CutError, classify, cut_block},
        page_allocation::AllocationByte,
    },
};

use super::{Follow, lock};
use crate::{
    error::{Context, Error, Result},
    source::{RedoProgress, spool::Spool},
};

use log::{Log, POLL, State};

pub use log::is_encrypted;
pub use notes::{Allocations, DeletedSpaces, EncryptionChanges, IndexNotes, Newest, Seen};

/// Where the capture begins.
#[derive(Clone, Debug)]
pub struct Start {
    /// The checkpoint that recovery starts from.
    pub checkpoint: Lsn,
    /// The start of the block that contains it.
    pub begin: Lsn,
    /// The first 2,048 bytes of the file that holds it.
    pub header: Vec<u8>,
    /// Whether redo may be encrypted.
    pub encrypted: bool,
    /// Identity of the log.
    pub log_uuid: u32,
}

/// A running follower.
pub struct Follower {
    follow: Arc<Follow>,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<Option<Spool>>>,
    start: Start,
    /// No index from before the checkpoint has a higher id.
    highest_index_id: u64,
    shared: Arc<BTreeSet<SpaceId>>,
}

/// What was captured.
pub struct Captured {
    /// Whole blocks from [`Start::begin`] on; may extend beyond the stop.
    pub spool: Spool,
    /// How many of its bytes count.
    pub keep_bytes: u64,
    /// The last block, cut at the stop, which follows those bytes. Whole if it is encrypted.
    pub last_block: [u8; BLOCK_BYTES],
    /// Whether the redo ends exactly at the stop.
    pub is_exact: bool,
}

/// The error for encryption that was switched on: what cannot be seen in encrypted redo was not guarded
/// against.
#[must_use]
pub fn encryption_switched_on() -> Error {
    Error::failed("encryption of the redo log was switched on during the backup")
}

impl Follower {
    /// Starts at the newest checkpoint of the log in `dir`.
    ///
    /// `encrypted` tells whether new redo is encrypted, and `shared` are the tablespaces whose allocations
    /// are noted. `highest_index_id` is called once the checkpoint is known, and must not return less than
    /// the id of any index that existed then.
    pub fn start(
        dir: &Path,
        spool: Spool,
        encrypted: bool,
        shared: BTreeSet<SpaceId>,
        highest_index_id: impl FnOnce() -> Result<u64>,
    ) -> Result<Self> {
        let (mut log, mut start) = Log::open(dir)?;
        start.encrypted |= encrypted;
        log.encrypted = start.encrypted;
        let highest_index_id = highest_index_id()?;
        let follow = Arc::new(Follow::default());
        follow.advance(start.begin);
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::new(shared);
        let (following, following_state, watched) =
            (Arc::clone(&follow), Arc::clone(&state), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("redo".to_owned())
            .spawn(move || {
                match log.follow(&following, &following_state, spool, highest_index_id, &watched) {
                    Ok(spool) => Some(spool),
                    Err(error) => {
                        following.fail(error);
                        None
                    }
                }
            })
            .context("start the redo thread")?;
        Ok(Self { follow, state, thread: Some(thread), start, highest_index_id, shared })
    }

    /// Where the capture begins.
    #[must_use]
    pub fn begin(&self) -> &Start {
        &self.start
    }

    /// Waits until everything before `lsn` has been read, including its part of the last block.
    pub fn wait_for(&self, lsn: Lsn, limit: Duration) -> Result<()> {
        self.follow.wait_for(needed_for(lsn), limit)
    }

    /// Notes that, as the server says, everything before `lsn` is on disk.
    pub fn durable(&self, lsn: Lsn) {
        let mut state = self.lock();
        state.durable = state.durable.max(lsn);
    }

    /// Waits until everything before `lsn`, which must be on disk, has been read, and makes sure that no more
    /// is read than what the block of `lsn` has by then, until [`Follower::go_on`].
    pub fn stop_at(&self, lsn: Lsn, limit: Duration) -> Result<()> {
        self.durable(lsn);
        self.lock().stop = Some(lsn);
        self.wait_for(lsn, limit)?;
        let deadline = Instant::now() + limit;
        while !self.lock().is_stopped {
            self.follow.check()?;
            if Instant::now() > deadline {
                return Err(Error::failed(format!("following the redo log did not stop at LSN {lsn}")));
            }
            self.follow.sleep(POLL);
        }
        Ok(())
    }

    /// Takes back the stop: the end will be a different one.
    pub fn go_on(&self) {
        let mut state = self.lock();
        (state.stop, state.is_stopped) = (None, false);
    }

    /// Changes of encryption, by the redo read so far.
    #[must_use]
    pub fn encryption_changes(&self) -> EncryptionChanges {
        self.lock().notes.encryption_changes.clone()
    }

    /// Bulk loads of indexes, whose pages are not in the redo, by the redo read so far.
    #[must_use]
    pub fn index_loads(&self) -> IndexNotes {
        self.lock().notes.index_loads.clone()
    }

    /// Pages created for indexes that are younger than the capture, by the redo read so far.
    #[must_use]
    pub fn new_index_pages(&self) -> IndexNotes {
        self.lock().notes.new_index_pages.clone()
    }

    /// No index that existed at the checkpoint has a higher id.
    #[must_use]
    pub fn highest_index_id(&self) -> u64 {
        self.highest_index_id
    }

    /// Whether all allocations in `space` were noted so far.
    #[must_use]
    pub fn knows_allocations(&self, space: SpaceId) -> bool {
        self.shared.contains(&space) && !self.start.encrypted && self.lock().notes.allocations.are_all_known()
    }

    /// What was allocated or freed in `space` since `since`, by the redo read so far. See
    /// [`Allocations::since`].
    #[must_use]
    pub fn allocations_since(&self, space: SpaceId, since: Lsn) -> Option<Vec<AllocationByte>> {
        self.lock().notes.allocations.since(space, since).filter(|_| self.shared.contains(&space))
    }

    /// Tablespaces whose redo recovery ignores, since the redo read so far notes a deletion of their file.
    /// IMPORT brings the id of a discarded one back.
    #[must_use]
    pub fn deleted(&self) -> DeletedSpaces {
        self.lock().notes.deleted.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Ends the capture with the error; for a guard that sees the server suffer.
    pub fn give_up(&self, error: Error) {
        self.follow.fail(error);
    }

    /// Ends the capture, and cuts it at `stop`.
    pub fn finish(mut self, stop: Lsn, limit: Duration) -> Result<Captured> {
        self.wait_for(stop, limit)?;
        self.follow.finish();
        let spool = self.thread.take().and_then(|thread| thread.join().ok()).flatten();
        let Some(spool) = spool else {
            return Err(self
                .follow
                .check()
                .err()
                .unwrap_or_else(|| Error::failed("the redo thread ended early")));
        };
        let last = stop.align_down(BLOCK_BYTES as u64);
        let keep_bytes = last.bytes_since(self.start.begin).unwrap_or(0);
        let partial = self.lock().partial;
        let block = match partial {
            Some((at, block)) if at == last => block.to_vec(),
            _ if keep_bytes + BLOCK_BYTES as u64 <= spool.len() => spool.read_at(keep_bytes, BLOCK_BYTES)?,
            // The stop is at the very start of a block that does not exist yet: an empty one is made.
            _ => vec![0; BLOCK_BYTES],
        };
        let cannot = |error| Error::failed("cut the captured redo").caused_by(error);
        let (last_block, is_exact) = match (cut_block(&block, stop), block.first_chunk()) {
            (Ok(block), _) => (block, true),
            (Err(CutError::Encrypted { .. }), Some(whole)) => {
                let used_bytes = match classify(whole, last) {
                    BlockState::Partial { used_bytes, .. } => u64::from(used_bytes),
                    _ => BLOCK_BYTES as u64,
                };
                let end = Lsn(last.0 + used_bytes);
                if end < stop {
                    return Err(cannot(CutError::NotThere { lsn: stop, state: classify(whole, last) }));
                }
                (*whole, end == stop)
            }
            (Err(error), _) => return Err(cannot(error)),
        };
        Ok(Captured { spool, keep_bytes, last_block, is_exact })
    }
}

/// How far the redo must have been read if everything before `lsn` is wanted: at the start of a block's
/// records, the block may not exist yet.
fn needed_for(lsn: Lsn) -> Lsn {
    let block = lsn.align_down(BLOCK_BYTES as u64);
    if lsn.0 - block.0 <= BLOCK_HEADER_BYTES as u64 { block } else { lsn }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.follow.abandon();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl RedoProgress for Follower {
    fn captured(&self) -> Lsn {
        self.follow.captured()
    }

    fn check(&self) -> Result<()> {
        self.follow.check()
    }

    fn has_failed(&self) -> bool {
        self.follow.abandoned()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt};

    use holdfast_formats::redo::mysql::{FILE_HEADER_BYTES, RedoFileBuilder, RedoFileHeader};

    use super::*;

    const WAIT: Duration = Duration::from_secs(10);
    /// Where the log of these tests begins, and its checkpoint.
    const BEGIN: Lsn = Lsn(512 * 100);

    /// An encrypted log that a test writes as a server would.
    struct FakeLog {
        dir: tempfile::TempDir,
        file: File,
    }

    impl FakeLog {
        fn new() -> FakeLog {
            let dir = tempfile::tempdir().unwrap();
            let mut header = [0; FILE_HEADER_BYTES];
            header[..4].copy_from_slice(&6_u32.to_be_bytes());
            header[8..16].copy_from_slice(&BEGIN.0.to_be_bytes());
            let crc = holdfast_formats::checksum::crc32c(&header[..508]);
            header[508..512].copy_from_slice(&crc.to_be_bytes());
            let source = RedoFileHeader::parse(&header).unwrap();
            let builder = RedoFileBuilder::new(&source, Lsn(BEGIN.0 + 12), Some(&[7; BLOCK_BYTES]));
            let file = File::create_new(dir.path().join("#ib_redo0")).unwrap();
            file.write_all_at(&builder.header(), 0).unwrap();
            file.set_len(1 << 20).unwrap();
            FakeLog { dir, file }
        }

        /// Writes the `n`th block, of which `used_bytes` are in use.
        fn write(&self, n: u64, used_bytes: u16, content: u8) {
            let lsn = BEGIN.0 + n * BLOCK_BYTES as u64;
            let mut block = [content; BLOCK_BYTES];
            block[..4].copy_from_slice(&(lsn as u32 / 512 + 1).to_be_bytes());
            block[4..6].copy_from_slice(&(used_bytes | 0x8000).to_be_bytes());
            block[6..8].copy_from_slice(&12_u16.to_be_bytes());
            block[8..12].copy_from_slice(&1_u32.to_be_bytes());
            self.file.write_all_at(&block, 2048 + n * BLOCK_BYTES as u64).unwrap();
        }

        fn follower(&self) -> Follower {
            let spool = Spool::create(self.dir.path(), 1 << 20, 0).unwrap();
            let follower = Follower::start(self.dir.path(), spool, false, BTreeSet::new(), || Ok(1)).unwrap();
            assert!(follower.begin().encrypted, "its header says so");
            follower
        }
    }

    /// The LSN of byte `at` of the `n`th block.
    fn lsn(n: u64, at: u64) -> Lsn {
        Lsn(BEGIN.0 + n * BLOCK_BYTES as u64 + at)
    }

    /// Blocks that cannot be checked are taken on the server's word only, and the last block as it is.
    #[test]
    fn an_encrypted_log_is_captured_as_far_as_it_is_durable_and_kept_whole() {
        let log = FakeLog::new();
        log.write(0, 512, 1);
        log.write(1, 512, 2);
        log.write(2, 300, 3);
        let follower = log.follower();
        follower.durable(lsn(1, 100));
        follower.wait_for(lsn(1, 100), WAIT).unwrap();
        assert!(follower.wait_for(lsn(2, 100), Duration::from_millis(50)).is_err());
        follower.stop_at(lsn(2, 200), WAIT).unwrap();
        // Later than the stop.
        log.write(2, 512, 4);
        log.write(3, 512, 4);
        follower.durable(lsn(4, 0));
        std::thread::sleep(Duration::from_millis(50));
        let captured = follower.finish(lsn(2, 200), WAIT).unwrap();
        assert_eq!((captured.keep_bytes, captured.is_exact), (1024, false));
        assert_eq!(captured.spool.read_at(0, 1024).unwrap()[12], 1);
        assert_eq!(captured.spool.read_at(512, 512).unwrap()[12], 2);
        assert_eq!(captured.last_block[12..], [3; 500]);
    }

    /// A stop can be taken back, and a log that ends where it is to be cut is exact.
    #[test]
    fn an_encrypted_log_that_ends_at_the_stop_is_exact() {
        let log = FakeLog::new();
        log.write(0, 300, 1);
        let follower = log.follower();
        follower.stop_at(lsn(0, 200), WAIT).unwrap();
        follower.go_on();
        log.write(0, 512, 1);
        log.write(1, 90, 2);
        follower.stop_at(lsn(1, 90), WAIT).unwrap();
        let captured = follower.finish(lsn(1, 90), WAIT).unwrap();
        assert_eq!((captured.keep_bytes, captured.is_exact, captured.last_block[12]), (512, true, 2));

        // At the place where a block's records would begin, there is nothing of it to keep.
        let log = FakeLog::new();
        log.write(0, 512, 1);
        let follower = log.follower();
        follower.stop_at(lsn(1, 12), WAIT).unwrap();
        let captured = follower.finish(lsn(1, 12), WAIT).unwrap();
        assert_eq!((captured.keep_bytes, captured.is_exact), (512, true));
        assert_eq!(captured.last_block[4..6], [0, 12]);
    }
}
