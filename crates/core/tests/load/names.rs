//! What is asked for, under the names that are asked for; and what is not as it was is found out.

use std::sync::Mutex;

use holdfast_core::{Event, Listener};

use super::*;

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
    (stage, report.backup)
}

/// A database under another name beside itself: everything in it leads to the copy.
#[test]
fn a_database_beside_itself() {
    let (stage, backup) = shop();
    let chosen = LoadOptions {
        selection: Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() },
        renames: renames(&["shop=shop copy"]),
        ..options(&stage.source)
    };
    // The trigger says which database its table is in.
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

/// One table beside itself: its constraints get other names, and it leads where the first one leads.
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

/// Somebody changes a row before everything is read again: the load fails and names the table.
#[test]
fn what_is_not_as_it_was_is_found_out() {
    struct Meddler(Mutex<Option<mysql::Conn>>);
    impl Listener for Meddler {
        fn event(&self, event: Event) {
            if matches!(event, Event::Phase { name: "verify" }) {
                let mut conn = self.0.lock().unwrap();
                let statement = "UPDATE shop.orders SET customer = 2 WHERE id = 10";
                mysql::prelude::Queryable::query_drop(conn.as_mut().unwrap(), statement).unwrap();
            }
        }
    }
    let (stage, backup) = shop();
    let target = start(ServerKind::MariaDb118);
    let meddler = Meddler(Mutex::new(Some(target.conn().unwrap())));
    let chosen = options(&target);
    let run = || load::run(&stage.repo, &log(), RunNo(backup), &chosen, &meddler, &Cancel::default());
    let error = run().unwrap_err();
    assert!(error.to_string().contains("shop.orders (other bytes in its rows)"), "{error}");
    // It is not taken for good later, either: that table is made anew, with its trigger, and the rest is done.
    target.exec("DELETE FROM shop.orders WHERE id = 11").unwrap();
    let report = load(&stage, backup, &chosen).unwrap();
    assert!(report.plan.is_continued && report.rows_loaded == 2, "{report:?}");
    assert_same_rows(&stage.source, &target);
    assert_same_objects(&stage.source, &target);
    assert_clean(&target);
}

/// An account that may not do it is told what it lacks, and nothing is touched.
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
    // Its default draws from a sequence that was not asked for.
    assert!(error.to_string().contains("numbers"), "{error}");
}

/// A part of a table is not taken for all of it, and nothing is loaded into what is the server's own.
#[test]
fn parts_and_strange_places_are_named() {
    let (stage, backup) = shop();
    let filtered =
        Selection { filters: vec!["shop.orders=id > 10".parse().unwrap()], ..Selection::default() };
    let part = stage.back_up(&stage.options(), &filtered).unwrap().backup;
    let target = start(ServerKind::MariaDb118);
    let chosen = LoadOptions {
        selection: Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() },
        ..options(&target)
    };
    let error = load(&stage, part, &chosen).unwrap_err();
    assert!(error.to_string().contains("rows of table shop.orders: the backup holds only"), "{error}");
    for place in ["mysql", "holdfast_load", "SYS"] {
        let renames = renames(&[format!("shop.orders={place}.orders").as_str()]);
        let error =
            load(&stage, backup, &LoadOptions { renames, leave_out: true, ..chosen.clone() }).unwrap_err();
        assert!(error.to_string().contains(&format!("into the database {place}")), "{error}");
    }
    // A key that leads to nothing is left out by name.
    let only = Selection { tables: vec!["shop.orders".parse().unwrap()], ..Selection::default() };
    let only = LoadOptions { selection: only, ..chosen };
    let error = load(&stage, backup, &only).unwrap_err();
    assert!(error.to_string().contains("it leads to shop.customers"), "{error}");
    load(&stage, part, &LoadOptions { leave_out: true, ..only }).unwrap();
    target.exec("INSERT INTO shop.orders VALUES (12, 99)").unwrap();
}

/// Rows that lead to what is there are compared with it.
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
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.hint().unwrap_or_default().contains("customers"), "{error:?}");
    source.exec("INSERT INTO shop.customers VALUES (2)").unwrap();
    load(&stage, backup, &chosen).unwrap();
    source.exec("INSERT INTO shop.orders_old VALUES (12, 99)").unwrap_err();
    assert_clean(source);
}
