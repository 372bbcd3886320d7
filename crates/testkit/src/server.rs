//! A real server in a scratch directory.
//!
//! Every server writes a ROW binlog with GTIDs and makes each commit durable, so any of them can be the
//! source of a backup or of a replica.
//! Accounts: `root@localhost` without a password, by socket and by TCP on 127.0.0.1.

mod datadir;

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mysql::prelude::{FromRow, FromValue, Queryable};
use mysql::{Conn, OptsBuilder};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::kind::ServerKind;
use crate::port::free_port;
use crate::spawn::spawn;
use crate::tls;

pub use datadir::copy as copy_datadir;

/// The longest start: recovery of a large redo log on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(180);
const STOP_DEADLINE: Duration = Duration::from_secs(120);
/// The size of `sun_path` without its terminating zero.
const SOCKET_PATH_MAX: usize = 107;

/// The size that the redo log of a new data directory has.
const REDO_MIB_MARIADB: u32 = 96;
/// A backup of MySQL gives up when it is behind by half of this; on a machine full of servers it soon is.
const REDO_MIB_MYSQL: u32 = 160;
const BUFFER_POOL_MIB_MARIADB: u32 = 128;
/// Twice the redo: a recovery of MySQL whose redo does not fit can wait for itself (`docs/guide/restore.md`).
const BUFFER_POOL_MIB_MYSQL: u32 = 384;
/// Smaller sizes for memory that servers fill at each start, which hundreds of short-lived servers feel.
const LEAN_MARIADB: [&str; 2] = ["--key-buffer-size=16M", "--aria-pagecache-buffer-size=16M"];
const LEAN_MYSQL: [&str; 8] = [
    "--key-buffer-size=4M",
    "--innodb-log-buffer-size=8M",
    "--performance-schema-digests-size=200",
    "--performance-schema-events-statements-history-long-size=100",
    "--performance-schema-accounts-size=8",
    "--performance-schema-hosts-size=8",
    "--performance-schema-users-size=8",
    // With more, a recovery of much redo is likelier to wait for itself.
    "--innodb-read-io-threads=1",
];

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The parent of its directory; the system's temporary directory by default.
    pub parent: Option<PathBuf>,
    /// Options that shape the data directory, used when it is created and at each start.
    pub init: Vec<String>,
    /// Further options for each start; they come last and take precedence.
    pub extra: Vec<String>,
    /// Size of the buffer pool; `None`: 128 for MariaDB, 384 for MySQL.
    pub buffer_pool_mib: Option<u32>,
    /// Size of the redo log; `None`: 96 for MariaDB, 160 for MySQL.
    pub redo_mib: Option<u32>,
    /// Whether caches and statistics are smaller than the server's defaults, for a quicker start.
    /// Not for servers that are measured.
    pub lean: bool,
    /// A program to use instead of the kind's own.
    pub program: Option<PathBuf>,
    /// Files to put into a new data directory: name and content.
    pub files: Vec<(String, String)>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            parent: None,
            init: Vec::new(),
            extra: Vec::new(),
            buffer_pool_mib: None,
            redo_mib: None,
            lean: true,
            program: None,
            files: Vec::new(),
        }
    }
}

impl ServerOptions {
    /// Adds an option for each start.
    #[must_use]
    pub fn arg(mut self, option: impl Into<String>) -> Self {
        self.extra.push(option.into());
        self
    }

    /// Adds an option that shapes the data directory, for example `--innodb-page-size=4k`.
    #[must_use]
    pub fn init_arg(mut self, option: impl Into<String>) -> Self {
        self.init.push(option.into());
        self
    }

    /// Sets the parent of the server's directory.
    #[must_use]
    pub fn parent(mut self, dir: impl Into<PathBuf>) -> Self {
        self.parent = Some(dir.into());
        self
    }
}

/// A server process of our own and its directories. Dropping it kills the process and removes the directories
/// made for it; if `HOLDFAST_KEEP` is set, they are kept for an investigation.
#[derive(Debug)]
pub struct Server {
    kind: ServerKind,
    options: ServerOptions,
    datadir: PathBuf,
    home: TempDir,
    socket: PathBuf,
    /// The directory of the socket if its path in `home` would be too long.
    _socket_dir: Option<TempDir>,
    port: u16,
    server_id: u32,
    child: Option<Child>,
    /// What its data directory is a copy of, as long as nobody else may be one.
    _template: Option<datadir::Lent>,
}

impl Server {
    /// Creates a data directory and starts a server on it.
    pub fn start(kind: ServerKind, options: ServerOptions) -> Result<Server> {
        let home = scratch_dir(options.parent.as_deref())?;
        let datadir = home.path().join("data");
        let template = datadir::create(kind, &options.init, &datadir)?;
        for (name, content) in &options.files {
            fs::write(datadir.join(name), content).with_context(|| name.clone())?;
        }
        Server::start_in(home, kind, datadir, template, options)
    }

    /// Starts a server on an existing data directory, such as a restored one.
    /// It is kept when the server is dropped.
    pub fn attach(kind: ServerKind, datadir: impl Into<PathBuf>, options: ServerOptions) -> Result<Server> {
        let home = scratch_dir(options.parent.as_deref())?;
        let datadir = datadir.into();
        let datadir = datadir.canonicalize().with_context(|| datadir.display().to_string())?;
        datadir::give_certificates(kind, &datadir)?;
        Server::start_in(home, kind, datadir, None, options)
    }

    fn start_in(
        home: TempDir,
        kind: ServerKind,
        datadir: PathBuf,
        template: Option<datadir::Lent>,
        options: ServerOptions,
    ) -> Result<Server> {
        for dir in ["tmp", "outside"] {
            fs::create_dir(home.path().join(dir))?;
        }
        let mut socket = home.path().join("sock");
        let mut socket_dir = None;
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            let dir = scratch_dir(None)?;
            socket = dir.path().join("sock");
            socket_dir = Some(dir);
        }
        // Random, because a restored server must differ from every server whose events it may receive.
        let server_id = (RandomState::new().hash_one(&socket) as u32).max(1);
        let mut server = Server {
            kind,
            options,
            datadir,
            home,
            socket,
            _socket_dir: socket_dir,
            port: 0,
            server_id,
            child: None,
            _template: template,
        };
        server.run()?;
        Ok(server)
    }

    /// Starts the process; also after [`stop`](Server::stop) or [`kill9`](Server::kill9), with the same
    /// identity.
    pub fn run(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "{} already runs", self.kind);
        const PORT_TRIES: u32 = 5;
        for _ in 0..PORT_TRIES {
            if self.port == 0 {
                self.port = free_port()?;
            }
            let log_begin = fs::metadata(self.log_path()).map_or(0, |meta| meta.len());
            self.spawn()?;
            match self.wait_ready() {
                Ok(()) => return Ok(()),
                // Another process took the port between our check and the server's start.
                Err(_) if self.log_from(log_begin).to_lowercase().contains("address already in use") => {
                    self.port = 0;
                }
                Err(error) => return Err(error),
            }
        }
        bail!("no free port for {} in {PORT_TRIES} tries", self.kind)
    }

    fn spawn(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let errors = log.try_clone()?;
        let arguments = self.arguments();
        let child = spawn(&self.program()?, |command| {
            command.args(arguments).current_dir(self.home.path()).stdin(std::process::Stdio::null());
            command.stdout(log).stderr(errors);
        })?;
        self.child = Some(child);
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        let home = self.home.path().display();
        let options = &self.options;
        let (redo_mib, buffer_pool_mib) = match self.kind.is_mariadb() {
            true => (REDO_MIB_MARIADB, BUFFER_POOL_MIB_MARIADB),
            false => (REDO_MIB_MYSQL, BUFFER_POOL_MIB_MYSQL),
        };
        let redo_mib = options.redo_mib.unwrap_or(redo_mib);
        let buffer_pool_mib = options.buffer_pool_mib.unwrap_or(buffer_pool_mib);
        let mut arguments = vec![
            "--no-defaults".to_owned(),
            format!("--datadir={}", self.datadir.display()),
            format!("--tmpdir={home}/tmp"),
            format!("--pid-file={home}/pid"),
            format!("--socket={}", self.socket.display()),
            format!("--port={}", self.port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--server-id={}", self.server_id),
            "--log-bin=binlog".to_owned(),
            "--binlog-format=ROW".to_owned(),
            "--sync-binlog=1".to_owned(),
            "--innodb-flush-log-at-trx-commit=1".to_owned(),
            format!("--innodb-buffer-pool-size={buffer_pool_mib}M"),
            "--max-allowed-packet=64M".to_owned(),
            "--relay-log=relay".to_owned(),
            // A restored replica must not start replicating by itself.
            "--skip-slave-start".to_owned(),
        ];
        if self.kind.is_mariadb() {
            arguments.push(format!("--innodb-log-file-size={redo_mib}M"));
            arguments.extend(["--gtid-strict-mode=ON", "--log-slave-updates"].map(str::to_owned));
        } else {
            arguments.push(format!("--innodb-redo-log-capacity={redo_mib}M"));
            arguments
                .extend(["--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--mysqlx=0"].map(str::to_owned));
            arguments.push(format!("--innodb-directories={home}/outside"));
        }
        if options.lean {
            let sizes = if self.kind.is_mariadb() { &LEAN_MARIADB[..] } else { &LEAN_MYSQL[..] };
            arguments.extend(sizes.iter().map(|&option| option.to_owned()));
        }
        if self.kind == ServerKind::MariaDb118 {
            // Without a certificate the server generates one at each start, which takes half a second of CPU
            // time.
            arguments.extend(tls::server_options());
        }
        arguments.extend(run_as_root());
        arguments.extend(options.init.iter().cloned());
        arguments.extend(options.extra.iter().cloned());
        arguments
    }

    fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if let Some(status) = self.exited()? {
                self.child = None;
                bail!("{} ended at start ({status}):\n{}", self.kind, self.log_tail());
            }
            let error = match self.conn() {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if Instant::now() > deadline {
                self.kill9()?;
                return Err(error.context(format!("{} is not ready:\n{}", self.kind, self.log_tail())));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The exit status of the process, if it has ended.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(match &mut self.child {
            Some(child) => child.try_wait()?,
            None => None,
        })
    }

    /// Shuts the server down and waits for it to exit.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + STOP_DEADLINE;
        while Instant::now() < deadline {
            if let Some(status) = self.exited()? {
                self.child = None;
                ensure!(status.success(), "{} ended with {status}:\n{}", self.kind, self.log_tail());
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.kill9()?;
        bail!("{} did not stop in {} s:\n{}", self.kind, STOP_DEADLINE.as_secs(), self.log_tail())
    }

    /// Kills the server, as in a crash.
    pub fn kill9(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Stops the server and starts it again with the same options.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.run()
    }

    /// Keeps its directories when it is dropped, for an investigation.
    pub fn keep(&mut self) {
        self.home.disable_cleanup(true);
    }

    /// Sends a signal, for example `STOP` to freeze the server.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()?).ok().and_then(Pid::from_raw).context("pid out of range")?;
        Ok(kill_process(pid, signal)?)
    }

    /// The process id of the server.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().with_context(|| format!("{} does not run", self.kind))?.id())
    }

    /// The program that it runs.
    pub fn program(&self) -> Result<PathBuf> {
        self.options.program.clone().map_or_else(|| self.kind.server_program(), Ok)
    }

    /// The kind of server.
    pub fn kind(&self) -> ServerKind {
        self.kind
    }

    /// Its data directory.
    pub fn datadir(&self) -> &Path {
        &self.datadir
    }

    /// A directory beside the data directory, on the same filesystem, that is removed with the server.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// A directory outside the data directory where this server may place tablespaces.
    pub fn outside(&self) -> PathBuf {
        self.home.path().join("outside")
    }

    /// Its Unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Everything logged since the first start.
    pub fn log(&self) -> String {
        self.log_from(0)
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }

    fn log_from(&self, offset: u64) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        String::from_utf8_lossy(&bytes[begin..]).into_owned()
    }

    fn log_tail(&self) -> String {
        const LINES: usize = 25;
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    /// Connection options for `root` by socket; callers may change them.
    pub fn opts(&self) -> OptsBuilder {
        OptsBuilder::new()
            .user(Some("root"))
            .socket(Some(self.socket.display().to_string()))
            .max_allowed_packet(Some(64 << 20))
            .prefer_socket(false)
    }

    /// Opens a connection as `root` by socket.
    pub fn conn(&self) -> Result<Conn> {
        Conn::new(self.opts()).with_context(|| format!("connecting to {}", self.kind))
    }

    /// Runs one statement on its own connection.
    pub fn exec(&self, statement: impl AsRef<str>) -> Result<()> {
        let statement = statement.as_ref();
        self.conn()?.query_drop(statement).with_context(|| statement.to_owned())
    }

    /// Runs statements in sequence on one connection.
    pub fn exec_all<S: AsRef<str>>(&self, statements: impl IntoIterator<Item = S>) -> Result<()> {
        let mut conn = self.conn()?;
        for statement in statements {
            conn.query_drop(statement.as_ref()).with_context(|| statement.as_ref().to_owned())?;
        }
        Ok(())
    }

    /// Returns all rows of a query.
    pub fn query<T: FromRow>(&self, query: impl AsRef<str>) -> Result<Vec<T>> {
        let query = query.as_ref();
        self.conn()?.query(query).with_context(|| query.to_owned())
    }

    /// Returns the single value of a query.
    pub fn value<T: FromValue>(&self, query: impl AsRef<str>) -> Result<T> {
        let query = query.as_ref();
        let row: Option<(T,)> = self.conn()?.query_first(query).with_context(|| query.to_owned())?;
        Ok(row.with_context(|| format!("no row: {query}"))?.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9().ok();
        if std::env::var_os("HOLDFAST_KEEP").is_some() {
            self.keep();
        }
    }
}

/// Creates a directory for one server.
fn scratch_dir(parent: Option<&Path>) -> Result<TempDir> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let parent = parent.canonicalize().with_context(|| parent.display().to_string())?;
    let dir = tempfile::Builder::new().prefix("hf-").tempdir_in(&parent);
    dir.with_context(|| parent.display().to_string())
}

/// The option without which a server refuses to run as root.
fn run_as_root() -> Option<String> {
    rustix::process::geteuid().is_root().then(|| "--user=root".to_owned())
}
