//! Log sequence numbers: byte positions in a redo stream.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A log sequence number. In MySQL it also counts the headers and trailers of redo blocks; in MariaDB 10.8
/// and later every byte it counts is log. Written down, it is a bare number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The position `bytes` later.
    pub fn checked_add(self, bytes: u64) -> Option<Lsn> {
        self.0.checked_add(bytes).map(Lsn)
    }

    /// The position `bytes` earlier.
    pub fn checked_sub(self, bytes: u64) -> Option<Lsn> {
        self.0.checked_sub(bytes).map(Lsn)
    }

    /// Bytes from `earlier` to `self`; `None` when `earlier` is the later one.
    pub fn bytes_since(self, earlier: Lsn) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }

    /// The last multiple of `alignment` that is not after `self`. `alignment` is a power of two.
    pub fn align_down(self, alignment: u64) -> Lsn {
        debug_assert!(alignment.is_power_of_two());
        Lsn(self.0 & !alignment.wrapping_sub(1))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Lsn {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Lsn, ParseIntError> {
        text.parse().map(Lsn)
    }
}

/// The redo from `start` up to, not including, `stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LsnRange {
    /// First position inside.
    pub start: Lsn,
    /// First position after.
    pub stop: Lsn,
}

impl LsnRange {
    /// `None` when `stop` lies before `start`.
    pub fn new(start: Lsn, stop: Lsn) -> Option<LsnRange> {
        (start <= stop).then_some(LsnRange { start, stop })
    }

    /// Bytes covered; 0 also if a range was built by hand with `stop` before `start`.
    pub fn bytes(self) -> u64 {
        self.stop.0.saturating_sub(self.start.0)
    }

    /// Whether `lsn` lies inside.
    pub fn contains(self, lsn: Lsn) -> bool {
        self.start <= lsn && lsn < self.stop
    }
}

impl fmt::Display for LsnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stops_at_the_ends() {
        assert_eq!(Lsn(5).checked_sub(6), None);
        assert_eq!(Lsn(u64::MAX).checked_add(1), None);
        assert_eq!(Lsn(9).bytes_since(Lsn(4)), Some(5));
        assert_eq!(Lsn(4).bytes_since(Lsn(9)), None);
        assert_eq!(Lsn(8191).align_down(4096), Lsn(4096));
        assert_eq!("17".parse(), Ok(Lsn(17)));
        assert_eq!(Lsn(17).to_string(), "17");
    }

    #[test]
    fn a_range_runs_forward() {
        assert_eq!(LsnRange::new(Lsn(2), Lsn(1)), None);
        let range = LsnRange::new(Lsn(1), Lsn(3)).unwrap();
        assert_eq!(range.bytes(), 2);
        assert!(range.contains(Lsn(2)) && !range.contains(Lsn(3)));
        assert_eq!(range.to_string(), "1..3");
    }
}
