//! Transactions on the schema `shop`, with books that must balance.
//!
//! Workers move money between `shop.accounts`, and write each committed move to `shop.ledger` under their own
//! gapless numbers.
//! In every consistent state of the server, the balances follow from the ledger; [`check_ledger`] verifies
//! this without knowing which state it is.
//! The workers also change rows of `shop` and, unless told otherwise, of small tables in non-transactional engines.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use mysql::prelude::Queryable;
use mysql::{AccessMode, Conn, TxOpts};

use super::{Crew, Pace, Stop, server_error};
use crate::data::{Vocabulary, push_hex};
use crate::rng::Rng;
use crate::server::Server;

const ACCOUNTS: u64 = 1000;
const OPENING_BALANCE: u64 = 1_000_000;
const PLAIN_PERCENT: u64 = 15;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;

/// A running load; requires the data set [`shop`](crate::data::shop).
#[derive(Debug)]
pub struct WriteLoad {
    crew: Crew<Counts>,
    committed: Arc<AtomicU64>,
}

/// What a load has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Committed transactions.
    pub committed: u64,
    /// Transactions that the load rolled back deliberately.
    pub rolled_back: u64,
    /// Transactions that the server rolled back because of a deadlock or a lock wait.
    pub refused: u64,
    /// Statements on non-transactional tables.
    pub plain: u64,
}

impl WriteLoad {
    /// Starts `threads` workers.
    /// Their rate is limited, so that the servers of other tests get on as well.
    pub fn start(server: &Server, threads: u32, seed: u64) -> Result<WriteLoad> {
        const PER_SECOND: u32 = 50;
        WriteLoad::start_paced(server, threads, seed, Some(PER_SECOND))
    }

    /// Like [`start`](WriteLoad::start), with at most `per_second` transactions a second per worker, or
    /// without a limit.
    pub fn start_paced(
        server: &Server,
        threads: u32,
        seed: u64,
        per_second: Option<u32>,
    ) -> Result<WriteLoad> {
        prepare_other_engines(server)?;
        WriteLoad::begin(server, threads, seed, per_second, PLAIN_PERCENT)
    }

    /// The same on tables of InnoDB only: none of another engine is made.
    pub fn start_on_innodb(
        server: &Server,
        threads: u32,
        seed: u64,
        per_second: Option<u32>,
    ) -> Result<WriteLoad> {
        WriteLoad::begin(server, threads, seed, per_second, 0)
    }

    fn begin(
        server: &Server,
        threads: u32,
        seed: u64,
        per_second: Option<u32>,
        plain_percent: u64,
    ) -> Result<WriteLoad> {
        prepare(server)?;
        let first: u64 =
            server.value("SELECT CAST(COALESCE(MAX(worker), 0) + 1 AS UNSIGNED) FROM shop.ledger")?;
        let orders: u64 = server.value("SELECT COALESCE(MAX(id), 1) FROM shop.orders")?;
        let events: u64 = server.value("SELECT COALESCE(MAX(id), 1) FROM shop.events")?;
        let mut crew = Crew::new();
        let committed = Arc::new(AtomicU64::new(0));
        for thread in 0..u64::from(threads) {
            let worker = Worker {
                conn: server.conn()?,
                words: Vocabulary::new(),
                rng: Rng::keyed(seed, 0, thread),
                id: first + thread,
                moves: 0,
                orders,
                events,
                plain_percent,
                counts: Counts::default(),
                committed: Arc::clone(&committed),
            };
            crew.add(move |stop| worker.run(stop, Pace::per_second(per_second)));
        }
        Ok(WriteLoad { crew, committed })
    }

    /// The number of transactions that all workers have committed so far.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Stops the workers after their current transaction.
    pub fn stop(mut self) -> Result<Counts> {
        Ok(self.crew.finish()?.into_iter().fold(Counts::default(), |sum, counts| Counts {
            committed: sum.committed + counts.committed,
            rolled_back: sum.rolled_back + counts.rolled_back,
            refused: sum.refused + counts.refused,
            plain: sum.plain + counts.plain,
        }))
    }
}

fn prepare_other_engines(server: &Server) -> Result<()> {
    let other_engine = if server.kind().is_mariadb() { "Aria" } else { "MyISAM" };
    server.exec_all([("visits", "MyISAM"), ("clicks", other_engine)].map(|(table, engine)| {
        format!(
            "CREATE TABLE IF NOT EXISTS shop.{table} (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
             v VARCHAR(200) NOT NULL, k INT NOT NULL, KEY (k)) ENGINE={engine}"
        )
    }))
}

fn prepare(server: &Server) -> Result<()> {
    server.exec_all([
        "CREATE TABLE IF NOT EXISTS shop.accounts (id BIGINT UNSIGNED NOT NULL PRIMARY KEY, balance BIGINT NOT NULL)
         ENGINE=InnoDB",
        "CREATE TABLE IF NOT EXISTS shop.ledger (worker BIGINT UNSIGNED NOT NULL, number BIGINT UNSIGNED NOT NULL,
         payer BIGINT UNSIGNED NOT NULL, payee BIGINT UNSIGNED NOT NULL, amount BIGINT NOT NULL,
         PRIMARY KEY (worker, number), KEY (payer), KEY (payee)) ENGINE=InnoDB",
    ])?;
    let mut statement = "INSERT IGNORE INTO shop.accounts VALUES ".to_owned();
    for id in 1..=ACCOUNTS {
        let comma = if id > 1 { "," } else { "" };
        write!(statement, "{comma}({id},{OPENING_BALANCE})")?;
    }
    server.exec(statement)
}

struct Worker {
    conn: Conn,
    words: Vocabulary,
    rng: Rng,
    id: u64,
    /// The number of committed moves, which is also the last number in the ledger.
    moves: u64,
    orders: u64,
    events: u64,
    /// How many of a hundred pieces of work are statements on tables of other engines.
    plain_percent: u64,
    counts: Counts,
    committed: Arc<AtomicU64>,
}

impl Worker {
    fn run(mut self, stop: &Stop, pace: Pace) -> Result<Counts> {
        while !stop.requested() {
            let begun = Instant::now();
            if self.rng.percent(self.plain_percent) {
                let statement = self.plain_statement();
                self.conn.query_drop(&statement).context(statement)?;
                self.counts.plain += 1;
            } else {
                self.transaction()?;
            }
            pace.keep(begun);
        }
        Ok(self.counts)
    }

    fn transaction(&mut self) -> Result<()> {
        let is_move = self.rng.percent(45);
        let statements = if is_move { self.money_move() } else { self.shop_change() };
        let commit = !self.rng.percent(7);
        match execute(&mut self.conn, &statements, commit) {
            Ok(()) if commit => {
                self.counts.committed += 1;
                self.committed.fetch_add(1, Ordering::Relaxed);
                self.moves += u64::from(is_move);
            }
            Ok(()) => self.counts.rolled_back += 1,
            Err(error) if matches!(server_error(&error), Some(DEADLOCK | LOCK_WAIT_TIMEOUT)) => {
                self.counts.refused += 1
            }
            Err(error) => return Err(error).with_context(|| statements.join("; ")),
        }
        Ok(())
    }

    fn money_move(&mut self) -> Vec<String> {
        let payer = self.rng.between(1, ACCOUNTS);
        let payee = 1 + (payer - 1 + self.rng.between(1, ACCOUNTS - 1)) % ACCOUNTS;
        let amount = self.rng.between(1, 100);
        vec![
            format!("UPDATE shop.accounts SET balance = balance - {amount} WHERE id = {payer}"),
            format!(
                "INSERT INTO shop.ledger VALUES ({}, {}, {payer}, {payee}, {amount})",
                self.id,
                self.moves + 1
            ),
            format!("UPDATE shop.accounts SET balance = balance + {amount} WHERE id = {payee}"),
        ]
    }

    fn shop_change(&mut self) -> Vec<String> {
        let order = self.rng.between(1, self.orders);
        let event = self.rng.between(1, self.events);
        let mut text = String::new();
        let count = self.rng.between(3, 40);
        self.words.push_words(&mut self.rng, count, &mut text);
        match self.rng.below(10) {
            0..4 => {
                let mut blob = String::new();
                let len = self.rng.below(100);
                push_hex(&mut self.rng, len, &mut blob);
                let customer = self.rng.next_u64() >> 40;
                let new_event = format!("VALUES (LAST_INSERT_ID(), 'created', NOW(6), {blob}, '{text}')");
                vec![
                    format!(
                        "INSERT INTO shop.orders (customer_id, status, total, placed_at, reference, items, comment)
                         VALUES ({customer}, 'new', 12.34, NOW(), UUID(), '[]', '{text}')"
                    ),
                    format!("INSERT INTO shop.events (order_id, kind, at, payload, body) {new_event}"),
                ]
            }
            4..7 => vec![
                format!("UPDATE shop.orders SET status = 'paid', comment = '{text}' WHERE id = {order}"),
                format!("UPDATE shop.customers SET balance = balance + 1.5 WHERE id = {order}"),
            ],
            7 => vec![format!(
                "UPDATE shop.orders SET total = total + 1, placed_at = NOW() WHERE id BETWEEN {order} AND {}",
                order + 30
            )],
            8 => vec![format!("DELETE FROM shop.events WHERE id BETWEEN {event} AND {}", event + 5)],
            _ => vec![format!("UPDATE shop.events SET body = REPEAT('{text} ', 20) WHERE id = {event}")],
        }
    }

    fn plain_statement(&mut self) -> String {
        let table = self.rng.pick(&["visits", "clicks"]);
        let (k, number) = (self.rng.below(500), self.rng.next_u64());
        match self.rng.below(10) {
            0..7 => format!("INSERT INTO shop.{table} (v, k) VALUES (REPEAT('{number:x}', 5), {k})"),
            7..9 => format!("UPDATE shop.{table} SET v = '{number:x}' WHERE k = {k} ORDER BY id LIMIT 3"),
            _ => format!("DELETE FROM shop.{table} WHERE k = {k} ORDER BY id LIMIT 2"),
        }
    }
}

fn execute(conn: &mut Conn, statements: &[String], commit: bool) -> mysql::Result<()> {
    let options = TxOpts::default().set_access_mode(Some(AccessMode::ReadWrite));
    let mut transaction = conn.start_transaction(options)?;
    for statement in statements {
        transaction.query_drop(statement)?;
    }
    if commit { transaction.commit() } else { transaction.rollback() }
}

/// Fails unless the books of `shop` balance: numbers have no gaps, and the balances follow from the ledger.
/// Returns the number of moves.
pub fn check_ledger(server: &Server) -> Result<u64> {
    let gaps: Vec<(u64, u64, u64, u64)> = server.query(
        "SELECT worker, COUNT(*), CAST(MIN(number) AS UNSIGNED), CAST(MAX(number) AS UNSIGNED) FROM shop.ledger
         GROUP BY worker HAVING COUNT(*) <> MAX(number) OR MIN(number) <> 1",
    )?;
    ensure!(gaps.is_empty(), "gaps in the ledger (worker, rows, first, last): {gaps:?}");
    let wrong: Vec<(u64, i64, i64)> = server.query(format!(
        "SELECT id, balance, CAST({OPENING_BALANCE} + COALESCE(moved, 0) AS SIGNED) FROM shop.accounts LEFT JOIN
           (SELECT account, SUM(amount) AS moved FROM
             (SELECT payee AS account, amount FROM shop.ledger
              UNION ALL SELECT payer, -amount FROM shop.ledger) AS moves GROUP BY account) AS sums ON account = id
         WHERE balance <> {OPENING_BALANCE} + COALESCE(moved, 0) LIMIT 10"
    ))?;
    ensure!(
        wrong.is_empty(),
        "balances that do not follow from the ledger (account, balance, ledger): {wrong:?}"
    );
    let accounts: u64 = server.value("SELECT COUNT(*) FROM shop.accounts")?;
    ensure!(accounts == ACCOUNTS, "{accounts} accounts instead of {ACCOUNTS}");
    server.value("SELECT COUNT(*) FROM shop.ledger")
}
