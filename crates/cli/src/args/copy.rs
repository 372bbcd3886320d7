//! `copy`, and how another repository is named and opened.

use std::path::PathBuf;

use clap::Args;
use holdfast_pipe::codec::Compression;
use holdfast_repo::{SourceName, keys::KeyId};

use super::{
    backup_ref::BackupRef,
    inspect::NameArg,
    resources::{MemoryArg, threads},
};

const EXAMPLES: &str = "\
Examples:
  holdfast copy --all --to /mnt/offsite/repo                 what the other repository does not have yet, of every source
  holdfast copy --all --name db1 --to s3://bucket/holdfast   of one source
  holdfast copy latest --to offsite                          a [[repository]] of the configuration file
  holdfast copy db1#42 --to sftp://backup@host/repo --to-password-file offsite.pw

Stopped at any point, run it again: what was stored is taken up.";

/// Copy backups to another repository.
///
/// Sends what the other repository does not have, verified as it is read and sealed for its keys. The other repository stands for itself: it needs nothing of this one, and keeps its backups by its own rules. A backup that is there already is not copied again, and none that is older than the newest there.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CopyArgs {
    /// The backup: latest, 42, db1#42 or db1/physical#42
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) id: Option<BackupRef>,

    /// All backups that the other repository does not have, oldest first; of every source, unless one is named
    #[arg(long)]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) other: OtherArgs,

    /// Name of the source in the other repository [default: the same]
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) as_name: Option<SourceName>,

    /// Only show what would be copied
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) name: NameArg,

    /// Threads that read and verify [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Resources")]
    pub(crate) parallel: Option<usize>,

    /// How chunks are compressed: zstd[:-7..19], lz4, gzip[:1..9] or none [default: as they are; where pages are put
    /// together anew, as in the configuration, else zstd:1]
    #[arg(long, value_name = "CODEC[:LEVEL]", help_heading = "Resources")]
    pub(crate) compress: Option<Compression>,

    #[command(flatten)]
    pub(crate) memory: MemoryArg,

    /// Directory where a writer's key of the other repository keeps page maps [default: holdfast in the user's cache
    /// directory]
    #[arg(long, value_name = "DIR", help_heading = "Resources")]
    pub(crate) cache_dir: Option<PathBuf>,
}

/// Another repository, and what opens it.
#[derive(Args, Clone, Debug)]
pub(crate) struct OtherArgs {
    /// The other repository: where it is, as for --repo, or the name of a [[repository]] in the configuration file
    #[arg(long, value_name = "URL", env = "HOLDFAST_TO", hide_env_values = true)]
    pub(crate) to: String,

    /// File whose first line is the other repository's password
    ///
    /// Without it: HOLDFAST_TO_PASSWORD, the output of HOLDFAST_TO_PASSWORD_COMMAND, the configuration file, or a question on the terminal.
    #[arg(long, value_name = "FILE", env = "HOLDFAST_TO_PASSWORD_FILE", hide_env_values = true)]
    pub(crate) to_password_file: Option<PathBuf>,

    /// Identity file that opens the other repository instead of a password
    #[arg(long, value_name = "FILE", env = "HOLDFAST_TO_IDENTITY", hide_env_values = true)]
    pub(crate) to_identity: Option<PathBuf>,

    /// The key of the other repository that the password or identity is for [default: all are tried]
    #[arg(long, value_name = "ID", env = "HOLDFAST_TO_KEY", hide_env_values = true)]
    pub(crate) to_key: Option<KeyId>,
}
