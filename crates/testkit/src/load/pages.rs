//! Transactions on the schema [`pages`](crate::data::pages): every table is rewritten over and over, so that
//! a copy taken meanwhile mixes several moments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mysql::Conn;
use mysql::prelude::Queryable;

use super::{Crew, Pace, Stop, server_error};
use crate::data::pages::{ROWS, values};
use crate::rng::Rng;
use crate::server::Server;

/// Transactions of each connection, at most.
const PER_SECOND: u32 = 25;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;

/// A running load.
#[derive(Debug)]
pub struct PageLoad {
    crew: Crew<()>,
    committed: Arc<AtomicU64>,
}

impl PageLoad {
    /// Starts `threads` connections on these tables.
    /// Their rate is limited, so that the servers of other tests get on as well.
    pub fn start(server: &Server, tables: &[String], threads: u32, seed: u64) -> Result<PageLoad> {
        let page_size = server.value("SELECT @@innodb_page_size")?;
        let committed = Arc::new(AtomicU64::new(0));
        let mut crew = Crew::new();
        for thread in 0..u64::from(threads) {
            let mut writer = Writer {
                conn: server.conn()?,
                rng: Rng::keyed(seed, 2, thread),
                tables: tables.to_vec(),
                page_size,
            };
            let committed = Arc::clone(&committed);
            crew.add(move |stop| writer.run(stop, &committed));
        }
        Ok(PageLoad { crew, committed })
    }

    /// Waits until this many more transactions were committed.
    pub fn pass(&self, transactions: u64, deadline: Duration) -> Result<()> {
        let until = self.committed.load(Ordering::Relaxed) + transactions;
        let begun = Instant::now();
        while self.committed.load(Ordering::Relaxed) < until {
            ensure!(begun.elapsed() < deadline, "not {transactions} transactions in {deadline:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Stops the load; returns the number of committed transactions.
    pub fn stop(mut self) -> Result<u64> {
        self.crew.finish()?;
        Ok(self.committed.load(Ordering::Relaxed))
    }
}

struct Writer {
    conn: Conn,
    rng: Rng,
    tables: Vec<String>,
    page_size: u32,
}

impl Writer {
    fn run(&mut self, stop: &Stop, committed: &AtomicU64) -> Result<()> {
        // Each connection starts at another table, so that they do not run in step.
        let mut next = self.rng.index(self.tables.len());
        let pace = Pace::per_second(Some(PER_SECOND));
        while !stop.requested() {
            let begun = Instant::now();
            let table = self.tables[next].clone();
            next = (next + 1) % self.tables.len();
            let statements = [self.statement(&table), self.statement(&table)];
            let end = if self.rng.percent(10) { "ROLLBACK" } else { "COMMIT" };
            match self.transaction(&statements, end) {
                Ok(()) => {
                    committed.fetch_add(u64::from(end == "COMMIT"), Ordering::Relaxed);
                }
                Err(error) if matches!(server_error(&error), Some(DEADLOCK | LOCK_WAIT_TIMEOUT)) => {
                    self.conn.query_drop("ROLLBACK")?;
                }
                Err(error) => return Err(error).with_context(|| statements.join("; ")),
            }
            pace.keep(begun);
        }
        Ok(())
    }

    fn transaction(&mut self, statements: &[String], end: &str) -> mysql::Result<()> {
        self.conn.query_drop("BEGIN")?;
        for statement in statements {
            self.conn.query_drop(statement)?;
        }
        self.conn.query_drop(end)
    }

    fn statement(&mut self, table: &str) -> String {
        let (salt, of) = (self.rng.below(1 << 30), self.rng.below(20));
        let values = |id: &str| values(id, salt, self.page_size);
        let row = 1 + self.rng.below(u64::from(ROWS));
        match self.rng.below(4) {
            0 => format!("UPDATE {table} SET k = k + 1, v = REVERSE(v) WHERE id % 20 = {of}"),
            1 => format!("UPDATE {table} SET b = REPEAT(SHA2({salt}, 512), {row}) WHERE id = {row}"),
            2 => format!("DELETE FROM {table} WHERE id % 20 = {of}"),
            _ => {
                let geometry = table.contains("r_tree");
                let (column, value) =
                    if geometry { (", g", format!(", POINT(id, {row})")) } else { ("", String::new()) };
                let values = values("id");
                format!(
                    "INSERT INTO {table} (k, v, b{column}) SELECT id % 97, {values}{value} FROM pages.seed
                     WHERE id % 20 = {of}"
                )
            }
        }
    }
}
