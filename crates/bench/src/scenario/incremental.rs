//! The next backup after one page in a hundred has changed, with everything else equal.
//!
//! The change is constructed: one row in every hundredth leaf page of the clustered indexes gets another
//! value of the same width in a column without an index.
//! Random rows would not do: changing a hundredth of them touches nearly half of the pages.
//! The number of pages that really changed is counted by comparing all pages before and after.

use std::fmt::Write;

use anyhow::{Context, Result};
use holdfast_pipe::Compression;
use holdfast_testkit::{Server, ServerKind};

use super::{Scenario, expected_s, group};
use crate::args::Options;
use crate::pages::{self, PAGE_BYTES, PageHashes};
use crate::results::{Cache, Group, Load, Unit};
use crate::run::{Bench, Turn, order};
use crate::source::Source;
use crate::tool::{Holdfast, MariadbBackup, Output, Placing, ReadOnce, Restic, Rustic, Tool, Verb};

/// One page in this many changes.
const PAGES_PER_CHANGE: u64 = 100;
const ROWS_PER_STATEMENT: usize = 1000;

/// The large tables, with a change for each that moves no row and touches no index.
pub(super) const CHANGES: [(&str, &str); 3] = [
    ("customers", "rating = rating + 1"),
    ("orders", "total = total + 0.01"),
    ("events", "kind = REVERSE(kind)"),
];

pub(crate) struct Incremental {
    name: &'static str,
    tools: fn(&Options, ServerKind) -> Vec<Box<dyn Tool>>,
}

impl Incremental {
    /// Compared with the server's own tool, and with reading all pages.
    pub(crate) fn pages() -> Incremental {
        Incremental { name: "incremental", tools: beside_server_tools }
    }

    /// Compared with other repositories.
    pub(crate) fn repositories() -> Incremental {
        Incremental { name: "again", tools: beside_repositories }
    }
}

fn beside_server_tools(options: &Options, kind: ServerKind) -> Vec<Box<dyn Tool>> {
    let mut tools: Vec<Box<dyn Tool>> =
        vec![Box::new(ReadOnce), Box::new(Holdfast::defaults(&options.holdfast))];
    if kind.is_mariadb() {
        tools.push(Box::new(MariadbBackup { output: Output::Directory, placing: Placing::Copy }));
    }
    tools
}

fn beside_repositories(options: &Options, _kind: ServerKind) -> Vec<Box<dyn Tool>> {
    vec![Box::new(Holdfast::defaults(&options.holdfast)), Box::new(Restic), Box::new(Rustic)]
}

impl Scenario for Incremental {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        "next backup with 1 % of the pages changed"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        let tools = (self.tools)(options, kind);
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        let bases: f64 = tools.iter().map(|tool| tool.expected_s_per_gb(Verb::Backup)).sum();
        const RESTART_S: f64 = 6.0;
        const TWO_SCANS_S_PER_GB: f64 = 4.0;
        expected_s(&tools, Verb::Incremental, kind, Cache::Cold, options)
            + (bases + TWO_SCANS_S_PER_GB) * options.data_gb()
            + RESTART_S * f64::from(options.rounds)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Cold, Load::Idle);
        let tools = (self.tools)(&bench.options, source.kind());
        let tools: Vec<&dyn Tool> = tools.iter().map(AsRef::as_ref).collect();
        let tools = bench.present(&group, source.kind(), &tools);

        let mut bases = Vec::new();
        for &tool in &tools {
            let base = bench.scratch.dir("base-")?;
            let made = tool.backup(source, base.path()).and_then(|job| bench.untimed(&job));
            if let Err(error) = made {
                let turn = Turn { group: &group, tool, round: 0, load: None };
                bench.give_up(&turn, &error.context("make the base backup"));
            }
            bases.push(base);
        }
        source.stop()?;
        let files = source.data_files()?;
        let hashes = PageHashes::take(&files)?;
        let pages_total = pages::total_bytes(&files)? / PAGE_BYTES as u64;
        source.run()?;
        let statements = statements(&source.server, pages_total)?;

        for round in 0..bench.options.rounds {
            // Use the same rows each time: for every tool, one page in a hundred differs from its base.
            source.server.exec_all(&statements)?;
            // A restart writes every page and leaves no redo, so that only pages are compared.
            source.stop()?;
            if round == 0 {
                count(bench, &group, source, &hashes)?;
            }
            source.run()?;
            for at in order(tools.len(), round) {
                let dir = bench.scratch.dir("incremental-")?;
                let turn = Turn { group: &group, tool: tools[at], round, load: None };
                bench.measure(source, &turn, tools[at].incremental(source, bases[at].path(), dir.path()))?;
            }
        }
        Ok(())
    }
}

fn count(bench: &mut Bench, group: &Group, source: &Source, hashes: &PageHashes) -> Result<()> {
    let changes = hashes.changes(&source.data_files()?, Compression::default())?;
    for (id, label, unit, value) in [
        ("pages", "pages of all files", Unit::Pages, changes.pages),
        ("pages-changed", "pages that have changed", Unit::Pages, changes.pages_changed),
        (
            "changed-compressed",
            "the changed pages, gathered and compressed by zstd:1",
            Unit::Bytes,
            changes.compressed_bytes,
        ),
    ] {
        bench.figure(group, id, label, unit, vec![value as f64]);
    }
    Ok(())
}

/// Updates that change a hundredth of `pages_total`, spread evenly over the leaf pages of the tables.
fn statements(server: &Server, pages_total: u64) -> Result<Vec<String>> {
    let leaves_query = |table: &str| {
        format!(
            "SELECT stat_value FROM mysql.innodb_index_stats WHERE database_name = 'shop' AND table_name = '{table}'
             AND index_name = 'PRIMARY' AND stat_name = 'n_leaf_pages'"
        )
    };
    let mut leaves_total: u64 = 0;
    for (table, _) in CHANGES {
        leaves_total += server.value::<u64>(leaves_query(table))?;
    }
    let changes = (pages_total / PAGES_PER_CHANGE).max(1);
    let leaves_per_change = leaves_total as f64 / changes as f64;
    let mut statements = Vec::new();
    for (table, set) in CHANGES {
        let leaves: u64 = server.value(leaves_query(table))?;
        let rows: u64 = server.value(format!("SELECT MAX(id) FROM shop.{table}"))?;
        let rows_per_change = (rows as f64 / leaves.max(1) as f64 * leaves_per_change).max(1.0);
        let ids: Vec<u64> = (0..)
            .map(|number| (f64::from(number) * rows_per_change) as u64 + 1)
            .take_while(|&id| id <= rows)
            .collect();
        statements.extend(updates(table, set, &ids)?);
    }
    Ok(statements)
}

/// Updates of single rows, batched into statements.
pub(super) fn updates(table: &str, set: &str, ids: &[u64]) -> Result<Vec<String>> {
    let mut statements = Vec::new();
    for ids in ids.chunks(ROWS_PER_STATEMENT) {
        let mut statement = format!("UPDATE shop.{table} SET {set} WHERE id IN (");
        for (at, id) in ids.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(statement, "{comma}{id}").context("write to a string")?;
        }
        statement.push(')');
        statements.push(statement);
    }
    Ok(statements)
}
