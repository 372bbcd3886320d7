//! Sizes and times as people type them. Units of size are powers of 1024, as in the servers' own options.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};
use thiserror::Error;

/// A value that is none of its type's spellings.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("\"{text}\" is not a {what}: {help}")]
pub(crate) struct UnitError {
    text: String,
    what: &'static str,
    help: &'static str,
}

/// Splits `1.5G` into 1.5 and `G`.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse::<f64>().ok().filter(|n| n.is_finite())?;
    Some((number, text[end..].trim_start()))
}

/// `number` x `unit` as a whole number; `None` beyond what a `u64` or exact arithmetic holds.
fn scaled(number: f64, unit: u64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_precision_loss, reason = "units are powers of 1024 or small")]
    let value = (number * unit as f64).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 <= value < 2^53")]
    (0.0..EXACT).contains(&value).then_some(value as u64)
}

/// A number of bytes: `256M`, `1.5G`, `64KiB`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parse = || {
            let (number, unit) = number_and_unit(text)?;
            let unit = match unit.to_ascii_lowercase().as_str() {
                "" | "b" => 1,
                "k" | "kib" => 1 << 10,
                "m" | "mib" => 1 << 20,
                "g" | "gib" => 1 << 30,
                "t" | "tib" => 1 << 40,
                _ => return None,
            };
            scaled(number, unit).map(Self)
        };
        parse().ok_or_else(|| UnitError {
            text: text.to_owned(),
            what: "size",
            help: "write a number and K, M, G or T (powers of 1024), like 256M",
        })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        holdfast_core::size::ByteSize(self.0).fmt(f)
    }
}

/// A length of time: `500ms`, `2s`, `15m`, `24h`, `7d`, `4w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parse = || {
            let (number, unit) = number_and_unit(text)?;
            let unit_ms = match unit {
                "ms" => 1,
                "s" => 1_000,
                "m" | "min" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                "w" => 604_800_000,
                _ => return None,
            };
            scaled(number, unit_ms).map(|ms| Self(Duration::from_millis(ms)))
        };
        parse().ok_or_else(|| UnitError {
            text: text.to_owned(),
            what: "length of time",
            help: "write a number and ms, s, m, h, d or w, like 2s",
        })
    }
}

impl fmt::Display for Span {
    /// One unit below a minute, two above: `8 ms`, `4.2 s`, `3m12s`, `2h05m`, `6d04h`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let s = (ms + 500) / 1000;
        let text = match s {
            _ if ms == 0 => "0 s".to_owned(),
            _ if ms < 1000 => format!("{ms} ms"),
            _ if ms < 59_950 => format!("{:.1} s", self.0.as_secs_f64()),
            _ if s < 3600 => format!("{}m{:02}s", s / 60, s % 60),
            _ if s < 86_400 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
            _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3600),
        };
        f.pad(&text)
    }
}

/// A part of a whole: `10%`, above 0 and up to 100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Percent(pub(crate) f64);

impl Percent {
    /// As a fraction of 1.
    pub(crate) fn fraction(self) -> f64 {
        self.0 / 100.0
    }
}

impl FromStr for Percent {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let number = text.trim().strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
        number.filter(|n| *n > 0.0 && *n <= 100.0).map(Self).ok_or_else(|| UnitError {
            text: text.to_owned(),
            what: "percentage",
            help: "write a number above 0 and up to 100, like 10%",
        })
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// In the configuration file a unit is a string, spelled as on the command line.
macro_rules! deserialize_as_typed {
    ($($unit:ty),*) => {$(
        impl<'de> Deserialize<'de> for $unit {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}
deserialize_as_typed!(ByteSize, Span, Percent);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024_in_every_spelling() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("256M", 256 << 20),
            ("1.5g", 3 << 29),
            ("64 KiB", 65536),
            ("2T", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in ["", "M", "1MB", "-1", "1e3", "1..5G", "99999999T", "1 G B", "nan", "0x10"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_read_well() {
        for (ms, text) in [
            (8, "8 ms"),
            (4_200, "4.2 s"),
            (59_960, "1m00s"),
            (192_000, "3m12s"),
            (7_500_000, "2h05m"),
            (532_800_000, "6d04h"),
        ] {
            assert_eq!(Span(Duration::from_millis(ms)).to_string(), text);
        }
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!("500ms".parse(), Ok(Span(Duration::from_millis(500))));
        assert_eq!("1.5h".parse(), Ok(Span(Duration::from_secs(5400))));
        assert_eq!("7d".parse(), Ok(Span(Duration::from_secs(604_800))));
        for bad in ["2", "s", "2 years", "-2s", ""] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn percentages_end_at_100() {
        assert_eq!("10%".parse(), Ok(Percent(10.0)));
        assert_eq!("0.5".parse(), Ok(Percent(0.5)));
        for bad in ["0", "101%", "%", "ten", "NaN"] {
            assert!(bad.parse::<Percent>().is_err(), "{bad}");
        }
    }
}
