//! Keeps a stream open into a run: connects where the archive continues, reconnects when the server goes
//! away, and asks the server where to continue if it does not send what was archived.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{ArchiveOptions, Archiver, RunEnd, is_refused, look::State, standby};
use crate::{
    binlog::{
        backoff::Backoff,
        left_out,
        recorder::Recorder,
        recurring::RecurringWarning,
        resume::{self, Binlog, Files, Refused},
        run::ArchiveRun,
        segments::ousted,
        stream::{Stream, StreamBegin},
        stretch::Place,
    },
    error::{Error, ErrorKind, Result},
    event::Event,
    server::{ConnectOptions, Purpose, Session, SqlError},
};

const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// How long to wait for the current transaction to finish once a stop is requested,
/// and for the last acknowledgement.
pub(super) const END_OF_TRANSACTION_MAX: Duration = Duration::from_secs(10);
/// How long a server whose commits may wait for us may take for an answer before its stream begins.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// Warns once a server has been unreachable for this long.
const TOLD_AFTER: Duration = Duration::from_secs(30);
/// A run that begins further behind the server than this stores no segments,
/// and ends as soon as it has caught up.
const CATCH_UP_BYTES: u64 = 64 << 20;

/// Why a stream ended.
pub(super) enum StreamEnd {
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

/// What a run has seen of its connections to the server.
struct Link {
    /// Whether there was none yet.
    is_first: bool,
    /// Why the place at which the archive ended cannot be used.
    refused: Refused,
    /// When the last one ended.
    lost_at: Instant,
    /// Since when the server has refused to be archived.
    refused_since: Option<Instant>,
    away: RecurringWarning,
    backoff: Backoff,
    /// Where the server's binlog ended when the run began, if the archive was far behind.
    target: Option<Place>,
}

impl Link {
    fn new() -> Self {
        Self {
            is_first: true,
            refused: Refused::No,
            lost_at: Instant::now(),
            refused_since: None,
            away: RecurringWarning::default(),
            backoff: Backoff::up_to(RECONNECT_MAX),
            target: None,
        }
    }
}

impl Archiver<'_> {
    /// Streams into the run until it is due, or until the end.
    pub(super) fn fill(&mut self, run: &mut ArchiveRun, slot: &mut Option<Recorder>) -> Result<RunEnd> {
        let mut link = Link::new();
        loop {
            if let Some(end) = self.why_to_end(run, &link)? {
                return Ok(end);
            }
            if self.options.semi_sync && !self.settle(run, slot.as_ref(), None)? {
                continue;
            }
            self.store_what_came(run, slot.as_ref(), Duration::ZERO)?;
            let (stream, files) = match self.connect(run, slot, &link.refused) {
                Ok(connected) => connected,
                Err(error) => {
                    let wait = self.unreachable(&mut link, run, error)?;
                    self.store_what_came(run, slot.as_ref(), wait)?;
                    continue;
                }
            };
            link.refused_since = None;
            let recorder = slot.as_mut().ok_or_else(|| Error::failed("nothing to record with"))?;
            let (looks, told) = self.monitor.begin_looks(run, recorder, &stream)?;
            let files = told.or(files);
            if let (Some(files), Some(end)) = (&files, recorder.known_end())
                && !files.has(&end)
                && link.refused == Refused::No
            {
                self.note(lacks(&end));
                link.refused = Refused::Unlisted;
                continue;
            }
            self.connected(&mut link, run, recorder, files.as_ref())?;
            let streamed = self.stream(run, recorder, &stream, looks, link.target.as_ref());
            self.close(run, recorder, stream, &streamed)?;
            link.lost_at = Instant::now();
            self.heard_until = Timestamp::now();
            match streamed {
                Ok(end) => return Ok(end),
                Err(end) => {
                    if let Some(wait) = self.interrupted(&mut link, recorder.place(), end)? {
                        self.store_what_came(run, slot.as_ref(), wait)?;
                    }
                }
            }
        }
    }

    /// Why the run ends before it connects again, if it does.
    fn why_to_end(&self, run: &ArchiveRun, link: &Link) -> Result<Option<RunEnd>> {
        if self.cancel.is_cancelled() {
            return Ok(Some(RunEnd::Done));
        }
        if run.is_lost() {
            return Err(ousted());
        }
        if run.is_asked() {
            return Ok(Some(RunEnd::Asked));
        }
        // Requesting a place acknowledges everything before it. A run that catches up keeps it only once it has
        // ended.
        let must_end_first = self.options.semi_sync && !link.is_first && run.keeps_events_only_by_ending();
        Ok(must_end_first.then_some(RunEnd::Due))
    }

    /// Says how long to wait until the next try; fails if there is to be none.
    fn unreachable(&mut self, link: &mut Link, run: &ArchiveRun, error: Error) -> Result<Duration> {
        // A server that cannot be reached on the first attempt is more likely misnamed than away.
        if link.is_first && !self.is_under_way || self.options.once || !is_passing(&error) {
            return Err(error);
        }
        self.is_away();
        self.reports_until(run.stored_until());
        if self.options.standby && link.lost_at.elapsed() > standby::YIELD_AFTER {
            return Err(standby::yields(&error, self.away()));
        }
        link.refused_since = is_refused(&error).then(|| link.refused_since.unwrap_or_else(Instant::now));
        if link.refused_since.is_some_and(|since| since.elapsed() >= self.options.refused_max) {
            return Err(error);
        }
        if link.refused_since.is_some() || link.lost_at.elapsed() >= TOLD_AFTER {
            let away = self.away().map(|away| format!("; {away}")).unwrap_or_default();
            link.away.warn(self.listener, format!("the server cannot be archived: {error}{away}"));
        }
        Ok(link.backoff.next())
    }

    /// The first connection decides whether the run stores segments; later ones are reported.
    fn connected(
        &mut self,
        link: &mut Link,
        run: &mut ArchiveRun,
        recorder: &Recorder,
        files: Option<&Files>,
    ) -> Result<()> {
        self.away_since = None;
        if std::mem::take(&mut link.is_first) {
            let behind = files.and_then(|files| files.bytes_from(recorder.place()));
            self.listener.event(Event::Phase { name: "archive" });
            if self.options.once || behind.unwrap_or_default() > CATCH_UP_BYTES {
                link.target = files.and_then(Files::end);
            } else {
                run.go_live(self.spool.as_ref())?;
            }
            return Ok(());
        }
        self.report.reconnects += 1;
        self.note("connected to the server again");
        link.away.end();
        if run.segments.is_none() {
            // It may be another server, or the same one from the beginning.
            link.target = files.and_then(Files::end).or(link.target.take());
        }
        Ok(())
    }

    /// Closes a stream; where commits wait, not before the last of them is acknowledged.
    fn close(
        &self,
        run: &mut ArchiveRun,
        recorder: &Recorder,
        stream: Stream,
        streamed: &Result<RunEnd, StreamEnd>,
    ) -> Result<()> {
        if self.options.semi_sync && streamed.is_ok() {
            self.settle(run, Some(recorder), Some(Instant::now() + END_OF_TRANSACTION_MAX))?;
        }
        if self.options.semi_sync && matches!(streamed, Ok(RunEnd::Done) | Err(StreamEnd::Fatal(_))) {
            self.sign_off(&stream);
        }
        Ok(())
    }

    /// Decides how to go on after a stream that was not to end: at once or, if the server is gone, after the time
    /// returned. Fails if there is to be no other try.
    fn interrupted(&mut self, link: &mut Link, place: &Place, end: StreamEnd) -> Result<Option<Duration>> {
        match end {
            StreamEnd::Fatal(error) => return Err(error),
            StreamEnd::NotAsArchived(why) if link.refused == Refused::No && self.monitor.asks_beside() => {
                self.note(why);
                link.refused = Refused::Unlisted;
            }
            StreamEnd::NotAsArchived(why) if matches!(link.refused, Refused::No | Refused::Unlisted) => {
                self.note(why);
                link.refused = Refused::NotAsArchived;
            }
            StreamEnd::NotAsArchived(why) => return Err(Error::new(ErrorKind::Server, why)),
            // The server died while it was writing, and continues with the next file.
            StreamEnd::Torn(error) if link.refused != Refused::Torn(place.file.clone()) => {
                self.note(error.to_string());
                link.refused = Refused::Torn(place.file.clone());
            }
            StreamEnd::Lost(error) | StreamEnd::Torn(error) => {
                if self.options.once {
                    return Err(error.into());
                }
                link.refused = Refused::No;
                self.is_away();
                let error = self.options.connect.explain_loss(error.into());
                self.warn(format!("the connection to the server is lost, trying again: {error}"));
                let wait = link.backoff.next();
                link.backoff.reset();
                return Ok(Some(wait));
            }
        }
        Ok(None)
    }

    /// Ends the server's side of the stream. A server that has nothing to send notices only at the next
    /// heartbeat that nobody listens, and commits wait for an acknowledgement until then. Between two runs
    /// they must: the next stream brings it. The stream is ended before the connection is: MySQL takes no more
    /// acknowledgements from a connection that ends, and then its commits wait up to a second more.
    fn sign_off(&self, stream: &Stream) {
        let end = || -> Result<()> {
            let mut session = open_control(&self.monitor.connect, self.options)?;
            session.kill_query(stream.connection_id())?;
            if !stream.await_end() {
                session.kill(stream.connection_id())?;
            }
            Ok(())
        };
        if let Err(error) = end() {
            self.note(format!("the server was not told that the stream ends: {error}"));
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
        let mut session = open_control(&self.options.connect, self.options)?;
        let mut state = State::read(&mut session, &self.monitor.questions())?;
        let source = state.source.take();
        if let Some(source) = &source {
            self.monitor.weigh_semi_sync(source, false);
        }
        self.monitor.weigh(state, false)?;
        if !self.monitor.asks_beside() {
            let filters = left_out::filters(&mut session)?;
            self.monitor.leaves_out(filters);
        }
        let mut binlog = Binlog::read(session, &self.options.connect, self.stream_options)?;
        self.monitor.connect.clone_from(&binlog.connect);
        if source.as_ref().is_some_and(|source| source.stands_since(self.monitor.unanswered)) {
            binlog.silence();
        }
        match self.open_stream(run, slot, refused, &mut binlog) {
            Err(error) if binlog.is_silent() => Err(match source {
                Some(source) => {
                    self.monitor.unanswered = Some(source.waits());
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
        if !self.monitor.asks_beside() {
            binlog.files()?;
        }
        let tail = slot.as_ref().and_then(Recorder::tail);
        if self.options.standby
            && !self.options.new_identity
            && let Some(tail) = &tail
            && let Some(lack) = resume::another_lacks(binlog, tail)?
        {
            return Err(lack.of_another(&tail.place));
        }
        let start = match &tail {
            Some(tail) => {
                let is_unasked = self.monitor.asks_beside() && *refused == Refused::No;
                let is_new = self.options.new_identity;
                resume::next(binlog, tail, refused, is_unasked, is_new)?
            }
            None => {
                // An archive that begins has the name of the server that was reached, unless the user gives it one.
                if self.options.name.is_none() {
                    self.reached.require_same(&binlog.identity)?;
                }
                let (start, warning) = resume::first(binlog, self.repo, &self.log)?;
                if let Some(warning) = warning {
                    self.warn(warning);
                }
                start
            }
        };
        let begin = StreamBegin::AtPlace(start.place.clone());
        let stream = Stream::open(&binlog.connect, &begin, self.stream_options)?;
        let recorder = slot.get_or_insert_with(|| Recorder::new(binlog.server.clone()));
        if let Some(gap) = &start.gap {
            self.gap(gap);
        }
        recorder.begin_stream(binlog.server.clone(), start, run)?;
        recorder.leaves_out(self.monitor.filters.as_deref());
        Ok(stream)
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
}

/// Opens a session for questions. A server whose commits may wait for us has to answer soon.
pub(super) fn open_control(connect: &ConnectOptions, options: &ArchiveOptions) -> Result<Session> {
    let mut session = Session::open(connect, Purpose::Control)?;
    if options.semi_sync {
        session.set_answer_timeout(ANSWER_MAX)?;
    }
    Ok(session)
}

/// Says what a server has lost.
pub(super) fn lacks(end: &Place) -> String {
    format!("the server's binlog does not contain {end}, where the archive ends")
}

/// Whether the server may be back soon.
pub(super) fn is_passing(error: &Error) -> bool {
    error.kind() == ErrorKind::Server
}
