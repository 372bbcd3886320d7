//! Status values of a server. Reading them needs no privilege.

use std::collections::BTreeMap;

use holdfast_formats::Lsn;

use crate::server::{Session, SqlError};

/// Values of `SHOW GLOBAL STATUS`, by name.
pub(super) struct Status(BTreeMap<String, String>);

impl Status {
    pub(super) fn read(session: &mut Session, pattern: &str) -> Result<Status, SqlError> {
        let mut values = BTreeMap::new();
        for row in session.rows(&format!("SHOW GLOBAL STATUS LIKE '{pattern}'"))? {
            values.insert(row.text("Variable_name")?.to_ascii_lowercase(), row.text("Value")?.to_owned());
        }
        Ok(Status(values))
    }

    pub(super) fn get(&self, name: &str) -> Result<&str, SqlError> {
        let value = self.0.get(&name.to_ascii_lowercase());
        value.map(String::as_str).ok_or_else(|| SqlError::unexpected(format_args!("no status value {name}")))
    }

    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, SqlError> {
        let text = self.get(name)?;
        text.parse().map_err(|_| SqlError::unexpected(format_args!("status value {name} is {text:?}")))
    }

    pub(super) fn lsn(&self, name: &str) -> Result<Lsn, SqlError> {
        self.number(name).map(Lsn)
    }
}
