//! Queries a server for its facts. Changes nothing and waits for nothing.

use std::path::{Path, PathBuf};

use holdfast_formats::Flavor;
use jiff::Timestamp;

use super::{
    AriaFacts, Capabilities, Identity, Paths, Plugin, ServerFacts, SqlFacts, membership, variables::Variables,
};
use crate::{
    error::Result,
    server::{Row, Session, SqlError, code},
};

impl ServerFacts {
    /// Queries the server. Changes nothing and waits for nothing.
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
            identity: Identity::of(|name| variables.get(name).map(str::to_owned))?,
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
                time_zone: variables.set("time_zone"),
                default_storage_engine: variables.text("default_storage_engine"),
                performance_schema: variables.is_on("performance_schema"),
                myisam_use_mmap: variables.is_on("myisam_use_mmap"),
                deciding: variables.deciding(),
            },
            plugins,
            components,
            capabilities,
            started_at: started_at(session)?,
        })
    }
}

/// When the server was started, by its clock, give or take a second.
fn started_at(session: &mut Session) -> Result<Option<Timestamp>, SqlError> {
    let Some(uptime) = session.row("SHOW GLOBAL STATUS LIKE 'Uptime'")? else { return Ok(None) };
    let now: i64 = session.number("SELECT UNIX_TIMESTAMP()")?;
    Ok(Timestamp::from_second(now.saturating_sub(uptime.number("Value")?)).ok())
}

impl Capabilities {
    fn probe(session: &mut Session, variables: &Variables) -> Result<Capabilities> {
        let mut can = Capabilities {
            checkpoint_now: variables.has("innodb_log_checkpoint_now"),
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
                // Outside a backup the statement always fails, but a server that knows stages fails with
                // another error.
                can.backup_stages = known(session, "BACKUP STAGE END")?;
                can.lsn_status =
                    session.row("SHOW GLOBAL STATUS LIKE 'Innodb_lsn_last_checkpoint'")?.is_some();
                can.galera = membership::is_galera_node(session)?;
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
                // A physical backup must know this, and it has the right to look.
                can.group_member = membership::is_group_member(session)?;
            }
        }
        Ok(can)
    }
}

/// Whether the server knows a statement or table, allowed at present or not.
fn known(session: &mut Session, statement: &str) -> Result<bool, SqlError> {
    match session.rows(statement) {
        Ok(_) => Ok(true),
        Err(error) => match error.code() {
            Some(code::SYNTAX_ERROR | code::NO_SUCH_TABLE | code::NO_SUCH_SCHEMA | code::NO_SUCH_COLUMN) => {
                Ok(false)
            }
            Some(_) => Ok(true),
            None => Err(error),
        },
    }
}

/// Whether a query succeeds for this account.
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
        // The account may not look. The privileges that a backup needs include this one, and are checked by
        // name.
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
    let plugin = |row: &Row| -> Result<Plugin, SqlError> {
        Ok(Plugin {
            name: row.text("plugin_name")?.to_owned(),
            kind: row.text("plugin_type")?.to_owned(),
            library: row.text("plugin_library")?.to_owned(),
        })
    };
    rows.iter().map(plugin).collect()
}

/// The file in which a MySQL keyring component keeps its keys, if it uses one.
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
        // The table does not exist, or may not be read: see `components`.
        Err(error) if error.code().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

fn components(session: &mut Session) -> Result<Vec<String>, SqlError> {
    if session.flavor() == Flavor::MariaDb {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    // Components from the server's manifest file, above all keyrings, are listed only in this table.
    let keyring = "SELECT status_value AS urn FROM performance_schema.keyring_component_status \
                   WHERE status_key = 'Implementation_name'";
    for query in ["SELECT component_urn AS urn FROM mysql.component ORDER BY 1", keyring] {
        match session.rows(query) {
            Ok(rows) => {
                for row in rows {
                    found.push(row.text("urn")?.to_owned());
                }
            }
            // This release lacks the table, or a right is missing: the check of grants names it.
            Err(error) if error.code().is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
