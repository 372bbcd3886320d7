//! The objects that a load makes, and how far it is with one.

/// The kinds of objects, in the order in which they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Schema,
    Sequence,
    Table,
    Routine,
    View,
    Trigger,
    Event,
    Account,
}

impl ObjectKind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Schema => "schema",
            Self::Sequence => "sequence",
            Self::Table => "table",
            Self::Routine => "routine",
            Self::View => "view",
            Self::Trigger => "trigger",
            Self::Event => "event",
            Self::Account => "account",
        }
    }
}

/// An object to make, by its name on the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) kind: ObjectKind,
    pub(super) schema: String,
    pub(super) name: String,
}

/// How far the load of an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    /// The load has made nothing of it: an object in its place is not the load's.
    Planned = 0,
    /// It is about to be made: an object in its place is the load's, and incomplete.
    Begun = 1,
    /// A table: it exists, without rows. A database: it exists.
    Made = 2,
    /// A table: all of its rows are in.
    Filled = 3,
    /// A table: its indexes are built.
    Indexed = 4,
    /// Nothing is left to do. A database: it is not the load's alone.
    Done = 5,
    /// A table: it was read again and equals the backup. Its rows may change from now on.
    Verified = 6,
}

impl Stage {
    /// The stage that is recorded as this number.
    pub(super) fn of(number: u8) -> Option<Stage> {
        [Self::Planned, Self::Begun, Self::Made, Self::Filled, Self::Indexed, Self::Done, Self::Verified]
            .into_iter()
            .find(|stage| *stage as u8 == number)
    }
}
