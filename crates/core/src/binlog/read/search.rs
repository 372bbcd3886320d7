//! Finds transactions: when they were committed, what they changed, and what their statements say.

use std::{collections::BTreeSet, ops::ControlFlow};

use holdfast_formats::{
    Flavor,
    binlog::{Body, Part},
};
use serde::Serialize;

use super::{Archive, Place};
use crate::{error::Result, server::without_passwords};

/// Limits on what is kept of a transaction's statements and tables.
const STATEMENTS_MAX: usize = 32;
const STATEMENT_BYTES_MAX: usize = 4 << 10;
const TABLES_MAX: usize = 256;
/// How long a statement is expected to take at most: a search looks at files with transactions that began so much
/// earlier.
const LONG_STATEMENT_US: u64 = 24 * 3600 * 1_000_000;

/// The summary of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransactionSummary {
    /// Its file.
    pub file: String,
    /// Where it begins in it.
    pub begin: u64,
    /// Where it ends.
    pub end: u64,
    /// Its GTID, if it has one.
    pub gtid: Option<String>,
    /// When it was committed, in microseconds since 1970.
    pub at: u64,
    /// Bytes of its events.
    pub bytes: u64,
    /// Tables whose rows it changes, as `schema.table`.
    pub tables: Vec<String>,
    /// Its statements, or those that its rows come from, if the server logs them: the first ones, and the
    /// first of those with the text that was looked for. Passwords are left out.
    pub statements: Vec<String>,
    /// How many statements there are.
    pub statement_count: u64,
}

/// Which transactions are wanted.
#[derive(Clone, Debug)]
pub struct Search {
    /// Committed at this time or later, in microseconds since 1970.
    pub from_us: u64,
    /// Committed at this time or before.
    pub to_us: u64,
    /// Text in a statement or a table name, whatever the case of its letters and the space between words.
    pub text: Option<String>,
}

impl Default for Search {
    /// All of them.
    fn default() -> Self {
        Self { from_us: 0, to_us: u64::MAX, text: None }
    }
}

/// Text in the form in which it is compared.
fn folded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

impl TransactionSummary {
    /// Where it begins.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { file: self.file.clone(), position: self.begin }
    }
}

/// What is gathered about one transaction.
struct Gathered<'a> {
    summary: TransactionSummary,
    tables: BTreeSet<String>,
    /// The text to look for, folded.
    text: Option<&'a str>,
    /// Whether a statement or a table contains it.
    is_found: bool,
    /// How many statements contain it.
    statements_found: usize,
}

impl<'a> Gathered<'a> {
    fn of(text: Option<&'a str>) -> Self {
        Self {
            summary: TransactionSummary::default(),
            tables: BTreeSet::new(),
            text,
            is_found: false,
            statements_found: 0,
        }
    }

    fn is_wanted(&self) -> bool {
        self.text.is_none() || self.is_found
    }

    /// Whether `said` contains what is looked for; notes it.
    fn finds(&mut self, said: &str) -> bool {
        let finds = self.text.is_some_and(|text| folded(said).contains(text));
        self.is_found |= finds;
        finds
    }

    fn take(&mut self, body: &Body<'_>) {
        match body {
            Body::TableMap(map) => {
                let name = [map.schema, b".", map.table].concat();
                self.table(String::from_utf8_lossy(&name).into_owned());
            }
            Body::Query(query) if !query.begins_transaction() && !query.ends_transaction() => {
                self.statement(&query.statement);
            }
            Body::RowsStatement(statement) => self.statement(statement),
            _ => {}
        }
    }

    fn table(&mut self, name: String) {
        if !self.tables.contains(&name) && (self.finds(&name) || self.tables.len() < TABLES_MAX) {
            self.tables.insert(name);
        }
    }

    fn statement(&mut self, statement: &[u8]) {
        self.summary.statement_count += 1;
        // The whole statement is searched, however much of it is kept.
        let is_found = self.text.is_some() && self.finds(&String::from_utf8_lossy(statement));
        self.statements_found += usize::from(is_found);
        if self.summary.statements.len() < STATEMENTS_MAX
            || is_found && self.statements_found <= STATEMENTS_MAX
        {
            let kept = &statement[..statement.len().min(STATEMENT_BYTES_MAX)];
            self.summary.statements.push(without_passwords(&String::from_utf8_lossy(kept)));
        }
    }
}

impl Archive {
    /// Calls `each` with the transactions that are wanted, in order, across gaps.
    pub fn summaries(
        &self,
        search: &Search,
        each: &mut dyn FnMut(TransactionSummary) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let is_in = |archived: &super::ArchivedStretch| {
            let stretch = &archived.stretch;
            // MySQL's transactions are in the order of their commits, except after a clock was set. MariaDB's have
            // the time at which their statement began.
            let longest_us = match stretch.server.flavor() {
                Flavor::MySql => 0,
                Flavor::MariaDb => LONG_STATEMENT_US,
            };
            match (stretch.first_at, stretch.last_at) {
                (Some(first), Some(last)) => {
                    first.min(last).saturating_sub(longest_us) <= search.to_us
                        && search.from_us <= last.max(first).saturating_add(longest_us)
                }
                _ => true,
            }
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
            if self.summaries_of(at..end, search, each)?.is_break() {
                return Ok(());
            }
            at = end;
        }
        Ok(())
    }

    fn summaries_of(
        &self,
        range: std::ops::Range<usize>,
        search: &Search,
        each: &mut dyn FnMut(TransactionSummary) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        let text = search.text.as_deref().map(folded);
        let mut gathered = Gathered::of(text.as_deref());
        let mut flow = ControlFlow::Continue(());
        self.all_transactions(range, &mut |event| {
            if event.part == Part::Outside {
                return Ok(ControlFlow::Continue(()));
            }
            if event.part == Part::First {
                gathered = Gathered::of(text.as_deref());
                gathered.summary.begin = event.begin;
                gathered.summary.file.clone_from(&self.stretches[event.stretch].stretch.file);
            }
            gathered.summary.bytes += event.bytes.len() as u64;
            gathered.take(event.body);
            if let Body::Payload(payload) = event.body {
                // A payload that cannot be decompressed is archived all the same; it only says nothing here.
                let _unreadable = payload.for_each(&mut |inner| {
                    if let Ok(body) = inner.body() {
                        gathered.take(&body);
                    }
                });
            }
            if event.part == Part::Last {
                let is_wanted = gathered.is_wanted();
                let Gathered { mut summary, tables, .. } =
                    std::mem::replace(&mut gathered, Gathered::of(text.as_deref()));
                if let Some(transaction) = event.transaction {
                    summary.at = event.committed_us(transaction);
                }
                summary.end = event.begin + event.bytes.len() as u64;
                let gtid = event.transaction.and_then(|transaction| transaction.gtid.as_ref());
                summary.gtid = gtid.map(ToString::to_string);
                summary.tables = tables.into_iter().collect();
                if is_wanted && (search.from_us..=search.to_us).contains(&summary.at) {
                    flow = each(summary)?;
                }
            }
            Ok(flow)
        })?;
        Ok(flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A match beyond all that is kept is found, and shown; white space and case do not matter.
    #[test]
    fn the_hundredth_statement() {
        let wanted = folded("delete  FROM orders");
        let mut gathered = Gathered::of(Some(&wanted));
        for number in 0..100 {
            gathered.statement(format!("INSERT INTO t VALUES ({number})").as_bytes());
        }
        assert!(!gathered.is_wanted());
        let long = format!("/* {} */ Delete\n\tfrom Orders", "x".repeat(10_000));
        gathered.statement(long.as_bytes());
        assert!(gathered.is_wanted());
        let summary = &gathered.summary;
        assert_eq!((summary.statement_count, summary.statements.len()), (101, STATEMENTS_MAX + 1));
        assert!(summary.statements[STATEMENTS_MAX].starts_with("/* xxx"));
    }

    /// However many tables match, so many matching statements are shown as well, and no more.
    #[test]
    fn matching_tables_and_statements() {
        let mut gathered = Gathered::of(Some("orders"));
        for number in 0..=TABLES_MAX {
            gathered.table(format!("shop.orders_{number}"));
        }
        for number in 0..100 {
            gathered.statement(format!("INSERT INTO t VALUES ({number})").as_bytes());
        }
        for number in 0..=STATEMENTS_MAX {
            gathered.statement(format!("DELETE FROM orders_{number}").as_bytes());
        }
        let (tables, statements) = (&gathered.tables, &gathered.summary.statements);
        assert_eq!((tables.len(), statements.len()), (TABLES_MAX + 1, 2 * STATEMENTS_MAX));
        assert!(statements[STATEMENTS_MAX..].iter().all(|statement| statement.starts_with("DELETE")));
    }
}
