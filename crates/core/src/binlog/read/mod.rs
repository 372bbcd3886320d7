//! Reading an archive: all stretches of a source in order, from runs that have ended and from segments of those
//! that have not, and the events in them.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, Mutex},
};

use holdfast_formats::binlog::{HEADER_BYTES, Header};
use holdfast_pipe::lock::lock;
use holdfast_repo::{
    Kind, LogName, Repo, RunNo, SourceName,
    data::reader::Backup,
    format::item::ItemPath,
    log::{
        history::History,
        outcome::Outcome,
        segment::{SegmentReader, is_superseded, list_segments},
    },
};
use serde::Serialize;

use super::{
    recorder::{Offsets, Sink},
    stored::{Noted, damage, recorder_before, replay_all, replay_whole, stretches_of},
    stretch::{Gap, GapKind, Place, Stretch},
};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    head::read_heads,
};

mod chain;
mod file;
mod occurrences;
mod search;
mod transactions;

pub use chain::{Base, Chain, Taken};
pub use file::FileContent;
pub(crate) use occurrences::Occurrence;
pub use search::{Search, TransactionSummary};
pub use transactions::{After, ArchivedEvent};

/// Attempts to read what is archived while runs end.
const ATTEMPTS: u32 = 20;
/// Attempts if reading fails: what a run took along while it ended is not damaged.
const FAILED_ATTEMPTS: u32 = 5;

/// The archive of one source as it was when it was opened.
pub struct Archive {
    repo: Arc<Repo>,
    log: LogName,
    history: History,
    stretches: Vec<ArchivedStretch>,
    unreadable: Vec<Unreadable>,
    /// The run whose packs were read last. The next is opened beside it,
    /// because looking up what prunes have moved takes a while.
    opened: Mutex<Option<Arc<Backup>>>,
}

/// The first object of a run that cannot be read. What the run had after it is lost, unless a later run has it.
#[derive(Clone, Debug, Serialize)]
pub struct Unreadable {
    /// The run, which has not ended as a backup.
    pub run: u64,
    /// Names the object, and says what is wrong with it.
    pub problem: String,
}

impl Unreadable {
    pub(super) fn of(run: RunNo, problem: &Error) -> Self {
        Self { run: run.0, problem: problem.to_string() }
    }
}

/// A stretch and where it is stored.
#[derive(Clone, Debug)]
pub struct ArchivedStretch {
    /// The stretch itself.
    pub stretch: Stretch,
    /// The run that has it.
    pub run: RunNo,
    /// The run that has recorded it, which is an earlier one if it was taken over late.
    pub recorded_by: RunNo,
    /// Whether that run has not ended, so that the stretch may grow.
    pub is_live: bool,
    /// What is missing before it.
    pub gap: Option<Gap>,
    /// Where it ends; earlier than the stretch itself if a later run archived what follows once more.
    end: u64,
}

impl ArchivedStretch {
    /// Where it ends.
    #[must_use]
    pub fn ends_at(&self) -> Place {
        Place { file: self.stretch.file.clone(), position: self.end }
    }

    /// Whether this stretch, whose run has ended, has all of `live`, whose run had not.
    fn has(&self, live: &Self) -> bool {
        let (own, other) = (&self.stretch, &live.stretch);
        !self.is_live
            && self.run >= live.run
            && own.server.is_same(&other.server)
            && own.begins_at() == other.begins_at()
            && own.continues == other.continues
            && own.end >= live.end
    }

    /// Whether it continues right after `before`, in the same file or in the next.
    fn continues(&self, before: &Self) -> bool {
        self.gap.is_none() && self.stretch.continues.as_ref() == Some(&before.ends_at())
    }
}

impl Archive {
    /// Reads the archive; requires an operator's key.
    pub fn open(repo: &Arc<Repo>, source: &SourceName) -> Result<Self> {
        let log = LogName { source: source.clone(), kind: Kind::Binlog };
        for attempt in 1.. {
            let archive = Self::open_now(repo, &log);
            // A run that ends meanwhile takes its segments along.
            let is_final = match &archive {
                Ok(archive) => {
                    let history = History::salvage(repo, &log, &mut |_, _| {})?;
                    history.next_run() == archive.history.next_run()
                }
                Err(_) => attempt >= FAILED_ATTEMPTS,
            };
            if is_final {
                return archive;
            }
            if attempt == ATTEMPTS {
                break;
            }
        }
        let text = format!("{log} cannot be read: its runs kept ending meanwhile");
        Err(Error::new(ErrorKind::Active, text).hinted("try again"))
    }

    fn open_now(repo: &Arc<Repo>, log: &LogName) -> Result<Self> {
        let history = History::salvage(repo, log, &mut |_, _| {})?;
        let mut archive = Self {
            repo: Arc::clone(repo),
            log: log.clone(),
            stretches: Vec::new(),
            unreadable: Vec::new(),
            opened: Mutex::default(),
            history,
        };
        let ended: Vec<RunNo> = archive.history.standing().map(|outcome| outcome.run).collect();
        let mut found: BTreeMap<Order, (RunNo, bool, Vec<Stretch>)> = BTreeMap::new();
        read_heads(repo, &archive.history, &ended, |run, head| {
            for stretch in stretches_of(&head?)? {
                let order = archive.order(run, stretch.of_run.map(RunNo));
                found.entry(order).or_insert((run, false, Vec::new())).2.push(stretch);
            }
            Ok(())
        })?;
        for run in list_segments(repo, log)?.into_keys() {
            if !is_superseded(&archive.history, run) {
                let (stretches, unreadable) = archive.live_stretches(run)?;
                archive.unreadable.extend(unreadable);
                found.insert(Order::own(run), (run, true, stretches));
            }
        }
        for (Order { at, .. }, (run, is_live, stretches)) in found {
            for stretch in stretches {
                archive.add(stretch, run, at, is_live);
            }
        }
        Ok(archive)
    }

    /// The place of stretches of `run` that `of_run` has recorded, if that was another.
    fn order(&self, run: RunNo, of_run: Option<RunNo>) -> Order {
        let (Some(of_run), Some(outcome)) = (of_run, self.history.outcome(run)) else {
            return Order::own(run);
        };
        let Some(copy) = &outcome.copy_of else {
            return if outcome.taken.contains(&of_run) { Order::late(of_run, run) } else { Order::own(run) };
        };
        // In a copy it is a run of the original repository: the place is before what is a copy of a later one.
        let is_later = |other: &&Outcome| {
            other.copy_of.as_ref().is_some_and(|other| {
                (other.repository, &other.source) == (copy.repository, &copy.source) && other.run > of_run.0
            })
        };
        let later = self.history.outcomes().iter().find(is_later).map_or(run, |outcome| outcome.run);
        Order::late_copy(RunNo(later.0.saturating_sub(1)), of_run, run)
    }

    /// A run that has ended, with its packs.
    fn backup(&self, run: RunNo) -> Result<Arc<Backup>> {
        let mut opened = lock(&self.opened);
        let backup = match opened.take() {
            Some(backup) if backup.run() == run => backup,
            Some(other) => Arc::new(other.beside(&self.history, run)?),
            None => Arc::new(Backup::open(&self.repo, &self.history, run)?),
        };
        *opened = Some(Arc::clone(&backup));
        Ok(backup)
    }

    fn add(&mut self, stretch: Stretch, run: RunNo, recorded_by: RunNo, is_live: bool) {
        let mut gap = stretch.gap.clone();
        if let (Some(last), None) = (self.stretches.last_mut(), &gap) {
            let overlaps = stretch.continues.as_ref().is_some_and(|place| {
                place.file == last.stretch.file && (last.stretch.begin..last.end).contains(&place.position)
            });
            if let (true, Some(place)) = (overlaps, &stretch.continues) {
                last.end = place.position;
            } else if stretch.continues.as_ref() != Some(&last.ends_at()) {
                let mut text = format!(
                    "the events between {} and {} are not stored in the repository",
                    last.ends_at(),
                    stretch.begins_at()
                );
                let between = last.recorded_by.0..recorded_by.0;
                let between = self.unreadable.iter().rev().find(|it| between.contains(&it.run));
                if let Some(Unreadable { problem, .. }) = between {
                    text = format!("{text}: {problem}");
                }
                gap = Some(Gap { kind: GapKind::NotStored, text });
            }
        }
        let end = stretch.end;
        self.stretches.push(ArchivedStretch { stretch, run, recorded_by, is_live, gap, end });
    }

    /// The stretches in the segments of a run, as far as these can be read.
    fn live_stretches(&self, run: RunNo) -> Result<(Vec<Stretch>, Option<Unreadable>)> {
        let mut noted = Noted::default();
        let mut recorder = recorder_before(&self.history, run)?;
        let reader = SegmentReader::new(&self.repo, &self.history, run);
        let replayed = replay_whole(reader, &mut recorder, &mut noted);
        let unreadable = damage(replayed)?.map(|problem| Unreadable::of(run, &problem));
        let open = recorder.and_then(|recorder| recorder.stretch());
        Ok((noted.stretches.into_values().chain(open).collect(), unreadable))
    }

    /// The source's log of runs.
    #[must_use]
    pub fn log(&self) -> &LogName {
        &self.log
    }

    /// Runs with objects that cannot be read, oldest first.
    #[must_use]
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    /// The first object that cannot be read of a run after which nothing is archived: the archive may have gone
    /// further.
    pub(crate) fn unreadable_end(&self) -> Option<&Unreadable> {
        let last = self.stretches.last().map_or(RunNo(0), |last| last.recorded_by);
        self.unreadable.iter().find(|it| it.run >= last.0)
    }

    /// The problem of [`unreadable_end`](Self::unreadable_end) in parentheses, to say at the end of a sentence why
    /// something is not there; empty if all can be read.
    pub(crate) fn unreadable_end_told(&self) -> String {
        self.unreadable_end().map(|it| format!(" ({})", it.problem)).unwrap_or_default()
    }

    /// All stretches, oldest first.
    #[must_use]
    pub fn stretches(&self) -> &[ArchivedStretch] {
        &self.stretches
    }

    /// Calls `each` with the events of the stretches `range`, in order, and the position of their stretch,
    /// until it breaks. Every byte is verified.
    pub fn events(&self, range: std::ops::Range<usize>, each: &mut EachEvent<'_>) -> Result<()> {
        let mut at = range.start;
        while at < range.end.min(self.stretches.len()) {
            let stretch = &self.stretches[at];
            let flow = if stretch.is_live {
                let first = self.stretches.iter().position(|other| other.run == stretch.run).unwrap_or(at);
                let count = self.stretches.iter().filter(|other| other.run == stretch.run).count();
                let end = (first + count).min(range.end);
                let flow = self.live(first, at..end, each)?;
                at = end;
                flow
            } else {
                let wanted = Wanted { number: at, from: stretch.stretch.begin, end: stretch.end };
                let flow = self.packed(at, wanted, each)?;
                at += 1;
                flow
            };
            if flow.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Passes on events of a run that had not ended when this was opened, and whose first stretch is `first`.
    fn live(
        &self,
        first: usize,
        wanted: std::ops::Range<usize>,
        each: &mut EachEvent<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut live = Live {
            archive: self,
            next: first,
            wanted: wanted.clone(),
            offsets: Offsets::at(0),
            passed: BTreeMap::new(),
            is_refused: false,
            each: &mut *each,
            flow: ControlFlow::Continue(()),
        };
        let run = self.stretches[wanted.start].run;
        let mut reader = SegmentReader::new(&self.repo, &self.history, run);
        let done = replay_all(&mut reader, &mut recorder_before(&self.history, run)?, &mut live);
        let Live { flow, passed, is_refused, .. } = live;
        if flow.is_break() {
            return Ok(flow);
        }
        if is_refused {
            return done.map(|_| flow);
        }
        let rest = wanted.filter_map(|number| {
            let archived = &self.stretches[number];
            let from = passed.get(&number).copied().unwrap_or(archived.stretch.begin);
            (from < archived.end).then_some(Wanted { number, from, end: archived.end })
        });
        let rest: Vec<Wanted> = rest.collect();
        // What comes after that was archived since, and nobody asked for it.
        if rest.is_empty() {
            return Ok(flow);
        }
        // The run has ended since, or another has taken it over,
        // and its segments are gone: packs have the same.
        let now = Self::open(&self.repo, &self.log.source)?;
        for wanted in rest {
            let archived = &self.stretches[wanted.number];
            let Some(at) = now.stretches.iter().position(|other| other.has(archived)) else {
                done?;
                let text = format!(
                    "{} {}: the events from {} to {} are no longer in its segments, nor in a run that has \
                     ended since",
                    self.log,
                    archived.run,
                    Place { position: wanted.from, ..archived.stretch.begins_at() },
                    archived.ends_at(),
                );
                return Err(Error::damaged(text));
            };
            let flow = now.packed(at, wanted, each)?;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(flow)
    }

    fn packed(&self, at: usize, wanted: Wanted, each: &mut EachEvent<'_>) -> Result<ControlFlow<()>> {
        let archived = &self.stretches[at];
        let stretch = &archived.stretch;
        let missing = || {
            let text = format!("{} {} has no item {}", self.log, archived.run, stretch.item_path());
            Error::damaged(text)
        };
        let backup = self.backup(archived.run)?;
        let path = ItemPath::new(stretch.item_path()).context("name a file of the archive")?;
        let item = backup.find(&path)?.ok_or_else(missing)?;
        let mut offsets = Offsets::at(stretch.begin);
        let mut rest: Vec<u8> = Vec::new();
        let mut flow = ControlFlow::Continue(());
        let read = backup.read_file::<Stop>(&item, &mut |bytes| {
            rest.extend_from_slice(bytes);
            let mut done = 0;
            while let Some((header, len)) = whole_event(&rest[done..]) {
                let event = &rest[done..done + len];
                let position = offsets.take(&header);
                if position >= wanted.end {
                    return Err(Stop::Enough);
                }
                if position >= wanted.from {
                    flow = each(wanted.number, position, event)?;
                }
                if flow.is_break() {
                    return Err(Stop::Enough);
                }
                done += len;
            }
            rest.drain(..done);
            Ok(())
        });
        match read {
            Ok(()) if rest.is_empty() && offsets.next() == stretch.end => Ok(flow),
            Ok(()) => {
                let text = format!(
                    "{} {}: {} ends at {}, but its events end at {}",
                    self.log,
                    archived.run,
                    stretch.item_path(),
                    stretch.end,
                    offsets.next()
                );
                Err(Error::damaged(text))
            }
            Err(Stop::Enough) => Ok(flow),
            Err(Stop::Failed(error)) => Err(error),
        }
    }
}

/// The place of stretches in an archive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Order {
    /// The run that has recorded them, or of a copy the one after which they come.
    at: RunNo,
    rank: Rank,
    of_run: RunNo,
    run: RunNo,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Late,
    Own,
    LateCopy,
}

impl Order {
    fn own(run: RunNo) -> Self {
        Self { at: run, rank: Rank::Own, of_run: run, run }
    }

    fn late(of_run: RunNo, run: RunNo) -> Self {
        Self { at: of_run, rank: Rank::Late, of_run, run }
    }

    fn late_copy(at: RunNo, of_run: RunNo, run: RunNo) -> Self {
        Self { at, rank: Rank::LateCopy, of_run, run }
    }
}

/// Takes an event: number of its stretch, its offset in the server's file, its bytes.
pub type EachEvent<'a> = dyn FnMut(usize, u64, &[u8]) -> Result<ControlFlow<()>> + 'a;

/// The header of the event that the bytes begin with, and its length, if it is complete.
fn whole_event(bytes: &[u8]) -> Option<(Header, usize)> {
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    let header = Header::parse(bytes).ok()?;
    let len = header.len as usize;
    (bytes.len() >= len).then_some((header, len))
}

/// The wanted part of the stretch with this number.
#[derive(Clone, Copy)]
struct Wanted {
    number: usize,
    from: u64,
    end: u64,
}

enum Stop {
    Enough,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<holdfast_repo::RepoError> for Stop {
    fn from(error: holdfast_repo::RepoError) -> Self {
        Self::Failed(error.into())
    }
}

/// Passes on the events of some stretches of a run that has not ended.
struct Live<'a, 'b> {
    archive: &'a Archive,
    /// The stretch that comes next.
    next: usize,
    wanted: std::ops::Range<usize>,
    offsets: Offsets,
    /// The end of the last event that was passed on, by stretch.
    passed: BTreeMap<usize, u64>,
    /// Whether the receiver of the events has failed.
    is_refused: bool,
    each: &'a mut EachEvent<'b>,
    flow: ControlFlow<()>,
}

impl Sink for Live<'_, '_> {
    fn stretch(&mut self, stretch: &Stretch) -> Result<()> {
        self.next += 1;
        self.offsets = Offsets::at(stretch.begin);
        Ok(())
    }

    fn event(&mut self, bytes: &[u8]) -> Result<()> {
        let at = self.next - 1;
        let header = Header::parse(bytes).map_err(|error| Error::damaged(error.to_string()))?;
        let begin = self.offsets.take(&header);
        let is_wanted = self.wanted.contains(&at)
            && self.flow.is_continue()
            && self.archive.stretches.get(at).is_some_and(|archived| begin < archived.end);
        if is_wanted {
            self.flow = (self.each)(at, begin, bytes).inspect_err(|_| self.is_refused = true)?;
            self.passed.insert(at, begin + u64::from(header.len));
        }
        if self.flow.is_break() {
            // Ends the replay; the caller looks at the flow first.
            return Err(Error::new(ErrorKind::Interrupted, "enough"));
        }
        Ok(())
    }

    fn ended(&mut self, _: Stretch) -> Result<()> {
        Ok(())
    }
}
