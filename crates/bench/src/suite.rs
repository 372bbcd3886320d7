//! The sets of questions: one for each way to back up, and one for where backups are kept.

use serde::{Deserialize, Serialize};

use crate::scenario::{Scenario, logical, physical, repository};

/// What is measured together, and reported on one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Suite {
    /// Pages and redo.
    #[default]
    Physical,
    /// Rows and statements.
    Logical,
    /// Repositories.
    Repository,
}

impl Suite {
    /// For files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Suite::Physical => "physical",
            Suite::Logical => "logical",
            Suite::Repository => "repository",
        }
    }

    /// In the order in which they run: those that leave the data as they are come first.
    pub(crate) fn scenarios(self) -> Vec<Box<dyn Scenario>> {
        match self {
            Suite::Physical => physical(),
            Suite::Logical => logical(),
            Suite::Repository => repository(),
        }
    }

    /// Those with the given names; all where none is given.
    pub(crate) fn selected(self, names: &[String]) -> Vec<Box<dyn Scenario>> {
        let mut scenarios = self.scenarios();
        scenarios.retain(|scenario| names.is_empty() || names.iter().any(|name| name == scenario.name()));
        scenarios
    }
}
