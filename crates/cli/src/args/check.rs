use clap::Args;
use holdfast_repo::SourceName;

use super::{resources::MemoryArg, units::Percent};

const EXAMPLES: &str = "\
Examples:
  holdfast check                    every backup's structure: seconds
  holdfast check --read-data        read and authenticate every byte
  holdfast check --read-data=10%    a tenth of the packs, drawn anew each time";

/// Check that the repository is whole.
///
/// Without --read-data: that outcomes are signed and in order, that every pack a backup needs is there with the size that was recorded, and that every backup opens. With it also what is in them: every chunk of the packs that are read, and for every backup that its page maps lead to pages with the right hashes and agree with what prune goes by.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// Read and authenticate stored data too: all of it, or so much of the packs, drawn at random by each check
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "100%")]
    pub(crate) read_data: Option<Percent>,

    /// Only this source
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SourceName>,

    #[command(flatten)]
    pub(crate) memory: MemoryArg,
}
