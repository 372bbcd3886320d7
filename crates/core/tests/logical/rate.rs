//! Rate limits for reading rows.

use std::time::Instant;

use super::*;

/// A limit applies to all readers together, for large tables and for many small ones.
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
    // The first pieces of all readers are free, so it takes less than three seconds.
    assert!(began.elapsed().as_millis() > 2_000, "{:?}", began.elapsed());
}
