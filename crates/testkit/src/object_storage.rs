//! Object storage servers, installed by `scripts/servers`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::kind::servers_dir;
use crate::port::free_port;
use crate::spawn::spawn;
use crate::tls;

/// The bucket that each server has.
pub const BUCKET: &str = "holdfast-test";
/// The access key that each server accepts.
pub const ACCESS_KEY: &str = "AKHOLDFASTTEST";
/// The secret of [`ACCESS_KEY`].
pub const SECRET_KEY: &str = "a-secret-of-tests-only";

const START_DEADLINE: Duration = Duration::from_secs(180);

/// The server software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectStorageKind {
    /// A gateway to a directory, written in Go.
    /// Its data survives a kill; it verifies signatures and checksums.
    Versitygw,
    /// A stand-in for AWS, written in Python. It keeps everything in memory, and verifies neither.
    Moto,
}

/// What the bucket keeps of deleted and overwritten objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing.
    Nothing,
    /// Their versions.
    Versions,
    /// Their versions, and writers can set how long a version must stay.
    Locks,
}

/// How clients reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    /// Unencrypted, with the bucket at the start of the path.
    Plain,
    /// By TLS with the certificate in [`tls`], with the bucket at the start of the host name.
    TlsByHost,
}

/// The bucket of a server that takes it from the host name: prefixed to [`HOST_DOMAIN`], it forms an IP
/// address, which needs no name service.
pub const HOST_BUCKET: &str = "127";
const HOST_DOMAIN: &str = "0.0.1";

/// An object storage server on this host. Dropping it kills the process.
#[derive(Debug)]
pub struct ObjectStorage {
    kind: ObjectStorageKind,
    keeps: Keeps,
    front: Front,
    port: u16,
    process: Option<Child>,
    dir: TempDir,
}

impl ObjectStorage {
    /// Starts a server with an empty bucket.
    pub fn start(kind: ObjectStorageKind) -> Result<Self> {
        Self::start_keeping(kind, Keeps::Nothing)
    }

    /// Starts a server with an empty bucket that also keeps noncurrent versions.
    pub fn start_keeping(kind: ObjectStorageKind, keeps: Keeps) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("objects-").tempdir()?;
        let port = free_port()?;
        let mut it = Self { kind, keeps, front: Front::Plain, port, process: None, dir };
        if kind == ObjectStorageKind::Versitygw {
            fs::create_dir_all(it.data())?;
            fs::create_dir_all(it.versions())?;
            if keeps == Keeps::Nothing {
                fs::create_dir(it.data().join(BUCKET))?;
            }
        }
        it.start_again()?;
        match keeps {
            Keeps::Nothing if kind == ObjectStorageKind::Moto => {
                let answer = it.ask(&format!("PUT /{BUCKET}"))?;
                ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            }
            Keeps::Nothing => {}
            Keeps::Versions => drop(it.boto(
                "s3.create_bucket(Bucket=BUCKET)\n\
                 s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={'Status': 'Enabled'})",
            )?),
            Keeps::Locks => {
                it.boto("s3.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)")?;
            }
        }
        Ok(it)
    }

    /// Starts a gateway that presents the certificate in [`tls`], and takes [`HOST_BUCKET`] from the host
    /// name.
    pub fn start_with_tls_by_host() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("objects-").tempdir()?;
        let port = free_port()?;
        let (kind, keeps, front) = (ObjectStorageKind::Versitygw, Keeps::Nothing, Front::TlsByHost);
        let mut it = Self { kind, keeps, front, port, process: None, dir };
        fs::create_dir_all(it.data().join(HOST_BUCKET))?;
        it.start_again()?;
        Ok(it)
    }

    /// Runs a Python script with AWS's own client as `s3` and returns its output.
    /// This simulates somebody else with the same credentials.
    pub fn boto(&self, script: &str) -> Result<String> {
        let python = servers_dir()?.join("moto/bin/python");
        ensure!(python.exists(), "{} is missing: run scripts/servers", python.display());
        let script = format!(
            "import boto3, datetime, json, sys\n\
             from botocore.config import Config\n\
             BUCKET = '{BUCKET}'\n\
             s3 = boto3.client('s3', config=Config(s3={{'addressing_style': 'path'}}, retries={{'max_attempts': 1}}))\n\
             {script}\n"
        );
        let output = Command::new(python)
            .args(["-W", "ignore", "-c", &script])
            .env_clear()
            .envs(self.environment())
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .stdin(Stdio::null())
            .output()?;
        let (out, err) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
        ensure!(output.status.success(), "{err}");
        Ok(String::from_utf8(out)?)
    }

    fn versions(&self) -> PathBuf {
        self.dir.path().join("versions")
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Starts the server on its old port, after [`ObjectStorage::kill`].
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "it is running");
        let dir = servers_dir()?.join(match self.kind {
            ObjectStorageKind::Versitygw => "versitygw",
            ObjectStorageKind::Moto => "moto",
        });
        let program = dir.join(match self.kind {
            ObjectStorageKind::Versitygw => "bin/versitygw",
            ObjectStorageKind::Moto => "bin/python",
        });
        ensure!(program.exists(), "{} is missing: run scripts/servers", program.display());
        let log_path = self.dir.path().join("log");
        let log = fs::OpenOptions::new().create(true).append(true).open(&log_path)?;
        let port = self.port.to_string();
        let (kind, keeps, front) = (self.kind, self.keeps, self.front);
        let (data, versions) = (self.data(), self.versions());
        let errors = log.try_clone()?;
        let process = spawn(&program, |command| {
            match kind {
                ObjectStorageKind::Versitygw => {
                    command.args(["--access", ACCESS_KEY, "--secret", SECRET_KEY, "--quiet"]);
                    command.args(["--port", &format!("127.0.0.1:{port}")]);
                    if front == Front::TlsByHost {
                        command.arg("--cert").arg(tls::file("server-cert.pem"));
                        command.arg("--key").arg(tls::file("server-key.pem"));
                        command.args(["--virtual-domain", &format!("{HOST_DOMAIN}:{port}")]);
                    }
                    command.arg("posix");
                    if keeps != Keeps::Nothing {
                        command.arg("--versioning-dir").arg(&versions);
                    }
                    command.arg(&data)
                }
                ObjectStorageKind::Moto => {
                    command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port])
                }
            };
            command.stdin(Stdio::null()).stdout(log).stderr(errors).current_dir(dir);
        })?;
        self.process = Some(process);
        let begun = Instant::now();
        loop {
            if self.answers() {
                return Ok(());
            }
            let ended = self.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
            if ended.is_some() || begun.elapsed() > START_DEADLINE {
                bail!("{:?} did not start ({ended:?}):\n{}", self.kind, fs::read_to_string(&log_path)?);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the process, as in a crash.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().ok();
            process.wait().ok();
        }
    }

    /// Keeps its data when it is dropped.
    pub fn keep(&mut self) {
        self.dir.disable_cleanup(true);
    }

    /// Sends a signal to the process, for example `STOP` to freeze it.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let process = self.process.as_ref().context("it does not run")?;
        Ok(kill_process(Pid::from_child(process), signal)?)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server.
    pub fn endpoint(&self) -> String {
        match self.front {
            Front::Plain => format!("http://127.0.0.1:{}", self.port),
            Front::TlsByHost => format!("https://{HOST_DOMAIN}:{}", self.port),
        }
    }

    fn answers(&self) -> bool {
        match self.front {
            Front::Plain => self.ask("GET /").is_ok_and(|answer| answer.starts_with("HTTP/1.1")),
            Front::TlsByHost => TcpStream::connect(("127.0.0.1", self.port)).is_ok(),
        }
    }

    /// Environment variables with its address and credentials.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
        ]
    }

    /// The directory of the bucket, for servers that have one.
    pub fn bucket_dir(&self) -> Option<PathBuf> {
        (self.kind == ObjectStorageKind::Versitygw).then(|| self.data().join(BUCKET))
    }

    /// The server's log, for the message of a failed test.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn ask(&self, what: &str) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(START_DEADLINE))?;
        write!(
            stream,
            "{what} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).context("reading its answer")?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Drop for ObjectStorage {
    fn drop(&mut self) {
        self.kill();
    }
}
