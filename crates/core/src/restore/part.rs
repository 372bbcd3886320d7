//! A part of a backup: some tables, and whatever a server's recovery needs besides.
//!
//! Recovery deals with the system tablespace, undo, the dictionary, the server's own schemas, the logs, and
//! every tablespace that the redo names. Rows of unfinished transactions are rolled back table by table: the
//! server skips a table whose files are absent, and what it does to others does not change (verified on
//! MariaDB 10.11.19 and 11.8.6, and on MySQL 9.7.4). Files that may belong to a wanted table under another
//! name (full-text indexes, files of an interrupted `ALTER`, triggers) are kept with its schema, and every
//! tablespace that holds several tables is kept.
//!
//! If it is not known beforehand which tablespaces the redo names, the recovering server says so: it refuses
//! to continue without them, by name or number, and they are added ([`MissingTablespaces`]).

use std::{collections::BTreeSet, fmt};

use holdfast_formats::{Flavor, SpaceId, table_name, tablespace::is_shared};
use holdfast_repo::format::item::{FileRole, Item, ItemPath, Tablespace};

use crate::logical::selection::{SYSTEM_SCHEMAS, Selection};

/// Some tables of a backup.
#[derive(Clone, Debug)]
pub struct TablePart {
    flavor: Flavor,
    selection: Selection,
    /// Further tables that are needed, by schema and name.
    also: BTreeSet<(String, String)>,
    /// Tablespaces that recovery asks for.
    spaces: BTreeSet<SpaceId>,
}

/// What a file is, as far as its name tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// It belongs to this table.
    Table { schema: String, table: String },
    /// It belongs to some table of this schema.
    InSchema(String),
    /// It belongs to the server.
    Server,
}

impl TablePart {
    /// The tables of a selection.
    pub(crate) fn new(flavor: Flavor, selection: Selection) -> Self {
        Self { flavor, selection, also: BTreeSet::new(), spaces: BTreeSet::new() }
    }

    /// Adds tables. Returns whether any is new.
    pub(crate) fn add_tables(&mut self, tables: impl IntoIterator<Item = (String, String)>) -> bool {
        let before = self.also.len();
        self.also.extend(tables);
        self.also.len() > before
    }

    /// Adds tablespaces. Returns whether any is new.
    pub(crate) fn add_spaces(&mut self, spaces: &BTreeSet<SpaceId>) -> bool {
        let before = self.spaces.len();
        self.spaces.extend(spaces);
        self.spaces.len() > before
    }

    fn touches(&self, schema: &str) -> bool {
        self.selection.touches(schema) || self.also.iter().any(|(name, _)| name == schema)
    }

    /// Whether the file of an item, which is at `home` in the data directory, belongs to the part.
    pub(super) fn has(&self, item: &Item, home: &ItemPath) -> bool {
        let tablespace = item.tablespace;
        let is_needed = |it: Tablespace| self.spaces.contains(&it.space) || is_shared(self.flavor, it.flags);
        if tablespace.is_some_and(is_needed) {
            return true;
        }
        let outside = item.outside.is_some() && item.role == FileRole::Tablespace;
        if outside && self.flavor == Flavor::MySql {
            return true;
        }
        // So new that its first page was not written yet: the redo makes it,
        // and nothing tells yet which tablespace it is.
        if tablespace.is_none() && home.as_bytes().ends_with(b".ibd") {
            return true;
        }
        match named(home) {
            Named::Server => true,
            Named::InSchema(schema) => self.touches(&schema),
            Named::Table { schema, table } => {
                self.selection.has_table(&schema, &table) || self.also.contains(&(schema, table))
            }
        }
    }
}

/// What the file at a path of a data directory belongs to. If its name does not tell, it is the server's.
pub(crate) fn named(path: &ItemPath) -> Named {
    let Ok(path) = std::str::from_utf8(path.as_bytes()) else { return Named::Server };
    let Some((directory, file)) = path.split_once('/').filter(|(_, file)| !file.contains('/')) else {
        return Named::Server;
    };
    let Some(schema) = table_name::decode(directory) else { return Named::Server };
    if SYSTEM_SCHEMAS.contains(&&*schema) || file == "db.opt" {
        return Named::Server;
    }
    let (stem, ending) = file.split_once('.').unwrap_or((file, ""));
    // Table names have neither a dot nor a hash in file names: both are written as numbers.
    let base = stem.split('#').next().unwrap_or(stem);
    if base.is_empty() || table_name::is_of_fulltext_index(base) || ending == "TRN" {
        return Named::InSchema(schema.to_string());
    }
    match table_name::decode(base) {
        Some(table) => Named::Table { schema: schema.to_string(), table: table.to_string() },
        None => Named::Server,
    }
}

/// What a server logs about an absent file before it says which, and about a tablespace that it cannot find.
const BEFORE: [&str; 4] =
    ["Operating system error number 2 ", "Error number 2 means", "[MY-012592]", "[MY-012593]"];

impl TablePart {
    /// Removes from a server's log that it misses files which it was not given, and nothing else.
    pub(super) fn forget_absent(&self, log: &mut Vec<String>) {
        let mut kept = Vec::with_capacity(log.len());
        let mut before = Vec::new();
        for line in log.drain(..) {
            if BEFORE.iter().any(|text| line.contains(text)) {
                before.push(line);
            } else if file_that_is_missed(&line).is_some_and(|file| self.leaves_out(file)) {
                // Before this line, the server says that there is no such file.
                before.clear();
            } else {
                kept.push(line);
            }
        }
        kept.append(&mut before);
        *log = kept;
    }

    fn leaves_out(&self, file: &str) -> bool {
        let mut parts = file.rsplit('/');
        let (name, directory) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let Ok(path) = ItemPath::new(format!("{directory}/{name}")) else { return false };
        match named(&path) {
            Named::Table { schema, table } => {
                !self.selection.has_table(&schema, &table) && !self.also.contains(&(schema, table))
            }
            Named::InSchema(schema) => !self.touches(&schema),
            Named::Server => false,
        }
    }
}

/// The file that a line says is not there, or the tablespace by its file name without the extension.
fn file_that_is_missed(line: &str) -> Option<&str> {
    let between = |before: &str, after: &str| Some(line.split_once(before)?.1.split_once(after)?.0);
    between("Cannot open datafile for read-only: '", "' OS error: ")
        .or_else(|| between("Could not find a valid tablespace file for ", ". "))
        .or_else(|| line.contains("[MY-012351]").then(|| between(", file '", "' is missing")).flatten())
}

/// Tablespaces without which a server says it cannot recover.
pub(super) fn missing_tablespaces(flavor: Flavor, log: &[String]) -> BTreeSet<SpaceId> {
    let number = |line: &String| {
        let rest = match flavor {
            Flavor::MariaDb => {
                line.split_once("[ERROR] InnoDB: Tablespace ")?.1.split_once(" was not found at ")?.0
            }
            Flavor::MySql if line.contains("[MY-012179]") => line.rsplit_once("tablespace ID: ")?.1,
            Flavor::MySql => return None,
        };
        rest.trim().parse().ok().map(SpaceId)
    };
    log.iter().filter_map(number).collect()
}

/// Recovery needs tablespaces that are not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MissingTablespaces(pub(crate) BTreeSet<SpaceId>);

impl fmt::Display for MissingTablespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.0.iter().map(|it| it.0.to_string()).collect::<Vec<_>>().join(", ");
        write!(f, "the redo names tablespaces that do not exist: {numbers}")
    }
}

impl std::error::Error for MissingTablespaces {}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> TablePart {
        let tables = vec!["shop.orders".parse().unwrap()];
        TablePart::new(Flavor::MariaDb, Selection { tables, ..Selection::default() })
    }

    /// Names of files tell tables, partitions, and what belongs to a schema as a whole.
    #[test]
    fn names_of_files() {
        let table = |schema: &str, table: &str| Named::Table { schema: schema.into(), table: table.into() };
        for (path, expected) in [
            ("shop/orders.ibd", table("shop", "orders")),
            ("shop/orders.frm", table("shop", "orders")),
            ("shop/orders#P#p0.ibd", table("shop", "orders")),
            ("shop/orders#p#p0#sp#s1.ibd", table("shop", "orders")),
            ("a@002db/c@0024d.MYD", table("a-b", "c$d")),
            ("shop/#sql-ib12.ibd", Named::InSchema("shop".into())),
            ("shop/FTS_0000000000000012_CONFIG.ibd", Named::InSchema("shop".into())),
            ("shop/fts_0000000000000428_config.ibd", Named::InSchema("shop".into())),
            ("shop/fts_queue.ibd", table("shop", "fts_queue")),
            ("shop/fts_12_config.ibd", table("shop", "fts_12_config")),
            ("shop/t.TRN", Named::InSchema("shop".into())),
            ("shop/db.opt", Named::Server),
            ("mysql/user.frm", Named::Server),
            ("sys/sys_config.ibd", Named::Server),
            ("ibdata1", Named::Server),
            ("a/b/c.ibd", Named::Server),
        ] {
            assert_eq!(named(&ItemPath::new(path).unwrap()), expected, "{path}");
        }
    }

    /// Lines about absent files that were left out are forgotten;
    /// not those about a wanted file, nor any other error.
    #[test]
    fn what_is_forgotten() {
        let lines = |table: &str| {
            vec![
                "0 [ERROR] InnoDB: Operating system error number 2 in a file operation.".to_owned(),
                "0 [ERROR] InnoDB: Error number 2 means 'No such file or directory'".to_owned(),
                format!(
                    "0 [ERROR] InnoDB: Cannot open datafile for read-only: './shop/{table}.ibd' OS error: 71"
                ),
                format!(
                    "0 [ERROR] InnoDB: Could not find a valid tablespace file for shop/{table}. Please refer"
                ),
                format!(
                    "1 [Warning] [MY-012351] [InnoDB] Tablespace 2, name 'shop/{table}', file './shop/{table}.ibd' is missing!"
                ),
            ]
        };
        let forgotten = |mut log: Vec<String>| {
            part().forget_absent(&mut log);
            log
        };
        assert!(forgotten(lines("other")).is_empty());
        assert!(forgotten(lines("other#P#p0")).is_empty());
        assert_eq!(forgotten(lines("orders")).len(), 5);
        let error = "0 [ERROR] InnoDB: Operating system error number 2 in a file operation.".to_owned();
        assert_eq!(forgotten([lines("other"), vec![error.clone()]].concat()), [error]);
        let error = "0 [ERROR] InnoDB: Operating system error number 28 in a file operation.".to_owned();
        assert_eq!(forgotten([vec![error.clone()], lines("other")].concat()), [error]);
    }

    #[test]
    fn what_is_missing() {
        let mariadb = [
            "0 [ERROR] InnoDB: Tablespace 6 was not found at ./x/parents.ibd.",
            "0 [Note] InnoDB: Tablespace 7 was not found at './x/notes.ibd', but there were no modifications either.",
        ];
        let mysql =
            ["1 [ERROR] [MY-012179] [InnoDB] Could not find any file associated with the tablespace ID: 5"];
        let missing = |flavor, lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
            missing_tablespaces(flavor, &lines).into_iter().map(|it| it.0).collect::<Vec<_>>()
        };
        assert_eq!(missing(Flavor::MariaDb, &mariadb), [6]);
        assert_eq!(missing(Flavor::MySql, &mysql), [5]);
    }
}
