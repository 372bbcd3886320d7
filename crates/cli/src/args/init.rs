use clap::Args;

const EXAMPLES: &str = "\
Examples:
  holdfast --repo /backup/repo init
  holdfast --repo /backup/repo --password-file /etc/holdfast/password init

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
}
