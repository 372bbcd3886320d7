//! `backup`, and which rows a logical backup takes.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};
use holdfast_core::{
    Error,
    logical::{
        Selection,
        selection::{Pattern, RowFilter, TablePattern},
    },
};
use holdfast_repo::{Kind, SourceName};

use super::{hooks::HookArgs, resources::ResourceArgs, source::SourceArgs, units::Span};

const EXAMPLES: &str = "\
Examples:
  holdfast backup --name db1                          over the socket; user and password from the option files
  holdfast backup -h 127.0.0.1 -P 3307 -u backup -p   asks for the server's password
  holdfast backup --name db1 --compress zstd:3 --tag before-upgrade
  holdfast backup --name db1 --path-map /var/lib/mysql=/srv/volumes/db1
  holdfast backup --name db1 --lock-max 500ms --ddl-lock-max 10s
  holdfast backup --name db1 --full                   after check has found damage
  holdfast backup --name db1 --new-identity           once, after a restore or a failover
  holdfast backup --name db1 --allow-corrupt          saves what is left of a server with damaged pages
  holdfast backup --name db1 --method logical         rows and definitions, over connections only
  holdfast backup --name db1 --method logical --database shop --exclude-table 'shop.tmp_*'
  holdfast backup --name db1 --method logical --table shop.orders --where \"shop.orders=id > 1000\"
  holdfast backup --name db1 --method logical --ssh-tunnel backup@bastion -h db1.internal -u backup -p
  holdfast backup --name db1 --also-to offsite        into two repositories; reads the server once
  holdfast backup --name db1 --hook-before 'systemctl stop etl' --hook-after 'systemctl start etl' --hook-timeout 2m

A physical backup must be able to read the data files on this host; a logical one needs only connections. The first backup under a name stores everything, later ones only what changed. The last line of a successful backup ends with \"completed OK\".";

/// How a backup is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Method {
    /// Data files: their pages, and the redo
    #[default]
    Physical,
    /// Rows and definitions (DDL), read over connections
    Logical,
}

impl Method {
    /// Of the backups that it takes.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Physical => Kind::Physical,
            Self::Logical => Kind::Logical,
        }
    }
}

/// What of a server a logical backup takes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Logical backups")]
pub(crate) struct SelectionArgs {
    /// Only this database, with its routines and events; * and ? are wildcards; can be repeated
    #[arg(long = "database", value_name = "NAME", value_parser = pattern)]
    pub(crate) databases: Vec<Pattern>,

    /// Only this table, sequence or view, with its triggers; * and ? are wildcards; can be repeated
    #[arg(long = "table", value_name = "DATABASE.TABLE", value_parser = table_pattern)]
    pub(crate) tables: Vec<TablePattern>,

    /// Exclude this database; * and ? are wildcards; can be repeated
    #[arg(long = "exclude-database", value_name = "NAME", value_parser = pattern)]
    pub(crate) databases_excluded: Vec<Pattern>,

    /// Exclude this table, sequence or view; * and ? are wildcards; can be repeated
    #[arg(long = "exclude-table", value_name = "DATABASE.TABLE", value_parser = table_pattern)]
    pub(crate) tables_excluded: Vec<TablePattern>,

    /// Only the rows of this table that satisfy this SQL condition; can be repeated
    #[arg(long = "where", value_name = "DATABASE.TABLE=CONDITION", value_parser = row_filter)]
    pub(crate) filters: Vec<RowFilter>,

    /// Leave out accounts, roles and grants; with --database or --table they are always left out
    #[arg(long)]
    pub(crate) without_accounts: bool,
}

impl SelectionArgs {
    /// The first option that was given, for those who must refuse it.
    pub(crate) fn given(&self) -> Option<&'static str> {
        [
            (!self.databases.is_empty(), "--database"),
            (!self.tables.is_empty(), "--table"),
            (!self.databases_excluded.is_empty(), "--exclude-database"),
            (!self.tables_excluded.is_empty(), "--exclude-table"),
            (!self.filters.is_empty(), "--where"),
            (self.without_accounts, "--without-accounts"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

impl From<SelectionArgs> for Selection {
    fn from(args: SelectionArgs) -> Self {
        Self {
            schemas: args.databases,
            tables: args.tables,
            schemas_excluded: args.databases_excluded,
            tables_excluded: args.tables_excluded,
            filters: args.filters,
            without_accounts: args.without_accounts,
        }
    }
}

fn pattern(text: &str) -> Result<Pattern, String> {
    text.parse().map_err(words)
}

pub(crate) fn table_pattern(text: &str) -> Result<TablePattern, String> {
    text.parse().map_err(words)
}

fn row_filter(text: &str) -> Result<RowFilter, String> {
    text.parse().map_err(words)
}

pub(crate) fn words(error: Error) -> String {
    match error.hint() {
        Some(hint) => format!("{error}: {hint}"),
        None => error.to_string(),
    }
}

/// Back up a running server.
///
/// Copies the data files and their redo while the server keeps working, and takes short locks at the end.
/// Exception: on MySQL with encrypted redo, and on every MySQL series but 9.7, DDL waits for the whole copy
/// (docs/guide/hot-backup.md).
///
/// A backup appears in the repository only when everything is durable. The next one reuses what an
/// interrupted one stored (not with a writer's key).
///
/// With --method logical, rows and definitions are read over several connections that share one snapshot.
/// That takes a lock of milliseconds, or none, and does not queue behind long queries. Run no DDL meanwhile:
/// it waits until the backup ends, and later statements on the same table can queue behind it
/// (docs/guide/logical-backup.md).
#[derive(Args, Debug, Default)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct BackupArgs {
    /// Name under which this server's backups are kept [default: as configured, else host:port]
    #[arg(long, value_name = "NAME", env = "HOLDFAST_NAME", hide_env_values = true)]
    pub(crate) name: Option<SourceName>,

    /// What to back up: the data files with their redo, or rows and definitions
    #[arg(long, value_enum, value_name = "METHOD", default_value_t)]
    pub(crate) method: Method,

    /// Tag to find the backup by, at most 128 bytes; can be repeated, up to 64 times
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<Tag>,

    /// Use no earlier backup as a base: read and store everything again
    ///
    /// The backup then shares nothing that check has found damaged in earlier ones; docs/reference/errors.md, code 3,
    /// has the steps.
    #[arg(long)]
    pub(crate) full: bool,

    /// Accept that another server has taken the place of the one backed up under this name
    ///
    /// Give it once, after a restore or a failover. Without it, a backup of another server is refused, so
    /// that two servers never share a name by mistake. The backup is flagged in lists.
    #[arg(long)]
    pub(crate) new_identity: bool,

    /// Back up damaged pages as they are, instead of failing (physical backups)
    ///
    /// For a server that is beyond repair: everything else on it is saved. Each damaged page is named with
    /// its file, table and index; the backup is flagged in lists, ends with exit code 3, and restores
    /// warn. Recovery can fail on such a page: see restore --no-prepare.
    #[arg(long)]
    pub(crate) allow_corrupt: bool,

    /// Another repository to store the same backup in: its location, or the name of a [[repository]] in the
    /// configuration file; can be repeated
    ///
    /// The server is read once. A repository that fails does not keep the others from getting the backup: if
    /// at least one has it and another has not, the exit code is 3, and copy makes up for it
    /// (docs/guide/copies.md).
    #[arg(long, value_name = "URL")]
    pub(crate) also_to: Vec<String>,

    /// File whose first line is the password of the --also-to repositories
    ///
    /// Without it, the password is looked for as for copy --to.
    #[arg(long, value_name = "FILE")]
    pub(crate) also_to_password_file: Option<PathBuf>,

    /// Longest time, in total, that one repository alone may delay the backup to the others; then it is given
    /// up [default: 10m]
    #[arg(long, value_name = "TIME")]
    pub(crate) hold_up_max: Option<Span>,

    #[command(flatten)]
    pub(crate) selection: SelectionArgs,

    #[command(flatten)]
    pub(crate) source: SourceArgs,

    #[command(flatten)]
    pub(crate) resources: ResourceArgs,

    #[command(flatten)]
    pub(crate) hooks: HookArgs,
}

/// What a backup is called besides its number. It is stored in the backup's manifest and stands in lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tag(pub(crate) String);

impl Tag {
    const BYTES_MAX: usize = 128;
    /// At one backup.
    pub(crate) const COUNT_MAX: usize = 64;
}

impl FromStr for Tag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > Self::BYTES_MAX {
            return Err(format!("a tag has 1 to {} bytes, this one {}", Self::BYTES_MAX, text.len()));
        }
        if text.contains(char::is_control) {
            return Err("a tag has no control characters".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_bounded() {
        for good in ["before-upgrade", "übung 1", &"x".repeat(128)] {
            assert_eq!(good.parse(), Ok(Tag(good.to_owned())));
        }
        for bad in ["", "a\nb", &"x".repeat(129)] {
            assert!(bad.parse::<Tag>().is_err(), "{bad}");
        }
    }
}
