//! Programs that receive the binlog of a running server, for a set time.

use std::path::Path;

use anyhow::{Context, Result};
use holdfast_testkit::{Server, ServerKind};

use super::{Holdfast, Job, Tool, Verb, missing_program};
use crate::machine::{ToolVersion, tool_version};
use crate::process::Script;
use crate::source::Source;

/// How long each of them runs.
pub(crate) const RUNS_S: u32 = 20;

/// Runs a command, which is the last one of `script`, for that time; `how_it_ends` is what its end is worth.
fn for_a_while(script: Script, how_it_ends: &str) -> Script {
    script.after(&format!(
        " &\narchiver=$!\nsleep {RUNS_S}\nkill -TERM \"$archiver\"\nwait \"$archiver\"{how_it_ends}"
    ))
}

/// `holdfast binlog archive`, at the end of the binlog when the measurement begins.
pub(crate) struct Archiver {
    pub(crate) holdfast: Holdfast,
    pub(crate) options: &'static str,
}

impl Tool for Archiver {
    fn id(&self) -> &'static str {
        self.holdfast.id()
    }

    fn label(&self) -> &'static str {
        self.holdfast.label()
    }

    fn missing(&self, kind: ServerKind) -> Option<String> {
        self.holdfast.missing(kind)
    }

    fn versions(&self, kind: ServerKind) -> Vec<ToolVersion> {
        self.holdfast.versions(kind)
    }

    fn needs_object_storage(&self) -> bool {
        self.holdfast.needs_object_storage()
    }

    fn expected_s_per_gb(&self, _verb: Verb) -> f64 {
        // It depends on the time alone.
        0.0
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let init = self.holdfast.init(dir);
        let archive = |options: &str| self.holdfast.archive_command(source, options, dir);
        // What the server has so far is none of the measurement's.
        let before = init.after(&format!("\n{}", archive(" --once").text()));
        let before = before.var("SOCKET", source.server.socket());
        // A finding: commits that came before it was connected did not wait.
        let timed = for_a_while(archive(self.options).var("SPOOL", dir.join("spool")), " || [ $? = 3 ]");
        Ok(Job { before: Some(before), timed, stored_in: Some(Holdfast::repo(dir)) })
    }
}

/// `mysqlbinlog --raw --stop-never`: the server's own client, which writes files and syncs none of them.
pub(crate) struct BinlogClient;

impl BinlogClient {
    fn program(kind: ServerKind) -> &'static str {
        if kind.is_mariadb() { "mariadb-binlog" } else { "mysqlbinlog" }
    }
}

impl Tool for BinlogClient {
    fn id(&self) -> &'static str {
        "binlog-client"
    }

    fn label(&self) -> &'static str {
        "mysqlbinlog --raw --stop-never"
    }

    fn missing(&self, kind: ServerKind) -> Option<String> {
        let program = Self::program(kind);
        kind.program(program).err().and_then(|_| missing_program(&[program]))
    }

    fn versions(&self, kind: ServerKind) -> Vec<ToolVersion> {
        let name = Self::program(kind);
        kind.program(name).map(|program| tool_version(name, &program, "--version")).into_iter().collect()
    }

    fn expected_s_per_gb(&self, _verb: Verb) -> f64 {
        // It depends on the time alone.
        0.0
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let newest = newest_file(&source.server)?;
        let target = dir.join("binlogs");
        let receive = "\"$CLIENT\" --no-defaults --socket=\"$SOCKET\" --user=root --read-from-remote-server \
                       --raw --stop-never --result-file=\"$TARGET/\" \"$NEWEST\"";
        let script = Script::new(receive)
            .var("CLIENT", source.kind().program(Self::program(source.kind()))?)
            .var("SOCKET", source.server.socket())
            .var("TARGET", &target)
            .var("NEWEST", newest);
        // It knows no good end.
        let timed = for_a_while(script, " || true");
        let before = Script::new("mkdir -- \"$TARGET\"").var("TARGET", &target);
        Ok(Job { before: Some(before), timed, stored_in: Some(target) })
    }
}

/// The file that the server writes.
fn newest_file(server: &Server) -> Result<String> {
    const QUESTION: &str = "SHOW BINARY LOGS";
    let mut names: Vec<String> = match server.kind().is_mariadb() {
        true => server.query::<(String, u64)>(QUESTION)?.into_iter().map(|(name, _)| name).collect(),
        false => {
            server.query::<(String, u64, String)>(QUESTION)?.into_iter().map(|(name, ..)| name).collect()
        }
    };
    names.pop().context("the server writes no binlog")
}
