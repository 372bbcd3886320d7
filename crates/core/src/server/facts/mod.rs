//! What a server is: its identity, paths, capabilities, and the options that its files depend on; whether it
//! is a member of a cluster or group ([`membership`]), and whether our account has the rights that a run
//! needs ([`grants`]).
//!
//! The facts are read once, at the start of a run. [`ServerFacts`] are stored in the manifest: a restore
//! needs most of them to start the same release series on the same file formats. A capability is probed by
//! trying the feature itself.

pub mod grants;
pub(crate) mod membership;
mod probe;
mod refuse;
mod variables;

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use holdfast_formats::Flavor;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    server::ServerVersion,
};

pub(crate) use variables::DECIDING;

pub use super::identity::Identity;

/// Everything about a server that a backup records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// Version and flavor.
    pub version: ServerVersion,
    /// Who built it (`version_comment`).
    pub vendor: String,
    /// What distinguishes this server from others.
    pub identity: Identity,
    /// Its directories.
    pub paths: Paths,
    /// InnoDB options that its files depend on.
    pub innodb: InnodbFacts,
    /// Aria options, on MariaDB.
    pub aria: Option<AriaFacts>,
    /// The binlog; `None` if it is off.
    pub binlog: Option<BinlogFacts>,
    /// The server's settings as a replica.
    pub replica: ReplicaFacts,
    /// What is encrypted, and where the keys come from.
    pub encryption: EncryptionFacts,
    /// Options of the SQL layer that a server needs to start on the same files.
    pub sql: SqlFacts,
    /// Active plugins from shared libraries.
    pub plugins: Vec<Plugin>,
    /// Installed components, as URNs (MySQL).
    pub components: Vec<String>,
    /// What the server can do.
    pub capabilities: Capabilities,
    /// When the server was started, by its clock, give or take a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
}

/// Directories and files as the server names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// `datadir`.
    pub datadir: PathBuf,
    /// `basedir`.
    pub basedir: PathBuf,
    /// `plugin_dir`.
    pub plugin_dir: PathBuf,
    /// `lc_messages_dir`, if set.
    pub lc_messages_dir: Option<PathBuf>,
    /// `character_sets_dir`.
    pub character_sets_dir: PathBuf,
    /// `tmpdir`: may list several directories, separated by colons.
    pub tmpdir: String,
    /// `pid_file`.
    pub pid_file: Option<PathBuf>,
    /// `log_error`, if it is a file.
    pub log_error: Option<PathBuf>,
    /// `general_log_file`, whether it is in use or not.
    #[serde(default)]
    pub general_log: Option<PathBuf>,
    /// `slow_query_log_file`, whether it is in use or not.
    #[serde(default)]
    pub slow_log: Option<PathBuf>,
    /// Logs of plugins, above all of audit plugins. Rotated logs have a number after a dot appended.
    #[serde(default)]
    pub plugin_logs: Vec<PathBuf>,
}

/// InnoDB options that its files depend on. Directories are as configured: see [`ServerFacts::resolved`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InnodbFacts {
    /// `innodb_page_size`.
    pub page_size: u32,
    /// `innodb_data_file_path`.
    pub data_file_path: String,
    /// `innodb_data_home_dir`; `None` is the data directory.
    pub data_home_dir: Option<PathBuf>,
    /// `innodb_undo_directory`; `None` is the data directory.
    pub undo_directory: Option<PathBuf>,
    /// `innodb_undo_tablespaces` (MariaDB): how many a start must expect.
    pub undo_tablespaces: Option<u32>,
    /// `innodb_log_group_home_dir`; `None` is the data directory.
    pub log_group_home_dir: Option<PathBuf>,
    /// `innodb_directories` (MySQL): where else the server looks for tablespaces.
    pub directories: Vec<PathBuf>,
    /// `innodb_doublewrite_dir` (MySQL), if set.
    pub doublewrite_dir: Option<PathBuf>,
    /// `innodb_temp_tablespaces_dir` (MySQL).
    pub temp_tablespaces_dir: Option<PathBuf>,
    /// `innodb_temp_data_file_path`: files that each start creates anew.
    pub temp_data_file_path: String,
    /// `innodb_buffer_pool_filename`.
    pub buffer_pool_filename: Option<String>,
    /// `innodb_flush_method`: tells how the server writes its files, and so how to read them.
    pub flush_method: String,
    /// `innodb_data_file_buffering` (MariaDB 11 and later), which has replaced that for tablespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_file_buffering: Option<bool>,
    /// `innodb_checksum_algorithm`.
    pub checksum_algorithm: String,
    /// Size of the redo log on disk: `innodb_redo_log_capacity`, or `innodb_log_file_size`.
    pub redo_size: u64,
    /// `innodb_flush_log_at_trx_commit`.
    pub flush_log_at_trx_commit: u8,
    /// `innodb_force_recovery`.
    pub force_recovery: u8,
    /// `innodb_read_only`.
    #[serde(default)]
    pub read_only: bool,
}

/// Aria options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AriaFacts {
    /// `aria_log_dir_path`; `None` is the data directory.
    pub log_dir_path: Option<PathBuf>,
    /// `aria_block_size`.
    pub block_size: u32,
    /// `aria_encrypt_tables`.
    pub encrypt_tables: bool,
}

/// The binlog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinlogFacts {
    /// `log_bin_basename`: the path without the number.
    pub basename: PathBuf,
    /// `log_bin_index`.
    pub index: PathBuf,
    /// `binlog_format`.
    pub format: Option<String>,
    /// `gtid_mode` (MySQL).
    pub gtid_mode: Option<String>,
    /// `gtid_domain_id` (MariaDB).
    pub gtid_domain_id: Option<u32>,
    /// Whether replicated changes are logged too.
    pub log_replica_updates: bool,
    /// `binlog_storage_engine`, if the server has it.
    pub storage_engine: Option<String>,
    /// `binlog_encryption` or `encrypt_binlog`.
    pub encrypted: bool,
}

/// The server's settings as a replica. Its position is in [`status`](crate::server::status).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaFacts {
    /// `relay_log_basename`, if set.
    pub relay_log_basename: Option<PathBuf>,
    /// `relay_log_index`.
    pub relay_log_index: Option<PathBuf>,
    /// Number of parallel appliers.
    pub parallel_workers: u32,
    /// Whether parallel appliers commit in the primary's order, so that no gaps occur.
    pub preserve_commit_order: bool,
    /// MariaDB: `binlog_optimize_thread_scheduling` is off, with which a transaction can be in the binlog and
    /// uncommitted while commits are blocked.
    #[serde(default)]
    pub commits_late: bool,
}

/// What is encrypted, and where the keys come from. Keys are never part of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncryptionFacts {
    /// New redo is encrypted (`innodb_redo_log_encrypt`, `innodb_encrypt_log`). Older redo may differ: the
    /// redo log itself is authoritative.
    pub redo: bool,
    /// New undo is encrypted (`innodb_undo_log_encrypt`).
    pub undo: bool,
    /// Active key providers: plugins and components.
    pub key_providers: Vec<String>,
    /// The file with the keys: `file_key_management_filename`, or the file of a keyring component or plugin.
    pub key_file: Option<PathBuf>,
    /// Other files needed to get at the keys: the key of the key file, a plugin's configuration with a token.
    /// Relative to the data directory, or absolute.
    #[serde(default)]
    pub more_key_files: Vec<PathBuf>,
}

/// Options of the SQL layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SqlFacts {
    /// `lower_case_table_names`.
    pub lower_case_table_names: u8,
    /// `sql_mode`.
    pub sql_mode: String,
    /// `character_set_server`.
    pub character_set_server: String,
    /// `collation_server`.
    pub collation_server: String,
    /// `explicit_defaults_for_timestamp`.
    pub explicit_defaults_for_timestamp: Option<bool>,
    /// `system_time_zone`.
    pub system_time_zone: Option<String>,
    /// `time_zone`.
    #[serde(default)]
    pub time_zone: Option<String>,
    /// `default_storage_engine`.
    pub default_storage_engine: String,
    /// `performance_schema`.
    pub performance_schema: bool,
    /// `myisam_use_mmap`.
    #[serde(default)]
    pub myisam_use_mmap: bool,
    /// Settings that no binlog has, and by which the same statements and rows make other tables, values or
    /// full-text indexes. Empty in backups that are older than this field.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deciding: BTreeMap<String, String>,
}

/// An active plugin from a shared library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plugin {
    /// Its name.
    pub name: String,
    /// `STORAGE ENGINE`, `ENCRYPTION`, `AUTHENTICATION` …
    pub kind: String,
    /// Its library, a file name in `plugin_dir`.
    pub library: String,
}

/// What a server can do; each capability is probed. A capability of the other flavor is `false`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// `BACKUP STAGE` (MariaDB).
    pub backup_stages: bool,
    /// LSNs as status values `Innodb_lsn_*` (MariaDB).
    pub lsn_status: bool,
    /// `SET GLOBAL innodb_log_checkpoint_now` exists.
    pub checkpoint_now: bool,
    /// `LOCK INSTANCE FOR BACKUP` (MySQL).
    pub instance_lock: bool,
    /// `performance_schema.log_status` (MySQL).
    pub log_status: bool,
    /// `innodb_redo_log_consumer_*` (MySQL).
    pub redo_consumer: bool,
    /// `innodb_redo_log_sharp_checkpoint` (MySQL).
    pub sharp_checkpoint: bool,
    /// Connection attributes of other sessions are readable.
    pub connection_attributes: bool,
    /// Redo is written at all (`Innodb_redo_log_enabled`).
    pub redo_enabled: bool,
    /// The server is a node of a Galera cluster.
    pub galera: bool,
    /// The server is an active member of a replication group.
    pub group_member: bool,
    /// `innodb_log_archive` is on: a redo layout that is not supported.
    pub log_archive: bool,
}

impl ServerFacts {
    /// MySQL or MariaDB.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.version.flavor
    }

    /// Makes a path from the server's options absolute. Relative paths start at the data directory, and may
    /// lead out of it.
    #[must_use]
    pub fn resolved(&self, path: &Path) -> PathBuf {
        let mut resolved = PathBuf::new();
        for component in self.paths.datadir.join(path).components() {
            // The path is absolute, so `..` never comes first. Without this step, equal paths could look
            // different.
            match component {
                Component::ParentDir => drop(resolved.pop()),
                component => resolved.push(component),
            }
        }
        resolved
    }

    /// The directory of the redo log.
    #[must_use]
    pub fn redo_dir(&self) -> PathBuf {
        self.resolved(self.innodb.log_group_home_dir.as_deref().unwrap_or(Path::new("")))
    }

    /// The directory of the undo tablespaces.
    #[must_use]
    pub fn undo_dir(&self) -> PathBuf {
        self.resolved(self.innodb.undo_directory.as_deref().unwrap_or(Path::new("")))
    }

    /// The directory of Aria's log.
    #[must_use]
    pub fn aria_log_dir(&self) -> Option<PathBuf> {
        let aria = self.aria.as_ref()?;
        Some(self.resolved(aria.log_dir_path.as_deref().unwrap_or(Path::new(""))))
    }

    /// The files of the system tablespace.
    pub fn system_files(&self) -> Result<Vec<PathBuf>> {
        self.data_files("innodb_data_file_path", &self.innodb.data_file_path)
    }

    /// The names of the files of the system tablespace, without their directories, in the order of their pages.
    pub fn system_file_names(&self) -> Result<Vec<String>> {
        let files = self.system_files()?;
        Ok(files.iter().filter_map(|file| Some(file.file_name()?.to_str()?.to_owned())).collect())
    }

    /// The files of the temporary tablespace.
    pub fn temporary_files(&self) -> Result<Vec<PathBuf>> {
        self.data_files("innodb_temp_data_file_path", &self.innodb.temp_data_file_path)
    }

    fn data_files(&self, option: &str, specification: &str) -> Result<Vec<PathBuf>> {
        let home = self.innodb.data_home_dir.as_deref().unwrap_or(Path::new(""));
        let files = data_files(option, specification)?;
        Ok(files.into_iter().map(|file| self.resolved(&home.join(file))).collect())
    }

    /// Whether InnoDB bypasses the page cache when it writes its tablespaces.
    #[must_use]
    pub fn writes_directly(&self) -> bool {
        match self.innodb.data_file_buffering {
            Some(is_buffered) => !is_buffered,
            // Covers `ALL_O_DIRECT` of Percona Server too.
            None => self.innodb.flush_method.to_ascii_uppercase().contains("O_DIRECT"),
        }
    }
}

/// The file names in an option such as `innodb_data_file_path`: `ibdata1:12M;/disk2/ibdata2:50M:autoextend`.
fn data_files(option: &str, specification: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for file in specification.split(';').filter(|file| !file.is_empty()) {
        let (name, size) = file
            .split_once(':')
            .ok_or_else(|| Error::failed(format!("{option} contains {file:?}, which has no size")))?;
        if size.ends_with("raw") {
            return Err(Error::failed(format!("{option} names a raw device: {file}"))
                .hinted("raw devices are not supported: move it into a file"));
        }
        files.push(PathBuf::from(name));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system tablespace's files are found for every form of the option.
    #[test]
    fn system_files() {
        let names = |text| -> Vec<String> {
            let files = data_files("innodb_data_file_path", text).unwrap();
            files.iter().map(|file| file.display().to_string()).collect()
        };
        assert_eq!(names("ibdata1:12M:autoextend"), ["ibdata1"]);
        assert_eq!(names("ibdata1:12M;/disk2/ibdata2:50M:autoextend"), ["ibdata1", "/disk2/ibdata2"]);
        assert_eq!(names("a:1G:autoextend:max:2G"), ["a"]);
        assert_eq!(names("ibdata1:1048576"), ["ibdata1"]);
        for text in ["ibdata1", "/dev/sdb:3Graw", "/dev/sdb:3Gnewraw"] {
            assert!(data_files("innodb_data_file_path", text).is_err(), "{text}");
        }
    }
}
