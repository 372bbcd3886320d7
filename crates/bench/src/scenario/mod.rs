//! The scenarios: one module per question.

mod amplification;
mod archiver;
mod busy;
mod codec;
mod fetch;
mod first;
mod full;
mod held;
mod incremental;
mod load;
mod redump;
mod remote;
mod restore;
mod storm;
mod sysbench;

use anyhow::Result;
use holdfast_testkit::ServerKind;

use crate::args::Options;
use crate::results::{Cache, Group, Load};
use crate::run::Bench;
use crate::source::Source;
use crate::tool::{Tool, Verb};

/// A question and the contestants that answer it.
pub(crate) trait Scenario {
    /// The name for `--only` and the results.
    fn name(&self) -> &'static str;

    /// The question in one line.
    fn about(&self) -> &'static str;

    /// Whether it makes sense for this server.
    fn applies(&self, _kind: ServerKind) -> bool {
        true
    }

    /// The expected duration.
    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64;

    /// Runs the measurements. The source is running, and may be left stopped.
    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()>;
}

/// Scenarios of physical backups.
pub(crate) fn physical() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(codec::CodecSpeed),
        Box::new(full::Full),
        Box::new(incremental::Incremental::pages()),
        Box::new(busy::Busy),
        Box::new(storm::Storm),
        Box::new(restore::Restore),
        Box::new(sysbench::UnderSysbench),
        Box::new(amplification::Amplification),
    ]
}

/// Scenarios of logical backups.
pub(crate) fn logical() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(first::First::rows()),
        Box::new(load::LoadRows),
        Box::new(redump::Redump),
        Box::new(first::First::several()),
        Box::new(held::Held),
    ]
}

/// Scenarios of repositories.
pub(crate) fn repository() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(first::First::repository()),
        Box::new(remote::Remote),
        Box::new(fetch::Fetch),
        Box::new(incremental::Incremental::repositories()),
    ]
}

/// Scenarios of binlogs.
pub(crate) fn binlog() -> Vec<Box<dyn Scenario>> {
    vec![Box::new(archiver::Beside::archived()), Box::new(archiver::Beside::acknowledged())]
}

fn group(scenario: &dyn Scenario, kind: ServerKind, cache: Cache, load: Load) -> Group {
    Group { scenario: scenario.name().to_owned(), server: kind.name().to_owned(), cache, load }
}

/// The forecast for all rounds of some contestants.
fn expected_s(tools: &[&dyn Tool], verb: Verb, kind: ServerKind, cache: Cache, options: &Options) -> f64 {
    // Starting, cleaning up, and writing back blocks of the previous result.
    const OVERHEAD_S: f64 = 1.5;
    const READ_WARM_S_PER_GB: f64 = 0.6;
    let warming = if cache == Cache::Warm { READ_WARM_S_PER_GB } else { 0.0 };
    let of_tool = |tool: &&dyn Tool| match tool.missing(kind) {
        Some(_) => 0.0,
        None => (tool.expected_s_per_gb(verb) + warming) * options.data_gb() + OVERHEAD_S,
    };
    tools.iter().map(of_tool).sum::<f64>() * f64::from(options.rounds)
}
