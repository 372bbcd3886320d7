//! Sizes for people to read.

use std::fmt;

/// A number of bytes, displayed as `512 B`, `3.2 MiB`, `118 GiB`: at most four digits, so that columns stay
/// narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1023.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = usize::from(unit > 0 && value < 99.95);
        f.pad(&format!("{value:.digits$} {}", UNITS[unit]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_four_digits_at_most() {
        let shown = [0, 1023, 1024, 1 << 20, 3_355_443, (100 << 20) - 1, 118 << 30, u64::MAX];
        let shown = shown.map(|bytes| ByteSize(bytes).to_string());
        assert_eq!(
            shown,
            ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "3.2 MiB", "100 MiB", "118 GiB", "16384 PiB"]
        );
        let shown = [1_048_575, 104_857_600, 5_368_709_120].map(|bytes| ByteSize(bytes).to_string());
        assert_eq!(shown, ["1.0 MiB", "100 MiB", "5.0 GiB"]);
        assert_eq!(format!("{:>9}", ByteSize(1024)), "  1.0 KiB");
    }
}
