//! `DISCARD` and `IMPORT TABLESPACE`: rewrite pages without redo, under an id that
//! recovery considers deleted.
//!
//! An import restores what the table held when it was discarded, so replicas need not know about it: both
//! statements stay out of the binlog.
//! A copy of the server that was taken while a table was discarded lacks its file for good, as the server
//! itself would; [`finish_imports`] completes the import on the copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use mysql::prelude::Queryable;

use super::{COLUMNS, Connection, Table};
use crate::load::server_error;
use crate::server::Server;

/// The exported tablespace, the server's description of it, and its key if there is one.
const SUFFIXES: [&str; 3] = ["ibd", "cfg", "cfp"];
/// How many earlier storms' files are kept: a copy may be this old.
const STORMS_KEPT: usize = 6;

fn exports_dir(server: &Server) -> PathBuf {
    server.home().join("exports")
}

/// Creates a new directory for the files of a storm.
pub(super) fn new_exports(server: &Server) -> Result<PathBuf> {
    let dir = exports_dir(server);
    fs::create_dir_all(&dir)?;
    let mut old: Vec<u64> = Vec::new();
    for entry in fs::read_dir(&dir)? {
        old.push(entry?.file_name().to_string_lossy().parse()?);
    }
    old.sort_unstable();
    for number in &old[..old.len().saturating_sub(STORMS_KEPT)] {
        fs::remove_dir_all(dir.join(number.to_string()))?;
    }
    let new = dir.join((old.last().unwrap_or(&0) + 1).to_string());
    fs::create_dir(&new)?;
    Ok(new)
}

/// Copies the existing files of a table.
fn put(table: &str, from: &Path, to: &Path) -> Result<()> {
    for suffix in SUFFIXES {
        let file = format!("{table}.{suffix}");
        if from.join(&file).exists() {
            fs::copy(from.join(&file), to.join(&file)).with_context(|| file)?;
        }
    }
    Ok(())
}

/// Imports on a copy of `source` the tables that storms had discarded and not yet imported
/// when the copy was taken.
/// Returns the number of tables imported.
pub fn finish_imports(source: &Server, copy: &Server) -> Result<usize> {
    const TABLESPACE_DISCARDED: u16 = 1814;
    let mut count = 0;
    let mut conn = copy.conn()?;
    conn.query_drop("SET sql_log_bin = 0")?;
    let exports = exports_dir(source);
    if !exports.exists() {
        return Ok(0);
    }
    for storm in fs::read_dir(exports)? {
        let storm = storm?.path();
        for entry in fs::read_dir(&storm)? {
            let path = entry?.path();
            if path.extension().is_none_or(|suffix| suffix != SUFFIXES[0]) {
                continue;
            }
            let table = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            // The error may arrive with the rows, which `query_drop` ignores.
            match conn.query_first::<u8, _>(format!("SELECT 1 FROM ddl.{table} LIMIT 1")) {
                Err(error) if server_error(&error) == Some(TABLESPACE_DISCARDED) => {}
                // The table is absent or whole; anything else will show up as a difference.
                _ => continue,
            }
            put(&table, &storm, &copy.datadir().join("ddl"))?;
            let statement = format!("ALTER TABLE ddl.{table} IMPORT TABLESPACE");
            conn.query_drop(&statement).context(statement)?;
            count += 1;
        }
    }
    Ok(count)
}

impl Connection {
    /// The life of a table up to its import and some later writes.
    pub(super) fn import(&mut self) -> Result<()> {
        match self.imports.allowed.load(Ordering::SeqCst) {
            true => self.import_one(),
            false => Ok(()),
        }
    }

    fn import_one(&mut self) -> Result<()> {
        let formats = match self.mariadb {
            // Importing a page-compressed table can wait forever for its last pages (seen on 10.11 and 11.8).
            true => ["", "", "ROW_FORMAT=COMPRESSED", "ROW_FORMAT=COMPACT"],
            false => ["", "", "ROW_FORMAT=COMPRESSED", "COMPRESSION='zlib'"],
        };
        let (name, format) = (self.new_name(), self.rng.pick(&formats));
        if !self.try_run(&format!("CREATE TABLE {name} ({COLUMNS}) ENGINE=InnoDB {format}"))? {
            return Ok(());
        }
        self.tables.push(Table { name: name.clone(), innodb: true });
        self.fill(&name)?;
        self.fill(&name)?;
        self.try_run(&format!("DELETE FROM {name} WHERE a % 3 = 0"))?;
        if !self.try_run(&format!("FLUSH TABLES {name} FOR EXPORT"))? {
            return Ok(());
        }
        put(&name, &self.schema_dir, &self.exports)?;
        self.try_run("UNLOCK TABLES")?;
        self.pause();
        self.try_run("SET sql_log_bin = 0")?;
        if self.try_run(&format!("ALTER TABLE {name} DISCARD TABLESPACE"))? {
            self.pause();
            put(&name, &self.exports, &self.schema_dir)?;
            self.pause();
            self.imports.begun.fetch_add(1, Ordering::SeqCst);
            // A table left without its rows would differ from its replicas.
            while !self.try_run(&format!("ALTER TABLE {name} IMPORT TABLESPACE"))? {}
            self.imports.done.fetch_add(1, Ordering::SeqCst);
            self.counts.imports += 1;
        }
        self.try_run("SET sql_log_bin = 1")?;
        // Without later writes, a copy that lacks changes after the import would go undetected.
        self.fill(&name)?;
        self.try_run(&format!("UPDATE {name} SET b = REVERSE(b) WHERE a % 4 = 0")).map(drop)
    }

    /// Leaves time for a backup to start between two statements.
    fn pause(&mut self) {
        const MS_MAX: u64 = 40;
        thread::sleep(Duration::from_millis(self.rng.below(MS_MAX)));
    }
}
