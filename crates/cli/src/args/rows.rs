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

Exit code 3 says that they differ.";

/// Show how two logical backups differ: rows added, removed and changed, and definitions.
///
/// Only chunks that the two do not share are read. Rows are matched by the bytes of their key; rows of tables without a key come and go, and none changes. Of tables whose columns are others, the columns that both have are compared.
#[derive(Args, Debug)]
#[command(after_long_help = DIFF_EXAMPLES)]
pub(crate) struct DiffArgs {
    /// The first backup: 41, latest or db1/logical#41
    #[arg(value_name = "BEFORE")]
    pub(crate) before: BackupRef,

    /// The second backup, of the same source or of another
    #[arg(value_name = "AFTER")]
    pub(crate) after: BackupRef,

    /// Only this table, sequence or view; * and ? stand for other characters
    #[arg(long, value_name = "DATABASE.TABLE", value_parser = table_pattern)]
    pub(crate) table: Option<TablePattern>,

    /// Rows to show of each table; all are counted [default: 20; with --json all]
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
/// For each backup, the newest first: the rows in it, and how many were added, removed and changed since the one before.
#[derive(Args, Debug)]
#[command(after_long_help = LOG_EXAMPLES)]
pub(crate) struct LogArgs {
    /// The table; * and ? stand for other characters
    #[arg(long, value_name = "DATABASE.TABLE", value_parser = table_pattern)]
    pub(crate) table: TablePattern,

    #[command(flatten)]
    pub(crate) name: NameArg,
}
