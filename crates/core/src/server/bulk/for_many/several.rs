//! MySQL's `COM_STMT_EXECUTE` with the parameters of several rows: one statement for as many rows as are
//! usually sent together, and one for a single row, used for the remaining rows and for long rows.

use std::collections::VecDeque;

use super::{
    super::{
        prepared::{PARAMETERS_MAX, Prepared},
        wire::{Done, HEADER_BYTES, PACKET_FULL},
    },
    ForMany, ParameterType,
};
use crate::server::{Session, SqlError};

const COM_STMT_EXECUTE: u8 = 0x17;
/// No cursor; one execution.
const ONCE: [u8; 5] = [0, 1, 0, 0, 0];
/// Whether the packet includes the types of the parameters, as it does the first time.
const WITH_TYPES: u8 = 1;
const SAME_TYPES: u8 = 0;
/// More rows in one statement gain nothing for short rows, and cost the server more for others.
const ROWS_MAX: usize = 64;

/// A statement for a fixed number of rows.
struct OfRows {
    statement: Prepared,
    rows: usize,
    are_types_known: bool,
}

/// Where a row ends, within the values and flags that wait.
struct RowEnd {
    values: usize,
    nulls: usize,
}

pub(super) struct Several {
    many: OfRows,
    /// The statement for one row; `None` if `many` is for one row.
    one: Option<OfRows>,
    types: Vec<ParameterType>,
    /// The values of the waiting rows, one after the other.
    values: Vec<u8>,
    /// For each column of these rows, whether it is NULL.
    nulls: Vec<bool>,
    /// Where each of these rows ends.
    ends: VecDeque<RowEnd>,
    /// Where the first row that is not yet sent begins.
    begin: RowEnd,
    packet: Vec<u8>,
    bytes_wanted: usize,
    packet_bytes_max: usize,
}

impl OfRows {
    fn prepare(
        session: &mut Session,
        (begin, places): (&str, &str),
        rows: usize,
    ) -> Result<Option<OfRows>, SqlError> {
        let statement = format!("{begin}{}", vec![places; rows].join(","));
        let statement = Prepared::prepare(session, &statement)?;
        Ok(statement.map(|statement| OfRows { statement, rows, are_types_known: false }))
    }

    /// Writes a packet with these parameters.
    fn write(&self, packet: &mut Vec<u8>, types: &[ParameterType], nulls: &[bool], values: &[u8]) {
        packet.clear();
        packet.extend_from_slice(&[0; HEADER_BYTES]);
        packet.push(COM_STMT_EXECUTE);
        packet.extend_from_slice(&self.statement.id.to_le_bytes());
        packet.extend_from_slice(&ONCE);
        packet.extend(nulls.chunks(8).map(|eight| {
            eight.iter().enumerate().fold(0, |bits, (bit, is_null)| bits | u8::from(*is_null) << bit)
        }));
        if self.are_types_known {
            packet.push(SAME_TYPES);
        } else {
            packet.push(WITH_TYPES);
            packet.extend((0..self.rows).flat_map(|_| types).flat_map(|it| it.code()));
        }
        packet.extend_from_slice(values);
    }
}

impl Several {
    pub(super) fn prepare(
        session: &mut Session,
        insert: (&str, &str),
        types: &[ParameterType],
        (bytes_wanted, packet_bytes_max): (usize, usize),
        rows: u64,
    ) -> Result<Option<Several>, SqlError> {
        let rows = usize::try_from(rows).unwrap_or(ROWS_MAX).clamp(1, ROWS_MAX);
        let rows = rows.min(PARAMETERS_MAX / types.len().max(1)).max(1);
        let Some(many) = OfRows::prepare(session, insert, rows)? else { return Ok(None) };
        let one = if rows > 1 { OfRows::prepare(session, insert, 1)? } else { None };
        if rows > 1 && one.is_none() {
            many.statement.close(session)?;
            return Ok(None);
        }
        let packet_bytes_max = packet_bytes_max.min(PACKET_FULL);
        Ok(Some(Several {
            many,
            one,
            types: types.to_vec(),
            values: Vec::new(),
            nulls: Vec::new(),
            ends: VecDeque::new(),
            begin: RowEnd { values: 0, nulls: 0 },
            packet: Vec::new(),
            bytes_wanted: bytes_wanted.min(packet_bytes_max),
            packet_bytes_max,
        }))
    }

    /// Length of a packet without the values, at most.
    fn spare_bytes(&self, rows: usize) -> usize {
        let parameters = rows * self.types.len();
        HEADER_BYTES + 1 + size_of::<u32>() + ONCE.len() + parameters.div_ceil(8) + 1 + 2 * parameters
    }
}

impl ForMany for Several {
    fn row_bytes_max(&self) -> usize {
        self.packet_bytes_max.saturating_sub(self.spare_bytes(1))
    }

    fn has_room(&self, row_bytes: usize) -> bool {
        let rows = self.ends.len();
        let waiting = self.values.len() - self.begin.values;
        let bytes = self.spare_bytes(rows + 1) + waiting + row_bytes;
        rows == 0 || rows < self.many.rows && bytes <= self.bytes_wanted
    }

    fn value(&mut self, value: &[u8]) {
        self.nulls.push(false);
        self.values.extend_from_slice(value);
    }

    fn null(&mut self) {
        self.nulls.push(true);
    }

    fn end_row(&mut self) {
        self.ends.push_back(RowEnd { values: self.values.len(), nulls: self.nulls.len() });
    }

    fn exec(&mut self, session: &mut Session) -> Result<Option<Done>, SqlError> {
        let of_rows = match &mut self.one {
            Some(one) if self.ends.len() < self.many.rows => one,
            _ => &mut self.many,
        };
        let Some(end) = self.ends.drain(..of_rows.rows.min(self.ends.len())).next_back() else {
            self.values.clear();
            self.values.shrink_to(2 * self.bytes_wanted);
            self.nulls.clear();
            self.begin = RowEnd { values: 0, nulls: 0 };
            return Ok(None);
        };
        let nulls = &self.nulls[self.begin.nulls..end.nulls];
        let values = &self.values[self.begin.values..end.values];
        of_rows.write(&mut self.packet, &self.types, nulls, values);
        let done = of_rows.statement.exec(session, &mut self.packet)?;
        of_rows.are_types_known = true;
        self.packet.clear();
        self.packet.shrink_to(2 * self.bytes_wanted);
        self.begin = end;
        Ok(Some(done))
    }

    fn close(self: Box<Self>, session: &mut Session) -> Result<(), SqlError> {
        self.many.statement.close(session)?;
        self.one.map_or(Ok(()), |one| one.statement.close(session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_rows(rows: usize) -> OfRows {
        OfRows { statement: Prepared::for_tests(7, rows * 3), rows, are_types_known: false }
    }

    fn several() -> Several {
        Several {
            many: of_rows(3),
            one: Some(of_rows(1)),
            types: vec![ParameterType::Bytes; 3],
            values: Vec::new(),
            nulls: Vec::new(),
            ends: VecDeque::new(),
            begin: RowEnd { values: 0, nulls: 0 },
            packet: Vec::new(),
            bytes_wanted: 100,
            packet_bytes_max: 1_000,
        }
    }

    /// A packet says for each parameter whether it is NULL, gives the types the first time, and then the
    /// values.
    #[test]
    fn packets() {
        let mut statement = of_rows(3);
        let nulls = [false, false, true, false, false, false, false, false, true];
        let mut packet = vec![1; 5];
        let types = [ParameterType::Bytes, ParameterType::Number, ParameterType::Bytes];
        statement.write(&mut packet, &types, &nulls, b"values");
        let begin = b"\0\0\0\0\x17\x07\0\0\0\0\x01\0\0\0\x04\x01";
        assert_eq!(packet, [&begin[..], b"\x01", &b"\xFC\0\x08\x80\xFC\0".repeat(3), b"values"].concat());
        statement.are_types_known = true;
        statement.write(&mut packet, &types, &nulls, b"values");
        assert_eq!(packet, [&begin[..], b"\0values"].concat());
    }

    /// Rows wait until there are enough of them, or enough bytes, to be worth a packet; a long row is sent by
    /// itself.
    #[test]
    fn room() {
        let mut rows = several();
        assert!(rows.has_room(900), "there is always room for one");
        for _ in 0..2 {
            (0..3).for_each(|_| rows.value(b"\x01a"));
            rows.end_row();
        }
        assert!(rows.has_room(20) && !rows.has_room(80));
        (0..3).for_each(|_| rows.null());
        rows.end_row();
        assert!(!rows.has_room(1));
        assert_eq!(rows.row_bytes_max(), 1_000 - rows.spare_bytes(1));
    }
}
