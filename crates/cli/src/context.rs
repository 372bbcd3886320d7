//! The context that every verb gets, and its handling of interrupts.

use std::{env, path::PathBuf, sync::Arc};

use holdfast_core::{Cancel, Error, ErrorKind, Result};
use holdfast_repo::{Repo, log::run::RunOptions};

use crate::{
    args::{global::GlobalArgs, store::StoreArgs},
    config::{Config, usual_cache_dir},
    output::Output,
    seen::SeenRepositories,
    signals,
};

/// The directories in which the user's shell looks for programs.
pub(crate) fn search_path() -> Vec<PathBuf> {
    env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default()
}

/// Shared state that every verb gets.
pub(crate) struct Context<'a> {
    pub(crate) global: GlobalArgs,
    pub(crate) store: StoreArgs,
    pub(crate) config: Config,
    pub(crate) output: &'a Arc<Output>,
    pub(crate) cancel: &'a Cancel,
    /// Whether the verb shuts down in good order when a signal arrives.
    pub(crate) ends_in_order: bool,
    /// What was seen of the repositories that were opened.
    pub(crate) seen: SeenRepositories,
}

impl Context<'_> {
    /// The repository, compared with what this host has seen of it before.
    pub(crate) fn witnessed(&self, repo: Repo) -> Repo {
        let cache_dir = self.config.resources.cache_dir.clone().or_else(usual_cache_dir);
        match cache_dir {
            Some(cache_dir) => self.seen.witness(&cache_dir, repo, self.output),
            None => repo,
        }
    }

    /// Run options for a verb that changes the list of backups.
    pub(crate) fn run_options(&self) -> RunOptions {
        RunOptions { interrupt: self.cancel.interrupt(), ..RunOptions::of_this_process() }
    }

    /// Turns a failure into `Interrupted` if a signal has arrived: the signal is what ended the verb.
    pub(crate) fn interrupted_or(&self, error: Error) -> Error {
        if !self.cancel.is_cancelled() || error.kind() == ErrorKind::Interrupted {
            return error;
        }
        let hint = error.hint().map(str::to_owned);
        let interrupted = Error::new(ErrorKind::Interrupted, "interrupted").caused_by(error);
        match hint {
            Some(hint) => interrupted.hinted(hint),
            None => interrupted,
        }
    }

    /// Takes over signal handling. No password is asked for after this.
    pub(crate) fn watch_signals(&self) -> Result<()> {
        if !self.ends_in_order {
            return signals::end_at_once();
        }
        let output = Arc::clone(self.output);
        signals::end_in_order(self.cancel, move || {
            output.interrupt();
            output.notice("interrupted: ending cleanly; interrupt again to end at once");
        })
    }
}
