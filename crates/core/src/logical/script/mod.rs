//! Writes a logical backup as one SQL script that the servers' own clients load.
//!
//! The order makes everything exist before it is needed: accounts that own objects, schemas, sequences that
//! defaults draw from, tables with their rows, routines that views call, stand-ins for views before the views
//! themselves, triggers when the rows are in, events, grants. If an object was made under settings of its
//! own, they are set for it.
//!
//! A client that does not read a script as bytes changes line ends within programs: use `--binary-mode`.
//! MariaDB's takes comments out of them: use `--comments`.

pub(super) mod accounts;
pub(super) mod literal;

use std::io::{self, Write};

use holdfast_formats::Flavor;
use holdfast_repo::{data::reader::Backup, format::item::Item};

use super::{
    selection::{Selection, TablePattern},
    sql::{quoted, quoted_text},
    stored::{
        contents::{Contents, definition},
        definition::{
            AccountDefinition, Context as MadeUnder, Definition, SchemaDefinition, SequenceDefinition,
            ServerDefinition, Sql, TableDefinition, ViewDefinition, opening,
        },
        rows::{Values, all_rows},
    },
};
use crate::{
    error::{Error, Result},
    event::Cancel,
};

/// A statement with rows is ended at this length.
const STATEMENT_BYTES: usize = 1 << 20;

/// Makes time stamps what their definitions say: otherwise `NOT NULL` without a default means one that changes
/// with every update. MySQL lets few accounts set this, so it is only set where it is off, and back at the end.
pub(super) const TIME_STAMPS_AS_SAID: &str = "SET @holdfast_set = IF(@holdfast_time_stamps, 'DO 0', 'SET SESSION explicit_defaults_for_timestamp = 1')";
pub(super) const TIME_STAMPS_AS_BEFORE: &str = "SET @holdfast_set = IF(@holdfast_time_stamps, 'DO 0', 'SET SESSION explicit_defaults_for_timestamp = 0')";
pub(super) const PREPARE_SET: &str = "PREPARE holdfast FROM @holdfast_set";

/// What a script holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scripted {
    /// Tables.
    pub tables: u64,
    /// Their rows.
    pub rows: u64,
    /// Other objects.
    pub definitions: u64,
}

/// Writes a script of the whole backup, or of the `wanted` tables, with their triggers and, if they are of one
/// schema, without it.
pub fn write(
    backup: &Backup,
    wanted: Option<&TablePattern>,
    out: &mut dyn Write,
    cancel: &Cancel,
) -> Result<Scripted> {
    let contents = contents(backup, wanted, cancel)?;
    let is_placed = is_placed_by_client(&contents, wanted);
    let mut script = Script::new(io::BufWriter::with_capacity(1 << 20, out), is_placed);
    script.whole(backup, &contents, cancel)?;
    script.out.flush().map_err(write_failed)?;
    Ok(script.done)
}

/// The contents of a script. If only some tables are `wanted`, and they are of one schema, they come without it;
/// there must be at least one.
pub(super) fn contents(backup: &Backup, wanted: Option<&TablePattern>, cancel: &Cancel) -> Result<Contents> {
    let tables = wanted.cloned().into_iter().collect();
    let mut contents = Contents::read(backup, &Selection { tables, ..Selection::default() }, cancel)?;
    let Some(wanted) = wanted else { return Ok(contents) };
    if contents.schemas.len() == 1 {
        contents.schemas.clear();
    }
    if contents.tables.is_empty() && contents.views.is_empty() && contents.sequences.is_empty() {
        return Err(Error::failed(format!("the backup holds no table {wanted}")));
    }
    Ok(contents)
}

/// Whether a script leaves to the client into which schema its tables come.
pub(super) fn is_placed_by_client(contents: &Contents, wanted: Option<&TablePattern>) -> bool {
    wanted.is_some() && contents.schemas.is_empty()
}

pub(super) fn write_failed(error: io::Error) -> Error {
    Error::failed("write the output").caused_by(error)
}

/// A script being written.
pub(super) struct Script<W: Write> {
    pub(super) out: W,
    /// Whether the client decides into which schema it all comes.
    is_placed_by_client: bool,
    /// The current schema.
    schema: Option<String>,
    done: Scripted,
}

impl<W: Write> Script<W> {
    /// `is_placed_by_client`: it decides into which schema it all comes.
    pub(super) fn new(out: W, is_placed_by_client: bool) -> Self {
        Self { out, is_placed_by_client, schema: None, done: Scripted::default() }
    }

    fn whole(&mut self, backup: &Backup, contents: &Contents, cancel: &Cancel) -> Result<()> {
        self.before_rows(contents).map_err(write_failed)?;
        for item in &contents.tables {
            let Definition::Table(table) = definition(backup, item)? else {
                return Err(Error::damaged(format!("{} is defined as something else", item.path)));
            };
            self.table(backup, item, &table, cancel)
                .map_err(|error| error.context(format_args!("table {}.{}", table.schema, table.name)))?;
        }
        self.after_rows(contents).map_err(write_failed)?;
        self.foot().map_err(write_failed)
    }

    /// Writes what comes before the tables.
    pub(super) fn before_rows(&mut self, contents: &Contents) -> io::Result<()> {
        self.head(contents.server.as_ref())?;
        self.done.definitions += contents.accounts.len() as u64;
        let creations = accounts::creations(&contents.accounts);
        self.begin_second_passwords(&contents.accounts)?;
        creations.into_iter().try_for_each(|(_, it)| self.statement(&Sql(it)))?;
        self.second_passwords(&contents.accounts)?;
        contents.schemas.iter().try_for_each(|schema| self.schema(schema))?;
        contents.sequences.iter().try_for_each(|sequence| self.sequence(sequence))
    }

    /// Records which accounts exist: they keep their passwords.
    fn begin_second_passwords(&mut self, accounts: &[AccountDefinition]) -> io::Result<()> {
        let is_altered = |it: &AccountDefinition| it.second_password.is_some() || it.alter.is_some();
        for (number, account) in accounts.iter().enumerate().filter(|(_, it)| is_altered(it)) {
            let set = format!("SET @holdfast_new_{number} = {}", accounts::is_missing(account));
            self.statement(&Sql(set.into_bytes()))?;
        }
        Ok(())
    }

    fn second_passwords(&mut self, accounts: &[AccountDefinition]) -> io::Result<()> {
        for (number, account) in accounts.iter().enumerate() {
            if let Some(alter) = &account.alter {
                self.if_new(number, &String::from_utf8_lossy(&alter.0))?;
            }
            match accounts::second_password(account) {
                Ok(None) => {}
                Ok(Some(statements)) => {
                    statements.iter().try_for_each(|statement| self.if_new(number, statement))?;
                }
                Err(why) => self.comment(
                    format!("The second password of account {} is left out: {why}.", account.account)
                        .as_bytes(),
                )?,
            }
        }
        Ok(())
    }

    /// Writes a statement that is executed if the account of this number did not exist.
    fn if_new(&mut self, number: usize, statement: &str) -> io::Result<()> {
        let text = quoted_text(statement);
        let set = format!("SET @holdfast_password = IF(@holdfast_new_{number}, {text}, 'DO 0')");
        self.execute(&set, "PREPARE holdfast FROM @holdfast_password")
    }

    /// Writes what comes after the rows.
    pub(super) fn after_rows(&mut self, contents: &Contents) -> io::Result<()> {
        self.programs(contents)?;
        accounts::grants(&contents.accounts).into_iter().try_for_each(|it| self.statement(&Sql(it)))
    }

    pub(super) fn head(&mut self, server: Option<&ServerDefinition>) -> io::Result<()> {
        let version = server.map_or("an unknown server", |server| server.version.as_str());
        let of = format!("A logical backup of {version}, by Holdfast {}.", env!("CARGO_PKG_VERSION"));
        self.comment(of.as_bytes())?;
        writeln!(self.out, "-- Load it with the client's options --binary-mode and --comments.")?;
        self.out.write_all(
            b"SET @holdfast_sql_mode = @@SESSION.sql_mode, @holdfast_time_zone = @@SESSION.time_zone,\n  \
              @holdfast_foreign_keys = @@SESSION.foreign_key_checks, @holdfast_unique = @@SESSION.unique_checks,\n  \
              @holdfast_charset = @@SESSION.character_set_client, @holdfast_collation = @@SESSION.collation_connection,\n  \
              @holdfast_results = @@SESSION.character_set_results,\n  \
              @holdfast_time_stamps = @@SESSION.explicit_defaults_for_timestamp;\n\
              SET NAMES utf8mb4;\n\
              SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION',\n  \
              time_zone = '+00:00', foreign_key_checks = 0, unique_checks = 0;\n",
        )?;
        if server.is_some_and(|server| server.flavor == Flavor::MariaDb) {
            self.out.write_all(b"SET SESSION check_constraint_checks = 0, innodb_strict_mode = 0;\n")?;
        }
        self.execute(TIME_STAMPS_AS_SAID, PREPARE_SET)
    }

    /// Writes the execution of a statement that the client has to choose: `set` puts it into a variable, and
    /// `prepare` takes it from there.
    fn execute(&mut self, set: &str, prepare: &str) -> io::Result<()> {
        [set, prepare, "EXECUTE holdfast", "DEALLOCATE PREPARE holdfast"]
            .iter()
            .try_for_each(|step| writeln!(self.out, "{step};"))
    }

    pub(super) fn foot(&mut self) -> io::Result<()> {
        self.execute(TIME_STAMPS_AS_BEFORE, PREPARE_SET)?;
        self.out.write_all(
            b"SET SESSION sql_mode = @holdfast_sql_mode, time_zone = @holdfast_time_zone,\n  \
              foreign_key_checks = @holdfast_foreign_keys, unique_checks = @holdfast_unique,\n  \
              character_set_client = @holdfast_charset, collation_connection = @holdfast_collation,\n  \
              character_set_results = @holdfast_results;\n\
              -- The backup ends here: it is complete.\n",
        )
    }

    /// Makes a schema the current one, unless that is left to the client.
    pub(super) fn enter(&mut self, schema: &str) -> io::Result<()> {
        if !self.is_placed_by_client && self.schema.as_deref() != Some(schema) {
            writeln!(self.out, "USE {};", quoted(schema))?;
            self.schema = Some(schema.to_owned());
        }
        Ok(())
    }

    fn schema(&mut self, schema: &SchemaDefinition) -> io::Result<()> {
        self.done.definitions += 1;
        let create = &schema.create.0;
        let rest = create.strip_prefix(b"CREATE DATABASE ").unwrap_or(create);
        self.out.write_all(b"CREATE DATABASE IF NOT EXISTS ")?;
        self.out.write_all(rest.strip_prefix(b"/*!32312 IF NOT EXISTS*/ ").unwrap_or(rest))?;
        self.out.write_all(b";\n")
    }

    fn sequence(&mut self, sequence: &SequenceDefinition) -> io::Result<()> {
        self.done.definitions += 1;
        self.enter(&sequence.schema)?;
        self.statement(&sequence.create)?;
        writeln!(self.out, "INSERT INTO {} VALUES ({});", quoted(&sequence.name), sequence.state.join(", "))
    }

    pub(super) fn statement(&mut self, sql: &Sql) -> io::Result<()> {
        self.out.write_all(&sql.0)?;
        self.out.write_all(b";\n")
    }

    /// Writes a table without its rows.
    pub(super) fn definition_of(&mut self, table: &TableDefinition) -> io::Result<()> {
        self.enter(&table.schema)?;
        self.statement(&table.create)?;
        for (column, literal) in &table.defaults {
            let (name, column) = (quoted(&table.name), quoted(column));
            writeln!(self.out, "ALTER TABLE {name} ALTER COLUMN {column} SET DEFAULT {literal};")?;
        }
        Ok(())
    }

    fn table(
        &mut self,
        backup: &Backup,
        item: &Item,
        table: &TableDefinition,
        cancel: &Cancel,
    ) -> Result<()> {
        self.definition_of(table).map_err(write_failed)?;
        if table.has_history {
            self.out
                .write_all(b"SET SESSION system_versioning_insert_history = 1;\n")
                .map_err(write_failed)?;
        }
        let reader = backup.table(item).ok_or_else(|| Error::failed("it holds no rows"))?;
        let mut inserts = Inserts::new(&mut self.out, table);
        let read = all_rows(&reader, cancel, &mut |row| inserts.row(row))?;
        inserts.end().map_err(write_failed)?;
        self.done.tables += 1;
        self.done.rows += read.rows;
        if table.has_history {
            self.out
                .write_all(b"SET SESSION system_versioning_insert_history = 0;\n")
                .map_err(write_failed)?;
        }
        Ok(())
    }

    fn programs(&mut self, contents: &Contents) -> io::Result<()> {
        for routine in &contents.routines {
            self.enter(&routine.schema)?;
            let collation = contents.schemas.iter().find(|schema| schema.schema == routine.schema);
            let collation = collation.map(|schema| schema.collation.as_str());
            self.program(&routine.schema, collation, &routine.create, &routine.context)?;
        }
        // A view may need any other, but needs only its columns.
        for view in contents.views.iter().filter(|view| !view.columns.is_empty()) {
            self.enter(&view.schema)?;
            let columns: Vec<String> =
                view.columns.iter().map(|name| format!("1 AS {}", quoted(name))).collect();
            writeln!(self.out, "CREATE VIEW {} AS SELECT {};", quoted(&view.name), columns.join(", "))?;
        }
        for view in &contents.views {
            self.view(view)?;
        }
        for trigger in &contents.triggers {
            self.enter(&trigger.schema)?;
            if let Some(opening) = opening(&quoted(&trigger.table), &trigger.context) {
                writeln!(self.out, "{opening};")?;
            }
            let collation = contents.schemas.iter().find(|schema| schema.schema == trigger.schema);
            let collation = collation.map(|schema| schema.collation.as_str());
            self.program(&trigger.schema, collation, &trigger.create, &trigger.context)?;
        }
        for event in &contents.events {
            self.enter(&event.schema)?;
            let collation = contents.schemas.iter().find(|schema| schema.schema == event.schema);
            let collation = collation.map(|schema| schema.collation.as_str());
            writeln!(self.out, "SET SESSION time_zone = {};", quoted_text(&event.time_zone))?;
            self.program(&event.schema, collation, &event.create, &event.context)?;
            writeln!(self.out, "SET SESSION time_zone = '+00:00';")?;
        }
        Ok(())
    }

    /// Writes a comment. A name may contain line ends, by which its author could give orders to whoever loads
    /// the script.
    fn comment(&mut self, text: &[u8]) -> io::Result<()> {
        for line in text.split(|byte| matches!(byte, b'\n' | b'\r')) {
            self.out.write_all(b"-- ")?;
            self.out.write_all(line)?;
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn view(&mut self, view: &ViewDefinition) -> io::Result<()> {
        self.enter(&view.schema)?;
        self.done.definitions += 1;
        if view.columns.is_empty() {
            let name = format!("The view {} could not be used when it was saved:", quoted(&view.name));
            self.comment(name.as_bytes())?;
            return self.comment(&view.create.0);
        }
        let MadeUnder { charset, collation, .. } = &view.context;
        writeln!(
            self.out,
            "SET SESSION character_set_client = {charset}, collation_connection = {collation};"
        )?;
        let create = &view.create.0;
        self.out.write_all(b"CREATE OR REPLACE ")?;
        self.out.write_all(create.strip_prefix(b"CREATE ").unwrap_or(create))?;
        self.out.write_all(b";\nSET NAMES utf8mb4;\n")
    }

    /// Writes a stored program, under the settings it was made under.
    fn program(
        &mut self,
        schema: &str,
        collation: Option<&str>,
        create: &Sql,
        under: &MadeUnder,
    ) -> io::Result<()> {
        self.done.definitions += 1;
        let had = Some(under.schema_collation.as_str()).filter(|had| !had.is_empty());
        let differs = collation.is_some() && had.is_some() && had != collation;
        if let Some(had) = had.filter(|_| differs) {
            writeln!(self.out, "ALTER DATABASE {} COLLATE {had};", quoted(schema))?;
        }
        writeln!(
            self.out,
            "SET SESSION sql_mode = {}, character_set_client = {}, collation_connection = {};",
            quoted_text(under.sql_mode.as_deref().unwrap_or_default()),
            under.charset,
            under.collation
        )?;
        let delimiter = delimiter(&create.0);
        writeln!(self.out, "DELIMITER {delimiter}")?;
        self.out.write_all(&create.0)?;
        writeln!(self.out, "\n{delimiter}\nDELIMITER ;")?;
        writeln!(
            self.out,
            "SET NAMES utf8mb4;\nSET SESSION sql_mode = \
             'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION';"
        )?;
        if let Some(collation) = collation.filter(|_| differs) {
            writeln!(self.out, "ALTER DATABASE {} COLLATE {collation};", quoted(schema))?;
        }
        Ok(())
    }
}

/// A delimiter that a client takes for the end of this statement, and that occurs nowhere in it.
fn delimiter(statement: &[u8]) -> String {
    let mut delimiter = ";;".to_owned();
    while statement.windows(delimiter.len()).any(|window| window == delimiter.as_bytes()) {
        delimiter.push(';');
    }
    delimiter
}

/// The rows of one table as statements of bounded length.
pub(super) struct Inserts<'a, W: Write> {
    out: &'a mut W,
    table: &'a TableDefinition,
    /// `INSERT INTO .. VALUES`.
    begin: String,
    statement: Vec<u8>,
}

impl<'a, W: Write> Inserts<'a, W> {
    pub(super) fn new(out: &'a mut W, table: &'a TableDefinition) -> Self {
        let columns: Vec<String> = table.columns.iter().map(|column| quoted(&column.name)).collect();
        let begin = format!("INSERT INTO {} ({}) VALUES\n", quoted(&table.name), columns.join(", "));
        Self { out, table, begin, statement: Vec::new() }
    }

    pub(super) fn row(&mut self, row: &[u8]) -> Result<()> {
        let wrong = || Error::damaged("a row is not one of its table");
        if self.statement.is_empty() {
            self.statement.extend_from_slice(self.begin.as_bytes());
        } else {
            self.statement.extend_from_slice(b",\n");
        }
        let mut values = Values { bytes: row };
        self.statement.push(b'(');
        for (index, column) in self.table.columns.iter().enumerate() {
            let value = values.next().ok_or_else(wrong)?;
            if index > 0 {
                self.statement.push(b',');
            }
            literal::write(&mut self.statement, column, value).map_err(write_failed)?;
        }
        if !values.bytes.is_empty() {
            return Err(wrong());
        }
        self.statement.push(b')');
        if self.statement.len() >= STATEMENT_BYTES {
            self.end().map_err(write_failed)?;
        }
        Ok(())
    }

    pub(super) fn end(&mut self) -> io::Result<()> {
        if !self.statement.is_empty() {
            self.statement.extend_from_slice(b";\n");
            self.out.write_all(&self.statement)?;
            self.statement.clear();
            self.statement.shrink_to(2 * STATEMENT_BYTES);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters_are_no_part_of_what_they_end() {
        assert_eq!(delimiter(b"BEGIN; END"), ";;");
        assert_eq!(delimiter(b"SELECT ';;';;;"), ";;;;");
    }
}
