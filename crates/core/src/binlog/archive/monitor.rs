//! Watches the server beside its stream: whether it still writes the binlog that it sends, what it leaves
//! out, and whether its commits wait for the archive. Warns of changes, and restarts the stream if that helps.

use std::time::{Duration, Instant};

use holdfast_formats::Gtids;

use super::{
    ArchiveOptions,
    link::{StreamEnd, is_passing, lacks},
    look::{Answer, AskedAt, Ended, Look, Questions, State},
};
use crate::{
    binlog::{
        left_out,
        recorder::Recorder,
        recurring::RecurringWarning,
        resume::Files,
        run::ArchiveRun,
        semi_sync::{Source, Waits},
        stream::Stream,
        stretch::Place,
    },
    error::{Error, ErrorKind, Result},
    event::{Event, Listener},
    server::{ConnectOptions, SqlCause, SqlError},
};

/// A new stream shows among the server's replicas within this time.
const IS_SHOWN: Duration = Duration::from_secs(2);
/// How long a new stream waits for an answer that helps, but that it can do without.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(1);
/// How soon it notices that commits wait, behind which the answer would come.
const WAITED_FOR_POLL: Duration = Duration::from_millis(5);
/// How soon to ask again if a server has not yet said what its binlog leaves out.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// What is known of the server from one look to the next.
pub(super) struct Monitor<'a> {
    options: &'a ArchiveOptions,
    listener: &'a dyn Listener,
    /// Leads to the server of the stream only.
    pub(super) connect: ConnectOptions,
    /// Why commits can return without being archived, and how many of them the server has counted.
    doubts: Vec<String>,
    counted: Option<u64>,
    /// Warns that the server has stopped replicating.
    stopped: RecurringWarning,
    /// Where a server had more than it sent, and the stream was restarted for that reason.
    stuck_at: Option<Place>,
    /// How many commits had waited when the server did not answer about its binlog.
    pub(super) unanswered: Option<Waits>,
    /// Whether, at the last look, the server's GTIDs lacked some of what it had sent.
    lacked_gtids: bool,
    /// The settings by which the server leaves something out of its binlog.
    pub(super) filters: Option<String>,
    /// Commits that returned without an acknowledgement, since the archiver began.
    pub(super) unacknowledged: u64,
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
pub(super) struct Looks {
    look: Option<Look>,
    /// When the next is due.
    at: Instant,
    seen: Seen,
    /// Whether the server has said what its binlog leaves out.
    is_told: bool,
}

impl<'a> Monitor<'a> {
    pub(super) fn new(options: &'a ArchiveOptions, listener: &'a dyn Listener) -> Self {
        Self {
            options,
            listener,
            connect: options.connect.clone(),
            doubts: Vec::new(),
            counted: None,
            stopped: RecurringWarning::default(),
            stuck_at: None,
            unanswered: None,
            lacked_gtids: false,
            filters: None,
            unacknowledged: 0,
        }
    }

    fn warn(&self, text: String) {
        self.listener.event(Event::Warning { text });
    }

    /// Whether to ask the server about its binlog only while its stream runs:
    /// it may not answer while commits wait for us.
    pub(super) fn asks_beside(&self) -> bool {
        self.options.semi_sync && !self.options.once
    }

    pub(super) fn questions(&self) -> Questions {
        Questions {
            connect: self.connect.clone(),
            semi_sync: self.options.semi_sync,
            standby: self.options.standby,
            allow_replica_filters: self.options.allow_replica_filters,
            unanswered: self.unanswered,
        }
    }

    /// Checks that what the server writes next can be archived:
    /// it can be made a replica, or be restarted with other options.
    pub(super) fn weigh(&mut self, state: State, streams: bool) -> Result<()> {
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

    /// Warns when commits can return that the archive does not have, and of how many have.
    pub(super) fn weigh_semi_sync(&mut self, source: &Source, streams: bool) {
        let doubts = source.doubts(streams);
        for doubt in doubts.iter().filter(|doubt| !self.doubts.contains(doubt)) {
            self.warn(format!("--semi-sync: {doubt}"));
        }
        self.doubts = doubts;
        let now = source.unacknowledged;
        // A restarted server counts from zero.
        let more = self.counted.map_or(0, |before| now.checked_sub(before).unwrap_or(now));
        if more > 0 {
            self.warn(format!(
                "--semi-sync: {more} commits returned without waiting until they were archived"
            ));
        }
        self.unacknowledged += more;
        self.counted = Some(now);
    }

    /// Takes in what the server's binlog leaves out. Warns if that has changed.
    pub(super) fn leaves_out(&mut self, filters: Option<String>) {
        if filters != self.filters {
            filters.iter().for_each(|filters| self.warn(left_out::of_filters(filters)));
            self.filters = filters;
        }
    }

    /// Begins to look at a server whose stream has begun. Also returns its files, if it is asked for them now
    /// and answers before any commit waits for the stream.
    pub(super) fn begin_looks(
        &mut self,
        run: &ArchiveRun,
        recorder: &mut Recorder,
        stream: &Stream,
    ) -> Result<(Looks, Option<Files>)> {
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
            match look.next(WAITED_FOR_POLL) {
                Ok(Some(Answer::Contents(contents))) => {
                    looks.is_told = true;
                    self.has_answered(contents.filters, recorder);
                    return Ok((looks, Some(contents.files)));
                }
                Ok(Some(Answer::Unanswered(then))) => self.unanswered = Some(then),
                Ok(Some(Answer::Refused(error))) => return Err(error),
                // A later look ends the stream, if it is still so.
                Ok(Some(Answer::State(_) | Answer::Elsewhere)) => {}
                Ok(None) if Instant::now() < until && !stream.is_waited_for() => {}
                // The stream continues without the answer.
                Ok(None) => {
                    looks.look = Some(look);
                    return Ok((looks, None));
                }
                Err(Ended) => return Ok((looks, None)),
            }
        }
    }

    /// Takes in the server's answer about what its binlog leaves out.
    fn has_answered(&mut self, filters: Option<String>, recorder: &mut Recorder) {
        self.unanswered = None;
        self.leaves_out(filters);
        recorder.leaves_out(self.filters.as_deref());
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
    pub(super) fn look_beside(
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
            // It may have taken the place of the archived one, which stays up and has nothing more to send.
            Ok(Some(Answer::Elsewhere)) => {
                let text = "another server answers at its address by now";
                return Err(StreamEnd::Lost(SqlError::new(SqlCause::Lost, text)));
            }
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
            Err(Ended) => {
                if look.with_state {
                    let every = self.options.look_every;
                    looks.at = Instant::now() + if looks.is_told { every } else { every.min(LOOK_AGAIN) };
                }
                looks.look = None;
            }
        }
        Ok(())
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
        let again = |what: &str| Err(StreamEnd::Lost(SqlError::new(SqlCause::Lost, what)));
        if !place.file.is_empty() && !files.has(&place) {
            return again("the server no longer has the binlog that it was sending");
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
            return again("the server's GTIDs no longer contain all that it has sent");
        }
        let is_behind = files.bytes_from(&place).is_some_and(|bytes| bytes > 0);
        // A large event may take longer than that, and must not be requested again and again.
        if is_behind && before.behind_at.as_ref() == Some(&place) && self.stuck_at.as_ref() != Some(&place) {
            self.stuck_at = Some(place);
            return again("the server has written more to its binlog than it sends");
        }
        Ok(Seen { gtids: Some(asked_at.gtids.clone()), behind_at: is_behind.then_some(place) })
    }
}
