//! Restores a backup of a busy server to a directory that a server can start on.
//!
//! In the first round, a server is started on every result, and the books of the load must balance in it: a
//! restore that only appears fast does not count.

use std::path::Path;

use anyhow::{Context, Result};
use holdfast_testkit::load::writes;
use holdfast_testkit::{Server, ServerKind};
use tempfile::TempDir;

use super::busy::writers;
use super::{Scenario, expected_s, group};
use crate::args::Options;
use crate::results::{Cache, Group, Load};
use crate::run::{Bench, Turn, order};
use crate::source::{self, Source};
use crate::tool::{CloneLocal, Holdfast, MariadbBackup, Output, Placing, Tool, Verb};

pub(crate) struct Restore;

fn tools(options: &Options, kind: ServerKind) -> Vec<Box<dyn Tool>> {
    let mut tools: Vec<Box<dyn Tool>> = vec![Box::new(Holdfast::defaults(&options.holdfast))];
    if kind.is_mariadb() {
        for placing in [Placing::Copy, Placing::Move] {
            tools.push(Box::new(MariadbBackup { output: Output::ZstdStream, placing }));
        }
    } else {
        tools.push(Box::new(CloneLocal));
    }
    tools
}

impl Scenario for Restore {
    fn name(&self) -> &'static str {
        "restore"
    }

    fn about(&self) -> &'static str {
        "from a backup taken under writes to a directory that a server starts on"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let tools = tools(options, kind);
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        let backups: f64 = tools.iter().map(|tool| tool.expected_s_per_gb(Verb::Backup)).sum();
        const CHECKS_S: f64 = 20.0;
        expected_s(&tools, Verb::Restore, kind, Cache::Cold, options) + backups * options.data_gb() + CHECKS_S
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Cold, Load::Stopped);
        let tools = tools(&bench.options, source.kind());
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        let tools = bench.present(&group, source.kind(), &tools);
        let backups = back_up(bench, &group, source, &tools)?;
        // A running source would only take memory and CPU time from the restores.
        source.stop()?;
        for round in 0..bench.options.rounds {
            for at in order(tools.len(), round) {
                let Some(backup) = &backups[at] else { continue };
                let dir = bench.scratch.dir("restore-")?;
                let target = dir.path().join("target");
                let turn = Turn { group: &group, tool: tools[at], round, load: None };
                let job = tools[at].restore(source.kind(), backup.path(), &target, dir.path());
                let restored = bench.measure(source, &turn, job)?;
                if restored && round == 0 {
                    let checked = check(bench, source.kind(), &target);
                    if let Err(error) = checked {
                        bench.give_up(&turn, &error.context("start a server on the result"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Takes one backup with each tool while the server is written to, so that there is something to recover.
fn back_up(
    bench: &mut Bench,
    group: &Group,
    source: &Source,
    tools: &[&dyn Tool],
) -> Result<Vec<Option<TempDir>>> {
    let load = writers(&source.server)?;
    let mut backups = Vec::new();
    for &tool in tools {
        let dir = bench.scratch.dir("backup-")?;
        let made = tool.backup(source, dir.path()).and_then(|job| bench.untimed(&job));
        if let Err(error) = &made {
            let turn = Turn { group, tool, round: 0, load: None };
            bench.give_up(&turn, &anyhow::anyhow!("take the backup: {error:#}"));
        }
        backups.push(made.is_ok().then_some(dir));
    }
    load.stop()?;
    Ok(backups)
}

/// Starts a server on what was restored, and balances the books of its load.
pub(super) fn check(bench: &Bench, kind: ServerKind, target: &Path) -> Result<()> {
    let server = Server::attach(kind, target, source::options(kind, &bench.scratch))?;
    writes::check_ledger(&server).context("the restored books do not balance").map(drop)
}
