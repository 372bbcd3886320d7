//! Errors of stores and keys, each with what its reader can do.

use holdfast_core::{Error, ErrorKind};
use holdfast_repo::{KeyError, Repo, RepoError, store::StoreError};

/// Hint for when nothing is at a location.
pub(super) const NOT_THERE_HINT: &str = "is the place mounted? \"holdfast init\" makes a new repository";

/// Converts a store's error to an operation's error.
pub(crate) fn of_store(error: StoreError) -> Error {
    RepoError::from(error).into()
}

/// Converts errors with the keys of an open repository.
pub(crate) fn of_keys_in(repo: &Repo) -> impl FnOnce(KeyError) -> Error {
    let location = repo.store().location();
    move |error| of_keys(error, &location)
}

/// Converts an error in creating or opening the repository at `location`, or with its keys, to an operation's
/// error.
pub(crate) fn of_keys(error: KeyError, location: &str) -> Error {
    let text = error.to_string();
    let it = |kind| Error::new(kind, text);
    match error {
        KeyError::Store(error) => of_store(error).context(format_args!("the repository {location}")),
        KeyError::NotARepository { location } if location.starts_with("s3://") => {
            it(ErrorKind::Store).hinted(
                "\"holdfast init\" makes a new repository; one whose objects were deleted is read with \
                 --as-of, if the bucket keeps versions (docs/guide/stores.md)",
            )
        }
        KeyError::NotARepository { location } if location.starts_with("az://") => {
            it(ErrorKind::Store).hinted(
                "\"holdfast init\" makes a new repository; blobs that were deleted can be brought back for \
                 as long as the account's soft delete keeps them (docs/guide/stores.md)",
            )
        }
        KeyError::NotARepository { .. } => it(ErrorKind::Store).hinted(NOT_THERE_HINT),
        KeyError::NotEmpty { object, .. } if object == "holdfast.json" => it(ErrorKind::Failed)
            .hinted("a repository exists there already: use it, or name another place"),
        KeyError::NotEmpty { .. } => it(ErrorKind::Failed).hinted("name an empty or a new directory"),
        KeyError::NoLocks { location, .. } if !location.starts_with("s3://") => {
            it(ErrorKind::Failed).hinted(
                "Object Lock is for s3:// only; docs/guide/stores.md says how others are protected; without \
                 --object-lock the repository is made without it",
            )
        }
        KeyError::NoLocks { .. } => it(ErrorKind::Failed).hinted(
            "Object Lock is switched on when a bucket is made, or later by its owner: docs/guide/stores.md \
             says how; without --object-lock the repository is made without it",
        ),
        KeyError::NewerFormat { .. } => {
            it(ErrorKind::Failed).hinted("use the version of holdfast that wrote it, or a later one")
        }
        KeyError::OlderFormat { .. } => it(ErrorKind::Failed).hinted(
            "it was made by a version before the first release: make a new repository, and keep this one \
             with the version that wrote it",
        ),
        KeyError::WrongPassword { .. } => it(ErrorKind::Key).hinted(
            "is it the password of this repository? if so, an object below keys/ is damaged: put that back \
             from a copy",
        ),
        KeyError::PasswordNeeded { .. } => it(ErrorKind::Key),
        KeyError::WrongIdentity { .. } => {
            it(ErrorKind::Key).hinted("an operator adds a key for it: \"holdfast key add --public-key\"")
        }
        KeyError::Untrusted { trusted, .. } => it(ErrorKind::Key).hinted(format!(
            "compare with what \"holdfast key add\" printed where the key was added; if it is the same, add \
             this line to the identity file:\n{trusted}"
        )),
        KeyError::Removed { .. } | KeyError::NotOperator { .. } => it(ErrorKind::Key)
            .hinted("open the repository with an operator's key (--password-file, --identity)"),
        KeyError::LastOperator { .. } => it(ErrorKind::Failed)
            .hinted("add another operator's key first, or change this one: \"holdfast key change\""),
        KeyError::NoSuchKey { .. } => it(ErrorKind::Usage).hinted("\"holdfast key list\" shows the keys"),
        KeyError::TooManyLogs { .. } => it(ErrorKind::Failed).hinted(
            "with --at-once, only logs with finished runs count; are there stray folders below sources/?",
        ),
        KeyError::TooMany { .. } => it(ErrorKind::Failed).hinted("remove one that is no longer used"),
        KeyError::NothingToProtect { .. } | KeyError::BadLabel { .. } | KeyError::OperatorOfSources => {
            it(ErrorKind::Usage)
        }
        KeyError::NoExchange { .. } => it(ErrorKind::Failed)
            .hinted("put another in its place first: \"holdfast key change\", or key add and key remove"),
        KeyError::RotatedOut { .. } => it(ErrorKind::Failed)
            .hinted("make a new repository, and keep this one until its backups are no longer needed"),
        KeyError::RotationRefused { .. } => it(ErrorKind::Damaged).hinted(
            "delete this object, which nobody can use, and run it again with the key of an operator who stays",
        ),
        KeyError::NoShare { .. } | KeyError::NoRandom(_) => it(ErrorKind::Failed),
        KeyError::Crowded => it(ErrorKind::Failed).hinted("run it again"),
        KeyError::NotEncrypted { .. } => it(ErrorKind::Key).hinted(
            "if it should not be encrypted, omit the password; if it should, find out who replaced it",
        ),
        KeyError::Damaged { .. } | KeyError::Kdf { .. } => {
            it(ErrorKind::Damaged).hinted("put this object back from a copy of the repository")
        }
    }
}
