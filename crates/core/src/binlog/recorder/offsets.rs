//! Where events are in the file of a server that they come from.

use holdfast_formats::binlog::Header;

/// Where the first event of a file begins.
pub(in crate::binlog) const FILE_BEGIN: u64 = 4;

/// Where the stored events of a file are in it. They are contiguous, except for what MariaDB puts after the
/// first event of a file that it encrypts, which is not stored.
pub(in crate::binlog) struct Offsets {
    next: u64,
    is_after_first: bool,
}

impl Offsets {
    /// For events that begin at `begin`.
    pub(in crate::binlog) fn at(begin: u64) -> Self {
        Self { next: begin, is_after_first: false }
    }

    /// Where the next event begins, if nothing is left out.
    pub(in crate::binlog) fn next(&self) -> u64 {
        self.next
    }

    /// Moves past an event, and returns where it begins.
    pub(in crate::binlog) fn take(&mut self, header: &Header) -> u64 {
        let begin = if self.is_after_first { after_first(self.next, header) } else { self.next };
        self.is_after_first = begin == FILE_BEGIN;
        self.next = begin + u64::from(header.len);
        begin
    }
}

/// Where the second event of a file begins: at `next` or after it.
pub(super) fn after_first(next: u64, header: &Header) -> u64 {
    next.max(u64::from(header.end.saturating_sub(header.len)))
}
