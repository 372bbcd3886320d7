//! The target and what exists on it, read before anything is touched.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_formats::Flavor;
use serde::Serialize;

use super::object::ObjectKind;
use crate::{
    error::{Error, ErrorKind, Result},
    logical::{
        catalog::{
            omitted::general_tablespaces,
            privileges::Privileges,
            settings::{self, Settings},
        },
        selection::SYSTEM_SCHEMAS,
        sql::quoted_text,
    },
    server::{ServerVersion, Session, SqlError, TableName, facts::membership},
};

/// The kind of object that a table's name denotes already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    Table,
    View,
    Sequence,
}

impl Existing {
    /// Converts the type given by `information_schema`.
    fn of(table_type: &str) -> Existing {
        match table_type {
            "VIEW" => Existing::View,
            "SEQUENCE" => Existing::Sequence,
            _ => Existing::Table,
        }
    }

    /// The word for it in `DROP`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Table => "TABLE",
            Self::View => "VIEW",
            Self::Sequence => "SEQUENCE",
        }
    }
}

/// How rows are sent to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// By `LOAD DATA LOCAL`.
    LoadData,
    /// As parameters of `INSERT`.
    Parameters,
    /// In the text of `INSERT`.
    Text,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::LoadData => "LOAD DATA",
            Self::Parameters => "INSERT with parameters",
            Self::Text => "INSERT",
        })
    }
}

/// The server to load into.
pub(super) struct Target {
    pub(super) flavor: Flavor,
    pub(super) version: ServerVersion,
    /// Whether it shares its data with others, in a group or a cluster. As far as the account may know.
    pub(super) is_in_group: bool,
    pub(super) max_packet_bytes: usize,
    /// Whether rows may be sent as parameters: unless its binlog has to have statements.
    takes_parameters: bool,
    /// Whether it takes rows by `LOAD DATA LOCAL`.
    pub(super) has_local_infile: bool,
    pub(super) folds_names: bool,
    /// Variables with the value that a load needs, and the one they have.
    pub(super) to_be_set: Vec<(&'static str, &'static str, String)>,
    /// Settings that its sessions begin with and on which computed columns depend.
    pub(super) settings: BTreeMap<String, String>,
    /// Those of the source that sessions which write rows adopt.
    pub(super) computing: Settings,
    /// Databases with their default collations.
    pub(super) schemas: BTreeMap<String, String>,
    pub(super) tables: BTreeMap<TableName, Existing>,
    /// Foreign keys: the table that has one, and where it leads.
    pub(super) references: Vec<(TableName, TableName)>,
    /// Kind, schema, name.
    pub(super) programs: BTreeSet<(String, String, String)>,
    /// The default collation of each character set, by its name.
    pub(super) charsets: BTreeMap<String, String>,
    pub(super) collations: BTreeSet<String>,
    pub(super) engines: BTreeSet<String>,
    /// MySQL: tablespaces that several tables may share; `None`: the account may not know them.
    pub(super) tablespaces: Option<BTreeSet<String>>,
    pub(super) privileges: Privileges,
}

impl Target {
    /// Reads again, to see what has changed meanwhile.
    pub(super) fn read_again(&mut self, session: &mut Session) -> Result<()> {
        let computing = std::mem::take(&mut self.computing);
        *self = Self { computing, ..Self::read(session)? };
        Ok(())
    }

    pub(super) fn read(session: &mut Session) -> Result<Target> {
        let flavor = session.flavor();
        let number = |session: &mut Session, name: &str| -> Result<u64, SqlError> {
            session.number(&format!("SELECT @@GLOBAL.{name}"))
        };
        for name in ["read_only", "super_read_only"] {
            let value = session.variable(name)?;
            if value.is_some_and(|value| !matches!(value.as_str(), "0" | "OFF" | "")) {
                return Err(Error::new(ErrorKind::Server, format!("the server is read-only ({name})"))
                    .hinted("load into a primary, or set it off"));
            }
        }
        let mut to_be_set = Vec::new();
        for (name, wanted) in [
            ("sql_require_primary_key", "0"),
            ("sql_generate_invisible_primary_key", "0"),
            ("explicit_defaults_for_timestamp", "1"),
            // MariaDB: the collation of a character set where none is named, as in statements of earlier
            // versions.
            ("character_set_collations", "''"),
        ] {
            // The server's own value is that of every new session.
            if let Some(found) = session.variable(name)? {
                let found = if wanted.starts_with('\'') { quoted_text(&found) } else { found };
                to_be_set.push((name, wanted, found));
            }
        }
        let has_local_infile = number(session, "local_infile")? == 1;
        let binlog_format = session.variable("binlog_format")?;
        let takes_parameters = match flavor {
            Flavor::MariaDb => binlog_format.is_none_or(|format| format != "STATEMENT"),
            Flavor::MySql => binlog_format.is_none_or(|format| format == "ROW"),
        };
        Ok(Target {
            flavor,
            version: session.version().clone(),
            is_in_group: membership::is_one_of_several(session)?,
            max_packet_bytes: usize::try_from(number(session, "max_allowed_packet")?).unwrap_or(usize::MAX),
            takes_parameters,
            has_local_infile,
            folds_names: number(session, "lower_case_table_names")? != 0,
            to_be_set,
            settings: settings::read(session)?,
            computing: Settings::default(),
            schemas: schemas(session)?,
            tables: tables(session)?,
            references: references(session)?,
            programs: programs(session)?,
            charsets: charsets(session)?,
            collations: set(
                session,
                match flavor {
                    // Collations that go with every character set have a short name in the usual list.
                    Flavor::MariaDb => {
                        "SELECT full_collation_name FROM information_schema.collation_character_set_applicability"
                    }
                    Flavor::MySql => "SELECT collation_name FROM information_schema.collations",
                },
            )?,
            engines: set(
                session,
                "SELECT UPPER(engine) FROM information_schema.engines WHERE support IN ('YES', 'DEFAULT')",
            )?,
            tablespaces: general_tablespaces(session)?,
            privileges: Privileges::read(session)?,
        })
    }

    /// How rows of most tables are to be sent: the way that costs the server least. MariaDB takes parameters
    /// of many rows at once.
    pub(super) fn way(&self) -> Way {
        match self.flavor {
            Flavor::MariaDb if self.takes_parameters => Way::Parameters,
            _ if self.has_local_infile => Way::LoadData,
            _ if self.takes_parameters => Way::Parameters,
            _ => Way::Text,
        }
    }

    /// Whether a server knows a time zone.
    pub(super) fn knows_time_zone(session: &mut Session, zone: &str) -> Result<bool, SqlError> {
        let query =
            format!("SELECT CONVERT_TZ('2000-01-01 00:00:00', '+00:00', {}) IS NOT NULL", quoted_text(zone));
        Ok(session.value(&query)?.as_deref() == Some("1"))
    }

    /// A name as the server compares names.
    pub(super) fn folded(&self, name: &str) -> String {
        if self.folds_names { name.to_lowercase() } else { name.to_owned() }
    }

    /// Whether foreign keys of other tables lead to a table: its indexes must exist from the start then.
    pub(super) fn has_children(&self, table: &TableName) -> bool {
        self.references.iter().any(|(child, parent)| {
            child != parent
                && self.folded(&parent.schema) == self.folded(&table.schema)
                && self.folded(&parent.table) == self.folded(&table.table)
        })
    }

    /// What exists under this name.
    pub(super) fn existing(&self, schema: &str, table: &str) -> Option<Existing> {
        let name = TableName { schema: self.folded(schema), table: self.folded(table) };
        self.tables.get(&name).copied()
    }

    /// What exists under this name by now: asks the server again.
    pub(super) fn existing_by_now(
        session: &mut Session,
        target: &Target,
        name: &TableName,
    ) -> Result<Option<Existing>, SqlError> {
        let query = format!(
            "SELECT table_schema AS s, table_name AS t, table_type AS k FROM information_schema.tables \
             WHERE table_schema = {} AND table_name = {}",
            quoted_text(&name.schema),
            quoted_text(&name.table)
        );
        for row in session.rows(&query)? {
            let is_it = target.folded(row.text("s")?) == target.folded(&name.schema)
                && target.folded(row.text("t")?) == target.folded(&name.table);
            if is_it {
                return Ok(Some(Existing::of(row.text("k")?)));
            }
        }
        Ok(None)
    }

    /// Whether something has come to exist in the place of an object since this was read.
    pub(super) fn is_there_by_now(
        &self,
        session: &mut Session,
        kind: ObjectKind,
        schema: &str,
        name: &str,
    ) -> Result<bool, SqlError> {
        let in_schema = |table: &str, column: &str, name_column: &str| {
            format!(
                "SELECT {column} AS s, {name_column} AS n FROM information_schema.{table} WHERE {column} = {}",
                quoted_text(schema)
            )
        };
        let (query, wanted, ignores_case) = match kind {
            ObjectKind::Schema | ObjectKind::Account => return Ok(false),
            ObjectKind::Sequence | ObjectKind::Table | ObjectKind::View => {
                let query = in_schema("tables", "table_schema", "table_name");
                (format!("{query} AND table_name = {}", quoted_text(name)), name, self.folds_names)
            }
            ObjectKind::Routine => {
                let (kind, name) = name.split_once(' ').unwrap_or(("", name));
                let query = in_schema("routines", "routine_schema", "routine_name");
                let kind = quoted_text(&kind.replace('-', " "));
                let end =
                    format!("AND LOWER(routine_type) = {kind} AND routine_name = {}", quoted_text(name));
                (format!("{query} {end}"), name, true)
            }
            ObjectKind::Trigger => {
                let query = in_schema("triggers", "trigger_schema", "trigger_name");
                (format!("{query} AND trigger_name = {}", quoted_text(name)), name, true)
            }
            ObjectKind::Event => {
                let query = in_schema("events", "event_schema", "event_name");
                (format!("{query} AND event_name = {}", quoted_text(name)), name, true)
            }
        };
        for row in session.rows(&query)? {
            let is_its_schema = self.folded(row.text("s")?) == self.folded(schema);
            let found = row.text("n")?;
            let is_its_name =
                if ignores_case { found.to_lowercase() == wanted.to_lowercase() } else { found == wanted };
            if is_its_schema && is_its_name {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether there is such a program. Their names are case-insensitive.
    pub(super) fn has_program(&self, kind: &str, schema: &str, name: &str) -> bool {
        self.programs.contains(&(kind.to_owned(), self.folded(schema), name.to_lowercase()))
    }
}

fn charsets(session: &mut Session) -> Result<BTreeMap<String, String>, SqlError> {
    let query = "SELECT character_set_name AS name, default_collate_name AS collation \
                 FROM information_schema.character_sets";
    let rows = session.rows(query)?;
    rows.iter().map(|row| Ok((row.text("name")?.to_owned(), row.text("collation")?.to_owned()))).collect()
}

fn schemas(session: &mut Session) -> Result<BTreeMap<String, String>, SqlError> {
    let rows = session
        .rows("SELECT schema_name AS s, default_collation_name AS c FROM information_schema.schemata")?;
    rows.iter().map(|row| Ok((row.text("s")?.to_owned(), row.text("c")?.to_owned()))).collect()
}

fn set(session: &mut Session, query: &str) -> Result<BTreeSet<String>, SqlError> {
    let rows = session.rows(query)?;
    Ok(rows.iter().filter_map(|row| row.values().first().cloned().flatten()).collect())
}

fn tables(session: &mut Session) -> Result<BTreeMap<TableName, Existing>, SqlError> {
    let own = SYSTEM_SCHEMAS.map(|schema| format!("'{schema}'")).join(", ");
    let rows = session.rows(&format!(
        "SELECT table_schema AS s, table_name AS t, table_type AS k FROM information_schema.tables \
         WHERE CAST(table_schema AS BINARY) NOT IN ({own}) AND table_type NOT LIKE '%TEMPORARY'"
    ))?;
    let table = |row: &crate::server::Row| -> Result<_, SqlError> {
        let kind = Existing::of(row.text("k")?);
        Ok((TableName { schema: row.text("s")?.to_owned(), table: row.text("t")?.to_owned() }, kind))
    };
    rows.iter().map(table).collect()
}

fn references(session: &mut Session) -> Result<Vec<(TableName, TableName)>, SqlError> {
    let rows = session.rows(
        "SELECT constraint_schema AS s, table_name AS t, unique_constraint_schema AS u, referenced_table_name AS r \
         FROM information_schema.referential_constraints",
    )?;
    let name = |row: &crate::server::Row, schema, table| -> Result<_, SqlError> {
        Ok(TableName { schema: row.text(schema)?.to_owned(), table: row.text(table)?.to_owned() })
    };
    rows.iter().map(|row| Ok((name(row, "s", "t")?, name(row, "u", "r")?))).collect()
}

fn programs(session: &mut Session) -> Result<BTreeSet<(String, String, String)>, SqlError> {
    let rows = session.rows(
        "SELECT LOWER(routine_type) AS k, routine_schema AS s, LOWER(routine_name) AS n \
         FROM information_schema.routines \
         UNION ALL SELECT 'event', event_schema, LOWER(event_name) FROM information_schema.events \
         UNION ALL SELECT 'trigger', trigger_schema, LOWER(trigger_name) FROM information_schema.triggers",
    )?;
    let program = |row: &crate::server::Row| -> Result<_, SqlError> {
        let kind = row.text("k")?.replace(' ', "-");
        Ok((kind, row.text("s")?.to_owned(), row.text("n")?.to_owned()))
    };
    rows.iter().map(program).collect()
}
