use clap::Args;
use holdfast_repo::SourceName;

use super::{resources::MemoryArg, units::Percent};

const EXAMPLES: &str = "\
Examples:
  holdfast repair                        show what would be done; nothing is changed
  holdfast repair --yes                  do it
  holdfast repair --read-data --yes      read every byte first: find damage inside packs, too
  holdfast repair --name db1 --yes

Put back from a copy of the repository what you can before you repair: a backup that is dropped does not come back.
Before the repair, save what is whole of a backup that would be dropped, table by table: \"holdfast restore ID --to-server --table ...\" or \"holdfast export\". That fails where a file that it needs is damaged, system tables and undo included.";

/// Make anew what was lost of the repository, and drop the backups that are beyond help.
///
/// Refs, indexes and the records of prunes are made anew from packs, which say what is in them. A run whose outcome is lost counts as if it had come to nothing. A backup that needs what is gone is dropped, and each is named with the files or tables that have lost something. Packs are never deleted. Everything done is a signed run of its source; a repository that is whole is left as it is, byte for byte. It takes an operator's key.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RepairArgs {
    /// Only show what would be done, as without --yes
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,

    /// Do it
    #[arg(long)]
    pub(crate) yes: bool,

    /// Read stored data first, all of it or so much of the packs: without it only what is missing or does not open is found
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "100%")]
    pub(crate) read_data: Option<Percent>,

    /// Only this source
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SourceName>,

    #[command(flatten)]
    pub(crate) memory: MemoryArg,
}
