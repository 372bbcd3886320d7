//! InnoDB's tablespaces, tables and files, as the server lists them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use holdfast_formats::{Flavor, SpaceId, tablespace::MYSQL_FLAG_SHARED};

use crate::server::{Row, Session, SqlError};

/// A tablespace as InnoDB lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablespaceRow {
    /// Its id.
    pub space: SpaceId,
    /// Its name: `db/table`, `innodb_undo_001` …
    pub name: String,
    /// Its flags.
    pub flag: u32,
    /// Its file, if the server reports it (MariaDB).
    pub file: Option<String>,
    /// `normal`, `discarded`, `corrupted`, `active`, `inactive`, `empty` (MySQL).
    pub state: Option<String>,
    /// The indexes in it (MySQL).
    pub indexes: BTreeSet<u64>,
    /// Whether it belongs to a full-text index that is not listed because it is still being built (MySQL).
    pub is_being_built: bool,
}

impl TablespaceRow {
    /// A tablespace that the server does not list, such as the system tablespace.
    fn unlisted(space: SpaceId) -> Self {
        Self {
            space,
            name: String::new(),
            flag: 0,
            file: None,
            state: None,
            indexes: BTreeSet::new(),
            is_being_built: false,
        }
    }

    /// Indexes that it did not have `then`. Indexes of a table created since count too: they can be newer
    /// than the table.
    pub fn new_indexes_since<'a>(&'a self, then: &'a Self) -> impl Iterator<Item = u64> + 'a {
        self.indexes.difference(&then.indexes).copied()
    }
}

/// MySQL: the tablespaces shared by several tables at this moment, including the dictionary's and the system
/// tablespace.
pub fn mysql_shared_spaces(session: &mut Session) -> Result<BTreeSet<SpaceId>, SqlError> {
    let query =
        format!("SELECT space FROM information_schema.innodb_tablespaces WHERE flag & {MYSQL_FLAG_SHARED}");
    let mut spaces = BTreeSet::from([SpaceId::SYSTEM]);
    for row in session.rows(&query)? {
        spaces.insert(SpaceId(row.number("space")?));
    }
    Ok(spaces)
}

/// InnoDB's tablespaces at one moment, by id. MariaDB lists only those that it has opened since its start. On
/// MySQL, the first query may take seconds while many definitions change. Needs `PROCESS` on both.
pub fn tablespaces(session: &mut Session) -> Result<BTreeMap<SpaceId, TablespaceRow>, SqlError> {
    let query = match session.flavor() {
        Flavor::MariaDb => {
            "SELECT space, name, flag, filename AS file, NULL AS state FROM information_schema.innodb_sys_tablespaces"
        }
        Flavor::MySql => {
            "SELECT space, name, flag, NULL AS file, state FROM information_schema.innodb_tablespaces"
        }
    };
    let mut spaces = BTreeMap::new();
    for row in session.rows(query)? {
        let space = SpaceId(row.number("space")?);
        let text = |column| Ok::<_, SqlError>(row.text_or_null(column)?.map(str::to_owned));
        let tablespace = TablespaceRow {
            space,
            name: row.text_or_null("name")?.unwrap_or_default().to_owned(),
            flag: row.number("flag")?,
            file: text("file")?,
            state: text("state")?,
            ..TablespaceRow::unlisted(space)
        };
        spaces.insert(space, tablespace);
    }
    if session.flavor() == Flavor::MySql {
        // Queried after the tablespaces: an index that is finished between the two queries counts as new.
        let query = "SELECT space, index_id FROM information_schema.innodb_indexes";
        let mut listed: HashSet<u64> = HashSet::new();
        for row in session.rows(query)? {
            let space = SpaceId(row.number("space")?);
            let tablespace = spaces.entry(space).or_insert_with(|| TablespaceRow::unlisted(space));
            let index = row.number("index_id")?;
            tablespace.indexes.insert(index);
            listed.insert(index);
        }
        for tablespace in spaces.values_mut() {
            let index = index_of_full_texts(&tablespace.name);
            tablespace.is_being_built = index.is_some_and(|index| !listed.contains(&index));
        }
    }
    Ok(spaces)
}

/// The index that an auxiliary full-text table of InnoDB belongs to:
/// `db/fts_<its table>_<the index>_index_1`, with both ids in 16 hexadecimal digits.
fn index_of_full_texts(name: &str) -> Option<u64> {
    let (_, name) = name.rsplit_once('/')?;
    let lower = name.to_ascii_lowercase();
    let (_table, rest) = lower.strip_prefix("fts_")?.split_once('_')?;
    let (index, _) = rest.split_once("_index_")?;
    u64::from_str_radix(index, 16).ok()
}

/// MariaDB: the ids of the InnoDB tables in each tablespace, opened or not. DISCARD gives a table a new id;
/// anything else that does so also gives it a new tablespace.
pub fn mariadb_tables(session: &mut Session) -> Result<BTreeMap<SpaceId, BTreeSet<u64>>, SqlError> {
    let mut tables = BTreeMap::<_, BTreeSet<_>>::new();
    for row in session.rows("SELECT table_id AS id, space FROM information_schema.innodb_sys_tables")? {
        tables.entry(SpaceId(row.number("space")?)).or_default().insert(row.number("id")?);
    }
    Ok(tables)
}

/// MariaDB: the tablespaces of all InnoDB tables and partitions, opened or not, by name. Names are encoded as
/// in file names.
pub fn mariadb_table_spaces(session: &mut Session) -> Result<HashMap<String, SpaceId>, SqlError> {
    let rows = session.rows("SELECT name, space FROM information_schema.innodb_sys_tables")?;
    rows.iter().map(|row| Ok((row.text("name")?.to_owned(), SpaceId(row.number("space")?)))).collect()
}

/// A file of a tablespace, wherever it is (MySQL).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablespaceFile {
    /// The tablespace.
    pub space: SpaceId,
    /// Its path as the server names it. Relative paths start at the data directory.
    pub path: String,
    /// Whether it holds undo logs.
    pub is_undo: bool,
}

/// MySQL: every file of every tablespace that is not temporary. Needs `PROCESS`.
pub fn mysql_files(session: &mut Session) -> Result<Vec<TablespaceFile>, SqlError> {
    let query = "SELECT file_id AS space, file_name AS path, file_type AS kind FROM information_schema.files \
                 WHERE file_type <> 'TEMPORARY' AND engine = 'InnoDB'";
    let file = |row: &Row| {
        Ok(TablespaceFile {
            space: SpaceId(row.number("space")?),
            path: row.text("path")?.to_owned(),
            is_undo: row.text("kind")? == "UNDO LOG",
        })
    };
    session.rows(query)?.iter().map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_full_texts_name_their_index() {
        let name = "i/fts_000000000000042e_00000000000000ad_index_1";
        assert_eq!(index_of_full_texts(name), Some(0xAD));
        assert_eq!(index_of_full_texts("i/FTS_000000000000042E_00000000000000AD_INDEX_6"), Some(0xAD));
        for name in
            ["i/fts_000000000000042e_config", "i/fts_x", "fts_1_2_index_1", "i/t", "i/fts_1_z_index_1"]
        {
            assert_eq!(index_of_full_texts(name), None, "{name}");
        }
    }
}
