//! Creates and copies data directories.
//!
//! Initialising takes MySQL several seconds of processor time and MariaDB half a second, so directories are
//! cached beside the servers and copied, unless the options name other places. A copy of MySQL's gets an
//! identity of its own. One of MariaDB's keeps its identity, so there are several, lent to one server at a
//! time.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::run_as_root;
use crate::kind::{ServerKind, servers_dir};

/// Templates that were given back wait their turn, so that servers that follow one another differ too.
const WAITING_MIN: usize = 6;

/// The templates of one set of options.
#[derive(Debug, Default)]
struct Templates {
    /// Those that no server has, in the order in which they were given back.
    waiting: VecDeque<u32>,
    /// How many there are.
    count: u32,
}

static LENT: Mutex<BTreeMap<String, Templates>> = Mutex::new(BTreeMap::new());

/// A template of which a server of this process has a copy. It is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Lent {
    /// The set of options.
    set: String,
    number: u32,
}

impl Lent {
    fn take(set: String) -> Self {
        let mut lent = LENT.lock().unwrap_or_else(PoisonError::into_inner);
        let templates = lent.entry(set.clone()).or_default();
        let waiting =
            if templates.waiting.len() > WAITING_MIN { templates.waiting.pop_front() } else { None };
        let number = waiting.unwrap_or_else(|| {
            templates.count += 1;
            templates.count
        });
        Self { set, number }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut lent = LENT.lock().unwrap_or_else(PoisonError::into_inner);
        lent.entry(self.set.clone()).or_default().waiting.push_back(self.number);
    }
}

/// Creates a data directory. `init` holds the options that shape it. The server keeps the result as long as it
/// lives.
pub(super) fn create(kind: ServerKind, init: &[String], datadir: &Path) -> Result<Option<Lent>> {
    // A template cannot contain files outside of it.
    if init.iter().any(|option| option.contains('/')) {
        initialise(kind, init, datadir)?;
        return Ok(None);
    }
    let set = set(kind, init)?;
    if !kind.is_mariadb() {
        copy(&template(kind, init, &set)?, datadir)?;
        return Ok(None);
    }
    let lent = Lent::take(set);
    copy(&template(kind, init, &format!("{}-{}", lent.set, lent.number))?, datadir)?;
    Ok(Some(lent))
}

/// The name of a set of options.
fn set(kind: ServerKind, init: &[String]) -> Result<String> {
    let mut hash = DefaultHasher::new();
    (init, kind.version()?).hash(&mut hash);
    Ok(format!("{kind}-{:016x}", hash.finish()))
}

/// The template of this name, which is made if it is not there.
fn template(kind: ServerKind, init: &[String], name: &str) -> Result<PathBuf> {
    let templates = servers_dir()?.join("datadirs");
    let template = templates.join(name);
    if !template.is_dir() {
        fs::create_dir_all(&templates)?;
        let scratch = tempfile::tempdir_in(&templates)?;
        let made = scratch.path().join("data");
        initialise(kind, init, &scratch.path().join("full"))?;
        // Most of it is an empty redo log: with holes it is copied faster, and takes less room.
        copy(&scratch.path().join("full"), &made)?;
        // If another process was faster, its directory is just as good.
        if let Err(error) = fs::rename(&made, &template)
            && !template.is_dir()
        {
            return Err(error).with_context(|| template.display().to_string());
        }
    }
    Ok(template)
}

/// Gives a restored directory the certificates and keys that MySQL would generate at its start, which takes
/// half a second of CPU time.
pub(super) fn give_certificates(kind: ServerKind, datadir: &Path) -> Result<()> {
    if kind.is_mariadb() || datadir.join("ca.pem").exists() {
        return Ok(());
    }
    for entry in fs::read_dir(template(kind, &[], &set(kind, &[])?)?)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|it| it == "pem") {
            fs::copy(entry.path(), datadir.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn initialise(kind: ServerKind, init: &[String], datadir: &Path) -> Result<()> {
    let mut command = if kind.is_mariadb() {
        let program = kind.program("mariadb-install-db")?;
        let basedir = program.ancestors().nth(2).context("mariadb-install-db has no base directory")?;
        let mut command = Command::new(&program);
        command.arg("--no-defaults").arg(format!("--basedir={}", basedir.display()));
        command.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]);
        command
    } else {
        let mut command = Command::new(kind.server_program()?);
        command.args(["--no-defaults", "--initialize-insecure"]);
        command
    };
    // A starting server removes what it takes for temporary tables of a crashed one, so the directory must
    // never be shared.
    let scratch = tempfile::tempdir()?;
    command
        .arg(format!("--datadir={}", datadir.display()))
        .arg(format!("--tmpdir={}", scratch.path().display()));
    command.args(run_as_root()).args(init);
    let output = command.output().with_context(|| format!("initialising {kind}"))?;
    ensure!(
        output.status.success(),
        "initialising {kind} ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Copies the data directory of a stopped server, preserving holes.
/// The copy is a server of its own: it gets no `auto.cnf`, which holds MySQL's server UUID.
pub fn copy(source: &Path, target: &Path) -> Result<()> {
    ensure!(!target.exists(), "{} exists", target.display());
    let output = Command::new("cp").args(["-a", "--sparse=always", "--"]).arg(source).arg(target).output()?;
    ensure!(
        output.status.success(),
        "copying {} to {}: {}",
        source.display(),
        target.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    match fs::remove_file(target.join("auto.cnf")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
