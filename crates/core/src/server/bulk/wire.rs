//! Packets over a session's socket, for where the client library falls short: it takes statements as text
//! only, sends rows for `LOAD DATA LOCAL` in pieces of 4 KiB, and has no parameters for many rows at a time.
//!
//! Invariants: a statement has taken effect only when the server's OK was read. After any error except a
//! refusal the session must be dropped; the server then undoes what was not committed.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
};

use crate::server::{Session, SqlCause, SqlError};

/// A packet of this length continues in the next one.
pub(super) const PACKET_FULL: usize = 0xFF_FFFF;
pub(super) const HEADER_BYTES: usize = 4;
pub(super) const COM_QUERY: u8 = 3;
/// First byte of packets that are not rows.
pub(super) const OK: u8 = 0x00;
pub(super) const LOCAL_FILE: u8 = 0xFB;
pub(super) const END: u8 = 0xFE;
pub(super) const ERROR: u8 = 0xFF;
/// Longest answer to a statement without rows; such answers are short.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Status bit of an answer: another answer follows.
const MORE_ANSWERS: u16 = 8;

/// The server's report on a statement that it has executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of rows that the statement changed.
    pub rows: u64,
    /// Number of warnings.
    pub warnings: u16,
}

/// A session's socket, and the number of the next packet of a command.
pub(super) struct Wire<'s> {
    socket: &'s mut UnixStream,
    sequence: u8,
}

impl<'s> Wire<'s> {
    /// For one command, from its first packet.
    pub(super) fn new(session: &'s mut Session) -> Self {
        Self { socket: session.socket_mut(), sequence: 0 }
    }

    /// For a command that is already under way.
    #[cfg(any(fuzzing, test))]
    pub(super) fn over(socket: &'s mut UnixStream, sequence: u8) -> Self {
        Self { socket, sequence }
    }

    /// Sends a command, in as many packets as needed.
    pub(super) fn send(&mut self, command: u8, statement: &[u8]) -> Result<(), SqlError> {
        let mut packet = Vec::with_capacity(HEADER_BYTES + 1 + statement.len().min(PACKET_FULL));
        packet.extend_from_slice(&[0; HEADER_BYTES]);
        packet.push(command);
        let (first, mut rest) = statement.split_at(statement.len().min(PACKET_FULL - 1));
        packet.extend_from_slice(first);
        let mut is_full = first.len() == PACKET_FULL - 1;
        self.send_prepared(packet)?;
        while is_full {
            let (piece, after) = rest.split_at(rest.len().min(PACKET_FULL));
            is_full = piece.len() == PACKET_FULL;
            self.send_prepared([&[0; HEADER_BYTES], piece].concat())?;
            rest = after;
        }
        Ok(())
    }

    /// Sends a packet that has room for its header. Returns the packet, so that its memory can be reused.
    pub(super) fn send_prepared(&mut self, mut packet: Vec<u8>) -> Result<Vec<u8>, SqlError> {
        let length = packet.len() - HEADER_BYTES;
        packet[..3].copy_from_slice(&(length as u32).to_le_bytes()[..3]);
        packet[3] = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.write_all(&packet).map_err(|error| SqlError::from_io(&error))?;
        Ok(packet)
    }

    pub(super) fn receive(&mut self) -> Result<Vec<u8>, SqlError> {
        let lost = |error: io::Error| SqlError::from_io(&error);
        let mut header = [0; HEADER_BYTES];
        self.socket.read_exact(&mut header).map_err(lost)?;
        let length = usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        if header[3] != self.sequence {
            let (found, expected) = (header[3], self.sequence);
            return Err(SqlError::unexpected(format_args!("packet {found} where {expected} was due")));
        }
        self.sequence = self.sequence.wrapping_add(1);
        if length > ANSWER_BYTES_MAX {
            return Err(SqlError::unexpected(format_args!("a packet of {length} bytes")));
        }
        let mut answer = vec![0; length];
        self.socket.read_exact(&mut answer).map_err(lost)?;
        Ok(answer)
    }

    /// Receives the answer to a statement without rows.
    pub(super) fn done(&mut self) -> Result<Done, SqlError> {
        let answer = self.receive()?;
        match answer.split_first() {
            Some((&OK, rest)) => done(rest).ok_or_else(|| SqlError::unexpected("a malformed answer")),
            Some((&ERROR, rest)) => Err(SqlError::from_packet(rest)),
            _ => Err(SqlError::new(SqlCause::Protocol, "rows where none were asked for")),
        }
    }
}

/// Parses an OK after its first byte: rows, last id, status, warnings. `None` if another answer follows, or
/// if it is malformed.
fn done(bytes: &[u8]) -> Option<Done> {
    let (rows, bytes) = number(bytes)?;
    let (_, bytes) = number(bytes)?;
    let (status, bytes) = bytes.split_first_chunk::<2>()?;
    let (warnings, _) = bytes.split_first_chunk::<2>()?;
    let has_more = u16::from_le_bytes(*status) & MORE_ANSWERS != 0;
    (!has_more).then(|| Done { rows, warnings: u16::from_le_bytes(*warnings) })
}

/// Parses a length-encoded number; returns it and the bytes that follow.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let count = match first {
        0..=250 => return Some((u64::from(*first), rest)),
        0xFC => 2,
        0xFD => 3,
        0xFE => 8,
        _ => return None,
    };
    let digits = rest.get(..count)?;
    Some((digits.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)), &rest[count..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers are parsed whatever the lengths of their numbers; malformed answers yield nothing.
    #[test]
    fn answers() {
        assert_eq!(done(b"\x05\0\x02\0\x01\0"), Some(Done { rows: 5, warnings: 1 }));
        assert_eq!(done(b"\xFD\x01\0\x01\0\x02\0\0\0"), Some(Done { rows: 65_537, warnings: 0 }));
        assert_eq!(done(b"\x05\0\x0A\0\x01\0"), None, "another answer follows");
        for odd in [&b""[..], b"\xFE\0", b"\xFF", b"\0\0\0"] {
            assert_eq!(done(odd), None);
        }
    }
}
