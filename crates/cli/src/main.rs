//! The `holdfast` program: turns the command line into options of `holdfast-core` and `holdfast-repo`, runs
//! one verb, and reports the result.
//!
//! `args` defines the command line, `config` reads the configuration file, `commands` has one file per verb,
//! `output` is the only part that prints, and `exit` holds the exit codes.

// Doc comments of options are their help texts, brackets included.
#![allow(rustdoc::broken_intra_doc_links)]

use std::{process::ExitCode, sync::Arc};

use holdfast_core::Cancel;
use rustix::process::{Resource, Rlimit, setrlimit};

mod args;
mod commands;
mod config;
mod context;
mod exit;
mod hooks;
mod output;
mod password;
mod reach;
mod seen;
mod signals;

use exit::Exit;
use output::{Output, Verbosity};

fn main() -> ExitCode {
    holdfast_core::usage::give_memory_back();
    leave_no_core();
    let typed: Vec<_> = std::env::args_os().collect();
    let cli = match args::parse(&typed) {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error, typed.iter().any(|word| word == "--json")).into(),
    };
    let verbosity = match (cli.global.quiet, cli.global.verbose) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ => Verbosity::Normal,
    };
    let output = Arc::new(Output::new(cli.verb.name(), cli.global.json, verbosity));
    let only_prints = cli.verb.only_prints();
    let cancel = Cancel::default();
    let done = commands::run(cli, &output, &cancel);
    done.and_then(|exit| output.lost(only_prints).unwrap_or(Ok(exit)))
        .unwrap_or_else(|error| {
            output.error(&error);
            error.kind().into()
        })
        .into()
}

/// Disables core dumps, which would contain the repository's keys.
fn leave_no_core() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _as_it_was = setrlimit(Resource::Core, none);
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
