use std::str::FromStr;

use clap::Args;
use holdfast_repo::SourceName;

use super::{resources::ResourceArgs, source::SourceArgs};

const EXAMPLES: &str = "\
Examples:
  holdfast backup --name db1                          by socket, user and password from the option files
  holdfast backup -h 127.0.0.1 -P 3307 -u backup -p   asks for the server's password
  holdfast backup --name db1 --compress zstd:3 --tag before-upgrade
  holdfast backup --name db1 --path-map /var/lib/mysql=/srv/volumes/db1
  holdfast backup --name db1 --lock-max 500ms --ddl-lock-max 10s
  holdfast backup --name db1 --full                   after check has found damage
  holdfast backup --name db1 --new-identity           once, after a restore or a failover
  holdfast backup --name db1 --allow-corrupt          what is left of a server with damaged pages

The data files must be readable on this host. The first backup of a name stores everything, later ones what changed; the last line of a good one ends in \"completed OK\".";

/// Back up a running server.
///
/// Copies the data files while the server works, with its redo, and takes locks only for moments at the end. Nothing is visible in the repository until everything is durable; an interrupted backup leaves what it stored for the next one to use.
#[derive(Args, Debug, Default)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct BackupArgs {
    /// Name under which this server's backups are kept [default: host:port]
    #[arg(long, value_name = "NAME", env = "HOLDFAST_NAME", hide_env_values = true)]
    pub(crate) name: Option<SourceName>,

    /// Words to find the backup by, of at most 128 bytes; can be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<Tag>,

    /// Build on no earlier backup: read and store everything anew
    ///
    /// So that a backup is free of what check found damaged in earlier ones; docs/errors.md, code 3, says how to go on.
    #[arg(long)]
    pub(crate) full: bool,

    /// This server has taken the place of the one that was backed up under this name so far
    ///
    /// Said once, after a restore or a failover: without it, a backup of another server is refused, so that two never share a name by mistake. The backup is flagged in lists.
    #[arg(long)]
    pub(crate) new_identity: bool,

    /// Take pages that are damaged on the server as they are, instead of failing
    ///
    /// For a server that is beyond repair: everything else of it is saved. Each damaged page is named with its file, table and index; the backup is flagged in lists and restores say so. Recovery can fail on such a page: see restore --no-prepare.
    #[arg(long)]
    pub(crate) allow_corrupt: bool,

    #[command(flatten)]
    pub(crate) source: SourceArgs,

    #[command(flatten)]
    pub(crate) resources: ResourceArgs,
}

/// What a backup is called besides its number. It is stored in the backup's manifest and stands in lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tag(pub(crate) String);

impl Tag {
    const BYTES_MAX: usize = 128;
    /// At one backup.
    pub(crate) const COUNT_MAX: usize = 64;
}

impl FromStr for Tag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > Self::BYTES_MAX {
            return Err(format!("a tag has 1 to {} bytes, this one {}", Self::BYTES_MAX, text.len()));
        }
        if text.contains(char::is_control) {
            return Err("a tag has no control characters".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_bounded() {
        for good in ["before-upgrade", "übung 1", &"x".repeat(128)] {
            assert_eq!(good.parse(), Ok(Tag(good.to_owned())));
        }
        for bad in ["", "a\nb", &"x".repeat(129)] {
            assert!(bad.parse::<Tag>().is_err(), "{bad}");
        }
    }
}
