//! The server's options, by name and grouped by what we need them for.

use std::{collections::BTreeMap, path::PathBuf};

use super::{BinlogFacts, EncryptionFacts, InnodbFacts, Plugin, ReplicaFacts};
use crate::server::{Session, SqlError};

/// Options that name logs of plugins: of MariaDB's `server_audit` and `sql_errlog`, and of MySQL's and
/// Percona's audit plugins.
const PLUGIN_LOGS: [&str; 4] =
    ["server_audit_file_path", "sql_error_log_filename", "audit_log_file", "audit_log_filter.file"];
const SERVER_AUDIT_LOG: &str = "server_audit.log";

/// Options that name the file with the keys: of MariaDB's plugin, and of the plugins of MySQL before 9.0.
const KEY_FILES: [&str; 3] =
    ["file_key_management_filename", "keyring_file_data", "keyring_encrypted_file_data"];
/// Options that name other files needed to get at the keys.
const MORE_KEY_FILES: [&str; 3] = [FILE_KEY, "keyring_vault_config", "keyring_okv_conf_dir"];
/// The key of MariaDB's key file: `FILE:` and a path, or the key itself.
const FILE_KEY: &str = "file_key_management_filekey";
const FILE_PREFIX: &str = "FILE:";

/// Settings that no binlog has, and by which the same statements and rows make other tables, values or full-text
/// indexes. None of them lets a server read, write or load anything.
pub(crate) const DECIDING: [&str; 29] = [
    "block_encryption_mode",
    "character_set_collations",
    "character_set_server",
    "collation_server",
    "default_regex_flags",
    "default_week_format",
    "div_precision_increment",
    "enforce_storage_engine",
    "explicit_defaults_for_timestamp",
    "ft_max_word_len",
    "ft_min_word_len",
    FT_STOPWORD_FILE,
    "group_concat_max_len",
    "innodb_compression_default",
    "innodb_default_encryption_key_id",
    "innodb_default_row_format",
    "innodb_file_per_table",
    "innodb_ft_enable_stopword",
    "innodb_ft_max_token_size",
    "innodb_ft_min_token_size",
    "innodb_ft_server_stopword_table",
    "innodb_ft_user_stopword_table",
    "mhnsw_default_distance",
    "mhnsw_default_m",
    "ngram_token_size",
    OLD_MODE,
    "partial_revokes",
    "restrict_fk_on_non_standard_key",
    "system_versioning_alter_history",
];
/// Of these, those that say something when they are empty.
const FT_STOPWORD_FILE: &str = "ft_stopword_file";
const OLD_MODE: &str = "old_mode";

/// The server's global variables, by name in lower case.
pub(super) struct Variables(BTreeMap<String, String>);

impl Variables {
    pub(super) fn read(session: &mut Session) -> Result<Variables, SqlError> {
        let mut variables = BTreeMap::new();
        for row in session.rows("SHOW GLOBAL VARIABLES")? {
            let value = row.text_or_null("Value")?.unwrap_or_default().to_owned();
            variables.insert(row.text("Variable_name")?.to_ascii_lowercase(), value);
        }
        Ok(Variables(variables))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The value; empty if the variable is missing.
    pub(super) fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    /// The value, unless it is missing or empty.
    pub(super) fn set(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    pub(super) fn path_set(&self, name: &str) -> Option<PathBuf> {
        self.set(name).map(PathBuf::from)
    }

    pub(super) fn path(&self, name: &str) -> Result<PathBuf, SqlError> {
        self.path_set(name).ok_or_else(|| SqlError::unexpected(format_args!("there is no @@{name}")))
    }

    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, SqlError> {
        let value = self.get(name);
        value
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| SqlError::unexpected(format_args!("@@{name} is {value:?}, not a number")))
    }

    pub(super) fn number_set<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, SqlError> {
        if self.has(name) { self.number(name).map(Some) } else { Ok(None) }
    }

    pub(super) fn switch(&self, name: &str) -> Option<bool> {
        let value = self.get(name)?;
        Some(value.eq_ignore_ascii_case("ON") || value == "1" || value.eq_ignore_ascii_case("YES"))
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        self.switch(name).unwrap_or(false)
    }

    pub(super) fn plugin_logs(&self) -> Vec<PathBuf> {
        let named = PLUGIN_LOGS.into_iter().filter_map(|name| self.path_set(name));
        // The path may be a directory, which then holds a file of the usual name.
        named.flat_map(|path| [path.join(SERVER_AUDIT_LOG), path]).collect()
    }

    pub(super) fn deciding(&self) -> BTreeMap<String, String> {
        let value = |name: &str| {
            let may_be_empty = [FT_STOPWORD_FILE, OLD_MODE].contains(&name);
            let value = self.get(name).filter(|value| may_be_empty || !value.is_empty())?;
            Some((name.to_owned(), value.to_owned()))
        };
        DECIDING.into_iter().filter_map(value).collect()
    }

    pub(super) fn innodb(&self) -> Result<InnodbFacts, SqlError> {
        let directories = self.text("innodb_directories");
        Ok(InnodbFacts {
            page_size: self.number("innodb_page_size")?,
            data_file_path: self.text("innodb_data_file_path"),
            data_home_dir: self.path_set("innodb_data_home_dir"),
            undo_directory: self.path_set("innodb_undo_directory"),
            undo_tablespaces: self.number_set("innodb_undo_tablespaces")?,
            log_group_home_dir: self.path_set("innodb_log_group_home_dir"),
            directories: directories.split(';').filter(|dir| !dir.is_empty()).map(PathBuf::from).collect(),
            doublewrite_dir: self.path_set("innodb_doublewrite_dir"),
            temp_tablespaces_dir: self.path_set("innodb_temp_tablespaces_dir"),
            temp_data_file_path: self.text("innodb_temp_data_file_path"),
            buffer_pool_filename: self.set("innodb_buffer_pool_filename"),
            flush_method: self.text("innodb_flush_method"),
            data_file_buffering: self.switch("innodb_data_file_buffering"),
            checksum_algorithm: self.text("innodb_checksum_algorithm"),
            redo_size: match self.number_set("innodb_redo_log_capacity")? {
                Some(capacity) => capacity,
                None => self.number("innodb_log_file_size")?,
            },
            flush_log_at_trx_commit: self.number("innodb_flush_log_at_trx_commit")?,
            force_recovery: self.number_set("innodb_force_recovery")?.unwrap_or(0),
            read_only: self.is_on("innodb_read_only"),
        })
    }

    pub(super) fn binlog(&self) -> Result<Option<BinlogFacts>, SqlError> {
        if !self.is_on("log_bin") {
            return Ok(None);
        }
        Ok(Some(BinlogFacts {
            // Not set if the binlog is not kept in files.
            basename: self.path_set("log_bin_basename").unwrap_or_default(),
            index: self.path_set("log_bin_index").unwrap_or_default(),
            format: self.set("binlog_format"),
            gtid_mode: self.set("gtid_mode"),
            gtid_domain_id: self.number_set("gtid_domain_id")?,
            log_replica_updates: self.is_on("log_replica_updates") || self.is_on("log_slave_updates"),
            storage_engine: self.set("binlog_storage_engine"),
            encrypted: self.is_on("binlog_encryption") || self.is_on("encrypt_binlog"),
        }))
    }

    pub(super) fn replica(&self) -> Result<ReplicaFacts, SqlError> {
        let workers = match self.number_set("replica_parallel_workers")? {
            Some(workers) => workers,
            None => self.number_set("slave_parallel_threads")?.unwrap_or(0),
        };
        Ok(ReplicaFacts {
            relay_log_basename: self.path_set("relay_log_basename"),
            relay_log_index: self.path_set("relay_log_index"),
            parallel_workers: workers,
            // MariaDB's parallel appliers always commit in order, except across GTID domains, each of which
            // has its own position.
            preserve_commit_order: self.switch("replica_preserve_commit_order").unwrap_or(true),
            commits_late: !self.switch("binlog_optimize_thread_scheduling").unwrap_or(true),
        })
    }

    pub(super) fn encryption(
        &self,
        plugins: &[Plugin],
        components: &[String],
        keyring_file: Option<PathBuf>,
    ) -> EncryptionFacts {
        let provides_keys = |plugin: &&Plugin| {
            plugin.kind == "ENCRYPTION" || plugin.kind == "KEYRING" || plugin.name.starts_with("keyring_")
        };
        let mut key_providers: Vec<String> =
            plugins.iter().filter(provides_keys).map(|plugin| plugin.name.clone()).collect();
        key_providers.extend(components.iter().filter(|urn| urn.contains("keyring")).cloned());
        EncryptionFacts {
            redo: self.is_on("innodb_redo_log_encrypt") || self.is_on("innodb_encrypt_log"),
            undo: self.is_on("innodb_undo_log_encrypt"),
            key_providers,
            key_file: KEY_FILES.into_iter().find_map(|name| self.path_set(name)).or(keyring_file),
            more_key_files: MORE_KEY_FILES.into_iter().filter_map(|name| self.secret(name)).collect(),
        }
    }

    /// The file that an option names; `None` if the option holds the secret itself instead.
    fn secret(&self, name: &str) -> Option<PathBuf> {
        let value = self.set(name)?;
        match value.split_at_checked(FILE_PREFIX.len()) {
            Some((prefix, path)) if prefix.eq_ignore_ascii_case(FILE_PREFIX) => Some(PathBuf::from(path)),
            _ => (name != FILE_KEY).then(|| PathBuf::from(value)),
        }
    }
}
