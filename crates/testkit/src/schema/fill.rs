//! Fills tables with rows.

use anyhow::{Context, Result};
use mysql::prelude::Queryable;

use super::{Maker, column::Column, table::Table, value};
use crate::{data::names::quoted, rng::Rng};

/// Rows per statement for a large table.
const ROWS_AT_ONCE: u64 = 100;
/// Tables with fewer rows get one statement per row.
const ROWS_FEW: u64 = 100;

impl Maker {
    /// Fills all tables.
    pub(super) fn rows(&mut self) -> Result<()> {
        for number in 0..self.tables.len() {
            self.mode(&["", "ALLOW_INVALID_DATES", "ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO"])?;
            let table = self.tables[number].clone();
            self.fill(&table)?;
        }
        Ok(())
    }

    fn fill(&mut self, table: &Table) -> Result<()> {
        let columns: Vec<&Column> = table.columns.iter().filter(|it| it.expression.is_none()).collect();
        let names: Vec<String> = columns.iter().map(|column| quoted(&column.name)).collect();
        self.conn.query_drop("BEGIN")?;
        let at_once = if table.rows < ROWS_FEW { 1 } else { ROWS_AT_ONCE };
        // Partitioned tables continue differently each time once their counter has reached its end.
        let may_end = !table.has_partitions;
        let into = format!("INSERT IGNORE INTO {} ({}) VALUES", table.quoted(), names.join(", "));
        for _ in 0..table.rows.div_ceil(at_once) {
            let rows: Vec<String> = (0..at_once).map(|_| row(&columns, may_end, &mut self.rng)).collect();
            if !self.insert(&into, &rows)? && at_once > 1 {
                for row in rows {
                    self.insert(&into, &[row])?;
                }
            }
        }
        self.age(table, &names)?;
        self.conn.query_drop("COMMIT")?;
        let count: Option<u64> = self.conn.query_first(format!("SELECT COUNT(*) FROM {}", table.quoted()))?;
        self.made.rows += count.unwrap_or_default();
        Ok(())
    }

    /// Inserts rows. Values that do not fit are adapted, and rows that cannot be are skipped.
    /// Returns whether rows were accepted.
    fn insert(&mut self, into: &str, rows: &[String]) -> Result<bool> {
        let insert = format!("{into} {}", rows.join(", "));
        match self.conn.query_drop(&insert) {
            Ok(()) => {}
            Err(mysql::Error::MySqlError(_)) if rows.len() > 1 => return Ok(false),
            Err(mysql::Error::MySqlError(_)) => self.made.rows_refused += 1,
            Err(error) => return Err(error).context(insert),
        }
        Ok(true)
    }

    /// Changes rows, also so that foreign keys refer to existing rows.
    fn age(&mut self, table: &Table, names: &[String]) -> Result<()> {
        let quoted_name = table.quoted();
        let mut statements = Vec::new();
        if let Some(foreign) = &table.foreign
            && foreign.parent != quoted_name
        {
            for (own, theirs) in foreign.columns.iter().zip(&foreign.parent_columns) {
                let (own, theirs) = (quoted(own), quoted(theirs));
                statements.push(format!(
                    "UPDATE IGNORE {quoted_name} SET {own} = (SELECT MAX({theirs}) FROM {}) LIMIT 10",
                    foreign.parent
                ));
            }
        }
        if self.rng.percent(30) {
            let name = &names[self.rng.index(names.len())];
            statements.push(format!("UPDATE IGNORE {quoted_name} SET {name} = {name} LIMIT 5"));
            statements.push(format!("DELETE FROM {quoted_name} LIMIT 2"));
        }
        for statement in statements {
            // The table may have no such rows.
            if let Err(error) = self.conn.query_drop(&statement)
                && !matches!(error, mysql::Error::MySqlError(_))
            {
                return Err(error).context(statement);
            }
        }
        Ok(())
    }
}

/// Draws a row. Unless `may_end`, explicit values keep its counter far from its end.
fn row(columns: &[&Column], may_end: bool, rng: &mut Rng) -> String {
    let value = |column: &&Column, rng: &mut Rng| {
        if column.is_counted && rng.percent(90) || column.is_nullable && rng.percent(15) {
            return "NULL".to_owned();
        }
        if column.has_default && rng.percent(20) {
            return "DEFAULT".to_owned();
        }
        if column.is_counted && !may_end {
            return rng.between(1, 100).to_string();
        }
        value::any(&column.form, rng)
    };
    let values: Vec<String> = columns.iter().map(|column| value(column, rng)).collect();
    format!("({})", values.join(", "))
}
