//! An archiver of the binlog beside writers: what it costs clients, and how soon what they commit is durable
//! somewhere else.
//!
//! If commits wait for the archiver, their latency is the time until they are durable in the repository (or
//! the spool), there and back. If not, the archiver's own report says how long after its arrival the last
//! event of each segment was stored.

use anyhow::Result;
use holdfast_testkit::load::WriteLoad;
use holdfast_testkit::{Server, ServerKind};

use super::busy::{Nothing, SEED, TRANSACTIONS_PER_WRITER_PER_S, WRITERS, settle};
use super::remote::Bucket;
use super::{Scenario, group};
use crate::args::Options;
use crate::results::{Cache, Load, Unit};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{Archiver, BinlogClient, Holdfast, Job, RUNS_S, Tool};

/// The server waits for nobody.
pub(crate) struct Archived;

/// Each commit returns when the archiver has it.
pub(crate) struct Acknowledged;

fn archiver(options: &Options, more: &'static str) -> Archiver {
    Archiver { holdfast: Holdfast::defaults(&options.holdfast), options: more }
}

fn into_object_storage(archiver: Archiver) -> Archiver {
    let holdfast = archiver
        .holdfast
        .named(OBJECT_STORAGE, "holdfast binlog archive, to object storage")
        .at(Bucket::location());
    Archiver { holdfast, ..archiver }
}

const OBJECT_STORAGE: &str = "holdfast-s3";

fn into_a_directory(archiver: Archiver) -> Archiver {
    Archiver { holdfast: archiver.holdfast.named("holdfast", "holdfast binlog archive"), ..archiver }
}

impl Scenario for Archived {
    fn name(&self) -> &'static str {
        "archiver"
    }

    fn about(&self) -> &'static str {
        "commits beside an archiver, and how soon they are durable there"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        turns_take_s(&archived(options), kind, options)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let tools = archived(&bench.options);
        take_turns(self, bench, source, &tools)
    }
}

impl Scenario for Acknowledged {
    fn name(&self) -> &'static str {
        "acknowledged"
    }

    fn about(&self) -> &'static str {
        "commits that return when they are archived"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        turns_take_s(&acknowledged(options), kind, options)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        wait_for_replicas(&source.server)?;
        let tools = acknowledged(&bench.options);
        take_turns(self, bench, source, &tools)
    }
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

fn take_turns(
    scenario: &dyn Scenario,
    bench: &mut Bench,
    source: &Source,
    tools: &[Box<dyn Tool>],
) -> Result<()> {
    let group = group(scenario, source.kind(), Cache::Warm, Load::Writes);
    let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
    let tools = bench.present(&group, source.kind(), &tools);
    let load = WriteLoad::start_paced(&source.server, WRITERS, SEED, Some(TRANSACTIONS_PER_WRITER_PER_S))?;
    for round in 0..bench.options.rounds {
        for at in order(tools.len(), round) {
            settle();
            let dir = bench.scratch.dir("archiver-")?;
            let turn = Turn { group: &group, tool: tools[at], round, load: Some(&load) };
            let bucket = match tools[at].id() {
                OBJECT_STORAGE => Some(Bucket::new()?),
                _ => None,
            };
            let job = tools[at].backup(source, dir.path()).and_then(|job| match &bucket {
                None => Ok(job),
                Some(bucket) => Ok(Job {
                    before: job.before.map(|before| bucket.leads(before)),
                    timed: bucket.leads(job.timed),
                    stored_in: Some(bucket.stored_in()?),
                }),
            });
            bench.measure(source, &turn, job)?;
        }
    }
    load.stop()?;
    for tool in tools {
        let median = bench.values(&group, tool, |sample| Some(sample.clients?.commit_median_ms));
        let label = |what: &str| format!("{}: {what}", tool.label());
        bench.figure(
            &group,
            &format!("{}-commit", tool.id()),
            &label("commit, median of a run"),
            Unit::Ms,
            median,
        );
        for (field, id, what) in [
            ("lag_mean_ms", "lag-mean", "from arrival to durable, mean of a run"),
            ("lag_max_ms", "lag-max", "from arrival to durable, longest of a run"),
        ] {
            let values = bench.values(&group, tool, |sample| sample.reported(field)?.as_f64());
            if !values.is_empty() {
                bench.figure(&group, &format!("{}-{id}", tool.id()), &label(what), Unit::Ms, values);
            }
        }
    }
    Ok(())
}

fn turns_take_s(tools: &[Box<dyn Tool>], kind: ServerKind, options: &Options) -> f64 {
    const AROUND_S: u32 = 8;
    let turns = tools.iter().filter(|tool| tool.missing(kind).is_none()).count();
    f64::from(options.rounds * (RUNS_S + AROUND_S)) * turns as f64
}
