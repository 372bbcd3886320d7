//! Full-text indexes, which are built when the rows are in, one after the other.

use super::*;

/// Each is built by a statement of its own, the first together with the other indexes, and finds what it found.
fn full_texts_are_built_after_the_rows(kind: ServerKind) {
    let (stage, backup) = backed_up(
        kind,
        &[
            "CREATE DATABASE shop",
            "CREATE TABLE shop.books (id INT PRIMARY KEY AUTO_INCREMENT, title VARCHAR(200), about TEXT, year INT, \
             shown VARCHAR(210) AS (CONCAT(title, ' ', year)) VIRTUAL, place POINT NOT NULL, \
             FULLTEXT words (title, about), KEY years (year), KEY shown (shown), FULLTEXT titles (title), \
             SPATIAL KEY places (place))",
            "CREATE TABLE shop.ten (n INT)",
            "INSERT INTO shop.ten VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)",
            "INSERT INTO shop.books (title, about, year, place) \
             SELECT CONCAT('title', n, ' of ', SHA2(n, 256)), CONCAT('about', n % 40, REPEAT(CONCAT(' ', LEFT(SHA2(n, 256), 32)), 9)), \
             1900 + n % 100, POINT(n, n) \
             FROM (SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n AS n FROM shop.ten a, shop.ten b, shop.ten c, shop.ten d \
             WHERE d.n < 5) AS numbers",
        ],
    );
    let target = start(kind);
    let selection = Selection { without_accounts: true, ..Selection::default() };
    let report = load(&stage, backup, &LoadOptions { selection, ..options(&target) }).unwrap();
    assert_eq!((report.rows_loaded, report.tables_verified), (5_010, 2));
    assert_eq!(report.plan.adapted, []);
    assert_same_objects(&stage.source, &target);
    for (columns, word, count) in
        [("title", "title4711", 1), ("title, about", "about7", 125), ("title, about", "title33", 1)]
    {
        let query = format!("SELECT COUNT(*) FROM shop.books WHERE MATCH ({columns}) AGAINST ('{word}')");
        assert_eq!(target.query::<u64>(query).unwrap(), [count], "{kind}: {word}");
    }
    let mut built = Vec::new();
    for file in target.query::<mysql::Row>("SHOW BINARY LOGS").unwrap() {
        let file: String = file.get(0).unwrap();
        let events: Vec<mysql::Row> = target.query(format!("SHOW BINLOG EVENTS IN '{file}'")).unwrap();
        let statements = events.iter().map(|event| event.get::<String, _>("Info").unwrap());
        built.extend(statements.filter(|statement| statement.contains("ADD FULLTEXT")));
    }
    assert_eq!(built.len(), 2, "{kind}: {built:?}");
    assert!(built[0].contains("`words`") && built[0].contains("`years`"), "{kind}: {built:?}");
    assert_clean(&target);
}

#[test]
fn full_texts_of_mariadb_10_11_are_built_after_the_rows() {
    full_texts_are_built_after_the_rows(ServerKind::MariaDb1011);
}

#[test]
fn full_texts_of_mariadb_11_8_are_built_after_the_rows() {
    full_texts_are_built_after_the_rows(ServerKind::MariaDb118);
}

#[test]
fn full_texts_of_mysql_9_7_are_built_after_the_rows() {
    full_texts_are_built_after_the_rows(ServerKind::MySql97);
}
