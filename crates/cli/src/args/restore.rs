//! `restore`, into a directory or into a running server.

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
  holdfast restore db1/logical#42 --at latest --target-dir /srv/db1     a new data directory from rows, then the binlogs
  holdfast restore latest --to-server -h 127.0.0.1 -P 3307 -u root -p   a logical backup into a running server
  holdfast restore 7 --to-server --table shop.orders --as shop.orders=shop.orders_old
  holdfast restore db1/physical#42 --to-server --table shop.orders --as shop.orders=shop.orders_old
  holdfast restore --at '2026-11-20 14:03:07' --to-server --table shop.orders --as shop.orders=shop.orders_old
  holdfast restore 7 --to-server --overwrite --leave-out --dry-run        what would be dropped, and what cannot be loaded
  holdfast restore 7 --to-server -S /run/new.sock --without-binlog --disable-redo   the first load of a new MySQL server
  holdfast restore 7 --to-server -S /run/new.sock --enable-local-infile            MySQL: costs the server less
  holdfast restore db1/logical#42 --to-server -h new-db1 --disable-events          before binlog cat --after

No server may run on the target directory. A server can be started on the result at once. holdfast-restore.json in it holds the position; the statement to replicate from there is printed.";

/// Restore a backup into a data directory or a running server.
///
/// With --target-dir: writes the files of a physical backup, and lets the server's own program of the same
/// series recover them to exactly the recorded position; or makes a new data directory, and loads a logical
/// backup into it. With --at, --gtid or --before-gtid, the server then replays what the binlog archive holds
/// after the backup, up to that transaction and no further.
///
/// With --to-server: loads a logical backup, or single tables of a physical one, over connections, and
/// compares the rows with the backup at the end. After any interruption, run the same command again.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RestoreArgs {
    /// The backup: latest, 42, db1#42 or db1/physical#42; for a moment (--at, --gtid, --before-gtid), the one
    /// to start from [default then: the last physical one before the moment, else the last logical one]
    #[arg(value_name = "ID")]
    pub(crate) id: Option<BackupRef>,

    #[command(flatten)]
    pub(crate) moment: MomentArgs,

    #[command(flatten)]
    pub(crate) name: NameArg,

    /// Directory to restore into: absent, empty, or left by an interrupted restore of the same backup, unless
    /// --delta is given
    #[arg(long, value_name = "DIR")]
    pub(crate) target_dir: Option<PathBuf>,

    /// Reuse the files in the target: write only pages that differ, and delete files that are not in the
    /// backup
    #[arg(long)]
    pub(crate) delta: bool,

    /// Only show what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Write the files only, and leave recovery to the server that is started on them
    #[arg(long, conflicts_with_all = ["server_binary", "allow_version", "prepare_option", "keyring"])]
    pub(crate) no_prepare: bool,

    /// Where to restore files that were outside the data directory; can be repeated
    #[arg(long, value_name = "FROM=TO")]
    pub(crate) map: Vec<PathPair>,

    /// Continue with --delta without asking; needed if there is no terminal
    #[arg(long, requires = "delta")]
    pub(crate) yes: bool,

    /// Leave holes for all pages of zeros, not only where the source had holes
    #[arg(long)]
    pub(crate) sparse: bool,

    /// Threads that fetch and write, or sessions of a load; the configuration file's number is for backups
    /// only [default: two per processor, at most 8; with --to-server one session per processor, 2 to 8]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Resources")]
    pub(crate) parallel: Option<usize>,

    #[command(flatten)]
    pub(crate) recovery: RecoveryArgs,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}
