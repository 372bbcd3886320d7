//! Loads into another flavor: rows are preserved, and deviations are listed.

use holdfast_core::logical::load::Adaptation;

use super::*;

pub(super) fn said(all: &[Adaptation]) -> String {
    all.iter().map(|it| format!("{it}\n")).collect()
}

/// Loads everything possible, and compares all objects and rows with the report.
fn across(source: ServerKind, target: ServerKind, adapted: &[&str], left_out: &[&str]) {
    let stage = Stage::new(source);
    load_torture(&stage.source);
    let word = if source.is_mariadb() { "COMMENT 'noted'" } else { "ENCRYPTION 'Y'" };
    stage.source.exec(format!("CREATE DATABASE noted {word}")).unwrap();
    if source.is_mariadb() {
        // MySQL has constraints that cannot be bypassed.
        stage.source.exec("DELETE FROM torture.documents WHERE j = 'not json'").unwrap();
    }
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let target = start(target);
    let refused = load(&stage, backup, &options(&target)).unwrap_err();
    assert!(refused.to_string().contains("the target cannot have"), "{refused}");
    assert!(target.query::<String>("SHOW DATABASES LIKE 'torture'").unwrap().is_empty());
    let report = load(&stage, backup, &LoadOptions { leave_out: true, ..options(&target) }).unwrap();
    let (changed, gone) = (said(&report.plan.adapted), said(&report.plan.left_out));
    for words in adapted {
        assert!(changed.contains(words), "{words}:\n{changed}");
    }
    for words in left_out {
        assert!(gone.contains(words), "{words}:\n{gone}");
    }
    assert!(report.tables_verified > 30);
    if source.is_mariadb() == target.kind().is_mariadb() {
        let create: (String, String) = target.query("SHOW CREATE DATABASE noted").unwrap().remove(0);
        assert!(create.1.contains(word), "{create:?}");
    } else {
        let (first, _) = word.split_once(' ').unwrap();
        let line =
            changed.lines().find(|line| line.starts_with("database noted:") && line.contains("nothing like"));
        assert!(line.is_some_and(|line| line.contains(first)), "{changed}");
    }
    for query in [
        "SELECT COUNT(*) FROM torture.key_text WHERE k > 'M'",
        "SELECT COUNT(*) FROM torture.texts WHERE v LIKE '%😀%'",
        "SELECT COUNT(*) FROM torture.child c JOIN torture.parent p ON p.id = c.parent",
        "SELECT COUNT(*) FROM torture.b_view",
        "SELECT COUNT(*) FROM information_schema.referential_constraints WHERE constraint_schema = 'torture'",
        "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = 'torture'",
        "SELECT COUNT(*) FROM information_schema.events WHERE event_schema = 'torture'",
        "SELECT COUNT(*) FROM torture.computed WHERE v = 2 * a AND s = CONCAT('<', id, '>') AND hidden = 6",
        "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = 'torture' AND table_name = 'computed' AND extra LIKE '%INVISIBLE%'",
    ] {
        let of = |server: &Server| server.query::<u64>(query).unwrap();
        assert_eq!(of(&stage.source), of(&target), "{query}");
    }
    random::across::compare(&stage.source, &target, &report);
    assert_clean(&target);
}

#[test]
fn from_mariadb_into_mysql() {
    let left_out = [
        "sequence torture.counted: MySQL has no sequences",
        "table torture.versioned: MySQL has no tables with history",
        "table torture.periods: MySQL has no periods",
        "table torture.by_sequence: column id draws from a sequence",
        "package torture.employee: MySQL has no packages",
        "procedure torture.oracle_style: it is to be understood under sql_mode ORACLE",
        "function torture.total: MySQL has no stored aggregate functions",
        "accounts (--without-accounts)",
    ];
    let adapted = [
        "table torture.in_aria: engine Aria becomes InnoDB",
        "table torture.own_types: column i6 of inet6 becomes varchar(39)",
        "becomes utf8mb4_0900_ai_ci",
    ];
    across(ServerKind::MariaDb118, ServerKind::MySql97, &adapted, &left_out);
}

/// MariaDB's oldest series, and the newest: it has vectors, whose tables come with them.
#[test]
fn from_mysql_into_mariadb() {
    let without_vectors = "table torture.own_types: v is of vectors, which the target does not support";
    let left_out = [without_vectors, "accounts (--without-accounts)"];
    let adapted = [
        "collation utf8mb4_0900_ai_ci becomes utf8mb4_uca1400_nopad_ai_ci",
        "table torture.documents: column j of JSON becomes LONGTEXT",
        "table torture.expression_keys: index many is left out",
        "table torture.geographic: column p takes any spatial reference system",
        "table torture.unseen_index: constraint c is left out",
    ];
    across(ServerKind::MySql97, ServerKind::MariaDb1011, &adapted, &left_out);
    across(ServerKind::MySql97, ServerKind::MariaDb118, &adapted[1..], &left_out[1..]);
}

/// If a statement names only a character set, the collation is preserved, and large tables are read in order.
#[test]
fn collations_that_are_not_said() {
    let stage = Stage::new(ServerKind::MySql97);
    stage
        .source
        .exec_all([
            "CREATE DATABASE c",
            "CREATE TABLE c.t (k VARCHAR(100) PRIMARY KEY, u VARCHAR(9) CHARACTER SET ucs2) CHARSET = utf8mb3",
            // Equal under one collation, and not under the other.
            "INSERT INTO c.t VALUES ('a', 'b'), (CONCAT('a', CONVERT(X'E2808B' USING utf8mb3)), 'c')",
        ])
        .unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let target = start(ServerKind::MariaDb118);
    let report = load(&stage, backup, &LoadOptions { leave_out: true, ..options(&target) }).unwrap();
    assert!(report.plan.adapted.iter().all(|it| !it.object.contains("c.t")), "{:?}", report.plan.adapted);
    let collations =
        "SELECT collation_name FROM information_schema.columns WHERE table_schema = 'c' ORDER BY 1";
    let found = target.query::<String>(collations).unwrap();
    assert_eq!(found, stage.source.query::<String>(collations).unwrap());
    assert_eq!(found, ["ucs2_general_ci", "utf8mb3_general_ci"]);
    assert_clean(&target);
}

#[test]
fn from_mariadb_into_an_older_one() {
    let left_out = ["table torture.versioned: current rows end in another year"];
    across(ServerKind::MariaDb118, ServerKind::MariaDb1011, &[], &left_out);
}

#[test]
fn from_mariadb_into_a_newer_one() {
    across(ServerKind::MariaDb1011, ServerKind::MariaDb118, &[], &[]);
}

/// Foreign keys may refer to non-unique columns, and tables are placed where the server puts them.
#[test]
fn keys_and_directories_of_other_servers() {
    let stage = Stage::new(ServerKind::MariaDb118);
    let outside = tempfile::tempdir_in(stage.source.datadir().parent().unwrap()).unwrap();
    stage
        .source
        .exec_all([
            "CREATE DATABASE c".to_owned(),
            "CREATE TABLE c.p (id INT, KEY (id))".to_owned(),
            "CREATE TABLE c.c (id INT, CONSTRAINT f FOREIGN KEY (id) REFERENCES c.p (id))".to_owned(),
            format!(
                "CREATE TABLE c.far (id INT PRIMARY KEY) DATA DIRECTORY = '{}'",
                outside.path().display()
            ),
            "INSERT INTO c.far VALUES (1)".to_owned(),
        ])
        .unwrap();
    let selection = Selection { without_accounts: true, ..Selection::default() };
    let backup = stage.back_up(&stage.options(), &selection).unwrap().run.backup;
    for kind in [ServerKind::MySql97, ServerKind::MariaDb118] {
        let target = start(kind);
        let files = std::fs::read_dir(outside.path().join("c")).unwrap().count();
        let report = load(&stage, backup, &options(&target)).unwrap();
        assert_eq!(std::fs::read_dir(outside.path().join("c")).unwrap().count(), files);
        assert!(said(&report.plan.adapted).contains("c.far: its files are in no directory"), "{report:?}");
        assert!(target.datadir().join("c/far.ibd").exists());
        target.exec("INSERT INTO c.c VALUES (1)").unwrap_err();
    }
}

/// Values that do not fit are detected, even if rows are not read back.
#[test]
fn values_that_the_target_does_not_hold() {
    let stage = Stage::new(ServerKind::MariaDb118);
    stage
        .source
        .exec_all([
            "CREATE DATABASE c",
            "CREATE TABLE c.t (id INT PRIMARY KEY, at TIMESTAMP NULL, e ENUM ('a'))",
            "SET sql_mode = ''",
            "INSERT INTO c.t VALUES (1, '2030-01-01', 'none')",
        ])
        .unwrap();
    let whole = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    stage.source.exec("INSERT INTO c.t VALUES (2, '2100-01-01', 'a')").unwrap();
    let late = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    for ways in [
        "max_prepared_stmt_count = 100",
        "max_prepared_stmt_count = 0, local_infile = ON",
        "max_prepared_stmt_count = 0, local_infile = OFF",
    ] {
        let target = start(ServerKind::MariaDb1011);
        target.exec(format!("SET GLOBAL {ways}")).unwrap();
        let chosen = LoadOptions { verify: false, ..options(&target) };
        load(&stage, whole, &chosen).unwrap();
        let error = load(&stage, late, &LoadOptions { overwrite: true, ..chosen }).unwrap_err();
        assert!(error.to_string().contains("the server has changed a value for column"), "{error}");
        assert!(!error.to_string().contains("2100"), "{error}");
    }
}

/// MariaDB knows MySQL's collations by name, and pads `CHAR` in its index all the same: there, statements with
/// the keys of chunks find other rows than come between them.
#[test]
fn char_keys_of_mysql_are_read_again_as_mariadb_orders_them() {
    let (stage, backup) = backed_up(
        ServerKind::MySql97,
        &[
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (k CHAR(8) COLLATE utf8mb4_0900_as_cs, v VARCHAR(1000) CHARACTER SET latin1, PRIMARY KEY (k))",
            "SET SESSION cte_max_recursion_depth = 100000",
            "INSERT INTO shop.orders WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000) \
             SELECT CONCAT(LPAD(i DIV 2, 6, '0'), IF(i % 2, CHAR(9), '')), REPEAT('x', 900) FROM n",
        ],
    );
    let target = start(ServerKind::MariaDb118);
    let selection = Selection { without_accounts: true, ..Selection::default() };
    let report = load(&stage, backup, &LoadOptions { selection, ..options(&target) }).unwrap();
    assert_eq!((report.rows_loaded, report.tables_verified), (40_000, 1));
    assert_clean(&target);
}
