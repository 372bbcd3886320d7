//! Copies of backups in another repository: whether they belong there, and their failures as errors of an
//! operation.

use holdfast_repo::{Repo, RunNo, log::history::History, ops::copy::CopyError};

use crate::{
    error::{Error, ErrorKind, Result},
    head::{self, read_head},
    taking::identity::NEW_IDENTITY,
};

/// Refuses to add a backup of one server to the history of another.
///
/// `run` of `from`, in the repository `from_repo`, is what would be added to `to`. Nothing is checked if the
/// history continues what was copied to it before, or if the backup is flagged as one of another server. With
/// a key that cannot read the target's newest backup, there is no way to tell.
pub fn check_server(
    (from_repo, from): (&Repo, &History),
    run: RunNo,
    (to_repo, to): (&Repo, &History),
) -> Result<()> {
    let (Some(backup), Some(newest)) = (from.outcome(run), to.standing().next_back()) else { return Ok(()) };
    let origin = backup.origin(from_repo, from.log());
    let before = newest.origin(to_repo, to.log());
    if (origin.repository, &origin.source) == (before.repository, &before.source) || !to_repo.can_read() {
        return Ok(());
    }
    let added = read_head(from_repo, from, run)?;
    let known = head::identity(&read_head(to_repo, to, newest.run)?);
    let (Some(found), Some(known)) = (head::identity(&added), known) else { return Ok(()) };
    if added.flags.iter().any(|flag| flag == NEW_IDENTITY) || known.is_same(&found) {
        return Ok(());
    }
    let (log, newest) = (to.log(), newest.run);
    let (was, is) = (known.described(), found.described());
    let text = format!(
        "{log} in the other repository belongs to another server: backup {newest} is of {was}, this one is \
         of {is}"
    );
    Err(Error::new(ErrorKind::Usage, text).hinted("give the copies a different name there (--as)"))
}

/// Converts a copy's failure into an operation's, with the repository that it concerns.
#[must_use]
pub fn failed(error: CopyError, from: &Repo, to: &Repo) -> Error {
    let at_from = |error: Error| error.context(format_args!("read {}", from.store().location()));
    let at_to = |error: Error| error.context(format_args!("write to {}", to.store().location()));
    match error {
        // No damage, which backups after it would be copied past: a later version can copy it.
        CopyError::From(error) if error.is_unknown() => {
            at_from(Error::failed(error.to_string()).hinted("copy it with the version that has written it"))
        }
        CopyError::From(error) => at_from(error.into()),
        CopyError::To(error) => at_to(error.into()),
        CopyError::Write(error) => at_to(Error::failed(error.to_string())),
        CopyError::Begin(error) => at_to(error.into()),
        CopyError::Finish(error) => at_to(error.into()),
        CopyError::Unknown { .. } => at_from(Error::failed(error.to_string())),
        CopyError::Older { .. } => Error::failed(error.to_string())
            .hinted("copy each backup before the next one; or copy it under another name (--as)"),
        CopyError::ThereDamaged { .. } => at_to(
            Error::damaged(error.to_string())
                .hinted("\"holdfast check\" and \"holdfast repair\" the other repository, then copy again"),
        ),
        CopyError::NoSuchBackup { .. } => {
            Error::failed(error.to_string()).hinted("\"holdfast list\" shows the backups")
        }
        CopyError::SameRepository { .. } => Error::new(ErrorKind::Usage, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_repo::{Damage, Protection, RepoError, store::mem::MemStore};

    use super::*;

    /// Copies go past damage, and nothing older than what is there can be copied later.
    #[test]
    fn what_a_later_version_can_copy_is_no_damage() {
        let repo = Repo::init(Arc::new(MemStore::new()), &Protection::None).unwrap();
        let kind = |damage| failed(RepoError::damaged("outcomes/2", damage).into(), &repo, &repo).kind();
        assert_eq!(kind(Damage::Missing), ErrorKind::Damaged);
        assert_eq!(kind(Damage::Unknown { what: "manifest schema 2".to_owned() }), ErrorKind::Failed);
    }
}
