//! Commands of the user's that run before and after a backup.

use clap::Args;
use serde::Deserialize;

use super::units::Span;

/// What runs around a backup.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[command(next_help_heading = "Hooks")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct HookArgs {
    /// Command that /bin/sh runs before the backup begins; if it fails, there is no backup
    /// (docs/reference/configuration.md)
    #[arg(long, value_name = "COMMAND")]
    pub(crate) hook_before: Option<String>,

    /// Command that /bin/sh runs when the backup has ended, however it did, and the hook before it as well; the
    /// variables HOLDFAST_HOOK_* tell how (docs/reference/configuration.md)
    #[arg(long, value_name = "COMMAND")]
    pub(crate) hook_after: Option<String>,

    /// Longest time that a hook may take; then it is ended, and has failed [default: 10m]
    #[arg(long, value_name = "TIME")]
    pub(crate) hook_timeout: Option<Span>,
}

impl HookArgs {
    /// What was typed, and for the rest what the file says.
    pub(crate) fn or(self, file: Self) -> Self {
        Self {
            hook_before: self.hook_before.or(file.hook_before),
            hook_after: self.hook_after.or(file.hook_after),
            hook_timeout: self.hook_timeout.or(file.hook_timeout),
        }
    }
}
