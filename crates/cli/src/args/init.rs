//! `init`.

use clap::Args;
use holdfast_repo::store::locks::LockMode;

use super::units::Span;

const EXAMPLES: &str = "\
Examples:
  holdfast --repo /backup/repo init
  holdfast --repo /backup/repo --password-file /etc/holdfast/password init
  holdfast --repo s3://bucket/prefix init --object-lock 30d
  holdfast --repo az://container/prefix --az-account account init

Without its password, or another key, nobody can read a repository, ever: keep a copy of the password away from the server.";

/// Create a repository.
///
/// Prompts twice for the password that protects it, or reads the password as any other verb does.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct InitArgs {
    /// Store everything unencrypted; this is recorded in the repository for good
    #[arg(long)]
    pub(crate) no_encryption: bool,

    /// Lock every lasting object in the bucket against deletion for this time; this is recorded in the
    /// repository for good
    ///
    /// The bucket must have Object Lock (docs/guide/stores.md). holdfast lock --extend extends the locks of what is
    /// still needed.
    #[arg(long, value_name = "TIME")]
    pub(crate) object_lock: Option<Span>,

    /// Who can end a lock early: governance (holders of s3:BypassGovernanceRetention) or compliance (nobody)
    #[arg(long, value_name = "MODE", default_value = "governance", requires = "object_lock")]
    pub(crate) object_lock_mode: LockMode,
}
