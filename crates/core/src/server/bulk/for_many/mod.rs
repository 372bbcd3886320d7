//! Rows that travel as parameters of an `INSERT` which is prepared once: the server parses it once, and no value is written as
//! text.
//!
//! A MariaDB carries a statement with the parameters of one row out for many rows at a time ([`bulk`]). A MySQL has no such
//! command: it is given the parameters of many rows for one statement ([`several`]).

mod bulk;
mod several;

use super::wire::Done;
use crate::server::{Session, SqlError};

/// Errors of a server, or of what stands before it, that prepares a statement and then does not carry it out.
const NOT_FOR_MANY: [u16; 4] = [1047, 1243, 1295, 4033];

/// What a parameter is sent as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterType {
    /// Bytes without a character set, whatever that of the session is: a length-encoded string.
    Bytes,
    /// A number without a sign: eight bytes, the lowest first.
    Number,
}

impl ParameterType {
    /// As the protocol has it: the type, and whether it has no sign.
    fn code(self) -> [u8; 2] {
        match self {
            Self::Bytes => [252, 0],
            Self::Number => [8, 0x80],
        }
    }
}

/// A prepared `INSERT`, and rows that wait to be sent.
pub trait ForMany {
    /// Bytes of the longest row that can be added, eight for each column among them.
    fn row_bytes_max(&self) -> usize;

    /// Whether a row of so many bytes can be added to those that wait. If not, [`ForMany::exec`] is due.
    fn has_room(&self, row_bytes: usize) -> bool;

    /// Adds a value to a row, as its parameter's type has it. Bytes are stored as they are sent.
    fn value(&mut self, value: &[u8]);

    /// Adds NULL to a row.
    fn null(&mut self);

    /// Ends a row.
    fn end_row(&mut self);

    /// Carries the statement out for some of the rows that wait; `None` if none does.
    fn exec(&mut self, session: &mut Session) -> Result<Option<Done>, SqlError>;

    /// Lets the server forget it.
    fn close(self: Box<Self>, session: &mut Session) -> Result<(), SqlError>;
}

/// Prepares an `INSERT` on a MariaDB, where all parameters are bytes. The statement begins with `insert.0`, and `insert.1` stands
/// for a row. Rows are sent together until they are `bytes.0` long, and in no packet longer than `bytes.1`. `None` where the
/// server does not prepare such a statement, or any, or as many.
pub fn prepare_bulk(
    session: &mut Session,
    (begin, places): (&str, &str),
    bytes: (usize, usize),
) -> Result<Option<Box<dyn ForMany>>, SqlError> {
    let bulk = bulk::Bulk::prepare(session, &format!("{begin}{places}"), bytes)?;
    Ok(bulk.map(|bulk| Box::new(bulk) as Box<dyn ForMany>))
}

/// The same on a MySQL, for a table of so many rows, with parameters of these types in each.
///
/// The session's `character_set_client` should be `binary` when it is carried out: the server writes each parameter into the
/// text of a statement that it may have to show to an auditing plugin (one is always there, for passwords), and looks for the
/// ends of characters if those may be long.
pub fn prepare_several(
    session: &mut Session,
    insert: (&str, &str),
    types: &[ParameterType],
    bytes: (usize, usize),
    rows: u64,
) -> Result<Option<Box<dyn ForMany>>, SqlError> {
    let several = several::Several::prepare(session, insert, types, bytes, rows)?;
    Ok(several.map(|several| Box::new(several) as Box<dyn ForMany>))
}

/// Whether an error of [`ForMany::exec`] says that nothing of the kind is to be had here.
#[must_use]
pub fn is_refused(error: &SqlError) -> bool {
    error.code().is_some_and(|code| NOT_FOR_MANY.contains(&code))
}
