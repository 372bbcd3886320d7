//! Exit codes, which scripts rely on. `docs/reference/errors.md` and every help text list them from here.

use holdfast_core::{Error, ErrorKind};
use serde::{Serialize, Serializer};

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    Finding = 3,
    Server = 4,
    Store = 5,
    Key = 6,
    Damaged = 7,
    Active = 8,
    Interrupted = 130,
}

impl Exit {
    /// All exits in the order of their codes.
    pub(crate) const ALL: [Self; 10] = [
        Self::Done,
        Self::Failed,
        Self::Usage,
        Self::Finding,
        Self::Server,
        Self::Store,
        Self::Key,
        Self::Damaged,
        Self::Active,
        Self::Interrupted,
    ];

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// The name of the exit in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::Finding => "finding",
            Self::Server => "server",
            Self::Store => "repository",
            Self::Key => "key",
            Self::Damaged => "damaged",
            Self::Active => "active",
            Self::Interrupted => "interrupted",
        }
    }

    /// The description for help texts and documentation.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done and durable",
            Self::Failed => "failed; nothing was published",
            Self::Usage => "the command line or the configuration is wrong",
            Self::Finding => {
                "done, with a finding, a difference (diff), a gap (binlog), damaged pages (backup --allow-corrupt) or a hook-after that failed, or not in every repository (--also-to)"
            }
            Self::Server => "the server could not be reached, or refused",
            Self::Store => "the repository could not be reached",
            Self::Key => "wrong password or key",
            Self::Damaged => "the repository is damaged",
            Self::Active => "another run of this source and kind is active",
            Self::Interrupted => "interrupted by a signal",
        }
    }

    /// The table at the end of every help text.
    pub(crate) fn help() -> String {
        let mut text = String::from("Exit codes:");
        for exit in Self::ALL {
            text.push_str(&format!("\n  {:>3}  {}", exit.code(), exit.meaning()));
        }
        text
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Failed => Self::Failed,
            ErrorKind::Usage => Self::Usage,
            ErrorKind::Server => Self::Server,
            ErrorKind::Store => Self::Store,
            ErrorKind::Key => Self::Key,
            ErrorKind::Damaged => Self::Damaged,
            ErrorKind::Active => Self::Active,
            ErrorKind::Interrupted => Self::Interrupted,
        }
    }
}

impl Serialize for Exit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.code())
    }
}

/// Whether `error` rather than `worst` determines the exit code, of several failures: failures that do not go
/// away by themselves outrank those that do.
pub(crate) fn is_worse(error: &Error, worst: Option<&Error>) -> bool {
    let badness = |error: &Error| match error.kind() {
        ErrorKind::Damaged => 4,
        ErrorKind::Key => 3,
        ErrorKind::Store => 2,
        ErrorKind::Failed | ErrorKind::Usage | ErrorKind::Server | ErrorKind::Interrupted => 1,
        ErrorKind::Active => 0,
    };
    worst.is_none_or(|worst| badness(worst) < badness(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_tables_are_this_one() {
        let page = include_str!("../../../docs/reference/errors.md");
        let readme = include_str!("../../../README.md");
        for exit in Exit::ALL {
            let row = format!("| {} | `{}` | {} |", exit.code(), exit.name(), exit.meaning());
            assert!(page.contains(&row), "docs/reference/errors.md lacks the row\n{row}");
            let row = format!("| {} | {} |", exit.code(), exit.meaning());
            assert!(readme.contains(&row), "README.md lacks the row\n{row}");
        }
    }
}
