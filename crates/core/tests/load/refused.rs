//! Objects that only the server can refuse, or that it would accept and change.

use std::{fs, path::PathBuf};

use holdfast_core::ErrorKind;

use super::{other_servers::said, *};
use crate::listeners::Warnings;

/// Dates of timestamps may be different in UTC, in which a load computes them: the load does not begin
/// without reporting that.
fn computed_in_another_zone(kind: ServerKind) {
    let stage = Stage::new(kind);
    stage
        .source
        .exec_all([
            "SET GLOBAL time_zone = '+02:00'",
            "SET time_zone = '+02:00'",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, at TIMESTAMP NULL, \
             day DATE GENERATED ALWAYS AS (DATE(at)) STORED, seen DATE GENERATED ALWAYS AS (DATE(at)) VIRTUAL, KEY (day))",
            "INSERT INTO shop.orders (id, at) VALUES (1, '2026-05-01 00:30:00'), (2, '2026-05-01 12:00:00'), (3, NULL)",
        ])
        .unwrap();
    let day = "SELECT CONCAT(id, ' ', COALESCE(day, '-')) FROM shop.orders ORDER BY id";
    let days = stage.source.query::<String>(day).unwrap();
    assert_eq!(days, ["1 2026-05-01", "2 2026-05-01", "3 -"]);
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let target = start(kind);
    let error = load(&stage, backup, &options(&target)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    let text = error.to_string();
    assert!(
        text.contains("the values of column day of table shop.orders") && text.contains("+02:00"),
        "{text}"
    );
    assert!(!text.contains("seen"), "{text}");
    let report = load(&stage, backup, &LoadOptions { leave_out: true, ..options(&target) }).unwrap();
    // The report says both that they may differ, and that they do.
    let left_out = said(&report.plan.left_out);
    assert_eq!(left_out.matches("the values of column day of table shop.orders").count(), 2, "{left_out}");
    assert_eq!(report.plan.left_out.len(), 2, "{left_out}");
    assert_eq!(target.query::<String>(day).unwrap()[0], "1 2026-04-30", "then nothing is to be said");
    // Follow its advice.
    target.exec_all(["SET time_zone = '+02:00'", "ALTER TABLE shop.orders FORCE, ALGORITHM = COPY"]).unwrap();
    assert_eq!(target.query::<String>(day).unwrap(), days);

    // Sessions in UTC have computed the same values as a load.
    stage
        .source
        .exec_all([
            "SET GLOBAL time_zone = '+00:00'",
            "SET time_zone = '+00:00'",
            "ALTER TABLE shop.orders FORCE, ALGORITHM = COPY",
        ])
        .unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    load(&stage, backup, &LoadOptions { overwrite: true, ..options(&target) }).unwrap();
    assert_clean(&target);
}

#[test]
fn mariadb_11_8_days_of_another_zone_are_named() {
    computed_in_another_zone(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_days_of_another_zone_are_named() {
    computed_in_another_zone(ServerKind::MySql97);
}

/// A table that the other server refuses is detected before rows are loaded; a stored program, at the end:
/// the same command with `--leave-out` continues without it.
#[test]
fn another_server_refuses_a_table_before_rows_and_programs_by_name() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb118,
        &[
            "CREATE DATABASE shop",
            "CREATE TABLE shop.large (id INT PRIMARY KEY, v VARCHAR(100))",
            "INSERT INTO shop.large SELECT seq, REPEAT(seq, 9) FROM shop.seq_1_to_20000",
            "CREATE TABLE shop.odd (id INT PRIMARY KEY, v VARCHAR(40) DEFAULT (sformat('{}', 1)))",
            "CREATE PROCEDURE shop.odd () FOR i IN 1 .. 3 DO SELECT i; END FOR",
            "CREATE PROCEDURE shop.plain () SELECT COUNT(*) FROM large",
        ],
    );
    let target = start(ServerKind::MySql97);
    let all = Selection { without_accounts: true, ..Selection::default() };
    let chosen = LoadOptions { selection: all.clone(), ..options(&target) };
    let error = load(&stage, backup, &chosen).unwrap_err().to_string();
    assert!(error.contains("load table shop.odd"), "{error}");
    assert_eq!(target.query::<u64>("SELECT COUNT(*) FROM shop.large").unwrap(), [0]);
    target.exec_all(["DROP DATABASE holdfast_load", "DROP DATABASE shop"]).unwrap();

    let selection = Selection { tables_excluded: vec!["shop.odd".parse().unwrap()], ..all };
    let chosen = LoadOptions { selection, ..chosen };
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.to_string().contains("make procedure shop.odd"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--leave-out")), "{error:?}");
    let report = load(&stage, backup, &LoadOptions { leave_out: true, ..chosen }).unwrap();
    assert!(report.plan.is_continued);
    let left_out = said(&report.plan.left_out);
    assert!(left_out.contains("procedure shop.odd: the target refuses it"), "{left_out}");
    let programs = "SELECT routine_name FROM information_schema.routines WHERE routine_schema = 'shop'";
    assert_eq!(target.query::<String>(programs).unwrap(), ["plain"]);
    assert_eq!(target.query::<u64>("CALL shop.plain()").unwrap(), [20_000]);
    assert_clean(&target);
}

/// Accounts whose plugin the target lacks, and privileges that it does not support.
#[test]
fn accounts_that_cannot_be_are_named_and_all_others_are_there() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb1011,
        &[
            "INSTALL SONAME 'auth_ed25519'",
            "CREATE USER strong@localhost IDENTIFIED VIA ed25519 USING PASSWORD('x')",
            "GRANT SELECT ON *.* TO strong@localhost",
            "CREATE USER files@localhost IDENTIFIED BY 'secret'",
            "GRANT SELECT, FILE, INSERT ON *.* TO files@localhost",
        ],
    );
    let target = start(ServerKind::MariaDb1011);
    target
        .exec_all([
            "CREATE USER loader@localhost",
            "GRANT ALL PRIVILEGES ON *.* TO loader@localhost WITH GRANT OPTION",
            "REVOKE FILE ON *.* FROM loader@localhost",
        ])
        .unwrap();
    let mut chosen = options(&target);
    chosen.connect.user = Some("loader".to_owned());
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.to_string().contains("make account 'strong'@'localhost'"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--leave-out")), "{error:?}");
    let report = load(&stage, backup, &LoadOptions { leave_out: true, ..chosen }).unwrap();
    let left_out = said(&report.plan.left_out);
    assert!(left_out.contains("account 'strong'@'localhost': the target refuses it"), "{left_out}");
    assert!(
        left_out.contains("GRANT FILE ON *.* TO `files`@`localhost`: the target refuses it"),
        "{left_out}"
    );
    assert!(!left_out.contains("secret") && !left_out.contains("IDENTIFIED"), "{left_out}");
    // It does not exist in a weaker form either, without a password.
    assert!(
        left_out.contains("what account 'strong'@'localhost' may do: the account does not exist"),
        "{left_out}"
    );
    assert_eq!(target.query::<u64>("SELECT COUNT(*) FROM mysql.user WHERE user = 'strong'").unwrap(), [0]);
    let grants = target.query::<String>("SHOW GRANTS FOR files@localhost").unwrap();
    assert!(grants[0].starts_with("GRANT SELECT, INSERT ON *.*"), "{grants:?}");
    assert_clean(&target);
}

/// Partial revokes are as important as grants.
#[test]
fn what_is_taken_back_is_not_left_out() {
    let (stage, backup) = backed_up(
        ServerKind::MySql97,
        &[
            "SET GLOBAL partial_revokes = ON",
            "CREATE DATABASE crm",
            "CREATE USER b@localhost",
            "GRANT SELECT ON *.* TO b@localhost",
            "REVOKE SELECT ON crm.* FROM b@localhost",
        ],
    );
    let target = start(ServerKind::MySql97);
    let chosen = LoadOptions { leave_out: true, ..options(&target) };
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.to_string().contains("REVOKE SELECT ON `crm`.*"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("partial_revokes")), "{error:?}");
    target.exec("SET GLOBAL partial_revokes = ON").unwrap();
    load(&stage, backup, &chosen).unwrap();
    let grants = |server: &Server| server.query::<String>("SHOW GRANTS FOR b@localhost").unwrap();
    assert_eq!(grants(&target), grants(&stage.source));
    assert_clean(&target);
}

/// Rows that exist on only one member of a group are lost when another member becomes the primary.
#[test]
fn a_group_is_loaded_as_a_group() {
    let (stage, backup) = backed_up(
        ServerKind::MySql97,
        &[
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, v INT, KEY (v))",
            "INSERT INTO shop.orders VALUES (1, 2), (2, 3)",
        ],
    );
    let target = crate::server::group_of_one();
    let error = load(&stage, backup, &LoadOptions { without_binlog: true, ..options(&target) }).unwrap_err();
    assert!(error.to_string().contains("member of a group"), "{error}");
    load(&stage, backup, &options(&target)).unwrap();
    assert_eq!(target.query::<i32>("SELECT v FROM shop.orders ORDER BY id").unwrap(), [2, 3]);
    assert_clean(&target);
    target.exec("STOP GROUP_REPLICATION").unwrap();
}

/// An event on a replica was replicated from its primary, and is disabled there.
#[test]
fn events_of_a_replica_are_named() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb118,
        &[
            "CREATE DATABASE shop",
            "CREATE EVENT shop.theirs ON SCHEDULE EVERY 1 DAY DISABLE ON SLAVE DO SELECT 1",
            "CREATE EVENT shop.ours ON SCHEDULE EVERY 1 DAY DISABLE DO SELECT 'DISABLE ON SLAVE'",
        ],
    );
    let target = start(ServerKind::MariaDb118);
    let report = load(&stage, backup, &options(&target)).unwrap();
    let adapted = said(&report.plan.adapted);
    assert!(adapted.contains("event shop.theirs: it was disabled as on a replica"), "{adapted}");
    assert!(!adapted.contains("shop.ours"), "{adapted}");
    assert_clean(&target);
}

/// A damaged pack must not cost the existing table, too.
#[test]
fn what_is_overwritten_stays_if_the_backup_cannot_be_read() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb1011,
        &[
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, v VARCHAR(500))",
            "INSERT INTO shop.orders SELECT seq, CONCAT(SHA2(seq, 512), SHA2(-seq, 512)) FROM shop.seq_1_to_20000",
        ],
    );
    stage.source.exec("DELETE FROM shop.orders WHERE id > 3").unwrap();
    let packs = fs::read_dir(stage.repo_dir().join("sources/db1/logical/packs")).unwrap();
    let packs = packs.map(|entry| entry.unwrap().path());
    let largest: PathBuf = packs.max_by_key(|pack| fs::metadata(pack).unwrap().len()).unwrap();
    let whole = fs::read(&largest).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&largest, damaged).unwrap();
    let selection = Selection { without_accounts: true, ..Selection::default() };
    let chosen = LoadOptions { selection, overwrite: true, ..options(&stage.source) };
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert_eq!(stage.source.query::<u64>("SELECT COUNT(*) FROM shop.orders").unwrap(), [3], "{error}");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains("shop.orders, before the existing one is dropped"), "{error}");
    assert_clean(&stage.source);

    fs::write(&largest, whole).unwrap();
    load(&stage, backup, &chosen).unwrap();
    assert_eq!(stage.source.query::<u64>("SELECT COUNT(*) FROM shop.orders").unwrap(), [20_000]);
    assert_clean(&stage.source);
}

/// Foreign keys come after hours of rows: one that the target refuses is left out if the user wants that, and the
/// others are made.
#[test]
fn foreign_keys_that_the_target_refuses_are_named() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb1011,
        &[
            "CREATE DATABASE shop",
            "CREATE TABLE shop.customers (id INT PRIMARY KEY)",
            "CREATE TABLE shop.articles (id INT PRIMARY KEY)",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, customer INT, article INT, \
             CONSTRAINT of_article FOREIGN KEY (article) REFERENCES shop.articles (id), \
             CONSTRAINT of_customer FOREIGN KEY (customer) REFERENCES shop.customers (id))",
            "INSERT INTO shop.customers VALUES (1)",
            "INSERT INTO shop.articles VALUES (1)",
            "INSERT INTO shop.orders VALUES (1, 1, 1)",
        ],
    );
    for kind in ServerKind::all_kinds().into_iter().filter(|kind| kind.is_mariadb()) {
        let target = start(kind);
        target
            .exec_all([
                "CREATE DATABASE shop",
                // Another type, and another customer.
                "CREATE TABLE shop.customers (id BIGINT PRIMARY KEY)",
                "CREATE TABLE shop.articles (id INT PRIMARY KEY)",
                "INSERT INTO shop.articles VALUES (1)",
            ])
            .unwrap();
        let selection = Selection { tables: vec!["shop.orders".parse().unwrap()], ..Selection::default() };
        let chosen = LoadOptions { selection, ..options(&target) };
        let error = load(&stage, backup, &chosen).unwrap_err();
        assert!(error.to_string().contains("add the foreign keys of table shop.orders"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("--leave-out")), "{error:?}");
        let report = load(&stage, backup, &LoadOptions { leave_out: true, ..chosen }).unwrap();
        assert!(report.plan.is_continued);
        let left_out = said(&report.plan.left_out);
        assert!(
            left_out.contains("the foreign key of_customer of table shop.orders: the target refuses it"),
            "{left_out}"
        );
        assert_eq!(report.plan.left_out.len(), 1, "{left_out}");
        let keys = "SELECT constraint_name FROM information_schema.referential_constraints WHERE constraint_schema = 'shop'";
        assert_eq!(target.query::<String>(keys).unwrap(), ["of_article"]);
        assert_eq!(target.query::<i32>("SELECT article FROM shop.orders").unwrap(), [1]);
        assert_clean(&target);
    }
}

/// A name that was mistyped spares nothing: a load with `--overwrite` would drop the table. A backup has more than
/// was wanted, and says so.
#[test]
fn names_that_exclude_nothing_are_told() {
    let (stage, backup) = backed_up(
        ServerKind::MariaDb1011,
        &[
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
            "CREATE VIEW shop.shown AS SELECT id FROM shop.orders",
            "CREATE SEQUENCE shop.numbers",
        ],
    );
    let without = |tables: &[&str]| Selection {
        tables_excluded: tables.iter().map(|table| table.parse().unwrap()).collect(),
        ..Selection::default()
    };
    let chosen = |selection| LoadOptions { selection, overwrite: true, ..options(&stage.source) };
    let plan =
        |selection| load::plan(&stage.repo, &log(), RunNo(backup), &chosen(selection), &Cancel::default());
    for (selection, unknown) in [
        (without(&["shop.ordres"]), "no table shop.ordres"),
        (without(&["shop.Orders", "shop.shown"]), "no table shop.Orders"),
        (
            Selection { schemas_excluded: vec!["shops".parse().unwrap()], ..Selection::default() },
            "no database shops",
        ),
    ] {
        let error = plan(selection.clone()).unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(unknown), "{error}");
        let heard = Warnings::default();
        let taken = holdfast_core::logical::run(
            &stage.repo,
            &stage.options(),
            &selection,
            &heard,
            &Cancel::default(),
        );
        taken.unwrap();
        assert!(heard.heard().iter().any(|text| text.contains(unknown)), "{:?}", heard.heard());
    }
    // Patterns are for what may come.
    plan(without(&["shop.tmp_*", "shop.shown", "shop.numbers"])).unwrap();
    // What the backup left out by the same name is spared, too.
    let selection = without(&["shop.orders"]);
    let of_rest = stage.back_up(&stage.options(), &selection).unwrap().run.backup;
    let options = LoadOptions { leave_out: true, ..chosen(selection) };
    load::plan(&stage.repo, &log(), RunNo(of_rest), &options, &Cancel::default()).unwrap();
}
