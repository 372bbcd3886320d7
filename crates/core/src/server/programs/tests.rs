//! Programs that pretend to be servers: found, run and judged.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use holdfast_pipe::lock::lock;
use rustix::process::geteuid;

use super::{
    exit::{APPARMOR_PROFILES, why_denied},
    process::{SOCKET, SOCKET_PATH_BYTES_MAX},
    *,
};
use crate::{error::ErrorKind, event::Cancel, server::ServerVersion};

/// A script cannot be executed while it is open for writing, even in another test's new child process,
/// which has inherited the open file.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    lock(&TURN)
}

/// A program that pretends to be a server: a shell script.
fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

fn run(dir: &Path, text: &str) -> ServerRun {
    ServerRun {
        binary: script(dir, "server", text),
        arguments: vec!["--bootstrap".into()],
        stdin: b"SHUTDOWN;\n".to_vec(),
        scratch: dir.join("scratch"),
        run_as: None,
        time_zone: None,
        writes: None,
    }
}

/// The process gets its input, its options and a bare environment; its log comes back, and its directory
/// is removed.
#[test]
fn runs_apart() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let text =
        "cat; echo \"$@\"; env; for a; do case $a in --log-error=*) echo logged >\"${a#*=}\";; esac; done";
    let exit = run(dir.path(), text).start().unwrap().wait(&Cancel::default()).unwrap();
    exit.success("test", &|_| false).unwrap();
    assert_eq!(exit.log[0], "SHUTDOWN;");
    assert!(exit.log[1].starts_with("--bootstrap --tmpdir="), "{:?}", exit.log);
    assert!(exit.log.iter().any(|line| line == "TZ=UTC") && !exit.log.iter().any(|l| l.starts_with("HOME=")));
    assert_eq!(exit.log.last().unwrap(), "logged");
    assert!(!dir.path().join("scratch").exists());
}

/// Anyone with the server's user can put links into its directory: we follow none.
#[test]
fn follows_no_links() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("precious");
    fs::write(&precious, "years of work").unwrap();
    let text = "for f in *; do rm -rf $f; ln -s ../precious $f; done; ln -s ../precious new; echo said";
    let exit = run(dir.path(), text).start().unwrap().wait(&Cancel::default()).unwrap();
    assert_eq!(exit.log, ["said"]);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "years of work");
    // While the directory does not exist, nobody can have put anything into it.
    std::os::unix::fs::symlink(dir.path(), dir.path().join("scratch")).unwrap();
    assert!(run(dir.path(), "echo").start().is_err());
    assert!(precious.exists());
}

/// The version of Landlock that the kernel has.
#[allow(unsafe_code)]
fn landlock_version() -> i64 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag, the kernel reads no attributes.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, VERSION) }
}

/// Where the kernel can do that, the process writes only where it may, whatever its user may.
#[test]
fn writes_where_it_may() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    for name in ["data", "other"] {
        fs::create_dir_all(dir.path().join(name).join("sub")).unwrap();
        fs::write(dir.path().join(name).join("old"), "").unwrap();
    }
    let text = format!(
        "cd '{}'; for d in data other; do for f in old new; do (echo x >>$d/$f) 2>/dev/null && echo $d/$f; done; \
         (mv $d/old $d/sub/moved) 2>/dev/null && echo $d; done; echo x >/dev/null && echo null; cat data/sub/moved",
        dir.path().display()
    );
    let confined = ServerRun { writes: Some(vec![dir.path().join("data")]), ..run(dir.path(), &text) };
    let server = confined.start().unwrap();
    let writes = server.writes().clone();
    let exit = server.wait(&Cancel::default()).unwrap();
    match writes {
        Writes::Confined => assert_eq!(exit.log, ["data/old", "data/new", "data", "null", "x"]),
        Writes::Anywhere(why) => {
            assert!(landlock_version() < 3, "{why:?}");
            assert!(why.is_some() && exit.log.contains(&"other".to_owned()), "{exit:?}");
        }
    }
    // We are not confined.
    fs::write(dir.path().join("other/new"), "").unwrap();
}

/// Where permitted, the process has only its own empty network namespace.
#[test]
fn has_no_network() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let text = "readlink /proc/self/ns/net";
    let exit = run(dir.path(), text).start().unwrap().wait(&Cancel::default()).unwrap();
    let ours = fs::read_link("/proc/self/ns/net").unwrap();
    let same = exit.log[0] == ours.to_str().unwrap();
    assert_eq!(same, exit.network != Network::None, "{exit:?}");
}

/// A failing process, an error in its log, and death by a signal are failures that quote the log.
#[test]
fn failures() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    for (text, message) in [
        ("echo one; exit 3", "recover: the server ended with status 3\n  one"),
        (
            "echo '2026 [ERROR] InnoDB: bad'; echo x",
            "recover: the server logged errors\n  2026 [ERROR] InnoDB: bad",
        ),
        ("kill -9 $$", "recover: the server was ended by signal 9\n  "),
    ] {
        let exit = run(dir.path(), text).start().unwrap().wait(&Cancel::default()).unwrap();
        assert_eq!(exit.success("recover", &|_| false).unwrap_err().to_string(), message);
    }
    let denied =
        "echo \"[ERROR] Can't create test file 'x' (Errcode: 13 \\\"Permission denied\\\")\"; exit 1";
    let exit = run(dir.path(), denied).start().unwrap().wait(&Cancel::default()).unwrap();
    let profiles = fs::read_to_string(APPARMOR_PROFILES).unwrap_or_default();
    let error = exit.success("recover", &|_| false).unwrap_err();
    assert_eq!(error.hint(), Some(why_denied(&profiles)), "{error}");
    let missing = ServerRun { binary: dir.path().join("none"), ..run(dir.path(), "") };
    let error = missing.start().unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
    assert!(!dir.path().join("scratch").exists());
}

/// Canceling or dropping a run ends the process.
#[test]
fn ends_with_us() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let cancel = Cancel::default();
    let running = run(dir.path(), "sleep 600").start().unwrap();
    let pid = running.pid();
    cancel.cancel();
    assert_eq!(running.wait(&cancel).unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    let running = run(dir.path(), "sleep 600").start().unwrap();
    let pid = running.pid();
    drop(running);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

/// The program of the right series is found among others, and a wrong one is refused by name.
#[test]
fn the_right_program() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let place = |sub: &str, name: &str, version: &str| {
        fs::create_dir_all(dir.path().join(sub)).unwrap();
        let text = format!("echo '{name}  Ver {version} for Linux on x86_64'");
        script(&dir.path().join(sub), name, &text);
        dir.path().join(sub)
    };
    let places = [
        place("a", "mysqld", "99.7.4"),
        place("b", "mariadbd", "99.8.6-MariaDB"),
        place("c", "mariadbd", "99.11.19-MariaDB-x"),
    ];
    let version = |text| ServerVersion::parse(text).unwrap();
    let find = |wanted| ServerBinary::find(None, &version(wanted), &places).unwrap();
    assert_eq!(find("99.11.2-MariaDB").path, dir.path().join("c/mariadbd"));
    assert_eq!(find("99.7.4-2").path, dir.path().join("a/mysqld"));
    find("99.11.2-MariaDB").require(&version("99.11.19-MariaDB")).unwrap();
    let other = find("99.12.1-MariaDB");
    let error = other.require(&version("99.12.1-MariaDB")).unwrap_err();
    assert!(error.to_string().contains("b/mariadbd is MariaDB 99.8.6"), "{error}");
    let newer = find("99.11.2-MariaDB").require(&version("99.11.20-MariaDB"));
    assert!(newer.is_err());
    // Root finds a program in a directory that nobody else may enter.
    let found = find("99.11.2-MariaDB");
    let enter = |mode| fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::set_permissions(elsewhere.path(), Permissions::from_mode(0o755)).unwrap();
    let target = elsewhere.path().join("private/target");
    let as_nobody = || found.require_runs_as(Some((65_534, 65_534)), &target);
    enter(0o700);
    let is_refused = as_nobody().is_err_and(|error| error.to_string().contains("user 65534"));
    assert_eq!(is_refused, geteuid().is_root(), "others than root run it as themselves");
    enter(0o755);
    as_nobody().unwrap();
    // Nor may that user come to the target.
    fs::create_dir(elsewhere.path().join("private")).unwrap();
    fs::set_permissions(elsewhere.path().join("private"), Permissions::from_mode(0o700)).unwrap();
    let is_refused = as_nobody().is_err_and(|error| error.to_string().contains("cannot enter"));
    assert_eq!(is_refused, geteuid().is_root());
    // A relative path stays what it was when the server runs in another directory.
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    let relative = up.join(found.path.strip_prefix("/").unwrap());
    assert!(ServerBinary::probe(&relative).unwrap().path.is_absolute());
    let explicit = ServerBinary::probe(Path::new("/bin/true")).unwrap_err();
    assert!(explicit.to_string().contains("does not print a server version"), "{explicit}");
}

/// The kernel accepts every path that we consider short enough for a socket.
#[test]
fn paths_of_sockets() {
    let dir = tempfile::tempdir_in(SHORT_PLACE).unwrap();
    let room = SOCKET_PATH_BYTES_MAX - dir.path().join("x").join(SOCKET).as_os_str().len();
    let longest = dir.path().join("x".repeat(room + 1));
    fs::create_dir(&longest).unwrap();
    assert!(takes_socket(&longest));
    std::os::unix::net::UnixListener::bind(longest.join(SOCKET)).unwrap();
    assert!(!takes_socket(&dir.path().join("x".repeat(room + 2))));
}
