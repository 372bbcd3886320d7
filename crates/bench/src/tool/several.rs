//! Five backups of one server, each with one connection, as people with one job per database take them.

use std::path::Path;

use anyhow::Result;
use holdfast_testkit::ServerKind;

use super::{Holdfast, Job, Tool, Verb};
use crate::machine::ToolVersion;
use crate::source::Source;

/// Backs up the same rows five times, under five names in one repository.
pub(crate) struct FiveBackups {
    /// The name of its backups includes `$n`.
    pub(crate) holdfast: Holdfast,
    pub(crate) at_once: bool,
}

impl Tool for FiveBackups {
    fn id(&self) -> &'static str {
        if self.at_once { "five-at-once" } else { "five-in-turn" }
    }

    fn label(&self) -> &'static str {
        if self.at_once { "holdfast, five at once" } else { "holdfast, five in turn" }
    }

    fn missing(&self, kind: ServerKind) -> Option<String> {
        self.holdfast.missing(kind)
    }

    fn versions(&self, kind: ServerKind) -> Vec<ToolVersion> {
        self.holdfast.versions(kind)
    }

    fn expected_s_per_gb(&self, verb: Verb) -> f64 {
        5.0 * self.holdfast.expected_s_per_gb(verb)
    }

    fn backup(&self, source: &Source, dir: &Path) -> Result<Job> {
        let job = self.holdfast.backup(source, dir)?;
        let timed = match self.at_once {
            true => job.timed.before("running=()\nfor n in 1 2 3 4 5; do\n").after(
                " --parallel 1 &\nrunning+=($!)\ndone\nfor one in \"${running[@]}\"; do wait \"$one\"; done",
            ),
            false => job.timed.before("for n in 1 2 3 4 5; do\n").after(" --parallel 1\ndone"),
        };
        Ok(Job { timed, ..job })
    }
}
