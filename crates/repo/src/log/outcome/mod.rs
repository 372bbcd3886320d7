//! Outcomes: the results of runs. Signed, chained, created once (`docs/reference/repository.md` section 11).

use std::{ops::Not, time::SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    format::{
        hash::ObjectHash,
        hex::Hex,
        names::{LogName, RunNo},
    },
    keys::{Act, Author, RepositoryId, Role},
    repo::Repo,
};

mod signer;
mod stored;

pub(crate) use signer::{SignedBy, meet_signer, signed_by};
#[cfg(any(fuzzing, test))]
pub(crate) use stored::encode_raw;
pub use stored::{HEAD_BYTES_MAX, OUTCOME_BYTES_MAX, PUBLIC_BYTES_MAX};
pub(crate) use stored::{PublicPart, encode, open_head, parse};

/// Plain bytes of a report, at most.
pub const REPORT_BYTES_MAX: u64 = 16 << 20;

/// What [`Intent::Hold`] is about, in words.
pub(crate) const HOLDING: &str = "holding and releasing backups";

/// What [`Intent::Repair`] is about, in words.
pub(crate) const REPAIRING: &str = "a repair";

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutcomeType {
    /// A backup.
    Backup,
    /// Backups were dropped.
    Expire,
    /// Packs were declared dead, chunks moved.
    Prune,
    /// Backups were put on hold: no expire drops them.
    Hold,
    /// Backups were released from their holds.
    Release,
    /// What was lost was made anew, and backups beyond help were dropped.
    Repair,
    /// Another run ended this one.
    Tombstone,
    /// The run ended itself, without effect.
    Abandoned,
}

impl OutcomeType {
    /// The name as stored, and as shown to people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Backup => "backup",
            Self::Expire => "expire",
            Self::Prune => "prune",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Repair => "repair",
            Self::Tombstone => "tombstone",
            Self::Abandoned => "abandoned",
        }
    }

    /// Whether a key of this role may sign it.
    #[must_use]
    pub fn allowed_to(self, role: Role) -> bool {
        match (self, role) {
            (Self::Tombstone | Self::Abandoned, _) => true,
            (Self::Backup, role) => role.may(Act::Backup),
            // Whoever may drop may also hold: a hold that others could end would hold nothing.
            (Self::Expire | Self::Prune | Self::Hold | Self::Release, role) => role.may(Act::Prune),
            // It takes reading backups to tell which are beyond help.
            (Self::Repair, role) => role.may(Act::Prune) && role.may(Act::Read),
        }
    }
}

/// What a run is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Intent {
    /// A backup. Only what such a run leaves is ever adopted by another.
    Backup,
    /// Dropping backups.
    Expire,
    /// Declaring packs dead, and moving chunks; or taking over what archivers have left, as a backup.
    Prune,
    /// Holding backups, or releasing them.
    Hold,
    /// Making anew what was lost.
    Repair,
}

/// An outcome that is lost: its run counts as one without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostOutcome {
    /// The run.
    pub run: u64,
    /// The hash that the outcome after it names as the one before.
    pub hash: ObjectHash,
    /// Hash of the outcome before it, if that is whole: nothing else records it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<ObjectHash>,
}

/// A run whose refs were lost and made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuilt {
    /// The run.
    pub run: u64,
    /// Whether they are the refs of a prune, not of a backup.
    pub is_prune: bool,
}

/// The backup that this one is a copy of: the original, however often it has been copied since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOf {
    /// Id of the repository that it was taken into.
    pub repository: RepositoryId,
    /// Name of its source there.
    pub source: String,
    /// Its run there.
    pub run: u64,
    /// Hash of its outcome: copies with the same hash are the same backup.
    pub outcome: ObjectHash,
    /// When it was taken, by the clock of the store that it was taken into.
    pub at: Timestamp,
    /// Whether it [was a filing](Outcome::is_filing).
    #[serde(default, skip_serializing_if = "Not::not")]
    pub filing: bool,
}

impl CopyOf {
    /// Whether both are the same backup.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.repository, self.outcome) == (other.repository, other.outcome)
    }
}

/// A part of a source, by what was requested: two backups of equal parts hold the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// Identifies what was requested.
    pub id: Hex<8>,
    /// Whether it is all of the source but what was excluded by name. What the source does later can be replayed
    /// after it, as long as that does not touch what was excluded.
    pub is_rest: bool,
}

impl Part {
    /// What was `asked` for, in words that do not change from version to version.
    #[must_use]
    pub fn of(asked: &str) -> Self {
        let hash = blake3::derive_key("holdfast part of a source 1", asked.as_bytes());
        let mut id = [0; 8];
        id.copy_from_slice(&hash[..8]);
        Self { id: Hex(id), is_rest: false }
    }

    /// All but what was excluded.
    #[must_use]
    pub fn rest_of(asked: &str) -> Self {
        Self { is_rest: true, ..Self::of(asked) }
    }
}

/// The verified outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The run.
    pub run: RunNo,
    /// How it ended.
    pub outcome_type: OutcomeType,
    /// What it was to become; `None` if another run ended it and could not tell.
    pub intent: Option<Intent>,
    /// When it ended, by the store's clock as the run read it.
    pub at: Timestamp,
    /// When the object appeared, by the store's clock.
    pub created_at: SystemTime,
    /// The host that it ran on, for people.
    pub host: String,
    /// The key that signed it.
    pub author: Author,
    /// Hash of the refs object.
    pub refs: Option<ObjectHash>,
    /// Hash of the report object, if a backup has one.
    pub report: Option<ObjectHash>,
    /// How many index parts the run wrote.
    pub index_parts: u32,
    /// How many pack numbers the run gave out.
    pub pack_parts: u32,
    /// Backups that an expire dropped.
    pub dropped: Vec<RunNo>,
    /// Backups that a hold holds, or that a release releases.
    pub backups: Vec<RunNo>,
    /// When a hold ends by itself.
    pub until: Option<Timestamp>,
    /// An explanation for people; may be empty.
    pub why: String,
    /// Outcomes that a repair found lost.
    pub lost: Vec<LostOutcome>,
    /// Runs whose refs a repair has made anew; the new refs are among its own.
    pub rebuilt: Vec<Rebuilt>,
    /// What a backup is a copy of; `None` if it was taken into this repository.
    pub copy_of: Option<CopyOf>,
    /// Whether a backup was made from another tool's dump: the moment of its rows is not known for certain.
    pub imported: bool,
    /// The part of its source that a backup holds; `None`: all of it.
    pub part: Option<Part>,
    /// Runs that ended without effect and whose segments this one has taken over.
    pub taken: Vec<RunNo>,
    /// Where the binlog that a run archived ends.
    pub tail: Option<Map<String, Value>>,
    /// Hash of the outcome before this one.
    pub previous: ObjectHash,
    /// Hash of this outcome.
    pub hash: ObjectHash,
    /// Size of the object.
    pub size_bytes: u64,
}

impl Outcome {
    /// Whether what the source did later can be replayed after it, as far as its part goes.
    #[must_use]
    pub fn can_be_continued(&self) -> bool {
        self.part.is_none_or(|part| part.is_rest)
    }

    /// Whether it is a backup of what archivers of binlogs had left, older than what comes before it.
    #[must_use]
    pub fn is_filing(&self) -> bool {
        let is_copied = self.copy_of.as_ref().is_some_and(|copy_of| copy_of.filing);
        self.outcome_type == OutcomeType::Backup && (self.intent == Some(Intent::Prune) || is_copied)
    }

    /// When a backup was taken: a copy is as old as what it is a copy of.
    #[must_use]
    pub fn taken_at(&self) -> Timestamp {
        self.copy_of.as_ref().map_or(self.at, |copy_of| copy_of.at)
    }

    /// What a copy of this backup is a copy of. The backup is in the log `log` of `repo`.
    #[must_use]
    pub fn origin(&self, repo: &Repo, log: &LogName) -> CopyOf {
        self.copy_of.clone().unwrap_or_else(|| CopyOf {
            repository: repo.info().repository_id,
            source: log.source.to_string(),
            run: self.run.0,
            outcome: self.hash,
            at: self.at,
            filing: self.is_filing(),
        })
    }
}
