//! What stores can do that keep versions of their objects, and keep them for a time that whoever writes names.

use std::{
    fmt,
    ops::AddAssign,
    str::FromStr,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize, de::Error as _};

use super::{ObjectPath, Store, StoreError};

/// How long everything that is written, and lasts, must stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectLock {
    /// For whom.
    pub mode: LockMode,
    /// From when it was written, in seconds.
    #[serde(rename = "period_s", deserialize_with = "bounded")]
    period_s: u64,
}

fn bounded<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let period_s = u64::deserialize(deserializer)?;
    in_range(period_s).ok_or_else(|| D::Error::custom("no lock lasts so long"))
}

fn in_range(period_s: u64) -> Option<u64> {
    (1..=PERIOD_MAX_S).contains(&period_s).then_some(period_s)
}

/// The longest that S3 knows: 100 years.
const PERIOD_MAX_S: u64 = 36_500 * 24 * 3600;

impl ObjectLock {
    /// A lock of at least a second and at most 100 years; nothing otherwise.
    #[must_use]
    pub fn new(mode: LockMode, period: Duration) -> Option<Self> {
        Some(Self { mode, period_s: in_range(period.as_secs())? })
    }

    /// How long.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.period_s)
    }
}

/// Who may end a lock early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Whoever has a permission of its own for that (`s3:BypassGovernanceRetention`).
    Governance,
    /// Nobody, not even the owner of the account.
    Compliance,
}

impl LockMode {
    /// As a user writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Governance => "governance",
            Self::Compliance => "compliance",
        }
    }
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for LockMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Governance, Self::Compliance]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| format!("\"{text}\" is neither governance nor compliance"))
    }
}

/// What a store does for objects that somebody deletes or overwrites. What it does not let us see is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Whether it keeps versions of what is written now.
    pub versions: Option<bool>,
    /// Whether it did, and somebody has ended that.
    pub suspended: bool,
    /// Whether versions can be locked.
    pub locks: Option<bool>,
    /// Whether it locks everything by itself, also what is to be short-lived.
    pub locks_by_default: bool,
}

/// A version that was not deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub path: ObjectPath,
    /// Until when it is locked; nothing where the store refuses without saying so, or for good.
    pub until: Option<SystemTime>,
}

/// Bytes under a name that are not what one gets who asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beneath {
    /// Whether the name was deleted; else other bytes lie over them.
    pub is_hidden: bool,
    /// Since when.
    pub since: SystemTime,
}

/// A name, as whoever looks for what was overwritten or hidden sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overwritten {
    /// The name.
    pub path: ObjectPath,
    /// Since when the mark of its deletion hides it.
    pub hidden_since: Option<SystemTime>,
    /// When its versions came, the newest first, and who made them where the store tells.
    pub versions: Vec<(SystemTime, Option<String>)>,
}

/// What is to be locked for longer.
pub struct Extend<'a> {
    /// Which of the names.
    pub wanted: &'a dyn Fn(&ObjectPath) -> bool,
    /// What ended before this is not locked any more.
    pub now: SystemTime,
    /// Locks that end before this.
    pub ends_before: SystemTime,
    /// Until when.
    pub until: SystemTime,
    /// Only look.
    pub dry_run: bool,
    /// Asked now and then.
    pub go_on: &'a dyn Fn() -> bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Versions of the names that were wanted.
    pub versions: u64,
    /// Of these, locked for longer, or to be.
    pub extended: u64,
    /// Their bytes.
    pub extended_bytes: u64,
    /// Of these, not locked at all, or not any more.
    pub unlocked: u64,
    /// Of those that were wanted, what the service refused to show or to lock.
    pub refused: u64,
    /// Why, of the first.
    pub first_refusal: Option<String>,
    /// Names with more versions than are looked at: the newest and the oldest of them were.
    pub crowded: u64,
    /// Names that nobody of ours writes, passed over.
    pub odd_names: u64,
    /// Requests that only read.
    pub reads: u64,
    /// Requests that changed a lock.
    pub writes: u64,
}

impl AddAssign for Extended {
    fn add_assign(&mut self, other: Self) {
        self.versions += other.versions;
        self.extended += other.extended;
        self.extended_bytes += other.extended_bytes;
        self.unlocked += other.unlocked;
        self.refused += other.refused;
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
        self.crowded += other.crowded;
        self.odd_names += other.odd_names;
        self.reads += other.reads;
        self.writes += other.writes;
    }
}

/// What a store that keeps versions can do.
pub trait Versioned: Send + Sync {
    /// What the store does by itself.
    fn protection(&self) -> Result<Protection, StoreError>;

    /// From now on whatever is created gets a lock if its name `lasts`.
    fn lock_new(&self, lock: ObjectLock, lasts: fn(&ObjectPath) -> bool);

    /// Until when the current version of a name is locked.
    fn locked_until(&self, path: &ObjectPath) -> Result<Option<SystemTime>, StoreError>;

    /// Locks all versions below `prefix` that are wanted, whether they are current, covered or hidden.
    fn extend(&self, prefix: &str, what: &Extend<'_>) -> Result<Extended, StoreError>;

    /// Deletes the current versions of names for good, but what is locked. Those already gone count as deleted.
    fn delete_versions(&self, paths: &[ObjectPath]) -> Result<Vec<Kept>, StoreError>;

    /// What lies under what is current of a name, or under the mark of its deletion; nothing where it keeps no versions.
    fn beneath(&self, path: &ObjectPath) -> Result<Option<Beneath>, StoreError>;

    /// As [`super::Store::list_folders`], with those in which everything is deleted.
    fn folders_ever(&self, prefix: &str) -> Result<Vec<String>, StoreError>;

    /// The same of all names below `prefix`, of each that has such bytes.
    fn all_beneath(&self, prefix: &str, each: &mut dyn FnMut(ObjectPath, Beneath)) -> Result<(), StoreError>;

    /// The names that have more than one version with bytes, and those that are hidden.
    fn overwritten(&self, each: &mut dyn FnMut(Overwritten)) -> Result<(), StoreError>;
}

/// Why a store locks nothing that is written to it; nothing where it can. Who may not ask is told by the first object.
pub(crate) fn why_none(store: &dyn Store) -> Result<Option<&'static str>, StoreError> {
    let Some(versioned) = store.versioned() else { return Ok(Some("such a place has none")) };
    let is_without = versioned.protection()?.locks == Some(false);
    Ok(is_without.then_some("the bucket was made without"))
}
