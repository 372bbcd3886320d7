//! A directory laid out like mydumper's, for `myloader`: a semicolon at the end of a line ends a statement,
//! so no other line may end with one.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

use holdfast_formats::Flavor;
use holdfast_repo::{data::reader::Backup, format::rows::RowTotals};

use super::{
    Exported, Table,
    parts::{Part, RowsLayout},
    place::Place,
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::Cancel,
    head,
    logical::{
        script::{Inserts, accounts, write_failed},
        sql::{quoted, quoted_text},
        stored::{
            contents::Contents,
            definition::{Context, Sql, TriggerDefinition, ViewDefinition, opening},
        },
    },
    position::Position,
    server::status::BinlogPosition,
};

/// The longest name that is used in file names as it is.
const NAME_BYTES_MAX: usize = 80;
/// Prefix of names that stand for others.
const ALIAS: &str = "mydumper_";

pub(super) struct Layout<'a> {
    backup: &'a Backup,
    contents: &'a Contents,
    tables: &'a [Table],
    /// File names for schemas and the objects in them.
    names: BTreeMap<String, String>,
    is_mariadb: bool,
}

impl<'a> Layout<'a> {
    pub(super) fn new(backup: &'a Backup, contents: &'a Contents, tables: &'a [Table]) -> Result<Self> {
        let mut all: BTreeSet<&str> = BTreeSet::new();
        all.extend(contents.schemas.iter().map(|it| it.schema.as_str()));
        all.extend(tables.iter().flat_map(|it| [it.definition.schema.as_str(), it.definition.name.as_str()]));
        all.extend(contents.views.iter().flat_map(|it| [it.schema.as_str(), it.name.as_str()]));
        all.extend(contents.sequences.iter().flat_map(|it| [it.schema.as_str(), it.name.as_str()]));
        all.extend(contents.triggers.iter().flat_map(|it| [it.schema.as_str(), it.table.as_str()]));
        all.extend(contents.routines.iter().map(|it| it.schema.as_str()));
        all.extend(contents.events.iter().map(|it| it.schema.as_str()));
        let mut names = BTreeMap::new();
        for (number, name) in all.into_iter().enumerate() {
            if name.contains(['\n', '\r']) {
                let text = format!("the name {name:?} contains a line break, which myloader cannot read");
                return Err(Error::new(ErrorKind::Usage, text).hinted("use --format sql"));
            }
            let stands_for_itself = name.len() <= NAME_BYTES_MAX
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && !name.starts_with(ALIAS);
            let file_name = if stands_for_itself { name.to_owned() } else { format!("{ALIAS}{number}") };
            names.insert(name.to_owned(), file_name);
        }
        let server = contents.server.as_ref();
        let is_mariadb = server.is_some_and(|server| server.flavor == Flavor::MariaDb);
        Ok(Self { backup, contents, tables, names, is_mariadb })
    }

    fn name<'n>(&'n self, name: &'n str) -> &'n str {
        self.names.get(name).map_or(name, String::as_str)
    }

    /// The beginning of each file.
    fn head(&self) -> String {
        let mut head = String::from(
            "/*!40101 SET NAMES utf8mb4*/;\n\
             /*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n\
             /*!40101 SET SQL_MODE='NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION'*/;\n\
             /*!40103 SET TIME_ZONE='+00:00' */;\n",
        );
        if self.is_mariadb {
            head.push_str("SET SESSION check_constraint_checks = 0;\nSET SESSION innodb_strict_mode = 0;\n");
        }
        head
    }

    /// Writes a file of statements.
    fn file(&self, place: &Place, name: &str, statements: &[Vec<u8>], done: &mut Exported) -> Result<()> {
        let mut file = place.file(name)?;
        let mut write = |bytes: &[u8]| file.write_all(bytes).map_err(write_failed);
        write(self.head().as_bytes())?;
        for statement in statements {
            write(&within_lines(statement))?;
            write(b";\n")?;
        }
        done.add_file(file.finish()?);
        Ok(())
    }

    pub(super) fn definitions(&self, place: &Place, done: &mut Exported) -> Result<()> {
        let contents = self.contents;
        for schema in &contents.schemas {
            let create = &schema.create.0;
            let rest = create.strip_prefix(b"CREATE DATABASE ").unwrap_or(create);
            let rest = rest.strip_prefix(b"/*!32312 IF NOT EXISTS*/ ").unwrap_or(rest);
            let create = [b"CREATE DATABASE IF NOT EXISTS ", rest].concat();
            let name = self.name(&schema.schema);
            self.file(place, &format!("{name}-schema-create.sql"), &[create], done)?;
        }
        for sequence in &contents.sequences {
            let next = sequence.state.first().map_or("1", String::as_str);
            let state = format!("DO SETVAL({}, {next}, 0)", quoted(&sequence.name));
            let (schema, name) = (self.name(&sequence.schema), self.name(&sequence.name));
            let statements = [sequence.create.0.clone(), state.into_bytes()];
            self.file(place, &format!("{schema}.{name}-schema-sequence.sql"), &statements, done)?;
        }
        for table in self.tables {
            let it = &table.definition;
            let mut statements = vec![it.create.0.clone()];
            for (column, literal) in &it.defaults {
                let (name, column) = (quoted(&it.name), quoted(column));
                let alter = format!("ALTER TABLE {name} ALTER COLUMN {column} SET DEFAULT {literal}");
                statements.push(alter.into_bytes());
            }
            let (schema, name) = (self.name(&it.schema), self.name(&it.name));
            self.file(place, &format!("{schema}.{name}-schema.sql"), &statements, done)?;
        }
        for view in contents.views.iter().filter(|view| !view.columns.is_empty()) {
            self.view(place, view, done)?;
        }
        let mut of_tables: BTreeMap<(&str, &str), Vec<&TriggerDefinition>> = BTreeMap::new();
        for trigger in &contents.triggers {
            of_tables.entry((&trigger.schema, &trigger.table)).or_default().push(trigger);
        }
        for ((schema, table), triggers) in of_tables {
            let statements = triggers.iter().flat_map(|it| {
                let opening = opening(&quoted(table), &it.context);
                let open = opening.map(|opening| ["SET SESSION sql_mode = ''".to_owned(), opening]);
                let open = open.into_iter().flatten().map(String::into_bytes);
                open.chain(under(&it.context, &it.create))
            });
            let statements = statements.collect::<Vec<_>>();
            let (schema, name) = (self.name(schema), self.name(table));
            self.file(place, &format!("{schema}.{name}-schema-triggers.sql"), &statements, done)?;
        }
        self.programs(place, done)?;
        if !contents.accounts.is_empty() {
            // Not a file that myloader looks for: it is loaded by hand, if at all.
            let mut file = place.file("accounts.txt")?;
            let creations = accounts::creations(&contents.accounts).into_iter().map(|(_, it)| it);
            for statement in creations.chain(accounts::grants(&contents.accounts)) {
                file.write_all(&statement).and_then(|()| file.write_all(b";\n")).map_err(write_failed)?;
            }
            done.add_file(file.finish()?);
        }
        Ok(())
    }

    /// Writes a view, and a table that stands in for it until everything that it needs exists.
    fn view(&self, place: &Place, view: &ViewDefinition, done: &mut Exported) -> Result<()> {
        let (schema, file_name) = (self.name(&view.schema), self.name(&view.name));
        let name = quoted(&view.name);
        let columns: Vec<String> =
            view.columns.iter().map(|column| format!("{} int", quoted(column))).collect();
        let stand_in =
            format!("CREATE TABLE IF NOT EXISTS {name}(\n{}\n) ENGINE=MEMORY", columns.join(",\n"));
        self.file(place, &format!("{schema}.{file_name}-schema.sql"), &[stand_in.into_bytes()], done)?;
        let mut statements = vec![
            format!("DROP TABLE IF EXISTS {name}").into_bytes(),
            format!("DROP VIEW IF EXISTS {name}").into_bytes(),
        ];
        statements.extend(under(&view.context, &view.create));
        self.file(place, &format!("{schema}.{file_name}-schema-view.sql"), &statements, done)
    }

    /// Writes the routines and events of each schema.
    fn programs(&self, place: &Place, done: &mut Exported) -> Result<()> {
        let mut of_schemas: BTreeMap<&str, Vec<Vec<u8>>> = BTreeMap::new();
        for routine in &self.contents.routines {
            of_schemas.entry(&routine.schema).or_default().extend(under(&routine.context, &routine.create));
        }
        for event in &self.contents.events {
            let statements = of_schemas.entry(&event.schema).or_default();
            statements
                .push(format!("SET SESSION time_zone = {}", quoted_text(&event.time_zone)).into_bytes());
            statements.extend(under(&event.context, &event.create));
            statements.push(b"SET SESSION time_zone = '+00:00'".to_vec());
        }
        for (schema, statements) in of_schemas {
            self.file(place, &format!("{}-schema-post.sql", self.name(schema)), &statements, done)?;
        }
        Ok(())
    }

    /// Writes the file that describes all others.
    pub(super) fn metadata(&self, place: &Place, done: &mut Exported) -> Result<()> {
        let head = self.backup.head();
        let mut text = format!("# Started dump at: {}\n", head.started_at.strftime("%Y-%m-%d %H:%M:%S"));
        text.push_str("[config]\nquote-character = BACKTICK\n");
        if let Some(Position { binlog: Some(BinlogPosition { file, offset }), gtid, .. }) =
            head::position(head)
        {
            let gtid = gtid.unwrap_or_default().replace(['\n', '\r'], "");
            text.push_str(&format!(
                "\n[source]\nFile = {file}\nPosition = {offset}\nExecuted_Gtid_Set = {gtid}\n"
            ));
        }
        let mut table = |schema: &str, name: &str, more: &str| {
            let (schema, file_name) = (self.name(schema), self.name(name));
            text.push_str(&format!("\n[`{schema}`.`{file_name}`]\nreal_table_name={name}\n{more}\n"));
        };
        for it in self.tables {
            let rows = self.backup.table(&it.item).map_or(0, |table| table.totals().rows);
            table(&it.definition.schema, &it.definition.name, &format!("rows = {rows}"));
        }
        for view in self.contents.views.iter().filter(|view| !view.columns.is_empty()) {
            table(&view.schema, &view.name, "rows = 0\nis_view = 1");
        }
        for sequence in &self.contents.sequences {
            table(&sequence.schema, &sequence.name, "rows = 0\nis_sequence = 1");
        }
        text.push_str(&format!("# Finished dump at: {}\n", head.finished_at.strftime("%Y-%m-%d %H:%M:%S")));
        let mut file = place.file("metadata")?;
        file.write_all(text.as_bytes()).map_err(write_failed)?;
        done.add_file(file.finish()?);
        Ok(())
    }
}

impl RowsLayout for Layout<'_> {
    fn part(&self, place: &Place, part: &Part<'_>, cancel: &Cancel) -> Result<(RowTotals, u64)> {
        let table = &part.table.definition;
        let (schema, name) = (self.name(&table.schema), self.name(&table.name));
        let mut file = place.rows_file(&format!("{schema}.{name}.{:05}.sql", part.number))?;
        file.write_all(self.head().as_bytes()).map_err(write_failed)?;
        if table.has_history {
            file.write_all(b"SET SESSION system_versioning_insert_history = 1;\n").map_err(write_failed)?;
        }
        let mut inserts = Inserts::new(&mut file, table);
        let totals = part.each_row(cancel, &mut |row| inserts.row(row))?;
        inserts.end().map_err(write_failed)?;
        Ok((totals, file.finish()?))
    }
}

/// The statements that make a program or a view under the settings it was made under.
fn under(context: &Context, create: &Sql) -> Vec<Vec<u8>> {
    let set = format!(
        "SET SESSION character_set_client = {}, collation_connection = {}",
        context.charset, context.collation
    );
    let mut statements = vec![set.into_bytes()];
    if let Some(sql_mode) = &context.sql_mode {
        statements.push(format!("SET SESSION sql_mode = {}", quoted_text(sql_mode)).into_bytes());
    }
    statements.push(create.0.clone());
    statements.push(b"SET NAMES utf8mb4".to_vec());
    statements
}

/// A statement none of whose lines ends it: like mydumper itself, puts a blank after such a semicolon.
fn within_lines(statement: &[u8]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(statement.len());
    for (place, line) in statement.split(|byte| *byte == b'\n').enumerate() {
        if place > 0 {
            if lines.last() == Some(&b';') {
                lines.push(b' ');
            }
            lines.push(b'\n');
        }
        lines.extend_from_slice(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_within_a_statement_ends_it() {
        assert_eq!(within_lines(b"BEGIN\n  SET a = 1;\nEND"), b"BEGIN\n  SET a = 1; \nEND");
        assert_eq!(within_lines(b"SELECT 1"), b"SELECT 1");
    }
}
