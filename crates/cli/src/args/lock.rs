//! `lock`: for how long what backups need is locked in its bucket.

use clap::Args;

use super::units::Span;

const EXAMPLES: &str = "\
Examples:
  holdfast lock                       shows what would be extended, and how many requests that takes
  holdfast lock --extend              weekly, for a repository made with init --object-lock 30d
  holdfast lock --extend --margin 20d

Locks of what no backup needs are not extended: once they end, prune deletes the data.";

/// Extend the locks of what backups need, in a bucket with Object Lock.
///
/// In a repository made with init --object-lock, everything is locked for that time from when it was stored.
/// This extends the locks that end within --margin, to the full time counted from now, of everything that the
/// backups in the list need, including versions that somebody has hidden or overwritten. (To keep a backup
/// from being dropped, use hold.)
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LockArgs {
    /// Extend the locks; without it, only show what would be done
    #[arg(long)]
    pub(crate) extend: bool,

    /// Only show what would be done, as without --extend
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Extend locks that end within this time [default: three quarters of the repository's lock time]
    #[arg(long, value_name = "TIME")]
    pub(crate) margin: Option<Span>,
}
