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

A private server executes the dump: of the kind and release series that the dump names, found where packages put it, or named. Only what dumps consist of is executed; nothing is stored unless all of it was good.";

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

/// Make a logical backup of a dump of mysqldump, mariadb-dump or mydumper.
///
/// A private server without network, made for it and thrown away behind it, executes the dump, and is then backed up: rows and definitions are what a backup of the dumped server itself would hold, and are shared with such backups. docs/logical-backup.md says more.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ImportArgs {
    /// The dump: a file, plain or compressed by gzip or zstd; a directory of mydumper; - for standard input
    #[arg(value_name = "DUMP")]
    pub(crate) dump: PathBuf,

    /// Whose history it belongs to: the name of the backups of the same server, or a new one
    #[arg(long, value_name = "NAME", env = "HOLDFAST_NAME", hide_env_values = true)]
    pub(crate) name: Option<SourceName>,

    /// A word that the backup carries; can be repeated
    #[arg(long = "tag", value_name = "TEXT")]
    pub(crate) tags: Vec<Tag>,

    /// The database that the dump is of, where it names none
    #[arg(long, value_name = "NAME")]
    pub(crate) database: Option<String>,

    /// Import without accounts, grants and the server's own tables, and say so; without it, a dump that has them is refused
    #[arg(long)]
    pub(crate) without_accounts: bool,

    /// Take a dump for whole that does not end with "-- Dump completed", or a directory without row counts
    #[arg(long)]
    pub(crate) without_end_mark: bool,

    /// The character set that the dump is written in, where it does not say so
    #[arg(long, value_name = "NAME")]
    pub(crate) charset: Option<String>,

    /// The time zone of time stamps in the dump, where it does not say so, like +02:00
    #[arg(long, value_name = "ZONE", allow_hyphen_values = true)]
    pub(crate) time_zone: Option<String>,

    /// Longest statement that is accepted
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub(crate) max_statement: ByteSize,

    /// The server program that executes the dump, of any version of the same kind [default: of the release series that the dump names]
    #[arg(long, value_name = "PATH")]
    pub(crate) server_binary: Option<PathBuf>,

    /// The kind of server that executes the dump, where the dump does not say it or another one is meant
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) flavor: Option<Kind>,

    /// One more option for that server, like --lower-case-table-names=1 or --innodb-page-size=32k; can be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) server_option: Vec<String>,

    /// Memory for that server's pages
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub(crate) server_memory: ByteSize,

    /// Whom that server runs as, if this is run by root [default: mysql]
    #[arg(long, value_name = "USER[:GROUP]")]
    pub(crate) owner: Option<Owner>,

    /// Where that server has its files meanwhile: about as much as the dump, uncompressed
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(crate) work_dir: PathBuf,

    #[command(flatten)]
    pub(crate) resources: ResourceArgs,
}
