//! What every verb gets, and how it behaves when it is interrupted.

use std::sync::Arc;

use holdfast_core::{Cancel, Error, ErrorKind, Result};
use holdfast_repo::log::run::RunOptions;

use crate::{
    args::{global::GlobalArgs, store::StoreArgs},
    config::Config,
    output::Output,
    signals,
};

/// What every verb gets.
pub(crate) struct Context<'a> {
    pub(crate) global: GlobalArgs,
    pub(crate) store: StoreArgs,
    pub(crate) config: Config,
    pub(crate) output: &'a Arc<Output>,
    pub(crate) cancel: &'a Cancel,
    /// Whether the verb is to end in good order when a signal comes.
    pub(crate) ends_in_order: bool,
}

impl Context<'_> {
    /// How a run of a verb behaves that changes what stands.
    pub(crate) fn run_options(&self) -> RunOptions {
        RunOptions { interrupt: self.cancel.interrupt(), ..RunOptions::of_this_process() }
    }

    /// What a verb's failure is called: once a signal has come, that is what ended it.
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

    /// From here on signals are ours: no password will be asked for any more.
    pub(crate) fn watch_signals(&self) -> Result<()> {
        if !self.ends_in_order {
            return signals::end_at_once();
        }
        let output = Arc::clone(self.output);
        signals::end_in_order(self.cancel, move || {
            output.notice("interrupted: ending in good order; again to end at once");
        })
    }
}
