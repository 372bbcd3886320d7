//! Pages that were bad when they were read: torn by a write in progress, and so good again within milliseconds, or
//! [damaged](super::damage).

use std::{os::unix::fs::MetadataExt, sync::atomic::Ordering, time::Duration};

use holdfast_formats::{
    PageNo,
    page::{PageState, check_page},
};

use super::{
    context::CopyContext,
    files::{Entry, read_failed},
    page_reader::PageReader,
    running_clock::Moment,
    tablespace::OpenTablespace,
    workers::Buffers,
};
use crate::error::Result;

/// A torn page is good again within milliseconds. A page that is still bad after this many reads is damaged.
pub(super) const REREADS_MAX: u32 = 200;
/// No write of a page takes this long.
pub(super) const WRITE_MAX: Duration = Duration::from_millis(250);

/// A page that was bad when it was read.
pub(super) struct BadPage {
    /// Its number, for messages.
    pub(super) number: u64,
    /// Its offset in the file.
    pub(super) offset: u64,
    /// Its size.
    pub(super) bytes: usize,
}

impl CopyContext<'_> {
    /// Reads a bad page again until it is good. Returns `None` if the file now ends before it, or was
    /// deleted.
    pub(super) fn read_until_good(
        &self,
        source: &OpenTablespace<'_>,
        page_no: PageNo,
        offset: u64,
        buffers: &mut Buffers,
    ) -> Result<Option<Vec<u8>>> {
        let OpenTablespace { found, reader, geometry, .. } = *source;
        let page = BadPage { number: page_no.0.into(), offset, bytes: geometry.page_size().bytes() };
        let check = |page: &[u8]| check_page(geometry, page_no, page);
        self.read_page_until_good(&found.entry, reader, &page, &check, buffers)
    }

    /// Reads a page of any kind again until `check` finds it good, as [`read_until_good`](Self::read_until_good) does.
    pub(super) fn read_page_until_good(
        &self,
        entry: &Entry,
        reader: &PageReader,
        page: &BadPage,
        check: &dyn Fn(&[u8]) -> PageState,
        buffers: &mut Buffers,
    ) -> Result<Option<Vec<u8>>> {
        self.counters.torn_pages.fetch_add(1, Ordering::Relaxed);
        let mut before: Option<Same> = None;
        let mut reads = 0;
        while reads < REREADS_MAX {
            reads += 1;
            pause(reads);
            self.check_not_stopped()?;
            self.counters.torn_reads.fetch_add(1, Ordering::Relaxed);
            let now = reader
                .read_again(page.offset, page.bytes, &mut buffers.page)
                .map_err(|error| read_failed(&entry.real, error))?;
            let Some(now) = now else { return Ok(None) };
            let state = check(&now);
            if matches!(state, PageState::Good | PageState::Zero) {
                return Ok(Some(now));
            }
            if state == PageState::Bad && self.damage.again(entry, page.number, &now) {
                return Ok(Some(now));
            }
            let read_at = self.clock.now();
            let same = match before.take() {
                Some(same) if same.page == now => Same { reads: same.reads + 1, ..same },
                _ => Same { page: now, since: read_at, reads: 1 },
            };
            let is_long = read_at.ran - same.since.ran >= WRITE_MAX;
            match state {
                PageState::Unverifiable if is_long => return Ok(Some(same.page)),
                PageState::Unverifiable => self.clock.wait(same.since, WRITE_MAX),
                // No write lasts this long: the page must be on disk like this.
                _ if is_long && same.reads >= Same::READS_MIN => {
                    before = Some(same);
                    break;
                }
                _ => {}
            }
            before = Some(same);
        }
        // A file that was dropped meanwhile may end in any state: it is not part of the backup.
        let links = reader.file().metadata().map_or(1, |metadata| metadata.nlink());
        if links == 0 {
            return Ok(None);
        }
        let Some(Same { page: last, .. }) = before else { return Ok(None) };
        self.damage.page(entry, page.number, &last, reads)?;
        Ok(Some(last))
    }
}

/// A page that was read several times with the same content.
struct Same {
    page: Vec<u8>,
    since: Moment,
    reads: u32,
}

impl Same {
    const READS_MIN: u32 = 20;
}

/// Waits a little longer each time, for the write of a page to end.
pub(super) fn pause(reads: u32) {
    std::thread::sleep(Duration::from_millis(u64::from(reads.min(5)) * 2));
}
