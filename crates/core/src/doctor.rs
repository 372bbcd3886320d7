//! Finds what is wrong with a server or a repository, and what to do about it.
//!
//! A backup stops at the first problem. Here the same checks continue, and all problems are reported at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    sync::{Arc, Mutex},
    time::Duration,
};

use holdfast_formats::Flavor;
use holdfast_pipe::{
    Suite,
    lock::{into_inner, lock},
};
use holdfast_repo::{
    Kind, LogName, Repo, RepoError, Role, RunNo, SourceName,
    log::{
        history::History,
        run::{self, Standing, standing},
    },
    ops::suspects,
    store::{
        ObjectPath,
        locks::{LockMode, ObjectLock},
        writers::PROBES,
    },
};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::{
    backup::{self, BackupOptions, Judge, Reached, forecast},
    binlog::Archive,
    error::{Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    head::read_heads,
    physical::DAMAGED_PAGES,
    server::{Purpose, ServerFacts, Session, Tunnel, check_binlog_grants},
    size::ByteSize,
    source::options::map_path,
    taking::identity,
};

/// A smaller redo log is overwritten, or stalls its server, while a large backup reads other files.
const REDO_SMALL_BYTES: u64 = 256 << 20;
/// Where backups are taken at all, an older newest backup means that one is overdue.
const OLD: Duration = Duration::from_secs(48 * 3600);
const TAKEN_STILL: &str = "does the job that takes backups still run?";
/// The clocks of hosts differ by less than this.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_hours(1);

/// The meaning of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All is as it should be.
    Good,
    /// Backups work, but something could be improved, or should be known.
    Notice,
    /// A backup, or the restore of one, would fail.
    Problem,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its meaning.
    pub verdict: Verdict,
    /// The finding, in one sentence.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Finding {
    /// All is as it should be.
    fn good(text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Good, text: text.into(), hint: None }
    }

    fn notice(text: impl Into<String>, hint: &str) -> Self {
        Self { verdict: Verdict::Notice, text: text.into(), hint: Some(hint.to_owned()) }
    }
}

impl From<Error> for Finding {
    fn from(error: Error) -> Self {
        let hint = error.hint().map(str::to_owned);
        Self { verdict: Verdict::Problem, text: error.to_string(), hint }
    }
}

/// Findings, in the order in which they were made.
#[derive(Default)]
struct Findings(Mutex<Vec<Finding>>);

impl Findings {
    fn add(&self, finding: impl Into<Finding>) {
        lock(&self.0).push(finding.into());
    }

    fn check(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.add(error);
        }
    }

    fn into_vec(self) -> Vec<Finding> {
        into_inner(self.0)
    }
}

impl Listener for Findings {
    fn event(&self, event: Event) {
        match event {
            Event::Note { text } => self.add(Finding::good(text)),
            Event::Warning { text } => self.add(Finding { verdict: Verdict::Notice, text, hint: None }),
            Event::Phase { .. } | Event::Progress { .. } | Event::Lock { .. } => {}
        }
    }
}

/// Checks whether the server can be backed up with these options, into `repo` if given. Changes nothing and
/// holds no lock.
#[must_use]
pub fn server(options: &BackupOptions, repo: Option<&Arc<Repo>>) -> Vec<Finding> {
    let findings = Findings::default();
    let judge: Judge<'_> = &|error: Error| {
        findings.add(error);
        Ok(())
    };
    if let Some(tunnel) = &options.connect.tunnel {
        findings.check(through(tunnel, options, &findings));
        return findings.into_vec();
    }
    // A question is not worth the patience of a backup.
    let options = &BackupOptions { lock_tries: 1, lock_patience: Duration::ZERO, ..options.clone() };
    match backup::reach(options, &findings, &Cancel::default(), judge) {
        Ok(mut reached) => {
            findings.check(examine_events(reached.session(), &findings));
            examine(&reached, options, repo, &findings);
        }
        Err(error) => findings.add(error),
    }
    findings.into_vec()
}

/// Examines a server that only connections can reach: its files are on another host.
fn through(tunnel: &Tunnel, options: &BackupOptions, findings: &Findings) -> Result<()> {
    let mut session = Session::open(&options.connect, Purpose::Control)?;
    let facts = ServerFacts::probe(&mut session)?;
    findings.add(Finding::good(format!(
        "{} at {}, {tunnel}: logical backups and a binlog archive are possible this way",
        facts.version, facts.identity.hostname
    )));
    examine_binlog(&facts, findings);
    findings.check(examine_events(&mut session, findings));
    if facts.binlog.is_some() {
        findings.check(check_binlog_grants(&mut session));
    }
    Ok(())
}

fn examine_binlog(facts: &ServerFacts, findings: &Findings) {
    match &facts.binlog {
        Some(_) => findings.add(Finding::good("the binlog is on: a restored copy can become a replica")),
        None => findings.add(Finding::notice(
            "the binlog is off: a restored copy cannot become a replica or be recovered to a later moment",
            "switch it on (log_bin), or accept that nothing after a backup can be recovered",
        )),
    }
}

/// MariaDB shows its events to nobody if their scheduler is disabled, not just off.
fn examine_events(session: &mut Session, findings: &Findings) -> Result<()> {
    if session.flavor() == Flavor::MariaDb
        && session.variable("event_scheduler")?.as_deref() == Some("DISABLED")
    {
        findings.add(Finding::notice(
            "event_scheduler is DISABLED: the server shows no events, so a logical backup of it, and a load \
             into it, would fail",
            "start the server with event_scheduler=OFF, unless backups are physical only",
        ));
    }
    Ok(())
}

fn examine(reached: &Reached, options: &BackupOptions, repo: Option<&Arc<Repo>>, findings: &Findings) {
    findings.check(readable(reached, options));
    let facts = reached.facts();
    examine_binlog(facts, findings);
    if facts.innodb.redo_size < REDO_SMALL_BYTES {
        findings.add(Finding::notice(
            format!(
                "the redo log has only {}: a burst of writes can overwrite it before it is captured, or has \
                 to wait until it is",
                ByteSize(facts.innodb.redo_size)
            ),
            "make it larger (innodb_log_file_size, MySQL: innodb_redo_log_capacity): a gigabyte is cheap",
        ));
    }
    if facts.innodb.flush_log_at_trx_commit != 1 {
        findings.add(Finding::notice(
            format!(
                "innodb_flush_log_at_trx_commit is {}: a crash of the host loses transactions that no backup has either",
                facts.innodb.flush_log_at_trx_commit
            ),
            "set it to 1, unless losing a second of transactions is accepted",
        ));
    }
    if let Some(repo) = repo {
        let log = LogName { source: reached.name.clone(), kind: Kind::Physical };
        findings.check(identity::check(repo, &log, reached.identity(), options, findings).map(drop));
        findings.check(forecast::room(repo, &log, reached, options, findings));
    }
}

/// Opens one file of each kind: being able to list files does not mean being able to read them.
fn readable(reached: &Reached, options: &BackupOptions) -> Result<()> {
    let system = reached.facts().system_files()?;
    let system = system.iter().map(|path| map_path(&options.path_map, path));
    let redo = std::fs::read_dir(reached.redo_dir()).ok().into_iter().flatten().flatten();
    let redo = redo.map(|entry| entry.path()).filter(|path| {
        path.file_name()
            .is_some_and(|name| name == "ib_logfile0" || name.as_encoded_bytes().starts_with(b"#ib_redo"))
    });
    for path in system.chain(redo) {
        File::open(&path).map_err(|error| {
            Error::failed(format!("open {}", path.display())).caused_by(error).hinted(
                "run holdfast as a user who may read all data files: the server's own user or root; \
                 membership in its group suffices for MySQL only",
            )
        })?;
    }
    Ok(())
}

/// How old the newest backup of each source and kind may be.
#[derive(Clone, Debug, Default)]
pub struct AgeMax {
    /// An older newest backup is a problem; without a limit, one of more than two days is a notice.
    pub age: Option<Duration>,
    /// The kinds that it applies to; empty: all kinds that a source has backups of. Never applies to binlog
    /// archives.
    pub kinds: Vec<Kind>,
}

impl AgeMax {
    fn of(&self, kind: Kind) -> Option<Duration> {
        self.age.filter(|_| kind != Kind::Binlog && (self.kinds.is_empty() || self.kinds.contains(&kind)))
    }
}

/// What to check in a repository.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Only this source, if set.
    pub name: Option<SourceName>,
    /// How old backups may be.
    pub age_max: AgeMax,
    /// It is a problem if no archiver of a binlog is running and the last run ended longer ago than this.
    pub lag_max: Option<Duration>,
    /// A repository that cannot be written to is a problem, not just a notice.
    pub is_to_be_written: bool,
}

/// Checks whether a repository can be written to, whether its records are whole, and whether its sources have
/// recent backups of each kind. A backup of a part of a server counts only if there is none of the whole.
/// Does not read any backup's data: `check` does.
pub fn repository(repo: &Arc<Repo>, asked: &Asked, cancel: &Cancel) -> Result<Vec<Finding>> {
    let Asked { age_max, lag_max, .. } = asked;
    let findings = Findings::default();
    let mut logs = repo.logs()?;
    let sources: BTreeSet<&SourceName> = logs.iter().map(|log| &log.source).collect();
    findings.add(Finding::good(format!(
        "{} opens, is {}, and holds {}",
        repo.store().location(),
        if repo.info().suite == Suite::None { "not encrypted" } else { "encrypted" },
        match sources.len() {
            0 => "nothing yet".to_owned(),
            1 => "one source".to_owned(),
            n => format!("{n} sources"),
        }
    )));
    if let Err(error) = written(repo) {
        let verdict = if asked.is_to_be_written { Verdict::Problem } else { Verdict::Notice };
        findings.add(Finding { verdict, ..error.into() });
    }
    if let Some(name) = &asked.name {
        logs.retain(|log| log.source == *name);
    }
    if repo.info().suite != Suite::None {
        findings.add(Finding::good(match repo.keys().role() {
            Role::Operator => "the key is an operator's: it can do everything",
            Role::Writer => "the key is a writer's: it adds backups, and reads none",
            Role::Keeper => "the key is a keeper's: it expires, prunes and checks, and reads no backup",
        }));
    }
    for (object, damage) in repo.key_problems() {
        let text = format!("{object}: {damage}: ignored");
        findings
            .add(Finding::notice(text, "\"holdfast key list\" shows the keys; find out where it came from"));
    }
    match protection(repo) {
        Ok(found) => found.into_iter().flatten().for_each(|finding| findings.add(finding)),
        Err(error) => findings.add(error),
    }
    let mut backed_up: BTreeMap<&SourceName, bool> = BTreeMap::new();
    for log in &logs {
        cancel.check()?;
        let counts = match source(repo, log, age_max.of(log.kind), &findings) {
            Ok(Stands::Backups) => age_max.of(log.kind).is_some(),
            // Nobody imports dumps on a schedule.
            Ok(Stands::Imports) => true,
            Ok(Stands::Nothing) => false,
            Err(error) => {
                findings.add(error);
                true
            }
        };
        if log.kind != Kind::Binlog {
            *backed_up.entry(&log.source).or_default() |= counts;
        }
    }
    if age_max.age.is_some() {
        findings_of_none(&backed_up, age_max).for_each(|finding| findings.add(finding));
    }
    if let Some(lag_max) = *lag_max {
        let archives: Vec<&LogName> = logs.iter().filter(|log| log.kind == Kind::Binlog).collect();
        if archives.is_empty() {
            findings.add(
                Error::failed("there is no binlog archive")
                    .hinted("start one with \"holdfast binlog archive\""),
            );
        }
        for log in archives {
            match archiver(repo, log, lag_max) {
                Ok(finding) => findings.add(finding),
                Err(error) => findings.add(error),
            }
            match gap(repo, log) {
                Ok(finding) => finding.into_iter().for_each(|finding| findings.add(finding)),
                Err(error) => findings.add(error),
            }
        }
    }
    Ok(findings.into_vec())
}

/// Writes a small object as backups write theirs, and deletes it. Does nothing if the store may keep deleted
/// objects, as a bucket may.
fn written(repo: &Repo) -> Result<()> {
    let store = repo.store();
    let location = store.location();
    let leaves_nothing = location.split_once("://").is_none_or(|(scheme, _)| scheme == "sftp");
    if !leaves_nothing || store.versioned().is_some() || repo.info().object_lock.is_some() {
        return Ok(());
    }
    let name = format!("{PROBES}doctor-{}-{}", std::process::id(), Timestamp::now().as_nanosecond());
    let Some(path) = ObjectPath::new(name) else { return Ok(()) };
    let created = store.create_if_absent(&path, b"doctor");
    // Even after a failure: the object may exist nevertheless.
    let deleted = store.delete(&[path]);
    let failed =
        |doing: &str, error| Error::from(RepoError::from(error)).context(format!("{location}: {doing}"));
    created.map_err(|error| failed("cannot write", error))?;
    deleted.map_err(|error| failed("can write, but not delete", error))
}

/// Reports the last gap in an archive: as good if there is a backup after it, otherwise as a notice.
fn gap(repo: &Arc<Repo>, log: &LogName) -> Result<Option<Finding>> {
    if !repo.can_read() {
        return Ok(None);
    }
    let archive = Archive::open(repo, &log.source)?;
    let Some(gap) = archive.stretches().iter().rev().find_map(|archived| archived.gap.as_ref()) else {
        return Ok(None);
    };
    let has_base = archive.chains()?.last().is_some_and(|chain| !chain.bases.is_empty());
    let text = format!("{log}: the archive has a gap: {}", gap.text);
    Ok(Some(if has_base {
        Finding::good(format!("{text}; there is a backup after it"))
    } else {
        Finding::notice(
            format!("{text}; there is no backup after it: none can be recovered to a later moment"),
            "take a backup; \"holdfast binlog list\" shows what is archived",
        )
    }))
}

/// Problems for sources without a backup whose age could be checked.
fn findings_of_none<'a>(
    backed_up: &'a BTreeMap<&SourceName, bool>,
    age_max: &'a AgeMax,
) -> impl Iterator<Item = Error> + 'a {
    let nowhere = backed_up.is_empty().then(|| {
        Error::failed("there is no backup").hinted("take one, or check that this is the right repository")
    });
    let kinds: Vec<String> = age_max.kinds.iter().map(|kind| format!(" {kind}")).collect();
    let kinds = kinds.join(" or");
    let without = backed_up
        .iter()
        .filter(|(_, is)| !**is)
        .map(move |(source, _)| Error::failed(format!("{source} has no{kinds} backup")).hinted(TAKEN_STILL));
    nowhere.into_iter().chain(without)
}

/// What a source has of one kind.
enum Stands {
    Nothing,
    /// Only imported dumps.
    Imports,
    Backups,
}

/// Whether an archiver is running, or was not long ago.
fn archiver(repo: &Repo, log: &LogName, lag_max: Duration) -> Result<Finding> {
    if run::active(repo, log)?.is_some_and(|run| !run.keeps_house()) {
        return Ok(Finding::good(format!("{log}: an archiver is running")));
    }
    let history = History::salvage(repo, log, &mut |_, _| {})?;
    let last = history.standing().map(|outcome| outcome.taken_at()).max();
    if last.is_some_and(|at| !is_old(at, lag_max)) {
        return Ok(Finding::good(format!("{log}: the last run of the archiver ended within --max-lag")));
    }
    let since =
        last.map_or_else(|| "nothing was archived".to_owned(), |at| format!("the last run ended at {at:.0}"));
    let what = if standing(repo, log)? == Standing::Dead {
        "its archiver has died"
    } else {
        "no archiver is running"
    };
    Err(Error::failed(format!("{log}: {what}: {since}"))
        .hinted("start it again before the server purges binlogs that are not archived"))
}

/// Whether a backup is too old, or from a future that only a wrong clock can have shown.
fn is_old(at: Timestamp, age_max: Duration) -> bool {
    let age = Timestamp::now().duration_since(at);
    age < -CLOCKS_DIFFER || Duration::try_from(age).is_ok_and(|age| age > age_max)
}

/// How the repository's bucket protects objects against deletion and overwriting; `None` if the repository is
/// not in a bucket.
pub fn protection(repo: &Repo) -> Result<Option<Vec<Finding>>> {
    let Some(versioned) = repo.store().versioned() else { return Ok(None) };
    let is = versioned.protection().map_err(RepoError::from)?;
    let lock = repo.info().object_lock;
    let mut found = Vec::new();
    found.push(match (is.versions, lock) {
        (None, _) => Finding::notice(
            "cannot tell whether the bucket keeps versions",
            "allow s3:GetBucketVersioning to find out",
        ),
        (Some(true), None) => Finding::good(
            "the bucket keeps versions: what is deleted or overwritten without s3:DeleteObjectVersion can be read with --as-of; a lifecycle rule has to free what prune deletes",
        ),
        (Some(true), Some(_)) => {
            Finding::good("the bucket keeps versions: what is deleted or overwritten can be read with --as-of")
        }
        (Some(false), _) if is.suspended => Finding::notice(
            "versioning of the bucket was suspended: whoever has this host's credentials can destroy what \
             has been stored since",
            "enable versioning again (s3:PutBucketVersioning), find out who suspended it, and give no host \
             that permission",
        ),
        (Some(false), _) => Finding::notice(
            "the bucket keeps no versions: whoever has this host's credentials can destroy all backups",
            "let the bucket keep versions, and give no host s3:DeleteObjectVersion (docs/guide/stores.md)",
        ),
    });
    match (lock, is.locks) {
        (Some(lock), Some(false)) => {
            let text = format!(
                "the repository locks its objects for {}, but the bucket has no Object Lock",
                days(lock)
            );
            found.push(
                Error::failed(text).hinted("nothing can be stored; was the repository copied here?").into(),
            );
        }
        (Some(lock), _) => found.push(Finding::good(format!(
            "stored objects are locked for {} ({}): nobody {}can delete them sooner; \"holdfast lock \
             --extend\" extends the locks of those still needed",
            days(lock),
            lock.mode,
            if lock.mode == LockMode::Governance { "without s3:BypassGovernanceRetention " } else { "" },
        ))),
        (None, Some(true)) => found.push(Finding::notice(
            "the bucket has Object Lock, and the repository does not use it",
            "create a repository with \"init --object-lock\", and copy the backups into it",
        )),
        (None, Some(false) | None) => {}
    }
    if is.locks_by_default {
        found.push(Finding::notice(
            "the bucket locks every object by default, also leases and other objects that are deleted within hours",
            "remove the default retention: Holdfast locks what must last",
        ));
    }
    Ok(Some(found))
}

fn days(lock: ObjectLock) -> String {
    match lock.period().as_secs() {
        s if s % 86_400 == 0 => format!("{} days", s / 86_400),
        s => format!("{s} s"),
    }
}

/// The finding for a source of which no backup stands, but perhaps something else.
fn nothing_taken(repo: &Repo, log: &LogName, history: &History) -> Result<Finding> {
    let imports: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
    Ok(match &imports[..] {
        [] if log.kind == Kind::Binlog => {
            if run::active(repo, log)?.is_some_and(|run| !run.keeps_house()) {
                Finding::good(format!("{log}: an archiver is running, and no run of it has ended yet"))
            } else {
                Finding::notice(
                    format!("{log}: no finished run has archived anything"),
                    "continue with \"holdfast binlog archive\"",
                )
            }
        }
        [] => Finding::notice(format!("{log} has no backup"), "take one"),
        [only] => Finding::good(format!("{log}: one import stands, {only}: no age limit applies to it")),
        [.., newest] => Finding::good(format!(
            "{log}: {} imports stand, the newest is {newest}: no age limit applies to them",
            imports.len()
        )),
    })
}

/// Examines one kind of a source: it is a problem if its newest backup is older than `age_max`.
fn source(repo: &Repo, log: &LogName, age_max: Option<Duration>, findings: &Findings) -> Result<Stands> {
    let history = History::salvage(repo, log, &mut |run, error| {
        findings.add(Error::from(error).context(format!("{log} {run}")));
    })?;
    let mut damaged: Vec<RunNo> = Vec::new();
    let mut ended = Vec::new();
    let taken: Vec<_> = history.standing().filter(|outcome| !outcome.imported).collect();
    if repo.can_read() {
        let runs: Vec<RunNo> = taken.iter().map(|outcome| outcome.run).collect();
        read_heads(repo, &history, &runs, |run, head| {
            let head = match head {
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    findings.add(error);
                    return Ok(());
                }
                head => head?,
            };
            if head.flags.iter().any(|flag| flag == DAMAGED_PAGES) {
                damaged.push(run);
            }
            ended.push((run, head.finished_at));
            Ok(())
        })?;
    } else {
        ended.extend(taken.iter().map(|outcome| (outcome.run, outcome.taken_at())));
    }
    let is_whole = |run: RunNo| taken.iter().any(|outcome| outcome.run == run && outcome.part.is_none());
    let newest = ended.iter().rev().find(|(run, _)| is_whole(*run)).or(ended.last());
    let stands = match newest {
        Some(_) => Stands::Backups,
        None if taken.is_empty() && history.standing().next().is_some() => Stands::Imports,
        None => Stands::Nothing,
    };
    match (newest, age_max) {
        // None of those taken can be read, which findings say already.
        (None, _) if !taken.is_empty() => {}
        (None, _) => findings.add(nothing_taken(repo, log, &history)?),
        (Some(&(run, at)), age_max) => {
            let one = if log.kind == Kind::Binlog { "run" } else { "backup" };
            let standing = match taken.len() {
                1 => format!("one {one} stands"),
                count => format!("{count} {one}s stand"),
            };
            let what = if is_whole(run) { "" } else { " of a part" };
            let text = format!("{log}: {standing}; the newest{what}, {run}, is from {at:.0}");
            match age_max {
                Some(age_max) if is_old(at, age_max) => {
                    findings.add(Error::failed(format!("{text}: older than the limit")).hinted(TAKEN_STILL));
                }
                // How far an archive reaches does not depend on when its last run ended.
                None if log.kind != Kind::Binlog && is_old(at, OLD) => findings.add(Finding::notice(
                    format!("{text}: older than two days, or dated in the future"),
                    TAKEN_STILL,
                )),
                _ => findings.add(Finding::good(text)),
            }
        }
    }
    if repo.can_read() {
        let suspects = suspects(repo, &history)?;
        if !suspects.is_empty() {
            let ids: Vec<String> = suspects.iter().map(|run| log.backup_id(*run)).collect();
            findings.add(Finding::notice(
                format!("a check has found damage in data that is needed by {}", ids.join(", ")),
                match log.kind {
                    Kind::Binlog => "\"holdfast check\" tells what is lost; \"holdfast binlog list\" shows what is archived",
                    _ => "\"holdfast check\" tells what is lost; the next backup stores damaged data again, if the server \
                          still has it",
                },
            ));
        }
    }
    if !damaged.is_empty() {
        let runs: Vec<String> = damaged.iter().map(ToString::to_string).collect();
        findings.add(Finding::notice(
            format!("{log}: the source had damaged pages when these were taken: {}", runs.join(" ")),
            "\"holdfast report\" names the pages; repair the server, and take a backup without \
             --allow-corrupt",
        ));
    }
    let unfinished = history.adoptable().len();
    if unfinished > 0 {
        findings.add(Finding::notice(
            format!(
                "{log}: {} ended before {} complete",
                if unfinished == 1 { "a run".to_owned() } else { format!("{unfinished} runs") },
                if unfinished == 1 { "it was" } else { "they were" }
            ),
            "the next backup reuses what was stored; why a run ended is in its messages",
        ));
    }
    Ok(stands)
}
