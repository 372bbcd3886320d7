//! SIGSTOP where a backup holds something: the server continues without it, and so does the repository.
//! A backup that resumes later has lost.

use std::{collections::HashSet, time::SystemTime};

use holdfast_core::{ErrorKind, server::WAIT_TIMEOUT};
use holdfast_repo::{
    forward_store,
    store::{Store, StoreError, fs::FsStore},
};

use super::*;

/// A store whose clock has advanced, so that leases of runs without a sign of life have expired.
struct Later(std::sync::Arc<dyn Store>);

impl Store for Later {
    forward_store!(
        self => self.0;
        location, put, create_if_absent, read_exact_at, head, list, list_folders, delete, free_bytes
    );

    fn now(&self) -> Result<SystemTime, StoreError> {
        Ok(self.0.now()? + Duration::from_secs(20 * 60))
    }
}

/// The same repository, twenty minutes later.
pub(super) fn later(place: &Place) -> Arc<Repo> {
    let store = Later(Arc::new(FsStore::open(&place.repo).unwrap()));
    Arc::new(Repo::open(Arc::new(store), Some(&password())).unwrap())
}

/// Freezes a backup at `point`; while it is frozen, the server becomes free, and the next run takes over.
fn frozen_backup_loses(kind: ServerKind, seed: u64, point: &str, holds: bool) {
    let scene = Scene::new(kind, seed);
    let first = scene.stage.back_up();
    scene.change();
    let frozen = scene.begin_frozen(&scene.place(), point);
    assert!(!holds || !is_free(scene.source()), "{kind} {point}: it holds nothing");
    let took = scene.until_free();
    assert!(holds || took < WAIT_TIMEOUT, "{kind} {point}: it holds something");
    println!("{kind}: frozen at {point}, free again after {took:?}");

    // By the repository's clock it is still alive; twenty minutes later it is not.
    let error = backup::run(&scene.stage.repo, &scene.stage.options(), &Told, &Cancel::default());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Active);
    let repo = later(&scene.place());
    let next = backup::run(&repo, &scene.stage.options(), &Told, &Cancel::default()).unwrap();
    assert_eq!(next.run.base, Some(first.run.backup));
    let before = scene.standing();
    assert_eq!(before, [first.run.backup, next.run.backup]);

    frozen.thaw();
    let ended = frozen.ended();
    println!("{kind}: woken at {point}, it said: {}", ended.error());
    assert!(holds || ended.error().contains("was ended by another"), "{}", ended.error());
    assert_eq!(scene.standing(), before, "it has published something");
    scene.until_free();
    scene.assert_nothing_spooled();
    let newest = scene.stage.back_up();
    scene.assert_readable();
    scene.prove(&next, &newest);
}

fn each_at_once(kind: ServerKind, seed: u64, holding: &[&str], idle: &[&str]) {
    let points = holding.iter().map(|point| (*point, true)).chain(idle.iter().map(|point| (*point, false)));
    thread::scope(|scope| {
        for (point, holds) in points {
            scope.spawn(move || frozen_backup_loses(kind, seed, point, holds));
        }
    });
}

#[test]
fn mariadb_10_11_goes_on_without_a_frozen_backup() {
    let holding = ["backup.stage.start", "backup.ddl.blocked", "backup.commit.blocked"];
    each_at_once(ServerKind::MariaDb1011, 51, &holding, &["backup.report.durable", "store.create outcomes"]);
}

#[test]
fn mysql_9_7_goes_on_without_a_frozen_backup() {
    let holding =
        ["backup.consumer.registered", "backup.quiet", "backup.ddl.blocked", "backup.tables.locked"];
    each_at_once(ServerKind::MySql97, 52, &holding, &[]);
}

/// A backup frozen for longer than it may hold locks, and resumed before it was replaced,
/// releases them and tries again.
#[test]
fn a_backup_that_was_frozen_for_a_moment_lets_go_and_tries_again() {
    for (kind, seed, point) in [
        (ServerKind::MariaDb1011, 53, "backup.commit.blocked"),
        (ServerKind::MySql97, 54, "backup.tables.locked"),
    ] {
        let scene = Scene::new(kind, seed);
        let first = scene.stage.back_up();
        let frozen = scene.begin_frozen(&scene.place(), point);
        thread::sleep(SHORT_LOCK_MAX + Duration::from_secs(1));
        frozen.thaw();
        let ended = frozen.ended().succeeded();
        let passed = ended.points.iter().filter(|passed| *passed == point).count();
        assert!(passed >= 2, "{kind}: {}", ended.output);
        let newest = scene.stage.back_up();
        scene.prove(&first, &newest);
    }
}

/// Freezes backups at one point after another, lets the server become free, and resumes them:
/// their results are truthful.
fn backups_survive_freezes(kind: ServerKind, seed: u64, chosen: impl Fn(usize) -> bool) {
    let scene = Scene::new(kind, seed);
    let first = scene.stage.back_up();
    scene.change();
    let mut points = scene.begin(None).ended().succeeded().points;
    let mut known = HashSet::new();
    points.retain(|point| known.insert(point.clone()));
    for (_, point) in points.iter().enumerate().filter(|(at, point)| is_tried(point, chosen(*at))) {
        scene.change();
        let before = scene.standing();
        let frozen = scene.begin_frozen(&scene.place(), point);
        let took = scene.until_free();
        frozen.thaw();
        let ended = frozen.ended();
        println!("{kind}: frozen at {point}, free after {took:?}, then {}", ended.status);
        scene.assert_over(&before, &ended, point);
    }
    scene.end(&first);
}

#[test]
fn mariadb_10_11_survives_a_backup_frozen_at_any_point() {
    backups_survive_freezes(ServerKind::MariaDb1011, 55, |at| at % 5 == 2);
}

#[test]
fn mariadb_11_8_survives_a_backup_frozen_at_any_point() {
    backups_survive_freezes(ServerKind::MariaDb118, 57, |at| at % 15 == 11);
}

#[test]
fn mysql_9_7_survives_a_backup_frozen_at_any_point() {
    backups_survive_freezes(ServerKind::MySql97, 56, |at| at % 9 == 4);
}
