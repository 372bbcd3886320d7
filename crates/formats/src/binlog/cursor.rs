//! Reads fields in order, each checked against the bytes left.

use super::{BinlogError, EventKind};

/// The rest of an event's body.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    event: EventKind,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(event: EventKind, rest: &'a [u8]) -> Self {
        Self { event, rest }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], BinlogError> {
        let short = BinlogError::Short { event: self.event, field };
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(short)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// An unsigned number of up to eight bytes.
    pub(super) fn uint(&mut self, field: &'static str, len: usize) -> Result<u64, BinlogError> {
        let bytes = self.bytes(field, len)?;
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, BinlogError> {
        Ok(self.uint(field, 1)? as u8)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, BinlogError> {
        Ok(self.uint(field, 2)? as u16)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, BinlogError> {
        Ok(self.uint(field, 4)? as u32)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, BinlogError> {
        self.uint(field, 8)
    }

    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], BinlogError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(field, N)?);
        Ok(array)
    }

    /// A number of variable length, as in the client protocol.
    pub(super) fn packed(&mut self, field: &'static str) -> Result<u64, BinlogError> {
        match self.u8(field)? {
            252 => self.uint(field, 2),
            253 => self.uint(field, 3),
            254 => self.uint(field, 8),
            251 | 255 => Err(self.bad(field, "is not a number")),
            value => Ok(u64::from(value)),
        }
    }

    /// A number of variable length, as in MySQL's serialization library: the number of one bits at the lower
    /// end of the first byte is the number of bytes that follow.
    pub(super) fn varint(&mut self, field: &'static str) -> Result<u64, BinlogError> {
        let first = self.u8(field)?;
        let more = first.trailing_ones() as usize;
        let bits_kept = 7 - more.min(7);
        let high = self.uint(field, more)?;
        match more {
            8 => Ok(high),
            _ => Ok(high << bits_kept | u64::from(first) >> (more + 1)),
        }
    }

    pub(super) fn bad(&self, field: &'static str, rule: &'static str) -> BinlogError {
        BinlogError::Field { event: self.event, field, rule }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}
