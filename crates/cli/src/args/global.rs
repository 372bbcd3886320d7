//! Options of every verb.

use std::path::PathBuf;

use clap::Args;
use holdfast_repo::keys::KeyId;
use jiff::Timestamp;

use super::moment::At;

/// Options of every verb.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global")]
pub(crate) struct GlobalArgs {
    /// Location of the repository: /directory, s3://bucket/prefix, az://container/prefix or
    /// sftp://user@host/directory
    #[arg(long, global = true, value_name = "URL", env = "HOLDFAST_REPO", hide_env_values = true)]
    pub(crate) repo: Option<String>,

    /// File whose first line is the repository's password
    ///
    /// Without it: HOLDFAST_PASSWORD, the output of HOLDFAST_PASSWORD_COMMAND, the configuration file, or a
    /// prompt on the terminal.
    #[arg(long, global = true, value_name = "FILE", env = "HOLDFAST_PASSWORD_FILE", hide_env_values = true)]
    pub(crate) password_file: Option<PathBuf>,

    /// Identity file to open the repository with instead of a password (see key generate)
    #[arg(long, global = true, value_name = "FILE", env = "HOLDFAST_IDENTITY", hide_env_values = true)]
    pub(crate) identity: Option<PathBuf>,

    /// ID of the key that the password or identity belongs to [default: all are tried]
    #[arg(long, global = true, value_name = "ID", env = "HOLDFAST_KEY", hide_env_values = true)]
    pub(crate) key: Option<KeyId>,

    /// Read the repository as it was at this time, UTC unless a zone is given; for a bucket that keeps
    /// versions
    ///
    /// For verbs that only read, after objects were deleted or overwritten (docs/guide/stores.md). The time is that
    /// of the store's clock.
    #[arg(long, global = true, value_name = "TIME", value_parser = as_of)]
    pub(crate) as_of: Option<Timestamp>,

    /// Configuration file [default: the first that exists of ~/.config/holdfast/holdfast.toml and
    /// /etc/holdfast/holdfast.toml]
    #[arg(long, global = true, value_name = "FILE", env = "HOLDFAST_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,

    /// Write JSON, one object per line (docs/reference/json.md); the last one is the result
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Print only the result, warnings and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Also print how long each phase and each lock took
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

fn as_of(text: &str) -> Result<Timestamp, String> {
    match text.parse() {
        Ok(At::Time(time)) => Ok(time),
        Ok(At::Latest) | Err(_) => Err(format!(
            "\"{text}\" is no time: write \"2026-11-20 14:03:07\" (UTC) or 2026-11-20T15:03:07+01:00"
        )),
    }
}
