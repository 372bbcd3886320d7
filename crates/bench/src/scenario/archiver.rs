//! An archiver of the binlog beside writers: what it costs clients, and how soon what they commit is durable
//! somewhere else.
//!
//! If commits wait for the archiver, their latency is the time until they are durable in the repository (or
//! the spool), there and back. If not, the archiver's own report says how long after its arrival the last
//! event of each segment was stored.

use anyhow::Result;
use holdfast_testkit::{Server, ServerKind};

use super::busy::{Nothing, take_turns, writers};
use super::remote::Bucket;
use super::{Scenario, group};
use crate::args::Options;
use crate::results::{Cache, Group, Load, Unit};
use crate::run::Bench;
use crate::source::Source;
use crate::tool::{Archiver, BinlogClient, Holdfast, RUNS_S, Tool};

pub(crate) struct Beside {
    name: &'static str,
    about: &'static str,
    tools: fn(&Options) -> Vec<Box<dyn Tool>>,
    /// Whether the server is set to wait for a replica.
    waits: bool,
}

impl Beside {
    /// The server waits for nobody.
    pub(crate) fn archived() -> Beside {
        let about = "commits beside an archiver, and how soon they are durable there";
        Beside { name: "archiver", about, tools: archived, waits: false }
    }

    /// Each commit returns when the archiver has it.
    pub(crate) fn acknowledged() -> Beside {
        let about = "commits that return when they are archived";
        Beside { name: "acknowledged", about, tools: acknowledged, waits: true }
    }
}

fn archiver(options: &Options, more: &'static str) -> Archiver {
    Archiver { holdfast: Holdfast::defaults(&options.holdfast), options: more }
}

fn into_a_directory(archiver: Archiver) -> Archiver {
    Archiver { holdfast: archiver.holdfast.named("holdfast", "holdfast binlog archive"), ..archiver }
}

fn into_object_storage(archiver: Archiver) -> Archiver {
    let label = "holdfast binlog archive, to object storage";
    Archiver { holdfast: archiver.holdfast.named("holdfast-s3", label).at(Bucket::location()), ..archiver }
}

fn archived(options: &Options) -> Vec<Box<dyn Tool>> {
    vec![
        Box::new(Nothing),
        Box::new(into_a_directory(archiver(options, ""))),
        Box::new(into_object_storage(archiver(options, ""))),
        Box::new(BinlogClient),
    ]
}

fn acknowledged(options: &Options) -> Vec<Box<dyn Tool>> {
    let spooled = archiver(options, " --semi-sync --ack local --spool-dir \"$SPOOL\"");
    let spooled = Archiver {
        holdfast: spooled.holdfast.named("holdfast-spool", "holdfast binlog archive --ack local"),
        ..spooled
    };
    vec![
        Box::new(Nothing),
        Box::new(into_a_directory(archiver(options, " --semi-sync"))),
        Box::new(into_object_storage(archiver(options, " --semi-sync"))),
        Box::new(spooled),
    ]
}

/// Makes commits wait for a replica as long as one is connected.
fn wait_for_replicas(server: &Server) -> Result<()> {
    const LONG_MS: u32 = 3_600_000;
    let (install, name, alone) = match server.kind().is_mariadb() {
        true => (None, "rpl_semi_sync_master", "rpl_semi_sync_master_wait_no_slave"),
        false => (
            Some("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'"),
            "rpl_semi_sync_source",
            "rpl_semi_sync_source_wait_no_replica",
        ),
    };
    server.exec_all(install)?;
    server.exec(format!(
        "SET GLOBAL {name}_timeout = {LONG_MS}, GLOBAL {alone} = OFF, GLOBAL {name}_enabled = ON, \
         GLOBAL {name}_wait_point = 'AFTER_SYNC'"
    ))
}

impl Scenario for Beside {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        const AROUND_S: u32 = 8;
        let tools = (self.tools)(options);
        let turns = tools.iter().filter(|tool| tool.missing(kind).is_none()).count();
        f64::from(options.rounds * (RUNS_S + AROUND_S)) * turns as f64
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        if self.waits {
            wait_for_replicas(&source.server)?;
        }
        let group = group(self, source.kind(), Cache::Warm, Load::Writes);
        let tools = (self.tools)(&bench.options);
        let load = writers(&source.server)?;
        take_turns(&group, &tools, bench, source, &load)?;
        load.stop()?;
        for tool in &tools {
            note(bench, &group, tool.as_ref());
        }
        Ok(())
    }
}

/// Adds what the tables of the report lack.
fn note(bench: &mut Bench, group: &Group, tool: &dyn Tool) {
    let commit = bench.values(group, tool, |sample| Some(sample.clients?.commit_median_ms));
    let reported = |field| bench.values(group, tool, |sample| sample.reported(field)?.as_f64());
    for (id, what, values) in [
        ("commit", "commit, median of a run", commit),
        ("lag-mean", "from arrival to durable, mean of a run", reported("lag_mean_ms")),
        ("lag-max", "from arrival to durable, longest of a run", reported("lag_max_ms")),
    ] {
        if !values.is_empty() {
            let (id, label) = (format!("{}-{id}", tool.id()), format!("{}: {what}", tool.label()));
            bench.figure(group, &id, &label, Unit::Ms, values);
        }
    }
}
