//! Into another flavor: rows are what they were, and what is not is listed.

use holdfast_core::logical::load::Adaptation;

use super::*;

fn said(all: &[Adaptation]) -> String {
    all.iter().map(|it| format!("{it}\n")).collect()
}

/// Loads everything that can be, and compares rows by what both servers say of a few of them; all are verified.
fn across(source: ServerKind, target: ServerKind, adapted: &[&str], left_out: &[&str]) {
    let stage = Stage::new(source);
    load_file(&stage.source, "torture.sql");
    load_file(&stage.source, if source.is_mariadb() { "torture-mariadb.sql" } else { "torture-mysql.sql" });
    if source.is_mariadb() {
        // MySQL has constraints that cannot be passed by.
        stage.source.exec("DELETE FROM torture.documents WHERE j = 'not json'").unwrap();
    }
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().backup;
    let target = start(target);
    let refused = load(&stage, backup, &options(&target)).unwrap_err();
    assert!(refused.to_string().contains("cannot be on the target"), "{refused}");
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

#[test]
fn from_mysql_into_mariadb() {
    let left_out = [
        "table torture.own_types: v is of vectors, which the target does not have",
        "accounts (--without-accounts)",
    ];
    let adapted = [
        "collation utf8mb4_0900_ai_ci becomes utf8mb4_uca1400_nopad_ai_ci",
        "table torture.documents: column j of JSON becomes LONGTEXT",
        "table torture.expression_keys: index many is left out",
        "table torture.geographic: column p takes any spatial reference system",
        "table torture.unseen_index: constraint c is left out",
    ];
    across(ServerKind::MySql97, ServerKind::MariaDb1011, &adapted, &left_out);
}

#[test]
fn from_mariadb_into_an_older_one() {
    let left_out = ["table torture.versioned: rows that are not past end in another year"];
    across(ServerKind::MariaDb118, ServerKind::MariaDb1011, &[], &left_out);
}
