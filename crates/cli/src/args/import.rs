//! `import`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use holdfast_formats::Flavor;
use holdfast_repo::SourceName;

use super::{backup::Tag, owner::Owner, resources::ResourceArgs, units::ByteSize};

const EXAMPLES: &str = "\
Examples:
  holdfast import dump.sql.gz --name db1
  holdfast import /backup/mydumper-20261120 --name db1 --server-binary /usr/sbin/mariadbd
  xz -dc dump.sql.xz | holdfast import - --name db1
  holdfast import shop.sql --name db1 --database shop --without-accounts
  holdfast import all.sql.zst --name db1 --tag old-dump --server-binary /opt/mysql-8.4/bin/mysqld

A private server executes the dump. It is of the flavor and release series that the dump names, and is found where packages install servers, or named with --server-binary. Only statements that dumps consist of are executed, and nothing is stored unless all of them succeed.";

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// MariaDB
    Mariadb,
    /// MySQL
    Mysql,
}

impl From<Kind> for Flavor {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Mariadb => Self::MariaDb,
            Kind::Mysql => Self::MySql,
        }
    }
}

/// Import a dump of mysqldump, mariadb-dump or mydumper as a backup.
///
/// A private server without network, created for this and removed afterwards, executes the dump and is then
/// backed up logically. Rows and definitions are what a backup of the dumped server itself would hold, and
/// are shared with such backups. See docs/guide/logical-backup.md.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ImportArgs {
    /// The dump: a file, plain or compressed with gzip or zstd; a directory of mydumper; - for standard input
    #[arg(value_name = "DUMP")]
    pub(crate) dump: PathBuf,

    /// Name to import under: that of the same server's backups, or a new one
    #[arg(long, value_name = "NAME", env = "HOLDFAST_NAME", hide_env_values = true)]
    pub(crate) name: Option<SourceName>,

    /// Tag to find the backup by, at most 128 bytes; can be repeated, up to 64 times
    #[arg(long = "tag", value_name = "TEXT")]
    pub(crate) tags: Vec<Tag>,

    /// Database that the dump is of, if it names none
    #[arg(long, value_name = "NAME")]
    pub(crate) database: Option<String>,

    /// Leave out accounts, grants and the server's own tables, and report it; without this option, a dump
    /// that has them is refused
    #[arg(long)]
    pub(crate) without_accounts: bool,

    /// Accept as complete a dump that does not end with "-- Dump completed", or a directory without row
    /// counts
    #[arg(long)]
    pub(crate) without_end_mark: bool,

    /// Character set of the dump, if it does not say
    #[arg(long, value_name = "NAME")]
    pub(crate) charset: Option<String>,

    /// Time zone of time stamps in the dump, if it does not say, like +02:00
    #[arg(long, value_name = "ZONE", allow_hyphen_values = true)]
    pub(crate) time_zone: Option<String>,

    /// Longest statement to accept, at most 1G
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub(crate) max_statement: ByteSize,

    /// Server program that executes the dump, of the same flavor and any version [default: of the release
    /// series that the dump names]
    #[arg(long, value_name = "PATH")]
    pub(crate) server_binary: Option<PathBuf>,

    /// Flavor of the server that executes the dump, if the dump does not say or another is meant
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) flavor: Option<Kind>,

    /// Option for the private server, like --lower-case-table-names=1 or --innodb-page-size=32k; can be
    /// repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) server_option: Vec<String>,

    /// Memory for pages in the private server
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub(crate) server_memory: ByteSize,

    /// User that the private server runs as, if root runs Holdfast [default: mysql]
    #[arg(long, value_name = "USER[:GROUP]")]
    pub(crate) owner: Option<Owner>,

    /// Directory for the files of the private server, which need about as much room as the uncompressed dump
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(crate) work_dir: PathBuf,

    #[command(flatten)]
    pub(crate) resources: ResourceArgs,
}
