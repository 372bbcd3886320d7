//! SIGKILL and SIGSTOP wherever a prune changes something: it begins its run, rewrites the parts still needed
//! of dying packs, declares the packs dead, and deletes what the previous prune has declared.

use std::process::Command;

use holdfast_repo::{
    LogName, RunNo,
    data::{
        reader::ChunkSource,
        writer::{ChunkRewriter, WriterOptions},
    },
    hooks::Hooks,
    log::run::RunOptions,
    ops::{
        expire::{ExpireRequest, expire},
        prune::{PruneError, PruneOptions, Pruned, plan_prune, prune},
    },
    store::fs::FsStore,
};

use super::{freeze::later, *};

/// Points passed, in order, by a prune that does everything it can do.
const PRUNE_POINTS: [&str; 12] = [
    "store.create runs",
    "writer.pack.before_put",
    "store.finish packs",
    "writer.pack.after_finish",
    "store.finish index",
    "store.finish refs",
    PUBLICATION,
    "store.delete packs",
    "store.delete index",
    "store.delete refs",
    "store.delete reports",
    "store.delete runs",
];
const PUBLICATION: &str = "store.create outcomes";

/// Leaves no pack with dead parts, and waits for no grace period.
fn everything() -> PruneOptions {
    PruneOptions {
        grace: Duration::ZERO,
        resume_window: Duration::ZERO,
        rewrite_below_percent: 100,
        ..PruneOptions::default()
    }
}

fn rewriter(repo: &Arc<Repo>, log: &LogName, hooks: Hooks) -> ChunkRewriter {
    let history = History::read(repo, log).unwrap();
    let source = ChunkSource::new(Arc::clone(repo), &history, 32 << 20).unwrap();
    ChunkRewriter::new(Arc::new(source), WriterOptions { hooks, ..WriterOptions::default() })
}

/// Declares everything that can be declared, and deletes everything declared earlier.
pub(super) fn prune_everything(repo: &Arc<Repo>, hooks: Hooks) -> Result<Pruned, PruneError> {
    let mut rewriter = rewriter(repo, &log(), hooks);
    prune(repo, &log(), &everything(), Some(&mut rewriter), &RunOptions::of_this_process())
}

fn expire_exactly(repo: &Arc<Repo>, backups: &[&BackupReport]) {
    let request = ExpireRequest::Exactly(backups.iter().map(|backup| RunNo(backup.run.backup)).collect());
    expire(repo, &log(), &request, &RunOptions::of_this_process()).unwrap();
}

/// A repository with work of every kind for a prune, and the listed backups.
pub(super) fn ripe(seed: u64) -> (Scene, [BackupReport; 2]) {
    let scene = Scene::new(ServerKind::MariaDb1011, seed);
    let changed = || {
        scene.change_much();
        scene.change();
        scene.stage.back_up()
    };
    // Its stored data are garbage unless a backup adopts them.
    let died = || {
        scene.change_much();
        let point = "writer.index.after_put".to_owned();
        scene.begin(Some(Trap { point, nth: 1, deed: Deed::Kill })).killed();
    };
    let gone = [changed(), changed()];
    let going = [changed(), changed()];
    expire_exactly(&scene.stage.repo, &[&gone[0], &gone[1]]);
    died();
    let declared = prune_everything(&scene.stage.repo, Hooks::default()).unwrap().declared;
    assert!(!declared.dead.is_empty() && !declared.rewrite.is_empty(), "{declared:?}");
    let standing = [changed(), changed()];
    expire_exactly(&scene.stage.repo, &[&going[0], &going[1]]);
    died();
    (scene, standing)
}

impl Scene {
    /// A copy of the repository, for one interruption.
    fn copy(&self, name: &str) -> Place {
        let place = self.place();
        let repo = self.stage.dir.path().join(name);
        assert!(Command::new("cp").arg("-r").args([&place.repo, &repo]).status().unwrap().success());
        Place { repo, ..place }
    }
}

fn open(place: &Place) -> Arc<Repo> {
    let store = Arc::new(FsStore::open(&place.repo).unwrap());
    Arc::new(Repo::open(store, Some(&password())).unwrap())
}

/// Checks that all listed backups are readable, and that two prunes free everything else: one
/// declares, the next deletes.
fn assert_goes_on(repo: &Arc<Repo>, standing: &[u64]) {
    assert_eq!(standing_in(repo), standing);
    check_all(repo, READ_ALL);
    for _ in 0..2 {
        prune_everything(repo, Hooks::default()).unwrap();
    }
    let mut rewriter = rewriter(repo, &log(), Hooks::default());
    let mut history = History::read(repo, &log()).unwrap();
    let plan = plan_prune(repo, &mut history, &everything(), Some(&mut rewriter)).unwrap();
    assert!(plan.declares_nothing(), "{plan:?}");
    let mut pack_bytes = 0;
    repo.store()
        .list("sources/db1/physical/packs/", &mut |pack| {
            pack_bytes += pack.size_bytes;
            true
        })
        .unwrap();
    assert_eq!(pack_bytes, plan.live_bytes, "something is left that nothing needs: {plan:?}");
    assert_eq!(standing_in(repo), standing);
    check_all(repo, READ_ALL);
}

/// A passing of a point by a prune that runs to completion.
struct Passing {
    trap: Trap,
    /// Whether another run can end this one: it has begun, and has no outcome yet.
    can_be_lost: bool,
}

/// The first passing of each point; all of them in long runs.
fn passings(points: &[String], deed: &Deed) -> Vec<Passing> {
    for point in PRUNE_POINTS {
        assert!(points.iter().any(|passed| passed == point), "{point} was not passed: {points:?}");
    }
    let begun = points.iter().position(|passed| passed == "store.create runs").unwrap();
    let published = points.iter().rposition(|passed| passed == PUBLICATION).unwrap();
    let mut seen: HashMap<&str, u64> = HashMap::new();
    let mut all = Vec::new();
    for (position, point) in points.iter().enumerate() {
        let nth = seen.entry(point).or_default();
        *nth += 1;
        if long() || *nth == 1 {
            let trap = Trap { point: point.clone(), nth: *nth, deed: deed.clone() };
            all.push(Passing { trap, can_be_lost: (begun + 1..=published).contains(&position) });
        }
    }
    all
}

fn dry_run(scene: &Scene) -> Vec<String> {
    let place = scene.copy("dry");
    let points = Child::start(&place, Work::Prune, None).ended().succeeded().points;
    assert_goes_on(&open(&place), &scene.standing());
    points
}

#[test]
fn a_prune_is_killed_at_any_point() {
    let (mut scene, [first, newest]) = ripe(81);
    let standing = [first.run.backup, newest.run.backup];
    for (number, Passing { trap, .. }) in passings(&dry_run(&scene), &Deed::Kill).into_iter().enumerate() {
        let begin = Instant::now();
        let place = scene.copy(&format!("killed-{number}"));
        let at = format!("{} #{}", trap.point, trap.nth);
        Child::start(&place, Work::Prune, Some(trap)).killed();
        let repo = open(&place);
        assert_goes_on(&repo, &standing);
        println!("killed at {at}: {:?}", begin.elapsed());
        scene.stage.repo = repo;
    }
    scene.prove(&first, &newest);
}

#[test]
fn a_prune_is_frozen_while_others_back_up_and_prune() {
    let (mut scene, [first, second]) = ripe(82);
    let mut newest = None;
    let all = passings(&dry_run(&scene), &Deed::Freeze);
    // The other points are next to calls of the store.
    let chosen = all.into_iter().filter(|passing| long() || passing.trap.point.starts_with("store."));
    for (number, Passing { trap, can_be_lost }) in chosen.enumerate() {
        let begin = Instant::now();
        let place = scene.copy(&format!("frozen-{number}"));
        let at = format!("{} #{}", trap.point, trap.nth);
        let mut frozen = Child::start(&place, Work::Prune, Some(trap));
        frozen.frozen();

        scene.change();
        let repo = later(&place);
        let next = backup::run(&repo, &scene.stage.options(), &Told, &Cancel::default()).unwrap();
        expire_exactly(&repo, &[&first]);
        let standing = [second.run.backup, next.run.backup];
        assert_goes_on(&repo, &standing);

        frozen.thaw();
        let ended = frozen.ended();
        if can_be_lost {
            assert!(ended.error().contains("was ended by another"), "{at}: {}", ended.error());
        } else {
            ended.succeeded();
        }
        assert_goes_on(&repo, &standing);
        scene.stage.repo = repo;
        println!("frozen at {at}: {:?}", begin.elapsed());
        newest = Some(next);
    }
    scene.prove(&second, &newest.unwrap());
}
