//! Selected objects under other names; and deviations from the source are detected.

use std::sync::Mutex;

use holdfast_core::{ErrorKind, Event, Listener};
use holdfast_testkit::ServerOptions;

use super::{other_servers::said, *};

fn renames(all: &[&str]) -> Renames {
    Renames(all.iter().map(|text| text.parse().unwrap()).collect())
}

fn shop() -> (Stage, u64) {
    let stage = Stage::new(ServerKind::MariaDb118);
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE DATABASE other",
            "CREATE SEQUENCE shop.numbers START WITH 7",
            "CREATE TABLE shop.customers (id INT PRIMARY KEY DEFAULT (NEXT VALUE FOR shop.numbers))",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, customer INT, CONSTRAINT c FOREIGN KEY (customer) REFERENCES shop.customers (id))",
            "CREATE TABLE other.bills (id INT PRIMARY KEY, CONSTRAINT o FOREIGN KEY (id) REFERENCES shop.orders (id))",
            "INSERT INTO shop.customers VALUES (1), (2)",
            "INSERT INTO shop.orders VALUES (10, 1), (11, 2)",
            "INSERT INTO other.bills VALUES (10)",
            "CREATE VIEW shop.v AS SELECT o.id FROM shop.orders o JOIN shop.customers c ON c.id = o.customer",
            "CREATE TRIGGER shop.tr BEFORE INSERT ON shop.orders FOR EACH ROW SET NEW.customer = NEW.customer",
            "CREATE PROCEDURE shop.plain () SELECT COUNT(*) FROM orders",
        ])
        .unwrap();
    let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
    (stage, report.run.backup)
}

/// A database loaded beside itself under another name: everything in the copy refers to the copy.
#[test]
fn a_database_beside_itself() {
    let (stage, backup) = shop();
    let chosen = LoadOptions {
        selection: Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() },
        renames: renames(&["shop=shop copy"]),
        ..options(&stage.source)
    };
    // The trigger names the database of its table.
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.to_string().contains("trigger shop copy.tr"), "{error}");
    let report = load(&stage, backup, &LoadOptions { leave_out: true, ..chosen }).unwrap();
    assert_eq!(report.plan.left_out.len(), 1, "{:?}", report.plan.left_out);
    let source = &stage.source;
    source.exec("DELETE FROM `shop copy`.orders WHERE id = 11").unwrap();
    assert_eq!(source.query::<i32>("SELECT id FROM `shop copy`.v").unwrap(), [10]);
    assert_eq!(source.query::<i32>("SELECT id FROM shop.v ORDER BY id").unwrap(), [10, 11]);
    let create: Vec<(String, String)> = source.query("SHOW CREATE TABLE `shop copy`.customers").unwrap();
    assert!(create[0].1.contains("`shop copy`.`numbers`"), "{}", create[0].1);
    source.exec("INSERT INTO `shop copy`.orders VALUES (12, 99)").unwrap_err();
    source.exec("INSERT INTO shop.orders VALUES (12, 99)").unwrap_err();
    assert_clean(source);
}

/// One table loaded beside itself: its constraints get other names, and refer to the same tables.
#[test]
fn a_table_beside_itself() {
    let (stage, backup) = shop();
    let chosen = LoadOptions {
        selection: Selection { tables: vec!["shop.orders".parse().unwrap()], ..Selection::default() },
        renames: renames(&["shop.orders=shop.orders_old"]),
        leave_out: true,
        ..options(&stage.source)
    };
    load(&stage, backup, &chosen).unwrap();
    let source = &stage.source;
    assert_eq!(source.query::<i32>("SELECT id FROM shop.orders_old ORDER BY id").unwrap(), [10, 11]);
    source.exec("INSERT INTO shop.orders_old VALUES (12, 99)").unwrap_err();
    source.exec("INSERT INTO shop.orders_old VALUES (12, 2)").unwrap();
    for unknown in [renames(&["shop.nothing=shop.x"]), renames(&["nothing=x"])] {
        let error = load(&stage, backup, &LoadOptions { renames: unknown, ..chosen.clone() }).unwrap_err();
        assert!(error.to_string().contains("nothing"), "{error}");
    }
    let doubled = LoadOptions {
        selection: Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() },
        renames: renames(&["shop=new", "shop.orders=new.customers"]),
        ..chosen
    };
    let error = load(&stage, backup, &doubled).unwrap_err();
    assert!(error.to_string().contains("new.customers"), "{error}");
}

/// Runs a statement when a phase begins, or when the first rows are in.
pub(super) struct Meddler {
    conn: Mutex<mysql::Conn>,
    phase: &'static str,
    statement: &'static str,
}

impl Meddler {
    pub(super) const FIRST_ROWS: &str = "first rows";

    pub(super) fn new(target: &Server, phase: &'static str, statement: &'static str) -> Self {
        Self { conn: Mutex::new(target.conn().unwrap()), phase, statement }
    }
}

impl Listener for Meddler {
    fn event(&self, event: Event) {
        let name = match event {
            Event::Phase { name } => name,
            Event::Progress { .. } => Self::FIRST_ROWS,
            _ => return,
        };
        if name == self.phase {
            mysql::prelude::Queryable::query_drop(&mut *self.conn.lock().unwrap(), self.statement).unwrap();
        }
    }
}

/// Stops a load before keys are created.
struct Stopper(Cancel);

impl Listener for Stopper {
    fn event(&self, event: Event) {
        if matches!(event, Event::Phase { name: "keys" }) {
            self.0.cancel();
        }
    }
}

/// Someone changes a row before its table is read back, while others are being loaded: the load
/// reports that in the end.
#[test]
fn what_changes_while_others_are_loaded_is_found_out() {
    let (stage, backup) = shop();
    let target = start(ServerKind::MariaDb118);
    target.exec_all(["CREATE DATABASE shop", "CREATE SEQUENCE shop.numbers"]).unwrap();
    let selection = Selection { tables: vec!["shop.customers".parse().unwrap()], ..Selection::default() };
    let chosen = LoadOptions { selection, ..options(&target) };
    let meddler = Meddler::new(&target, Meddler::FIRST_ROWS, "UPDATE shop.customers SET id = 9 WHERE id = 2");
    let run = |listener: &dyn Listener| {
        load::run(&stage.repo, &log(), RunNo(backup), &chosen, listener, &Cancel::default())
    };
    let error = run(&meddler).unwrap_err();
    assert!(error.to_string().contains("shop.customers (other bytes in its rows)"), "{error}");
    target.exec("DROP TABLE shop.customers").unwrap();
    assert_eq!(run(&Told).unwrap().tables_verified, 1);
    assert_clean(&target);
}

/// Someone changes a row before a continued load reads everything back: the load fails and names the table.
#[test]
fn what_is_not_as_it_was_is_found_out() {
    let (stage, backup) = shop();
    let target = start(ServerKind::MariaDb118);
    let chosen = options(&target);
    let stop = Cancel::default();
    let stopped = load::run(&stage.repo, &log(), RunNo(backup), &chosen, &Stopper(stop.clone()), &stop);
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
    let meddler = Meddler::new(&target, "verify", "UPDATE shop.orders SET customer = 2 WHERE id = 10");
    let error =
        load::run(&stage.repo, &log(), RunNo(backup), &chosen, &meddler, &Cancel::default()).unwrap_err();
    assert!(error.to_string().contains("shop.orders (other bytes in its rows)"), "{error}");
    // Later runs do not accept the table either, and do not drop it by themselves, since it
    // is in use by others now.
    target.exec("INSERT INTO shop.orders VALUES (12, 1)").unwrap();
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.to_string().contains("shop.orders, shop.tr exist already"), "{error}");
    assert_eq!(target.query::<i32>("SELECT id FROM shop.orders WHERE id = 12").unwrap(), [12]);
    // A foreign key that followed the table when it was renamed must not stay with it.
    target.exec_all(["DROP TRIGGER shop.tr", "RENAME TABLE shop.orders TO shop.away"]).unwrap();
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.to_string().contains("key o of table other.bills references shop.away by now"), "{error}");
    target.exec_all(["ALTER TABLE other.bills DROP FOREIGN KEY o", "DROP TABLE shop.away"]).unwrap();
    // Once the table is gone, it is recreated with its trigger, and the rest is not checked
    // again, since it may be in use.
    target.exec("INSERT INTO shop.customers VALUES (3)").unwrap();
    let report = load(&stage, backup, &chosen).unwrap();
    target.exec("DELETE FROM shop.customers WHERE id = 3").unwrap();
    assert!(report.plan.is_continued && report.rows_loaded == 0, "{report:?}");
    assert_same_rows(&stage.source, &target);
    assert_same_objects(&stage.source, &target);
    assert_clean(&target);
}

/// An account without the necessary privileges is told which ones it lacks, and nothing is touched.
#[test]
fn what_the_account_lacks_is_named() {
    let (stage, backup) = shop();
    let target = start(ServerKind::MariaDb118);
    target
        .exec_all([
            "CREATE USER loader@localhost",
            "GRANT SELECT, INSERT, CREATE ON shop.* TO loader@localhost",
        ])
        .unwrap();
    let mut chosen = LoadOptions {
        selection: Selection { tables: vec!["shop.customers".parse().unwrap()], ..Selection::default() },
        ..options(&target)
    };
    chosen.connect.user = Some("loader".to_owned());
    let error = load(&stage, backup, &chosen).unwrap_err();
    let hint = error.hint().unwrap_or_default();
    assert!(
        hint.contains("GRANT DROP, ALTER, INDEX, REFERENCES ON `shop`.* TO 'loader'@'localhost';"),
        "{error:?}"
    );
    let statements: Vec<&str> = hint.lines().collect();
    assert!(target.query::<String>("SHOW DATABASES LIKE 'shop'").unwrap().is_empty());
    target.exec_all(statements).unwrap();
    target.exec("CREATE DATABASE shop").unwrap();
    let error = load(&stage, backup, &chosen).unwrap_err();
    // Its default uses a sequence that was not selected.
    assert!(error.to_string().contains("numbers"), "{error}");
}

/// What the documentation grants is enough; what more a server's settings make necessary is named in time.
#[test]
fn the_grants_of_the_documentation() {
    let (stage, _) = backed_up(
        ServerKind::MySql97,
        &[
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (a INT, v VARCHAR(9), KEY (a))",
            "INSERT INTO shop.t VALUES (1, 'x')",
            "CREATE VIEW shop.v AS SELECT a FROM shop.t",
            "CREATE DEFINER = gone@localhost PROCEDURE shop.p() SELECT 1",
            "CREATE EVENT shop.e ON SCHEDULE EVERY 1 YEAR DISABLE DO SELECT 1",
        ],
    );
    let part = Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() };
    let backup = stage.back_up(&stage.options(), &part).unwrap().run.backup;
    let target = start(ServerKind::MySql97);
    target
        .exec_all([
            "CREATE USER loader@localhost",
            "GRANT CREATE, DROP, ALTER, INDEX, SELECT, INSERT, REFERENCES ON shop.* TO loader@localhost",
            "GRANT CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE, EVENT ON shop.* TO loader@localhost",
            "GRANT CREATE, DROP, SELECT, INSERT, UPDATE, DELETE ON holdfast_load.* TO loader@localhost",
            // What root owns needs the last one.
            "GRANT SET_ANY_DEFINER, ALLOW_NONEXISTENT_DEFINER, SYSTEM_USER ON *.* TO loader@localhost",
            "SET GLOBAL sql_require_primary_key = ON",
        ])
        .unwrap();
    let mut chosen = options(&target);
    chosen.connect.user = Some("loader".to_owned());
    let error = load(&stage, backup, &chosen).unwrap_err();
    let grant = "GRANT SESSION_VARIABLES_ADMIN ON *.* TO 'loader'@'localhost';";
    assert!(error.hint().is_some_and(|hint| hint.starts_with(grant)), "{error:?}");
    assert!(target.query::<String>("SHOW DATABASES LIKE 'shop'").unwrap().is_empty());
    assert_clean(&target);
    target.exec("SET GLOBAL sql_require_primary_key = OFF").unwrap();
    let report = load(&stage, backup, &chosen).unwrap();
    assert!(report.plan.left_out.is_empty(), "{report:?}");
    assert_eq!(target.query::<i32>("SELECT a FROM shop.v").unwrap(), [1]);
    assert_eq!(target.query::<i32>("SELECT COUNT(*) FROM information_schema.events").unwrap(), [1]);
    assert_clean(&target);
}

/// A part of a table does not pass for the whole, and nothing is loaded into the server's own databases.
#[test]
fn parts_and_strange_places_are_named() {
    let (stage, backup) = shop();
    let filtered =
        Selection { filters: vec!["shop.orders=id > 10".parse().unwrap()], ..Selection::default() };
    let part = stage.back_up(&stage.options(), &filtered).unwrap().run.backup;
    let target = start(ServerKind::MariaDb118);
    let chosen = LoadOptions {
        selection: Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() },
        ..options(&target)
    };
    let error = load(&stage, part, &chosen).unwrap_err();
    assert!(error.to_string().contains("rows of table shop.orders: the backup holds only"), "{error}");
    for place in ["mysql", "holdfast_load", "sys", "Information_Schema"] {
        let renames = renames(&[format!("shop.orders={place}.orders").as_str()]);
        let error =
            load(&stage, backup, &LoadOptions { renames, leave_out: true, ..chosen.clone() }).unwrap_err();
        assert!(error.to_string().contains(&format!("into the database {place}")), "{error}");
    }
    // A foreign key to a missing table is left out by name.
    let only = Selection { tables: vec!["shop.orders".parse().unwrap()], ..Selection::default() };
    let only = LoadOptions { selection: only, ..chosen };
    let error = load(&stage, backup, &only).unwrap_err();
    assert!(error.to_string().contains("it references shop.customers"), "{error}");
    load(&stage, part, &LoadOptions { leave_out: true, ..only.clone() }).unwrap();
    target.exec("INSERT INTO shop.orders VALUES (12, 99)").unwrap();

    // A foreign key is not trusted either if it refers to a part of a table, or if an existing table refers
    // to a table loaded in its place.
    let parents =
        Selection { filters: vec!["shop.customers=id > 1".parse().unwrap()], ..Selection::default() };
    let part = stage.back_up(&stage.options(), &parents).unwrap().run.backup;
    let again =
        LoadOptions { leave_out: true, overwrite: true, selection: Selection::default(), ..only.clone() };
    let report = load(&stage, part, &again).unwrap();
    let named = "a foreign key of table shop.orders: some rows reference rows of shop.customers";
    assert!(said(&report.plan.left_out).contains(named), "{report:?}");
    let keys = "SELECT COUNT(*) FROM information_schema.referential_constraints WHERE constraint_name = 'c'";
    assert_eq!(target.query::<u64>(keys).unwrap(), [0]);
    load(&stage, backup, &again).unwrap();
    assert_eq!(target.query::<u64>(keys).unwrap(), [1]);
    let customers = Selection {
        tables: vec!["shop.customers".parse().unwrap(), "shop.numbers".parse().unwrap()],
        ..Selection::default()
    };
    let error =
        load(&stage, backup, &LoadOptions { overwrite: true, selection: customers, ..only }).unwrap_err();
    let named = "a foreign key of table shop.orders, which is not loaded: it references shop.customers";
    assert!(error.to_string().contains(named), "{error}");
}

/// Rows that refer to existing tables are checked against them; a key that they do not satisfy can be left out.
#[test]
fn keys_that_lead_to_what_is_there_hold() {
    let (stage, backup) = shop();
    let source = &stage.source;
    source
        .exec_all([
            "DELETE FROM other.bills",
            "DELETE FROM shop.orders WHERE id = 11",
            "DELETE FROM shop.customers WHERE id = 2",
        ])
        .unwrap();
    let chosen = LoadOptions {
        selection: Selection { tables: vec!["shop.orders".parse().unwrap()], ..Selection::default() },
        renames: renames(&["shop.orders=shop.orders_old"]),
        leave_out: true,
        ..options(source)
    };
    let left_out = |report: &LoadReport| super::other_servers::said(&report.plan.left_out);
    let is_refused = |left_out: &str| left_out.contains("table shop.orders_old: the target refuses it");
    let without = left_out(&load(&stage, backup, &chosen).unwrap());
    assert!(is_refused(&without), "{without}");
    source.exec_all(["DROP TABLE shop.orders_old", "INSERT INTO shop.customers VALUES (2)"]).unwrap();
    let with = left_out(&load(&stage, backup, &chosen).unwrap());
    assert!(!is_refused(&with), "{with}");
    source.exec("INSERT INTO shop.orders_old VALUES (12, 99)").unwrap_err();
    assert_clean(source);
}

/// A foreign key to an existing table is checked; another one of the same table, whose rows were already
/// dangling on the source, is recreated as it was.
#[test]
fn keys_that_lead_to_what_is_there_and_keys_that_led_nowhere() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let (stage, backup) = backed_up(
            kind,
            &[
                "CREATE DATABASE shop",
                "CREATE TABLE shop.parent (id INT PRIMARY KEY)",
                "CREATE TABLE shop.other (id INT PRIMARY KEY)",
                "CREATE TABLE shop.child (id INT PRIMARY KEY, p INT, o INT, \
                 CONSTRAINT f1 FOREIGN KEY (p) REFERENCES shop.parent (id), \
                 CONSTRAINT f2 FOREIGN KEY (o) REFERENCES shop.other (id))",
                "INSERT INTO shop.other VALUES (1)",
                "SET foreign_key_checks = 0",
                "INSERT INTO shop.child VALUES (1, 99, 1)",
            ],
        );
        let target = start(kind);
        target.exec_all(["CREATE DATABASE shop", "CREATE TABLE shop.other (id INT PRIMARY KEY)"]).unwrap();
        let tables = ["shop.parent", "shop.child"].map(|table| table.parse().unwrap()).to_vec();
        let selection = Selection { tables, ..Selection::default() };
        let chosen = LoadOptions { selection, ..options(&target) };
        let error = load(&stage, backup, &chosen).unwrap_err();
        assert!(error.hint().unwrap_or_default().contains("they reference shop.other"), "{kind}: {error:?}");
        target.exec("INSERT INTO shop.other VALUES (1)").unwrap();
        load(&stage, backup, &chosen).unwrap();
        let keys = "SELECT constraint_name FROM information_schema.referential_constraints ORDER BY 1";
        assert_eq!(target.query::<String>(keys).unwrap(), ["f1", "f2"], "{kind}");
        assert_clean(&target);
    }
}

/// Completed work is not repeated if the end fails: rows that others have written since belong to
/// them. Objects that the server refused to create do not belong to the load either, so objects
/// created in their place are kept.
#[test]
fn what_is_in_use_by_now_stays() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, placed_at TIMESTAMP NOT NULL, t TIMESTAMP NOT NULL)",
            "INSERT INTO shop.orders VALUES (1, '2020-01-01', '2020-01-01')",
            "CREATE EVENT shop.e ON SCHEDULE EVERY 1 YEAR DO SELECT 1",
            "CREATE USER theirs@localhost",
            "GRANT SELECT ON *.* TO theirs@localhost",
            "CREATE USER ours@localhost IDENTIFIED BY 'secret'",
            "GRANT SELECT ON shop.* TO ours@localhost",
            "INSERT INTO mysql.time_zone VALUES (1, 'N')",
            "INSERT INTO mysql.time_zone_name VALUES ('Some/Where', 1)",
            "INSERT INTO mysql.time_zone_transition_type VALUES (1, 0, 3600, 0, 'SOME')",
            "SET time_zone = 'Some/Where'",
            "CREATE EVENT shop.elsewhere ON SCHEDULE EVERY 1 YEAR DO SELECT 1",
            "CREATE TABLE shop.other (id INT PRIMARY KEY)",
        ])
        .unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    // A target with other timestamp semantics that refuses updates without keys.
    let target = Server::start(
        ServerKind::MariaDb1011,
        ServerOptions::default().arg("--explicit-defaults-for-timestamp=OFF"),
    )
    .unwrap();
    target.exec_all(["SET GLOBAL sql_safe_updates = ON", "CREATE USER theirs@localhost"]).unwrap();
    let chosen = options(&target);
    // A failure that would occur at the end of the load is detected before it begins.
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.to_string().contains("event shop.elsewhere: the target does not know"), "{error}");
    stage.source.exec("DROP EVENT shop.elsewhere").unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let run = |phase, statement| {
        let meddler = Meddler::new(&target, phase, statement);
        load::run(&stage.repo, &log(), RunNo(backup), &chosen, &meddler, &Cancel::default())
    };
    // The database is gone when its tables are created, so all of them are refused.
    let error = run("rows", "DROP DATABASE shop").unwrap_err();
    assert!(error.to_string().contains("shop"), "{error}");
    target
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (theirs INT)",
            "CREATE TABLE shop.other (theirs INT)",
        ])
        .unwrap();
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.to_string().contains("shop.orders, shop.other exist already"), "{error}");
    target.exec("DROP TABLE shop.orders, shop.other").unwrap();

    // Someone creates an event of that name just before the load ends.
    let error = run("finish", "CREATE EVENT shop.e ON SCHEDULE EVERY 2 YEAR DO SELECT 2").unwrap_err();
    assert!(error.to_string().contains("shop.e exists by now"), "{error}");
    target.exec_all(["INSERT INTO shop.orders VALUES (2, NOW(), NOW())", "DROP EVENT shop.e"]).unwrap();
    let report = load(&stage, backup, &chosen).unwrap();
    assert!(report.plan.is_continued && report.rows_loaded == 0, "{report:?}");
    assert_eq!(target.query::<i32>("SELECT id FROM shop.orders ORDER BY id").unwrap(), [1, 2]);
    // No timestamp was replaced by the current time.
    target.exec("UPDATE shop.orders SET id = 3 WHERE id = 1").unwrap();
    let years = "SELECT YEAR(placed_at) FROM shop.orders WHERE id = 3 AND placed_at = t";
    assert_eq!(target.query::<i32>(years).unwrap(), [2020]);
    // An existing account keeps its privileges; an account created by the load has those of the source.
    assert!(
        said(&report.plan.adapted).contains("account 'theirs'@'localhost': it exists already"),
        "{report:?}"
    );
    let grants =
        |account: &str| target.query::<String>(format!("SHOW GRANTS FOR {account}@localhost")).unwrap();
    assert_eq!(grants("theirs"), ["GRANT USAGE ON *.* TO `theirs`@`localhost`"]);
    assert!(grants("ours")[1].starts_with("GRANT SELECT ON `shop`.*"), "{:?}", grants("ours"));
    // Only databases are overwritten. An existing account gets further privileges, which is reported.
    let again = load(&stage, backup, &LoadOptions { overwrite: true, ..chosen.clone() }).unwrap();
    let line =
        "account 'theirs'@'localhost': it exists already, keeps its password and privileges, and also gets";
    assert!(said(&again.plan.adapted).contains(line), "{again:?}");
    target.exec("GRANT SELECT ON *.* TO theirs@localhost").unwrap();
    assert_same_objects(&stage.source, &target);
    assert_clean(&target);
}

/// Views on views are as updatable as before. A view on an object that is not loaded is reported before
/// anything is touched; if only the server can tell, the same command continues without it.
#[test]
fn views_over_what_is_there_and_what_is_not() {
    let (stage, _) = shop();
    stage
        .source
        .exec_all([
            "CREATE VIEW shop.z AS SELECT id, customer FROM shop.orders",
            "CREATE VIEW shop.active AS SELECT * FROM shop.z WHERE id > 10 WITH CHECK OPTION",
            "CREATE VIEW shop.bills AS SELECT b.id FROM other.bills b JOIN shop.v ON v.id = b.id",
        ])
        .unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let target = start(ServerKind::MariaDb118);
    let shop = Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() };
    let without = Selection { tables_excluded: vec!["shop.customers".parse().unwrap()], ..shop.clone() };
    let error = load(&stage, backup, &LoadOptions { selection: without, ..options(&target) }).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("view shop.v: it uses shop.customers, which neither exists nor is loaded"),
        "{text}"
    );
    assert!(target.query::<String>("SHOW DATABASES LIKE 'shop'").unwrap().is_empty());

    let chosen = LoadOptions { selection: shop, ..options(&target) };
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.to_string().contains("make view shop.bills"), "{error}");
    assert!(error.hint().unwrap_or_default().contains("--leave-out"), "{error:?}");
    let report = load(&stage, backup, &LoadOptions { leave_out: true, ..chosen }).unwrap();
    assert!(report.plan.is_continued, "{report:?}");
    assert!(said(&report.plan.left_out).contains("view shop.bills: the target refuses it"), "{report:?}");
    let views: Vec<String> = target
        .query("SELECT table_name FROM information_schema.views WHERE table_schema = 'shop' ORDER BY 1")
        .unwrap();
    assert_eq!(views, ["active", "v", "z"]);
    target.exec("UPDATE shop.active SET customer = 1").unwrap();
    target.exec("UPDATE shop.active SET id = 1").unwrap_err();
    assert_eq!(target.query::<i32>("SELECT customer FROM shop.orders ORDER BY id").unwrap(), [1, 1]);
    // An alias with the name of the database is ambiguous, and is not guessed.
    stage.source.exec("CREATE VIEW shop.own AS SELECT shop.id FROM shop.orders shop").unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let tables = ["shop.orders", "shop.own"].map(|table| table.parse().unwrap()).to_vec();
    let chosen = LoadOptions {
        selection: Selection { tables, ..Selection::default() },
        renames: renames(&["shop=copy"]),
        leave_out: true,
        ..options(&target)
    };
    let report = load(&stage, backup, &chosen).unwrap();
    assert!(said(&report.plan.left_out).contains("view copy.own: its text uses the name"), "{report:?}");
    assert_clean(&target);
}
