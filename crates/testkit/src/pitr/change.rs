//! The contents of a client's transaction, as statements and as their effect on the model.

use std::fmt::Write;
use std::ops::RangeInclusive;

use jiff::Timestamp;

use crate::rng::Rng;

/// A transaction, or a DDL statement, which is a transaction by itself. Table names include their schemas.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Rows(Vec<Step>),
    Create(String),
    Drop(String),
    Rename(String, String),
    Truncate(String),
    /// Adds the extra column, with this default.
    AddExtra(String, i64),
    DropExtra(String),
}

/// A statement in a transaction. It depends on nothing but the rows it finds, so the same steps in the same
/// order always have the same result.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) table: String,
    pub(super) ids: RangeInclusive<i64>,
    pub(super) action: Action,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Inserts rows with ids that no other client inserts.
    Insert {
        n: i64,
        v: String,
    },
    /// Inserts rows, or updates those that exist.
    Put(i64),
    Add(i64),
    SetExtra(i64),
    Delete,
}

/// The highest id that all clients change; each client's own ids are above.
pub(super) const SHARED: i64 = 400;

impl Step {
    pub(super) fn sql(&self) -> String {
        let Step { table, ids, action } = self;
        let (first, last) = (ids.start(), ids.end());
        let found = format!("WHERE id BETWEEN {first} AND {last}");
        match action {
            Action::Insert { n, v } => {
                let mut sql = format!("INSERT INTO {table} (id, n, v) VALUES ");
                for id in ids.clone() {
                    let comma = if id == *first { "" } else { "," };
                    write!(sql, "{comma}({id},{n},'{v}')").ok();
                }
                sql
            }
            Action::Put(n) => {
                let rows: Vec<String> = ids.clone().map(|id| format!("({id},{n},'')")).collect();
                format!(
                    "INSERT INTO {table} (id, n, v) VALUES {} ON DUPLICATE KEY UPDATE n = {n}",
                    rows.join(",")
                )
            }
            Action::Add(n) => format!("UPDATE {table} SET n = n + {n} {found}"),
            Action::SetExtra(value) => format!("UPDATE {table} SET extra = {value} {found}"),
            Action::Delete => format!("DELETE FROM {table} {found}"),
        }
    }

    /// Draws a step at a random place in the table; `own` is the first id not used yet.
    fn draw(rng: &mut Rng, table: &str, own: &mut i64) -> Step {
        let table = table.to_owned();
        let n = rng.between(1, 1000) as i64;
        let shared = |rng: &mut Rng, most: u64| {
            let first = rng.between(1, SHARED as u64) as i64;
            first..=first + rng.below(most) as i64
        };
        let (ids, action) = match rng.below(100) {
            0..30 => {
                let rows = if rng.percent(4) { rng.between(200, 900) } else { rng.between(1, 8) };
                let first = *own;
                *own += rows as i64;
                let letter = char::from(b'a' + rng.below(26) as u8).to_string();
                let v = letter.repeat(rng.below(250) as usize);
                (first..=*own - 1, Action::Insert { n, v })
            }
            30..50 => (shared(rng, 4), Action::Put(n)),
            50..75 => (shared(rng, 30), Action::Add(n)),
            75..82 => (shared(rng, 50), Action::SetExtra(n)),
            82..93 => (shared(rng, 10), Action::Delete),
            // Rows that this client has inserted, and may have deleted already.
            _ => {
                let first = *own - rng.between(1, 400) as i64;
                (first.max(SHARED + 100)..=first.max(SHARED + 100) + rng.below(300) as i64, Action::Delete)
            }
        };
        Step { table, ids, action }
    }
}

impl Change {
    /// Draws a transaction on some of the tables.
    pub(super) fn draw_rows(rng: &mut Rng, tables: &[String], own: &mut i64) -> Change {
        let steps = if rng.percent(3) { rng.between(10, 40) } else { rng.between(1, 4) };
        let steps = (0..steps).map(|_| {
            let table = &tables[rng.index(tables.len())];
            Step::draw(rng, table, own)
        });
        Change::Rows(steps.collect())
    }

    /// The DDL statement, with a mark that identifies it in a binlog.
    pub(super) fn definition_sql(&self, mark: &str) -> Option<String> {
        Some(match self {
            Change::Rows(_) => return None,
            Change::Create(table) => format!("CREATE TABLE {mark} {table} {COLUMNS}"),
            // The server writes its own text into its binlog, so a mark would be lost.
            Change::Drop(table) => format!("DROP TABLE {table}"),
            Change::Rename(from, to) => format!("RENAME TABLE {mark} {from} TO {to}"),
            Change::Truncate(table) => format!("TRUNCATE TABLE {mark} {table}"),
            Change::AddExtra(table, default) => {
                format!("ALTER TABLE {mark} {table} ADD COLUMN extra BIGINT NOT NULL DEFAULT {default}")
            }
            Change::DropExtra(table) => format!("ALTER TABLE {mark} {table} DROP COLUMN extra"),
        })
    }
}

/// Columns of every table except the journals.
pub(super) const COLUMNS: &str =
    "(id BIGINT PRIMARY KEY, n BIGINT NOT NULL, v VARCHAR(300) NOT NULL, KEY (n)) ENGINE=InnoDB";

/// A commit that was answered, or that may have happened.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) area: &'static str,
    pub(super) client: u32,
    /// The client's transaction number.
    pub(super) number: u64,
    pub(super) change: Change,
    /// The GTID, if the client knows it.
    pub(super) gtid: Option<String>,
    /// The time before its first statement was sent.
    pub(super) begun: Timestamp,
    /// When it was answered; `None` if it never was.
    pub(super) answered: Option<Timestamp>,
}
