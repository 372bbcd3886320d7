//! Captures a running MariaDB server so that its own crash recovery makes one consistent state of the copy.
//!
//! The capture looks like a server that crashed at the instant of `BACKUP STAGE BLOCK_COMMIT`: file names as
//! they are under `BLOCK_DDL`, InnoDB pages of any age since a checkpoint, all redo from that checkpoint to
//! the end, Aria pages of any age since its control file was copied, the Aria log to the end. Order of the
//! steps, each verified on 10.11.19 and 11.8.6 (`docs/guide/hot-backup.md`):
//!
//! 1. follow the redo from the newest checkpoint; if it is encrypted, `BLOCK_DDL` for a moment, to note which
//!    tables exist;
//! 2. `BACKUP STAGE START`; copy tablespaces, then all other files, while the server writes;
//! 3. catch up without a lock until little is left;
//! 4. `FLUSH`, `BLOCK_DDL`: settle names, copy what DDL created, copy again what non-transactional writers
//!    changed;
//! 5. `BLOCK_COMMIT`: tails of logs, position and end LSN together;
//! 6. `END`; finish the redo exactly there.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use holdfast_formats::Lsn;
use holdfast_pipe::throttle::Throttle;

use super::{
    CaptureOptions, CaptureStats, Captured, Sink, Source,
    context::{CopyContext, CopyCounters},
    copier::Copier,
    damage::{Damage, OfServer},
    files::Entry,
    inventory::Inventory,
    not_this_server,
    page_reader::ReadMode,
    questions::Questions,
    redo::mariadb::Follower,
    rewritten::Rewritten,
    running_clock::RunningClock,
};
use crate::{
    error::Result,
    event::{Cancel, Event, Listener},
    meter::Meter,
    points::point,
    server::{
        BackupStages, ConnectOptions, Purpose, ServerFacts, Session,
        status::{self, MariaDbLsns, ReplicaChannel, ServerStart},
    },
};

/// A server that takes longer than this to report how far its redo is on disk has come to a stop.
const DURABLE_PATIENCE: Duration = Duration::from_secs(20);

mod aria;
mod copy;
mod discarded;
mod layout;
mod stop;

pub use layout::Layout;

use discarded::Baseline;

/// A MariaDB server as a source.
pub struct MariaDbSource {
    connect: ConnectOptions,
    facts: ServerFacts,
    questions: Questions,
    options: CaptureOptions,
}

impl MariaDbSource {
    /// A source for a server that was probed and found fit.
    #[must_use]
    pub fn new(
        connect: ConnectOptions,
        facts: ServerFacts,
        session: Session,
        options: CaptureOptions,
    ) -> Self {
        Self { questions: Questions::new(connect.clone(), session), connect, facts, options }
    }

    /// Fails unless the server, whose newest checkpoint was `before`, reports that it has reached the one
    /// found in `log`. It reports a checkpoint once that is durable, which a busy disk can delay.
    fn expect_checkpoint(&mut self, before: Lsn, follower: &Follower, log: &Path) -> Result<()> {
        let found = follower.header().checkpoint().lsn;
        let deadline = Instant::now() + DURABLE_PATIENCE;
        loop {
            let is_known = found <= self.questions.ask(MariaDbLsns::read)?.last_checkpoint;
            if found < before || (!is_known && Instant::now() > deadline) {
                return Err(not_this_server(log));
            }
            if is_known {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns a function that asks, over a session of its own, up to where the redo is on disk.
    fn durable_lsn(&self) -> Result<impl FnMut() -> Result<Lsn> + Send + use<>> {
        let session = Session::open_patiently(&self.connect, Purpose::Monitor)?;
        let mut questions = Questions::new(self.connect.clone(), session).patient_for(DURABLE_PATIENCE)?;
        Ok(move || Ok(questions.ask(MariaDbLsns::read)?.flushed))
    }
}

/// What the phases of a capture share.
struct Capture<'a> {
    options: &'a CaptureOptions,
    facts: &'a ServerFacts,
    layout: Layout,
    copier: Copier<'a>,
    follower: &'a Follower,
    /// Which start of the server the capture began with.
    begun: ServerStart,
    /// The Aria control file as it was before any Aria table was copied.
    aria_control: Option<(Entry, Vec<u8>)>,
    /// Set if the redo is encrypted: what its notes about files are judged by.
    baseline: Option<Baseline>,
    /// Whether some tables must be closed to writes at the end.
    closes_tables: bool,
    /// What the last attempt that got so far copied again while it held a lock.
    tried: Option<Rewritten>,
    stats: CaptureStats,
    listener: &'a dyn Listener,
    /// For questions while another session holds the stages.
    questions: &'a mut Questions,
}

impl Source for MariaDbSource {
    fn capture(&mut self, sink: &dyn Sink, listener: &dyn Listener, cancel: &Cancel) -> Result<Captured> {
        listener.event(Event::Phase { name: "start" });
        let clock = RunningClock::start()?;
        let mode = if self.facts.writes_directly() { ReadMode::Direct } else { ReadMode::Buffered };
        let spool = self.options.spool()?;
        let begun = self.questions.ask(ServerStart::read)?;
        status::refuse_gaps(&self.facts, &self.questions.ask(ReplicaChannel::read_all)?)?;
        let before = self.questions.ask(MariaDbLsns::read)?.last_checkpoint;
        let log = self.options.redo_dir.join("ib_logfile0");
        let durable = self.durable_lsn()?;
        let follower = Follower::start(&log, mode, spool, durable)?;
        self.expect_checkpoint(before, &follower, &log)?;
        point("backup.redo.following");
        let counters = CopyCounters::default();
        let progress = Meter::new(listener, 0);
        let throttle = Throttle::new(self.options.read_bytes_per_s_max);
        let indexes = OfServer(&self.connect);
        let damage = Damage::new(self.options.allow_corrupt, &indexes, listener);
        let mut capture = Capture {
            options: &self.options,
            facts: &self.facts,
            layout: Layout::new(&self.facts)?,
            copier: Copier {
                context: CopyContext {
                    flavor: self.facts.flavor(),
                    clock: &clock,
                    mode,
                    sink,
                    counters: &counters,
                    progress: &progress,
                    throttle: &throttle,
                    headroom: &self.options.headroom,
                    cancel,
                    redo: &follower,
                    damage: &damage,
                },
                inventory: Inventory::of(&self.facts),
                parallel: self.options.parallel,
                had_quiet: false,
                began: Lsn::default(),
            },
            follower: &follower,
            begun,
            aria_control: None,
            baseline: None,
            closes_tables: false,
            tried: None,
            stats: CaptureStats { direct_io: mode == ReadMode::Direct, ..CaptureStats::default() },
            listener,
            questions: &mut self.questions,
        };
        let mut stages = BackupStages::open(&self.connect, self.options.locks.ddl_limits())?;
        if follower.header().encrypted() {
            let checkpoint = follower.header().checkpoint().lsn;
            let read = |session: &mut Session| Baseline::read(session, checkpoint, mode);
            capture.baseline = Some(stop::baseline(&mut stages, &self.options, read)?);
        }
        stop::start(&mut stages, &self.options)?;
        stop::refuse_another_start(&begun, &stages.session().with(ServerStart::read)?)?;
        point("backup.stage.start");

        listener.event(Event::Phase { name: "copy" });
        capture.copy_while_the_server_writes()?;
        point("backup.copied");

        listener.event(Event::Phase { name: "stop" });
        let position = capture.stop(stages, &self.connect)?;
        point("backup.locks.released");
        capture.copier.end_what_grew()?;

        let damaged_pages = damage.pages(|| capture.copier.inventory.paths());
        let mut stats = capture.stats;
        let header = follower.header().clone();
        // Without this, the end may reach the disk only a second later.
        self.questions.ask(status::flush_engine_logs)?;
        let redo = follower.finish(Duration::from_secs(60))?;
        // After a restart, redo that was not yet on disk when the locks were released would have been written
        // anew, and differently.
        stop::refuse_another_start(&begun, &self.questions.ask(ServerStart::read)?)?;
        point("backup.redo.finished");
        stats.count(&counters);
        stats.damaged_pages = damaged_pages;
        super::redo::send(&redo.spool, redo.spool.len(), &[], sink)?;
        Ok(super::Captured {
            redo: stop::describe_redo(&header, &redo, position.lsn)?,
            facts: self.facts.clone(),
            position,
            stats: CaptureStats {
                redo_bytes: redo.spool.len(),
                redo_lag_bytes_max: Some(redo.lag_bytes_max),
                ..stats
            },
        })
    }
}
