//! Retention rules: which backups to keep by their age.

use std::fmt;

use jiff::{Timestamp, tz::TimeZone};

use crate::names::RunNo;

/// How many to keep: the newest ones, and the newest of each of the last hours, days, … in which there are any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// The newest.
    pub last: u32,
    /// One for each of so many hours.
    pub hourly: u32,
    /// One for each of so many days.
    pub daily: u32,
    /// One for each of so many weeks (ISO 8601, from Monday).
    pub weekly: u32,
    /// One for each of so many months.
    pub monthly: u32,
    /// One for each of so many years.
    pub yearly: u32,
}

/// Why a backup is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// One of the newest.
    Last,
    /// Newest of an hour.
    Hourly,
    /// Newest of a day.
    Daily,
    /// Newest of a week.
    Weekly,
    /// Newest of a month.
    Monthly,
    /// Newest of a year.
    Yearly,
    /// It has a tag that keeps.
    Tag,
    /// The rules go for a tag that it has not.
    OtherTag,
    /// Its manifest cannot be read, so that its tags are not known.
    Unreadable,
    /// On hold.
    Held,
    /// The newest without damage, where newer ones have some.
    LastGood,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Last => "last",
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
            Self::Yearly => "yearly",
            Self::Tag => "tag",
            Self::OtherTag => "other-tag",
            Self::Unreadable => "unreadable",
            Self::Held => "held",
            Self::LastGood => "last-good",
        })
    }
}

/// A backup and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its run.
    pub run: RunNo,
    /// When it was taken.
    pub at: Timestamp,
}

impl RetentionPolicy {
    /// Whether it keeps nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Why each of `candidates`, oldest first, is kept; no reason: it is to be dropped. Days and hours are those of
    /// `zone`.
    #[must_use]
    pub fn judge(&self, candidates: &[Candidate], zone: &TimeZone) -> Vec<Vec<Reason>> {
        let mut rules = [
            Rule::new(Every::Backup, self.last),
            Rule::new(Every::Hour, self.hourly),
            Rule::new(Every::Day, self.daily),
            Rule::new(Every::Week, self.weekly),
            Rule::new(Every::Month, self.monthly),
            Rule::new(Every::Year, self.yearly),
        ];
        let mut verdicts: Vec<Vec<Reason>> = candidates
            .iter()
            .rev()
            .map(|candidate| {
                rules
                    .iter_mut()
                    .filter_map(|rule| rule.keeps(candidate, zone).then_some(rule.every.reason()))
                    .collect()
            })
            .collect();
        verdicts.reverse();
        verdicts
    }
}

/// A period as numbers that differ between periods.
type Period = (i16, i16, u64);

/// Of what a rule keeps the newest.
#[derive(Clone, Copy)]
enum Every {
    Backup,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Every {
    fn reason(self) -> Reason {
        match self {
            Self::Backup => Reason::Last,
            Self::Hour => Reason::Hourly,
            Self::Day => Reason::Daily,
            Self::Week => Reason::Weekly,
            Self::Month => Reason::Monthly,
            Self::Year => Reason::Yearly,
        }
    }
}

struct Rule {
    every: Every,
    left: u32,
    period: Option<Period>,
}

impl Rule {
    fn new(every: Every, left: u32) -> Self {
        Self { every, left, period: None }
    }

    fn keeps(&mut self, candidate: &Candidate, zone: &TimeZone) -> bool {
        let local = zone.to_datetime(candidate.at);
        let (year, month, day) = (local.year(), i16::from(local.month()), local.day().unsigned_abs());
        let period = match self.every {
            Every::Backup => (0, 0, candidate.run.0),
            Every::Hour => (year, month, u64::from(day) * 24 + u64::from(local.hour().unsigned_abs())),
            Every::Day => (year, month, u64::from(day)),
            Every::Week => {
                let week = local.date().iso_week_date();
                (week.year(), i16::from(week.week()), 0)
            }
            Every::Month => (year, month, 0),
            Every::Year => (year, 0, 0),
        };
        if self.left == 0 || self.period == Some(period) {
            return false;
        }
        self.left -= 1;
        self.period = Some(period);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(policy: RetentionPolicy, times: &[&str]) -> Vec<u64> {
        let candidates: Vec<Candidate> = times
            .iter()
            .zip(1..)
            .map(|(time, run)| Candidate { run: RunNo(run), at: time.parse().unwrap() })
            .collect();
        let verdicts = policy.judge(&candidates, &TimeZone::UTC);
        candidates.iter().zip(verdicts).filter(|(_, v)| !v.is_empty()).map(|(c, _)| c.run.0).collect()
    }

    #[test]
    fn each_rule_keeps_the_newest_of_its_periods() {
        let times = [
            "2025-01-01T00:00:00Z",
            "2025-12-29T10:00:00Z",
            "2026-01-01T10:00:00Z",
            "2026-01-31T10:10:00Z",
            "2026-01-31T10:50:00Z",
            "2026-01-31T11:00:00Z",
        ];
        let none = RetentionPolicy::default();
        assert!(none.is_empty());
        assert_eq!(kept(none, &times), [0; 0]);
        assert_eq!(kept(RetentionPolicy { last: 2, ..none }, &times), [5, 6]);
        assert_eq!(kept(RetentionPolicy { hourly: 2, ..none }, &times), [5, 6]);
        assert_eq!(kept(RetentionPolicy { daily: 2, ..none }, &times), [3, 6]);
        // Monday 29 December and Thursday 1 January are of one week.
        assert_eq!(kept(RetentionPolicy { weekly: 3, ..none }, &times), [1, 3, 6]);
        assert_eq!(kept(RetentionPolicy { monthly: 2, ..none }, &times), [2, 6]);
        assert_eq!(kept(RetentionPolicy { yearly: 9, ..none }, &times), [2, 6]);
        assert_eq!(kept(RetentionPolicy { last: 1, yearly: 2, ..none }, &times), [2, 6]);
    }

    #[test]
    fn periods_are_those_of_the_zone() {
        let policy = RetentionPolicy { daily: 9, ..RetentionPolicy::default() };
        let at = |time: &str, run| Candidate { run: RunNo(run), at: time.parse().unwrap() };
        let night = [at("2026-05-01T21:00:00Z", 1), at("2026-05-01T23:00:00Z", 2)];
        let east = TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(policy.judge(&night, &TimeZone::UTC), [vec![], vec![Reason::Daily]]);
        assert_eq!(policy.judge(&night, &east), [vec![Reason::Daily], vec![Reason::Daily]]);
    }
}
