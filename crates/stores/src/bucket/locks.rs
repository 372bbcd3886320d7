//! Versions that stay: the bucket's own protection, and locks that are read, extended and waited for.

use std::{
    collections::HashSet,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_pipe::lock::lock;
use holdfast_repo::store::{
    ObjectPath, RemoteCause, StoreError,
    locks::{
        Extend, Extended, LockMode, NoncurrentVersion, ObjectLock, Overwritten, StillLocked,
        VersionProtection, Versioned,
    },
};
use http::{HeaderName, HeaderValue, Method};
use jiff::{Timestamp, fmt::rfc2822};
use object_store::path::Path;
use ring::digest::{SHA256, digest};
use serde::Deserialize;

use super::{
    BucketStore, Inner, TEMPORARY,
    failure::Failure,
    locked::{mode_word, time_word},
    requests::{Answer, Refused, Request, read_document},
    versions::{Named, ObjectVersion, Version, Versions},
};

/// Requests to send at once.
const AT_ONCE: usize = 16;
/// Names between two checks whether to go on.
const BATCH: usize = 256;

/// Which new objects are locked, and how.
pub(super) struct NewLocks {
    pub(super) lock: ObjectLock,
    pub(super) lasts: fn(&ObjectPath) -> bool,
    /// Ways of creating for which a lock has been seen.
    seen: Mutex<HashSet<Way>>,
}

/// How an object is created: a service may accept a lock with one kind of request, and ignore it with the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    Whole,
    InParts,
}

/// A version as its headers show it.
struct Seen {
    version: Option<String>,
    lock: Option<Lock>,
    /// The service's clock.
    now: SystemTime,
}

struct Lock {
    mode: Option<LockMode>,
    /// `None` means until the lock is removed.
    until: Option<SystemTime>,
}

impl Lock {
    fn ends_before(&self, time: SystemTime) -> bool {
        self.until.is_some_and(|until| until < time)
    }
}

#[derive(Deserialize)]
#[serde(rename = "VersioningConfiguration", rename_all = "PascalCase")]
struct Versioning {
    status: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Retention {
    mode: Option<String>,
    retain_until_date: Timestamp,
}

impl Retention {
    /// Whether it is as strong as the lock that was asked for and ends no earlier, allowing for an upload
    /// that took up to half of the lock's period, and for clocks that differ.
    fn protects_as(&self, asked: &ObjectLock, now: SystemTime) -> bool {
        let is_weaker = asked.mode == LockMode::Compliance
            && self.mode.as_deref() == Some(mode_word(LockMode::Governance));
        let enough = now + asked.period() / 2;
        !is_weaker && SystemTime::from(self.retain_until_date) >= enough
    }
}

#[derive(Deserialize)]
#[serde(rename = "ObjectLockConfiguration", rename_all = "PascalCase")]
struct LockConfiguration {
    object_lock_enabled: Option<String>,
    rule: Option<LockRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LockRule {
    default_retention: Option<DefaultRetention>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DefaultRetention {
    mode: Option<String>,
}

fn mode_of(word: &str) -> Option<LockMode> {
    [LockMode::Governance, LockMode::Compliance].into_iter().find(|mode| mode_word(*mode) == word)
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty())
}

/// The time at which a service answered, by its own clock.
pub(super) fn date_of(answer: &Answer) -> Option<SystemTime> {
    rfc2822::parse(header(answer, "date")?).ok().map(|date| date.timestamp().into())
}

impl Seen {
    fn read(answer: &Answer) -> Self {
        let word = |name| header(answer, name);
        let until =
            word("x-amz-object-lock-retain-until-date").and_then(|time| time.parse::<Timestamp>().ok());
        let mode = word("x-amz-object-lock-mode");
        let is_held = word("x-amz-object-lock-legal-hold") == Some("ON");
        let lock = (is_held || mode.is_some()).then(|| Lock {
            mode: mode.and_then(mode_of),
            until: until.filter(|_| !is_held).map(Into::into),
        });
        Self {
            version: word("x-amz-version-id").map(str::to_owned),
            lock,
            now: date_of(answer).unwrap_or_else(SystemTime::now),
        }
    }
}

/// For which objects a bucket keeps versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptVersions {
    /// For none.
    None,
    /// For those written before versioning was suspended. Objects deleted since are gone.
    Former,
    /// For all.
    All,
}

impl Versioning {
    fn kept(&self) -> KeptVersions {
        match self.status.as_deref() {
            None => KeptVersions::None,
            Some("Enabled") => KeptVersions::All,
            Some(_) => KeptVersions::Former,
        }
    }
}

/// Whether the bucket keeps versions, and the time of its answer.
pub(super) async fn keeps_versions(inner: &Inner) -> Result<(KeptVersions, Option<SystemTime>), Refused> {
    let request = Request::of_bucket(vec![("versioning", String::new())], "(versioning)");
    let answer = inner.ask(&request).await?;
    let versioning: Option<Versioning> = read_document(&answer.body);
    Ok((versioning.map_or(KeptVersions::None, |it| it.kept()), date_of(&answer)))
}

impl Inner {
    fn path_of(&self, key: &str) -> Option<ObjectPath> {
        ObjectPath::new(key.strip_prefix(&self.prefix)?)
    }

    fn of_version(&self, method: Method, key: &Path, version: Option<&str>) -> Request {
        let query = version.map(|version| ("versionId", version.to_owned()));
        let what = key.as_ref().strip_prefix(&self.prefix).unwrap_or(key.as_ref()).to_owned();
        Request {
            method,
            key: key.clone(),
            query: query.into_iter().collect(),
            ..Request::of_bucket(Vec::new(), what)
        }
    }

    /// Reads the lock of the current version.
    async fn look_at_lock(&self, key: &Path) -> Result<Option<Seen>, StoreError> {
        match self.ask(&self.of_version(Method::HEAD, key, None)).await {
            Ok(answer) => Ok(Some(Seen::read(&answer))),
            // Also if the current version is a delete marker.
            Err(refused) if refused.failure == Failure::NotFound => Ok(None),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Deletes the current version of a name for good, unless it is locked.
    async fn delete_version(&self, path: &ObjectPath) -> Result<Option<StillLocked>, StoreError> {
        let key = self.key(path)?;
        let Some(seen) = self.look_at_lock(&key).await? else { return Ok(None) };
        let kept = |until| Ok(Some(StillLocked { path: path.clone(), until }));
        if let Some(lock) = seen.lock.filter(|lock| !lock.ends_before(seen.now)) {
            return kept(lock.until);
        }
        match self.ask(&self.of_version(Method::DELETE, &key, seen.version.as_deref())).await {
            Ok(_) => Ok(None),
            Err(refused) => match refused.failure {
                Failure::NotFound => Ok(None),
                // The lock may not be read, or versions may not be deleted.
                Failure::Remote(RemoteCause::Denied) => kept(None),
                _ => Err(refused.into()),
            },
        }
    }

    /// Deletes all versions of temporary objects, as far as permitted.
    pub(super) async fn sweep_temporary_versions(
        &self,
        now: SystemTime,
        min_age: Duration,
    ) -> Result<(), StoreError> {
        let mut versions =
            Versions::new(self, format!("{}{TEMPORARY}", self.prefix), now.checked_sub(min_age));
        loop {
            let mut batch = Vec::new();
            while batch.len() < BATCH {
                let Some(named) = versions.next().await? else { break };
                let Ok(key) = Path::parse(&named.key) else { continue };
                let ids = named.versions.into_iter().map(|version| version.id);
                batch.extend(ids.map(|id| self.of_version(Method::DELETE, &key, Some(&id))));
            }
            if batch.is_empty() {
                return Ok(());
            }
            let delete = async |request: Request| match self.ask(&request).await {
                Err(refused)
                    if !matches!(
                        refused.failure,
                        Failure::NotFound | Failure::Remote(RemoteCause::Denied)
                    ) =>
                {
                    Err(StoreError::from(refused))
                }
                _ => Ok(()),
            };
            stream::iter(batch.into_iter().map(delete))
                .buffer_unordered(AT_ONCE)
                .try_collect::<Vec<()>>()
                .await?;
        }
    }

    /// Confirms that the first object created each way is locked as asked. Without permission to read locks,
    /// nothing is checked.
    pub(super) async fn confirm_lock(&self, path: &ObjectPath, way: Way) -> Result<(), StoreError> {
        let Some(new) = self.locks.get().filter(|new| (new.lasts)(path)) else { return Ok(()) };
        let seen = || lock(&new.seen);
        if seen().contains(&way) {
            return Ok(());
        }
        let mut request = self.of_version(Method::GET, &self.key(path)?, None);
        request.query.push(("retention", String::new()));
        match self.ask_for::<Retention>(&request).await {
            Err(refused) if refused.failure == Failure::NotFound => {
                let what = "it created the object but did not lock it: backups there would not be protected";
                return Err(self.remote(path, RemoteCause::Unconfirmed, what));
            }
            Err(refused) if refused.failure != Failure::Remote(RemoteCause::Denied) => {
                return Err(refused.into());
            }
            Ok(found) if !found.protects_as(&new.lock, SystemTime::now()) => {
                let what = "it locked the object less than it was asked to: backups there would be protected \
                            too little";
                return Err(self.remote(path, RemoteCause::Unconfirmed, what));
            }
            _ => {}
        }
        seen().insert(way);
        Ok(())
    }

    /// The lock of any version, which not every service shows in its headers.
    async fn retention(&self, key: &Path, version: &str) -> Result<Option<Lock>, StoreError> {
        let mut request = self.of_version(Method::GET, key, Some(version));
        request.query.push(("retention", String::new()));
        match self.ask_for::<Retention>(&request).await {
            Ok(found) => {
                let mode = found.mode.as_deref().and_then(mode_of);
                Ok(Some(Lock { mode, until: Some(found.retain_until_date.into()) }))
            }
            Err(refused) if refused.failure == Failure::NotFound => Ok(None),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Sets the end of a lock.
    async fn lock(
        &self,
        key: &Path,
        version: &str,
        mode: LockMode,
        until: SystemTime,
    ) -> Result<(), StoreError> {
        let mut request = self.of_version(Method::PUT, key, Some(version));
        let beyond = || self.remote(&request.what, RemoteCause::Other, "the end of the lock is out of range");
        let until = time_word(until).ok_or_else(beyond)?;
        let mode = mode_word(mode);
        let body = format!(
            "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>{mode}</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>"
        );
        let checksum = BASE64_STANDARD.encode(digest(&SHA256, body.as_bytes()));
        if let Ok(checksum) = HeaderValue::from_str(&checksum) {
            request.headers.push((
                HeaderName::from_static("x-amz-sdk-checksum-algorithm"),
                HeaderValue::from_static("SHA256"),
            ));
            request.headers.push((HeaderName::from_static("x-amz-checksum-sha256"), checksum));
        }
        request.query.push(("retention", String::new()));
        request.body = Bytes::from(body);
        self.ask(&request).await?;
        Ok(())
    }

    /// Extends the lock of one version. A refusal for one version keeps no other from its lock, because
    /// anyone who can write can make a version that is refused.
    async fn extend_one(
        &self,
        version: (Path, Version, ObjectVersion),
        times: &Times,
    ) -> Result<Extended, StoreError> {
        match self.try_to_extend(version, times).await {
            Err(error) if error.is_of_one_object() => Ok(Extended {
                reads: 1,
                versions: 1,
                refused: 1,
                first_refusal: Some(error.to_string()),
                ..Extended::default()
            }),
            done => done,
        }
    }

    async fn try_to_extend(
        &self,
        (key, version, object): (Path, Version, ObjectVersion),
        times: &Times,
    ) -> Result<Extended, StoreError> {
        let Times { now, ends_before, until, dry_run } = *times;
        let mut done = Extended { reads: 1, versions: 1, ..Extended::default() };
        let lock = self.retention(&key, &version.id).await?;
        if lock.as_ref().is_some_and(|lock| !lock.ends_before(ends_before)) {
            return Ok(done);
        }
        let asked = self.locks.get().map(|new| new.lock.mode).unwrap_or(LockMode::Governance);
        // A stricter mode stays: it cannot be relaxed.
        let mode = match lock.as_ref().and_then(|lock| lock.mode) {
            Some(LockMode::Compliance) => LockMode::Compliance,
            Some(LockMode::Governance) | None => asked,
        };
        done.extended = 1;
        done.extended_bytes = object.size_bytes;
        done.unlocked = u64::from(lock.is_none_or(|lock| lock.ends_before(now)));
        if !dry_run {
            self.lock(&key, &version.id, mode, until).await?;
            done.writes = 1;
        }
        Ok(done)
    }

    /// Accepts that versions were not listed if there are none: some services that keep none do not list them
    /// either.
    async fn none_without_versions(&self, error: StoreError) -> Result<(), StoreError> {
        if !error.is_of_one_object() {
            return Err(error);
        }
        match keeps_versions(self).await {
            Ok((KeptVersions::None, _)) => Ok(()),
            Err(refused) if refused.failure == Failure::Remote(RemoteCause::Unfit) => Ok(()),
            Ok(_) | Err(_) => Err(error),
        }
    }

    async fn protection(&self) -> Result<VersionProtection, StoreError> {
        let is_secret = |refused: &Refused| refused.failure == Failure::Remote(RemoteCause::Denied);
        let has_none = |refused: &Refused| {
            matches!(refused.failure, Failure::NotFound | Failure::Remote(RemoteCause::Unfit))
        };
        let versions = match keeps_versions(self).await {
            Ok((kept, _)) => Some(kept),
            Err(refused) if is_secret(&refused) => None,
            Err(refused) if has_none(&refused) => Some(KeptVersions::None),
            Err(refused) => return Err(refused.into()),
        };
        let suspended = versions == Some(KeptVersions::Former);
        let versions = versions.map(|kept| kept == KeptVersions::All);
        let request = Request::of_bucket(vec![("object-lock", String::new())], "(object lock)");
        let (locks, locks_by_default) = match self.ask_for::<LockConfiguration>(&request).await {
            Ok(found) => {
                let by_default = found.rule.and_then(|rule| rule.default_retention?.mode).is_some();
                (Some(found.object_lock_enabled.as_deref() == Some("Enabled")), by_default)
            }
            Err(refused) if is_secret(&refused) => (None, false),
            Err(refused) if has_none(&refused) => (Some(false), false),
            Err(refused) => return Err(refused.into()),
        };
        Ok(VersionProtection { versions, suspended, locks, locks_by_default })
    }
}

/// The times by which locks are judged and extended.
struct Times {
    now: SystemTime,
    ends_before: SystemTime,
    until: SystemTime,
    dry_run: bool,
}

impl Versioned for BucketStore {
    fn protection(&self) -> Result<VersionProtection, StoreError> {
        self.inner.runtime.block_on(self.inner.protection())
    }

    fn lock_new(&self, lock: ObjectLock, lasts: fn(&ObjectPath) -> bool) {
        // A repository sets this once.
        let _ = self.inner.locks.set(NewLocks { lock, lasts, seen: Mutex::default() });
    }

    fn locked_until(&self, path: &ObjectPath) -> Result<Option<SystemTime>, StoreError> {
        let key = self.inner.key(path)?;
        let seen = self.inner.runtime.block_on(self.inner.look_at_lock(&key))?;
        Ok(seen.and_then(|seen| seen.lock?.until))
    }

    fn extend(&self, prefix: &str, what: &Extend<'_>) -> Result<Extended, StoreError> {
        let inner = &self.inner;
        let mut versions = Versions::new(inner, format!("{}{prefix}", inner.prefix), None);
        let mut done = Extended::default();
        let mut is_over = false;
        while !is_over && (what.go_on)() {
            let mut batch = Vec::new();
            while batch.len() < BATCH {
                let Some(named) = inner.runtime.block_on(versions.next())? else {
                    is_over = true;
                    break;
                };
                let wanted = inner.path_of(&named.key).filter(|path| (what.wanted)(path));
                // A name that the library does not accept is none of ours.
                let Some(key) = wanted.and_then(|path| inner.key(&path).ok()) else { continue };
                done.crowded += u64::from(named.is_crowded);
                let objects =
                    named.versions.into_iter().filter_map(|it| it.object.map(|object| (it, object)));
                batch.extend(objects.map(|(version, object)| (key.clone(), version, object)));
            }
            let Extend { now, ends_before, until, dry_run, .. } = *what;
            let times = Times { now, ends_before, until, dry_run };
            let extended = stream::iter(batch.into_iter().map(|version| inner.extend_one(version, &times)));
            let extended = extended.buffer_unordered(AT_ONCE).try_collect::<Vec<Extended>>();
            inner.runtime.block_on(extended)?.into_iter().for_each(|one| done += one);
        }
        done.reads += versions.pages();
        Ok(done)
    }

    fn delete_versions(&self, paths: &[ObjectPath]) -> Result<Vec<StillLocked>, StoreError> {
        let inner = &self.inner;
        let deleted =
            stream::iter(paths.iter().map(|path| inner.delete_version(path))).buffer_unordered(AT_ONCE);
        let kept = deleted.try_filter_map(async |kept| Ok(kept));
        inner.runtime.block_on(kept.try_collect())
    }

    fn noncurrent_version(&self, path: &ObjectPath) -> Result<Option<NoncurrentVersion>, StoreError> {
        let inner = &self.inner;
        let key = format!("{}{path}", inner.prefix);
        let mut versions = Versions::new(inner, key.clone(), None);
        match inner.runtime.block_on(versions.next()) {
            Ok(named) => Ok(named.filter(|named| named.key == key).and_then(Named::noncurrent_version)),
            Err(error) => inner.runtime.block_on(inner.none_without_versions(error)).map(|()| None),
        }
    }

    fn folders_ever(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let above = format!("{}{prefix}", self.inner.prefix);
        let ever = self.inner.runtime.block_on(self.inner.folders_ever(&above))?;
        let name = |folder: &String| Some(folder.strip_prefix(&above)?.strip_suffix('/')?.to_owned());
        Ok(ever.iter().filter_map(name).collect())
    }

    fn noncurrent_versions(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(ObjectPath, NoncurrentVersion),
    ) -> Result<(), StoreError> {
        let inner = &self.inner;
        let mut versions = Versions::new(inner, format!("{}{prefix}", inner.prefix), None);
        loop {
            let named = match inner.runtime.block_on(versions.next()) {
                Ok(Some(named)) => named,
                Ok(None) => return Ok(()),
                Err(error) => return inner.runtime.block_on(inner.none_without_versions(error)),
            };
            let Some(path) = inner.path_of(&named.key) else { continue };
            if let Some(beneath) = named.noncurrent_version() {
                each(path, beneath);
            }
        }
    }

    fn overwritten(&self, each: &mut dyn FnMut(Overwritten)) -> Result<(), StoreError> {
        let inner = &self.inner;
        let mut versions = Versions::new(inner, inner.prefix.clone(), None);
        while let Some(named) = inner.runtime.block_on(versions.next())? {
            let Some(path) = inner.path_of(&named.key).filter(|path| !path.as_str().starts_with(TEMPORARY))
            else {
                continue;
            };
            let mut objects: Vec<Version> =
                named.versions.iter().filter(|it| it.object.is_some()).cloned().collect();
            let hidden_since = named.noncurrent_version().filter(|it| it.is_hidden).map(|it| it.since);
            if objects.len() > 1 || hidden_since.is_some() {
                super::versions::sort(&mut objects);
                let versions = objects.into_iter().map(|it| (it.at, it.owner)).collect();
                each(Overwritten { path, hidden_since, versions });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn seen(headers: &[(&'static str, &'static str)]) -> Seen {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        Seen::read(&Answer { headers: HeaderMap::from_iter(headers), body: Bytes::new() })
    }

    #[test]
    fn a_lock_that_is_weaker_or_shorter_than_asked_for_is_noticed() {
        let day = Duration::from_secs(24 * 3600);
        let now = SystemTime::UNIX_EPOCH + 20_000 * day;
        let found = |mode: Option<&str>, lasts: Duration| Retention {
            mode: mode.map(str::to_owned),
            retain_until_date: Timestamp::try_from(now + lasts).unwrap(),
        };
        let asked = |mode| ObjectLock::new(mode, 30 * day).unwrap();
        for (mode, lasts, asked_mode, protects) in [
            (Some("COMPLIANCE"), 30 * day, LockMode::Compliance, true),
            (Some("COMPLIANCE"), 29 * day, LockMode::Governance, true),
            (None, 30 * day, LockMode::Compliance, true),
            (Some("GOVERNANCE"), 30 * day, LockMode::Compliance, false),
            (Some("COMPLIANCE"), day, LockMode::Compliance, false),
        ] {
            let found = found(mode, lasts);
            assert_eq!(found.protects_as(&asked(asked_mode), now), protects, "{mode:?} {lasts:?}");
        }
    }

    #[test]
    fn a_lock_is_read_off_the_headers() {
        let date = ("date", "Sun, 22 Nov 2026 02:32:22 GMT");
        let mode = ("x-amz-object-lock-mode", "COMPLIANCE");
        let until = ("x-amz-object-lock-retain-until-date", "2026-11-22T02:32:42Z");
        let found = seen(&[date, mode, until, ("x-amz-version-id", "v1")]);
        let lock = found.lock.unwrap();
        assert_eq!((lock.mode, found.version.as_deref()), (Some(LockMode::Compliance), Some("v1")));
        assert_eq!(lock.until, Some(found.now + Duration::from_secs(20)));
        assert!(!lock.ends_before(found.now) && lock.ends_before(found.now + Duration::from_secs(21)));
        assert!(seen(&[date]).lock.is_none());
        // A lock whose end cannot be read never ends.
        for odd in [
            seen(&[date, mode]),
            seen(&[date, mode, ("x-amz-object-lock-retain-until-date", "later")]),
            seen(&[date, mode, until, ("x-amz-object-lock-legal-hold", "ON")]),
            seen(&[("x-amz-object-lock-legal-hold", "ON")]),
        ] {
            assert!(
                odd.lock
                    .is_some_and(|lock| !lock.ends_before(SystemTime::now() + Duration::from_secs(1 << 40)))
            );
        }
    }

    #[test]
    fn what_a_bucket_says_of_locks_is_read() {
        let by_default = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>\
            <Rule><DefaultRetention><Mode>GOVERNANCE</Mode><Days>3</Days></DefaultRetention></Rule></ObjectLockConfiguration>";
        let read = |text: &str| read_document::<LockConfiguration>(text.as_bytes());
        let found = read(by_default).unwrap();
        assert_eq!(found.object_lock_enabled.as_deref(), Some("Enabled"));
        assert!(found.rule.unwrap().default_retention.unwrap().mode.is_some());
        let none = read(
            "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule></Rule></ObjectLockConfiguration>",
        );
        assert!(none.unwrap().rule.is_none_or(|rule| rule.default_retention.is_none()));
        assert!(read("<ObjectLockConfiguration>").is_none());
        let retention = |text: &str| read_document::<Retention>(text.as_bytes());
        let found = "<Retention><Mode>COMPLIANCE</Mode><RetainUntilDate>2026-11-22T02:32:47.229Z</RetainUntilDate></Retention>";
        assert_eq!(retention(found).unwrap().mode.as_deref().and_then(mode_of), Some(LockMode::Compliance));
        assert!(retention("<Retention><Mode>GOVERNANCE</Mode></Retention>").is_none());
        let versioning = |text: &str| read_document::<Versioning>(text.as_bytes()).unwrap().kept();
        let status = |word| {
            versioning(&format!("<VersioningConfiguration><Status>{word}</Status></VersioningConfiguration>"))
        };
        assert_eq!(versioning("<VersioningConfiguration/>"), KeptVersions::None);
        assert_eq!(status("Enabled"), KeptVersions::All);
        assert_eq!(status("Suspended"), KeptVersions::Former);
    }
}
