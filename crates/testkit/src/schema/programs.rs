//! Views, triggers, routines, events and sequences that use the existing tables.

use anyhow::Result;

use super::{Maker, names};
use crate::data::names::quoted;

const MODES: [&str; 5] = ["", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "PIPES_AS_CONCAT", "STRICT_ALL_TABLES"];

impl Maker {
    /// Creates some of each.
    pub(super) fn programs(&mut self) -> Result<()> {
        let mut views: Vec<String> = Vec::new();
        for _ in 0..self.rng.between(3, 8) {
            self.mode(&MODES)?;
            let at = self.rng.index(self.made.databases.len());
            let schema = quoted(&self.made.databases[at]);
            let name = format!("{schema}.{}", quoted(&self.names.any(&mut self.rng)));
            self.use_database(&schema)?;
            let kind = self.rng.below(12);
            let statement = match kind {
                0..4 => self.view(&name, &views),
                4..7 => self.trigger(),
                7 | 8 => self.procedure(&name),
                9 => self.function(&name),
                10 if self.is_mariadb => self.sequence(&name),
                _ => self.event(&name),
            };
            if self.attempt(&statement)? {
                self.made.programs += 1;
                if kind < 4 {
                    views.push(name);
                }
            }
        }
        Ok(())
    }

    fn use_database(&mut self, quoted_schema: &str) -> Result<()> {
        use mysql::prelude::Queryable;
        Ok(self.conn.query_drop(format!("USE {quoted_schema}"))?)
    }

    fn view(&mut self, name: &str, views: &[String]) -> String {
        let rng = &mut self.rng;
        if !views.is_empty() && rng.percent(40) {
            let of = &views[rng.index(views.len())];
            return format!("CREATE VIEW {name} AS SELECT a.*, 'ä😀''' AS `it's` FROM {of} a");
        }
        let Some(table) = self.tables.get(rng.index(self.tables.len().max(1))) else { return String::new() };
        // MySQL prints such a column of a view with the leading space, but strips the space when
        // it reads the view again.
        let fit = table.columns.iter().filter(|column| !column.name.starts_with(' '));
        let mut columns: Vec<String> = fit.map(|column| quoted(&column.name)).collect();
        if columns.is_empty() {
            return String::new();
        }
        let first = columns[0].clone();
        columns.truncate(rng.between(1, columns.len() as u64) as usize);
        let columns = columns.join(", ");
        let table = table.quoted();
        match rng.below(4) {
            0 => format!(
                "CREATE ALGORITHM=TEMPTABLE SQL SECURITY INVOKER VIEW {name} AS SELECT COUNT(*) AS `c``c`, MAX({first}) AS m FROM {table}"
            ),
            1 => format!(
                "CREATE VIEW {name} AS SELECT {columns} FROM {table} WHERE {first} IS NOT NULL WITH CASCADED CHECK OPTION"
            ),
            2 => format!(
                "CREATE ALGORITHM=MERGE VIEW {name} AS SELECT x.{first}, y.{first} AS `other;` FROM {table} x LEFT JOIN {table} y ON x.{first} = y.{first}"
            ),
            _ => format!(
                "CREATE VIEW {name} AS SELECT {columns} FROM {table} UNION ALL SELECT {columns} FROM {table}"
            ),
        }
    }

    fn trigger(&mut self) -> String {
        let rng = &mut self.rng;
        let Some(table) = self.tables.get(rng.index(self.tables.len().max(1))) else { return String::new() };
        let name = format!("{}.{}", quoted(&table.schema), quoted(&self.names.any(rng)));
        let moment = rng.pick(&["BEFORE INSERT", "BEFORE UPDATE", "AFTER INSERT", "AFTER DELETE"]);
        let nullable = table.columns.iter().find(|it| it.is_nullable && it.expression.is_none());
        // Triggers must not break loading of the rows.
        let body = match nullable.filter(|_| moment.starts_with("BEFORE")) {
            Some(column) => format!("SET NEW.{} = NULL", quoted(&column.name)),
            None => "BEGIN /* it's; */ SET @`seen;` = 'ä😀'; -- no more\n END".to_owned(),
        };
        format!("CREATE TRIGGER {name} {moment} ON {} FOR EACH ROW {body}", table.quoted())
    }

    fn procedure(&mut self, name: &str) -> String {
        let rng = &mut self.rng;
        let remark = names::remark(rng, 100);
        let table = self.tables.get(rng.index(self.tables.len().max(1)));
        let query =
            table.map_or("SELECT 1".to_owned(), |table| format!("SELECT COUNT(*) FROM {}", table.quoted()));
        format!(
            "CREATE PROCEDURE {name} (IN `a b` VARCHAR(9) CHARACTER SET latin1, OUT `o``o` DECIMAL(9,2)) COMMENT {remark} \
             BEGIN DECLARE x INT DEFAULT 1; # hash\n {query}; SELECT 'it''s;;😀', `a b`; END"
        )
    }

    fn function(&mut self, name: &str) -> String {
        let collation = self.collations.any(&mut self.rng);
        format!(
            "CREATE FUNCTION {name} (a TEXT CHARACTER SET {0} COLLATE {1}) RETURNS VARCHAR(50) CHARACTER SET {0} \
             COLLATE {1} DETERMINISTIC NO SQL SQL SECURITY INVOKER RETURN CONCAT(LEFT(a, 3), '\\\\')",
            collation.charset, collation.name
        )
    }

    fn event(&mut self, name: &str) -> String {
        let remark = names::remark(&mut self.rng, 60);
        let when = self.rng.pick(&[
            "EVERY 1 DAY STARTS '2030-01-01 03:00:00'",
            "AT '2037-12-31 23:59:59'",
            "EVERY '1:30' HOUR_MINUTE STARTS '2030-05-01 00:00:00' ENDS '2036-01-01 00:00:00'",
        ]);
        format!(
            "CREATE EVENT {name} ON SCHEDULE {when} ON COMPLETION PRESERVE DISABLE COMMENT {remark} DO SELECT 'x;'"
        )
    }

    fn sequence(&mut self, name: &str) -> String {
        let rng = &mut self.rng;
        let (start, step) = (rng.below(1000), rng.between(1, 9));
        let end = rng.pick(&["CYCLE", "NOCYCLE", "NOCACHE"]);
        format!(
            "CREATE SEQUENCE {name} START WITH {start} INCREMENT BY {step} MINVALUE -5 MAXVALUE 5000 {end}"
        )
    }
}
