use clap::Args;
use holdfast_repo::SourceName;

use super::{
    resources::MemoryArg,
    units::{ByteSize, Percent, Span},
};

const EXAMPLES: &str = "\
Examples:
  holdfast check                    every backup's structure: seconds
  holdfast check --read-data        read and authenticate every byte
  holdfast check --read-data=10%    a tenth of the packs, drawn anew each time
  holdfast check --read-data --unread-for 7d
                                    what no check has read for a week
  holdfast check --read-data --unread-for 30d --max-time 2h
                                    every night: all of it within a month, if the nights are enough

What was read and found good is recorded in the repository, so that it does not matter who checks, and from where.";

/// Check that the repository is whole.
///
/// Without --read-data: that outcomes are signed and in order, that every pack a backup needs is there with the size that was recorded, and that every backup opens. With it also what is in them: every chunk of the packs that are read, and for every backup that its page maps lead to pages with the right hashes and agree with what prune goes by.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// Read and authenticate stored data too: all of it, or so much of the packs, drawn at random by each check
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "100%")]
    pub(crate) read_data: Option<Percent>,

    /// Read only what nobody has read for so long, or, never read, what is that old: longest unread first
    #[arg(long, value_name = "TIME", requires = "read_data")]
    pub(crate) unread_for: Option<Span>,

    /// Begin no pack after so many bytes: of each source and kind what is unread longest comes first
    #[arg(long, value_name = "SIZE", requires = "read_data")]
    pub(crate) max_bytes: Option<ByteSize>,

    /// Begin no pack after this time; page maps, about a hundredth of the data, are read all the same
    #[arg(long, value_name = "TIME", requires = "read_data")]
    pub(crate) max_time: Option<Span>,

    /// Only this source
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SourceName>,

    #[command(flatten)]
    pub(crate) memory: MemoryArg,
}
