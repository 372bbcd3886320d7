//! `lock`: for how long what backups need is locked in its bucket.

use clap::Args;

use super::units::Span;

const EXAMPLES: &str = "\
Examples:
  holdfast lock                       what would be locked for longer, and what that takes
  holdfast lock --extend              once a week, for a repository that was made with --object-lock 30d
  holdfast lock --extend --margin 20d

What no backup needs any more is left to the end of its locks; then a prune deletes it.";

/// Lock what backups need for longer, where the repository is in a bucket with Object Lock.
///
/// What a repository that was made with init --object-lock stores is locked for that time from when it was stored. This makes the locks that end within the margin as long again, counted from now, of everything that backups that stand need; also of versions that somebody has hidden or covered meanwhile.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LockArgs {
    /// Do it
    #[arg(long)]
    pub(crate) extend: bool,

    /// Only show what would be done, as without --extend
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Locks that end within this time [default: three quarters of the repository's]
    #[arg(long, value_name = "TIME")]
    pub(crate) margin: Option<Span>,
}
