//! Stores that keep versions of their objects, and keep them for a time that the writer names.

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
    /// Who may end it early.
    pub mode: LockMode,
    /// Seconds from when an object was written.
    #[serde(rename = "period_s", deserialize_with = "bounded")]
    period_s: u64,
}

fn bounded<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let period_s = u64::deserialize(deserializer)?;
    in_range(period_s).ok_or_else(|| D::Error::custom("its period is not one that a lock can have"))
}

fn in_range(period_s: u64) -> Option<u64> {
    (1..=PERIOD_MAX_S).contains(&period_s).then_some(period_s)
}

/// The longest period that S3 knows: 100 years.
const PERIOD_MAX_S: u64 = 36_500 * 24 * 3600;

impl ObjectLock {
    /// A lock of at least a second and at most 100 years; `None` otherwise.
    #[must_use]
    pub fn new(mode: LockMode, period: Duration) -> Option<Self> {
        Some(Self { mode, period_s: in_range(period.as_secs())? })
    }

    /// How long the lock lasts.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.period_s)
    }
}

/// Who may end a lock early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Whoever has the separate permission for that (`s3:BypassGovernanceRetention`).
    Governance,
    /// Nobody, not even the owner of the account.
    Compliance,
}

impl LockMode {
    /// The name as a user types it.
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

/// What a store does for objects that somebody deletes or overwrites.
/// `None` where the store does not let us see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VersionProtection {
    /// Whether it keeps versions of what is written now.
    pub versions: Option<bool>,
    /// Whether it kept versions once, and somebody has suspended that.
    pub suspended: bool,
    /// Whether versions can be locked.
    pub locks: Option<bool>,
    /// Whether it locks everything by default, including objects that are to be short-lived.
    pub locks_by_default: bool,
}

/// A version that was not deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StillLocked {
    /// Its name.
    pub path: ObjectPath,
    /// Until when it is locked; `None` if the store refuses without saying so, or for good.
    pub until: Option<SystemTime>,
}

/// The newest version of a name that a plain read does not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoncurrentVersion {
    /// Whether the name was deleted; otherwise other bytes cover these.
    pub is_hidden: bool,
    /// Since when.
    pub since: SystemTime,
}

/// A name, as seen when looking for what was overwritten or hidden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overwritten {
    /// The name.
    pub path: ObjectPath,
    /// Since when a delete marker hides it.
    pub hidden_since: Option<SystemTime>,
    /// When its versions appeared, newest first, and who made them, if the store tells.
    pub versions: Vec<(SystemTime, Option<String>)>,
}

/// What is to be locked for longer.
pub struct Extend<'a> {
    /// Which names are wanted.
    pub wanted: &'a dyn Fn(&ObjectPath) -> bool,
    /// The current time: a lock that ended before it has expired.
    pub now: SystemTime,
    /// Locks that end before this are extended.
    pub ends_before: SystemTime,
    /// The new end of these locks.
    pub until: SystemTime,
    /// Only look, and change nothing.
    pub dry_run: bool,
    /// Asked now and then whether to continue.
    pub go_on: &'a dyn Fn() -> bool,
}

/// The result of [`Versioned::extend`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Versions of the wanted names.
    pub versions: u64,
    /// Of these, those locked for longer, or to be.
    pub extended: u64,
    /// Their bytes.
    pub extended_bytes: u64,
    /// Of the extended ones, those that were not locked, or not any more.
    pub unlocked: u64,
    /// Wanted versions that the service refused to show or to lock.
    pub refused: u64,
    /// Why the first was refused.
    pub first_refusal: Option<String>,
    /// Names with more versions than are looked at: only the newest and the oldest of them were.
    pub crowded: u64,
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
        self.reads += other.reads;
        self.writes += other.writes;
    }
}

/// What a store that keeps versions can do.
pub trait Versioned: Send + Sync {
    /// What the store does by itself.
    fn protection(&self) -> Result<VersionProtection, StoreError>;

    /// Locks whatever is created from now on if its name `lasts`.
    fn lock_new(&self, lock: ObjectLock, lasts: fn(&ObjectPath) -> bool);

    /// Until when the current version of a name is locked.
    fn locked_until(&self, path: &ObjectPath) -> Result<Option<SystemTime>, StoreError>;

    /// Locks all wanted versions below `prefix` for longer, whether they are current, covered or hidden.
    fn extend(&self, prefix: &str, what: &Extend<'_>) -> Result<Extended, StoreError>;

    /// Deletes the current versions of names for good, except those that are locked, which are returned.
    /// Those already gone count as deleted.
    fn delete_versions(&self, paths: &[ObjectPath]) -> Result<Vec<StillLocked>, StoreError>;

    /// What is beneath the current version of a name, or beneath its delete marker;
    /// `None` if the store keeps no versions.
    fn noncurrent_version(&self, path: &ObjectPath) -> Result<Option<NoncurrentVersion>, StoreError>;

    /// As [`super::Store::list_folders`], including folders in which everything is deleted.
    fn folders_ever(&self, prefix: &str) -> Result<Vec<String>, StoreError>;

    /// As [`noncurrent_version`](Self::noncurrent_version), for every name below `prefix` that has one.
    fn noncurrent_versions(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(ObjectPath, NoncurrentVersion),
    ) -> Result<(), StoreError>;

    /// The names that have more than one version with bytes, and those that are hidden.
    fn overwritten(&self, each: &mut dyn FnMut(Overwritten)) -> Result<(), StoreError>;
}

/// Why a store locks nothing that is written to it; `None` if it can.
/// If we may not ask, the first object will tell.
pub(crate) fn why_none(store: &dyn Store) -> Result<Option<&'static str>, StoreError> {
    let Some(versioned) = store.versioned() else { return Ok(Some("this kind of store has no locks")) };
    let is_without = versioned.protection()?.locks == Some(false);
    Ok(is_without.then_some("the bucket was created without Object Lock"))
}
