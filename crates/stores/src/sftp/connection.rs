//! One connection: an `ssh` process, and the SFTP session in its pipes.

use std::{
    collections::VecDeque,
    io,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use holdfast_pipe::lock::lock;
use holdfast_repo::store::RemoteCause;
use russh_sftp::{
    client::{Config, RawSftpSession, error::Error as SftpError, rawsession::Limits},
    extensions,
    protocol::StatusCode,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, join},
    process::{Child, ChildStderr, Command},
};

use super::{Place, SftpOptions};

/// The block size that every server accepts (the protocol's own minimum).
const BLOCK_BYTES_MIN: usize = 32 << 10;
/// Larger blocks gain nothing.
const BLOCK_BYTES_MAX: usize = 255 << 10;
/// How long a session may take to begin.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Lines of ssh's output that an error repeats.
const LINES_MAX: usize = 4;
const LINE_CHARS_MAX: usize = 200;

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// No such file or directory.
    NotFound,
    /// The server refused, with this message.
    Refused(StatusCode, String),
    /// There is no connection, or no longer: whether the request was carried out is unknown.
    Lost(RemoteCause, String),
}

/// A session. Dropping it ends the process.
pub(super) struct Connection {
    pub(super) session: RawSftpSession,
    pub(super) can: Abilities,
    /// The largest blocks to read and to write.
    pub(super) read_bytes: usize,
    pub(super) write_bytes: usize,
    is_dead: AtomicBool,
    said: Arc<Mutex<VecDeque<String>>>,
    /// Killed when dropped.
    _process: Child,
}

/// Extensions that the server offers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Abilities {
    pub(super) fsync: bool,
    pub(super) hardlink: bool,
    pub(super) statvfs: bool,
}

impl Connection {
    pub(super) async fn open(place: &Place, options: &SftpOptions) -> Result<Self, Failure> {
        let lost = |error: io::Error| {
            let what = format!("{}: {error}", options.ssh.display());
            Failure::Lost(RemoteCause::Unreachable, what)
        };
        let mut process = command(place, options).spawn().map_err(lost)?;
        let (Some(input), Some(output), Some(words)) =
            (process.stdin.take(), process.stdout.take(), process.stderr.take())
        else {
            return Err(lost(io::ErrorKind::BrokenPipe.into()));
        };
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let listening = tokio::spawn(listen(words, Arc::clone(&said)));
        let config =
            Config { request_timeout_secs: options.request_timeout.as_secs().max(1), ..Config::default() };
        let session = RawSftpSession::new_with_config(join(output, input), config);
        let patience = options.request_timeout.min(START_TIMEOUT);
        let begun = match tokio::time::timeout(patience, session.init()).await {
            Ok(begun) => begun.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {} s", patience.as_secs())),
        };
        let version = match begun {
            Ok(version) => version,
            Err(error) => {
                drop(session);
                // Whether ssh has ended or not, its output so far is all that is known.
                let _ = tokio::time::timeout(patience, process.wait()).await;
                let _ = tokio::time::timeout(Duration::from_secs(1), listening).await;
                return Err(broken(&said, &error));
            }
        };
        let has = |name: &str| version.extensions.contains_key(name);
        let can = Abilities {
            fsync: has(extensions::FSYNC),
            hardlink: has(extensions::HARDLINK),
            statvfs: has(extensions::STATVFS),
        };
        let mut it = Self {
            session,
            can,
            read_bytes: BLOCK_BYTES_MIN,
            write_bytes: BLOCK_BYTES_MIN,
            is_dead: AtomicBool::new(false),
            said,
            _process: process,
        };
        if has(extensions::LIMITS) {
            let limits = it.session.limits().await.map_err(|error| it.failure(error))?;
            let bounded = |limit: u64| match usize::try_from(limit) {
                Ok(0) | Err(_) => BLOCK_BYTES_MAX,
                Ok(limit) => limit.min(BLOCK_BYTES_MAX),
            };
            it.read_bytes = bounded(limits.max_read_len);
            it.write_bytes = bounded(limits.max_write_len);
            it.session.set_limits(Limits {
                packet_len: None,
                read_len: None,
                write_len: None,
                open_handles: None,
            });
        }
        Ok(it)
    }

    /// Whether the connection can be used, as far as is known.
    pub(super) fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Acquire)
    }

    /// Interprets a failed request.
    pub(super) fn failure(&self, error: SftpError) -> Failure {
        match error {
            SftpError::Status(status) => match status.status_code {
                StatusCode::NoSuchFile => Failure::NotFound,
                StatusCode::ConnectionLost | StatusCode::NoConnection => {
                    self.is_dead.store(true, Ordering::Release);
                    broken(&self.said, &status.error_message)
                }
                code => Failure::Refused(code, status.error_message),
            },
            error => {
                self.is_dead.store(true, Ordering::Release);
                broken(&self.said, &error.to_string())
            }
        }
    }
}

fn command(place: &Place, options: &SftpOptions) -> Command {
    let mut command = Command::new(&options.ssh);
    for name in crate::SECRET_VARIABLES {
        command.env_remove(name);
    }
    if let Some(file) = &options.config_file {
        command.arg("-F").arg(file);
    }
    // These override the user's configuration (docs/guide/stores.md says so): ssh takes the first value that
    // it finds, reads the command line first, and has no option for mere defaults.
    for option in ["ServerAliveInterval=15", "ServerAliveCountMax=4", "ConnectTimeout=20"] {
        command.args(["-o", option]);
    }
    command.args([
        "-o",
        "ForwardX11=no",
        "-o",
        "ForwardAgent=no",
        "-o",
        "ClearAllForwardings=yes",
        "-o",
        "RequestTTY=no",
    ]);
    if !options.may_ask {
        command.args(["-o", "BatchMode=yes"]);
        // A signal from the terminal is for us: the connection is needed for an orderly end.
        command.process_group(0);
    }
    if let Some(port) = place.port {
        command.args(["-p", &port.to_string()]);
    }
    if let Some(user) = &place.user {
        command.args(["-l", user]);
    }
    command.args(["-s", "--", &place.host, "sftp"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Keeps the last lines that ssh has printed.
async fn listen(words: ChildStderr, said: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(words).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let line: String = line.trim().chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect();
        if line.is_empty() {
            continue;
        }
        let mut said = lock(&said);
        if said.len() == LINES_MAX {
            said.pop_front();
        }
        said.push_back(line);
    }
}

fn broken(said: &Mutex<VecDeque<String>>, otherwise: &str) -> Failure {
    let said = lock(said);
    if said.is_empty() {
        return Failure::Lost(RemoteCause::Unreachable, format!("the connection broke: {otherwise}"));
    }
    let words = said.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
    let is = |what: &str| words.contains(what);
    let cause =
        if is("Permission denied") || is("Host key verification failed") || is("Too many authentication") {
            RemoteCause::Credentials
        } else if is("subsystem request failed") {
            RemoteCause::Unfit
        } else {
            RemoteCause::Unreachable
        };
    Failure::Lost(cause, format!("ssh: {words}"))
}
