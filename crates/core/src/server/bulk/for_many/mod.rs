//! Rows sent as parameters of a prepared `INSERT`: the server parses the statement once, and no value is
//! written as text.
//!
//! MariaDB executes a statement that has the parameters of one row for many rows at a time ([`bulk`]). MySQL
//! has no such command: it gets a statement with parameters for many rows ([`several`]).

mod bulk;
mod several;

use super::wire::Done;
use crate::server::{Session, SqlError};

/// Errors of a server, or of a proxy before it, that prepares a statement and then does not execute it.
const NOT_FOR_MANY: [u16; 4] = [1047, 1243, 1295, 4033];

/// How a parameter is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterType {
    /// Bytes without a character set, whatever the session's is: a length-encoded string.
    Bytes,
    /// An unsigned number: eight bytes, little-endian.
    Number,
}

impl ParameterType {
    /// The protocol's code: the type, and whether it is unsigned.
    fn code(self) -> [u8; 2] {
        match self {
            Self::Bytes => [252, 0],
            Self::Number => [8, 0x80],
        }
    }
}

/// A prepared `INSERT`, and the rows waiting to be sent.
pub trait ForMany {
    /// Length of the longest row that can be added, counting eight bytes for each column.
    fn row_bytes_max(&self) -> usize;

    /// Whether a row of `row_bytes` bytes can be added to the waiting rows. If not, call [`ForMany::exec`].
    fn has_room(&self, row_bytes: usize) -> bool;

    /// Adds a value to a row, encoded as its parameter's type requires. Bytes are stored as they are sent.
    fn value(&mut self, value: &[u8]);

    /// Adds NULL to a row.
    fn null(&mut self);

    /// Ends a row.
    fn end_row(&mut self);

    /// Executes the statement for some of the waiting rows; `None` if no rows wait.
    fn exec(&mut self, session: &mut Session) -> Result<Option<Done>, SqlError>;

    /// Makes the server forget the statement.
    fn close(self: Box<Self>, session: &mut Session) -> Result<(), SqlError>;
}

/// Prepares an `INSERT` on MariaDB, where all parameters are bytes. The statement begins with `begin`, and
/// `places` stands for one row. Rows are sent together up to a length of `bytes.0`, and no packet is longer
/// than `bytes.1`. `None` if the server does not prepare this kind of statement, this many parameters, or any
/// statement at all.
pub fn prepare_bulk(
    session: &mut Session,
    (begin, places): (&str, &str),
    bytes: (usize, usize),
) -> Result<Option<Box<dyn ForMany>>, SqlError> {
    let bulk = bulk::Bulk::prepare(session, &format!("{begin}{places}"), bytes)?;
    Ok(bulk.map(|bulk| Box::new(bulk) as Box<dyn ForMany>))
}

/// Like [`prepare_bulk`], but on MySQL, for a table of `rows` rows, with parameters of these types in each
/// row.
///
/// The session's `character_set_client` should be `binary` at execution. The server writes each parameter
/// into the text of a statement that it may have to show to an audit plugin (one is always active, for
/// passwords), and looks for character boundaries if characters may be several bytes long.
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

/// Whether an error of [`ForMany::exec`] means that this server does not support such statements.
#[must_use]
pub fn is_refused(error: &SqlError) -> bool {
    error.code().is_some_and(|code| NOT_FOR_MANY.contains(&code))
}
