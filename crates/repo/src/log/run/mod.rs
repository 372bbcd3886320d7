//! A run: the only way in which a log changes (`docs/reference/repository.md` section 12).
//!
//! - A run begins once it has created its first lease object and every earlier run has an outcome.
//! - It ends with one outcome, created conditionally.
//!   Whoever comes second has lost, whatever they have stored.
//! - Between the two, everything it stores bears its number, so nothing can be mistaken for another run's.

use std::{sync::Arc, time::Duration};

use crate::{
    error::RepoError,
    format::{
        hash::{ObjectHash, object_hash},
        names::{LogName, RunNo},
        place::{ObjectKind, Place},
        refs::{BackupRefs, PruneRefs, REFS_BYTES_MAX, RepairRefs},
    },
    interrupt::Interrupt,
    log::{
        client::Client,
        history::History,
        lease::{RENEWAL, RenewalThread, Renewer},
        outcome::{CopyOf, Intent, Part},
        segment::SegmentWriter,
    },
    repo::Repo,
    sealed::{RunSecrets, seal_object},
};

mod active;
mod begin;
mod end;
mod room;

pub(crate) use self::begin::end_if_dead;
pub use self::{
    active::{ActiveRun, BeginError, Standing, active, standing},
    end::{Ending, FinishError, stored_outcome},
};

/// How a run is to behave.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The client that performs the run.
    pub client: Client,
    /// How often a separate thread renews the lease; `None`: the caller calls [`Run::renew`].
    pub renew_every: Option<Duration>,
    /// Time without a renewal after which another may end the run; `None`:
    /// the usual 15 minutes, which are also the maximum.
    pub patience: Option<Duration>,
    /// Whether the run, when it [is asked](Run::is_asked) to make room for one
    /// that drops or prunes, ends soon.
    pub makes_room: bool,
    /// Stops waiting for room.
    pub interrupt: Interrupt,
}

impl RunOptions {
    /// For this process, renewing as specified.
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

/// How many part numbers a run gave out.
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

/// An active run. If it is dropped without an ending, it tries to record that it was abandoned.
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
    part: Option<Part>,
    /// Hash of the report, once it is stored.
    report: Option<ObjectHash>,
    /// Explanation of its end, for people.
    why: String,
    /// Outcomes that this run has tried to create: a reply may have got lost.
    attempts: Vec<ObjectHash>,
    ended: bool,
}

impl Run {
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

    /// Everything that came before this run. It cannot change while the run can still succeed.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Seals its segments.
    #[must_use]
    pub fn segment_writer(&self) -> SegmentWriter {
        SegmentWriter::new(&self.repo, &self.history, self.no)
    }

    /// The secrets for its packs and index parts.
    #[must_use]
    pub fn secrets(&self) -> &Arc<RunSecrets> {
        &self.secrets
    }

    /// Whether another is known to have ended this run: then all further work is in vain.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.renewer.is_lost()
    }

    /// Whether one that drops or prunes is waiting for this run to end.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.renewer.is_asked()
    }

    /// Renews the lease once, and checks whether the run has been ended.
    pub fn renew(&self) -> Result<(), RepoError> {
        self.renewer.renew()
    }

    fn place(&self, kind: ObjectKind) -> Place<'_> {
        Place { log: self.history.log(), kind, run: self.no, part: 0 }
    }

    /// Stores what the backup needs. Call it after the packs and index parts, and before the ending.
    pub fn write_backup_refs(&self, refs: &BackupRefs) -> Result<WrittenRefs, RepoError> {
        self.write_refs(&refs.encode())
    }

    /// Stores what the prune declares. Call it after the packs and index parts, and before the ending.
    pub fn write_prune_refs(&self, refs: &PruneRefs) -> Result<WrittenRefs, RepoError> {
        self.write_refs(&refs.encode())
    }

    /// Stores what the repair has made anew. Call it before the ending.
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
    pub fn write_report(&mut self, json: &[u8]) -> Result<(), RepoError> {
        let place = self.place(ObjectKind::Report);
        let object = seal_object(self.repo.keys(), &place, json)?;
        self.repo.put(&place, &object)?;
        self.report = Some(object_hash(&object));
        Ok(())
    }

    /// Sets the explanation of how the run ends, for people.
    pub(crate) fn set_why(&mut self, why: String) {
        self.why = why;
    }

    /// Marks the backup that this run becomes as a copy.
    pub fn set_copy_of(&mut self, origin: CopyOf) {
        self.copy_of = Some(origin);
    }

    /// Marks the backup that this run becomes as imported from another tool's dump.
    pub fn set_imported(&mut self) {
        self.imported = true;
    }

    /// Sets the part of its source that the backup holds; `None`: all of it.
    pub fn set_part(&mut self, part: Option<Part>) {
        self.part = part;
    }
}
