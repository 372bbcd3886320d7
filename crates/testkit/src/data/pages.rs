//! The schema `pages`: a small table for each page format that this server supports.
//!
//! Each table has rows that fit on a page and some that do not, free space from deleted
//! rows, and a secondary index.
//! [`PageLoad`](crate::load::PageLoad) writes to all of them.

use anyhow::{Context, Result};
use mysql::Conn;
use mysql::prelude::Queryable;

use crate::server::Server;

/// The number of rows in each table, and in the table that they are filled from.
pub(crate) const ROWS: u32 = 400;
/// `ROW_FORMAT=COMPRESSED` exists only up to this page size.
const ZIP_PAGE_SIZE_MAX: u32 = 16 << 10;

const FILESYSTEM_BLOCK_SIZE: u32 = 4096;

const COLUMNS: &str = "id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL,
     v VARCHAR(300) CHARACTER SET latin1 NOT NULL, b LONGBLOB, KEY (k)";
const WITH_GEOMETRY: &str = "id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL,
     v VARCHAR(300) CHARACTER SET latin1 NOT NULL, b LONGBLOB, g GEOMETRY NOT NULL, SPATIAL KEY (g)";

/// Creates and fills the schema. Returns its tables, qualified with the schema.
pub fn create(server: &Server) -> Result<Vec<String>> {
    let page_size: u32 = server.value("SELECT @@innodb_page_size")?;
    let mut maker = Maker { conn: server.conn()?, page_size, tables: Vec::new() };
    maker.run("CREATE DATABASE pages CHARACTER SET utf8mb4")?;
    maker.run("CREATE TABLE pages.seed (id INT NOT NULL PRIMARY KEY) ENGINE=InnoDB")?;
    let ids: Vec<String> = (1..=ROWS).map(|id| format!("({id})")).collect();
    maker.run(&format!("INSERT INTO pages.seed VALUES {}", ids.join(",")))?;

    for format in ["REDUNDANT", "COMPACT", "DYNAMIC"] {
        maker.table(&format.to_lowercase(), COLUMNS, &format!("ROW_FORMAT={format}"))?;
    }
    maker.table("r_tree", WITH_GEOMETRY, "")?;
    maker.run("SET GLOBAL innodb_file_per_table = 0")?;
    maker.table("system_tablespace", COLUMNS, "")?;
    maker.run("SET GLOBAL innodb_file_per_table = 1")?;
    let block_sizes_kib = [1, 2, 4, 8, 16].into_iter().filter(|kib| kib << 10 <= page_size);
    if page_size <= ZIP_PAGE_SIZE_MAX {
        for kib in block_sizes_kib {
            let zip = format!("ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE={kib}");
            maker.table(&format!("zip{kib}"), COLUMNS, &zip)?;
            let bytes = kib << 10;
            if !server.kind().is_mariadb() && bytes < page_size {
                maker.run(&format!(
                    "CREATE TABLESPACE zip{kib} ADD DATAFILE 'zip{kib}.ibd' FILE_BLOCK_SIZE={bytes}"
                ))?;
                maker.table(&format!("general_zip{kib}"), COLUMNS, &format!("TABLESPACE=zip{kib} {zip}"))?;
            }
        }
        maker.table("r_tree_zip", WITH_GEOMETRY, "ROW_FORMAT=COMPRESSED")?;
    }
    if server.kind().is_mariadb() {
        maker.mariadb_page_compressed()?;
    } else {
        // A page must be larger than a filesystem block.
        if page_size > FILESYSTEM_BLOCK_SIZE {
            for algorithm in ["zlib", "lz4"] {
                maker.table(algorithm, COLUMNS, &format!("COMPRESSION='{algorithm}'"))?;
            }
            maker.table("r_tree_zlib", WITH_GEOMETRY, "COMPRESSION='zlib'")?;
        }
        maker.run("CREATE TABLESPACE general ADD DATAFILE 'general.ibd'")?;
        maker.table("general", COLUMNS, "TABLESPACE=general")?;
    }
    Ok(maker.tables)
}

/// SQL for `v` and `b` of the row whose number is the expression `id`.
/// Values differ for each `salt`; now and then one needs pages of its own.
pub(crate) fn values(id: &str, salt: u64, page_size: u32) -> String {
    let long = page_size * 5 / 2 / 128;
    format!(
        "CONCAT(SHA2({id} + {salt}, 256), REPEAT('x', {id} % 200)),
         IF({id} % 100 = {}, REPEAT(SHA2({id} + {salt}, 512), {long}), NULL)",
        salt % 100
    )
}

struct Maker {
    conn: Conn,
    page_size: u32,
    tables: Vec<String>,
}

impl Maker {
    fn run(&mut self, statement: &str) -> Result<()> {
        self.conn.query_drop(statement).with_context(|| statement.to_owned())
    }

    fn table(&mut self, name: &str, columns: &str, placement: &str) -> Result<()> {
        let table = format!("pages.{name}");
        self.run(&format!("CREATE TABLE {table} ({columns}) ENGINE=InnoDB {placement}"))?;
        let values = values("id", 0, self.page_size);
        let select = if columns.contains("GEOMETRY") {
            format!("(k, v, b, g) SELECT id % 97, {values}, POINT(id, -id) FROM pages.seed")
        } else {
            format!("(k, v, b) SELECT id % 97, {values} FROM pages.seed")
        };
        self.run(&format!("INSERT INTO {table} {select}"))?;
        self.run(&format!("DELETE FROM {table} WHERE id % 5 = 1"))?;
        self.tables.push(table);
        Ok(())
    }

    /// Creates a table for every compression algorithm whose provider is installed.
    fn mariadb_page_compressed(&mut self) -> Result<()> {
        let mut algorithms: Vec<String> = self.conn.query(
            "SELECT SUBSTRING(plugin_name, 10) FROM information_schema.plugins
             WHERE plugin_name LIKE 'provider\\_%' AND plugin_status = 'ACTIVE' ORDER BY 1",
        )?;
        algorithms.push("zlib".to_owned());
        for algorithm in algorithms {
            self.run(&format!("SET GLOBAL innodb_compression_algorithm = '{algorithm}'"))?;
            for (name, columns) in
                [(algorithm.clone(), COLUMNS), (format!("r_tree_{algorithm}"), WITH_GEOMETRY)]
            {
                self.table(&name, columns, "PAGE_COMPRESSED=1")?;
                // In formats before `full_crc32`, pages are compressed with the algorithm that is set when
                // they are written.
                self.run(&format!("FLUSH TABLES pages.{name} FOR EXPORT"))?;
                self.run("UNLOCK TABLES")?;
            }
        }
        Ok(())
    }
}
