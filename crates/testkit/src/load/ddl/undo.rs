//! Undo tablespaces that grow until the server truncates them, and on MySQL are created and dropped.

use anyhow::Result;
use mysql::prelude::Queryable;

use super::{COLUMNS, Connection, SEED_ROWS};
use crate::server::Server;

/// The smallest limit that servers accept; undo tablespaces that exceed it are truncated.
const UNDO_BYTES_MAX: u64 = 10 << 20;
/// The number of updates, each of which generates about 1.5 MiB of undo.
const CHANGES: u32 = 9;

/// Makes the server truncate undo tablespaces soon.
pub(super) fn prepare(server: &Server) -> Result<()> {
    server.exec_all([
        format!("SET GLOBAL innodb_max_undo_log_size = {UNDO_BYTES_MAX}"),
        "SET GLOBAL innodb_undo_log_truncate = ON".to_owned(),
        "SET GLOBAL innodb_purge_rseg_truncate_frequency = 1".to_owned(),
    ])
}

impl Connection {
    /// Runs a transaction whose undo exceeds the limit. It is rolled back, so it is not in the binlog.
    pub(super) fn fill_undo(&mut self) -> Result<()> {
        let ballast = match &self.ballast {
            Some(ballast) => ballast.clone(),
            None => {
                let name = self.new_name();
                let select =
                    format!("SELECT id, REPEAT(SHA2(id, 256), 4) FROM seed ORDER BY id LIMIT {SEED_ROWS}");
                if !self.try_run(&format!("CREATE TABLE {name} ({COLUMNS}) ENGINE=InnoDB"))?
                    || !self.try_run(&format!("INSERT INTO {name} (a, b) {select}"))?
                {
                    return Ok(());
                }
                self.ballast.insert(name).clone()
            }
        };
        self.try_run("SET sql_log_bin = 0")?;
        self.try_run("BEGIN")?;
        for _ in 0..CHANGES {
            self.try_run(&format!("UPDATE {ballast} SET b = REVERSE(b)"))?;
        }
        self.try_run("ROLLBACK")?;
        self.try_run("SET sql_log_bin = 1").map(drop)
    }

    /// MySQL: creates, empties, or drops an undo tablespace.
    pub(super) fn move_undo(&mut self) -> Result<()> {
        /// Too few would be left, or it is not empty yet, or another connection was first.
        const REFUSED: [u16; 3] = [1529, 1533, 3655];
        let query = "SELECT name, state FROM information_schema.innodb_tablespaces
                     WHERE space_type = 'Undo' AND name LIKE ?";
        let own: Option<(String, String)> =
            self.conn.exec_first(query, (format!("undo\\_{}%", self.prefix),))?;
        let statement = match own {
            None => {
                let name = format!("undo_{}", self.new_name());
                format!("CREATE UNDO TABLESPACE {name} ADD DATAFILE '{name}.ibu'")
            }
            Some((name, state)) if state == "empty" => match self.rng.percent(70) {
                true => format!("DROP UNDO TABLESPACE {name}"),
                false => format!("ALTER UNDO TABLESPACE {name} SET ACTIVE"),
            },
            Some((name, state)) if state == "active" && self.rng.percent(70) => {
                format!("ALTER UNDO TABLESPACE {name} SET INACTIVE")
            }
            Some(_) => {
                let name = self.rng.pick(&["innodb_undo_001", "innodb_undo_002"]).to_owned();
                self.try_run_or(&format!("ALTER UNDO TABLESPACE {name} SET INACTIVE"), &REFUSED)?;
                format!("ALTER UNDO TABLESPACE {name} SET ACTIVE")
            }
        };
        self.try_run_or(&statement, &REFUSED).map(drop)
    }
}
