//! Very many tables.

use std::{fmt::Write, fs, time::Instant};

use mysql::{Conn, prelude::Queryable};

use super::*;

/// A server with that many schemas and tables is backed up twice and restored; times and memory are printed.
fn many_tables(kind: ServerKind, schemas: u32, tables: u32) {
    let options = ServerOptions::default()
        .arg("--skip-log-bin")
        .arg("--innodb-flush-log-at-trx-commit=0")
        .arg("--innodb-flush-method=nosync")
        .arg("--table-open-cache=400");
    let source = Server::start(kind, options).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let mut conn = source.conn().unwrap();
            scope.spawn(move || make(&mut conn, schemas, tables, half));
        }
    });
    println!("{kind}: {tables} tables in {schemas} schemas made in {:.1?}", begun.elapsed());
    let stage = Stage::around(source);
    let timed = |what: &str| {
        reset_peak();
        let begun = Instant::now();
        let report = stage.back_up();
        println!("{kind}: {what} in {:.1?}, peak of memory {} MiB", begun.elapsed(), peak_mib());
        println!("  {:?}\n  {:?}", report.run.phases, report.locks);
        report
    };
    let full = timed("full backup");
    stage.source.exec("INSERT INTO `many 1`.t1 VALUES (77, 'later')").unwrap();
    let second = timed("second backup");
    assert_eq!(second.run.base, Some(full.run.backup));
    reset_peak();
    let begun = Instant::now();
    let restored = stage.restore_recovered(&second);
    println!("{kind}: restored in {:.1?}, peak of memory {} MiB", begun.elapsed(), peak_mib());
    let compared = assert_equal_checksums(&stage.source, &restored.server).unwrap();
    assert!(compared >= tables as usize, "{compared} tables");
}

/// Creates every second schema, with its tables.
fn make(conn: &mut Conn, schemas: u32, tables: u32, half: u32) {
    for schema in (1..=schemas).filter(|schema| schema % 2 == half) {
        conn.query_drop(format!("CREATE DATABASE `many {schema}`")).unwrap();
        for table in (1..=tables).filter(|table| table % schemas == schema % schemas) {
            let engine = if table % 50 == 0 { "MyISAM" } else { "InnoDB" };
            let name = if table == schema { "t1".to_owned() } else { format!("t{table}x") };
            let mut insert = format!("INSERT INTO `many {schema}`.{name} VALUES (0, 'x')");
            (1..table % 7).for_each(|row| write!(insert, ", ({row}, 'row {row} of {table}')").unwrap());
            conn.query_drop(format!(
                "CREATE TABLE `many {schema}`.{name} (i INT PRIMARY KEY, v VARCHAR(100)) ENGINE={engine}"
            ))
            .unwrap();
            conn.query_drop(insert).unwrap();
        }
    }
}

/// Resets the recorded peak memory.
fn reset_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// Peak memory of this process, including other tests in it.
fn peak_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[test]
fn mariadb_10_11_many_tables_are_restored() {
    let (schemas, tables) = if long() { (2000, 10_000) } else { (150, 700) };
    many_tables(ServerKind::MariaDb1011, schemas, tables);
}

#[test]
fn mysql_9_7_many_tables_are_restored() {
    let (schemas, tables) = if long() { (2000, 10_000) } else { (100, 400) };
    many_tables(ServerKind::MySql97, schemas, tables);
}
