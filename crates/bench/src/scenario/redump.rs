//! The next logical backup after one row in a thousand has changed, spread evenly over the large tables.

use anyhow::Result;
use holdfast_testkit::ServerKind;
use holdfast_testkit::observe::directory_bytes;

use super::incremental::{CHANGES, updates};
use super::{Scenario, expected_s, group};
use crate::args::Options;
use crate::results::{Cache, Load, Unit};
use crate::run::{Bench, Turn};
use crate::source::Source;
use crate::tool::{Holdfast, Tool, Verb};

const ROWS_PER_CHANGE: usize = 1000;

pub(crate) struct Redump;

impl Scenario for Redump {
    fn name(&self) -> &'static str {
        "redump"
    }

    fn about(&self) -> &'static str {
        "next logical backup with 0.1 % of the rows changed, scattered"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let holdfast = Holdfast::logical(&options.holdfast);
        expected_s(&[&holdfast], Verb::Backup, kind, Cache::Cold, options)
            + holdfast.expected_s_per_gb(Verb::Backup) * options.data_gb()
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Cold, Load::Idle);
        let holdfast = Holdfast::logical(&bench.options.holdfast);
        if bench.present(&group, source.kind(), &[&holdfast]).is_empty() {
            return Ok(());
        }
        let base = bench.scratch.dir("base-")?;
        bench.untimed(&holdfast.backup(source, base.path())?)?;
        let first_bytes = directory_bytes(&Holdfast::repo(base.path()))?;
        bench.figure(&group, "first", "stored by the first backup", Unit::Bytes, vec![first_bytes as f64]);
        for round in 0..bench.options.rounds {
            // Change other rows each time, so that each backup has the same amount to store.
            let offset = round as usize * ROWS_PER_CHANGE / bench.options.rounds as usize + 1;
            for (table, set) in CHANGES {
                let rows: u64 = source.server.value(format!("SELECT MAX(id) FROM shop.{table}"))?;
                let ids: Vec<u64> = (offset as u64..=rows).step_by(ROWS_PER_CHANGE).collect();
                source.server.exec_all(updates(table, set, &ids)?)?;
            }
            let turn = Turn { group: &group, tool: &holdfast, round, load: None };
            bench.measure(source, &turn, holdfast.incremental(source, base.path(), base.path()))?;
        }
        Ok(())
    }
}
