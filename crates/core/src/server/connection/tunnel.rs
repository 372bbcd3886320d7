//! A connection to the server through another host, made by the user's own `ssh`.
//!
//! - **`ssh` itself connects**: its configuration, keys, agents, jump hosts and known hosts apply. It never
//!   prompts (`BatchMode`), and there is no way to give it a password.
//! - It forwards a private Unix socket of ours, in a directory that only this user can enter, to the server's
//!   address or socket as the other host sees it. So tunnels do not interfere with each other, and no other
//!   user of this host can use them.
//! - It is a connection of its own (`ControlPath=none`) and ends when we end, however that happens: the
//!   kernel makes sure.
//! - The next connection replaces a tunnel that broke; errors quote ssh's own words.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, BufRead, BufReader},
    os::unix::{net::UnixStream, process::CommandExt},
    path::PathBuf,
    process::{Child, ChildStderr, Command, Stdio},
    str::FromStr,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use holdfast_pipe::lock::lock;
use tempfile::TempDir;

use super::{
    endpoint::Endpoint,
    socket_dir::{self, is_plain},
    sql_error::{SqlCause, SqlError},
};
use crate::{
    child::die_with_parent,
    error::{Error, ErrorKind, Result},
};

/// Longest wait for a tunnel to be ready, including all hosts on the way.
const START_MAX: Duration = Duration::from_secs(60);
/// How often to check whether it is ready.
const START_POLL: Duration = Duration::from_millis(10);
/// Attempts to make a tunnel, and the wait between them.
const ATTEMPTS: u32 = 3;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(500);
/// How long to wait for ssh to say why a connection was lost.
const WORDS_WAIT: Duration = Duration::from_millis(300);
/// A dead path is noticed after this many keepalive messages without an answer.
const ALIVE_INTERVAL_S: u32 = 10;
const ALIVE_COUNT: u32 = 3;
/// Number of lines of ssh's output that an error quotes.
const LINES_MAX: usize = 4;
const LINE_CHARS_MAX: usize = 200;
/// Failures that a retry would not change.
const FINAL_WORDS: [&str; 6] = [
    "Permission denied",
    "Host key verification failed",
    "Too many authentication failures",
    "Could not resolve hostname",
    "Bad configuration option",
    "Bad local forwarding specification",
];
/// Lines of ssh's output that say nothing about a failure. The last four are about forwards of its configuration.
const IDLE_WORDS: [&str; 6] = [
    "Warning: Permanently added",
    "Pseudo-terminal will not be allocated",
    "bind [",
    "channel_setup_fwd_listener",
    "Could not request local forwarding",
    "Warning: remote port forwarding failed",
];
/// What may send ssh into the background, where we cannot end it; known since OpenSSH 8.7.
const STAYS: &str = "ForkAfterAuthentication";

/// A host as ssh is told: `[user@]host[:port]`, where the host may be an alias from ssh's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshHost {
    user: Option<String>,
    host: String,
    port: Option<u16>,
}

impl FromStr for SshHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("\"{text}\" is not a host for ssh: write [user@]host[:port]");
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, rest)) => (Some(user.to_owned()), rest),
            None => (None, text),
        };
        let (host, port) = match rest.strip_prefix('[') {
            // An address that contains colons.
            Some(rest) => match rest.split_once(']').ok_or_else(bad)? {
                (host, "") => (host, None),
                (host, port) => (host, Some(port.strip_prefix(':').ok_or_else(bad)?)),
            },
            None => match rest.split_once(':') {
                Some((host, port)) if !port.contains(':') => (host, Some(port)),
                _ => (rest, None),
            },
        };
        let port = port.map(str::parse).transpose().map_err(|_| bad())?;
        // Text that begins like an option must not become one.
        let is_word = |word: &str| {
            !word.is_empty() && !word.starts_with('-') && !word.contains(|c: char| c.is_control() || c == ' ')
        };
        if !is_word(host) || !user.as_deref().is_none_or(is_word) || port == Some(0) {
            return Err(bad());
        }
        Ok(Self { user, host: host.to_owned(), port })
    }
}

impl fmt::Display for SshHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// How to call ssh.
#[derive(Clone, Debug)]
pub struct SshOptions {
    /// The host through which the server is reached.
    pub host: SshHost,
    /// The program.
    pub program: PathBuf,
    /// Its configuration file, instead of the usual ones.
    pub config_file: Option<PathBuf>,
    /// Whether to compress the traffic; `None`: as ssh's configuration says.
    pub compress: Option<bool>,
    /// Environment variables that ssh must not see.
    pub secrets: Vec<&'static str>,
}

/// Tunnels through one host, each made when first needed.
#[derive(Debug)]
pub struct Tunnel {
    options: SshOptions,
    running: Mutex<Vec<(Endpoint, Arc<Process>)>>,
    /// What ssh said in tunnels that have ended.
    last_words: Mutex<Option<String>>,
}

impl Tunnel {
    /// Creates the tunnel without starting anything.
    #[must_use]
    pub fn new(options: SshOptions) -> Tunnel {
        Tunnel { options, running: Mutex::default(), last_words: Mutex::default() }
    }

    /// Checks what can be checked before anything is started: characters that ssh would interpret.
    pub(super) fn validate(&self, server: &Endpoint) -> Result<()> {
        let text = match server {
            Endpoint::Socket(path) => path.to_string_lossy().into_owned(),
            Endpoint::Tcp { host, .. } => host.replace(':', ""),
        };
        if text.chars().all(is_plain) {
            return Ok(());
        }
        let message = format!("{server} has characters that ssh cannot forward to");
        Err(Error::new(ErrorKind::Usage, message).hinted("use letters, digits, and ./_-+,= only"))
    }

    /// Connects to the server, through a running tunnel or a new one. Temporary failures are retried: nothing
    /// has been sent to the server yet.
    pub(super) fn connect(&self, server: &Endpoint, timeout: Duration) -> Result<UnixStream, SqlError> {
        let mut attempt = 1;
        loop {
            let error = match self.process(server, timeout).and_then(|it| it.connect()) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            let is_final = FINAL_WORDS.iter().any(|words| error.to_string().contains(words));
            if is_final || *error.cause() != SqlCause::Lost || attempt == ATTEMPTS {
                return Err(error.doing(format!("make an SSH tunnel through {}", self.options.host)));
            }
            attempt += 1;
            thread::sleep(ATTEMPT_PAUSE);
        }
    }

    fn process(&self, server: &Endpoint, timeout: Duration) -> Result<Arc<Process>, SqlError> {
        let mut running = lock(&self.running);
        running.retain(|(_, process)| {
            let ended = process.last_words();
            let is_alive = ended.is_none();
            if !is_alive {
                *lock(&self.last_words) = ended;
            }
            is_alive
        });
        if let Some((_, process)) = running.iter().find(|(endpoint, _)| endpoint == server) {
            return Ok(Arc::clone(process));
        }
        let process = Arc::new(Process::start(&self.options, server, timeout)?);
        running.push((server.clone(), Arc::clone(&process)));
        *lock(&self.last_words) = None;
        Ok(process)
    }

    /// What ssh has said, for the error of a connection that could not be made just now.
    pub(super) fn words(&self) -> Option<String> {
        soon(|| lock(&self.running).iter().find_map(|(_, process)| process.words()))
            .or_else(|| lock(&self.last_words).clone())
    }

    /// What ssh said when it ended, for the error of a connection that was just lost; `None` if it is still
    /// running.
    pub(super) fn last_words(&self) -> Option<String> {
        soon(|| lock(&self.running).iter().find_map(|(_, process)| process.last_words()))
            .or_else(|| lock(&self.last_words).clone())
    }

    /// Whether a tunnel that was ready has ended, and has not been replaced yet. Waits a moment, since that may only
    /// just become known.
    pub(crate) fn is_broken(&self) -> bool {
        soon(|| self.is_known_to_be_broken().then_some(())).is_some()
    }

    pub(crate) fn is_known_to_be_broken(&self) -> bool {
        lock(&self.running).iter().any(|(_, process)| !process.is_alive())
    }
}

/// Asks repeatedly, for a moment, until there is an answer: the information may still be on its way.
fn soon<T>(ask: impl Fn() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        let answer = ask();
        if answer.is_some() || begin.elapsed() > WORDS_WAIT {
            return answer;
        }
        thread::sleep(START_POLL);
    }
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "through the SSH tunnel of {}", self.options.host)
    }
}

/// One `ssh` process. Dropping it ends the process.
#[derive(Debug)]
struct Process {
    child: Arc<Mutex<Child>>,
    said: Arc<Mutex<VecDeque<String>>>,
    /// The path of the socket that it listens on.
    socket: PathBuf,
    _dir: TempDir,
}

impl Process {
    /// An ssh that does not know [`STAYS`] has it in no configuration either. `IgnoreUnknown` would not do: it
    /// would replace that of the configuration.
    fn start(options: &SshOptions, server: &Endpoint, timeout: Duration) -> Result<Process, SqlError> {
        match Self::start_once(options, server, timeout, true) {
            Err(error) if is_unknown_option(&error.to_string(), STAYS) => {
                Self::start_once(options, server, timeout, false)
            }
            started => started,
        }
    }

    fn start_once(
        options: &SshOptions,
        server: &Endpoint,
        timeout: Duration,
        knows_stays: bool,
    ) -> Result<Process, SqlError> {
        let failed = |error: io::Error| {
            SqlError::new(SqlCause::Protocol, format!("{}: {error}", options.program.display()))
                .hinted("is ssh installed? --ssh names the program")
        };
        let dir = socket_dir::create().map_err(failed)?;
        let socket = dir.path().join("s");
        let forward = format!("{}:{}", socket.display(), address(server));
        let mut command = command(options, &forward, timeout, knows_stays);
        let said = Arc::<Mutex<VecDeque<String>>>::default();
        let (sender, receiver) = mpsc::channel();
        // The child dies with the thread that starts it, so this thread stays until the child ends.
        let started = thread::Builder::new().name("ssh".to_owned()).spawn({
            let said = Arc::clone(&said);
            move || {
                let (words, child) = match command.spawn() {
                    Ok(mut child) => (child.stderr.take(), Arc::new(Mutex::new(child))),
                    Err(error) => return drop(sender.send(Err(error))),
                };
                if sender.send(Ok(Arc::clone(&child))).is_err() {
                    return;
                }
                words.into_iter().for_each(|words| listen(words, &said));
                let _ended = lock(&child).wait();
            }
        });
        started.map_err(failed)?;
        let child = receiver.recv().map_err(io::Error::other).and_then(|child| child).map_err(failed)?;
        let process = Process { child, said, socket, _dir: dir };
        process.wait_until_it_stands()?;
        Ok(process)
    }

    fn wait_until_it_stands(&self) -> Result<(), SqlError> {
        let begin = Instant::now();
        while !self.socket.exists() {
            if !self.is_alive() {
                return Err(self.broken("it ended without an error message"));
            }
            // A configuration's own forwards may fail, this one may not.
            let socket = self.socket.display().to_string();
            if lock(&self.said).iter().any(|line| line.contains(&socket)) {
                return Err(self.broken("it cannot make its socket"));
            }
            if begin.elapsed() > START_MAX {
                return Err(self.broken(&format!("no answer within {} s", START_MAX.as_secs())));
            }
            thread::sleep(START_POLL);
        }
        Ok(())
    }

    /// Retries, because ssh creates the socket shortly before it listens on it.
    fn connect(&self) -> Result<UnixStream, SqlError> {
        let begin = Instant::now();
        loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => return Ok(stream),
                Err(error) if !self.is_alive() || begin.elapsed() > START_MAX => {
                    return Err(self.broken(&error.to_string()));
                }
                Err(_) => thread::sleep(START_POLL),
            }
        }
    }

    fn is_alive(&self) -> bool {
        matches!(lock(&self.child).try_wait(), Ok(None))
    }

    fn words(&self) -> Option<String> {
        let said = lock(&self.said);
        let words = said.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        (!words.is_empty()).then(|| format!("ssh: {words}"))
    }

    /// What it said, if it has ended.
    fn last_words(&self) -> Option<String> {
        match lock(&self.child).try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(self.words().unwrap_or_else(|| format!("ssh: it ended ({status})"))),
            Err(error) => Some(format!("ssh: {error}")),
        }
    }

    fn broken(&self, otherwise: &str) -> SqlError {
        let words = soon(|| self.words()).unwrap_or_else(|| format!("ssh: {otherwise}"));
        let error = SqlError::new(SqlCause::Lost, words);
        let text = error.to_string();
        let is = |words: &str| text.contains(words);
        if is("Permission denied") || is("Too many authentication failures") {
            return error.hinted("ssh cannot prompt here: it needs a key without a passphrase, or an agent");
        }
        if is("Host key verification failed") {
            return error.hinted("connect once manually with ssh, and verify the host key");
        }
        error
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        let _ended = child.kill();
        let _reaped = child.wait();
    }
}

/// The server's address as given to the other host.
fn address(server: &Endpoint) -> String {
    match server {
        Endpoint::Socket(path) => path.display().to_string(),
        tcp @ Endpoint::Tcp { .. } => tcp.to_string(),
    }
}

/// Whether ssh does not know this option, as it says in small letters.
fn is_unknown_option(words: &str, option: &str) -> bool {
    words.contains(&format!("Bad configuration option: {}", option.to_lowercase()))
}

fn command(options: &SshOptions, forward: &str, timeout: Duration, knows_stays: bool) -> Command {
    let mut command = Command::new(&options.program);
    for name in &options.secrets {
        command.env_remove(name);
    }
    if let Some(file) = &options.config_file {
        command.arg("-F").arg(file);
    }
    let options_of_ours = [
        "BatchMode=yes".to_owned(),
        // Ports that the configuration forwards may be taken. `ClearAllForwardings` would clear ours, too.
        "ExitOnForwardFailure=no".to_owned(),
        format!("ServerAliveInterval={ALIVE_INTERVAL_S}"),
        format!("ServerAliveCountMax={ALIVE_COUNT}"),
        format!("ConnectTimeout={}", timeout.as_secs().max(1)),
        // Shared connections outlive their users, and forward forever.
        "ControlMaster=no".to_owned(),
        "ControlPath=none".to_owned(),
        "ForwardX11=no".to_owned(),
        "ForwardAgent=no".to_owned(),
        "RequestTTY=no".to_owned(),
        "RemoteCommand=none".to_owned(),
        "PermitLocalCommand=no".to_owned(),
        // Errors are reported at this level.
        "LogLevel=INFO".to_owned(),
        // Only this user may use the socket, whatever ssh's configuration says.
        "StreamLocalBindMask=0177".to_owned(),
    ];
    let stays = knows_stays.then(|| format!("{STAYS}=no"));
    for option in options_of_ours.iter().chain(&stays) {
        command.arg("-o").arg(option);
    }
    if let Some(compress) = options.compress {
        command.arg("-o").arg(if compress { "Compression=yes" } else { "Compression=no" });
    }
    let SshHost { user, host, port } = &options.host;
    if let Some(port) = port {
        command.arg("-p").arg(port.to_string());
    }
    if let Some(user) = user {
        command.arg("-l").arg(user);
    }
    command.args(["-N", "-L", forward, "--", host]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // A signal from the terminal is meant for us: the tunnel is needed to shut down cleanly.
    command.process_group(0);
    die_with_parent(&mut command);
    command
}

/// Keeps the last lines of ssh's output, until it ends.
fn listen(words: ChildStderr, said: &Mutex<VecDeque<String>>) {
    let mut words = BufReader::new(words);
    let mut bytes = Vec::new();
    while words.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
        let line = String::from_utf8_lossy(&bytes);
        let line: String = line.trim().chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect();
        bytes.clear();
        if line.is_empty() || IDLE_WORDS.iter().any(|idle| line.starts_with(idle)) {
            continue;
        }
        let mut said = lock(said);
        if said.len() == LINES_MAX {
            said.pop_front();
        }
        said.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As OpenSSH 8.4 says it.
    #[test]
    fn an_ssh_that_does_not_know_all_options() {
        let said = "ssh: command-line: line 0: Bad configuration option: forkafterauthentication";
        assert!(is_unknown_option(said, STAYS));
        assert!(!is_unknown_option("ssh: c: line 3: Bad configuration option: usekeychain", STAYS));
    }

    /// Hosts are parsed as ssh's own users write them, and nothing becomes an option of ssh.
    #[test]
    fn hosts() {
        for text in ["bastion", "u@bastion", "u@bastion:2222", "a@b@host", "[::1]", "u@[fe80::1]:22"] {
            assert_eq!(text.parse::<SshHost>().unwrap().to_string(), text);
        }
        assert_eq!("::1".parse::<SshHost>().unwrap().to_string(), "[::1]");
        for text in
            ["", "@host", "u@", "-oProxyCommand=x", "-l@host", "host:", "host:x", "host:70000", "a b", "[::1"]
        {
            assert!(text.parse::<SshHost>().is_err(), "{text}");
        }
    }
}
