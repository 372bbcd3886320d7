//! The Markdown report: goals first, then every group with all its measurements, then caveats and commands.

use std::fmt::Write;

use super::{megabytes, number, spread};
use crate::goals::Outcome;
use crate::results::{Group, Results, Sample, Series};
use crate::stats::{Spread, percentile};
use crate::suite::Suite;

/// Facts that readers must know before comparing.
const CAVEATS: &str = "\
- `cp` of a running server's files is a floor, not a backup. It also copies redo log and binlog, which Holdfast and the others \
copy in part.
- Holdfast syncs its own files and directories; the others are followed by `sync -f`, which also writes back what else is dirty \
on that filesystem (under writes: the server's).
- The server and Holdfast read and write data files past the page cache (`O_DIRECT`), so a warm cache helps `cp` and \
mariadb-backup and not Holdfast.
- mariadb-backup neither encrypts nor keeps a repository; compressed, it writes one stream that cannot be restored in part.
- mysqldump is logical: its restore, which takes many times as long, is not measured.
- `CLONE LOCAL` works inside the server: its cost is in the column of the server's CPU.
- \"Largest process\" is the peak of the largest process of a command, not the sum of a pipe; a restore includes the server that \
recovers. What is smaller than the measuring program when it starts a command (some MB) shows that program's size.
- \"Rest of the machine\" is the processor time of everything else: the kernel's write-back, and neighbours on a shared machine.
";

/// Caveats about logical backups.
const LOGICAL_CAVEATS: &str = "\
- The floor reads the rows by the same SELECTs and looks at none of them; it is no backup.
- mysqldump reads over one connection, whatever the machine has; its output is loaded by one connection, too.
- mysqldump and mydumper neither encrypt nor keep a repository, nor checksums of what they read. Holdfast has all of that in its \
times, unless it says plain.
- Holdfast's load reads everything back and compares it with the backup before it says that it succeeded; the others do not.
- myloader loads past the binlog by itself, Holdfast where it is told to (`--without-binlog`); what `mysql` loads is in it.
- mysqldump is mariadb-dump on MariaDB.
- A dump keeps the server busy, whose processor time is in a column of its own: with as many connections as processors, server \
and tool share them.
";

/// Caveats about repositories.
const REPOSITORY_CAVEATS: &str = "\
- restic and rustic keep files: what they copy from a running server cannot be restored. The server is idle here, and its files complete.
- restic's `auto` is zstd at its library's default level, which is that of level 3; rustic's default is, too.
- Object storage runs on the same machine and the same disk: its processor time is in the column of the rest of the machine.
";

/// Caveats about archives of binlogs.
const BINLOG_CAVEATS: &str = "\
- Server, clients, archiver and object storage share the processors and one disk, which each commit of the server waits for, too.
- mysqlbinlog syncs nothing, and cannot acknowledge a commit. Holdfast compresses, encrypts and syncs.
- \"From arrival to durable\" is the archiver's own report. The commits that wait for it were timed by their client.
- The prober commits one row after the other. Commits that wait are fewer, and so is what it adds to the load.
";

/// The complete page.
pub(crate) fn page(results: &Results) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    page.push_str(&head(results));
    page.push_str(&format!("\n## Goals\n\n{}", goals(results)));
    writeln!(page, "\n![wall times and longest commits]({}.svg)", results.name).ok();
    for group in results.groups() {
        page.push_str(&table(results, &group));
    }
    page.push_str(&figures(results));
    page.push_str(&failures(results));
    let caveats = match results.suite {
        Suite::Physical => CAVEATS,
        Suite::Logical => LOGICAL_CAVEATS,
        Suite::Repository => REPOSITORY_CAVEATS,
        Suite::Binlog => BINLOG_CAVEATS,
    };
    writeln!(page, "\n## What is unfair about this\n\n{caveats}").ok();
    page.push_str(&commands(results));
    page
}

fn head(results: &Results) -> String {
    let machine = &results.machine;
    let mut head = format!("# Results: {}\n\n", results.name);
    if results.quick {
        head.push_str("**A smoke test (`--quick`): these figures mean nothing.**\n\n");
    }
    writeln!(
        head,
        "{}, {:.0} minutes, {} runs of each contestant in turns. Made from `{}.json` by `holdfast-bench report`; how it is \
         measured is in `docs/evidence/bench.md`.\n",
        results.begun_at,
        results.elapsed_s / 60.0,
        results.rounds,
        results.name
    )
    .ok();
    writeln!(
        head,
        "- Machine: {}, {} cores, {:.1} GB RAM, {}, kernel {}, {}; load {} at the start.",
        machine.cpu,
        machine.cores,
        machine.memory_bytes as f64 / 1e9,
        machine.system,
        machine.kernel,
        machine.filesystem,
        machine.load_at_start
    )
    .ok();
    for data in &results.data {
        let scenario = data.scenario.as_ref().map(|name| format!(", for {name}")).unwrap_or_default();
        writeln!(
            head,
            "- {} ({}){scenario}: data directory {}, of which {} are data files. {}.",
            data.server,
            data.server_version,
            megabytes(data.datadir_bytes as f64),
            megabytes(data.data_file_bytes as f64),
            data.description
        )
        .ok();
    }
    for tool in &results.tools {
        writeln!(head, "- {}: {}", tool.name, tool.version).ok();
    }
    head
}

/// Scenarios that ended early.
fn failures(results: &Results) -> String {
    let lines =
        results.failures.iter().map(|failure| format!("- {}\n", one_line(failure))).collect::<String>();
    if lines.is_empty() { lines } else { format!("\n## What failed\n\n{lines}") }
}

/// The goals as a table.
pub(crate) fn goals(results: &Results) -> String {
    let mut table = "| server | goal | at most | measured | |\n|---|---|---:|---:|---|\n".to_owned();
    for verdict in &results.goals {
        let outcome = match verdict.outcome {
            Outcome::Met => "met",
            Outcome::Missed => "**missed**",
            Outcome::NotMeasured => "not measured",
        };
        let value = verdict
            .value
            .map_or_else(|| "-".to_owned(), |value| spread(value, |it| number(it, verdict.unit)));
        writeln!(
            table,
            "| {} | {} | {} | {value} | {outcome} |",
            verdict.server,
            escape(&verdict.goal),
            number(verdict.at_most, verdict.unit)
        )
        .ok();
    }
    table
}

fn table(results: &Results, group: &Group) -> String {
    let mut table = format!(
        "\n## {}: {}, {}, {}\n\nMedians, with the extremes of the runs.\n\n",
        group.scenario, group.server, group.cache, group.load
    );
    let with_clients =
        results.in_group(group).any(|series| series.samples.iter().any(|sample| sample.clients.is_some()));
    table.push_str("| | wall s | CPU s (user + system) | server's CPU s | rest of the machine | largest process | on disk |");
    table.push_str(if with_clients {
        " longest commit: median (extremes), p95 | p99 of commits | transactions/s |\n"
    } else {
        "\n"
    });
    table.push_str("|---|---:|---:|---:|---:|---:|---:|");
    table.push_str(if with_clients { "---:|---:|---:|\n" } else { "\n" });
    for series in results.in_group(group) {
        table.push_str(&row(series, with_clients));
    }
    table.push_str(&not_measured(results, group));
    table
}

/// The contestants that were not measured, grouped by reason.
fn not_measured(results: &Results, group: &Group) -> String {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for series in results.in_group(group) {
        let Some(reason) = &series.not_measured else { continue };
        let who = match series.samples.len() {
            0 => escape(&series.label),
            count => format!("{} (after {count} runs)", escape(&series.label)),
        };
        let reason = one_line(reason);
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, all)) => all.push(who),
            None => reasons.push((reason, vec![who])),
        }
    }
    reasons.iter().map(|(reason, who)| format!("\nNot measured: {}: {reason}\n", who.join(", "))).collect()
}

fn row(series: &Series, with_clients: bool) -> String {
    let cell = |of: &dyn Fn(&Sample) -> Option<f64>, show: &dyn Fn(Spread) -> String| {
        series.spread(of).map_or_else(|| "-".to_owned(), show)
    };
    let median = |decimals: usize| move |values: Spread| format!("{:.decimals$}", values.median);
    let mut cells = vec![escape(&series.label)];
    if series.samples.is_empty() {
        cells.push("not measured".to_owned());
        cells.resize(if with_clients { 10 } else { 7 }, "-".to_owned());
        return format!("| {} |\n", cells.join(" | "));
    }
    cells.push(cell(&|it| Some(it.wall_s), &|values| spread(values, |it| format!("{it:.2}"))));
    cells.push(cell(&|it| Some(it.cpu_s()), &median(2)));
    cells.push(cell(&|it| it.server_cpu_s, &median(2)));
    cells.push(cell(&|it| Some(it.other_cpu_s), &median(2)));
    cells.push(cell(&|it| Some(it.rss_max_bytes as f64), &|values| megabytes(values.median)));
    cells.push(cell(&|it| it.stored_bytes.map(|bytes| bytes as f64), &|values| megabytes(values.median)));
    if with_clients {
        let longest = series.samples.iter().filter_map(|it| Some(it.clients?.commit_longest_ms));
        let p95 = percentile(longest, 95.0).map_or_else(String::new, |it| format!(", {it:.1} ms"));
        let longest = cell(&|it| Some(it.clients?.commit_longest_ms), &|values| {
            spread(values, |it| format!("{it:.1}"))
        });
        cells.push(format!("{longest}{p95}"));
        cells.push(cell(&|it| Some(it.clients?.commit_p99_ms), &|values| format!("{:.1} ms", values.median)));
        cells.push(cell(&|it| Some(it.clients?.transactions_per_s), &median(0)));
    }
    format!("| {} |\n", cells.join(" | "))
}

fn figures(results: &Results) -> String {
    if results.figures.is_empty() {
        return String::new();
    }
    let mut table = "\n## Other figures\n\n| scenario | server | | |\n|---|---|---|---:|\n".to_owned();
    for figure in &results.figures {
        let value = Spread::of(figure.values.iter().copied())
            .map_or_else(|| "-".to_owned(), |values| spread(values, |it| number(it, figure.unit)));
        writeln!(table, "| {} | {} | {} | {value} |", figure.scenario, figure.server, escape(&figure.label))
            .ok();
    }
    table
}

/// The timed commands, each once.
fn commands(results: &Results) -> String {
    let mut page = "## What was timed\n".to_owned();
    let mut seen: Vec<&str> = Vec::new();
    for series in results.series.iter().filter(|series| !series.command.is_empty()) {
        if !seen.contains(&series.command.as_str()) {
            seen.push(&series.command);
            writeln!(
                page,
                "\n{}, {}:\n\n```sh\n{}\n```",
                series.group.scenario, series.label, series.command
            )
            .ok();
        }
    }
    page
}

fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('>', "&gt;")
}

fn one_line(text: &str) -> String {
    escape(&text.split_whitespace().collect::<Vec<&str>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::page;
    use crate::goals;
    use crate::report::tests::results;

    /// Lost comparisons and missing measurements are shown like those that were won.
    #[test]
    fn nothing_is_left_out() {
        let mut results = results();
        results.goals = goals::judge(&results);
        let page = page(&results);
        for expected in [
            "| mariadb-10.11 | plain, unencrypted, cold: wall / cp + sync | 1.150 | 1.100 (1.100 to 1.100) | met |",
            "| **missed** |",
            "| not measured |",
            "| label of &lt;floor&gt; | 10.00 (10.00 to 30.00) | 1.50 | 0.10 |",
            "Not measured: label of &lt;mariadb-backup-zstd&gt;: zstd is not installed",
            "cp -a \"$A\" \"$B\"",
        ] {
            assert!(page.contains(expected), "no {expected:?} in\n{page}");
        }
    }
}
