//! The schema `misc`: one table of every engine, row format and placement, and one of every other object,
//! that a backup could miss or corrupt.
//!
//! Files outside the data directory go to [`Server::outside`].
//! They are optional: a replica on the same host that executes these statements would use
//! the same absolute paths.

use std::fmt::Write;

use anyhow::{Context, Result};
use mysql::Conn;
use mysql::prelude::Queryable;

use super::{Vocabulary, push_hex};
use crate::rng::Rng;
use crate::server::Server;

/// The columns of most tables.
const COLUMNS: &str =
    "id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, v VARCHAR(400) NOT NULL, k INT NOT NULL, KEY (k)";

/// Compressed pages exist only up to this page size.
const COMPRESSED_PAGE_SIZE_MAX: u32 = 16 << 10;

/// A table with [`COLUMNS`], and the options that follow them.
type Plain = (&'static str, String);

/// Options for [`create`].
#[derive(Clone, Copy, Debug)]
pub struct MiscOptions {
    /// The number of rows in each plain table.
    pub rows: u32,
    /// Seed of the contents.
    pub seed: u64,
    /// Whether to create tablespaces outside the data directory.
    pub outside: bool,
}

impl Default for MiscOptions {
    fn default() -> Self {
        MiscOptions { rows: 1000, seed: 1, outside: true }
    }
}

/// Creates the schema and fills it.
pub fn create(server: &Server, options: MiscOptions) -> Result<()> {
    let page_size: u32 = server.value("SELECT @@innodb_page_size")?;
    let outside = server.outside();
    let outside = outside.display();
    let mariadb = server.kind().is_mariadb();
    let mut loader = Loader {
        conn: server.conn()?,
        words: Vocabulary::new(),
        rng: Rng::new(options.seed),
        rows: options.rows,
    };
    loader.run(["CREATE DATABASE misc CHARACTER SET utf8mb4", "USE misc"])?;

    let mut plain: Vec<Plain> = vec![
        ("t_redundant", "ENGINE=InnoDB ROW_FORMAT=REDUNDANT".into()),
        ("t_compact", "ENGINE=InnoDB ROW_FORMAT=COMPACT".into()),
        ("t_myisam", "ENGINE=MyISAM".into()),
        ("t_myisam_fixed", "ENGINE=MyISAM ROW_FORMAT=FIXED".into()),
        ("t_hash_partitions", "ENGINE=InnoDB PARTITION BY HASH (id) PARTITIONS 4".into()),
    ];
    if page_size <= COMPRESSED_PAGE_SIZE_MAX {
        for (name, kib) in [("t_zip1", 1), ("t_zip4", 4), ("t_zip8", 8)] {
            if kib << 10 <= page_size {
                plain.push((name, format!("ENGINE=InnoDB ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE={kib}")));
            }
        }
    }
    if options.outside {
        plain.push(("t_elsewhere", format!("ENGINE=InnoDB DATA DIRECTORY='{outside}'")));
    }
    plain.extend(if mariadb { mariadb_tables() } else { mysql_tables() });
    if mariadb {
        loader.run(["INSTALL SONAME 'ha_archive'"])?;
    } else {
        loader.run([
            "CREATE TABLESPACE general ADD DATAFILE 'general.ibd' ENGINE=InnoDB",
            "CREATE UNDO TABLESPACE undo_more ADD DATAFILE 'undo_more.ibu'",
        ])?;
        if options.outside {
            let file = |name: &str| format!("ADD DATAFILE '{outside}/{name}'");
            loader.run([
                format!(
                    "CREATE TABLESPACE general_elsewhere {} ENGINE=InnoDB",
                    file("general_elsewhere.ibd")
                ),
                format!("CREATE UNDO TABLESPACE undo_elsewhere {}", file("undo_elsewhere.ibu")),
            ])?;
            plain.push(("t_general_elsewhere", "ENGINE=InnoDB TABLESPACE=general_elsewhere".into()));
        }
    }
    for (name, placement) in &plain {
        loader.run([format!("CREATE TABLE {name} ({COLUMNS}) {placement}")])?;
        loader.fill_plain(name)?;
    }
    // Leaves the traces of later changes in the tables' pages.
    loader.run([
        "ALTER TABLE t_compact ADD COLUMN added INT NOT NULL DEFAULT 7, ALGORITHM=INSTANT",
        "UPDATE t_compact SET added = 8 WHERE k < 100",
        "DELETE FROM t_redundant WHERE id % 3 = 0",
    ])?;
    loader.special_tables()?;
    loader.run(OBJECTS)?;
    if mariadb {
        loader.run(MARIADB_OBJECTS)?;
    } else {
        loader.run(MYSQL_OBJECTS)?;
    }
    loader.run(["CALL add_notes(20)"])
}

fn mariadb_tables() -> Vec<Plain> {
    vec![
        ("t_aria", "ENGINE=Aria TRANSACTIONAL=1".into()),
        ("t_aria_plain", "ENGINE=Aria TRANSACTIONAL=0 ROW_FORMAT=DYNAMIC".into()),
        ("t_page_compressed", "ENGINE=InnoDB PAGE_COMPRESSED=1".into()),
    ]
}

fn mysql_tables() -> Vec<Plain> {
    vec![
        ("t_page_zlib", "ENGINE=InnoDB COMPRESSION='zlib'".into()),
        ("t_page_lz4", "ENGINE=InnoDB COMPRESSION='lz4'".into()),
        ("t_general", "ENGINE=InnoDB TABLESPACE=general".into()),
        ("t_system_tablespace", "ENGINE=InnoDB TABLESPACE=innodb_system".into()),
    ]
}

const OBJECTS: [&str; 9] = [
    "CREATE TABLE t_merge_1 (id INT NOT NULL, v VARCHAR(40), KEY (id)) ENGINE=MyISAM",
    "CREATE TABLE t_merge_2 LIKE t_merge_1",
    "CREATE TABLE t_merge (id INT NOT NULL, v VARCHAR(40), KEY (id)) ENGINE=MERGE UNION=(t_merge_1, t_merge_2)
     INSERT_METHOD=LAST",
    "INSERT INTO t_merge_1 VALUES (1, 'one'), (2, 'two')",
    "INSERT INTO t_merge VALUES (3, 'three')",
    "CREATE VIEW v_frequent AS SELECT k, COUNT(*) AS n FROM t_myisam GROUP BY k",
    "CREATE TABLE t_notes (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(100)) ENGINE=InnoDB",
    "CREATE TRIGGER tr_notes BEFORE INSERT ON t_notes FOR EACH ROW SET NEW.note = UPPER(NEW.note)",
    "CREATE PROCEDURE add_notes(n INT) BEGIN
       DECLARE i INT DEFAULT 0;
       WHILE i < n DO INSERT INTO t_notes (note) VALUES (CONCAT('note ', i)); SET i = i + 1; END WHILE;
     END",
];

const MARIADB_OBJECTS: [&str; 7] = [
    "CREATE FUNCTION f_next(a INT) RETURNS INT DETERMINISTIC RETURN a + 1",
    "CREATE EVENT e_daily ON SCHEDULE EVERY 1 DAY DO INSERT INTO t_notes (note) VALUES ('daily')",
    "CREATE SEQUENCE s_numbers START WITH 10 INCREMENT BY 5",
    "SELECT NEXTVAL(s_numbers)",
    "CREATE TABLE t_versions (id INT PRIMARY KEY, v INT) ENGINE=InnoDB WITH SYSTEM VERSIONING",
    "INSERT INTO t_versions VALUES (1, 1), (2, 2), (3, 3)",
    "UPDATE t_versions SET v = v + 1 WHERE id < 3",
];

const MYSQL_OBJECTS: [&str; 4] = [
    "CREATE FUNCTION f_next(a INT) RETURNS INT DETERMINISTIC RETURN a + 1",
    "CREATE EVENT e_daily ON SCHEDULE EVERY 1 DAY STARTS CURRENT_TIMESTAMP + INTERVAL 1 DAY
     DO INSERT INTO t_notes (note) VALUES ('daily')",
    "CREATE TABLE t_places (id INT NOT NULL PRIMARY KEY, g GEOMETRY NOT NULL SRID 0, SPATIAL KEY (g)) ENGINE=InnoDB",
    "INSERT INTO t_places VALUES (1, POINT(1, 2)), (2, POINT(3, 4))",
];

struct Loader {
    conn: Conn,
    words: Vocabulary,
    rng: Rng,
    rows: u32,
}

impl Loader {
    fn run<S: AsRef<str>>(&mut self, statements: impl IntoIterator<Item = S>) -> Result<()> {
        for statement in statements {
            self.conn.query_drop(statement.as_ref()).with_context(|| statement.as_ref().to_owned())?;
        }
        Ok(())
    }

    fn fill_plain(&mut self, table: &str) -> Result<()> {
        self.fill(table, "v, k", |words, rng, _, out| {
            let count = rng.between(1, 40);
            words.push_words(rng, count, out);
            let k = rng.below(1000);
            write!(out, "',{k}").ok();
        })
    }

    /// Inserts `self.rows` rows whose first column is text; `row` writes each row after the opening quote.
    fn fill(
        &mut self,
        table: &str,
        columns: &str,
        row: impl Fn(&Vocabulary, &mut Rng, u32, &mut String),
    ) -> Result<()> {
        const ROWS_PER_STATEMENT: usize = 1000;
        let ids: Vec<u32> = (1..=self.rows).collect();
        for ids in ids.chunks(ROWS_PER_STATEMENT) {
            let mut statement = format!("INSERT INTO {table} ({columns}) VALUES ");
            for (i, id) in ids.iter().enumerate() {
                statement.push_str(if i == 0 { "('" } else { ",('" });
                row(&self.words, &mut self.rng, *id, &mut statement);
                statement.push(')');
            }
            self.run([statement])?;
        }
        Ok(())
    }

    /// Tables with special columns.
    fn special_tables(&mut self) -> Result<()> {
        self.run([
            "CREATE TABLE t_csv (v VARCHAR(200) NOT NULL, id INT NOT NULL) ENGINE=CSV",
            "CREATE TABLE t_archive (v VARCHAR(200), id INT NOT NULL) ENGINE=ARCHIVE",
            "CREATE TABLE t_range_partitions (v VARCHAR(200), id INT NOT NULL, k INT NOT NULL, PRIMARY KEY (id, k))
             ENGINE=InnoDB PARTITION BY RANGE (k) SUBPARTITION BY HASH (id) SUBPARTITIONS 2
             (PARTITION p0 VALUES LESS THAN (500), PARTITION p1 VALUES LESS THAN MAXVALUE)",
            "CREATE TABLE t_fulltext (t TEXT, id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, FULLTEXT KEY (t))
             ENGINE=InnoDB",
            "CREATE TABLE t_blobs (t MEDIUMTEXT, b LONGBLOB, id INT NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB",
            "CREATE TABLE t_generated (t VARCHAR(400), a INT NOT NULL, id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
             doubled INT AS (a * 2) VIRTUAL, tripled INT AS (a * 3) STORED, KEY (doubled)) ENGINE=InnoDB",
            "CREATE TABLE t_parent (id INT NOT NULL PRIMARY KEY, v VARCHAR(100)) ENGINE=InnoDB",
            "CREATE TABLE t_child (v VARCHAR(100), parent INT NOT NULL, id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
             FOREIGN KEY (parent) REFERENCES t_parent (id) ON DELETE CASCADE) ENGINE=InnoDB",
            "CREATE TABLE `t odd name ü` (id INT NOT NULL PRIMARY KEY) ENGINE=InnoDB",
            "INSERT INTO `t odd name ü` VALUES (1), (2)",
            "INSERT INTO t_parent VALUES (0, 'a'), (1, 'b'), (2, 'c'), (3, 'd')",
        ])?;
        let short = |words: &Vocabulary, rng: &mut Rng, id: u32, out: &mut String| {
            words.push_words(rng, 8, out);
            write!(out, "',{id}").ok();
        };
        self.fill("t_csv", "v, id", short)?;
        self.fill("t_archive", "v, id", short)?;
        self.fill("t_range_partitions", "v, id, k", |words, rng, id, out| {
            short(words, rng, id, out);
            write!(out, ",{}", rng.below(1000)).ok();
        })?;
        self.fill("t_fulltext", "t", |words, rng, _, out| {
            words.push_words(rng, 30, out);
            out.push('\'');
        })?;
        self.fill("t_blobs", "t, b", |words, rng, id, out| {
            // A few blobs need pages of their own.
            let (count, bytes) = if id.is_multiple_of(100) { (3000, 20_000) } else { (20, 30) };
            words.push_words(rng, count, out);
            out.push_str("',");
            push_hex(rng, bytes, out);
        })?;
        self.fill("t_generated", "t, a", short)?;
        self.fill("t_child", "v, parent", |words, rng, id, out| {
            words.push_words(rng, 5, out);
            write!(out, "',{}", id % 4).ok();
        })
    }
}
