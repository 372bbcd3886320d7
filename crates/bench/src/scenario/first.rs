//! A first backup of an idle server, by rows or into a repository, alongside comparable programs.

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Scenario, expected_s, group};
use crate::args::Options;
use crate::results::{Cache, Load};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{ClientDump, Drain, FiveBackups, Holdfast, Mydumper, Restic, Rustic, Tool, Verb};

pub(crate) struct First {
    name: &'static str,
    about: &'static str,
    tools: fn(&Options) -> Vec<Box<dyn Tool>>,
}

impl First {
    /// Backs up all rows: how close to reading and discarding them.
    pub(crate) fn rows() -> First {
        First { name: "dump", about: "first logical backup of an idle server", tools: of_rows }
    }

    /// Five concurrent backups with one connection each, compared with the same five in sequence.
    pub(crate) fn several() -> First {
        First { name: "several", about: "five logical backups of an idle server", tools: of_several }
    }

    /// Compared with programs that keep a repository of files.
    pub(crate) fn repository() -> First {
        First {
            name: "archive",
            about: "first backup of an idle server into a repository",
            tools: of_repositories,
        }
    }
}

fn of_rows(options: &Options) -> Vec<Box<dyn Tool>> {
    vec![
        Box::new(Drain),
        Box::new(Holdfast::logical_plain(&options.holdfast)),
        Box::new(Holdfast::logical(&options.holdfast)),
        Box::new(ClientDump { compressed: false, with_position: false }),
        Box::new(ClientDump { compressed: true, with_position: false }),
        Box::new(Mydumper { compressed: false }),
        Box::new(Mydumper { compressed: true }),
    ]
}

fn of_several(options: &Options) -> Vec<Box<dyn Tool>> {
    let five =
        |at_once| FiveBackups { holdfast: Holdfast::logical(&options.holdfast).of_name("bench$n"), at_once };
    vec![Box::new(five(true)), Box::new(five(false))]
}

fn of_repositories(options: &Options) -> Vec<Box<dyn Tool>> {
    vec![
        Box::new(Holdfast::defaults(&options.holdfast)),
        Box::new(Holdfast::level_3(&options.holdfast)),
        Box::new(Restic),
        Box::new(Rustic),
    ]
}

impl Scenario for First {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let tools = (self.tools)(options);
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        expected_s(&tools, Verb::Backup, kind, Cache::Cold, options)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Cold, Load::Idle);
        let tools = (self.tools)(&bench.options);
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        let tools = bench.present(&group, source.kind(), &tools);
        for round in 0..bench.options.rounds {
            for at in order(tools.len(), round) {
                let dir = bench.scratch.dir("first-")?;
                let turn = Turn { group: &group, tool: tools[at], round, load: None };
                bench.measure(source, &turn, tools[at].backup(source, dir.path()))?;
            }
        }
        Ok(())
    }
}
