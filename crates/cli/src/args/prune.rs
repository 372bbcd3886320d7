//! `prune`.

use clap::Args;
use holdfast_repo::SourceName;

use super::{
    resources::MemoryArg,
    units::{ByteSize, Span},
};

const EXAMPLES: &str = "\
Examples:
  holdfast prune --dry-run
  holdfast prune
  holdfast prune --max-repack 50G       limits repacking; the rest waits for the next prune

Data that is found unneeded is deleted by a later prune, after --grace, so that restores under way can finish.";

/// Free the space of dropped backups and interrupted runs.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PruneArgs {
    /// Only show what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// How long unneeded data stays after a prune has marked it
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) grace: Span,

    /// Most data to rewrite out of mostly dead packs, per source and kind; no backup of that source and kind
    /// can begin meanwhile
    #[arg(long, value_name = "SIZE", default_value = "1T")]
    pub(crate) max_repack: ByteSize,

    /// Only this source
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SourceName>,

    #[command(flatten)]
    pub(crate) memory: MemoryArg,
}
