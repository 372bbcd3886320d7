//! What a server is: identity, places, the options that its files depend on, and what it can do.
//!
//! Read once at the start of a run and stored in the manifest: a restore needs most of it to start the same release
//! series on the same file formats. Capabilities are probed by asking for the thing itself.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use holdfast_formats::Flavor;
use serde::{Deserialize, Serialize};

use super::{session::Session, sql_error::SqlError, version::ServerVersion};
use crate::error::{Error, Result};

/// Everything about a server that a backup records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// Version and flavor.
    pub version: ServerVersion,
    /// Who built it: `version_comment`.
    pub vendor: String,
    /// What tells this server from others.
    pub identity: Identity,
    /// Its directories.
    pub paths: Paths,
    /// InnoDB's options that files depend on.
    pub innodb: InnodbFacts,
    /// Aria's, on MariaDB.
    pub aria: Option<AriaFacts>,
    /// The binlog; `None` where it is off.
    pub binlog: Option<BinlogFacts>,
    /// Replication as a replica.
    pub replica: ReplicaFacts,
    /// What is encrypted, and who has the keys.
    pub encryption: EncryptionFacts,
    /// Options of the SQL layer that a start on the same files must know.
    pub sql: SqlFacts,
    /// Active plugins from shared libraries.
    pub plugins: Vec<Plugin>,
    /// Installed components, as URNs (MySQL).
    pub components: Vec<String>,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// What tells one server from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// MySQL's `server_uuid`.
    pub server_uuid: Option<String>,
    /// MariaDB's `server_uid`, a hash of its hardware address and port.
    pub server_uid: Option<String>,
    /// MariaDB's uuid in `aria_log_control`, which is in its files only: [`ServerFacts::probe`] does not see it.
    pub aria_uuid: Option<String>,
    /// `server_id`.
    pub server_id: u32,
    /// `hostname`.
    pub hostname: String,
    /// `port`.
    pub port: u16,
    /// `socket`.
    pub socket: PathBuf,
}

/// Directories as the server names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// `datadir`.
    pub datadir: PathBuf,
    /// `basedir`.
    pub basedir: PathBuf,
    /// `plugin_dir`.
    pub plugin_dir: PathBuf,
    /// `lc_messages_dir`, where it is set.
    pub lc_messages_dir: Option<PathBuf>,
    /// `character_sets_dir`.
    pub character_sets_dir: PathBuf,
    /// `tmpdir`: several directories may be given with colons between.
    pub tmpdir: String,
    /// `pid_file`.
    pub pid_file: Option<PathBuf>,
    /// `log_error`, where it is a file.
    pub log_error: Option<PathBuf>,
    /// `general_log_file`, whether it is written or not.
    #[serde(default)]
    pub general_log: Option<PathBuf>,
    /// `slow_query_log_file`, whether it is written or not.
    #[serde(default)]
    pub slow_log: Option<PathBuf>,
    /// Logs of plugins, above all of those that audit. What is rotated gets a number behind a dot.
    #[serde(default)]
    pub plugin_logs: Vec<PathBuf>,
}

/// InnoDB's options that its files depend on. Directories are as configured: see [`ServerFacts::resolved`].
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
    /// `innodb_directories` (MySQL): where else tablespaces are looked for.
    pub directories: Vec<PathBuf>,
    /// `innodb_doublewrite_dir` (MySQL), where it is set.
    pub doublewrite_dir: Option<PathBuf>,
    /// `innodb_temp_tablespaces_dir` (MySQL).
    pub temp_tablespaces_dir: Option<PathBuf>,
    /// `innodb_temp_data_file_path`: files that are made anew at each start.
    pub temp_data_file_path: String,
    /// `innodb_buffer_pool_filename`.
    pub buffer_pool_filename: Option<String>,
    /// `innodb_flush_method`: tells how the server writes, and so how to read.
    pub flush_method: String,
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

/// Aria's options.
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
    /// `log_bin_basename`: path without the number.
    pub basename: PathBuf,
    /// `log_bin_index`.
    pub index: PathBuf,
    /// `binlog_format`.
    pub format: Option<String>,
    /// `gtid_mode` (MySQL).
    pub gtid_mode: Option<String>,
    /// `gtid_domain_id` (MariaDB).
    pub gtid_domain_id: Option<u32>,
    /// Whether what arrives by replication is logged too.
    pub log_replica_updates: bool,
    /// `binlog_storage_engine`, where the server has it.
    pub storage_engine: Option<String>,
    /// `binlog_encryption` or `encrypt_binlog`.
    pub encrypted: bool,
}

/// Replication as a replica. Where it stands is [`status`](super::status)'s to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaFacts {
    /// `relay_log_basename`, where there is one.
    pub relay_log_basename: Option<PathBuf>,
    /// `relay_log_index`.
    pub relay_log_index: Option<PathBuf>,
    /// Appliers that run in parallel.
    pub parallel_workers: u32,
    /// Whether parallel appliers commit in the primary's order, so that no gaps appear.
    pub preserve_commit_order: bool,
}

/// What is encrypted, and who has the keys. Keys are never part of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncryptionFacts {
    /// New redo is encrypted (`innodb_redo_log_encrypt`, `innodb_encrypt_log`). Redo written before may differ: the
    /// redo log itself has the last word.
    pub redo: bool,
    /// New undo is encrypted (`innodb_undo_log_encrypt`).
    pub undo: bool,
    /// Active key providers: plugins and components.
    pub key_providers: Vec<String>,
    /// The file with the keys: `file_key_management_filename`, or that of a keyring component or plugin.
    pub key_file: Option<PathBuf>,
    /// What else opens them: the key of that file, a plugin's configuration with a token. Relative to the data directory,
    /// or absolute.
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
    /// `default_storage_engine`.
    pub default_storage_engine: String,
    /// `performance_schema`.
    pub performance_schema: bool,
    /// `myisam_use_mmap`.
    #[serde(default)]
    pub myisam_use_mmap: bool,
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

/// What a server can do, each probed. A capability of the other flavor is `false`.
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
    /// Connection attributes of other sessions can be read.
    pub connection_attributes: bool,
    /// Whether redo is written at all (`Innodb_redo_log_enabled`).
    pub redo_enabled: bool,
    /// The server is a node of a Galera cluster.
    pub galera: bool,
    /// The server is an active member of a replication group.
    pub group_member: bool,
    /// `innodb_log_archive` is on: a redo layout that is not supported.
    pub log_archive: bool,
}

impl ServerFacts {
    /// Asks the server. Nothing is changed and nothing waits.
    pub fn probe(session: &mut Session) -> Result<ServerFacts> {
        let flavor = session.flavor();
        let variables = Variables::read(session)?;
        let plugins = active_plugins(session)?;
        let components = components(session)?;
        let keyring_file = keyring_file(session)?;
        let capabilities = Capabilities::probe(session, &variables)?;
        Ok(ServerFacts {
            version: session.version().clone(),
            vendor: variables.text("version_comment"),
            identity: Identity {
                server_uuid: variables.set("server_uuid"),
                server_uid: variables.set("server_uid"),
                aria_uuid: None,
                server_id: variables.number("server_id")?,
                hostname: variables.text("hostname"),
                port: variables.number("port")?,
                socket: variables.path("socket")?,
            },
            paths: Paths {
                datadir: variables.path("datadir")?,
                basedir: variables.path("basedir")?,
                plugin_dir: variables.path("plugin_dir")?,
                lc_messages_dir: variables.path_set("lc_messages_dir"),
                character_sets_dir: variables.path("character_sets_dir")?,
                tmpdir: variables.text("tmpdir"),
                pid_file: variables.path_set("pid_file"),
                log_error: variables.path_set("log_error").filter(|path| path != Path::new("stderr")),
                general_log: variables.path_set("general_log_file"),
                slow_log: variables.path_set("slow_query_log_file"),
                plugin_logs: variables.plugin_logs(),
            },
            innodb: variables.innodb()?,
            aria: match flavor {
                Flavor::MariaDb => Some(AriaFacts {
                    log_dir_path: variables.path_set("aria_log_dir_path"),
                    block_size: variables.number("aria_block_size")?,
                    encrypt_tables: variables.is_on("aria_encrypt_tables"),
                }),
                Flavor::MySql => None,
            },
            binlog: variables.binlog()?,
            replica: variables.replica()?,
            encryption: variables.encryption(&plugins, &components, keyring_file),
            sql: SqlFacts {
                lower_case_table_names: variables.number("lower_case_table_names")?,
                sql_mode: variables.text("sql_mode"),
                character_set_server: variables.text("character_set_server"),
                collation_server: variables.text("collation_server"),
                explicit_defaults_for_timestamp: variables.switch("explicit_defaults_for_timestamp"),
                system_time_zone: variables.set("system_time_zone"),
                default_storage_engine: variables.text("default_storage_engine"),
                performance_schema: variables.is_on("performance_schema"),
                myisam_use_mmap: variables.is_on("myisam_use_mmap"),
            },
            plugins,
            components,
            capabilities,
        })
    }

    /// MySQL or MariaDB.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.version.flavor
    }

    /// A directory or file of the server's options as an absolute path: relative ones begin at the data directory, and
    /// may lead out of it.
    #[must_use]
    pub fn resolved(&self, path: &Path) -> PathBuf {
        let mut resolved = PathBuf::new();
        for component in self.paths.datadir.join(path).components() {
            // In a path that is absolute `..` never stands first. Equal paths must not look different.
            match component {
                Component::ParentDir => drop(resolved.pop()),
                component => resolved.push(component),
            }
        }
        resolved
    }

    /// Where the redo log is.
    #[must_use]
    pub fn redo_dir(&self) -> PathBuf {
        self.resolved(self.innodb.log_group_home_dir.as_deref().unwrap_or(Path::new("")))
    }

    /// Where undo tablespaces are.
    #[must_use]
    pub fn undo_dir(&self) -> PathBuf {
        self.resolved(self.innodb.undo_directory.as_deref().unwrap_or(Path::new("")))
    }

    /// Where Aria's log is.
    #[must_use]
    pub fn aria_log_dir(&self) -> Option<PathBuf> {
        let aria = self.aria.as_ref()?;
        Some(self.resolved(aria.log_dir_path.as_deref().unwrap_or(Path::new(""))))
    }

    /// The files of the system tablespace.
    pub fn system_files(&self) -> Result<Vec<PathBuf>> {
        let home = self.innodb.data_home_dir.as_deref().unwrap_or(Path::new(""));
        let files = data_files(&self.innodb.data_file_path)?;
        Ok(files.into_iter().map(|file| self.resolved(&home.join(file))).collect())
    }

    /// Whether InnoDB writes its tablespaces past the page cache.
    #[must_use]
    pub fn writes_directly(&self) -> bool {
        self.innodb.flush_method.to_ascii_uppercase().starts_with("O_DIRECT")
    }

    /// Refuses what a hot physical backup of this server would get wrong, as far as it follows from options.
    /// [`TableInventory::refuse_unsupported`](super::inventory::TableInventory::refuse_unsupported) looks at engines.
    pub fn refuse_unsupported(&self) -> Result<()> {
        let can = &self.capabilities;
        let needed = match self.flavor() {
            Flavor::MariaDb => [
                (can.backup_stages, "BACKUP STAGE", "MariaDB 10.5 and later have it."),
                (can.lsn_status, "the status values Innodb_lsn_*", "MariaDB 10.8 and later have them."),
            ],
            Flavor::MySql => [
                (can.instance_lock, "LOCK INSTANCE FOR BACKUP", "MySQL 8.0 and later have it."),
                (
                    can.log_status,
                    "performance_schema.log_status",
                    "MySQL 8.0.14 and later have it, with performance_schema=ON.",
                ),
            ],
        };
        for (present, what, hint) in needed {
            if !present {
                return Err(Error::failed(format!("the server has no {what}")).hinted(hint));
            }
        }
        let binlog_engine = self.binlog.as_ref().and_then(|binlog| binlog.storage_engine.as_deref());
        let refused = [
            (
                can.galera,
                "a node of a Galera cluster (wsrep_on=ON)",
                "Its locks would stop the cluster. Back up an asynchronous replica of it.",
            ),
            (
                can.group_member,
                "an active member of a replication group",
                "Back up an asynchronous replica of the group, or stop group replication on this member first.",
            ),
            (
                can.log_archive,
                "using innodb_log_archive=ON",
                "This redo layout is not supported; switch it off.",
            ),
            (
                !can.redo_enabled,
                "running without redo (innodb_redo_log_enabled=OFF)",
                "ALTER INSTANCE ENABLE INNODB REDO_LOG; a copy made without redo could not be made consistent.",
            ),
            (
                binlog_engine.is_some_and(|engine| engine.eq_ignore_ascii_case("innodb")),
                "keeping its binlog in InnoDB (binlog_storage_engine=innodb)",
                "This binlog layout is not supported; use binlog files.",
            ),
            (
                self.innodb.force_recovery > 0,
                "in rescue mode (innodb_force_recovery > 0)",
                "What it shows may not be what its files hold. Export the data, or repair the server first.",
            ),
            (
                self.innodb.read_only,
                "not writing to its files (innodb_read_only=ON)",
                "It lists no tablespaces (MariaDB) and keeps no redo (MySQL). Start it without the option.",
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
                "Holdfast knows InnoDB's and Aria's own files at the top of the data directory under their usual names, or outside of it.",
            )),
        }
    }

    /// Files that would not be recognised for what they are. They would be copied as if they were of no engine: pages
    /// unchecked, logs not to their end.
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

impl Capabilities {
    fn probe(session: &mut Session, variables: &Variables) -> Result<Capabilities> {
        let mut can = Capabilities {
            checkpoint_now: variables.has("innodb_log_checkpoint_now"),
            galera: variables.is_on("wsrep_on"),
            log_archive: variables.is_on("innodb_log_archive"),
            connection_attributes: answers(
                session,
                "SELECT 1 FROM performance_schema.session_connect_attrs LIMIT 1",
            )? && variables.is_on("performance_schema"),
            redo_enabled: true,
            ..Capabilities::default()
        };
        match session.flavor() {
            Flavor::MariaDb => {
                // Outside a backup both are refused, but a server that knows stages refuses in another way.
                can.backup_stages = known(session, "BACKUP STAGE END")?;
                can.lsn_status =
                    session.row("SHOW GLOBAL STATUS LIKE 'Innodb_lsn_last_checkpoint'")?.is_some();
            }
            Flavor::MySql => {
                can.instance_lock = known(session, "UNLOCK INSTANCE")?;
                can.log_status =
                    known(session, "SELECT storage_engines FROM performance_schema.log_status LIMIT 0")?;
                can.redo_consumer = has_function(session, "innodb_redo_log_consumer_register")?;
                can.sharp_checkpoint = has_function(session, "innodb_redo_log_sharp_checkpoint")?;
                let enabled = session.row("SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'")?;
                can.redo_enabled = match enabled {
                    Some(row) => row.text("Value")?.eq_ignore_ascii_case("ON"),
                    None => true,
                };
                let members = "SELECT 1 FROM performance_schema.replication_group_members \
                               WHERE member_id = @@server_uuid AND member_state <> 'OFFLINE'";
                can.group_member = match session.row(members) {
                    // A physical backup, which must know, has the right to look.
                    Err(error) if error.is_denied() => false,
                    found => found?.is_some(),
                };
            }
        }
        Ok(can)
    }
}

/// Whether the server knows a statement or table, be it allowed now or not.
fn known(session: &mut Session, statement: &str) -> Result<bool, SqlError> {
    const SYNTAX_ERROR: u16 = 1064;
    const NO_SUCH_TABLE: u16 = 1146;
    const NO_SUCH_SCHEMA: u16 = 1049;
    const NO_SUCH_COLUMN: u16 = 1054;
    match session.rows(statement) {
        Ok(_) => Ok(true),
        Err(error) => match error.code() {
            Some(SYNTAX_ERROR | NO_SUCH_TABLE | NO_SUCH_SCHEMA | NO_SUCH_COLUMN) => Ok(false),
            Some(_) => Ok(true),
            None => Err(error),
        },
    }
}

/// Whether a query works for this account.
fn answers(session: &mut Session, query: &str) -> Result<bool, SqlError> {
    match session.rows(query) {
        Ok(_) => Ok(true),
        Err(error) if error.code().is_some() => Ok(false),
        Err(error) => Err(error),
    }
}

fn has_function(session: &mut Session, name: &str) -> Result<bool, SqlError> {
    let query = format!("SELECT 1 FROM performance_schema.user_defined_functions WHERE udf_name = '{name}'");
    match session.row(&query) {
        Ok(row) => Ok(row.is_some()),
        // Without the right to look: the privileges that the backup needs include it, and are checked by name.
        Err(error) if error.is_denied() => Ok(false),
        Err(error) => Err(error),
    }
}

fn active_plugins(session: &mut Session) -> Result<Vec<Plugin>, SqlError> {
    let rows = session.rows(
        "SELECT plugin_name, plugin_type, plugin_library \
         FROM information_schema.plugins WHERE plugin_status = 'ACTIVE' AND plugin_library IS NOT NULL \
         ORDER BY plugin_name",
    )?;
    let plugin = |row: &super::session::Row| -> Result<Plugin, SqlError> {
        Ok(Plugin {
            name: row.text("plugin_name")?.to_owned(),
            kind: row.text("plugin_type")?.to_owned(),
            library: row.text("plugin_library")?.to_owned(),
        })
    };
    rows.iter().map(plugin).collect()
}

/// Options that name logs of plugins: MariaDB's `server_audit` and `sql_errlog`, MySQL's and Percona's audit logs.
const PLUGIN_LOGS: [&str; 4] =
    ["server_audit_file_path", "sql_error_log_filename", "audit_log_file", "audit_log_filter.file"];
const SERVER_AUDIT_LOG: &str = "server_audit.log";

/// Options that name the file with the keys: MariaDB's plugin, and plugins of MySQL before 9.0.
const KEY_FILES: [&str; 3] =
    ["file_key_management_filename", "keyring_file_data", "keyring_encrypted_file_data"];
/// Options that name what else opens them.
const MORE_KEY_FILES: [&str; 3] = [FILE_KEY, "keyring_vault_config", "keyring_okv_conf_dir"];
/// The key of MariaDB's file of keys: `FILE:` and a path, or the key itself.
const FILE_KEY: &str = "file_key_management_filekey";
const FILE_PREFIX: &str = "FILE:";

/// Where a keyring component of MySQL keeps its keys, if that is a file.
fn keyring_file(session: &mut Session) -> Result<Option<PathBuf>, SqlError> {
    if session.flavor() == Flavor::MariaDb {
        return Ok(None);
    }
    let query = "SELECT status_value AS path FROM performance_schema.keyring_component_status \
                 WHERE status_key = 'Data_file'";
    match session.row(query) {
        Ok(Some(row)) => {
            Ok(row.text_or_null("path")?.filter(|path| !path.starts_with('<')).map(PathBuf::from))
        }
        Ok(None) => Ok(None),
        // As for the components.
        Err(error) if error.code().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

fn components(session: &mut Session) -> Result<Vec<String>, SqlError> {
    if session.flavor() == Flavor::MariaDb {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    // Components of the server's manifest, a keyring above all, are in no table but in this one.
    let keyring = "SELECT status_value AS urn FROM performance_schema.keyring_component_status \
                   WHERE status_key = 'Implementation_name'";
    for query in ["SELECT component_urn AS urn FROM mysql.component ORDER BY 1", keyring] {
        match session.rows(query) {
            Ok(rows) => {
                for row in rows {
                    found.push(row.text("urn")?.to_owned());
                }
            }
            // Tables that this release lacks, or rights that the check of grants will name.
            Err(error) if error.code().is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The server's global variables. Names and values that are on or off are written by the server in one spelling.
struct Variables(BTreeMap<String, String>);

impl Variables {
    fn read(session: &mut Session) -> Result<Variables, SqlError> {
        let mut variables = BTreeMap::new();
        for row in session.rows("SHOW GLOBAL VARIABLES")? {
            let value = row.text_or_null("Value")?.unwrap_or_default().to_owned();
            variables.insert(row.text("Variable_name")?.to_ascii_lowercase(), value);
        }
        Ok(Variables(variables))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A text that may be missing or empty.
    fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    /// A text where there is one.
    fn set(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    fn path_set(&self, name: &str) -> Option<PathBuf> {
        self.set(name).map(PathBuf::from)
    }

    fn path(&self, name: &str) -> Result<PathBuf, SqlError> {
        self.path_set(name).ok_or_else(|| SqlError::unexpected(format_args!("there is no @@{name}")))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, SqlError> {
        let value = self.get(name);
        value
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| SqlError::unexpected(format_args!("@@{name} is {value:?}, not a number")))
    }

    fn number_set<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, SqlError> {
        if self.has(name) { self.number(name).map(Some) } else { Ok(None) }
    }

    fn switch(&self, name: &str) -> Option<bool> {
        let value = self.get(name)?;
        Some(value.eq_ignore_ascii_case("ON") || value == "1" || value.eq_ignore_ascii_case("YES"))
    }

    fn is_on(&self, name: &str) -> bool {
        self.switch(name).unwrap_or(false)
    }

    fn plugin_logs(&self) -> Vec<PathBuf> {
        let named = PLUGIN_LOGS.into_iter().filter_map(|name| self.path_set(name));
        // A directory stands for a file of the usual name in it.
        named.flat_map(|path| [path.join(SERVER_AUDIT_LOG), path]).collect()
    }

    fn innodb(&self) -> Result<InnodbFacts, SqlError> {
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

    fn binlog(&self) -> Result<Option<BinlogFacts>, SqlError> {
        if !self.is_on("log_bin") {
            return Ok(None);
        }
        Ok(Some(BinlogFacts {
            // Absent where the binlog is kept elsewhere than in files.
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

    fn replica(&self) -> Result<ReplicaFacts, SqlError> {
        let workers = match self.number_set("replica_parallel_workers")? {
            Some(workers) => workers,
            None => self.number_set("slave_parallel_threads")?.unwrap_or(0),
        };
        Ok(ReplicaFacts {
            relay_log_basename: self.path_set("relay_log_basename"),
            relay_log_index: self.path_set("relay_log_index"),
            parallel_workers: workers,
            // MariaDB's parallel appliers always commit in order, except between GTID domains, each of which has a
            // position of its own.
            preserve_commit_order: self.switch("replica_preserve_commit_order").unwrap_or(true),
        })
    }

    fn encryption(
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

    /// The file that an option names: of an option that can be a password or a file, only if it is one.
    fn secret(&self, name: &str) -> Option<PathBuf> {
        let value = self.set(name)?;
        match value.split_at_checked(FILE_PREFIX.len()) {
            Some((prefix, path)) if prefix.eq_ignore_ascii_case(FILE_PREFIX) => Some(PathBuf::from(path)),
            _ => (name != FILE_KEY).then(|| PathBuf::from(value)),
        }
    }
}

/// The names in `innodb_data_file_path`: `ibdata1:12M;/disk2/ibdata2:50M:autoextend`.
fn data_files(specification: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for file in specification.split(';').filter(|file| !file.is_empty()) {
        let (name, size) = file.split_once(':').ok_or_else(|| {
            Error::failed(format!("innodb_data_file_path holds {file:?}, which names no size"))
        })?;
        if size.ends_with("raw") {
            return Err(Error::failed(format!("the system tablespace is on a raw device: {file}"))
                .hinted("Raw devices are not supported."));
        }
        files.push(PathBuf::from(name));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The system tablespace's files are found in every form of the option.
    #[test]
    fn system_files() {
        let names = |text| -> Vec<String> {
            let files = data_files(text).unwrap();
            files.iter().map(|file| file.display().to_string()).collect()
        };
        assert_eq!(names("ibdata1:12M:autoextend"), ["ibdata1"]);
        assert_eq!(names("ibdata1:12M;/disk2/ibdata2:50M:autoextend"), ["ibdata1", "/disk2/ibdata2"]);
        assert_eq!(names("a:1G:autoextend:max:2G"), ["a"]);
        assert_eq!(names("ibdata1:1048576"), ["ibdata1"]);
        for text in ["ibdata1", "/dev/sdb:3Graw", "/dev/sdb:3Gnewraw"] {
            assert!(data_files(text).is_err(), "{text}");
        }
    }
}
