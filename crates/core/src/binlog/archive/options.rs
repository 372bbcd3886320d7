//! What an archiver is asked for, and what it reports in the end.

use std::time::Duration;

use holdfast_pipe::Compression;
use holdfast_repo::{SourceName, log::run::RunOptions};
use serde::Serialize;

use super::Away;
use crate::{
    binlog::{
        spool::SpoolOptions,
        stretch::{Gap, Place},
    },
    server::ConnectOptions,
};

/// An archiver may be replaced this long after its last sign of life.
const PATIENCE: Duration = Duration::from_secs(60);
const RENEWAL: Duration = Duration::from_secs(15);

/// The user's choices.
#[derive(Clone, Debug)]
pub struct ArchiveOptions {
    /// How to reach the server.
    pub connect: ConnectOptions,
    /// The source that the archive belongs to; `None`: named after the host and port of the server.
    pub name: Option<SourceName>,
    /// Stop where the binlog ends now.
    pub once: bool,
    /// How soon incoming events are made durable.
    pub segment_age: Duration,
    /// A run ends after this many bytes.
    pub run_bytes: u64,
    /// A run ends after this long.
    pub run_age: Duration,
    /// Whether the server's commits wait until they are durable.
    pub semi_sync: bool,
    /// Where events become durable, and are acknowledged, on this host; the repository has them soon after.
    /// `None`: they are durable once the repository has them.
    pub spool: Option<SpoolOptions>,
    /// How often to check whether the server's binlog has begun to lack something.
    pub look_every: Duration,
    /// Give up once the server has refused for this long: waiting does not mend a changed password.
    pub refused_max: Duration,
    /// Wait while another archiver is active, and take its place, from this server, when it is gone. Give the
    /// place up when the server is away.
    pub standby: bool,
    /// Allow the server to be a replica that leaves out some of what it replicates.
    pub allow_replica_filters: bool,
    /// Allow a server other than the one that was archived.
    pub new_identity: bool,
    /// How chunks are compressed.
    pub compression: Compression,
    /// Number of compressing threads.
    pub compress_threads: usize,
    /// Memory for everything that grows, except the largest event.
    pub memory_bytes: usize,
    /// How the run presents itself and keeps its lease.
    pub run: RunOptions,
}

impl ArchiveOptions {
    /// The settings that an expert would choose on this host.
    #[must_use]
    pub fn new(connect: ConnectOptions) -> Self {
        Self {
            connect,
            name: None,
            once: false,
            segment_age: Duration::from_secs(1),
            run_bytes: 1 << 30,
            run_age: Duration::from_secs(3600),
            semi_sync: false,
            spool: None,
            look_every: Duration::from_secs(60),
            refused_max: Duration::from_secs(600),
            standby: false,
            allow_replica_filters: false,
            new_identity: false,
            compression: Compression::default(),
            compress_threads: 1,
            memory_bytes: 64 << 20,
            run: RunOptions {
                renew_every: Some(RENEWAL),
                patience: Some(PATIENCE),
                ..RunOptions::of_this_process()
            },
        }
    }
}

/// What an archiver did before it ended.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ArchiveReport {
    /// The source.
    pub source: String,
    /// Runs that it added to the archive.
    pub runs: Vec<u64>,
    /// Bytes of events.
    pub bytes: u64,
    /// Bytes of packs stored for them.
    pub stored_bytes: u64,
    /// Where the archive ends: everything before it is durable.
    pub until: Option<Place>,
    /// When the last transaction was committed, in microseconds since 1970.
    pub last_at: Option<u64>,
    /// GTIDs of all archived transactions, where the server assigns them.
    pub gtids: Option<String>,
    /// The gaps, as they were found.
    pub gaps: Vec<Gap>,
    /// Settings by which the server leaves something out of its binlog, with their values, as last seen.
    pub leaves_out: Option<String>,
    /// Commits that the server reported as returned without an acknowledgement,
    /// although they should have waited for one.
    pub unacknowledged: u64,
    /// The server, if it was away in the end.
    pub away: Option<Away>,
    /// Segments that are on this host and not in the repository.
    pub unsent_segments: u64,
    /// Segments stored.
    pub segments: u64,
    /// Longest time from the arrival of an event until it was durable.
    pub lag_max_ms: u64,
    /// Mean time from the arrival of an event until it was durable, over all segments.
    pub lag_mean_ms: u64,
    /// How often it reconnected to the server.
    pub reconnects: u64,
    /// How long it took.
    pub elapsed_ms: u64,
}
