//! Refuses servers whose hot physical backup would be wrong.

use std::path::{Path, PathBuf};

use holdfast_formats::Flavor;

use super::ServerFacts;
use crate::error::{Error, Result};

impl ServerFacts {
    /// Refuses a server that a hot physical backup would get wrong, as far as options can tell.
    /// [`TableInventory::refuse_unsupported`](crate::server::TableInventory::refuse_unsupported) checks the
    /// engines.
    pub fn refuse_unsupported(&self) -> Result<()> {
        let can = &self.capabilities;
        let needed = match self.flavor() {
            Flavor::MariaDb => [
                (can.backup_stages, "BACKUP STAGE", "MariaDB 10.5 and later have it"),
                (can.lsn_status, "the status values Innodb_lsn_*", "MariaDB 10.8 and later have them"),
            ],
            Flavor::MySql => [
                (can.instance_lock, "LOCK INSTANCE FOR BACKUP", "MySQL 8.0 and later have it"),
                (
                    can.log_status,
                    "performance_schema.log_status",
                    "MySQL 8.0.14 and later have it, with performance_schema=ON",
                ),
            ],
        };
        for (present, what, hint) in needed {
            if !present {
                return Err(Error::failed(format!("the server does not support {what}")).hinted(hint));
            }
        }
        let binlog_engine = self.binlog.as_ref().and_then(|binlog| binlog.storage_engine.as_deref());
        let refused = [
            (
                can.galera,
                "a node of a Galera cluster (wsrep_on=ON, or still connected)",
                "its locks would stop the cluster: back up an asynchronous replica of it",
            ),
            (
                can.group_member,
                "an active member of a replication group",
                "back up an asynchronous replica of the group, or stop group replication on this member first",
            ),
            (
                can.log_archive,
                "using innodb_log_archive=ON",
                "this redo layout is not supported: switch it off",
            ),
            (
                !can.redo_enabled,
                "running without redo (innodb_redo_log_enabled=OFF)",
                "ALTER INSTANCE ENABLE INNODB REDO_LOG; a copy made without redo could not be made consistent",
            ),
            (
                binlog_engine.is_some_and(|engine| engine.eq_ignore_ascii_case("innodb")),
                "keeping its binlog in InnoDB (binlog_storage_engine=innodb)",
                "this binlog layout is not supported: use binlog files",
            ),
            (
                self.innodb.force_recovery > 0,
                "in rescue mode (innodb_force_recovery > 0)",
                "the server may not show all that its files contain: dump the data, or repair the server \
                 first",
            ),
            (
                self.innodb.read_only,
                "not writing to its files (innodb_read_only=ON)",
                "it lists no tablespaces (MariaDB) and keeps no redo (MySQL): start it without the option",
            ),
        ];
        for (present, what, hint) in refused {
            if present {
                return Err(Error::failed(format!("the server is {what}")).hinted(hint));
            }
        }
        match self.unusual_place()? {
            None => Ok(()),
            Some((what, path)) => Err(Error::failed(format!("{what} in {}", path.display())).hinted(
                "InnoDB's and Aria's own files are supported only at the top of the data directory under \
                 their usual names, or outside of it",
            )),
        }
    }

    /// The first file or directory found that would not be recognized for what it is. Such files would be
    /// copied as if they belonged to no engine: pages unchecked, and logs not to their end.
    fn unusual_place(&self) -> Result<Option<(&'static str, PathBuf)>> {
        let top = self.resolved(Path::new(""));
        let below = |path: &PathBuf| path.starts_with(&top) && *path != top;
        let dirs = [
            ("undo tablespaces are", Some(self.undo_dir())),
            ("the Aria log is", self.aria_log_dir()),
            ("the redo log is", Some(self.redo_dir())),
        ];
        let dir = dirs.into_iter().find_map(|(what, dir)| dir.filter(below).map(|dir| (what, dir)));
        let unusual = |file: &PathBuf| {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            below(file) && (file.parent() != Some(&top) || !name.starts_with("ibdata"))
        };
        let system = self.system_files()?.into_iter().find(unusual);
        Ok(dir.or(system.map(|file| ("the system tablespace is", file))))
    }
}
