//! CSV files in a directory for each schema, and scripts around them: `1-schema.sql` makes the tables,
//! `2-load.sql` loads the rows by `LOAD DATA LOCAL`, `3-programs.sql` makes what must come after them.

use std::{collections::BTreeSet, io::Write};

use holdfast_repo::format::rows::RowTotals;

use super::{
    Exported, Table,
    parts::{Part, RowsLayout},
    place::Place,
};
use crate::{
    error::{Error, Result},
    event::Cancel,
    logical::{
        delimited::{self, RowFormat},
        script::{Script, write_failed},
        sql::{quoted, quoted_text},
        stored::{contents::Contents, definition::Form},
    },
};

const WRITTEN_BYTES: usize = 1 << 20;

pub(super) struct Layout<'a> {
    contents: &'a Contents,
    tables: &'a [Table],
    /// Whether the client decides into which schema the tables come.
    is_placed_by_client: bool,
}

/// The names of a file's directory and of the file itself.
fn directory_and_file(table: &Table, number: u32) -> Result<(String, String)> {
    // The parts of the path are escaped, so that they are names of files.
    let path = String::from_utf8_lossy(table.item.path.as_bytes()).into_owned();
    let Some((schema, name)) = path.split_once('/') else {
        return Err(Error::failed(format!("{path} is not the path of a table")));
    };
    let name = if number == 0 { format!("{name}.csv") } else { format!("{name}.{number:05}.csv") };
    Ok((schema.to_owned(), name))
}

impl<'a> Layout<'a> {
    pub(super) fn new(
        contents: &'a Contents,
        tables: &'a [Table],
        is_placed_by_client: bool,
    ) -> Result<Self> {
        for table in tables {
            delimited::refuse_unknown(&table.definition).map_err(|error| table.named(error))?;
        }
        Ok(Self { contents, tables, is_placed_by_client })
    }

    /// The names of the schemas' directories.
    pub(super) fn directories(&self) -> Vec<String> {
        let names = self.tables.iter().filter_map(|table| Some(directory_and_file(table, 0).ok()?.0));
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn definitions(&self, place: &Place, done: &mut Exported) -> Result<()> {
        self.directories().iter().try_for_each(|name| place.directory(name))?;
        let mut schema = Script::new(place.file("1-schema.sql")?, self.is_placed_by_client);
        schema.before_rows(self.contents).map_err(write_failed)?;
        for table in self.tables {
            schema.definition_of(&table.definition).map_err(write_failed)?;
        }
        schema.foot().map_err(write_failed)?;
        done.add_file(schema.out.finish()?);
        let mut programs = Script::new(place.file("3-programs.sql")?, self.is_placed_by_client);
        programs.head(self.contents.server.as_ref()).map_err(write_failed)?;
        programs.after_rows(self.contents).map_err(write_failed)?;
        programs.foot().map_err(write_failed)?;
        done.add_file(programs.out.finish()?);
        Ok(())
    }

    /// Writes the script that loads the files.
    pub(super) fn load(&self, place: &Place, files: &[u32], done: &mut Exported) -> Result<()> {
        let mut script = Script::new(place.file("2-load.sql")?, self.is_placed_by_client);
        script.head(self.contents.server.as_ref()).map_err(write_failed)?;
        for (table, files) in self.tables.iter().zip(files) {
            script.enter(&table.definition.schema).map_err(write_failed)?;
            for number in 0..*files {
                let statement = load_statement(table, number)?;
                script.out.write_all(statement.as_bytes()).map_err(write_failed)?;
            }
        }
        script.foot().map_err(write_failed)?;
        done.add_file(script.out.finish()?);
        Ok(())
    }
}

fn load_statement(table: &Table, number: u32) -> Result<String> {
    let (directory, file) = directory_and_file(table, number)?;
    let definition = &table.definition;
    let (mut columns, mut bytes) = (Vec::new(), Vec::new());
    for (place, column) in definition.columns.iter().enumerate() {
        if column.form == Form::Bytes {
            columns.push(format!("@v{place}"));
            bytes.push(format!("{} = UNHEX(@v{place})", quoted(&column.name)));
        } else {
            columns.push(quoted(&column.name));
        }
    }
    let mut statement = format!(
        "LOAD DATA LOCAL INFILE {} INTO TABLE {} CHARACTER SET utf8mb4\n  \
         FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY '\\r\\n' IGNORE 1 LINES\n  ({})",
        quoted_text(&format!("{directory}/{file}")),
        quoted(&definition.name),
        columns.join(", ")
    );
    if !bytes.is_empty() {
        statement.push_str(&format!("\n  SET {}", bytes.join(", ")));
    }
    statement.push_str(";\n");
    if definition.has_history {
        statement = format!(
            "SET SESSION system_versioning_insert_history = 1;\n{statement}SET SESSION system_versioning_insert_history = 0;\n"
        );
    }
    Ok(statement)
}

impl RowsLayout for Layout<'_> {
    fn part(&self, place: &Place, part: &Part<'_>, cancel: &Cancel) -> Result<(RowTotals, u64)> {
        let (directory, name) = directory_and_file(part.table, part.number)?;
        let mut file = place.rows_file(&format!("{directory}/{name}"))?;
        let table = &part.table.definition;
        let mut text = Vec::new();
        delimited::begin(&mut text, table, RowFormat::Csv);
        let totals = part.each_row(cancel, &mut |row| {
            delimited::row(&mut text, table, RowFormat::Csv, row)?;
            if text.len() >= WRITTEN_BYTES {
                file.write_all(&text).map_err(write_failed)?;
                text.clear();
            }
            Ok(())
        })?;
        file.write_all(&text).map_err(write_failed)?;
        Ok((totals, file.finish()?))
    }
}
