//! What becomes of a statement of a dump.

use holdfast_formats::dump::about::Place;

/// What to do with a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Execute it.
    Execute,
    /// Execute another one instead, which has no answer.
    Instead(Vec<u8>),
    /// Execute it; this account must exist: name, and host unless it is a role.
    WithDefiner(String, Option<String>),
    /// Execute it; it makes or drops this database.
    WithDatabase(String),
    /// It puts a file's content into a table.
    Load(String),
    /// It gives the dump's place in a binlog.
    Place(Place),
    /// It means nothing to the private server.
    Skip,
    /// It is about accounts, or the server's own tables.
    LeaveOut(&'static str),
}

/// Why a statement is not executed, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) why: String,
    pub(super) hint: Option<&'static str>,
}

impl Refusal {
    pub(super) fn new(why: impl Into<String>) -> Refusal {
        Refusal { why: why.into(), hint: None }
    }

    pub(super) fn hinted(why: impl Into<String>, hint: &'static str) -> Refusal {
        Refusal { why: why.into(), hint: Some(hint) }
    }

    pub(super) fn unclear(what: &str) -> Refusal {
        Refusal::new(format!("a {what} in a form that dumps do not use"))
    }
}
