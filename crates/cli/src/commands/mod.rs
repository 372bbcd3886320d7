//! One file per verb: it turns arguments into options, calls the library, and shows the result.

use std::sync::Arc;

use holdfast_core::{Cancel, Error, ErrorKind, Result};

use crate::{
    args::{Cli, Verb},
    config::Config,
    context::{Context, search_path},
    exit::Exit,
    output::Output,
    reach::{key_errors, repository, select, server},
    seen::SeenRepositories,
};

mod backup;
mod backup_options;
mod binlog;
mod cat;
mod check;
mod copy;
mod diff;
mod doctor;
mod expire;
mod export;
mod extract;
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
mod recovery;
mod repair;
mod report;
mod restore;
mod show;
mod stats;
mod version;

/// Runs the verb.
pub(crate) fn run(cli: Cli, output: &Arc<Output>, cancel: &Cancel) -> Result<Exit> {
    if cli.global.as_of.is_some() && !cli.verb.only_reads() {
        let what = format!("--as-of is for reading only: {} works on the current state", cli.verb.name());
        return Err(Error::new(ErrorKind::Usage, what));
    }
    let config = Config::load(cli.global.config.as_deref())?;
    let ends_in_order = cli.verb.ends_in_order();
    let seen = SeenRepositories::default();
    let context =
        Context { global: cli.global, store: cli.store, config, output, cancel, ends_in_order, seen };
    let done = dispatch(cli.verb, &context);
    context.seen.save();
    done.map_err(|error| {
        let error = match (error.kind(), error.hint()) {
            (ErrorKind::Damaged, None) => {
                error.hinted("\"holdfast check\" says what else is damaged, and which backups are whole")
            }
            _ => error,
        };
        context.interrupted_or(error)
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
