//! The server dies, or its redo is lost, in the middle of a backup.

use holdfast_core::ErrorKind;

use super::*;

/// Tablespaces have been copied, other files have not.
const IN_MID_COPY: &str = "backup.tablespaces.copied";
/// How MySQL reports that it waits for us, by the name it gives us. It may also wait for its own checkpoints.
const STALLED_BY_US: &str = "the 'MEB' consumer still lagging";
/// The redo follower is about to read.
const REDO_READ: &str = "backup.redo.read";

impl Scene {
    fn begin_held_in_mid_copy(&self) -> Held {
        self.begin_held(&self.place(), IN_MID_COPY, 1)
    }

    /// Checks what must hold when a backup has failed by itself, and that the next one succeeds.
    fn assert_next_works_after_failure(&self, first: &BackupReport) -> BackupReport {
        self.until_free();
        self.assert_nothing_spooled();
        assert_eq!(self.standing(), [first.run.backup]);
        assert_eq!(self.history().outcomes().last().unwrap().outcome_type, OutcomeType::Abandoned);
        self.assert_whole();
        let next = self.stage.back_up();
        assert_eq!(next.run.base, Some(first.run.backup));
        self.assert_readable();
        next
    }
}

/// A server whose redo log is as small as possible.
fn with_small_log(kind: ServerKind, seed: u64, redo_mib: u32) -> Scene {
    Scene::with(kind, seed, ServerOptions { redo_mib: Some(redo_mib), ..ServerOptions::default() })
}

fn backup_survives_death_of_the_server(kind: ServerKind, seed: u64) {
    let scene = Scene::new(kind, seed);
    let first = scene.stage.back_up();
    scene.change_much();
    let held = scene.begin_held_in_mid_copy();
    let Scene { mut stage, load } = scene;
    load.stop().unwrap();
    stage.source.kill9().unwrap();
    let ended = held.ended();
    ended.assert_said(ErrorKind::Server, &[], "");
    stage.source.run().unwrap();
    let load = slow_load(&stage.source, seed + 1);
    let scene = Scene { stage, load };
    let next = scene.assert_next_works_after_failure(&first);
    assert!(next.run.totals.bytes_adopted > 0, "nothing was adopted: {:?}", next.run.totals);
    scene.prove(&first, &next);
}

#[test]
fn mariadb_10_11_dies_during_a_backup() {
    backup_survives_death_of_the_server(ServerKind::MariaDb1011, 61);
}

#[test]
fn mysql_9_7_dies_during_a_backup() {
    backup_survives_death_of_the_server(ServerKind::MySql97, 62);
}

/// The log wraps around while the reader is held up.
#[test]
fn mariadb_10_11_overwrites_redo_that_was_not_copied() {
    const LOG_MIB: u32 = 4;
    let scene = with_small_log(ServerKind::MariaDb1011, 63, LOG_MIB);
    let first = scene.stage.back_up();
    let held = scene.begin_held(&scene.place(), REDO_READ, 1);
    scene.write_redo(3 * 1024 * LOG_MIB as usize, Duration::ZERO);
    held.ended().assert_said(
        ErrorKind::Failed,
        &["the redo log was overwritten before it was copied", "the log holds"],
        "innodb_log_file_size",
    );
    let next = scene.assert_next_works_after_failure(&first);
    scene.prove(&first, &next);
}

/// The consumer holds back redo while the reader is held up: the backup gives up the consumer before the
/// server has to wait for it.
#[test]
fn mysql_9_7_is_never_stalled_by_a_backup_that_does_not_read_its_redo() {
    const LOG_MIB: u32 = 8;
    let scene = with_small_log(ServerKind::MySql97, 64, LOG_MIB);
    let first = scene.stage.back_up();
    let held = scene.begin_held(&scene.place(), REDO_READ, 3);
    // More than the log holds, but slowly enough that the server cannot stall between two checks of the
    // guard.
    scene.write_redo((1024 + 256) * LOG_MIB as usize, Duration::from_millis(100));
    let log = scene.source().log();
    assert!(!log.contains(STALLED_BY_US), "{log}");
    assert!(is_free(scene.source()));
    held.ended().assert_said(
        ErrorKind::Failed,
        &["given up before the server would have to stall writes", "bytes behind"],
        "innodb_redo_log_capacity",
    );
    let next = scene.assert_next_works_after_failure(&first);
    scene.prove(&first, &next);
}

/// The log is replaced by another file.
#[test]
fn mariadb_10_11_resizes_its_redo_log() {
    let scene = Scene::new(ServerKind::MariaDb1011, 65);
    let first = scene.stage.back_up();
    let held = scene.begin_held_in_mid_copy();
    scene.source().exec("SET GLOBAL innodb_log_file_size = 48 << 20").unwrap();
    held.ended().assert_said(
        ErrorKind::Failed,
        &["ib_logfile0", "the redo log was replaced during the backup"],
        "innodb_log_file_size was changed; run the backup again",
    );
    let next = scene.assert_next_works_after_failure(&first);
    scene.prove(&first, &next);
}

/// The log is a chain of files: resizing later files, or having fewer or more of them, changes nothing.
#[test]
fn mysql_9_7_resizes_its_redo_log() {
    let scene = with_small_log(ServerKind::MySql97, 66, 64);
    let first = scene.stage.back_up();
    for mib in [16, 96] {
        let held = scene.begin_held_in_mid_copy();
        scene.source().exec(format!("SET GLOBAL innodb_redo_log_capacity = {mib} << 20")).unwrap();
        scene.write_redo(8 << 10, Duration::from_millis(5));
        held.ended().succeeded();
        scene.assert_readable();
    }
    let newest = scene.stage.back_up();
    scene.prove(&first, &newest);
}
