//! What a logical backup stores of each object besides rows: one JSON value per item.
//!
//! Names are text, as the servers keep them. Statements are bytes: the text of a stored program is in the
//! character set of its author's client, and is run again under the same one.

use std::collections::BTreeMap;

use holdfast_formats::Flavor;
use holdfast_repo::format::hex::{from_hex, to_hex};
use serde::{Deserialize, Serialize};

use crate::server::version::flavor_name;

/// A statement as the server gave it. In JSON a string, or `{"hex": ...}` where it is not UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredSql", into = "StoredSql")]
pub struct Sql(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredSql {
    Text(String),
    Bytes { hex: String },
}

impl TryFrom<StoredSql> for Sql {
    type Error = &'static str;

    fn try_from(stored: StoredSql) -> Result<Self, Self::Error> {
        match stored {
            StoredSql::Text(text) => Ok(Self(text.into_bytes())),
            StoredSql::Bytes { hex } => from_hex(&hex).map(Self).ok_or("a stored statement is not valid hex"),
        }
    }
}

impl From<Sql> for StoredSql {
    fn from(sql: Sql) -> Self {
        match String::from_utf8(sql.0) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Bytes { hex: to_hex(error.as_bytes()) },
        }
    }
}

/// The definition of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "object", rename_all = "snake_case")]
pub enum Definition {
    /// The server as a whole: what a reader must know to make sense of the rest.
    Server(ServerDefinition),
    /// An account or a role.
    Account(AccountDefinition),
    /// A schema.
    Schema(SchemaDefinition),
    /// A sequence with its state.
    Sequence(SequenceDefinition),
    /// A table.
    Table(TableDefinition),
    /// A procedure, function, package or package body.
    Routine(ProgramDefinition),
    /// A view.
    View(ViewDefinition),
    /// A trigger.
    Trigger(TriggerDefinition),
    /// An event.
    Event(EventDefinition),
}

/// The server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerDefinition {
    /// MySQL or MariaDB.
    #[serde(with = "flavor_name")]
    pub flavor: Flavor,
    /// Its version.
    pub version: String,
    /// `lower_case_table_names`.
    pub lower_case_table_names: u8,
    /// The time zone of sessions that name none. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<ZoneDefinition>,
    /// Variables that its sessions begin with and on which computed columns depend. Empty if unknown.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// The zone of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneDefinition {
    /// `time_zone`: a name, an offset, or `SYSTEM`.
    pub server: String,
    /// `system_time_zone`: an abbreviation, for the season in which the server was started.
    pub host: String,
}

/// An account or a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountDefinition {
    /// The account as written in statements.
    pub account: String,
    /// MariaDB: whether it is a role. MySQL does not distinguish roles from accounts.
    pub is_role: bool,
    /// `SHOW CREATE USER`; `None` for MariaDB's roles.
    pub create: Option<Sql>,
    /// The second statement that MariaDB prints for an account whose password has expired: when the next one
    /// will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alter: Option<Sql>,
    /// Further clauses for its creation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Sql>,
    /// `SHOW GRANTS FOR` it.
    pub grants: Vec<Sql>,
    /// MySQL: its second password (`RETAIN CURRENT PASSWORD`) as stored, in hex digits; by the same plugin as
    /// the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_password: Option<String>,
}

/// A schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaDefinition {
    /// Its name.
    pub schema: String,
    /// `SHOW CREATE DATABASE`.
    pub create: Sql,
    /// Its default collation.
    pub collation: String,
}

/// A sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceDefinition {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// `SHOW CREATE SEQUENCE`.
    pub create: Sql,
    /// Its single row, in the order of its columns: numbers.
    pub state: Vec<String>,
}

/// How the values of a column are read and must be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// A number in digits: integers, decimals.
    Number,
    /// A `FLOAT` or `DOUBLE`, with enough digits to restore it; a `FLOAT` as the double that it is.
    Float,
    /// Text in the column's character set.
    Text,
    /// `JSON` of MySQL: text that must be declared as `utf8mb4`.
    Json,
    /// Bytes without a character set: `BLOB`, `BIT`, `GEOMETRY`, `VECTOR`.
    Bytes,
    /// Values written as ASCII text: dates and times (time stamps in UTC), `YEAR`, `INET6`, `UUID`.
    Ascii,
    /// `ENUM` by its member's number, 0 for the empty error value; `SET` by its bits.
    Members,
}

/// A column that is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnDefinition {
    /// Its name.
    pub name: String,
    /// Its type, as `information_schema` spells it.
    #[serde(rename = "type")]
    pub column_type: String,
    /// How its values are read.
    pub form: Form,
    /// Its character set, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charset: Option<String>,
}

/// A part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Small ones first.
    Ascending,
    /// Large ones first.
    Descending,
}

/// The key that orders the rows. Its columns come first in each row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyDefinition {
    /// The index: `PRIMARY`, or a unique key without NULL.
    pub index: String,
    /// One for each of its columns.
    pub directions: Vec<Direction>,
    /// Whether key values can be written into a statement so that they mean the same to the server, and are
    /// compared there as the index orders them.
    pub is_comparable: bool,
}

/// Which rows of a table are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// All, in the one view of the backup.
    Consistent,
    /// All, read while the table was locked at the moment of the view.
    Locked,
    /// All, but not of the moment of the view: the engine has no views, and the table could not be locked.
    Inconsistent,
    /// None: the table holds no rows of its own on this server.
    None,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDefinition {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its engine.
    pub engine: String,
    /// `SHOW CREATE TABLE`.
    pub create: Sql,
    /// The columns of each row, in this order, without those that the server computes.
    pub columns: Vec<ColumnDefinition>,
    /// The order of the rows; `None` if they are stored as they come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyDefinition>,
    /// Which rows are saved.
    pub rows: Rows,
    /// MariaDB: rows of the past are included, with the two columns that give their period.
    #[serde(default, skip_serializing_if = "is_false")]
    pub has_history: bool,
    /// If set, only rows for which this is true were saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// MariaDB: defaults that `SHOW CREATE TABLE` cannot show, as column and literal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub defaults: Vec<(String, String)>,
    /// Columns that the server computes for each row and stores; `None` if there are none, or they were not
    /// read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed: Option<ComputedDefinition>,
}

/// Columns of a table that the server computes and stores, and the checksum of their values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputedDefinition {
    /// The columns, in the order in which they are read after the saved ones.
    pub columns: Vec<ColumnDefinition>,
    /// Checksum of all rows including these columns: 32 hex digits.
    pub checksum: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The settings under which a stored program or view was created, and is created again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// `character_set_client`.
    pub charset: String,
    /// `collation_connection`.
    pub collation: String,
    /// Collation of the schema at that time; empty for views.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub schema_collation: String,
    /// `sql_mode`; `None` for views, which have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql_mode: Option<String>,
}

/// A procedure, function, package or package body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramDefinition {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// `PROCEDURE`, `FUNCTION`, `PACKAGE`, `PACKAGE BODY`.
    pub kind: String,
    /// `SHOW CREATE` of it.
    pub create: Sql,
    /// The settings it was created under.
    pub context: Context,
}

/// A view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewDefinition {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its columns.
    pub columns: Vec<String>,
    /// `SHOW CREATE VIEW`.
    pub create: Sql,
    /// The settings it was created under.
    pub context: Context,
}

/// A trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerDefinition {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its table.
    pub table: String,
    /// `BEFORE INSERT` ...
    pub when: String,
    /// Its place among the triggers of the same table and time.
    pub order: u64,
    /// `SHOW CREATE TRIGGER`.
    pub create: Sql,
    /// The settings it was created under.
    pub context: Context,
}

/// The statement that opens a table before a trigger on it is created under these settings, if one is needed.
/// The server parses the expressions of computed columns under the `sql_mode` of the statement that opens
/// their table, and MySQL writes `'it\'s'`, which `CREATE TRIGGER` cannot parse under `NO_BACKSLASH_ESCAPES`
/// (tried on 9.7.4).
pub(crate) fn opening(quoted_table: &str, under: &Context) -> Option<String> {
    let is_needed = under.sql_mode.as_ref().is_some_and(|modes| modes.contains("NO_BACKSLASH_ESCAPES"));
    is_needed.then(|| format!("DO (SELECT 1 FROM {quoted_table} LIMIT 0)"))
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventDefinition {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its time zone.
    pub time_zone: String,
    /// `SHOW CREATE EVENT`.
    pub create: Sql,
    /// The settings it was created under.
    pub context: Context,
}

impl Definition {
    /// The kind of the object, in one word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Server(_) => "server",
            Self::Account(_) => "account",
            Self::Schema(_) => "schema",
            Self::Sequence(_) => "sequence",
            Self::Table(_) => "table",
            Self::Routine(routine) => match routine.kind.as_str() {
                "PROCEDURE" => "procedure",
                "FUNCTION" => "function",
                "PACKAGE" => "package",
                _ => "package-body",
            },
            Self::View(_) => "view",
            Self::Trigger(_) => "trigger",
            Self::Event(_) => "event",
        }
    }

    /// The names that make up an item's path: one for a schema, two for a table, three for everything else
    /// (its schema, its kind, its name). An object that belongs to no schema goes under the one in which
    /// servers keep it, which is never saved itself.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        const OWN_SCHEMA: &str = "mysql";
        let kind = self.kind();
        match self {
            Self::Server(_) => vec![OWN_SCHEMA, kind, kind],
            Self::Account(it) => vec![OWN_SCHEMA, kind, &it.account],
            Self::Schema(it) => vec![&it.schema],
            Self::Table(it) => vec![&it.schema, &it.name],
            Self::Sequence(it) => vec![&it.schema, kind, &it.name],
            Self::Routine(it) => vec![&it.schema, kind, &it.name],
            Self::View(it) => vec![&it.schema, kind, &it.name],
            Self::Trigger(it) => vec![&it.schema, kind, &it.name],
            Self::Event(it) => vec![&it.schema, kind, &it.name],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A statement of any bytes survives the round trip, and text stays readable.
    #[test]
    fn statements_come_back() {
        for bytes in [&b"SELECT 1"[..], "SELECT 'ä😀'".as_bytes(), b"SELECT '\xE4\xFF\0'", b""] {
            let json = serde_json::to_string(&Sql(bytes.to_vec())).unwrap();
            assert_eq!(serde_json::from_str::<Sql>(&json).unwrap().0, bytes, "{json}");
        }
        assert_eq!(serde_json::to_string(&Sql(b"x\xFF".to_vec())).unwrap(), r#"{"hex":"78ff"}"#);
    }

    /// Fields added later are left out when empty and may be missing, so that older definitions can be read.
    #[test]
    fn what_came_later_may_be_absent() {
        let table = Definition::Table(TableDefinition {
            schema: "s".into(),
            name: "t".into(),
            engine: "InnoDB".into(),
            create: Sql::default(),
            columns: Vec::new(),
            key: None,
            rows: Rows::Consistent,
            has_history: false,
            condition: None,
            defaults: Vec::new(),
            computed: None,
        });
        let account = Definition::Account(AccountDefinition {
            account: "'a'@'%'".into(),
            is_role: false,
            create: None,
            alter: None,
            options: Vec::new(),
            grants: Vec::new(),
            second_password: None,
        });
        let server = Definition::Server(ServerDefinition {
            flavor: Flavor::MariaDb,
            version: "10.11.6-MariaDB".into(),
            lower_case_table_names: 0,
            time_zone: None,
            settings: BTreeMap::new(),
        });
        for (definition, before) in [
            (
                table,
                r#"{"object":"table","schema":"s","name":"t","engine":"InnoDB","create":"","columns":[],"rows":"consistent"}"#,
            ),
            (
                account,
                r#"{"object":"account","account":"'a'@'%'","is_role":false,"create":null,"grants":[]}"#,
            ),
            (
                server,
                r#"{"object":"server","flavor":"mariadb","version":"10.11.6-MariaDB","lower_case_table_names":0}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&definition).unwrap(), before);
            assert_eq!(serde_json::from_str::<Definition>(before).unwrap(), definition);
        }
    }

    /// Stored definitions can be read again, and their names tell what they are.
    #[test]
    fn definitions_come_back() {
        let context = Context {
            charset: "utf8mb4".into(),
            collation: "utf8mb4_bin".into(),
            schema_collation: String::new(),
            sql_mode: None,
        };
        let view = Definition::View(ViewDefinition {
            schema: "s".into(),
            name: "v/1".into(),
            columns: vec!["a".into()],
            create: Sql::default(),
            context,
        });
        assert_eq!(view.names(), ["s", "view", "v/1"]);
        let json = serde_json::to_string(&view).unwrap();
        assert!(json.starts_with(r#"{"object":"view","schema":"s""#), "{json}");
        assert_eq!(serde_json::from_str::<Definition>(&json).unwrap(), view);
    }
}
