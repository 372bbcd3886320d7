//! Interrupted extractions: nothing is left except what the same command continues with.

use std::{os::unix::process::ExitStatusExt, process::Command, time::Instant};

use holdfast_core::{Event, Listener, points::set_hook};
use holdfast_repo::{Password, store::fs::FsStore};
use rustix::process::{Signal, getpid, kill_process};

use super::*;

const ORDERS: &str = "HOLDFAST_TEST_EXTRACT_ORDERS";
const KIND: ServerKind = ServerKind::MariaDb118;

/// Cancels when a phase begins.
struct StopAt(Cancel, &'static str);

impl Listener for StopAt {
    fn event(&self, event: Event) {
        if matches!(event, Event::Phase { name } if name == self.1) {
            self.0.cancel();
        }
    }
}

/// Not a test by itself: extracts, and dies where it is told to.
#[test]
#[ignore = "a process for the tests of this module"]
fn operation() {
    let orders = std::env::var(ORDERS).unwrap();
    let orders: Vec<&str> = orders.split('|').collect();
    let (repo, place, run, point) = (orders[0], Path::new(orders[1]), orders[2], orders[3].to_owned());
    set_hook(move |name| {
        if name == point {
            kill_process(getpid(), Signal::KILL).unwrap();
            sleep(Duration::from_secs(60));
        }
    });
    let password = Password::new("a password".to_owned()).unwrap();
    let store = FsStore::open(Path::new(repo).to_owned()).unwrap();
    let repo = Arc::new(Repo::open(Arc::new(store), Some(&password)).unwrap());
    let (log, run) = (log(), RunNo(run.parse().unwrap()));
    let options = options(KIND, place, &["x.items"]);
    drop(extract::run(&repo, Origin::Backup(&log, run), &options, &Told, &Cancel::default()));
    panic!("passed the point");
}

fn die_at(stage: &Stage, place: &Path, run: RunNo, point: &str) {
    let repo = stage.dir.path().join("repo");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "extract::interrupted::operation", "--ignored", "--nocapture"])
        .env(ORDERS, format!("{}|{}|{}|{point}", repo.display(), place.display(), run.0))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(Signal::KILL.as_raw()), "{point}: {said}");
}

/// Processes that have a path below a directory in their command line.
pub(crate) fn processes_of(place: &Path) -> Vec<String> {
    let place = place.display().to_string();
    let lines = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(&place) && line.contains("--datadir")).collect()
}

#[test]
fn what_ends_in_the_middle_leaves_nothing_or_goes_on() {
    let stage = source_at_rest(KIND, ServerOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let run = back_up(&stage, dir.path());
    let place = dir.path().join("work");
    let (log, target) = (log(), Server::start(KIND, ServerOptions::default()).unwrap());
    let origin = Origin::Backup(&log, run);
    let wanted = options(KIND, &place, &["x.items"]);

    // Interrupted by a signal.
    for phase in ["assemble", "prepare", "read"] {
        let cancel = Cancel::default();
        let stop = StopAt(cancel.clone(), phase);
        let error = extract::run(&stage.repo, origin, &wanted, &stop, &cancel).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        assert_empty(&place);
    }

    // Killed: the server dies as well, and the next run cleans up, whichever tables it extracts.
    for point in ["restore.serving", "extract.ready"] {
        die_at(&stage, &place, run, point);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "{point}");
        let began = Instant::now();
        while !processes_of(&place).is_empty() {
            assert!(began.elapsed() < Duration::from_secs(120), "{:?}", processes_of(&place));
            sleep(Duration::from_millis(50));
        }
        let other = options(KIND, &place, &["x.parts"]);
        drop(extract::run(&stage.repo, origin, &other, &Told, &Cancel::default()).unwrap());
        assert_empty(&place);
    }

    // A load that was begun continues with the rows that exist.
    let load = LoadOptions {
        selection: wanted.selection.clone(),
        renames: Renames(vec!["x=old".parse().unwrap()]),
        leave_out: true,
        ..LoadOptions::new(crate::server::options(&target))
    };
    let cancel = Cancel::default();
    let at_target =
        || ExtractOptions { target: Some(extract::look_at_target(&load).unwrap()), ..wanted.clone() };
    let extracted = extract::run(&stage.repo, origin, &at_target(), &Told, &cancel).unwrap();
    assert!(!extracted.is_taken_up);
    let error = extracted.load(&load, &StopAt(cancel.clone(), "rows"), &cancel).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert!(error.hint().unwrap().contains("the same command continues"), "{error:?}");
    // Another extraction does not interfere with it.
    let other = options(KIND, &place, &["x.parts"]);
    drop(extract::run(&stage.repo, origin, &other, &Told, &Cancel::default()).unwrap());
    assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
    // Neither does the same one, for files or for another server: it neither uses nor removes those rows.
    let files = extract::run(&stage.repo, origin, &wanted, &Told, &Cancel::default()).unwrap();
    assert!(!files.is_taken_up);
    drop(files);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
    // Elsewhere there are no rows to continue with, which is reported before anything is restored.
    let elsewhere = ExtractOptions { work_place: dir.path().join("elsewhere"), ..at_target() };
    let error = extract::run(&stage.repo, origin, &elsewhere, &Told, &Cancel::default()).err().unwrap();
    assert!(
        error.to_string().contains("unfinished load") && error.hint().unwrap().contains("--work-dir"),
        "{error:?}"
    );
    let extracted = extract::run(&stage.repo, origin, &at_target(), &Told, &Cancel::default()).unwrap();
    assert!(extracted.is_taken_up);
    let report = extracted.load(&load, &Told, &Cancel::default()).unwrap();
    assert!(report.plan.is_continued && report.plan.backup == "db1/physical #1", "{:?}", report.plan);
    assert_same(&rows(&target, "old", "items"), &rows(&stage.server, "x", "items"), "items");
    assert_empty(&place);
    let left: Vec<String> = target.query("SHOW DATABASES LIKE 'holdfast%'").unwrap();
    assert!(left.is_empty(), "{left:?}");
}
