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

use holdfast_repo::{
    Kind, LogName, Repo,
    data::writer::WriterOptions,
    hooks::Hooks,
    log::{
        history::History,
        run::{ActiveRun, BeginError, Run, RunOptions, Standing, standing},
    },
};
use jiff::Timestamp;

use self::{link::open_control, monitor::Monitor};
use super::{
    backoff::Backoff,
    left_out,
    recorder::Recorder,
    recurring::RecurringWarning,
    resume::Binlog,
    run::{ArchiveRun, Ended},
    semi_sync::Source,
    spool::{Left, Spool},
    stored::stored_tail,
    stream::StreamOptions,
    stretch::Tail,
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    points::point,
    server::{SqlCause, SqlError, check_binlog_grants, facts::Identity},
    taking::name,
};

mod away;
mod link;
mod look;
mod monitor;
mod options;
mod standby;
mod streaming;

pub use away::Away;
pub use options::{ArchiveOptions, ArchiveReport};

/// Polls for due work and for a stop request this often.
const POLL: Duration = Duration::from_millis(50);
/// How long the archiver keeps the log free for the run that asked for it.
const ROOM_FOR: Duration = Duration::from_secs(15);
/// Checks this often whether that run has begun, or ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);

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
    archiver.report.leaves_out = archiver.monitor.filters.take();
    archiver.report.unacknowledged = archiver.monitor.unacknowledged;
    archiver.report.away = archiver.away();
    archiver.report.elapsed_ms = began.elapsed().as_millis() as u64;
    if let (Err(_), Some(away)) = (&outcome, archiver.report.away) {
        archiver.warn(away.to_string());
    }
    outcome.map_err(|error| options.connect.explain_loss(error).at(repo))?;
    Ok(archiver.report)
}

/// An archiver at work: what it keeps from one run to the next.
struct Archiver<'a> {
    repo: &'a Arc<Repo>,
    log: LogName,
    options: &'a ArchiveOptions,
    listener: &'a dyn Listener,
    cancel: &'a Cancel,
    stream_options: StreamOptions,
    /// The server that was reached first.
    reached: Identity,
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
    monitor: Monitor<'a>,
    /// Since when no archiver has been active although this one tries to be.
    in_vain_since: Option<Instant>,
    /// Whether a server and a repository were reached.
    is_under_way: bool,
    /// When the last stream ended, or the server was reached.
    heard_until: Timestamp,
    /// Since when the server has been away, if it is.
    away_since: Option<Timestamp>,
    report: ArchiveReport,
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
            let error = Error::new(
                ErrorKind::Usage,
                "a spool needs the name of its archive, which cannot be read from a server that is away",
            );
            return Err(error.hinted("name the archive with --name"));
        };
        let log = LogName { source, kind: Kind::Binlog };
        let spool = Spool::open(spool, repo, &log)?;
        if spool.count()? > 0 {
            match Run::begin(repo, &log, &options.run) {
                Ok(run) => {
                    // The first run that archives reports what came too late.
                    told(&spool.send_left(&run)?, &spool, listener);
                    run.abandon("it only sent on what was left in a spool")?;
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
        let mut session = open_control(&options.connect, options)?;
        let source = if options.semi_sync { Some(Source::read(&mut session)?) } else { None };
        // The check lists the binlog files.
        // Without it, an account that may not do that learns so from the stream.
        if source.as_ref().is_none_or(|source| source.waiting() == 0) {
            match check_binlog_grants(&mut session) {
                Err(error) if options.semi_sync && is_lost(&error) => {
                    session = open_control(&options.connect, options)?
                }
                checked => checked?,
            }
        }
        left_out::require_all(&mut session, options.standby, options.allow_replica_filters)?;
        // A standby archiver may be on a replica, whose commits do not wait for anybody yet.
        if let Some(source) = source.filter(|_| !options.standby) {
            source.require_enabled()?;
        }
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
        let binlog = Binlog::read(session, &options.connect, stream_options)?;
        let name = match &options.name {
            Some(name) => name.clone(),
            None if options.standby => {
                let text = "--standby needs the name that the archivers of all servers share";
                return Err(Error::new(ErrorKind::Usage, text).hinted("name the archive with --name"));
            }
            None => name::of_server(&binlog.server.hostname, binlog.server.port)?,
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
            reached: binlog.identity.clone(),
            history: None,
            discarding: None,
            lag_sum: Duration::ZERO,
            spool,
            store_failing: RecurringWarning::default(),
            spool_failing: RecurringWarning::default(),
            late: RecurringWarning::default(),
            monitor: Monitor::new(options, listener),
            in_vain_since: None,
            is_under_way: false,
            heard_until: Timestamp::now(),
            away_since: None,
            report,
        })
    }

    fn note(&self, text: impl Into<String>) {
        self.listener.event(Event::Note { text: text.into() });
    }

    fn warn(&self, text: impl Into<String>) {
        self.listener.event(Event::Warning { text: text.into() });
    }

    /// Archives run after run.
    fn work(&mut self) -> Result<()> {
        let mut backoff = Backoff::of_store();
        let mut is_waiting = self.options.standby;
        loop {
            if is_waiting && !self.stand_by()? {
                // What others have archived meanwhile, if that can be seen.
                self.reports_until(stored_tail(self.repo, &self.log).unwrap_or_default());
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
                    backoff.reset();
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
                    // Its server's absence loses nothing that another archives.
                    self.away_since = None;
                }
                // The next run takes over what is in segments, and the server has the rest. A repository that
                // fails on the first attempt is more likely misnamed than away.
                Err(error) if error.kind() == ErrorKind::Store && !self.options.once && self.is_under_way => {
                    let text = format!("nothing can be stored in the repository at the moment: {error}");
                    self.store_failing.warn(self.listener, text);
                    let until = Instant::now() + backoff.next();
                    while Instant::now() < until {
                        if self.cancel.is_cancelled() {
                            return Err(error);
                        }
                        thread::sleep(POLL.min(until.saturating_duration_since(Instant::now())));
                    }
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
                self.note(format!("{active}: waiting for it to end"));
                is_told = true;
            }
            self.pause(LOOK_EVERY);
            !self.cancel.is_cancelled()
        };
        let known = self.history.as_deref();
        let spool = self.spool.as_ref();
        ArchiveRun::begin(self.repo, &self.log, known, &options, &self.writer_options(), spool, &mut wait)
    }

    fn count_unsent(&mut self) {
        let Some(spool) = &self.spool else { return };
        match spool.count() {
            Ok(0) => {}
            Ok(segments) => {
                self.report.unsent_segments = segments;
                let dir = spool.dir().display();
                self.warn(format!(
                    "{segments} segments are in {dir} and not yet in the repository: run the archiver on \
                     this host again to send them"
                ));
            }
            Err(error) => self.warn(error.to_string()),
        }
    }

    fn one_run(&mut self) -> Result<RunEnd> {
        let (mut run, recorder, left) = match self.begin() {
            // It has waited for another run.
            Err(error) if self.cancel.is_cancelled() && error.kind() == ErrorKind::Active => {
                return Ok(RunEnd::Done);
            }
            begun => begun?,
        };
        if let Some(spool) = &self.spool
            && let Some(late) = told(&left, spool, self.listener)
        {
            self.late.warn(self.listener, late);
        }
        for problem in std::mem::take(&mut run.unreadable) {
            self.warn(format!(
                "{problem}: what that run had archived from there on is missing, unless the server still has it"
            ));
        }
        let mut recorder = recorder;
        self.reports_until(recorder.as_ref().and_then(Recorder::tail));
        let result = self.fill(&mut run, &mut recorder);
        self.account(&run);
        self.is_under_way |= recorder.is_some();
        // What else has come is durable only once the run has ended.
        self.reports_until(run.stored_until());
        match (result, recorder) {
            (Ok(end), Some(mut recorder)) => {
                if let Some(ended) = run.finish(&mut recorder)? {
                    self.ended(ended);
                }
                self.reports_until(recorder.tail());
                Ok(end)
            }
            // Keep what has arrived, whatever went wrong with the server.
            (Err(error), Some(mut recorder))
                if error.kind() != ErrorKind::Store && !run.is_empty() && !run.is_lost() =>
            {
                match run.finish(&mut recorder) {
                    Ok(ended) => {
                        ended.into_iter().for_each(|ended| self.ended(ended));
                        self.reports_until(recorder.tail());
                    }
                    Err(second) => {
                        self.warn(format!("the events received so far were not published: {second}"))
                    }
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

    /// Reports that everything up to there is durable.
    fn reports_until(&mut self, tail: Option<Tail>) {
        let Some(tail) = tail else { return };
        self.report.until = Some(tail.place);
        self.report.gtids = tail.gtids;
        self.report.last_at = tail.last_at;
    }

    fn ended(&mut self, ended: Ended) {
        if self.store_failing.end() {
            self.note("the repository can be written to again");
        }
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

    fn pause(&self, wait: Duration) {
        let until = Instant::now() + wait;
        while Instant::now() < until && !self.cancel.is_cancelled() {
            thread::sleep(POLL);
        }
    }
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
    note(left.sent, "that earlier runs had left are in the repository now");
    note(left.needless, "were removed: the archive contains by now what is in them");
    (left.late > 0).then(|| {
        let until = left.until.as_ref().map(|until| format!(", up to {},", until.place)).unwrap_or_default();
        format!(
            "{} segments in {dir}{until} are damaged, or came too late because another archiver has \
             continued the archive: their transactions are missing until a server sends them again",
            left.late
        )
    })
}

/// Whether the server did not answer.
fn is_lost(error: &Error) -> bool {
    error.cause::<SqlError>().is_some_and(|error| *error.cause() == SqlCause::Lost)
}

/// Whether the server was reached, and refused.
fn is_refused(error: &Error) -> bool {
    error.cause::<SqlError>().is_some_and(SqlError::lasts)
}
