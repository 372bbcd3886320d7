//! `holdfast-bench`: measures Holdfast alongside comparable tools. See `docs/evidence/bench.md`.
//!
//! Invariants: contestants that are compared alternate within one run, on the same files and the same
//! filesystem; every timed operation is a command of the real program, recorded in the results; anything that
//! could not be measured is listed with the reason.

mod args;
mod dataset;
mod drain;
mod goals;
mod interrupt;
mod machine;
mod page_cache;
mod pages;
mod process;
mod progress;
mod report;
mod results;
mod run;
mod scenario;
mod scratch;
mod source;
mod stats;
mod suite;
mod tool;
mod transfer;
mod writers;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use args::{Cli, Command};
use suite::Suite;

fn main() -> ExitCode {
    let result: Result<bool> = match Cli::parse().command {
        Command::Physical(args) => args.resolve(Suite::Physical).and_then(run::measure),
        Command::Logical(args) => args.resolve(Suite::Logical).and_then(run::measure),
        Command::Repository(args) => args.resolve(Suite::Repository).and_then(run::measure),
        Command::Binlog(args) => args.resolve(Suite::Binlog).and_then(run::measure),
        Command::Put(args) => transfer::put(&args).map(|()| true),
        Command::Get(args) => transfer::get(&args).map(|()| true),
        Command::Drain(args) => drain::run(&args).map(|()| true),
        Command::Report { file } => report::again(&file).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        // Everything that could be measured is in the report.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            progress::print_error(&error);
            ExitCode::FAILURE
        }
    }
}
