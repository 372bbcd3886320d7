//! Proof of point-in-time recovery, run by `make pitr` and by a short test.
//!
//! Clients write to a server and record each commit: its content, its GTID, and when it was begun and
//! answered.
//! Meanwhile backups are taken, and the archiver, the server, the store and the network between them are
//! killed, frozen and cut.
//! In the end the server's own binlogs, read by its own program, give the order of the commits; they also
//! decide about commits that were never answered.
//! At random moments, the recovered server must then hold exactly the contents of a model that has applied
//! the same commits in that order.

mod binlog;
mod change;
mod clients;
mod disorder;
mod loaded;
mod model;
mod stage;
mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::kind::ServerKind;
use crate::rng::Rng;
use binlog::History;
use clients::Clients;
use model::State;
use stage::{Base, Stage};
use target::{Judged, Moments};

/// Two independent parts of the load: separate schemas, and on MariaDB separate domains.
const AREAS: [&str; 2] = ["pitr_a", "pitr_b"];

/// The permanent tables of an area.
fn area_tables(area: &str) -> [String; 4] {
    [1, 2, 3, 4].map(|number| format!("{area}.t{number}"))
}

/// Options of the proof.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kind of server.
    pub kind: ServerKind,
    /// The number of moments to recover to.
    pub targets: usize,
    /// Seed of all randomness.
    pub seed: u64,
    /// How long faults are injected.
    pub disorder: Duration,
    /// Path of the `holdfast` program.
    pub program: PathBuf,
}

/// Runs the proof and returns a summary; `say` gets a line for each step.
/// An error is a finding, and all files needed to examine it are kept.
pub fn prove(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Value> {
    let mut stage = Stage::set(options)?;
    run(&mut stage, options, say).map_err(|error| {
        let said = stage.said.join("\n");
        let counts = format!("{:?}", stage.counts);
        let kept = stage.keep();
        error.context(format!("seed {}, {counts}; kept: {}\n{said}", options.seed, kept.display()))
    })
}

fn run(stage: &mut Stage, options: &Options, say: &mut dyn FnMut(&str)) -> Result<Value> {
    let begun = Instant::now();
    let in_seconds = options.kind.is_mariadb();
    let begin = clients::prepare(&stage.source)?;
    stage.start_archiver()?;
    let mut clients = Clients::start(&stage.source, options.seed);
    let mut rng = Rng::keyed(options.seed, 12, 0);
    // The first backup and one in the middle must succeed; any outcome is accepted for the others.
    for _ in 0..2 {
        stage.take_backup("")?;
        disorder::reign(stage, &mut clients, &mut rng, options.disorder / 2)?;
    }
    let noted = clients.stop()?;
    stage.catch_up()?;
    say(&format!("{:.0} s of disorder: {:?}", options.disorder.as_secs_f64(), stage.counts));

    for said in &stage.said {
        say(&format!("out of order: {}", said.trim().replace('\n', " | ")));
    }
    let history = History::of(&stage.source, begin, noted)?;
    let (all, [happened, did_not]) = (&history.commits, history.settled);
    let last = all.last().context("no commits")?;
    say(&format!(
        "{} commits; of those that nobody was told of {happened} took place, {did_not} did not",
        all.len()
    ));
    let end = history.state_after(all.len())?;
    let found = State::of(&stage.source)?;
    end.ensure_is(&found).context("the source itself differs from its binlog")?;

    let list = stage.list()?.context("nobody archives, and it is busy")?;
    ensure!(list["gaps"] == json!([]), "gaps: {list}");
    let [recoverable] = &list["recoverable"].as_array().context("nothing is recoverable")?[..] else {
        bail!("not one range can be recovered: {list}")
    };
    let first = stage.bases.first().context("no backup")?;
    ensure!(recoverable["from"] == first.id.as_str(), "not from the first backup on: {list}");
    let until: Timestamp = recoverable["until_at"].as_str().context("no end")?.parse()?;
    // The last second of a MariaDB archive may be incomplete, so it is not promised.
    let promised = if in_seconds { last.at - SignedDuration::from_secs(1) } else { last.at };
    ensure!(until == promised, "the last was committed at {}, it says {until}", last.at);

    let moments =
        Moments { history: &history, bases: &stage.bases, logical: &stage.logical, until, in_seconds };
    let mut judged = Judged::default();
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for number in 0..options.targets {
        let took = Instant::now();
        let target = moments.draw(&mut Rng::keyed(options.seed, 13, number as u64), number)?;
        target.judge(stage, &history, &mut judged).with_context(|| format!("target {number}: {target}"))?;
        *kinds.entry(target.kind).or_default() += 1;
        say(&format!("target {number:>2}  {:>5.1} s  equal: {target}", took.elapsed().as_secs_f64()));
    }
    for Base { id, .. } in &stage.logical {
        let commits = loaded::judge(stage, id, &history, &mut judged).with_context(|| id.clone())?;
        say(&format!("{id} loaded: equal, {commits} commits"));
    }
    Ok(json!({
        "server": options.kind.name(),
        "server_version": options.kind.version()?,
        "seed": options.seed,
        "disorder_s": options.disorder.as_secs_f64(),
        "events": stage.counts,
        "commits": all.len(),
        "commits_nobody_was_told_of": { "took_place": happened, "did_not": did_not },
        "targets": kinds,
        "backups_recovered_from": judged.bases.len(),
        "logical_ones_among_them": judged.bases.iter().filter(|id| id.contains("/logical")).count(),
        "backups_loaded": stage.logical.len(),
        "transactions_replayed": judged.replayed,
        "tables_compared": judged.tables,
        "rows_compared": judged.rows,
        "differences": 0,
        "seconds": begun.elapsed().as_secs_f64().round(),
    }))
}
