//! A run: the only way in which a log changes (`docs/repository.md` section 12).
//!
//! - A run begins when it has created its first lease object, and every earlier run has an outcome.
//! - It ends with one outcome, created conditionally. Whoever comes second has lost, whatever it has stored.
//! - Between the two, everything it stores bears its number, so nothing of it can be taken for another run's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::{
    beneath::require_not_hidden,
    client::{Client, ProcessId},
    error::{Damage, RepoError},
    hex::Hex,
    history::History,
    interrupt::Interrupt,
    keys::{Act, random},
    lease::{LeaseObject, LeaseState, RENEWAL, RenewalThread, Renewer, give_up, look},
    names::{Folder, Kind, LogName, RunNo},
    object::{ObjectKind, Place, RunSecrets, seal_object},
    outcome::{
        self, CopyOf, Intent, LostOutcome, OUTCOME_BYTES_MAX, ObjectHash, Outcome, OutcomeType, PartId,
        PublicPart, Rebuilt, object_hash,
    },
    refs::{BackupRefs, PruneRefs, REFS_BYTES_MAX, RepairRefs},
    repo::Repo,
    room::with_room,
    store::{ObjectInfo, RemoteCause, StoreError, StoreErrorKind, exists, read_listed},
};

/// How often a beginning run looks again after it lost a creation to another.
const ATTEMPTS: u32 = 20;

/// Plain bytes of a report, at most.
pub const REPORT_BYTES_MAX: u64 = 16 << 20;

/// How a run is to behave.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Who runs.
    pub client: Client,
    /// How often a thread of its own renews the lease; `None`: the caller calls [`Run::renew`].
    pub renew_every: Option<Duration>,
    /// After so long without a renewal another may end the run; `None`: after the usual 15 minutes, which is also the most.
    pub patience: Option<Duration>,
    /// It looks whether it [is asked](Run::is_asked) to make room for who drops or prunes, and ends soon then.
    pub makes_room: bool,
    /// Ends waiting for room.
    pub interrupt: Interrupt,
}

impl RunOptions {
    /// This process, renewing as specified.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            client: Client::this_process(),
            renew_every: Some(RENEWAL),
            patience: None,
            makes_room: false,
            interrupt: Interrupt::default(),
        }
    }
}

/// Another run that is alive.
#[derive(Clone, Debug)]
pub struct ActiveRun {
    /// Whose log.
    pub log: LogName,
    /// Its number.
    pub run: RunNo,
    /// When it began, by the store's clock.
    pub started_at: SystemTime,
    /// Its last sign of life, by the store's clock.
    pub renewed_at: SystemTime,
    /// Its process, where it told.
    pub process: Option<ProcessId>,
    /// What it is to become, where it told.
    pub intent: Option<Intent>,
    /// It ends soon where it is asked to.
    pub makes_room: bool,
}

impl ActiveRun {
    fn new(log: &LogName, run: RunNo, lease: LeaseState) -> Self {
        let LeaseState { started_at, renewed_at, intent, process, makes_room, is_alive: _ } = lease;
        Self { log: log.clone(), run, started_at, renewed_at, process, intent, makes_room }
    }
}

/// What a log is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its last run has ended, or there was none.
    Idle,
    /// A run is under way.
    Alive,
    /// A run has begun and not ended, and its lease is over: the next to begin takes its place.
    Dead,
}

/// Looks what a log is doing, and changes nothing.
pub fn standing(repo: &Repo, log: &LogName) -> Result<Standing, RepoError> {
    let newest = |folder| -> Result<Option<RunNo>, RepoError> {
        Ok(repo.list_folder(log, folder)?.last_key_value().map(|(key, _)| key.0))
    };
    // Leases first: a run that ends between the two lists is not taken for one that goes on.
    let (begun, ended) = (newest(Folder::Runs)?, newest(Folder::Outcomes)?);
    let Some(run) = begun.filter(|_| begun > ended) else { return Ok(Standing::Idle) };
    Ok(match look(repo, log, run)? {
        Some(lease) if lease.is_alive => Standing::Alive,
        Some(_) => Standing::Dead,
        None => Standing::Idle,
    })
}

/// Why a run could not begin.
#[derive(Debug, Error)]
pub enum BeginError {
    /// Another is active.
    #[error(
        "run {} of {} is active: {} began at {} and showed its last sign of life at {}",
        .0.run, .0.log, who(.0), when(.0.started_at), when(.0.renewed_at)
    )]
    Active(Box<ActiveRun>),
    /// Others kept beginning runs.
    #[error("other runs of {log} kept coming first")]
    Crowded {
        /// Whose log.
        log: LogName,
    },
    /// The lease thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The repository failed.
    #[error(transparent)]
    Repo(#[from] RepoError),
}

/// What it is and where, as far as it told.
fn who(active: &ActiveRun) -> String {
    let what = match active.intent {
        Some(Intent::Backup) if active.log.kind == Kind::Binlog => "an archiver",
        Some(Intent::Backup) => "a backup",
        Some(Intent::Expire) => "an expiry",
        Some(Intent::Prune) => "a prune",
        Some(Intent::Hold) => "a hold or release",
        Some(Intent::Repair) => "a repair",
        None => "it",
    };
    match active.process {
        Some(process) if process.is_of_this_host() => {
            format!("{what} (process {} of this host)", process.pid)
        }
        Some(_) => format!("{what} (on another host, or in another container)"),
        None => what.to_owned(),
    }
}

fn when(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| "an unknown time".to_owned(), |time| format!("{time:.0}"))
}

/// Why a run could not end as it wanted.
#[derive(Debug, Error)]
pub enum FinishError {
    /// Another run has ended it: nothing of it counts.
    #[error("run {run} of {log} was ended by another while it ran ({by}): nothing of it counts")]
    Lost {
        /// Whose log.
        log: LogName,
        /// Its number.
        run: RunNo,
        /// What stands as its outcome.
        by: &'static str,
    },
    /// The repository failed when the run's end was to be stored, or was to be looked at behind that, for so long that
    /// others may have ended the run: it may have ended as it wanted.
    #[error("whether run {run} of {log} has ended as {wanted} cannot be told")]
    Unsure {
        /// Whose log.
        log: LogName,
        /// Its number.
        run: RunNo,
        /// What it was to end as.
        wanted: &'static str,
        /// Its outcome, where that is stored and may only not count.
        outcome: Option<Box<Outcome>>,
        /// What could not be done.
        #[source]
        cause: Box<RepoError>,
    },
    /// The repository failed, and the run has not ended as it wanted.
    #[error(transparent)]
    Repo(#[from] RepoError),
}

/// The outcome of a run that has ended as it wanted, or may have.
#[must_use]
pub fn stored_outcome(ended: &Result<Outcome, FinishError>) -> Option<&Outcome> {
    match ended {
        Ok(outcome) => Some(outcome),
        Err(FinishError::Unsure { outcome, .. }) => outcome.as_deref(),
        Err(_) => None,
    }
}

/// How a run ends.
#[derive(Clone, Debug)]
pub enum Ending {
    /// As a backup.
    Backup {
        /// The manifest head: JSON of at most [`HEAD_BYTES_MAX`](outcome::HEAD_BYTES_MAX).
        head: Vec<u8>,
        /// What it needs, as [`Run::write_backup_refs`] stored it.
        refs: WrittenRefs,
        /// What it stored.
        parts: PartCounts,
    },
    /// As a part of an archive: a backup that continues those before it.
    Archive {
        /// The manifest head: JSON of at most [`HEAD_BYTES_MAX`](outcome::HEAD_BYTES_MAX).
        head: Vec<u8>,
        /// What it needs, as [`Run::write_backup_refs`] stored it.
        refs: WrittenRefs,
        /// What it stored.
        parts: PartCounts,
        /// Where it ends, for every role to read.
        tail: Map<String, Value>,
        /// Runs that ended without effect, and whose segments it has taken over.
        taken: Vec<RunNo>,
    },
    /// By dropping backups.
    Expire {
        /// Which.
        dropped: Vec<RunNo>,
    },
    /// By holding backups.
    Hold {
        /// Which.
        backups: Vec<RunNo>,
        /// When the hold ends by itself.
        until: Option<Timestamp>,
        /// Why, for people.
        reason: String,
    },
    /// By making anew what was lost.
    Repair {
        /// Outcomes that are lost.
        lost: Vec<LostOutcome>,
        /// Backups that are beyond help.
        dropped: Vec<RunNo>,
        /// Runs whose refs are in `refs`.
        rebuilt: Vec<Rebuilt>,
        /// As [`Run::write_repair_refs`] stored it.
        refs: WrittenRefs,
    },
    /// By ending the holds of backups.
    Release {
        /// Whose.
        backups: Vec<RunNo>,
    },
    /// By declaring packs dead and chunks moved.
    Prune {
        /// Which, as [`Run::write_prune_refs`] stored it.
        refs: WrittenRefs,
        /// What it stored.
        parts: PartCounts,
    },
}

/// How many numbers a run gave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounts {
    /// Of index parts.
    pub index: u32,
    /// Of packs.
    pub pack: u32,
}

/// Proof that refs are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenRefs(ObjectHash);

/// An active run. Dropped without an ending, it tries to say that it is abandoned.
pub struct Run {
    repo: Arc<Repo>,
    history: History,
    no: RunNo,
    intent: Intent,
    host: String,
    secrets: Arc<RunSecrets>,
    renewer: Arc<Renewer>,
    thread: Option<RenewalThread>,
    /// What the backup is a copy of.
    copy_of: Option<CopyOf>,
    imported: bool,
    part: Option<PartId>,
    /// What people are told of its end.
    why: String,
    /// Outcomes that this run has tried to create: a reply may have got lost.
    attempts: Vec<ObjectHash>,
    ended: bool,
}

impl Run {
    /// Begins a run on `log` that is to become a backup, ending one whose lease is over if need be.
    pub fn begin(repo: &Arc<Repo>, log: &LogName, options: &RunOptions) -> Result<Self, BeginError> {
        Self::begin_now(Intent::Backup, repo, log, None, options)
    }

    /// As [`begin`](Self::begin), where the history was read before: only what came since is read.
    pub fn begin_on(repo: &Arc<Repo>, history: History, options: &RunOptions) -> Result<Self, BeginError> {
        let log = history.log().clone();
        Self::begin_now(Intent::Backup, repo, &log, Some(history), options)
    }

    /// As [`begin_on`](Self::begin_on), for a run that drops, holds or prunes. It asks for room.
    pub(crate) fn begin_as(
        intent: Intent,
        repo: &Arc<Repo>,
        history: &History,
        options: &RunOptions,
    ) -> Result<Self, BeginError> {
        let log = history.log();
        with_room(repo, log, &options.interrupt, || {
            Self::begin_now(intent, repo, log, Some(history.clone()), options)
        })
    }

    fn begin_now(
        intent: Intent,
        repo: &Arc<Repo>,
        log: &LogName,
        mut history: Option<History>,
        options: &RunOptions,
    ) -> Result<Self, BeginError> {
        match intent {
            Intent::Backup => repo.require(Act::Backup, "a backup")?,
            Intent::Expire | Intent::Prune => repo.require(Act::Prune, "dropping and pruning")?,
            Intent::Hold => repo.require(Act::Prune, outcome::HOLDING)?,
            Intent::Repair => repo.require(Act::Read, outcome::REPAIRING)?,
        }
        repo.require_locks("writing")?;
        // What was removed or rotated since the repository was opened is known from here on.
        repo.look_again().map_err(RepoError::from)?;
        repo.require_sound_keys()?;
        let token = Hex(random().map_err(RepoError::NoRandom)?);
        let lease = LeaseObject {
            token,
            intent: Some(intent),
            process: options.client.process,
            patience_s: options.patience.map(|patience| patience.as_secs()),
            makes_room: options.makes_room,
        };
        for _ in 0..ATTEMPTS {
            // Leases first: a run that begins and ends between the two lists must not look like a gap.
            let leases = repo.list_folder(log, Folder::Runs)?;
            let known = match history.take() {
                Some(mut known) => {
                    History::refresh(&mut known, repo)?;
                    known
                }
                None => History::read(repo, log)?,
            };
            let next = known.next_run();
            let foreseen = known.last_foreseen();
            let newest_lease = leases.into_keys().map(|(run, _)| run).filter(|run| *run <= foreseen).max();
            if newest_lease > Some(next) {
                return Err(RepoError::damaged(log.outcome(next), Damage::Missing).of_history(log).into());
            }
            repo.require_believed(log, next)?;
            if newest_lease == Some(next) {
                if let Some(active) = end_if_dead(repo, &known, &options.client)? {
                    return Err(BeginError::Active(Box::new(active)));
                }
            } else if let Some(begun_at) = create_first_lease(repo, log, next, &lease)? {
                return Self::start(intent, repo, known, next, (&lease, begun_at), options);
            }
            history = Some(known);
        }
        Err(BeginError::Crowded { log: log.clone() })
    }

    /// Begins a repair: on what is whole of the history, after all that anybody has stored. Runs that have died are ended
    /// first, whatever is left of them.
    pub(crate) fn begin_repair(
        repo: &Arc<Repo>,
        log: &LogName,
        options: &RunOptions,
    ) -> Result<Self, BeginError> {
        with_room(repo, log, &options.interrupt, || Self::begin_repair_now(repo, log, options))
    }

    fn begin_repair_now(repo: &Arc<Repo>, log: &LogName, options: &RunOptions) -> Result<Self, BeginError> {
        repo.require(Act::Read, outcome::REPAIRING)?;
        repo.require_locks(outcome::REPAIRING)?;
        // What was removed or rotated since the repository was opened is known from here on.
        repo.look_again().map_err(RepoError::from)?;
        repo.require_sound_keys()?;
        let token = Hex(random().map_err(RepoError::NoRandom)?);
        let lease = LeaseObject {
            token,
            intent: Some(Intent::Repair),
            process: options.client.process,
            patience_s: options.patience.map(|patience| patience.as_secs()),
            makes_room: options.makes_room,
        };
        for _ in 0..ATTEMPTS {
            // Before anything is read: what ends meanwhile is among what has no outcome, and is looked at once more.
            let there = repo.list_folder(log, Folder::Outcomes)?;
            let begun = stored_runs(repo, log)?;
            let Some(mut history) = salvage_twice(repo, log, &there)? else { continue };
            let highest = begun.range(..=history.last_foreseen()).next_back().copied();
            let highest = highest.max(history.last_missing(repo)?).unwrap_or(RunNo(0));
            let without = (history.next_run().0..=highest.0).map(RunNo);
            let without: Vec<RunNo> = without.filter(|run| !there.contains_key(&(*run, 0))).collect();
            let has_any = !without.is_empty();
            for run in without {
                let lease = look(repo, log, run)?;
                if let Some(lease) = lease.as_ref().filter(|lease| lease.is_alive) {
                    return Err(BeginError::Active(Box::new(ActiveRun::new(log, run, lease.clone()))));
                }
                // Where nothing tells what it was: as if it had been a backup, since what is left of another is swept at
                // once, before anybody has looked whether a prune that had ended has moved something there.
                let intent = lease.and_then(|lease| lease.intent).or(Some(Intent::Backup));
                entomb(repo, &history, run, intent, &options.client)?;
                if history.refresh(repo).is_err() || history.next_run() != RunNo(run.0 + 1) {
                    // Something else is there, or what is damaged lies between: it is looked at anew.
                    break;
                }
            }
            if has_any {
                continue;
            }
            let next = RunNo(highest.0 + 1);
            if history.next_run() > next {
                continue;
            }
            repo.require_believed(log, next)?;
            if let Some(begun_at) = create_first_lease(repo, log, next, &lease)? {
                return Self::start(Intent::Repair, repo, history, next, (&lease, begun_at), options);
            }
        }
        Err(BeginError::Crowded { log: log.clone() })
    }

    fn start(
        intent: Intent,
        repo: &Arc<Repo>,
        history: History,
        no: RunNo,
        (lease, begun_at): (&LeaseObject, SystemTime),
        options: &RunOptions,
    ) -> Result<Self, BeginError> {
        let renewer = Arc::new(Renewer::new(repo, history.log(), no, lease, begun_at));
        let mut run = Self {
            secrets: Arc::new(repo.draw_secrets(history.log(), no)?),
            repo: Arc::clone(repo),
            history,
            no,
            intent,
            host: options.client.host.clone(),
            renewer,
            thread: None,
            copy_of: None,
            imported: false,
            part: None,
            why: String::new(),
            attempts: Vec::new(),
            ended: false,
        };
        if let Some(every) = options.renew_every {
            let thread = RenewalThread::start(Arc::clone(&run.renewer), every);
            run.thread = Some(thread.map_err(BeginError::Thread)?);
        }
        Ok(run)
    }

    /// Its number.
    #[must_use]
    pub fn no(&self) -> RunNo {
        self.no
    }

    /// The repository.
    #[must_use]
    pub fn repo(&self) -> &Arc<Repo> {
        &self.repo
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> &LogName {
        self.history.log()
    }

    /// All that came before. It cannot change while this run can still succeed.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// For its packs and index parts.
    #[must_use]
    pub fn secrets(&self) -> &Arc<RunSecrets> {
        &self.secrets
    }

    /// Whether it is known that another has ended this run: all further work is in vain.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.renewer.is_lost()
    }

    /// Whether somebody who drops or prunes waits for the end of this run.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.renewer.is_asked()
    }

    /// Renews the lease once, and looks whether the run has been ended.
    pub fn renew(&self) -> Result<(), RepoError> {
        self.renewer.renew()
    }

    /// Why an operation of this run failed: if another has ended the run, what it relied on may be gone by now, and
    /// that it has lost is the reason.
    #[must_use]
    pub fn lost_or(&self, error: RepoError) -> FinishError {
        self.lost().unwrap_or_else(|| error.into())
    }

    /// [`FinishError::Lost`] if another has ended this run, as far as the repository can be asked.
    #[must_use]
    pub fn lost(&self) -> Option<FinishError> {
        let (log, run) = (self.history.log(), self.no);
        let read = || -> Result<Outcome, RepoError> {
            let path = log.outcome(run);
            let info = self.repo.store().head(&path)?;
            let bytes = read_listed(&**self.repo.store(), &info, OUTCOME_BYTES_MAX)?;
            outcome::parse(&self.repo, log, run, &bytes, info.created_at)
        };
        match read() {
            Ok(found) if !self.attempts.contains(&found.hash) => {
                let by = found.outcome_type.as_str();
                Some(FinishError::Lost { log: log.clone(), run, by })
            }
            _ => None,
        }
    }

    fn place(&self, kind: ObjectKind) -> Place<'_> {
        Place { log: self.history.log(), kind, run: self.no, part: 0 }
    }

    /// Stores what the backup needs. After the packs and index parts, before the ending.
    pub fn write_backup_refs(&self, refs: &BackupRefs) -> Result<WrittenRefs, RepoError> {
        self.write_refs(&refs.encode())
    }

    /// Stores what the prune declares. After the packs and index parts, before the ending.
    pub fn write_prune_refs(&self, refs: &PruneRefs) -> Result<WrittenRefs, RepoError> {
        self.write_refs(&refs.encode())
    }

    /// Stores what the repair has made anew. Before the ending.
    pub fn write_repair_refs(&self, refs: &RepairRefs) -> Result<WrittenRefs, RepoError> {
        self.write_refs(&refs.encode())
    }

    fn write_refs(&self, plain: &[u8]) -> Result<WrittenRefs, RepoError> {
        let place = self.place(ObjectKind::Refs);
        let size_bytes = plain.len() as u64;
        if size_bytes > REFS_BYTES_MAX {
            let object = place.to_string();
            return Err(RepoError::TooLarge {
                object,
                what: "refs",
                size_bytes,
                limit_bytes: REFS_BYTES_MAX,
            });
        }
        let object = seal_object(self.repo.keys(), &place, plain)?;
        self.repo.put(&place, &object)?;
        Ok(WrittenRefs(object_hash(&object)))
    }

    /// Stores what the run measured, as JSON.
    pub fn write_report(&self, json: &[u8]) -> Result<(), RepoError> {
        self.repo.write_object(&self.place(ObjectKind::Report), json).map(|_| ())
    }

    /// What people are told of how the run ends.
    pub(crate) fn set_why(&mut self, why: String) {
        self.why = why;
    }

    /// The backup that this run ends as is a copy.
    pub fn set_copy_of(&mut self, origin: CopyOf) {
        self.copy_of = Some(origin);
    }

    /// The backup that this run ends as was made of another tool's dump.
    pub fn set_imported(&mut self) {
        self.imported = true;
    }

    /// The backup holds only this part of its source.
    pub fn set_part(&mut self, part: Option<PartId>) {
        self.part = part;
    }

    /// Ends the run: from here on its effect is there, for everybody and for good.
    pub fn finish(&mut self, ending: Ending) -> Result<Outcome, FinishError> {
        let mut public = self.public_part(OutcomeType::Abandoned, self.why.clone())?;
        let head = match ending {
            Ending::Backup { head, refs, parts } => {
                public.outcome_type = OutcomeType::Backup;
                public.copy_of = self.copy_of.clone();
                public.imported = self.imported;
                public.part = self.part;
                public.refs = Some(refs.0);
                public.index_parts = parts.index;
                public.pack_parts = parts.pack;
                Some(head)
            }
            Ending::Archive { head, refs, parts, tail, taken } => {
                public.outcome_type = OutcomeType::Backup;
                public.refs = Some(refs.0);
                public.index_parts = parts.index;
                public.pack_parts = parts.pack;
                public.tail = Some(tail);
                public.taken = taken.into_iter().map(|run| run.0).collect();
                Some(head)
            }
            Ending::Expire { dropped } => {
                public.outcome_type = OutcomeType::Expire;
                public.dropped = dropped.into_iter().map(|run| run.0).collect();
                None
            }
            Ending::Hold { backups, until, reason } => {
                public.outcome_type = OutcomeType::Hold;
                public.backups = backups.into_iter().map(|run| run.0).collect();
                public.until = until;
                public.why = reason;
                None
            }
            Ending::Repair { lost, dropped, rebuilt, refs } => {
                public.outcome_type = OutcomeType::Repair;
                public.lost = lost;
                public.dropped = dropped.into_iter().map(|run| run.0).collect();
                public.rebuilt = rebuilt;
                public.refs = Some(refs.0);
                None
            }
            Ending::Release { backups } => {
                public.outcome_type = OutcomeType::Release;
                public.backups = backups.into_iter().map(|run| run.0).collect();
                None
            }
            Ending::Prune { refs, parts } => {
                public.outcome_type = OutcomeType::Prune;
                public.refs = Some(refs.0);
                public.index_parts = parts.index;
                public.pack_parts = parts.pack;
                None
            }
        };
        self.end(&public, head.as_deref())
    }

    /// Ends the run without effect, unless it has ended. What a backup stored may be adopted by the next one.
    pub fn abandon(mut self, why: &str) -> Result<(), FinishError> {
        if self.ended { Ok(()) } else { self.end_abandoned(why) }
    }

    /// Leaves the run without an outcome, for others to end.
    pub(crate) fn leave(mut self) {
        self.leave_to_others();
    }

    fn leave_to_others(&mut self) {
        self.ended = true;
        self.thread = None;
        self.renewer.give_up();
    }

    fn end_abandoned(&mut self, why: &str) -> Result<(), FinishError> {
        let public = self.public_part(OutcomeType::Abandoned, why.to_owned())?;
        self.end(&public, None).map(|_| ())
    }

    fn public_part(&self, outcome_type: OutcomeType, why: String) -> Result<PublicPart, RepoError> {
        let public = public_part(&self.repo, &self.history, self.no, outcome_type, &self.host, why)?;
        Ok(PublicPart { intent: Some(self.intent), ..public })
    }

    fn end(&mut self, public: &PublicPart, head: Option<&[u8]>) -> Result<Outcome, FinishError> {
        let (log, no) = (self.history.log().clone(), self.no);
        let bytes = outcome::encode(&self.repo, &log, public, head)?;
        let wanted = public.outcome_type;
        let unsure = |outcome, cause: RepoError| {
            let (log, wanted) = (log.clone(), wanted.as_str());
            FinishError::Unsure { log, run: no, wanted, outcome, cause: Box::new(cause) }
        };
        let mut failed = None;
        let (bytes, created_at) = match self.try_outcome(bytes) {
            Ok(there) => there,
            Err(missed) => {
                let settled = match wanted {
                    OutcomeType::Abandoned => None,
                    _ => Some(self.settle(&missed.error)),
                };
                match settled {
                    Some(Ok(there)) => {
                        failed = Some(missed.error);
                        there
                    }
                    unsettled => {
                        self.leave_to_others();
                        let is_absent = missed.is_absent
                            || matches!(unsettled, Some(Err(Missed { is_absent: true, .. })));
                        return Err(match is_absent && !may_be_under_way(&missed.error) {
                            true => missed.error.into(),
                            false => unsure(None, missed.error),
                        });
                    }
                }
            }
        };
        self.ended = true;
        self.thread = None;
        let outcome = match outcome::parse(&self.repo, &log, no, &bytes, created_at) {
            Err(error @ RepoError::Store(_)) => return Err(unsure(None, error)),
            parsed => parsed?,
        };
        let lost = |by| Err(FinishError::Lost { log: log.clone(), run: no, by });
        let is_own = self.attempts.contains(&outcome.hash);
        if !is_own || outcome.outcome_type != wanted {
            return match failed.filter(|_| is_own) {
                Some(error) => Err(error.into()),
                None => lost(outcome.outcome_type.as_str()),
            };
        }
        // The key may have been removed since the outcome was signed: then nobody believes it, and nobody shall be told
        // that it ended well. And whoever wakes late may end in the place of an outcome that a repair has named lost:
        // then it counts for nothing.
        match self.repo.require_believed(&log, no).and_then(|()| self.is_named_lost()) {
            Ok(false) => Ok(outcome),
            Ok(true) => lost(OutcomeType::Repair.as_str()),
            // Neither happens to a run that lives.
            Err(RepoError::Store(_)) if self.renewer.lived_at(outcome.created_at) => Ok(outcome),
            Err(cause @ RepoError::Store(_)) => Err(unsure(Some(Box::new(outcome)), cause)),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the outcome, unless there is one. What is there then, and since when.
    fn try_outcome(&mut self, bytes: Vec<u8>) -> Result<(Vec<u8>, SystemTime), Missed> {
        self.attempts.push(object_hash(&bytes));
        let (store, path) = (&**self.repo.store(), self.history.log().outcome(self.no));
        let error = match store.create_if_absent(&path, &bytes) {
            Ok(info) => return Ok((bytes, info.created_at)),
            Err(error) => error.into(),
        };
        // Whatever the error says, what is there decides.
        let info = store.head(&path);
        let is_absent = info.as_ref().is_err_and(StoreError::is_not_found);
        let found =
            info.and_then(|info| Ok((read_listed(store, &info, OUTCOME_BYTES_MAX)?, info.created_at)));
        found.map_err(|_| Missed { error, is_absent })
    }

    /// After an attempt that has failed as far as can be told. It may have been carried out all the same, or may be yet:
    /// only another outcome in its place rules that out.
    fn settle(&mut self, error: &RepoError) -> Result<(Vec<u8>, SystemTime), Missed> {
        let why = format!("its outcome could not be stored: {error}");
        let bytes = self
            .public_part(OutcomeType::Abandoned, why)
            .and_then(|public| outcome::encode(&self.repo, self.history.log(), &public, None))
            .map_err(|error| Missed { error, is_absent: false })?;
        self.try_outcome(bytes)
    }

    /// Whether a repair that came before the outcome of this run has named it lost.
    fn is_named_lost(&self) -> Result<bool, RepoError> {
        let (log, no) = (self.history.log(), self.no);
        let newest = self.repo.list_folder(log, Folder::Outcomes)?.last_key_value().map(|(key, _)| key.0);
        Ok(newest > Some(no) && History::salvage(&self.repo, log, &mut |_, _| {})?.is_lost(no))
    }
}

/// Why an outcome could not be created.
struct Missed {
    error: RepoError,
    /// The store has said since that there is none.
    is_absent: bool,
}

/// Whether what failed may be carried out later by something on the way to the store.
fn may_be_under_way(error: &RepoError) -> bool {
    use RemoteCause::{Busy, Other, Unconfirmed, Unreachable};
    let RepoError::Store(StoreError { kind: StoreErrorKind::Remote(remote), .. }) = error else {
        return false;
    };
    matches!(remote.cause, Unreachable | Busy | Unconfirmed | Other)
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.ended {
            // A courtesy to the next run, which would otherwise wait for the lease to end.
            if self.end_abandoned("ended without a word").is_err() && !self.ended {
                self.leave_to_others();
            }
        }
    }
}

fn public_part(
    repo: &Repo,
    history: &History,
    run: RunNo,
    outcome_type: OutcomeType,
    host: &str,
    why: String,
) -> Result<PublicPart, RepoError> {
    Ok(PublicPart {
        run: run.0,
        outcome_type,
        intent: None,
        at: repo.now()?,
        host: host.to_owned(),
        previous: history.last_hash(),
        refs: None,
        index_parts: 0,
        pack_parts: 0,
        dropped: Vec::new(),
        backups: Vec::new(),
        until: None,
        why,
        lost: Vec::new(),
        rebuilt: Vec::new(),
        copy_of: None,
        imported: false,
        part: None,
        taken: Vec::new(),
        tail: None,
    })
}

/// If the newest run has no outcome: returns it if it lives, and ends it otherwise, so that what it left can be seen as
/// left.
pub(crate) fn end_if_dead(
    repo: &Repo,
    history: &History,
    client: &Client,
) -> Result<Option<ActiveRun>, RepoError> {
    let (log, run) = (history.log(), history.next_run());
    let Some(lease) = look(repo, log, run)? else { return Ok(None) };
    if lease.is_alive {
        // It may have ended since its outcome was looked for.
        let has_ended = exists(&**repo.store(), &log.outcome(run))?;
        return Ok((!has_ended).then(|| ActiveRun::new(log, run, lease)));
    }
    entomb(repo, history, run, lease.intent, client)?;
    Ok(None)
}

/// Ends a run that is dead, if nobody else has. Of one that had stored its refs nothing is swept at once: it may be that
/// it had ended and that its outcome is lost. A prune that has not may still take back what it has written.
fn entomb(
    repo: &Repo,
    history: &History,
    run: RunNo,
    intent: Option<Intent>,
    client: &Client,
) -> Result<(), RepoError> {
    let log = history.log();
    require_not_hidden(repo, log, run)?;
    let has_refs = exists(&**repo.store(), &log.refs(run))?;
    let (why, intent) = match has_refs {
        true => ("its lease was over; it had stored all that comes before its outcome", Some(Intent::Backup)),
        false => ("its lease was over", intent),
    };
    let public = public_part(repo, history, run, OutcomeType::Tombstone, &client.host, why.to_owned())?;
    let public = PublicPart { intent, ..public };
    let bytes = outcome::encode(repo, log, &public, None)?;
    match repo.store().create_if_absent(&log.outcome(run), &bytes) {
        Ok(_) => Ok(()),
        Err(error) if error.is_exists() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The runs of which anything is stored, by the names of objects.
fn stored_runs(repo: &Repo, log: &LogName) -> Result<BTreeSet<RunNo>, RepoError> {
    let mut runs = BTreeSet::new();
    for folder in [
        Folder::Runs,
        Folder::Packs,
        Folder::Index,
        Folder::Refs,
        Folder::Reports,
        Folder::Outcomes,
        Folder::Segments,
    ] {
        runs.extend(repo.list_folder(log, folder)?.into_keys().map(|(run, _)| run));
    }
    Ok(runs)
}

/// What is whole of the history; `None` where two looks differ, or one misses something that is `there` already. The
/// outcome of a repair continues the chain by it, which nothing mends where that was read wrongly.
fn salvage_twice(
    repo: &Repo,
    log: &LogName,
    there: &BTreeMap<(RunNo, u32), ObjectInfo>,
) -> Result<Option<History>, RepoError> {
    let mut looks = Vec::with_capacity(2);
    for _ in 0..2 {
        let mut damaged = BTreeSet::new();
        let history = History::salvage(repo, log, &mut |run, _| {
            damaged.insert(run);
        })?;
        looks.push((history, damaged));
    }
    let hashes = |history: &History| -> Vec<_> {
        history.outcomes().iter().map(|outcome| (outcome.run, outcome.hash)).collect()
    };
    let is_same = looks.windows(2).all(|two| hashes(&two[0].0) == hashes(&two[1].0) && two[0].1 == two[1].1);
    let Some((history, damaged)) = looks.pop() else { return Ok(None) };
    let is_known = |run: &RunNo| {
        history.outcome(*run).is_some()
            || history.is_lost(*run)
            || damaged.contains(run)
            || history.strangers().contains(run)
    };
    let is_whole = there.keys().all(|(run, _)| is_known(run));
    Ok((is_same && is_whole).then_some(history))
}

/// When run `run` has begun, by the store, if it is this one's now. After an error the lease may be there: it is given up.
fn create_first_lease(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    lease: &LeaseObject,
) -> Result<Option<SystemTime>, RepoError> {
    try_first_lease(repo, log, run, lease).inspect_err(|_| give_up(lease.token))
}

fn try_first_lease(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    lease: &LeaseObject,
) -> Result<Option<SystemTime>, RepoError> {
    require_not_hidden(repo, log, run)?;
    let path = log.lease(run, 0);
    let begun_at = match repo.store().create_if_absent(&path, &lease.encode()) {
        Ok(created) => created.created_at,
        Err(error) if error.is_exists() => match LeaseObject::read(repo, &path) {
            // Created by an attempt whose reply got lost.
            Ok(Some(found)) if found.token == lease.token => repo.store().head(&path)?.created_at,
            Ok(_) => return Ok(None),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        },
        Err(error) => return Err(error.into()),
    };
    // The run may have been another's that has ended, and whose lease objects a prune has deleted since.
    Ok((!exists(&**repo.store(), &log.outcome(run))?).then_some(begun_at))
}
