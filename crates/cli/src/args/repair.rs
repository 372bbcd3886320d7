//! `repair`.

use clap::Args;
use holdfast_repo::SourceName;

use super::{resources::MemoryArg, units::Percent};

const EXAMPLES: &str = "\
Examples:
  holdfast repair                        show what would be done; nothing is changed
  holdfast repair --yes                  do it
  holdfast repair --read-data --yes      read every byte first, to find damage inside packs too
  holdfast repair --name db1 --yes

Before a repair, put back what you can from a copy of the repository: a dropped backup does not come back.
Also save what is intact in a backup that would be dropped, table by table: \"holdfast restore ID --to-server --table ...\" or \"holdfast export\". That fails if a file that it needs is damaged, system tables and undo included.";

/// Recreate what the repository has lost; drop backups beyond repair.
///
/// Refs, indexes and the records of prunes are recreated from packs, which describe their contents. A run
/// whose outcome is lost counts as failed. A backup that needs lost data is dropped, and named with the files
/// or tables that have lost something. Packs are never deleted.
///
/// Everything done is a signed run of its source; an undamaged repository stays as it is, byte for byte. It
/// takes an operator's key.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RepairArgs {
    /// Only show what would be done, as without --yes
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,

    /// Carry out the repair; without it, only show what would be done
    #[arg(long)]
    pub(crate) yes: bool,

    /// First read stored data: all of it, or this share of the packs; without it, only what is missing or
    /// does not open is found
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "100%")]
    pub(crate) read_data: Option<Percent>,

    /// Only this source
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SourceName>,

    #[command(flatten)]
    pub(crate) memory: MemoryArg,
}
