//! One run of an archive: events go into segments at once and into the files of a backup at leisure.

use std::{
    collections::BTreeSet,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use holdfast_formats::{Lsn, PageSize};
use holdfast_repo::{
    LogName, Repo, RunNo,
    data::writer::{BackupWriter, FileId, FileSpec, Foundation, WriteError, WriterOptions},
    format::{
        item::{FileRole, ItemPath, ItemType},
        manifest::{HEAD_SCHEMA, Head},
    },
    log::{
        history::History,
        outcome::HEAD_BYTES_MAX,
        run::{ActiveRun, BeginError, Ending, FinishError, Run, RunOptions},
        segment::{SegmentReader, discard_segments},
    },
};
use serde_json::Map;

use super::{
    batch::Batch,
    recorder::{Recorder, Sink},
    segments::Segments,
    spool::{Left, Spool},
    stored::{STRETCHES, damage, last_archived, readable_tail, recorder_before, replay_whole, unfiled},
    stretch::{Stretch, Tail},
};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    head::object,
    points::point,
    position::{Position, Precision},
    server::status::BinlogPosition,
};

/// Size of the pages that files are cut into.
const PAGE_BYTES: u32 = 16 << 10;
/// How much is given to the writer at once.
const GIVE_BYTES: usize = 64 * PAGE_BYTES as usize;
/// A run that receives nothing ends after this long.
const IDLE_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// A head lists every stretch; this many are far below its limit, unless their GTIDs are long.
const STRETCHES_MAX: usize = 1_000;
/// Half of what a head may have: the next stretch, and what dead runs have left, must fit in as well.
const STRETCHES_BYTES_MAX: usize = (HEAD_BYTES_MAX / 2) as usize;
/// An archiver waits while what others left is filed: with this many bytes of events, the rest is left to the
/// next time.
const FILED_BYTES_MAX: u64 = 4 << 30;

/// A run that is under way.
pub(super) struct ArchiveRun {
    run: Run,
    writer: Option<BackupWriter>,
    file: Option<OpenFile>,
    pub(super) batch: Batch,
    /// `None` while catching up: the server has had these events on disk for long,
    /// and a run that dies is started over.
    pub(super) segments: Option<Segments>,
    is_taking_over: bool,
    stretches: Vec<Stretch>,
    /// What they take in the head.
    stretches_bytes: usize,
    taken: Vec<RunNo>,
    /// Of segments that dead runs have left: what is wrong with those that cannot be read.
    pub(super) unreadable: Vec<String>,
    began: Instant,
    began_at: jiff::Timestamp,
    bytes: u64,
}

/// The file of the open stretch.
struct OpenFile {
    id: FileId,
    /// What is not given to the writer yet: less than is given at once.
    rest: Vec<u8>,
    pages: u64,
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) run: RunNo,
    /// The history that includes this run, if it could be read.
    pub(super) history: Option<Arc<History>>,
    pub(super) bytes: u64,
    pub(super) stored_bytes: u64,
    /// The thread that deletes what is no longer needed.
    pub(super) discarding: Option<JoinHandle<()>>,
}

impl Ended {
    /// Waits for what is no longer needed to be deleted. A later sweep deletes what is left.
    pub(super) fn wait(&mut self) {
        if let Some(discarding) = self.discarding.take() {
            let _ended = discarding.join();
        }
    }
}

impl ArchiveRun {
    /// Begins a run, and takes over what dead runs have left, if the key can read it. The recorder is where
    /// the archive ends; `None` if there is nothing in it. Waits for a run that drops, prunes, holds or
    /// repairs as long as `wait` returns `true`.
    pub(super) fn begin(
        repo: &Arc<Repo>,
        log: &LogName,
        known: Option<&History>,
        options: &RunOptions,
        writer: &WriterOptions,
        spool: Option<&Arc<Spool>>,
        wait: &mut dyn FnMut(&ActiveRun) -> bool,
    ) -> Result<(Self, Option<Recorder>, Left)> {
        let mut left = None;
        let mut unreadable = RunNo(0);
        loop {
            let run = loop {
                let begun = match known {
                    Some(history) => Run::begin_on(repo, history.clone(), options),
                    None => Run::begin(repo, log, options),
                };
                match begun {
                    Err(BeginError::Active(active)) if active.keeps_house() && wait(&active) => {}
                    begun => break begun?,
                }
            };
            point("binlog.run.begun");
            // Must come before listing what is to be taken over.
            if let (None, Some(spool)) = (&left, spool) {
                left = Some(spool.send_left(&run)?);
            }
            let mut this = Self::of(run, writer.clone())?;
            this.is_taking_over = true;
            match this.take_over(unreadable)? {
                TakenOver::UpTo(recorder) => {
                    this.is_taking_over = false;
                    return Ok((this, recorder, left.unwrap_or_default()));
                }
                // This run has a part of it by now, which would be there twice.
                TakenOver::Unreadable(run) => {
                    this.give_up(&format!("the segments of {run} cannot be read"));
                    unreadable = run;
                }
            }
        }
    }

    /// A run that has just begun.
    pub(super) fn of(run: Run, writer: WriterOptions) -> Result<Self> {
        let foundation = Foundation::none(run.history());
        let writer = BackupWriter::new(&run, &foundation, writer)?;
        Ok(Self {
            run,
            writer: Some(writer),
            file: None,
            batch: Batch::default(),
            segments: None,
            is_taking_over: false,
            stretches: Vec::new(),
            stretches_bytes: 0,
            taken: Vec::new(),
            unreadable: Vec::new(),
            began: Instant::now(),
            began_at: jiff::Timestamp::now(),
            bytes: 0,
        })
    }

    /// From now on, events are made durable as they arrive.
    pub(super) fn go_live(&mut self, spool: Option<&Arc<Spool>>) -> Result<()> {
        self.segments = Some(Segments::start(&self.run, spool)?);
        Ok(())
    }

    /// Where its events end that are durable before it ends.
    pub(super) fn stored_until(&self) -> Option<Tail> {
        self.segments.as_ref()?.with_progress(|progress| progress.tail.clone())
    }

    /// Whether it has received events that are lost if its process dies: it stores no segments.
    pub(super) fn keeps_events_only_by_ending(&self) -> bool {
        self.segments.is_none() && self.bytes > 0
    }

    /// Waits as long as `go_on` returns `true` until everything received is durable, and acknowledged if a
    /// server waits for that. Returns whether it is.
    pub(super) fn settle(
        &mut self,
        tail: impl Fn() -> Option<Tail>,
        go_on: impl Fn() -> bool,
    ) -> Result<bool> {
        const LOOK_EVERY: Duration = Duration::from_millis(5);
        while let Some(segments) = &self.segments {
            if segments.hand_over(&mut self.batch, &tail)? {
                return Ok(true);
            }
            if self.is_lost() || !go_on() {
                return Ok(false);
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }

    /// Takes over what has died since the archive was continued last. The segments of runs up to `unreadable` stay
    /// where they are: the archive continues after the last that can be read.
    fn take_over(&mut self, unreadable: RunNo) -> Result<TakenOver> {
        let repo = Arc::clone(self.run.repo());
        let mut recorder = recorder_before(self.run.history(), self.run.no())?;
        for run in unfiled(&repo, self.run.history())?.last {
            if repo.can_read() && run > unreadable {
                if damage(self.take(run, &mut recorder))?.is_some() {
                    return Ok(TakenOver::Unreadable(run));
                }
                continue;
            }
            let (tail, problem) = readable_tail(&repo, self.run.history(), run)?;
            if let Some(tail) = tail {
                recorder = Some(Recorder::at(&tail)?);
            }
            self.unreadable.extend(problem.map(|problem| problem.to_string()));
        }
        if let Some(recorder) = &mut recorder {
            recorder.end_stretch(false, self)?;
        }
        Ok(TakenOver::UpTo(recorder))
    }

    /// Takes over the segments of one run.
    fn take(&mut self, run: RunNo, recorder: &mut Option<Recorder>) -> Result<()> {
        let reader = SegmentReader::new(self.run.repo(), self.run.history(), run);
        replay_whole(reader, recorder, self)?;
        self.taken.push(run);
        Ok(())
    }

    /// Takes over the segments of runs whose place in the archive is before runs that have ended. Returns how
    /// many of them: as many as a run should hold.
    pub(super) fn file(&mut self, runs: &[RunNo]) -> Result<usize> {
        let mut recorder: Option<Recorder> = None;
        let mut before = None;
        for (done, run) in runs.iter().enumerate() {
            if self.is_head_full() || self.bytes >= FILED_BYTES_MAX {
                return Ok(done);
            }
            let history = self.run.history();
            let last = last_archived(history, *run).map(|last| last.run);
            if recorder.is_none() || last > before {
                recorder = recorder_before(history, *run)?;
                if let Some(recorder) = &mut recorder {
                    recorder.number_from(self.stretches.len());
                }
            }
            before = Some(*run);
            let first = self.stretches.len();
            self.take(*run, &mut recorder)?;
            if let Some(recorder) = &mut recorder {
                recorder.end_stretch(false, self)?;
            }
            for stretch in &mut self.stretches[first..] {
                stretch.of_run = Some(run.0);
            }
        }
        Ok(runs.len())
    }

    /// Whether another process has taken its place: nothing of this run counts any more.
    pub(super) fn is_lost(&self) -> bool {
        self.run.is_lost() || self.segments.as_ref().is_some_and(Segments::is_ousted)
    }

    /// Whether a run that drops or prunes is waiting for this one to end.
    pub(super) fn is_asked(&self) -> bool {
        self.run.is_asked()
    }

    /// Whether it has reached one of its limits. A run of a server that writes nothing ends as well: whatever
    /// shows that a run lives is kept as long as it does.
    pub(super) fn is_due(&self, bytes_max: u64, age_max: Duration) -> bool {
        let age = self.began.elapsed();
        match self.bytes {
            0 => age >= age_max.max(IDLE_AGE_MAX),
            bytes => bytes >= bytes_max || age >= age_max || self.is_head_full(),
        }
    }

    /// Whether its head has as many stretches as it should.
    fn is_head_full(&self) -> bool {
        self.stretches.len() >= STRETCHES_MAX || self.stretches_bytes >= STRETCHES_BYTES_MAX
    }

    /// Whether there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        self.stretches.is_empty() && self.file.is_none() && self.taken.is_empty()
    }

    /// Ends the run as a part of the archive, if there is something in it.
    pub(super) fn finish(mut self, recorder: &mut Recorder) -> Result<Option<Ended>> {
        recorder.end_stretch(false, &mut self)?;
        recorder.begin_run();
        if let Some(mut segments) = self.segments.take() {
            segments.end();
        }
        let (true, Some(tail), Some(writer)) = (!self.is_empty(), recorder.tail(), self.writer.take()) else {
            self.run.abandon("nothing came")?;
            return Ok(None);
        };
        let finished = writer.finish(&self.run)?;
        point("binlog.data.durable");
        let log = self.run.log().clone();
        let position = Position {
            precision: Precision::Exact,
            lsn: Lsn(0),
            binlog: Some(BinlogPosition { file: tail.place.file.clone(), offset: tail.place.position }),
            gtid: tail.gtids.clone(),
            replica_gtid: None,
            replica_of: Vec::new(),
            at: None,
        };
        let more = serde_json::to_value(&self.stretches).context("describe the archive")?;
        let head = Head {
            schema: HEAD_SCHEMA,
            run: self.run.no().0,
            source: log.source.to_string(),
            kind: log.kind.to_string(),
            method: log.kind.to_string(),
            started_at: self.began_at,
            finished_at: jiff::Timestamp::now(),
            tags: Vec::new(),
            server: object(&tail.server)?,
            redo: None,
            position: Some(object(&position)?),
            totals: finished.totals,
            flags: Vec::new(),
            roots: finished.roots,
            base: None,
            more: Map::from_iter([(STRETCHES.to_owned(), more)]),
        };
        let ending = Ending::Archive {
            head: head.encode().context("encode the manifest head")?,
            refs: finished.refs,
            parts: finished.parts,
            tail: tail.to_map()?,
            taken: self.taken.clone(),
        };
        let repo = Arc::clone(self.run.repo());
        let outcome = self.run.finish(ending).map_err(|error| match error {
            FinishError::Lost { .. } => Error::new(ErrorKind::Active, error.to_string()),
            error => error.into(),
        })?;
        point("binlog.published");
        let mut history = self.run.history().clone();
        let history = history.refresh(&repo).is_ok().then(|| Arc::new(history));
        let superseded = self.taken.iter().copied().chain([outcome.run]).collect();
        let discarding = history.clone().and_then(|history| discard(repo, history, superseded));
        let stored_bytes = finished.totals.bytes_stored;
        Ok(Some(Ended { run: outcome.run, history, bytes: self.bytes, stored_bytes, discarding }))
    }

    /// Ends the run without effect: another run takes over what is in its segments.
    pub(super) fn give_up(mut self, why: &str) {
        if let Some(mut segments) = self.segments.take() {
            segments.end();
        }
        drop(self.writer.take());
        let _later = self.run.abandon(why);
    }

    fn writer(&self) -> Result<&BackupWriter> {
        self.writer.as_ref().ok_or_else(|| Error::failed("write to a run that has ended"))
    }

    fn failed(&self, error: WriteError) -> Error {
        let first = self.writer.as_ref().and_then(BackupWriter::take_failure);
        first.unwrap_or(error).into()
    }
}

/// What a run takes over when it begins.
enum TakenOver {
    /// All that can be. The archive ends where the recorder is.
    UpTo(Option<Recorder>),
    /// It has a part of this run's segments, and the rest cannot be read.
    Unreadable(RunNo),
}

/// Deletes the segments of runs whose bytes are in packs by now, on a separate thread because a server is
/// waiting meanwhile. A later sweep removes what is left.
fn discard(repo: Arc<Repo>, history: Arc<History>, runs: BTreeSet<RunNo>) -> Option<JoinHandle<()>> {
    let discard = move || drop(discard_segments(&repo, &history, &runs));
    thread::Builder::new().name("discard".to_owned()).spawn(discard).ok()
}

impl Sink for ArchiveRun {
    fn stretch(&mut self, stretch: &Stretch) -> Result<()> {
        if !self.is_taking_over && self.segments.is_some() {
            self.batch.stretch(stretch)?;
        }
        let path = ItemPath::new(stretch.item_path());
        let path = path.context("name a file of the archive")?;
        let page_size =
            PageSize::from_bytes(PAGE_BYTES).ok_or_else(|| Error::failed("16 KiB are no page size"))?;
        let spec = FileSpec {
            path,
            item_type: ItemType::File,
            role: FileRole::Binlog,
            mode: 0o640,
            page_size,
            tablespace: None,
            outside: None,
        };
        let id = self.writer()?.begin_file(spec).map_err(|error| self.failed(error))?;
        self.file = Some(OpenFile { id, rest: Vec::with_capacity(GIVE_BYTES), pages: 0 });
        Ok(())
    }

    fn event(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.is_taking_over && self.segments.is_some() {
            self.batch.event(bytes);
        }
        self.bytes += bytes.len() as u64;
        let Some(mut file) = self.file.take() else { return Err(Error::failed("an event is of no stretch")) };
        file.rest.extend_from_slice(bytes);
        if file.rest.len() >= GIVE_BYTES {
            let whole = file.rest.len() - file.rest.len() % PAGE_BYTES as usize;
            let given = self.writer()?.pages(file.id, file.pages, &file.rest[..whole]);
            given.map_err(|error| self.failed(error))?;
            file.pages += (whole / PAGE_BYTES as usize) as u64;
            file.rest.drain(..whole);
        }
        self.file = Some(file);
        Ok(())
    }

    fn ended(&mut self, stretch: Stretch) -> Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let size = file.pages * u64::from(PAGE_BYTES) + file.rest.len() as u64;
        let whole = file.rest.len().next_multiple_of(PAGE_BYTES as usize);
        file.rest.resize(whole, 0);
        let writer = self.writer()?;
        if whole > 0 {
            writer.pages(file.id, file.pages, &file.rest).map_err(|error| self.failed(error))?;
        }
        writer.end_file(file.id, size).map_err(|error| self.failed(error))?;
        self.stretches_bytes += serde_json::to_vec(&stretch).context("describe the archive")?.len();
        self.stretches.push(stretch);
        Ok(())
    }
}
