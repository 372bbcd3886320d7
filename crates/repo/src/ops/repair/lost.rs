//! What a repair gives up must be lost: not intact but not understood, and not hidden beneath something else. (What
//! cannot be read at the moment fails a repair: [`Repo::insisting`].)

use crate::{
    error::RepoError,
    format::names::{LogName, RunNo},
    interrupt::Interrupt,
    keys::KeyError,
    log::{
        beneath::{BeneathFinder, outcomes_beneath},
        history::History,
        outcome::{self, OUTCOME_BYTES_MAX, SignedBy},
    },
    ops::{keys, repair::RepairError},
    repo::Repo,
    store::{ObjectPath, locks::NoncurrentVersion, read_all},
};

/// Checks that none of these objects, as findings name them, is hidden or covered in a store that keeps versions.
pub(super) fn require_nothing_beneath(
    repo: &Repo,
    history: &History,
    named: &[String],
    interrupt: &Interrupt,
) -> Result<(), RepairError> {
    if named.is_empty() {
        return Ok(());
    }
    let log = history.log();
    let beneath = outcomes_beneath(repo, log)?;
    if let Some((run, it)) = beneath.range(history.next_run()..).find(|(_, it)| it.is_hidden) {
        return Err(beneath_error(&log.outcome(*run), it));
    }
    let mut finder = BeneathFinder::new(repo, log);
    for named in named {
        interrupt.check()?;
        if let Some((object, it)) = finder.look(named)? {
            return Err(beneath_error(&object, &it));
        }
    }
    Ok(())
}

/// Checks that the outcome is damaged, rather than not understood by this version,
/// or intact beside a chain that was altered.
pub(super) fn require_damaged(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    error: &RepoError,
) -> Result<(), RepairError> {
    let path = log.outcome(run);
    let bytes = match read_all(&**repo.store(), &path, OUTCOME_BYTES_MAX).map_err(RepoError::from) {
        Err(error) if error.is_of_the_object() => return Ok(()),
        bytes => bytes?,
    };
    match outcome::signed_by(repo, log, run, &bytes)? {
        SignedBy::Nobody => Ok(()),
        // Signed by a key that was removed, and nothing after it proves that it was signed before that.
        SignedBy::Believed if error.is_of_removed_signer() => Ok(()),
        SignedBy::Stranger => Err(RepairError::Stranger { object: path.to_string() }),
        SignedBy::Believed => {
            Err(RepairError::Intact { object: path.to_string(), problem: error.to_string() })
        }
    }
}

/// Checks that it is known whose signatures to trust: otherwise outcomes that are unreadable only because the
/// record of a key is lost would be taken for damaged, for good.
///
/// Of keys that have no object any more, and that an operator had added who was removed then, it is known that
/// they are not to be trusted. But the operator could vouch so for a signer whose own record was hidden.
pub(super) fn require_known_keys(repo: &Repo) -> Result<(), RepairError> {
    match keys::list(repo) {
        Ok(keys) => {
            let dropped = repo.dropped_keys();
            let is_known = |object: &str| {
                let name = object.strip_prefix("signers/").unwrap_or_default();
                name.parse().is_ok_and(|key_id| dropped.contains(&key_id))
            };
            if let Some((object, problem)) = keys.problems.into_iter().find(|(object, _)| !is_known(object)) {
                return Err(RepairError::Keys { object, problem });
            }
            match dropped.is_empty() {
                true => Ok(()),
                false => require_no_signer_beneath(repo),
            }
        }
        Err(KeyError::Store(error)) => Err(RepoError::from(error).into()),
        Err(error) => {
            let object = "keys/".to_owned();
            Err(RepairError::Keys { object, problem: error.to_string() })
        }
    }
}

fn require_no_signer_beneath(repo: &Repo) -> Result<(), RepairError> {
    let Some(versioned) = repo.store().versioned() else { return Ok(()) };
    let mut first = None;
    versioned
        .noncurrent_versions("signers/", &mut |path, beneath| {
            first.get_or_insert((path, beneath));
        })
        .map_err(RepoError::from)?;
    first.map_or(Ok(()), |(object, it)| Err(beneath_error(&object, &it)))
}

fn beneath_error(
    object: &ObjectPath,
    NoncurrentVersion { is_hidden, since }: &NoncurrentVersion,
) -> RepairError {
    RepairError::NoncurrentVersion { object: object.to_string(), is_hidden: *is_hidden, since: Some(*since) }
}
