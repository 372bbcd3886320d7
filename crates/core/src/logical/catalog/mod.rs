//! What is on a server, as its own statements and tables show it.
//!
//! `listing` says which databases and tables there are, `privileges` whether the account sees all of them;
//! `tables`, `programs`, `accounts` and `settings` read what is to be stored of them, `omitted` names what is not.
//! `members` and `references` put right what servers print wrongly. `key` compares rows by their place in a
//! table, `computed` sums up what the server computes of them.

pub(super) mod accounts;
pub(super) mod computed;
pub(super) mod key;
pub(super) mod listing;
pub(super) mod members;
pub(super) mod omitted;
pub(super) mod privileges;
pub(super) mod programs;
mod references;
pub(super) mod settings;
pub(super) mod tables;

use holdfast_formats::Flavor;

use super::stored::definition::Sql;
use crate::{
    error::Result,
    server::{ByteRow, Session, SqlError},
};

/// Makes the session show statements as they were stored.
pub(super) fn configure(session: &mut Session) -> Result<(), SqlError> {
    session.exec("SET SESSION character_set_results = NULL, sql_quote_show_create = 1")?;
    session.exec(match session.flavor() {
        Flavor::MariaDb => "SET SESSION max_recursive_iterations = 4294967295",
        Flavor::MySql => {
            // Outdated sizes would decide what is read first, and what is worth cutting.
            "SET SESSION print_identified_with_as_hex = 1, cte_max_recursion_depth = 4294967295, \
             show_gipk_in_create_table_and_information_schema = 1, information_schema_stats_expiry = 0"
        }
    })
}

/// The single row of a result.
fn one(session: &mut Session, query: &str) -> Result<ByteRow> {
    let row = session.byte_rows(query)?.into_iter().next();
    Ok(row.ok_or_else(|| SqlError::unexpected("no row").doing(query))?)
}

/// A statement that must not be NULL.
fn sql(row: &ByteRow, column: &str) -> Result<Sql, SqlError> {
    let statement = row.bytes_or_null(column)?;
    let statement = statement.ok_or_else(|| SqlError::unexpected(format_args!("{column} is NULL")))?;
    Ok(Sql(statement.to_vec()))
}
