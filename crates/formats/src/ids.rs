//! Numbers that identify a page: its tablespace, its number, and its size.

use std::fmt;

/// The id of a tablespace. 0 is the system tablespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u32);

impl SpaceId {
    /// The system tablespace (`ibdata1` and its continuation files).
    pub const SYSTEM: SpaceId = SpaceId(0);
}

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a page within its **tablespace**, in physical pages. The number within the file differs only
/// in a system tablespace of several files, where the second file continues the count of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNo(pub u32);

impl fmt::Display for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A page size that InnoDB can have: a power of two from 1 KiB (`KEY_BLOCK_SIZE=1`) to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize {
    log2: u8,
}

impl PageSize {
    /// The page size by which files other than tablespaces are cut: 16 KiB.
    pub const DEFAULT_FILE: PageSize = PageSize { log2: 14 };
    /// The largest one: 64 KiB.
    pub const MAX: PageSize = PageSize { log2: 16 };

    const LOG2_MIN: u8 = 10;

    /// `None` unless `bytes` is a power of two from 1024 to 65536.
    pub fn from_bytes(bytes: u32) -> Option<PageSize> {
        bytes.is_power_of_two().then(|| bytes.trailing_zeros()).and_then(PageSize::from_log2)
    }

    /// `None` unless `log2` is one of 10 to 16.
    pub(crate) fn from_log2(log2: u32) -> Option<PageSize> {
        let log2 = u8::try_from(log2).ok()?;
        (PageSize::LOG2_MIN..=PageSize::MAX.log2).contains(&log2).then_some(PageSize { log2 })
    }

    /// The size in bytes.
    pub fn bytes(self) -> usize {
        1 << self.log2
    }

    /// The exponent: 14 for 16 KiB.
    pub fn log2(self) -> u32 {
        u32::from(self.log2)
    }

    /// Pages in one extent of a tablespace with this logical page size: 1 MiB of pages up to 16 KiB, 64 pages
    /// above.
    pub fn extent_pages(self) -> u32 {
        (1u32 << 20 >> self.log2).max(64)
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_are_the_powers_of_two_from_1_to_64_kib() {
        let valid: Vec<u32> = (0..=1 << 17).filter(|&b| PageSize::from_bytes(b).is_some()).collect();
        assert_eq!(valid, [1024, 2048, 4096, 8192, 16384, 32768, 65536]);
        for bytes in valid {
            let size = PageSize::from_bytes(bytes).unwrap();
            assert_eq!(size.bytes(), bytes as usize);
            assert_eq!(1 << size.log2(), bytes);
        }
        assert_eq!(PageSize::DEFAULT_FILE.bytes(), 16384);
    }

    #[test]
    fn extents_follow_the_page_size() {
        let pages = |bytes| PageSize::from_bytes(bytes).unwrap().extent_pages();
        assert_eq!([4096, 8192, 16384, 32768, 65536].map(pages), [256, 128, 64, 64, 64]);
    }
}
