//! Commits that wait for an archiver for a very long time: the archiver lets them continue, whatever the
//! server fails to answer meanwhile.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
};

use holdfast_core::ErrorKind;
use mysql::{Conn, OptsBuilder};

use super::{live::repo_that_goes_away, *};

/// More commits than would get through if each of the archiver's checks held up all commits.
const COMMITS_MIN: u64 = 300;
/// Normally it takes a quarter of this.
const GO_ON_MAX: Duration = Duration::from_secs(90);

/// Several clients that write one row after the other.
struct Writers {
    cancel: Cancel,
    committed: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<u64>>>,
}

impl Writers {
    fn start(server: &Server, count: u64) -> Self {
        let (cancel, committed) = (Cancel::default(), Arc::new(AtomicU64::new(0)));
        let threads = (1..=count)
            .map(|writer| {
                let (cancel, committed) = (cancel.clone(), Arc::clone(&committed));
                let mut conn = server.conn().unwrap();
                thread::spawn(move || {
                    let mut ids = Vec::new();
                    let mut id = writer << 32;
                    while !cancel.is_cancelled() {
                        conn.query_drop(format!("INSERT INTO c.t VALUES ({id})")).unwrap();
                        committed.fetch_add(1, Ordering::Relaxed);
                        ids.push(id);
                        id += 1;
                    }
                    ids
                })
            })
            .collect();
        Self { cancel, committed, threads }
    }

    fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    fn stop(self) -> Vec<u64> {
        self.cancel.cancel();
        self.threads.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    }
}

struct Waiting {
    stage: Stage,
    options: ArchiveOptions,
    prefix: &'static str,
}

impl Waiting {
    fn new(kind: ServerKind) -> Self {
        let stage = Stage::new(kind);
        enable_semi_sync(&stage.server);
        let prefix = if kind.is_mariadb() { "Rpl_semi_sync_master" } else { "Rpl_semi_sync_source" };
        stage.server.exec(format!("SET GLOBAL {prefix}_timeout = 3600000")).unwrap();
        let options = ArchiveOptions {
            semi_sync: true,
            segment_age: Duration::from_millis(20),
            look_every: Duration::from_millis(200),
            ..stage.options()
        };
        Self { stage, options, prefix }
    }

    fn count(&self, what: &str) -> u64 {
        let query = format!("SHOW GLOBAL STATUS LIKE '{}_{what}'", self.prefix);
        self.stage.server.query::<(String, u64)>(query).unwrap()[0].1
    }

    /// Waits until the server no longer lists its files, because commits are waiting.
    fn wait_until_silent(&self) {
        let begin = Instant::now();
        while self.count("wait_sessions") == 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "no commit waits");
            sleep(Duration::from_millis(50));
        }
        // The lock is held by what comes next behind the commits that wait: on MySQL someone who tries to end a
        // file, on MariaDB a commit of the next group (all writers may be in the one that waits).
        let next = if self.stage.server.kind().is_mariadb() {
            "INSERT INTO c.t VALUES (CONNECTION_ID())"
        } else {
            "FLUSH BINARY LOGS"
        };
        let opts = self.stage.server.opts();
        thread::spawn(move || Conn::new(opts).unwrap().query_drop(next));
        let opts: OptsBuilder = self.stage.server.opts().read_timeout(Some(Duration::from_secs(3)));
        while Conn::new(opts.clone()).unwrap().query_drop("SHOW BINARY LOGS").is_ok() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the server goes on listing its files");
            sleep(Duration::from_millis(100));
        }
    }
}

/// An archiver disappears while commits wait for it. The next one lets them continue, and keeps checking the
/// server without holding them up; all answered commits are archived.
fn the_next_archiver(kind: ServerKind) {
    let waiting = Waiting::new(kind);
    let Waiting { stage, options, .. } = &waiting;
    let (repo, is_away) = repo_that_goes_away(stage);
    let mut first = Archiver::start(&repo, options.clone());
    wait_archived_by(stage, &mut first);
    stage.server.exec_all(["CREATE DATABASE c", "CREATE TABLE c.t (id BIGINT PRIMARY KEY)"]).unwrap();
    wait_archived_by(stage, &mut first);
    // From now on it stores nothing, as if it had been killed.
    is_away.store(true, Ordering::Release);
    let writers = Writers::start(&stage.server, 4);
    waiting.wait_until_silent();
    first.cancel.cancel();
    let error = first.thread.take().unwrap().join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    let before = writers.committed();

    let mut second = Archiver::start(&stage.repo, options.clone());
    let begin = Instant::now();
    while writers.committed() < before + COMMITS_MIN {
        second.check();
        if begin.elapsed() > GO_ON_MAX {
            // Nothing else would end the threads.
            let gone_on = writers.committed() - before;
            stage.server.exec(format!("SET GLOBAL {}_enabled = OFF", waiting.prefix)).unwrap();
            panic!("{gone_on} commits went on");
        }
        sleep(Duration::from_millis(50));
    }
    println!("{kind}: {COMMITS_MIN} commits went on in {:.1?}", begin.elapsed());
    let ids = writers.stop();
    assert_eq!(waiting.count("no_tx"), 0);
    wait_archived_by(stage, &mut second);
    let report = second.stop();
    assert!(report.gaps.is_empty() && report.unacknowledged == 0, "{report:?}");
    let there: BTreeSet<u64> = stage.server.query("SELECT id FROM c.t").unwrap().into_iter().collect();
    assert!(ids.iter().all(|id| there.contains(id)));
    stage.compare_files();
}

#[test]
fn mariadb_10_11_the_next_archiver_lets_commits_go_on() {
    the_next_archiver(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_the_next_archiver_lets_commits_go_on() {
    the_next_archiver(ServerKind::MySql97);
}

/// If nothing is archived yet, the server must list its files: an archiver started while it cannot do so
/// reports the obstacle, instead of trying forever.
#[test]
fn mariadb_the_first_archiver_says_what_is_in_the_way() {
    let waiting = Waiting::new(ServerKind::MariaDb1011);
    let stage = &waiting.stage;
    stage.server.exec_all(["SET GLOBAL rpl_semi_sync_master_enabled = OFF", "CREATE DATABASE c"]).unwrap();
    stage.server.exec_all(["CREATE TABLE c.t (id BIGINT PRIMARY KEY)"]).unwrap();
    stage.server.exec("SET GLOBAL rpl_semi_sync_master_enabled = ON").unwrap();
    let writers = Writers::start(&stage.server, 4);
    waiting.wait_until_silent();
    let error = Archiver::start(&stage.repo, waiting.options.clone()).ended_by_itself();
    let hint = error.hint().unwrap_or_default();
    assert!(error.to_string().contains("while commits wait"), "{error}");
    // Its advice works.
    assert!(hint.contains("SET GLOBAL rpl_semi_sync_master_enabled = OFF"), "{hint}");
    stage.server.exec("SET GLOBAL rpl_semi_sync_master_enabled = OFF").unwrap();
    while writers.committed() < 100 {
        sleep(Duration::from_millis(20));
    }
    stage.once();
    stage.server.exec("SET GLOBAL rpl_semi_sync_master_enabled = ON").unwrap();
    waiting.wait_until_silent();
    let before = writers.committed();
    let mut archiver = Archiver::start(&stage.repo, waiting.options.clone());
    while writers.committed() < before + 20 {
        archiver.check();
        sleep(Duration::from_millis(50));
    }
    writers.stop();
    wait_archived_by(stage, &mut archiver);
    assert_eq!(archiver.stop().gaps, []);
    stage.compare_files();
}
