//! SIGKILL at every point that a backup passes, and at random moments.

use super::*;

/// Points that every list of points must contain.
const BACKUP_POINTS: [&str; 20] = [
    "backup.run.begun",
    "backup.redo.following",
    "backup.file.before_copy",
    "backup.tablespaces.copied",
    "backup.copied",
    "backup.ddl.blocked",
    "backup.locks.released",
    "backup.redo.finished",
    "writer.pack.before_put",
    "writer.pack.after_finish",
    "writer.packs.durable",
    "writer.index.before_put",
    "writer.index.after_put",
    "writer.refs.after_put",
    "backup.data.durable",
    "backup.report.durable",
    "store.create runs",
    "store.finish packs",
    "store.finish refs",
    PUBLICATION,
];
const MARIADB_POINTS: [&str; 3] = ["backup.stage.start", "backup.stage.flush", "backup.commit.blocked"];
const MYSQL_POINTS: [&str; 3] = ["backup.consumer.registered", "backup.quiet", "backup.tables.locked"];
/// The call that turns stored data into a backup.
const PUBLICATION: &str = "store.create outcomes";
/// From here on, there are data to adopt.
const ADOPTABLE: &str = "writer.index.after_put";
/// Passed each time the redo is read, so its frequency depends on timing.
const TIMED_POINT: &str = "backup.redo.read";
/// A run on the same host detects that the process is gone, instead of waiting 15 minutes
/// for the lease to expire.
const NEXT_RUN_MAX: Duration = Duration::from_secs(600);

/// One passing of a point.
#[derive(Clone, Debug)]
struct Passing {
    point: String,
    nth: u64,
    /// Whether the backup exists by then.
    is_published: bool,
    /// Whether the next run finds data to adopt.
    is_adoptable: bool,
}

impl Passing {
    fn trap(&self, deed: Deed) -> Trap {
        Trap { point: self.point.clone(), nth: self.nth, deed }
    }
}

/// The first passing of each point, and a few more of those passed often.
fn choose(points: &[String], many: bool) -> Vec<Passing> {
    let position = |name: &str| points.iter().position(|point| point == name).unwrap();
    let (published, adoptable) = (position(PUBLICATION), position(ADOPTABLE));
    let mut all: HashMap<&str, Vec<Passing>> = HashMap::new();
    for (at, point) in points.iter().enumerate() {
        let passings = all.entry(point).or_default();
        passings.push(Passing {
            point: point.clone(),
            nth: passings.len() as u64 + 1,
            is_published: at > published,
            is_adoptable: (adoptable..=published).contains(&at),
        });
    }
    let mut chosen = Vec::new();
    let mut names: Vec<&str> = all.keys().copied().collect();
    names.sort_by_key(|name| position(name));
    for name in names {
        let passings = &all[name];
        let wanted = if many { 8 } else { 2 };
        // How often a point is passed varies between runs.
        let sure = match name {
            TIMED_POINT => passings.len().min(3),
            _ => passings.len().div_ceil(2),
        };
        chosen.extend(passings[..sure].iter().step_by(sure.div_ceil(wanted)).cloned());
    }
    chosen
}

impl Scene {
    /// Checks what must hold when a backup has died at any moment.
    pub(super) fn assert_survived(&self, before: &[u64], published: bool) {
        self.until_free();
        self.assert_nothing_spooled();
        let standing = self.standing();
        assert_eq!(standing.len(), before.len() + usize::from(published), "{before:?}, then {standing:?}");
        assert!(standing.starts_with(before), "{before:?}, then {standing:?}");
        self.assert_whole();
    }

    /// Checks that the next backup succeeds immediately, based on the newest one listed.
    pub(super) fn assert_next_works(&self) -> BackupReport {
        let newest = self.standing().last().copied();
        let begin = Instant::now();
        let next = self.stage.back_up();
        assert!(begin.elapsed() < NEXT_RUN_MAX, "it waited for {:?}", begin.elapsed());
        assert_eq!(next.run.base, newest);
        next
    }

    fn survives(&self, passing: &Passing) {
        self.change();
        let before = self.standing();
        self.begin(Some(passing.trap(Deed::Kill))).killed();
        self.assert_survived(&before, passing.is_published);
        let next = self.assert_next_works();
        let killed = self.history().outcomes().iter().rev().nth(1).unwrap().outcome_type;
        let expected = match passing {
            Passing { is_published: true, .. } => OutcomeType::Backup,
            // The run had not begun.
            Passing { point, nth: 1, .. } if point == "store.create runs" => OutcomeType::Backup,
            _ => OutcomeType::Tombstone,
        };
        assert_eq!(killed, expected, "how the killed run ended");
        let adopted = next.run.totals.bytes_adopted;
        assert!(!passing.is_adoptable || adopted > 128 << 10, "only {adopted} bytes were adopted");
    }
}

/// Kills backups at the points selected by `chosen`, then restores the first and the newest.
fn backups_survive_kills(kind: ServerKind, seed: u64, required: &[&str], chosen: impl Fn(&str) -> bool) {
    let scene = Scene::new(kind, seed);
    let first = scene.stage.back_up();
    scene.change();
    let points = scene.begin(None).ended().succeeded().points;
    for point in BACKUP_POINTS.iter().chain(required) {
        assert!(points.iter().any(|passed| passed == point), "{point} was not passed");
    }
    let passings = choose(&points, long());
    for passing in passings.iter().filter(|passing| is_tried(&passing.point, chosen(&passing.point))) {
        let begin = Instant::now();
        scene.survives(passing);
        println!("{kind}: survived {} #{} in {:?}", passing.point, passing.nth, begin.elapsed());
    }
    scene.end(&first);
}

#[test]
fn mariadb_10_11_survives_a_backup_killed_at_any_point() {
    backups_survive_kills(ServerKind::MariaDb1011, 41, &MARIADB_POINTS, |_| true);
}

/// Its locks are those of 10.11, its files and its redo are not.
#[test]
fn mariadb_11_8_survives_a_backup_killed_while_it_holds_the_server() {
    let few = ["backup.stage.flush", "backup.commit.blocked", "backup.data.durable"];
    backups_survive_kills(ServerKind::MariaDb118, 44, &MARIADB_POINTS, |point| few.contains(&point));
}

/// The differences from MariaDB: the redo consumer and the instance lock.
#[test]
fn mysql_9_7_survives_a_backup_killed_while_it_holds_the_server() {
    let shared = [
        "backup.run.begun",
        "backup.file.before_copy",
        "backup.tablespaces.copied",
        "backup.data.durable",
        "backup.report.durable",
        "backup.published",
    ];
    backups_survive_kills(ServerKind::MySql97, 42, &MYSQL_POINTS, |point| {
        point.starts_with("backup.") && !shared.contains(&point)
    });
}

/// There are more moments between the points than the named ones.
#[test]
fn mariadb_10_11_survives_a_backup_killed_at_random_moments() {
    let seed = std::env::var("HOLDFAST_FAULTS_SEED").map_or(43, |seed| seed.parse().unwrap());
    let moments = if long() { 30 } else { 5 };
    println!("HOLDFAST_FAULTS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let scene = Scene::new(ServerKind::MariaDb1011, seed);
    let first = scene.stage.back_up();
    scene.change();
    let begin = Instant::now();
    let points = scene.begin(None).ended().succeeded().points;
    let gap_ms = u64::try_from(begin.elapsed().as_millis()).unwrap() / points.len() as u64;
    for _ in 0..moments {
        scene.change();
        let before = scene.standing();
        let at = rng.index(points.len());
        let point = points[at].clone();
        let nth = points[..=at].iter().filter(|other| **other == point).count() as u64;
        let delay = Duration::from_millis(rng.below(3 * gap_ms));
        println!("killed {delay:?} after {point} #{nth}");
        let deed = Deed::KillAfter(delay);
        let ended = scene.begin(Some(Trap { point, nth, deed })).ended();
        let published = scene.standing().len() > before.len();
        assert!(!published || ended.points.iter().any(|point| point == PUBLICATION));
        assert!(published || !ended.status.success());
        scene.assert_survived(&before, published);
        scene.assert_next_works();
    }
    let newest = scene.assert_next_works();
    scene.prove(&first, &newest);
}
