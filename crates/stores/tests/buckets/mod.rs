//! Buckets on real object storage servers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use holdfast_repo::store::{Creation, ObjectInfo, ObjectPath, Store, conformance, probe_creation};
use holdfast_stores::{
    StoreOptions,
    bucket::{BucketOptions, Retries},
    create_store,
};
use holdfast_testkit::{
    object_storage::{ACCESS_KEY, BUCKET, HOST_BUCKET, ObjectStorage, ObjectStorageKind, SECRET_KEY},
    tls,
};

mod azure;
mod faults;
mod past;

/// Small parts, so that many are made of little data; services that insist on 5 MiB get that.
const PART_BYTES: usize = 5 << 20;

fn options(endpoint: &str) -> StoreOptions {
    let environment = [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)];
    let bucket = BucketOptions {
        endpoint: Some(endpoint.to_owned()),
        environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        part_bytes: PART_BYTES,
        retries: Retries {
            count: 6,
            pause_max: Duration::from_millis(400),
            give_up_after: Duration::from_secs(20),
        },
        request_timeout: Duration::from_secs(10),
        ..BucketOptions::default()
    };
    StoreOptions { bucket, ..StoreOptions::default() }
}

/// A new place in the bucket.
fn place() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("s3://{BUCKET}/test/{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn store(endpoint: &str) -> Arc<dyn Store> {
    create_store(&place(), &options(endpoint)).unwrap()
}

fn keeps_the_contract(kind: ObjectStorageKind) {
    let server = ObjectStorage::start(kind).unwrap();
    let endpoint = server.endpoint();
    conformance::check(|| store(&endpoint));
    conformance::check_large(|| store(&endpoint), PART_BYTES, 1_050);
    assert_eq!(probe_creation(&*store(&endpoint), "x").unwrap(), Creation::Exclusive);
}

#[test]
fn versitygw_keeps_the_contract() {
    keeps_the_contract(ObjectStorageKind::Versitygw);
}

/// A server with a certificate of its own authority, which knows the bucket by the name of the host.
#[test]
fn versitygw_keeps_the_contract_behind_tls_and_by_host() {
    let server = ObjectStorage::start_with_tls_by_host().unwrap();
    let options = |ca_file: Option<&str>| {
        let mut options = options(&server.endpoint());
        options.bucket.path_style = Some(false);
        options.bucket.ca_file = ca_file.map(tls::file);
        options
    };
    let count = AtomicUsize::new(0);
    let store = |ca_file| {
        let place = format!("s3://{HOST_BUCKET}/test/{}", count.fetch_add(1, Ordering::Relaxed));
        create_store(&place, &options(ca_file))
    };
    conformance::check(|| store(Some("ca.pem")).unwrap());
    conformance::check_large(|| store(Some("ca.pem")).unwrap(), PART_BYTES, 40);
    for stranger in [None, Some("other-ca.pem")] {
        let error = store(stranger).err().expect("nobody vouches for this server").to_string();
        assert!(error.contains("the store's certificate is not trusted"), "{error}");
    }
}

#[test]
fn moto_keeps_the_contract() {
    keeps_the_contract(ObjectStorageKind::Moto);
}

/// Anybody who can write can make names that no path of this library is, and move objects into an archive.
/// Neither keeps other objects from being listed and read.
fn what_others_make_hides_nothing(kind: ObjectStorageKind, odd: &[&str]) {
    let server = ObjectStorage::start(kind).unwrap();
    let place = place();
    let store = create_store(&place, &options(&server.endpoint())).unwrap();
    let path = |name: &str| ObjectPath::new(name).unwrap();
    let names = ["holdfast.json", "sources/a/outcomes/1", "sources/b/outcomes/1"];
    names.iter().for_each(|name| drop(store.create_if_absent(&path(name), b"x").unwrap()));
    let prefix = place.rsplit_once(&format!("{BUCKET}/")).unwrap().1;
    let puts = odd
        .iter()
        .map(|name| format!("s3.put_object(Bucket='{BUCKET}', Key='{prefix}/{name}', Body=b'x')\n"));
    server.boto(&puts.collect::<String>()).unwrap();
    let reopened = create_store(&place, &options(&server.endpoint())).unwrap();
    let mut listed = Vec::new();
    let mut each = |object: ObjectInfo| {
        listed.push(object.path.to_string());
        true
    };
    reopened.list("", &mut each).unwrap();
    assert_eq!(listed, names);
    assert_eq!(reopened.list_folders("").unwrap(), ["sources"]);
    let folders = reopened.list_folders("sources/").unwrap();
    assert!(["a", "b"].iter().all(|name| folders.contains(&(*name).to_owned())), "{folders:?}");
    reopened.sweep_uploads(Duration::ZERO).unwrap();
}

#[test]
fn moto_shows_what_is_ours_beside_odd_names() {
    let odd = ["/x", "sources//x", "sources/a/outcomes//x", "sources/a/../b", "sources/a/\\x01", ".tmp//x"];
    what_others_make_hides_nothing(ObjectStorageKind::Moto, &odd);
}

#[test]
fn versitygw_shows_what_is_ours_beside_odd_names() {
    what_others_make_hides_nothing(ObjectStorageKind::Versitygw, &["sources/a/\\x01"]);
}

/// An object that the service has moved into an archive is unreadable, and says so.
#[test]
fn what_was_archived_is_unreadable() {
    let server = ObjectStorage::start(ObjectStorageKind::Moto).unwrap();
    let place = place();
    let store = create_store(&place, &options(&server.endpoint())).unwrap();
    let prefix = place.rsplit_once(&format!("{BUCKET}/")).unwrap().1;
    let put = format!(
        "s3.put_object(Bucket='{BUCKET}', Key='{prefix}/packs/1', Body=b'x' * 100, StorageClass='GLACIER')"
    );
    server.boto(&put).unwrap();
    let path = ObjectPath::new("packs/1").unwrap();
    let read = [store.read_whole(&path, 1000).map(drop), store.read_exact_at(&path, 50, &mut [0; 10])];
    for read in read {
        let error = read.unwrap_err();
        assert!(error.is_unreadable() && error.is_of_one_object(), "{error}");
    }
}
