//! Moments to recover to, and the verification of recovered servers.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::binlog::History;
use super::model::State;
use super::stage::{Base, Stage};
use crate::rng::Rng;
use crate::server::{Server, ServerOptions};
use crate::tables::check_tables;

/// The kinds of moments, by their options.
const KINDS: [&str; 4] = ["--gtid", "--before-gtid", "--at", "--at latest"];

/// A moment to recover to.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) kind: &'static str,
    /// The moment as typed.
    moment: String,
    /// The backup to name, if any.
    base: Option<Base>,
    /// The number of commits that it includes.
    commits: usize,
}

/// Totals over all recoveries.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) tables: usize,
    pub(super) rows: usize,
    pub(super) replayed: u64,
    /// Backups that recoveries started from.
    pub(super) bases: BTreeSet<String>,
}

impl Judged {
    /// Adds a state that was verified.
    pub(super) fn add(&mut self, state: &State) {
        self.tables += state.tables();
        self.rows += state.rows();
    }
}

/// Draws moments from the recoverable period.
pub(super) struct Moments<'a> {
    pub(super) history: &'a History,
    pub(super) bases: &'a [Base],
    pub(super) logical: &'a [Base],
    /// The end of that period.
    pub(super) until: Timestamp,
    pub(super) in_seconds: bool,
}

impl Moments<'_> {
    /// Draws moment `number`; the first few cover each kind once.
    pub(super) fn draw(&self, rng: &mut Rng, number: usize) -> Result<Target> {
        let kind = match rng.below(100) {
            _ if number < KINDS.len() => KINDS[number],
            0..34 => KINDS[0],
            34..60 => KINDS[1],
            60..94 => KINDS[2],
            _ => KINDS[3],
        };
        let all = &self.history.commits;
        let first = self.bases.first().context("no backup")?.at;
        // Everything begun after the first backup can be recovered to.
        let begin = all.iter().rposition(|placed| placed.commit.begun <= first).map_or(0, |at| at + 1);
        ensure!(begin < all.len(), "nothing was committed behind the first backup");
        let at = begin + rng.index(all.len() - begin);
        let (moment, commits, time) = match kind {
            "--gtid" => (format!("--gtid {}", all[at].gtid), at + 1, all[at].commit.begun),
            "--before-gtid" => (format!("--before-gtid {}", all[at].gtid), at, all[at].commit.begun),
            "--at" => {
                let time = self.draw_time(rng, first, all[at].at);
                let commits = self.commits_until(time)?;
                (format!("--at {time}"), commits, time)
            }
            _ => (kind.to_owned(), all.len(), Timestamp::MAX),
        };
        // Either the last physical backup before the moment (unnamed), or any earlier one by name.
        let named = match rng.below(100) {
            0..30 => self.bases,
            30..60 => self.logical,
            _ => &[],
        };
        let earlier: Vec<&Base> = named.iter().filter(|base| base.at < time).collect();
        let base = (!earlier.is_empty()).then(|| earlier[rng.index(earlier.len())].clone());
        Ok(Target { kind, moment, base, commits })
    }

    /// A random time, the time of a commit, or just before one.
    fn draw_time(&self, rng: &mut Rng, first: Timestamp, commit: Timestamp) -> Timestamp {
        let drawn = match rng.below(4) {
            0 => commit,
            1 => commit - SignedDuration::from_micros(1),
            _ => {
                let span = self.until.duration_since(first).as_micros().max(1);
                first + SignedDuration::from_micros(rng.below(span as u64) as i64)
            }
        };
        drawn.clamp(first, self.until)
    }

    /// The number of commits up to a time: all before the first later one.
    /// Must agree with what the clients recorded.
    fn commits_until(&self, time: Timestamp) -> Result<usize> {
        let all = &self.history.commits;
        let count = all.iter().position(|placed| placed.at > time).unwrap_or(all.len());
        // A second that has begun includes all its commits.
        let second = Timestamp::from_second(time.as_second())?;
        let (told, sent) = match self.in_seconds {
            true => (second, second + SignedDuration::from_secs(1)),
            false => (time, time),
        };
        const TOLERANCE: SignedDuration = SignedDuration::from_millis(10);
        for (at, placed) in all.iter().enumerate() {
            let commit = &placed.commit;
            let was_told = commit.answered.is_some_and(|answered| answered < told - TOLERANCE);
            ensure!(at < count || !was_told, "{placed:?} was answered before {time}, and would be left out");
            ensure!(
                at >= count || commit.begun < sent + TOLERANCE,
                "{placed:?} is of after {time}, and would be in"
            );
        }
        Ok(count)
    }
}

impl Target {
    /// Recovers to the moment and compares all contents.
    pub(super) fn judge(&self, stage: &Stage, history: &History, judged: &mut Judged) -> Result<()> {
        let target = stage.dir().join("recovered");
        let words = match &self.base {
            Some(base) => format!("{} {}", base.id, self.moment),
            None => self.moment.clone(),
        };
        let report = stage.restore(&words, &target)?;
        let wanted = history.state_after(self.commits)?;
        let copy =
            Server::attach(stage.source.kind(), &target, ServerOptions::default().parent(stage.dir()))?;
        let found = State::of(&copy)?;
        wanted.ensure_is(&found).with_context(|| report.to_string())?;
        check_tables(&copy)?;
        drop(copy);
        fs::remove_dir_all(&target)?;
        judged.add(&wanted);
        self.check_report(stage, &report, history, judged).with_context(|| report.to_string())
    }

    /// Checks the reported end of the recovery and the reported number of commits.
    fn check_report(
        &self,
        stage: &Stage,
        report: &Value,
        history: &History,
        judged: &mut Judged,
    ) -> Result<()> {
        let report = &report["report"];
        let replayed = &report["replayed"];
        let count = replayed["transactions"].as_u64().context("no number of transactions")?;
        judged.replayed += count;
        let backup = stage.id(&report["backup"])?;
        let position = &stage.report(&backup)?["report"]["position"];
        let held = history.commits_at(position)?;
        let all = held as u64 + count;
        ensure!(
            all == self.commits as u64,
            "{backup} holds {held} commits, {count} were replayed: {position}"
        );
        judged.bases.insert(backup);
        if count > 0 {
            let last = &history.commits[self.commits - 1];
            let end = (replayed["binlog"]["file"].as_str(), replayed["binlog"]["offset"].as_u64());
            ensure!(end == (Some(&last.file), Some(last.end)), "it ended at {end:?}, not at {last:?}");
            let at: Timestamp = replayed["committed_at"].as_str().context("no time")?.parse()?;
            ensure!(at == last.at, "its last was committed at {at}, not {}", last.at);
        }
        Ok(())
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} commits", self.moment, self.commits)?;
        match &self.base {
            Some(base) => write!(f, ", from {}", base.id),
            None => Ok(()),
        }
    }
}
