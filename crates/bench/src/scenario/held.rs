//! Logical backups of a server with InnoDB tables only, beside writers and a long query, which any lock on all
//! tables has to wait for, and everybody else for that lock.

use std::path::Path;

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::busy::{Nothing, innodb_writers, take_turns};
use super::{Scenario, group};
use crate::args::Options;
use crate::machine::ToolVersion;
use crate::results::{Cache, Load, Sample, Unit};
use crate::run::Bench;
use crate::source::Source;
use crate::tool::{ClientDump, Holdfast, Job, Mydumper, Tool, Verb};

const QUERY_TAKES_S: u32 = 10;

pub(crate) struct Held;

/// A tool that begins a second after the long query, whose end counts as its own.
struct BesideAQuery<T>(T);

impl<T: Tool> Tool for BesideAQuery<T> {
    fn id(&self) -> &'static str {
        self.0.id()
    }

    fn label(&self) -> &'static str {
        self.0.label()
    }

    fn missing(&self, kind: ServerKind) -> Option<String> {
        self.0.missing(kind)
    }

    fn versions(&self, kind: ServerKind) -> Vec<ToolVersion> {
        self.0.versions(kind)
    }

    fn expected_s_per_gb(&self, verb: Verb) -> f64 {
        self.0.expected_s_per_gb(verb)
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let job = self.0.backup(source, dir)?;
        let query = format!(
            "\"$QUERY_CLIENT\" --no-defaults --socket=\"$QUERY_SOCKET\" --user=root \\\n  \
             -e \"SELECT SLEEP({QUERY_TAKES_S}) FROM shop.orders LIMIT 1\" > /dev/null &\nquery=$!\nsleep 1\n"
        );
        let timed = job
            .timed
            .before(&query)
            .after("\nwait \"$query\"")
            .var("QUERY_CLIENT", source.kind().client_program()?)
            .var("QUERY_SOCKET", source.server.socket());
        Ok(Job { timed, ..job })
    }
}

fn tools(options: &Options) -> Vec<Box<dyn Tool>> {
    vec![
        Box::new(BesideAQuery(Nothing)),
        Box::new(BesideAQuery(Holdfast::logical(&options.holdfast))),
        Box::new(BesideAQuery(ClientDump { compressed: true, with_position: true })),
        Box::new(BesideAQuery(Mydumper { compressed: true })),
    ]
}

impl Scenario for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn about(&self) -> &'static str {
        "logical backup beside writers and a long query: how long commits are held up"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let tools = tools(options);
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        let queries = tools.len() as u32 * options.rounds * QUERY_TAKES_S;
        super::expected_s(&tools, Verb::Backup, kind, Cache::Warm, options) + f64::from(queries)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Warm, Load::Writes);
        let tools = tools(&bench.options);
        let load = innodb_writers(&source.server)?;
        take_turns(&group, &tools, bench, source, &load)?;
        load.stop()?;
        let what = ("lock", "longest lock that blocks reads or writes, waiting and held", Unit::Ms);
        bench.figures(&group, &tools, what, Sample::longest_lock_ms);
        let what = ("instance-lock", "instance lock, which blocks DDL only, waiting and held", Unit::Ms);
        bench.figures(&group, &tools, what, Sample::instance_lock_ms);
        Ok(())
    }
}
