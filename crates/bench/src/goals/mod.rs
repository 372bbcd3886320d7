//! The goals, and whether they were met.
//!
//! Two contestants are compared round by round, since only runs close in time had the same machine
//! conditions; the result is the median of those ratios. A goal whose contestants were not measured says so.

mod binlog;
mod logical;
mod physical;
mod repository;

use serde::{Deserialize, Serialize};

use crate::results::{Cache, Group, Load, Results, Sample, Series, Unit};
use crate::stats::Spread;
use crate::suite::Suite;

/// A goal and its outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) server: String,
    pub(crate) goal: String,
    pub(crate) at_most: f64,
    pub(crate) unit: Unit,
    pub(crate) value: Option<Spread>,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Met,
    Missed,
    NotMeasured,
}

const MARIADB: &str = "mariadb-10.11";
const MYSQL: &str = "mysql-9.7";
const WALL: fn(&Sample) -> Option<f64> = |sample| Some(sample.wall_s);
const CPU: fn(&Sample) -> Option<f64> = |sample| Some(sample.cpu_s());
const STORED: fn(&Sample) -> Option<f64> = |sample| sample.stored_bytes.map(|bytes| bytes as f64);

/// Checks the results against all goals.
pub(crate) fn judge(results: &Results) -> Vec<Verdict> {
    let mut verdicts = match results.suite {
        Suite::Physical => physical::verdicts(results),
        Suite::Logical => logical::verdicts(results),
        Suite::Repository => repository::verdicts(results),
        Suite::Binlog => binlog::verdicts(results),
    };
    // Servers that were not selected have no goals.
    verdicts.retain(|verdict| results.data.iter().any(|data| data.server == verdict.server));
    verdicts
}

/// One group of the results.
#[derive(Clone, Copy)]
struct In<'a> {
    results: &'a Results,
    scenario: &'static str,
    server: &'static str,
    cache: Cache,
    load: Load,
}

impl<'a> In<'a> {
    fn verdict(
        self,
        goal: &str,
        at_most: f64,
        unit: Unit,
        value: impl Fn(In<'a>) -> Option<Spread>,
    ) -> Verdict {
        let value = value(self);
        let outcome = match value {
            None => Outcome::NotMeasured,
            Some(value) if value.median <= at_most => Outcome::Met,
            Some(_) => Outcome::Missed,
        };
        Verdict { server: self.server.to_owned(), goal: goal.to_owned(), at_most, unit, value, outcome }
    }

    fn series(self, contestant: &str) -> Option<&'a Series> {
        let group = Group {
            scenario: self.scenario.to_owned(),
            server: self.server.to_owned(),
            cache: self.cache,
            load: self.load,
        };
        self.results.series.iter().find(|series| series.group == group && series.contestant == contestant)
    }

    fn figure(self, id: &str) -> Option<f64> {
        let figure = self.results.figure(self.scenario, self.server, id)?;
        Spread::of(figure.values.iter().copied()).map(|values| values.median)
    }

    /// The ratio of one contestant to another, in the rounds in which both ran.
    fn ratio(self, ours: &str, theirs: &str, of: fn(&Sample) -> Option<f64>) -> Option<Spread> {
        let (ours, theirs) = (self.series(ours)?, self.series(theirs)?);
        Spread::of(ours.samples.iter().filter_map(|sample| {
            let same_round = theirs.samples.iter().find(|other| other.round == sample.round)?;
            Some(of(sample)? / of(same_round)?)
        }))
    }

    fn longest_commits(self, contestant: &str) -> Option<Spread> {
        self.series(contestant)?.spread(|sample| Some(sample.clients?.commit_longest_ms))
    }

    /// How many times longer it took than the codec alone would on every core.
    fn codec_bound(self) -> Option<Spread> {
        let codec = self.results.figure("codec", self.server, "zstd-1-core")?;
        let bytes_per_core_s = Spread::of(codec.values.iter().copied())?.median;
        let data =
            self.results.data.iter().find(|data| data.server == self.server && data.scenario.is_none())?;
        let bound_s = data.data_file_bytes as f64 / (self.results.machine.cores as f64 * bytes_per_core_s);
        self.series("holdfast")?.spread(|sample| Some(sample.wall_s / bound_s))
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, judge};
    use crate::report::tests::results;

    /// Ratios are taken within rounds: a slow round slows both contestants, and does not
    /// count against one of them.
    #[test]
    fn contestants_are_compared_within_rounds() {
        let verdicts = judge(&results());
        let find = |goal: &str| verdicts.iter().find(|verdict| verdict.goal.contains(goal)).unwrap();
        let floor = find("wall / cp + sync");
        assert_eq!(floor.value.unwrap().median, 1.1);
        assert_eq!(floor.outcome, Outcome::Met);
        assert_eq!(find("wall / mariadb-backup").outcome, Outcome::Missed);
        assert_eq!(find("copy-back").outcome, Outcome::NotMeasured);
        assert!(verdicts.iter().all(|verdict| verdict.server == "mariadb-10.11"), "{verdicts:?}");
    }
}
