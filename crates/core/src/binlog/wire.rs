//! The replication protocol on an authenticated connection: commands out, packets in.
//!
//! The client library supports neither, so the session's socket is used directly. It carries plain text
//! whatever the transport, and the library buffers nothing between statements.

use std::{
    io::{BufReader, Read, Write},
    os::unix::net::UnixStream,
};

use crate::server::{SqlCause, SqlError};

const READ_BUFFER_BYTES: usize = 256 << 10;
/// A packet of this length is continued in the next.
const PACKET_BYTES_MAX: usize = 0xff_ffff;
/// More than the largest event that a server can send.
const MESSAGE_BYTES_MAX: usize = (1 << 30) + (16 << 20);

/// Reads messages from the server.
pub(super) struct Messages {
    input: BufReader<UnixStream>,
}

/// Writes commands.
pub(super) struct Commands {
    output: UnixStream,
}

/// Splits a socket into its reading and its writing end.
pub(super) fn split(socket: UnixStream) -> Result<(Messages, Commands), SqlError> {
    let output = socket.try_clone().map_err(|error| lost(&error))?;
    Ok((Messages { input: BufReader::with_capacity(READ_BUFFER_BYTES, socket) }, Commands { output }))
}

pub(super) fn lost(error: &std::io::Error) -> SqlError {
    match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            SqlError::new(SqlCause::Lost, "the server sent no sign of life in time")
        }
        _ => SqlError::new(SqlCause::Lost, format!("connection lost: {error}")),
    }
}

impl Messages {
    /// Reads a whole message into `message`.
    pub(super) fn read(&mut self, message: &mut Vec<u8>) -> Result<(), SqlError> {
        message.clear();
        loop {
            let mut head = [0; 4];
            self.input.read_exact(&mut head).map_err(|error| lost(&error))?;
            let len = usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
            if message.len() + len > MESSAGE_BYTES_MAX {
                return Err(SqlError::new(
                    SqlCause::Protocol,
                    "the server sent a message of more than 1 GiB",
                ));
            }
            let read =
                (&mut self.input).take(len as u64).read_to_end(message).map_err(|error| lost(&error))?;
            if read < len {
                return Err(SqlError::new(SqlCause::Lost, "connection lost: the server closed it"));
            }
            if len < PACKET_BYTES_MAX {
                return Ok(());
            }
        }
    }
}

impl Commands {
    /// Sends a command, or an acknowledgement: each begins a new packet sequence.
    pub(super) fn send(&mut self, command: &[u8]) -> Result<(), SqlError> {
        // Far below the length at which it would have to be split.
        let len = (command.len() as u32).to_le_bytes();
        let packet = [&len[..3], &[0], command].concat();
        self.output.write_all(&packet).map_err(|error| lost(&error))
    }
}

/// Registers as a replica.
pub(super) fn register(server_id: u32) -> Vec<u8> {
    const REGISTER: u8 = 0x15;
    let host = b"holdfast";
    let mut command = vec![REGISTER];
    command.extend_from_slice(&server_id.to_le_bytes());
    command.push(host.len() as u8);
    command.extend_from_slice(host);
    // No user, no password, no port, no rank, no source.
    command.extend_from_slice(&[0; 1 + 1 + 2 + 4 + 4]);
    command
}

/// Flags that say how a stream is sent.
pub(super) mod flags {
    /// The stream ends where the binlog ends.
    pub(in crate::binlog) const NON_BLOCKING: u16 = 1;
    /// Send the statements that rows come from as well (MariaDB).
    pub(in crate::binlog) const ANNOTATE_ROWS: u16 = 2;
    /// Begin after a set of transactions, not at a position (MySQL).
    pub(in crate::binlog) const THROUGH_GTID: u16 = 4;
}

/// Asks for a stream from a position, or on MariaDB from where `@slave_connect_state` says.
pub(super) fn dump(server_id: u32, flags: u16, file: &str, position: u32) -> Vec<u8> {
    const DUMP: u8 = 0x12;
    let mut command = vec![DUMP];
    command.extend_from_slice(&position.to_le_bytes());
    command.extend_from_slice(&flags.to_le_bytes());
    command.extend_from_slice(&server_id.to_le_bytes());
    command.extend_from_slice(file.as_bytes());
    command
}

/// Asks for all transactions except those in a set (MySQL).
pub(super) fn dump_gtid(server_id: u32, flags: u16, set: &[u8]) -> Vec<u8> {
    const DUMP_GTID: u8 = 0x1e;
    let mut command = vec![DUMP_GTID];
    command.extend_from_slice(&(flags | flags::THROUGH_GTID).to_le_bytes());
    command.extend_from_slice(&server_id.to_le_bytes());
    command.extend_from_slice(&0_u32.to_le_bytes());
    command.extend_from_slice(&4_u64.to_le_bytes());
    command.extend_from_slice(&(set.len() as u32).to_le_bytes());
    command.extend_from_slice(set);
    command
}
