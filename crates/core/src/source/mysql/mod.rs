//! Captures a running MySQL server so that its own crash recovery makes one consistent state of the copy.
//!
//! DDL is blocked only at the end. Bulk builds of indexes write pages without redo, so a copy that began
//! before such a build ended is void. The redo holds a record for each build (MLOG_INDEX_LOAD), which the
//! follower looks for. If the table was locked meanwhile, there is no record: then the listed indexes tell,
//! and the pages that were created for new ones.
//!
//! Order of the steps, each verified on 9.7.4 (`docs/guide/hot-backup.md`):
//!
//! 1. register as consumer of the redo, then follow it from the newest checkpoint; `LOCK INSTANCE FOR BACKUP` for
//!    a moment, so that no build of an index is under way that began before;
//! 2. copy tablespaces, then all other files, while the server writes; catch up once or twice, trying to have that
//!    moment first, if it has not been had;
//! 3. `LOCK INSTANCE FOR BACKUP`: settle names, copy again what DDL has touched;
//! 4. `FLUSH TABLES … WITH READ LOCK` on the tables of other engines: copy what has changed;
//! 5. `log_status`: position and end LSN together; release; cut the redo exactly there.
//!
//! If the redo is encrypted, neither load records nor deletions of files can be found in it, and its last
//! block cannot be cut: then the lock of step 3 comes before step 1, and what the last block has beyond the
//! position is restored, too. On a series on which none of this was tried, that lock also comes first. IMPORT
//! ends with a checkpoint (verified on 9.7.4), so the redo from then on has no deletion of a file that came
//! back.

use holdfast_formats::Lsn;

use holdfast_pipe::throttle::Throttle;

use super::{
    CaptureOptions, CaptureStats, Captured, Sink, Source,
    context::{CopyContext, CopyCounters},
    copier::Copier,
    damage::{Damage, OfServer},
    inventory::Inventory,
    not_this_server,
    page_reader::ReadMode,
    questions::Questions,
    redo::{self, mysql::Follower},
    rewritten::Rewritten,
    running_clock::RunningClock,
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    meter::Meter,
    points::point,
    server::{
        ConnectOptions, Purpose, RedoConsumer, ServerFacts, Session,
        status::{self, MySqlRedoStatus, ReplicaChannel},
        tables,
    },
};

mod consumer;
mod copy;
mod index_ids;
mod layout;
mod looks;
mod quiet;
mod stop;

pub use layout::Layout;
use stop::Blind;

/// A MySQL server as a source.
pub struct MySqlSource {
    connect: ConnectOptions,
    facts: ServerFacts,
    questions: Questions,
    options: CaptureOptions,
}

impl MySqlSource {
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
}

/// What the phases of a capture share.
struct Capture<'a> {
    options: &'a CaptureOptions,
    facts: &'a ServerFacts,
    layout: Layout,
    copier: Copier<'a>,
    follower: &'a Follower,
    connect: &'a ConnectOptions,
    /// Where the redo ended at the last look while no definition was being changed.
    quiet: Option<Lsn>,
    /// `ALTER INSTANCE` statements before the capture began. `None`: the lock that is held for the whole copy
    /// keeps redo logging from being switched (verified on 9.7.4), and statements that wait for this lock are
    /// counted, too.
    alter_instance_count: Option<u64>,
    /// What the last attempt that got so far copied again while it held a lock.
    tried: Option<Rewritten>,
    stats: CaptureStats,
    listener: &'a dyn Listener,
    /// For questions while another session holds the lock.
    questions: &'a mut Questions,
}

impl Source for MySqlSource {
    fn capture(&mut self, sink: &dyn Sink, listener: &dyn Listener, cancel: &Cancel) -> Result<Captured> {
        listener.event(Event::Phase { name: "start" });
        let clock = RunningClock::start()?;
        let channels = self.questions.ask(ReplicaChannel::read_all)?;
        status::refuse_gaps(&self.facts, &channels)?;
        let mode = if self.facts.writes_directly() { ReadMode::Direct } else { ReadMode::Buffered };
        let spool = self.options.spool()?;
        let is_encrypted = self.facts.encryption.redo || redo::mysql::is_encrypted(&self.options.redo_dir)?;
        let blind = Blind::of(&self.facts.version, is_encrypted);
        let lock = |why| stop::lock_for_the_copy(why, &self.connect, &self.options, listener);
        let lock = blind.map(lock).transpose()?;
        let alter_instance_count = match lock.is_some() && self.facts.version.is_verified_mysql() {
            true => None,
            false => Some(self.questions.ask(status::alter_instance_count)?),
        };
        let newest_index = |session: &mut Session| {
            session.number("SELECT COALESCE(MAX(INDEX_ID), 0) FROM information_schema.INNODB_INDEXES")
        };
        let listed: u64 = copy::ask_past_definitions(&mut self.questions, newest_index, listener, cancel)?;
        let shared = self.questions.ask(tables::mysql_shared_spaces)?;
        // Registered before the checkpoint is read, so that nothing from that checkpoint on is reused. And
        // after everything slow: the server drops a consumer that does not advance.
        let consumer = RedoConsumer::register(&self.connect)?;
        point("backup.consumer.registered");
        let follower = Follower::start(&self.options.redo_dir, spool, is_encrypted, shared, || {
            index_ids::highest(&self.facts, &self.options, mode).map(|highest| highest.max(listed))
        })?;
        if follower.begin().encrypted != is_encrypted {
            return Err(redo::mysql::encryption_switched_on());
        }
        let status = self.questions.ask(MySqlRedoStatus::read)?;
        if follower.begin().log_uuid != status.uuid {
            return Err(not_this_server(&self.options.redo_dir));
        }
        let observer = Session::open_patiently(&self.connect, Purpose::Monitor)?;
        let counters = CopyCounters::default();
        let progress = Meter::new(listener, 0);
        let throttle = Throttle::new(self.options.read_bytes_per_s_max);
        let indexes = OfServer(&self.connect);
        let damage = Damage::new(self.options.allow_corrupt, &indexes, listener);
        let (position, mut stats) = std::thread::scope(|scope| {
            let advancing = consumer::advance(scope, consumer, observer, &follower);
            point("backup.redo.following");
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
                    had_quiet: lock.is_some(),
                    began: status.current,
                },
                follower: &follower,
                connect: &self.connect,
                quiet: None,
                alter_instance_count,
                tried: None,
                stats: CaptureStats { direct_io: mode == ReadMode::Direct, ..CaptureStats::default() },
                listener,
                questions: &mut self.questions,
            };
            capture.wait_for_quiet()?;
            listener.event(Event::Phase { name: "copy" });
            capture.copy_while_the_server_writes()?;
            point("backup.copied");
            listener.event(Event::Phase { name: "stop" });
            let position = capture.stop(lock)?;
            point("backup.locks.released");
            capture.copier.end_what_grew()?;
            let mut stats = capture.stats;
            stats.damaged_pages = damage.pages(|| capture.copier.inventory.paths());
            drop(advancing);
            Ok::<_, Error>((position, stats))
        })?;
        let begin = follower.begin().clone();
        let captured = follower.finish(position.lsn, stop::REDO_WAIT)?;
        point("backup.redo.finished");
        let position = stop::as_precise_as(position, captured.is_exact, &self.facts.version, listener);
        stats.count(&counters);
        stats.redo_bytes = captured.keep_bytes;
        redo::send(&captured.spool, captured.keep_bytes, &captured.last_block, sink)?;
        Ok(Captured {
            facts: self.facts.clone(),
            redo: stop::describe_redo(&begin, &position),
            position,
            stats,
        })
    }
}
