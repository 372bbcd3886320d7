//! Statements of any bytes, and rows as the server's own bulk loader takes them, or as parameters of one statement.
//!
//! The client library takes statements as text only, and hands rows to `LOAD DATA LOCAL` in pieces of 4 KiB. Here both go
//! over the socket itself, as in [`raw`](super::raw).
//!
//! Invariants: a statement has done its work only when the server's OK was read; after any error but a refusal the
//! session must be dropped, and with it the server undoes what was not committed.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use super::{
    raw::refusal,
    session::Session,
    sql_error::{self, SqlCause, SqlError},
};
use crate::error::Result;

/// A packet of this length is continued in the next.
const PACKET_FULL: usize = 0xFF_FFFF;
const HEADER_BYTES: usize = 4;
const COM_QUERY: u8 = 3;
const COM_PING: u8 = 14;
const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_CLOSE: u8 = 0x19;
/// MariaDB.
const COM_STMT_BULK_EXECUTE: u8 = 0xFA;
/// Of a bulk: its parameters' types are said.
const WITH_TYPES: u16 = 128;
/// Errors of a server that has no such command, no such prepared statement, none with so many parameters, none at all.
const NOT_PREPARED: [u16; 4] = [1047, 1295, 1390, 1461];
/// Errors of a server, or of what stands before it, that prepares a statement and does not carry it out for many.
const NOT_FOR_MANY: [u16; 3] = [1047, 1295, 4033];
/// Bytes without a character set, whatever that of the session is.
const TYPE_BLOB: u8 = 252;
const COM_SET_OPTION: u8 = 27;
/// What is set by it: a statement that is followed by another is refused.
const MULTI_STATEMENTS_OFF: [u8; 2] = [1, 0];
const END: u8 = 0xFE;
const OK: u8 = 0x00;
const LOCAL_FILE: u8 = 0xFB;
const ERROR: u8 = 0xFF;
/// Answers to statements without rows are short.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Rows are sent in packets of so many bytes, less where the server takes less.
const PIECE_BYTES: usize = 256 << 10;
/// So long a packet the server has room for before it is asked for rows.
const ROOM_BYTES: usize = 256 << 10;
/// Bit of an answer's status: another answer follows.
const MORE_ANSWERS: u16 = 8;

/// What the server says of a statement that it has carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Rows that it has changed.
    pub rows: u64,
    /// Warnings that it has about them.
    pub warnings: u16,
}

/// Lets answers take as long as it takes to build an index of a large table, and so the server to take what is written.
pub fn be_patient(session: &mut Session) -> Result<(), SqlError> {
    const PATIENCE: Duration = Duration::from_secs(7 * 24 * 3_600);
    session.set_answer_timeout(PATIENCE)?;
    session.socket_mut().set_write_timeout(Some(PATIENCE)).map_err(|error| SqlError::from_io(&error))
}

/// Lets the server take one statement at a time from now on, as most clients never ask for anything else.
pub fn one_statement_at_a_time(session: &mut Session) -> Result<(), SqlError> {
    let doing = |error: SqlError| error.doing("switch several statements at once off");
    let mut wire = Wire { socket: session.socket_mut(), sequence: 0 };
    wire.send(COM_SET_OPTION, &MULTI_STATEMENTS_OFF).map_err(doing)?;
    let answer = wire.receive().map_err(doing)?;
    match answer.split_first() {
        Some((&(OK | END), _)) => Ok(()),
        Some((&ERROR, rest)) => Err(doing(refusal(rest))),
        _ => Err(doing(SqlError::unexpected("an answer that makes no sense"))),
    }
}

/// Has the server send rows in long pieces. It sends what its buffer holds when that is full, which is after 16 KiB
/// (`net_buffer_length`); but for as long as the session lives it has grown to the longest packet that was ever in it. So it is
/// sent a long one that asks for nothing.
pub fn expect_many_rows(session: &mut Session) -> Result<(), SqlError> {
    let doing = |error: SqlError| error.doing("make room for rows");
    let packet_bytes_max: usize = session.number("SELECT @@max_allowed_packet")?;
    let mut wire = Wire { socket: session.socket_mut(), sequence: 0 };
    wire.send(COM_PING, &vec![0; ROOM_BYTES.min(packet_bytes_max / 2)]).map_err(doing)?;
    wire.done().map(drop).map_err(doing)
}

/// Carries out a statement without rows.
pub fn exec(session: &mut Session, statement: &[u8]) -> Result<Done, SqlError> {
    let doing = |error: SqlError| error.doing(shown(statement));
    let mut wire = Wire { socket: session.socket_mut(), sequence: 0 };
    wire.send(COM_QUERY, statement).map_err(doing)?;
    wire.done().map_err(doing)
}

/// The beginning of a statement as it may stand in an error: in one line, and without passwords and rows.
pub(crate) fn shown(statement: &[u8]) -> String {
    /// Nobody is shown more, whatever comes then.
    const BYTES_MAX: usize = 1 << 10;
    /// Before a password, as a word or within one (`MASTER_PASSWORD`), or before rows.
    const BEFORE_SECRETS: [&str; 4] = ["IDENTIFIED", "PASSWORD", "VALUES", "VALUE"];
    let head = String::from_utf8_lossy(&statement[..statement.len().min(BYTES_MAX)]);
    let mut begin = 0;
    let mut end = head.len();
    for word in head.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let plain = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if BEFORE_SECRETS.iter().any(|it| it.eq_ignore_ascii_case(plain)) {
            end = begin;
            break;
        }
        begin += word.len();
    }
    let line: Vec<&str> = head[..end].split_whitespace().collect();
    sql_error::shown(&line.join(" "))
}

/// Carries out `LOAD DATA LOCAL`: `feed` gives the content of its file, in packets of at most `packet_bytes_max`. An error of
/// `feed` leaves the statement without its end: the session must be dropped.
pub fn load(
    session: &mut Session,
    statement: &str,
    packet_bytes_max: usize,
    feed: &mut dyn FnMut(&mut Feed<'_>) -> Result<()>,
) -> Result<Done> {
    let doing = |error: SqlError| error.doing(sql_error::shown(statement));
    let mut wire = Wire { socket: session.socket_mut(), sequence: 0 };
    wire.send(COM_QUERY, statement.as_bytes()).map_err(doing)?;
    let answer = wire.receive().map_err(doing)?;
    match answer.split_first() {
        Some((&LOCAL_FILE, _)) => {}
        Some((&ERROR, rest)) => return Err(doing(refusal(rest)).into()),
        _ => return Err(doing(SqlError::unexpected("it wants no rows")).into()),
    }
    let piece_bytes = PIECE_BYTES.min(packet_bytes_max / 2).max(1);
    let mut out = Feed { wire, packet: vec![0; HEADER_BYTES], piece_bytes };
    out.packet.reserve(2 * piece_bytes);
    feed(&mut out)?;
    let Feed { mut wire, packet, .. } = out;
    if packet.len() > HEADER_BYTES {
        wire.send_prepared(packet).map_err(doing)?;
    }
    wire.send_prepared(vec![0; HEADER_BYTES]).map_err(doing)?;
    Ok(wire.done().map_err(doing)?)
}

/// A statement without rows, prepared on a MariaDB, to be carried out for many sets of parameters at once
/// (`COM_STMT_BULK_EXECUTE`).
///
/// A set is, for each parameter, one byte 0 and a length-encoded string, or one byte 1 for NULL.
pub struct ForMany {
    id: u32,
    /// For errors.
    shown: String,
    /// What comes before the parameters.
    begin: Vec<u8>,
}

impl ForMany {
    /// A packet is so long at most.
    pub const BYTES_MAX: usize = PACKET_FULL;

    /// Prepares a statement. `None` where the server does not prepare such a statement, or any, or as many.
    pub fn prepare(session: &mut Session, statement: &str) -> Result<Option<ForMany>, SqlError> {
        let doing = |error: SqlError| error.doing(shown(statement.as_bytes()));
        let mut wire = Wire { socket: session.socket_mut(), sequence: 0 };
        wire.send(COM_STMT_PREPARE, statement.as_bytes()).map_err(doing)?;
        let answer = wire.receive().map_err(doing)?;
        let odd = || doing(SqlError::unexpected("an answer that makes no sense"));
        let (id, parameters) = match answer.as_slice() {
            [ERROR, rest @ ..] => {
                let error = refusal(rest);
                let is_for_good = error.code().is_some_and(|code| NOT_PREPARED.contains(&code));
                return if is_for_good { Ok(None) } else { Err(doing(error)) };
            }
            // Its number, its columns, its parameters.
            [OK, a, b, c, d, 0, 0, e, f, ..] => {
                (u32::from_le_bytes([*a, *b, *c, *d]), u16::from_le_bytes([*e, *f]))
            }
            _ => return Err(odd()),
        };
        if parameters > 0 {
            for _ in 0..parameters {
                wire.receive().map_err(doing)?;
            }
            let end = wire.receive().map_err(doing)?;
            if end.first() != Some(&END) {
                return Err(odd());
            }
        }
        let mut begin = vec![0; HEADER_BYTES];
        begin.push(COM_STMT_BULK_EXECUTE);
        begin.extend_from_slice(&id.to_le_bytes());
        begin.extend_from_slice(&WITH_TYPES.to_le_bytes());
        begin.extend((0..parameters).flat_map(|_| [TYPE_BLOB, 0]));
        Ok(Some(ForMany { id, shown: shown(statement.as_bytes()), begin }))
    }

    /// What a packet holds before the first set of parameters.
    #[must_use]
    pub fn begin(&self) -> &[u8] {
        &self.begin
    }

    /// Carries the statement out for the sets that stand in `packet` behind what [`ForMany::begin`] gave. Empties it but for
    /// that.
    pub fn exec(&self, session: &mut Session, packet: &mut Vec<u8>) -> Result<Done, SqlError> {
        let mut wire = Wire { socket: session.socket_mut(), sequence: 0 };
        let sent = wire.send_prepared(std::mem::take(packet));
        *packet = sent.map_err(|error| error.doing(&self.shown))?;
        packet.truncate(self.begin.len());
        wire.done().map_err(|error| error.doing(&self.shown))
    }

    /// Whether an error of [`ForMany::exec`] says that nothing of the kind is to be had here.
    #[must_use]
    pub fn is_refused(error: &SqlError) -> bool {
        error.code().is_some_and(|code| NOT_FOR_MANY.contains(&code))
    }

    /// Lets the server forget it.
    pub fn close(self, session: &mut Session) -> Result<(), SqlError> {
        // There is no answer.
        Wire { socket: session.socket_mut(), sequence: 0 }.send(COM_STMT_CLOSE, &self.id.to_le_bytes())
    }
}

/// Takes the content of the file that a bulk load reads.
pub struct Feed<'s> {
    wire: Wire<'s>,
    /// Room for the header, and what is not yet sent.
    packet: Vec<u8>,
    piece_bytes: usize,
}

impl Feed<'_> {
    /// Where the next bytes are put; they are sent by [`Feed::flush_full`].
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.packet
    }

    /// Sends what is put there once it is worth a packet.
    pub fn flush_full(&mut self) -> Result<(), SqlError> {
        let payload = self.packet.len() - HEADER_BYTES;
        if payload < self.piece_bytes {
            return Ok(());
        }
        let whole = std::mem::take(&mut self.packet);
        if payload <= 2 * self.piece_bytes {
            self.packet = self.wire.send_prepared(whole)?;
        } else {
            for piece in whole[HEADER_BYTES..].chunks(self.piece_bytes) {
                self.wire.send_prepared([&[0; HEADER_BYTES], piece].concat())?;
            }
        }
        self.packet.clear();
        self.packet.extend_from_slice(&[0; HEADER_BYTES]);
        Ok(())
    }
}

struct Wire<'s> {
    socket: &'s mut UnixStream,
    sequence: u8,
}

impl Wire<'_> {
    fn send(&mut self, command: u8, statement: &[u8]) -> Result<(), SqlError> {
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

    /// Sends a packet that has room for its header. Gives its memory back.
    fn send_prepared(&mut self, mut packet: Vec<u8>) -> Result<Vec<u8>, SqlError> {
        let length = packet.len() - HEADER_BYTES;
        packet[..3].copy_from_slice(&(length as u32).to_le_bytes()[..3]);
        packet[3] = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.write_all(&packet).map_err(|error| SqlError::from_io(&error))?;
        Ok(packet)
    }

    fn receive(&mut self) -> Result<Vec<u8>, SqlError> {
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

    /// The answer to a statement without rows.
    fn done(&mut self) -> Result<Done, SqlError> {
        let answer = self.receive()?;
        match answer.split_first() {
            Some((&OK, rest)) => {
                done(rest).ok_or_else(|| SqlError::unexpected("an answer that makes no sense"))
            }
            Some((&ERROR, rest)) => Err(refusal(rest)),
            _ => Err(SqlError::new(SqlCause::Protocol, "rows where none were asked for")),
        }
    }
}

/// Reads an OK behind its first byte: rows, last id, status, warnings. `None` where another answer follows.
fn done(bytes: &[u8]) -> Option<Done> {
    let (rows, bytes) = number(bytes)?;
    let (_, bytes) = number(bytes)?;
    let (status, bytes) = bytes.split_first_chunk::<2>()?;
    let (warnings, _) = bytes.split_first_chunk::<2>()?;
    let has_more = u16::from_le_bytes(*status) & MORE_ANSWERS != 0;
    (!has_more).then(|| Done { rows, warnings: u16::from_le_bytes(*warnings) })
}

/// A length-encoded number, and what follows.
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

    #[test]
    fn secrets() {
        for (statement, said) in [
            (
                "CREATE USER IF NOT EXISTS `app`@`%` IDENTIFIED BY PASSWORD '*0'",
                "CREATE USER IF NOT EXISTS `app`@`%`",
            ),
            ("create user app\nidentified by 'x'", "create user app"),
            ("CHANGE MASTER TO MASTER_PASSWORD='x'", "CHANGE MASTER TO MASTER_"),
            ("INSERT INTO t (a)\n  VALUES ('x')", "INSERT INTO t (a)"),
            ("INSERT INTO t VALUE('x')", "INSERT INTO t"),
            ("DO 1", "DO 1"),
        ] {
            assert_eq!(shown(statement.as_bytes()), said);
        }
    }

    /// Answers say what they say, whatever lengths their numbers have; odd ones say nothing.
    #[test]
    fn answers() {
        assert_eq!(done(b"\x05\0\x02\0\x01\0"), Some(Done { rows: 5, warnings: 1 }));
        assert_eq!(done(b"\xFD\x01\0\x01\0\x02\0\0\0"), Some(Done { rows: 65_537, warnings: 0 }));
        assert_eq!(done(b"\x05\0\x0A\0\x01\0"), None, "another answer follows");
        for odd in [&b""[..], b"\xFE\0", b"\xFF", b"\0\0\0"] {
            assert_eq!(done(odd), None);
        }
    }

    /// Whatever is fed arrives in packets of the agreed length, each numbered behind the one before.
    #[test]
    fn feeds() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let sender = std::thread::spawn(move || {
            let wire = Wire { socket: &mut ours, sequence: 2 };
            let mut feed = Feed { wire, packet: vec![0; HEADER_BYTES], piece_bytes: 5 };
            for piece in [&b"abc"[..], b"defghi", b"jklmnopqrstu", b"v"] {
                feed.buffer().extend_from_slice(piece);
                feed.flush_full().unwrap();
            }
            feed.packet[HEADER_BYTES..].to_vec()
        });
        let mut read = [0; 37];
        theirs.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"\x09\0\0\x02abcdefghi\x05\0\0\x03jklmn\x05\0\0\x04opqrs\x02\0\0\x05tu");
        assert_eq!(sender.join().unwrap(), b"v");
    }
}
