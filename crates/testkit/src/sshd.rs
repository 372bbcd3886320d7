//! An SSH server run by the current user, on a free port, that accepts one key.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::port::free_port;
use crate::spawn::spawn;

const SSHD: &str = "/usr/sbin/sshd";
const START_DEADLINE: Duration = Duration::from_secs(180);

/// A running server. Dropping it ends the server and its connections.
#[derive(Debug)]
pub struct Sshd {
    port: u16,
    process: Option<Child>,
    dir: TempDir,
}

impl Sshd {
    /// Starts a server that offers SFTP. `sftp` is its subsystem: `internal-sftp` as in distributions,
    /// perhaps with options (`-P hardlink` removes an extension).
    pub fn start(sftp: &str) -> Result<Self> {
        ensure!(Path::new(SSHD).exists(), "{SSHD} is missing: run scripts/servers");
        let dir = tempfile::Builder::new().prefix("sshd-").tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700))?;
        let port = free_port()?;
        let it = |name: &str| dir.path().join(name).display().to_string();
        for key in ["host_key", "user_key"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f", &it(key)])
                .stdin(Stdio::null())
                .output()
                .context("ssh-keygen")?;
            ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        let user_key = fs::read_to_string(it("user_key.pub"))?;
        let host_key = fs::read_to_string(it("host_key.pub"))?;
        fs::write(it("authorized_keys"), user_key)?;
        fs::write(it("known_hosts"), format!("[127.0.0.1]:{port} {host_key}"))?;
        let sshd = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
             UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n\
             MaxStartups 100\nMaxSessions 100\nSubsystem sftp {sftp}\n",
            it("host_key"),
            it("authorized_keys"),
        );
        fs::write(it("sshd_config"), sshd)?;
        // Like a user's ~/.ssh/config: maps a name to the host, the port and the key.
        let ssh = format!(
            "Host backup-host\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {}\n  IdentitiesOnly yes\n  \
             UserKnownHostsFile {}\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n",
            it("user_key"),
            it("known_hosts"),
        );
        fs::write(it("ssh_config"), ssh)?;
        let mut it = Self { port, process: None, dir };
        it.start_again()?;
        Ok(it)
    }

    /// Starts the server on its old port, after [`Sshd::kill`].
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "it is running");
        // When started by root, it needs a directory for privilege separation.
        if rustix::process::geteuid().is_root() {
            fs::create_dir_all("/run/sshd").ok();
        }
        let log_path = self.dir.path().join("log");
        let log = fs::OpenOptions::new().create(true).append(true).open(&log_path)?;
        let config = self.dir.path().join("sshd_config");
        let process = spawn(Path::new(SSHD), |command| {
            command
                .args(["-D", "-e", "-f"])
                .arg(config)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
        })?;
        self.process = Some(process);
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
            if ended.is_some() || begun.elapsed() > START_DEADLINE {
                bail!("sshd did not start ({ended:?}):\n{}", fs::read_to_string(&log_path)?);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Kills the server; open connections continue.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().ok();
            process.wait().ok();
        }
    }

    /// Kills the server's sides of all open connections; it accepts new ones.
    pub fn kill_sessions(&self) -> Result<()> {
        let process = self.process.as_ref().context("it is not running")?;
        let mut sessions = children_of(process.id());
        ensure!(!sessions.is_empty(), "there are no connections");
        let mut at = 0;
        while let Some(&session) = sessions.get(at) {
            sessions.extend(children_of(session));
            at += 1;
        }
        for session in sessions {
            let pid = i32::try_from(session).ok().and_then(Pid::from_raw).context("a process")?;
            // Its parent may have ended it.
            kill_process(pid, Signal::KILL).ok();
        }
        Ok(())
    }

    /// Starts an agent that has the key.
    pub fn agent(&self) -> Result<Agent> {
        let socket = self.dir.path().join("agent");
        let process = spawn(Path::new("/usr/bin/ssh-agent"), |command| {
            command.arg("-D").arg("-a").arg(&socket).stdin(Stdio::null()).stdout(Stdio::null());
        })?;
        let agent = Agent { process, socket };
        let begun = Instant::now();
        loop {
            let added = Command::new("ssh-add")
                .arg(self.dir.path().join("user_key"))
                .env("SSH_AUTH_SOCK", &agent.socket)
                .stdin(Stdio::null())
                .output()
                .context("ssh-add")?;
            if added.status.success() {
                return Ok(agent);
            }
            let said = String::from_utf8_lossy(&added.stderr);
            ensure!(begun.elapsed() < START_DEADLINE, "the agent does not take the key: {said}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Like [`ssh_config`](Sshd::ssh_config), but naming no key: an agent must have it.
    pub fn ssh_config_without_key(&self) -> Result<PathBuf> {
        let path = self.dir.path().join("ssh_config_without_key");
        let config = fs::read_to_string(self.ssh_config())?;
        let keyless = config.lines().filter(|line| !line.trim_start().starts_with("Identit"));
        fs::write(&path, keyless.map(|line| format!("{line}\n")).collect::<String>())?;
        Ok(path)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// An ssh configuration file that names the server `backup-host`.
    pub fn ssh_config(&self) -> PathBuf {
        self.dir.path().join("ssh_config")
    }

    /// The server's log, for the message of a failed test.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

/// A running ssh-agent. Dropping it ends it.
#[derive(Debug)]
pub struct Agent {
    process: Child,
    socket: PathBuf,
}

impl Agent {
    /// The value of `SSH_AUTH_SOCK` that leads to it.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The processes that a process has started; none if it has ended.
fn children_of(parent: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    listed
        .flat_map(|pids| pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.kill();
    }
}
