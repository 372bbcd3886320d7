//! Archiving: reach the server → begin a run → find where the archive continues
//! → record events as they arrive, run after run.
//!
//! - Recording continues exactly where the archive ends, or after a gap that is named.
//! - If the server goes away, the archiver waits for it; it also waits for the repository, while the server
//!   keeps what is not stored yet.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use holdfast_formats::{Flavor, Gtids};
use holdfast_pipe::Compression;
use holdfast_repo::{
    Kind, LogName, Repo, SourceName,
    data::writer::WriterOptions,
    hooks::Hooks,
    log::{
        history::History,
        run::{ActiveRun, BeginError, Run, RunOptions, Standing, standing},
    },
};
use serde::Serialize;

use super::{
    left_out,
    look::{Answer, AskedAt, Ended as AllAnswered, Look, Questions, State},
    recorder::{RecordError, Recorder},
    recurring::RecurringWarning,
    resume::{self, Binlog, Files, Refused},
    run::{ArchiveRun, Ended},
    segments::{Segments, ousted},
    semi_sync::{Source, Waits},
    spool::{Left, Spool, SpoolOptions},
    standby,
    stream::{Next, Stream, StreamBegin, StreamOptions},
    stretch::{Gap, GapKind, Place},
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    points::point,
    server::{
        ConnectOptions, Purpose, Session, SqlCause, SqlError, check_binlog_grants, code, status::binlog_order,
    },
    taking::name,
};

/// Polls for due work and for a stop request this often.
const POLL: Duration = Duration::from_millis(50);
/// Checks this often whether a full batch can be handed over.
const HELD_UP: Duration = Duration::from_millis(5);
/// How long the archiver keeps the log free for the run that asked for it.
const ROOM_FOR: Duration = Duration::from_secs(15);
/// Checks this often whether that run has begun, or ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Delays between attempts to reach a server or repository that has gone away.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// An archiver may be replaced this long after its last sign of life.
const PATIENCE: Duration = Duration::from_secs(60);
const RENEWAL: Duration = Duration::from_secs(15);
/// How long to wait for the current transaction to finish once a stop is requested,
/// and for the last acknowledgement.
const END_OF_TRANSACTION_MAX: Duration = Duration::from_secs(10);
/// A new stream shows among the server's replicas within this time.
const IS_SHOWN: Duration = Duration::from_secs(2);
/// How long a server whose commits may wait for us may take for an answer before its stream begins.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// How long a new stream waits for an answer that helps, but that it can do without.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(1);
/// How soon to ask again if a server has not yet said what its binlog leaves out.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Warns once a server has been unreachable for this long.
const TOLD_AFTER: Duration = Duration::from_secs(30);
/// A run that begins further behind the server than this stores no segments,
/// and ends as soon as it has caught up.
const CATCH_UP_BYTES: u64 = 64 << 20;

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
    /// Where the archive ends.
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
    /// Segments that are on this host and not in the repository.
    pub unsent_segments: u64,
    /// Segments stored.
    pub segments: u64,
    /// Longest time from the arrival of an event until it was durable.
    pub lag_max_ms: u64,
    /// The same, averaged over all segments.
    pub lag_mean_ms: u64,
    /// How often it reconnected to the server.
    pub reconnects: u64,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// Archives the binlog of a server until a stop is requested or, with `once`, until the end of the binlog.
pub fn archive(
    repo: &Arc<Repo>,
    options: &ArchiveOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<ArchiveReport> {
    let began = Instant::now();
    let spool = Archiver::spooled(repo, options, listener).map_err(|error| error.at(repo))?;
    let mut archiver =
        Archiver::reach(repo, options, spool, listener, cancel).map_err(|error| error.at(repo))?;
    let outcome = archiver.work();
    archiver.discarded();
    archiver.count_unsent();
    archiver.report.elapsed_ms = began.elapsed().as_millis() as u64;
    outcome.map_err(|error| options.connect.explain_loss(error).at(repo))?;
    Ok(archiver.report)
}

pub(super) struct Archiver<'a> {
    pub(super) repo: &'a Arc<Repo>,
    pub(super) log: LogName,
    pub(super) options: &'a ArchiveOptions,
    pub(super) listener: &'a dyn Listener,
    pub(super) cancel: &'a Cancel,
    pub(super) stream_options: StreamOptions,
    /// The history as of the end of the last run: nothing is made durable between two runs,
    /// so little is left to read then.
    history: Option<Arc<History>>,
    discarding: Option<JoinHandle<()>>,
    lag_sum: Duration,
    spool: Option<Arc<Spool>>,
    store_failing: RecurringWarning,
    spool_failing: RecurringWarning,
    /// Warns that spooled segments came too late.
    late: RecurringWarning,
    /// Why commits can return without being archived, and how many of them the server has counted.
    doubts: Vec<String>,
    unacknowledged: Option<u64>,
    /// Warns that the server has stopped replicating.
    stopped: RecurringWarning,
    /// Where a server had more than it sent, and the stream was restarted for that reason.
    stuck_at: Option<Place>,
    /// How many commits had waited when the server did not answer about its binlog.
    unanswered: Option<Waits>,
    /// Whether, at the last look, the server's GTIDs lacked some of what it had sent.
    lacked_gtids: bool,
    /// Since when no archiver has been active although this one tries to be.
    pub(super) in_vain_since: Option<Instant>,
    report: ArchiveReport,
}

/// What a look found about whether the server still writes the binlog that it sends.
#[derive(Default)]
struct Seen {
    /// The transactions that were archived by then.
    gtids: Option<Gtids>,
    /// Where the archive ended, if the server had more.
    behind_at: Option<Place>,
}

/// Looks at a server while its stream runs.
struct Looks {
    look: Option<Look>,
    /// When the next is due.
    at: Instant,
    seen: Seen,
    /// Whether the server has said what its binlog leaves out.
    is_told: bool,
}

/// Why a run ended.
enum RunEnd {
    /// It has reached one of its limits, or has caught up.
    Due,
    /// A run that drops or prunes is waiting for it to end.
    Asked,
    /// Everything wanted is archived, or a stop was requested.
    Done,
}

impl<'a> Archiver<'a> {
    /// Opens the spool and sends on what it still holds: the server that this came from may be gone.
    fn spooled(
        repo: &Arc<Repo>,
        options: &ArchiveOptions,
        listener: &dyn Listener,
    ) -> Result<Option<Arc<Spool>>> {
        let Some(spool) = &options.spool else { return Ok(None) };
        let Some(source) = options.name.clone() else {
            let error =
                Error::new(ErrorKind::Usage, "a spool is of one archive, also while its server is away");
            return Err(error.hinted("give the archive's name by --name"));
        };
        let log = LogName { source, kind: Kind::Binlog };
        let spool = Spool::open(spool, repo, &log)?;
        if spool.count()? > 0 {
            match Run::begin(repo, &log, &options.run) {
                Ok(run) => {
                    // The first run that archives reports what came too late.
                    told(&spool.send_left(&run)?, &spool, listener);
                    run.abandon("it has sent on what was left in a spool")?;
                }
                // What is left is dealt with when this archiver begins a run.
                Err(BeginError::Active(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(Arc::new(spool)))
    }

    fn reach(
        repo: &'a Arc<Repo>,
        options: &'a ArchiveOptions,
        spool: Option<Arc<Spool>>,
        listener: &'a dyn Listener,
        cancel: &'a Cancel,
    ) -> Result<Self> {
        listener.event(Event::Phase { name: "reach" });
        let mut session = open_control(options)?;
        let source = if options.semi_sync { Some(Source::read(&mut session)?) } else { None };
        // The check lists the binlog files.
        // Without it, an account that may not do that learns so from the stream.
        if source.as_ref().is_none_or(|source| source.waiting() == 0) {
            match check_binlog_grants(&mut session) {
                Err(error) if options.semi_sync && is_lost(&error) => session = open_control(options)?,
                checked => checked?,
            }
        }
        left_out::require_all(&mut session, options.standby, options.allow_replica_filters)?;
        // A standby archiver may be on a replica, whose commits do not wait for anybody yet.
        if let Some(source) = source.filter(|_| !options.standby) {
            source.require_enabled()?;
        }
        let binlog = Binlog::read(session)?;
        let name = match &options.name {
            Some(name) => name.clone(),
            None if options.standby => {
                let error = Error::new(ErrorKind::Usage, "the archivers of several servers share one name");
                return Err(error.hinted("give it by --name"));
            }
            None => name::of_server(&binlog.server.hostname, binlog.server.port)?,
        };
        let mut random = [0; 4];
        getrandom::fill(&mut random)
            .map_err(|error| Error::failed(format!("draw a random number: {error}")))?;
        let stream_options = StreamOptions {
            non_blocking: options.once,
            semi_sync: options.semi_sync,
            // A server ends the stream of a replica if another has the same server id.
            // Ids that people choose are small.
            server_id: u32::from_le_bytes(random) | 1 << 31,
        };
        let log = LogName { source: name, kind: Kind::Binlog };
        let report = ArchiveReport { source: log.source.to_string(), ..ArchiveReport::default() };
        Ok(Self {
            repo,
            log,
            options,
            listener,
            cancel,
            stream_options,
            history: None,
            discarding: None,
            lag_sum: Duration::ZERO,
            spool,
            store_failing: RecurringWarning::default(),
            spool_failing: RecurringWarning::default(),
            late: RecurringWarning::default(),
            doubts: Vec::new(),
            unacknowledged: None,
            stopped: RecurringWarning::default(),
            stuck_at: None,
            unanswered: None,
            lacked_gtids: false,
            in_vain_since: None,
            report,
        })
    }

    pub(super) fn note(&self, text: impl Into<String>) {
        self.listener.event(Event::Note { text: text.into() });
    }

    pub(super) fn warn(&self, text: impl Into<String>) {
        self.listener.event(Event::Warning { text: text.into() });
    }

    /// Archives run after run.
    fn work(&mut self) -> Result<()> {
        let mut wait = RETRY_FIRST;
        let mut is_waiting = self.options.standby;
        loop {
            if is_waiting && !self.stand_by()? {
                return Ok(());
            }
            is_waiting = false;
            let began = Instant::now();
            let outcome = self.one_run();
            if began.elapsed() >= standby::IN_VAIN_MAX {
                self.in_vain_since = None;
            }
            match outcome {
                Ok(RunEnd::Done) => return Ok(()),
                Ok(end) => {
                    wait = RETRY_FIRST;
                    self.in_vain_since = None;
                    if matches!(end, RunEnd::Asked) {
                        self.make_room();
                    }
                }
                Err(error) if self.options.standby && standby::is_for_another(&error) => {
                    if error.kind() == ErrorKind::Server {
                        self.warn(format!("{error}: standing by"));
                        self.in_vain(&error)?;
                    } else {
                        self.note(format!("{error}: standing by"));
                    }
                    is_waiting = true;
                }
                // The next run takes over what is in segments, and the server has the rest. A repository that
                // fails on the first attempt is more likely misnamed than away.
                Err(error)
                    if error.kind() == ErrorKind::Store
                        && !self.options.once
                        && self.report.until.is_some() =>
                {
                    let text = format!("the repository takes nothing at the moment: {error}");
                    self.store_failing.warn(self.listener, text);
                    let until = Instant::now() + wait;
                    while Instant::now() < until {
                        if self.cancel.is_cancelled() {
                            return Err(error);
                        }
                        thread::sleep(POLL.min(until.saturating_duration_since(Instant::now())));
                    }
                    wait = (wait * 2).min(RETRY_MAX);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the run that asked for the log to begin.
    fn make_room(&self) {
        let until = Instant::now() + ROOM_FOR;
        while Instant::now() < until && !self.cancel.is_cancelled() {
            // If this cannot be seen, the next run finds out why.
            if !matches!(standing(self.repo, &self.log), Ok(Standing::Idle)) {
                return;
            }
            self.pause(LOOK_EVERY);
        }
    }

    fn begin(&self) -> Result<(ArchiveRun, Option<Recorder>, Left)> {
        let options = RunOptions { makes_room: !self.options.once, ..self.options.run.clone() };
        let mut is_told = false;
        let mut wait = |active: &ActiveRun| {
            if !is_told {
                self.note(format!("run {} of {} drops or prunes: waiting for it", active.run, self.log));
                is_told = true;
            }
            self.pause(LOOK_EVERY);
            !self.cancel.is_cancelled()
        };
        let known = self.history.as_deref();
        let spool = self.spool.as_ref();
        ArchiveRun::begin(self.repo, &self.log, known, &options, self.writer_options(), spool, &mut wait)
    }

    fn count_unsent(&mut self) {
        let Some(spool) = &self.spool else { return };
        match spool.count() {
            Ok(0) => {}
            Ok(segments) => {
                self.report.unsent_segments = segments;
                let dir = spool.dir().display();
                self.warn(format!(
                    "{segments} segments are in {dir} and not in the repository: archive again from this host"
                ));
            }
            Err(error) => self.warn(error.to_string()),
        }
    }

    fn one_run(&mut self) -> Result<RunEnd> {
        let (mut run, recorder, left) = match self.begin() {
            Err(_) if self.cancel.is_cancelled() => return Ok(RunEnd::Done),
            begun => begun?,
        };
        if let Some(spool) = &self.spool
            && let Some(late) = told(&left, spool, self.listener)
        {
            self.late.warn(self.listener, late);
        }
        if self.store_failing.end() {
            self.note("the repository takes what comes again");
        }
        let mut recorder = recorder;
        let result = self.fill(&mut run, &mut recorder);
        self.account(&run);
        if let Some(recorder) = &recorder {
            self.report.until = recorder.tail().map(|tail| tail.place);
            self.report.gtids = recorder.tail().and_then(|tail| tail.gtids);
            self.report.last_at = recorder.last_at();
        }
        match (result, recorder) {
            (Ok(end), Some(mut recorder)) => {
                if let Some(ended) = run.finish(&mut recorder)? {
                    self.ended(ended);
                }
                Ok(end)
            }
            // Keep what has arrived, whatever went wrong with the server.
            (Err(error), Some(mut recorder))
                if error.kind() != ErrorKind::Store && !run.is_empty() && !run.is_lost() =>
            {
                match run.finish(&mut recorder) {
                    Ok(Some(ended)) => self.ended(ended),
                    Ok(None) => {}
                    Err(second) => self.warn(format!("what had come was not published: {second}")),
                }
                Err(error)
            }
            (Ok(end), None) => {
                run.give_up("nothing came");
                Ok(end)
            }
            (Err(error), _) => {
                run.give_up(&error.to_string());
                Err(error)
            }
        }
    }

    fn ended(&mut self, ended: Ended) {
        self.report.runs.push(ended.run.0);
        if let Some(spool) = &self.spool
            && let Err(error) = spool.remove_run(ended.run)
        {
            self.warn(error.to_string());
        }
        self.report.bytes += ended.bytes;
        self.report.stored_bytes += ended.stored_bytes;
        let name = &self.log;
        self.note(format!("{name} {}: {} bytes archived", ended.run, ended.bytes));
        self.history = ended.history;
        self.discarded();
        self.discarding = ended.discarding;
    }

    /// Waits until the obsolete segments of the last run are deleted.
    fn discarded(&mut self) {
        if let Some(discarding) = self.discarding.take() {
            // This is only cleanup: a later sweep removes what is left.
            let _ended = discarding.join();
        }
    }

    fn account(&mut self, run: &ArchiveRun) {
        let Some(segments) = &run.segments else { return };
        let (stored, sum, max) =
            segments.with_progress(|progress| (progress.stored, progress.lag_sum, progress.lag_max));
        self.report.segments += stored;
        self.lag_sum += sum;
        self.report.lag_max_ms = self.report.lag_max_ms.max(max.as_millis() as u64);
        let mean = (self.lag_sum.as_millis() as u64).checked_div(self.report.segments);
        self.report.lag_mean_ms = mean.unwrap_or_default();
    }

    fn writer_options(&self) -> WriterOptions {
        WriterOptions {
            compression: self.options.compression,
            compress_threads: self.options.compress_threads,
            memory_bytes: self.options.memory_bytes,
            hooks: Hooks::new(point),
            ..WriterOptions::default()
        }
    }

    /// Streams into the run until it is due, or until the end.
    fn fill(&mut self, run: &mut ArchiveRun, slot: &mut Option<Recorder>) -> Result<RunEnd> {
        let mut refused = Refused::No;
        let mut wait = RETRY_FIRST;
        let mut is_first = true;
        let mut lost_at = Instant::now();
        let (mut away, mut refused_since) = (RecurringWarning::default(), None::<Instant>);
        // Where the server's binlog ended when the run began, if the archive was far behind.
        let mut target: Option<Place> = None;
        loop {
            if self.cancel.is_cancelled() {
                return Ok(RunEnd::Done);
            }
            if run.is_lost() {
                return Err(ousted());
            }
            if run.is_asked() {
                return Ok(RunEnd::Asked);
            }
            // Requesting a place acknowledges everything before it.
            if self.options.semi_sync && !self.settle(run, slot.as_ref(), None)? {
                continue;
            }
            self.store_what_came(run, slot.as_ref(), Duration::ZERO)?;
            let connected = self.connect(run, slot, &refused);
            let (stream, files) = match connected {
                Ok(connected) => connected,
                // A server that cannot be reached on the first attempt is more likely misnamed than away.
                Err(error) if is_first && self.report.until.is_none() => return Err(error),
                Err(error) if self.options.once || !is_passing(&error) => return Err(error),
                Err(error) if self.options.standby && lost_at.elapsed() > standby::YIELD_AFTER => {
                    return Err(standby::yields(&error));
                }
                Err(error) => {
                    refused_since = is_refused(&error).then(|| refused_since.unwrap_or_else(Instant::now));
                    if refused_since.is_some_and(|since| since.elapsed() >= self.options.refused_max) {
                        return Err(error);
                    }
                    if refused_since.is_some() || lost_at.elapsed() >= TOLD_AFTER {
                        away.warn(self.listener, format!("the server cannot be archived: {error}"));
                    }
                    self.store_what_came(run, slot.as_ref(), wait)?;
                    wait = (wait * 2).min(RECONNECT_MAX);
                    continue;
                }
            };
            refused_since = None;
            let recorder = slot.as_mut().ok_or_else(|| Error::failed("nothing to record with"))?;
            let (looks, told) = self.begin_looks(run, recorder)?;
            let files = told.or(files);
            if let (Some(files), Some(end)) = (&files, recorder.known_end())
                && !files.has(&end)
                && refused == Refused::No
            {
                self.note(lacks(&end));
                refused = Refused::Unlisted;
                continue;
            }
            if is_first {
                let behind = files.as_ref().and_then(|files| files.bytes_from(recorder.place()));
                self.listener.event(Event::Phase { name: "archive" });
                if self.options.once || behind.unwrap_or_default() > CATCH_UP_BYTES {
                    target = files.as_ref().and_then(Files::end);
                } else {
                    run.go_live(self.spool.as_ref())?;
                }
            } else {
                self.report.reconnects += 1;
                self.note("connected to the server again");
                away.end();
                if run.segments.is_none() {
                    // It may be another server, or the same one from the beginning.
                    target = files.as_ref().and_then(Files::end).or(target);
                }
            }
            is_first = false;
            let streamed = self.stream(run, recorder, &stream, looks, target.as_ref());
            if self.options.semi_sync && streamed.is_ok() {
                // Acknowledge the last event while the connection is still open.
                self.settle(run, Some(recorder), Some(Instant::now() + END_OF_TRANSACTION_MAX))?;
            }
            drop(stream);
            lost_at = Instant::now();
            match streamed {
                Ok(end) => return Ok(end),
                Err(StreamEnd::Fatal(error)) => return Err(error),
                Err(StreamEnd::NotAsArchived(why)) if refused == Refused::No && self.asks_beside() => {
                    self.note(why);
                    refused = Refused::Unlisted;
                }
                Err(StreamEnd::NotAsArchived(why)) if matches!(refused, Refused::No | Refused::Unlisted) => {
                    self.note(why);
                    refused = Refused::NotAsArchived;
                }
                Err(StreamEnd::NotAsArchived(why)) => return Err(Error::new(ErrorKind::Server, why)),
                // The server died while it was writing, and continues with the next file.
                Err(StreamEnd::Torn(error)) if refused != Refused::Torn(recorder.place().file.clone()) => {
                    self.note(error.to_string());
                    refused = Refused::Torn(recorder.place().file.clone());
                }
                Err(StreamEnd::Lost(error) | StreamEnd::Torn(error)) if self.options.once => {
                    return Err(error.into());
                }
                Err(StreamEnd::Lost(error) | StreamEnd::Torn(error)) => {
                    refused = Refused::No;
                    let error = self.options.connect.explain_loss(error.into());
                    self.warn(format!("the connection to the server is lost, trying again: {error}"));
                    self.store_what_came(run, slot.as_ref(), wait)?;
                    wait = RETRY_FIRST;
                }
            }
        }
    }

    /// Stores what arrived last while no server is connected,
    /// since nothing else does so then. Takes as long as `wait`.
    fn store_what_came(
        &mut self,
        run: &mut ArchiveRun,
        recorder: Option<&Recorder>,
        wait: Duration,
    ) -> Result<()> {
        let until = Instant::now() + wait;
        self.settle(run, recorder, Some(until))?;
        if let Some(segments) = &run.segments {
            self.watch_store(segments);
        }
        self.pause(until.saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// Warns when commits can return that the archive does not have, and of how many have.
    fn weigh_semi_sync(&mut self, source: &Source, streams: bool) {
        let doubts = source.doubts(streams);
        for doubt in doubts.iter().filter(|doubt| !self.doubts.contains(doubt)) {
            self.warn(format!("--semi-sync: {doubt}"));
        }
        self.doubts = doubts;
        let now = source.unacknowledged;
        // A restarted server counts from zero.
        let more = self.unacknowledged.map_or(0, |before| now.checked_sub(before).unwrap_or(now));
        if more > 0 {
            self.warn(format!(
                "--semi-sync: {more} commits returned without waiting until they were archived"
            ));
        }
        self.report.unacknowledged += more;
        self.unacknowledged = Some(now);
    }

    /// Checks that what the server writes next can be archived:
    /// it can be made a replica, or be restarted with other options.
    fn weigh(&mut self, state: State, streams: bool) -> Result<()> {
        if let Some(source) = &state.source {
            self.weigh_semi_sync(source, streams);
        }
        match state.stopped {
            None => drop(self.stopped.end()),
            // Another archiver may be on a server whose binlog advances.
            Some(why) if self.options.standby => return Err(Error::new(ErrorKind::Active, why)),
            Some(why) => self.stopped.warn(self.listener, why),
        }
        Ok(())
    }

    fn leaves_out(&mut self, filters: Option<String>) {
        if filters != self.report.leaves_out {
            filters.iter().for_each(|filters| self.warn(left_out::of_filters(filters)));
            self.report.leaves_out = filters;
        }
    }

    fn questions(&self) -> Questions {
        Questions {
            connect: self.options.connect.clone(),
            semi_sync: self.options.semi_sync,
            standby: self.options.standby,
            allow_replica_filters: self.options.allow_replica_filters,
            unanswered: self.unanswered,
        }
    }

    /// Whether to ask the server about its binlog only while its stream runs:
    /// it may not answer while commits wait for us.
    fn asks_beside(&self) -> bool {
        self.options.semi_sync && !self.options.once
    }

    /// Waits until everything received is durable, at most until `until`. Returns whether it is.
    fn settle(
        &self,
        run: &mut ArchiveRun,
        recorder: Option<&Recorder>,
        until: Option<Instant>,
    ) -> Result<bool> {
        let go_on = || until.map_or(!self.cancel.is_cancelled(), |until| Instant::now() < until);
        run.settle(|| recorder.and_then(Recorder::tail), go_on)
    }

    pub(super) fn pause(&self, wait: Duration) {
        let until = Instant::now() + wait;
        while Instant::now() < until && !self.cancel.is_cancelled() {
            thread::sleep(POLL);
        }
    }

    /// Opens a stream that continues where the recorder is.
    /// Also returns the server's files, if it was asked for them.
    fn connect(
        &mut self,
        run: &mut ArchiveRun,
        slot: &mut Option<Recorder>,
        refused: &Refused,
    ) -> Result<(Stream, Option<Files>)> {
        let mut session = open_control(self.options)?;
        let mut state = State::read(&mut session, &self.questions())?;
        let source = state.source.take();
        if let Some(source) = &source {
            self.weigh_semi_sync(source, false);
        }
        self.weigh(state, false)?;
        if !self.asks_beside() {
            let filters = left_out::filters(&mut session)?;
            self.leaves_out(filters);
        }
        let mut binlog = Binlog::read(session)?;
        if source.as_ref().is_some_and(|source| source.stands_since(self.unanswered)) {
            binlog.silence();
        }
        match self.open_stream(run, slot, refused, &mut binlog) {
            Err(error) if binlog.is_silent() => Err(match source {
                Some(source) => {
                    self.unanswered = Some(source.waits());
                    source.explain_silence(error)
                }
                None => error,
            }),
            opened => Ok((opened?, binlog.into_files())),
        }
    }

    fn open_stream(
        &mut self,
        run: &mut ArchiveRun,
        slot: &mut Option<Recorder>,
        refused: &Refused,
        binlog: &mut Binlog,
    ) -> Result<Stream> {
        if !self.asks_beside() {
            binlog.files()?;
        }
        let tail = slot.as_ref().and_then(Recorder::tail);
        let (connect, options) = (&self.options.connect, self.stream_options);
        if self.options.standby
            && !self.options.new_identity
            && let Some(tail) = &tail
            && let Some(lack) = resume::another_lacks(binlog, tail, connect, options)?
        {
            return Err(lack.of_another(&tail.place));
        }
        let start = match &tail {
            Some(tail) => {
                let is_unasked = self.asks_beside() && *refused == Refused::No;
                let is_new = self.options.new_identity;
                resume::next(binlog, tail, refused, is_unasked, is_new, connect, options)?
            }
            None => {
                let (start, warning) = resume::first(binlog, self.repo, &self.log, connect, options)?;
                if let Some(warning) = warning {
                    self.warn(warning);
                }
                start
            }
        };
        let begin = StreamBegin::AtPlace(start.place.clone());
        let stream = Stream::open(connect, &begin, options)?;
        let recorder = slot.get_or_insert_with(|| Recorder::new(binlog.server.clone()));
        if let Some(gap) = &start.gap {
            self.gap(gap);
        }
        recorder.begin_stream(binlog.server.clone(), start, run)?;
        recorder.leaves_out(self.report.leaves_out.as_deref());
        Ok(stream)
    }

    /// Begins to look at a server whose stream has begun. Also returns its files,
    /// if it is asked for them now and answers at once.
    fn begin_looks(&mut self, run: &ArchiveRun, recorder: &mut Recorder) -> Result<(Looks, Option<Files>)> {
        let every = self.options.look_every;
        let first = if self.options.semi_sync { IS_SHOWN.min(every) } else { every };
        let is_told = !self.asks_beside();
        let mut looks = Looks { look: None, at: Instant::now() + first, seen: Seen::default(), is_told };
        if is_told {
            return Ok((looks, None));
        }
        let look = self.begin_look(run, recorder, false)?;
        let until = Instant::now() + FIRST_ANSWER_MAX;
        loop {
            match look.next(until.saturating_duration_since(Instant::now())) {
                Ok(Some(Answer::Contents(contents))) => {
                    looks.is_told = true;
                    self.has_answered(contents.filters, recorder);
                    return Ok((looks, Some(contents.files)));
                }
                Ok(Some(Answer::Unanswered(then))) => self.unanswered = Some(then),
                Ok(Some(Answer::Refused(error))) => return Err(error),
                Ok(Some(Answer::State(_))) => {}
                // The stream continues without the answer.
                Ok(None) => {
                    looks.look = Some(look);
                    return Ok((looks, None));
                }
                Err(AllAnswered) => return Ok((looks, None)),
            }
        }
    }

    /// Takes in the server's answer about what its binlog leaves out.
    fn has_answered(&mut self, filters: Option<String>, recorder: &mut Recorder) {
        self.unanswered = None;
        self.leaves_out(filters);
        recorder.leaves_out(self.report.leaves_out.as_deref());
    }

    fn begin_look(&self, run: &ArchiveRun, recorder: &Recorder, with_state: bool) -> Result<Look> {
        let asked_at = AskedAt {
            place: recorder.place().clone(),
            gtids: recorder.gtids().clone(),
            is_held_up: run.segments.is_some() && run.batch.is_full(),
        };
        Look::begin(self.questions(), with_state, asked_at)
    }

    /// Begins a look when one is due, and takes in answers. Never waits, because events keep arriving.
    fn look_beside(
        &mut self,
        looks: &mut Looks,
        run: &ArchiveRun,
        recorder: &mut Recorder,
    ) -> Result<(), StreamEnd> {
        let Some(look) = &looks.look else {
            if Instant::now() >= looks.at {
                looks.look = Some(self.begin_look(run, recorder, true)?);
            }
            return Ok(());
        };
        match look.next(Duration::ZERO) {
            Ok(None) => {}
            Ok(Some(Answer::State(state))) => {
                let weighed = state.and_then(|state| self.weigh(state, true));
                weighed.or_else(|error| if is_passing(&error) { Ok(()) } else { Err(error) })?;
            }
            Ok(Some(Answer::Unanswered(then))) => self.unanswered = Some(then),
            // Otherwise it would never be known what the binlog leaves out.
            Ok(Some(Answer::Refused(error))) => return Err(error.into()),
            Ok(Some(Answer::Contents(contents))) => {
                looks.is_told = true;
                self.has_answered(contents.filters, recorder);
                if let Some(lost) = recorder.known_end().filter(|end| !contents.files.has(end)) {
                    return Err(StreamEnd::NotAsArchived(lacks(&lost)));
                }
                if recorder.is_confirmed() && look.with_state {
                    let (asked_at, gtids) = (&look.asked_at, contents.gtids.as_ref());
                    looks.seen = self.seen(asked_at, gtids, &contents.files, &looks.seen)?;
                }
            }
            Err(AllAnswered) => {
                if look.with_state {
                    let every = self.options.look_every;
                    looks.at = Instant::now() + if looks.is_told { every } else { every.min(LOOK_AGAIN) };
                }
                looks.look = None;
            }
        }
        Ok(())
    }

    fn gap(&mut self, gap: &Gap) {
        self.warn(format!("the archive has a gap: {}", gap.text));
        self.report.gaps.push(gap.clone());
    }

    fn stream(
        &mut self,
        run: &mut ArchiveRun,
        recorder: &mut Recorder,
        stream: &Stream,
        mut looks: Looks,
        target: Option<&Place>,
    ) -> Result<RunEnd, StreamEnd> {
        let age = self.options.segment_age;
        let is_known = !recorder.is_confirmed();
        let mut is_anything_recorded = false;
        let mut cancelled = None;
        loop {
            if run.is_lost() {
                return Err(StreamEnd::Fatal(ousted()));
            }
            if !self.options.once {
                self.look_beside(&mut looks, run, recorder)?;
            }
            let due = run.segments.as_ref().and_then(|segments| segments.due_in(&run.batch, age));
            let wait = due.map_or(POLL, |due| due.min(POLL));
            let is_held_up = run.segments.is_some() && run.batch.is_full();
            let next = if is_held_up {
                thread::sleep(HELD_UP);
                Next::Nothing
            } else {
                stream.next(wait)
            };
            match next {
                Next::Event { bytes, wants_ack } => {
                    let recorded = recorder.received(&bytes, run);
                    match recorded {
                        Ok(is_recorded) => is_anything_recorded |= is_recorded,
                        Err(error @ RecordError::NotAsArchived(_)) => {
                            return Err(StreamEnd::NotAsArchived(error.to_string()));
                        }
                        Err(error) => return Err(StreamEnd::Fatal(error.into())),
                    }
                    if let Some(text) = recorder.take_missing() {
                        self.gap(&Gap { kind: GapKind::Purged, text });
                    }
                    if wants_ack {
                        run.batch.wants_ack(recorder.place().clone(), stream.acknowledger());
                    }
                }
                Next::Nothing => {}
                Next::End if self.options.once => return Ok(RunEnd::Done),
                // This is how a server says that it is being shut down.
                Next::End => {
                    return Err(StreamEnd::Lost(SqlError::new(
                        SqlCause::Lost,
                        "the server has ended the stream",
                    )));
                }
                Next::Failed(error) => {
                    let is_under_way = is_anything_recorded || is_known && recorder.is_confirmed();
                    // When it starts, MySQL cuts off what it did not finish.
                    let is_mariadb = recorder.flavor() == Flavor::MariaDb;
                    if is_mariadb && recorder.is_confirmed() && is_torn(&error) {
                        return Err(StreamEnd::Torn(error));
                    }
                    return Err(stream_end(error, is_under_way));
                }
            }
            if let Some(segments) = &run.segments {
                segments.offer(&mut run.batch, || recorder.tail(), age)?;
                segments.check()?;
                self.watch_store(segments);
            }
            if self.cancel.is_cancelled() {
                // If a run ends within a transaction, the next has to guess what its first events belong to.
                let since = *cancelled.get_or_insert_with(Instant::now);
                if recorder.is_between_transactions() || since.elapsed() > END_OF_TRANSACTION_MAX {
                    return Ok(RunEnd::Done);
                }
            }
            let has_caught_up = run.segments.is_none()
                && !self.options.once
                && target.is_some_and(|target| is_at(recorder.place(), target));
            let is_due = run.is_due(self.options.run_bytes, self.options.run_age) || has_caught_up;
            // A run cannot end while the repository is away; it continues with the spool.
            let is_due = is_due && !(self.spool.is_some() && self.store_failing.is_told());
            if recorder.is_between_transactions() {
                if run.is_asked() {
                    return Ok(RunEnd::Asked);
                }
                if is_due {
                    return Ok(RunEnd::Due);
                }
            }
        }
    }

    /// Checks that the server still writes the binlog that it sends. If its binlogs are reset and the file
    /// gets the same name again, MySQL does not end the stream:
    /// it has nothing more to send, and only sends heartbeats.
    fn seen(
        &mut self,
        asked_at: &AskedAt,
        executed: Option<&Gtids>,
        files: &Files,
        before: &Seen,
    ) -> Result<Seen, StreamEnd> {
        let place = asked_at.place.clone();
        if asked_at.is_held_up {
            // Events from the server have not been taken yet: it may be further than what was received.
            return Ok(Seen::default());
        }
        let anew = |what: &str| Err(StreamEnd::Lost(SqlError::new(SqlCause::Lost, what)));
        if !place.file.is_empty() && !files.has(&place) {
            return anew("the server has another binlog than it was sending");
        }
        // Compares with the last look: the server lists a transaction a moment after sending it.
        let lacks =
            |gtids: &Gtids| !gtids.is_empty() && !executed.is_some_and(|executed| executed.includes(gtids));
        // Commits that wait for an acknowledgement are in the binlog, but not in the GTIDs yet.
        let is_lacking = !self.options.semi_sync && before.gtids.as_ref().is_some_and(lacks);
        // Reconnect for this only once: a domain may have been removed from the GTIDs, or its numbers have
        // fallen, while the binlog continues.
        let was_lacking = std::mem::replace(&mut self.lacked_gtids, is_lacking);
        if is_lacking && !was_lacking {
            return anew("the server has begun its GTIDs anew");
        }
        let is_behind = files.bytes_from(&place).is_some_and(|bytes| bytes > 0);
        // A large event may take longer than that, and must not be requested again and again.
        if is_behind && before.behind_at.as_ref() == Some(&place) && self.stuck_at.as_ref() != Some(&place) {
            self.stuck_at = Some(place);
            return anew("the server has more than it sends");
        }
        Ok(Seen { gtids: Some(asked_at.gtids.clone()), behind_at: is_behind.then_some(place) })
    }

    fn watch_store(&mut self, segments: &Segments) {
        let (failing, spool_failing) =
            segments.with_progress(|progress| (progress.failing.clone(), progress.spool_failing.clone()));
        if let Some(spool) = &self.spool {
            let dir = spool.dir().display();
            match spool_failing {
                Some(why) => {
                    self.spool_failing
                        .warn(self.listener, format!("{dir} takes nothing at the moment: {why}"));
                }
                None if self.spool_failing.end() => self.note(format!("{dir} takes what comes again")),
                None => {}
            }
        }
        match failing {
            Some(why) => {
                let text = format!("the repository takes nothing at the moment, trying again: {why}");
                self.store_failing.warn(self.listener, text);
            }
            None if self.store_failing.end() => self.note("the repository takes what comes again"),
            None => {}
        }
    }
}

/// Opens a session for questions. A server whose commits may wait for us has to answer soon.
fn open_control(options: &ArchiveOptions) -> Result<Session> {
    let mut session = Session::open(&options.connect, Purpose::Control)?;
    if options.semi_sync {
        session.set_answer_timeout(ANSWER_MAX)?;
    }
    Ok(session)
}

/// Says what a server has lost.
fn lacks(end: &Place) -> String {
    format!("the server's binlog does not reach to {end}, where the archive ends")
}

/// Reports what became of segments that were acknowledged earlier and did not reach the repository. Returns
/// the text of a warning, if one is due.
fn told(left: &Left, spool: &Spool, listener: &dyn Listener) -> Option<String> {
    let dir = spool.dir().display();
    let note = |segments: u64, what: &str| {
        if segments > 0 {
            listener.event(Event::Note { text: format!("{segments} segments in {dir} {what}") });
        }
    };
    note(left.sent, "that had been left are in the repository now");
    note(left.needless, "are removed: another has archived what is in them");
    (left.late > 0).then(|| {
        let until = left.until.as_ref().map(|until| format!(", up to {}", until.place)).unwrap_or_default();
        format!(
            "{} segments in {dir}{until}, came too late for the archive, which another went on with, or are damaged: what is \
             in them is not there until a server sends it again",
            left.late
        )
    })
}

/// Why a stream ended.
enum StreamEnd {
    /// The stream can be restarted.
    Lost(SqlError),
    /// The file ends in the middle of an event.
    Torn(SqlError),
    /// The server sends something other than what was archived, or does not have it.
    NotAsArchived(String),
    /// Another attempt would end in the same way.
    Fatal(Error),
}

impl From<Error> for StreamEnd {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// Whether a file ends within an event. The error code covers everything that a server cannot read;
/// both flavors use these words.
fn is_torn(error: &SqlError) -> bool {
    error.code() == Some(code::READING_FAILED)
        && error.to_string().contains("truncated in the middle of event")
}

fn stream_end(error: SqlError, is_under_way: bool) -> StreamEnd {
    match error.cause() {
        SqlCause::Lost => StreamEnd::Lost(error),
        // At the beginning: the server does not have it.
        // Later: the server is going down, or has purged what we were reading.
        SqlCause::Refused(code::READING_FAILED) if !is_under_way => {
            StreamEnd::NotAsArchived(error.to_string())
        }
        SqlCause::Refused(number)
            if *number == code::READING_FAILED || (1000..2000).contains(number) && is_under_way =>
        {
            StreamEnd::Lost(error)
        }
        _ => StreamEnd::Fatal(error.into()),
    }
}

/// Whether the server may be back soon.
fn is_passing(error: &Error) -> bool {
    error.kind() == ErrorKind::Server
}

/// Whether the server did not answer.
pub(super) fn is_lost(error: &Error) -> bool {
    error.cause::<SqlError>().is_some_and(|error| *error.cause() == SqlCause::Lost)
}

/// Whether the server was reached, and refused.
pub(super) fn is_refused(error: &Error) -> bool {
    error.cause::<SqlError>().is_some_and(SqlError::lasts)
}

fn is_at(place: &Place, target: &Place) -> bool {
    binlog_order(&place.file, place.position) >= binlog_order(&target.file, target.position)
}
