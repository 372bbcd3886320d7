//! `check`: how much of what is stored is read.

use clap::Args;
use holdfast_repo::SourceName;

use super::{
    resources::MemoryArg,
    units::{ByteSize, Percent, Span},
};

const EXAMPLES: &str = "\
Examples:
  holdfast check                    the structure of every backup: takes seconds
  holdfast check --read-data        read and authenticate every byte
  holdfast check --read-data=10%    a random tenth of the packs, chosen anew each time
  holdfast check --read-data --unread-for 7d
                                    what no check has read for a week
  holdfast check --read-data --unread-for 30d --max-time 2h
                                    nightly: reads everything within a month, if the time suffices

What was read and found good is recorded in the repository, so checks can run on any host.";

/// Check that the repository is complete and undamaged.
///
/// Without --read-data: that outcomes are signed and in order, that every pack that a backup needs is there
/// with its recorded size, and that every backup opens.
///
/// With --read-data also the contents: that every chunk of the packs read is intact, and that the page maps
/// of every backup lead to pages with the right hashes and agree with the records that prune relies on. With a
/// keeper's key, which opens none of that: that every byte of the packs read is as it was written.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// Also read and authenticate stored data: all of it, or this share of the packs, chosen at random by
    /// each check
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "100%")]
    pub(crate) read_data: Option<Percent>,

    /// Read only packs that no check has read for this long (never read: counted from when they were stored),
    /// longest unread first
    #[arg(long, value_name = "TIME", requires = "read_data")]
    pub(crate) unread_for: Option<Span>,

    /// Start no further pack once this many bytes were read; within each source and kind, longest unread first
    #[arg(long, value_name = "SIZE", requires = "read_data")]
    pub(crate) max_bytes: Option<ByteSize>,

    /// Start no further pack after this time; page maps, about a hundredth of the data, are read regardless
    #[arg(long, value_name = "TIME", requires = "read_data")]
    pub(crate) max_time: Option<Span>,

    /// Only this source
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SourceName>,

    #[command(flatten)]
    pub(crate) memory: MemoryArg,
}
