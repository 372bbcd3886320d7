//! A DDL storm: everything that DDL can do to a file while it is copied.
//!
//! Each connection has its own tables in the schema `ddl`, so it knows what it has created.
//! It cannot know whether the server accepts a change for a table with that history, so such refusals are
//! expected and counted.

mod imports;
mod in_use;
mod shared;
mod undo;

pub use imports::finish_imports;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mysql::Conn;
use mysql::prelude::Queryable;

use super::{Crew, Pace, Stop, server_error};
use crate::rng::Rng;
use crate::server::Server;

/// Rows of the table that others are filled from.
const SEED_ROWS: u32 = 5000;
/// Columns of the long-lived tables.
const COLUMNS: &str = "id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, a INT, b VARCHAR(300), KEY (a)";
const TABLES_MIN: usize = 5;
const TABLES_MAX: usize = 25;

/// A running storm.
#[derive(Debug)]
pub struct DdlStorm {
    crew: Crew<DdlCounts>,
    /// Whether it is paused. Shared by the connections that are making a change.
    paused: Arc<RwLock<bool>>,
    imports: Arc<Imports>,
    /// The error with which a backup may be refused because of an import; `None` if it must never be.
    refusal: Option<Refusal>,
}

/// Options of a storm.
#[derive(Clone, Copy, Debug)]
pub struct StormOptions {
    /// The number of connections that change tables.
    pub connections: u32,
    /// Determines what each connection does.
    pub seed: u64,
    /// Whether tablespaces are discarded and imported.
    /// Before the server is compared with a copy, the copy must [`finish_imports`].
    pub imports: bool,
    /// Whether indexes of the tables in `shop`, which others write to, come and go, too.
    pub in_use: bool,
    /// Whether all tables are InnoDB tables, including those of the server's other clients.
    pub innodb_only: bool,
    /// The most changes that each connection begins in a second; `None`: as many as the server lets it.
    pub per_second: Option<u32>,
}

impl StormOptions {
    /// A storm of tables of all engines without imports, at a rate that leaves the machine room for more.
    pub fn new(connections: u32, seed: u64) -> StormOptions {
        const PER_SECOND: u32 = 5;
        StormOptions {
            connections,
            seed,
            imports: false,
            in_use: false,
            innodb_only: false,
            per_second: Some(PER_SECOND),
        }
    }
}

/// The state of imports, shared by all connections.
#[derive(Debug, Default)]
struct Imports {
    allowed: AtomicBool,
    begun: AtomicU64,
    done: AtomicU64,
}

/// What a storm has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DdlCounts {
    /// Statements that the server executed.
    pub done: u64,
    /// Refused statements, by the server's error number.
    pub refused: BTreeMap<u16, u64>,
    /// Imported tablespaces.
    pub imports: u64,
}

impl DdlStorm {
    /// Starts a storm with this many connections and no imports.
    pub fn start(server: &Server, connections: u32, seed: u64) -> Result<DdlStorm> {
        DdlStorm::start_with(server, StormOptions::new(connections, seed))
    }

    /// Starts a storm.
    pub fn start_with(server: &Server, options: StormOptions) -> Result<DdlStorm> {
        let StormOptions { connections, seed, .. } = options;
        prepare(server)?;
        let traits = Traits::of(server)?;
        let exports = imports::new_exports(server)?;
        let imports = Arc::new(Imports::default());
        imports.allowed.store(options.imports, Ordering::SeqCst);
        let (mut crew, paused) = (Crew::new(), Arc::<RwLock<bool>>::default());
        for number in 0..connections {
            let mut conn = server.conn()?;
            conn.query_drop("USE ddl")?;
            let mut storm = Connection {
                conn,
                rng: Rng::keyed(seed, 1, u64::from(number)),
                prefix: format!("t{number}_"),
                mariadb: server.kind().is_mariadb(),
                traits,
                in_use: options.in_use,
                innodb_only: options.innodb_only,
                schema_dir: server.datadir().join("ddl"),
                exports: exports.clone(),
                imports: Arc::clone(&imports),
                with_imports: options.imports,
                tables: Vec::new(),
                shared: None,
                ballast: None,
                // An interrupted storm leaves accounts and tablespaces behind, so their names must not be
                // reused.
                next: seed % 1_000_000 * 1000,
                counts: DdlCounts::default(),
            };
            storm.clear()?;
            let paused = Arc::clone(&paused);
            crew.add(move |stop| storm.run(stop, &paused, Pace::per_second(options.per_second)));
        }
        Ok(DdlStorm { crew, paused, imports, refusal: refusal(server, options.innodb_only)? })
    }

    /// The number of tablespaces imported so far.
    pub fn imported(&self) -> u64 {
        self.imports.done.load(Ordering::SeqCst)
    }

    /// Prevents further imports from being started.
    pub fn stop_imports(&self) {
        self.imports.allowed.store(false, Ordering::SeqCst);
    }

    /// Holds the storm after the current changes, imports included, which end before this returns.
    pub fn pause(&self) {
        self.set_paused(true);
    }

    /// Lets a paused storm go on.
    pub fn go_on(&self) {
        self.set_paused(false);
    }

    fn set_paused(&self, paused: bool) {
        *self.paused.write().unwrap_or_else(PoisonError::into_inner) = paused;
    }

    /// Whether a backup failed with `error` because of this storm, on a server where such a backup must be
    /// refused.
    /// `imported` is the number of tablespaces imported when the backup began.
    /// MySQL ends an import with a checkpoint, so only later imports count; on MariaDB, those since the last
    /// checkpoint count, which cannot be told apart here.
    pub fn excuses(&self, error: &str, imported: u64) -> bool {
        let Some(Refusal { says, counts_all }) = self.refusal else { return false };
        let before = if counts_all { 0 } else { imported };
        self.imports.begun.load(Ordering::SeqCst) > before && says.iter().all(|part| error.contains(part))
    }

    /// Stops the storm after the current statements.
    pub fn stop(mut self) -> Result<DdlCounts> {
        Ok(self.crew.finish()?.into_iter().fold(DdlCounts::default(), |mut sum, counts| {
            sum.done += counts.done;
            sum.imports += counts.imports;
            for (code, count) in counts.refused {
                *sum.refused.entry(code).or_default() += count;
            }
            sum
        }))
    }
}

fn prepare(server: &Server) -> Result<()> {
    server.exec_all([
        "CREATE DATABASE IF NOT EXISTS ddl CHARACTER SET utf8mb4",
        "CREATE TABLE IF NOT EXISTS ddl.seed (id INT NOT NULL PRIMARY KEY) ENGINE=InnoDB",
    ])?;
    let ids: Vec<String> = (1..=SEED_ROWS).map(|id| format!("({id})")).collect();
    server.exec(format!("INSERT IGNORE INTO ddl.seed VALUES {}", ids.join(",")))?;
    undo::prepare(server)
}

/// The refusal of a backup because of an import; see `docs/guide/hot-backup.md`.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    says: [&'static str; 2],
    /// Whether imports from before the backup count as well.
    counts_all: bool,
}

fn refusal(server: &Server, innodb_only: bool) -> Result<Option<Refusal>> {
    Ok(match server.kind().is_mariadb() {
        true if server.value::<bool>("SELECT @@innodb_encrypt_log")? => Some(Refusal {
            says: ["ddl/", "may have been imported and renamed during or shortly before the backup"],
            counts_all: true,
        }),
        false if !innodb_only => Some(Refusal {
            says: [
                "imported during the backup: ddl.",
                "which the server does not do together with tables of other engines",
            ],
            counts_all: false,
        }),
        _ => None,
    })
}

/// Optional features of a server.
#[derive(Clone, Copy, Debug)]
struct Traits {
    /// It has encryption keys.
    keys: bool,
    /// It has undo tablespaces.
    undo: bool,
}

impl Traits {
    fn of(server: &Server) -> Result<Traits> {
        let keys = match server.kind().is_mariadb() {
            true => {
                "SELECT COUNT(*) FROM information_schema.plugins
                 WHERE plugin_type = 'ENCRYPTION' AND plugin_status = 'ACTIVE'"
            }
            false => {
                "SELECT COUNT(*) FROM performance_schema.keyring_component_status
                 WHERE status_key = 'Component_status' AND status_value = 'Active'"
            }
        };
        let keys = server.value::<u64>(keys)? > 0;
        let undo =
            !server.kind().is_mariadb() || server.value::<u64>("SELECT @@innodb_undo_tablespaces")? > 0;
        Ok(Traits { keys, undo })
    }
}

/// Errors that depend on a table's history, or on a lock held by a backup.
fn is_expected(code: u16) -> bool {
    const DUPLICATE_COLUMN: u16 = 1060;
    const DUPLICATE_KEY_NAME: u16 = 1061;
    const TOO_MANY_KEYS: u16 = 1069;
    const ROW_TOO_LARGE: u16 = 1118;
    const LOCK_WAIT_TIMEOUT: u16 = 1205;
    const DEADLOCK: u16 = 1213;
    const OPTIONS_DO_NOT_FIT: u16 = 1478;
    const ALGORITHM_NOT_SUPPORTED: u16 = 1845;
    const ALGORITHM_NOT_SUPPORTED_REASON: u16 = 1846;
    const TOO_MANY_ROW_VERSIONS: u16 = 4092;
    /// An encrypted table and a tablespace that is not, or the other way round.
    const INVALID_ENCRYPTION_REQUEST: u16 = 3825;
    const EXPECTED: [u16; 11] = [
        INVALID_ENCRYPTION_REQUEST,
        DUPLICATE_COLUMN,
        DUPLICATE_KEY_NAME,
        TOO_MANY_KEYS,
        ROW_TOO_LARGE,
        LOCK_WAIT_TIMEOUT,
        DEADLOCK,
        OPTIONS_DO_NOT_FIT,
        ALGORITHM_NOT_SUPPORTED,
        ALGORITHM_NOT_SUPPORTED_REASON,
        TOO_MANY_ROW_VERSIONS,
    ];
    EXPECTED.contains(&code)
}

struct Connection {
    conn: Conn,
    rng: Rng,
    prefix: String,
    mariadb: bool,
    traits: Traits,
    in_use: bool,
    innodb_only: bool,
    /// The directory of the schema `ddl` in the data directory.
    schema_dir: PathBuf,
    /// The directory that keeps files of exported tables.
    exports: PathBuf,
    imports: Arc<Imports>,
    /// Whether this storm includes imports.
    with_imports: bool,
    tables: Vec<Table>,
    /// A tablespace shared by tables of this connection.
    shared: Option<String>,
    /// A table whose changes fill undo tablespaces.
    ballast: Option<String>,
    next: u64,
    counts: DdlCounts,
}

struct Table {
    name: String,
    innodb: bool,
}

impl Connection {
    fn run(mut self, stop: &Stop, paused: &RwLock<bool>, pace: Pace) -> Result<DdlCounts> {
        const LOOK_EVERY: Duration = Duration::from_millis(20);
        while !stop.requested() {
            let begun = Instant::now();
            let paused = paused.read().unwrap_or_else(PoisonError::into_inner);
            if *paused {
                drop(paused);
                thread::sleep(LOOK_EVERY);
                continue;
            }
            self.step()?;
            drop(paused);
            pace.keep(begun);
        }
        Ok(self.counts)
    }

    /// Removes the remains of an earlier storm with the same number.
    fn clear(&mut self) -> Result<()> {
        let pattern = self.prefix.replace('_', "\\_");
        let old: Vec<String> = self.conn.query(format!("SHOW TABLES LIKE '{pattern}%'"))?;
        for name in old {
            self.conn.query_drop(format!("DROP TABLE {name}"))?;
        }
        let schemas: Vec<String> = self.conn.query(format!("SHOW DATABASES LIKE 'ddl\\_{pattern}%'"))?;
        for name in schemas {
            self.conn.query_drop(format!("DROP DATABASE {name}"))?;
        }
        self.clear_shared()
    }

    /// Runs a statement; returns whether the server executed it.
    fn try_run(&mut self, statement: &str) -> Result<bool> {
        self.try_run_or(statement, &[])
    }

    /// Runs a statement that the server may also refuse with the errors `or`; returns
    /// whether it was executed.
    fn try_run_or(&mut self, statement: &str, or: &[u16]) -> Result<bool> {
        match self.conn.query_drop(statement) {
            Ok(()) => {
                self.counts.done += 1;
                Ok(true)
            }
            Err(error) => match server_error(&error) {
                Some(code) if is_expected(code) || or.contains(&code) => {
                    *self.counts.refused.entry(code).or_default() += 1;
                    Ok(false)
                }
                _ => Err(error).with_context(|| statement.to_owned()),
            },
        }
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("{}{}", self.prefix, self.next)
    }

    fn step(&mut self) -> Result<()> {
        if self.tables.len() < TABLES_MIN {
            return self.create();
        }
        if self.in_use && self.rng.below(8) == 0 {
            return self.index_in_use();
        }
        let at = self.rng.index(self.tables.len());
        let table = self.tables[at].name.clone();
        let innodb = self.tables[at].innodb;
        let number = self.rng.below(8);
        match self.rng.below(34) {
            0..4 if self.tables.len() < TABLES_MAX => self.create(),
            0..6 => self.drop_table(at),
            6 | 7 => self.rename(at),
            8 => self.swap(at),
            9 => self.try_run(&format!("TRUNCATE TABLE {table}")).map(drop),
            10..13 => self.fill(&table),
            13 if innodb => self.try_run(&format!("ALTER TABLE {table} FORCE, ALGORITHM=INPLACE")).map(drop),
            14 => self.try_run(&format!("ALTER TABLE {table} FORCE, ALGORITHM=COPY")).map(drop),
            15 | 16 => self.try_run(&format!("ALTER TABLE {table} ADD KEY k{number} (b(20), a)")).map(drop),
            17 => self.drop_index(&table),
            18 if innodb => {
                let column = format!("ADD COLUMN c{number} INT NOT NULL DEFAULT 5, ALGORITHM=INSTANT");
                self.try_run(&format!("ALTER TABLE {table} {column}")).map(drop)
            }
            19 => self.partitions(),
            20 => self.create_from(&table),
            21 => self.try_run(&format!("OPTIMIZE TABLE {table}")).map(drop),
            22 if innodb => {
                let format = self.rng.pick(&["DYNAMIC", "COMPACT", "REDUNDANT"]);
                self.try_run(&format!("ALTER TABLE {table} ROW_FORMAT={format}")).map(drop)
            }
            23 => self.fulltext(),
            24 => self.schema(),
            25 | 26 if self.with_imports => self.import(),
            27 if self.traits.undo => self.fill_undo(),
            28 if !self.mariadb => self.move_undo(),
            29..32 if !self.mariadb => self.share(&table, innodb),
            32 if self.traits.keys => self.encrypt(&table, innodb),
            _ => self.try_run(&format!("UPDATE {table} SET b = REVERSE(b) WHERE a % 3 = 0")).map(drop),
        }
    }

    fn create(&mut self) -> Result<()> {
        let common =
            ["ENGINE=InnoDB", "ENGINE=InnoDB", "ENGINE=InnoDB ROW_FORMAT=COMPRESSED", "ENGINE=MyISAM"];
        let own = if self.mariadb {
            ["ENGINE=InnoDB PAGE_COMPRESSED=1", "ENGINE=Aria"]
        } else {
            ["ENGINE=InnoDB COMPRESSION='zlib'", "ENGINE=InnoDB"]
        };
        let mut all = [&common[..], &own[..]].concat();
        all.retain(|options| !self.innodb_only || options.contains("InnoDB"));
        let options = self.rng.pick(&all);
        let name = self.new_name();
        if self.try_run(&format!("CREATE TABLE {name} ({COLUMNS}) {options}"))? {
            self.tables.push(Table { name: name.clone(), innodb: options.contains("InnoDB") });
            self.fill(&name)?;
        }
        Ok(())
    }

    fn fill(&mut self, table: &str) -> Result<()> {
        let rows = [1, 50, 500, SEED_ROWS][self.rng.index(4)];
        let salt = self.rng.below(1 << 30);
        let select = format!(
            "SELECT id + {salt}, REPEAT(SHA2(id + {salt}, 256), 4) FROM seed ORDER BY id LIMIT {rows}"
        );
        self.try_run(&format!("INSERT INTO {table} (a, b) {select}")).map(drop)
    }

    fn drop_table(&mut self, at: usize) -> Result<()> {
        let table = self.tables[at].name.clone();
        if self.try_run(&format!("DROP TABLE {table}"))? {
            self.tables.remove(at);
        }
        Ok(())
    }

    fn rename(&mut self, at: usize) -> Result<()> {
        let (old, new) = (self.tables[at].name.clone(), self.new_name());
        if self.try_run(&format!("RENAME TABLE {old} TO {new}"))? {
            self.tables[at].name = new;
        }
        Ok(())
    }

    /// Swaps the names of two tables in one statement: each name now refers to the other file.
    fn swap(&mut self, at: usize) -> Result<()> {
        let other = self.rng.index(self.tables.len());
        if other == at {
            return Ok(());
        }
        let (one, two) = (self.tables[at].name.clone(), self.tables[other].name.clone());
        let between = self.new_name();
        if self.try_run(&format!("RENAME TABLE {one} TO {between}, {two} TO {one}, {between} TO {two}"))? {
            self.tables[at].name = two;
            self.tables[other].name = one;
        }
        Ok(())
    }

    fn drop_index(&mut self, table: &str) -> Result<()> {
        let query = format!(
            "SELECT index_name FROM information_schema.statistics WHERE table_schema = 'ddl' AND table_name = '{table}'
             AND index_name LIKE 'k%' LIMIT 1"
        );
        match self.conn.query_first::<String, _>(query)? {
            Some(index) => self.try_run(&format!("ALTER TABLE {table} DROP KEY {index}")).map(drop),
            None => Ok(()),
        }
    }

    fn create_from(&mut self, table: &str) -> Result<()> {
        let name = self.new_name();
        let select = format!("SELECT a, b FROM {table} ORDER BY id LIMIT 1000");
        if self.try_run(&format!("CREATE TABLE {name} ({COLUMNS}) ENGINE=InnoDB {select}"))? {
            self.tables.push(Table { name, innodb: true });
        }
        Ok(())
    }

    /// The whole life of a partitioned table, from creation to removal.
    fn partitions(&mut self) -> Result<()> {
        let (name, plain) = (self.new_name(), self.new_name());
        for statement in [
            format!(
                "CREATE TABLE {name} (id INT NOT NULL PRIMARY KEY, v VARCHAR(100)) ENGINE=InnoDB
                 PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (1000), PARTITION p1 VALUES LESS THAN (3000),
                 PARTITION pm VALUES LESS THAN MAXVALUE)"
            ),
            format!("INSERT INTO {name} SELECT id, SHA2(id, 224) FROM seed"),
            format!(
                "ALTER TABLE {name} REORGANIZE PARTITION pm INTO
                 (PARTITION p2 VALUES LESS THAN (4000), PARTITION pm VALUES LESS THAN MAXVALUE)"
            ),
            format!("CREATE TABLE {plain} (id INT NOT NULL PRIMARY KEY, v VARCHAR(100)) ENGINE=InnoDB"),
            format!("INSERT INTO {plain} SELECT id, 'exchanged' FROM seed WHERE id < 500"),
            format!("ALTER TABLE {name} EXCHANGE PARTITION p0 WITH TABLE {plain}"),
            format!("ALTER TABLE {name} TRUNCATE PARTITION p1"),
            format!("ALTER TABLE {name} DROP PARTITION p2"),
            format!("ALTER TABLE {name} PARTITION BY HASH (id) PARTITIONS 3"),
            format!("ALTER TABLE {name} ADD PARTITION PARTITIONS 1"),
            format!("ALTER TABLE {name} COALESCE PARTITION 2"),
            format!("DROP TABLE {name}, {plain}"),
        ] {
            self.try_run(&statement)?;
        }
        Ok(())
    }

    fn fulltext(&mut self) -> Result<()> {
        let name = self.new_name();
        for statement in [
            format!("CREATE TABLE {name} (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, t TEXT) ENGINE=InnoDB"),
            format!(
                "INSERT INTO {name} (t) SELECT CONCAT('word', id % 100, ' text ', SHA2(id, 224)) FROM seed WHERE id < 800"
            ),
            format!("ALTER TABLE {name} ADD FULLTEXT KEY words (t)"),
            format!(
                "INSERT INTO {name} (t) SELECT CONCAT('later', id % 10, ' text') FROM seed WHERE id < 100"
            ),
            format!("ALTER TABLE {name} DROP KEY words"),
            format!("DROP TABLE {name}"),
        ] {
            self.try_run(&statement)?;
        }
        Ok(())
    }

    /// Switches encryption on or off, for one table or for all tables without an explicit setting.
    fn encrypt(&mut self, table: &str, innodb: bool) -> Result<()> {
        let on = self.rng.percent(50);
        let statement = match (self.mariadb, on) {
            (true, _) if self.rng.percent(30) => {
                let value = if on { "ON" } else { "OFF" };
                self.try_run("SET GLOBAL innodb_encryption_threads = 2")?;
                format!("SET GLOBAL innodb_encrypt_tables = {value}")
            }
            _ if !innodb => return Ok(()),
            (true, true) => format!("ALTER TABLE {table} ENCRYPTED=YES"),
            (true, false) => format!("ALTER TABLE {table} ENCRYPTED=NO"),
            (false, true) => format!("ALTER TABLE {table} ENCRYPTION='Y'"),
            (false, false) => format!("ALTER TABLE {table} ENCRYPTION='N'"),
        };
        self.try_run(&statement).map(drop)
    }

    /// Creates a schema with objects other than tables, an account, and on MySQL a general tablespace.
    fn schema(&mut self) -> Result<()> {
        let name = self.new_name();
        let mut statements = vec![
            format!("CREATE DATABASE ddl_{name}"),
            format!("CREATE TABLE ddl_{name}.t (id INT NOT NULL PRIMARY KEY) ENGINE=InnoDB"),
            format!("INSERT INTO ddl_{name}.t SELECT id FROM seed WHERE id < 100"),
            format!("CREATE VIEW ddl_{name}.v AS SELECT id FROM ddl_{name}.t"),
            format!("CREATE USER u_{name} IDENTIFIED BY 'x'"),
            format!("GRANT SELECT ON ddl_{name}.* TO u_{name}"),
        ];
        if !self.mariadb {
            statements.extend([
                format!("CREATE TABLESPACE s_{name} ADD DATAFILE 's_{name}.ibd' ENGINE=InnoDB"),
                format!("ALTER TABLE ddl_{name}.t TABLESPACE s_{name}"),
                format!("ALTER TABLESPACE s_{name} RENAME TO r_{name}"),
                format!("ALTER TABLE ddl_{name}.t TABLESPACE innodb_file_per_table"),
                format!("DROP TABLESPACE r_{name}"),
            ]);
        }
        statements.extend([format!("DROP USER u_{name}"), format!("DROP DATABASE ddl_{name}")]);
        statements.iter().try_for_each(|statement| self.try_run(statement).map(drop))
    }
}
