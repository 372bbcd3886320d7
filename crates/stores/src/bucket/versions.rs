//! Versions of objects in a bucket that keeps them: what a service lists, and which version was current when.
//!
//! Lists differ between services. versitygw changes the times of versions when newer ones come, but its
//! version ids are ULIDs, which begin with the time at which the version came. Some services list deletions
//! among the versions, some after them. So versions are ordered by their times, and where those are equal
//! (they are whole seconds) by what this program does: it deletes what it has created, and never creates a
//! name again.

use std::{
    cmp::Reverse,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use holdfast_repo::store::{RemoteCause, StoreError, locks::NoncurrentVersion};
use jiff::Timestamp;
use serde::Deserialize;

use super::{Inner, requests::Request};

/// Most versions of one name that are kept: a well-meaning client makes only one. Of more, those in the
/// middle of the list are dropped: the newest tell what is current, and the oldest are ours.
const VERSIONS_MAX: usize = 100_000;

/// A version of a name, or the marker of its deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// The service's id.
    pub(super) id: String,
    /// When it came, by the service's clock; for an object in parts, when its upload began.
    pub(super) at: SystemTime,
    /// `None` if it marks a deletion.
    pub(super) object: Option<ObjectVersion>,
    /// Whether a request without a version gets this one.
    pub(super) is_latest: bool,
    /// Who made it, if the service tells.
    pub(super) owner: Option<String>,
    /// Whether `at` is certainly the time when it came.
    is_exact: bool,
}

/// A version that has bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectVersion {
    pub(super) size_bytes: u64,
    pub(super) is_in_parts: bool,
}

/// A page of the list.
#[derive(Deserialize)]
#[serde(rename = "ListVersionsResult", rename_all = "PascalCase")]
struct Page {
    /// In the order of the document.
    #[serde(default, rename = "$value")]
    entries: Vec<Entry>,
    #[serde(default)]
    common_prefixes: Vec<CommonPrefix>,
    #[serde(default)]
    is_truncated: bool,
    next_key_marker: Option<String>,
    next_version_id_marker: Option<String>,
}

#[derive(Deserialize)]
enum Entry {
    Version(Listed),
    DeleteMarker(Listed),
    /// Parameters of the request, repeated.
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    key: String,
    version_id: String,
    #[serde(default)]
    is_latest: bool,
    last_modified: Timestamp,
    #[serde(rename = "ETag")]
    e_tag: Option<String>,
    size: Option<u64>,
    owner: Option<Owner>,
}

#[derive(Deserialize)]
struct Owner {
    #[serde(rename = "DisplayName")]
    name: Option<String>,
    #[serde(rename = "ID")]
    id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CommonPrefix {
    pub(super) prefix: String,
}

impl Entry {
    /// The name and version in the entry: `None` if it is neither, `Some(None)` if the version makes no
    /// sense.
    fn read(self) -> Option<Option<(String, Version)>> {
        match self {
            Self::Version(listed) => Some(listed.read(false)),
            Self::DeleteMarker(listed) => Some(listed.read(true)),
            Self::Other => None,
        }
    }
}

impl Listed {
    /// Key and version; `None` for an object without a size.
    fn read(self, is_deletion: bool) -> Option<(String, Version)> {
        let is_in_parts = self.e_tag.as_deref().is_some_and(|tag| tag.contains('-'));
        let object = match is_deletion {
            true => None,
            false => Some(ObjectVersion { size_bytes: self.size?, is_in_parts }),
        };
        let told = |text: &String| !text.is_empty();
        let owner = self.owner.and_then(|owner| owner.name.filter(told).or(owner.id.filter(told)));
        let in_id = time_in_id(&self.version_id);
        let version = Version {
            at: in_id.unwrap_or_else(|| self.last_modified.into()),
            is_exact: in_id.is_some(),
            id: self.version_id,
            object,
            is_latest: self.is_latest,
            owner,
        };
        Some((self.key, version))
    }
}

/// The time in a version id that is a ULID: 26 digits of base 32, the first ten of which are milliseconds
/// since 1970. Ids of AWS (32 characters) and of services that use UUIDs (36) never look like one.
fn time_in_id(id: &str) -> Option<SystemTime> {
    const DIGITS: &[u8] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    if id.len() != 26 {
        return None;
    }
    let digit = |byte: u8| DIGITS.iter().position(|digit| *digit == byte).map(|value| value as u64);
    let digits: Vec<u64> = id.bytes().map(digit).collect::<Option<_>>()?;
    // A first digit above 7 would mean more than 48 bits.
    let millis = digits.iter().take(10).fold(0, |sum, digit| sum << 5 | digit);
    (*digits.first()? <= 7).then(|| UNIX_EPOCH + Duration::from_millis(millis))
}

/// Sorts the versions of one name by the order in which they came, the newest first.
pub(super) fn sort(versions: &mut [Version]) {
    versions
        .sort_by_key(|version| (Reverse(version.at), Reverse(version.is_latest), version.object.is_some()));
}

/// The version of a name that was current at a time, if the name existed.
///
/// An object in parts has the time at which its upload began. An attacker can begin an upload and complete it
/// much later. So where such an object lies over another version, which no well-meaning client does, it is
/// ignored.
fn current_at(mut versions: Vec<Version>, time: SystemTime) -> Option<Version> {
    versions.retain(|version| version.at <= time);
    sort(&mut versions);
    let mut versions = versions.into_iter().peekable();
    loop {
        let version = versions.next()?;
        let is_over_another = versions.peek().is_some_and(|below| below.object.is_some());
        if !(version.object?.is_in_parts && is_over_another) {
            return Some(version);
        }
    }
}

/// A name with all its known versions.
pub(super) struct Named {
    pub(super) key: String,
    pub(super) versions: Vec<Version>,
    /// Whether there are more versions than are kept.
    pub(super) is_crowded: bool,
    /// Whether they are listed from the newest, deletions among them, as far as can be seen.
    is_newest_first: bool,
}

impl Named {
    fn new(key: String, is_newest_first: bool) -> Self {
        Self { key, versions: Vec::new(), is_crowded: false, is_newest_first }
    }

    /// The version that was current at a time, if the name existed.
    ///
    /// Deleting a name while its parts are being sent makes a marker that is newer than the upload and older
    /// than the object; completing an upload that began before ours makes an object that seems older. So an
    /// object in parts that is listed over another version came after that version.
    pub(super) fn current_at(mut self, time: SystemTime) -> Option<Version> {
        if self.is_newest_first {
            for at in (1..self.versions.len()).rev() {
                let (above, below) = self.versions.split_at_mut(at);
                let (Some(version), Some(below)) = (above.last_mut(), below.first()) else { continue };
                let is_in_parts = version.object.is_some_and(|object| object.is_in_parts);
                if is_in_parts && !version.is_exact && version.at <= below.at {
                    version.at = below.at + Duration::from_nanos(1);
                }
            }
        }
        current_at(self.versions, time)
    }

    fn add(&mut self, version: Version) {
        if self.versions.len() == VERSIONS_MAX {
            self.versions.drain(VERSIONS_MAX / 4..VERSIONS_MAX / 4 * 3);
            self.is_crowded = true;
        }
        self.versions.push(version);
    }

    /// Whether the current version deleted or overwrote bytes, and when; `None` if there are no bytes beneath
    /// it.
    pub(super) fn noncurrent_version(mut self) -> Option<NoncurrentVersion> {
        sort(&mut self.versions);
        let current = self.versions.iter().position(|version| version.is_latest).unwrap_or(0);
        let found = self.versions.get(current)?;
        let beneath = NoncurrentVersion { is_hidden: found.object.is_none(), since: found.at };
        let mut others = self.versions.iter().enumerate().filter(|(at, _)| *at != current);
        others.any(|(_, version)| version.object.is_some()).then_some(beneath)
    }
}

/// Iterates over the versions of all names with a prefix, in the order of the names.
pub(super) struct Versions<'a> {
    inner: &'a Inner,
    prefix: String,
    /// Later versions are skipped.
    until: Option<SystemTime>,
    /// The next names, in reverse order.
    ready: Vec<Named>,
    /// A name for which the next page may have more versions.
    open: Option<Named>,
    after: Option<(String, String)>,
    is_done: bool,
    pages: u64,
}

impl<'a> Versions<'a> {
    pub(super) fn new(inner: &'a Inner, prefix: String, until: Option<SystemTime>) -> Self {
        Self { inner, prefix, until, ready: Vec::new(), open: None, after: None, is_done: false, pages: 0 }
    }

    /// The next name.
    pub(super) async fn next(&mut self) -> Result<Option<Named>, StoreError> {
        loop {
            if let Some(named) = self.ready.pop() {
                return Ok(Some(named));
            }
            if self.is_done {
                return Ok(self.open.take());
            }
            self.read_page().await?;
        }
    }

    /// Requests made so far.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    async fn read_page(&mut self) -> Result<(), StoreError> {
        self.pages += 1;
        let page = self.inner.version_page(&self.prefix, None, self.after.as_ref()).await?;
        let next = page.next(self.after.as_ref()).map_err(|what| self.odd(what))?;
        let listed = page.entries.into_iter().filter_map(Entry::read);
        let mut found: Vec<(String, Version)> = Vec::new();
        for entry in listed {
            found.push(entry.ok_or_else(|| self.odd("its list of versions makes no sense"))?);
        }
        // The sort is stable, so the order of one name's versions is kept.
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut complete = Vec::new();
        for (key, version) in found {
            if !key.starts_with(&self.prefix) {
                return Err(self.odd("it lists names that were not asked for"));
            }
            let is_another = self.open.as_ref().is_none_or(|open| open.key != key);
            if is_another {
                if self.open.as_ref().is_some_and(|open| open.key > key) {
                    return Err(self.odd("it does not list versions in the order of their names"));
                }
                complete.extend(self.open.replace(Named::new(key, version.is_latest)));
            }
            if self.until.is_some_and(|until| version.at > until) {
                continue;
            }
            if let Some(open) = &mut self.open {
                open.add(version);
            }
        }
        complete.reverse();
        self.ready = complete;
        self.is_done = next.is_none();
        self.after = next;
        Ok(())
    }

    fn odd(&self, what: &str) -> StoreError {
        let about = self.open.as_ref().map_or(&self.prefix, |open| &open.key);
        self.inner.remote(about, RemoteCause::Unfit, what)
    }
}

impl Page {
    /// Where the next page begins. A list that does not advance would never end.
    fn next(&self, after: Option<&(String, String)>) -> Result<Option<(String, String)>, &'static str> {
        if !self.is_truncated {
            return Ok(None);
        }
        let marker = self.next_version_id_marker.clone().unwrap_or_default();
        let next = self.next_key_marker.clone().map(|key| (key, marker));
        let goes_on = match (&next, after) {
            (Some(next), Some(after)) => next.0 > after.0 || (next.0 == after.0 && next.1 != after.1),
            (next, _) => next.is_some(),
        };
        if goes_on { Ok(next) } else { Err("its list of versions repeats itself") }
    }
}

impl Inner {
    async fn version_page(
        &self,
        prefix: &str,
        delimiter: Option<&str>,
        after: Option<&(String, String)>,
    ) -> Result<Page, StoreError> {
        let mut query = vec![("versions", String::new()), ("prefix", prefix.to_owned())];
        query.extend(delimiter.map(|delimiter| ("delimiter", delimiter.to_owned())));
        if let Some((key, version)) = after {
            query.push(("key-marker", key.clone()));
            if !version.is_empty() {
                query.push(("version-id-marker", version.clone()));
            }
        }
        Ok(self.ask_for(&Request::of_bucket(query, format!("{prefix}(versions)"))).await?)
    }

    /// The folders below a prefix that names have ever had, up to the next slash, in order, whatever became
    /// of the objects.
    pub(super) async fn folders_ever(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let mut folders = Vec::new();
        let mut after = None;
        loop {
            let page = self.version_page(prefix, Some("/"), after.as_ref()).await?;
            let next =
                page.next(after.as_ref()).map_err(|what| self.remote(prefix, RemoteCause::Unfit, what))?;
            folders.extend(page.common_prefixes.into_iter().map(|folder| folder.prefix));
            after = next;
            if after.is_none() {
                break;
            }
        }
        folders.sort();
        folders.dedup();
        Ok(folders)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::requests::read_document, *};

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn version(id: &str, seconds: u64, is_in_parts: bool) -> Version {
        let object = Some(ObjectVersion { size_bytes: 1, is_in_parts });
        Version { id: id.to_owned(), at: at(seconds), object, is_latest: false, owner: None, is_exact: false }
    }

    fn deletion(id: &str, seconds: u64) -> Version {
        Version { object: None, ..version(id, seconds, false) }
    }

    fn latest(version: Version) -> Version {
        Version { is_latest: true, ..version }
    }

    #[test]
    fn what_was_current_is_found_by_its_time() {
        let id = |versions: &[Version], time| current_at(versions.to_vec(), at(time)).map(|it| it.id);
        let attacked =
            [version("ours", 10, false), latest(version("theirs", 50, false)), deletion("gone", 30)];
        assert_eq!(id(&attacked, 9), None, "it was not there yet");
        assert_eq!(id(&attacked, 10).as_deref(), Some("ours"));
        assert_eq!(id(&attacked, 29).as_deref(), Some("ours"));
        assert_eq!(id(&attacked, 30), None, "it was deleted");
        assert_eq!(id(&attacked, 50).as_deref(), Some("theirs"), "what was written over");
        assert_eq!(id(&[], 10), None);
        // Within one second: created, then deleted; but the current version stays current.
        let quick = [version("ours", 10, false), deletion("gone", 10)];
        assert_eq!(id(&quick, 10), None);
        let again = [deletion("gone", 10), latest(version("again", 10, false))];
        assert_eq!(id(&again, 10).as_deref(), Some("again"));
    }

    #[test]
    fn an_upload_that_was_begun_long_before_it_was_completed_covers_nothing() {
        let id = |versions: &[Version], time| current_at(versions.to_vec(), at(time)).map(|it| it.id);
        let prepared = [version("ours", 10, true), version("theirs", 11, true), version("more", 12, true)];
        assert_eq!(id(&prepared, 20).as_deref(), Some("ours"));
        // A name that was deleted in between is not such a case.
        let anew = [version("ours", 10, true), deletion("gone", 11), version("anew", 12, true)];
        assert_eq!(id(&anew, 20).as_deref(), Some("anew"));
        assert_eq!(id(&anew[..2], 20), None);
    }

    /// A pack begun at 10, deleted at 17 by an attacker who foresaw its name, completed at 30, and hidden
    /// much later.
    #[test]
    fn a_mark_that_was_made_while_parts_were_sent_hides_nothing() {
        let id = |newest_first, listed: &[Version], time| {
            let kept = listed.iter().filter(|it| it.at <= at(time)).cloned().collect();
            let named = Named { versions: kept, ..Named::new("k".to_owned(), newest_first) };
            named.current_at(at(time)).map(|it| it.id)
        };
        let pack = || version("ours", 10, true);
        let now = [latest(pack()), deletion("early", 17)];
        assert_eq!(id(true, &now, 100).as_deref(), Some("ours"));
        let hidden = [latest(deletion("late", 90)), pack(), deletion("second", 17), deletion("first", 16)];
        assert_eq!(id(true, &hidden, 50).as_deref(), Some("ours"));
        assert_eq!(id(true, &hidden, 90), None);
        // A service that lists markers apart says nothing about their order.
        let apart = [pack(), latest(deletion("late", 90))];
        assert_eq!(id(false, &apart, 95), None);
        assert_eq!(id(false, &apart, 50).as_deref(), Some("ours"));
        // Another client's upload, completed after that client had deleted ours.
        let theirs = [latest(version("theirs", 5, true)), deletion("gone", 50), pack()];
        assert_eq!(id(true, &theirs, 20).as_deref(), Some("ours"));
        let later = [latest(version("theirs", 15, true)), deletion("gone", 50), pack()];
        assert_eq!(id(true, &later, 20).as_deref(), Some("ours"));
    }

    #[test]
    fn times_are_taken_from_ids_that_hold_them() {
        let time = Timestamp::from_millisecond(1_795_314_935_947).unwrap();
        assert_eq!(time_in_id("01M80HQT4B00HR3V94SM4PJE0T"), Some(time.into()));
        for other in [
            "null",
            "",
            "8ZZZZZZZZZ00HR3V94SM4PJE0T",
            "01m80hqt4b00hr3v94sm4pje0t",
            "01M80HQT4B00HR3V94SM4PJE0U",
        ] {
            assert_eq!(time_in_id(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_hidden_or_covered_is_seen() {
        let beneath = |versions: &[Version]| {
            let named = Named { versions: versions.to_vec(), ..Named::new("k".to_owned(), true) };
            named.noncurrent_version().map(|it| (it.is_hidden, it.since))
        };
        let ours = || version("ours", 10, false);
        assert_eq!(beneath(&[]), None);
        assert_eq!(beneath(&[latest(ours())]), None);
        assert_eq!(beneath(&[latest(deletion("gone", 20))]), None, "of what was deleted for good");
        assert_eq!(beneath(&[ours(), latest(deletion("gone", 20))]), Some((true, at(20))));
        assert_eq!(beneath(&[ours(), latest(version("theirs", 30, false))]), Some((false, at(30))));
        assert_eq!(beneath(&[latest(ours()), deletion("before", 5)]), None);
    }

    #[test]
    fn of_too_many_versions_the_newest_and_the_oldest_are_kept() {
        let mut named = Named::new("k".to_owned(), true);
        let last = VERSIONS_MAX as u64 * 3;
        (0..=last).for_each(|n| named.add(version(&n.to_string(), last - n, false)));
        assert!(named.is_crowded && named.versions.len() <= VERSIONS_MAX);
        assert_eq!(
            (named.versions[0].id.as_str(), named.versions.last().map(|it| it.at)),
            ("0", Some(at(0)))
        );
    }

    const PAGE: &str = "<?xml version=\"1.0\"?><ListVersionsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
        <Name>b</Name><IsTruncated>true</IsTruncated><NextKeyMarker>k2</NextKeyMarker><NextVersionIdMarker>v9</NextVersionIdMarker>\
        <DeleteMarker><Key>k1</Key><VersionId>v2</VersionId><IsLatest>true</IsLatest>\
        <LastModified>2026-11-21T12:00:01.000Z</LastModified><Owner><ID>1</ID><DisplayName>eve</DisplayName></Owner></DeleteMarker>\
        <Version><Key>k1</Key><VersionId>v1</VersionId><IsLatest>false</IsLatest><ETag>\"ab-2\"</ETag><Size>7</Size>\
        <LastModified>2026-11-21T12:00:00Z</LastModified><Owner><ID>12ab</ID></Owner></Version>\
        <DeleteMarker><Key>k2</Key><VersionId>v9</VersionId><LastModified>2026-11-21T12:00:02Z</LastModified></DeleteMarker>\
        <CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes></ListVersionsResult>";

    #[test]
    fn a_list_of_versions_is_read_in_whatever_order_it_is() {
        let page: Page = read_document(PAGE.as_bytes()).unwrap();
        assert_eq!(page.next(None), Ok(Some(("k2".to_owned(), "v9".to_owned()))));
        assert_eq!(page.common_prefixes[0].prefix, "a/");
        let listed: Vec<_> = page.entries.into_iter().filter_map(Entry::read).flatten().collect();
        let ids: Vec<&str> = listed.iter().map(|(_, version)| version.id.as_str()).collect();
        assert_eq!(ids, ["v2", "v1", "v9"], "in the order of the document");
        let object = Some(ObjectVersion { size_bytes: 7, is_in_parts: true });
        assert_eq!([None, object, None], [0, 1, 2].map(|at: usize| listed[at].1.object));
        assert_eq!(listed[1].1.owner.as_deref(), Some("12ab"));
        assert_eq!((listed[0].1.owner.as_deref(), listed[0].1.is_latest), (Some("eve"), true));
        let none: Page = read_document(b"<ListVersionsResult><Name>b</Name></ListVersionsResult>").unwrap();
        let none_next = none.next(None) == Ok(None);
        assert!(none.entries.into_iter().all(|it| it.read().is_none()));
        assert!(none_next);
    }

    #[test]
    fn a_list_that_goes_in_circles_or_makes_no_sense_is_an_error() {
        let page: Page = read_document(PAGE.as_bytes()).unwrap();
        let circle = ("k2".to_owned(), "v9".to_owned());
        assert!(page.next(Some(&circle)).is_err());
        assert!(page.next(Some(&("k3".to_owned(), String::new()))).is_err());
        assert!(page.next(Some(&("k2".to_owned(), "v8".to_owned()))).is_ok());
        for (from, to) in [
            ("<Size>7</Size>", "<Size>-7</Size>"),
            ("2026-11-21T12:00:00Z", "yesterday"),
            ("<VersionId>v1</VersionId>", ""),
            ("</Version>", ""),
            ("<IsTruncated>true", "<IsTruncated>perhaps"),
        ] {
            let bad = PAGE.replace(from, to);
            assert!(read_document::<Page>(bad.as_bytes()).is_none(), "{from}");
        }
        // A version without a size cannot be read.
        let page: Page = read_document(PAGE.replace("<Size>7</Size>", "").as_bytes()).unwrap();
        assert_eq!(page.entries.into_iter().filter_map(Entry::read).filter(Option::is_none).count(), 1);
        // Wherever it is cut off, it is an error.
        for len in 0..PAGE.len() {
            assert!(read_document::<Page>(&PAGE.as_bytes()[..len]).is_none(), "{len}");
        }
        assert!(read_document::<Page>(&[0xff, 0xfe]).is_none());
        let deep = format!("<ListVersionsResult>{}", "<a>".repeat(300_000));
        assert!(read_document::<Page>(deep.as_bytes()).is_none());
        let deep = format!("<ListVersionsResult><Version>{}", "<Key>".repeat(300_000));
        assert!(read_document::<Page>(deep.as_bytes()).is_none());
    }
}
