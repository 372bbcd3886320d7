//! Verbs that look and change nothing.

use clap::{Args, ValueEnum};
use holdfast_core::logical::selection::TablePattern;
use holdfast_repo::{Kind, SourceName};

use super::{backup::table_pattern, backup_ref::BackupRef};

/// Which source is meant where a number alone would not say.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct NameArg {
    /// Name of the source [default: as configured, else the only one there is]
    #[arg(long, value_name = "NAME", env = "HOLDFAST_NAME", hide_env_values = true)]
    pub(crate) name: Option<SourceName>,
}

const LIST_EXAMPLES: &str = "\
Examples:
  holdfast list
  holdfast list --name db1
  holdfast list --kind physical --json | jq -r '.data.backups[-1].id'    the newest of a kind";

/// List backups.
#[derive(Args, Debug)]
#[command(after_long_help = LIST_EXAMPLES)]
pub(crate) struct ListArgs {
    /// Only this source
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SourceName>,

    /// Only backups of this kind: physical, logical or binlog
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<Kind>,

    /// Only backups with this tag
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
}

const STATS_EXAMPLES: &str = "\
Examples:
  holdfast stats
  holdfast stats --name db1 --tables 20
  holdfast stats --json | jq '.data.sources[].growth'";

/// Show the space that sources, backups and tables take.
///
/// FREES is approximately the space that a prune would free if only this backup were dropped: what no other
/// backup needs. The table by codec shows how well stored data (pages and rows) compressed, and separately
/// the maps that lead to it, which are mostly hashes and hardly compress. All of this comes from small
/// records; no stored data is read.
#[derive(Args, Debug)]
#[command(after_long_help = STATS_EXAMPLES)]
pub(crate) struct StatsArgs {
    /// Only this source
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SourceName>,

    /// Also show the N largest tables of each source's newest backup
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) tables: usize,
}

const SHOW_EXAMPLES: &str = "\
Examples:
  holdfast show latest
  holdfast show 42
  holdfast show db1#42 --json";

/// Show all details of a backup.
#[derive(Args, Debug)]
#[command(after_long_help = SHOW_EXAMPLES)]
pub(crate) struct ShowArgs {
    /// The backup: latest, 42, db1#42 or db1/physical#42
    #[arg(value_name = "ID")]
    pub(crate) id: BackupRef,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

const LS_EXAMPLES: &str = "\
Examples:
  holdfast ls latest
  holdfast ls 42 shop/             the files of a schema
  holdfast ls db1#42 shop/orders.ibd";

/// List the files in a backup, with the tables they hold.
#[derive(Args, Debug)]
#[command(after_long_help = LS_EXAMPLES)]
pub(crate) struct LsArgs {
    /// The backup: latest, 42, db1#42 or db1/physical#42
    #[arg(value_name = "ID")]
    pub(crate) id: BackupRef,

    /// Only this file, or everything below this directory
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

const REPORT_EXAMPLES: &str = "\
Examples:
  holdfast report latest
  holdfast report 42 --json";

/// Show what a run measured: phases, bytes, locks, memory, CPU time.
#[derive(Args, Debug)]
#[command(after_long_help = REPORT_EXAMPLES)]
pub(crate) struct ReportArgs {
    /// The backup: latest, 42, db1#42 or db1/physical#42
    #[arg(value_name = "ID")]
    pub(crate) id: BackupRef,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

const CAT_EXAMPLES: &str = "\
Examples:
  holdfast cat latest --name db1 | mysql --binary-mode --comments
  holdfast cat db1/logical#42 shop.orders --format sql > orders.sql
  holdfast cat latest shop.orders --name db1 --format csv > orders.csv
  holdfast cat latest shop.orders --name db1 --format jsonl | jq -c 'select(.total == null)'";

/// How rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CatFormat {
    /// A script for the servers' own clients
    #[default]
    Sql,
    /// Comma-separated values with a header line, of one table
    Csv,
    /// One JSON object per row, of one table
    Jsonl,
}

/// Write the contents of a logical backup to standard output.
///
/// As SQL: statements that recreate everything bit for bit, each after what it depends on; for single tables,
/// the tables and their triggers. The script is complete only if its last line says so and the exit code is
/// 0.
///
/// As CSV or JSON lines: the rows of one table, text in UTF-8, bytes in hex (docs/guide/rows.md). Complete only if
/// the exit code is 0.
#[derive(Args, Debug)]
#[command(after_long_help = CAT_EXAMPLES)]
pub(crate) struct CatArgs {
    /// The backup: latest, 42, db1#42 or db1/logical#42
    #[arg(value_name = "ID")]
    pub(crate) id: BackupRef,

    /// Only this table, sequence or view; * and ? are wildcards. If all are of one database, the script does not
    /// name it: the client does
    #[arg(value_name = "DATABASE.TABLE", value_parser = table_pattern)]
    pub(crate) table: Option<TablePattern>,

    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) format: CatFormat,

    #[command(flatten)]
    pub(crate) name: NameArg,
}
