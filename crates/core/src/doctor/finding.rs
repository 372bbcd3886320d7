//! What is found, and what to do about it.

use std::sync::Mutex;

use holdfast_pipe::lock::{into_inner, lock};
use serde::Serialize;

use crate::{
    error::{Error, Result},
    event::{Event, Listener},
};

/// The meaning of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All is as it should be.
    Good,
    /// Backups work, but something could be improved, or should be known.
    Notice,
    /// A backup, or the restore of one, would fail.
    Problem,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its meaning.
    pub verdict: Verdict,
    /// The finding, in one sentence.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Finding {
    /// All is as it should be.
    pub(super) fn good(text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Good, text: text.into(), hint: None }
    }

    pub(super) fn notice(text: impl Into<String>, hint: &str) -> Self {
        Self { verdict: Verdict::Notice, text: text.into(), hint: Some(hint.to_owned()) }
    }
}

impl From<Error> for Finding {
    fn from(error: Error) -> Self {
        let hint = error.hint().map(str::to_owned);
        Self { verdict: Verdict::Problem, text: error.to_string(), hint }
    }
}

/// Findings, in the order in which they were made.
#[derive(Default)]
pub(super) struct Findings(Mutex<Vec<Finding>>);

impl Findings {
    pub(super) fn add(&self, finding: impl Into<Finding>) {
        lock(&self.0).push(finding.into());
    }

    pub(super) fn check(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.add(error);
        }
    }

    pub(super) fn into_vec(self) -> Vec<Finding> {
        into_inner(self.0)
    }
}

impl Listener for Findings {
    fn event(&self, event: Event) {
        match event {
            Event::Note { text } => self.add(Finding::good(text)),
            Event::Warning { text } => self.add(Finding { verdict: Verdict::Notice, text, hint: None }),
            Event::Phase { .. } | Event::Progress { .. } | Event::Lock { .. } => {}
        }
    }
}
