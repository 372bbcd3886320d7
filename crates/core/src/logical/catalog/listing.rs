//! The databases and tables of a server that are selected.

use std::collections::BTreeMap;

use crate::{
    error::{Error, Result},
    logical::selection::{ExcludedNames, Selection},
    server::{Session, SqlError, TableName},
};

/// The kind of table that a name denotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TableKind {
    Base,
    /// MariaDB: a table with rows of the past.
    Versioned,
    View,
    Sequence,
}

/// A table, sequence or view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listed {
    pub(crate) name: TableName,
    pub(crate) kind: TableKind,
    /// `None` for views, and for tables that the server cannot open.
    pub(crate) engine: Option<String>,
}

/// The selected schemas and tables of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) schemas: Vec<String>,
    pub(crate) tables: Vec<Listed>,
}

impl Listing {
    /// Lists what is selected.
    pub(crate) fn read(session: &mut Session, selection: &Selection) -> Result<Listing> {
        let (schemas, tables) = Self::read_all(session)?;
        let names: Vec<_> =
            tables.iter().map(|table| (table.name.schema.clone(), table.name.table.clone())).collect();
        selection.refuse_unknown(&schemas, &names)?;
        refuse_ndbinfo(session, &schemas, selection)?;
        Ok(Self::selected(schemas, tables, selection))
    }

    /// Lists again in the middle of a backup, when objects asked for by name may be gone.
    pub(crate) fn read_again(session: &mut Session, selection: &Selection) -> Result<Listing, SqlError> {
        let (schemas, tables) = Self::read_all(session)?;
        Ok(Self::selected(schemas, tables, selection))
    }

    /// The databases and tables that were excluded by name: tables by database, none of one that has no tables.
    /// And names of which there is nothing to exclude.
    pub(crate) fn excluded(
        session: &mut Session,
        selection: &Selection,
    ) -> Result<(BTreeMap<String, Vec<String>>, ExcludedNames)> {
        let mut excluded: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut names = selection.excluded_names();
        if selection.schemas_excluded.is_empty() && selection.tables_excluded.is_empty() {
            return Ok((excluded, names));
        }
        let all =
            Selection { schemas_excluded: Vec::new(), tables_excluded: Vec::new(), ..selection.clone() };
        let (schemas, tables) = Self::read_all(session)?;
        schemas.iter().for_each(|schema| names.found_schema(schema));
        tables.iter().for_each(|it| names.found_table(&it.name.schema, &it.name.table));
        let gone = schemas.into_iter().filter(|schema| all.has_whole(schema) && !selection.has_whole(schema));
        excluded.extend(gone.map(|schema| (schema, Vec::new())));
        for Listed { name: TableName { schema, table }, kind, .. } in tables {
            let is_excluded = all.has_table(&schema, &table) && !selection.has_table(&schema, &table);
            if kind != TableKind::View && is_excluded {
                excluded.entry(schema).or_default().push(table);
            }
        }
        Ok((excluded, names))
    }

    fn selected(schemas: Vec<String>, mut tables: Vec<Listed>, selection: &Selection) -> Listing {
        tables.retain(|table| selection.has_table(&table.name.schema, &table.name.table));
        let has_table = |schema: &String| tables.iter().any(|table| table.name.schema == *schema);
        let schemas =
            schemas.into_iter().filter(|schema| selection.has_whole(schema) || has_table(schema)).collect();
        Self { schemas, tables }
    }

    fn read_all(session: &mut Session) -> Result<(Vec<String>, Vec<Listed>), SqlError> {
        let rows = session.rows("SELECT schema_name AS s FROM information_schema.schemata")?;
        let mut schemas =
            rows.iter().map(|row| Ok(row.text("s")?.to_owned())).collect::<Result<Vec<_>, SqlError>>()?;
        // The server's own order ignores case, and differs each time.
        schemas.sort();
        let rows = session.rows(
            "SELECT table_schema AS s, table_name AS t, table_type AS k, engine AS e \
             FROM information_schema.tables WHERE CAST(table_schema AS BINARY) NOT IN \
             ('mysql', 'information_schema', 'performance_schema', 'sys', 'ndbinfo')",
        )?;
        let mut tables = Vec::with_capacity(rows.len());
        for row in &rows {
            let name = TableName { schema: row.text("s")?.to_owned(), table: row.text("t")?.to_owned() };
            let engine = row.text_or_null("e")?.map(str::to_owned);
            let kind = match row.text("k")? {
                "BASE TABLE" => TableKind::Base,
                "SYSTEM VERSIONED" => TableKind::Versioned,
                "SEQUENCE" => TableKind::Sequence,
                "VIEW" => TableKind::View,
                // They belong to other sessions, and are gone with them.
                "TEMPORARY" | "LOCAL TEMPORARY" | "GLOBAL TEMPORARY" => continue,
                other => {
                    return Err(SqlError::unexpected(format_args!("{name} is a {other}")));
                }
            };
            tables.push(Listed { name, kind, engine });
        }
        tables.sort();
        Ok((schemas, tables))
    }

    /// Tables with rows, and sequences.
    pub(crate) fn with_rows(&self) -> impl Iterator<Item = &Listed> {
        self.tables.iter().filter(|table| table.kind != TableKind::View)
    }
}

/// Refuses a database with the name of NDB's own on a server without NDB: it is a user's, and must not be
/// left out silently.
fn refuse_ndbinfo(session: &mut Session, schemas: &[String], selection: &Selection) -> Result<()> {
    const NAME: &str = "ndbinfo";
    if !schemas.iter().any(|schema| schema == NAME) || !selection.would_have(NAME) {
        return Ok(());
    }
    let query = "SELECT COUNT(*) FROM information_schema.engines \
                 WHERE engine = 'ndbinfo' AND support IN ('YES', 'DEFAULT')";
    if session.number::<u64>(query)? > 0 {
        return Ok(());
    }
    let text =
        format!("the database {NAME} has the name of one of NDB's own, which logical backups leave out");
    Err(Error::failed(text).hinted("give it another name, or leave it out: --exclude-database ndbinfo"))
}
