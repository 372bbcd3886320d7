//! Output of a soak test: a line per round, and a report of all rounds.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what this module is for")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::fault::Fault;
use super::{Options, Reach};

/// The results of one round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) number: u64,
    pub(crate) fault: &'static str,
    /// Whether the fault ended the backup, which was then repeated.
    pub(crate) struck: bool,
    pub(crate) full: bool,
    /// Output of backups that failed without a fault.
    pub(crate) refused: Vec<String>,
    pub(crate) transactions: u64,
    pub(crate) ddl: u64,
    pub(crate) imports: u64,
    /// Backups that had to be refused because of an import.
    pub(crate) imports_refused: u64,
    pub(crate) longest_commit_ms: u64,
    /// The longest time that a small statement took that changes a definition.
    pub(crate) longest_definition_ms: u64,
    /// Time for which the backup blocked DDL, over all its attempts.
    pub(crate) definitions_blocked_ms: u64,
    pub(crate) tables_checked: usize,
    pub(crate) tables_equal: usize,
    pub(crate) seconds: f64,
}

/// The results of all rounds so far.
pub(crate) struct Report {
    server: String,
    version: String,
    seed: u64,
    size_mib: u64,
    reach: Reach,
    encrypted: bool,
    begun: Instant,
    rounds: Vec<Record>,
    failure: Option<String>,
}

impl Report {
    pub(crate) fn begin(options: &Options) -> Result<Report> {
        let Options { kind, seed, size_mib, reach, encrypted, .. } = *options;
        let version = kind.version()?;
        let beyond = if reach == Reach::Network { ", through a network" } else { "" };
        let with = if encrypted { ", encrypted" } else { "" };
        println!("soak of {kind} ({version}){with}{beyond}, seed {seed}");
        Ok(Report {
            server: kind.name().to_owned(),
            version,
            seed,
            size_mib,
            reach,
            encrypted,
            begun: Instant::now(),
            rounds: Vec::new(),
            failure: None,
        })
    }

    pub(crate) fn add(&mut self, record: Record) {
        let Record { number, fault, transactions, ddl, tables_equal, imports, seconds, .. } = &record;
        let Record { longest_commit_ms, longest_definition_ms, definitions_blocked_ms, .. } = &record;
        let refused = match record.imports_refused {
            0 => "",
            _ => " (a backup was refused because of one, as it must be)",
        };
        let kind = if record.full { "full" } else { "incremental" };
        let struck = if record.struck { " (failed, taken again)" } else { "" };
        println!(
            "round {number:>4}  {seconds:>5.1} s  {kind:<11}  {tables_equal} tables equal after {transactions} \
             transactions, {ddl} definitions and {imports} imports{refused}; longest commit {longest_commit_ms} ms and definition {longest_definition_ms} ms, definitions blocked {definitions_blocked_ms} ms; fault: {fault}{struck}"
        );
        for output in &record.refused {
            println!("  a backup failed without a fault: {}", output.trim().replace('\n', " | "));
        }
        self.rounds.push(record);
    }

    pub(crate) fn failed(&mut self, number: u64, error: &anyhow::Error) {
        self.failure = Some(format!("round {number}: {error:#}"));
    }

    /// Writes the report as JSON. Called after each round, since an interrupted soak has results as well.
    pub(crate) fn write(&self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let sum = |of: fn(&Record) -> u64| self.rounds.iter().map(of).sum::<u64>();
        let mut faults: BTreeMap<&str, [u64; 2]> =
            Fault::ALL.iter().map(|fault| (fault.name(), [0, 0])).collect();
        for round in &self.rounds {
            let counts = faults.entry(round.fault).or_default();
            counts[0] += 1;
            counts[1] += u64::from(round.struck);
        }
        let longest = |of: fn(&Record) -> u64| {
            let mut all: Vec<u64> = self.rounds.iter().map(of).collect();
            all.sort_unstable();
            json!({ "median": all.get(all.len() / 2), "max": all.last() })
        };
        let value = json!({
            "server": self.server,
            "server_version": self.version,
            "seed": self.seed,
            "size_mib": self.size_mib,
            "through_a_network": self.reach == Reach::Network,
            "encrypted": self.encrypted,
            "rounds": self.rounds.len(),
            "first_round": self.rounds.first().map(|round| round.number),
            "full": sum(|round| u64::from(round.full)),
            "seconds": self.begun.elapsed().as_secs_f64().round(),
            "tables_checked_by_the_server": sum(|round| round.tables_checked as u64),
            "tables_compared": sum(|round| round.tables_equal as u64),
            "transactions": sum(|round| round.transactions),
            "definitions_changed": sum(|round| round.ddl),
            "tablespaces_imported": sum(|round| round.imports),
            "backups_refused_because_of_an_import": sum(|round| round.imports_refused),
            "longest_commit_ms": longest(|round| round.longest_commit_ms),
            "longest_definition_ms": longest(|round| round.longest_definition_ms),
            "definitions_blocked_ms": longest(|round| round.definitions_blocked_ms),
            "backups_failed_without_a_fault": sum(|round| round.refused.len() as u64),
            "faults": faults.iter().map(|(name, [drawn, struck])| {
                json!({ "fault": name, "rounds": drawn, "ended_the_backup": struck })
            }).collect::<Vec<_>>(),
            "failure": self.failure,
        });
        fs::write(path, format!("{value:#}\n"))?;
        Ok(())
    }

    pub(crate) fn end(&self) {
        let blocked_ms =
            self.rounds.iter().map(|round| round.definitions_blocked_ms).max().unwrap_or_default();
        let tables: usize = self.rounds.iter().map(|round| round.tables_equal).sum();
        println!(
            "{} rounds in {:.0} minutes: {tables} comparisons of tables, 0 differences; definitions blocked for {blocked_ms} ms at most",
            self.rounds.len(),
            self.begun.elapsed().as_secs_f64() / 60.0
        );
    }
}

pub(crate) fn complain(error: &anyhow::Error) {
    eprintln!("\nthe soak failed: {error:#}");
}
