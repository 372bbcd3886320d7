//! Ways of sending rows: by parameters, and by others if a server, or a row, does not allow that.

use super::{names::Meddler, *};

/// Rows that do not fit a packet are sent in another way than those around them, or refused; if the binlog
/// must contain statements, all rows are sent that way. No row and no byte is lost.
#[test]
fn rows_longer_than_packets() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb1011,
        &[
            "CREATE DATABASE s",
            "CREATE TABLE s.t (id INT PRIMARY KEY, v LONGTEXT CHARACTER SET utf8mb4, raw LONGBLOB)",
            "INSERT INTO s.t SELECT seq, IF(seq % 50 = 0, REPEAT('a\\\\\\'\\t\\n€', 150000), REPEAT('\\\\b', seq)), \
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

/// MySQL receives rows of every type as text if it prepares no statement, or too few, and by `LOAD DATA
/// LOCAL` if that is allowed. `round_trip` covers parameters.
#[test]
fn other_ways_into_mysql() {
    let (stage, backup) = saved(ServerKind::MySql97);
    let target = start(ServerKind::MySql97);
    for (settings, is_by_parameters, is_by_load_data) in [
        ("max_prepared_stmt_count = 0", false, false),
        // Tables of one row need no second statement.
        ("max_prepared_stmt_count = 1", true, false),
        ("local_infile = ON", false, true),
    ] {
        target.exec(format!("SET GLOBAL {settings}")).unwrap();
        let chosen = LoadOptions { leave_out: true, overwrite: true, parallel: 1, ..options(&target) };
        let report = load(&stage, backup, &chosen).unwrap();
        assert_eq!(
            (report.by_parameters, report.by_load_data),
            (is_by_parameters, is_by_load_data),
            "{settings}"
        );
        assert_same_rows(&stage.source, &target);
        let left: (String, u64) =
            target.query("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'").unwrap().remove(0);
        assert_eq!(left.1, 0, "{settings}");
        assert_clean(&target);
    }
}

/// Many rows, one, none, long ones, and one that is too long for a packet of parameters: no row and no byte
/// is lost, whether sent as parameters or, if the binlog contains statements, as text.
#[test]
fn rows_of_every_length_as_parameters_of_mysql() {
    let (stage, backup) = backed_up(
        ServerKind::MySql97,
        &[
            "CREATE DATABASE s",
            "CREATE TABLE s.t (id INT PRIMARY KEY, v LONGTEXT CHARACTER SET utf8mb4, raw LONGBLOB, n INT)",
            "INSERT INTO s.t WITH RECURSIVE seq AS (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM seq WHERE seq < 1000) \
             SELECT seq, IF(seq % 200 = 0, REPEAT('a\\\\\\'\\t\\n€', 60000 + seq), REPEAT('\\\\b', seq)), \
             IF(seq % 3 = 0, NULL, REPEAT(x'000A5C27FF', seq)), NULLIF(seq % 7, 0) FROM seq",
            "INSERT INTO s.t VALUES (1001, REPEAT('\\\\€', 5 << 20), NULL, 1), (1002, 'behind it', 'x', 2)",
            "CREATE TABLE s.one (id INT PRIMARY KEY, v INT)",
            "INSERT INTO s.one VALUES (1, NULL)",
            "CREATE TABLE s.none (id INT PRIMARY KEY, v INT)",
        ],
    );
    let target = start(ServerKind::MySql97);
    for (binlog_format, is_by_parameters) in [("ROW", true), ("MIXED", false)] {
        target.exec(format!("SET GLOBAL binlog_format = '{binlog_format}'")).unwrap();
        let report = load(&stage, backup, &LoadOptions { overwrite: true, ..options(&target) }).unwrap();
        assert_eq!(report.by_parameters, is_by_parameters);
        assert_eq!((report.rows_loaded, report.tables_verified), (1003, 3));
        assert_same_rows(&stage.source, &target);
        assert_clean(&target);
    }
}

/// `local_infile` is switched on for a load that asks for it, if the account may do that, and is off when the
/// load has ended, successfully or not.
#[test]
fn local_infile_for_the_time_of_a_load() {
    let (stage, backup) = backed_up(
        ServerKind::MySql97,
        &["CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY)", "INSERT INTO s.t VALUES (1), (2)"],
    );
    let target = start(ServerKind::MySql97);
    let is_on = || target.query::<u8>("SELECT @@GLOBAL.local_infile").unwrap() == [1];
    let selection = Selection { without_accounts: true, ..Selection::default() };
    let chosen = LoadOptions { enable_local_infile: true, selection, ..options(&target) };

    target
        .exec_all(["CREATE USER loader@localhost", "GRANT ALL PRIVILEGES ON `s`.* TO loader@localhost"])
        .unwrap();
    target.exec("GRANT ALL PRIVILEGES ON holdfast_load.* TO loader@localhost").unwrap();
    let mut theirs = chosen.clone();
    theirs.connect.user = Some("loader".to_owned());
    let error = load(&stage, backup, &theirs).unwrap_err();
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("GRANT SYSTEM_VARIABLES_ADMIN ON *.* TO 'loader'@'localhost'"), "{error:?}");
    assert_clean(&target);
    target.exec("GRANT SYSTEM_VARIABLES_ADMIN ON *.* TO loader@localhost").unwrap();
    let plan = load::plan(&stage.repo, &log(), RunNo(backup), &theirs, &Cancel::default()).unwrap();
    assert_eq!(plan.rows_by, Way::LoadData);
    assert!(!is_on());
    let report = load(&stage, backup, &theirs).unwrap();
    assert!(report.by_load_data && !is_on());
    assert_eq!(target.query::<i32>("SELECT id FROM s.t ORDER BY id").unwrap(), [1, 2]);

    // A load that fails after its rows.
    let again = LoadOptions { overwrite: true, ..chosen.clone() };
    let meddler = Meddler::new(&target, Meddler::FIRST_ROWS, "UPDATE s.t SET id = 3 WHERE id = 2");
    load::run(&stage.repo, &log(), RunNo(backup), &again, &meddler, &Cancel::default()).unwrap_err();
    assert!(!is_on());
    // If it was on, it stays on.
    target.exec_all(["SET GLOBAL local_infile = ON", "DROP TABLE s.t"]).unwrap();
    assert!(load(&stage, backup, &again).unwrap().by_load_data && is_on());
    assert_clean(&target);

    let other = start(ServerKind::MariaDb1011);
    let error =
        load(&stage, backup, &LoadOptions { connect: options(&other).connect, ..chosen }).unwrap_err();
    assert!(error.to_string().contains("--enable-local-infile"), "{error}");
}

/// `LOAD DATA LOCAL` truncates values and skips rows with only a warning.
/// If someone changes the table during the load so that this happens, the load fails, whether rows are read
/// back or not; a member outside of its list does not count as such a change.
#[test]
fn what_load_data_only_warns_of_fails_the_load() {
    // Where chunks end is the repository's secret: the first has fewer rows than those that are good.
    let (stage, backup) = backed_up(
        ServerKind::MySql97,
        &[
            "CREATE DATABASE s",
            "CREATE TABLE s.t (id INT PRIMARY KEY, v VARCHAR(20), n INT, k INT, e ENUM('a'), pad CHAR(200))",
            "SET sql_mode = ''",
            "SET SESSION cte_max_recursion_depth = 100000",
            "INSERT INTO s.t WITH RECURSIVE seq AS (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM seq WHERE seq < 30000) \
             SELECT seq, IF(seq < 25000, 'short', 'much longer'), IF(seq < 25000, seq, NULL), IF(seq < 25000, seq, 1), \
             'none', SHA2(seq, 512) FROM seq",
        ],
    );
    let target = start(ServerKind::MySql97);
    let chosen = |verify| LoadOptions {
        enable_local_infile: true,
        overwrite: true,
        parallel: 1,
        chunks_per_commit: 1,
        verify,
        ..options(&target)
    };
    load(&stage, backup, &chosen(false)).unwrap();
    assert_same_rows(&stage.source, &target);
    for (change, what) in [
        ("ALTER TABLE s.t MODIFY v VARCHAR(5)", "the server has changed a value for column 'v'"),
        ("ALTER TABLE s.t MODIFY n INT NOT NULL", "the server has changed rows (1263)"),
        ("ALTER TABLE s.t MODIFY k INT UNIQUE", "the server has taken "),
        ("ALTER TABLE s.t ADD CHECK (id < 25000)", "the server has taken "),
    ] {
        for verify in [true, false] {
            target.exec("DROP DATABASE s").unwrap();
            let meddler = Meddler::new(&target, Meddler::FIRST_ROWS, change);
            let error =
                load::run(&stage.repo, &log(), RunNo(backup), &chosen(verify), &meddler, &Cancel::default())
                    .unwrap_err();
            assert!(error.to_string().contains(what), "{change}: {error}");
            assert_eq!(target.query::<u8>("SELECT @@GLOBAL.local_infile").unwrap(), [0]);
            target.exec("DROP DATABASE holdfast_load").unwrap();
        }
    }
}
