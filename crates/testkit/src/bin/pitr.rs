//! `make pitr`: recovers a server to random moments of a run in which every part was killed at some point,
//! and compares the result with a model.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what this program is for")]

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use holdfast_testkit::pitr::{self, Options};
use holdfast_testkit::{ServerKind, program};

const USAGE: &str = "usage: pitr [--server mariadb-10.11|mariadb-11.8|mysql-9.7] [--targets N] [--seed S]
            [--disorder SECONDS] [--holdfast PROGRAM] [--report FILE.json]";

fn run() -> Result<()> {
    let mut options = Options {
        kind: ServerKind::MariaDb1011,
        targets: 50,
        seed: 1,
        disorder: Duration::from_secs(60),
        program: program::built_program()?,
    };
    let mut report: Option<PathBuf> = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().context(USAGE)?;
        match argument.as_str() {
            "--server" => options.kind = value.parse().map_err(anyhow::Error::msg).context(USAGE)?,
            "--targets" => options.targets = value.parse().context(USAGE)?,
            "--seed" => options.seed = value.parse().context(USAGE)?,
            "--disorder" => options.disorder = Duration::from_secs(value.parse().context(USAGE)?),
            "--holdfast" => options.program = PathBuf::from(value),
            "--report" => report = Some(PathBuf::from(value)),
            _ => bail!(USAGE),
        }
    }
    let shown = pitr::prove(&options, &mut |line| println!("{line}"))?;
    println!("{shown:#}");
    if let Some(path) = report {
        fs::write(&path, format!("{shown:#}\n")).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nthe proof failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
