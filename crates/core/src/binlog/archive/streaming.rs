//! Records what a stream sends, until the run is due or the stream ends.

use std::{
    thread,
    time::{Duration, Instant},
};

use holdfast_formats::Flavor;

use super::{
    Archiver, POLL, RunEnd,
    link::{END_OF_TRANSACTION_MAX, StreamEnd},
    monitor::Looks,
};
use crate::{
    binlog::{
        recorder::{RecordError, Recorder},
        run::ArchiveRun,
        segments::{Segments, ousted},
        stream::{Next, Stream},
        stretch::{Gap, GapKind, Place},
    },
    server::{SqlCause, SqlError, code, status::binlog_order},
};

/// Checks this often whether a full batch can be handed over.
const HELD_UP: Duration = Duration::from_millis(5);

impl Archiver<'_> {
    /// Records events into the run.
    pub(super) fn stream(
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
                self.monitor.look_beside(&mut looks, run, recorder)?;
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
            let is_spooling = self.spool.is_some() && run.segments.is_some();
            let is_due = is_due && !(is_spooling && self.store_failing.is_told());
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

    pub(super) fn watch_store(&mut self, segments: &Segments) {
        let (failing, spool_failing, has_stored) = segments.with_progress(|progress| {
            (progress.failing.clone(), progress.spool_failing.clone(), progress.has_stored)
        });
        if let Some(spool) = &self.spool {
            let dir = spool.dir().display();
            match spool_failing {
                Some(why) => {
                    self.spool_failing
                        .warn(self.listener, format!("nothing can be spooled in {dir} at the moment: {why}"));
                }
                None if self.spool_failing.end() => {
                    self.note(format!("segments can be spooled in {dir} again"))
                }
                None => {}
            }
        }
        match failing {
            Some(why) => {
                let text =
                    format!("nothing can be stored in the repository at the moment, trying again: {why}");
                self.store_failing.warn(self.listener, text);
            }
            None if has_stored && self.store_failing.end() => {
                self.note("the repository can be written to again")
            }
            None => {}
        }
    }

    pub(super) fn gap(&mut self, gap: &Gap) {
        self.warn(format!("the archive has a gap: {}", gap.text));
        self.report.gaps.push(gap.clone());
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

fn is_at(place: &Place, target: &Place) -> bool {
    binlog_order(&place.file, place.position) >= binlog_order(&target.file, target.position)
}
