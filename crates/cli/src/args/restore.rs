use std::path::PathBuf;

use clap::Args;

use super::{
    backup_ref::BackupRef, inspect::NameArg, load::LoadArgs, moment::MomentArgs, recovery::RecoveryArgs,
    resources::threads, source::PathPair,
};

const EXAMPLES: &str = "\
Examples:
  holdfast restore latest --target-dir /var/lib/mysql-new
  holdfast restore 42 --target-dir /var/lib/mysql-new --dry-run
  holdfast restore latest --target-dir /var/lib/mysql --delta          shows what it deletes, and asks
  holdfast restore latest --target-dir /var/lib/mysql --delta --yes
  holdfast restore latest --target-dir /srv/db1 --map /fast/shop=/srv/fast/shop
  holdfast restore --at '2026-11-20 14:03:07' --target-dir /srv/db1     from the binlog archive
  holdfast restore --gtid 0-1-4710 --target-dir /srv/db1 --time-zone Europe/Berlin
  holdfast restore --before-gtid 0-1-4711 --target-dir /srv/db1 --dry-run
  holdfast restore latest --to-server -h 127.0.0.1 -P 3307 -u root -p   a logical backup into a running server
  holdfast restore 7 --to-server --table shop.orders --as shop.orders=shop.orders_old
  holdfast restore db1/physical#42 --to-server --table shop.orders --as shop.orders=shop.orders_old
  holdfast restore --at '2026-11-20 14:03:07' --to-server --table shop.orders --as shop.orders=shop.orders_old
  holdfast restore 7 --to-server --overwrite --leave-out --dry-run        what would be dropped, and what cannot be loaded
  holdfast restore 7 --to-server -S /run/new.sock --without-binlog --disable-redo   the first load of a new MySQL server

The server must not run on a target directory. The result can be started at once; holdfast-restore.json in it says the position, and the statement to replicate from there is printed.";

/// Restore a backup into a data directory that a server can start on, or a logical one, or single tables, into a running
/// server.
///
/// Writes the files, then lets the server's own program of the same series recover them to exactly the recorded position. With --at, --gtid or --before-gtid it goes on from there: the server replays what the binlog archive holds behind the backup, up to that transaction and no further. With --to-server rows and statements are loaded over connections and compared with the backup in the end. Can be run again after any interruption.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RestoreArgs {
    /// The backup: latest, 42, db1#42 or db1/physical#42; for a moment behind it, the physical one to begin with [default
    /// there: the last before the moment]
    #[arg(value_name = "ID")]
    pub(crate) id: Option<BackupRef>,

    #[command(flatten)]
    pub(crate) moment: MomentArgs,

    #[command(flatten)]
    pub(crate) name: NameArg,

    /// Directory to restore into; must be empty or absent unless --delta
    #[arg(long, value_name = "DIR")]
    pub(crate) target_dir: Option<PathBuf>,

    /// Reuse what is in the target: only pages that differ are written, files that do not belong are deleted
    #[arg(long)]
    pub(crate) delta: bool,

    /// Only show what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Write the files and leave recovery to the server that is started on them
    #[arg(long, conflicts_with_all = ["server_binary", "allow_version", "prepare_option", "keyring"])]
    pub(crate) no_prepare: bool,

    /// Where files that were outside the data directory go; can be repeated
    #[arg(long, value_name = "FROM=TO")]
    pub(crate) map: Vec<PathPair>,

    /// Go on with --delta without asking; needed where there is no terminal to ask at
    #[arg(long, requires = "delta")]
    pub(crate) yes: bool,

    /// Leave holes where pages are all zeros, not only where the source had holes
    #[arg(long)]
    pub(crate) sparse: bool,

    /// Threads that fetch and write; that of the configuration file is for backups [default: two for each processor, at
    /// most 8; into a running server: one session for each processor, 2 to 8]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Resources")]
    pub(crate) parallel: Option<usize>,

    #[command(flatten)]
    pub(crate) recovery: RecoveryArgs,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}
