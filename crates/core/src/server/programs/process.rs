//! Runs a server program of this host for one job, such as recovery: without a network, with a clean
//! environment, a directory of its own for everything that is not data, under the right user, and killed when
//! we die.
//!
//! The directory belongs to the user that the server runs as, who may do anything in it, and so may anyone
//! who has taken over the server. So we create what we need before we give the directory away, and hold the
//! files open: after that, we follow no path into it.
//!
//! What the server is told to do (bootstrap statements on standard input, an init file) is up to the caller.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Seek, Write},
    os::unix::{
        fs::{DirBuilderExt, FileExt},
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use holdfast_formats::Flavor;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, chownat, fchown, fstat, mkdirat, openat};
use rustix::process::geteuid;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::own_options::option_of;
use crate::{
    child::die_with_parent,
    error::{Context, Error, ErrorKind, Result},
    event::Cancel,
    server::ServerVersion,
};

/// Where packages install servers; searched after the directories that the caller names.
const DIRECTORIES: [&str; 5] =
    ["/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/bin", "/usr/local/mysql/bin"];
/// `PATH` of the process: enough for a wrapper script.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How often to check on a running process.
const POLL: Duration = Duration::from_millis(10);
/// How much of a log is kept: this much of its beginning, this much of its end, and from the middle up to
/// this much of lines that are not notes.
const LOG_PART_MAX: u64 = 4 << 20;
/// A longer line is treated as several.
const LOG_LINE_MAX: u64 = 64 << 10;

/// A server program and its version.
#[derive(Clone, Debug)]
pub struct ServerBinary {
    /// The path of the program.
    pub path: PathBuf,
    /// What `--version` prints.
    pub version: ServerVersion,
}

impl ServerBinary {
    /// Runs a program to get its version.
    pub fn probe(path: &Path) -> Result<ServerBinary> {
        let refused = |why: &str| {
            Error::new(ErrorKind::Usage, format!("{} {why}", path.display()))
                .hinted("name a MariaDB or MySQL server program with --server-binary")
        };
        let output = clean(Command::new(path))
            .args(["--no-defaults", "--version"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| refused("cannot be run").caused_by(error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().find_map(ServerVersion::parse_program_output);
        let version = version.ok_or_else(|| refused("does not print a server version"))?;
        Ok(ServerBinary { path: path.to_owned(), version })
    }

    /// Finds the program that fits `wanted` best: same flavor and release series, and not older. A program
    /// that is named explicitly is returned as it is; [`require`](Self::require) decides whether it will do.
    pub fn find(
        explicit: Option<&Path>,
        wanted: &ServerVersion,
        directories: &[PathBuf],
    ) -> Result<ServerBinary> {
        if let Some(path) = explicit {
            return Self::probe(path);
        }
        let names: &[&str] = match wanted.flavor {
            Flavor::MariaDb => &["mariadbd", "mysqld"],
            Flavor::MySql => &["mysqld"],
        };
        let directories = directories.iter().cloned().chain(DIRECTORIES.iter().map(PathBuf::from));
        let candidates = directories.flat_map(|dir| names.iter().map(move |name| dir.join(name)));
        let mut best: Option<ServerBinary> = None;
        for path in candidates.filter(|path| path.is_file()) {
            let Ok(found) = Self::probe(&path) else { continue };
            if found.fits(wanted) {
                return Ok(found);
            }
            // Kept so that the refusal can name it.
            if best.is_none() && found.version.flavor == wanted.flavor {
                best = Some(found);
            }
        }
        best.ok_or_else(|| {
            Error::failed(format!("there is no {} server program on this host", wanted.flavor)).hinted(
                format!(
                    "install {} {}, or name its program with --server-binary",
                    wanted.flavor,
                    wanted.series()
                ),
            )
        })
    }

    fn fits(&self, wanted: &ServerVersion) -> bool {
        self.version.same_series(wanted) && self.version.number() >= wanted.number()
    }

    /// Fails unless this program may recover files of `wanted`: only its own series reads crash redo, and an
    /// older release may not understand what a newer one wrote.
    pub fn require(&self, wanted: &ServerVersion) -> Result<()> {
        if self.fits(wanted) {
            return Ok(());
        }
        let message = format!(
            "the backup is from {wanted}, but {} is {}: it must be of the same release series, and not older",
            self.path.display(),
            self.version
        );
        Err(Error::failed(message).hinted(format!(
            "install {} {}, name its program with --server-binary, or use --allow-version if you know that it works",
            wanted.flavor,
            wanted.series()
        )))
    }
}

/// The user a process runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl RunAs {
    /// The owner of a file or directory.
    pub fn owner_of(path: &Path) -> Result<RunAs> {
        use std::os::unix::fs::MetadataExt;
        let meta = fs::metadata(path).context(format_args!("look at {}", path.display()))?;
        Ok(RunAs { uid: meta.uid(), gid: meta.gid() })
    }
}

/// Whether the process could reach the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// It had a network namespace of its own, an empty one.
    None,
    /// The kernel refused a namespace, or a right was missing, for this reason. Only the server's own options
    /// kept it off the network.
    Shared(String),
}

/// A server process to start.
#[derive(Clone, Debug)]
pub struct ServerRun {
    /// The program.
    pub binary: PathBuf,
    /// Its options. Those for the temporary directory, error log, pid file and socket are appended, and win.
    /// MySQL reports the progress of its recovery only with `--log-error-verbosity=3`.
    pub arguments: Vec<OsString>,
    /// Its standard input.
    pub stdin: Vec<u8>,
    /// A directory to create for everything that is not data. It is removed when the run is dropped.
    pub scratch: PathBuf,
    /// The user to run as, if we are root; `None` keeps our own user.
    pub run_as: Option<RunAs>,
    /// The time zone of its host, as far as it is known; `None` means UTC.
    pub time_zone: Option<String>,
}

/// A running server process.
#[derive(Debug)]
pub struct RunningServer {
    scratch: PathBuf,
    logs: Logs,
    orders: mpsc::Sender<()>,
    exit: mpsc::Receiver<io::Result<ExitStatus>>,
    /// The result from `exit`, once it has been received.
    ended: Option<io::Result<ExitStatus>>,
    supervisor: Option<thread::JoinHandle<()>>,
    started: Instant,
    pid: u32,
    network: Network,
}

/// How a server process ended.
#[derive(Clone, Debug)]
pub struct ServerExit {
    /// Its status.
    pub status: ExitStatus,
    /// Its error log, standard output and standard error. The middle of a very long log is left out.
    pub log: Vec<String>,
    /// How long it ran.
    pub duration: Duration,
    /// Whether it could reach the network.
    pub network: Network,
}

/// The files that the process logs to, in the order in which they are read.
#[derive(Debug)]
struct Logs {
    /// Standard output and error.
    output: File,
    /// The error log, which the server opens by name.
    error: File,
}

/// The profiles that the kernel has loaded, a line each: `/usr/sbin/mysqld (enforce)`.
const APPARMOR_PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
/// Number of log lines that an error shows.
const LINES_SHOWN_MAX: usize = 8;
const TELL_EVERY: Duration = Duration::from_secs(1);
const ERROR_LOG: &str = "error.log";
const OUTPUT: &str = "output.log";
const STDIN: &str = "stdin";
const SOCKET: &str = "sock";
const TMPDIR: &str = "tmp";
/// Longest path of a socket; kernels accept slightly more.
const SOCKET_PATH_BYTES_MAX: usize = 105;
/// Where a scratch directory goes whose socket path would be too long elsewhere.
pub(crate) const SHORT_PLACE: &str = "/tmp";

/// Whether the kernel accepts the path of a socket in this scratch directory. If not, use [`SHORT_PLACE`].
pub(crate) fn takes_socket(scratch: &Path) -> bool {
    scratch.join(SOCKET).as_os_str().len() <= SOCKET_PATH_BYTES_MAX
}

impl ServerRun {
    /// Starts the process.
    pub fn start(self) -> Result<RunningServer> {
        let made = fs::DirBuilder::new().mode(0o700).create(&self.scratch);
        made.context(format_args!("make {}", self.scratch.display()))?;
        let started = self.fill_scratch().and_then(|(stdin, logs)| {
            let command = self.command(stdin, &logs)?;
            self.supervise(command, logs)
        });
        if started.is_err() {
            let _ = fs::remove_dir_all(&self.scratch);
        }
        started
    }

    /// Creates the contents of the directory, and gives it to the server's user last.
    fn fill_scratch(&self) -> Result<(File, Logs)> {
        let scratch = &self.scratch;
        let making = || -> io::Result<(File, Logs)> {
            // The parent directory may already belong to that user.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = rustix::fs::open(scratch, flags, Mode::empty())?;
            if fstat(&dir)?.st_uid != geteuid().as_raw() {
                return Err(io::Error::other("another user has put a directory in its place"));
            }
            let create = |name: &str| -> io::Result<File> {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND | OFlags::CLOEXEC;
                Ok(openat(&dir, name, flags, Mode::RUSR | Mode::WUSR)?.into())
            };
            let mut stdin = create(STDIN)?;
            stdin.write_all(&self.stdin)?;
            stdin.rewind()?;
            let logs = Logs { output: create(OUTPUT)?, error: create(ERROR_LOG)? };
            mkdirat(&dir, TMPDIR, Mode::RWXU)?;
            if let Some(RunAs { uid, gid }) = self.run_as {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                fchown(&logs.error, uid, gid)?;
                chownat(&dir, TMPDIR, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
                fchown(&dir, uid, gid)?;
            }
            Ok((stdin, logs))
        };
        making().context(format_args!("prepare {}", scratch.display()))
    }

    fn command(&self, stdin: File, logs: &Logs) -> Result<Command> {
        let doing = || format!("prepare {}", self.scratch.display());
        let output = || logs.output.try_clone().context(doing());
        let mut command = clean(Command::new(&self.binary));
        command.args(&self.arguments);
        if let Some(zone) = &self.time_zone {
            command.env("TZ", zone);
        }
        for (option, file) in [
            ("--tmpdir=", TMPDIR),
            ("--log-error=", ERROR_LOG),
            ("--pid-file=", "pid"),
            ("--socket=", SOCKET),
        ] {
            command.arg(option_of(option, &self.scratch.join(file)));
        }
        command.stdin(stdin).stderr(output()?).stdout(output()?).current_dir(&self.scratch);
        match self.run_as {
            Some(RunAs { uid, gid }) if geteuid().is_root() => {
                command.uid(uid).gid(gid);
            }
            _ => {}
        }
        let runs_as_root = match self.run_as {
            Some(run_as) => run_as.uid == 0,
            None => geteuid().is_root(),
        };
        if runs_as_root {
            // A server refuses to run as root unless told to.
            command.arg("--user=root");
        }
        die_with_parent(&mut command);
        Ok(command)
    }

    fn supervise(&self, mut command: Command, logs: Logs) -> Result<RunningServer> {
        let (orders, kill) = mpsc::channel();
        let (spawned, spawning) = mpsc::channel();
        let (ended, exit) = mpsc::channel();
        // Only this thread gets the namespace. "Parent" in "dies with its parent" means this thread too, so
        // the thread stays.
        let supervisor = thread::Builder::new()
            .name("server-process".to_owned())
            .spawn(move || {
                let network = leave_network();
                let child = match command.spawn() {
                    Ok(child) => child,
                    Err(error) => {
                        let _ = spawned.send(Err(error));
                        return;
                    }
                };
                let _ = spawned.send(Ok((child.id(), network)));
                let _ = ended.send(wait(child, &kill));
            })
            .context("start a thread")?;
        let started = Instant::now();
        let outcome =
            spawning.recv().unwrap_or_else(|_| Err(io::Error::other("the supervising thread ended")));
        let (pid, network) = outcome.map_err(|error| self.explain(error))?;
        let scratch = self.scratch.clone();
        Ok(RunningServer {
            scratch,
            logs,
            orders,
            exit,
            ended: None,
            supervisor: Some(supervisor),
            started,
            pid,
            network,
        })
    }

    fn explain(&self, error: io::Error) -> Error {
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        let message = format!("cannot run {}", self.binary.display());
        let error = Error::failed(message).caused_by(error);
        match self.run_as {
            Some(run_as) if denied => error.hinted(format!(
                "it runs as user {}, who must be able to reach and execute the program and to enter {}",
                run_as.uid,
                self.scratch.display()
            )),
            _ => error,
        }
    }
}

/// Replaces the environment of a command with a minimal one.
fn clean(mut command: Command) -> Command {
    command.env_clear().env("PATH", SEARCH_PATH).env("LANG", "C").env("TZ", "UTC");
    command
}

#[allow(unsafe_code)]
fn leave_network() -> Network {
    // SAFETY: only the network namespace of this thread changes; file descriptors stay shared with all
    // threads.
    match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        Ok(()) => Network::None,
        Err(error) => Network::Shared(error.to_string()),
    }
}

fn wait(mut child: Child, kill: &mpsc::Receiver<()>) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match kill.recv_timeout(POLL) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                child.kill()?;
                return child.wait();
            }
        }
    }
}

impl RunningServer {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it can reach the network.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.scratch.join(SOCKET)
    }

    /// Whether the process has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.exit.try_recv().ok();
        }
        self.ended.is_some()
    }

    /// Says what failed because of the server, and quotes the last lines of its log.
    #[must_use]
    pub fn explain(&self, error: Error, doing: &str) -> Error {
        let log = self.logs.read().unwrap_or_default();
        let shown: Vec<&str> = log.iter().rev().take(LINES_SHOWN_MAX).rev().map(String::as_str).collect();
        Error::new(error.kind(), format!("{doing}: {error}; the server says\n  {}", shown.join("\n  ")))
    }

    /// The lines logged so far.
    pub fn log(&self) -> Result<Vec<String>> {
        self.logs.read()
    }

    /// Waits until the process ends. If the run is canceled, kills the process and returns an error that says
    /// so.
    pub fn wait(self, cancel: &Cancel) -> Result<ServerExit> {
        self.wait_and_tell(cancel, &mut |_| Ok(()))
    }

    /// Like [`wait`](Self::wait), but once a second passes the newest part of the log to `tell`. If that fails,
    /// kills the process and returns the error.
    pub fn wait_and_tell(
        mut self,
        cancel: &Cancel,
        tell: &mut dyn FnMut(&[String]) -> Result<()>,
    ) -> Result<ServerExit> {
        let mut told = Instant::now();
        let status = loop {
            if let Some(status) = self.ended.take() {
                break status.context("wait for the server process")?;
            }
            match self.exit.recv_timeout(POLL) {
                Ok(status) => break status.context("wait for the server process")?,
                Err(RecvTimeoutError::Timeout) => {
                    let mut goes_on = cancel.check();
                    if goes_on.is_ok() && told.elapsed() >= TELL_EVERY {
                        told = Instant::now();
                        goes_on = tell(&self.logs.newest()?);
                    }
                    if let Err(error) = goes_on {
                        self.kill();
                        return Err(error);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::failed("the thread that supervised the server process ended"));
                }
            }
        };
        let duration = self.started.elapsed();
        let log = self.logs.read()?;
        Ok(ServerExit { status, log, duration, network: self.network.clone() })
    }

    /// Kills the process and waits until it is gone.
    fn kill(&mut self) {
        let _ = self.orders.send(());
        if let Some(supervisor) = self.supervisor.take() {
            let _ = supervisor.join();
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

impl Logs {
    /// Everything that the run is judged by.
    fn read(&self) -> Result<Vec<String>> {
        self.lines(bounded)
    }

    /// The end of the log, which shows its progress.
    fn newest(&self) -> Result<Vec<String>> {
        self.lines(end_of)
    }

    fn lines(&self, read: fn(&File) -> io::Result<String>) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for (name, file) in [(OUTPUT, &self.output), (ERROR_LOG, &self.error)] {
            let text = read(file).context(format_args!("read the server's {name}"))?;
            lines.extend(text.lines().map(str::to_owned));
        }
        Ok(lines)
    }
}

fn end_of(file: &File) -> io::Result<String> {
    let at = file.metadata()?.len().saturating_sub(LOG_PART_MAX);
    let mut bytes = Vec::new();
    Reading { file, at }.take(LOG_PART_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The text of a log. If it is long, notes in its middle are left out. All other lines are kept, because the
/// run is judged by them; too many of them in the middle are an error.
fn bounded(file: &File) -> io::Result<String> {
    let end_begins = file.metadata()?.len().saturating_sub(LOG_PART_MAX);
    let mut lines = BufReader::new(Reading { file, at: 0 });
    let (mut kept, mut line) = (Vec::new(), Vec::new());
    let (mut at, mut kept_of_middle, mut left_out) = (0, 0, 0);
    while lines.by_ref().take(LOG_LINE_MAX).read_until(b'\n', &mut line)? > 0 {
        let (begin, bytes) = (at, line.len() as u64);
        at += bytes;
        let is_middle = begin >= LOG_PART_MAX && at <= end_begins;
        if is_middle && is_note(&line) {
            left_out += bytes;
        } else {
            if left_out > 0 {
                kept.extend_from_slice(format!("[{left_out} bytes of notes left out]\n").as_bytes());
                left_out = 0;
            }
            if is_middle {
                kept_of_middle += bytes;
            }
            if kept_of_middle > LOG_PART_MAX {
                return Err(io::Error::other(format!(
                    "it is more than {LOG_PART_MAX} bytes, not counting notes"
                )));
            }
            kept.extend_from_slice(&line);
        }
        line.clear();
    }
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

/// Whether a line only reports the normal course of events, as both flavors mark it.
fn is_note(line: &[u8]) -> bool {
    const MARK: &[u8] = b" [Note] ";
    line.windows(MARK.len()).any(|bytes| bytes == MARK)
}

/// Reads without moving the file offset, which the process shares.
struct Reading<'a> {
    file: &'a File,
    at: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl ServerExit {
    /// Fails unless the process succeeded and logged no errors other than `harmless` ones. `doing` says what
    /// it ran for.
    pub fn success(&self, doing: &str, harmless: &dyn Fn(&str) -> bool) -> Result<()> {
        let errors: Vec<&str> = self.errors().filter(|line| !harmless(line)).collect();
        if self.status.success() && errors.is_empty() {
            return Ok(());
        }
        let ending = match (self.status.code(), self.status.signal()) {
            (Some(0), _) => "logged errors".to_owned(),
            (Some(code), _) => format!("ended with status {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "ended badly".to_owned(),
        };
        let shown: Vec<&str> = if errors.is_empty() {
            let skipped = self.log.len().saturating_sub(LINES_SHOWN_MAX);
            self.log.iter().skip(skipped).map(String::as_str).collect()
        } else {
            errors.into_iter().take(LINES_SHOWN_MAX).collect()
        };
        let message = format!("{doing}: the server {ending}\n  {}", shown.join("\n  "));
        let error = Error::new(ErrorKind::Failed, message);
        Err(match self.permission_hint() {
            Some(hint) => error.hinted(hint),
            None => error,
        })
    }

    /// The lines that report errors.
    pub fn errors(&self) -> impl Iterator<Item = &str> {
        self.log.iter().map(String::as_str).filter(|line| line.contains("[ERROR]"))
    }

    fn permission_hint(&self) -> Option<&'static str> {
        let denied = |line: &String| line.contains("Permission denied") || line.contains("Errcode: 13");
        if !self.log.iter().any(denied) {
            return None;
        }
        Some(why_denied(&fs::read_to_string(APPARMOR_PROFILES).unwrap_or_default()))
    }
}

/// What to do about a server that may not open its own files, by the profiles that the kernel has loaded.
fn why_denied(profiles: &str) -> &'static str {
    let is_server = |line: &str| line.contains("mysqld") || line.contains("mariadbd");
    if profiles.lines().any(|line| is_server(line) && line.ends_with("(enforce)")) {
        "an AppArmor profile confines the server to its own directories: allow the target in \
         /etc/apparmor.d/local, or set the profile to complain mode while restoring"
    } else {
        "the user that the server runs as must be able to enter every directory above the target"
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Mutex, MutexGuard};

    use holdfast_pipe::lock::lock;

    use super::*;

    /// A script cannot be executed while it is open for writing, even in another test's new child process,
    /// which has inherited the open file.
    fn one_at_a_time() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        lock(&TURN)
    }

    /// As Debian and Ubuntu list the profiles of their packages.
    #[test]
    fn a_profile_that_is_enforced_is_named() {
        let enforced = "/usr/bin/man (enforce)\n/usr/sbin/mysqld (enforce)\n";
        assert!(why_denied(enforced).contains("AppArmor"), "{}", why_denied(enforced));
        assert!(why_denied("mariadbd (enforce)\n").contains("AppArmor"));
        for free in ["", "/usr/bin/man (enforce)\n/usr/sbin/mysqld (complain)\n", "mariadbd (unconfined)\n"] {
            assert!(why_denied(free).contains("enter every directory"), "{free}");
        }
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
        }
    }

    /// The process gets its input, its options and a bare environment; its log comes back, and its directory
    /// is removed.
    #[test]
    fn runs_apart() {
        let _turn = one_at_a_time();
        let dir = tempfile::tempdir().unwrap();
        let text = "cat; echo \"$@\"; env; for a; do case $a in --log-error=*) echo logged >\"${a#*=}\";; esac; done";
        let exit = run(dir.path(), text).start().unwrap().wait(&Cancel::default()).unwrap();
        exit.success("test", &|_| false).unwrap();
        assert_eq!(exit.log[0], "SHUTDOWN;");
        assert!(exit.log[1].starts_with("--bootstrap --tmpdir="), "{:?}", exit.log);
        assert!(
            exit.log.iter().any(|line| line == "TZ=UTC") && !exit.log.iter().any(|l| l.starts_with("HOME="))
        );
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

    /// A long log keeps its beginning, its end, and every line of its middle that is not a note.
    #[test]
    fn long_logs() {
        const ERROR: &str = "2026-11-24T14:00:00Z 0 [ERROR] [MY-012345] [InnoDB] a page is gone\n";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let note = format!("2026-11-24T14:00:00Z 0 [Note] [MY-012345] [InnoDB] {}\n", "x".repeat(47));
        let (part, read) = (LOG_PART_MAX as usize, || bounded(&File::open(&path).unwrap()));
        let short = note.repeat(part / note.len());
        fs::write(&path, &short).unwrap();
        assert_eq!(read().unwrap(), short);
        // The error is in the middle; the notes around it begin or end a part.
        let long = [&*short, &note, &note, ERROR, &note, &note, &short].concat();
        fs::write(&path, &long).unwrap();
        let kept = read().unwrap();
        assert!(kept.starts_with(&short) && kept.ends_with(&short) && kept.len() < long.len());
        assert_eq!(kept.matches(ERROR).count(), 1);
        assert!(kept.contains("bytes of notes left out]\n"));
        // Lines other than notes are never left out silently.
        fs::write(&path, "a word that says nothing\n".repeat(part / 8)).unwrap();
        assert!(read().unwrap_err().to_string().contains("not counting notes"));
    }
}
