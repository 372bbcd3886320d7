//! Event headers, checksums, and the first event of each file.

use std::{fmt, iter, mem};

use super::{BinlogError, body::Body, cursor::Cursor};

/// The first bytes of a binlog file.
pub const FILE_MAGIC: [u8; 4] = *b"\xfebin";
/// The size of every event's header.
pub const HEADER_BYTES: usize = 19;

pub(super) const CHECKSUM_BYTES: usize = 4;

/// The kind of an event. Numbers without a name here are kept and passed on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventKind(pub u8);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl EventKind {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// The name of the kind, if known.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// A statement, or the beginning or end of a transaction.
    QUERY = 2, "Query";
    /// The server was shut down.
    STOP = 3, "Stop";
    /// The next file.
    ROTATE = 4, "Rotate";
    /// `LAST_INSERT_ID` or an auto-increment value of the statement that follows.
    INTVAR = 5, "Intvar";
    /// Data of a file that `LOAD DATA` loads.
    APPEND_BLOCK = 9, "Append_block";
    /// The seed of `RAND` of the statement that follows.
    RAND = 13, "Rand";
    /// A user variable of the statement that follows.
    USER_VAR = 14, "User_var";
    /// The format of all other events; first in each file.
    FORMAT_DESCRIPTION = 15, "Format_description";
    /// Commit of a transaction.
    XID = 16, "Xid";
    /// First data of a file that `LOAD DATA` loads.
    BEGIN_LOAD_QUERY = 17, "Begin_load_query";
    /// A `LOAD DATA` statement.
    EXECUTE_LOAD_QUERY = 18, "Execute_load_query";
    /// The table that a number in the rows events that follow stands for.
    TABLE_MAP = 19, "Table_map";
    /// Rows in the version before the last.
    WRITE_ROWS_V1 = 23, "Write_rows_v1";
    /// Rows in the version before the last.
    UPDATE_ROWS_V1 = 24, "Update_rows_v1";
    /// Rows in the version before the last.
    DELETE_ROWS_V1 = 25, "Delete_rows_v1";
    /// Something is missing from the binlog.
    INCIDENT = 26, "Incident";
    /// The server is alive. In the stream only.
    HEARTBEAT = 27, "Heartbeat";
    /// May be ignored.
    IGNORABLE = 28, "Ignorable";
    /// The statement that the rows come from (MySQL).
    ROWS_QUERY = 29, "Rows_query";
    /// Inserted rows.
    WRITE_ROWS = 30, "Write_rows";
    /// Updated rows.
    UPDATE_ROWS = 31, "Update_rows";
    /// Deleted rows.
    DELETE_ROWS = 32, "Delete_rows";
    /// Beginning of a transaction (MySQL).
    GTID = 33, "Gtid";
    /// Beginning of a transaction without a GTID (MySQL).
    ANONYMOUS_GTID = 34, "Anonymous_gtid";
    /// All transactions of earlier files (MySQL).
    PREVIOUS_GTIDS = 35, "Previous_gtids";
    /// For group replication (MySQL).
    TRANSACTION_CONTEXT = 36, "Transaction_context";
    /// For group replication (MySQL).
    VIEW_CHANGE = 37, "View_change";
    /// End of a transaction that a later one will commit or roll back.
    XA_PREPARE = 38, "XA_prepare";
    /// Updated rows, with JSON in parts (MySQL).
    PARTIAL_UPDATE_ROWS = 39, "Partial_update_rows";
    /// Compressed events of one transaction (MySQL).
    TRANSACTION_PAYLOAD = 40, "Transaction_payload";
    /// The server is alive, at a position beyond 4 GiB (MySQL). In the stream only.
    HEARTBEAT_V2 = 41, "Heartbeat_v2";
    /// Beginning of a transaction with a tag (MySQL).
    GTID_TAGGED = 42, "Gtid_tagged";
    /// The statement that the rows come from (MariaDB).
    ANNOTATE_ROWS = 160, "Annotate_rows";
    /// The file up to which everything is durable (MariaDB).
    BINLOG_CHECKPOINT = 161, "Binlog_checkpoint";
    /// Beginning of a transaction (MariaDB).
    MARIADB_GTID = 162, "Gtid";
    /// The last transactions of earlier files (MariaDB).
    GTID_LIST = 163, "Gtid_list";
    /// Events that follow are encrypted in the file (MariaDB).
    START_ENCRYPTION = 164, "Start_encryption";
    /// A statement, compressed (MariaDB).
    QUERY_COMPRESSED = 165, "Query_compressed";
    /// Rows, compressed (MariaDB).
    WRITE_ROWS_COMPRESSED_V1 = 166, "Write_rows_compressed_v1";
    /// Rows, compressed (MariaDB).
    UPDATE_ROWS_COMPRESSED_V1 = 167, "Update_rows_compressed_v1";
    /// Rows, compressed (MariaDB).
    DELETE_ROWS_COMPRESSED_V1 = 168, "Delete_rows_compressed_v1";
    /// Rows, compressed (MariaDB).
    WRITE_ROWS_COMPRESSED = 169, "Write_rows_compressed";
    /// Rows, compressed (MariaDB).
    UPDATE_ROWS_COMPRESSED = 170, "Update_rows_compressed";
    /// Rows, compressed (MariaDB).
    DELETE_ROWS_COMPRESSED = 171, "Delete_rows_compressed";
}

impl EventKind {
    /// Whether the event holds rows of a table.
    #[must_use]
    pub fn is_rows(self) -> bool {
        matches!(self.0, 20..=25 | 30..=32 | 39 | 166..=171)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "kind {}", self.0),
        }
    }
}

impl fmt::Debug for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Flags of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flags(pub u16);

impl Flags {
    /// In a file's first event: the server has not closed the file.
    pub const IN_USE: u16 = 0x1;
    /// Made for the stream, and in no file.
    pub const ARTIFICIAL: u16 = 0x20;
    /// A reader that does not know the event may skip it.
    pub const IGNORABLE: u16 = 0x80;

    /// Whether the event is in no file.
    #[must_use]
    pub fn is_artificial(self) -> bool {
        self.0 & Self::ARTIFICIAL != 0
    }
}

/// The first 19 bytes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Seconds since 1970, by the clock of the server that first executed the event: when the statement
    /// began.
    pub timestamp: u32,
    /// The kind of event.
    pub kind: EventKind,
    /// The server that executed the event first.
    pub server_id: u32,
    /// Bytes of the event, header and checksum included.
    pub len: u32,
    /// Where the event ends in its file, modulo 4 GiB; 0 for an event that is in no file.
    pub end: u32,
    /// The flags.
    pub flags: Flags,
}

impl Header {
    /// Reads the first bytes of an event.
    pub fn parse(bytes: &[u8]) -> Result<Self, BinlogError> {
        let kind = EventKind(bytes.get(4).copied().unwrap_or_default());
        let mut cursor = Cursor::new(kind, bytes);
        let timestamp = cursor.u32("header")?;
        cursor.u8("header")?;
        let server_id = cursor.u32("header")?;
        let len = cursor.u32("header")?;
        let end = cursor.u32("header")?;
        let flags = Flags(cursor.u16("header")?);
        if (len as usize) < HEADER_BYTES {
            return Err(cursor.bad("length", "is less than its header takes"));
        }
        Ok(Self { timestamp, kind, server_id, len, end, flags })
    }
}

/// What follows each event of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Checksum {
    /// Nothing.
    #[default]
    None,
    /// CRC-32 (IEEE) of all bytes before it.
    Crc32,
}

impl Checksum {
    /// The checksum of the events after a format description, which `bytes` are as a whole event; `None` if
    /// they are not.
    #[must_use]
    pub fn of_format(bytes: &[u8]) -> Option<Self> {
        let event = Event::parse(bytes, Self::None).ok()?;
        match event.body().ok()? {
            Body::FormatDescription(FormatDescription { checksum, .. }) => Some(checksum),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Crc32 => CHECKSUM_BYTES,
        }
    }
}

/// An event whose length and checksum are right.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Its header.
    pub header: Header,
    /// The bytes between header and checksum; for an event within a payload, perhaps only the beginning.
    pub data: &'a [u8],
}

impl<'a> Event<'a> {
    /// Reads the one event in `bytes`. A format description names its own checksum; all other events have
    /// that of the format description before them.
    pub fn parse(bytes: &'a [u8], checksum: Checksum) -> Result<Self, BinlogError> {
        let header = Header::parse(bytes)?;
        let event = header.kind;
        if header.len as usize != bytes.len() {
            return Err(BinlogError::Length { event, said: header.len, found: bytes.len() });
        }
        let checksum = match event {
            EventKind::FORMAT_DESCRIPTION => FormatDescription::of_event(bytes)?.checksum,
            _ => checksum,
        };
        // A format description has room for a checksum even if events have none.
        let tail = if event == EventKind::FORMAT_DESCRIPTION { CHECKSUM_BYTES } else { checksum.bytes() };
        let end = bytes.len().checked_sub(tail).filter(|end| *end >= HEADER_BYTES);
        let end = end.ok_or(BinlogError::Short { event, field: "checksum" })?;
        if checksum == Checksum::Crc32 && crc32(bytes, end, event) != stored_crc32(bytes, end) {
            return Err(BinlogError::Checksum { event, end: header.end });
        }
        Ok(Self { header, data: bytes.get(HEADER_BYTES..end).unwrap_or_default() })
    }

    /// An event without a checksum. `data` is at least the beginning of its data.
    #[must_use]
    pub fn from_parts(header: Header, data: &'a [u8]) -> Self {
        Self { header, data }
    }
}

/// Splits consecutive events. Bytes that are no whole event come last, as an error.
pub fn split_events(mut bytes: &[u8]) -> impl Iterator<Item = Result<&[u8], &[u8]>> {
    iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let len = Header::parse(bytes).map_or(0, |header| header.len as usize).max(HEADER_BYTES);
        match bytes.split_at_checked(len) {
            Some((event, rest)) => {
                bytes = rest;
                Some(Ok(event))
            }
            None => Some(Err(mem::take(&mut bytes))),
        }
    })
}

fn crc32(bytes: &[u8], end: usize, kind: EventKind) -> u32 {
    const FLAGS_AT: usize = 17;
    let mut crc = crc32fast::Hasher::new();
    if kind == EventKind::FORMAT_DESCRIPTION && end > FLAGS_AT {
        // The flag is set while the file is open, and cleared in place afterwards.
        crc.update(&bytes[..FLAGS_AT]);
        crc.update(&[bytes[FLAGS_AT] & !(Flags::IN_USE as u8)]);
        crc.update(&bytes[FLAGS_AT + 1..end]);
    } else {
        crc.update(&bytes[..end]);
    }
    crc.finalize()
}

fn stored_crc32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|tail| tail.first_chunk()).map_or(0, |tail| u32::from_le_bytes(*tail))
}

/// The format of the events in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatDescription {
    /// The version of the server that wrote the file.
    pub server_version: String,
    /// When the server was started, if this is the first file since; else 0.
    pub created: u32,
    /// What follows each event.
    pub checksum: Checksum,
}

impl FormatDescription {
    const VERSION: u16 = 4;
    const SERVER_VERSION_BYTES: usize = 50;

    /// Reads a whole event, checksum included.
    fn of_event(bytes: &[u8]) -> Result<Self, BinlogError> {
        let event = EventKind::FORMAT_DESCRIPTION;
        let data = bytes.get(HEADER_BYTES..).unwrap_or_default();
        let end = data.len().checked_sub(CHECKSUM_BYTES);
        Self::parse(&data[..end.ok_or(BinlogError::Short { event, field: "checksum" })?])
    }

    /// Reads the bytes between header and checksum.
    pub(super) fn parse(data: &[u8]) -> Result<Self, BinlogError> {
        let mut cursor = Cursor::new(EventKind::FORMAT_DESCRIPTION, data);
        if cursor.u16("version")? != Self::VERSION {
            return Err(cursor.bad("version", "is not 4"));
        }
        let version = cursor.bytes("server version", Self::SERVER_VERSION_BYTES)?;
        let len = version.iter().position(|byte| *byte == 0).unwrap_or(version.len());
        let server_version = String::from_utf8_lossy(&version[..len]).into_owned();
        let created = cursor.u32("creation time")?;
        if usize::from(cursor.u8("header length")?) != HEADER_BYTES {
            return Err(cursor.bad("header length", "is not 19"));
        }
        // The lengths of the fixed parts of all kinds, which are known; then the checksum algorithm.
        let Some((algorithm, _)) = cursor.rest().split_last() else {
            return Err(BinlogError::Short {
                event: EventKind::FORMAT_DESCRIPTION,
                field: "checksum algorithm",
            });
        };
        let checksum = match algorithm {
            0 => Checksum::None,
            1 => Checksum::Crc32,
            _ => return Err(cursor.bad("checksum algorithm", "is not known")),
        };
        Ok(Self { server_version, created, checksum })
    }
}
