//! Acknowledgement as soon as data is on this host's disk: commits do not wait for the repository, and no
//! acknowledged commit is missing when the repository is back.

use std::{path::PathBuf, sync::atomic::Ordering};

use holdfast_core::{ErrorKind, binlog::SpoolOptions};
use holdfast_repo::{
    Folder, Kind, LogName,
    log::run::{Run, RunOptions},
};

use super::{live::repo_that_goes_away, *};

const SPOOL_MAX: u64 = 1 << 30;

fn log() -> LogName {
    LogName { source: source(), kind: Kind::Binlog }
}

fn spooling(stage: &Stage, bytes_max: u64) -> ArchiveOptions {
    let spool = SpoolOptions { dir: stage.dir.path().join("spool"), bytes_max };
    ArchiveOptions { spool: Some(spool), ..stage.options() }
}

/// The segments in the spool.
fn spooled(stage: &Stage) -> Vec<PathBuf> {
    let id = stage.repo.info().repository_id.to_string();
    let folder = stage.dir.path().join("spool").join(id).join(log().source.as_str());
    let folder = folder.join(log().folder(Folder::Segments));
    let mut files: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn rows_archived(stage: &Stage) -> u64 {
    let mut archived = 0;
    stage
        .archive()
        .summaries(&Search::default(), &mut |summary| {
            archived += u64::from(summary.tables == ["c.t"]);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    archived
}

/// An archiver whose repository goes away before the run can be ended, so that its data are only on this
/// host.
fn left_in_the_spool(stage: &Stage, semi_sync: bool) -> u64 {
    let (repo, is_away) = repo_that_goes_away(stage);
    let options = ArchiveOptions { semi_sync, ..spooling(stage, SPOOL_MAX) };
    let mut archiver = Archiver::start(&repo, options);
    wait_archived_by(stage, &mut archiver);
    let counter = Counter::start(&stage.server);
    while rows_archived(stage) == 0 {
        archiver.check();
        sleep(Duration::from_millis(50));
    }
    is_away.store(true, Ordering::Release);
    // Commits go on while the repository is away.
    let wait_until = |archiver: &mut Archiver, is_so: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is_so() {
            archiver.check();
            assert!(begin.elapsed() < CATCH_UP_MAX);
            sleep(Duration::from_millis(50));
        }
    };
    let rows = || stage.server.value::<u64>("SELECT COUNT(*) FROM c.t").unwrap();
    let before = (rows(), spooled(stage).len());
    wait_until(&mut archiver, &|| rows() > before.0 && spooled(stage).len() > before.1);
    let last = counter.stop();
    // A segment may have been cut before the last commits came; the one after it has them, or the next.
    for _ in 0..2 {
        let segments = spooled(stage).len();
        stage.server.exec("CREATE OR REPLACE VIEW c.v AS SELECT 1").unwrap();
        wait_until(&mut archiver, &|| spooled(stage).len() > segments);
    }
    let error = archiver.ended_by_cancel();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    assert!(!spooled(stage).is_empty());
    last
}

impl Archiver {
    fn ended_by_cancel(mut self) -> Error {
        self.cancel.cancel();
        self.thread.take().unwrap().join().unwrap().unwrap_err()
    }
}

/// The server and its files are lost while the repository is away: commits that were answered are archived
/// once this host can send them, although the server no longer exists.
fn the_server_is_lost(kind: ServerKind) {
    let mut stage = Stage::new(kind);
    enable_semi_sync(&stage.server);
    let last = left_in_the_spool(&stage, true);
    stage.server.kill9().unwrap();
    assert!(rows_archived(&stage) < last);
    // A run that began but stored nothing has not continued the archive.
    let run = Run::begin(&stage.repo, &log(), &RunOptions::of_this_process()).unwrap();
    run.abandon("a test").unwrap();
    let cancel = Cancel::default();
    let error = archive(&stage.repo, &spooling(&stage, SPOOL_MAX), &Told, &cancel).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server, "{error}");
    assert_eq!(spooled(&stage), Vec::<PathBuf>::new());
    let archived = rows_archived(&stage);
    println!("{kind}: {last} commits answered, {archived} archived");
    assert!(archived >= last, "{last} commits were answered, {archived} are archived");
}

#[test]
fn mariadb_10_11_is_lost_while_the_repository_is_away() {
    the_server_is_lost(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_is_lost_while_the_repository_is_away() {
    the_server_is_lost(ServerKind::MySql97);
}

/// Segments left in the spool are kept while another archiver continues in its place.
/// When the archive contains their data they are removed, and nothing is duplicated.
#[test]
fn another_has_taken_the_place() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    let last = left_in_the_spool(&stage, false);
    let left = spooled(&stage);
    // Archive from another host, which does not have this spool.
    stage.once();
    assert_eq!(spooled(&stage), left);
    stage.server.exec(format!("INSERT INTO c.t VALUES ({}, 'x')", last + 1)).unwrap();
    let options = ArchiveOptions { once: true, ..spooling(&stage, SPOOL_MAX) };
    let report = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    assert!(report.gaps.is_empty() && report.unsent_segments == 0, "{report:?}");
    assert_eq!(spooled(&stage), Vec::<PathBuf>::new());
    assert_eq!(rows_archived(&stage), last + 1);
    stage.compare_files();
}

/// Another archiver continued without the spooled segments, which no server has any
/// more: they stay in the spool.
#[test]
fn what_came_too_late_is_kept() {
    let stage = Stage::new(ServerKind::MySql97);
    left_in_the_spool(&stage, false);
    let left = spooled(&stage);
    let server = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    // Archive from another host, which has taken over the archive.
    let options = ArchiveOptions { once: true, new_identity: true, ..options(&server) };
    archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    let options = ArchiveOptions { spool: spooling(&stage, SPOOL_MAX).spool, ..options };
    let report = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    assert_eq!(report.unsent_segments, left.len() as u64, "{report:?}");
    assert_eq!(spooled(&stage), left);
}

/// A replica that never received the last acknowledged transactions replaces its primary, and reuses their
/// numbers. They exist only on this host, and are kept there.
#[test]
fn mariadb_what_a_promoted_replica_never_had_is_kept() {
    let mut stage = Stage::new(ServerKind::MariaDb1011);
    left_in_the_spool(&stage, false);
    let left = spooled(&stage);
    let stored = stage.archive().stretches().last().unwrap().stretch.gtids_after.clone().unwrap();
    let last = |server: &Server| server.value::<String>("SELECT @@gtid_binlog_pos").unwrap();
    assert_ne!(last(&stage.server), stored);
    // It has as much as the archive, and no more.
    let options = ServerOptions::default().arg("--log-slave-updates=ON");
    let replica = Server::start(ServerKind::MariaDb1011, options).unwrap();
    stage
        .server
        .exec_all(["CREATE USER r IDENTIFIED BY 'r'", "GRANT REPLICATION SLAVE ON *.* TO r"])
        .unwrap();
    let port = stage.server.port();
    replica
        .exec_all([
            format!(
                "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'r',
                 MASTER_PASSWORD = 'r', MASTER_USE_GTID = slave_pos"
            ),
            format!("START SLAVE UNTIL master_gtid_pos = '{stored}'"),
        ])
        .unwrap();
    let begun = std::time::Instant::now();
    while last(&replica) != stored {
        assert!(begun.elapsed() < CATCH_UP_MAX, "the replica stands at {}, not at {stored}", last(&replica));
        sleep(Duration::from_millis(20));
    }
    replica.exec_all(["STOP SLAVE", "RESET SLAVE ALL"]).unwrap();
    let lost = last(&stage.server);
    stage.server.kill9().unwrap();
    let sequence = |gtid: &str| gtid.rsplit('-').next().unwrap().parse::<u64>().unwrap();
    let others = sequence(&lost) - sequence(&stored) + 3;
    for number in 0..others {
        replica.exec(format!("INSERT INTO c.t VALUES ({}, 'another')", 1_000_000 + number)).unwrap();
    }
    let options = ArchiveOptions { once: true, ..super::options(&replica) };
    let report = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    assert!(report.gaps.is_empty(), "{report:?}");
    let options = ArchiveOptions { spool: spooling(&stage, SPOOL_MAX).spool, ..options };
    let report = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    assert_eq!(report.unsent_segments, left.len() as u64, "{report:?}");
    assert_eq!(spooled(&stage), left);
}

/// A full spool accepts nothing until the repository does; nothing is lost, and only one
/// process at a time uses a spool.
#[test]
fn a_full_spool() {
    let stage = Stage::new(ServerKind::MariaDb118);
    let (repo, is_away) = repo_that_goes_away(&stage);
    const FULL: u64 = 20_000;
    let options = ArchiveOptions { segment_age: Duration::from_millis(100), ..spooling(&stage, FULL) };
    let mut archiver = Archiver::start(&repo, options.clone());
    wait_archived_by(&stage, &mut archiver);
    let error = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap_err();
    assert!(error.to_string().contains("spools in"), "{error}");
    is_away.store(true, Ordering::Release);
    let counter = Counter::start(&stage.server);
    let held = || -> u64 { spooled(&stage).iter().map(|path| fs::metadata(path).unwrap().len()).sum() };
    while held() < FULL {
        archiver.check();
        sleep(Duration::from_millis(50));
    }
    sleep(Duration::from_secs(1));
    let full = held();
    sleep(Duration::from_secs(1));
    archiver.check();
    assert_eq!(held(), full, "it takes no more");
    is_away.store(false, Ordering::Release);
    counter.stop();
    wait_archived_by(&stage, &mut archiver);
    let report = archiver.stop();
    assert!(report.gaps.is_empty() && report.unsent_segments == 0, "{report:?}");
    assert_eq!(spooled(&stage), Vec::<PathBuf>::new());
    stage.compare_files();
}
