//! Sets of scenarios: one for each kind of backup, one for repositories, and one for binlogs.

use serde::{Deserialize, Serialize};

use crate::scenario::{Scenario, binlog, logical, physical, repository};

/// Scenarios that are measured together and reported on one page.
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
    /// Archives of binlogs.
    Binlog,
}

impl Suite {
    /// The name in file names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Suite::Physical => "physical",
            Suite::Logical => "logical",
            Suite::Repository => "repository",
            Suite::Binlog => "binlog",
        }
    }

    /// The scenarios in the order in which they run; those that do not change the data come first.
    pub(crate) fn scenarios(self) -> Vec<Box<dyn Scenario>> {
        match self {
            Suite::Physical => physical(),
            Suite::Logical => logical(),
            Suite::Repository => repository(),
            Suite::Binlog => binlog(),
        }
    }

    /// The scenarios with the given names; all of them if no names are given.
    pub(crate) fn selected(self, names: &[String]) -> Vec<Box<dyn Scenario>> {
        let mut scenarios = self.scenarios();
        scenarios.retain(|scenario| names.is_empty() || names.iter().any(|name| name == scenario.name()));
        scenarios
    }
}
