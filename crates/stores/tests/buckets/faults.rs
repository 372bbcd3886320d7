//! Failures on the way to a bucket. In every case, success is never reported for an object that does not
//! exist, nothing is overwritten, and no error shows a secret.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use holdfast_repo::store::{
    Creation, ObjectInfo, ObjectPath, RemoteCause, Store, StoreError, StoreErrorKind, probe_creation,
    read_all, writers,
};
use holdfast_stores::{bucket::Retries, create_store};
use holdfast_testkit::{
    object_storage::{BUCKET, ObjectStorage, ObjectStorageKind, SECRET_KEY},
    proxy::{Fate, Proxy, Request},
};

use super::{PART_BYTES, options, place};

pub(super) fn path(name: &str) -> ObjectPath {
    ObjectPath::new(name).unwrap()
}

pub(super) fn bytes(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + at / 7919 + seed) as u8).collect()
}

pub(super) fn upload(store: &dyn Store, name: &str, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
    let mut upload = store.put(&path(name))?;
    for block in bytes.chunks(1 << 20) {
        upload.write(block)?;
    }
    upload.finish()
}

/// A place, reached directly and through a proxy that decides the fate of requests.
struct Scene {
    straight: Arc<dyn Store>,
    /// Objects are named below this in the requests that the proxy sees.
    through: Arc<dyn Store>,
    _proxy: Proxy,
}

impl Scene {
    fn new(server: &ObjectStorage, decide: impl Fn(&Request) -> Fate + Send + Sync + 'static) -> Self {
        let place = place();
        let proxy = Proxy::start(server.port(), decide).unwrap();
        let straight = create_store(&place, &options(&server.endpoint())).unwrap();
        let through = create_store(&place, &options(&proxy.endpoint())).unwrap();
        Self { straight, through, _proxy: proxy }
    }
}

/// The fate of the first `count` requests for which `concerns` is true; all others pass.
pub(super) fn first(
    count: usize,
    fate: Fate,
    concerns: impl Fn(&Request) -> bool + Send + Sync + 'static,
) -> impl Fn(&Request) -> Fate + Send + Sync + 'static {
    let seen = AtomicUsize::new(0);
    move |request| {
        if concerns(request) && seen.fetch_add(1, Ordering::SeqCst) < count {
            fate.clone()
        } else {
            Fate::Pass
        }
    }
}

fn cause(error: &StoreError) -> RemoteCause {
    let text = error.to_string();
    assert!(!text.contains(SECRET_KEY) && !text.contains("Signature"), "{text}");
    match &error.kind {
        StoreErrorKind::Remote(remote) => {
            assert!(text.contains(BUCKET), "names no bucket: {text}");
            remote.cause
        }
        other => panic!("{other:?}"),
    }
}

fn server() -> ObjectStorage {
    ObjectStorage::start(ObjectStorageKind::Versitygw).unwrap()
}

#[test]
fn a_creation_whose_answer_got_lost_is_known_as_ours() {
    let server = server();
    let busy = Fate::error(500, "InternalError");
    for fate in [Fate::SwallowAnswer, Fate::CutRequest, Fate::Drop, Fate::Twice, busy] {
        let scene = Scene::new(&server, first(1, fate.clone(), |it| it.is("PUT", "outcomes/1")));
        let done = scene.through.create_if_absent(&path("outcomes/1"), b"ours");
        assert_eq!(done.unwrap_or_else(|error| panic!("{fate:?}: {error}")).size_bytes, 4);
        assert_eq!(read_all(&*scene.straight, &path("outcomes/1"), 10).unwrap(), b"ours");
        let late = scene.through.create_if_absent(&path("outcomes/1"), b"ours").unwrap_err();
        assert!(late.is_exists(), "the same bytes are not the same creation: {late}");
    }
}

#[test]
fn a_name_that_another_took_meanwhile_is_his() {
    let server = server();
    let other: Arc<Mutex<Option<Arc<dyn Store>>>> = Arc::default();
    for large in [false, true] {
        let taker = Arc::clone(&other);
        let done = AtomicUsize::new(0);
        let name = if large { "packs/1" } else { "outcomes/1" };
        let scene = Scene::new(&server, move |request| {
            let publishes = if large { request.completes() } else { request.is("PUT", "outcomes/1") };
            if publishes && done.fetch_add(1, Ordering::SeqCst) == 0 {
                let taker = taker.lock().unwrap().take().unwrap();
                taker.create_if_absent(&path(name), b"his").unwrap();
                return Fate::Drop;
            }
            Fate::Pass
        });
        *other.lock().unwrap() = Some(Arc::clone(&scene.straight));
        let ours = bytes(if large { 2 * PART_BYTES } else { 3 }, 1);
        let error = match large {
            true => upload(&*scene.through, name, &ours).unwrap_err(),
            false => scene.through.create_if_absent(&path(name), &ours).unwrap_err(),
        };
        assert!(error.is_exists(), "{error}");
        assert_eq!(read_all(&*scene.straight, &path(name), 10).unwrap(), b"his");
    }
}

#[test]
fn an_upload_in_parts_survives_what_happens_to_its_requests() {
    let server = server();
    let sent = bytes(3 * PART_BYTES + 1234, 5);
    let part = |it: &Request| it.is("PUT", "partNumber=");
    let begins = |it: &Request| it.is("POST", "uploads");
    type Concerns = fn(&Request) -> bool;
    let cases: [(usize, Fate, Concerns); 13] = [
        (1, Fate::SwallowAnswer, Request::completes),
        (1, Fate::CutAnswer, Request::completes),
        (2, Fate::error(503, "SlowDown"), Request::completes),
        (1, Fate::Answer(200, "<Error><Code>InternalError</Code></Error>".to_owned()), Request::completes),
        (2, Fate::CutRequest, part),
        (3, Fate::error(503, "SlowDown"), part),
        (2, Fate::SwallowAnswer, part),
        (1, Fate::error(500, "InternalError"), begins),
        (1, Fate::Twice, begins),
        (4, Fate::Twice, part),
        (1, Fate::Twice, Request::completes),
        // An earlier request is still being carried out.
        (2, Fate::error(409, "OperationAborted"), Request::completes),
        // A line that stalled.
        (9, Fate::error(400, "RequestTimeout"), part),
    ];
    for (count, fate, concerns) in cases {
        let scene = Scene::new(&server, first(count, fate.clone(), concerns));
        let done = upload(&*scene.through, "packs/1", &sent);
        assert_eq!(done.unwrap_or_else(|error| panic!("{fate:?}: {error}")).size_bytes, sent.len() as u64);
        assert!(read_all(&*scene.straight, &path("packs/1"), 1 << 30).unwrap() == sent, "{fate:?}");
    }
}

/// A bit of the request's body changes on its way. The server verifies what it got, so it refuses the request, and
/// a later one brings the bytes intact. Damage that does not end is an error, and leaves nothing.
#[test]
fn what_is_damaged_on_its_way_is_refused_and_sent_again() {
    let server = server();
    let (small, large) = (bytes(1000, 1), bytes(2 * PART_BYTES + 1234, 5));
    type Concerns = fn(&Request) -> bool;
    let creates: Concerns = |it| it.is("PUT", "outcomes/1");
    let part: Concerns = |it| it.is("PUT", "partNumber=");
    let deletes: Concerns = |it| it.is("POST", "delete");
    // And how many such requests it takes without damage.
    let cases: [(Concerns, &str, &[u8], usize); 4] = [
        (creates, "outcomes/1", &small, 1),
        (part, "packs/1", &large, 3),
        (Request::completes, "packs/1", &large, 1),
        (deletes, "outcomes/1", &small, 1),
    ];
    for (concerns, name, sent, needed) in cases {
        for flips in [2, usize::MAX] {
            let requests = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&requests);
            let flip = first(flips, Fate::FlipBody, concerns);
            let scene = Scene::new(&server, move |request| {
                seen.fetch_add(usize::from(concerns(request)), Ordering::SeqCst);
                flip(request)
            });
            let is_whole = |name: &str| read_all(&*scene.straight, &path(name), 1 << 30).unwrap() == sent;
            let is_absent = |name: &str| scene.straight.head(&path(name)).unwrap_err().is_not_found();
            let others = ["outcomes/0", "outcomes/2", "outcomes/3"];
            others.iter().for_each(|other| drop(upload(&*scene.straight, other, sent).unwrap()));
            let uploaded = upload(&*scene.through, name, sent);
            let done = match uploaded {
                Ok(info) => {
                    assert!(info.size_bytes == sent.len() as u64 && is_whole(name));
                    scene.through.delete(&[path(name)])
                }
                Err(error) => {
                    assert!(is_absent(name), "{error}");
                    Err(error)
                }
            };
            match flips {
                usize::MAX => assert_eq!(cause(&done.unwrap_err()), RemoteCause::Busy),
                _ => {
                    done.unwrap();
                    assert!(is_absent(name));
                    assert_eq!(requests.load(Ordering::SeqCst), flips + needed, "none was refused");
                }
            }
            others.iter().for_each(|other| assert!(is_whole(other), "{other}"));
        }
    }
}

#[test]
fn a_service_that_stays_busy_or_away_ends_in_an_error_that_says_so() {
    let server = server();
    let busy = |fate: Fate| {
        let switch = Arc::new(AtomicUsize::new(0));
        let on = Arc::clone(&switch);
        let scene =
            Scene::new(
                &server,
                move |_| if on.load(Ordering::SeqCst) == 1 { fate.clone() } else { Fate::Pass },
            );
        switch.store(1, Ordering::SeqCst);
        scene
    };
    let cases = [
        (Fate::error(503, "SlowDown"), RemoteCause::Busy),
        (Fate::Drop, RemoteCause::Unreachable),
        (Fate::error(403, "AccessDenied"), RemoteCause::Denied),
        (Fate::error(403, "InvalidAccessKeyId"), RemoteCause::Credentials),
        (Fate::error(400, "ExpiredToken"), RemoteCause::Expired),
        (Fate::error(403, "RequestTimeTooSkewed"), RemoteCause::Clock),
        (Fate::error(404, "NoSuchBucket"), RemoteCause::NoPlace),
    ];
    thread::scope(|scope| {
        for (fate, expected) in cases {
            let busy = &busy;
            scope.spawn(move || {
                let scene = busy(fate);
                let begun = Instant::now();
                let errors = [
                    scene.through.create_if_absent(&path("a"), b"x").unwrap_err(),
                    upload(&*scene.through, "b", &bytes(2 * PART_BYTES, 0)).unwrap_err(),
                    scene.through.read_exact_at(&path("a"), 0, &mut [0]).unwrap_err(),
                    scene.through.list("", &mut |_| true).unwrap_err(),
                    scene.through.delete(&[path("a")]).unwrap_err(),
                    scene.through.now().unwrap_err(),
                ];
                for error in &errors {
                    assert_eq!(cause(error), expected, "{error}");
                }
                assert!(begun.elapsed() < Duration::from_secs(120));
                for name in ["a", "b"] {
                    assert!(scene.straight.head(&path(name)).unwrap_err().is_not_found());
                }
            });
        }
    });
}

#[test]
fn credentials_that_expire_and_are_renewed_are_not_noticed() {
    let server = server();
    let expired = Fate::error(400, "ExpiredToken");
    let scene = Scene::new(&server, first(3, expired, |it| it.is("PUT", "partNumber=2")));
    let sent = bytes(3 * PART_BYTES, 9);
    upload(&*scene.through, "packs/1", &sent).unwrap();
    assert!(read_all(&*scene.straight, &path("packs/1"), 1 << 30).unwrap() == sent);
}

#[test]
fn a_read_that_breaks_off_goes_on_where_it_was() {
    let server = server();
    let sent = bytes(2 << 20, 3);
    let scene = Scene::new(&server, first(2, Fate::CutAnswer, |it| it.is("GET", "packs/1")));
    upload(&*scene.straight, "packs/1", &sent).unwrap();
    let mut read = vec![0; 1 << 20];
    scene.through.read_exact_at(&path("packs/1"), 500, &mut read).unwrap();
    assert!(read == sent[500..500 + read.len()]);
}

/// Operations that may be done twice are repeated, however the library reports the failure.
#[test]
fn lists_deletions_and_looks_survive_what_happens_to_their_requests() {
    let server = server();
    let names: Vec<String> = (0..1100).map(|n| format!("outcomes/{n:04}")).collect();
    let lists = |it: &Request| it.is("GET", "list-type=2");
    let deletes = |it: &Request| it.is("POST", "delete");
    let looks = |it: &Request| it.is("HEAD", "outcomes/");
    type Concerns = fn(&Request) -> bool;
    let cases: [(usize, Fate, Concerns); 11] = [
        (9, Fate::CutAnswer, lists),
        (9, Fate::error(503, "SlowDown"), lists),
        (2, Fate::error(400, "ExpiredToken"), lists),
        (5, Fate::Drop, deletes),
        (1, Fate::SwallowAnswer, deletes),
        (9, Fate::Twice, deletes),
        (9, Fate::Twice, lists),
        (2, Fate::error(400, "ExpiredToken"), deletes),
        // A HEAD with an expired token gets no reason.
        (2, Fate::Answer(400, String::new()), looks),
        (9, Fate::Drop, looks),
        (9, Fate::Twice, looks),
    ];
    let place = place();
    let straight = create_store(&place, &options(&server.endpoint())).unwrap();
    thread::scope(|scope| {
        for part in names.chunks(100) {
            let straight = &straight;
            scope.spawn(move || {
                for name in part {
                    straight.create_if_absent(&path(name), b"x").unwrap();
                }
            });
        }
    });
    for (count, fate, concerns) in cases {
        let done = AtomicUsize::new(0);
        let opened = Arc::new(AtomicUsize::new(0));
        let is_open = Arc::clone(&opened);
        let proxy = Proxy::start(server.port(), move |request| {
            let concerned = is_open.load(Ordering::SeqCst) == 1 && concerns(request);
            if concerned && done.fetch_add(1, Ordering::SeqCst) < count { fate.clone() } else { Fate::Pass }
        })
        .unwrap();
        let mut options = options(&proxy.endpoint());
        options.bucket.retries.count = 12;
        let through = create_store(&place, &options).unwrap();
        opened.store(1, Ordering::SeqCst);
        let mut listed = Vec::new();
        through
            .list("outcomes/", &mut |info| {
                listed.push(info.path.to_string());
                true
            })
            .unwrap();
        assert_eq!(listed, names);
        assert_eq!(through.head(&path(&names[7])).unwrap().size_bytes, 1);
        through.delete(&[path(&names[3]), path(&names[5]), path("outcomes/none")]).unwrap();
        for gone in [3, 5] {
            assert!(straight.head(&path(&names[gone])).unwrap_err().is_not_found());
            straight.create_if_absent(&path(&names[gone]), b"x").unwrap();
        }
    }
}

/// Away for longer than the library's own retries: with the default retries, nothing fails.
#[test]
fn a_service_that_is_away_for_a_while_is_waited_for() {
    const AWAY: Duration = Duration::from_secs(8);
    let server = server();
    let away: Arc<Mutex<Option<Instant>>> = Arc::default();
    let since = Arc::clone(&away);
    let proxy = Proxy::start(server.port(), move |_| {
        let is_away = since.lock().unwrap().is_some_and(|since| since.elapsed() < AWAY);
        if is_away { Fate::Drop } else { Fate::Pass }
    })
    .unwrap();
    let mut options = options(&proxy.endpoint());
    options.bucket.retries = Retries::default();
    let store = create_store(&place(), &options).unwrap();
    let sent = bytes(3 * PART_BYTES + 1234, 5);
    upload(&*store, "packs/0", &sent).unwrap();
    let mut begun = store.put(&path("packs/1")).unwrap();
    begun.write(&sent[..PART_BYTES + 1]).unwrap();
    *away.lock().unwrap() = Some(Instant::now());
    thread::scope(|scope| {
        scope.spawn(|| {
            begun.write(&sent[PART_BYTES + 1..]).unwrap();
            begun.finish().unwrap();
        });
        scope.spawn(|| upload(&*store, "packs/2", &sent).unwrap());
        scope.spawn(|| assert!(read_all(&*store, &path("packs/0"), 1 << 30).unwrap() == sent));
        scope.spawn(|| store.list("", &mut |_| true).unwrap());
        scope.spawn(|| store.delete(&[path("outcomes/none")]).unwrap());
        scope.spawn(|| store.create_if_absent(&path("outcomes/1"), b"x").unwrap());
        scope.spawn(|| store.now().unwrap());
    });
    assert!(away.lock().unwrap().unwrap().elapsed() >= AWAY);
    for pack in ["packs/1", "packs/2"] {
        assert!(read_all(&*store, &path(pack), 1 << 30).unwrap() == sent);
    }
}

/// A wrong address is not waited for.
#[test]
fn a_service_that_has_never_answered_is_given_up_soon() {
    let begun = Instant::now();
    let mut options = options("http://127.0.0.1:1");
    options.bucket.retries = Retries::default();
    let error = create_store(&place(), &options).err().unwrap().to_string();
    assert!(error.contains("cannot be reached"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(60));
}

/// Each part takes longer than a single one may: parts get the time of all that share the line.
#[test]
fn a_line_that_is_too_slow_for_all_parts_at_once_gets_through() {
    let server = server();
    let slow = Fate::Delay(Duration::from_secs(3));
    let proxy = Proxy::start(server.port(), move |it| match it.is("PUT", "partNumber=") {
        true => slow.clone(),
        false => Fate::Pass,
    })
    .unwrap();
    let mut options = options(&proxy.endpoint());
    options.bucket.request_timeout = Duration::from_secs(1);
    let store = create_store(&place(), &options).unwrap();
    let sent = bytes(4 * PART_BYTES, 8);
    upload(&*store, "packs/1", &sent).unwrap();
    assert!(read_all(&*store, &path("packs/1"), 1 << 30).unwrap() == sent);
}

#[test]
fn what_was_confirmed_and_is_not_there_is_not_believed() {
    let server = server();
    let scene = Scene::new(&server, first(1, Fate::Answer(200, String::new()), |it| it.is("PUT", "/a")));
    let error = scene.through.create_if_absent(&path("a"), b"x").unwrap_err();
    assert_eq!(cause(&error), RemoteCause::Unconfirmed, "{error}");
    let answer =
        "<CompleteMultipartUploadResult><ETag>\"x\"</ETag></CompleteMultipartUploadResult>".to_owned();
    let scene = Scene::new(&server, first(1, Fate::Answer(200, answer), Request::completes));
    let error = upload(&*scene.through, "b", &bytes(2 * PART_BYTES, 0)).unwrap_err();
    assert_eq!(cause(&error), RemoteCause::Unconfirmed, "{error}");
}

/// The answer to the first attempt comes while the second is under way.
#[test]
fn an_answer_that_takes_too_long_is_asked_for_again() {
    let server = server();
    let slow = first(1, Fate::Delay(Duration::from_secs(4)), |it| it.is("PUT", "outcomes/1"));
    let proxy = Proxy::start(server.port(), slow).unwrap();
    let mut options = options(&proxy.endpoint());
    options.bucket.request_timeout = Duration::from_secs(2);
    let store = create_store(&place(), &options).unwrap();
    store.create_if_absent(&path("outcomes/1"), b"ours").unwrap();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(read_all(&*store, &path("outcomes/1"), 10).unwrap(), b"ours");
}

/// Asserts that a service without conditions is found out, and that it still overwrites no large object.
/// `straight` bypasses the proxy.
pub(super) fn assert_is_found_out(through: &dyn Store, straight: &dyn Store) {
    assert_eq!(probe_creation(through, "x").unwrap(), Creation::Shared);
    // A large object is still not overwritten, because its name is looked up first.
    straight.create_if_absent(&path("packs/1"), b"his").unwrap();
    let error = upload(through, "packs/1", &bytes(2 * PART_BYTES, 0)).unwrap_err();
    assert!(error.is_exists(), "{error}");
    assert_eq!(read_all(straight, &path("packs/1"), 10).unwrap(), b"his");
}

/// The proxy removes the conditions from the requests.
#[test]
fn a_service_that_knows_no_conditions_is_found_out() {
    let server = ObjectStorage::start(ObjectStorageKind::Moto).unwrap();
    let scene = Scene::new(&server, |_| Fate::PassUnconditionally);
    assert_is_found_out(&*scene.through, &*scene.straight);
}

/// A service that refuses requests with a condition is found out by `init`, too. From then on names are looked up
/// first; where nothing says that one writer is expected, nothing is created.
#[test]
fn a_service_that_refuses_conditions_is_for_one_writer() {
    let server = ObjectStorage::start(ObjectStorageKind::Moto).unwrap();
    for (status, code) in [(501, "NotImplemented"), (400, "NotImplemented")] {
        let scene = Scene::new(&server, move |request| match request.if_absent {
            true => Fate::error(status, code),
            false => Fate::Pass,
        });
        let (through, straight) = (&*scene.through, &*scene.straight);
        let refused = through.create_if_absent(&path("keys/1"), b"x").unwrap_err();
        assert_eq!(cause(&refused), RemoteCause::Unfit);
        upload(through, "packs/1", &bytes(2 * PART_BYTES, 0)).unwrap_err();
        assert_eq!(writers::examine(through).unwrap(), Creation::Shared);
        assert!(writers::is_for_one(through).unwrap());
        for (name, sent) in [("keys/1", bytes(10, 1)), ("packs/1", bytes(2 * PART_BYTES, 2))] {
            upload(through, name, &sent).unwrap();
            assert!(upload(through, name, &bytes(10, 3)).unwrap_err().is_exists());
            assert!(through.create_if_absent(&path(name), b"y").unwrap_err().is_exists());
            assert_eq!(read_all(straight, &path(name), 10 * PART_BYTES as u64).unwrap(), sent);
        }
    }
}

#[test]
fn a_server_that_is_killed_and_comes_back_ends_well_or_in_an_error() {
    let mut server = server();
    let place = place();
    let store = create_store(&place, &options(&server.endpoint())).unwrap();
    for round in 0..3 {
        let name = format!("packs/{round}");
        let sent = bytes(4 * PART_BYTES, round);
        let mut upload = store.put(&path(&name)).unwrap();
        upload.write(&sent[..(round + 1) * PART_BYTES + 10]).unwrap();
        server.kill();
        let done = thread::scope(|scope| {
            let server = &mut server;
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(700));
                server.start_again().unwrap();
            });
            upload.write(&sent[(round + 1) * PART_BYTES + 10..])?;
            upload.finish()
        });
        match done {
            Ok(info) => {
                assert_eq!(info.size_bytes, sent.len() as u64);
                assert!(read_all(&*store, &path(&name), 1 << 30).unwrap() == sent);
            }
            Err(error) => {
                cause(&error);
                assert!(store.head(&path(&name)).unwrap_err().is_not_found(), "{error}");
            }
        }
    }
    server.kill();
    let error = store.create_if_absent(&path("a"), b"x").unwrap_err();
    assert_eq!(cause(&error), RemoteCause::Unreachable, "{error}");
    let text = error.to_string();
    assert!(text.contains("a: the store cannot be reached at s3://") && !text.contains("retries"), "{text}");
    assert!(
        text.contains(": http://127.0.0.1:") && text.ends_with("Connection refused (os error 111)"),
        "{text}"
    );
}

#[test]
fn uploads_that_nobody_finishes_are_given_up() {
    for kind in [ObjectStorageKind::Versitygw, ObjectStorageKind::Moto] {
        let server = ObjectStorage::start(kind).unwrap();
        let aborts = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&aborts);
        let scene = Scene::new(&server, move |request| {
            if request.is("DELETE", "uploadId=") {
                seen.fetch_add(1, Ordering::SeqCst);
            }
            Fate::Pass
        });
        let begin = |name: &str| {
            let mut upload = scene.through.put(&path(name)).unwrap();
            upload.write(&bytes(2 * PART_BYTES, 0)).unwrap();
            upload
        };
        drop(begin("dropped"));
        assert_eq!(aborts.load(Ordering::SeqCst), 1, "{kind:?}");
        std::mem::forget(begin("forgotten"));
        std::mem::forget(begin("and/another"));
        // To moto, all uploads began in 2010.
        if kind == ObjectStorageKind::Versitygw {
            scene.through.sweep_uploads(Duration::from_secs(3600)).unwrap();
            assert_eq!(aborts.load(Ordering::SeqCst), 1, "too young");
        }
        scene.through.sweep_uploads(Duration::ZERO).unwrap();
        assert_eq!(aborts.load(Ordering::SeqCst), 3, "{kind:?}");
        scene.through.sweep_uploads(Duration::ZERO).unwrap();
        assert_eq!(aborts.load(Ordering::SeqCst), 3, "{kind:?}: swept twice");
    }
}
