//! `doctor`.

use clap::Args;
use holdfast_repo::{Kind, SourceName};

use super::{source::SourceArgs, units::Span};

const EXAMPLES: &str = "\
Examples:
  holdfast doctor                              the server in the option files, and the configured repository
  holdfast doctor --socket /run/mysqld/mysqld.sock
  holdfast doctor --ssh-tunnel bastion -h db1.internal
  holdfast doctor --no-server                  only the repository
  holdfast doctor --no-server --max-age 26h    for monitoring: code 3 if a source has a newest backup,
                                               physical or logical, that is older
  holdfast doctor --no-server --max-age 26h --kind physical
  holdfast doctor --no-server --max-lag 10m    for monitoring: code 3 if nobody archives the binlog

It holds no lock, and changes nothing: in a directory or over SFTP it writes a small object and deletes it, to
find out whether that can be done.";

/// Find problems of server, repository or configuration.
///
/// Makes every check that a physical backup makes before it begins, but goes on after a failure, so that all
/// problems are reported at once, each with what to do about it. Reads no stored data: check does that.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Name under which this server's backups are kept [default: as configured, else host:port]
    #[arg(long, value_name = "NAME", env = "HOLDFAST_NAME", hide_env_values = true)]
    pub(crate) name: Option<SourceName>,

    /// Check the repository only, with --name only that source of it
    #[arg(long)]
    pub(crate) no_server: bool,

    /// Report a problem (code 3) if a source has no backup, or its newest one of any kind that it has is older than
    /// this; otherwise a notice after two days. A backup of a part counts only where none is of the whole
    #[arg(long, value_name = "TIME")]
    pub(crate) max_age: Option<Span>,

    /// Apply --max-age only to backups of this kind: physical or logical (repeatable)
    #[arg(long, value_name = "KIND", requires = "max_age")]
    pub(crate) kind: Vec<Kind>,

    /// Report a problem (code 3) if there is no binlog archive, or if no archiver of one runs and the last run
    /// ended longer ago than this
    ///
    /// Whether an archiver that runs keeps up with its server is not looked at: binlog list shows how far an
    /// archive goes.
    #[arg(long, value_name = "TIME")]
    pub(crate) max_lag: Option<Span>,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}
