//! restic: a repository for files, deduplicated by content, compressed and encrypted. What it copies from a
//! running server cannot be restored; here the server is idle, and the question is what its repository costs.

use std::path::Path;

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Job, Tool, Verb, missing_program};
use crate::machine::{ToolVersion, tool_version};
use crate::process::Script;
use crate::source::Source;

pub(crate) struct Restic;

fn script(dir: &Path, words: &str) -> Script {
    Script::new(format!("restic --quiet --no-cache --repo \"$REPO\" {words}"))
        .var("REPO", dir.join("repo"))
        .var("RESTIC_PASSWORD", "measured")
        .var("RESTIC_PROGRESS_FPS", "0")
}

fn backup(source: &Source, dir: &Path) -> Job {
    let repo = dir.join("repo");
    let timed = script(dir, "backup --compression auto \"$DATADIR\"\nsync -f -- \"$REPO\"")
        .var("DATADIR", source.datadir());
    Job::new(timed, &repo)
}

impl Tool for Restic {
    fn id(&self) -> &'static str {
        "restic"
    }

    fn label(&self) -> &'static str {
        "restic backup (auto); sync"
    }

    fn missing(&self, _kind: ServerKind) -> Option<String> {
        missing_program(&["restic"])
    }

    fn versions(&self, _kind: ServerKind) -> Vec<ToolVersion> {
        vec![tool_version("restic", Path::new("restic"), "version")]
    }

    fn expected_s_per_gb(&self, verb: Verb) -> f64 {
        if verb == Verb::Restore { 6.0 } else { 12.0 }
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let before = script(dir, "init --repository-version 2");
        Ok(Job { before: Some(before), ..backup(source, dir) })
    }

    fn incremental(&self, source: &Source, base: &Path, _dir: &Path) -> Result<Job> {
        Ok(backup(source, base))
    }

    fn restore(&self, _kind: ServerKind, copy: &Path, target: &Path, _dir: &Path) -> Result<Job> {
        let timed = script(copy, "restore latest --target \"$TARGET\"\nsync -f -- \"$TARGET\"");
        Ok(Job::new(timed.var("TARGET", target), target))
    }
}
