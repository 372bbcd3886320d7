//! rustic: another program for restic's format of repositories.

use std::path::Path;

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Job, Tool, Verb, missing_program};
use crate::machine::{ToolVersion, tool_version};
use crate::process::Script;
use crate::source::Source;

pub(crate) struct Rustic;

fn script(dir: &Path, words: &str) -> Script {
    Script::new(format!("rustic --no-progress --log-level warn --no-cache --repository \"$REPO\" {words}"))
        .var("REPO", dir.join("repo"))
        .var("RUSTIC_PASSWORD", "measured")
}

fn backup(source: &Source, dir: &Path) -> Job {
    let timed = script(dir, "backup \"$DATADIR\"\nsync -f -- \"$REPO\"").var("DATADIR", source.datadir());
    Job::new(timed, &dir.join("repo"))
}

impl Tool for Rustic {
    fn id(&self) -> &'static str {
        "rustic"
    }

    fn label(&self) -> &'static str {
        "rustic backup (its default); sync"
    }

    fn missing(&self, _kind: ServerKind) -> Option<String> {
        missing_program(&["rustic"])
    }

    fn versions(&self, _kind: ServerKind) -> Vec<ToolVersion> {
        vec![tool_version("rustic", Path::new("rustic"), "--version")]
    }

    fn expected_s_per_gb(&self, _verb: Verb) -> f64 {
        12.0
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        Ok(Job { before: Some(script(dir, "init")), ..backup(source, dir) })
    }

    fn incremental(&self, source: &Source, base: &Path, _dir: &Path) -> Result<Job> {
        Ok(backup(source, base))
    }
}
