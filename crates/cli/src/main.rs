//! The `holdfast` program: turns what was typed into options of `holdfast-core` and `holdfast-repo`, runs one verb,
//! says what came of it.
//!
//! `args` is what was typed, `config` what the file says, `commands` has one file for each verb, `output` is the only
//! part that prints, `exit` holds the codes.

// What stands above an option is its help, brackets and all.
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

/// A core file would have the keys of the repository in it.
fn leave_no_core() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _as_it_was = setrlimit(Resource::Core, none);
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
