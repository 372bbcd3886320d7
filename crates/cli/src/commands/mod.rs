//! One file for each verb: its arguments become options, the library does the work, the result is shown.

use std::sync::Arc;

use holdfast_core::{Cancel, Error, ErrorKind, Result};
use holdfast_repo::run::RunOptions;

use crate::{
    args::{Cli, Verb, global::GlobalArgs, store::StoreArgs},
    config::Config,
    exit::Exit,
    output::Output,
    signals,
};

mod backup;
mod binlog;
mod cat;
mod check;
mod copy;
mod diff;
mod doctor;
mod expire;
mod export;
mod extract;
mod head;
mod hold;
mod import;
mod init;
mod key;
mod list;
mod load;
mod lock;
mod log;
mod ls;
mod prune;
mod repair;
mod report;
mod repository;
mod restore;
mod select;
mod show;
mod source;
mod stats;
mod version;

/// What every verb gets.
struct Context<'a> {
    global: GlobalArgs,
    store: StoreArgs,
    config: Config,
    output: &'a Arc<Output>,
    cancel: &'a Cancel,
    /// Whether the verb is to end in good order when a signal comes.
    ends_in_order: bool,
}

impl Context<'_> {
    /// How a run of a verb behaves that changes what stands.
    fn run_options(&self) -> RunOptions {
        RunOptions { interrupt: self.cancel.interrupt(), ..RunOptions::of_this_process() }
    }

    /// From here on signals are ours: no password will be asked for any more.
    fn watch_signals(&self) -> Result<()> {
        if !self.ends_in_order {
            return signals::end_at_once();
        }
        let output = Arc::clone(self.output);
        signals::end_in_order(self.cancel, move || {
            output.notice("interrupted: ending in good order; again to end at once");
        })
    }
}

/// Runs the verb.
pub(crate) fn run(cli: Cli, output: &Arc<Output>, cancel: &Cancel) -> Result<Exit> {
    if cli.global.as_of.is_some() && !cli.verb.only_reads() {
        let what = format!("--as-of is for reading: {} works on the repository as it is", cli.verb.name());
        return Err(Error::new(ErrorKind::Usage, what));
    }
    let config = Config::load(cli.global.config.as_deref())?;
    let ends_in_order = matches!(
        cli.verb,
        Verb::Backup(_)
            | Verb::Binlog(_)
            | Verb::Restore(_)
            | Verb::Check(_)
            | Verb::Repair(_)
            | Verb::Copy(_)
            | Verb::Expire(_)
            | Verb::Export(_)
            | Verb::Import(_)
            | Verb::Hold(_)
            | Verb::Release(_)
            | Verb::Prune(_)
            | Verb::Lock(_)
    );
    let context = Context { global: cli.global, store: cli.store, config, output, cancel, ends_in_order };
    dispatch(cli.verb, &context).map_err(|error| match (error.kind(), error.hint()) {
        (ErrorKind::Damaged, None) => {
            error.hinted("\"holdfast check\" says what else is damaged, and which backups are whole")
        }
        _ => error,
    })
}

fn dispatch(verb: Verb, context: &Context<'_>) -> Result<Exit> {
    match verb {
        Verb::Init(args) => init::run(&args, context),
        Verb::Backup(args) => backup::run(args, context),
        Verb::Binlog(args) => binlog::run(args, context),
        Verb::Restore(args) => restore::run(args, context),
        Verb::List(args) => list::run(&args, context),
        Verb::Stats(args) => stats::run(&args, context),
        Verb::Show(args) => show::run(&args, context),
        Verb::Ls(args) => ls::run(&args, context),
        Verb::Cat(args) => cat::run(&args, context),
        Verb::Export(args) => export::run(args, context),
        Verb::Import(args) => import::run(args, context),
        Verb::Diff(args) => diff::run(&args, context),
        Verb::Log(args) => log::run(&args, context),
        Verb::Report(args) => report::run(&args, context),
        Verb::Key(args) => key::run(&args, context),
        Verb::Doctor(args) => doctor::run(args, context),
        Verb::Check(args) => check::run(&args, context),
        Verb::Repair(args) => repair::run(&args, context),
        Verb::Copy(args) => copy::run(args, context),
        Verb::Expire(args) => expire::run(&args, context),
        Verb::Hold(args) => hold::run(&args, context),
        Verb::Release(args) => hold::run_release(&args, context),
        Verb::Prune(args) => prune::run(&args, context),
        Verb::Lock(args) => lock::run(&args, context),
        Verb::Version(_) => version::run(context),
    }
}
