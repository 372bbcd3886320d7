//! A statement of MariaDB that is prepared once and carried out for many rows at a time, which travel as parameters: the
//! server parses it once, and no value is written as text.

use super::{
    bulk,
    raw::refusal,
    session::Session,
    sql_error::SqlError,
    wire::{Done, END, ERROR, HEADER_BYTES, OK, PACKET_FULL, Wire},
};

const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_CLOSE: u8 = 0x19;
const COM_STMT_BULK_EXECUTE: u8 = 0xFA;
/// The types of the parameters are said with them.
const WITH_TYPES: u16 = 128;
/// Bytes without a character set, whatever that of the session is.
const TYPE_BLOB: u8 = 252;
/// Errors of a server that has no such command, no such prepared statement, none with so many parameters, none at all.
const NOT_PREPARED: [u16; 4] = [1047, 1295, 1390, 1461];
/// Errors of a server, or of what stands before it, that prepares a statement and does not carry it out for many.
const NOT_FOR_MANY: [u16; 3] = [1047, 1295, 4033];

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
        let doing = |error: SqlError| error.doing(bulk::shown(statement.as_bytes()));
        let mut wire = Wire::new(session);
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
        Ok(Some(ForMany { id, shown: bulk::shown(statement.as_bytes()), begin }))
    }

    /// What a packet holds before the first set of parameters.
    #[must_use]
    pub fn begin(&self) -> &[u8] {
        &self.begin
    }

    /// Carries the statement out for the sets that stand in `packet` behind what [`ForMany::begin`] gave. Empties it but for
    /// that.
    pub fn exec(&self, session: &mut Session, packet: &mut Vec<u8>) -> Result<Done, SqlError> {
        let mut wire = Wire::new(session);
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
        Wire::new(session).send(COM_STMT_CLOSE, &self.id.to_le_bytes())
    }
}
