//! Stored values as people and programs read them: as SQL literals, as text, as JSON.
//!
//! Text is UTF-8, converted from its column's character set; bytes are upper-case hex; members of `ENUM` and
//! `SET` go by their names. A value that cannot be shown unchanged is not shown as something else: [`shown`]
//! returns `None`.

use std::borrow::Cow;

use serde::{Serialize, Serializer, ser::SerializeMap as _};

use crate::logical::{
    catalog::members,
    script::literal,
    stored::{
        charset,
        definition::{ColumnDefinition, Form},
    },
};

/// A value in readable form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown<'v> {
    /// A number, in digits.
    Number(&'v str),
    /// A word that needs no quotes: a date, a time, an address.
    Word(&'v str),
    /// Text.
    Text(Cow<'v, str>),
    /// Bytes, in hex.
    Hex(String),
}

/// Shows a value of a column; `None` if it cannot be shown as what it is.
#[must_use]
pub fn shown<'v>(column: &ColumnDefinition, value: &'v [u8]) -> Option<Shown<'v>> {
    let ascii = || std::str::from_utf8(value).ok().filter(|text| text.is_ascii());
    match column.form {
        Form::Number | Form::Float => ascii().map(Shown::Number),
        Form::Ascii => ascii().map(Shown::Word),
        Form::Bytes => Some(Shown::Hex(hex(value))),
        Form::Json => std::str::from_utf8(value).ok().map(|text| Shown::Text(Cow::Borrowed(text))),
        Form::Text => charset::text_of(column, value).map(Shown::Text),
        Form::Members => {
            members::text_of(&column.column_type, value).map(|text| Shown::Text(Cow::Owned(text)))
        }
    }
}

/// Whether all values of a column can be shown, judging by its type; otherwise the character set that cannot.
pub fn can_show(column: &ColumnDefinition) -> Result<(), &str> {
    match (&column.form, column.charset.as_deref()) {
        (Form::Text, Some(charset)) if !charset::is_known(charset) => Err(charset),
        _ => Ok(()),
    }
}

fn hex(value: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digits = value.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// A value as an SQL literal, as in scripts; `None` is NULL.
#[must_use]
pub fn sql_literal(column: &ColumnDefinition, value: Option<&[u8]>) -> String {
    let mut out = Vec::new();
    // Writing to memory never fails, and anything that is not text is in hex.
    let _never = literal::write(&mut out, column, value);
    String::from_utf8_lossy(&out).into_owned()
}

/// A value in JSON. Integers of at most 32 bits and floating point numbers are numbers, which every reader
/// takes as they are; `BIGINT` and `DECIMAL` are strings of digits. Bytes are strings of hex. A value that
/// cannot be shown as text is an object with its bytes, `{"hex": ".."}`.
pub struct JsonValue<'v> {
    /// Its column.
    pub column: &'v ColumnDefinition,
    /// `None` is NULL.
    pub value: Option<&'v [u8]>,
}

impl Serialize for JsonValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(value) = self.value else { return serializer.serialize_none() };
        match shown(self.column, value) {
            Some(Shown::Number(digits)) => {
                let is_short = ["tinyint", "smallint", "mediumint", "int"]
                    .iter()
                    .any(|name| self.column.column_type.to_ascii_lowercase().starts_with(name));
                if is_short && let Ok(number) = digits.parse::<i64>() {
                    return serializer.serialize_i64(number);
                }
                match digits.parse::<f64>() {
                    Ok(number) if self.column.form == Form::Float && number.is_finite() => {
                        serializer.serialize_f64(number)
                    }
                    _ => serializer.serialize_str(digits),
                }
            }
            Some(Shown::Word(text)) => serializer.serialize_str(text),
            Some(Shown::Text(text)) => serializer.serialize_str(&text),
            Some(Shown::Hex(hex)) => serializer.serialize_str(&hex),
            None => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("hex", &hex(value))?;
                map.end()
            }
        }
    }
}

/// The values of a row in JSON: an object, in the order of the columns.
pub struct JsonRow<'v>(pub Vec<JsonValue<'v>>);

impl<'v> JsonRow<'v> {
    /// All columns of a row.
    #[must_use]
    pub fn new(columns: &'v [ColumnDefinition], values: &[Option<&'v [u8]>]) -> Self {
        Self(columns.iter().zip(values).map(|(column, value)| JsonValue { column, value: *value }).collect())
    }
}

impl Serialize for JsonRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|value| (&value.column.name, value)))
    }
}
