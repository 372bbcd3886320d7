//! Directories of another host, through a real SSH server.

use std::{
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use holdfast_repo::store::{Creation, ObjectPath, Store, StoreError, conformance, probe_creation, read_all};
use holdfast_stores::{StoreOptions, bucket::Retries, create_store, open_store, sftp::SftpOptions};
use holdfast_testkit::sshd::Sshd;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn path(name: &str) -> ObjectPath {
    ObjectPath::new(name).unwrap()
}

fn options(server: &Sshd) -> StoreOptions {
    let sftp = SftpOptions {
        config_file: Some(server.ssh_config()),
        retries: Retries {
            count: 6,
            pause_max: Duration::from_millis(400),
            give_up_after: Duration::from_secs(20),
        },
        request_timeout: Duration::from_secs(20),
        ..SftpOptions::default()
    };
    StoreOptions { sftp, ..StoreOptions::default() }
}

fn store(server: &Sshd, folder: &TempDir) -> Arc<dyn Store> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let location = format!("sftp://backup-host{}/a/{count}", folder.path().display());
    create_store(&location, &options(server)).unwrap()
}

#[test]
fn openssh_keeps_the_contract() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    conformance::check(|| store(&server, &folder));
    conformance::check_large(|| store(&server, &folder), 1 << 20, 1_050);
    let it = store(&server, &folder);
    assert_eq!(probe_creation(&*it, "x").unwrap(), Creation::Exclusive);
    assert!(it.free_bytes().unwrap().is_some_and(|free| free > 0));
}

/// Folders in folders without end, which anybody who can write can make, lock nobody out.
#[test]
fn folders_deeper_than_any_object_are_not_opened() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let it =
        create_store(&format!("sftp://backup-host{}/a", folder.path().display()), &options(&server)).unwrap();
    it.create_if_absent(&path("signers/a"), b"x").unwrap();
    let deep = folder.path().join(format!("a/signers/{}", "d/".repeat(1500)));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("x"), b"x").unwrap();
    std::fs::write(folder.path().join("a/signers/d/d/d/d/d/x"), b"x").unwrap();
    std::fs::write(folder.path().join("a/signers/b\nwarning: c"), b"x").unwrap();
    let mut seen = Vec::new();
    let mut each = |object: holdfast_repo::store::ObjectInfo| {
        seen.push(object.path.to_string());
        true
    };
    it.list("", &mut each).unwrap();
    assert_eq!(seen, ["signers/a"]);
    assert_eq!(it.list_folders("").unwrap(), ["signers"]);
}

/// Without extensions, files are renamed instead of linked, and nothing can be made durable.
#[test]
fn a_server_without_extensions_keeps_the_contract() {
    let server = Sshd::start("internal-sftp -P hardlink,fsync,statvfs,limits,posix-rename").unwrap();
    let folder = TempDir::new().unwrap();
    conformance::check(|| store(&server, &folder));
    let it = store(&server, &folder);
    assert_eq!(probe_creation(&*it, "x").unwrap(), Creation::Exclusive);
}

/// An ssh that refuses each link on its way to the server, with the code and as often as the files beside it say, and
/// counts them.
const REFUSES_LINKS: &str = r#"#!/usr/bin/env python3
import os, struct, subprocess, sys, threading
here = os.path.dirname(os.path.abspath(__file__))
ssh = subprocess.Popen(["ssh"] + sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
lock = threading.Lock()
code, most = (int(open(here + "/" + name).read()) for name in ("code", "most"))

def refused():
    try:
        return len(open(here + "/refused").read())
    except FileNotFoundError:
        return 0

def packet(source):
    head = source.read(4)
    return head + source.read(struct.unpack(">I", head)[0]) if len(head) == 4 else None

def answers():
    while answer := packet(ssh.stdout):
        with lock:
            sys.stdout.buffer.write(answer)
            sys.stdout.buffer.flush()
    os._exit(ssh.wait())

threading.Thread(target=answers, daemon=True).start()
while request := packet(sys.stdin.buffer):
    if request[4] == 200 and b"hardlink@openssh.com" in request[:40] and refused() < most:
        open(here + "/refused", "a").write("x")
        refusal = request[5:9] + struct.pack(">I", code) + struct.pack(">I", 7) + b"Failure" + struct.pack(">I", 0)
        with lock:
            sys.stdout.buffer.write(struct.pack(">IB", len(refusal) + 1, 101) + refusal)
            sys.stdout.buffer.flush()
    else:
        ssh.stdin.write(request)
        ssh.stdin.flush()
ssh.stdin.close()
"#;

/// Statuses of SFTP: a file system without links is one where a link is not permitted (`EPERM`). "Failure" is any
/// other error, as of a busy disk.
const NOT_PERMITTED: u32 = 3;
const FAILURE: u32 = 4;

fn refusing_links(server: &Sshd, folder: &TempDir, code: u32, most: u32) -> Arc<dyn Store> {
    let program = folder.path().join("ssh");
    std::fs::write(&program, REFUSES_LINKS).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    for (name, number) in [("code", code), ("most", most)] {
        std::fs::write(folder.path().join(name), number.to_string()).unwrap();
    }
    let mut options = options(server);
    options.sftp.ssh = program;
    create_store(&format!("sftp://backup-host{}/r", folder.path().display()), &options).unwrap()
}

fn links_refused(folder: &TempDir) -> usize {
    std::fs::read_to_string(folder.path().join("refused")).unwrap().len()
}

/// A link that is refused for a reason that may pass is made a little later: nothing is renamed for that, now or later.
#[test]
fn a_link_that_is_refused_once_is_made_later() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let it = refusing_links(&server, &folder, FAILURE, 2);
    it.create_if_absent(&path("outcomes/1"), b"first").unwrap();
    assert_eq!(links_refused(&folder), 2);
    drop(it);
    let it = refusing_links(&server, &folder, FAILURE, 1000);
    it.create_if_absent(&path("outcomes/2"), b"second").unwrap_err();
    assert!(!folder.path().join("r/outcomes/2").exists(), "it was renamed");
    drop(it);
    let it = refusing_links(&server, &folder, FAILURE, 0);
    it.create_if_absent(&path("outcomes/2"), b"second").unwrap();
}

#[test]
fn a_file_system_without_links_keeps_the_contract() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let it = refusing_links(&server, &folder, NOT_PERMITTED, 1000);
    assert_eq!(probe_creation(&*it, "x").unwrap(), Creation::Exclusive);
    it.create_if_absent(&path("outcomes/1"), b"first").unwrap();
    assert!(it.create_if_absent(&path("outcomes/1"), b"later").unwrap_err().is_exists());
    assert_eq!(read_all(&*it, &path("outcomes/1"), 10).unwrap(), b"first");
    // The links that the racers of the probe tried.
    let refused = links_refused(&folder);
    assert!((1..=32).contains(&refused), "{refused} links were tried");
}

#[test]
fn a_directory_that_is_not_there_is_said_to_be_so() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let location = format!("sftp://backup-host{}/none", folder.path().display());
    let error = open_store(&location, &options(&server)).err().unwrap().to_string();
    assert!(error.contains("no such bucket or directory") && error.contains(&location), "{error}");
}

#[test]
fn what_ssh_says_is_said() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let nobody = format!("sftp://nobody-at-all@backup-host{}", folder.path().display());
    let error = open_store(&nobody, &options(&server)).err().unwrap().to_string();
    assert!(error.contains("the credentials were refused") && error.contains("Permission denied"), "{error}");
    let port = server.port();
    drop(server);
    let gone = format!("sftp://127.0.0.1:{port}/x");
    let error = open_store(&gone, &StoreOptions::default()).err().unwrap().to_string();
    assert!(error.contains("cannot be reached") && error.contains("refused"), "{error}");
}

#[test]
fn what_interrupted_uploads_left_is_swept_by_age() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let it = store(&server, &folder);
    let mut upload = it.put(&path("a")).unwrap();
    upload.write(&[0; 1000]).unwrap();
    std::mem::forget(upload);
    let location = it.location();
    let local = location.strip_prefix("sftp://backup-host").unwrap();
    let left = || std::fs::read_dir(format!("{local}/.tmp")).unwrap().count();
    it.sweep_uploads(Duration::from_secs(3600)).unwrap();
    assert_eq!(left(), 1);
    it.sweep_uploads(Duration::ZERO).unwrap();
    assert_eq!(left(), 0);
}

/// An ssh whose processes a test can kill.
struct Killable {
    folder: TempDir,
}

impl Killable {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let script = format!("#!/bin/sh\necho $$ >>'{0}/pids'\nexec ssh \"$@\"\n", folder.path().display());
        let program = folder.path().join("ssh");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        Self { folder }
    }

    fn options(&self, server: &Sshd) -> StoreOptions {
        let mut options = options(server);
        options.sftp.ssh = self.folder.path().join("ssh");
        options.sftp.retries.count = 12;
        options
    }

    /// Kills the processes started since the last call.
    fn kill(&self) -> usize {
        let Ok(pids) = std::fs::read_to_string(self.folder.path().join("pids")) else { return 0 };
        std::fs::remove_file(self.folder.path().join("pids")).ok();
        let pids: Vec<Pid> = pids.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect();
        pids.iter().filter(|pid| kill_process(**pid, Signal::KILL).is_ok()).count()
    }
}

/// If an account may have only one connection, a second is not requested again and again: hosts shut out
/// clients that connect too often.
#[test]
fn where_one_connection_is_allowed_all_share_it() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let at = folder.path().display();
    let script = format!(
        "#!/bin/sh\nflock -n -E 77 '{at}/lock' ssh \"$@\" && exit\n\
         code=$?; [ $code = 77 ] && echo refused >>'{at}/refused'\nexit $code\n"
    );
    let program = folder.path().join("ssh");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut options = options(&server);
    options.sftp.ssh = program;
    let it = create_store(&format!("sftp://backup-host{at}/r"), &options).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..8_u8 {
            let it = &it;
            scope.spawn(move || {
                for round in 0..6_u8 {
                    let name = path(&format!("outcomes/{writer}-{round}"));
                    it.create_if_absent(&name, &[writer; 100]).unwrap();
                    assert_eq!(read_all(&**it, &name, 1 << 10).unwrap(), [writer; 100]);
                }
            });
        }
    });
    let refused = std::fs::read_to_string(folder.path().join("refused")).unwrap();
    assert_eq!(refused.lines().count(), 1, "asked for more connections once");
}

/// A server gives the handle of a closed file to the next file opened.
#[test]
fn uploads_on_one_connection_stay_apart() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let mut options = options(&server);
    options.sftp.connections = 1;
    let location = format!("sftp://backup-host{}/r", folder.path().display());
    let it = create_store(&location, &options).unwrap();
    std::thread::scope(|scope| {
        for uploader in 0..8_u8 {
            let it = &it;
            scope.spawn(move || {
                for round in 0..15_u8 {
                    let name = path(&format!("packs/{uploader}-{round}"));
                    let bytes = vec![uploader * 16 + round; 40_000 + usize::from(round) * 30_000];
                    let mut upload = it.put(&name).unwrap();
                    upload.write(&bytes).unwrap();
                    match round % 3 {
                        0 => drop(upload),
                        _ => assert_eq!(upload.finish().unwrap().size_bytes, bytes.len() as u64),
                    }
                    match read_all(&**it, &name, 1 << 20) {
                        Ok(found) => assert!(round % 3 > 0 && found == bytes, "{name}"),
                        Err(error) => assert!(round % 3 == 0 && error.is_not_found(), "{name}: {error}"),
                    }
                }
            });
        }
    });
}

#[test]
fn an_upload_whose_connection_dies_fails_and_leaves_nothing() {
    let (server, folder, ssh) =
        (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap(), Killable::new());
    let location = format!("sftp://backup-host{}/r", folder.path().display());
    let it = create_store(&location, &ssh.options(&server)).unwrap();
    let mut upload = it.put(&path("packs/1")).unwrap();
    upload.write(&vec![1; 9 << 20]).unwrap();
    assert!(ssh.kill() > 0);
    let failed = upload.write(&vec![1; 9 << 20]).and_then(|()| upload.finish()).unwrap_err();
    let text = failed.to_string();
    assert!(text.starts_with("packs/1: the store cannot be reached at sftp://backup-host"), "{text}");
    assert!(it.head(&path("packs/1")).unwrap_err().is_not_found());
    it.create_if_absent(&path("packs/1"), b"again").unwrap();
    assert_eq!(read_all(&*it, &path("packs/1"), 10).unwrap(), b"again");
}

/// A host that comes back without the store's file system: nothing is begun in the empty directory.
#[test]
fn a_store_whose_file_system_is_gone_takes_nothing_until_it_is_back() {
    let (server, folder) = (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap());
    let (root, away) = (folder.path().join("r"), folder.path().join("away"));
    let it = create_store(&format!("sftp://backup-host{}", root.display()), &options(&server)).unwrap();
    it.create_if_absent(&path("mark"), b"x").unwrap();
    it.create_if_absent(&path("a/b"), b"x").unwrap();
    // As whoever opens a repository does.
    read_all(&*it, &path("mark"), 10).unwrap();
    std::fs::rename(&root, &away).unwrap();
    std::fs::create_dir(&root).unwrap();
    let error = it.create_if_absent(&path("a/c"), b"x").unwrap_err();
    assert!(error.to_string().contains("mark is gone"), "{error}");
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
    std::fs::remove_dir(&root).unwrap();
    std::fs::rename(&away, &root).unwrap();
    it.create_if_absent(&path("a/c"), b"x").unwrap();
}

/// Connections die at any moment while two clients create the same names.
#[test]
fn creations_are_right_whenever_connections_die() {
    let (server, folder, ssh) =
        (Sshd::start("internal-sftp").unwrap(), TempDir::new().unwrap(), Killable::new());
    let location = format!("sftp://backup-host{}/r", folder.path().display());
    let stores = [(); 2].map(|()| create_store(&location, &ssh.options(&server)).unwrap());
    let (won, failed, killed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    for round in 0..16_u64 {
        let name = path(&format!("outcomes/{round}"));
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let racers: Vec<_> = stores
                .iter()
                .zip(0_u8..)
                .map(|(store, racer)| {
                    let name = &name;
                    scope.spawn(move || store.create_if_absent(name, &[racer; 100]))
                })
                .collect();
            // Once per round, so that some connection gets through however slow this host is.
            std::thread::sleep(Duration::from_micros(round * 1800));
            killed.fetch_add(ssh.kill(), Ordering::SeqCst);
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        let winners: Vec<u8> = outcomes
            .iter()
            .zip(0_u8..)
            .filter(|(outcome, _)| outcome.is_ok())
            .map(|(_, racer)| racer)
            .collect();
        assert!(winners.len() <= 1, "round {round}: {outcomes:?}");
        let found = std::fs::read(folder.path().join("r").join(name.as_str()));
        match winners.first() {
            Some(winner) => assert_eq!(found.unwrap(), [*winner; 100], "round {round}: {outcomes:?}"),
            // If no client knows who won, the object is one of the two, whole, or does not exist.
            None => {
                assert!(found.is_err() || [[0; 100], [1; 100]].iter().any(|it| found.as_ref().unwrap() == it))
            }
        }
        won.fetch_add(winners.len(), Ordering::SeqCst);
        let is_failure =
            |outcome: &&Result<_, StoreError>| outcome.as_ref().is_err_and(|error| !error.is_exists());
        failed.fetch_add(outcomes.iter().filter(is_failure).count(), Ordering::SeqCst);
    }
    assert!(killed.into_inner() > 3, "nothing was killed");
    assert!(won.into_inner() > 8 && failed.into_inner() < 16, "hardly anything got through");
}
