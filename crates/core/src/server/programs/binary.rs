//! Finds the server program of this host that fits a backup.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use holdfast_formats::Flavor;
use rustix::process::geteuid;

use super::environment::clean;
use crate::{
    error::{Error, ErrorKind, Result},
    server::ServerVersion,
};

/// Where packages install servers; searched after the directories that the caller names.
const DIRECTORIES: [&str; 5] =
    ["/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/bin", "/usr/local/mysql/bin"];

/// A server program and its version.
#[derive(Clone, Debug)]
pub struct ServerBinary {
    /// The path of the program.
    pub path: PathBuf,
    /// What `--version` prints.
    pub version: ServerVersion,
}

impl ServerBinary {
    /// Runs a program to get its version. A bare name is looked for where programs are.
    pub fn probe(path: &Path) -> Result<ServerBinary> {
        // A server runs in a directory of its own, where a relative path leads elsewhere.
        let path = match path.components().count() {
            1 => path.to_owned(),
            _ => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
        };
        let refused = |why: &str| {
            Error::new(ErrorKind::Usage, format!("{} {why}", path.display()))
                .hinted("name a MariaDB or MySQL server program with --server-binary")
        };
        let output = clean(Command::new(&path))
            .args(["--no-defaults", "--version"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| refused("cannot be run").caused_by(error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().find_map(ServerVersion::parse_program_output);
        let version = version.ok_or_else(|| refused("does not print a server version"))?;
        Ok(ServerBinary { path, version })
    }

    /// Finds the program that fits `wanted` best: same flavor and release series, and not older. A program
    /// that is named explicitly is returned as it is; [`require`](Self::require) decides whether it will do.
    pub fn find(
        explicit: Option<&Path>,
        wanted: &ServerVersion,
        directories: &[PathBuf],
    ) -> Result<ServerBinary> {
        if let Some(path) = explicit {
            return Self::probe(path);
        }
        let names: &[&str] = match wanted.flavor {
            Flavor::MariaDb => &["mariadbd", "mysqld"],
            Flavor::MySql => &["mysqld"],
        };
        let directories = directories.iter().cloned().chain(DIRECTORIES.iter().map(PathBuf::from));
        let candidates = directories.flat_map(|dir| names.iter().map(move |name| dir.join(name)));
        let mut best: Option<ServerBinary> = None;
        for path in candidates.filter(|path| path.is_file()) {
            let Ok(found) = Self::probe(&path) else { continue };
            if found.fits(wanted) {
                return Ok(found);
            }
            // Kept so that the refusal can name it.
            if best.is_none() && found.version.flavor == wanted.flavor {
                best = Some(found);
            }
        }
        best.ok_or_else(|| {
            Error::failed(format!("there is no {} server program on this host", wanted.flavor)).hinted(
                format!(
                    "install {} {}, or name its program with --server-binary",
                    wanted.flavor,
                    wanted.series()
                ),
            )
        })
    }

    fn fits(&self, wanted: &ServerVersion) -> bool {
        self.version.same_series(wanted) && self.version.number() >= wanted.number()
    }

    /// Fails unless the user and group that the files in `target` will belong to can run this program there. Only root
    /// could run it as somebody else.
    pub fn require_runs_as(&self, owner: Option<(u32, u32)>, target: &Path) -> Result<()> {
        let Some((uid, gid)) = owner.filter(|(uid, _)| geteuid().is_root() && *uid != 0) else {
            return Ok(());
        };
        let runs_in = |dir: &Path| {
            let mut command = clean(Command::new(&self.path));
            let command = command.args(["--no-defaults", "--version"]).uid(uid).gid(gid).current_dir(dir);
            match command.stdin(Stdio::null()).output() {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    Err(format!("{}: {}", output.status, said.lines().next().unwrap_or_default()))
                }
                Err(error) => Err(error.to_string()),
            }
        };
        // The target itself will belong to that user.
        let above = target.ancestors().skip(1).find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
        let Err(why) = runs_in(above) else { return Ok(()) };
        let Err(why) = runs_in(Path::new("/")) else {
            let text =
                format!("user {uid}, whose the files will be, cannot enter {}: {why}", above.display());
            return Err(Error::new(ErrorKind::Usage, text).hinted(
                "let that user pass through each directory above the target, or restore to another place",
            ));
        };
        let text = format!("user {uid}, whose the files will be, cannot run {}: {why}", self.path.display());
        Err(Error::new(ErrorKind::Usage, text).hinted(
            "let that user reach and execute the program, name another program with --server-binary, or another user \
             with --owner",
        ))
    }

    /// Fails unless this program may recover files of `wanted`: only its own series reads crash redo, and an
    /// older release may not understand what a newer one wrote.
    pub fn require(&self, wanted: &ServerVersion) -> Result<()> {
        if self.fits(wanted) {
            return Ok(());
        }
        let message = format!(
            "the backup is from {wanted}, but {} is {}: it must be of the same release series, and not older",
            self.path.display(),
            self.version
        );
        Err(Error::failed(message).hinted(format!(
            "install {} {}, name its program with --server-binary, or use --allow-version if you know that it works",
            wanted.flavor,
            wanted.series()
        )))
    }
}
