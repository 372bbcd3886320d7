//! Tables that no statement of an archive names.

use holdfast_formats::binlog::{Body, Event as BinlogEvent};

use super::{STATEMENT_BYTES_MAX, is_plain, statement::words};
use crate::server::TableName;

/// Finds the tables that no statement names: nothing has created them.
pub(in crate::extract) struct Unnamed {
    tables: Vec<TableName>,
}

impl Unnamed {
    /// Starts with these tables.
    pub(in crate::extract) fn new(tables: impl Iterator<Item = TableName>) -> Self {
        // Other names can be spelled in several ways.
        Self { tables: tables.filter(|it| is_plain(&it.table)).collect() }
    }

    /// Examines an event.
    pub(in crate::extract) fn event(&mut self, event: &BinlogEvent<'_>) {
        if self.tables.is_empty() {
            return;
        }
        match event.body() {
            Ok(Body::Query(query)) if query.statement.len() <= STATEMENT_BYTES_MAX => {
                let words = words(&query.statement);
                let is_named = |it: &TableName| words.iter().any(|word| word.eq_ignore_ascii_case(&it.table));
                self.tables.retain(|it| !is_named(it));
            }
            Ok(Body::Payload(payload)) => {
                if payload.for_each(&mut |event| self.event(event)).is_err() {
                    self.tables.clear();
                }
            }
            // An unreadable statement may name all of them.
            Ok(Body::Query(_)) | Err(_) => self.tables.clear(),
            Ok(_) => {}
        }
    }

    /// The tables that no statement named.
    pub(in crate::extract) fn tables(&self) -> &[TableName] {
        &self.tables
    }
}
