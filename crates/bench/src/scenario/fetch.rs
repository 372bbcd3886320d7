//! Restores a backup out of object storage on this host, compared with one out of a directory, and with
//! reading the same objects.
//!
//! The backups are taken under writes, so that there is something to recover. In the first round, a server is
//! started on each result, and its books must balance.

use std::path::Path;

use anyhow::{Context, Result};
use holdfast_testkit::ServerKind;

use super::busy::writers;
use super::remote::Bucket;
use super::{Scenario, expected_s, group, restore};
use crate::args::Options;
use crate::process::Script;
use crate::results::{Cache, Load};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{Holdfast, Job, Tool, Verb};

pub(crate) struct Fetch;

/// Reads all objects of the repository.
struct Get;

impl Tool for Get {
    fn id(&self) -> &'static str {
        "get"
    }

    fn label(&self) -> &'static str {
        "floor: GET of the same objects"
    }

    fn missing(&self, _kind: ServerKind) -> Option<String> {
        None
    }

    fn expected_s_per_gb(&self, _verb: Verb) -> f64 {
        0.5
    }

    fn backup(&self, _source: &Source, _dir: &Path) -> Result<Job> {
        anyhow::bail!("it only reads")
    }

    fn restore(&self, _kind: ServerKind, _backup: &Path, _target: &Path, _dir: &Path) -> Result<Job> {
        let bench = std::env::current_exe().context("find this program")?;
        let timed = Script::new("\"$HOLDFAST_BENCH\" get --from \"$FROM\"")
            .var("HOLDFAST_BENCH", bench)
            .var("FROM", Bucket::location());
        Ok(Job { before: None, timed, stored_in: None })
    }
}

impl Scenario for Fetch {
    fn name(&self) -> &'static str {
        "fetch"
    }

    fn about(&self) -> &'static str {
        "restore out of object storage of this host, beside a directory"
    }

    fn applies(&self, kind: ServerKind) -> bool {
        kind == ServerKind::MariaDb1011
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let holdfast = Holdfast::defaults(&options.holdfast);
        let backups = 2.0 * holdfast.expected_s_per_gb(Verb::Backup) * options.data_gb();
        expected_s(&[&holdfast, &holdfast, &Get], Verb::Restore, kind, Cache::Cold, options) + backups
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let kind = source.kind();
        let group = group(self, kind, Cache::Cold, Load::Stopped);
        let directory = Holdfast::defaults(&bench.options.holdfast);
        let remote = Holdfast::defaults(&bench.options.holdfast)
            .named("holdfast-s3", "holdfast, out of object storage")
            .at(Bucket::location());
        let tools: [&dyn Tool; 3] = [&directory, &remote, &Get];
        let tools = bench.present(&group, kind, &tools);
        let (near, far) = (bench.scratch.dir("near-")?, bench.scratch.dir("far-")?);
        let bucket = Bucket::new()?;
        let load = writers(&source.server)?;
        bench.untimed(&directory.backup(source, near.path())?)?;
        bench.untimed(&bucket.holds(remote.backup(source, far.path())?)?)?;
        load.stop()?;
        // A running source would only take memory and CPU time from the restores.
        source.stop()?;
        for round in 0..bench.options.rounds {
            for at in order(tools.len(), round) {
                let tool = tools[at];
                let dir = bench.scratch.dir("fetch-")?;
                let target = dir.path().join("target");
                let turn = Turn { group: &group, tool, round, load: None };
                let from = if tool.id() == directory.id() { near.path() } else { far.path() };
                let job = tool.restore(kind, from, &target, dir.path()).map(|job| bucket.reached_by(job));
                let restored = bench.measure(source, &turn, job)?;
                if restored && round == 0 && tool.id() != Get.id() {
                    restore::check(bench, kind, &target)?;
                }
            }
        }
        Ok(())
    }
}
