//! Foreign keys as they are meant. MariaDB 11 prints them without doubling the backticks in the names of keys
//! and columns (seen on 11.8; 10.11 doubles them), so the printed text is not a statement, or one with
//! another meaning.

use std::collections::BTreeMap;

use crate::{
    logical::sql::{quoted, quoted_text},
    server::{Session, SqlError, TableName},
};

/// The text between the names of a foreign key, without its rules.
const BETWEEN_NAMES: [&[u8]; 6] =
    [b"\n  CONSTRAINT ", b" FOREIGN KEY (", b", ", b") REFERENCES ", b".", b" ("];

/// A foreign key as the server lists it.
struct ForeignKey {
    name: String,
    parent: TableName,
    columns: Vec<String>,
    parent_columns: Vec<String>,
}

/// The statement that creates a table, with the names of its foreign keys spelled correctly.
pub(crate) fn spelled(
    session: &mut Session,
    table: &TableName,
    create: Vec<u8>,
) -> Result<Vec<u8>, SqlError> {
    if !may_be_misspelled(&create) {
        return Ok(create);
    }
    let keys = listed(session, table)?;
    Ok(keys.iter().fold(create, |create, key| key.spell_in(create, &table.schema)))
}

fn listed(session: &mut Session, table: &TableName) -> Result<Vec<ForeignKey>, SqlError> {
    let query = format!(
        "SELECT constraint_name AS k, column_name AS c, referenced_table_schema AS s, referenced_table_name AS t, \
         referenced_column_name AS r FROM information_schema.key_column_usage \
         WHERE table_schema = {} AND table_name = {} AND referenced_table_name IS NOT NULL \
         ORDER BY constraint_name, ordinal_position",
        quoted_text(&table.schema),
        quoted_text(&table.table)
    );
    let mut keys = BTreeMap::<String, ForeignKey>::new();
    for row in session.byte_rows(&query)? {
        let text = |column| row.text(column).map(str::to_owned);
        let (name, parent) = (text("k")?, TableName { schema: text("s")?, table: text("t")? });
        let key = keys.entry(name.clone()).or_insert_with(|| ForeignKey {
            name,
            parent,
            columns: Vec::new(),
            parent_columns: Vec::new(),
        });
        key.columns.push(text("c")?);
        key.parent_columns.push(text("r")?);
    }
    Ok(keys.into_values().collect())
}

/// Whether a foreign key has anything but plain names where names belong.
fn may_be_misspelled(create: &[u8]) -> bool {
    const CONSTRAINT: &[u8] = b"\n  CONSTRAINT `";
    let starts = create.windows(CONSTRAINT.len()).enumerate().filter(|(_, it)| *it == CONSTRAINT);
    let lines = starts.map(|(at, _)| {
        let end = create[at + 1..].iter().position(|byte| *byte == b'\n');
        &create[at..end.map_or(create.len(), |end| at + 1 + end)]
    });
    let is_foreign = |line: &&[u8]| line.windows(14).any(|it| it == b" FOREIGN KEY (");
    let is_plain = |line: &[u8]| {
        let pieces: Vec<&[u8]> = line.split(|byte| *byte == b'`').collect();
        // The rules follow the last name.
        let between = pieces.iter().step_by(2).take(pieces.len() / 2);
        pieces.len() % 2 == 1 && between.into_iter().all(|piece| BETWEEN_NAMES.contains(piece))
    };
    lines.filter(is_foreign).any(|line| !is_plain(line))
}

impl ForeignKey {
    fn spell_in(&self, create: Vec<u8>, schema: &str) -> Vec<u8> {
        let as_printed = self.sql(schema, |name| format!("`{name}`"));
        let Some(at) = create.windows(as_printed.len()).position(|it| it == as_printed.as_bytes()) else {
            return create;
        };
        let as_meant = self.sql(schema, quoted);
        [&create[..at], as_meant.as_bytes(), &create[at + as_printed.len()..]].concat()
    }

    /// The key up to its rules. The start of the line occurs in no comment, where line ends are printed
    /// differently.
    fn sql(&self, schema: &str, spell: impl Fn(&str) -> String) -> String {
        let list = |names: &[String]| names.iter().map(|name| spell(name)).collect::<Vec<_>>().join(", ");
        let parent = match self.parent.schema == schema {
            true => quoted(&self.parent.table),
            false => self.parent.quoted(),
        };
        format!(
            "\n  CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {parent} ({})",
            spell(&self.name),
            list(&self.columns),
            list(&self.parent_columns)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ForeignKey {
        ForeignKey {
            name: "k`k".to_owned(),
            parent: TableName { schema: "d".to_owned(), table: "p`p".to_owned() },
            columns: vec!["``1".to_owned(), "b".to_owned()],
            parent_columns: vec!["x".to_owned(), "y`".to_owned()],
        }
    }

    #[test]
    fn backticks_are_doubled() {
        let printed = b"CREATE TABLE `t` (\n  `b` int COMMENT 'CONSTRAINT `k`k` FOREIGN KEY (',\n  \
            CONSTRAINT `k`k` FOREIGN KEY (```1`, `b`) REFERENCES `p``p` (`x`, `y``) ON DELETE CASCADE\n) ENGINE=InnoDB";
        let meant = b"CREATE TABLE `t` (\n  `b` int COMMENT 'CONSTRAINT `k`k` FOREIGN KEY (',\n  \
            CONSTRAINT `k``k` FOREIGN KEY (`````1`, `b`) REFERENCES `p``p` (`x`, `y```) ON DELETE CASCADE\n) ENGINE=InnoDB";
        assert!(may_be_misspelled(printed));
        assert_eq!(key().spell_in(printed.to_vec(), "d"), meant);
        assert_eq!(key().spell_in(meant.to_vec(), "d"), meant);
    }

    #[test]
    fn plain_names_are_not_asked_for() {
        let plain = b"CREATE TABLE `t` (\n  `a``b` int,\n  \
            CONSTRAINT `k` FOREIGN KEY (`a`, `b`) REFERENCES `s`.`p` (`x`, `y`) ON DELETE CASCADE,\n  \
            CONSTRAINT `c` CHECK (`a``b` > 1)\n) ENGINE=InnoDB COMMENT='`'";
        assert!(!may_be_misspelled(plain));
        assert!(may_be_misspelled(
            b"CREATE TABLE `t` (\n  CONSTRAINT `k` FOREIGN KEY (```) REFERENCES `p` (`x`)\n)"
        ));
    }
}
