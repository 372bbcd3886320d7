//! Loads with MySQL's redo log off: it is on again, however they end.

use std::sync::Mutex;

use holdfast_core::{ErrorKind, Event, Listener};
use mysql::prelude::Queryable;

use super::{
    interrupted::{Orders, assert_whole, shop, until_unused},
    *,
};

fn is_on(server: &Server) -> bool {
    let rows = server.query::<(String, String)>("SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'").unwrap();
    rows[0].1 == "ON"
}

/// Checks at a phase of a load whether the log is off, and runs an action.
struct Looking<'a> {
    target: &'a Server,
    phase: &'static str,
    then: &'a (dyn Fn() + Sync),
    was_off: Mutex<bool>,
}

impl Listener for Looking<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Phase { name } if name == self.phase) {
            *self.was_off.lock().unwrap() = !is_on(self.target);
            (self.then)();
        }
    }
}

/// Loads; returns whether the log was off at that phase.
fn watched(
    (stage, backup): (&Stage, u64),
    target: &Server,
    options: &LoadOptions,
    phase: &'static str,
    then: &(dyn Fn() + Sync),
) -> (Result<LoadReport>, bool) {
    let looking = Looking { target, phase, then, was_off: Mutex::new(false) };
    let outcome = load::run(&stage.repo, &log(), RunNo(backup), options, &looking, &Cancel::default());
    (outcome, looking.was_off.into_inner().unwrap())
}

/// The log is off while rows are loaded. It is on again after a load that succeeded, one that failed, one
/// whose sessions were all killed, and, due to the next run, one that was killed itself. A run without the
/// option reports the state, and touches nothing.
#[test]
fn the_redo_log_is_on_again_however_a_load_ends() {
    let kind = ServerKind::MySql97;
    let (stage, backup) = shop(kind);
    let target = start(kind);
    let mut orders = Orders::new(&stage, backup, &target);
    orders.disable_redo = true;
    let from = (&stage, backup);

    // The load fails because someone creates an object that it has not reached yet.
    let meddle = || target.exec("CREATE PROCEDURE shop.p () SELECT 'theirs'").unwrap();
    let (outcome, was_off) = watched(from, &target, &orders.options(), "keys", &meddle);
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains("procedure p exists by now"), "{error}");
    assert!(was_off && is_on(&target));
    target.exec("DROP PROCEDURE shop.p").unwrap();

    // The load loses all of its sessions, including the one that has switched the log off.
    let kill = || {
        let mut conn = target.conn().unwrap();
        let ids: Vec<u64> = conn
            .query(
                "SELECT id FROM performance_schema.processlist WHERE user = 'root' AND id <> CONNECTION_ID()",
            )
            .unwrap();
        for id in ids {
            // Some may already be ending.
            drop(conn.query_drop(format!("KILL {id}")));
        }
    };
    let (outcome, was_off) = watched(from, &target, &orders.options(), "keys", &kill);
    assert!(outcome.is_err() && was_off && is_on(&target), "{outcome:?}");

    // The load is killed.
    until_unused(&target);
    target.exec("DROP DATABASE shop").unwrap();
    target.exec("DROP DATABASE holdfast_load").unwrap();
    orders.point = Some(("load.rows.committed".to_owned(), 2));
    assert!(!orders.carry_out().1);
    until_unused(&target);
    assert!(!is_on(&target));
    let without = LoadOptions { disable_redo: false, ..orders.options() };
    let error = load(&stage, backup, &without).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server, "{error}");
    assert!(error.to_string().contains("redo log is off"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("ENABLE INNODB REDO_LOG")), "{error:?}");
    assert!(!is_on(&target));
    let (outcome, was_off) = watched(from, &target, &orders.options(), "rows", &|| {});
    let report = outcome.unwrap();
    assert!(report.plan.is_continued && was_off && is_on(&target), "{report:?}");
    assert_whole(&stage, &target);
}

/// Impossible requests are refused before anything is touched.
#[test]
fn a_redo_log_that_cannot_be_switched_off() {
    let (stage, backup) =
        backed_up(ServerKind::MariaDb1011, &["CREATE DATABASE s", "CREATE TABLE s.t (a INT)"]);
    let chosen = Selection { without_accounts: true, ..Selection::default() };
    let target = start(ServerKind::MariaDb1011);
    let options = LoadOptions { disable_redo: true, selection: chosen, ..options(&target) };
    let error = load(&stage, backup, &options).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("always writes"), "{error}");
    assert_clean(&target);
    let target = start(ServerKind::MySql97);
    target
        .exec_all([
            "CREATE USER 'loader'@'localhost'",
            "GRANT ALL ON s.* TO 'loader'@'localhost'",
            "GRANT ALL ON holdfast_load.* TO 'loader'@'localhost'",
        ])
        .unwrap();
    let mut options = LoadOptions { connect: crate::server::options(&target), ..options };
    options.connect.user = Some("loader".to_owned());
    let error = load(&stage, backup, &options).unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("INNODB_REDO_LOG_ENABLE")), "{error:?}");
    assert_clean(&target);
}
