//! Azurite, Microsoft's emulator of Azure Blob Storage, installed by `scripts/servers`.
//! It keeps everything in memory.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::{kind::servers_dir, port::free_port, spawn::spawn, tls};

/// The storage account.
pub const ACCOUNT: &str = "holdfasttest";
/// The key of the account.
pub const ACCOUNT_KEY: &str = "b25seSBmb3IgdGVzdHMgb2YgSG9sZGZhc3Qh";
/// The container that exists from the start.
pub const CONTAINER: &str = "holdfast-test";

const START_DEADLINE: Duration = Duration::from_secs(180);

/// Creates the container. The emulator accepts only signed requests.
const MAKE_CONTAINER: &str = "\
    const [scheme, port, account, key, container] = process.argv.slice(1);\n\
    const date = new Date().toUTCString(), version = '2023-11-03';\n\
    const text = 'PUT' + '\\n'.repeat(12) + `x-ms-date:${date}\\nx-ms-version:${version}\\n` +\n\
    `/${account}/${account}/${container}\\nrestype:container`;\n\
    const hmac = require('crypto').createHmac('sha256', Buffer.from(key, 'base64'));\n\
    const signature = hmac.update(text, 'utf8').digest('base64');\n\
    const headers = { 'x-ms-date': date, 'x-ms-version': version, 'content-length': 0,\n\
    authorization: `SharedKey ${account}:${signature}` };\n\
    const path = `/${account}/${container}?restype=container`;\n\
    const to = { host: '127.0.0.1', port, path, method: 'PUT', headers, rejectUnauthorized: false };\n\
    require(scheme).request(to, answer => {\n\
    if (answer.statusCode != 201) { console.error(answer.statusCode); process.exit(1); } answer.resume();\n\
    }).end();";

/// An emulator on this host. Dropping it kills the process.
#[derive(Debug)]
pub struct Azurite {
    scheme: &'static str,
    port: u16,
    process: Child,
    dir: TempDir,
}

impl Azurite {
    /// Starts an emulator with an empty container.
    pub fn start() -> Result<Self> {
        Self::start_as("http")
    }

    /// Like [`start`](Azurite::start), behind TLS with a certificate of [`tls`].
    /// It then accepts tokens as well, and checks only their times, issuer and audience.
    pub fn start_behind_tls() -> Result<Self> {
        Self::start_as("https")
    }

    fn start_as(scheme: &'static str) -> Result<Self> {
        let installed = servers_dir()?.join("azurite");
        let program = installed.join("bin/azurite-blob");
        ensure!(program.exists(), "{} is missing: run scripts/servers", program.display());
        let dir = tempfile::Builder::new().prefix("azurite-").tempdir()?;
        let port = free_port()?;
        let log = fs::File::create(dir.path().join("log"))?;
        let errors = log.try_clone()?;
        let process = spawn(&program, |command| {
            command
                .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--inMemoryPersistence"])
                // The account is part of the path, even if the host name seems to contain it.
                .args(["--silent", "--disableProductStyleUrl"]);
            if scheme == "https" {
                command.args(["--oauth", "basic", "--cert"]).arg(tls::file("server-cert.pem"));
                command.arg("--key").arg(tls::file("server-key.pem"));
            }
            command
                .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{ACCOUNT_KEY}"))
                .stdin(Stdio::null())
                .stdout(log)
                .stderr(errors)
                .current_dir(dir.path());
        })?;
        let mut it = Self { scheme, port, process, dir };
        it.await_start()?;
        let made = Command::new("node")
            .args(["-e", MAKE_CONTAINER, scheme, &port.to_string(), ACCOUNT, ACCOUNT_KEY, CONTAINER])
            .stdin(Stdio::null())
            .output()
            .context("starting node")?;
        ensure!(made.status.success(), "no container: {}", String::from_utf8_lossy(&made.stderr));
        Ok(it)
    }

    fn await_start(&mut self) -> Result<()> {
        let begun = Instant::now();
        while !self.answers().is_ok_and(|answers| answers) {
            let ended = self.process.try_wait()?;
            if ended.is_some() || begun.elapsed() > START_DEADLINE {
                bail!("azurite did not start ({ended:?}):\n{}", fs::read_to_string(self.log())?);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn answers(&self) -> Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(START_DEADLINE))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
        if self.scheme == "https" {
            return Ok(true);
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer.starts_with(b"HTTP/1.1"))
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The account's URL, reached through the given port of this host.
    pub fn endpoint_at(port: u16) -> String {
        format!("http://127.0.0.1:{port}/{ACCOUNT}")
    }

    /// Environment variables with its address and credentials.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        [
            ("AZURE_STORAGE_ENDPOINT", Self::endpoint_at(self.port)),
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.to_owned()),
            ("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY.to_owned()),
        ]
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
