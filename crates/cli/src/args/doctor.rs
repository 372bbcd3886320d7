use clap::Args;
use holdfast_repo::SourceName;

use super::source::SourceArgs;

const EXAMPLES: &str = "\
Examples:
  holdfast doctor                              the server of the option files, and the configured repository
  holdfast doctor --socket /run/mysqld/mysqld.sock
  holdfast doctor --ssh-tunnel bastion -h db1.internal
  holdfast doctor --no-server                  only the repository

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

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}
