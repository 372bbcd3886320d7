//! MySQL: a general tablespace that tables share, and move into and out of.

use anyhow::Result;
use mysql::prelude::Queryable;

use super::{COLUMNS, Connection, Table};

/// The error for dropping a tablespace that contains tables.
const TABLESPACE_IS_NOT_EMPTY: u16 = 3120;

impl Connection {
    /// Removes the tablespaces of an earlier storm with the same number, whose tables are already gone.
    pub(super) fn clear_shared(&mut self) -> Result<()> {
        if self.mariadb {
            return Ok(());
        }
        let query = "SELECT name FROM information_schema.innodb_tablespaces WHERE space_type = 'General' AND name LIKE ?";
        let old: Vec<String> = self.conn.exec(query, (format!("shared\\_{}%", self.prefix),))?;
        for name in old {
            self.conn.query_drop(format!("DROP TABLESPACE {name}"))?;
        }
        Ok(())
    }

    /// Does one random operation on the shared tablespace, or on `table` and the tablespace.
    pub(super) fn share(&mut self, table: &str, innodb: bool) -> Result<()> {
        let Some(shared) = self.shared.clone() else {
            let name = format!("shared_{}", self.new_name());
            let encryption = if self.traits.keys && self.rng.percent(50) { "ENCRYPTION='Y'" } else { "" };
            if self.try_run(&format!("CREATE TABLESPACE {name} ADD DATAFILE '{name}.ibd' {encryption}"))? {
                self.shared = Some(name);
            }
            return Ok(());
        };
        match self.rng.below(8) {
            0 => {
                let name = format!("shared_{}", self.new_name());
                if self.try_run(&format!("ALTER TABLESPACE {shared} RENAME TO {name}"))? {
                    self.shared = Some(name);
                }
            }
            1 => {
                let is_gone =
                    self.try_run_or(&format!("DROP TABLESPACE {shared}"), &[TABLESPACE_IS_NOT_EMPTY])?;
                self.shared = self.shared.take().filter(|_| !is_gone);
            }
            2 if self.traits.keys => {
                let value = if self.rng.percent(50) { "Y" } else { "N" };
                self.try_run(&format!("ALTER TABLESPACE {shared} ENCRYPTION='{value}'"))?;
            }
            3 | 4 => {
                let name = self.new_name();
                if self
                    .try_run(&format!("CREATE TABLE {name} ({COLUMNS}) ENGINE=InnoDB TABLESPACE {shared}"))?
                {
                    self.tables.push(Table { name: name.clone(), innodb: true });
                    self.fill(&name)?;
                }
            }
            5 if innodb => {
                self.try_run(&format!("ALTER TABLE {table} TABLESPACE innodb_file_per_table"))?;
            }
            _ if innodb => {
                self.try_run(&format!("ALTER TABLE {table} TABLESPACE {shared}"))?;
            }
            _ => {}
        }
        Ok(())
    }
}
