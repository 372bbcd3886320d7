//! The content of events, as far as it is used here.

use std::borrow::Cow;
use std::io::Read;

use super::{
    BinlogError, Event, EventKind, FormatDescription, GtidEvent, Payload, cursor::Cursor, gtids::decode_set,
};
use crate::gtid::{Gtid, MariaDbGtid, MySqlGtidSet};

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// The format of all other events.
    FormatDescription(FormatDescription),
    /// Events continue elsewhere.
    Rotate {
        /// The file.
        file: &'a [u8],
        /// The position in it.
        position: u64,
    },
    /// All transactions of earlier files (MySQL).
    PreviousGtids(MySqlGtidSet),
    /// Transactions of earlier files (MariaDB): for each domain the last of each server, the newest of these
    /// at the end.
    GtidList(Vec<MariaDbGtid>),
    /// The file up to which everything is durable (MariaDB).
    BinlogCheckpoint {
        /// The file.
        file: &'a [u8],
    },
    /// A transaction begins.
    Gtid(GtidEvent),
    /// A statement.
    Query(Query<'a>),
    /// A transaction commits.
    Xid,
    /// A transaction ends that a later one will commit or roll back.
    XaPrepare,
    /// The table that a number stands for.
    TableMap(TableMap<'a>),
    /// Rows of a table.
    Rows(RowsEvent),
    /// The statement that rows come from.
    RowsStatement(&'a [u8]),
    /// Compressed events.
    Payload(Payload<'a>),
    /// The server is alive.
    Heartbeat,
    /// The server was shut down.
    Stop,
    /// Something is missing from the binlog.
    Incident {
        /// What the server says about it.
        message: &'a [u8],
    },
    /// Events that follow are encrypted in the file (MariaDB).
    StartEncryption,
    /// Anything else.
    Other,
}

/// A statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// The schema it was executed in.
    pub schema: &'a [u8],
    /// The statement. Of a very long one, perhaps only the beginning.
    pub statement: Cow<'a, [u8]>,
}

impl Query<'_> {
    /// Whether it ends the transaction it is in.
    #[must_use]
    pub fn ends_transaction(&self) -> bool {
        let is = |word: &[u8]| self.statement.eq_ignore_ascii_case(word);
        is(b"COMMIT") || is(b"ROLLBACK")
    }

    /// Whether it begins a transaction.
    #[must_use]
    pub fn begins_transaction(&self) -> bool {
        self.statement.eq_ignore_ascii_case(b"BEGIN") || self.statement.starts_with(b"XA START ")
    }
}

/// The table that a number in rows events stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableMap<'a> {
    /// The number.
    pub table_id: u64,
    /// Its schema.
    pub schema: &'a [u8],
    /// Its name.
    pub table: &'a [u8],
}

/// Rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsEvent {
    /// The table, by its number in a table map.
    pub table_id: u64,
    /// Whether no more rows of the statement follow.
    pub ends_statement: bool,
}

/// A compressed statement is decompressed up to this many bytes.
const STATEMENT_BYTES_MAX: u64 = 1 << 20;

impl<'a> Event<'a> {
    /// The content of the event.
    pub fn body(&self) -> Result<Body<'a>, BinlogError> {
        let kind = self.header.kind;
        let mut cursor = Cursor::new(kind, self.data);
        Ok(match kind {
            EventKind::FORMAT_DESCRIPTION => Body::FormatDescription(FormatDescription::parse(self.data)?),
            EventKind::ROTATE => Body::Rotate { position: cursor.u64("position")?, file: cursor.rest() },
            EventKind::PREVIOUS_GTIDS => Body::PreviousGtids(decode_set(kind, self.data)?),
            EventKind::GTID_LIST => Body::GtidList(gtid_list(cursor)?),
            EventKind::BINLOG_CHECKPOINT => {
                let len = cursor.u32("name length")?;
                Body::BinlogCheckpoint { file: cursor.bytes("name", len as usize)? }
            }
            EventKind::GTID | EventKind::ANONYMOUS_GTID | EventKind::GTID_TAGGED => {
                Body::Gtid(GtidEvent { origin: self.header.server_id, ..GtidEvent::parse(kind, self.data)? })
            }
            EventKind::MARIADB_GTID => {
                let mut event = GtidEvent::parse(kind, self.data)?;
                if let Some(Gtid::MariaDb(gtid)) = &mut event.gtid {
                    gtid.server = self.header.server_id;
                }
                Body::Gtid(event)
            }
            EventKind::QUERY | EventKind::QUERY_COMPRESSED | EventKind::EXECUTE_LOAD_QUERY => {
                Body::Query(query(kind, cursor)?)
            }
            EventKind::XID => Body::Xid,
            EventKind::XA_PREPARE => Body::XaPrepare,
            EventKind::TABLE_MAP => Body::TableMap(table_map(cursor)?),
            EventKind::ROWS_QUERY => {
                // This length is too small for long statements, and is not needed.
                cursor.u8("length")?;
                Body::RowsStatement(cursor.rest())
            }
            EventKind::ANNOTATE_ROWS => Body::RowsStatement(cursor.rest()),
            EventKind::TRANSACTION_PAYLOAD => Body::Payload(Payload::parse(self.data)?),
            EventKind::HEARTBEAT | EventKind::HEARTBEAT_V2 => Body::Heartbeat,
            EventKind::STOP => Body::Stop,
            EventKind::INCIDENT => {
                cursor.u16("number")?;
                let message = match cursor.is_empty() {
                    true => &[][..],
                    false => {
                        let len = cursor.u8("message length")?;
                        cursor.bytes("message", usize::from(len))?
                    }
                };
                Body::Incident { message }
            }
            EventKind::START_ENCRYPTION => Body::StartEncryption,
            kind if kind.is_rows() => {
                const STATEMENT_END: u16 = 1;
                let table_id = cursor.uint("table number", 6)?;
                let ends_statement = cursor.u16("flags")? & STATEMENT_END != 0;
                Body::Rows(RowsEvent { table_id, ends_statement })
            }
            _ => Body::Other,
        })
    }
}

fn gtid_list(mut cursor: Cursor<'_>) -> Result<Vec<MariaDbGtid>, BinlogError> {
    const COUNT_BITS: u32 = 0x0fff_ffff;
    let count = cursor.u32("count")? & COUNT_BITS;
    let mut list = Vec::new();
    for _ in 0..count {
        let (domain, server) = (cursor.u32("domain")?, cursor.u32("server")?);
        list.push(MariaDbGtid { domain, server, sequence: cursor.u64("sequence number")? });
    }
    Ok(list)
}

fn query<'a>(kind: EventKind, mut cursor: Cursor<'a>) -> Result<Query<'a>, BinlogError> {
    const LOAD_FIELDS: usize = 13;
    cursor.bytes("thread and duration", 8)?;
    let schema_len = cursor.u8("schema length")?;
    cursor.u16("error")?;
    let variables_len = cursor.u16("variables length")?;
    if kind == EventKind::EXECUTE_LOAD_QUERY {
        cursor.bytes("file", LOAD_FIELDS)?;
    }
    cursor.bytes("variables", usize::from(variables_len))?;
    let schema = cursor.bytes("schema", usize::from(schema_len))?;
    cursor.u8("schema")?;
    let statement = match kind {
        EventKind::QUERY_COMPRESSED => Cow::Owned(statement(kind, cursor)?),
        _ => Cow::Borrowed(cursor.rest()),
    };
    Ok(Query { schema, statement })
}

/// The beginning of a statement that MariaDB has compressed with zlib: a byte that gives the number of bytes
/// of the length, the length, big-endian, and the stream.
fn statement(kind: EventKind, mut cursor: Cursor<'_>) -> Result<Vec<u8>, BinlogError> {
    const ALGORITHM: u8 = 0x70;
    const LENGTH_BYTES: u8 = 0x07;
    let compressed = || BinlogError::Compressed { event: kind };
    let head = cursor.u8("compression")?;
    if head & ALGORITHM != 0 {
        return Err(cursor.bad("compression", "is not known"));
    }
    let len = cursor.bytes("length", usize::from(head & LENGTH_BYTES))?;
    let len = len.iter().fold(0_u64, |len, byte| len << 8 | u64::from(*byte));
    let wanted = len.min(STATEMENT_BYTES_MAX);
    let mut statement = Vec::new();
    let stream = flate2::read::ZlibDecoder::new(cursor.rest());
    stream.take(wanted).read_to_end(&mut statement).map_err(|_| compressed())?;
    if statement.len() as u64 == wanted { Ok(statement) } else { Err(compressed()) }
}

fn table_map(mut cursor: Cursor<'_>) -> Result<TableMap<'_>, BinlogError> {
    let table_id = cursor.uint("table number", 6)?;
    cursor.u16("flags")?;
    let len = cursor.u8("schema length")?;
    let schema = cursor.bytes("schema", usize::from(len))?;
    cursor.u8("schema")?;
    let len = cursor.u8("table length")?;
    let table = cursor.bytes("table", usize::from(len))?;
    Ok(TableMap { table_id, schema, table })
}
