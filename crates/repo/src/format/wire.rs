//! Reading and writing the small binary formats: little-endian integers, varints, bounded counts.
//!
//! [`Decoder`] is total: it never reads past the end, never trusts a length before comparing it with its
//! limit and with the bytes left, and refuses a varint that is longer than needed.

use thiserror::Error;

/// Bytes that do not follow the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct FormatError {
    /// The field, in the words of the specification.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: Problem,
}

impl FormatError {
    /// An error for a violation of the field's own rule.
    #[must_use]
    pub fn rule(field: &'static str, rule: &'static str) -> Self {
        Self { field, problem: Problem::Rule(rule) }
    }

    /// An error for a number that this version does not know: a later version may.
    #[must_use]
    pub fn unknown(field: &'static str, number: u8) -> Self {
        Self { field, problem: Problem::Unknown(number) }
    }
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// The bytes end within it.
    #[error("ends too early")]
    Short,
    /// Not a varint, or one longer than needed.
    #[error("is not a number")]
    Varint,
    /// Outside its range.
    #[error("is {value}, allowed are {least} to {most}")]
    Range {
        /// The value as stored.
        value: u64,
        /// Smallest value allowed.
        least: u64,
        /// Largest value allowed.
        most: u64,
    },
    /// Bytes follow where nothing may.
    #[error("is followed by {count} bytes too many")]
    Trailing {
        /// Number of bytes.
        count: usize,
    },
    /// A number that only a later version can have written.
    #[error("{0} is not known to this version")]
    Unknown(u8),
    /// A rule of the specification is broken.
    #[error("{0}")]
    Rule(&'static str),
}

/// Bytes of a varint, at most.
pub(crate) const VARINT_BYTES_MAX: usize = 10;

/// Reads fields one after another.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Begins at the first byte.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not yet read.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], FormatError> {
        let (head, rest) =
            self.rest.split_at_checked(len).ok_or(FormatError { field, problem: Problem::Short })?;
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], FormatError> {
        let (head, rest) =
            self.rest.split_first_chunk().ok_or(FormatError { field, problem: Problem::Short })?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, FormatError> {
        Ok(self.array::<1>(field)?[0])
    }

    /// Two bytes.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// Four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// A varint of any value.
    pub fn varint(&mut self, field: &'static str) -> Result<u64, FormatError> {
        let bad = FormatError { field, problem: Problem::Varint };
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(field)?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(bad);
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return if byte == 0 && shift > 0 { Err(bad) } else { Ok(value) };
            }
        }
        Err(bad)
    }

    /// A varint from `least` to `most`.
    pub fn between(&mut self, field: &'static str, least: u64, most: u64) -> Result<u64, FormatError> {
        let value = self.varint(field)?;
        if (least..=most).contains(&value) {
            Ok(value)
        } else {
            Err(FormatError { field, problem: Problem::Range { value, least, most } })
        }
    }

    /// A varint of at most `most`.
    pub fn u32_most(&mut self, field: &'static str, most: u32) -> Result<u32, FormatError> {
        let value = self.between(field, 0, u64::from(most))?;
        u32::try_from(value).map_err(|_| FormatError { field, problem: Problem::Varint })
    }

    /// A count of things that take at least `bytes_each` bytes each of what is left,
    /// so it is safe to allocate for them.
    pub fn count(
        &mut self,
        field: &'static str,
        most: usize,
        bytes_each: usize,
    ) -> Result<usize, FormatError> {
        let value = self.between(field, 0, most as u64)?;
        match usize::try_from(value) {
            Ok(count) if count.saturating_mul(bytes_each) <= self.left() => Ok(count),
            _ => Err(FormatError { field, problem: Problem::Short }),
        }
    }

    /// A varint length of at most `most`, and that many bytes.
    pub fn prefixed(&mut self, field: &'static str, most: usize) -> Result<&'a [u8], FormatError> {
        let len = self.count(field, most, 1)?;
        self.bytes(field, len)
    }

    /// Checks that nothing is left.
    pub fn end(&self, field: &'static str) -> Result<(), FormatError> {
        end(field, self.rest.len())
    }
}

/// Checks that `left`, the number of bytes after the last field, is 0.
pub(crate) fn end(field: &'static str, left: usize) -> Result<(), FormatError> {
    match left {
        0 => Ok(()),
        count => Err(FormatError { field, problem: Problem::Trailing { count } }),
    }
}

/// Appends a varint.
pub fn put_varint(out: &mut Vec<u8>, value: u64) {
    let mut rest = value;
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Appends a varint length and the bytes.
pub fn put_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back_and_are_as_short_as_can_be() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            let mut decoder = Decoder::new(&bytes);
            assert_eq!(decoder.varint("x"), Ok(value));
            assert_eq!(decoder.end("x"), Ok(()));
            let mut longer = bytes.clone();
            *longer.last_mut().unwrap() |= 0x80;
            longer.push(0);
            assert!(Decoder::new(&longer).varint("x").is_err(), "{value} in one byte too many");
            assert!(Decoder::new(&bytes[..bytes.len() - 1]).varint("x").is_err());
        }
        assert!(Decoder::new(&[0xff; 10]).varint("x").is_err());
        assert!(
            Decoder::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).varint("x").is_err()
        );
    }

    #[test]
    fn a_count_is_refused_when_the_bytes_cannot_hold_it() {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, 1_000_000);
        assert!(Decoder::new(&bytes).count("x", usize::MAX, 1).is_err());
        assert_eq!(Decoder::new(&bytes).count("x", usize::MAX, 0), Ok(1_000_000));
    }
}
