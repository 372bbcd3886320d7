//! Tables by engine, and which of them are not InnoDB's.
//!
//! The server hides tables from an account without rights on them, and an unlisted table would be copied
//! without its lock. So this list is complete only for an account that passed
//! [`check_grants`](crate::server::check_grants).

use std::collections::BTreeMap;

use holdfast_formats::Flavor;

use super::table_name::TableName;
use crate::{
    error::{Error, Result},
    name_list::first_of,
    server::{Row, Session, SqlError},
};

/// A table of an engine other than InnoDB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherTable {
    /// Its name.
    pub name: TableName,
    /// Its engine, as the server spells it.
    pub engine: String,
    /// Whether a crash-safe log covers it: Aria with `TRANSACTIONAL=1`.
    pub is_logged: bool,
}

/// The tables of a server, by engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableInventory {
    /// Number of tables of each engine, InnoDB included.
    pub count_by_engine: BTreeMap<String, u64>,
    /// Every table that is not InnoDB's and whose engine keeps files, system tables included.
    pub others: Vec<OtherTable>,
    /// MEMORY tables: their definitions are saved, their rows are not.
    pub in_memory: Vec<TableName>,
    /// Tables whose engine the server cannot tell, because it cannot read their definitions. (It does name an
    /// engine that is not loaded; verified on MariaDB 10.11.19.)
    pub of_unknown_engine: Vec<TableName>,
}

/// How a backup treats an engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Treatment {
    Innodb,
    /// Its files are copied.
    Copied,
    /// It keeps no data of its own on this server.
    NoData,
    InMemory,
    Unsupported,
}

/// The engines that were tested. Any other engine is refused if it holds a table.
fn treatment(engine: &str) -> Treatment {
    match engine.to_ascii_uppercase().as_str() {
        "INNODB" => Treatment::Innodb,
        "MYISAM" | "MRG_MYISAM" | "CSV" | "ARCHIVE" | "ARIA" => Treatment::Copied,
        "BLACKHOLE" | "FEDERATED" | "SEQUENCE" | "PERFORMANCE_SCHEMA" => Treatment::NoData,
        "MEMORY" => Treatment::InMemory,
        _ => Treatment::Unsupported,
    }
}

/// Number of names that a message lists.
const NAMES_SHOWN_MAX: usize = 5;

impl TableInventory {
    /// Lists the tables. On MariaDB, this makes the server open every table's definition.
    pub fn read(session: &mut Session) -> Result<TableInventory, SqlError> {
        let mut inventory = TableInventory::default();
        let rows = session.rows(
            "SELECT table_schema AS s, table_name AS t, engine AS e FROM information_schema.tables \
             WHERE table_type NOT LIKE '%VIEW' AND table_type NOT LIKE '%TEMPORARY%' \
             AND table_schema NOT IN ('information_schema', 'performance_schema') \
             AND (engine IS NULL OR engine <> 'InnoDB') ORDER BY 1, 2",
        )?;
        for row in &rows {
            let name = table_name(row)?;
            let Some(engine) = row.text_or_null("e")? else {
                inventory.of_unknown_engine.push(name);
                continue;
            };
            *inventory.count_by_engine.entry(engine.to_owned()).or_default() += 1;
            match treatment(engine) {
                Treatment::Innodb | Treatment::NoData => {}
                Treatment::InMemory => inventory.in_memory.push(name),
                Treatment::Copied | Treatment::Unsupported => {
                    inventory.others.push(OtherTable { name, engine: engine.to_owned(), is_logged: false });
                }
            }
        }
        let innodb: u64 = session.number(
            "SELECT COUNT(*) FROM information_schema.tables WHERE engine = 'InnoDB' \
             AND table_schema NOT IN ('information_schema', 'performance_schema')",
        )?;
        inventory.count_by_engine.insert("InnoDB".to_owned(), innodb);
        if !inventory.of_unknown_engine.is_empty() {
            // A table that was being dropped is gone by now.
            let rows = session.rows(
                "SELECT table_schema AS s, table_name AS t FROM information_schema.tables \
                 WHERE table_type NOT LIKE '%VIEW' AND engine IS NULL",
            )?;
            let still = rows.iter().map(table_name).collect::<Result<Vec<_>, _>>()?;
            inventory.of_unknown_engine.retain(|name| still.contains(name));
        }
        if session.flavor() == Flavor::MariaDb {
            inventory.mark_logged(session)?;
        }
        Ok(inventory)
    }

    /// Aria's log covers tables of row format PAGE that were not created with `TRANSACTIONAL=0`.
    fn mark_logged(&mut self, session: &mut Session) -> Result<(), SqlError> {
        // For Aria only, because these columns make the server open the table itself.
        let rows = session.rows(
            "SELECT table_schema AS s, table_name AS t FROM information_schema.tables \
             WHERE engine = 'Aria' AND row_format = 'Page' AND create_options NOT LIKE '%transactional=0%' \
             AND table_schema NOT IN ('information_schema', 'performance_schema')",
        )?;
        let logged = rows.iter().map(table_name).collect::<Result<std::collections::HashSet<_>, _>>()?;
        for table in &mut self.others {
            table.is_logged = logged.contains(&table.name);
        }
        Ok(())
    }

    /// Refuses engines whose tables a physical backup would lose or tear.
    pub fn refuse_unsupported(&self) -> Result<()> {
        if !self.of_unknown_engine.is_empty() {
            let names: Vec<_> = self.of_unknown_engine.iter().collect();
            let message =
                format!("the server cannot tell which engine holds {}", first_of(&names, NAMES_SHOWN_MAX));
            return Err(Error::failed(message).hinted(
                "their definitions cannot be read, so a backup could miss their rows: repair or drop these \
                 tables",
            ));
        }
        let unsupported: Vec<&OtherTable> =
            self.others.iter().filter(|table| treatment(&table.engine) == Treatment::Unsupported).collect();
        let Some(first) = unsupported.first() else { return Ok(()) };
        let of_engine: Vec<&TableName> = unsupported
            .iter()
            .filter(|table| table.engine == first.engine)
            .map(|table| &table.name)
            .collect();
        let message = format!(
            "engine {} is not supported and holds {} of the tables: {}",
            first.engine,
            of_engine.len(),
            first_of(&of_engine, NAMES_SHOWN_MAX)
        );
        Err(Error::failed(message).hinted(
            "move these tables to a supported engine (InnoDB, Aria, MyISAM, ARCHIVE, CSV), or drop them",
        ))
    }

    /// Warnings about the tables for the user, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let names: Vec<_> = self.in_memory.iter().collect();
        let in_memory = "rows of MEMORY tables are not saved, only their definitions";
        (!names.is_empty())
            .then(|| format!("{in_memory}: {}", first_of(&names, NAMES_SHOWN_MAX)))
            .into_iter()
            .collect()
    }
}

fn table_name(row: &Row) -> Result<TableName, SqlError> {
    Ok(TableName { schema: row.text("s")?.to_owned(), table: row.text("t")?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(engine: &str, table: &str) -> OtherTable {
        let name = TableName { schema: "db".into(), table: table.into() };
        OtherTable { name, engine: engine.into(), is_logged: false }
    }

    /// An untested engine is refused by name, with its tables.
    #[test]
    fn unknown_engines_are_refused() {
        let mut inventory =
            TableInventory { others: vec![table("MyISAM", "a")], ..TableInventory::default() };
        inventory.refuse_unsupported().unwrap();
        inventory.others.extend((0..7).map(|i| table("ROCKSDB", &format!("r{i}"))));
        let message = inventory.refuse_unsupported().unwrap_err().to_string();
        assert_eq!(
            message,
            "engine ROCKSDB is not supported and holds 7 of the tables: \
             db.r0, db.r1, db.r2, db.r3, db.r4, and 2 more"
        );
    }
}
