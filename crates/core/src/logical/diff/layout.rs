//! Tells when rows of a table before and after are the same row, and when they are equal.

use std::borrow::Cow;

use crate::{
    error::{Error, Result},
    logical::{
        catalog::members,
        stored::{
            charset,
            definition::{ColumnDefinition, Form, TableDefinition},
            rows::Values,
        },
    },
};

/// Which backup a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    Before,
    /// The second.
    After,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Before => Self::After,
            Self::After => Self::Before,
        }
    }
}

/// A table as each of two backups has it.
#[derive(Clone, Debug)]
pub struct TablePair {
    before: TableDefinition,
    after: TableDefinition,
    /// Columns that both have, by name: their positions before and after.
    common: Vec<(usize, usize)>,
    /// How many of the first columns are the key.
    key: Option<usize>,
    /// Whether the same bytes mean the same on both sides.
    is_same_layout: bool,
}

impl TablePair {
    /// Compares the definitions.
    #[must_use]
    pub fn new(before: TableDefinition, after: TableDefinition) -> Self {
        let place = |name: &str| after.columns.iter().position(|column| column.name == name);
        let columns = before.columns.iter().enumerate();
        let common: Vec<(usize, usize)> =
            columns.filter_map(|(i, column)| Some((i, place(&column.name)?))).collect();
        let is_same_layout = before.columns.len() == after.columns.len()
            && before.columns.iter().zip(&after.columns).all(|(one, other)| {
                one.name == other.name
                    && one.form == other.form
                    && one.charset == other.charset
                    && (one.form != Form::Members || one.column_type == other.column_type)
            });
        let names = |table: &TableDefinition| {
            let count = table.key.as_ref()?.directions.len();
            Some(table.columns.iter().take(count).map(|column| column.name.clone()).collect::<Vec<_>>())
        };
        let key = names(&before).filter(|key| !key.is_empty() && Some(key) == names(&after).as_ref());
        let key = key.map(|key| key.len());
        Self { before, after, common, key, is_same_layout }
    }

    /// The definition on a side.
    #[must_use]
    pub fn definition(&self, side: Side) -> &TableDefinition {
        match side {
            Side::Before => &self.before,
            Side::After => &self.after,
        }
    }

    /// The columns of rows on a side.
    #[must_use]
    pub fn columns(&self, side: Side) -> &[ColumnDefinition] {
        &self.definition(side).columns
    }

    /// How many of the first columns identify a row; `None`: there is no key, so rows come and go, and none
    /// changes.
    #[must_use]
    pub fn key_columns(&self) -> Option<usize> {
        self.key
    }

    /// Whether the same bytes are the same row.
    pub(super) fn is_same_layout(&self) -> bool {
        self.is_same_layout
    }

    /// Whether the rows of both are in the same order, by their definitions.
    pub(super) fn is_same_order(&self) -> bool {
        let (Some(count), Some(before), Some(after)) = (self.key, &self.before.key, &self.after.key) else {
            return false;
        };
        let columns = self.before.columns.iter().zip(&self.after.columns).take(count);
        let mut has_text = false;
        let is_same = before.directions == after.directions
            && columns.into_iter().all(|(one, other)| {
                has_text |= one.form == Form::Text;
                one.form == other.form
                    && one.charset == other.charset
                    && (one.form != Form::Members || one.column_type == other.column_type)
            });
        // A column's collation is given on its own line, or by the table.
        is_same && (!has_text || self.collations(Side::Before) == self.collations(Side::After))
    }

    /// The parts of the statement that give the collations of the key.
    fn collations(&self, side: Side) -> Vec<Vec<u8>> {
        let create = &self.definition(side).create.0;
        let names = self.columns(side).iter().take(self.key.unwrap_or(0));
        let begins: Vec<Vec<u8>> =
            names.map(|column| format!("  `{}` ", column.name.replace('`', "``")).into_bytes()).collect();
        let mut parts = Vec::new();
        for line in create.split(|byte| *byte == b'\n') {
            if begins.iter().any(|begin| line.starts_with(begin)) {
                parts.push(line.to_vec());
            } else if line.starts_with(b") ") {
                let is_told = |word: &&[u8]| word.starts_with(b"CHARSET=") || word.starts_with(b"COLLATE=");
                parts.extend(line.split(|byte| *byte == b' ').filter(is_told).map(<[u8]>::to_vec));
            }
        }
        parts
    }

    /// The bytes that identify a row.
    pub(super) fn identity<'r>(&self, side: Side, row: &'r [u8]) -> Result<Cow<'r, [u8]>> {
        match self.key {
            Some(count) if self.is_same_layout => {
                let mut values = Values { bytes: row };
                for _ in 0..count {
                    values.next().ok_or_else(wrong_row)?;
                }
                Ok(Cow::Borrowed(&row[..row.len() - values.bytes.len()]))
            }
            Some(count) => self.compared(side, row, |before| before < count).map(Cow::Owned),
            None => self.content(side, row),
        }
    }

    /// The bytes in which rows with the same identity must be equal.
    pub(super) fn content<'r>(&self, side: Side, row: &'r [u8]) -> Result<Cow<'r, [u8]>> {
        if self.is_same_layout {
            return Ok(Cow::Borrowed(row));
        }
        self.compared(side, row, |_| true).map(Cow::Owned)
    }

    /// The values of common columns, one after the other, in comparable form.
    fn compared(&self, side: Side, row: &[u8], is_wanted: impl Fn(usize) -> bool) -> Result<Vec<u8>> {
        let values = self.values(side, row)?;
        let mut compared = Vec::with_capacity(row.len());
        for &(before, after) in self.common.iter().filter(|(before, _)| is_wanted(*before)) {
            let value = match side {
                Side::Before => values.get(before),
                Side::After => values.get(after),
            };
            match value.copied().flatten() {
                None => compared.push(0),
                Some(value) => {
                    let (one, other) = (&self.before.columns[before], &self.after.columns[after]);
                    let (own, other) = if side == Side::Before { (one, other) } else { (other, one) };
                    let value = comparable(own, other, value);
                    compared.push(1);
                    compared.extend_from_slice(&(value.len() as u64).to_le_bytes());
                    compared.extend_from_slice(&value);
                }
            }
        }
        Ok(compared)
    }

    /// The values of a row; `None` is NULL.
    pub fn values<'r>(&self, side: Side, row: &'r [u8]) -> Result<Vec<Option<&'r [u8]>>> {
        values(self.columns(side), row)
    }

    /// Columns in which two rows differ: their positions before and after.
    pub fn differing(&self, before: &[u8], after: &[u8]) -> Result<Vec<(usize, usize)>> {
        let (before, after) = (self.values(Side::Before, before)?, self.values(Side::After, after)?);
        let differs = |&(one, other): &(usize, usize)| match (before[one], after[other]) {
            (Some(left), Some(right)) => {
                let (one, other) = (&self.before.columns[one], &self.after.columns[other]);
                comparable(one, other, left) != comparable(other, one, right)
            }
            (left, right) => left != right,
        };
        Ok(self.common.iter().copied().filter(differs).collect())
    }
}

/// The values of a row of a table with these columns; `None` is NULL.
pub fn values<'r>(columns: &[ColumnDefinition], row: &'r [u8]) -> Result<Vec<Option<&'r [u8]>>> {
    let mut values = Values { bytes: row };
    let all = columns.iter().map(|_| values.next().ok_or_else(wrong_row)).collect::<Result<Vec<_>>>()?;
    if values.bytes.is_empty() { Ok(all) } else { Err(wrong_row()) }
}

pub(super) fn wrong_row() -> Error {
    Error::damaged("a row is not one of its table")
}

/// A value in a form that can be compared with one of another column.
fn comparable<'v>(own: &ColumnDefinition, other: &ColumnDefinition, value: &'v [u8]) -> Cow<'v, [u8]> {
    let as_text = match (own.form, other.form) {
        (Form::Text, Form::Text) if own.charset != other.charset => charset::text_of(own, value),
        (Form::Members, _) if own.column_type != other.column_type => {
            members::text_of(&own.column_type, value).map(Cow::Owned)
        }
        _ => None,
    };
    match as_text {
        Some(Cow::Borrowed(text)) => Cow::Borrowed(text.as_bytes()),
        Some(Cow::Owned(text)) => Cow::Owned(text.into_bytes()),
        None => Cow::Borrowed(value),
    }
}
