//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use holdfast_testkit::ServerKind;

use crate::drain::DrainArgs;
use crate::suite::Suite;
use crate::transfer::{GetArgs, PutArgs};

/// Measures Holdfast beside the tools that it is compared with, on real servers.
#[derive(Debug, Parser)]
#[command(name = "holdfast-bench", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure hot physical backup and restore
    Physical(RunArgs),
    /// Measure logical backup and load
    Logical(RunArgs),
    /// Measure the repository beside others, and in object storage
    Repository(RunArgs),
    /// Measure an archiver of binlogs beside writers
    Binlog(RunArgs),
    /// Make table and plot again from a JSON file of results
    Report {
        /// For example bench/results/physical.json
        file: PathBuf,
    },
    /// Read all rows of a server and keep none: a contestant
    #[command(hide = true)]
    Drain(DrainArgs),
    /// Send a directory to object storage: a contestant
    #[command(hide = true)]
    Put(PutArgs),
    /// Read what is in object storage and keep nothing: a contestant
    #[command(hide = true)]
    Get(GetArgs),
}

/// What is measured.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Tables on each server, about [default: 3500 for physical, 200 for binlog, else 1500]
    #[arg(long, value_name = "MIB")]
    size_mib: Option<u64>,

    /// How often each contestant runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// A smoke test with 200 MiB and one run, whose figures mean nothing
    #[arg(long, conflicts_with_all = ["size_mib", "runs"])]
    quick: bool,

    /// Scenarios [default: all of them]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,

    /// Contestants, as named in the JSON: floor, holdfast, mariadb-backup-zstd … [default: all of them]
    #[arg(long = "tool", value_name = "NAMES", value_delimiter = ',')]
    tools: Vec<String>,

    /// Servers
    #[arg(
        long = "server",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "mariadb-10.11,mysql-9.7"
    )]
    servers: Vec<ServerKind>,

    /// Name of the files in --out-dir [default: the suite's; quick with --quick]
    #[arg(long)]
    name: Option<String>,

    /// Where the results go
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    out_dir: PathBuf,

    /// Where data are kept and everything is written, on the disk to be measured [default: ~/.cache/holdfast/bench]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,

    /// The holdfast program [default: beside this one]
    #[arg(long, value_name = "PROGRAM")]
    holdfast: Option<PathBuf>,
}

/// The parsed command line with all defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) suite: Suite,
    pub(crate) size_mib: u64,
    pub(crate) rounds: u32,
    pub(crate) quick: bool,
    pub(crate) only: Vec<String>,
    pub(crate) tools: Vec<String>,
    pub(crate) servers: Vec<ServerKind>,
    pub(crate) name: String,
    pub(crate) out_dir: PathBuf,
    pub(crate) work_dir: Option<PathBuf>,
    pub(crate) holdfast: PathBuf,
}

impl RunArgs {
    const QUICK_SIZE_MIB: u64 = 200;

    /// Fills in the defaults.
    pub(crate) fn resolve(self, suite: Suite) -> anyhow::Result<Options> {
        let holdfast = match self.holdfast {
            Some(program) => std::path::absolute(program)?,
            None => std::env::current_exe()?.with_file_name("holdfast"),
        };
        let known: Vec<&str> = suite.scenarios().iter().map(|scenario| scenario.name()).collect();
        if let Some(unknown) = self.only.iter().find(|name| !known.contains(&name.as_str())) {
            anyhow::bail!("no scenario {unknown}: there are {}", known.join(", "));
        }
        let size_mib = self.size_mib.unwrap_or(match suite {
            Suite::Physical => 3500,
            Suite::Logical | Suite::Repository => 1500,
            Suite::Binlog => RunArgs::QUICK_SIZE_MIB,
        });
        let name = if self.quick { "quick" } else { suite.name() };
        Ok(Options {
            suite,
            size_mib: if self.quick { RunArgs::QUICK_SIZE_MIB } else { size_mib },
            rounds: if self.quick { 1 } else { self.runs },
            quick: self.quick,
            only: self.only,
            tools: self.tools,
            servers: self.servers,
            name: self.name.unwrap_or_else(|| name.to_owned()),
            out_dir: self.out_dir,
            work_dir: self.work_dir,
            holdfast,
        })
    }
}

impl Options {
    /// The size of the data on one server, for forecasts only.
    pub(crate) fn data_gb(&self) -> f64 {
        const SYSTEM_TABLESPACES_MIB: u64 = 100;
        (self.size_mib + SYSTEM_TABLESPACES_MIB) as f64 * f64::from(1 << 20) / 1e9
    }
}
