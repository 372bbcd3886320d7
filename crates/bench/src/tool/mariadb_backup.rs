//! MariaDB's own physical backup in its two usual forms: to a directory, and streamed through zstd to a file.

use std::path::Path;

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Job, Tool, Verb, missing_program};
use crate::machine::{ToolVersion, tool_version};
use crate::process::Script;
use crate::source::Source;

/// Where a backup goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Directory,
    /// One xbstream file, compressed by zstd at level 1 with two threads.
    ZstdStream,
}

/// How prepared files get to their final place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placing {
    Copy,
    Move,
}

/// mariadb-backup, with one thread for each of two processors and as much memory for
/// recovery as Holdfast uses.
pub(crate) struct MariadbBackup {
    pub(crate) output: Output,
    pub(crate) placing: Placing,
}

/// The directory of a backup within `dir`. The base of an incremental must be a directory, too.
const DIRECTORY: &str = "backup";
const STREAM: &str = "backup.xb.zst";
const CONNECT: &str = "--no-defaults --socket=\"$SOCKET\" --user=root --parallel=2";

impl MariadbBackup {
    fn with_program(kind: ServerKind, text: String) -> Result<Script> {
        Ok(Script::new(text).var("MARIADB_BACKUP", kind.program("mariadb-backup")?))
    }
}

impl Tool for MariadbBackup {
    fn id(&self) -> &'static str {
        match (self.output, self.placing) {
            (Output::Directory, _) => "mariadb-backup",
            (Output::ZstdStream, Placing::Copy) => "mariadb-backup-zstd",
            (Output::ZstdStream, Placing::Move) => "mariadb-backup-zstd-move",
        }
    }

    fn label(&self) -> &'static str {
        match (self.output, self.placing) {
            (Output::Directory, _) => "mariadb-backup; sync",
            (Output::ZstdStream, Placing::Copy) => "mariadb-backup, zstd -1 -T2; sync",
            (Output::ZstdStream, Placing::Move) => "mariadb-backup, zstd, --move-back",
        }
    }

    fn missing(&self, kind: ServerKind) -> Option<String> {
        if !kind.is_mariadb() {
            return Some(format!("mariadb-backup cannot back up {kind}"));
        }
        let own = ["mariadb-backup", "mbstream"].into_iter().find_map(|name| kind.program(name).err());
        own.map(|error| format!("{error:#}")).or_else(|| missing_program(&["zstd"]))
    }

    fn versions(&self, kind: ServerKind) -> Vec<ToolVersion> {
        let Ok(program) = kind.program("mariadb-backup") else { return Vec::new() };
        vec![
            tool_version("mariadb-backup", &program, "--version"),
            tool_version("zstd", Path::new("zstd"), "--version"),
        ]
    }

    fn expected_s_per_gb(&self, verb: Verb) -> f64 {
        match (verb, self.output, self.placing) {
            (Verb::Backup, Output::Directory, _) => 2.0,
            (Verb::Backup, Output::ZstdStream, _) => 4.0,
            (Verb::Incremental, ..) => 1.8,
            (Verb::Restore, _, Placing::Copy) => 5.0,
            (Verb::Restore, _, Placing::Move) => 3.5,
        }
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let (text, stored_in) = match self.output {
            Output::Directory => (
                format!(
                    "\"$MARIADB_BACKUP\" {CONNECT} --backup --target-dir=\"$TARGET\"\nsync -f -- \"$TARGET\""
                ),
                dir.join(DIRECTORY),
            ),
            // The directory for its own temporary files must not be the target.
            Output::ZstdStream => (
                format!(
                    "\"$MARIADB_BACKUP\" {CONNECT} --backup --stream=xbstream --target-dir=\"$SCRATCH\" |\n  \
                     zstd -q -1 -T2 -o \"$TARGET\"\nsync -f -- \"$TARGET\""
                ),
                dir.join(STREAM),
            ),
        };
        let script = MariadbBackup::with_program(source.kind(), text)?
            .var("SOCKET", source.server.socket())
            .var("SCRATCH", dir.join("scratch"))
            .var("TARGET", &stored_in);
        Ok(Job::new(script, &stored_in))
    }

    fn incremental(&self, source: &Source, base: &Path, dir: &Path) -> Result<Job> {
        let target = dir.join(DIRECTORY);
        let text = format!(
            "\"$MARIADB_BACKUP\" {CONNECT} --backup --incremental-basedir=\"$BASE\" --target-dir=\"$TARGET\"\n\
             sync -f -- \"$TARGET\""
        );
        let script = MariadbBackup::with_program(source.kind(), text)?
            .var("SOCKET", source.server.socket())
            .var("BASE", base.join(DIRECTORY))
            .var("TARGET", &target);
        Ok(Job::new(script, &target))
    }

    fn restore(&self, kind: ServerKind, backup: &Path, target: &Path, dir: &Path) -> Result<Job> {
        anyhow::ensure!(self.output == Output::ZstdStream, "restores of plain directories are not measured");
        let place = match self.placing {
            Placing::Copy => "--copy-back --parallel=2",
            Placing::Move => "--move-back",
        };
        let text = format!(
            "mkdir \"$EXTRACTED\" \"$TARGET\"\n\
             zstd -q -d -c \"$STREAM\" | \"$MBSTREAM\" -x -p 2 -C \"$EXTRACTED\"\n\
             \"$MARIADB_BACKUP\" --no-defaults --prepare --use-memory=256M --target-dir=\"$EXTRACTED\"\n\
             \"$MARIADB_BACKUP\" --no-defaults {place} --target-dir=\"$EXTRACTED\" --datadir=\"$TARGET\"\n\
             sync -f -- \"$TARGET\""
        );
        let script = MariadbBackup::with_program(kind, text)?
            .var("MBSTREAM", kind.program("mbstream")?)
            .var("STREAM", backup.join(STREAM))
            .var("EXTRACTED", dir.join("extracted"))
            .var("TARGET", target);
        Ok(Job::new(script, target))
    }
}
