//! Tools that come with MySQL: the clone plugin and mysqldump.

use std::path::Path;

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Job, Tool, Verb, missing_program};
use crate::machine::{ToolVersion, tool_version};
use crate::process::Script;
use crate::source::Source;

pub(super) const ONLY_MYSQL: &str = "comes with MySQL only";

/// `CLONE LOCAL DATA DIRECTORY`: the server copies itself, so the cost is the server's CPU time.
pub(crate) struct CloneLocal;

impl Tool for CloneLocal {
    fn id(&self) -> &'static str {
        "clone-local"
    }

    fn label(&self) -> &'static str {
        "CLONE LOCAL DATA DIRECTORY; sync"
    }

    fn missing(&self, kind: ServerKind) -> Option<String> {
        kind.is_mariadb().then(|| ONLY_MYSQL.to_owned())
    }

    fn expected_s_per_gb(&self, verb: Verb) -> f64 {
        match verb {
            Verb::Restore => 1.8,
            _ => 2.0,
        }
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let target = dir.join("clone");
        let client = "\"$CLIENT\" --no-defaults --socket=\"$SOCKET\" --user=root";
        let with_client = |text: String| -> Result<Script> {
            Ok(Script::new(text)
                .var("CLIENT", source.kind().client_program()?)
                .var("SOCKET", source.server.socket())
                .var("TARGET", &target))
        };
        let install = "INSTALL PLUGIN clone SONAME 'mysql_clone.so'";
        let is_there = "SELECT COUNT(*) FROM information_schema.plugins WHERE plugin_name = 'clone'";
        let before = format!("[ \"$({client} -N -e \"{is_there}\")\" = 1 ] || {client} -e \"{install}\"");
        let timed = format!("{client} -e \"CLONE LOCAL DATA DIRECTORY = '$TARGET'\"\nsync -f -- \"$TARGET\"");
        Ok(Job { before: Some(with_client(before)?), ..Job::new(with_client(timed)?, &target) })
    }

    /// A clone is a data directory; it is copied because a backup must survive its restore.
    fn restore(&self, _kind: ServerKind, backup: &Path, target: &Path, _dir: &Path) -> Result<Job> {
        let script = Script::new("cp -a -- \"$CLONE\" \"$TARGET\"\nsync -f -- \"$TARGET\"");
        Ok(Job::new(script.var("CLONE", backup.join("clone")).var("TARGET", target), target))
    }
}

/// mysqldump of everything through zstd: not a physical backup, but what many use instead.
pub(crate) struct Dump;

impl Tool for Dump {
    fn id(&self) -> &'static str {
        "mysqldump-zstd"
    }

    fn label(&self) -> &'static str {
        "mysqldump, zstd -1 -T2; sync"
    }

    fn missing(&self, kind: ServerKind) -> Option<String> {
        if kind.is_mariadb() {
            return Some(ONLY_MYSQL.to_owned());
        }
        kind.program("mysqldump")
            .err()
            .map(|error| format!("{error:#}"))
            .or_else(|| missing_program(&["zstd"]))
    }

    fn versions(&self, kind: ServerKind) -> Vec<ToolVersion> {
        let Ok(program) = kind.program("mysqldump") else { return Vec::new() };
        vec![
            tool_version("mysqldump", &program, "--version"),
            tool_version("zstd", Path::new("zstd"), "--version"),
        ]
    }

    fn expected_s_per_gb(&self, _verb: Verb) -> f64 {
        9.0
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let target = dir.join("dump.sql.zst");
        let text = "\"$MYSQLDUMP\" --no-defaults --socket=\"$SOCKET\" --user=root --single-transaction --quick --hex-blob \\\n  \
                    --all-databases --routines --triggers --events | zstd -q -1 -T2 -o \"$TARGET\"\nsync -f -- \"$TARGET\"";
        let script = Script::new(text)
            .var("MYSQLDUMP", source.kind().program("mysqldump")?)
            .var("SOCKET", source.server.socket())
            .var("TARGET", &target);
        Ok(Job::new(script, &target))
    }
}
