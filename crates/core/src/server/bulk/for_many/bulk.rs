//! MariaDB's `COM_STMT_BULK_EXECUTE`: executes one statement for many rows.

use super::{
    super::{
        prepared::Prepared,
        wire::{Done, HEADER_BYTES, PACKET_FULL},
    },
    ForMany, ParameterType,
};
use crate::server::{Session, SqlError};

const COM_STMT_BULK_EXECUTE: u8 = 0xFA;
/// The packet includes the types of the parameters.
const WITH_TYPES: u16 = 128;
/// Precedes each parameter: whether it has a value.
const VALUE: u8 = 0;
const NULL: u8 = 1;

pub(super) struct Bulk {
    statement: Prepared,
    /// The next packet to send, with room for its header.
    packet: Vec<u8>,
    /// Length of the part of it that precedes the rows.
    begin_bytes: usize,
    bytes_wanted: usize,
    packet_bytes_max: usize,
}

impl Bulk {
    pub(super) fn prepare(
        session: &mut Session,
        statement: &str,
        (bytes_wanted, packet_bytes_max): (usize, usize),
    ) -> Result<Option<Bulk>, SqlError> {
        let Some(statement) = Prepared::prepare(session, statement)? else { return Ok(None) };
        let mut packet = vec![0; HEADER_BYTES];
        packet.push(COM_STMT_BULK_EXECUTE);
        packet.extend_from_slice(&statement.id.to_le_bytes());
        packet.extend_from_slice(&WITH_TYPES.to_le_bytes());
        packet.extend((0..statement.parameters).flat_map(|_| ParameterType::Bytes.code()));
        let packet_bytes_max = packet_bytes_max.min(PACKET_FULL);
        let bytes_wanted = bytes_wanted.min(packet_bytes_max);
        Ok(Some(Bulk { statement, begin_bytes: packet.len(), packet, bytes_wanted, packet_bytes_max }))
    }
}

impl ForMany for Bulk {
    fn row_bytes_max(&self) -> usize {
        self.packet_bytes_max.saturating_sub(self.begin_bytes)
    }

    fn has_room(&self, row_bytes: usize) -> bool {
        self.packet.len() == self.begin_bytes || self.packet.len() + row_bytes <= self.bytes_wanted
    }

    fn value(&mut self, value: &[u8]) {
        self.packet.push(VALUE);
        self.packet.extend_from_slice(value);
    }

    fn null(&mut self) {
        self.packet.push(NULL);
    }

    fn end_row(&mut self) {}

    fn exec(&mut self, session: &mut Session) -> Result<Option<Done>, SqlError> {
        if self.packet.len() == self.begin_bytes {
            return Ok(None);
        }
        let done = self.statement.exec(session, &mut self.packet)?;
        self.packet.truncate(self.begin_bytes);
        self.packet.shrink_to(2 * self.bytes_wanted);
        Ok(Some(done))
    }

    fn close(self: Box<Self>, session: &mut Session) -> Result<(), SqlError> {
        self.statement.close(session)
    }
}
