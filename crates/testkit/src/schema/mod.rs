//! Random databases: every type of column, key, option and program, under awkward names, with rows at the
//! limits of their columns.
//!
//! Statements are generated without knowing whether the server accepts them.
//! Refused parts are dropped and counted: first a table's decorations (options, comments, partitions), then
//! the attributes of its columns, then the table.

mod collations;
mod column;
mod fill;
mod form;
mod keys;
mod names;
mod partitions;
mod programs;
mod table;
mod value;

use anyhow::{Context, Result, bail};
use mysql::{Conn, Error, prelude::Queryable};

use crate::{data::names::quoted, rng::Rng, server::Server};

use collations::Collations;
use names::Names;
use table::Table;

/// What was created.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// Databases.
    pub databases: Vec<String>,
    /// The number of tables that hold rows.
    pub tables: usize,
    /// Rows in all tables.
    pub rows: u64,
    /// Indexes, constraints and foreign keys that were added to the tables.
    pub keys: usize,
    /// Views, triggers, routines, events and sequences.
    pub programs: usize,
    /// Definitions that the server refused, with its reasons.
    pub refused: Vec<String>,
    /// Rows that the server refused.
    pub rows_refused: u64,
}

/// Creates and fills random databases. The same seed gives the same result on the same server.
pub fn create(server: &Server, seed: u64) -> Result<Made> {
    let mut maker = Maker::new(server, seed)?;
    maker.databases()?;
    maker.tables()?;
    maker.keys()?;
    maker.rows()?;
    maker.programs()?;
    Ok(maker.made)
}

/// Makes databases on one connection.
struct Maker {
    conn: Conn,
    rng: Rng,
    names: Names,
    collations: Collations,
    is_mariadb: bool,
    tables: Vec<Table>,
    made: Made,
}

impl Maker {
    fn new(server: &Server, seed: u64) -> Result<Maker> {
        let mut conn = server.conn()?;
        conn.query_drop("SET NAMES utf8mb4")?;
        conn.query_drop("SET SESSION time_zone = '+00:00', foreign_key_checks = 0")?;
        let is_mariadb = server.kind().is_mariadb();
        let collations = Collations::read(&mut conn)?;
        Ok(Maker {
            conn,
            rng: Rng::new(seed),
            names: Names::default(),
            collations,
            is_mariadb,
            tables: Vec::new(),
            made: Made::default(),
        })
    }

    /// Runs a statement that the server may refuse; returns whether it was accepted.
    fn attempt(&mut self, statement: &str) -> Result<bool> {
        match self.conn.query_drop(statement) {
            Ok(()) => Ok(true),
            Err(Error::MySqlError(error)) => {
                self.made.refused.push(format!("{}: {statement}", error.message));
                Ok(false)
            }
            // A lost connection is not a refusal.
            Err(error) => Err(error).with_context(|| statement.to_owned()),
        }
    }

    /// Sets a random SQL mode, which changes the meaning of text and numbers in later statements.
    fn mode(&mut self, modes: &[&str]) -> Result<()> {
        let mode = self.rng.pick(modes);
        self.conn.query_drop(format!("SET SESSION sql_mode = '{mode}'"))?;
        Ok(())
    }

    fn databases(&mut self) -> Result<()> {
        const TRIES: u32 = 20;
        let wanted = self.rng.between(1, 3) as usize;
        for _ in 0..TRIES {
            if self.made.databases.len() == wanted {
                return Ok(());
            }
            let name = self.names.any(&mut self.rng);
            let collation = self.collations.any(&mut self.rng).name.clone();
            let comment = match self.is_mariadb && self.rng.percent(30) {
                true => format!(" COMMENT {}", names::remark(&mut self.rng, 200)),
                false => String::new(),
            };
            if self.attempt(&format!("CREATE DATABASE {} COLLATE {collation}{comment}", quoted(&name)))? {
                self.made.databases.push(name);
            }
        }
        bail!("no database in {TRIES} tries: {:?}", self.made.refused)
    }

    fn tables(&mut self) -> Result<()> {
        let wanted = self.rng.between(7, 12);
        for number in 0..wanted {
            self.mode(&["", "ALLOW_INVALID_DATES", "ALLOW_INVALID_DATES,ANSI_QUOTES"])?;
            let at = self.rng.index(self.made.databases.len());
            let schema = self.made.databases[at].clone();
            let table = Table::random(self, schema, number);
            for plainness in 0..=table::PLAINNESS_MAX {
                if self.attempt(&table.create(plainness))? {
                    self.tables.push(table.created(plainness));
                    break;
                }
            }
        }
        self.made.tables = self.tables.len();
        Ok(())
    }
}
