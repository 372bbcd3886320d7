//! Places in a table, in key order.
//!
//! A place is written into statements as literals of the exact bytes that the server sent, so every
//! comparison is the server's: this code never needs to know which of two keys is less. Two predicates made
//! from one place complement each other whatever the collation: no row is on both sides, and none on neither if the
//! server can compare the literals with the columns at all ([`Place::comparisons`]), and as its index orders them:
//! keys where it does not are no comparable ones (`is_misjudged` in [`super::tables`]).

use holdfast_repo::format::hex::to_hex;

use super::tables::Table;
use crate::{
    logical::{
        sql::quoted,
        stored::{
            definition::{ColumnDefinition, Direction, Form},
            rows::Values,
        },
    },
    server::SqlError,
};

/// A place: literals for the first columns of the key, at least for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place(Vec<String>);

impl Place {
    /// The place of a row whose `bytes` begin with the columns of the key.
    pub(crate) fn of_row(table: &Table, bytes: &[u8]) -> Result<Place, SqlError> {
        let mut values = Values { bytes };
        let literals = table.key_columns().iter().map(|column| match values.next() {
            Some(Some(value)) => literal(column, value),
            _ => Err(SqlError::unexpected(format_args!("the key of a row of {}", table.name))),
        });
        Ok(Place(literals.collect::<Result<_, _>>()?))
    }

    /// The place of a row with these values in its key columns.
    pub(crate) fn of_values(table: &Table, values: &[&[u8]]) -> Result<Place, SqlError> {
        let literals = table.key_columns().iter().zip(values).map(|(column, value)| literal(column, value));
        Ok(Place(literals.collect::<Result<_, _>>()?))
    }

    /// A place made of literals.
    pub(crate) fn of_literals(literals: Vec<String>) -> Place {
        Place(literals)
    }

    /// Expressions that are not NULL if the server can compare the literals with the columns. If it cannot, as with a
    /// text that is no UUID, no row is before the place, and none after it. (To `IS NULL`, MariaDB says no even then,
    /// because neither side can be NULL.)
    pub(crate) fn comparisons(&self, table: &Table) -> String {
        let columns = table.key_columns().iter().zip(&self.0);
        let all: Vec<String> =
            columns.map(|(column, literal)| format!("{} < {literal}", quoted(&column.name))).collect();
        all.join(", ")
    }

    /// Its literals.
    pub(crate) fn literals(&self) -> &[String] {
        &self.0
    }

    /// The condition for rows after the place, and, if `inclusive`, for those at it.
    pub(crate) fn after(&self, table: &Table, inclusive: bool) -> String {
        self.side(
            table,
            |direction| match direction {
                Direction::Ascending => ">",
                Direction::Descending => "<",
            },
            inclusive,
        )
    }

    /// The condition for rows before the place.
    pub(crate) fn before(&self, table: &Table) -> String {
        self.side(
            table,
            |direction| match direction {
                Direction::Ascending => "<",
                Direction::Descending => ">",
            },
            false,
        )
    }

    fn side(&self, table: &Table, operator: impl Fn(Direction) -> &'static str, inclusive: bool) -> String {
        let directions =
            table.definition.key.as_ref().map(|key| key.directions.as_slice()).unwrap_or_default();
        let columns: Vec<String> = table.key_columns().iter().map(|column| quoted(&column.name)).collect();
        let mut alternatives = Vec::with_capacity(self.0.len());
        for (index, literal) in self.0.iter().enumerate() {
            let equal =
                self.0[..index].iter().zip(&columns).map(|(literal, column)| format!("{column} = {literal}"));
            let mut operator = operator(directions[index]).to_owned();
            if inclusive && index + 1 == self.0.len() {
                operator.push('=');
            }
            let differing = format!("{} {operator} {literal}", columns[index]);
            let all: Vec<String> = equal.chain([differing]).collect();
            alternatives.push(all.join(" AND "));
        }
        match alternatives.as_slice() {
            [only] => format!("({only})"),
            several => format!("(({}))", several.join(") OR (")),
        }
    }
}

/// A key value as a literal.
fn literal(column: &ColumnDefinition, value: &[u8]) -> Result<String, SqlError> {
    let odd = || SqlError::unexpected(format_args!("a value of column {}", column.name));
    let ascii = || std::str::from_utf8(value).ok().filter(|text| text.is_ascii()).ok_or_else(odd);
    Ok(match (column.form, &column.charset) {
        (Form::Number, _) => {
            let text = ascii()?;
            if !is_number(text) {
                return Err(odd());
            }
            text.to_owned()
        }
        (Form::Text, Some(charset)) => format!("_{charset} x'{}'", to_hex(value)),
        (Form::Bytes, _) => format!("x'{}'", to_hex(value)),
        (Form::Ascii, _) => {
            let text = ascii()?;
            if text.contains(['\'', '\\']) {
                return Err(odd());
            }
            format!("'{text}'")
        }
        _ => return Err(odd()),
    })
}

/// Whether a text is a number and nothing else to the server: digits, with a sign and a point at most.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    [whole, fraction].iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        logical::stored::definition::{KeyDefinition, Rows, Sql, TableDefinition},
        server::TableName,
    };

    fn table(columns: &[(&str, Form, Option<&str>, Direction)]) -> Table {
        let definition = TableDefinition {
            schema: "s".into(),
            name: "t".into(),
            engine: "InnoDB".into(),
            create: Sql::default(),
            columns: columns
                .iter()
                .map(|(name, form, charset, _)| ColumnDefinition {
                    name: (*name).to_owned(),
                    column_type: "x".into(),
                    form: *form,
                    charset: charset.map(str::to_owned),
                })
                .collect(),
            key: Some(KeyDefinition {
                index: "PRIMARY".into(),
                directions: columns.iter().map(|column| column.3).collect(),
                is_comparable: true,
            }),
            rows: Rows::Consistent,
            has_history: false,
            condition: None,
            defaults: Vec::new(),
            computed: None,
        };
        let name = TableName { schema: "s".into(), table: "t".into() };
        Table { definition, name, bytes_estimated: 0, rows_estimated: 0, misprinted_defaults: Vec::new() }
    }

    /// Predicates of one place complement each other in every direction.
    #[test]
    fn sides() {
        use Direction::{Ascending, Descending};
        let table =
            table(&[("a", Form::Number, None, Ascending), ("b`", Form::Text, Some("latin1"), Descending)]);
        let place = Place::of_row(&table, b"\x02-7\x02\xE4'more").unwrap();
        assert_eq!(place.after(&table, false), "((`a` > -7) OR (`a` = -7 AND `b``` < _latin1 x'e427'))");
        assert_eq!(place.after(&table, true), "((`a` > -7) OR (`a` = -7 AND `b``` <= _latin1 x'e427'))");
        assert_eq!(place.before(&table), "((`a` < -7) OR (`a` = -7 AND `b``` > _latin1 x'e427'))");
        let half = Place::of_literals(vec!["5".to_owned()]);
        assert_eq!(half.after(&table, true), "(`a` >= 5)");
        assert_eq!(half.before(&table), "(`a` < 5)");
    }

    /// Neither a value that does not fit its type nor a malformed row becomes a statement.
    #[test]
    fn odd_rows() {
        use Direction::Ascending;
        let number = table(&[("a", Form::Number, None, Ascending)]);
        for row in [
            &b"\xFB"[..],
            b"",
            b"\x05ab",
            b"\x031 2",
            b"\x0910.0.42.1",
            b"\x031-2",
            b"\x01-",
            b"\x021.",
            b"\x00",
            b"\xFF",
            b"\xFC\x01",
            b"\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFa",
        ] {
            assert!(Place::of_row(&number, row).is_err(), "{row:?}");
        }
        let date = table(&[("a", Form::Ascii, None, Ascending)]);
        assert!(Place::of_row(&date, b"\x03a'b").is_err());
    }
}
