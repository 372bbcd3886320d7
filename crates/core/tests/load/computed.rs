//! Values that servers compute and store: they are the same after a load, or reported.

use super::{other_servers::said, *};

/// Statements that create `s.kept`, whose stored columns depend on settings, with long rows,
/// many rows, and few rows.
fn kept(kind: ServerKind) -> Vec<String> {
    let by_settings = if kind.is_mariadb() {
        "by_div VARCHAR(60) AS (CONCAT(a / 3)) STORED, by_regex INT AS (t REGEXP 'a.b') STORED, \
         by_date DATETIME AS (CAST(tm AS DATETIME)) STORED, by_hash VARCHAR(60) AS (PASSWORD(CONCAT(a))) STORED"
    } else {
        "by_div VARCHAR(60) AS (CONCAT(a / 3)) STORED, by_names VARCHAR(60) AS (DAYNAME(d)) STORED, \
         by_key VARCHAR(200) AS (HEX(AES_ENCRYPT(c, 'key'))) STORED, below BIGINT AS (u - 10) STORED, \
         by_pad INT AS (LENGTH(c)) STORED, by_fraction DATETIME AS (d) STORED"
    };
    let rows = |table: &str, t: &str, count: u32| {
        format!(
            "INSERT INTO s.{table} (id, a, u, c, d, tm, t) WITH RECURSIVE n (n) AS \
             (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count}) \
             SELECT n, n * 7, n % 10, 'ab', '2023-11-05 10:00:00.7' + INTERVAL n DAY, '12:00', {t} FROM n"
        )
    };
    let make = |table: &str| {
        format!(
            "CREATE TABLE s.{table} (id INT PRIMARY KEY, {by_settings}, a INT, u INT UNSIGNED, c CHAR(5), \
             d DATETIME(1), tm TIME, t LONGTEXT, twice LONGTEXT AS (CONCAT(t, t)) STORED, KEY (a), KEY (by_div)) \
             CHARSET = utf8mb4"
        )
    };
    vec![
        "CREATE DATABASE s".to_owned(),
        make("kept"),
        rows("kept", "CONCAT('a\\n', 'b', REPEAT(n, 50))", 900),
        make("many"),
        format!(
            "SET SESSION {} = 100000",
            if kind.is_mariadb() { "max_recursive_iterations" } else { "cte_max_recursion_depth" }
        ),
        rows("many", "CONCAT('a\\n', 'b', REPEAT(n, 20))", 20_000),
        make("long_rows"),
        rows("long_rows", "REPEAT('a\\nb', n * 100000)", 8),
    ]
}

/// A source with settings that differ from the defaults: values loaded into a server with default settings
/// are computed as on the source, in every way of loading rows, and the settings are reported because later
/// writers will not have them.
fn by_settings(kind: ServerKind, settings: &[(&str, &str)]) {
    let stage = Stage::new(kind);
    for (name, value) in settings {
        stage.source.exec(format!("SET GLOBAL {name} = {value}")).unwrap();
    }
    stage.source.exec_all(kept(kind)).unwrap();
    let computed = "SELECT by_div FROM s.kept WHERE id = 1";
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    // The server's own checksums depend on it, too.
    stage.source.exec("SET GLOBAL sql_mode = ''").unwrap();
    for is_bulk in [false, true] {
        let target = start(kind);
        target.exec(format!("SET GLOBAL local_infile = {}", u8::from(is_bulk))).unwrap();
        if is_bulk {
            // Then no rows are sent as parameters.
            target.exec("SET GLOBAL max_prepared_stmt_count = 0").unwrap();
        }
        let report = load(&stage, backup, &options(&target)).unwrap();
        assert_eq!(report.by_load_data, is_bulk);
        assert!(report.plan.left_out.is_empty(), "{report:?}");
        let adapted = said(&report.plan.adapted);
        for (name, _) in settings {
            assert!(adapted.contains(&format!("setting {name}: computed columns depend on it")), "{adapted}");
        }
        assert_same_rows(&stage.source, &target);
        assert_eq!(target.query::<String>(computed).unwrap(), ["2.33333333"]);
        // The settings do not affect other sessions.
        target.exec("INSERT INTO s.kept (id, a) VALUES (0, 7)").unwrap();
        assert_eq!(target.query::<String>("SELECT by_div FROM s.kept WHERE id = 0").unwrap(), ["2.3333"]);
        assert_clean(&target);
    }
}

#[test]
fn computed_columns_go_by_the_sources_settings_in_mariadb_10_11() {
    by_settings(ServerKind::MariaDb1011, &MARIADB);
}

#[test]
fn computed_columns_go_by_the_sources_settings_in_mariadb_11_8() {
    by_settings(ServerKind::MariaDb118, &MARIADB);
}

#[test]
fn computed_columns_go_by_the_sources_settings_in_mysql() {
    by_settings(
        ServerKind::MySql97,
        &[
            ("div_precision_increment", "8"),
            ("lc_time_names", "'de_DE'"),
            ("block_encryption_mode", "'aes-256-ecb'"),
            ("sql_mode", "'NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH,TIME_TRUNCATE_FRACTIONAL'"),
        ],
    );
}

const MARIADB: [(&str, &str); 4] = [
    ("div_precision_increment", "8"),
    ("default_regex_flags", "'DOTALL'"),
    ("old_mode", "'ZERO_DATE_TIME_CAST'"),
    ("old_passwords", "1"),
];

/// Values that no server can recompute, because they depend on the date or on a session's settings: the load
/// fails and names them, keeps what is loaded, and continues without them if asked to.
#[test]
fn what_is_computed_otherwise_is_found() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let (stage, backup) = backed_up(
            kind,
            &[
                "CREATE DATABASE s",
                "CREATE TABLE s.dated (id INT PRIMARY KEY, tm TIME, g DATETIME AS (TIMESTAMP(tm)) STORED)",
                "CREATE TABLE s.third (a INT, h VARCHAR(60) AS (CONCAT(a / 3)) STORED, g INT AS (a + 1) STORED)",
                "CREATE TABLE s.same (a INT PRIMARY KEY, g INT AS (a + 1) STORED)",
                "INSERT INTO s.same (a) VALUES (1), (2)",
                "INSERT INTO s.third (a) VALUES (1), (2)",
                "SET SESSION timestamp = UNIX_TIMESTAMP('2020-02-02'), div_precision_increment = 9",
                "FLUSH TABLES",
                "INSERT INTO s.dated (id, tm) VALUES (1, '12:00')",
                // One row of several.
                "INSERT INTO s.third (a) VALUES (7)",
            ],
        );
        let target = start(kind);
        let error = load(&stage, backup, &options(&target)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("column g of table s.dated"), "{kind}: {text}");
        assert!(text.contains("columns h, g of table s.third") && !text.contains("s.same"), "{kind}: {text}");
        // Without the option, the load keeps failing.
        load(&stage, backup, &options(&target)).unwrap_err();
        let chosen = LoadOptions { leave_out: true, ..options(&target) };
        let report = load(&stage, backup, &chosen).unwrap();
        assert!(report.plan.is_continued && report.rows_loaded == 0, "{kind}: {report:?}");
        let left_out = said(&report.plan.left_out);
        assert!(left_out.contains("s.dated") && left_out.contains("s.third"), "{kind}: {left_out}");
        assert_eq!(report.tables_verified, 3, "{kind}");
        assert_eq!(target.query::<i32>("SELECT a FROM s.third ORDER BY a").unwrap(), [1, 2, 7]);
        assert_clean(&target);
    }
}

/// A setting that the other flavor lacks is reported before anything is touched, and values
/// computed with it are found.
#[test]
fn a_setting_that_cannot_be() {
    let stage = Stage::new(ServerKind::MySql97);
    stage.source.exec("SET GLOBAL block_encryption_mode = 'aes-256-ecb'").unwrap();
    stage
        .source
        .exec_all([
            "CREATE DATABASE s",
            "CREATE TABLE s.t (a VARCHAR(20) PRIMARY KEY, h VARCHAR(200) AS (HEX(AES_ENCRYPT(a, 'key'))) STORED) \
             CHARSET = utf8mb4 COLLATE = utf8mb4_bin",
            "INSERT INTO s.t (a) VALUES ('one'), ('two')",
        ])
        .unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let target = start(ServerKind::MariaDb1011);
    let chosen = Selection { without_accounts: true, ..Selection::default() };
    let options = LoadOptions { selection: chosen, ..options(&target) };
    let plan = load::plan(&stage.repo, &log(), RunNo(backup), &options, &Cancel::default()).unwrap();
    let adapted = said(&plan.adapted);
    assert!(
        adapted.contains("setting block_encryption_mode") && adapted.contains("aes-256-ecb"),
        "{adapted}"
    );
    let error = load(&stage, backup, &options).unwrap_err();
    assert!(error.to_string().contains("column h of table s.t"), "{error}");
    let report = load(&stage, backup, &LoadOptions { leave_out: true, ..options }).unwrap();
    assert!(said(&report.plan.left_out).contains("column h of table s.t"), "{report:?}");
    assert_clean(&target);
}
