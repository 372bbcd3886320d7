//! The same tests for rows of real servers.

use holdfast_core::{
    logical::{self, LogicalReport, Selection, script},
    server::LockPolicy,
};
use holdfast_testkit::{Server, ServerKind};

use super::*;
use crate::{
    listeners::Told,
    logical::{assert_same_objects, assert_same_rows, load, load_file, log, start},
};

/// Tables with and without a key, of both engines, including one that is split while it is read.
const TABLES: [&str; 9] = [
    "CREATE DATABASE shop",
    "CREATE TABLE shop.d (n INT PRIMARY KEY)",
    "INSERT INTO shop.d VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)",
    "CREATE VIEW shop.numbers AS SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n AS n FROM shop.d a, shop.d b, shop.d c, shop.d d",
    "CREATE TABLE shop.orders (id INT PRIMARY KEY, v VARCHAR(200))",
    "INSERT INTO shop.orders SELECT n, SHA2(n, 512) FROM shop.numbers",
    "CREATE TABLE shop.bag (v VARCHAR(200)) ENGINE = MyISAM",
    "INSERT INTO shop.bag SELECT SHA2(n, 256) FROM shop.numbers",
    "CREATE TABLE shop.pictures (id INT PRIMARY KEY AUTO_INCREMENT, v LONGBLOB)",
];

fn options(server: &Server) -> BackupOptions {
    BackupOptions {
        locks: LockPolicy { held_max: crate::server::LOCK_MAX, ..super::options().locks },
        name: Some(log().source),
        connect: crate::server::options(server),
        parallel: 3,
        ..super::options()
    }
}

fn back_up(repos: &[Arc<Repo>], options: &BackupOptions) -> Vec<Result<LogicalReport>> {
    logical::run_to(repos, options, &Selection::default(), &Told, &Cancel::default())
}

/// The whole newest backup as statements.
fn script(place: &Place) -> Vec<u8> {
    let mut script = Vec::new();
    script::write(&place.newest(), None, &mut script, &Cancel::default()).unwrap();
    script
}

fn assert_same_scripts(one: &Place, other: &Place) {
    let body = |place: &Place| {
        let script = script(place);
        // The head names the backup and its number.
        let begin = script.windows(4).position(|window| window == b"SET ").unwrap();
        script[begin..].to_vec()
    };
    assert!(body(one) == body(other), "two repositories have different rows of one view");
}

fn bytes_sent(server: &Server) -> u64 {
    let rows: Vec<(String, u64)> = server.query("SHOW GLOBAL STATUS LIKE 'Bytes_sent'").unwrap();
    rows[0].1
}

/// Each repository has each backup with all rows and objects, including long rows and split tables; each
/// backup is compared with the repository's own base; copies recognise that they are the same; and the server
/// sends its rows once.
fn both_have_all_rows(kind: ServerKind) {
    let server = start(kind);
    load_file(&server, "torture.sql");
    server.exec_all(TABLES).unwrap();
    server
        .exec_all([
            "INSERT INTO shop.pictures (v) SELECT REPEAT(SHA2(n, 512), 40) FROM shop.numbers",
            "INSERT INTO shop.pictures (v) SELECT REPEAT(SHA2(-n, 512), 40) FROM shop.numbers",
            "INSERT INTO shop.pictures (v) SELECT REPEAT(SHA2(n, 512), 50000) FROM shop.numbers LIMIT 3",
            // How much there is to split depends on the server's statistics.
            "ANALYZE TABLE shop.pictures",
        ])
        .unwrap();
    let (one, two) = (Place::of(log()), Place::of(log()));
    // One repository has a backup more than the other, so their bases and run numbers differ.
    let alone = back_up(&[Arc::clone(&two.repo)], &options(&server));
    assert!(alone.iter().all(Result::is_ok), "{alone:?}");
    let repos = [Arc::clone(&one.repo), Arc::clone(&two.repo)];
    for turn in 1..=2 {
        let sent = bytes_sent(&server);
        let taken = back_up(&repos, &options(&server));
        let [Ok(first), Ok(second)] = &taken[..] else { panic!("{taken:?}") };
        assert_eq!((first.run.backup, second.run.backup), (turn, turn + 1));
        assert_eq!((first.run.base, second.run.base), (turn.checked_sub(1).filter(|it| *it > 0), Some(turn)));
        assert_eq!(first.read, second.read);
        let sent = bytes_sent(&server) - sent;
        assert!(sent < first.read.row_bytes * 3 / 2, "{sent} bytes were sent of {:?}", first.read);
        assert!(first.read.ranges > first.read.tables, "no table was cut: {:?}", first.read);
        let new = |report: &LogicalReport| report.run.totals.bytes_new;
        assert!(new(second) < second.read.row_bytes / 5, "{:?}", second.run.totals);
        assert!(turn == 1 || new(first) < first.read.row_bytes / 5, "{:?}", first.run.totals);
        assert_same_scripts(&one, &two);
        server
            .exec_all([
                "UPDATE shop.orders SET v = 'another' WHERE id % 1000 = 7",
                "DELETE FROM shop.pictures WHERE id BETWEEN 4000 AND 4010",
                "INSERT INTO shop.bag VALUES ('one more')",
            ])
            .unwrap();
    }
    one.assert_whole();
    two.assert_whole();
    assert_eq!(plan(&one, &two), [Verdict::IsThere(RunNo(2)), Verdict::IsThere(RunNo(3))]);
    assert_eq!(plan(&two, &one)[1..], [Verdict::IsThere(RunNo(1)), Verdict::IsThere(RunNo(2))]);
    // The last changes are in no backup yet.
    let taken = back_up(&repos, &options(&server));
    assert!(taken.iter().all(Result::is_ok), "{taken:?}");
    for place in [&one, &two] {
        let target = start(kind);
        load(&target, &script(place));
        assert_same_rows(&server, &target);
        assert_same_objects(&server, &target);
    }
}

#[test]
fn both_have_all_rows_of_mariadb() {
    both_have_all_rows(ServerKind::MariaDb118);
}

#[test]
fn both_have_all_rows_of_mysql() {
    both_have_all_rows(ServerKind::MySql97);
}

/// As for pages: a failure in one repository at any moment does not affect the other; a copy supplies the
/// missing backup, and the next backup goes to both.
#[test]
fn rows_that_one_repository_does_not_get_are_in_the_other() {
    let server = start(ServerKind::MariaDb118);
    server.exec_all(TABLES).unwrap();
    for trouble in 0..TROUBLES {
        let (good, bad) = (Place::of(log()), Place::of(log()));
        let first = back_up(&[Arc::clone(&bad.repo), Arc::clone(&good.repo)], &options(&server));
        assert!(first.iter().all(Result::is_ok), "{first:?}");
        server.exec("UPDATE shop.orders SET v = SHA2(CONCAT(v, id), 512)").unwrap();
        let (repo, kind, active) = in_trouble(&bad, trouble);
        let taken = back_up(&[repo, Arc::clone(&good.repo)], &options(&server));
        let [Err(error), Ok(_)] = &taken[..] else { panic!("{trouble}: {taken:?}") };
        assert_eq!(error.kind(), kind, "{trouble}: {error}");
        assert_eq!((bad.standing(), good.standing()), (vec![1], vec![1, 2]), "{trouble}");
        bad.store.set_capacity(None);
        drop(active);
        make_up(&good, &bad, RunNo(2));
        assert_same_scripts(&good, &bad);
        let next = back_up(&[Arc::clone(&bad.repo), Arc::clone(&good.repo)], &options(&server));
        let [Ok(_), Ok(report)] = &next[..] else { panic!("{trouble}: {next:?}") };
        assert_eq!(report.run.totals.bytes_new, 0, "nothing has changed");
        assert_same_scripts(&good, &bad);
        bad.assert_whole();
        good.assert_whole();
    }
    let target = start(ServerKind::MariaDb118);
    let place = Place::of(log());
    let taken = back_up(&[Arc::clone(&place.repo)], &options(&server));
    assert!(taken.iter().all(Result::is_ok), "{taken:?}");
    load(&target, &script(&place));
    assert_same_rows(&server, &target);
}

/// A store that does not respond is given up before the time limit of a locked table expires, no matter how
/// long it may hold up the others at other times.
#[test]
fn a_repository_that_hangs_under_a_lock_is_given_up_in_time() {
    let server = start(ServerKind::MariaDb118);
    server.exec_all(TABLES).unwrap();
    server
        .exec_all([
            "CREATE TABLE shop.locked (id INT PRIMARY KEY AUTO_INCREMENT, v TEXT) ENGINE = MyISAM",
            "INSERT INTO shop.locked (v) SELECT CONCAT(SHA2(n, 512), SHA2(-n, 512), SHA2(n + 0.5, 512), SHA2(n + 0.1, 512), REPEAT(n, 1000)) FROM shop.numbers",
        ])
        .unwrap();
    let (good, bad) = (Place::of(log()), Place::of(log()));
    let hanging = bad.through(hangs_until_there(Arc::clone(&good.repo), log()));
    let options = BackupOptions {
        locks: LockPolicy { held_max: Duration::from_secs(20), ..options(&server).locks },
        ..options(&server)
    };
    let taken = back_up(&[hanging, Arc::clone(&good.repo)], &options);
    let [Err(error), Ok(report)] = &taken[..] else { panic!("{taken:?}") };
    assert!(error.to_string().contains("held up the backup for 10 s"), "{error}");
    assert!(report.view.inconsistent.is_empty(), "{:?}", report.view);
    assert_eq!((bad.standing(), good.standing()), (vec![], vec![1]));
    good.assert_whole();
    let next = back_up(&[Arc::clone(&bad.repo), Arc::clone(&good.repo)], &options);
    assert!(next.iter().all(Result::is_ok), "{next:?}");
    assert_same_scripts(&good, &bad);
    bad.assert_whole();
}
