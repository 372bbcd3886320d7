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

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use holdfast_formats::{
    Lsn, PageNo, SpaceId,
    redo::{
        encryption_change::EncryptionChangeFinder,
        file_delete::FileDeleteFinder,
        index_load::{IndexChange, IndexLoadFinder},
        mysql::{
            BLOCK_BYTES, BLOCK_HEADER_BYTES, BlockState, CutError, FILE_HEADER_BYTES, RedoFileHeader,
            RedoFileName, checkpoint, classify, cut_block, encryption_block, set_encryption_block,
        },
        page_allocation::{AllocationByte, AllocationFinder},
        search::EncryptedBlock,
    },
};

use super::{Follow, lock};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    points::point,
    source::{RedoProgress, files::read_failed, spool::Spool},
};

const READ_BYTES: usize = 1 << 20;
const POLL: Duration = Duration::from_millis(5);

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

/// Whether some of the redo in `dir` may be encrypted.
pub fn is_encrypted(dir: &Path) -> Result<bool> {
    Ok(Log::open(dir)?.1.encrypted)
}

/// The error for encryption that was switched on: what cannot be seen in encrypted redo was not guarded
/// against.
#[must_use]
pub fn encryption_switched_on() -> Error {
    Error::failed("encryption of the redo log was switched on during the backup")
}

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

/// How many tablespaces are told apart. Real ones are few; what merely looks like a record can name any
/// space.
const CHANGED_SPACES_MAX: usize = 1 << 18;
/// How many tablespaces can be deleted during one backup.
const DELETED_SPACES_MAX: usize = 1 << 20;

/// The newest LSN at which the redo notes each of many things, as far as these can be told apart.
#[derive(Clone, Debug)]
pub struct Newest<K> {
    known: BTreeMap<K, Lsn>,
    known_max: usize,
    /// The newest of all others.
    elsewhere: Option<Lsn>,
}

impl<K: Ord> Newest<K> {
    fn new(known_max: usize) -> Self {
        Self { known: BTreeMap::new(), known_max, elsewhere: None }
    }

    fn note(&mut self, key: K, lsn: Lsn) {
        if self.known.len() < self.known_max || self.known.contains_key(&key) {
            let newest = self.known.entry(key).or_insert(lsn);
            *newest = lsn.max(*newest);
        } else {
            self.elsewhere = self.elsewhere.max(Some(lsn));
        }
    }
}

/// Changes of encryption, which the redo only notes, by tablespace. Some only look like it.
pub type EncryptionChanges = Newest<SpaceId>;

impl EncryptionChanges {
    /// Where the newest of them in `space` is noted, precise to the block.
    #[must_use]
    pub fn newest(&self, space: SpaceId) -> Option<Lsn> {
        self.known.get(&space).copied().or(self.elsewhere)
    }
}

/// Where the redo notes something about an index for the first time and the last, precise to the block: the
/// record is not before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The first.
    pub first: Lsn,
    /// The newest.
    pub newest: Lsn,
}

/// What the redo notes about indexes, by tablespace and index: bulk loads, or pages created for those that are
/// younger than the capture. Some only look like it.
#[derive(Clone, Debug, Default)]
pub struct IndexNotes {
    known: BTreeMap<(SpaceId, u64), Seen>,
    /// The newest of all others.
    elsewhere: Option<Lsn>,
}

impl IndexNotes {
    fn note(&mut self, space: SpaceId, index_id: u64, lsn: Lsn) {
        let key = (space, index_id);
        if self.known.len() < NOTED_INDEXES_MAX || self.known.contains_key(&key) {
            let seen = self.known.entry(key).or_insert(Seen { first: lsn, newest: lsn });
            *seen = Seen { first: lsn.min(seen.first), newest: lsn.max(seen.newest) };
        } else {
            self.elsewhere = self.elsewhere.max(Some(lsn));
        }
    }

    /// The indexes noted in `space`, by id.
    pub fn of(&self, space: SpaceId) -> impl Iterator<Item = (u64, Seen)> {
        self.known.range((space, 0)..=(space, u64::MAX)).map(|((_, index_id), seen)| (*index_id, *seen))
    }

    /// Whether there may be a note about an index.
    #[must_use]
    pub fn may_have(&self, space: SpaceId, index_id: u64) -> bool {
        self.elsewhere.is_some() || self.known.contains_key(&(space, index_id))
    }

    /// Where the newest note is among the indexes that are too many to be told apart.
    #[must_use]
    pub fn elsewhere(&self) -> Option<Lsn> {
        self.elsewhere
    }
}

/// How many indexes are told apart.
const NOTED_INDEXES_MAX: usize = 1 << 18;

/// Pages allocated or freed in tablespaces that several tables share, in groups of four.
pub type Allocations = Newest<AllocationByte>;

impl Allocations {
    /// Those in `space` since `since`. `None` if there are too many to be told apart.
    #[must_use]
    pub fn since(&self, space: SpaceId, since: Lsn) -> Option<Vec<AllocationByte>> {
        let byte = |descriptors, offset| AllocationByte { space, descriptors: PageNo(descriptors), offset };
        let of_space = self.known.range(byte(0, 0)..=byte(u32::MAX, u16::MAX));
        let found = of_space.filter(|(_, newest)| **newest >= since).map(|(byte, _)| *byte);
        self.elsewhere.is_none().then(|| found.collect())
    }
}

/// Together they cover 64 GiB in pages of 16 KiB.
const ALLOCATIONS_MAX: usize = 1 << 20;

/// What others may look at while the follower runs.
struct State {
    /// The block that the log ended in when it was last read.
    partial: Option<(Lsn, [u8; BLOCK_BYTES])>,
    encryption_changes: EncryptionChanges,
    index_loads: IndexNotes,
    new_index_pages: IndexNotes,
    allocations: Allocations,
    deleted: HashSet<SpaceId>,
    /// Encrypted: everything before this is on disk.
    durable: Lsn,
    /// Encrypted: where to stop.
    stop: Option<Lsn>,
    /// Whether the stop has been reached.
    is_stopped: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            partial: None,
            encryption_changes: Newest::new(CHANGED_SPACES_MAX),
            index_loads: IndexNotes::default(),
            new_index_pages: IndexNotes::default(),
            allocations: Newest::new(ALLOCATIONS_MAX),
            deleted: HashSet::new(),
            durable: Lsn::default(),
            stop: None,
            is_stopped: false,
        }
    }
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

/// The block that the log ends in for now: bytes in use, and the block.
type PartialBlock = (u16, [u8; BLOCK_BYTES]);

struct Log {
    dir: PathBuf,
    file: File,
    number: u64,
    header: RedoFileHeader,
    at: Lsn,
    encrypted: bool,
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
        self.lock().encryption_changes.clone()
    }

    /// Bulk loads of indexes, whose pages are not in the redo, by the redo read so far.
    #[must_use]
    pub fn index_loads(&self) -> IndexNotes {
        self.lock().index_loads.clone()
    }

    /// Pages created for indexes that are younger than the capture, by the redo read so far.
    #[must_use]
    pub fn new_index_pages(&self) -> IndexNotes {
        self.lock().new_index_pages.clone()
    }

    /// No index that existed at the checkpoint has a higher id.
    #[must_use]
    pub fn highest_index_id(&self) -> u64 {
        self.highest_index_id
    }

    /// Whether all allocations in `space` were noted so far.
    #[must_use]
    pub fn knows_allocations(&self, space: SpaceId) -> bool {
        self.shared.contains(&space) && !self.start.encrypted && self.lock().allocations.elsewhere.is_none()
    }

    /// What was allocated or freed in `space` since `since`, by the redo read so far. See
    /// [`Allocations::since`].
    #[must_use]
    pub fn allocations_since(&self, space: SpaceId, since: Lsn) -> Option<Vec<AllocationByte>> {
        self.lock().allocations.since(space, since).filter(|_| self.shared.contains(&space))
    }

    /// Tablespaces whose redo recovery ignores, since the redo read so far notes a deletion of their file.
    /// IMPORT brings the id of a discarded one back.
    #[must_use]
    pub fn deleted(&self) -> HashSet<SpaceId> {
        self.lock().deleted.clone()
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

impl Log {
    /// Opens the file with the newest checkpoint. Files can vanish and appear meanwhile.
    fn open(dir: &Path) -> Result<(Self, Start)> {
        let mut newest: Option<(Lsn, u64, File, Vec<u8>)> = None;
        let mut encryption = None;
        for number in active_files(dir)? {
            let path = dir.join(RedoFileName::Active(number).to_string());
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(read_failed(&path, error)),
            };
            let mut header = vec![0; FILE_HEADER_BYTES];
            if file.read_exact_at(&mut header, 0).is_err() || RedoFileHeader::parse(&header).is_err() {
                continue; // being prepared
            }
            if let Some(block) = encryption_block(&header)
                && encryption.as_ref().is_none_or(|(of, _)| number > *of)
            {
                encryption = Some((number, *block));
            }
            if let Some(lsn) = checkpoint(&header)
                && newest.as_ref().is_none_or(|(best, ..)| lsn > *best)
            {
                newest = Some((lsn, number, file, header));
            }
        }
        let Some((checkpoint, number, file, mut raw)) = newest else {
            return Err(Error::failed(format!("{}: no redo file contains a checkpoint", dir.display()))
                .hinted(
                    "check that this is the redo directory of this server, and that it is MySQL 8.0.30 or \
                     later",
                ));
        };
        let header = RedoFileHeader::parse(&raw).context(format_args!("read redo in {}", dir.display()))?;
        let begin = checkpoint.align_down(BLOCK_BYTES as u64);
        let log_uuid = header.log_uuid();
        let encrypted = encryption.is_some();
        if let Some((_, block)) = encryption {
            // The newest file has the key as the newest master key wraps it.
            set_encryption_block(&mut raw, &block);
        }
        let log = Self { dir: dir.to_owned(), file, number, header, at: begin, encrypted };
        Ok((log, Start { checkpoint, begin, header: raw, encrypted, log_uuid }))
    }

    fn follow(
        mut self,
        shared: &Follow,
        state: &Mutex<State>,
        mut spool: Spool,
        highest_index_id: u64,
        watched: &BTreeSet<SpaceId>,
    ) -> Result<Spool> {
        let mut load_finder = IndexLoadFinder::new(self.at, highest_index_id);
        let mut delete_finder = FileDeleteFinder::new(self.at);
        let mut encryption_finder = EncryptionChangeFinder::new(self.at);
        let mut allocation_finder = AllocationFinder::new(self.at);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            if shared.is_finished() {
                return Ok(spool);
            }
            if shared.abandoned() {
                return Err(Error::new(ErrorKind::Interrupted, "the capture of the redo log was given up"));
            }
            if self.is_stopped(shared, state) {
                shared.sleep(POLL);
                continue;
            }
            point("backup.redo.read");
            let end = self.end()?;
            if self.at >= end {
                if !self.next_file()? {
                    std::thread::sleep(POLL);
                }
                continue;
            }
            let want = end.bytes_since(self.at).unwrap_or(0).min(READ_BYTES as u64);
            let want = usize::try_from(want).unwrap_or(READ_BYTES);
            let offset = self.header.offset(self.at).unwrap_or(FILE_HEADER_BYTES as u64);
            let got = read_up_to(&self.file, &mut buffer[..want], offset)
                .map_err(|error| read_failed(&self.path(), error))?;
            let (full_bytes, partial) = if self.encrypted {
                let state = lock(state);
                let end = state.stop.map_or(state.durable, |stop| stop.min(state.durable));
                drop(state);
                self.judge_encrypted(&buffer[..got], end)?
            } else {
                self.judge(&buffer[..got])?
            };
            let full = &buffer[..full_bytes];
            spool.append(full)?;
            self.at = Lsn(self.at.0 + full_bytes as u64);
            let (mut loads, mut new_pages, mut encryption) = (Vec::new(), Vec::new(), Vec::new());
            let (mut deleted, mut allocated) = (Vec::new(), Vec::new());
            let mut search = || {
                let mut of_index = |change| match change {
                    IndexChange::Load(load) => loads.push(load),
                    IndexChange::NewPage(page) => new_pages.push(page),
                };
                load_finder.feed(full, &mut of_index)?;
                if let Some((_, block)) = &partial {
                    load_finder.peek(block, &mut of_index)?;
                }
                encryption_finder.feed(full, |space, lsn| encryption.push((space, lsn)))?;
                delete_finder.feed(full, |space| deleted.push(space))?;
                let mut of_page = |byte: AllocationByte, lsn| {
                    if watched.contains(&byte.space) {
                        allocated.push((byte, lsn));
                    }
                };
                allocation_finder.feed(full, &mut of_page)?;
                if let Some((_, block)) = &partial {
                    allocation_finder.peek(block, of_page)?;
                }
                if let Some((_, block)) = &partial {
                    encryption_finder.peek(block, |space, lsn| encryption.push((space, lsn)))?;
                    delete_finder.peek(block, |space| deleted.push(space))?;
                }
                Ok::<_, EncryptedBlock>(())
            };
            let searched = if self.encrypted { Ok(()) } else { search() };
            // A bulk build of an index that goes unseen would make a backup that cannot be recovered; an
            // unseen import, one that lacks rows.
            searched.map_err(|cause| encryption_switched_on().caused_by(cause))?;
            {
                let mut state = lock(state);
                for load in loads {
                    state.index_loads.note(load.space, load.index_id, load.lsn);
                }
                for page in new_pages {
                    state.new_index_pages.note(page.space, page.index_id, page.lsn);
                }
                encryption.into_iter().for_each(|(space, lsn)| state.encryption_changes.note(space, lsn));
                allocated.into_iter().for_each(|(byte, lsn)| state.allocations.note(byte, lsn));
                state.deleted.extend(deleted);
                if state.deleted.len() > DELETED_SPACES_MAX {
                    return Err(Error::failed(format!(
                        "more than {DELETED_SPACES_MAX} tablespaces were dropped during the backup, which is \
                         the limit"
                    )));
                }
                match partial {
                    Some((_, block)) => state.partial = Some((self.at, block)),
                    // The block is being written: the version that was read before is as good as it was.
                    None if state.partial.is_some_and(|(at, _)| at == self.at) => {}
                    None => state.partial = None,
                }
            }
            let end = partial.map_or(self.at, |(used_bytes, _)| Lsn(self.at.0 + u64::from(used_bytes)));
            shared.advance(end.max(shared.captured()));
            if full_bytes == 0 {
                self.still_mine()?;
                std::thread::sleep(POLL);
            }
        }
    }

    /// Whether the capture has reached its stop.
    fn is_stopped(&self, shared: &Follow, state: &Mutex<State>) -> bool {
        let mut state = lock(state);
        state.is_stopped = state.stop.is_some_and(|stop| shared.captured() >= needed_for(stop));
        state.is_stopped
    }

    /// How many of `bytes` are complete blocks, and the block that the log ends in.
    fn judge(&self, bytes: &[u8]) -> Result<(usize, Option<PartialBlock>)> {
        let mut full = 0;
        for block in bytes.chunks_exact(BLOCK_BYTES) {
            let lsn = Lsn(self.at.0 + full as u64);
            match classify(block, lsn) {
                BlockState::Full { .. } => full += BLOCK_BYTES,
                BlockState::Partial { used_bytes, .. } => {
                    let block = <[u8; BLOCK_BYTES]>::try_from(block).ok();
                    return Ok((full, block.map(|block| (used_bytes, block))));
                }
                BlockState::Old | BlockState::Torn => break,
                BlockState::Overwritten { by } => {
                    return Err(self.overwritten(lsn, &format!("the block of LSN {by} is in its place")));
                }
            }
        }
        Ok((full, None))
    }

    /// The same for a log of whose blocks only the headers can be read: the blocks before `durable`, and the
    /// one that contains it.
    fn judge_encrypted(&self, bytes: &[u8], durable: Lsn) -> Result<(usize, Option<PartialBlock>)> {
        let mut full = 0;
        for block in bytes.chunks_exact(BLOCK_BYTES) {
            let lsn = Lsn(self.at.0 + full as u64);
            if lsn >= durable {
                break;
            }
            let state = classify(block, lsn);
            match state {
                BlockState::Full { .. } if lsn.0 + BLOCK_BYTES as u64 <= durable.0 => full += BLOCK_BYTES,
                BlockState::Full { .. } | BlockState::Partial { .. } => {
                    let used_bytes = match state {
                        BlockState::Partial { used_bytes, .. } => used_bytes,
                        _ => BLOCK_BYTES as u16,
                    };
                    let settled = self.reads_the_same(block, lsn)?;
                    let block = <[u8; BLOCK_BYTES]>::try_from(block).ok().filter(|_| settled);
                    return Ok((full, block.map(|block| (used_bytes, block))));
                }
                BlockState::Old | BlockState::Torn => break,
                BlockState::Overwritten { by } => {
                    return Err(self.overwritten(lsn, &format!("the block of LSN {by} is in its place")));
                }
            }
        }
        Ok((full, None))
    }

    /// Whether a second read of the block at `lsn`, a while later, gives the same: then neither read fell
    /// into a write of it.
    fn reads_the_same(&self, block: &[u8], lsn: Lsn) -> Result<bool> {
        std::thread::sleep(POLL);
        let mut again = [0; BLOCK_BYTES];
        let offset = self.header.offset(lsn).unwrap_or(FILE_HEADER_BYTES as u64);
        let got =
            read_up_to(&self.file, &mut again, offset).map_err(|error| read_failed(&self.path(), error))?;
        Ok(got == BLOCK_BYTES && again == block)
    }

    /// The first LSN that is not in this file. A resize can shorten the newest file.
    fn end(&self) -> Result<Lsn> {
        let size = self.file.metadata().map_err(|error| read_failed(&self.path(), error))?.len();
        self.header.end_lsn(size).ok_or_else(|| self.overwritten(self.at, "its file was cut off"))
    }

    /// Moves on to the file that begins where this one ends. Returns `false` while the server has not created
    /// it.
    fn next_file(&mut self) -> Result<bool> {
        let path = self.dir.join(RedoFileName::Active(self.number + 1).to_string());
        match File::open(&path) {
            Ok(file) => {
                let mut header = vec![0; FILE_HEADER_BYTES];
                let parsed = file
                    .read_exact_at(&mut header, 0)
                    .ok()
                    .and_then(|()| RedoFileHeader::parse(&header).ok());
                match parsed {
                    Some(header) if header.start_lsn() == self.at => {
                        self.file = file;
                        self.header = header;
                        self.number += 1;
                        Ok(true)
                    }
                    Some(header) if header.start_lsn() > self.at => {
                        Err(self.overwritten(self.at, "its file is gone"))
                    }
                    _ => Ok(false),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if active_files(&self.dir)?.into_iter().min().is_some_and(|oldest| oldest > self.number + 1) {
                    return Err(self.overwritten(self.at, "its file is gone"));
                }
                Ok(false)
            }
            Err(error) => Err(read_failed(&path, error)),
        }
    }

    /// Fails if the open file was reused for later redo.
    fn still_mine(&self) -> Result<()> {
        let mut block = vec![0; BLOCK_BYTES];
        let now =
            self.file.read_exact_at(&mut block, 0).ok().and_then(|()| RedoFileHeader::parse(&block).ok());
        match now {
            Some(header) if header.start_lsn() > self.header.start_lsn() => {
                Err(self.overwritten(self.at, "its file was reused"))
            }
            _ => Ok(()),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(RedoFileName::Active(self.number).to_string())
    }

    fn overwritten(&self, at: Lsn, why: &str) -> Error {
        Error::failed(format!("the redo log was overwritten before it was copied (need LSN {at}, {why})"))
            .hinted("raise innodb_redo_log_capacity on the server; the redo copy itself is never throttled")
    }
}

fn active_files(dir: &Path) -> Result<Vec<u64>> {
    let listing = std::fs::read_dir(dir).map_err(|error| read_failed(dir, error))?;
    let mut numbers = Vec::new();
    for entry in listing {
        let entry = entry.map_err(|error| read_failed(dir, error))?;
        if let Some(RedoFileName::Active(number)) = entry.file_name().to_str().and_then(RedoFileName::parse) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use holdfast_formats::redo::mysql::RedoFileBuilder;

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

    /// What looks like a record can name any space: memory stays bounded, and nothing is forgotten.
    #[test]
    fn more_spaces_than_can_be_told_apart_are_still_known() {
        let mut changes = EncryptionChanges::new(CHANGED_SPACES_MAX);
        changes.note(SpaceId(7), Lsn(50));
        changes.note(SpaceId(7), Lsn(40));
        assert_eq!((changes.newest(SpaceId(7)), changes.newest(SpaceId(8))), (Some(Lsn(50)), None));
        for space in 0..CHANGED_SPACES_MAX as u32 + 10 {
            changes.note(SpaceId(space), Lsn(100));
        }
        assert!(changes.known.len() <= CHANGED_SPACES_MAX);
        assert_eq!(changes.newest(SpaceId(7)), Some(Lsn(100)));
        assert_eq!(changes.newest(SpaceId(u32::MAX)), Some(Lsn(100)));

        let mut notes = IndexNotes::default();
        for (space, index_id, lsn) in [(7, 1, 50), (7, 1, 40), (7, 2, 60), (8, 3, 90)] {
            notes.note(SpaceId(space), index_id, Lsn(lsn));
        }
        let seen = |first, newest| Seen { first: Lsn(first), newest: Lsn(newest) };
        assert_eq!(notes.of(SpaceId(7)).collect::<Vec<_>>(), [(1, seen(40, 50)), (2, seen(60, 60))]);
        assert!(notes.may_have(SpaceId(8), 3) && !notes.may_have(SpaceId(8), 2));
        for index_id in 0..NOTED_INDEXES_MAX as u64 {
            notes.note(SpaceId(9), index_id, Lsn(100));
        }
        assert_eq!((notes.known.len(), notes.elsewhere()), (NOTED_INDEXES_MAX, Some(Lsn(100))));
        assert!(notes.may_have(SpaceId(8), 2));

        let byte = |space, offset| AllocationByte { space: SpaceId(space), descriptors: PageNo(0), offset };
        let mut allocations = Allocations::new(2);
        allocations.note(byte(7, 200), Lsn(50));
        allocations.note(byte(8, 300), Lsn(60));
        assert_eq!(allocations.since(SpaceId(7), Lsn(50)).unwrap(), [byte(7, 200)]);
        assert_eq!(allocations.since(SpaceId(7), Lsn(51)).unwrap(), []);
        allocations.note(byte(9, 300), Lsn(70));
        assert_eq!(allocations.since(SpaceId(7), Lsn(0)), None);
    }
}
