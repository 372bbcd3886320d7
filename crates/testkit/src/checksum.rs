//! Compares two servers by the checksum of every table, computed by the servers themselves.
//!
//! MariaDB's `CHECKSUM TABLE` returns varying numbers for the same rows if a table has generated columns
//! (seen on 10.11 and 11.8: it reads them from memory that it has not filled).
//! Such tables are summed up row by row instead.
//! MySQL's returns 0 for an ARCHIVE table that has not been read since it was opened (seen on 9.7), so such a
//! table is read just before.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use mysql::prelude::Queryable;

use crate::{
    server::Server,
    tables::{QUOTED, USER_TABLES, check_tables},
};

/// The checksum of each table by its quoted name; `None` if the server could not read the table.
pub type Checksums = BTreeMap<String, Option<u64>>;

/// Accounts and privileges: data that a DBA misses once lost.
const SYSTEM_TABLES_COMMON: [&str; 4] = ["db", "tables_priv", "columns_priv", "procs_priv"];
const SYSTEM_TABLES_MYSQL: [&str; 2] = ["user", "role_edges"];
const SYSTEM_TABLES_MARIADB: [&str; 3] = ["global_priv", "roles_mapping", "proc"];

/// Checksums every base table outside the server's own schemas, and the tables that hold accounts.
/// MEMORY tables are skipped, because they are empty after any restart.
pub fn checksums(server: &Server) -> Result<Checksums> {
    const TABLES_PER_STATEMENT: usize = 50;
    let own = if server.kind().is_mariadb() { &SYSTEM_TABLES_MARIADB[..] } else { &SYSTEM_TABLES_MYSQL[..] };
    let mut tables: Vec<String> = server.query(format!(
        "SELECT {QUOTED} FROM information_schema.tables
         WHERE {USER_TABLES} AND COALESCE(engine, '') <> 'MEMORY'"
    ))?;
    tables.extend(SYSTEM_TABLES_COMMON.iter().chain(own).map(|name| format!("`mysql`.`{name}`")));
    let mut conn = server.conn()?;
    conn.query_drop("SET SESSION group_concat_max_len = 1000000")?;
    let generated: Vec<(String, String)> = conn.query(format!(
        "SELECT {QUOTED}, GROUP_CONCAT('QUOTE(`', column_name, '`)' ORDER BY ordinal_position SEPARATOR ', ')
         FROM information_schema.columns WHERE table_schema NOT IN ('mysql', 'sys')
         GROUP BY table_schema, table_name HAVING SUM(extra LIKE '%GENERATED%') > 0"
    ))?;
    let generated: BTreeMap<String, String> = generated.into_iter().collect();
    let (by_row, by_server): (Vec<String>, Vec<String>) =
        tables.into_iter().partition(|table| generated.contains_key(table));
    let mut sums = Checksums::new();
    let archives: Vec<String> = conn.query(format!(
        "SELECT {QUOTED} FROM information_schema.tables WHERE {USER_TABLES} AND engine = 'ARCHIVE'"
    ))?;
    let (archives, by_server): (Vec<_>, Vec<_>) =
        by_server.into_iter().partition(|table| archives.contains(table));
    for archive in archives {
        // A table that cannot be read has no checksum either. If many others were opened in between, this one would
        // be closed again.
        conn.query_drop(format!("SELECT COUNT(*) FROM {archive}")).ok();
        let rows: Vec<(String, Option<u64>)> = conn.query(format!("CHECKSUM TABLE {archive}"))?;
        sums.extend(rows.into_iter().map(|(_, sum)| (archive.clone(), sum)));
    }
    for names in by_server.chunks(TABLES_PER_STATEMENT) {
        let query = format!("CHECKSUM TABLE {}", names.join(", "));
        let rows: Vec<(String, Option<u64>)> = conn.query(&query).context(query)?;
        // The server returns table names unquoted, in the order of the query.
        sums.extend(names.iter().cloned().zip(rows.into_iter().map(|(_, sum)| sum)));
    }
    for table in by_row {
        let row = format!("CRC32(CONCAT_WS(',', {}))", generated[&table]);
        let query = format!("SELECT CAST(COALESCE(SUM({row}), 0) AS UNSIGNED) FROM {table}");
        let sum: Option<u64> = conn.query_first(&query).context(query)?;
        sums.insert(table, sum);
    }
    Ok(sums)
}

/// Returns one line for each table that differs.
pub fn differences(source: &Checksums, target: &Checksums) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = source.keys().chain(target.keys()).collect();
    let show = |sum: Option<&Option<u64>>| match sum {
        None => "no such table".to_owned(),
        Some(None) => "unreadable".to_owned(),
        Some(Some(sum)) => sum.to_string(),
    };
    let same = |name: &String| matches!((source.get(name), target.get(name)), (Some(Some(a)), Some(Some(b))) if a == b);
    names
        .into_iter()
        .filter(|name| !same(name))
        .map(|name| format!("{name}: source {}, target {}", show(source.get(name)), show(target.get(name))))
        .collect()
}

/// Fails if tables differ, listing them, or if the target server finds a fault in its own tables, since
/// checksums do not cover indexes.
/// Returns the number of tables compared.
pub fn assert_equal_checksums(source: &Server, target: &Server) -> Result<usize> {
    check_tables(target)?;
    let (left, right) = (checksums(source)?, checksums(target)?);
    let differing = differences(&left, &right);
    if !differing.is_empty() {
        bail!("{} of {} tables differ:\n{}", differing.len(), left.len(), differing.join("\n"));
    }
    Ok(left.len())
}

#[cfg(test)]
mod tests {
    use super::{Checksums, differences};

    /// Missing, changed, and doubly unreadable tables are reported; equal ones are not.
    #[test]
    fn only_equal_readable_tables_are_equal() {
        let side = |sums: &[(&str, Option<u64>)]| -> Checksums {
            sums.iter().map(|(name, sum)| ((*name).to_owned(), *sum)).collect()
        };
        let source =
            side(&[("equal", Some(1)), ("changed", Some(2)), ("unreadable", None), ("lost", Some(4))]);
        let target =
            side(&[("equal", Some(1)), ("changed", Some(3)), ("unreadable", None), ("new", Some(5))]);
        let names: Vec<String> = differences(&source, &target)
            .iter()
            .map(|line| line.split(':').next().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(names, ["changed", "lost", "new", "unreadable"]);
    }
}
