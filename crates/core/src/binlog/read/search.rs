//! Finding a transaction: when it was committed, what it touched, what it said.

use std::{collections::BTreeSet, ops::ControlFlow};

use holdfast_formats::binlog::{Body, Part};
use serde::Serialize;

use super::{Archive, Place};
use crate::error::Result;

/// So much of what a transaction says is kept.
const STATEMENTS_MAX: usize = 32;
const STATEMENT_BYTES_MAX: usize = 4 << 10;
const TABLES_MAX: usize = 256;

/// A transaction in short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransactionSummary {
    /// Its file.
    pub file: String,
    /// Where it begins in it.
    pub begin: u64,
    /// Where it ends.
    pub end: u64,
    /// Its name, where it has one.
    pub gtid: Option<String>,
    /// When it was committed, in microseconds since 1970.
    pub at: u64,
    /// Bytes of its events.
    pub bytes: u64,
    /// Tables that it changes rows of, as `schema.table`.
    pub tables: Vec<String>,
    /// Statements in it, or that its rows come from, where the server logs them.
    pub statements: Vec<String>,
}

impl TransactionSummary {
    /// Where it begins.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { file: self.file.clone(), position: self.begin }
    }

    /// Whether a statement or the name of a table has `text` in it, whatever the case of its letters.
    #[must_use]
    pub fn mentions(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        self.statements.iter().chain(&self.tables).any(|said| said.to_lowercase().contains(&text))
    }
}

#[derive(Default)]
struct Gathered {
    summary: TransactionSummary,
    tables: BTreeSet<String>,
}

impl Gathered {
    fn take(&mut self, body: &Body<'_>) {
        match body {
            Body::TableMap(map) if self.tables.len() < TABLES_MAX => {
                let name = [map.schema, b".", map.table].concat();
                self.tables.insert(String::from_utf8_lossy(&name).into_owned());
            }
            Body::Query(query) if !query.begins_transaction() && !query.ends_transaction() => {
                self.statement(&query.statement);
            }
            Body::RowsStatement(statement) => self.statement(statement),
            _ => {}
        }
    }

    fn statement(&mut self, statement: &[u8]) {
        if self.summary.statements.len() < STATEMENTS_MAX {
            let kept = &statement[..statement.len().min(STATEMENT_BYTES_MAX)];
            self.summary.statements.push(String::from_utf8_lossy(kept).into_owned());
        }
    }
}

impl Archive {
    /// Calls `each` with the transactions that were committed from `from` to `to` (microseconds since 1970), in order,
    /// across gaps.
    pub fn summaries(
        &self,
        from: u64,
        to: u64,
        each: &mut dyn FnMut(TransactionSummary) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let is_in =
            |archived: &super::ArchivedStretch| match (archived.stretch.first_at, archived.stretch.last_at) {
                // Transactions are in the order of their commits, but for clocks that were set.
                (Some(first), Some(last)) => first.min(last) <= to && from <= last.max(first),
                _ => true,
            };
        let mut at = 0;
        while at < self.stretches.len() {
            if !is_in(&self.stretches[at]) {
                at += 1;
                continue;
            }
            let mut end = at + 1;
            while end < self.stretches.len() && is_in(&self.stretches[end]) {
                end += 1;
            }
            if self.summaries_of(at..end, from, to, each)?.is_break() {
                return Ok(());
            }
            at = end;
        }
        Ok(())
    }

    fn summaries_of(
        &self,
        range: std::ops::Range<usize>,
        from: u64,
        to: u64,
        each: &mut dyn FnMut(TransactionSummary) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        let mut gathered = Gathered::default();
        let mut flow = ControlFlow::Continue(());
        self.all_transactions(range, &mut |event| {
            if event.part == Part::Outside {
                return Ok(ControlFlow::Continue(()));
            }
            if event.part == Part::First {
                gathered = Gathered::default();
                gathered.summary.begin = event.begin;
                gathered.summary.file.clone_from(&self.stretches[event.stretch].stretch.file);
            }
            gathered.summary.bytes += event.bytes.len() as u64;
            gathered.take(event.body);
            if let Body::Payload(payload) = event.body {
                // What cannot be decompressed is in the archive all the same; it only says nothing here.
                let _unreadable = payload.for_each(&mut |inner| {
                    if let Ok(body) = inner.body() {
                        gathered.take(&body);
                    }
                });
            }
            if event.part == Part::Last {
                let Gathered { mut summary, tables } = std::mem::take(&mut gathered);
                if let Some(transaction) = event.transaction {
                    summary.at = event.committed_us(transaction);
                }
                summary.end = event.begin + event.bytes.len() as u64;
                let gtid = event.transaction.and_then(|transaction| transaction.gtid.as_ref());
                summary.gtid = gtid.map(ToString::to_string);
                summary.tables = tables.into_iter().collect();
                if (from..=to).contains(&summary.at) {
                    flow = each(summary)?;
                }
            }
            Ok(flow)
        })?;
        Ok(flow)
    }
}
