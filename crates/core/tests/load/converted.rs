//! Conversions to other engines and other character sets, on request.

use super::*;

fn conversions(engines: &[&str], charsets: &[&str]) -> Conversions {
    let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    Conversions { engines: all(engines), charsets: all(charsets) }
}

/// Every character of latin1, in keys, long texts and members, in tables of a non-transactional engine.
fn old_shop(kind: ServerKind) -> (Stage, u64) {
    let stage = Stage::new(kind);
    stage
        .source
        .exec_all([
            "CREATE DATABASE old CHARACTER SET latin1",
            "CREATE TABLE old.t (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(40) NOT NULL DEFAULT 'ä',
             tag VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL, note TINYTEXT,
             size ENUM('groß','klein') NOT NULL, other VARCHAR(10) CHARACTER SET utf8mb4, raw VARBINARY(9),
             twice VARCHAR(80) GENERATED ALWAYS AS (CONCAT(name, name)) STORED,
             UNIQUE KEY tags (tag), KEY names (name), FULLTEXT KEY notes (note)) ENGINE=MyISAM ROW_FORMAT=DYNAMIC",
            "CREATE TABLE old.named (name VARCHAR(20) PRIMARY KEY) ENGINE=InnoDB",
            "CREATE TABLE old.uses (id INT PRIMARY KEY, name VARCHAR(20), CONSTRAINT leads FOREIGN KEY (name) REFERENCES old.named (name)) ENGINE=InnoDB",
            "INSERT INTO old.named VALUES (_latin1 x'E4F6FC'), ('b')",
            "INSERT INTO old.uses VALUES (1, _latin1 x'E4F6FC'), (2, 'b')",
            "CREATE FUNCTION old.greet (who VARCHAR(20)) RETURNS VARCHAR(40) DETERMINISTIC RETURN CONCAT('ä', who)",
            "CREATE VIEW old.v AS SELECT name, size FROM old.t",
        ])
        .unwrap();
    for byte in 0..=255_u8 {
        let digits = format!("{byte:02X}");
        stage
            .source
            .exec(format!(
                "INSERT INTO old.t (name, tag, note, size, other, raw) VALUES (_latin1 x'61{digits}', _latin1 x'{digits}2E', \
                 REPEAT(_latin1 x'{digits}', 255), 1 + {byte} % 2, '€😀', x'{digits}')"
            ))
            .unwrap();
    }
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    (stage, backup)
}

/// The contents of every row, independent of their encoding.
fn rows(server: &Server) -> Vec<String> {
    let said = "CONCAT_WS(' ', id, HEX(CONVERT(name USING utf8mb4)), HEX(CONVERT(tag USING utf8mb4)), \
                HEX(CONVERT(note USING utf8mb4)), HEX(CONVERT(size USING utf8mb4)), size + 0, \
                HEX(CONVERT(other USING utf8mb4)), HEX(raw), HEX(CONVERT(twice USING utf8mb4)))";
    server.query(format!("SELECT {said} FROM old.t ORDER BY id")).unwrap()
}

fn becomes_what_is_asked_for(kind: ServerKind) {
    let (stage, backup) = old_shop(kind);
    let chosen = conversions(&["MyISAM=InnoDB"], &["latin1=utf8mb4"]);
    for has_local_infile in [true, false] {
        let target = start(kind);
        target.exec(format!("SET GLOBAL local_infile = {}", u8::from(has_local_infile))).unwrap();
        // Otherwise rows would be sent as parameters, as in other tests.
        target.exec("SET GLOBAL max_prepared_stmt_count = 0").unwrap();
        let options = LoadOptions { conversions: chosen.clone(), ..options(&target) };
        let report = load(&stage, backup, &options).unwrap();
        assert_eq!((report.by_load_data, report.tables_verified), (has_local_infile, 3));
        for (loaded, source) in rows(&target).iter().zip(&rows(&stage.source)) {
            assert_eq!(loaded, source);
        }
        let left: Vec<String> = target
            .query(
                "SELECT CONCAT(table_name, '.', column_name) FROM information_schema.columns \
                 WHERE table_schema = 'old' AND character_set_name = 'latin1'",
            )
            .unwrap();
        assert_eq!(left, Vec::<String>::new());
        let now: Vec<(String, String)> = target
            .query("SELECT engine, table_collation FROM information_schema.tables WHERE table_schema = 'old' AND table_type = 'BASE TABLE'")
            .unwrap();
        assert!(now.iter().all(|(engine, it)| engine == "InnoDB" && it.starts_with("utf8mb4_")), "{now:?}");
        let of_column = |column: &str| -> Vec<(String, String)> {
            let query = format!(
                "SELECT CONCAT(data_type, ''), collation_name FROM information_schema.columns \
                 WHERE table_schema = 'old' AND table_name = 't' AND column_name = '{column}'"
            );
            target.query(query).unwrap()
        };
        assert_eq!(of_column("tag"), [("varchar".to_owned(), "utf8mb4_bin".to_owned())]);
        assert_eq!(of_column("note")[0].0, "text");
        // Text that refers to other text, and objects created when the database has another default.
        target.exec("INSERT INTO old.uses VALUES (3, 'c')").unwrap_err();
        assert_eq!(
            target.query::<String>("SELECT HEX(CONVERT(old.greet('ö') USING utf8mb4))").unwrap(),
            ["C3A4C3B6"]
        );
        let named: Vec<String> = report.plan.adapted.iter().map(ToString::to_string).collect();
        for expected in [
            "database old: its default collation latin1_swedish_ci becomes utf8mb4_",
            "table old.t: engine MyISAM becomes InnoDB",
            "table old.t: collation latin1_bin becomes utf8mb4_bin",
            "table old.t: column note of tinytext becomes text: its characters may take more bytes",
            "table old.named: character set latin1 becomes utf8mb4",
        ] {
            assert!(named.iter().any(|it| it.starts_with(expected)), "{expected} is not in {named:#?}");
        }
        assert_clean(&target);
    }
}

#[test]
fn mariadb_10_11_becomes_what_is_asked_for() {
    becomes_what_is_asked_for(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_becomes_what_is_asked_for() {
    becomes_what_is_asked_for(ServerKind::MySql97);
}

/// Impossible conversions are refused, before anything is touched if they can be detected by then.
#[test]
fn what_cannot_be_is_refused() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb118,
        &[
            "CREATE DATABASE new",
            "CREATE TABLE new.t (id INT PRIMARY KEY, a VARCHAR(9) CHARACTER SET utf8mb4)",
            "INSERT INTO new.t VALUES (1, 'a'), (2, '😀')",
            "CREATE TABLE new.counted (a INT, c INT AUTO_INCREMENT, PRIMARY KEY (a, c)) ENGINE=Aria",
            "CREATE TABLE new.child (id INT PRIMARY KEY, CONSTRAINT leads FOREIGN KEY (id) REFERENCES new.t (id))",
        ],
    );
    let target = start(ServerKind::MariaDb118);
    let attempt = |engines: &[&str], charsets: &[&str]| LoadOptions {
        conversions: conversions(engines, charsets),
        ..options(&target)
    };
    for (chosen, expected) in [
        (attempt(&["MyISAM=InnoDB"], &[]), "--engine MyISAM=InnoDB: the backup, as selected, has nothing"),
        (attempt(&[], &["koi8r=utf8mb4"]), "--charset koi8r=utf8mb4: the backup, as selected, has nothing"),
        (attempt(&["InnoDB=Toku"], &[]), "the target has no engine Toku"),
        (attempt(&[], &["utf8mb4=klingon"]), "the target has no character set klingon"),
        (attempt(&["InnoDB=MRG_MyISAM"], &[]), "the engine MRG_MyISAM keeps no rows"),
        (attempt(&[], &["utf8mb4=binary"]), "text does not become bytes"),
        (attempt(&["Aria=InnoDB"], &[]), "new.counted: its AUTO_INCREMENT column is not the first"),
    ] {
        let error = load(&stage, backup, &chosen).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(target.query::<String>("SHOW DATABASES LIKE 'new'").unwrap(), Vec::<String>::new());
    }
    // Characters that the new character set lacks are detected.
    for verify in [true, false] {
        let chosen = LoadOptions { verify, overwrite: true, ..attempt(&[], &["utf8mb4=latin1"]) };
        let error = load(&stage, backup, &chosen).unwrap_err();
        assert!(error.to_string().contains("new.t"), "{error}");
    }
    target.exec_all(["DROP DATABASE new", "DROP DATABASE holdfast_load"]).unwrap();
    let report = load(&stage, backup, &attempt(&["InnoDB=Aria"], &[])).unwrap();
    let named: Vec<String> = report.plan.adapted.iter().map(ToString::to_string).collect();
    assert!(
        named.contains(&"table new.child: foreign key leads is left out: Aria has none".to_owned()),
        "{named:#?}"
    );
    assert_same_rows(&stage.source, &target);
}

/// Members are not read back, so conversions that may turn them into others are refused; so are tables
/// composed of tables whose engine changes.
#[test]
fn what_nobody_would_find_out_is_refused() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb118,
        &[
            "CREATE DATABASE new CHARACTER SET utf8mb4 COMMENT 'of old'",
            "CREATE TABLE new.plain (id INT PRIMARY KEY, e ENUM('a','b'), s SET('x','y'), t TEXT)",
            "CREATE TABLE new.letters (id INT PRIMARY KEY, e ENUM('Łódź','b'), t TEXT)",
            "CREATE TABLE new.faces (id INT PRIMARY KEY, e SET('😀','b'), t TEXT)",
            "CREATE TABLE new.part (id INT PRIMARY KEY) ENGINE=MyISAM",
            "CREATE TABLE new.merged (id INT PRIMARY KEY) ENGINE=MRG_MyISAM UNION=(new.part)",
            "INSERT INTO new.plain VALUES (1, 'b', 'x,y', 'ä')",
        ],
    );
    let target = start(ServerKind::MariaDb118);
    let attempt = |leave_out, engines: &[&str], charsets: &[&str]| LoadOptions {
        conversions: conversions(engines, charsets),
        leave_out,
        ..options(&target)
    };
    let members = "has every character of the members of its column e";
    for (chosen, expected) in [
        (attempt(false, &[], &["utf8mb4=latin1"]), vec!["new.letters", "new.faces", members]),
        (attempt(false, &[], &["utf8mb4=utf16"]), vec!["new.faces", members]),
        (attempt(false, &["MyISAM=InnoDB"], &[]), vec!["new.merged", "would no longer be MyISAM"]),
        (attempt(false, &[], &["utf8mb4=utf16", "utf8mb4=ucs2"]), vec!["utf8mb4 is given two conversions"]),
    ] {
        let error = load(&stage, backup, &chosen).unwrap_err();
        assert!(expected.iter().all(|expected| error.to_string().contains(expected)), "{error}");
        assert_eq!(target.query::<String>("SHOW DATABASES LIKE 'new'").unwrap(), Vec::<String>::new());
    }
    load(&stage, backup, &attempt(true, &[], &["utf8mb4=latin1"])).unwrap();
    assert_eq!(target.query::<String>("SHOW TABLES IN new").unwrap(), ["merged", "part", "plain"]);
    let row: Vec<String> = target.query("SELECT CONCAT_WS(' ', e, s, HEX(t)) FROM new.plain").unwrap();
    assert_eq!(row, ["b x,y E4"]);
    let said: Vec<String> = target
        .query("SELECT schema_comment FROM information_schema.schemata WHERE schema_name = 'new'")
        .unwrap();
    assert_eq!(said, ["of old"]);
}

/// Text that differs in its new character set refers to other rows, and everything with a
/// default has the same default.
#[test]
fn what_text_leads_to_is_compared() {
    let (stage, backup) = backed_up(
        ServerKind::MySql97,
        &[
            "CREATE DATABASE old CHARACTER SET latin1",
            "CREATE TABLE old.parent (name VARCHAR(9) PRIMARY KEY, other VARCHAR(9) COLLATE latin1_swedish_ci)",
            "CREATE TABLE old.child (id INT PRIMARY KEY, name VARCHAR(9), note TINYTEXT, twice TEXT AS (CONCAT(note, note)),
             CONSTRAINT leads FOREIGN KEY (name) REFERENCES old.parent (name))",
            "INSERT INTO old.parent VALUES ('b', NULL)",
            // Equal if trailing spaces do not count.
            "INSERT INTO old.child (id, name) VALUES (1, 'b ')",
        ],
    );
    let chosen = |target: &Server| LoadOptions {
        conversions: conversions(&[], &["latin1=utf8mb4"]),
        ..options(target)
    };
    let target = start(ServerKind::MySql97);
    let error = load(&stage, backup, &chosen(&target)).unwrap_err();
    assert!(error.to_string().contains("old.child"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--charset")), "{error}");

    let target = start(ServerKind::MariaDb118);
    let all_but_accounts = LoadOptions { leave_out: true, ..chosen(&target) };
    let report = load(&stage, backup, &all_but_accounts).unwrap();
    let named: Vec<String> = report.plan.adapted.iter().map(ToString::to_string).collect();
    let computed = "table old.child: column twice is computed again, from text in another character set";
    assert!(named.iter().any(|it| it == computed), "{named:#?}");
    let collations: Vec<String> = target
        .query(
            "SELECT default_collation_name FROM information_schema.schemata WHERE schema_name = 'old'
             UNION SELECT table_collation FROM information_schema.tables WHERE table_schema = 'old'
             UNION SELECT collation_name FROM information_schema.columns WHERE table_schema = 'old'
             AND collation_name IS NOT NULL",
        )
        .unwrap();
    assert_eq!(collations.len(), 1, "{collations:?}");
}
