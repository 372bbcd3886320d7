use clap::Args;
use holdfast_repo::SourceName;

use super::{source::SourceArgs, units::Span};

const EXAMPLES: &str = "\
Examples:
  holdfast doctor                              the server of the option files, and the configured repository
  holdfast doctor --socket /run/mysqld/mysqld.sock
  holdfast doctor --ssh-tunnel bastion -h db1.internal
  holdfast doctor --no-server                  only the repository
  holdfast doctor --no-server --max-age 26h    for monitoring: code 3 where the newest backup of a source is older

Nothing is changed, and no lock is held.";

/// Explain what is wrong with a server, a repository or the configuration, and what to do.
///
/// Makes every check that a backup makes before it begins, and goes on where a backup would end, so that everything is told at once. Reads no stored data: that is what check is for.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Name under which this server's backups are kept [default: host:port]
    #[arg(long, value_name = "NAME", env = "HOLDFAST_NAME", hide_env_values = true)]
    pub(crate) name: Option<SourceName>,

    /// Look at the repository only
    #[arg(long)]
    pub(crate) no_server: bool,

    /// A problem (code 3) where the newest backup of a source is older, or there is none; otherwise a notice after two days
    #[arg(long, value_name = "TIME")]
    pub(crate) max_age: Option<Span>,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}
