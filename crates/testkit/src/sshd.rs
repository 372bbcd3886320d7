//! An SSH server run by the current user, on a free port, that accepts one key.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
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

impl Drop for Sshd {
    fn drop(&mut self) {
        self.kill();
    }
}
