use std::{path::PathBuf, str::FromStr};

use clap::{Args, Subcommand, ValueEnum};
use holdfast_repo::SourceName;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

use super::{
    backup_ref::BackupRef,
    inspect::NameArg,
    moment::MomentArgs,
    source::SourceArgs,
    units::{ByteSize, Span},
};

const EXAMPLES: &str = "\
Examples:
  holdfast binlog archive --name db1                        until it is stopped
  holdfast binlog archive --name db1 --once                 what there is now, for a timer
  holdfast binlog list
  holdfast binlog list --around '2026-11-20 14:03:07' --grep 'drop table'
  holdfast binlog cat binlog.000042 | mysqlbinlog -v -";

const ARCHIVE_EXAMPLES: &str = "\
Examples:
  holdfast binlog archive --name db1
  holdfast binlog archive -h 127.0.0.1 -P 3307 -u archiver -p --name db1
  holdfast binlog archive --name db1 --ssh-tunnel backup@bastion -h db1.internal -u archiver -p
  holdfast binlog archive --name db1 --once
  holdfast binlog archive --name db1 --semi-sync
  holdfast binlog archive --name db1 --semi-sync --ack local --spool-dir /var/lib/holdfast  where the repository is far
  holdfast binlog archive --name db1 --standby -h replica2  on a second host, beside one at the primary
  holdfast binlog archive --name reports -h replica3 --allow-replica-filters  what it replicates, of a replica that leaves some out
  holdfast binlog archive --name db1 --new-identity         once, where another server took its place and GTIDs do not tell

The account needs REPLICATION SLAVE, and BINLOG MONITOR (MariaDB) or REPLICATION CLIENT (MySQL). A signal ends it in good order, with exit code 0, or 3 where a gap was found.";

const LIST_EXAMPLES: &str = "\
Examples:
  holdfast binlog list
  holdfast binlog list --around '2026-11-20 14:03:07'
  holdfast binlog list --grep 'DROP TABLE'
  holdfast binlog list --grep shop.orders --around 2026-11-20T14:00:00+01:00 --window 10m";

const CAT_EXAMPLES: &str = "\
Examples:
  holdfast binlog cat binlog.000042 > binlog.000042
  holdfast binlog cat binlog.000042 --output binlog.000042
  holdfast binlog cat binlog.000042 | mariadb-binlog -v -
  holdfast restore db1/logical#42 --to-server -h new-db1
  holdfast binlog cat --behind db1/logical#42 --at '2026-11-20 14:03:07' | mariadb-binlog - | mariadb --binary-mode -h new-db1

What comes out is a binlog file: the server's own bytes, or, where the archive begins in the middle of the file, those from there on behind the file's first event.";

/// Archive a server's binlog as it is written, and look into the archive.
///
/// What is committed is in the repository after about a second, so that a restored backup can be brought to any moment.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES, subcommand_value_name = "ACTION", subcommand_help_heading = "Actions")]
pub(crate) struct BinlogArgs {
    #[command(subcommand)]
    pub(crate) action: BinlogAction,
}

/// What is done.
#[derive(Debug, Subcommand)]
pub(crate) enum BinlogAction {
    Archive(ArchiveArgs),
    List(ListArgs),
    Cat(CatArgs),
}

/// Receive the binlog as a replica does and store it, until stopped.
///
/// Begins with the file in which the newest backup's position is, or, where there is none, with the oldest; goes on exactly where it ended, also on another server that has taken the place of the first, by GTID. What is missing because it was purged or begun anew is named, recorded, and told at once. A server that is away is waited for; one that refuses for ten minutes, or that begins to leave out what it replicates, ends it.
#[derive(Args, Debug)]
#[command(after_long_help = ARCHIVE_EXAMPLES)]
pub(crate) struct ArchiveArgs {
    /// Name under which this server's backups are kept [default: host:port]
    #[arg(long, value_name = "NAME", env = "HOLDFAST_NAME", hide_env_values = true)]
    pub(crate) name: Option<SourceName>,

    /// End where the binlog ends now
    #[arg(long, visible_alias = "until-now")]
    pub(crate) once: bool,

    /// What is committed is durable after about so long, where the repository stores it in half of that
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) segment_age: Span,

    /// What was stored at once is packed together after so many bytes
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub(crate) run_size: ByteSize,

    /// What was stored at once is packed together after so long
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) run_age: Span,

    /// What counts as archived, and is acknowledged
    ///
    /// With `local`, commits do not wait for a repository that is far, and go on while it is away, as long as the spool has room. What is lost with this host's disk is then lost to the archive, where the server is lost with it. Of an archiver that is killed, the next one on this host sends on what the spool has; run it soon (docs/connections.md).
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "remote")]
    pub(crate) ack: AckLevel,

    /// Directory on a disk of this host for what the repository does not have yet, sealed as in the repository
    #[arg(long, value_name = "DIR", required_if_eq("ack", "local"))]
    pub(crate) spool_dir: Option<PathBuf>,

    /// Most that it may hold; more waits
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    pub(crate) spool_max: ByteSize,

    /// Acknowledge as a semi-synchronous replica: a commit returns only when it is archived
    ///
    /// Takes a server on which semi-synchronous replication is enabled as a source, and refuses others. The server may give up waiting, or be content with the answer of another replica: what lets commits return without the archive is told, with how many did (docs/connections.md).
    #[arg(long, conflicts_with = "once")]
    pub(crate) semi_sync: bool,

    /// Wait while another archives under this name, and take its place when it is gone
    ///
    /// For archivers on several hosts, each at a server of its own (a primary and its replicas, with GTIDs and binlogs of what they replicate): one archives, the others stand by, and what one leaves the next goes on with, without a gap and without anything twice. One that dies is missed after a minute, on this host at once; one whose server is away for half a minute makes room.
    #[arg(long, conflicts_with = "once")]
    pub(crate) standby: bool,

    /// Archive a replica that leaves out some of what it replicates
    ///
    /// What `replicate_*` filters leave out is not in its binlog, and is missing in what is recovered from the archive and a backup of another server. Without this option such a replica is refused.
    #[arg(long)]
    pub(crate) allow_replica_filters: bool,

    /// This server has taken the place of the one that was archived under this name so far
    ///
    /// Needed only where GTIDs do not tell where the archive goes on: it then has a gap there.
    #[arg(long)]
    pub(crate) new_identity: bool,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// Where something is to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AckLevel {
    /// In the repository
    Remote,
    /// On this host's disk; the repository has it soon
    Local,
}

/// Show what is archived: files, times, GTIDs, gaps, and from when until when can be recovered; or find a transaction.
#[derive(Args, Debug)]
#[command(after_long_help = LIST_EXAMPLES)]
pub(crate) struct ListArgs {
    /// The transactions around this moment, UTC where no zone is given
    #[arg(long, value_name = "TIME")]
    pub(crate) around: Option<Moment>,

    /// How far around it
    #[arg(long, value_name = "TIME", default_value = "1m", requires = "around")]
    pub(crate) window: Span,

    /// The transactions in whose statements or table names this stands, whatever the case of its letters
    #[arg(long, value_name = "TEXT")]
    pub(crate) grep: Option<String>,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// Write an archived file out, or what follows a logical backup, for mysqlbinlog or mariadb-binlog to read.
#[derive(Args, Debug)]
#[command(after_long_help = CAT_EXAMPLES)]
pub(crate) struct CatArgs {
    /// The server's name of the file
    #[arg(value_name = "FILE", required_unless_present = "behind", conflicts_with = "behind")]
    pub(crate) file: Option<String>,

    /// What follows this logical backup of a whole server, up to --at, --gtid or --before-gtid, as one binlog
    ///
    /// To be executed by the server into which the backup was loaded. It begins exactly behind the backup, and ends with the last transaction that is wanted.
    #[arg(long, value_name = "ID", requires = "moment")]
    pub(crate) behind: Option<BackupRef>,

    #[command(flatten)]
    pub(crate) moment: MomentArgs,

    /// Where it goes [default: standard output]
    #[arg(long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// An instant, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) Timestamp);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(at) = text.parse::<Timestamp>() {
            return Ok(Self(at));
        }
        let local = text.parse::<DateTime>().ok();
        let at = local.and_then(|local| local.to_zoned(TimeZone::UTC).ok());
        at.map(|at| Self(at.timestamp())).ok_or_else(|| {
            format!("\"{text}\" is no moment: write 2026-11-20 14:03:07 (UTC) or 2026-11-20T14:03:07+01:00")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_utc_where_nothing_is_said() {
        let at = |text: &str| text.parse::<Moment>().map(|moment| moment.0.to_string());
        for text in ["2026-11-20 14:03:07", "2026-11-20T14:03:07Z", "2026-11-20T15:03:07+01:00"] {
            assert_eq!(at(text), Ok("2026-11-20T14:03:07Z".to_owned()), "{text}");
        }
        for bad in ["", "yesterday", "14:03", "2026-13-01 00:00:00"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }
}
