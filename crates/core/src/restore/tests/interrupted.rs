//! Restores that stop anywhere, and are run again.

use std::os::unix::{fs::MetadataExt, process::ExitStatusExt};

use super::*;
use crate::{
    event::{Event, Listener},
    restore::{Piece, Reached, Transactions, target::survey::survey},
};

/// A cancelled restore stops, and continues when it is run again.
#[test]
fn cancelled() {
    struct CancelAtOnce(Cancel);
    impl Listener for CancelAtOnce {
        fn event(&self, event: Event) {
            if matches!(event, Event::Phase { name: "assemble" }) {
                self.0.cancel();
            }
        }
    }
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = world.options("target");
    let cancel = Cancel::default();
    let error = restore::run(&world.repo, &log_name(), run, &options, &CancelAtOnce(cancel.clone()), &cancel)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert!(!is_startable(&options.target_dir));
    world.restore(run, &options).unwrap();
    assert_restored(&options.target_dir, &files);
}

/// Killed at any named point, a restore leaves nothing that a server would start
/// on unless it is complete; run again, it completes.
#[test]
fn killed_at_every_point() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let output = world.child(run, "names", "names", "").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<_> = text.lines().filter_map(|line| line.split("point ").nth(1)).collect();
    names.dedup();
    assert!(names.len() >= 10, "{text}");
    for name in names {
        let target = format!("killed {name}");
        let status = world.child(run, &target, "kill", name).output().unwrap().status;
        assert_eq!(status.signal(), Some(9), "{name}");
        let options = world.options(&target);
        let whole = ["restore.files.named", "restore.report.written"].contains(&name);
        assert_eq!(is_startable(&options.target_dir), whole, "{name}");
        assert!(whole || name == "restore.planned" || options.target_dir.join(MARKER).exists(), "{name}");
        // Another backup does not take it over.
        if name == "restore.files.written" {
            let other = world.backup(&files);
            assert_eq!(world.restore(other, &options).unwrap_err().kind(), ErrorKind::Usage);
        }
        world.restore(run, &options).unwrap();
        assert_restored(&options.target_dir, &files);
    }
}

/// A restore that was killed when a server could already be started on its target is completed without a page
/// being written; if a server was started, nothing is touched without --delta.
#[test]
fn killed_in_its_last_instant() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    for point in ["restore.files.named", "restore.report.written"] {
        let target = format!("killed {point}");
        let options = world.options(&target);
        let kill = || {
            let killed = world.child(run, &target, "kill", point).output().unwrap();
            assert_eq!(killed.status.signal(), Some(9));
        };
        let changed = || fs::metadata(options.target_dir.join("db/big.ibd")).unwrap().ctime_nsec();
        kill();
        let before = changed();
        let plan = restore::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).unwrap();
        assert!(plan.create.is_empty() && plan.replace.is_empty() && plan.delete.is_empty());
        let other = RestoreOptions { maps: vec![("/x".into(), world.path("x"))], ..options.clone() };
        assert_eq!(world.restore(run, &other).unwrap_err().kind(), ErrorKind::Usage);
        world.restore(run, &options).unwrap();
        assert_eq!(changed(), before, "{point}");
        assert_restored(&options.target_dir, &files);

        fs::remove_dir_all(&options.target_dir).unwrap();
        kill();
        let used = options.target_dir.join("ib_logfile0");
        let mut redo = fs::read(&used).unwrap();
        redo[LOG_BYTES as usize - 1] = 7;
        fs::write(&used, &redo).unwrap();
        let before = listing(&options.target_dir);
        let error = world.restore(run, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("used since"), "{error}");
        assert!(listing(&options.target_dir) == before, "{point}");
        world.restore(run, &RestoreOptions { delta: true, ..options.clone() }).unwrap();
        assert_restored(&options.target_dir, &files);
    }
}

/// What is complete was replayed up to some moment, and is not passed off as another.
#[test]
fn finished_only_if_it_is_the_same_moment() {
    struct Archive(u64);
    impl Transactions for Archive {
        fn each(&mut self, _: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<Reached> {
            Ok(Reached { transactions: self.0, ..Reached::default() })
        }
    }
    let world = World::new();
    let run = world.backup(&source());
    let options = world.options("target");
    let killed = world.child(run, "target", "kill", "restore.report.written").output().unwrap();
    assert_eq!(killed.status.signal(), Some(9));
    let marker = options.target_dir.join(MARKER);
    let mut said: serde_json::Value = serde_json::from_slice(&fs::read(&marker).unwrap()).unwrap();
    let gone = serde_json::Value::Null;
    said["named"]["report"]["replayed"] =
        json!({ "transactions": 7, "binlog": gone, "gtids": gone, "bytes": 1, "ms": 1 });
    fs::write(&marker, said.to_string()).unwrap();
    let plan = restore::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).unwrap();
    let finish = |archive: Option<&mut Archive>| {
        let survey = survey(&options.target_dir, false, &plan.backup).unwrap();
        restore::finish::run(
            &plan,
            &survey,
            &options,
            archive.map(|archive| archive as &mut dyn Transactions),
        )
    };
    assert_eq!(finish(None).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(finish(Some(&mut Archive(8))).unwrap_err().kind(), ErrorKind::Usage);
    let report = finish(Some(&mut Archive(7))).unwrap().unwrap();
    assert_eq!(report.replayed.unwrap().reached.transactions, 7);
    assert!(!marker.exists());
}

/// A file that cannot be written is named, and the restore continues once there is room.
#[test]
fn no_room() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    // With the signal ignored, a file beyond the limit is an error, as on a full disk.
    let inner = world.child(run, "target", "restore", "");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 8192; exec \"$0\" \"$@\""]).arg(inner.get_program());
    command.args(inner.get_args()).envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("db/big.ibd: file too large"), "{text}");
    let options = world.options("target");
    assert!(!is_startable(&options.target_dir));
    world.restore(run, &options).unwrap();
    assert_restored(&options.target_dir, &files);
}
