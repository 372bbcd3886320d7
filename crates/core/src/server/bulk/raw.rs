//! Rows as the server sends them, without parsing each column into a value.
//!
//! In the text protocol, each column of a row is a length-encoded string, or the single byte `0xFB` for NULL.
//! Code that only passes rows on needs nothing else. The query and the packets of its answer go over the
//! session's socket itself, which carries plain text whatever the transport
//! ([`connection`](crate::server::connection)). The client library, whose buffers are empty between
//! statements, does not see them.
//!
//! Invariants: an answer is complete only when its end was read ([`RawRows::next`] returned `None`); a
//! malformed packet is an error, never a row; memory is bounded by [`ROW_WHOLE_MAX`]. A session must be
//! dropped if an answer was not read to its end.

use std::io::{self, Read, Write};

use super::wire::{COM_QUERY, END, ERROR, LOCAL_FILE, OK, PACKET_FULL};
use crate::server::{Session, SqlError, connection::shown};

/// Rows of up to this many bytes are returned whole. Longer rows come in pieces, and the first piece is at
/// least this long.
pub const ROW_WHOLE_MAX: usize = 1 << 20;
/// Bytes to read at a time: few enough to stay in a core's own cache until they are passed on.
const BUFFER_BYTES: usize = 256 << 10;
/// Buffer size for longer rows: room for the longest whole row, its packet header, and some of what follows.
const BUFFER_BYTES_MAX: usize = ROW_WHOLE_MAX + BUFFER_BYTES;
/// A packet that begins with [`END`] and is shorter than this is an end marker.
const END_BYTES_MAX: usize = 9;

/// A row, or a piece of one that is longer than [`ROW_WHOLE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPart<'a> {
    /// A whole row.
    Whole(&'a [u8]),
    /// The beginning of a long row.
    First(&'a [u8]),
    /// A middle piece of it.
    More(&'a [u8]),
    /// The last piece of it; may be empty.
    Last(&'a [u8]),
}

/// The answer to one query.
pub struct RawRows<'s> {
    answer: Answer<'s>,
    columns: usize,
}

/// The buffer that a session reuses to read raw rows.
#[derive(Debug, Default)]
pub struct RawReader {
    buffer: Buffer,
}

impl RawReader {
    /// Runs a query that returns rows.
    pub fn query<'s>(&'s mut self, session: &'s mut Session, query: &str) -> Result<RawRows<'s>, SqlError> {
        let socket = session.socket_mut();
        Answer::begin(&mut self.buffer, socket, query).map_err(|error| error.doing(shown(query)))
    }
}

impl RawRows<'_> {
    /// Number of columns in each row.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The next row, or a piece of one; `None` at the end, once the server has confirmed it.
    #[allow(clippy::should_implement_trait, reason = "a row lives until the next")]
    pub fn next(&mut self) -> Result<Option<RowPart<'_>>, SqlError> {
        self.answer.next()
    }
}

/// Bytes read from the socket and not yet handed out.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Buffer {
    fn unread(&self) -> usize {
        self.end - self.begin
    }

    /// Reads until `count` bytes, at most [`BUFFER_BYTES_MAX`], are buffered.
    fn fill(&mut self, socket: &mut impl Read, count: usize) -> io::Result<()> {
        if self.unread() >= count {
            return Ok(());
        }
        let room = if count > BUFFER_BYTES { BUFFER_BYTES_MAX } else { BUFFER_BYTES };
        if self.bytes.len() < room {
            self.bytes.resize(room, 0);
        }
        if self.unread() == 0 {
            (self.begin, self.end) = (0, 0);
        }
        if self.begin + count > self.bytes.len() {
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        while self.unread() < count {
            match socket.read(&mut self.bytes[self.end..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(&mut self, count: usize) -> std::ops::Range<usize> {
        let begin = self.begin;
        self.begin += count;
        begin..self.begin
    }
}

/// The position within a row that is returned in pieces.
#[derive(Clone, Copy)]
struct Long {
    /// Bytes of the current packet that are still to be returned.
    bytes_left: usize,
    /// Whether another packet continues it.
    goes_on: bool,
}

/// The answer on the socket.
struct Answer<'s> {
    buffer: &'s mut Buffer,
    socket: &'s mut std::os::unix::net::UnixStream,
    sequence: u8,
    long: Option<Long>,
    is_over: bool,
}

impl<'s> Answer<'s> {
    fn begin(
        buffer: &'s mut Buffer,
        socket: &'s mut std::os::unix::net::UnixStream,
        query: &str,
    ) -> Result<RawRows<'s>, SqlError> {
        let length = query.len() + 1;
        if length >= PACKET_FULL {
            return Err(SqlError::misuse(format_args!("a query of {length} bytes")));
        }
        if buffer.unread() > 0 {
            return Err(SqlError::misuse("the answer before was not read to its end"));
        }
        let mut packet = Vec::with_capacity(length + 4);
        packet.extend_from_slice(&(length as u32).to_le_bytes()[..3]);
        packet.extend_from_slice(&[0, COM_QUERY]);
        packet.extend_from_slice(query.as_bytes());
        socket.write_all(&packet).map_err(|error| SqlError::from_io(&error))?;
        let mut answer = Answer { buffer, socket, sequence: 1, long: None, is_over: false };
        let columns = answer.columns()?;
        Ok(RawRows { answer, columns })
    }

    /// Reads everything that precedes the first row.
    fn columns(&mut self) -> Result<usize, SqlError> {
        let first = self.whole()?;
        let columns = match self.buffer.bytes[first].split_first() {
            Some((&ERROR, rest)) => return Err(SqlError::from_packet(rest)),
            Some((&(OK | LOCAL_FILE), _)) | None => return Err(SqlError::unexpected("no rows")),
            // MariaDB adds a byte that says that column definitions follow, for clients that may have them
            // cached.
            Some((&count @ 1..=250, [] | [1])) => usize::from(count),
            Some((&0xFC, [low, high] | [low, high, 1])) => usize::from(u16::from_le_bytes([*low, *high])),
            Some(_) => return Err(SqlError::unexpected("an invalid number of columns")),
        };
        for _ in 0..columns {
            let definition = self.whole()?;
            if let Some((&ERROR, rest)) = self.buffer.bytes[definition].split_first() {
                return Err(SqlError::from_packet(rest));
            }
        }
        let end = self.whole()?;
        match self.buffer.bytes[end.clone()].first() {
            Some(&END) if end.len() < END_BYTES_MAX => Ok(columns),
            _ => Err(SqlError::unexpected("the list of columns has no end")),
        }
    }

    fn next(&mut self) -> Result<Option<RowPart<'_>>, SqlError> {
        if self.is_over {
            return Ok(None);
        }
        if let Some(long) = self.long {
            return self.more_of(long).map(Some);
        }
        let length = self.header()?;
        if length > ROW_WHOLE_MAX {
            let range = self.filled(ROW_WHOLE_MAX)?;
            self.long = Some(Long { bytes_left: length - ROW_WHOLE_MAX, goes_on: length == PACKET_FULL });
            return Ok(Some(RowPart::First(&self.buffer.bytes[range])));
        }
        let range = self.filled(length)?;
        let packet = &self.buffer.bytes[range];
        match packet.first() {
            Some(&END) if packet.len() < END_BYTES_MAX => {
                self.is_over = true;
                if self.buffer.unread() > 0 {
                    return Err(SqlError::unexpected("more than one answer"));
                }
                Ok(None)
            }
            Some(&ERROR) => {
                self.is_over = true;
                Err(SqlError::from_packet(&packet[1..]))
            }
            Some(_) => Ok(Some(RowPart::Whole(packet))),
            None => Err(SqlError::unexpected("an empty row")),
        }
    }

    fn more_of(&mut self, mut long: Long) -> Result<RowPart<'_>, SqlError> {
        if long.bytes_left == 0 && long.goes_on {
            let length = self.header()?;
            long = Long { bytes_left: length, goes_on: length == PACKET_FULL };
        }
        let count = long.bytes_left.min(ROW_WHOLE_MAX);
        let range = self.filled(count)?;
        long.bytes_left -= count;
        let is_last = long.bytes_left == 0 && !long.goes_on;
        self.long = (!is_last).then_some(long);
        let bytes = &self.buffer.bytes[range];
        Ok(if is_last { RowPart::Last(bytes) } else { RowPart::More(bytes) })
    }

    /// Reads a packet that is not a row.
    fn whole(&mut self) -> Result<std::ops::Range<usize>, SqlError> {
        let length = self.header()?;
        if length > ROW_WHOLE_MAX {
            return Err(SqlError::unexpected(format_args!("a packet of {length} bytes")));
        }
        self.filled(length)
    }

    fn header(&mut self) -> Result<usize, SqlError> {
        const HEADER_BYTES: usize = 4;
        let range = self.filled(HEADER_BYTES)?;
        let header = &self.buffer.bytes[range];
        let length = usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        if header[3] != self.sequence {
            let (found, expected) = (header[3], self.sequence);
            return Err(SqlError::unexpected(format_args!("packet {found} where {expected} was due")));
        }
        self.sequence = self.sequence.wrapping_add(1);
        Ok(length)
    }

    fn filled(&mut self, count: usize) -> Result<std::ops::Range<usize>, SqlError> {
        self.buffer.fill(self.socket, count).map_err(|error| SqlError::from_io(&error))?;
        Ok(self.buffer.take(count))
    }
}

/// Reads the answer to `SELECT 1` to its end, whatever its rows are.
#[cfg(any(fuzzing, test))]
pub(super) fn all_rows(socket: &mut std::os::unix::net::UnixStream) -> Result<Vec<Vec<u8>>, SqlError> {
    let mut buffer = Buffer::default();
    let mut rows = Answer::begin(&mut buffer, socket, "SELECT 1")?;
    let mut all: Vec<Vec<u8>> = Vec::new();
    while let Some(part) = rows.next()? {
        let (is_new, bytes) = match part {
            RowPart::Whole(bytes) | RowPart::First(bytes) => (true, bytes),
            RowPart::More(bytes) | RowPart::Last(bytes) => (false, bytes),
        };
        assert!(bytes.len() <= ROW_WHOLE_MAX);
        if is_new {
            all.push(Vec::new());
        }
        all.last_mut().expect("a row that has begun").extend_from_slice(bytes);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixStream, thread};

    use super::*;
    use crate::server::SqlCause;

    fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_le_bytes()[..3].to_vec();
        bytes.push(sequence);
        bytes.extend_from_slice(payload);
        bytes
    }

    /// The result of reading `payloads` from a server: all rows in full, or the error.
    fn answer(payloads: &[Vec<u8>], closes: bool) -> Result<Vec<Vec<u8>>, SqlError> {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let payloads = payloads.to_vec();
        let server = thread::spawn(move || {
            let mut query = [0; 13];
            theirs.read_exact(&mut query).unwrap();
            assert_eq!(&query[4..], b"\x03SELECT 1");
            for (index, payload) in payloads.iter().enumerate() {
                if theirs.write_all(&packet(index as u8 + 1, payload)).is_err() {
                    break;
                }
            }
            if closes { None } else { Some(theirs) }
        });
        let result = all_rows(&mut ours);
        drop(ours);
        server.join().unwrap();
        result
    }

    fn begun(rest: &[&[u8]]) -> Vec<Vec<u8>> {
        let start: [&[u8]; 3] = [b"\x01", b"definition", b"\xFE\0\0\x02\0"];
        start.iter().chain(rest).map(|payload| payload.to_vec()).collect()
    }

    const DONE: &[u8] = b"\xFE\0\0\x22\0";

    /// Rows of any length arrive as they were sent, and only the server's own end marker ends an answer.
    #[test]
    fn rows() {
        assert_eq!(
            answer(&begun(&[b"\x01a", b"\xFB", DONE]), false).unwrap(),
            [b"\x01a".to_vec(), b"\xFB".to_vec()]
        );
        let full = vec![7; PACKET_FULL];
        let long: Vec<u8> = [&full[..], b"rest"].concat();
        assert_eq!(
            answer(&begun(&[b"\x01a", &full, b"rest", DONE]), false).unwrap(),
            [b"\x01a".to_vec(), long]
        );
        assert_eq!(answer(&begun(&[&full, b"", DONE]), false).unwrap(), std::slice::from_ref(&full));
        let middle = vec![9; ROW_WHOLE_MAX + 1];
        assert_eq!(answer(&begun(&[&middle, DONE]), false).unwrap(), [middle]);

        let lost = answer(&begun(&[b"\x01a"]), true).unwrap_err();
        assert_eq!(lost.cause(), &SqlCause::Lost);
        let changed = answer(&begun(&[b"\x01a", b"\xFF\x84\x05#HY000changed"]), false).unwrap_err();
        assert_eq!((changed.code(), changed.to_string().contains("changed")), (Some(1412), true));
        let refused = answer(&[b"\xFF\x7A\x04#42S02no such table".to_vec()], false).unwrap_err();
        assert_eq!(refused.code(), Some(1146));
        for odd in [&b"\x00\0\0"[..], b"\xFB", b"", b"\xFD\0\0", b"\xFC\x01"] {
            assert!(answer(&[odd.to_vec()], true).is_err(), "{odd:?}");
        }
    }
}
