//! Retention rules: which backups to keep by their age.

use std::fmt;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use crate::format::names::RunNo;

/// How many backups to keep: the newest ones, and the newest one of each of the
/// last hours, days and so on that have any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// How many of the newest.
    pub last: u32,
    /// One for each of this many hours.
    pub hourly: u32,
    /// One for each of this many days.
    pub daily: u32,
    /// One for each of this many weeks (ISO 8601, from Monday).
    pub weekly: u32,
    /// One for each of this many months.
    pub monthly: u32,
    /// One for each of this many years.
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
    /// It has a tag that the rules keep.
    Tag,
    /// The rules apply to a tag that it does not have.
    OtherTag,
    /// Its manifest cannot be read, so its tags are not known.
    Unreadable,
    /// On hold.
    Held,
    /// The newest good one, if newer ones have lost something or were damaged when they were taken.
    LastGood,
    /// Its recorded time is impossible: no rule applies to it, and it takes no place from others.
    DoubtfulTime,
    /// Imported from another tool's dump: no rule applies to it, and it takes no place from others.
    Imported,
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
            Self::DoubtfulTime => "doubtful-time",
            Self::Imported => "imported",
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

/// The most that clocks may differ.
const SLACK: SignedDuration = SignedDuration::from_hours(1);

/// Which of `candidates`, oldest first, cannot have been taken when they claim: in the future, after their
/// own outcome was `created` or most later ones were, or long before a backup that existed already.
///
/// The time is claimed by the signer of a backup, and each rule keeps a number of periods that have a backup:
/// a signer who could choose the periods could take the places of all other backups.
#[must_use]
pub fn doubtful(candidates: &[Candidate], created: &[Timestamp], now: Timestamp) -> Vec<bool> {
    let mut newest: Option<Timestamp> = None;
    // A store's clock that was ahead for a while is recognised by what came after it, and not taken for right because
    // it was behind once.
    let mut ends: Vec<Timestamp> = created.to_vec();
    let mut since = Vec::with_capacity(ends.len());
    for created in ends.iter_mut().rev() {
        since.insert(since.partition_point(|other: &Timestamp| *other < *created), *created);
        *created = since[(since.len() - 1) / 2].min(*created).min(now);
    }
    let later = |than: Timestamp| than.saturating_add(SLACK).unwrap_or(Timestamp::MAX);
    let judge = |(candidate, end): (&Candidate, &Timestamp)| {
        let is_early = newest.is_some_and(|newest| later(candidate.at) < newest);
        let is_doubtful = is_early || candidate.at > later(*end);
        if !is_doubtful {
            newest = newest.max(Some(candidate.at));
        }
        is_doubtful
    };
    candidates.iter().zip(&ends).map(judge).collect()
}

impl RetentionPolicy {
    /// Whether the policy keeps nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// How many backups the rule with this reason keeps.
    pub(crate) fn limit(&self, reason: Reason) -> Option<u32> {
        Some(match reason {
            Reason::Last => self.last,
            Reason::Hourly => self.hourly,
            Reason::Daily => self.daily,
            Reason::Weekly => self.weekly,
            Reason::Monthly => self.monthly,
            Reason::Yearly => self.yearly,
            _ => return None,
        })
    }

    /// Why each of `candidates`, oldest first, is kept; those without a reason are to be dropped. Days and
    /// hours are those of `zone`.
    ///
    /// A backup that claims to be older than one that existed already counts as taken at that one's time. So
    /// time never goes back, and each period fills one place: neither clocks that differ nor false claims can
    /// fill two by going to and fro.
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
        let mut newest = Timestamp::MIN;
        let in_order = candidates.iter().map(|candidate| {
            newest = newest.max(candidate.at);
            Candidate { at: newest, ..*candidate }
        });
        let in_order: Vec<Candidate> = in_order.collect();
        let mut verdicts: Vec<Vec<Reason>> = in_order
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

/// A period, as numbers that differ between periods.
type Period = (i16, i16, u64);

/// The period of which a rule keeps the newest backup.
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

    /// Good backups of twelve months, followed by those of a signer who makes up their times.
    #[test]
    fn times_that_cannot_be_take_nobodys_place() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let months = (1..=12).map(|month| time(&format!("2026-{month:02}-03T01:00:00Z")));
        let mut times: Vec<(Timestamp, Timestamp)> = months.map(|at| (at, at)).collect();
        let now = time("2026-12-03T09:00:00Z");
        let forged = |year: i16| time(&format!("{year:04}-06-01T00:00:00Z"));
        times.extend((1971..=2025).chain(2027..2080).map(|year| (forged(year), now)));
        let at = |(run, (at, _)): (u64, &(Timestamp, Timestamp))| Candidate { run: RunNo(run), at: *at };
        let candidates: Vec<Candidate> = (1..).zip(&times).map(at).collect();
        let created: Vec<Timestamp> = times.iter().map(|(_, created)| *created).collect();
        let verdicts = doubtful(&candidates, &created, now);
        assert!(verdicts[..12].iter().all(|is| !is) && verdicts[12..].iter().all(|is| *is));
        // A clock that was years ahead, and one that began anew: the backups
        // after them are judged by their own times.
        let ahead =
            [time("2026-01-01T00:00:00Z"), time("2031-01-01T00:00:00Z"), time("2026-01-02T00:00:00Z")];
        let behind = [ahead[0], time("1970-01-01T00:01:00Z"), ahead[2]];
        for times in [ahead, behind] {
            let candidates: Vec<Candidate> =
                (1..).zip(times).map(|(run, at)| Candidate { run: RunNo(run), at }).collect();
            assert_eq!(doubtful(&candidates, &times, now), [false, true, false]);
            // Still so when that time has come.
            assert_eq!(doubtful(&candidates, &times, time("2032-01-01T00:00:00Z")), [false, true, false]);
        }
    }

    /// Good backups, followed by those of a signer whose times go to and fro across the border of a day,
    /// week, month and year, within the slack for clocks.
    #[test]
    fn times_that_go_to_and_fro_fill_one_place_of_each_period() {
        let mut times: Vec<String> = (1..=12).map(|month| format!("2025-{month:02}-03T01:00:00Z")).collect();
        times.extend((25..=31).map(|day| format!("2025-12-{day}T01:00:00Z")));
        let good = times.len() as u64;
        for _ in 0..20 {
            times.extend(["2025-12-31T23:45:00Z".to_owned(), "2026-01-01T00:15:00Z".to_owned()]);
        }
        let times: Vec<&str> = times.iter().map(String::as_str).collect();
        let at: Vec<Timestamp> = times.iter().map(|time| time.parse().unwrap()).collect();
        let candidates: Vec<Candidate> =
            (1..).zip(&at).map(|(run, at)| Candidate { run: RunNo(run), at: *at }).collect();
        let now = "2026-01-01T00:16:00Z".parse().unwrap();
        assert!(doubtful(&candidates, &vec![now; at.len()], now).iter().all(|is| !is));
        let none = RetentionPolicy::default();
        let rules = [
            (RetentionPolicy { hourly: 7, ..none }, 7),
            (RetentionPolicy { daily: 7, ..none }, 7),
            (RetentionPolicy { monthly: 12, ..none }, 12),
        ];
        for (policy, all) in rules {
            let kept = kept(policy, &times);
            assert_eq!(kept.len(), all, "{policy:?}: {kept:?}");
            assert!(kept.iter().filter(|run| **run > good).count() <= 2, "{policy:?}: {kept:?}");
        }
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
