//! Keeps a stream open into a run: connects where the archive continues, reconnects when the server goes
//! away, and asks the server where to continue if it does not send what was archived.

use std::time::{Duration, Instant};

use super::{ArchiveOptions, Archiver, RETRY_FIRST, RunEnd, is_refused, look::State, standby};
use crate::{
    binlog::{
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
    server::{Purpose, Session, SqlError},
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

impl Archiver<'_> {
    /// Streams into the run until it is due, or until the end.
    pub(super) fn fill(&mut self, run: &mut ArchiveRun, slot: &mut Option<Recorder>) -> Result<RunEnd> {
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
            // Requesting a place acknowledges everything before it. A run that catches up keeps it only once it has
            // ended.
            if self.options.semi_sync && !is_first && run.keeps_events_only_by_ending() {
                return Ok(RunEnd::Due);
            }
            if self.options.semi_sync && !self.settle(run, slot.as_ref(), None)? {
                continue;
            }
            self.store_what_came(run, slot.as_ref(), Duration::ZERO)?;
            let connected = self.connect(run, slot, &refused);
            let (stream, files) = match connected {
                Ok(connected) => connected,
                // A server that cannot be reached on the first attempt is more likely misnamed than away.
                Err(error) if is_first && !self.is_under_way => return Err(error),
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
            let (looks, told) = self.monitor.begin_looks(run, recorder, &stream)?;
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
            if self.options.semi_sync && matches!(streamed, Ok(RunEnd::Done) | Err(StreamEnd::Fatal(_))) {
                self.sign_off(&stream);
            }
            drop(stream);
            lost_at = Instant::now();
            match streamed {
                Ok(end) => return Ok(end),
                Err(StreamEnd::Fatal(error)) => return Err(error),
                Err(StreamEnd::NotAsArchived(why))
                    if refused == Refused::No && self.monitor.asks_beside() =>
                {
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

    /// Ends the server's side of the stream. A server that has nothing to send notices only at the next
    /// heartbeat that nobody listens, and commits wait for an acknowledgement until then. Between two runs
    /// they must: the next stream brings it. The stream is ended before the connection is: MySQL takes no more
    /// acknowledgements from a connection that ends, and then its commits wait up to a second more.
    fn sign_off(&self, stream: &Stream) {
        let end = || -> Result<()> {
            let mut session = open_control(self.options)?;
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
        let mut session = open_control(self.options)?;
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
        let mut binlog = Binlog::read(session)?;
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
                let is_unasked = self.monitor.asks_beside() && *refused == Refused::No;
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
pub(super) fn open_control(options: &ArchiveOptions) -> Result<Session> {
    let mut session = Session::open(&options.connect, Purpose::Control)?;
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
