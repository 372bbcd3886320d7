//! Binlog events, as files and the replication stream carry them: enough to find transactions, their GTIDs,
//! times, statements and touched tables, and to prove that no byte is lost.
//!
//! Event layouts are those of binlog version 4, the only one since MySQL 5.0, little-endian. MySQL and
//! MariaDB give their own kinds of events different numbers, so an event tells whose it is. Verified with
//! MariaDB 10.11 and 11.8 and MySQL 9.7.

mod body;
mod cursor;
mod event;
mod gtids;
mod payload;
mod relay;
mod transaction;

pub use body::{Body, Query, RowsEvent, TableMap};
pub use event::{
    Checksum, Event, EventKind, FILE_MAGIC, Flags, FormatDescription, HEADER_BYTES, Header, split_events,
};
pub use gtids::{GtidEvent, encode_set};
pub use payload::{Payload, PayloadCompression};
pub use relay::{relay_log_head, statement_event};
pub use transaction::{Open, Part, Tracker};

/// Why bytes are not an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BinlogError {
    /// Fewer bytes than the field needs.
    #[error("a {event} event ends within its {field}")]
    Short {
        /// The kind of event.
        event: EventKind,
        /// The field that is cut off.
        field: &'static str,
    },
    /// A field has a value that it cannot have.
    #[error("the {field} of a {event} event {rule}")]
    Field {
        /// The kind of event.
        event: EventKind,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        rule: &'static str,
    },
    /// The header gives another length.
    #[error("a {event} event has {found} bytes, but its header says {said}")]
    Length {
        /// The kind of event.
        event: EventKind,
        /// Bytes according to the header.
        said: u32,
        /// Bytes given.
        found: usize,
    },
    /// The checksum does not match.
    #[error("a {event} event that ends at {end} has a wrong checksum")]
    Checksum {
        /// The kind of event.
        event: EventKind,
        /// Its end in the file, modulo 4 GiB.
        end: u32,
    },
    /// The compressed content cannot be decompressed, or not to the stated length.
    #[error("the content of a {event} event cannot be decompressed")]
    Compressed {
        /// The kind of event.
        event: EventKind,
    },
}

#[cfg(test)]
mod tests;
