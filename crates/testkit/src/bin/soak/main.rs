//! `make soak`: rounds of load, faults, backup, restore and proof on a real server, until one of
//! them shows a difference.
//!
//! All randomness comes from the seed: a single round can be repeated (`--first N --rounds 1`), though not
//! with the same interleaving.

mod fault;
mod record;
mod round;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use holdfast_testkit::{ServerKind, program};

use record::Report;
use stage::Stage;

const USAGE: &str =
    "usage: soak [--server mariadb-10.11|mariadb-11.8|mysql-9.7] [--rounds N] [--first N] [--seed S]
            [--size-mib N] [--reach local|network] [--encrypted no|yes] [--holdfast PROGRAM] [--report FILE.json]";

/// How the program reaches the server and the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// A socket and a directory.
    Local,
    /// Two connections, to the server and to a bucket, with faults of their own.
    Network,
}

/// The parsed command line.
struct Options {
    kind: ServerKind,
    rounds: u64,
    first: u64,
    seed: u64,
    size_mib: u64,
    reach: Reach,
    /// Whether the server encrypts everything that it can.
    encrypted: bool,
    program: PathBuf,
    report: Option<PathBuf>,
}

fn options() -> Result<Options> {
    let mut options = Options {
        kind: ServerKind::MariaDb1011,
        rounds: 10,
        first: 1,
        seed: 1,
        size_mib: 40,
        reach: Reach::Local,
        encrypted: false,
        program: program::built_program()?,
        report: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().context(USAGE)?;
        let wrong = || format!("{argument} {value}\n{USAGE}");
        match argument.as_str() {
            "--server" => options.kind = value.parse().map_err(anyhow::Error::msg).with_context(wrong)?,
            "--rounds" => options.rounds = value.parse().with_context(wrong)?,
            "--first" => options.first = value.parse().with_context(wrong)?,
            "--seed" => options.seed = value.parse().with_context(wrong)?,
            "--size-mib" => options.size_mib = value.parse().with_context(wrong)?,
            "--reach" => {
                options.reach = one_of(&value, [("local", Reach::Local), ("network", Reach::Network)])
                    .with_context(wrong)?
            }
            "--encrypted" => {
                options.encrypted = one_of(&value, [("no", false), ("yes", true)]).with_context(wrong)?
            }
            "--holdfast" => options.program = PathBuf::from(value),
            "--report" => options.report = Some(PathBuf::from(value)),
            _ => bail!(wrong()),
        }
    }
    Ok(options)
}

/// The meaning of a word.
fn one_of<T>(value: &str, words: [(&str, T); 2]) -> Option<T> {
    words.into_iter().find(|(word, _)| *word == value).map(|(_, meaning)| meaning)
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            record::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let mut report = Report::begin(options)?;
    let mut stage = Stage::set(options)?;
    for number in options.first..options.first + options.rounds {
        match round::take(&mut stage, options.seed, number) {
            Ok(record) => report.add(record),
            Err(error) => {
                report.failed(number, &error);
                report.write(options.report.as_deref())?;
                let kept = stage.keep();
                return Err(error.context(format!("round {number}; kept: {}", kept.display())));
            }
        }
        report.write(options.report.as_deref())?;
    }
    report.end();
    Ok(())
}
