//! How fast rows are read.

use std::time::Instant;

use super::*;

/// A limit holds over all readers, for large tables and for many small ones.
#[test]
fn rows_are_read_no_faster_than_asked() {
    const BYTES_PER_S: u64 = 1 << 20;
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage.source.exec("CREATE DATABASE shop").unwrap();
    let fill = |table: &str, rows: u64| {
        let filled = format!("SELECT seq AS id, REPEAT('x', 10000) AS t FROM shop.seq_1_to_{rows}");
        let columns = "(id INT PRIMARY KEY, t TEXT)";
        stage.source.exec(format!("CREATE TABLE shop.{table} {columns} {filled}")).unwrap();
    };
    fill("large", 150);
    for number in 0..15 {
        fill(&format!("small_{number}"), 10);
    }
    let options = BackupOptions { read_bytes_per_s_max: Some(BYTES_PER_S), parallel: 3, ..stage.options() };
    let selection = Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() };
    let began = Instant::now();
    stage.back_up(&options, &selection).unwrap();
    // Of the three seconds a few pieces are free: the first ones of all readers.
    assert!(began.elapsed().as_millis() > 2_000, "{:?}", began.elapsed());
}
