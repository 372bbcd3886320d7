//! What the holder of a key may do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the holder of a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Everything.
    Operator,
    /// Adding backups; reading none.
    Writer,
    /// Seeing what is dead and deleting it; reading no backup.
    Keeper,
}

/// An operation on a repository, as far as roles differ in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Reading the contents of backups: manifests, page maps, pages.
    Read,
    /// Adding backups.
    Backup,
    /// Dropping backups, declaring packs dead and deleting them.
    Prune,
    /// Adding, removing and rotating keys.
    ManageKeys,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Operator, Self::Writer, Self::Keeper];

    /// Whether it has the keys for `act`.
    #[must_use]
    pub fn may(self, act: Act) -> bool {
        match self {
            Self::Operator => true,
            Self::Writer => act == Act::Backup,
            Self::Keeper => act == Act::Prune,
        }
    }

    /// The number as stored in associated data.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Operator => 1,
            Self::Writer => 2,
            Self::Keeper => 3,
        }
    }

    /// The name as stored and as typed.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Writer => "writer",
            Self::Keeper => "keeper",
        }
    }
}

impl Act {
    /// Whose key it takes, in words.
    #[must_use]
    pub fn needs(self) -> &'static str {
        match self {
            Self::Read | Self::ManageKeys => "an operator's",
            Self::Backup => "a writer's or an operator's",
            Self::Prune => "a keeper's or an operator's",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
