//! How a run begins: by its first lease object, once every earlier run has an outcome.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::SystemTime,
};

use super::{ActiveRun, BeginError, Run, RunOptions, end::public_part, room::with_room};
use crate::{
    error::{Damage, RepoError},
    format::{
        hex::Hex,
        names::{Folder, LogName, RunNo},
    },
    keys::{Act, random},
    log::{
        beneath::require_not_hidden,
        client::Client,
        history::History,
        lease::{LeaseObject, RenewalThread, Renewer, give_up, look, seal_host},
        outcome::{self, HOLDING, Intent, OutcomeType, PublicPart, REPAIRING},
        segment::{hash_before, last_archived},
    },
    repo::Repo,
    store::{ObjectInfo, exists},
};

/// How often a beginning run tries again after another was first to create an object.
const ATTEMPTS: u32 = 20;

impl Run {
    /// Begins a run on `log` that is to become a backup.
    /// If the last run's lease has run out, ends that run first.
    pub fn begin(repo: &Arc<Repo>, log: &LogName, options: &RunOptions) -> Result<Self, BeginError> {
        Self::begin_now(Intent::Backup, repo, log, None, options)
    }

    /// As [`begin`](Self::begin), with a history that was read before: only what was added since is read.
    pub fn begin_on(repo: &Arc<Repo>, history: History, options: &RunOptions) -> Result<Self, BeginError> {
        let log = history.log().clone();
        Self::begin_now(Intent::Backup, repo, &log, Some(history), options)
    }

    /// As [`begin_on`](Self::begin_on), for a run that takes over what archivers have left. Until it ends it
    /// counts as a prune: it asks the active run for room, an archiver waits for it, and nobody adopts what it
    /// leaves.
    pub fn begin_filing(
        repo: &Arc<Repo>,
        history: &History,
        options: &RunOptions,
    ) -> Result<Self, BeginError> {
        Self::begin_as(Intent::Prune, repo, history, options)
    }

    /// As [`begin_on`](Self::begin_on), for a run that drops, holds or prunes.
    /// It asks the active run for room.
    pub(crate) fn begin_as(
        intent: Intent,
        repo: &Arc<Repo>,
        history: &History,
        options: &RunOptions,
    ) -> Result<Self, BeginError> {
        let log = history.log();
        with_room(repo, log, &options.interrupt, || {
            Self::begin_now(intent, repo, log, Some(history.clone()), options)
        })
    }

    fn begin_now(
        intent: Intent,
        repo: &Arc<Repo>,
        log: &LogName,
        mut history: Option<History>,
        options: &RunOptions,
    ) -> Result<Self, BeginError> {
        let lease = prepare_lease(repo, log, intent, options)?;
        for _ in 0..ATTEMPTS {
            // Leases first: a run that begins and ends between the two lists must not look like a gap.
            let leases = repo.list_folder(log, Folder::Runs)?;
            let known = match history.take() {
                Some(mut known) => {
                    History::refresh(&mut known, repo)?;
                    known
                }
                None => History::read(repo, log)?,
            };
            let next = known.next_run();
            let foreseen = known.last_foreseen();
            let newest_lease = leases.into_keys().map(|(run, _)| run).filter(|run| *run <= foreseen).max();
            if newest_lease > Some(next) {
                return Err(RepoError::damaged(log.outcome(next), Damage::Missing).of_history(log).into());
            }
            repo.require_believed(log, next)?;
            if newest_lease == Some(next) {
                if let Some(active) = end_if_dead(repo, &known, &options.client)? {
                    return Err(BeginError::Active(Box::new(active)));
                }
            } else if let Some(begun_at) = create_first_lease(repo, log, next, &lease)? {
                return Self::start(intent, repo, known, next, (&lease, begun_at), options);
            }
            history = Some(known);
        }
        Err(BeginError::Crowded { log: log.clone() })
    }

    /// Begins a repair: on the whole outcomes of the history, after everything that anybody has stored.
    /// Dead runs are ended first, whatever is left of them.
    pub(crate) fn begin_repair(
        repo: &Arc<Repo>,
        log: &LogName,
        options: &RunOptions,
    ) -> Result<Self, BeginError> {
        with_room(repo, log, &options.interrupt, || Self::begin_repair_now(repo, log, options))
    }

    fn begin_repair_now(repo: &Arc<Repo>, log: &LogName, options: &RunOptions) -> Result<Self, BeginError> {
        let lease = prepare_lease(repo, log, Intent::Repair, options)?;
        for _ in 0..ATTEMPTS {
            // Listed before anything else is read: a run that ends meanwhile counts as one without an
            // outcome, and is looked at again.
            let there = repo.list_folder(log, Folder::Outcomes)?;
            let begun = stored_runs(repo, log)?;
            let Some(mut history) = salvage_twice(repo, log, &there)? else { continue };
            let highest = begun.range(..=history.last_foreseen()).next_back().copied();
            let highest = highest.max(history.last_missing(repo)?).unwrap_or(RunNo(0));
            let without = (history.next_run().0..=highest.0).map(RunNo);
            let without: Vec<RunNo> = without.filter(|run| !there.contains_key(&(*run, 0))).collect();
            let archived = match without.is_empty() {
                true => None,
                false => last_archived(repo, &history)?,
            };
            let mut has_ended_any = false;
            for run in without {
                let lease = look(repo, log, run)?;
                if let Some(lease) = lease.as_ref().filter(|lease| lease.is_alive) {
                    return Err(BeginError::Active(Box::new(ActiveRun::new(log, run, lease.clone()))));
                }
                if Some(run) < archived {
                    // Its outcome is lost. A tombstone in its place would have another hash than the one that
                    // segments continue.
                    continue;
                }
                has_ended_any = true;
                // If nothing tells what the run was, it is ended as a backup:
                // leftovers of any other run are swept at once, before anybody has checked whether a prune
                // that had ended moved something there.
                let intent = lease.and_then(|lease| lease.intent).or(Some(Intent::Backup));
                entomb(repo, &history, run, intent, &options.client)?;
                if history.read_on(repo).is_err() || history.next_run() != RunNo(run.0 + 1) {
                    // Something else is stored there, or something damaged lies between: start over.
                    break;
                }
            }
            if has_ended_any {
                continue;
            }
            let next = RunNo(highest.0 + 1);
            if history.next_run() > next {
                continue;
            }
            repo.require_believed(log, next)?;
            if let Some(begun_at) = create_first_lease(repo, log, next, &lease)? {
                return Self::start(Intent::Repair, repo, history, next, (&lease, begun_at), options);
            }
        }
        Err(BeginError::Crowded { log: log.clone() })
    }

    fn start(
        intent: Intent,
        repo: &Arc<Repo>,
        history: History,
        no: RunNo,
        (lease, begun_at): (&LeaseObject, SystemTime),
        options: &RunOptions,
    ) -> Result<Self, BeginError> {
        let renewer = Arc::new(Renewer::new(repo, history.log(), no, lease, begun_at));
        let mut run = Self {
            secrets: Arc::new(repo.draw_secrets(history.log(), no)?),
            repo: Arc::clone(repo),
            history,
            no,
            intent,
            host: options.client.host.clone(),
            renewer,
            thread: None,
            copy_of: None,
            imported: false,
            part: None,
            report: None,
            why: String::new(),
            attempts: Vec::new(),
            ended: false,
        };
        if let Some(every) = options.renew_every {
            let thread = RenewalThread::start(Arc::clone(&run.renewer), every);
            run.thread = Some(thread.map_err(BeginError::Thread)?);
        }
        Ok(run)
    }
}

/// The lease of a run with this intent, if the key at hand and the store allow one.
fn prepare_lease(
    repo: &Repo,
    log: &LogName,
    intent: Intent,
    options: &RunOptions,
) -> Result<LeaseObject, RepoError> {
    let (act, doing) = match intent {
        Intent::Backup => (Act::Backup, "a backup"),
        Intent::Expire | Intent::Prune => (Act::Prune, "dropping and pruning"),
        Intent::Hold => (Act::Prune, HOLDING),
        Intent::Repair => (Act::Read, REPAIRING),
    };
    repo.require(act, doing)?;
    repo.require_locks(if intent == Intent::Repair { REPAIRING } else { "writing" })?;
    // From here on, what was removed or rotated since the repository was opened is known.
    repo.look_again()?;
    repo.require_sound_keys()?;
    Ok(LeaseObject {
        token: Hex(random().map_err(RepoError::NoRandom)?),
        intent: Some(intent),
        process: options.client.process,
        patience_s: options.patience.map(|patience| patience.as_secs()),
        makes_room: options.makes_room,
        host: Some(seal_host(repo, log, &options.client.host)?),
    })
}

/// If the newest run has no outcome: returns it if it is alive, and otherwise ends it, so that its
/// leftovers can be recognized as such.
pub(crate) fn end_if_dead(
    repo: &Repo,
    history: &History,
    client: &Client,
) -> Result<Option<ActiveRun>, RepoError> {
    let (log, run) = (history.log(), history.next_run());
    let Some(lease) = look(repo, log, run)? else { return Ok(None) };
    if lease.is_alive {
        // It may have ended since its outcome was looked for.
        let has_ended = exists(&**repo.store(), &log.outcome(run))?;
        return Ok((!has_ended).then(|| ActiveRun::new(log, run, lease)));
    }
    entomb(repo, history, run, lease.intent, client)?;
    Ok(None)
}

/// Ends a dead run, if nobody else has. If the outcome before it is lost, what segments of the run continue is
/// continued. If it had stored its refs, nothing of it is swept at once: it may
/// have ended, and its outcome be lost. A prune that has stored none may still delete what it has written.
fn entomb(
    repo: &Repo,
    history: &History,
    run: RunNo,
    intent: Option<Intent>,
    client: &Client,
) -> Result<(), RepoError> {
    let log = history.log();
    require_not_hidden(repo, log, run)?;
    let has_refs = exists(&**repo.store(), &log.refs(run))?;
    let (why, intent) = match has_refs {
        true => ("its lease ran out; it had stored everything but its outcome", Some(Intent::Backup)),
        false => ("its lease ran out", intent),
    };
    let public = public_part(repo, history, run, OutcomeType::Tombstone, &client.host, why.to_owned())?;
    let is_next = run == history.next_run();
    let named = if is_next { None } else { hash_before(repo, log, run)? };
    let public = PublicPart { intent, previous: named.unwrap_or(public.previous), ..public };
    let bytes = outcome::encode(repo, log, &public, None)?;
    match repo.store().create_if_absent(&log.outcome(run), &bytes) {
        Ok(_) => Ok(()),
        Err(error) if error.is_exists() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The runs of which anything is stored, by the names of objects.
fn stored_runs(repo: &Repo, log: &LogName) -> Result<BTreeSet<RunNo>, RepoError> {
    let mut runs = BTreeSet::new();
    for folder in [
        Folder::Runs,
        Folder::Packs,
        Folder::Index,
        Folder::Refs,
        Folder::Reports,
        Folder::Outcomes,
        Folder::Segments,
    ] {
        runs.extend(repo.list_folder(log, folder)?.into_keys().map(|(run, _)| run));
    }
    Ok(runs)
}

/// What is whole of the history; `None` if two reads differ, or if a read misses something that
/// was `there` already. The outcome of a repair continues the chain from here, and nothing mends a
/// chain continued from a wrong read.
fn salvage_twice(
    repo: &Repo,
    log: &LogName,
    there: &BTreeMap<(RunNo, u32), ObjectInfo>,
) -> Result<Option<History>, RepoError> {
    let mut looks = Vec::with_capacity(2);
    for _ in 0..2 {
        let mut damaged = BTreeSet::new();
        let history = History::salvage(repo, log, &mut |run, _| {
            damaged.insert(run);
        })?;
        looks.push((history, damaged));
    }
    let hashes = |history: &History| -> Vec<_> {
        history.outcomes().iter().map(|outcome| (outcome.run, outcome.hash)).collect()
    };
    let is_same = looks.windows(2).all(|two| hashes(&two[0].0) == hashes(&two[1].0) && two[0].1 == two[1].1);
    let Some((history, damaged)) = looks.pop() else { return Ok(None) };
    let is_known = |run: &RunNo| {
        history.outcome(*run).is_some()
            || history.is_lost(*run)
            || damaged.contains(run)
            || history.strangers().contains(run)
    };
    let is_whole = there.keys().all(|(run, _)| is_known(run));
    Ok((is_same && is_whole).then_some(history))
}

/// Creates the first lease of `run`. Returns when the run began, by the store's clock, if it is this
/// process's now. After an error the lease may be stored: it is given up.
fn create_first_lease(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    lease: &LeaseObject,
) -> Result<Option<SystemTime>, RepoError> {
    try_first_lease(repo, log, run, lease).inspect_err(|_| give_up(lease.token))
}

fn try_first_lease(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    lease: &LeaseObject,
) -> Result<Option<SystemTime>, RepoError> {
    require_not_hidden(repo, log, run)?;
    let path = log.lease(run, 0);
    let begun_at = match repo.store().create_if_absent(&path, &lease.encode()) {
        Ok(created) => created.created_at,
        Err(error) if error.is_exists() => match LeaseObject::read(repo, &path) {
            // An earlier attempt created it, and its reply got lost.
            Ok(Some(found)) if found.token == lease.token => repo.store().head(&path)?.created_at,
            Ok(_) => return Ok(None),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        },
        Err(error) => return Err(error.into()),
    };
    // The run may have been another's that has ended, and whose lease objects a prune has deleted since.
    Ok((!exists(&**repo.store(), &log.outcome(run))?).then_some(begun_at))
}
