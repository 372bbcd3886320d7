//! A bucket that keeps versions, read as it was before somebody with the same credentials went through it.

use std::{
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use holdfast_repo::store::{ObjectInfo, ObjectPath, Store, StoreErrorKind, read_all};
use holdfast_stores::{OpenStoreError, create_store, open_store};
use holdfast_testkit::object_storage::{Keeps, ObjectStorage, ObjectStorageKind};

use super::{PART_BYTES, options, place};

fn path(name: &str) -> ObjectPath {
    ObjectPath::new(name).unwrap()
}

fn upload(store: &dyn Store, name: &str, bytes: &[u8]) {
    let mut upload = store.put(&path(name)).unwrap();
    upload.write(bytes).unwrap();
    upload.finish().unwrap();
}

fn listed(store: &dyn Store, prefix: &str) -> Vec<ObjectInfo> {
    let mut all = Vec::new();
    store
        .list(prefix, &mut |info| {
            all.push(info);
            true
        })
        .unwrap();
    all
}

/// A moment of the store's clock, with nothing else in its second or in the next.
fn moment(store: &dyn Store) -> SystemTime {
    let begun = store.now().unwrap();
    while store.now().unwrap() <= begun {
        thread::sleep(Duration::from_millis(100));
    }
    let moment = store.now().unwrap();
    while store.now().unwrap() <= moment + Duration::from_secs(1) {
        thread::sleep(Duration::from_millis(100));
    }
    moment
}

fn as_of(place: &str, endpoint: &str, time: SystemTime) -> Result<Arc<dyn Store>, OpenStoreError> {
    let mut options = options(endpoint);
    options.as_of = Some(time);
    open_store(place, &options)
}

/// One name is overwritten this many times: more than one answer of a service holds, or fewer.
fn reads_what_was(kind: ObjectStorageKind, overwritten: usize) {
    let server = ObjectStorage::start_keeping(kind, Keeps::Versions).unwrap();
    let (place, endpoint) = (place(), server.endpoint());
    let prefix = place.split_once("/test/").unwrap().1;
    let store = create_store(&place, &options(&endpoint)).unwrap();
    let large: Vec<u8> = (0..PART_BYTES + 1000).map(|at| (at * 31 + at / 7919) as u8).collect();
    let early = moment(&*store);
    upload(&*store, "packs/large", &large);
    for name in ["a/1", "a/b/2", "c/3", "c/3-4", "d/gone"] {
        store.create_if_absent(&path(name), name.as_bytes()).unwrap();
    }
    store.delete(&[path("d/gone")]).unwrap();
    let before = listed(&*store, "");
    let time = moment(&*store);

    let attack = format!(
        "for page in s3.get_paginator('list_objects_v2').paginate(Bucket=BUCKET, Prefix='test/{prefix}/'):\n\
         \x20   for it in page['Contents']:\n\
         \x20       if it['Key'].endswith('3'):\n\
         \x20           for n in range({overwritten}):\n\
         \x20               s3.put_object(Bucket=BUCKET, Key=it['Key'], Body=b'theirs')\n\
         \x20       else:\n\
         \x20           s3.delete_object(Bucket=BUCKET, Key=it['Key'])\n\
         s3.put_object(Bucket=BUCKET, Key='test/{prefix}/e/new', Body=b'theirs')"
    );
    server.boto(&attack).unwrap();
    let names: Vec<_> = listed(&*store, "").into_iter().map(|info| info.path.to_string()).collect();
    assert_eq!(names, ["c/3", "e/new"]);
    assert_eq!(read_all(&*store, &path("c/3"), 9).unwrap(), b"theirs");

    let past = as_of(&place, &endpoint, time).unwrap();
    assert!(past.location().starts_with(&format!("{place} as of 20")), "{}", past.location());
    let sizes =
        |infos: &[ObjectInfo]| infos.iter().map(|it| (it.path.clone(), it.size_bytes)).collect::<Vec<_>>();
    assert_eq!(sizes(&listed(&*past, "")), sizes(&before));
    assert!(listed(&*past, "").iter().all(|info| info.created_at <= time));
    assert_eq!(past.list_folders("").unwrap(), ["a", "c", "packs"]);
    assert_eq!(past.list_folders("a/").unwrap(), ["b"]);
    assert_eq!(past.now().unwrap(), time);
    // Looked up by name, in a store that has remembered nothing.
    let past = as_of(&place, &endpoint, time).unwrap();
    assert!(read_all(&*past, &path("packs/large"), u64::MAX).unwrap() == large);
    let mut part = [0; 100];
    past.read_exact_at(&path("packs/large"), 4_000_000, &mut part).unwrap();
    assert_eq!(part[..], large[4_000_000..4_000_100]);
    let mut part = [0; 2];
    let short = past.read_exact_at(&path("c/3"), 2, &mut part).unwrap_err();
    assert!(matches!(short.kind, StoreErrorKind::ShortRead { end: 4 }), "{short}");
    for name in ["a/1", "a/b/2", "c/3", "c/3-4"] {
        assert_eq!(read_all(&*past, &path(name), 100).unwrap(), name.as_bytes());
    }
    for name in ["e/new", "d/gone", "c", "c/", "never"] {
        assert!(
            ObjectPath::new(name).is_none_or(|path| past.head(&path).unwrap_err().is_not_found()),
            "{name}"
        );
    }

    // Nothing can be changed there, and nothing was.
    let is_refused = |kind: StoreErrorKind| assert!(matches!(kind, StoreErrorKind::ReadOnly));
    is_refused(past.create_if_absent(&path("x"), b"").unwrap_err().kind);
    is_refused(past.delete(&[path("c/3")]).unwrap_err().kind);
    is_refused(past.put(&path("x")).map(|_| ()).unwrap_err().kind);
    assert_eq!(listed(&*store, "").len(), 2);

    let empty = as_of(&place, &endpoint, early).unwrap();
    assert!(listed(&*empty, "").is_empty() && empty.list_folders("").unwrap().is_empty());
    let later = as_of(&place, &endpoint, SystemTime::now() + Duration::from_secs(7200));
    let later = later.err().unwrap().to_string();
    assert!(later.contains("is in the future"), "{later}");
}

#[test]
fn versitygw_is_read_as_it_was() {
    reads_what_was(ObjectStorageKind::Versitygw, 1010);
}

#[test]
fn moto_is_read_as_it_was() {
    reads_what_was(ObjectStorageKind::Moto, 10);
}

#[test]
fn what_keeps_no_versions_is_not_read_as_if_it_did() {
    let server = ObjectStorage::start(ObjectStorageKind::Versitygw).unwrap();
    let (place, time) = (place(), SystemTime::now());
    create_store(&place, &options(&server.endpoint())).unwrap().create_if_absent(&path("a"), b"").unwrap();
    let refused = as_of(&place, &server.endpoint(), time).err().unwrap().to_string();
    assert!(refused.contains("keeps no versions"), "{refused}");
    let folder = tempfile::tempdir().unwrap();
    let refused = as_of(&folder.path().display().to_string(), "http://127.0.0.1:1", time).err().unwrap();
    assert!(refused.to_string().contains("keeps no versions"), "{refused}");
}
