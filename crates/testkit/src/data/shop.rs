//! The schema `shop`: customers, orders and events of a web shop, with text, numbers,
//! decimals, JSON, blobs and times.
//!
//! Every row depends only on (seed, table, id), so the data does not depend on the number of connections.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow};
use mysql::prelude::Queryable;

use super::{Vocabulary, push_hex};
use crate::rng::Rng;
use crate::server::Server;

/// Options for [`load`].
#[derive(Clone, Copy, Debug)]
pub struct ShopOptions {
    /// Size of the SQL literals; the data files become slightly larger.
    pub size_mib: u64,
    /// Seed of the contents.
    pub seed: u64,
    /// The number of connections that load concurrently.
    pub connections: u32,
}

impl Default for ShopOptions {
    fn default() -> Self {
        ShopOptions { size_mib: 20, seed: 1, connections: 2 }
    }
}

/// The number of rows loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShopRows {
    /// Rows of `shop.customers`.
    pub customers: u64,
    /// Rows of `shop.orders`.
    pub orders: u64,
    /// Rows of `shop.events`.
    pub events: u64,
}

struct Table {
    name: &'static str,
    columns: &'static str,
    percent_of_size: u64,
    row: fn(&Vocabulary, &mut Rng, u64, &mut String),
}

const CUSTOMERS: Table = Table {
    name: "customers",
    columns: "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(80) NOT NULL,
        email VARCHAR(120) NOT NULL, country CHAR(2) NOT NULL, balance DECIMAL(12,2) NOT NULL, rating DOUBLE,
        created_at DATETIME NOT NULL, profile JSON, notes TEXT, KEY (email), KEY (country, created_at)",
    percent_of_size: 15,
    row: customer,
};

const ORDERS: Table = Table {
    name: "orders",
    columns: "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, customer_id BIGINT UNSIGNED NOT NULL,
        status ENUM('new', 'paid', 'shipped', 'returned') NOT NULL, total DECIMAL(12,2) NOT NULL,
        placed_at TIMESTAMP NULL, reference CHAR(36) NOT NULL, items JSON, comment TEXT, KEY (customer_id),
        KEY (status, placed_at), UNIQUE KEY (reference)",
    percent_of_size: 50,
    row: order,
};

const EVENTS: Table = Table {
    name: "events",
    columns: "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, order_id BIGINT UNSIGNED NOT NULL,
        kind VARCHAR(20) NOT NULL, at DATETIME(6) NOT NULL, payload BLOB, body MEDIUMTEXT, KEY (order_id), KEY (at)",
    percent_of_size: 35,
    row: event,
};

const COUNTRIES: [&str; 8] = ["de", "fr", "us", "jp", "br", "in", "ke", "pl"];
const STATUSES: [&str; 4] = ["new", "paid", "shipped", "returned"];
const KINDS: [&str; 5] = ["created", "payment", "picked", "parcel", "complaint"];

fn push_time(rng: &mut Rng, out: &mut String) {
    let (year, month, day) = (rng.between(2015, 2025), rng.between(1, 12), rng.between(1, 28));
    // Starts at 04:00, so that no time falls into the hour skipped by the change to summer time.
    let (hour, minute, second) = (rng.between(4, 23), rng.below(60), rng.below(60));
    write!(out, "'{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}").ok();
}

fn customer(words: &Vocabulary, rng: &mut Rng, id: u64, out: &mut String) {
    let (first, last) = (words.word(rng), words.word(rng));
    write!(out, "({id},'{first} {last}','{first}.{last}{id}@example.com','{}',", rng.pick(&COUNTRIES)).ok();
    write!(out, "{}.{:02},{}e-3,", rng.below(100_000), rng.below(100), rng.below(5000)).ok();
    push_time(rng, out);
    write!(out, "','{{\"ip\": \"10.{}.{}.{}\", ", rng.below(10), rng.below(256), rng.below(256)).ok();
    write!(
        out,
        "\"score\": {}, \"tags\": [\"{}\", \"{}\"]}}','",
        rng.below(1000),
        words.word(rng),
        words.word(rng)
    )
    .ok();
    let count = rng.between(0, 60);
    words.push_words(rng, count, out);
    out.push_str("')");
}

fn order(words: &Vocabulary, rng: &mut Rng, id: u64, out: &mut String) {
    write!(
        out,
        "({id},{},'{}',{}.{:02},",
        rng.between(1, id),
        rng.pick(&STATUSES),
        rng.below(5000),
        rng.below(100)
    )
    .ok();
    push_time(rng, out);
    let (high, low) = (rng.next_u64(), rng.next_u64());
    write!(out, "','{:08x}-{:04x}-{:04x}-{:016x}','[", high >> 32, high >> 16 & 0xffff, high & 0xffff, low)
        .ok();
    for item in 0..rng.between(1, 5) {
        let comma = if item > 0 { ", " } else { "" };
        write!(out, "{comma}{{\"sku\": {}, \"qty\": {}, ", rng.below(40_000), rng.between(1, 9)).ok();
        write!(out, "\"title\": \"{} {}\"}}", words.word(rng), words.word(rng)).ok();
    }
    out.push_str("]','");
    let count = rng.between(5, 120);
    words.push_words(rng, count, out);
    out.push_str("')");
}

fn event(words: &Vocabulary, rng: &mut Rng, id: u64, out: &mut String) {
    write!(out, "({id},{},'{}',", rng.between(1, id), rng.pick(&KINDS)).ok();
    push_time(rng, out);
    write!(out, ".{:06}',", rng.below(1_000_000)).ok();
    let bytes = rng.below(120);
    push_hex(rng, bytes, out);
    out.push_str(",'");
    // Now and then, a document that does not fit on a page.
    let count = if rng.percent(1) { rng.between(2000, 6000) } else { rng.between(2, 60) };
    words.push_words(rng, count, out);
    out.push_str("')");
}

/// Creates and fills the schema.
pub fn load(server: &Server, options: ShopOptions) -> Result<ShopRows> {
    server.exec("CREATE DATABASE shop CHARACTER SET utf8mb4")?;
    let words = Vocabulary::new();
    let mut rows = [0; 3];
    for (stream, table) in [CUSTOMERS, ORDERS, EVENTS].iter().enumerate() {
        server.exec(format!("CREATE TABLE shop.{} ({}) ENGINE=InnoDB", table.name, table.columns))?;
        rows[stream] = fill(server, table, stream as u64, &words, options)
            .with_context(|| format!("loading shop.{}", table.name))?;
    }
    Ok(ShopRows { customers: rows[0], orders: rows[1], events: rows[2] })
}

fn fill(
    server: &Server,
    table: &Table,
    stream: u64,
    words: &Vocabulary,
    options: ShopOptions,
) -> Result<u64> {
    const SAMPLE: u64 = 500;
    const BYTES_PER_STATEMENT: u64 = 512 << 10;
    let push_row = |id: u64, out: &mut String| {
        (table.row)(words, &mut Rng::keyed(options.seed, stream, id), id, out);
    };
    let mut sample = String::new();
    (1..=SAMPLE).for_each(|id| push_row(id, &mut sample));
    let bytes_per_row = (sample.len() as u64 / SAMPLE).max(1);
    let rows = ((options.size_mib << 20) * table.percent_of_size / 100 / bytes_per_row).max(1);
    let rows_per_statement = BYTES_PER_STATEMENT / bytes_per_row;
    let next_id = AtomicU64::new(1);
    let work = || -> Result<()> {
        let mut conn = server.conn()?;
        let mut statement = String::new();
        loop {
            let first = next_id.fetch_add(rows_per_statement, Ordering::Relaxed);
            if first > rows {
                return Ok(());
            }
            statement.clear();
            write!(statement, "INSERT INTO shop.{} VALUES ", table.name)?;
            for id in first..=rows.min(first + rows_per_statement - 1) {
                if id > first {
                    statement.push(',');
                }
                push_row(id, &mut statement);
            }
            conn.query_drop(&statement)?;
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.connections.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| anyhow!("a loader panicked"))?)
    })?;
    Ok(rows)
}
