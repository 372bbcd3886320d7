//! A first backup into object storage on this host, compared with one into a directory, and
//! with sending the same bytes.
//!
//! The storage server shares the filesystem and the processors with everything else; its CPU time is in the
//! column for the rest of the machine.

use std::path::Path;

use anyhow::{Context, Result};
use holdfast_testkit::ServerKind;
use holdfast_testkit::object_storage::{BUCKET, ObjectStorage, ObjectStorageKind};

use super::{Scenario, expected_s, group};
use crate::args::Options;
use crate::process::Script;
use crate::results::{Cache, Load};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{Holdfast, Job, Tool, Verb};

pub(crate) struct Remote;

/// A tool's job with its own empty storage.
pub(super) struct Bucket {
    storage: ObjectStorage,
}

impl Bucket {
    pub(super) fn new() -> Result<Bucket> {
        Ok(Bucket { storage: ObjectStorage::start(ObjectStorageKind::Versitygw)? })
    }

    pub(super) fn location() -> String {
        format!("s3://{BUCKET}/measured")
    }

    /// The job, with its result in this storage.
    pub(super) fn holds(&self, job: Job) -> Result<Job> {
        let stored_in = Some(self.storage.bucket_dir().context("this storage keeps no files")?);
        Ok(Job { stored_in, ..self.reached_by(job) })
    }

    /// The job, with what it needs to find this storage.
    pub(super) fn reached_by(&self, job: Job) -> Job {
        let before = job.before.map(|before| self.leads(before));
        Job { before, timed: self.leads(job.timed), ..job }
    }

    fn leads(&self, script: Script) -> Script {
        self.storage.environment().into_iter().fold(script, |script, (name, value)| script.var(name, value))
    }
}

/// Sends the files of a repository unchanged.
struct Put;

impl Tool for Put {
    fn id(&self) -> &'static str {
        "put"
    }

    fn label(&self) -> &'static str {
        "floor: PUT of the same bytes"
    }

    fn missing(&self, _kind: ServerKind) -> Option<String> {
        None
    }

    fn expected_s_per_gb(&self, _verb: Verb) -> f64 {
        1.0
    }

    fn backup(&self, _source: &Source, dir: &Path) -> Result<Job> {
        let bench = std::env::current_exe().context("find this program")?;
        let timed = Script::new("\"$HOLDFAST_BENCH\" put --from \"$FROM\" --to \"$TO\"")
            .var("HOLDFAST_BENCH", bench)
            .var("FROM", Holdfast::repo(dir))
            .var("TO", Bucket::location());
        Ok(Job { before: None, timed, stored_in: None })
    }
}

impl Scenario for Remote {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn about(&self) -> &'static str {
        "first backup into object storage of this host, beside a directory"
    }

    fn applies(&self, kind: ServerKind) -> bool {
        kind == ServerKind::MariaDb1011
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let holdfast = Holdfast::defaults(&options.holdfast);
        expected_s(&[&holdfast, &holdfast, &Put], Verb::Backup, kind, Cache::Cold, options)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Cold, Load::Idle);
        let directory = Holdfast::defaults(&bench.options.holdfast);
        let remote = Holdfast::defaults(&bench.options.holdfast)
            .named("holdfast-s3", "holdfast, to object storage")
            .at(Bucket::location());
        let tools: [&dyn Tool; 3] = [&directory, &remote, &Put];
        let tools = bench.present(&group, source.kind(), &tools);
        // Create the files to send.
        let same = bench.scratch.dir("same-")?;
        bench.untimed(&directory.backup(source, same.path())?)?;
        for round in 0..bench.options.rounds {
            for at in order(tools.len(), round) {
                let tool = tools[at];
                let dir = bench.scratch.dir("remote-")?;
                let turn = Turn { group: &group, tool, round, load: None };
                if tool.id() == directory.id() {
                    bench.measure(source, &turn, tool.backup(source, dir.path()))?;
                    continue;
                }
                let bucket = Bucket::new()?;
                let from = if tool.id() == Put.id() { same.path() } else { dir.path() };
                let job = tool.backup(source, from).and_then(|job| bucket.holds(job));
                bench.measure(source, &turn, job)?;
            }
        }
        Ok(())
    }
}
