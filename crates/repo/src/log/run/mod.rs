//! A run: the only way in which a log changes (`docs/reference/repository.md` section 12).
//!
//! - A run begins when it has created its first lease object, and every earlier run has an outcome.
//! - It ends with one outcome, created conditionally. Whoever comes second has lost, whatever it has stored.
//! - Between the two, everything it stores bears its number, so nothing of it can be taken for another run's.

use std::{sync::Arc, time::Duration};

use crate::{
    error::RepoError,
    format::{
        names::{LogName, RunNo},
        object::{ObjectHash, ObjectKind, Place, RunSecrets, object_hash, seal_object},
        refs::{BackupRefs, PruneRefs, REFS_BYTES_MAX, RepairRefs},
    },
    interrupt::Interrupt,
    log::{
        client::Client,
        history::History,
        lease::{RENEWAL, RenewalThread, Renewer},
        outcome::{CopyOf, Intent, PartId},
    },
    repo::Repo,
};

mod active;
mod begin;
mod end;

pub(crate) use self::begin::end_if_dead;
pub use self::{
    active::{ActiveRun, Standing, active, standing},
    begin::BeginError,
    end::{Ending, FinishError, stored_outcome},
};

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
}
