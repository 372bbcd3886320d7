//! `check`: verifies that the repository is intact.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use holdfast_core::{BENEATH_HINT, Error, ErrorKind, HISTORY_HINT, NEWER_HINT, Result};
use holdfast_repo::{
    Act, LogName, Repo, RepoError, Role,
    log::beneath::BeneathFinder,
    ops::{
        check::{CheckOptions, CheckReport, Finding, Severity, check},
        keys,
        object_lock::{ExtendOptions, extend},
    },
    store::{
        RemoteError, StoreError, StoreErrorKind,
        locks::{Extended, NoncurrentVersion, Overwritten},
        writers::PROBES,
    },
};
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, key_errors, repository, select};
use crate::{
    args::{
        check::CheckArgs,
        units::{ByteSize, Span},
    },
    exit::{Exit, is_worse},
    output::{Render, text},
};

/// Hint for when backups have lost data.
const LOST_HINT: &str = "\
take a new backup, which stores the lost data again (backup --full reuses nothing of earlier ones), check \
again, then drop the backups listed here (expire ID; or \"holdfast repair\", which shows its plan)";
/// Hint for when damage exists, but no backup has lost data.
const REPAIR_HINT: &str = "no backup has lost data; \"holdfast repair\" shows what it would rebuild";

/// At most this many overwritten objects are reported individually.
const OVERWRITTEN_MAX: usize = 1_000;
/// At most this many versions are listed for each of them.
const VERSIONS_TOLD: usize = 4;
/// Severity of findings that do not mean that data is lost.
const SUSPICIOUS: &str = "suspicious";
/// Hint for when someone has tampered with the bucket.
const OVERWRITTEN_HINT: &str = "\
somebody with access to the bucket has overwritten objects that Holdfast never overwrites: find out who, and \
read the repository as of an earlier time with --as-of (docs/guide/stores.md)";

/// Severity of objects whose locks have ended.
const UNLOCKED: &str = "unlocked";
/// Hint for [`UNLOCKED`].
const UNLOCKED_HINT: &str = "run \"holdfast lock --extend\", and have it run once a week";
/// Locks that end sooner than this are reported while there is still time to extend them.
const LOCKS_END_SOON: Duration = Duration::from_secs(7 * 24 * 3600);
/// Hint for when the store does not reveal whether missing objects are only hidden.
const UNSEEN_HINT: &str = "\
the missing objects may only be hidden: before you drop anything, allow s3:ListBucketVersions and \
s3:GetBucketVersioning, and check again (docs/guide/stores.md)";

/// For at most this many seemingly lost objects, the store is asked whether they are only hidden.
const ASKED_MAX: usize = 1_000;

/// What is wrong with one object.
#[derive(Serialize)]
struct Found {
    severity: &'static str,
    object: String,
    problem: String,
    /// Backups that need the object.
    backups: Vec<String>,
    /// The first few files that need the object.
    files: Vec<String>,
    /// The tables that these files belong to.
    tables: Vec<String>,
    files_more: u64,
}

impl Found {
    /// The key by which findings are merged: the same finding may concern several backups.
    fn sameness(&self) -> (&'static str, &str, &str) {
        (self.severity, &self.object, &self.problem)
    }

    /// Merges the same finding of another backup into this one.
    fn also_of(&mut self, other: Self) {
        let backups: Vec<_> = other.backups.into_iter().filter(|id| !self.backups.contains(id)).collect();
        self.backups.extend(backups);
        let files: Vec<String> = other.files.into_iter().filter(|file| !self.files.contains(file)).collect();
        self.files.extend(files);
        let tables: Vec<String> =
            other.tables.into_iter().filter(|table| !self.tables.contains(table)).collect();
        self.tables.extend(tables);
        self.files_more = self.files_more.max(other.files_more);
    }

    /// A damaged record about keys, which is ignored.
    fn of_key(object: String, problem: String) -> Self {
        Self { severity: "repairable", ..Self::suspicious(object, problem) }
    }

    /// A finding that does not affect the backups themselves.
    fn suspicious(object: String, problem: String) -> Self {
        Self {
            severity: SUSPICIOUS,
            object,
            problem,
            backups: Vec::new(),
            files: Vec::new(),
            tables: Vec::new(),
            files_more: 0,
        }
    }

    /// A finding about an object that can be deleted because its lock has ended.
    fn unlocked(object: String, problem: String) -> Self {
        Self { severity: UNLOCKED, ..Self::suspicious(object, problem) }
    }

    fn hidden(object: String, since: SystemTime) -> Self {
        Self::suspicious(
            object,
            format!("was deleted at {}, but not by Holdfast; its bytes still exist", moment(since)),
        )
    }

    fn overwritten(object: String, versions: &[(SystemTime, Option<String>)]) -> Self {
        let told = versions.iter().take(VERSIONS_TOLD).map(|(at, owner)| {
            let at = moment(*at);
            // A store's owner name must not break out of its line.
            let owner = owner.as_deref().unwrap_or_default().chars().filter(|c| !c.is_control()).take(64);
            let owner: String = owner.collect();
            if owner.is_empty() { at } else { format!("{at} by {owner}") }
        });
        let told = told.collect::<Vec<_>>().join(", ");
        let more = if versions.len() > VERSIONS_TOLD { " and earlier" } else { "" };
        Self::suspicious(
            object,
            format!("has {} versions but should have one: from {told}{more}", versions.len()),
        )
    }

    fn new(log: &LogName, finding: Finding) -> Self {
        Self {
            severity: match finding.severity {
                Severity::Repairable => "repairable",
                Severity::Newer => "newer",
                Severity::Lost => "lost",
            },
            object: finding.object,
            problem: finding.problem,
            backups: finding.backups.into_iter().map(|run| log.backup_id(run)).collect(),
            files: finding.files.iter().map(ToString::to_string).collect(),
            tables: finding.tables,
            files_more: finding.files_more,
        }
    }
}

/// What was checked, and the findings.
#[derive(Default, Serialize)]
struct Checked {
    findings: Vec<Found>,
    /// How to resolve the findings.
    hint: Option<&'static str>,
    backups: u64,
    packs: u64,
    packs_read: u64,
    bytes_read: u64,
    /// Packs that a keeper's key cannot judge.
    packs_unproven: u64,
    /// Packs that were to be read but were skipped for lack of time or by --max-bytes.
    packs_left: u64,
    bytes_left: u64,
    /// When the least recently read pack was last read; if it was never read, when it was written.
    unread_since: Option<Timestamp>,
    /// Packs that backups need and no check has ever read.
    never_read_packs: u64,
    never_read_bytes: u64,
    /// Why the packs read were not recorded.
    not_recorded: Option<String>,
    /// What was skipped because the key cannot read it.
    not_checked: Vec<&'static str>,
    /// Logs whose check was aborted.
    failed: Vec<Failed>,
}

/// An aborted check of one log, or of the data outside all logs.
#[derive(Serialize)]
struct Failed {
    log: String,
    error: String,
}

impl Checked {
    fn check(
        &mut self,
        repo: &Arc<Repo>,
        log: &LogName,
        options: CheckOptions,
        context: &Context<'_>,
    ) -> Result<()> {
        let mut report = check(repo, log, options)?;
        let looked = Self::look_beneath(repo, log, &mut report, context);
        let (beneath, failed) = match looked {
            Ok(beneath) => (beneath, Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.add(log, report, beneath);
        failed
    }

    /// Reports overwritten and hidden objects. Holdfast writes every object once, so an object with two
    /// versions in the bucket was written by somebody else.
    fn look_for_overwritten(&mut self, repo: &Repo, context: &Context<'_>) -> Result<()> {
        let Some(versioned) = repo.store().versioned() else { return Ok(()) };
        let (mut told, mut more) = (Vec::new(), 0_u64);
        let looked = versioned.overwritten(&mut |Overwritten { path, hidden_since, versions }| {
            let hidden_since = hidden_since.filter(|_| repo.is_never_hidden(&path));
            if path.as_str().starts_with(PROBES) || (hidden_since.is_none() && versions.len() < 2) {
                // Several versions of a probe's object only show that several writers can create one name.
                // Deletable objects may be hidden.
            } else if told.len() < OVERWRITTEN_MAX {
                told.push(match hidden_since {
                    Some(since) => Found::hidden(path.to_string(), since),
                    None => Found::overwritten(path.to_string(), &versions),
                });
            } else {
                more += 1;
            }
        });
        // These findings are informational; no later step depends on them.
        if let Some(why) = unless_refused(looked.map_err(RepoError::from))?.err() {
            let text =
                format!("could not check for hidden or overwritten objects (s3:ListBucketVersions): {why}");
            context.output.warning(text);
        }
        if !told.is_empty() {
            self.hint.get_or_insert(OVERWRITTEN_HINT);
        }
        self.findings.extend(told);
        if more > 0 {
            let problem = format!("{} with several versions, or hidden", text::count(more, "more object"));
            self.findings.push(Found::suspicious(repo.store().location(), problem));
        }
        Ok(())
    }

    /// Checks that the objects that backups need are still locked, if the repository uses locks.
    fn look_at_locks(&mut self, repo: &Repo, context: &Context<'_>) -> Result<()> {
        let (Some(lock), Some(_)) = (repo.info().object_lock, repo.store().versioned()) else {
            return Ok(());
        };
        let margin = LOCKS_END_SOON.min(lock.period() / 4);
        let options = ExtendOptions { margin, dry_run: true, interrupt: context.cancel.interrupt() };
        let mut soon = 0;
        let looked = extend(repo, &options, &mut |part| {
            let Extended { extended, unlocked, refused, first_refusal, .. } = part.extended;
            soon += extended - unlocked;
            let object = part.log.map_or_else(|| "keys/".to_owned(), |log| format!("sources/{log}/"));
            if unlocked > 0 {
                let problem = format!("no lock on {} that backups need", text::count(unlocked, "object"));
                self.findings.push(Found::unlocked(object.clone(), problem));
            }
            if refused > 0 {
                let why = first_refusal.unwrap_or_default();
                let text = format!(
                    "{object}: the locks of {} cannot be read: {why}",
                    text::count(refused, "version")
                );
                context.output.warning(text);
            }
        });
        if let Some(why) = unless_refused(looked)?.err() {
            context.output.warning(format!("could not check whether locks have ended: {why}"));
        }
        if soon > 0 {
            let objects = text::count(soon, "object");
            let text = format!(
                "the locks of {objects} that backups need end within {}: extend them with \
                 \"holdfast lock --extend\"",
                Span(margin)
            );
            context.output.warning(text);
        }
        if self.findings.iter().any(|found| found.severity == UNLOCKED) {
            self.hint.get_or_insert(UNLOCKED_HINT);
        }
        Ok(())
    }

    /// Looks for seemingly lost objects that are only hidden or overwritten, so that nobody gives them up.
    fn look_beneath(
        repo: &Repo,
        log: &LogName,
        report: &mut CheckReport,
        context: &Context<'_>,
    ) -> Result<Option<&'static str>> {
        let mut finder = BeneathFinder::new(repo, log);
        let mut hint = None;
        let lost = report.findings.iter_mut().filter(|finding| finding.severity == Severity::Lost);
        for finding in lost.take(ASKED_MAX) {
            context.cancel.check()?;
            match unless_refused(finder.look(&finding.object))? {
                Ok(Some((_, NoncurrentVersion { is_hidden, since }))) => {
                    let since = moment(since);
                    let how = if is_hidden { "deleted" } else { "overwritten" };
                    let problem = format!("; it was {how} at {since}, and its earlier content still exists");
                    finding.problem.push_str(&problem);
                    hint = Some(BENEATH_HINT);
                }
                Ok(None) => {}
                Err(why) => {
                    let text = format!("cannot tell whether the lost objects are only hidden: {why}");
                    context.output.warning(text);
                    return Ok(hint.or(Some(UNSEEN_HINT)));
                }
            }
        }
        Ok(hint)
    }

    fn add(&mut self, log: &LogName, report: CheckReport, beneath: Option<&'static str>) {
        // The hint that nothing need be lost takes precedence over all hints about losses.
        let keep = [BENEATH_HINT, UNSEEN_HINT];
        let said = self.hint.filter(|hint| keep.contains(hint));
        let worst = report.findings.iter().map(|finding| finding.severity).max();
        if let Some(hint) = said.or(beneath) {
            self.hint = Some(hint);
        } else if worst == Some(Severity::Newer) {
            self.hint.get_or_insert(NEWER_HINT);
        } else if report.stops_runs {
            self.hint = Some(HISTORY_HINT);
        } else if worst == Some(Severity::Lost) {
            self.hint.get_or_insert(LOST_HINT);
        } else if !report.findings.is_empty() {
            self.hint.get_or_insert(REPAIR_HINT);
        }
        // There may be as many findings as packs.
        let mut known: HashMap<u64, usize> = HashMap::new();
        let sameness = RandomState::new();
        for (at, found) in self.findings.iter().enumerate() {
            known.entry(sameness.hash_one(found.sameness())).or_insert(at);
        }
        for found in report.findings.into_iter().map(|finding| Found::new(log, finding)) {
            let at = *known.entry(sameness.hash_one(found.sameness())).or_insert(self.findings.len());
            match self.findings.get_mut(at) {
                Some(same) if same.sameness() == found.sameness() => same.also_of(found),
                _ => self.findings.push(found),
            }
        }
        self.backups += report.backups;
        self.packs += report.packs;
        self.packs_read += report.packs_read;
        self.bytes_read += report.bytes_read;
        self.packs_unproven += report.packs_unproven;
        self.packs_left += report.packs_left;
        self.bytes_left += report.bytes_left;
        let since = report.unread.since.and_then(|since| Timestamp::try_from(since).ok());
        self.unread_since = [self.unread_since, since].into_iter().flatten().min();
        self.never_read_packs += report.unread.never_packs;
        self.never_read_bytes += report.unread.never_bytes;
        self.not_recorded = self.not_recorded.take().or(report.not_recorded);
        for what in report.not_checked {
            if !self.not_checked.contains(&what) {
                self.not_checked.push(what);
            }
        }
    }
}

/// Separates refusals: returns the store's answer, or its refusal.
/// A store refuses when this key lacks permission, or when it has no such feature.
fn unless_refused<T>(asked: Result<T, RepoError>) -> Result<Result<T, RemoteError>> {
    match asked {
        Ok(answer) => Ok(Ok(answer)),
        Err(RepoError::Store(StoreError { kind: StoreErrorKind::Remote(error), .. }))
            if error.cause.is_refusal() =>
        {
            Ok(Err(error))
        }
        Err(error) => Err(error.into()),
    }
}

/// Formats a store's timestamp in UTC, to the second.
fn moment(at: SystemTime) -> String {
    format!("{:.0}", Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH))
}

impl Render for Checked {
    fn render(&self, out: &mut String) -> fmt::Result {
        for found in &self.findings {
            let what = format!("{}: {}: {}", found.severity, found.object, found.problem);
            writeln!(out, "{}", text::one_line(&what))?;
            if !found.backups.is_empty() {
                text::fact(out, "  backups", found.backups.join(" "))?;
            }
            if !found.tables.is_empty() {
                text::fact(out, "  tables", text::one_line(&found.tables.join(", ")))?;
            }
            text::files(out, "  files", &found.files, found.files_more)?;
        }
        let (backups, packs) = (text::count(self.backups, "backup"), text::count(self.packs, "pack"));
        write!(out, "checked {backups}, {packs}")?;
        if self.packs_read > 0 {
            write!(out, "; read {}, {}", text::count(self.packs_read, "pack"), ByteSize(self.bytes_read))?;
        }
        match self.findings.len() as u64 {
            0 if self.failed.is_empty() => writeln!(out, ": no errors found"),
            0 => writeln!(out),
            n => writeln!(out, ": {}", text::count(n, "finding")),
        }?;
        for Failed { log, error } in &self.failed {
            writeln!(out, "the check of {log} was not completed: {}", text::one_line(error))?;
        }
        if !self.not_checked.is_empty() {
            writeln!(out, "not checked, because that takes an operator's key:")?;
            for what in &self.not_checked {
                writeln!(out, "  {what}")?;
            }
        }
        if self.packs_unproven > 0 {
            writeln!(out, "{} could not be checked", text::count(self.packs_unproven, "pack"))?;
        }
        if self.packs_left > 0 {
            let left = text::count(self.packs_left, "pack");
            writeln!(out, "{left}, {}, left for a later check", ByteSize(self.bytes_left))?;
        }
        if let Some(since) = self.unread_since {
            let unread = text::unread(since, self.never_read_packs, self.never_read_bytes);
            writeln!(out, "{unread}")?;
        }
        if let Some(error) = &self.not_recorded {
            writeln!(out, "could not record which packs were read or are gone: {}", text::one_line(error))?;
        }
        self.hint.map_or(Ok(()), |hint| out.write_str(&text::hint(hint)))
    }
}

pub(super) fn run(args: &CheckArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open(context)?);
    if repo.keys().role() == Role::Writer {
        repo.require(Act::Prune, "a check")?;
    }
    let chosen = CheckOptions::default();
    let memory = args.memory.bytes_or(&context.config.resources);
    let options = CheckOptions {
        memory_bytes: memory.unwrap_or(chosen.memory_bytes),
        read_data: args.read_data.map(|percent| percent.fraction()),
        seed: jiff::Timestamp::now().as_second().unsigned_abs(),
        unread_for: args.unread_for.map(|span| span.0),
        bytes_max: args.max_bytes.map(|size| size.0),
        time_max: args.max_time.map(|span| span.0),
        interrupt: context.cancel.interrupt(),
        steps: context.output.steps(),
        ..chosen
    };
    let logs = select::logs_named(&repo, args.name.as_ref())?;
    let began_at = Instant::now();
    let mut checked = Checked::default();
    checked.findings.extend(
        repo.key_problems().into_iter().map(|(object, damage)| Found::of_key(object, damage.to_string())),
    );
    let mut worst: Option<Error> = None;
    match keys::without_share(&repo).map_err(key_errors::of_store) {
        Ok(keys) => {
            checked.findings.extend(keys.into_iter().map(|(object, what)| Found::of_key(object, what)));
        }
        Err(error) => {
            checked.failed.push(Failed { log: "keys/".to_owned(), error: error.to_string() });
            worst = Some(error);
        }
    }
    for log in logs {
        let bytes_max = options.bytes_max.map(|most| most.saturating_sub(checked.bytes_read));
        let time_max = options.time_max.map(|most| most.saturating_sub(began_at.elapsed()));
        let options = CheckOptions { bytes_max, time_max, ..options.clone() };
        let done = context.cancel.check().and_then(|()| checked.check(&repo, &log, options, context));
        // A failure in one source must not hide the findings of the others.
        if let Err(error) = done {
            checked.failed.push(Failed { log: log.to_string(), error: error.to_string() });
            let is_over = error.kind() == ErrorKind::Interrupted;
            if is_over || is_worse(&error, worst.as_ref()) {
                worst = Some(error.context(&log));
            }
            if is_over {
                break;
            }
        }
    }
    let set_back = context.seen.set_back().into_iter();
    checked.findings.extend(set_back.map(|(outcome, how)| Found::suspicious(outcome, how.to_string())));
    let is_over = worst.as_ref().is_some_and(|error| error.kind() == ErrorKind::Interrupted);
    if args.name.is_none() && !is_over {
        let looked = checked.look_for_overwritten(&repo, context);
        let looked = looked.and_then(|()| checked.look_at_locks(&repo, context));
        if let Err(error) = looked {
            checked.failed.push(Failed { log: repo.store().location(), error: error.to_string() });
            if is_worse(&error, worst.as_ref()) {
                worst = Some(error);
            }
        }
    }
    // A requested check that could not be done counts as a finding, too.
    let is_done = checked.findings.is_empty() && checked.packs_unproven == 0;
    let exit = if is_done { Exit::Done } else { Exit::Finding };
    let is_any = checked.backups > 0 || !checked.findings.is_empty() || checked.failed.len() > 1;
    context.output.ended(worst.map_or(Ok(exit), Err), &checked, is_any)
}
