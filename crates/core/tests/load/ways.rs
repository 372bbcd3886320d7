//! Ways that rows go: by parameters, and by others where a server, or a row, does not go along.

use super::*;

/// Rows that do not fit a packet go by another way than those around them, or are refused; where statements are what the binlog
/// has to have, all of them do. None is lost, and none of its bytes.
#[test]
fn rows_longer_than_packets() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb1011,
        &[
            "CREATE DATABASE s",
            "CREATE TABLE s.t (id INT PRIMARY KEY, v LONGTEXT CHARACTER SET utf8mb4, raw LONGBLOB)",
            "INSERT INTO s.t SELECT seq, IF(seq % 50 = 0, REPEAT('a\\\\\\'\\t\\n€', 300000), REPEAT('\\\\b', seq)), \
             IF(seq % 3 = 0, NULL, REPEAT(x'000A5C27FF', seq)) FROM s.seq_1_to_200",
        ],
    );
    for (settings, is_by_parameters, is_by_load_data) in [
        ("max_allowed_packet = 1048576", true, false),
        ("max_allowed_packet = 1048576, binlog_format = 'STATEMENT'", false, true),
        ("max_allowed_packet = 1048576, max_prepared_stmt_count = 0", false, true),
        ("max_allowed_packet = 1073741824, local_infile = OFF", true, false),
    ] {
        let target = start(ServerKind::MariaDb1011);
        target.exec(format!("SET GLOBAL {settings}")).unwrap();
        let report = load(&stage, backup, &options(&target)).unwrap();
        assert_eq!(
            (report.by_parameters, report.by_load_data),
            (is_by_parameters, is_by_load_data),
            "{settings}"
        );
        assert_eq!((report.rows_loaded, report.tables_verified), (200, 1), "{settings}");
        assert_clean(&target);
    }
    let target = start(ServerKind::MariaDb1011);
    target.exec("SET GLOBAL max_allowed_packet = 1048576, local_infile = OFF").unwrap();
    let error = load(&stage, backup, &options(&target)).unwrap_err();
    assert!(error.hint().unwrap_or_default().contains("max_allowed_packet"), "{error}");
}
