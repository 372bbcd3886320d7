//! One run: the outline, and a single measurement of one contestant.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_testkit::load::Prober;
use holdfast_testkit::observe::directory_bytes;
use holdfast_testkit::{Server, ServerKind};

use crate::args::Options;
use crate::dataset::Dataset;
use crate::goals;
use crate::interrupt;
use crate::machine::{self, Machine};
use crate::page_cache;
use crate::process::{Script, Usage};
use crate::progress::{self, Progress};
use crate::report;
use crate::results::{Clients, Data, Figure, Group, Load, Results, SCHEMA_VERSION, Sample, Series, Unit};
use crate::scenario::Scenario;
use crate::scratch::Scratch;
use crate::source::Source;
use crate::tool::{Job, Tool};
use crate::writers::Writers;

/// Time for the prober to get going before a command, and for a commit that the command blocked to return.
const PROBER_MARGIN: Duration = Duration::from_millis(300);

/// Measures everything requested and writes the report. Returns false if a contestant failed.
pub(crate) fn measure(options: Options) -> Result<bool> {
    interrupt::watch()?;
    let scenarios = options.suite.selected(&options.only);
    let progress = Progress::start();
    forecast(&options, &scenarios, &progress);
    // Kept data of each server, a copy of one, and the peak of a restore: stream, extracted files, target.
    const COPIES_ON_DISK: f64 = 6.0;
    let scratch =
        Scratch::open(options.work_dir.as_deref(), (options.data_gb() * 1e9 * COPIES_ON_DISK) as u64)?;
    let machine = Machine::look(scratch.path())?;
    if machine.load_at_start > 0.5 {
        progress
            .note(&format!("this machine is busy (load {}): figures will be worse", machine.load_at_start));
    }
    let results = Results {
        schema_version: SCHEMA_VERSION,
        suite: options.suite,
        name: options.name.clone(),
        begun_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        elapsed_s: 0.0,
        rounds: options.rounds,
        quick: options.quick,
        machine,
        tools: Vec::new(),
        data: Vec::new(),
        series: Vec::new(),
        figures: Vec::new(),
        failures: Vec::new(),
        goals: Vec::new(),
    };
    let mut bench = Bench { options, scratch, progress, results, failed: false };
    let outcome = bench.run(&scenarios);
    // Results from before a failure are worth keeping.
    bench.finish()?;
    outcome?;
    Ok(!bench.failed)
}

/// Prints the expected duration of each scenario.
fn forecast(options: &Options, scenarios: &[Box<dyn Scenario>], progress: &Progress) {
    let mut total_s = 0.0;
    for &kind in &options.servers {
        // Copying the data and starting a server.
        let mut of_kind_s = 5.0 + 2.2 * options.data_gb();
        let mut parts = Vec::new();
        for scenario in scenarios.iter().filter(|scenario| scenario.applies(kind)) {
            let seconds = scenario.expected_s(kind, options);
            of_kind_s += seconds;
            parts.push(format!("{} {:.1}", scenario.name(), seconds / 60.0));
        }
        total_s += of_kind_s;
        progress.note(&format!("{kind}: about {:.0} minutes ({})", of_kind_s / 60.0, parts.join(", ")));
    }
    progress.note(&format!(
        "{} runs with {} MiB: about {:.0} minutes, and a few more where data must be loaded first",
        options.rounds,
        options.size_mib,
        (total_s / 60.0).ceil()
    ));
}

/// A run in progress.
pub(crate) struct Bench {
    pub(crate) options: Options,
    pub(crate) scratch: Scratch,
    pub(crate) progress: Progress,
    results: Results,
    failed: bool,
}

/// One contestant's turn.
pub(crate) struct Turn<'a> {
    pub(crate) group: &'a Group,
    pub(crate) tool: &'a dyn Tool,
    pub(crate) round: u32,
    /// The active writers, if any; the prober runs along with them.
    pub(crate) load: Option<&'a dyn Writers>,
}

/// The order of `count` contestants in a round.
/// It rotates and alternates direction, so that none always follows the same one, and none always runs first.
pub(crate) fn order(count: usize, round: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if count > 0 {
        order.rotate_left(round as usize / 2 % count);
    }
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

impl Bench {
    fn run(&mut self, scenarios: &[Box<dyn Scenario>]) -> Result<()> {
        for kind in self.options.servers.clone() {
            let mut source: Option<Source> = None;
            for scenario in scenarios.iter().filter(|scenario| scenario.applies(kind)) {
                self.progress.note(&format!("{kind}, {}: {}", scenario.name(), scenario.about()));
                let outcome = self.run_scenario(scenario.as_ref(), kind, &mut source);
                interrupt::check()?;
                if let Err(error) = outcome {
                    let failure = format!("{kind}, {}: {error:#}", scenario.name());
                    self.progress.note(&format!("failed: {failure}"));
                    self.results.failures.push(failure);
                    self.failed = true;
                    // The next scenario starts on a new server.
                    source = None;
                }
            }
        }
        Ok(())
    }

    fn run_scenario(
        &mut self,
        scenario: &dyn Scenario,
        kind: ServerKind,
        source: &mut Option<Source>,
    ) -> Result<()> {
        let source = match source {
            Some(source) => source,
            None => source.insert(self.start_source(kind)?),
        };
        source.run()?;
        scenario.run(self, source)
    }

    fn start_source(&mut self, kind: ServerKind) -> Result<Source> {
        let dataset = Dataset { kind, size_mib: self.options.size_mib };
        let source = Source::start(dataset, &self.scratch, &self.progress)?;
        let described =
            self.results.data.iter().any(|data| data.server == kind.name() && data.scenario.is_none());
        if !described {
            self.describe(source.describe(None)?);
        }
        Ok(source)
    }

    /// Records the data that are backed up.
    pub(crate) fn describe(&mut self, data: Data) {
        self.results.data.push(data);
    }

    /// Records a number that is not a run of a command.
    pub(crate) fn figure(&mut self, group: &Group, id: &str, label: &str, unit: Unit, values: Vec<f64>) {
        self.results.figures.push(Figure {
            scenario: group.scenario.clone(),
            server: group.server.clone(),
            id: id.to_owned(),
            label: label.to_owned(),
            unit,
            values,
        });
    }

    /// Records one property of the samples of each tool, as `<tool>-<id>`.
    pub(crate) fn figures(
        &mut self,
        group: &Group,
        tools: &[Box<dyn Tool>],
        (id, what, unit): (&str, &str, Unit),
        of: fn(&Sample) -> Option<f64>,
    ) {
        for tool in tools {
            let values = self.values(group, tool.as_ref(), of);
            if !values.is_empty() {
                let label = format!("{}: {what}", tool.label());
                self.figure(group, &format!("{}-{id}", tool.id()), &label, unit, values);
            }
        }
    }

    /// One property of the samples of a tool so far.
    pub(crate) fn values(
        &self,
        group: &Group,
        tool: &dyn Tool,
        of: impl Fn(&Sample) -> Option<f64>,
    ) -> Vec<f64> {
        let of_tool = |series: &&Series| series.group == *group && series.contestant == tool.id();
        let found = self.results.series.iter().find(of_tool);
        found.into_iter().flat_map(|series| &series.samples).filter_map(of).collect()
    }

    /// The tools that were requested and can be measured here. The others are listed in the results.
    pub(crate) fn present<'a>(
        &mut self,
        group: &Group,
        kind: ServerKind,
        tools: &[&'a dyn Tool],
    ) -> Vec<&'a dyn Tool> {
        let mut present = Vec::new();
        for &tool in tools {
            let asked = self.options.tools.is_empty() || self.options.tools.iter().any(|id| id == tool.id());
            let reason = match asked {
                true => page_cache::missing(group.cache).or_else(|| tool.missing(kind)),
                false => Some("left out by --tool".to_owned()),
            };
            let series = self.series(group, tool);
            if let Some(reason) = reason {
                series.not_measured = Some(reason.clone());
                self.progress.note(&format!("{}: not measured: {reason}", tool.id()));
                continue;
            }
            for version in tool.versions(kind) {
                if !self
                    .results
                    .tools
                    .iter()
                    .any(|known| known.name == version.name && known.version == version.version)
                {
                    self.results.tools.push(version);
                }
            }
            present.push(tool);
        }
        present
    }

    fn series(&mut self, group: &Group, tool: &dyn Tool) -> &mut Series {
        let all = &mut self.results.series;
        let known = all.iter().position(|series| series.group == *group && series.contestant == tool.id());
        let at = known.unwrap_or_else(|| {
            all.push(Series {
                group: group.clone(),
                contestant: tool.id().to_owned(),
                label: tool.label().to_owned(),
                command: String::new(),
                samples: Vec::new(),
                not_measured: None,
            });
            all.len() - 1
        });
        &mut all[at]
    }

    /// Runs a command that a measurement needs but does not include.
    pub(crate) fn untimed(&self, job: &Job) -> Result<()> {
        if let Some(before) = &job.before {
            before.run(self.scratch.logs())?;
        }
        job.timed.run(self.scratch.logs())
    }

    /// Runs a script outside all measurements.
    pub(crate) fn script(&self, script: &Script) -> Result<()> {
        script.run(self.scratch.logs())
    }

    /// Measures one turn and returns whether it succeeded.
    /// A contestant that fails is listed in the results with the reason and gets no further turns.
    pub(crate) fn measure(&mut self, source: &Source, turn: &Turn<'_>, job: Result<Job>) -> Result<bool> {
        interrupt::check()?;
        if self.series(turn.group, turn.tool).not_measured.is_some() {
            return Ok(false);
        }
        let measured = job.and_then(|job| Ok((self.try_measure(source, turn, &job)?, job)));
        interrupt::check()?;
        match measured {
            Ok((sample, job)) => {
                self.progress.sample(turn.group, turn.tool.id(), &sample);
                let series = self.series(turn.group, turn.tool);
                job.timed.text().clone_into(&mut series.command);
                series.samples.push(sample);
                Ok(true)
            }
            Err(error) => {
                self.give_up(turn, &error);
                Ok(false)
            }
        }
    }

    /// Records that a contestant failed.
    pub(crate) fn give_up(&mut self, turn: &Turn<'_>, error: &anyhow::Error) {
        self.failed = true;
        let reason = format!("failed: {error:#}");
        self.progress.note(&format!("{} {reason}", turn.tool.id()));
        self.series(turn.group, turn.tool).not_measured = Some(reason);
    }

    fn try_measure(&self, source: &Source, turn: &Turn<'_>, job: &Job) -> Result<Sample> {
        let logs = self.scratch.logs();
        if let Some(before) = &job.before {
            before.run(logs)?;
        }
        let stored_before = stored(job.stored_in.as_deref())?;
        let files = source.data_files()?;
        page_cache::prepare(turn.group.cache, files.iter().map(AsRef::as_ref))?;

        let probed = match turn.load {
            Some(_) => Some(Probers::start(&source.server, turn.group.load)?),
            None => None,
        };
        if probed.is_some() {
            thread::sleep(PROBER_MARGIN);
        }
        let committed = || turn.load.map(Writers::committed).transpose();
        let committed_before = committed()?;
        let before = Processors::look(source)?;
        let usage = job.timed.measure(logs)?;
        let after = Processors::look(source)?;
        let transactions = committed()?.zip(committed_before).map(|(after, before)| after - before);
        let clients = match probed {
            Some(probers) => {
                thread::sleep(PROBER_MARGIN);
                Some(probers.stop(&usage, transactions.unwrap_or_default())?)
            }
            None => None,
        };

        let server_cpu_s = after.server_s.zip(before.server_s).map(|(after, before)| after - before);
        let (user_s, system_s) = (usage.user.as_secs_f64(), usage.system.as_secs_f64());
        let known_s = user_s + system_s + server_cpu_s.unwrap_or_default() + after.own_s - before.own_s;
        let said = self.scratch.without_paths(&usage.last_line);
        let stored_bytes = stored(job.stored_in.as_deref())?
            .zip(stored_before)
            .map(|(after, before)| after.saturating_sub(before));
        Ok(Sample {
            round: turn.round,
            wall_s: usage.wall().as_secs_f64(),
            user_s,
            system_s,
            rss_max_bytes: usage.rss_max_bytes,
            server_cpu_s,
            other_cpu_s: (after.machine_s - before.machine_s - known_s).max(0.0),
            stored_bytes,
            clients,
            said: serde_json::from_str(&said).ok().filter(serde_json::Value::is_object),
        })
    }

    fn finish(&mut self) -> Result<()> {
        self.results.elapsed_s = self.progress.elapsed().as_secs_f64().round();
        let measured = self.results.series.iter().any(|series| !series.samples.is_empty());
        if !measured && self.results.figures.is_empty() {
            self.progress.note("nothing was measured, nothing is written");
            return Ok(());
        }
        self.results.goals = goals::judge(&self.results);
        fs::create_dir_all(&self.options.out_dir)?;
        let base = self.options.out_dir.join(&self.options.name);
        report::write(&self.results, &base)?;
        progress::print(&report::goals(&self.results));
        self.progress.note(&format!("written: {}.json, .md and .svg", base.display()));
        Ok(())
    }
}

/// Processor time used so far.
struct Processors {
    server_s: Option<f64>,
    own_s: f64,
    machine_s: f64,
}

impl Processors {
    fn look(source: &Source) -> Result<Processors> {
        Ok(Processors {
            server_s: source.cpu_s()?,
            own_s: machine::process_cpu_s(std::process::id())?,
            machine_s: machine::machine_cpu_s()?,
        })
    }
}

/// The size of a result; `None` if it does not exist yet.
fn stored(path: Option<&Path>) -> Result<Option<u64>> {
    let Some(path) = path else { return Ok(None) };
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => directory_bytes(path).map(Some),
        Ok(meta) => Ok(Some(meta.len())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Some(0)),
        Err(error) => Err(error.into()),
    }
}

/// What tells how clients fare during a turn.
struct Probers {
    commits: Prober,
    definitions: Option<Prober>,
}

impl Probers {
    fn start(server: &Server, load: Load) -> Result<Probers> {
        let definitions = match load {
            Load::Definitions => Some(Prober::of_definitions(server)?),
            Load::Idle | Load::Writes | Load::Stopped => None,
        };
        Ok(Probers { commits: Prober::of_commits(server)?, definitions })
    }

    fn stop(self, usage: &Usage, transactions: u64) -> Result<Clients> {
        let ms = |latency: Duration| latency.as_secs_f64() * 1000.0;
        let definitions = match self.definitions {
            Some(prober) => Some(prober.stop()?.during(usage.begun, usage.ended)),
            None => None,
        };
        let commits = self.commits.stop()?.during(usage.begun, usage.ended);
        ensure!(!commits.all.is_empty(), "the prober saw no commit");
        let longest = commits.all.iter().max_by_key(|commit| commit.latency);
        let longest_at =
            longest.map(|commit| commit.sent_at.saturating_duration_since(usage.begun)).unwrap_or_default();
        Ok(Clients {
            commits: commits.all.len(),
            commit_median_ms: ms(commits.percentile(50.0)),
            commit_p99_ms: ms(commits.percentile(99.0)),
            commit_longest_ms: ms(commits.max()),
            commit_longest_at_s: longest_at.as_secs_f64(),
            definition_longest_ms: definitions.map(|definitions| ms(definitions.max())),
            transactions_per_s: transactions as f64 / usage.wall().as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::order;

    /// Every contestant runs once per round, and each has been first and last.
    #[test]
    fn turns_alternate() {
        let rounds: Vec<Vec<usize>> = (0..6).map(|round| order(3, round)).collect();
        for round in &rounds {
            let mut sorted = round.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
        }
        for contestant in 0..3 {
            assert!(rounds.iter().any(|round| round.first() == Some(&contestant)), "{rounds:?}");
            assert!(rounds.iter().any(|round| round.last() == Some(&contestant)), "{rounds:?}");
        }
        assert!(order(0, 1).is_empty());
    }
}
