//! Pages that cannot be checked here: encrypted ones, without a key, and some that the server compressed.
//!
//! A page that is read while it is being written can be half old, half new, and nothing in its bytes reveals
//! that. So such a page is believed only if no write of it was under way, which shows in one of two ways:
//!
//! - the file was at rest: by its timestamps, which the kernel sets when a write begins, no write had begun
//!   in the [`WRITE_MAX`] before the page was read, and none before the read was over;
//! - it was read twice, at least [`WRITE_MAX`] apart, the second time bypassing the page cache, and both
//!   reads are equal. A page that was caught in the middle of a write has changed by then.
//!
//! Both rely on the write of a page being shorter than [`WRITE_MAX`]: it takes the disk's own time for 64 KiB
//! at most, which is milliseconds. Time in which the machine may have stood still does not count
//! ([`RunningClock`](super::running_clock::RunningClock)).

use std::{
    hash::{BuildHasher, RandomState},
    io,
    os::unix::fs::MetadataExt,
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use holdfast_formats::page::{PageState, check_page};

use super::{
    Pages, Role,
    context::CopyContext,
    files::{clock_tick, read_failed},
    page_reader::PageReader,
    reread::WRITE_MAX,
    running_clock::{Moment, RunningClock},
    tablespace::OpenTablespace,
    workers::Buffers,
};
use crate::error::{Error, Result};

/// This many bytes are read before the first of them are read again: most of the wait is spent reading.
const ROUND_BYTES: usize = 128 << 20;
/// A page that the server writes all the time is the same twice in a row sooner than this.
const ROUNDS_MAX: u32 = 200;

/// Pages of one file that were sent and have yet to be proved.
pub(super) struct Unproven {
    extents: Vec<Extent>,
    bytes: usize,
    /// Only compared with other hashes of this process. Two different pages collide as rarely as with any
    /// keyed hash of 64 bits.
    hasher: RandomState,
}

struct Extent {
    offset: u64,
    len: usize,
    read_at: Moment,
    /// Where each page begins in the extent, and its hash.
    pages: Vec<(usize, u64)>,
}

impl Unproven {
    pub(super) fn new() -> Self {
        Self { extents: Vec::new(), bytes: 0, hasher: RandomState::new() }
    }

    /// Records pages of an extent whose read was over at `read_at`, by where they begin in it.
    pub(super) fn add(
        &mut self,
        offset: u64,
        extent: &[u8],
        page_bytes: usize,
        starts: &[usize],
        read_at: Moment,
    ) {
        let hash = |start: &usize| self.hasher.hash_one(extent.get(*start..*start + page_bytes));
        let pages = starts.iter().map(|start| (*start, hash(start))).collect();
        self.extents.push(Extent { offset, len: extent.len(), read_at, pages });
        self.bytes += extent.len();
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= ROUND_BYTES
    }
}

/// Whether no write of the file had begun in the [`WRITE_MAX`] before `began`, and none has begun since. By the
/// file's timestamps, which tell the wall clock's time: if that was not steady, nothing is known.
pub(super) fn at_rest(reader: &PageReader, clock: &RunningClock, began: Moment) -> io::Result<bool> {
    let metadata = reader.file().metadata()?;
    let time = |seconds: i64, nanoseconds: i64| {
        let tick = clock_tick(nanoseconds);
        let (seconds, nanoseconds) = (u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
        Some((UNIX_EPOCH + Duration::new(seconds, nanoseconds), tick))
    };
    let times =
        [time(metadata.mtime(), metadata.mtime_nsec()), time(metadata.ctime(), metadata.ctime_nsec())];
    let is_old = |time: &Option<(SystemTime, Duration)>| {
        time.is_some_and(|(time, tick)| {
            let before = WRITE_MAX + tick;
            began.wall.duration_since(time).is_ok_and(|age| age >= before)
                && clock.was_steady_from(before, began)
        })
    };
    Ok(times.iter().all(is_old))
}

impl CopyContext<'_> {
    /// Reads the pages again, and sends those that have changed anew. Those are then read once more, and so
    /// on, in rounds, so that all pages that need it share each wait.
    pub(super) fn prove(
        &self,
        source: &OpenTablespace<'_>,
        unproven: &mut Unproven,
        buffers: &mut Buffers,
    ) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            unproven.bytes = 0;
            let extents = std::mem::take(&mut unproven.extents);
            if extents.is_empty() {
                return Ok(());
            }
            for extent in extents {
                for start in self.changed(source, &extent, unproven, buffers)? {
                    if !self.send_anew(source, extent.offset + start as u64, unproven, buffers)? {
                        // The file was dropped, so it is not part of the backup.
                        unproven.extents.clear();
                        return Ok(());
                    }
                }
            }
        }
        Err(Error::failed(format!(
            "{}: pages that cannot be checked without a key changed between every two reads, so no consistent copy \
             could be verified",
            source.found.entry.path
        ))
        .hinted("take the backup when the server writes less"))
    }

    /// Which pages of an extent have changed, once enough time has passed.
    fn changed(
        &self,
        source: &OpenTablespace<'_>,
        extent: &Extent,
        unproven: &Unproven,
        buffers: &mut Buffers,
    ) -> Result<Vec<usize>> {
        self.check_not_stopped()?;
        self.clock.wait(extent.read_at, WRITE_MAX);
        let page_bytes = source.geometry.page_size().bytes();
        // A single page may begin where direct reads cannot.
        let bytes = if extent.len == page_bytes {
            let page = source.reader.read_again(extent.offset, extent.len, &mut buffers.second);
            page.map(Option::unwrap_or_default)
        } else {
            let piece = self.headroom.read_bytes(extent.len);
            source.reader.forget(extent.offset, extent.len).and_then(|()| {
                let got =
                    source.reader.read_in_pieces(extent.offset, extent.len, piece, &mut buffers.second)?;
                Ok(buffers.second.bytes(got).to_vec())
            })
        };
        let bytes = bytes.map_err(|error| read_failed(&source.found.entry.real, error))?;
        self.count_again(bytes.len());
        let differs = |(start, hash): &(usize, u64)| {
            unproven.hasher.hash_one(bytes.get(*start..*start + page_bytes)) != *hash
        };
        Ok(extent.pages.iter().filter(|page| differs(page)).map(|(start, _)| *start).collect())
    }

    /// Sends a page as it is now. If it cannot be checked, it has to be proved again. Returns `false` if the
    /// file was dropped.
    fn send_anew(
        &self,
        source: &OpenTablespace<'_>,
        offset: u64,
        unproven: &mut Unproven,
        buffers: &mut Buffers,
    ) -> Result<bool> {
        let OpenTablespace { found, reader, geometry, file, .. } = *source;
        let entry = &found.entry;
        let failed = |error| read_failed(&entry.real, error);
        let page_size = geometry.page_size();
        let page_bytes = page_size.bytes();
        let first = offset / page_bytes as u64;
        let number = source.page_no(first)?;
        self.counters.torn_reads.fetch_add(1, Ordering::Relaxed);
        let mut page = reader.read_again(offset, page_bytes, &mut buffers.second).map_err(failed)?;
        if page.as_deref().is_some_and(|page| check_page(geometry, number, page) == PageState::Bad) {
            page = self.read_until_good(source, number, offset, buffers)?;
        }
        let Some(page) = page else {
            if reader.file().metadata().map_err(failed)?.nlink() == 0 {
                return Ok(false);
            }
            if found.role == Role::Undo {
                // Truncated: nobody reads what was there.
                return Ok(true);
            }
            return Err(Error::failed(format!("{}: became shorter while it was copied", entry.path)));
        };
        let holes = source.holes(offset, page_bytes).map_err(failed)?;
        self.sink.pages(file, Pages { first, page_size, bytes: &page, holes: &holes })?;
        if check_page(geometry, number, &page) == PageState::Unverifiable {
            unproven.add(offset, &page, page_bytes, &[0], self.clock.now());
        }
        Ok(true)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{fs::File, os::unix::fs::FileExt, path::Path, sync::Mutex, thread, time::Instant};

    use holdfast_formats::{Flavor, Lsn, checksum};
    use holdfast_pipe::{Headroom, throttle::Throttle};

    use super::*;
    use crate::{
        event::{Cancel, Silent},
        meter::Meter,
        source::{
            FileId, FileSpec, RedoProgress, Sink,
            context::CopyCounters,
            damage::{Damage, Indexes},
            files::{Entry, Stat},
            page_reader::ReadMode,
            tablespace::TablespaceEntry,
        },
    };

    const PAGE: usize = 16_384;
    const PAGES: usize = 40;

    /// Keeps the pages of the one file that it is sent.
    #[derive(Default)]
    pub(in crate::source) struct OneFile(pub(in crate::source) Mutex<Vec<u8>>);

    impl Sink for OneFile {
        fn file_begin(&self, _: FileSpec) -> Result<FileId> {
            Ok(FileId(1))
        }
        fn pages(&self, _: FileId, pages: Pages<'_>) -> Result<()> {
            let mut all = self.0.lock().unwrap();
            let begin = usize::try_from(pages.first).unwrap() * PAGE;
            let end = begin + pages.bytes.len();
            if all.len() < end {
                all.resize(end, 0);
            }
            all[begin..end].copy_from_slice(pages.bytes);
            Ok(())
        }
        fn file_end(&self, _: FileId, _: u64) -> Result<()> {
            Ok(())
        }
        fn file_renamed(&self, _: FileId, _: &str) -> Result<()> {
            Ok(())
        }
        fn file_gone(&self, _: FileId) -> Result<()> {
            Ok(())
        }
        fn directory(&self, _: &str, _: u16) -> Result<()> {
            Ok(())
        }
        fn directory_gone(&self, _: &str) -> Result<()> {
            Ok(())
        }
        fn is_drained(&self) -> Result<bool> {
            Ok(true)
        }
    }

    struct NoIndexes;

    impl Indexes for NoIndexes {
        fn find(&self, _: u64) -> Option<(String, String)> {
            None
        }
    }

    struct NoRedo;

    impl RedoProgress for NoRedo {
        fn captured(&self) -> Lsn {
            Lsn(0)
        }
        fn check(&self) -> Result<()> {
            Ok(())
        }
        fn has_failed(&self) -> bool {
            false
        }
    }

    /// Runs `copy` with a context that sends to `sink` and has nothing else of note.
    pub(in crate::source) fn copy_into<T>(
        sink: &dyn Sink,
        flavor: Flavor,
        copy: impl FnOnce(&CopyContext<'_>) -> T,
    ) -> T {
        copy(&CopyContext {
            flavor,
            clock: &RunningClock::start().unwrap(),
            mode: ReadMode::Buffered,
            sink,
            counters: &CopyCounters::default(),
            progress: &Meter::new(&Silent, 0),
            throttle: &Throttle::new(None),
            headroom: &Headroom::default(),
            cancel: &Cancel::default(),
            redo: &NoRedo,
            damage: &Damage::new(false, &NoIndexes, &Silent),
        })
    }

    /// A file as a listing of the data directory returns it.
    pub(in crate::source) fn entry(path: &str, real: &Path) -> Entry {
        let stat = Stat::of(real).unwrap();
        Entry {
            path: path.to_owned(),
            real: real.to_owned(),
            outside: false,
            size_bytes: stat.size_bytes(),
            is_dir: false,
            mode: 0o640,
            stat,
        }
    }

    /// A page of an encrypted table of MySQL, with this body.
    fn encrypted_page(number: usize, body: u8) -> Vec<u8> {
        let mut page = vec![body; PAGE];
        page[..38].fill(0);
        page[4..8].copy_from_slice(&u32::try_from(number).unwrap().to_be_bytes());
        page[24..26].copy_from_slice(&15_u16.to_be_bytes());
        page[34..38].copy_from_slice(&5_u32.to_be_bytes());
        page
    }

    fn table() -> Vec<u8> {
        let mut first = vec![0; PAGE];
        first[24..26].copy_from_slice(&8_u16.to_be_bytes());
        first[34..38].copy_from_slice(&5_u32.to_be_bytes());
        first[38..42].copy_from_slice(&5_u32.to_be_bytes());
        first[54..58].copy_from_slice(&0x4021_u32.to_be_bytes());
        let sum = checksum::page_crc32(&first).to_be_bytes();
        first[..4].copy_from_slice(&sum);
        first[PAGE - 8..PAGE - 4].copy_from_slice(&sum);
        (1..PAGES).fold(first, |mut table, number| {
            table.extend(encrypted_page(number, 1));
            table
        })
    }

    fn copied(path: &Path) -> (Vec<u8>, Duration) {
        let (bytes, elapsed, counters) = copied_as(path, Role::Tablespace).unwrap();
        assert_eq!(counters.unverifiable.into_inner(), PAGES as u64 - 1);
        (bytes, elapsed)
    }

    /// The copy, how long it took, and what was counted.
    fn copied_as(path: &Path, role: Role) -> Result<(Vec<u8>, Duration, CopyCounters)> {
        let (sink, begin) = (OneFile::default(), Instant::now());
        let found = TablespaceEntry::new(entry("db/t.ibd", path), role);
        let counters = CopyCounters::default();
        copy_into(&sink, Flavor::MySql, |context| -> Result<()> {
            let context = CopyContext { counters: &counters, ..*context };
            context.tablespace(&found, &mut Buffers::default())?.unwrap();
            Ok(())
        })?;
        Ok((sink.0.into_inner().unwrap(), begin.elapsed(), counters))
    }

    /// A page whose write takes as long as a hundred reads of it is caught in mid-write, and the end of the
    /// write is waited for.
    #[test]
    fn a_page_is_not_taken_in_the_middle_of_its_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.ibd");
        std::fs::write(&path, table()).unwrap();
        thread::sleep(2 * WRITE_MAX);
        let file = File::options().write(true).open(&path).unwrap();
        let (at, page) = (7 * PAGE, encrypted_page(7, 2));
        file.write_all_at(&page[..PAGE / 2], at as u64).unwrap();
        let writer = thread::spawn(move || {
            thread::sleep(WRITE_MAX / 2);
            file.write_all_at(&page[PAGE / 2..], (at + PAGE / 2) as u64).unwrap();
        });
        let (copied, _) = copied(&path);
        writer.join().unwrap();
        assert!(copied[at..at + PAGE] == encrypted_page(7, 2), "the page is torn");
        assert!(copied == std::fs::read(&path).unwrap());
    }

    /// An undo tablespace can be truncated between the two reads of its pages; any other file cannot.
    #[test]
    fn only_an_undo_tablespace_may_become_shorter() {
        for (role, may) in [(Role::Undo, true), (Role::Tablespace, false)] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("undo_001");
            std::fs::write(&path, table()).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            let writer = thread::spawn(move || {
                thread::sleep(WRITE_MAX / 2);
                file.set_len((PAGES / 2 * PAGE) as u64).unwrap();
            });
            let copied = copied_as(&path, role);
            writer.join().unwrap();
            match copied {
                Ok((bytes, ..)) => assert!(may && bytes[..PAGES / 2 * PAGE] == table()[..PAGES / 2 * PAGE]),
                Err(error) => assert!(!may && error.to_string().contains("became shorter"), "{error}"),
            }
        }
    }

    /// Most tables of a server are not being written to and need not be read twice. One that was just written
    /// is read twice.
    #[test]
    fn a_file_at_rest_is_told_from_one_that_is_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.ibd");
        std::fs::write(&path, table()).unwrap();
        let written = SystemTime::now();
        let (young, took, counters) = copied_as(&path, Role::Tablespace).unwrap();
        assert!(took >= WRITE_MAX, "believed at once after {took:?}");
        // A limit of the rate counts both reads.
        assert!(counters.bytes_read() >= 2 * ((PAGES - 1) * PAGE) as u64, "{counters:?}");
        let clock = RunningClock::start().unwrap();
        let started = clock.now();
        clock.wait(started, 2 * WRITE_MAX);
        let reader = PageReader::open(&path, ReadMode::Buffered).unwrap();
        let now = clock.now();
        assert!(!at_rest(&reader, &clock, Moment { wall: written, ..now }).unwrap());
        assert!(!at_rest(&reader, &clock, Moment { ran: started.ran, ..now }).unwrap(), "not yet steady");
        assert!(at_rest(&reader, &clock, now).unwrap());
        assert!(young == table() && copied(&path).0 == table());
    }
}
