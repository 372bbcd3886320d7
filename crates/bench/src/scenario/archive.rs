//! A first backup of an idle server into a repository, beside programs that keep repositories of files.

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Scenario, expected_s, group};
use crate::args::Options;
use crate::results::{Cache, Load};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{Holdfast, Restic, Tool, Verb};

pub(crate) struct Archive;

fn tools(options: &Options) -> Vec<Box<dyn Tool>> {
    vec![
        Box::new(Holdfast::defaults(&options.holdfast)),
        Box::new(Holdfast::level_3(&options.holdfast)),
        Box::new(Restic),
    ]
}

impl Scenario for Archive {
    fn name(&self) -> &'static str {
        "archive"
    }

    fn about(&self) -> &'static str {
        "first backup of an idle server into a repository"
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
                let dir = bench.scratch.dir("archive-")?;
                let turn = Turn { group: &group, tool: tools[at], round, load: None };
                bench.measure(source, &turn, tools[at].backup(source, dir.path()))?;
            }
        }
        Ok(())
    }
}
