//! How a repository's bucket protects what is in it.

use holdfast_repo::{
    Repo, RepoError,
    store::locks::{LockMode, ObjectLock},
};

use super::finding::Finding;
use crate::error::{Error, Result};

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
