//! `export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use holdfast_core::logical::{
    export::{ExportFormat, Packing},
    selection::TablePattern,
};

use super::{
    backup::table_pattern, backup_ref::BackupRef, inspect::NameArg, moment::MomentArgs,
    recovery::RecoveryArgs, resources::threads, units::ByteSize,
};

const EXAMPLES: &str = "\
Examples:
  holdfast export latest --name db1 --target-dir /srv/dump
  holdfast export db1/logical#42 --target-dir /srv/dump --format mydumper --compress zstd --parallel 4
  holdfast export latest --name db1 --target-dir /srv/orders --format csv --table 'shop.orders*'
  holdfast export db1/physical#42 --target-dir /srv/orders --table shop.orders
  holdfast export --at '2026-11-20 14:03:07' --name db1 --target-dir /srv/orders --table shop.orders --format csv

Load a directory of --format mydumper with myloader --directory. Load one of --format csv from within it, with
  mariadb --binary-mode --comments < 1-schema.sql
  mariadb --local-infile=1 < 2-load.sql
  mariadb --binary-mode --comments < 3-programs.sql
Scripts with --table do not name the database, if all tables are of one. Name it for the client:
  mariadb --binary-mode --comments shop < backup.sql";

/// What files are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One script, backup.sql, as cat writes it
    #[default]
    Sql,
    /// A directory in the format of mydumper, for myloader
    Mydumper,
    /// Comma-separated values, with scripts that load them
    Csv,
}

impl From<Format> for ExportFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Sql => Self::Sql,
            Format::Mydumper => Self::MyDumper,
            Format::Csv => Self::Csv,
        }
    }
}

/// How files are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compress {
    /// No compression
    #[default]
    None,
    /// gzip files
    Gzip,
    /// zstd files
    Zstd,
}

impl From<Compress> for Packing {
    fn from(compress: Compress) -> Self {
        match compress {
            Compress::None => Self::None,
            Compress::Gzip => Self::Gzip,
            Compress::Zstd => Self::Zstd,
        }
    }
}

/// Export rows and definitions as files that common tools can load.
///
/// Exports a logical backup, or tables of a physical one. From a physical backup, or for a moment after one,
/// a server of the same series on this host recovers the files that --table needs, and no more.
///
/// The directory has a name that ends in .partial until everything is on disk; an existing one is refused.
/// Only the owner can read the files.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ExportArgs {
    /// The backup: latest, 42, db1#42, db1/logical#42 or db1/physical#42; a number without a kind means a
    /// logical backup, if there is one of that number
    #[arg(value_name = "ID", required_unless_present = "moment")]
    pub(crate) id: Option<BackupRef>,

    #[command(flatten)]
    pub(crate) moment: MomentArgs,

    /// Directory to create
    #[arg(long, value_name = "DIR")]
    pub(crate) target_dir: PathBuf,

    /// Format of the files
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) format: Format,

    /// Only this table, sequence or view; * and ? are wildcards. If all are of one database, the scripts do not
    /// name it: the client does
    #[arg(long, value_name = "DATABASE.TABLE", value_parser = table_pattern)]
    pub(crate) table: Option<TablePattern>,

    /// Compression of the files with rows
    #[arg(long, value_enum, value_name = "CODEC", default_value_t)]
    pub(crate) compress: Compress,

    /// Approximate size of the rows in each file of --format mydumper or csv
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub(crate) file_size: ByteSize,

    /// Threads that write files [default: one per processor, at most 4]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) parallel: Option<usize>,

    #[command(flatten)]
    pub(crate) name: NameArg,

    /// Only show what would be done (physical backups)
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) recovery: RecoveryArgs,
}
