//! All rows of an idle server, by rows and statements: how close to reading them and keeping none.

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Scenario, expected_s, group};
use crate::args::Options;
use crate::results::{Cache, Load};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{ClientDump, Drain, Holdfast, Mydumper, Tool, Verb};

pub(crate) struct Dump;

fn tools(options: &Options) -> Vec<Box<dyn Tool>> {
    vec![
        Box::new(Drain),
        Box::new(Holdfast::logical_plain(&options.holdfast)),
        Box::new(Holdfast::logical(&options.holdfast)),
        Box::new(ClientDump { compressed: false }),
        Box::new(ClientDump { compressed: true }),
        Box::new(Mydumper { compressed: false }),
        Box::new(Mydumper { compressed: true }),
    ]
}

impl Scenario for Dump {
    fn name(&self) -> &'static str {
        "dump"
    }

    fn about(&self) -> &'static str {
        "first logical backup of an idle server"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let tools = tools(options);
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        expected_s(&tools, Verb::Backup, kind, Cache::Cold, options)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Cold, Load::Idle);
        let tools = tools(&bench.options);
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        let tools = bench.present(&group, source.kind(), &tools);
        for round in 0..bench.options.rounds {
            for at in order(tools.len(), round) {
                let dir = bench.scratch.dir("dump-")?;
                let turn = Turn { group: &group, tool: tools[at], round, load: None };
                bench.measure(source, &turn, tools[at].backup(source, dir.path()))?;
            }
        }
        Ok(())
    }
}
