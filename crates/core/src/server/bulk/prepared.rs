//! Statements that a server parses once and executes repeatedly with different parameters.

use super::{
    statements,
    wire::{Done, END, ERROR, OK, Wire},
};
use crate::server::{Session, SqlError};

const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_CLOSE: u8 = 0x19;
/// Maximum number of parameters of a statement.
pub(super) const PARAMETERS_MAX: usize = u16::MAX as usize;
/// Errors of a server that lacks the command, does not prepare this kind of statement, does not accept this
/// many parameters, or prepares no statements at all.
const NOT_PREPARED: [u16; 4] = [1047, 1295, 1390, 1461];

/// A prepared statement that returns no rows.
pub(super) struct Prepared {
    pub(super) id: u32,
    pub(super) parameters: usize,
    /// The statement as errors show it.
    shown: String,
}

impl Prepared {
    #[cfg(test)]
    pub(super) fn for_tests(id: u32, parameters: usize) -> Prepared {
        Prepared { id, parameters, shown: String::new() }
    }

    /// `None` if the server does not prepare this kind of statement, this many parameters, or any statement
    /// at all.
    pub(super) fn prepare(session: &mut Session, statement: &str) -> Result<Option<Prepared>, SqlError> {
        let shown = statements::shown(statement.as_bytes());
        let doing = |error: SqlError| error.doing(&shown);
        let mut wire = Wire::new(session);
        wire.send(COM_STMT_PREPARE, statement.as_bytes()).map_err(doing)?;
        let answer = Self::answer(&mut wire).map_err(doing)?;
        Ok(answer.map(|(id, parameters)| Prepared { id, parameters: usize::from(parameters), shown }))
    }

    /// Reads the answer: the statement's id, and the number of its parameters.
    pub(super) fn answer(wire: &mut Wire<'_>) -> Result<Option<(u32, u16)>, SqlError> {
        let answer = wire.receive()?;
        let odd = || SqlError::unexpected("a malformed answer");
        let (id, parameters) = match answer.as_slice() {
            [ERROR, rest @ ..] => {
                let error = SqlError::from_packet(rest);
                let is_for_good = error.code().is_some_and(|code| NOT_PREPARED.contains(&code));
                return if is_for_good { Ok(None) } else { Err(error) };
            }
            // Statement id, number of columns, number of parameters.
            [OK, a, b, c, d, 0, 0, e, f, ..] => {
                (u32::from_le_bytes([*a, *b, *c, *d]), u16::from_le_bytes([*e, *f]))
            }
            _ => return Err(odd()),
        };
        if parameters > 0 {
            for _ in 0..parameters {
                wire.receive()?;
            }
            let end = wire.receive()?;
            if end.first() != Some(&END) {
                return Err(odd());
            }
        }
        Ok(Some((id, parameters)))
    }

    /// Executes the statement with a packet that has room for its header. The packet's content is left as it
    /// is.
    pub(super) fn exec(&self, session: &mut Session, packet: &mut Vec<u8>) -> Result<Done, SqlError> {
        let mut wire = Wire::new(session);
        let sent = wire.send_prepared(std::mem::take(packet));
        *packet = sent.map_err(|error| error.doing(&self.shown))?;
        wire.done().map_err(|error| error.doing(&self.shown))
    }

    /// Makes the server forget the statement.
    pub(super) fn close(self, session: &mut Session) -> Result<(), SqlError> {
        // The server does not answer this command.
        Wire::new(session).send(COM_STMT_CLOSE, &self.id.to_le_bytes())
    }
}
