//! Loads a logical backup into an empty server.
//! In the first round, the loaded data are compared with the source.

use anyhow::{Context, Result, ensure};
use holdfast_testkit::ServerKind;

use super::{Scenario, expected_s, group};
use crate::args::Options;
use crate::dataset::TABLES;
use crate::interrupt;
use crate::results::{Cache, Load};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{ClientDump, Holdfast, Mydumper, Tool, Verb};

pub(crate) struct LoadRows;

fn tools(options: &Options) -> Vec<Box<dyn Tool>> {
    vec![
        Box::new(Holdfast::logical(&options.holdfast)),
        Box::new(Holdfast::logical(&options.holdfast).without_binlog()),
        Box::new(Holdfast::logical(&options.holdfast).unverified()),
        Box::new(Holdfast::logical(&options.holdfast).by_load_data_with_binlog()),
        Box::new(Holdfast::logical(&options.holdfast).by_load_data()),
        Box::new(Holdfast::logical(&options.holdfast).by_load_data_without_redo()),
        Box::new(ClientDump { compressed: false, with_position: false }),
        Box::new(Mydumper { compressed: true }),
    ]
}

impl Scenario for LoadRows {
    fn name(&self) -> &'static str {
        "load"
    }

    fn about(&self) -> &'static str {
        "from a logical backup into an empty server"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let tools = tools(options);
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        let backups: f64 = tools.iter().map(|tool| tool.expected_s_per_gb(Verb::Backup)).sum();
        const START_S: f64 = 5.0;
        expected_s(&tools, Verb::Restore, kind, Cache::Cold, options)
            + backups * options.data_gb()
            + START_S * f64::from(options.rounds) * tools.len() as f64
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Cold, Load::Idle);
        let tools = tools(&bench.options);
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        let tools = bench.present(&group, source.kind(), &tools);
        let mut contestants = Vec::new();
        for &tool in &tools {
            let dir = bench.scratch.dir("backup-")?;
            let job = tool.backup(source, dir.path())?;
            let made = bench.untimed(&job);
            interrupt::check()?;
            match made {
                Ok(()) => contestants.push((tool, dir)),
                Err(error) => bench.give_up(&Turn { group: &group, tool, round: 0, load: None }, &error),
            }
        }
        let wanted = checksums(source)?;
        // A running source would only take memory from the loads.
        source.stop()?;
        for round in 0..bench.options.rounds {
            for at in order(contestants.len(), round) {
                let (tool, dump) = &contestants[at];
                let target = Source::empty(source.kind(), &bench.scratch)?;
                let turn = Turn { group: &group, tool: *tool, round, load: None };
                let loaded = bench.measure(&target, &turn, tool.load(dump.path(), &target))?;
                if loaded && round == 0 {
                    let found = checksums(&target).context("what was loaded");
                    let checked = found.and_then(|found| {
                        ensure!(found == wanted, "{found:?} instead of {wanted:?}");
                        Ok(())
                    });
                    if let Err(error) = checked {
                        bench.give_up(&turn, &error);
                    }
                }
            }
        }
        Ok(())
    }
}

fn checksums(source: &Source) -> Result<Vec<(String, Option<u64>)>> {
    source.server.query(format!("CHECKSUM TABLE {}", TABLES.join(", ")))
}
