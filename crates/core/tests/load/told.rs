//! Definitions that servers change when they create them, or show differently from what they store:
//! corrected, or reported.

use super::{other_servers::said, *};

/// MySQL parses numbers within documents again, turning decimals into doubles.
/// The load reports that, and compares everything else in such a table.
#[test]
fn numbers_in_documents() {
    let (stage, backup) = backed_up(
        ServerKind::MySql97,
        &[
            "CREATE DATABASE s",
            "CREATE TABLE s.decimals (id INT PRIMARY KEY, j JSON)",
            "INSERT INTO s.decimals VALUES (1, JSON_OBJECT('7.00', CAST(7 AS DECIMAL(10,2)), 'n', 12.50)), \
             (2, JSON_OBJECT('large', CAST('99999999999999999999999999' AS DECIMAL(40,0)), 's', 'say \"7.00\\\\'))",
            "CREATE TABLE s.plain (id INT PRIMARY KEY, j JSON)",
            "INSERT INTO s.plain VALUES (1, '{\"a\": 1.5}')",
        ],
    );
    let target = start(ServerKind::MySql97);
    let report = load(&stage, backup, &options(&target)).unwrap();
    let adapted = said(&report.plan.adapted);
    assert!(adapted.contains("table s.decimals: numbers within JSON"), "{adapted}");
    assert!(!adapted.contains("s.plain"), "{adapted}");
    assert_eq!(report.tables_verified, 2);
    assert_eq!(
        target.query::<String>("SELECT j FROM s.decimals WHERE id = 1").unwrap(),
        [r#"{"n": 12.5, "7.00": 7.0}"#]
    );
    assert_clean(&target);
    // If rows are not read back, all such tables are reported before anything is touched.
    let quick = LoadOptions { verify: false, overwrite: true, ..options(&target) };
    let plan = load::plan(&stage.repo, &log(), RunNo(backup), &quick, &Cancel::default()).unwrap();
    let adapted = said(&plan.adapted);
    assert!(adapted.contains("s.decimals") && adapted.contains("s.plain"), "{adapted}");

    // Values without such numbers must be preserved.
    let other = start(ServerKind::MySql97);
    let chosen = LoadOptions {
        selection: Selection { tables: vec!["s.decimals".parse().unwrap()], ..Selection::default() },
        ..options(&other)
    };
    let change = r#"UPDATE s.decimals SET j = REPLACE(j, '"say', '"Say') WHERE id = 2"#;
    let meddler = super::names::Meddler::new(&other, super::names::Meddler::FIRST_ROWS, change);
    let error =
        load::run(&stage.repo, &log(), RunNo(backup), &chosen, &meddler, &Cancel::default()).unwrap_err();
    assert!(error.to_string().contains("s.decimals (other bytes in its rows)"), "{error}");
}

/// Servers print list members in a character set that lacks four-byte characters, so the
/// stored values are queried.
#[test]
fn members_of_four_bytes() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118, ServerKind::MySql97] {
        let (stage, backup) = backed_up(
            kind,
            &[
                "CREATE DATABASE s",
                "CREATE TABLE s.mood (id INT PRIMARY KEY, \
                 m ENUM('😀', '?', 'it''s', '\\\\', 'ä', '😡') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT '😡', \
                 w SET('😀', 'b?', '''😐''') CHARACTER SET utf16 COLLATE utf16_bin NOT NULL DEFAULT 'b?,''😐''', \
                 v VARCHAR(9) CHARACTER SET utf8mb4 NOT NULL DEFAULT '😀?', \
                 p ENUM('?', 'x') CHARACTER SET utf8mb4 DEFAULT '?' COMMENT 'enum(''?'')', \
                 x SET('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', '😀') CHARACTER SET utf8mb4 DEFAULT '😀') \
                 CHARSET = utf8mb4",
                "INSERT INTO s.mood (id, m, w, p) \
                 VALUES (1, '😀', '😀,''😐''', '?'), (2, '?', 'b?', 'x'), (3, '\\\\', '', 'x'), (4, 'ä', '', 'x')",
                "INSERT INTO s.mood (id, w) VALUES (5, 4)",
            ],
        );
        let loaded = start(kind);
        let report = load(&stage, backup, &options(&loaded)).unwrap();
        assert!(!said(&report.plan.adapted).contains("s.mood"), "{report:?}");
        let scripted = start(kind);
        crate::logical::load(&scripted, &stage.script(backup, None));
        for target in [&loaded, &scripted] {
            target.exec("INSERT INTO s.mood (id, w) VALUES (6, 1)").unwrap();
            let rows =
                "SELECT id, HEX(m), HEX(w), HEX(p), HEX(v), HEX(x) FROM s.mood WHERE id < 6 ORDER BY id";
            let of = |server: &Server| {
                server.query::<(i32, Option<String>, String, String, String, String)>(rows).unwrap()
            };
            assert_eq!(of(&stage.source), of(target), "{kind}");
            assert_eq!(
                target
                    .query::<(String, String, String, String)>("SELECT m, w, v, x FROM s.mood WHERE id = 6")
                    .unwrap(),
                [("😡".to_owned(), "😀".to_owned(), "😀?".to_owned(), "😀".to_owned())],
                "{kind}"
            );
            assert_same_objects(&stage.source, target);
        }
        // Into another flavor.
        let other = if kind.is_mariadb() { ServerKind::MySql97 } else { ServerKind::MariaDb118 };
        let other = start(other);
        load(&stage, backup, &LoadOptions { leave_out: true, ..options(&other) }).unwrap();
        other.exec("INSERT INTO s.mood (id, w) VALUES (6, 1)").unwrap();
        let members = "SELECT m, w, v FROM s.mood WHERE id = 6";
        assert_eq!(
            other.query::<(String, String, String)>(members).unwrap(),
            [("😡".to_owned(), "😀".to_owned(), "😀?".to_owned())],
            "{kind}"
        );
        // Also as text.
        let lines = crate::logical::delimited::csv(&stage, backup, "s.mood");
        assert!(lines.contains("😀,'😐'") && lines.contains("😡"), "{lines}");
    }
}

/// An event whose time has passed since the backup is not created, or created disabled: that is reported.
#[test]
fn events_whose_time_has_passed() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let (stage, backup) = backed_up(
            kind,
            &[
                "CREATE DATABASE s",
                // As of some time ago.
                "SET SESSION timestamp = UNIX_TIMESTAMP('2020-01-01')",
                "CREATE EVENT s.once ON SCHEDULE AT '2020-01-02' DO SELECT 1",
                "CREATE EVENT s.kept ON SCHEDULE AT '2020-01-02' ON COMPLETION PRESERVE DO SELECT 1",
                "CREATE EVENT s.daily ON SCHEDULE EVERY 1 DAY STARTS '2020-01-01' DO SELECT 1",
            ],
        );
        let target = start(kind);
        let report = load(&stage, backup, &options(&target)).unwrap();
        let (gone, changed) = (said(&report.plan.left_out), said(&report.plan.adapted));
        assert!(gone.contains("event s.once: its time has passed"), "{kind}: {gone}");
        assert!(changed.contains("event s.kept: its time has passed"), "{kind}: {changed}");
        assert!(!gone.contains("s.daily") && !changed.contains("s.daily"), "{kind}: {gone}{changed}");
        let events = "SELECT CONCAT(event_name, ' ', status) FROM information_schema.events ORDER BY 1";
        assert_eq!(target.query::<String>(events).unwrap(), ["daily ENABLED", "kept DISABLED"], "{kind}");
        assert_clean(&target);
    }
}

/// If transactions of the source are to be replayed after a load, events are created so that
/// they do not run meanwhile.
#[test]
fn events_that_are_not_to_run() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let (stage, backup) = backed_up(
            kind,
            &[
                "CREATE DATABASE s",
                "CREATE TABLE s.t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(99))",
                "CREATE EVENT s.often ON SCHEDULE EVERY 1 SECOND COMMENT 'ENABLE DO' DO INSERT INTO s.t (v) VALUES ('ENABLE')",
                "CREATE EVENT s.off ON SCHEDULE EVERY 1 DAY ON COMPLETION PRESERVE DISABLE DO SELECT 1",
            ],
        );
        let target = start(kind);
        target.exec("SET GLOBAL event_scheduler = ON").unwrap();
        let report = load(&stage, backup, &LoadOptions { disable_events: true, ..options(&target) }).unwrap();
        let adapted = said(&report.plan.adapted);
        assert!(adapted.contains("event s.often: it is disabled") && !adapted.contains("s.off"), "{adapted}");
        let events = "SELECT CONCAT(event_name, ' ', status) FROM information_schema.events ORDER BY 1";
        assert_eq!(target.query::<String>(events).unwrap(), ["off DISABLED", "often DISABLED"], "{kind}");
        assert!(target.query::<u32>("SELECT id FROM s.t").unwrap().is_empty(), "{kind}");
        target.exec("ALTER EVENT s.often ENABLE").unwrap();
        let definition = "SELECT event_definition FROM information_schema.events WHERE event_name = 'often'";
        let definition: Vec<String> = target.query(definition).unwrap();
        assert_eq!(definition, ["INSERT INTO s.t (v) VALUES ('ENABLE')"], "{kind}");
    }
}

/// New rows get the defaults that they got on the source, on any server; where that cannot be known, it is
/// said.
#[test]
fn defaults_beyond_ascii() {
    let new_row = |server: &Server, table: &str, columns: &str| {
        server.exec(format!("INSERT INTO s.{table} (id) VALUES (6)")).unwrap();
        let query = format!("SELECT CONCAT_WS('|', {columns}) FROM s.{table} WHERE id = 6");
        server.query::<String>(query).unwrap().remove(0)
    };
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        let (stage, backup) = backed_up(
            kind,
            &[
                "CREATE DATABASE s",
                "CREATE TABLE s.d (id INT PRIMARY KEY, a TEXT DEFAULT '¿Qué?', b MEDIUMTEXT DEFAULT '😀', \
                 c TEXT DEFAULT 'it''s? é', d TEXT DEFAULT 'Sure?', v VARCHAR(9) DEFAULT 'é😀?', \
                 w TEXT CHARACTER SET utf16 DEFAULT 'é?', day DATE DEFAULT CURRENT_TIMESTAMP, \
                 word VARCHAR(30) DEFAULT CURRENT_TIMESTAMP, at TIMESTAMP NOT NULL DEFAULT '2026-01-01 00:00:00', \
                 CHECK (at > '2020-01-01 12:00:00')) CHARSET = utf8mb4",
                "CREATE TABLE s.lost (id INT PRIMARY KEY, a TEXT DEFAULT (CONCAT(_utf8mb4'é','x')), \
                 `è` VARCHAR(20) DEFAULT (CONCAT(_utf8mb4'é','x')) COMMENT 'x') CHARSET = utf8mb4",
            ],
        );
        let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
        assert_eq!(report.view.misprinted_defaults, ["s.lost.è"], "{kind}");
        let loaded = start(kind);
        let report = load(&stage, backup, &options(&loaded)).unwrap();
        let adapted = said(&report.plan.adapted);
        assert!(!adapted.contains("s.d:"), "{adapted}");
        let lost = "table s.lost: column è gets the default that the source prints, concat(_utf8mb4'xC3xA9','x'), and";
        assert!(adapted.contains(lost), "{adapted}");
        let scripted = start(kind);
        crate::logical::load(&scripted, &stage.script(backup, None));
        let other = start(ServerKind::MySql97);
        load(&stage, backup, &LoadOptions { leave_out: true, ..options(&other) }).unwrap();
        for server in [&loaded, &scripted] {
            assert_same_objects(&stage.source, server);
        }
        for server in [&stage.source, &loaded, &scripted, &other] {
            let found = new_row(server, "d", "a, b, c, d, v, CONVERT(w USING utf8mb4), day = DATE(word)");
            assert_eq!(found, "¿Qué?|😀|it's? é|Sure?|é😀?|é?|1", "{kind}");
        }
    }
    let (stage, backup) = backed_up(
        ServerKind::MySql97,
        &[
            "CREATE DATABASE s",
            "CREATE TABLE s.d (id INT PRIMARY KEY, a VARCHAR(9) DEFAULT 'o', v VARCHAR(30) AS (CONCAT(a, 'é')) VIRTUAL, \
             c TEXT DEFAULT ('¿Qué'), CHECK (a <> 'ö')) CHARSET = utf8mb4 COLLATE = utf8mb4_bin",
        ],
    );
    let target = start(ServerKind::MariaDb118);
    load(&stage, backup, &LoadOptions { leave_out: true, ..options(&target) }).unwrap();
    for server in [&stage.source, &target] {
        assert_eq!(new_row(server, "d", "a, v, c"), "o|oé|¿Qué");
        assert!(server.exec("INSERT INTO s.d (id, a) VALUES (7, 'ö')").is_err(), "{}", server.kind());
    }
}

/// Changes that a server makes with only a warning are reported.
#[test]
fn tables_that_are_made_otherwise() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb1011,
        &[
            "CREATE DATABASE s",
            "CREATE TABLE s.small (id INT PRIMARY KEY, t TEXT) ROW_FORMAT = COMPRESSED KEY_BLOCK_SIZE = 8",
            "CREATE TABLE s.plain (id INT PRIMARY KEY, a INT, KEY one (a), KEY two (a))",
        ],
    );
    let target = start(ServerKind::MariaDb1011);
    target.exec("SET GLOBAL innodb_file_per_table = OFF").unwrap();
    let report = load(&stage, backup, &options(&target)).unwrap();
    let adapted = said(&report.plan.adapted);
    assert!(adapted.contains("table s.small") && adapted.contains("ROW_FORMAT"), "{adapted}");
    assert!(!adapted.contains("s.plain"), "{adapted}");
}

/// A server may be set to start a transaction as soon as one has ended; our sessions override that.
#[test]
fn transactions_end_where_they_end() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb1011,
        &["CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY)", "INSERT INTO s.t VALUES (1)"],
    );
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        for how in ["CHAIN", "RELEASE"] {
            let target = start(kind);
            target.exec(format!("SET GLOBAL completion_type = '{how}'")).unwrap();
            let chosen = LoadOptions {
                selection: Selection { without_accounts: true, ..Selection::default() },
                leave_out: true,
                ..options(&target)
            };
            load(&stage, backup, &chosen).unwrap();
            assert_eq!(target.query::<i32>("SELECT id FROM s.t").unwrap(), [1], "{kind} {how}");
        }
    }
}
