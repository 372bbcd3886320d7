//! Errors of operations as the user needs them: what kind of failure, of what, why, and what to do about it.
//!
//! Inside the library errors are typed where a caller must tell them apart. At this boundary they become an
//! [`Error`]: a kind (which the command line turns into an exit code), a sentence, the chain of causes, and a
//! hint.

use std::{error::Error as StdError, fmt, io};

use holdfast_repo::{
    Damage, Repo, RepoError,
    data::writer::WriteError,
    log::run::{BeginError, FinishError},
    store::StoreErrorKind,
};

/// The classes a caller can act upon. Each has one exit code (`docs/reference/errors.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operation failed; nothing was published.
    Failed,
    /// The request contradicts itself or the situation.
    Usage,
    /// The server could not be reached, or refused.
    Server,
    /// The repository could not be reached.
    Store,
    /// Wrong password or key.
    Key,
    /// The repository is damaged.
    Damaged,
    /// Another run of this source is active.
    Active,
    /// The user or a signal stopped the operation.
    Interrupted,
}

/// Hint for [`RepoError::History`], which fails every run of a source.
pub const HISTORY_HINT: &str = "\
put the object back from a copy of the repository; without one, \"holdfast repair\" says what can be rebuilt \
and what would be dropped. What stands can still be listed, checked and restored, and new backups can use \
another name (backup --name NEW)";

/// Hint for when only a later version can tell whether an object is good.
pub const NEWER_HINT: &str = "\
run it again with the newest version that writes to this repository, and with a key that has been given the \
keys of all rotations; until then nothing of this need be lost: drop no backup for it";

/// Hint for an object that is damaged or missing.
const DAMAGE_HINT: &str = "\
put the object back from a copy of the repository; other backups may be whole: \"holdfast check \
--read-data\" says which, and \"holdfast repair\" what can be rebuilt";

/// Hint for an object that cannot be read.
const UNREADABLE_HINT: &str = "\
what a disk cannot read now may be readable later, or once the file system was checked. \"holdfast check \
--read-data\" says which backups need it; if it stays so, remove the object: \"holdfast repair\" then says \
what is lost";

/// Hint for an object in an archive class.
const ARCHIVED_HINT: &str = "\
have the service bring it back from the archive first, and keep rules of the bucket from moving objects of a \
repository";

/// Hint for when somebody has hidden or covered what seems lost.
pub const BENEATH_HINT: &str = "\
somebody with access to the bucket has hidden or overwritten objects: drop nothing; delete the delete \
marker, or the version on top (aws s3api delete-object with its --version-id), or read with --as-of the time \
before (docs/guide/stores.md)";

/// Hint for a key that does not permit what was requested.
const KEY_HINT: &str =
    "open the repository with another key (--password-file, --identity); \"holdfast key list\" shows all";

/// Failure of an operation.
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure described by one sentence: lower case, no final period, naming the thing.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    /// A failure of kind [`ErrorKind::Failed`].
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// A failure of kind [`ErrorKind::Damaged`].
    pub(crate) fn damaged(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Damaged, message)
    }

    /// Adds what to do about it: a sentence or a question.
    #[must_use]
    pub fn hinted(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds another hint after the existing ones, on a line of its own.
    #[must_use]
    pub(crate) fn also_hinted(self, hint: impl fmt::Display) -> Self {
        let hint = match &self.hint {
            Some(first) => format!("{first}\n{hint}"),
            None => hint.to_string(),
        };
        self.hinted(hint)
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Prepends what was being done: "read page 7 of ./db/t.ibd".
    #[must_use]
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }

    /// A copy for another recipient, with its causes reduced to text.
    #[must_use]
    pub(crate) fn again(&self) -> Self {
        Self { kind: self.kind, message: self.to_string(), hint: self.hint.clone(), source: None }
    }

    /// Names the repository, if its store has failed.
    #[must_use]
    pub(crate) fn at(self, repo: &Repo) -> Self {
        match self.kind {
            ErrorKind::Store => self.context(format_args!("the repository {}", repo.store().location())),
            _ => self,
        }
    }

    /// The direct cause, if it has this type.
    pub(crate) fn cause<T: StdError + 'static>(&self) -> Option<&T> {
        self.source.as_ref()?.downcast_ref()
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut cause = self.source.as_deref().map(|s| s as &(dyn StdError + 'static));
        let mut said = self.message.clone();
        while let Some(error) = cause {
            let text = error.to_string();
            if !said.ends_with(&text) {
                write!(f, ": {text}")?;
                said.clone_from(&text);
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)?;
        if let Some(hint) = &self.hint {
            write!(f, " (hint: {hint})")?;
        }
        Ok(())
    }
}

impl StdError for Error {}

/// Adds what was being done when an underlying call failed.
pub trait Context<T> {
    /// Wraps the error as [`ErrorKind::Failed`] with what was being done.
    fn context(self, doing: impl fmt::Display) -> Result<T>;
    /// Like [`context`](Self::context), with another kind.
    fn context_kind(self, kind: ErrorKind, doing: impl fmt::Display) -> Result<T>;
}

impl<T, E: StdError + Send + Sync + 'static> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.context_kind(ErrorKind::Failed, doing)
    }

    fn context_kind(self, kind: ErrorKind, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Error::new(kind, doing.to_string()).caused_by(error))
    }
}

impl From<RepoError> for Error {
    fn from(error: RepoError) -> Self {
        let kind = match &error {
            RepoError::Store(error) => match error.kind {
                // The store has answered: it is the object that is not as it was stored.
                StoreErrorKind::ShortRead { .. }
                | StoreErrorKind::TooLarge { .. }
                | StoreErrorKind::Unreadable { .. } => ErrorKind::Damaged,
                _ => ErrorKind::Store,
            },
            RepoError::Damaged { .. } | RepoError::History { .. } => ErrorKind::Damaged,
            RepoError::Interrupted => ErrorKind::Interrupted,
            RepoError::NotReadable { .. } | RepoError::NotAllowed { .. } | RepoError::NotBelieved { .. } => {
                ErrorKind::Key
            }
            _ => ErrorKind::Failed,
        };
        let hint = match &error {
            RepoError::Store(error) => hint_of_store(&error.kind),
            RepoError::History { damage, .. } if is_hidden(damage) => Some(BENEATH_HINT),
            RepoError::History { .. } => Some(HISTORY_HINT),
            RepoError::Damaged { .. } => Some(DAMAGE_HINT),
            RepoError::NotReadable { .. } | RepoError::NotAllowed { .. } => Some(KEY_HINT),
            _ => None,
        };
        Self { hint: hint.map(str::to_owned), ..Self::new(kind, error.to_string()) }
    }
}

fn is_hidden(error: &RepoError) -> bool {
    matches!(error, RepoError::Damaged { damage: Damage::Hidden, .. })
}

fn hint_of_store(kind: &StoreErrorKind) -> Option<&'static str> {
    let error = match kind {
        StoreErrorKind::Io(error) => error,
        StoreErrorKind::Remote(error) => return error.cause.hint(),
        StoreErrorKind::Unreadable { is_archived: true, .. } => return Some(ARCHIVED_HINT),
        StoreErrorKind::Unreadable { .. } => return Some(UNREADABLE_HINT),
        _ => return None,
    };
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some("make room where the repository is, and run it again: what was stored is reused")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            Some("the file system of the repository is mounted read-only: mount it for writing")
        }
        io::ErrorKind::PermissionDenied => {
            Some("this user may not read or write there: run as the owner of the repository")
        }
        _ => None,
    }
}

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Repo(error) => error.into(),
            error => Self::failed("write to the repository").caused_by(error),
        }
    }
}

impl From<BeginError> for Error {
    fn from(error: BeginError) -> Self {
        match error {
            BeginError::Active(_) | BeginError::Crowded { .. } => {
                Self::new(ErrorKind::Active, error.to_string()).hinted(
                    "wait for it; if it died on another host, its lease expires 15 minutes after its last \
                     sign of life, or one minute for a binlog archiver",
                )
            }
            BeginError::Thread(_) => Self::failed(error.to_string()),
            BeginError::Repo(error) => error.into(),
        }
    }
}

impl From<FinishError> for Error {
    fn from(error: FinishError) -> Self {
        let said = error.to_string();
        match error {
            // Another run need not be active any more: it is this run that failed, and it can be repeated at
            // once.
            FinishError::Lost { .. } => Self::failed(said).hinted(
                "this process was frozen, or cut off from the repository, for longer than its lease of 15 minutes: run it again",
            ),
            FinishError::Unsure { cause, .. } => {
                let cause = Self::from(*cause);
                let sure = "\"holdfast list\" shows whether it stands, once the repository can be reached: \
                            if not, run it again";
                Self { message: format!("{said}: {cause}"), ..cause }.also_hinted(sure)
            }
            FinishError::Repo(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_repo::{Damage, Kind, LogName, RunNo};

    use super::*;

    /// If the store has answered, a missing object is damage, not an unreachable store.
    #[test]
    fn an_object_that_is_gone_is_damage() {
        let missing = RepoError::Damaged { object: "packs/7".to_owned(), damage: Damage::Missing };
        let error = Error::from(missing);
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.hint().unwrap().contains("check --read-data"));
    }

    /// Outer callers add hints without losing the inner ones.
    #[test]
    fn hints_add_up() {
        let once = Error::failed("load").also_hinted("wait");
        assert_eq!(once.hint(), Some("wait"));
        assert_eq!(once.also_hinted("or ask").hint(), Some("wait\nor ask"));
    }

    /// For every verb: a run that another has ended has failed, and one that cannot begin finds another
    /// active.
    #[test]
    fn lost_runs_and_active_ones() {
        let log = LogName { source: "db1".parse().unwrap(), kind: Kind::Physical };
        let lost = Error::from(FinishError::Lost { log: log.clone(), run: RunNo(3), by: "tombstone" });
        assert_eq!(lost.kind(), ErrorKind::Failed);
        assert!(lost.hint().is_some());
        assert_eq!(Error::from(BeginError::Crowded { log }).kind(), ErrorKind::Active);
        assert_eq!(Error::from(RepoError::Interrupted).kind(), ErrorKind::Interrupted);
        // Nothing stored is damaged: the object to be written is too large.
        let (object, what) = ("outcome".to_owned(), "manifest head");
        let too_large = RepoError::TooLarge { object, what, size_bytes: 2, limit_bytes: 1 };
        assert_eq!(Error::from(too_large).kind(), ErrorKind::Failed);
    }
}
