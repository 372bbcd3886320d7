//! Programs other than Holdfast that read and load rows: the servers' own clients, mydumper and
//! myloader, and the floor.

use std::path::Path;

use anyhow::{Context, Result};
use holdfast_testkit::ServerKind;

use super::{Job, Tool, Verb, missing_program};
use crate::machine::{ToolVersion, tool_version};
use crate::process::Script;
use crate::source::Source;

const SYNC: &str = "\nsync -f -- \"$TARGET\"";

/// As many connections as there are processors, which read and discard all rows.
pub(crate) struct Drain;

impl Tool for Drain {
    fn id(&self) -> &'static str {
        "drain"
    }

    fn label(&self) -> &'static str {
        "floor: 2 connections, to nowhere"
    }

    fn missing(&self, _kind: ServerKind) -> Option<String> {
        None
    }

    fn expected_s_per_gb(&self, _verb: Verb) -> f64 {
        2.0
    }

    fn backup(&self, source: &Source, _dir: &Path) -> Result<Job> {
        let bench = std::env::current_exe().context("find this program")?;
        let timed = Script::new("\"$HOLDFAST_BENCH\" drain --socket \"$SOCKET\" --connections 2")
            .var("HOLDFAST_BENCH", bench)
            .var("SOCKET", source.server.socket());
        Ok(Job { before: None, timed, stored_in: None })
    }
}

/// mariadb-dump or mysqldump, and `mariadb` or `mysql` for loading.
pub(crate) struct ClientDump {
    pub(crate) compressed: bool,
    /// Whether the dump says which binlog position it has, as one must if changes are to follow.
    pub(crate) with_position: bool,
}

impl ClientDump {
    fn file(&self) -> &'static str {
        if self.compressed { "dump.sql.zst" } else { "dump.sql" }
    }

    fn program(kind: ServerKind) -> &'static str {
        if kind.is_mariadb() { "mariadb-dump" } else { "mysqldump" }
    }
}

impl Tool for ClientDump {
    fn id(&self) -> &'static str {
        if self.compressed { "client-dump-zstd" } else { "client-dump" }
    }

    fn label(&self) -> &'static str {
        if self.compressed { "mysqldump, zstd -1 -T2; sync" } else { "mysqldump; sync" }
    }

    fn missing(&self, kind: ServerKind) -> Option<String> {
        let own = kind.program(ClientDump::program(kind)).err();
        own.map(|error| format!("{error:#}")).or_else(|| missing_program(&["zstd"]))
    }

    fn versions(&self, kind: ServerKind) -> Vec<ToolVersion> {
        let name = ClientDump::program(kind);
        kind.program(name).map(|program| vec![tool_version(name, &program, "--version")]).unwrap_or_default()
    }

    fn expected_s_per_gb(&self, verb: Verb) -> f64 {
        if verb == Verb::Restore { 60.0 } else { 9.0 }
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let target = dir.join(self.file());
        let zstd = if self.compressed { " | zstd -q -1 -T2" } else { "" };
        let position = match (self.with_position, source.kind().is_mariadb()) {
            (false, _) => "",
            (true, true) => " --master-data=2",
            (true, false) => " --source-data=2",
        };
        let text = format!(
            "\"$DUMP\" --no-defaults --socket=\"$SOCKET\" --user=root --single-transaction --quick --hex-blob \\\n  \
             --databases shop{position}{zstd} > \"$TARGET\"{SYNC}"
        );
        let script = Script::new(text)
            .var("DUMP", source.kind().program(ClientDump::program(source.kind()))?)
            .var("SOCKET", source.server.socket())
            .var("TARGET", &target);
        Ok(Job::new(script, &target))
    }

    fn load(&self, backup: &Path, target: &Source) -> Result<Job> {
        let read = if self.compressed { "zstd -q -d -c \"$DUMP\" |" } else { "cat \"$DUMP\" |" };
        let text = format!("{read} \"$CLIENT\" --no-defaults --socket=\"$SOCKET\" --user=root");
        let timed = Script::new(text)
            .var("CLIENT", target.kind().client_program()?)
            .var("SOCKET", target.server.socket())
            .var("DUMP", backup.join(self.file()));
        Ok(Job { before: None, timed, stored_in: None })
    }
}

/// mydumper and myloader, with two threads.
pub(crate) struct Mydumper {
    pub(crate) compressed: bool,
}

impl Tool for Mydumper {
    fn id(&self) -> &'static str {
        if self.compressed { "mydumper-zstd" } else { "mydumper" }
    }

    fn label(&self) -> &'static str {
        if self.compressed { "mydumper -t 2, zstd; sync" } else { "mydumper -t 2; sync" }
    }

    fn missing(&self, _kind: ServerKind) -> Option<String> {
        missing_program(&["mydumper", "myloader"])
    }

    fn versions(&self, _kind: ServerKind) -> Vec<ToolVersion> {
        vec![tool_version("mydumper", Path::new("mydumper"), "--version")]
    }

    fn expected_s_per_gb(&self, verb: Verb) -> f64 {
        if verb == Verb::Restore { 40.0 } else { 5.0 }
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let target = dir.join("dump");
        let compress = if self.compressed { " --compress ZSTD" } else { "" };
        let server = server_version(source.kind())?;
        let text = format!(
            "mydumper --socket \"$SOCKET\" --user root{server} --threads 2 --database shop \\\n  \
             --outputdir \"$TARGET\"{compress}{SYNC}"
        );
        let script = Script::new(text).var("SOCKET", source.server.socket()).var("TARGET", &target);
        Ok(Job::new(script, &target))
    }

    fn load(&self, backup: &Path, target: &Source) -> Result<Job> {
        let server = server_version(target.kind())?;
        let text =
            format!("myloader --socket \"$SOCKET\" --user root{server} --threads 2 --directory \"$DUMP\"");
        let timed = Script::new(text).var("SOCKET", target.server.socket()).var("DUMP", backup.join("dump"));
        Ok(Job { before: None, timed, stored_in: None })
    }
}

/// The option that tells mydumper the server's version.
/// It recognises MySQL by the word in `@@version_comment`, where Debian's build has `(Debian)`, and sends a
/// server that it does not recognise queries that 9.7 no longer supports.
fn server_version(kind: ServerKind) -> Result<String> {
    match kind.is_mariadb() {
        true => Ok(String::new()),
        false => Ok(format!(" --server-version mysql-{}", kind.version()?)),
    }
}
