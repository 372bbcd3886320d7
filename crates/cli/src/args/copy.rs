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
  holdfast copy --all --to /mnt/offsite/repo                 what the other repository does not have, of every source
  holdfast copy --all --name db1 --to s3://bucket/holdfast   the same, of one source
  holdfast copy latest --to offsite                          to a [[repository]] of the configuration file
  holdfast copy db1#42 --to sftp://backup@host/repo --to-password-file offsite.pw

If it is stopped at any point, run it again: what was stored is reused.";

/// Copy backups to another repository.
///
/// Sends what the other repository does not have, verified as it is read, and sealed for the keys of that
/// repository. The other repository is independent: it needs nothing from this one, and keeps its backups by
/// its own rules. Backups that are already there, and backups older than the newest one there, are not
/// copied.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CopyArgs {
    /// The backup: latest, 42, db1#42 or db1/physical#42
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) id: Option<BackupRef>,

    /// Copy all backups that the other repository does not have, oldest first; of every source, unless --name
    /// is given
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

    /// Threads that read and verify [default: as configured, else one per processor]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Resources")]
    pub(crate) parallel: Option<usize>,

    /// Compression of chunks: zstd[:-7..19], lz4, gzip[:1..9] or none [default: unchanged; for chunks that
    /// must be put together again, as configured, else zstd:1]
    #[arg(long, value_name = "CODEC[:LEVEL]", help_heading = "Resources")]
    pub(crate) compress: Option<Compression>,

    #[command(flatten)]
    pub(crate) memory: MemoryArg,

    /// Directory for page maps, only for a writer's key of the other repository [default: as configured, else
    /// holdfast in the user's cache directory]
    #[arg(long, value_name = "DIR", help_heading = "Resources")]
    pub(crate) cache_dir: Option<PathBuf>,
}

/// Another repository, and what opens it.
#[derive(Args, Clone, Debug)]
pub(crate) struct OtherArgs {
    /// The other repository: its location, as for --repo, or the name of a [[repository]] in the
    /// configuration file
    #[arg(long, value_name = "URL", env = "HOLDFAST_TO", hide_env_values = true)]
    pub(crate) to: String,

    /// File whose first line is the other repository's password
    ///
    /// Without it: HOLDFAST_TO_PASSWORD, the output of HOLDFAST_TO_PASSWORD_COMMAND, the configuration file,
    /// or a prompt on the terminal.
    #[arg(long, value_name = "FILE", env = "HOLDFAST_TO_PASSWORD_FILE", hide_env_values = true)]
    pub(crate) to_password_file: Option<PathBuf>,

    /// Identity file to open the other repository with instead of a password
    #[arg(long, value_name = "FILE", env = "HOLDFAST_TO_IDENTITY", hide_env_values = true)]
    pub(crate) to_identity: Option<PathBuf>,

    /// ID of the other repository's key that the password or identity belongs to [default: all are tried]
    #[arg(long, value_name = "ID", env = "HOLDFAST_TO_KEY", hide_env_values = true)]
    pub(crate) to_key: Option<KeyId>,
}
