use clap::Args;
use holdfast_repo::SourceName;

use super::{resources::ResourceArgs, source::SourceArgs};

const EXAMPLES: &str = "\
Examples:
  holdfast backup --name db1                          by socket, user and password from the option files
  holdfast backup -h 127.0.0.1 -P 3307 -u backup -p   asks for the server's password
  holdfast backup --name db1 --compress zstd:3 --tag before-upgrade
  holdfast backup --name db1 --path-map /var/lib/mysql=/srv/volumes/db1

The data files must be readable on this host. The first backup of a name stores everything, later ones what changed; the last line of a good one ends in \"completed OK\".";

/// Back up a running server.
///
/// Copies the data files while the server works, with its redo, and takes locks only for moments at the end. Nothing is visible in the repository until everything is durable; an interrupted backup leaves what it stored for the next one to use.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct BackupArgs {
    /// Name under which this server's backups are kept [default: host:port]
    #[arg(long, value_name = "NAME", env = "HOLDFAST_NAME", hide_env_values = true)]
    pub(crate) name: Option<SourceName>,

    /// Words to find the backup by; can be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,

    /// Build on no earlier backup: read and store everything anew
    ///
    /// So that a backup is free of what check found damaged in earlier ones; docs/errors.md, code 3, says how to go on.
    #[arg(long)]
    pub(crate) full: bool,

    #[command(flatten)]
    pub(crate) source: SourceArgs,

    #[command(flatten)]
    pub(crate) resources: ResourceArgs,
}
