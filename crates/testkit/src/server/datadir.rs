//! Creates and copies data directories.
//!
//! Initialising takes MySQL several seconds, so one directory per set of options is cached beside the servers
//! and copied, unless the options name other places.
//! MariaDB is fast, and each of its directories gets its own identity.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::run_as_root;
use crate::kind::{ServerKind, servers_dir};

/// Creates a data directory. `init` holds the options that shape it.
pub(super) fn create(kind: ServerKind, init: &[String], datadir: &Path) -> Result<()> {
    // A template cannot contain files outside of it.
    if kind.is_mariadb() || init.iter().any(|option| option.contains('/')) {
        return initialise(kind, init, datadir);
    }
    let template = template(kind, init)?;
    copy(&template, datadir)
}

fn template(kind: ServerKind, init: &[String]) -> Result<PathBuf> {
    let mut hash = DefaultHasher::new();
    (init, kind.version()?).hash(&mut hash);
    let templates = servers_dir()?.join("datadirs");
    let template = templates.join(format!("{kind}-{:016x}", hash.finish()));
    if !template.is_dir() {
        fs::create_dir_all(&templates)?;
        let scratch = tempfile::tempdir_in(&templates)?;
        let made = scratch.path().join("data");
        initialise(kind, init, &made)?;
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
    for entry in fs::read_dir(template(kind, &[])?)? {
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
