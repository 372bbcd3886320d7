use clap::Args;
use holdfast_repo::store::locks::LockMode;

use super::units::Span;

const EXAMPLES: &str = "\
Examples:
  holdfast --repo /backup/repo init
  holdfast --repo /backup/repo --password-file /etc/holdfast/password init
  holdfast --repo s3://bucket/prefix init --object-lock 30d

There is no way back into a repository without its password: keep a copy of it away from the server.";

/// Make a repository.
///
/// Asks twice for the password that protects it, or reads it as any other verb does.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct InitArgs {
    /// Store everything in plain; recorded in the repository for good
    #[arg(long)]
    pub(crate) no_encryption: bool,

    /// Lock in its bucket whatever is written and lasts, for this time, against being deleted; recorded in the repository for good
    ///
    /// The bucket must have Object Lock (docs/stores.md). holdfast lock --extend makes the locks of what is still needed longer.
    #[arg(long, value_name = "TIME")]
    pub(crate) object_lock: Option<Span>,

    /// Who may end a lock early: governance (whoever has a permission of its own for that) or compliance (nobody, ever)
    #[arg(long, value_name = "MODE", default_value = "governance", requires = "object_lock")]
    pub(crate) object_lock_mode: LockMode,
}
