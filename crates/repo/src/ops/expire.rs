//! Expire: drops backups, by rules or by name. Later prunes free what only these needed.
//!
//! Backups on hold are never dropped. Rules also spare the newest backup, and the newest good one: no check
//! has found anything that it needs damaged, nothing of it is missing, and, if the key can read manifests, no
//! page was damaged when it was taken. Rules apply separately to the whole of a source and to each part of
//! it. They pass over imported backups: dozens of old dumps, imported within an hour, are neither the newest
//! nor all of one day.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
};

use jiff::{Timestamp, tz::TimeZone};
use thiserror::Error;

use crate::{
    error::RepoError,
    format::{
        manifest::{DAMAGED_PAGES, Head},
        names::{LogName, RunNo},
    },
    keys::Act,
    log::{
        history::History,
        hold::Hold,
        outcome::{Intent, Part},
        run::{BeginError, Ending, FinishError, Run, RunOptions},
    },
    ops::{
        retention::{Candidate, Reason, RetentionPolicy, doubtful},
        stored::Stored,
    },
    repo::Repo,
};

/// What to expire.
#[derive(Clone, Debug)]
pub enum ExpireRequest {
    /// Keep what the rules keep, and always the newest backup and the newest good one.
    ByRules(Rules),
    /// Drop these, unless no backup as good would be left of the source, or of a part taken since.
    Named(Vec<RunNo>),
    /// Drop exactly these, whatever is left.
    Exactly(Vec<RunNo>),
    /// Drop these, which rules have chosen that are not applied here, except for those that are held or gone by now.
    Chosen(Vec<RunNo>),
}

/// Rules, and the backups that they apply to.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Rules by age.
    pub policy: RetentionPolicy,
    /// The time zone of days and hours.
    pub zone: TimeZone,
    /// A backup with any of these tags is kept.
    pub keep_tags: Vec<String>,
    /// The rules apply only to backups with this tag; all others stay.
    pub only_tag: Option<String>,
}

impl Rules {
    /// Rules by age alone.
    #[must_use]
    pub fn by_age(policy: RetentionPolicy, zone: TimeZone) -> Self {
        Self { policy, zone, keep_tags: Vec::new(), only_tag: None }
    }

    fn keep_nothing(&self) -> bool {
        self.policy.is_empty() && self.keep_tags.is_empty()
    }

    fn ask_for_tags(&self) -> bool {
        !self.keep_tags.is_empty() || self.only_tag.is_some()
    }
}

/// A backup that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBackup {
    /// Its run.
    pub run: RunNo,
    /// When it was taken.
    pub at: Timestamp,
    /// The reasons why it is kept; empty if it was not named, or is only kept as the newest.
    pub reasons: Vec<Reason>,
}

/// What an expire does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpirePlan {
    /// What stays, oldest first.
    pub kept: Vec<KeptBackup>,
    /// What is dropped, oldest first.
    pub dropped: Vec<RunNo>,
}

/// Why nothing was dropped.
#[derive(Debug, Error)]
pub enum ExpireError {
    /// The rules keep nothing.
    #[error("the rules keep no backup at all: give at least one --keep rule")]
    NoRules,
    /// The backup does not stand.
    #[error("{log} has no backup {run}")]
    NoSuchBackup {
        /// The log.
        log: LogName,
        /// The backup that was named.
        run: RunNo,
    },
    /// The backup is on hold.
    #[error("backup {run} of {log} is held {}", until_when(.hold))]
    Held {
        /// The log.
        log: LogName,
        /// The backup that was to be dropped.
        run: RunNo,
        /// The hold.
        hold: Box<Hold>,
    },
    /// No backup as good would be left.
    #[error("backup {run} is the last good backup of {log}, or of the part of it that it covers")]
    LastGood {
        /// The log.
        log: LogName,
        /// The backup that was to be dropped.
        run: RunNo,
    },
    /// It is not known what is held.
    #[error(
        "it is not known which backups of {log} are held: run {run} may have held some, and its \
         outcome is missing"
    )]
    MayBeHeld {
        /// The log.
        log: LogName,
        /// The run that was to hold backups.
        run: RunNo,
    },
    /// The run could not begin.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// The run could not end.
    #[error(transparent)]
    Finish(#[from] FinishError),
    /// The repository failed.
    #[error(transparent)]
    Repo(#[from] RepoError),
}

fn until_when(hold: &Hold) -> String {
    hold.until.map_or_else(|| "until it is released".to_owned(), |until| format!("until {until:.0}"))
}

/// What the manifest of a backup says, as far as rules need it.
enum Said {
    This {
        tags: Vec<String>,
        has_damaged_pages: bool,
    },
    /// Something that only a later version knows.
    Newer,
    /// It is damaged.
    Nothing,
}

/// Makes plans, and caches what manifests say: they do not change.
struct Planner<'a> {
    repo: &'a Repo,
    said: HashMap<RunNo, Said>,
}

impl<'a> Planner<'a> {
    fn new(repo: &'a Repo) -> Self {
        Self { repo, said: HashMap::new() }
    }

    fn plan(
        &mut self,
        history: &History,
        request: &ExpireRequest,
        now: Timestamp,
    ) -> Result<ExpirePlan, ExpireError> {
        let candidates: Vec<Candidate> = history
            .standing()
            .map(|outcome| Candidate { run: outcome.run, at: outcome.taken_at() })
            .collect();
        let verdicts: Vec<_> = match request {
            ExpireRequest::ByRules(rules) => self.judge(history, &candidates, rules, now)?,
            ExpireRequest::Named(runs) | ExpireRequest::Exactly(runs) => {
                may_drop(history, runs, now)?;
                if matches!(request, ExpireRequest::Named(_)) {
                    self.leave_a_good_one(history, runs)?;
                }
                candidates.iter().map(|c| (!runs.contains(&c.run)).then(Vec::new)).collect()
            }
            ExpireRequest::Chosen(runs) => {
                let verdict = |candidate: &Candidate| match history.hold(candidate.run, now) {
                    Some(_) => Some(vec![Reason::Held]),
                    None => (!runs.contains(&candidate.run)).then(Vec::new),
                };
                candidates.iter().map(verdict).collect()
            }
        };
        let is_by_rules = matches!(request, ExpireRequest::ByRules(_) | ExpireRequest::Chosen(_));
        let uncertain = history.uncertain_hold().filter(|_| is_by_rules && verdicts.contains(&None));
        if let Some(run) = uncertain {
            return Err(ExpireError::MayBeHeld { log: history.log().clone(), run });
        }
        let mut plan = ExpirePlan::default();
        for (candidate, verdict) in candidates.into_iter().zip(verdicts) {
            match verdict {
                Some(reasons) => plan.kept.push(KeptBackup { run: candidate.run, at: candidate.at, reasons }),
                None => plan.dropped.push(candidate.run),
            }
        }
        Ok(plan)
    }

    /// Why each candidate stays; `None` for those to be dropped.
    fn judge(
        &mut self,
        history: &History,
        candidates: &[Candidate],
        rules: &Rules,
        now: Timestamp,
    ) -> Result<Vec<Option<Vec<Reason>>>, ExpireError> {
        if rules.keep_nothing() {
            return Err(ExpireError::NoRules);
        }
        if rules.ask_for_tags() {
            self.repo.require(Act::Read, "rules that go by tags")?;
        }
        let mut reasons = self.reasons_besides_age(history, candidates, rules, now)?;
        add_reasons_of_age(history, candidates, rules, &mut reasons);
        let newest = newest_of_parts(history);
        let is_dropped = |(candidate, reasons): &(&Candidate, &Vec<Reason>)| {
            reasons.is_empty() && !newest.contains(&candidate.run)
        };
        let dropped = candidates.iter().zip(&reasons).filter(is_dropped);
        let dropped: Vec<RunNo> = dropped.map(|(candidate, _)| candidate.run).collect();
        let good = self.last_good(history, &newest, &dropped)?;
        let verdict = |(candidate, mut reasons): (&Candidate, Vec<Reason>)| {
            let is_newest = newest.contains(&candidate.run);
            if reasons.is_empty() && !is_newest && good.contains(&candidate.run) {
                reasons.push(Reason::LastGood);
            }
            (is_newest || !reasons.is_empty()).then_some(reasons)
        };
        Ok(candidates.iter().zip(reasons).map(verdict).collect())
    }

    /// Why each candidate stays whatever its age, or is not judged by it.
    fn reasons_besides_age(
        &mut self,
        history: &History,
        candidates: &[Candidate],
        rules: &Rules,
        now: Timestamp,
    ) -> Result<Vec<Vec<Reason>>, ExpireError> {
        let mut all = Vec::new();
        for candidate in candidates {
            let mut reasons = match rules.ask_for_tags() {
                true => self.reasons_of_tags(history, candidate.run, rules)?,
                false => Vec::new(),
            };
            if history.hold(candidate.run, now).is_some() {
                reasons.push(Reason::Held);
            }
            if history.outcome(candidate.run).is_some_and(|outcome| outcome.imported) {
                reasons.push(Reason::Imported);
            }
            all.push(reasons);
        }
        let created = history.standing().map(|outcome| {
            // An invalid time counts as earlier than all others.
            Timestamp::try_from(outcome.created_at).unwrap_or(Timestamp::MIN)
        });
        let is_doubtful = doubtful(candidates, &created.collect::<Vec<_>>(), now);
        for (reasons, _) in all.iter_mut().zip(is_doubtful).filter(|(_, is_doubtful)| *is_doubtful) {
            reasons.push(Reason::DoubtfulTime);
        }
        Ok(all)
    }

    /// The newest good backups, and those that may be better, of the parts in which something is `dropped`. Asked
    /// only where that can save a backup: it costs a listing of all packs.
    fn last_good(
        &mut self,
        history: &History,
        newest: &BTreeSet<RunNo>,
        dropped: &[RunNo],
    ) -> Result<BTreeSet<RunNo>, ExpireError> {
        let kept_at_least: BTreeSet<_> = newest.iter().map(|run| part_of(history, *run)).collect();
        let asked: BTreeSet<_> = dropped
            .iter()
            .map(|run| part_of(history, *run))
            .filter(|part| kept_at_least.contains(part))
            .collect();
        if asked.is_empty() {
            return Ok(BTreeSet::new());
        }
        let stored = Stored::look(self.repo, history)?;
        let newest = self.newest_good(history, &stored, &asked, &BTreeSet::new())?;
        // One of a later version may be better than the newest that is known to be good.
        let is_spared = |good: &Good, best| good == best || matches!(good, Good::MayBe(_));
        let spared = newest.values().flat_map(|rising| {
            rising.iter().filter(|good| rising.last().is_some_and(|best| is_spared(good, best)))
        });
        Ok(spared.map(|good| good.run()).collect())
    }

    fn reasons_of_tags(
        &mut self,
        history: &History,
        run: RunNo,
        rules: &Rules,
    ) -> Result<Vec<Reason>, RepoError> {
        let Said::This { tags, .. } = self.said(history, run)? else { return Ok(vec![Reason::Unreadable]) };
        let keeps = tags.iter().any(|tag| rules.keep_tags.contains(tag));
        let is_other = rules.only_tag.as_ref().is_some_and(|only| !tags.contains(only));
        let reasons = [(keeps, Reason::Tag), (is_other, Reason::OtherTag)];
        Ok(reasons.into_iter().filter_map(|(is, reason)| is.then_some(reason)).collect())
    }

    /// Checks that of the source, and of each part taken since, a backup as good as the best one now is left.
    fn leave_a_good_one(&mut self, history: &History, dropped: &[RunNo]) -> Result<(), ExpireError> {
        let dropped: BTreeSet<RunNo> = dropped.iter().copied().collect();
        let newest: BTreeSet<_> =
            newest_of_parts(history).into_iter().map(|run| part_of(history, run)).collect();
        let touched: BTreeSet<_> = dropped.iter().map(|run| part_of(history, *run)).collect();
        let asked: BTreeSet<_> = newest.intersection(&touched).copied().collect();
        if asked.is_empty() {
            return Ok(());
        }
        let stored = Stored::look(self.repo, history)?;
        let now = best_of(self.newest_good(history, &stored, &asked, &BTreeSet::new())?);
        let risked: BTreeSet<_> =
            now.iter().filter(|(_, good)| dropped.contains(&good.run())).map(|(part, _)| *part).collect();
        if risked.is_empty() {
            return Ok(());
        }
        let left = best_of(self.newest_good(history, &stored, &risked, &dropped)?);
        let is_left = |part: &Option<Part>, good: &Good| {
            left.get(part).is_some_and(|left| left.certainty() >= good.certainty())
        };
        match now.into_iter().find(|(part, good)| risked.contains(part) && !is_left(part, good)) {
            Some((_, good)) => Err(ExpireError::LastGood { log: history.log().clone(), run: good.run() }),
            None => Ok(()),
        }
    }

    /// For each of `parts`, from new to old: the newest backup that may be good, and each that is more certainly so
    /// than those after it.
    fn newest_good(
        &mut self,
        history: &History,
        stored: &Stored,
        parts: &BTreeSet<Option<Part>>,
        but: &BTreeSet<RunNo>,
    ) -> Result<BTreeMap<Option<Part>, Vec<Good>>, RepoError> {
        let mut newest: BTreeMap<Option<Part>, Vec<Good>> = BTreeMap::new();
        for backup in history.standing().rev().filter(|it| !it.imported && !but.contains(&it.run)) {
            let found = newest.entry(backup.part).or_default();
            if !parts.contains(&backup.part) || matches!(found.last(), Some(Good::Now(_))) {
                continue;
            }
            let is_newer = match self.repo.can_read() {
                true => match self.said(history, backup.run)? {
                    Said::This { has_damaged_pages: false, .. } => false,
                    Said::Newer => true,
                    Said::This { .. } | Said::Nothing => continue,
                },
                // A keeper cannot read manifests.
                false => false,
            };
            let good = match (stored.has_all_of(backup.run)?, is_newer) {
                (true, false) => Good::Now(backup.run),
                (true, true) => Good::MayBe(backup.run),
                (false, _) => Good::WhenTaken(backup.run),
            };
            if found.last().is_none_or(|last| last.certainty() < good.certainty()) {
                found.push(good);
            }
        }
        Ok(newest)
    }

    fn said(&mut self, history: &History, run: RunNo) -> Result<&Said, RepoError> {
        let said = match self.said.entry(run) {
            Entry::Occupied(known) => return Ok(known.into_mut()),
            Entry::Vacant(said) => said,
        };
        Ok(said.insert(match history.head(self.repo, run).map(|json| Head::decode(&json)) {
            Ok(Ok(head)) => Said::This {
                has_damaged_pages: head.flags.iter().any(|flag| flag == DAMAGED_PAGES),
                tags: head.tags,
            },
            Ok(Err(_)) => Said::Newer,
            Err(error) if error.is_unknown() => Said::Newer,
            Err(error) if error.is_of_the_object() => Said::Nothing,
            Err(error) => return Err(error),
        }))
    }
}

/// A good backup of the source or of a part, and how certainly it is that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Good {
    /// Nothing of it is known to be damaged or missing.
    Now(RunNo),
    /// Nothing of it is missing, but only a later version knows what its manifest says.
    MayBe(RunNo),
    /// It was intact when it was taken.
    WhenTaken(RunNo),
}

impl Good {
    fn run(self) -> RunNo {
        let (Self::Now(run) | Self::MayBe(run) | Self::WhenTaken(run)) = self;
        run
    }

    fn certainty(self) -> u8 {
        match self {
            Self::Now(_) => 2,
            Self::MayBe(_) => 1,
            Self::WhenTaken(_) => 0,
        }
    }
}

fn best_of(newest: BTreeMap<Option<Part>, Vec<Good>>) -> BTreeMap<Option<Part>, Good> {
    newest.into_iter().filter_map(|(part, rising)| Some((part, *rising.last()?))).collect()
}

/// Adds, before the other reasons, those of the rules by age. A part of a source takes no place of the whole or of
/// another part, and no rule keeps it for longer than the whole, or than what is nearest to it.
fn add_reasons_of_age(
    history: &History,
    candidates: &[Candidate],
    rules: &Rules,
    reasons: &mut [Vec<Reason>],
) {
    let outside = [Reason::OtherTag, Reason::Unreadable, Reason::DoubtfulTime, Reason::Imported];
    let is_outside = |of: &[Reason]| outside.iter().any(|reason| of.contains(reason));
    let mut whole = Reaches::default();
    let mut parts: BTreeMap<Option<Part>, Vec<usize>> = BTreeMap::new();
    for (at, candidate) in candidates.iter().enumerate() {
        parts.entry(part_of(history, candidate.run)).or_default().push(at);
    }
    let newest_rest = candidates.iter().rev().map(|candidate| part_of(history, candidate.run));
    let newest_rest = newest_rest.flatten().find(|part| part.is_rest);
    let lead = if parts.contains_key(&None) { None } else { newest_rest };
    let lead_first =
        parts.get_key_value(&lead).into_iter().chain(parts.iter().filter(|(part, _)| **part != lead));
    for (part, of_part) in lead_first {
        let inside: Vec<usize> = of_part.iter().copied().filter(|at| !is_outside(&reasons[*at])).collect();
        let judged: Vec<Candidate> = inside.iter().map(|at| candidates[*at]).collect();
        for (at, mut by_age) in inside.into_iter().zip(rules.policy.judge(&judged, &rules.zone)) {
            let taken_at = candidates[at].at;
            match *part == lead {
                true => whole.note(&by_age, taken_at),
                false => by_age.retain(|reason| whole.reaches(*reason, taken_at, &rules.policy)),
            }
            reasons[at].splice(0..0, by_age);
        }
    }
}

/// The part of its source that a backup holds; `None` for all of it.
fn part_of(history: &History, run: RunNo) -> Option<Part> {
    history.outcome(run).and_then(|outcome| outcome.part)
}

/// The newest backup of the whole source, and the newest of each part that was
/// taken after it. Imported ones do not count.
fn newest_of_parts(history: &History) -> BTreeSet<RunNo> {
    let taken = history.standing().filter(|backup| !backup.imported);
    let newest: BTreeMap<_, _> = taken.map(|backup| (backup.part, backup.run)).collect();
    let whole = newest.get(&None).copied();
    newest.into_values().filter(|run| whole.is_none_or(|whole| *run >= whole)).collect()
}

/// How many backups of the whole source each rule keeps, and the time of the oldest.
#[derive(Default)]
struct Reaches(HashMap<Reason, (u32, Timestamp)>);

impl Reaches {
    fn note(&mut self, reasons: &[Reason], at: Timestamp) {
        for reason in reasons {
            let (count, since) = self.0.entry(*reason).or_insert((0, at));
            *count += 1;
            *since = (*since).min(at);
        }
    }

    /// Whether a rule reaches back this far: it does as long as it keeps fewer backups than it may.
    fn reaches(&self, reason: Reason, at: Timestamp, policy: &RetentionPolicy) -> bool {
        let full = self.0.get(&reason).filter(|(count, _)| Some(*count) == policy.limit(reason));
        full.is_none_or(|(_, since)| at >= *since)
    }
}

/// Checks that all of `runs` stand and none is held.
fn may_drop(history: &History, runs: &[RunNo], now: Timestamp) -> Result<(), ExpireError> {
    for run in runs.iter().copied() {
        let log = history.log().clone();
        if !history.stands(run) {
            return Err(ExpireError::NoSuchBackup { log, run });
        }
        if let Some(hold) = history.hold(run, now) {
            return Err(ExpireError::Held { log, run, hold: Box::new(hold.clone()) });
        }
    }
    Ok(())
}

/// What would be dropped at `now`. An expire takes the store's time; a mere plan may take any.
pub fn plan_expire(
    repo: &Repo,
    history: &History,
    request: &ExpireRequest,
    now: Timestamp,
) -> Result<ExpirePlan, ExpireError> {
    Planner::new(repo).plan(history, request, now)
}

/// Drops backups. Begins no run if there is nothing to drop.
pub fn expire(
    repo: &Arc<Repo>,
    log: &LogName,
    request: &ExpireRequest,
    options: &RunOptions,
) -> Result<ExpirePlan, ExpireError> {
    let mut planner = Planner::new(repo);
    let history = History::read(repo, log)?;
    let plan = planner.plan(&history, request, repo.now()?)?;
    if plan.dropped.is_empty() {
        return Ok(plan);
    }
    let mut run = Run::begin_as(Intent::Expire, repo, &history, options)?;
    // Planned again, now that no other run can come between.
    let plan = match planner.plan(run.history(), request, repo.now()?) {
        Ok(plan) if !plan.dropped.is_empty() => plan,
        nothing => {
            run.abandon("nothing was left to drop")?;
            return nothing;
        }
    };
    run.finish(Ending::Expire { dropped: plan.dropped.clone() })?;
    Ok(plan)
}
