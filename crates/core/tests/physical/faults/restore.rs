//! SIGKILL and SIGSTOP at every point that a restore passes, and while the server recovers the files.

use std::{path::Path, process::Command};

use super::*;

/// Points that a restore passes, in order.
const RESTORE_POINTS: [&str; 13] = [
    "restore.planned",
    "restore.claimed",
    "restore.set.aside",
    "restore.directories.made",
    "restore.files.written",
    "restore.files.durable",
    "restore.assembled",
    "restore.names.durable",
    FILE_NAMED,
    ALL_NAMED,
    RECOVERING,
    "restore.prepared",
    "restore.report.written",
];
/// A file without which no server starts has got its name.
const FILE_NAMED: &str = "restore.file.named";
const ALL_NAMED: &str = "restore.files.named";
const RECOVERING: &str = "restore.recovering";
const MARKER: &str = "holdfast-restore.incomplete";

/// A server, one backup of it, and targets to restore it into.
struct Restores {
    scene: Scene,
    backup: BackupReport,
    /// All points, in the order in which they are passed.
    points: Vec<String>,
}

impl Restores {
    fn new(kind: ServerKind, seed: u64) -> Restores {
        let scene = Scene::new(kind, seed);
        scene.change_much();
        let backup = scene.stage.back_up();
        let mut restores = Restores { scene, backup, points: Vec::new() };
        restores.points = restores.begin("dry", None).ended().succeeded().points;
        for point in RESTORE_POINTS {
            assert!(restores.points.iter().any(|passed| passed == point), "{point} was not passed");
        }
        restores
    }

    fn kind(&self) -> ServerKind {
        self.scene.source().kind()
    }

    fn target(&self, name: &str) -> PathBuf {
        self.scene.stage.dir.path().join(name)
    }

    fn begin(&self, name: &str, trap: Option<Trap>) -> Child {
        let server = self.kind().server_program().unwrap();
        let work = Work::Restore { backup: self.backup.run.backup, target: self.target(name), server };
        Child::start(&self.scene.place(), work, trap)
    }

    /// The index of the `nth` passing in the list of points.
    fn position(&self, point: &str, nth: usize) -> usize {
        let mut passings = self.points.iter().enumerate().filter(|(_, passed)| *passed == point);
        passings.nth(nth - 1).unwrap().0
    }

    /// Checks the state left by a restore that has not got past a passing.
    fn assert_unfinished(&self, name: &str, point: &str, nth: usize) {
        let target = self.target(name);
        let position = self.position(point, nth);
        assert_eq!(target.join(MARKER).exists(), position > self.position("restore.planned", 1), "{point}");
        // From the last one on, the directory is what a server leaves that crashed at the backup's position.
        let last_named = self.points.iter().rposition(|passed| passed == FILE_NAMED).unwrap();
        if target.exists() && position < last_named {
            self.assert_no_server_starts(&target);
        }
    }

    /// Tries this on a copy, since a server may change files before it finds that it cannot start.
    fn assert_no_server_starts(&self, target: &Path) {
        let copy = self.target("tried");
        // A recovering server is not frozen with the restore: its own files come and go while they are
        // copied.
        let copied = (0..20).any(|_| {
            drop(fs::remove_dir_all(&copy));
            Command::new("cp").arg("-r").args([target, &copy]).status().unwrap().success()
        });
        assert!(copied, "{} could not be copied", target.display());
        let started = Server::attach(self.kind(), &copy, ServerOptions::default());
        assert!(started.is_err(), "a server has started on an unfinished restore: {:?}", started);
        fs::remove_dir_all(&copy).unwrap();
    }

    /// Checks that the target equals the backup.
    fn assert_restored(&self, name: &str) {
        let target = self.target(name);
        assert!(!target.join(MARKER).exists());
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(target.join("holdfast-restore.json")).unwrap()).unwrap();
        assert_eq!(report["prepared"]["lsn"], self.backup.position.lsn.0, "{report}");
        let server = Server::attach(self.kind(), &target, ServerOptions::default()).unwrap();
        check_ledger(&server).unwrap();
        drop(server);
        fs::remove_dir_all(&target).unwrap();
    }

    fn survives(&self, trap: Trap) {
        let begin = Instant::now();
        let name = "killed";
        let (point, nth) = (trap.point.clone(), trap.nth);
        let ended = self.begin(name, Some(trap)).ended();
        // A restore that is killed some time after a point may have ended before.
        if !ended.status.success() {
            if point == RECOVERING {
                assert!(self.target(name).join(MARKER).exists());
            } else {
                self.assert_unfinished(name, &point, nth as usize);
            }
            self.begin(name, None).ended().succeeded();
        }
        self.assert_restored(name);
        println!("{}: killed at {point} #{nth}: {:?}", self.kind(), begin.elapsed());
    }

    fn goes_on(&self, point: &str) {
        let begin = Instant::now();
        let name = "frozen";
        let mut frozen = self.begin(name, Some(Trap { point: point.to_owned(), nth: 1, deed: Deed::Freeze }));
        frozen.frozen();
        self.assert_unfinished(name, point, 1);
        let other = self.begin(name, None).ended();
        let said = other.error();
        assert!(said.contains("another restore is writing to"), "{point}: {said}");
        frozen.thaw();
        frozen.ended().succeeded();
        self.assert_restored(name);
        println!("{}: frozen at {point}: {:?}", self.kind(), begin.elapsed());
    }

    /// The final proof, after all interruptions.
    fn prove(self) {
        let Restores { scene: Scene { stage, load }, backup, .. } = self;
        load.stop().unwrap();
        stage.prove(&backup);
    }
}

fn killed(kind: ServerKind, seed: u64, chosen: impl Fn(&str) -> bool) {
    let restores = Restores::new(kind, seed);
    let trap = |point: &str, nth, deed| Trap { point: point.to_owned(), nth, deed };
    for point in RESTORE_POINTS.into_iter().filter(|point| long() || chosen(point)) {
        restores.survives(trap(point, 1, Deed::Kill));
    }
    // When one more of those files has its name.
    restores.survives(trap(FILE_NAMED, 2, Deed::Kill));
    let mut rng = Rng::new(seed);
    for _ in 0..if long() { 10 } else { 2 } {
        let delay = Duration::from_millis(rng.below(1500));
        println!("HOLDFAST_FAULTS_SEED={seed}: killed {delay:?} after the start of the recovery");
        restores.survives(trap(RECOVERING, 1, Deed::KillAfter(delay)));
    }
    restores.prove();
}

#[test]
fn mariadb_10_11_is_restored_after_a_restore_was_killed_at_any_point() {
    killed(ServerKind::MariaDb1011, 91, |_| true);
}

#[test]
fn mariadb_11_8_is_restored_after_a_restore_was_killed() {
    killed(ServerKind::MariaDb118, 94, |point| ["restore.files.written", FILE_NAMED].contains(&point));
}

#[test]
fn mysql_9_7_is_restored_after_a_restore_was_killed() {
    killed(ServerKind::MySql97, 92, |point| {
        ["restore.files.written", "restore.names.durable", ALL_NAMED, "restore.prepared"].contains(&point)
    });
}

#[test]
fn mariadb_10_11_is_restored_by_a_restore_that_was_frozen() {
    let restores = Restores::new(ServerKind::MariaDb1011, 93);
    let few =
        ["restore.set.aside", "restore.files.written", FILE_NAMED, RECOVERING, "restore.report.written"];
    let all = RESTORE_POINTS.into_iter().filter(|point| *point != "restore.planned");
    for point in all.filter(|point| long() || few.contains(point)) {
        restores.goes_on(point);
    }
    restores.prove();
}
