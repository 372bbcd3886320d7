//! A first backup of a server under writes: the effect on clients, and the cost that the
//! writes add to the backup.
//!
//! The writers are paced, as applications are: an unpaced load only measures which process gets the
//! CPU. Taking no backup (`nothing`) and copying the files (`floor`) are contestants too, since
//! commits also wait for the disk.

use std::{path::Path, thread, time::Duration};

use anyhow::Result;
use holdfast_testkit::load::WriteLoad;
use holdfast_testkit::{Server, ServerKind};

use super::remote::Bucket;
use super::{Scenario, expected_s, group};
use crate::args::Options;
use crate::process::Script;
use crate::results::{Cache, Group, Load};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{CloneLocal, CopyDatadir, Holdfast, Job, MariadbBackup, Output, Placing, Tool, Verb};
use crate::writers::Writers;

const WRITERS: u32 = 4;
const TRANSACTIONS_PER_WRITER_PER_S: u32 = 50;
const SEED: u64 = 1;

pub(crate) struct Busy;

/// No backup at all: the prober's baseline.
pub(super) struct Nothing;

impl Tool for Nothing {
    fn id(&self) -> &'static str {
        "nothing"
    }

    fn label(&self) -> &'static str {
        "no backup"
    }

    fn missing(&self, _kind: ServerKind) -> Option<String> {
        None
    }

    fn expected_s_per_gb(&self, _verb: Verb) -> f64 {
        2.0
    }

    fn backup(&self, _source: &Source, _dir: &Path) -> Result<Job> {
        const ABOUT_AS_LONG_AS_A_BACKUP_S: u32 = 10;
        let timed = Script::new(format!("exec sleep {ABOUT_AS_LONG_AS_A_BACKUP_S}"));
        Ok(Job { before: None, timed, stored_in: None })
    }
}

/// Contestants that run alongside a load.
pub(super) fn tools(options: &Options, kind: ServerKind) -> Vec<Box<dyn Tool>> {
    let mut tools: Vec<Box<dyn Tool>> =
        vec![Box::new(Nothing), Box::new(Holdfast::defaults(&options.holdfast))];
    if kind.is_mariadb() {
        tools.push(Box::new(CopyDatadir));
        for output in [Output::Directory, Output::ZstdStream] {
            tools.push(Box::new(MariadbBackup { output, placing: Placing::Copy }));
        }
    } else {
        tools.push(Box::new(CloneLocal));
    }
    tools
}

/// Waits until data written and removed by the previous turn have been written back and discarded; otherwise
/// commits of this turn would wait for that.
fn settle() {
    const SETTLES_IN: Duration = Duration::from_secs(3);
    rustix::fs::sync();
    thread::sleep(SETTLES_IN);
}

impl Scenario for Busy {
    fn name(&self) -> &'static str {
        "busy"
    }

    fn about(&self) -> &'static str {
        "first backup under writes, and the longest commit meanwhile"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        turns_take_s(kind, options)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Cold, Load::Writes);
        let tools = tools(&bench.options, source.kind());
        let load = writers(&source.server)?;
        take_turns(&group, &tools, bench, source, &load)?;
        load.stop().map(drop)
    }
}

/// Starts the paced writers.
pub(super) fn writers(server: &Server) -> Result<WriteLoad> {
    WriteLoad::start_paced(server, WRITERS, SEED, Some(TRANSACTIONS_PER_WRITER_PER_S))
}

/// The same on a server that has tables of InnoDB only.
pub(super) fn innodb_writers(server: &Server) -> Result<WriteLoad> {
    WriteLoad::start_on_innodb(server, WRITERS, SEED, Some(TRANSACTIONS_PER_WRITER_PER_S))
}

/// Backs up with all tools in turns while `load` is running.
pub(super) fn take_turns(
    group: &Group,
    tools: &[Box<dyn Tool>],
    bench: &mut Bench,
    source: &Source,
    load: &dyn Writers,
) -> Result<()> {
    let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
    let tools = bench.present(group, source.kind(), &tools);
    for round in 0..bench.options.rounds {
        for at in order(tools.len(), round) {
            settle();
            let dir = bench.scratch.dir("busy-")?;
            let bucket = if tools[at].needs_object_storage() { Some(Bucket::new()?) } else { None };
            let job = tools[at].backup(source, dir.path()).and_then(|job| match &bucket {
                None => Ok(job),
                Some(bucket) => bucket.holds(job),
            });
            let turn = Turn { group, tool: tools[at], round, load: Some(load) };
            bench.measure(source, &turn, job)?;
        }
    }
    Ok(())
}

/// The forecast for all turns alongside a load.
pub(super) fn turns_take_s(kind: ServerKind, options: &Options) -> f64 {
    let tools = tools(options, kind);
    let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
    const SLOWER_UNDER_WRITES: f64 = 1.2;
    expected_s(&tools, Verb::Backup, kind, Cache::Cold, options) * SLOWER_UNDER_WRITES
}
