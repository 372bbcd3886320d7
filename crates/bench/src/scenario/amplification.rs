//! The later cost of many incrementals: restore time and repository size after fifty of them, compared with a
//! first backup of the same state.
//!
//! Changes are skewed, as in practice: most affect few rows, so some pages are stored anew by every backup
//! while most chunks lose a page now and then. The data are a quarter of the size of the other scenarios'.

use std::path::Path;

use anyhow::Result;
use holdfast_testkit::ServerKind;
use holdfast_testkit::observe::directory_bytes;
use holdfast_testkit::rng::Rng;

use super::incremental::{CHANGES, updates};
use super::{Scenario, group};
use crate::args::Options;
use crate::dataset::Dataset;
use crate::results::{Cache, Group, Load, Unit};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{Holdfast, Tool, Verb};

const SHARE_OF_DATA: u64 = 4;
const INCREMENTALS: u32 = 50;
const INCREMENTALS_QUICK: u32 = 5;
/// One row in this many changes before each incremental.
const ROWS_PER_CHANGE: u64 = 500;
const SEED: u64 = 1;

pub(crate) struct Amplification;

/// Holdfast restoring from a repository with a history, and from one with a single backup.
fn contestants(options: &Options) -> [Holdfast; 2] {
    let holdfast = || Holdfast::defaults(&options.holdfast);
    [
        holdfast().named("holdfast-after-many", "holdfast restore, after the incrementals"),
        holdfast().named("holdfast-fresh", "holdfast restore, from a first backup"),
    ]
}

fn incrementals(options: &Options) -> u32 {
    if options.quick { INCREMENTALS_QUICK } else { INCREMENTALS }
}

fn dataset(options: &Options) -> Dataset {
    Dataset { kind: ServerKind::MariaDb1011, size_mib: (options.size_mib / SHARE_OF_DATA).max(1) }
}

impl Scenario for Amplification {
    fn name(&self) -> &'static str {
        "amplification"
    }

    fn about(&self) -> &'static str {
        "restore time and repository size after many skewed incrementals"
    }

    /// The repository is the same for every server, so one server is enough.
    fn applies(&self, kind: ServerKind) -> bool {
        kind == ServerKind::MariaDb1011
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let tool = Holdfast::defaults(&options.holdfast);
        if tool.missing(kind).is_some() {
            return 0.0;
        }
        const OVERHEAD_S: f64 = 1.5;
        let gb = options.data_gb() / SHARE_OF_DATA as f64;
        let each = |verb| tool.expected_s_per_gb(verb) * gb + OVERHEAD_S;
        f64::from(incrementals(options)) * each(Verb::Incremental)
            + 2.0 * each(Verb::Backup)
            + 2.0 * f64::from(options.rounds) * each(Verb::Restore)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let kind = source.kind();
        let group = group(self, kind, Cache::Cold, Load::Stopped);
        let [many, fresh] = contestants(&bench.options);
        let tools = bench.present(&group, kind, &[&many, &fresh]);
        if tools.len() < 2 {
            return Ok(());
        }
        source.stop()?;
        let mut source = Source::start(dataset(&bench.options), &bench.scratch, &bench.progress)?;
        bench.describe(source.describe(Some(self.name()))?);
        let (many_dir, fresh_dir) = (bench.scratch.dir("many-")?, bench.scratch.dir("fresh-")?);
        let made = make_history(bench, &source, &many, many_dir.path())
            .and_then(|()| bench.untimed(&fresh.backup(&source, fresh_dir.path())?));
        if let Err(error) = made {
            for tool in tools {
                let turn = Turn { group: &group, tool, round: 0, load: None };
                bench.give_up(&turn, &anyhow::anyhow!("make the backups: {error:#}"));
            }
            return Ok(());
        }
        source.stop()?;

        let dirs = [many_dir.path(), fresh_dir.path()];
        for round in 0..bench.options.rounds {
            for at in order(tools.len(), round) {
                let dir = bench.scratch.dir("restore-")?;
                let turn = Turn { group: &group, tool: tools[at], round, load: None };
                let job = tools[at].restore(kind, dirs[at], &dir.path().join("target"), dir.path());
                bench.measure(&source, &turn, job)?;
            }
        }
        sizes(bench, &group, &many, many_dir.path(), fresh_dir.path())
    }
}

/// Takes a first backup, then alternates skewed changes and backups.
fn make_history(bench: &Bench, source: &Source, tool: &Holdfast, dir: &Path) -> Result<()> {
    bench.untimed(&tool.backup(source, dir)?)?;
    let incrementals = incrementals(&bench.options);
    bench.progress.note(&format!("{incrementals} incrementals"));
    for number in 0..incrementals {
        for (stream, (table, set)) in (0..).zip(CHANGES) {
            let rows: u64 = source.server.value(format!("SELECT MAX(id) FROM shop.{table}"))?;
            let mut rng = Rng::keyed(SEED, stream, u64::from(number));
            let ids: Vec<u64> = (0..rows / ROWS_PER_CHANGE).map(|_| skewed(&mut rng, rows)).collect();
            source.server.exec_all(updates(table, set, &ids)?)?;
        }
        bench.untimed(&tool.incremental(source, dir, dir)?)?;
    }
    Ok(())
}

/// Draws a row number: most are in the last eighth of the table, since new orders change most.
fn skewed(rng: &mut Rng, rows: u64) -> u64 {
    let near_end = (0..3).map(|_| rng.below(rows)).max().unwrap_or_default();
    let nearer = (0..2).map(|_| rng.between(near_end, rows.saturating_sub(1))).max().unwrap_or_default();
    nearer + 1
}

fn sizes(bench: &mut Bench, group: &Group, many: &Holdfast, many_dir: &Path, fresh_dir: &Path) -> Result<()> {
    let size = |dir: &Path| -> Result<Vec<f64>> { Ok(vec![directory_bytes(&Holdfast::repo(dir))? as f64]) };
    bench.figure(group, "repo-all", "repository with every backup", Unit::Bytes, size(many_dir)?);
    bench.figure(group, "repo-fresh", "repository with one first backup", Unit::Bytes, size(fresh_dir)?);
    // The first prune declares data unneeded; the second deletes it.
    for words in ["expire --keep-last 1", "prune --grace 0s", "prune --grace 0s"] {
        if let Err(error) = bench.script(&many.command(words, many_dir)) {
            bench.give_up(&Turn { group, tool: many, round: 0, load: None }, &error);
            return Ok(());
        }
    }
    bench.figure(
        group,
        "repo-pruned",
        "repository with the last backup only, pruned",
        Unit::Bytes,
        size(many_dir)?,
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use holdfast_testkit::rng::Rng;

    use super::skewed;

    /// The rows exist, and their distribution is as described.
    #[test]
    fn changes_are_skewed() {
        let mut rng = Rng::new(1);
        let ids: Vec<u64> = (0..10_000).map(|_| skewed(&mut rng, 8000)).collect();
        assert!(ids.iter().all(|id| (1..=8000).contains(id)));
        let share = ids.iter().filter(|&&id| id > 7000).count() as f64 / 10_000.0;
        assert!((0.5..0.9).contains(&share), "{share}");
    }
}
