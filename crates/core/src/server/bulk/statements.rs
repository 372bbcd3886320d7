//! Statements of arbitrary bytes, and rows for the server's own bulk loader ([`load`]).
//!
//! As with a [`Wire`], a session must be dropped here after any error except a refusal.

use std::time::Duration;

use super::wire::{COM_QUERY, Done, END, ERROR, HEADER_BYTES, LOCAL_FILE, OK, Wire};
use crate::{
    error::Result,
    server::{Session, SqlError, connection},
};

/// How long a statement over a large table may take.
const PATIENCE: Duration = Duration::from_secs(7 * 24 * 3_600);
const COM_PING: u8 = 14;
const COM_SET_OPTION: u8 = 27;
/// Value of the option that makes the server refuse several statements in one command.
const MULTI_STATEMENTS_OFF: [u8; 2] = [1, 0];
/// Bytes of rows to send in a packet; fewer if the server accepts less.
const PIECE_BYTES: usize = 256 << 10;
/// Length of the packet that makes the server enlarge its buffer before it is asked for rows.
const ROOM_BYTES: usize = 256 << 10;

/// Allows the server as much time as it takes to index a large table, both to answer and to accept what is
/// written.
pub fn be_patient(session: &mut Session) -> Result<(), SqlError> {
    session.set_answer_timeout(PATIENCE)?;
    session.socket_mut().set_write_timeout(Some(PATIENCE)).map_err(|error| SqlError::from_io(&error))
}

/// Allows the server as much time to answer what `ask` asks, and its usual time again afterwards.
pub fn patiently<T>(
    session: &mut Session,
    ask: impl FnOnce(&mut Session) -> Result<T, SqlError>,
) -> Result<T, SqlError> {
    let usual = session.socket_mut().read_timeout().map_err(|error| SqlError::from_io(&error))?;
    session.set_answer_timeout(PATIENCE)?;
    let answer = ask(session)?;
    session.socket_mut().set_read_timeout(usual).map_err(|error| SqlError::from_io(&error))?;
    Ok(answer)
}

/// Makes the server accept only one statement at a time from now on, which is all that most clients ever ask
/// for.
pub fn one_statement_at_a_time(session: &mut Session) -> Result<(), SqlError> {
    let doing = |error: SqlError| error.doing("switch several statements at once off");
    let mut wire = Wire::new(session);
    wire.send(COM_SET_OPTION, &MULTI_STATEMENTS_OFF).map_err(doing)?;
    let answer = wire.receive().map_err(doing)?;
    match answer.split_first() {
        Some((&(OK | END), _)) => Ok(()),
        Some((&ERROR, rest)) => Err(doing(SqlError::from_packet(rest))),
        _ => Err(doing(SqlError::unexpected("a malformed answer"))),
    }
}

/// Makes the server send rows in long pieces. The server sends its buffer when it is full, which is at first
/// after 16 KiB (`net_buffer_length`). The buffer grows to the longest packet that it ever held, and stays
/// that large for as long as the session lives. So this sends a long packet that asks for nothing.
pub fn expect_many_rows(session: &mut Session) -> Result<(), SqlError> {
    let doing = |error: SqlError| error.doing("make room for rows");
    let packet_bytes_max: usize = session.number("SELECT @@max_allowed_packet")?;
    let mut wire = Wire::new(session);
    wire.send(COM_PING, &vec![0; ROOM_BYTES.min(packet_bytes_max / 2)]).map_err(doing)?;
    wire.done().map(drop).map_err(doing)
}

/// Executes a statement that returns no rows.
pub fn exec(session: &mut Session, statement: &[u8]) -> Result<Done, SqlError> {
    let doing = |error: SqlError| error.doing(shown(statement));
    let mut wire = Wire::new(session);
    wire.send(COM_QUERY, statement).map_err(doing)?;
    wire.done().map_err(doing)
}

/// The beginning of a statement as errors may show it: on one line, and without passwords or rows.
pub(crate) fn shown(statement: &[u8]) -> String {
    /// Never show more than this, whatever follows.
    const BYTES_MAX: usize = 1 << 10;
    /// Precedes a password, as a word or part of one (`MASTER_PASSWORD`), or rows.
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
    connection::shown(&line.join(" "))
}

/// Executes `LOAD DATA LOCAL`. `feed` provides the content of its file, which is sent in packets of at most
/// `packet_bytes_max`. If `feed` fails, the statement is left unfinished, and the session must be dropped.
pub fn load(
    session: &mut Session,
    statement: &str,
    packet_bytes_max: usize,
    feed: &mut dyn FnMut(&mut Feed<'_>) -> Result<()>,
) -> Result<Done> {
    let doing = |error: SqlError| error.doing(connection::shown(statement));
    let mut wire = Wire::new(session);
    wire.send(COM_QUERY, statement.as_bytes()).map_err(doing)?;
    let answer = wire.receive().map_err(doing)?;
    match answer.split_first() {
        Some((&LOCAL_FILE, _)) => {}
        Some((&ERROR, rest)) => return Err(doing(SqlError::from_packet(rest)).into()),
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

/// Accepts the content of the file that a bulk load reads.
pub struct Feed<'s> {
    wire: Wire<'s>,
    /// Room for the header, followed by the bytes not yet sent.
    packet: Vec<u8>,
    piece_bytes: usize,
}

impl Feed<'_> {
    /// The buffer for the next bytes; [`Feed::flush_full`] sends them.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.packet
    }

    /// Sends the buffer once it is long enough for a packet.
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

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixStream};

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

    /// All bytes arrive in packets of the agreed length, numbered consecutively.
    #[test]
    fn feeds() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let sender = std::thread::spawn(move || {
            let wire = Wire::over(&mut ours, 2);
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
