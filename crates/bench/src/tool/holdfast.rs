//! Holdfast itself, run with the options that an operator would type.

use std::path::{Path, PathBuf};

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Job, Tool, Verb, mysql_tools::ONLY_MYSQL};
use crate::machine::{ToolVersion, tool_version};
use crate::process::Script;
use crate::source::Source;

/// Holdfast with one storage configuration.
pub(crate) struct Holdfast {
    program: PathBuf,
    id: &'static str,
    label: &'static str,
    encrypted: bool,
    /// The name of its backups.
    name: &'static str,
    backup_options: &'static str,
    load_options: &'static str,
    /// Seconds per GB of data, for the forecast.
    expected_s_per_gb: f64,
    /// The location of the repository, if not in the directory of the backup.
    location: Option<String>,
}

impl Holdfast {
    /// The defaults: zstd at level 1, encrypted.
    pub(crate) fn defaults(program: &Path) -> Holdfast {
        Holdfast {
            program: program.to_path_buf(),
            id: "holdfast",
            label: "holdfast (zstd, encrypted)",
            encrypted: true,
            name: "bench",
            backup_options: "",
            load_options: "",
            expected_s_per_gb: 2.4,
            location: None,
        }
    }

    /// No compression and no encryption.
    pub(crate) fn plain(program: &Path) -> Holdfast {
        Holdfast {
            id: "holdfast-plain",
            label: "holdfast (plain, unencrypted)",
            encrypted: false,
            backup_options: " --compress none",
            expected_s_per_gb: 2.0,
            ..Holdfast::defaults(program)
        }
    }

    /// The fast codec, encrypted.
    pub(crate) fn lz4(program: &Path) -> Holdfast {
        Holdfast {
            id: "holdfast-lz4",
            label: "holdfast (lz4, encrypted)",
            backup_options: " --compress lz4",
            expected_s_per_gb: 2.2,
            ..Holdfast::defaults(program)
        }
    }

    /// The compression level that other programs use by default.
    pub(crate) fn level_3(program: &Path) -> Holdfast {
        Holdfast {
            id: "holdfast-zstd3",
            label: "holdfast (zstd:3, encrypted)",
            backup_options: " --compress zstd:3",
            expected_s_per_gb: 4.0,
            ..Holdfast::defaults(program)
        }
    }

    /// Rows and statements of one schema, stored with the defaults.
    pub(crate) fn logical(program: &Path) -> Holdfast {
        Holdfast {
            backup_options: " --method logical --database shop",
            expected_s_per_gb: 4.0,
            ..Holdfast::defaults(program)
        }
    }

    /// Like [`logical`](Holdfast::logical), without compression and encryption.
    pub(crate) fn logical_plain(program: &Path) -> Holdfast {
        Holdfast {
            backup_options: " --method logical --database shop --compress none",
            ..Holdfast::plain(program)
        }
    }

    /// Loads without writing a binlog, as myloader does.
    pub(crate) fn without_binlog(self) -> Holdfast {
        Holdfast { load_options: " --without-binlog", ..self }
            .named("holdfast-without-binlog", "holdfast --without-binlog")
    }

    /// Loads with `LOAD DATA` and without a binlog.
    pub(crate) fn by_load_data(self) -> Holdfast {
        Holdfast { load_options: " --without-binlog --enable-local-infile", ..self }
            .named("holdfast-load-data", "holdfast --without-binlog --enable-local-infile")
    }

    /// The same, while the server writes no redo: all that a user can consent to.
    pub(crate) fn by_load_data_without_redo(self) -> Holdfast {
        Holdfast { load_options: " --without-binlog --enable-local-infile --disable-redo", ..self }.named(
            "holdfast-load-data-no-redo",
            "holdfast --without-binlog --enable-local-infile --disable-redo",
        )
    }

    /// Loads with `LOAD DATA`, with the binlog.
    pub(crate) fn by_load_data_with_binlog(self) -> Holdfast {
        Holdfast { load_options: " --enable-local-infile", ..self }
            .named("holdfast-load-data-binlog", "holdfast --enable-local-infile")
    }

    /// Loads without a binlog and without reading anything back.
    pub(crate) fn unverified(self) -> Holdfast {
        Holdfast { load_options: " --without-binlog --no-verify", ..self }
            .named("holdfast-unverified", "holdfast --without-binlog --no-verify")
    }

    /// Renames the contestant, for scenarios that use it twice.
    pub(crate) fn named(self, id: &'static str, label: &'static str) -> Holdfast {
        Holdfast { id, label, ..self }
    }

    /// Changes the name of its backups in the repository.
    pub(crate) fn of_name(self, name: &'static str) -> Holdfast {
        Holdfast { name, ..self }
    }

    /// Moves its repository elsewhere.
    pub(crate) fn at(self, location: String) -> Holdfast {
        Holdfast { location: Some(location), ..self }
    }

    /// The path of the repository for a backup into `dir`.
    pub(crate) fn repo(dir: &Path) -> PathBuf {
        dir.join("repo")
    }

    /// A `holdfast` command on the repository in `dir`.
    pub(crate) fn command(&self, words: &str, dir: &Path) -> Script {
        let password = if self.encrypted { " --password-file \"$PASSWORD_FILE\"" } else { "" };
        Script::new(format!("\"$HOLDFAST\" --repo \"$REPO\"{password} {words}"))
            .var("HOLDFAST", &self.program)
            .var(
                "REPO",
                self.location.clone().map_or_else(|| Holdfast::repo(dir).into_os_string(), Into::into),
            )
            .var("PASSWORD_FILE", dir.join("password"))
    }

    /// Creates the repository.
    pub(super) fn init(&self, dir: &Path) -> Script {
        match self.encrypted {
            true => self.command("init", dir).before("echo measured > \"$PASSWORD_FILE\"\n"),
            false => self.command("init --no-encryption", dir),
        }
    }

    fn backup_command(&self, source: &Source, dir: &Path) -> Script {
        let server = "--no-defaults --socket \"$SOCKET\" --user root";
        self.command(&format!("backup --json --name {} {server}{}", self.name, self.backup_options), dir)
            .var("SOCKET", source.server.socket())
    }

    /// Archives the binlog.
    pub(super) fn archive_command(&self, source: &Source, options: &str, dir: &Path) -> Script {
        let server = "--no-defaults --socket \"$SOCKET\" --user root";
        self.command(&format!("binlog archive --json --name {} {server}{options}", self.name), dir)
            .var("SOCKET", source.server.socket())
    }
}

impl Tool for Holdfast {
    fn id(&self) -> &'static str {
        self.id
    }

    fn label(&self) -> &'static str {
        self.label
    }

    fn missing(&self, kind: ServerKind) -> Option<String> {
        if kind.is_mariadb() && self.load_options.contains("--enable-local-infile") {
            return Some(ONLY_MYSQL.to_owned());
        }
        let hint = "build it with `cargo build --release -p holdfast`";
        (!self.program.is_file()).then(|| format!("no program {}: {hint}", self.program.display()))
    }

    fn versions(&self, _kind: ServerKind) -> Vec<ToolVersion> {
        vec![tool_version("holdfast", &self.program, "--version")]
    }

    fn needs_object_storage(&self) -> bool {
        self.location.is_some()
    }

    fn expected_s_per_gb(&self, verb: Verb) -> f64 {
        match verb {
            Verb::Backup => self.expected_s_per_gb,
            Verb::Incremental => 1.3,
            Verb::Restore => 2.8,
        }
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let job = Job::new(self.backup_command(source, dir), &Holdfast::repo(dir));
        Ok(Job { before: Some(self.init(dir)), ..job })
    }

    fn incremental(&self, source: &Source, base: &Path, _dir: &Path) -> Result<Job> {
        Ok(Job::new(self.backup_command(source, base), &Holdfast::repo(base)))
    }

    fn restore(&self, kind: ServerKind, backup: &Path, target: &Path, _dir: &Path) -> Result<Job> {
        // Restored files belong to the current user: another user could not enter the scratch directory.
        let words = "restore latest --json --target-dir \"$TARGET\" --server-binary \"$SERVER\" \
                     --owner \"$(id -u):$(id -g)\"";
        let script = self.command(words, backup).var("TARGET", target).var("SERVER", kind.server_program()?);
        Ok(Job::new(script, target))
    }

    fn load(&self, backup: &Path, target: &Source) -> Result<Job> {
        let words = format!(
            "restore latest --to-server --json --no-defaults --socket \"$SOCKET\" --user root{}",
            self.load_options
        );
        let timed = self.command(&words, backup).var("SOCKET", target.server.socket());
        Ok(Job { before: None, timed, stored_in: None })
    }
}
