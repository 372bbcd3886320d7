//! A container of Azure Blob Storage, on Microsoft's emulator: the contract, and failures on the way.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use holdfast_repo::store::{
    Creation, RemoteCause, Store, StoreError, StoreErrorKind, conformance, probe_creation, read_all,
};
use holdfast_stores::{
    StoreOptions,
    bucket::{AzureOptions, BucketOptions},
    create_store, open_store,
};
use holdfast_testkit::{
    azurite::{ACCOUNT, ACCOUNT_KEY, Azurite, CONTAINER},
    proxy::{Fate, Proxy, Request},
};
use ring::hmac;

use super::faults::{assert_is_found_out, bytes, first, path, upload};

/// Azure has no minimum size of parts.
const PART_BYTES: usize = 300_000;

/// The credentials that give access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Credentials {
    /// Signs every header of a request.
    Key,
    /// Part of the address, so changes by a proxy go unnoticed.
    Signature,
}

/// A shared access signature of the container. For deletions of many objects, the emulator accepts none of an
/// account.
fn signature() -> String {
    let (permissions, end, version) = ("racwdl", "2100-01-01T00:00:00Z", "2019-12-12");
    let container = format!("/blob/{ACCOUNT}/{CONTAINER}");
    let text = format!("{permissions}\n\n{end}\n{container}\n\n\n\n{version}\nc\n\n\n\n\n\n");
    let key = hmac::Key::new(hmac::HMAC_SHA256, &BASE64_STANDARD.decode(ACCOUNT_KEY).unwrap());
    let signature = BASE64_STANDARD.encode(hmac::sign(&key, text.as_bytes()));
    let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!("?sv={version}&sr=c&sp={permissions}&se={end}&sig={signature}")
}

fn options(port: u16, credentials: Credentials) -> StoreOptions {
    let usual = super::options("");
    let secret = match credentials {
        Credentials::Key => ("AZURE_STORAGE_ACCOUNT_KEY".to_owned(), ACCOUNT_KEY.to_owned()),
        Credentials::Signature => ("AZURE_STORAGE_SAS_TOKEN".to_owned(), signature()),
    };
    let azure = AzureOptions {
        account: Some(ACCOUNT.to_owned()),
        endpoint: Some(Azurite::endpoint_at(port)),
        ca_file: None,
    };
    let bucket = BucketOptions {
        azure,
        endpoint: None,
        environment: [secret].into(),
        part_bytes: PART_BYTES,
        ..usual.bucket
    };
    StoreOptions { bucket, ..usual }
}

fn place() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("az://{CONTAINER}/test/{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A place, reached directly and through a proxy that decides the fate of requests.
struct Scene {
    straight: Arc<dyn Store>,
    through: Arc<dyn Store>,
    _proxy: Proxy,
}

impl Scene {
    fn new(
        server: &Azurite,
        credentials: Credentials,
        decide: impl Fn(&Request) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let place = place();
        let proxy = Proxy::start(server.port(), decide).unwrap();
        let straight = create_store(&place, &options(server.port(), credentials)).unwrap();
        let through = create_store(&place, &options(proxy.port(), credentials)).unwrap();
        Self { straight, through, _proxy: proxy }
    }
}

/// Whether the request sends a part.
fn is_block(request: &Request) -> bool {
    request.is("PUT", "comp=block&")
}

/// Whether the request makes one object of its parts.
fn completes(request: &Request) -> bool {
    request.is("PUT", "comp=blocklist")
}

fn shows_no_secret(text: &str) {
    let sig = signature();
    let sig = sig.split_once("&sig=").unwrap().1;
    assert!(!text.contains("sig=") && !text.contains(sig) && !text.contains(ACCOUNT_KEY), "{text}");
}

fn cause(error: &StoreError) -> RemoteCause {
    let text = error.to_string();
    shows_no_secret(&text);
    match &error.kind {
        StoreErrorKind::Remote(remote) => {
            assert!(text.contains(&format!("az://{CONTAINER}")), "names no container: {text}");
            remote.cause
        }
        other => panic!("{other:?}"),
    }
}

/// With a key, and with a signature and lists that come in small pages.
#[test]
fn azurite_keeps_the_contract() {
    let server = Azurite::start().unwrap();
    let paging = Proxy::start(server.port(), |request| match request.is("GET", "comp=list") {
        true => Fate::PassWith("&maxresults=7"),
        false => Fate::Pass,
    })
    .unwrap();
    let straight = (server.port(), Credentials::Key, 300);
    for (port, credentials, names) in [straight, (paging.port(), Credentials::Signature, 30)] {
        let store = || create_store(&place(), &options(port, credentials)).unwrap();
        conformance::check(store);
        conformance::check_large(store, PART_BYTES, names);
        assert_eq!(probe_creation(&*store(), "x").unwrap(), Creation::Exclusive, "{credentials:?}");
    }
}

#[test]
fn what_azure_cannot_is_refused() {
    let server = Azurite::start().unwrap();
    let place = place();
    let mut options = options(server.port(), Credentials::Key);
    let store = create_store(&place, &options).unwrap();
    assert!(store.versioned().is_none());
    // Azure would drop the dot, so that two names would be one.
    let dotted = store.create_if_absent(&path("sources/db1./x"), b"").unwrap_err();
    assert!(matches!(dotted.kind, StoreErrorKind::Io(_)), "{dotted}");
    options.as_of = Some(std::time::SystemTime::now());
    let refused = open_store(&place, &options).err().unwrap().to_string();
    assert!(refused.contains("only") && refused.contains("s3://"), "{refused}");
}

#[test]
fn a_blob_whose_answer_got_lost_is_known_as_ours() {
    let server = Azurite::start().unwrap();
    let sent = bytes(3 * PART_BYTES + 1234, 5);
    type Concerns = fn(&Request) -> bool;
    let creates: Concerns = |it| it.is("PUT", "outcomes/1");
    let cases: [(usize, Fate, Concerns); 12] = [
        (1, Fate::SwallowAnswer, creates),
        (1, Fate::CutRequest, creates),
        (1, Fate::Drop, creates),
        (2, Fate::error(500, "OperationTimedOut"), creates),
        (1, Fate::SwallowAnswer, completes),
        (1, Fate::CutRequest, completes),
        (1, Fate::Drop, completes),
        (2, Fate::error(503, "ServerBusy"), completes),
        (2, Fate::CutRequest, is_block),
        (3, Fate::error(503, "ServerBusy"), is_block),
        (2, Fate::SwallowAnswer, is_block),
        (2, Fate::Drop, is_block),
    ];
    for (count, fate, concerns) in cases {
        let scene = Scene::new(&server, Credentials::Key, first(count, fate.clone(), concerns));
        let failed = |error: StoreError| -> ! { panic!("{fate:?}: {error}") };
        scene.through.create_if_absent(&path("outcomes/1"), b"ours").unwrap_or_else(|error| failed(error));
        upload(&*scene.through, "packs/1", &sent).unwrap_or_else(|error| failed(error));
        assert_eq!(read_all(&*scene.straight, &path("outcomes/1"), 10).unwrap(), b"ours");
        assert!(read_all(&*scene.straight, &path("packs/1"), 1 << 30).unwrap() == sent, "{fate:?}");
        let late = scene.through.create_if_absent(&path("outcomes/1"), b"ours").unwrap_err();
        assert!(late.is_exists(), "the same bytes are not the same creation: {late}");
        assert!(upload(&*scene.through, "packs/1", &sent).unwrap_err().is_exists());
    }
}

/// This holds even after the name was looked up. The request that makes an object says that there must be
/// none.
#[test]
fn a_blob_that_another_made_meanwhile_is_his() {
    let server = Azurite::start().unwrap();
    for large in [false, true] {
        let other: Arc<Mutex<Option<Arc<dyn Store>>>> = Arc::default();
        let taker = Arc::clone(&other);
        let name = if large { "packs/1" } else { "outcomes/1" };
        let size = if large { 2 * PART_BYTES } else { 3 };
        let (ours, his) = (bytes(size, 1), bytes(size, 2));
        let taken = his.clone();
        // The emulator forgets blocks when another client makes the object of its own, as Azure does. That
        // alone would not show that the condition was sent.
        let unconditional = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&unconditional);
        let scene = Scene::new(&server, Credentials::Key, move |request| {
            let publishes = if large { completes(request) } else { request.is("PUT", "outcomes/1") };
            if publishes && !request.if_absent {
                seen.fetch_add(1, Ordering::SeqCst);
            }
            let taker = if publishes { taker.lock().unwrap().take() } else { None };
            if let Some(taker) = taker {
                // To the emulator, blocks without a list are a blob, whose name only a list of blocks can
                // take.
                upload(&*taker, name, &taken).unwrap();
            }
            Fate::Pass
        });
        *other.lock().unwrap() = Some(Arc::clone(&scene.straight));
        let error = upload(&*scene.through, name, &ours).unwrap_err();
        assert!(error.is_exists(), "{error}");
        assert!(read_all(&*scene.straight, &path(name), 1 << 30).unwrap() == his);
        assert_eq!(unconditional.load(Ordering::SeqCst), 0, "without a condition");
    }
}

/// Blocks belong to a name, not to an upload.
#[test]
fn uploads_of_one_name_do_not_take_each_others_blocks() {
    let server = Azurite::start().unwrap();
    for first_wins in [true, false] {
        let store = create_store(&place(), &options(server.port(), Credentials::Key)).unwrap();
        let all: Vec<Vec<u8>> = (0..2).map(|seed| bytes(3 * PART_BYTES, seed)).collect();
        let mut uploads: Vec<_> = all
            .iter()
            .map(|sent| {
                let mut upload = store.put(&path("packs/1")).unwrap();
                upload.write(sent).unwrap();
                upload
            })
            .collect();
        let winner = usize::from(!first_wins);
        uploads.remove(winner).finish().unwrap();
        assert!(read_all(&*store, &path("packs/1"), 1 << 30).unwrap() == all[winner]);
        assert!(uploads.remove(0).finish().unwrap_err().is_exists());
        assert!(read_all(&*store, &path("packs/1"), 1 << 30).unwrap() == all[winner]);
    }
}

#[test]
fn lists_and_deletions_of_blobs_survive_what_happens_to_their_requests() {
    let server = Azurite::start().unwrap();
    let names: Vec<String> = (0..300).map(|n| format!("outcomes/{n:04}")).collect();
    let deletes = |it: &Request| it.is("POST", "comp=batch");
    let scene = Scene::new(&server, Credentials::Signature, {
        let lists = AtomicUsize::new(0);
        let lost = first(2, Fate::SwallowAnswer, deletes);
        move |request| {
            if !request.is("GET", "comp=list") {
                return lost(request);
            }
            // One list breaks off in the middle of a page, one after a page.
            match lists.fetch_add(1, Ordering::SeqCst) {
                1 | 3 => Fate::CutAnswer,
                _ => Fate::PassWith("&maxresults=100"),
            }
        }
    });
    thread::scope(|scope| {
        for part in names.chunks(60) {
            let store = &scene.straight;
            scope.spawn(move || {
                for name in part {
                    store.create_if_absent(&path(name), b"x").unwrap();
                }
            });
        }
    });
    let listed = || {
        let mut listed = Vec::new();
        let each = &mut |info: holdfast_repo::store::ObjectInfo| {
            listed.push(info.path.to_string());
            true
        };
        scene.through.list("outcomes/", each).unwrap();
        listed
    };
    assert_eq!(listed(), names);
    let (gone, left) = names.split_at(290);
    scene.through.delete(&gone.iter().map(|name| path(name)).collect::<Vec<_>>()).unwrap();
    assert_eq!(listed(), left);
}

#[test]
fn a_container_that_refuses_ends_in_an_error_that_says_so() {
    let server = Azurite::start().unwrap();
    let cases = [
        (Fate::error(503, "ServerBusy"), RemoteCause::Busy),
        (Fate::Drop, RemoteCause::Unreachable),
        (Fate::error(403, "AuthorizationPermissionMismatch"), RemoteCause::Denied),
        (Fate::error(409, "BlobImmutableDueToPolicy"), RemoteCause::Denied),
        (Fate::error(403, "AuthenticationFailed"), RemoteCause::Credentials),
        (Fate::error(404, "ContainerNotFound"), RemoteCause::NoPlace),
    ];
    thread::scope(|scope| {
        for (at, (fate, expected)) in cases.into_iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                let on = Arc::new(AtomicUsize::new(0));
                let switch = Arc::clone(&on);
                let credentials = if at % 2 == 1 { Credentials::Signature } else { Credentials::Key };
                let scene = Scene::new(server, credentials, move |_| match switch.load(Ordering::SeqCst) {
                    0 => Fate::Pass,
                    _ => fate.clone(),
                });
                on.store(1, Ordering::SeqCst);
                for error in [
                    scene.through.create_if_absent(&path("a"), b"x").unwrap_err(),
                    upload(&*scene.through, "b", &bytes(2 * PART_BYTES, 0)).unwrap_err(),
                    scene.through.read_exact_at(&path("a"), 0, &mut [0]).unwrap_err(),
                    scene.through.list("", &mut |_| true).unwrap_err(),
                    scene.through.delete(&[path("a")]).unwrap_err(),
                    scene.through.now().unwrap_err(),
                ] {
                    assert_eq!(cause(&error), expected, "{error}");
                }
                for name in ["a", "b"] {
                    assert!(scene.straight.head(&path(name)).unwrap_err().is_not_found());
                }
            });
        }
    });
    let opened = |place: &str, change: &dyn Fn(&mut BucketOptions)| {
        let mut options = options(server.port(), Credentials::Key);
        change(&mut options.bucket);
        let error = open_store(place, &options).err().unwrap().to_string();
        shows_no_secret(&error);
        error
    };
    let set = |name: &str, value: &str, options: &mut BucketOptions| {
        options.environment.insert(name.to_owned(), value.to_owned());
    };
    let guess = BASE64_STANDARD.encode("a guess");
    let denied = opened(&place(), &|options| set("AZURE_STORAGE_ACCOUNT_KEY", &guess, options));
    assert!(
        denied.contains("permission was denied") || denied.contains("credentials were refused"),
        "{denied}"
    );
    let absent = opened("az://no-such-container/x", &|_| {});
    assert!(absent.contains("no such bucket") && absent.contains("az://no-such-container"), "{absent}");
    let nameless = opened(&place(), &|options| options.azure.account = None);
    assert!(nameless.contains("--az-account"), "{nameless}");
    let unclear = opened(&place(), &|options| set("AZURE_STORAGE_ACCOUNT_KEY", "no!base64", options));
    assert!(unclear.contains("base64") && !unclear.contains("no!"), "{unclear}");
    let leaky = opened(&place(), &|options| {
        options.azure.endpoint = Some(format!("{}{}", Azurite::endpoint_at(1), signature()));
    });
    assert!(leaky.contains("the endpoint is not of the form"), "{leaky}");
    let away = opened(&place(), &|options| {
        options.azure.endpoint = Some(Azurite::endpoint_at(1));
        options.environment = [("AZURE_STORAGE_SAS_TOKEN".to_owned(), signature())].into();
    });
    assert!(away.contains("cannot be reached"), "{away}");
}

/// The proxy removes the conditions from the requests.
#[test]
fn a_container_that_knows_no_conditions_is_found_out() {
    let server = Azurite::start().unwrap();
    let scene = Scene::new(&server, Credentials::Signature, |_| Fate::PassUnconditionally);
    assert_is_found_out(&*scene.through, &*scene.straight);
}

#[test]
fn what_azure_confirmed_and_is_not_there_is_not_believed() {
    let server = Azurite::start().unwrap();
    let made = Fate::Answer(201, String::new());
    for large in [false, true] {
        let publishes = move |it: &Request| if large { completes(it) } else { it.is("PUT", "/a") };
        let scene = Scene::new(&server, Credentials::Key, first(1, made.clone(), publishes));
        let error = match large {
            true => upload(&*scene.through, "a", &bytes(2 * PART_BYTES, 0)).unwrap_err(),
            false => scene.through.create_if_absent(&path("a"), b"x").unwrap_err(),
        };
        assert_eq!(cause(&error), RemoteCause::Unconfirmed, "{error}");
    }
}

/// A token as the service that issues credentials on an Azure machine returns it. The emulator checks no
/// signature.
fn token() -> String {
    let part = |json: &str| BASE64_URL_SAFE_NO_PAD.encode(json);
    let claims = "{\"aud\":\"https://storage.azure.com\",\"iss\":\"https://sts.windows.net/x/\",\
                  \"iat\":1700000000,\"nbf\":1700000000,\"exp\":4000000000}";
    format!("{}.{}.none", part("{\"alg\":\"none\",\"typ\":\"JWT\"}"), part(claims))
}

#[test]
fn a_managed_identity_behind_tls_of_an_authority_of_our_own_lets_in() {
    let server = Azurite::start_behind_tls().unwrap();
    let (place, asked) = (place(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    let identity = Proxy::start(0, move |request| match request.target.contains("client_id=ours") {
        true => {
            count.fetch_add(1, Ordering::SeqCst);
            let token = token();
            Fate::Answer(200, format!("{{\"access_token\":\"{token}\",\"expires_on\":\"4000000000\"}}"))
        }
        false => Fate::Answer(400, "{\"error\":\"no such identity\"}".to_owned()),
    })
    .unwrap();
    let reached = |client: &str, ca_file: Option<&str>| {
        let mut options = options(server.port(), Credentials::Key);
        options.bucket.azure.endpoint = Some(format!("https://127.0.0.1:{}/{ACCOUNT}", server.port()));
        options.bucket.azure.ca_file = ca_file.map(holdfast_testkit::tls::file);
        let variables = [("AZURE_MSI_ENDPOINT", identity.endpoint()), ("AZURE_CLIENT_ID", client.to_owned())];
        options.bucket.environment = variables.map(|(name, value)| (name.to_owned(), value)).into();
        create_store(&place, &options)
    };
    let store = reached("ours", Some("ca.pem")).unwrap();
    let sent = bytes(3 * PART_BYTES, 4);
    upload(&*store, "packs/1", &sent).unwrap();
    assert!(read_all(&*store, &path("packs/1"), 1 << 30).unwrap() == sent);
    store.create_if_absent(&path("outcomes/1"), b"x").unwrap();
    store.delete(&[path("packs/1"), path("outcomes/1"), path("outcomes/none")]).unwrap();
    assert_eq!(store.list_folders("").unwrap(), [""; 0]);
    assert_eq!(asked.load(Ordering::SeqCst), 1, "a token is kept for as long as it is good");

    for (client, ca_file, expected) in [
        ("another", Some("ca.pem"), "the credentials were refused"),
        ("ours", Some("other-ca.pem"), "is not trusted"),
        ("ours", None, "is not trusted"),
    ] {
        let refused = reached(client, ca_file).err().unwrap().to_string();
        assert!(refused.contains(expected) && !refused.contains(&token()), "{refused}");
    }
}
