//! Archiving: reach the server → begin a run → find where the archive goes on → record what comes, run after run.
//!
//! - What is recorded goes on exactly behind what is archived, or behind a gap that is named.
//! - A server that goes away is waited for; a repository that does is, too, while the server keeps what is not stored.

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

/// How often it looks for due work and for a request to end.
const POLL: Duration = Duration::from_millis(50);
/// How often it is looked whether a batch that is full can be handed over.
const HELD_UP: Duration = Duration::from_millis(5);
/// How long the archiver leaves the log to whoever has asked for it.
const ROOM_FOR: Duration = Duration::from_secs(15);
/// How often it is looked whether they have begun, or ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Waits between attempts to reach a server that has gone away, or a repository.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// How long after its last sign of life an archiver may be replaced.
const PATIENCE: Duration = Duration::from_secs(60);
const RENEWAL: Duration = Duration::from_secs(15);
/// Who asks to end waits so long for the end of the transaction that is under way.
const END_OF_TRANSACTION_MAX: Duration = Duration::from_secs(10);
/// A stream that has begun shows among the server's replicas after so long.
const IS_SHOWN: Duration = Duration::from_secs(2);
/// So long a server whose commits may wait for us may take for an answer before its stream.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// A stream that has begun waits so long for an answer that makes it easier.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(1);
/// A server that has not yet said what its binlog leaves out is asked again after so long.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A server that cannot be reached for so long is told of.
const TOLD_AFTER: Duration = Duration::from_secs(30);
/// So far behind the server a run stores no segments: it ends as soon as it has caught up.
const CATCH_UP_BYTES: u64 = 64 << 20;

/// What the user decides.
#[derive(Clone, Debug)]
pub struct ArchiveOptions {
    /// How to reach the server.
    pub connect: ConnectOptions,
    /// The history that the archive belongs to; `None`: host and port of the server.
    pub name: Option<SourceName>,
    /// Ends where the binlog ends now.
    pub once: bool,
    /// What comes is durable after so long.
    pub segment_age: Duration,
    /// A run ends after so many bytes.
    pub run_bytes: u64,
    /// A run ends after so long.
    pub run_age: Duration,
    /// The server's commits wait until they are durable.
    pub semi_sync: bool,
    /// What comes is durable, and acknowledged, once it is on this host; the repository has it soon. `None`: once the
    /// repository has it.
    pub spool: Option<SpoolOptions>,
    /// How often it is looked whether the server has become one whose binlog lacks something.
    pub look_every: Duration,
    /// Ends where the server refuses for so long: a password that was changed is not found by waiting.
    pub refused_max: Duration,
    /// Waits while another archives, and takes its place when it is gone, from this server. Gives the place up when the
    /// server is away.
    pub standby: bool,
    /// The server may be a replica that leaves out some of what it replicates.
    pub allow_replica_filters: bool,
    /// The server may be another than the one that was archived.
    pub new_identity: bool,
    /// How chunks are made smaller.
    pub compression: Compression,
    /// Threads that compress.
    pub compress_threads: usize,
    /// Memory for everything that grows but the largest event.
    pub memory_bytes: usize,
    /// How the run presents itself and keeps its lease.
    pub run: RunOptions,
}

impl ArchiveOptions {
    /// What an expert would choose on this host.
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

/// What an archiver did until it ended.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ArchiveReport {
    /// The source.
    pub source: String,
    /// The archive's runs that stand now because of it.
    pub runs: Vec<u64>,
    /// Bytes of events.
    pub bytes: u64,
    /// Bytes of packs that were stored for them.
    pub stored_bytes: u64,
    /// Where the archive ends.
    pub until: Option<Place>,
    /// When the last transaction was committed, in microseconds since 1970.
    pub last_at: Option<u64>,
    /// All transactions that are archived, where the server names them.
    pub gtids: Option<String>,
    /// What is missing, as it was found.
    pub gaps: Vec<Gap>,
    /// By which settings the server leaves something out of its binlog, with their values, as they were last.
    pub leaves_out: Option<String>,
    /// Commits of which the server said that they returned without an acknowledgement, where they were to wait for one.
    pub unacknowledged: u64,
    /// Segments that are on this host and not in the repository.
    pub unsent_segments: u64,
    /// Segments stored.
    pub segments: u64,
    /// Longest time from the arrival of an event until it was durable.
    pub lag_max_ms: u64,
    /// The same on average of all segments.
    pub lag_mean_ms: u64,
    /// How often the connection to the server was made again.
    pub reconnects: u64,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// Archives the binlog of a server, until it is asked to end or, if so wanted, until the end of the binlog.
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
    /// As it was when the last run ended: between two runs nothing is made durable, so that little is to be read then.
    history: Option<Arc<History>>,
    discarding: Option<JoinHandle<()>>,
    lag_sum: Duration,
    spool: Option<Arc<Spool>>,
    store_failing: RecurringWarning,
    spool_failing: RecurringWarning,
    /// That segments of the spool came too late.
    late: RecurringWarning,
    /// What lets commits return without the archive, and of how many the server has said so.
    doubts: Vec<String>,
    unacknowledged: Option<u64>,
    /// That the server has stopped replicating.
    stopped: RecurringWarning,
    /// Where a server had more than it sent, and was asked again for that.
    stuck_at: Option<Place>,
    /// How many commits had waited when the server did not say what its binlog is.
    unanswered: Option<Waits>,
    /// Whether the server's GTIDs lacked some of what it has sent, at the last look.
    lacked_gtids: bool,
    /// Since when nobody archives, although this archiver tries to.
    pub(super) in_vain_since: Option<Instant>,
    report: ArchiveReport,
}

/// What was found when it was looked whether a server still writes what it sends.
#[derive(Default)]
struct Seen {
    /// What was archived.
    gtids: Option<Gtids>,
    /// Where the archive stood, if the server had more.
    behind_at: Option<Place>,
}

/// The looks at a server while its stream runs.
struct Looks {
    look: Option<Look>,
    /// When the next is due.
    at: Instant,
    seen: Seen,
    /// The server has said what its binlog leaves out.
    is_told: bool,
}

/// Why a run was left.
enum RunEnd {
    /// It is long enough.
    Due,
    /// Somebody who drops or prunes waits for its end.
    Asked,
    /// All that was wanted is there.
    Done,
}

impl<'a> Archiver<'a> {
    /// The spool, when what it had is sent on: the server that it came from may be gone.
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
                    // The first run that archives says what came too late.
                    told(&spool.send_left(&run)?, &spool, listener);
                    run.abandon("it has sent on what was left in a spool")?;
                }
                // It is looked at when this one archives.
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
        // That tries to list the files. Who may not do it hears that from the stream, too.
        if source.as_ref().is_none_or(|source| source.waiting() == 0) {
            match check_binlog_grants(&mut session) {
                Err(error) if options.semi_sync && is_lost(&error) => session = open_control(options)?,
                checked => checked?,
            }
        }
        left_out::require_all(&mut session, options.standby, options.allow_replica_filters)?;
        // Who stands by may be at a replica, whose commits nobody waits for yet.
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
            // Servers end a stream of a replica whose number another has; those of people are small.
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

    /// Run after run.
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
                // What is in segments the next run takes over; the server has the rest.
                // A repository that fails at once is more likely named wrongly than away.
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

    /// Lets whoever has asked for it begin.
    fn make_room(&self) {
        let until = Instant::now() + ROOM_FOR;
        while Instant::now() < until && !self.cancel.is_cancelled() {
            // Where it cannot be seen, the next run finds out.
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
            // What came is worth keeping, whatever has gone wrong with the server.
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

    /// Waits until what the last run has left is deleted.
    fn discarded(&mut self) {
        if let Some(discarding) = self.discarding.take() {
            // It only tidies up: a later sweep does what is left.
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
        // Where the server was when the run began, if that is far.
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
            // Who asks for a place has acknowledged what is before it.
            if self.options.semi_sync && !self.settle(run, slot.as_ref(), None)? {
                continue;
            }
            self.store_what_came(run, slot.as_ref(), Duration::ZERO)?;
            let connected = self.connect(run, slot, &refused);
            let (stream, files) = match connected {
                Ok(connected) => connected,
                // A server that cannot be reached at once is more likely named wrongly than away.
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
                    // It may be another server, or the same from the beginning.
                    target = files.as_ref().and_then(Files::end).or(target);
                }
            }
            is_first = false;
            let streamed = self.stream(run, recorder, &stream, looks, target.as_ref());
            if self.options.semi_sync && streamed.is_ok() {
                // The last that came is acknowledged while there is somebody to hear it.
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
                // A server that died while it wrote: it goes on with the next file.
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

    /// While no server is there, nobody else offers what came last to the store. Takes so long.
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

    /// Tells when commits return that the archive does not have, and how many have.
    fn weigh_semi_sync(&mut self, source: &Source, streams: bool) {
        let doubts = source.doubts(streams);
        for doubt in doubts.iter().filter(|doubt| !self.doubts.contains(doubt)) {
            self.warn(format!("--semi-sync: {doubt}"));
        }
        self.doubts = doubts;
        let now = source.unacknowledged;
        // A server that was started anew counts from nothing.
        let more = self.unacknowledged.map_or(0, |before| now.checked_sub(before).unwrap_or(now));
        if more > 0 {
            self.warn(format!(
                "--semi-sync: {more} commits returned without waiting until they were archived"
            ));
        }
        self.report.unacknowledged += more;
        self.unacknowledged = Some(now);
    }

    /// Whether what the server is about to write can be archived: others can make it a replica, or start it anew with other
    /// options.
    fn weigh(&mut self, state: State, streams: bool) -> Result<()> {
        if let Some(source) = &state.source {
            self.weigh_semi_sync(source, streams);
        }
        match state.stopped {
            None => drop(self.stopped.end()),
            // Another may be at a server that goes on.
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

    /// Whether the server is asked what its binlog is only when its stream runs: it may not answer as long as commits
    /// wait for us.
    fn asks_beside(&self) -> bool {
        self.options.semi_sync && !self.options.once
    }

    /// Waits until what came is durable, and at most until then. Returns whether it is.
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

    /// A stream that goes on where the recorder stands, and the server's files, where they were asked for.
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

    /// The looks at a server whose stream has begun, and its files, if it is asked for them now and says so at once.
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
                // It goes on without.
                Ok(None) => {
                    looks.look = Some(look);
                    return Ok((looks, None));
                }
                Err(AllAnswered) => return Ok((looks, None)),
            }
        }
    }

    /// The server has said what its binlog leaves out.
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

    /// Begins a look when it is due, and takes in what has been answered. Waits for nothing: events go on coming.
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
            // What it leaves out would never be known.
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
                // How a server says that it is being shut down.
                Next::End => {
                    return Err(StreamEnd::Lost(SqlError::new(
                        SqlCause::Lost,
                        "the server has ended the stream",
                    )));
                }
                Next::Failed(error) => {
                    let is_under_way = is_anything_recorded || is_known && recorder.is_confirmed();
                    // MySQL cuts off what it did not finish when it starts.
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
                // A run that ends within a transaction leaves the next one to guess what it belongs to.
                let since = *cancelled.get_or_insert_with(Instant::now);
                if recorder.is_between_transactions() || since.elapsed() > END_OF_TRANSACTION_MAX {
                    return Ok(RunEnd::Done);
                }
            }
            let has_caught_up = run.segments.is_none()
                && !self.options.once
                && target.is_some_and(|target| is_at(recorder.place(), target));
            let is_due = run.is_due(self.options.run_bytes, self.options.run_age) || has_caught_up;
            // Which cannot end while the repository is away, and goes on with the spool.
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

    /// Whether the server still writes the binlog that it sends. A server whose binlogs are begun anew does not end a stream
    /// where the file has the same name again (MySQL): it has nothing more to send, and says that it lives.
    fn seen(
        &mut self,
        asked_at: &AskedAt,
        executed: Option<&Gtids>,
        files: &Files,
        before: &Seen,
    ) -> Result<Seen, StreamEnd> {
        let place = asked_at.place.clone();
        if asked_at.is_held_up {
            // What it sends has not been taken: it may be further than what was received.
            return Ok(Seen::default());
        }
        let anew = |what: &str| Err(StreamEnd::Lost(SqlError::new(SqlCause::Lost, what)));
        if !place.file.is_empty() && !files.has(&place) {
            return anew("the server has another binlog than it was sending");
        }
        // Of the last look: it lists a transaction a moment after it has sent it.
        let lacks =
            |gtids: &Gtids| !gtids.is_empty() && !executed.is_some_and(|executed| executed.includes(gtids));
        // Commits that wait to be acknowledged are in the binlog, and in no GTIDs yet.
        let is_lacking = !self.options.semi_sync && before.gtids.as_ref().is_some_and(lacks);
        // Once: a domain may have been taken out of them, or its numbers have fallen, and the binlog goes on.
        let was_lacking = std::mem::replace(&mut self.lacked_gtids, is_lacking);
        if is_lacking && !was_lacking {
            return anew("the server has begun its GTIDs anew");
        }
        let is_behind = files.bytes_from(&place).is_some_and(|bytes| bytes > 0);
        // A large event may take longer than that, and is not to be sent again and again.
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

/// A session for questions. A server whose commits may wait for us has to answer soon.
fn open_control(options: &ArchiveOptions) -> Result<Session> {
    let mut session = Session::open(&options.connect, Purpose::Control)?;
    if options.semi_sync {
        session.set_answer_timeout(ANSWER_MAX)?;
    }
    Ok(session)
}

/// What a server has lost.
fn lacks(end: &Place) -> String {
    format!("the server's binlog does not reach to {end}, where the archive ends")
}

/// What became of what was acknowledged before and did not reach the repository. Returns what to warn of.
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

/// Why a stream came to its end.
enum StreamEnd {
    /// It can be begun again.
    Lost(SqlError),
    /// The file ends in the middle of an event.
    Torn(SqlError),
    /// What comes is not what was archived, or the server does not have it.
    NotAsArchived(String),
    /// It would be the same again.
    Fatal(Error),
}

impl From<Error> for StreamEnd {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// Whether a file ends within an event. The code is that of all that a server cannot read; the words are of both flavors.
fn is_torn(error: &SqlError) -> bool {
    error.code() == Some(code::READING_FAILED)
        && error.to_string().contains("truncated in the middle of event")
}

fn stream_end(error: SqlError, is_under_way: bool) -> StreamEnd {
    match error.cause() {
        SqlCause::Lost => StreamEnd::Lost(error),
        // At the beginning: not there. Later: the server is going down, or has purged what we were reading.
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

/// Whether the server was there, and said no.
pub(super) fn is_refused(error: &Error) -> bool {
    error.cause::<SqlError>().is_some_and(SqlError::lasts)
}

fn is_at(place: &Place, target: &Place) -> bool {
    binlog_order(&place.file, place.position) >= binlog_order(&target.file, target.position)
}
