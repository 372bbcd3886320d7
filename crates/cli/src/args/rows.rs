//! Verbs that compare logical backups.

use clap::Args;
use holdfast_core::logical::selection::TablePattern;

use super::{backup::table_pattern, backup_ref::BackupRef, inspect::NameArg};

const DIFF_EXAMPLES: &str = "\
Examples:
  holdfast diff 41 42 --name db1
  holdfast diff db1/logical#41 db1/logical#latest --table shop.orders --rows 100
  holdfast diff db1/logical#latest db2/logical#latest --rows 0
  holdfast diff 41 latest --name db1 --json | jq -c '.data | select(.difference == \"row\")'

Exit code 3 means that they differ.";

/// Show the differences between two logical backups.
///
/// Shows rows added, removed and changed, and changes of definitions (DDL). Only chunks that the two backups
/// do not share are read. Rows are matched by the bytes of their key; rows of tables without a key are only
/// added or removed, never changed. If the columns of a table differ, the columns that both backups have are
/// compared.
#[derive(Args, Debug)]
#[command(after_long_help = DIFF_EXAMPLES)]
pub(crate) struct DiffArgs {
    /// The first backup: 41, latest or db1/logical#41
    #[arg(value_name = "BEFORE")]
    pub(crate) before: BackupRef,

    /// The second backup, of the same source or another
    #[arg(value_name = "AFTER")]
    pub(crate) after: BackupRef,

    /// Only this table, sequence or view; * and ? are wildcards
    #[arg(long, value_name = "DATABASE.TABLE", value_parser = table_pattern)]
    pub(crate) table: Option<TablePattern>,

    /// Rows to show per table; all are counted [default: 20; with --json all]
    #[arg(long, value_name = "N")]
    pub(crate) rows: Option<u64>,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

const LOG_EXAMPLES: &str = "\
Examples:
  holdfast log --table shop.orders
  holdfast log --name db1 --table 'shop.*' --json";

/// Show the history of a table over the logical backups of a source.
///
/// For each backup, newest first: how many rows it has, and how many were added, removed and changed since
/// the previous one.
#[derive(Args, Debug)]
#[command(after_long_help = LOG_EXAMPLES)]
pub(crate) struct LogArgs {
    /// The table; * and ? are wildcards
    #[arg(long, value_name = "DATABASE.TABLE", value_parser = table_pattern)]
    pub(crate) table: TablePattern,

    #[command(flatten)]
    pub(crate) name: NameArg,
}
