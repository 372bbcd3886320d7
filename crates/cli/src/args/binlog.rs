//! `binlog` and its actions.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Subcommand, ValueEnum};
use holdfast_repo::SourceName;
use jiff::Timestamp;

use super::{
    backup_ref::BackupRef,
    inspect::NameArg,
    moment::{MomentArgs, time},
    source::SourceArgs,
    units::{ByteSize, Span},
};

const EXAMPLES: &str = "\
Examples:
  holdfast binlog archive --name db1                        runs until it is stopped
  holdfast binlog archive --name db1 --once                 archives what there is now, then ends: for a timer
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
  holdfast binlog archive --name db1 --semi-sync --ack local --spool-dir /var/lib/holdfast  for a distant repository
  holdfast binlog archive --name db1 --standby -h replica2  on a second host, besides the one at the primary
  holdfast binlog archive --name reports -h replica3 --allow-replica-filters  a replica with replication filters
  holdfast binlog archive --name db1 --new-identity         once, if another server took its place and GTIDs do not show where to continue

The account needs REPLICATION SLAVE, and BINLOG MONITOR (MariaDB) or REPLICATION CLIENT (MySQL). A signal ends the archiver cleanly, with exit code 0, or 3 if something is missing or not in the repository yet.";

const LIST_EXAMPLES: &str = "\
Examples:
  holdfast binlog list
  holdfast binlog list --around '2026-11-20 14:03:07'
  holdfast binlog list --grep 'DROP TABLE'
  holdfast binlog list --grep shop.orders --around 2026-11-20T14:00:00+01:00 --window 10m";

const CLOSE_EXAMPLES: &str = "\
Examples:
  holdfast binlog close --name db1
  holdfast binlog close --name db1 && holdfast copy --to s3://second/repo --name db1";

const CAT_EXAMPLES: &str = "\
Examples:
  holdfast binlog cat binlog.000042 > binlog.000042
  holdfast binlog cat binlog.000042 --output binlog.000042
  holdfast binlog cat binlog.000042 | mariadb-binlog -v -
  holdfast restore db1/logical#42 --to-server -h new-db1 --disable-events
  set -o pipefail; holdfast binlog cat --after db1/logical#42 --at '2026-11-20 14:03:07' | mariadb-binlog - | mariadb --binary-mode -h new-db1
  set -o pipefail; holdfast binlog cat --after db1/logical#42 --at latest --skip-gtids | mysqlbinlog - | mysql --binary-mode -h new-db1    MySQL: a second attempt

The output is a binlog file with the server's own bytes. If the archive begins in the middle of the file, the output is the file's first event and everything from there on.";

/// Archive a server's binlog as it is written, and read the archive.
///
/// Commits are in the repository after about a second, so that a restored backup can be brought to any
/// moment.
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
    Close(CloseArgs),
}

/// Receive the binlog as a replica does and store it, until stopped.
///
/// Starts with the file that holds the newest backup's position or, without a backup, with the server's
/// oldest file. Continues exactly where the archive ends, by GTID also on another server that has taken the
/// first one's place.
///
/// What is missing, because it was purged or the binlog was reset, is reported at once and recorded as a gap.
/// While the server is unreachable, the archiver waits. It ends if the server refuses it for ten minutes, or
/// starts to filter what it replicates.
#[derive(Args, Debug)]
#[command(after_long_help = ARCHIVE_EXAMPLES)]
pub(crate) struct ArchiveArgs {
    /// Name under which this server's backups are kept [default: as configured, else host:port]
    #[arg(long, value_name = "NAME", env = "HOLDFAST_NAME", hide_env_values = true)]
    pub(crate) name: Option<SourceName>,

    /// Stop at what is now the end of the binlog
    #[arg(long, visible_alias = "until-now")]
    pub(crate) once: bool,

    /// Approximate time until a commit is durable, provided that the repository stores a segment in half of it
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) segment_age: Span,

    /// Bytes after which a run ends and its segments are replaced by packs
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub(crate) run_size: ByteSize,

    /// Time after which a run ends and its segments are replaced by packs
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) run_age: Span,

    /// When an event counts as archived, and is acknowledged
    ///
    /// With `local`, commits do not wait for a distant repository, and continue while it is unreachable, as
    /// long as the spool has room. If this host's disk is lost, the archive lacks what was not yet sent,
    /// unless the server still has it. What a killed archiver left in the spool is sent by the next one on
    /// this host: start it soon (docs/guide/connections.md).
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "remote")]
    pub(crate) ack: AckLevel,

    /// Directory on this host's disk for segments that the repository does not have yet, sealed as in the
    /// repository; needed with --ack local
    #[arg(long, value_name = "DIR", required_if_eq("ack", "local"))]
    pub(crate) spool_dir: Option<PathBuf>,

    /// Most that the spool may hold; when it is full, archiving waits
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    pub(crate) spool_max: ByteSize,

    /// Acknowledge as a semi-synchronous replica: a commit returns only once it is archived
    ///
    /// Needs a server with semi-synchronous replication enabled as a source; others are refused. The server
    /// may stop waiting, or accept the answer of another replica: whatever lets commits return before they
    /// are archived is reported, and how many did (docs/guide/connections.md).
    #[arg(long, conflicts_with = "once")]
    pub(crate) semi_sync: bool,

    /// Wait while another archiver runs under this name, and take over when it is gone
    ///
    /// For archivers on several hosts, each at its own server (a primary and its replicas, with GTIDs, and
    /// with binlogs of what they replicate). One archives, the others stand by; the next one continues the
    /// archive without gaps or duplicates. A dead archiver is replaced after a minute, on the same host at
    /// once; one whose server is unreachable for half a minute gives way.
    #[arg(long, conflicts_with = "once")]
    pub(crate) standby: bool,

    /// Archive a replica that filters what it replicates
    ///
    /// What `replicate_*` filters leave out is not in its binlog, and is missing from what is recovered with
    /// this archive and a backup of another server. Without this option such a replica is refused.
    #[arg(long)]
    pub(crate) allow_replica_filters: bool,

    /// Accept that another server has taken the place of the one archived under this name
    ///
    /// Needed only if GTIDs do not show where the archive continues; it then has a gap there.
    #[arg(long)]
    pub(crate) new_identity: bool,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// Where something is to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AckLevel {
    /// When it is in the repository
    Remote,
    /// When it is on this host's disk, from where it is sent on at once
    Local,
}

/// Show what is archived and recoverable, or find a transaction.
///
/// Shows files, times, GTIDs, gaps, and the time ranges that recovery can reach; with --around or --grep,
/// transactions instead.
#[derive(Args, Debug)]
#[command(after_long_help = LIST_EXAMPLES)]
pub(crate) struct ListArgs {
    /// Show the transactions around this time, UTC unless a zone is given
    #[arg(long, value_name = "TIME")]
    pub(crate) around: Option<Moment>,

    /// Time to show before and after --around
    #[arg(long, value_name = "TIME", default_value = "1m", requires = "around")]
    pub(crate) window: Span,

    /// Show the transactions whose statements or table names contain this text, ignoring case
    #[arg(long, value_name = "TEXT")]
    pub(crate) grep: Option<String>,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// Write archived binlog, for mysqlbinlog or mariadb-binlog to read.
///
/// Writes one file of the server or, with --after, everything after a logical backup up to a moment.
#[derive(Args, Debug)]
#[command(after_long_help = CAT_EXAMPLES)]
pub(crate) struct CatArgs {
    /// Name of the binlog file on the server
    #[arg(value_name = "FILE", required_unless_present = "after", conflicts_with = "after")]
    pub(crate) file: Option<String>,

    /// Write everything after this logical backup of a whole server, up to --at, --gtid or --before-gtid, as
    /// one binlog
    ///
    /// For the server into which the backup was loaded to execute. It begins exactly after the backup, and
    /// ends with the last wanted transaction.
    #[arg(long, value_name = "ID", requires = "moment")]
    pub(crate) after: Option<BackupRef>,

    #[command(flatten)]
    pub(crate) moment: MomentArgs,

    /// MySQL: leave out the transactions' GTIDs; the server that executes them gives them new ones
    ///
    /// For a server that has executed transactions with these GTIDs before, as on a second attempt, or on the
    /// source itself. Otherwise the first statement fails there, since MySQL skips such transactions
    /// without an error.
    #[arg(long, requires = "after")]
    pub(crate) skip_gtids: bool,

    /// File to write [default: standard output]
    #[arg(long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// Move what the last archiver of a lost server has left into packs, so that copies have it.
///
/// An archiver that dies leaves up to one run in segments, which the next one takes over. If the server is gone
/// there is no next one: recovery reads them nevertheless, but "holdfast copy" does not copy them.
///
/// If the archiver ran with --ack local, first start it again on its host, so that it sends what is in its spool.
/// Takes an operator's key. Not for an archive that an archiver is working on: that one would give way.
#[derive(Args, Debug)]
#[command(after_long_help = CLOSE_EXAMPLES)]
pub(crate) struct CloseArgs {
    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// An instant, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) Timestamp);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        time(text).map(Self).ok_or_else(|| {
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
