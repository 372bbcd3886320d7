//! Checks of tables by the servers themselves.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::server::Server;

/// SQL for the quoted name of a table in `information_schema.tables` or `.columns`.
pub(crate) const QUOTED: &str =
    "CONCAT('`', REPLACE(table_schema, '`', '``'), '`.`', REPLACE(table_name, '`', '``'), '`')";

/// SQL condition for tables of all schemas except the server's own.
pub(crate) const USER_TABLES: &str = "table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'SEQUENCE')
     AND table_schema NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')";

/// One line of a `CHECK TABLE` result: table, operation, type of message, message.
type Line = (String, String, String, String);

/// Quoted names of user tables and of the server's own base tables, including those that it cannot open.
fn names(server: &Server, and: &str) -> Result<Vec<String>> {
    server.query(format!(
        "SELECT {QUOTED} FROM information_schema.tables
         WHERE ({USER_TABLES} OR table_type = 'BASE TABLE' AND table_schema = 'mysql') AND {and}"
    ))
}

/// Lines that report damage. Engines that cannot check say so in a note.
fn complaints(server: &Server, tables: &[String]) -> Result<Vec<Line>> {
    const TABLES_PER_STATEMENT: usize = 50;
    let mut complaints = Vec::new();
    for tables in tables.chunks(TABLES_PER_STATEMENT) {
        let query = format!("CHECK TABLE {} EXTENDED", tables.join(", "));
        let lines: Vec<Line> = server.query(&query)?;
        complaints.extend(lines.into_iter().filter(|(_, _, kind, text)| match kind.as_str() {
            "status" => !(text == "OK" || text == "Table is already up to date"),
            "note" => false,
            _ => true,
        }));
    }
    Ok(complaints)
}

/// Rows that were deleted a moment ago: MariaDB reports them until its purge has run (seen for
/// `gtid_slave_pos` on a replica that had just caught up, once in some hundred runs).
const UNPURGED: &str = "Unpurged clustered index record";
/// Whether the text reports a secondary index entry that is marked as deleted (`info_bits`: 32) and whose row
/// is gone. Purge removes these as well (seen once on a replica where an index had been added under writes).
fn is_deleted_entry(text: &str) -> bool {
    text.contains("Clustered index record not found") && text.contains("(info_bits=32,")
}

/// Whether a server reports something that its purge has yet to remove, and that may be gone if it is asked again.
#[must_use]
pub fn awaits_purge(text: &str) -> bool {
    text.contains(UNPURGED) || is_deleted_entry(text)
}

/// Whether the line reports a row of InnoDB's statistics that was deleted and is not purged. MariaDB 11.8.9 does
/// not purge some rows of dropped partitions, ever: a source that had been idle for a minute reported the same rows
/// as its copy, by the same transaction, with nothing left to purge on either.
fn is_forgotten(line: &Line) -> bool {
    let (table, _, _, text) = line;
    text.contains(UNPURGED)
        && (table.ends_with("innodb_index_stats") || table.ends_with("innodb_table_stats"))
}

#[expect(clippy::print_stdout, reason = "whoever reads a test's output should know")]
fn told(text: &str) {
    println!("{text}");
}

/// After this long, a server that has nothing else to do has forgotten them.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(20);

/// After this long, the delay is not due to purge.
pub const PURGE_MAX: Duration = Duration::from_secs(300);

/// Lets the server check all its tables; returns their number, or fails with what the server reports.
pub fn check_tables(server: &Server) -> Result<usize> {
    let tables = names(server, "TRUE")?;
    let begin = Instant::now();
    let mut is_rebuilt = false;
    let mut complaints = loop {
        let found = complaints(server, &tables)?;
        if !is_rebuilt
            && begin.elapsed() > FORGOTTEN_AFTER
            && !found.is_empty()
            && found.iter().all(is_forgotten)
        {
            // Once rebuilt, a table has no such rows; whatever else is wrong is still reported.
            for (table, ..) in &found {
                told(&format!("{table}: the server has forgotten to purge a deleted row"));
                server.query::<Line>(format!("OPTIMIZE NO_WRITE_TO_BINLOG TABLE {table}"))?;
            }
            is_rebuilt = true;
            continue;
        }
        let may_pass = found.iter().any(|(_, _, _, text)| awaits_purge(text));
        if !may_pass || begin.elapsed() > PURGE_MAX {
            break found;
        }
        sleep(Duration::from_secs(1));
    };
    // The table was open when the source crashed (one client, or several, `haven't`), or still is there; damage to
    // its contents is reported separately.
    complaints.retain(|(_, _, _, text)| !text.contains("closed the table properly"));
    if !complaints.is_empty() {
        let lines: Vec<String> =
            complaints.iter().map(|(table, _, kind, text)| format!("{table}: {kind}: {text}")).collect();
        bail!(
            "the server complains of {} of its {} tables:\n{}",
            lines.len(),
            tables.len(),
            lines.join("\n")
        );
    }
    Ok(tables.len())
}

/// Repairs tables left broken by a server that ended in the middle of statements, as a DBA would; drops
/// tables of the schema `ddl` that cannot be repaired.
pub fn repair_after_crash(server: &Server) -> Result<()> {
    for (table, ..) in complaints(server, &names(server, "engine NOT IN ('InnoDB', 'MEMORY')")?)? {
        let table = table.replacen('.', "`.`", 1);
        server.query::<Line>(format!("REPAIR NO_WRITE_TO_BINLOG TABLE `{table}`")).context(table)?;
    }
    for (table, ..) in complaints(server, &names(server, "table_schema = 'ddl'")?)? {
        let table = table.replacen('.', "`.`", 1);
        server.exec(format!("DROP TABLE IF EXISTS `{table}`")).context(table)?;
    }
    Ok(())
}
