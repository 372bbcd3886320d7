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
    io::{self, Seek, Write},
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, chownat, fchown, fstat, mkdirat, openat, statvfs};
use rustix::process::geteuid;

use super::{
    environment::{Network, Writes, clean, confine_writes, leave_network},
    exit::{LINES_SHOWN_MAX, ServerExit},
    log::{ERROR_LOG, Logs, OUTPUT},
    own_options::option_of,
};
use crate::{
    child::die_with_parent,
    error::{Context, Error, ErrorKind, Result},
    event::Cancel,
};

/// How often to check on a running process.
const POLL: Duration = Duration::from_millis(10);
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long a server that dies may take to write down why.
const DYING_MAX: Duration = Duration::from_secs(10);
/// A file system with less room than that is as good as full.
const LITTLE_ROOM_BYTES: u64 = 16 << 20;
const STDIN: &str = "stdin";
pub(super) const SOCKET: &str = "sock";
const TMPDIR: &str = "tmp";
/// Longest path of a socket; kernels accept slightly more.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 105;
/// Where a scratch directory goes whose socket path would be too long elsewhere.
pub(crate) const SHORT_PLACE: &str = "/tmp";

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
    /// Directories below which alone it may write, besides its own; `None` lets it write wherever its user may.
    pub writes: Option<Vec<PathBuf>>,
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
    writes: Writes,
}

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
        let writes = self.writes.clone().map(|mut dirs| {
            dirs.push(self.scratch.clone());
            dirs
        });
        // Only this thread gets the namespace and the confinement. "Parent" in "dies with its parent" means this
        // thread too, so the thread stays.
        let supervisor = thread::Builder::new()
            .name("server-process".to_owned())
            .spawn(move || {
                let (network, writes) = (leave_network(), confine_writes(writes.as_deref()));
                let child = match command.spawn() {
                    Ok(child) => child,
                    Err(error) => {
                        let _ = spawned.send(Err(error));
                        return;
                    }
                };
                let _ = spawned.send(Ok((child.id(), network, writes)));
                let _ = ended.send(wait(child, &kill));
            })
            .context("start a thread")?;
        let started = Instant::now();
        let outcome =
            spawning.recv().unwrap_or_else(|_| Err(io::Error::other("the supervising thread ended")));
        let (pid, network, writes) = outcome.map_err(|error| self.explain(error))?;
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
            writes,
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

    /// Where it can write.
    #[must_use]
    pub fn writes(&self) -> &Writes {
        &self.writes
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

    /// Whether the process ends soon: a connection to it is lost some time before.
    pub fn ends_soon(&mut self) -> bool {
        let begun = Instant::now();
        while !self.has_ended() && begun.elapsed() < DYING_MAX {
            thread::sleep(POLL);
        }
        self.has_ended()
    }

    /// Says what failed because of the server, and quotes the last lines of its log.
    #[must_use]
    pub fn explain(&self, error: Error, doing: &str) -> Error {
        let log = self.logs.read().unwrap_or_default();
        let shown: Vec<&str> = log.iter().rev().take(LINES_SHOWN_MAX).rev().map(String::as_str).collect();
        // That it cannot be reached is no matter of the user's server: it is ours, and has failed.
        let kind = if error.kind() == ErrorKind::Server { ErrorKind::Failed } else { error.kind() };
        let explained =
            Error::new(kind, format!("{doing}: {error}; the server says\n  {}", shown.join("\n  ")));
        match statvfs(&self.scratch) {
            Ok(room) if room.f_bavail.saturating_mul(room.f_frsize) < LITTLE_ROOM_BYTES => {
                explained.hinted(format!("the file system of {} is full", self.scratch.display()))
            }
            _ => explained,
        }
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
