//! A first backup of an idle server: how close to copying the files, with a cold and a warm page cache.

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Scenario, expected_s, group};
use crate::args::Options;
use crate::results::{Cache, Load};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{CloneLocal, CopyDatadir, Dump, Holdfast, MariadbBackup, Output, Placing, Tool, Verb};

pub(crate) struct Full;

/// The contestants. The comparison uses a cold cache. A warm cache shows the effect of the page cache on one
/// server, for tools that only copy: tools that compress are CPU-bound.
fn tools(options: &Options, cache: Cache, kind: ServerKind) -> Vec<Box<dyn Tool>> {
    let mariadb_backup = |output| Box::new(MariadbBackup { output, placing: Placing::Copy });
    let holdfast = &options.holdfast;
    match (kind.is_mariadb(), cache) {
        (true, Cache::Cold) => vec![
            Box::new(CopyDatadir),
            Box::new(Holdfast::plain(holdfast)),
            Box::new(Holdfast::defaults(holdfast)),
            Box::new(Holdfast::lz4(holdfast)),
            mariadb_backup(Output::Directory),
            mariadb_backup(Output::ZstdStream),
        ],
        (true, Cache::Warm) => {
            vec![
                Box::new(CopyDatadir),
                Box::new(Holdfast::plain(holdfast)),
                mariadb_backup(Output::Directory),
            ]
        }
        (false, Cache::Cold) => vec![
            Box::new(CopyDatadir),
            Box::new(Holdfast::plain(holdfast)),
            Box::new(Holdfast::defaults(holdfast)),
            Box::new(CloneLocal),
            Box::new(Dump),
        ],
        (false, Cache::Warm) => Vec::new(),
    }
}

impl Scenario for Full {
    fn name(&self) -> &'static str {
        "full"
    }

    fn about(&self) -> &'static str {
        "first backup of an idle server"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let of_cache = |cache| {
            let tools = tools(options, cache, kind);
            let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
            expected_s(&tools, Verb::Backup, kind, cache, options)
        };
        of_cache(Cache::Cold) + of_cache(Cache::Warm)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        for cache in [Cache::Cold, Cache::Warm] {
            let group = group(self, source.kind(), cache, Load::Idle);
            let tools = tools(&bench.options, cache, source.kind());
            let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
            let tools = bench.present(&group, source.kind(), &tools);
            for round in 0..bench.options.rounds {
                for at in order(tools.len(), round) {
                    let dir = bench.scratch.dir("full-")?;
                    let turn = Turn { group: &group, tool: tools[at], round, load: None };
                    bench.measure(source, &turn, tools[at].backup(source, dir.path()))?;
                }
            }
        }
        Ok(())
    }
}
