//! Where transactions begin and end.

use super::{BinlogError, Body, Event, EventKind, GtidEvent};

/// The role of an event in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The event belongs to no transaction.
    Outside,
    /// The event begins a transaction.
    First,
    /// The event is inside a transaction.
    Inside,
    /// The event ends a transaction.
    Last,
}

/// Follows events in order and tells where transactions begin and end. A transaction that is followed by
/// another one, or by an event of the file, before its own last event has not ended: the server died while
/// writing it, and it never happened.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    open: Option<Open>,
}

/// A transaction that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its first event.
    pub gtid: GtidEvent,
    /// Bytes of its events so far.
    pub bytes: u64,
    /// Whether BEGIN was seen, or is implied (MariaDB).
    pub has_begun: bool,
}

impl Tracker {
    /// A tracker in the middle of a transaction.
    #[must_use]
    pub fn inside(open: Open) -> Self {
        Self { open: Some(open) }
    }

    /// The state needed to continue with [`inside`](Self::inside); `None` between two transactions.
    #[must_use]
    pub fn state(&self) -> Option<&Open> {
        self.open.as_ref()
    }

    /// Whether a transaction is open.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.open.is_some()
    }

    /// The open transaction.
    #[must_use]
    pub fn open(&self) -> Option<&GtidEvent> {
        self.open.as_ref().map(|open| &open.gtid)
    }

    /// Takes the next event.
    pub fn next(&mut self, event: &Event<'_>, body: &Body<'_>) -> Result<Part, BinlogError> {
        let len = u64::from(event.header.len);
        if let Body::Gtid(gtid) = body {
            let has_begun = event.header.kind == EventKind::MARIADB_GTID && !gtid.is_standalone;
            self.open = Some(Open { gtid: gtid.clone(), bytes: len, has_begun });
            return Ok(Part::First);
        }
        if is_of_the_file(event.header.kind) {
            self.open = None;
            return Ok(Part::Outside);
        }
        let Some(open) = &mut self.open else { return Ok(Part::Outside) };
        open.bytes = open.bytes.saturating_add(len);
        let ends = match open.gtid.len {
            Some(len) if open.bytes > len => {
                let (field, rule) = ("length", "is more than its transaction has left");
                return Err(BinlogError::Field { event: event.header.kind, field, rule });
            }
            Some(len) => open.bytes == len,
            None => open.ends_with(event.header.kind, body),
        };
        if ends {
            self.open = None;
        }
        Ok(if ends { Part::Last } else { Part::Inside })
    }
}

impl Open {
    /// Whether the event ends the transaction, by its content, for transactions of unknown length.
    fn ends_with(&mut self, kind: EventKind, body: &Body<'_>) -> bool {
        match body {
            Body::Xid | Body::XaPrepare | Body::Payload(_) => true,
            Body::Query(query) if self.has_begun => query.ends_transaction(),
            Body::Query(query) => {
                self.has_begun = query.begins_transaction();
                !self.has_begun
            }
            Body::Rows(rows) => !self.has_begun && rows.ends_statement,
            Body::TableMap(_) | Body::RowsStatement(_) => false,
            _ => !self.has_begun && !is_of_a_statement(kind),
        }
    }
}

/// Whether the event occurs only between transactions.
fn is_of_the_file(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::FORMAT_DESCRIPTION
            | EventKind::ROTATE
            | EventKind::STOP
            | EventKind::PREVIOUS_GTIDS
            | EventKind::GTID_LIST
            | EventKind::BINLOG_CHECKPOINT
            | EventKind::START_ENCRYPTION
    )
}

/// Whether the event comes before the statement that it is for.
fn is_of_a_statement(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::INTVAR
            | EventKind::RAND
            | EventKind::USER_VAR
            | EventKind::BEGIN_LOAD_QUERY
            | EventKind::APPEND_BLOCK
            | EventKind::IGNORABLE
            | EventKind::TRANSACTION_CONTEXT
    )
}
