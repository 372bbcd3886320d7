//! What an archive has stored: outcomes and stretches of runs that have ended, segments of those that have not.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use holdfast_formats::binlog::split_events;
use holdfast_repo::{
    LogName, Repo, RunNo,
    format::manifest::Head,
    log::{
        history::History,
        outcome::{Intent, Outcome, OutcomeType},
        segment::{Segment, SegmentReader, is_superseded, list_segments},
    },
};
use serde_json::Value;

use super::{
    batch::{Record, records},
    recorder::{Recorder, Sink},
    stretch::{Stretch, Tail},
};
use crate::error::{Context, Error, ErrorKind, Result};

/// The field of a head that lists the stretches.
pub(super) const STRETCHES: &str = "stretches";

/// The outcome after which an archive continued before `run`: the last one that no repair has dropped. The
/// server may still have what a repair dropped; what was dropped for its age is not missed. Nothing continues
/// after what was only filed.
pub(super) fn last_archived(history: &History, run: RunNo) -> Option<&Outcome> {
    let repairs = history.outcomes().iter().filter(|outcome| outcome.outcome_type == OutcomeType::Repair);
    let lost: BTreeSet<RunNo> = repairs.flat_map(|repair| repair.dropped.iter().copied()).collect();
    let before = history.outcomes().iter().rev().skip_while(|outcome| outcome.run >= run);
    let mut backups =
        before.filter(|outcome| outcome.outcome_type == OutcomeType::Backup && !outcome.is_filing());
    backups.find(|outcome| !lost.contains(&outcome.run))
}

/// Runs that ended without effect and have left segments that no other has taken over, oldest first.
#[derive(Debug, Default)]
pub struct Unfiled {
    /// Those after which the archive has continued: a prune can file what they have left.
    pub due: Vec<RunNo>,
    /// Those at its end, for the next archiver: a spool may still have more of them.
    pub last: Vec<RunNo>,
}

/// The runs of an archive that have left segments. Every role can tell.
pub fn unfiled(repo: &Repo, history: &History) -> Result<Unfiled> {
    let stored = list_segments(repo, history.log())?;
    let is_backup = |outcome: &&Outcome| outcome.intent.is_none_or(|intent| intent == Intent::Backup);
    let dead = history.outcomes().iter().filter(is_backup).map(|outcome| outcome.run);
    let left = dead.filter(|run| stored.contains_key(run) && !is_superseded(history, *run));
    let end = last_archived(history, history.next_run()).map(|last| last.run);
    let (due, last) = left.partition(|run| end.is_some_and(|end| *run < end));
    Ok(Unfiled { due, last })
}

/// Where the archive ends, including what dead runs have left for the next one to take over. Every role can read it.
pub(super) fn stored_tail(repo: &Arc<Repo>, log: &LogName) -> Result<Option<Tail>> {
    stored_tail_after(repo, log, RunNo(0))
}

/// Where the archive ends, counting only what runs after `after` have; `None` if they have nothing.
pub(super) fn stored_tail_after(repo: &Arc<Repo>, log: &LogName, after: RunNo) -> Result<Option<Tail>> {
    let history = History::read(repo, log)?;
    let last = last_archived(&history, history.next_run()).filter(|last| last.run > after);
    let mut tail = last.and_then(|outcome| outcome.tail.as_ref()).map(Tail::from_map).transpose()?;
    for run in list_segments(repo, log)?.into_keys() {
        let is_there = last.is_some_and(|last| run <= last.run) || is_superseded(&history, run);
        if run <= after || is_there {
            continue;
        }
        let (last, _) = last_tail(repo, &history, run, &mut |_| Ok(()))?;
        tail = last.or(tail);
    }
    Ok(tail)
}

/// Where the segments of a run end, and what is wrong with the first that cannot be read, if there is one. Every role
/// can tell; one that can read also looks at what is in them.
pub(super) fn readable_tail(
    repo: &Arc<Repo>,
    history: &History,
    run: RunNo,
) -> Result<(Option<Tail>, Option<Error>)> {
    let mut recorder = recorder_before(history, run)?;
    let mut noted = Noted::default();
    last_tail(repo, history, run, &mut |segment| match &segment.bytes {
        Some(bytes) => replay(bytes, &mut recorder, &mut noted),
        None => Ok(()),
    })
}

fn last_tail(
    repo: &Arc<Repo>,
    history: &History,
    run: RunNo,
    look: &mut dyn FnMut(&Segment) -> Result<()>,
) -> Result<(Option<Tail>, Option<Error>)> {
    let mut reader = SegmentReader::new(repo, history, run);
    let mut tail = None;
    let mut read = || -> Result<()> {
        while let Some(segment) = reader.read_next()? {
            look(&segment)?;
            tail = Some(Tail::from_map(&segment.tail)?);
        }
        Ok(reader.check_end()?)
    };
    let problem = damage(read())?;
    Ok((tail, problem))
}

/// What is damaged, if that is why something failed. Anyone who can write to the store can put such objects there:
/// everything else in the archive must not suffer.
pub(super) fn damage(done: Result<()>) -> Result<Option<Error>> {
    match done {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Damaged => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// Replays the segments of a run that exist by now. The reader can tell whether these are all.
pub(super) fn replay_all(
    reader: &mut SegmentReader,
    recorder: &mut Option<Recorder>,
    sink: &mut dyn Sink,
) -> Result<()> {
    while let Some(segment) = reader.read_next()? {
        let bytes = segment
            .bytes
            .ok_or_else(|| Error::new(ErrorKind::Key, "reading the archive takes an operator's key"))?;
        replay(&bytes, recorder, sink)?;
    }
    Ok(())
}

/// Replays all segments of a run. Fails if some are missing.
pub(super) fn replay_whole(
    mut reader: SegmentReader,
    recorder: &mut Option<Recorder>,
    sink: &mut dyn Sink,
) -> Result<()> {
    replay_all(&mut reader, recorder, sink)?;
    Ok(reader.check_end()?)
}

/// A recorder where the archive ended when `run` began.
pub(super) fn recorder_before(history: &History, run: RunNo) -> Result<Option<Recorder>> {
    let before = last_archived(history, run).and_then(|outcome| outcome.tail.as_ref());
    before.map(|tail| Recorder::at(&Tail::from_map(tail)?)).transpose()
}

/// Runs the records of a segment through a recorder.
pub(super) fn replay(bytes: &[u8], recorder: &mut Option<Recorder>, sink: &mut dyn Sink) -> Result<()> {
    for record in records(bytes)? {
        match record {
            Record::Stretch(stretch) => {
                let recorder = recorder.get_or_insert_with(|| Recorder::new(stretch.server.clone()));
                recorder.begin_stored(&stretch, sink)?;
            }
            Record::Events(events) => {
                let bad = || Error::damaged("understand a segment: events are cut off, or of no stretch");
                let recorder = recorder.as_mut().ok_or_else(bad)?;
                for event in split_events(events) {
                    recorder.stored(event.map_err(|_| bad())?, sink)?;
                }
            }
        }
    }
    Ok(())
}

/// Keeps the stretches and none of the events.
#[derive(Default)]
pub(super) struct Noted {
    /// Stretches that have ended, by number.
    pub(super) stretches: BTreeMap<u32, Stretch>,
}

impl Sink for Noted {
    fn stretch(&mut self, _: &Stretch) -> Result<()> {
        Ok(())
    }

    fn event(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn ended(&mut self, stretch: Stretch) -> Result<()> {
        self.stretches.insert(stretch.number, stretch);
        Ok(())
    }
}

/// The stretches that a head lists.
pub(super) fn stretches_of(head: &Head) -> Result<Vec<Stretch>> {
    let stretches = head.more.get(STRETCHES).cloned().unwrap_or(Value::Array(Vec::new()));
    serde_json::from_value(stretches).context_kind(
        ErrorKind::Damaged,
        format_args!("understand the manifest of {} #{}", head.source, head.run),
    )
}
