//! Schemas, tables, partitions, triggers and views with every kind of name that a server accepts: names that
//! the server encodes in file names, and names that would have a meaning as files.

use anyhow::{Context, Result};
use mysql::Conn;
use mysql::prelude::Queryable;

use crate::server::Server;

/// Table names.
pub const TABLES: [&str; 42] = [
    " leading space",
    "it's",
    "\"quoted\"",
    "back`tick",
    "dot.ted.name",
    "sla/sh",
    "../../up",
    "back\\slash",
    "#hash",
    "#sql-1a2b_3",
    "#sql-temptable-1",
    "at@0020sign",
    "x@@@",
    "%wild_card%",
    "tab\tand\nnew line",
    "*?[a-z]|<>:;,=+~!$^&(){}",
    "Grüße é",
    "Ā ſ ŉ",
    "名前",
    "имя ελ",
    "\u{e000}\u{fffd}",
    "CON",
    "con",
    "Aux",
    "nul",
    "prn",
    "com1",
    "LPT9",
    "clock$",
    "t#P#p0",
    "t#p#p0#sp#s0",
    "t.ibd",
    "t.isl",
    "t.partial",
    "db.opt",
    "-rf",
    "0",
    "1e5",
    "ibdata1",
    "undo001",
    "holdfast-restore.json",
    "sixty_letters_____________________________________________60",
];

/// Schema names. Some are names of files that servers create beside the schemas, now or in the past.
const SCHEMAS: [&str; 24] = [
    "sch ema",
    "sche.ma",
    "s/l",
    "s\\l",
    "#innodb_redo",
    "#x",
    "s'`\"",
    "Ünï",
    "スキーマ",
    "CON",
    "lpt1",
    "lost+found",
    "a@0020b",
    "ibdata7",
    "ibtmp7",
    "ib_logfile7",
    "ib_buffer_pool",
    "undo007",
    "undo_007",
    "binlog",
    "relay",
    "aria_log",
    "holdfast-restore.partial",
    "schema.partial",
];

/// Creates and fills the schemas and tables: all tables in the schema `names`, one of
/// each engine in all others.
/// Returns the names of those others; not every server accepts every name.
pub fn create(server: &Server) -> Result<Vec<String>> {
    const REFUSED: u16 = 1102;
    const FILE_EXISTS: [u16; 2] = [1007, 3678];
    let mut maker = Maker { conn: server.conn()? };
    maker.run("CREATE DATABASE names")?;
    let other_engine = if server.kind().is_mariadb() { "Aria" } else { "MyISAM" };
    for name in TABLES {
        maker.table("names", name, "InnoDB")?;
        maker.table("names", &format!("{name}_m"), other_engine)?;
    }
    for name in ["p 1", "p'é", "p.1", "P#p#"] {
        let table = format!("`names`.{}", quoted(&format!("parts {name}")));
        let (one, two) = (quoted(name), quoted(&format!("{name}!")));
        let (sub_one, sub_two) = (quoted(&format!("s {name}")), quoted(&format!("s.{name}")));
        maker.run(&format!(
            "CREATE TABLE {table} (i INT NOT NULL PRIMARY KEY, v VARCHAR(50)) ENGINE=InnoDB
             PARTITION BY RANGE (i) SUBPARTITION BY HASH (i) (
             PARTITION {one} VALUES LESS THAN (3) (SUBPARTITION {sub_one}, SUBPARTITION {sub_two}),
             PARTITION {two} VALUES LESS THAN MAXVALUE (SUBPARTITION a, SUBPARTITION b))"
        ))?;
        maker.fill(&table)?;
    }
    maker.run("CREATE VIEW `names`.`view.of x` AS SELECT * FROM `names`.`sla/sh`")?;
    maker.run(
        "CREATE TRIGGER `names`.`trigger ü.TRN` BEFORE INSERT ON `names`.`dot.ted.name` FOR EACH ROW SET NEW.v = 'x'",
    )?;
    let mut schemas = Vec::new();
    for schema in SCHEMAS {
        let create = format!("CREATE DATABASE {}", quoted(schema));
        match maker.conn.query_drop(&create) {
            Err(mysql::Error::MySqlError(error))
                if error.code == REFUSED || FILE_EXISTS.contains(&error.code) => {}
            created => {
                created.context(create)?;
                schemas.push(schema.to_owned());
                maker.fill_schema(schema)?;
            }
        }
    }
    Ok(schemas)
}

/// Quotes a name for use in a statement.
pub fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

struct Maker {
    conn: Conn,
}

impl Maker {
    fn run(&mut self, statement: &str) -> Result<()> {
        self.conn.query_drop(statement).with_context(|| statement.to_owned())
    }

    fn fill_schema(&mut self, schema: &str) -> Result<()> {
        let quoted = quoted(schema);
        self.table(schema, "t", "InnoDB")?;
        self.table(schema, "m", "MyISAM")?;
        self.run(&format!(
            "CREATE TABLE {quoted}.child (i INT NOT NULL PRIMARY KEY, CONSTRAINT {quoted} FOREIGN KEY (i)
             REFERENCES `names`.`sla/sh` (i)) ENGINE=InnoDB"
        ))?;
        self.run(&format!("INSERT INTO {quoted}.child VALUES (1)"))
    }

    fn table(&mut self, schema: &str, name: &str, engine: &str) -> Result<()> {
        let table = format!("{}.{}", quoted(schema), quoted(name));
        self.run(&format!(
            "CREATE TABLE {table} (i INT NOT NULL PRIMARY KEY, v VARCHAR(50)) ENGINE={engine}"
        ))?;
        self.fill(&table)
    }

    fn fill(&mut self, table: &str) -> Result<()> {
        self.run(&format!("INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')"))
    }
}
