//! A life of a repository in a bucket whose service fails at random: requests are refused, dropped, cut, carried out
//! without an answer, carried out twice, or damaged, and for a while the credentials have expired.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    binlogs::seed,
    program::{Run, run},
    stores::Scene,
};
use holdfast_testkit::{
    object_storage::{BUCKET, ObjectStorage, ObjectStorageKind},
    proxy::{Fate, Proxy},
    rng::Rng,
};

/// Percent of the requests that go wrong.
const TROUBLE: u64 = 12;
/// For so many requests the credentials have expired.
const EXPIRED: u64 = 30;
/// How often an operation is tried in the storm before it is done without.
const TRIES: usize = 3;

/// What happens to requests, as the seed says; requests come in no fixed order, so a seed repeats a storm roughly.
struct Storm {
    random: Mutex<Rng>,
    requests: AtomicU64,
    troubled: AtomicU64,
    /// Requests for which the credentials have expired.
    expired: Range<u64>,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Rng::new(seed);
        let begin = random.between(50, 300);
        Self {
            random: Mutex::new(random),
            requests: AtomicU64::new(0),
            troubled: AtomicU64::new(0),
            expired: begin..begin + EXPIRED,
        }
    }

    fn fate(&self) -> Fate {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        if self.expired.contains(&number) {
            return Fate::error(400, "ExpiredToken");
        }
        let mut random = self.random.lock().unwrap();
        if !random.percent(TROUBLE) {
            return Fate::Pass;
        }
        self.troubled.fetch_add(1, Ordering::SeqCst);
        let fates = [
            Fate::error(503, "SlowDown"),
            Fate::error(500, "InternalError"),
            Fate::Drop,
            Fate::CutRequest,
            Fate::SwallowAnswer,
            Fate::CutAnswer,
            Fate::Twice,
            Fate::FlipBody,
        ];
        fates[random.index(fates.len())].clone()
    }
}

/// The repository, reached through the storm and past it.
struct Weather {
    storm: Scene,
    calm: Vec<(&'static str, String)>,
}

impl Weather {
    /// Past the storm.
    fn calmly(&self, words: &[&str]) -> Run {
        let mut command = self.storm.command(words);
        run(command.envs(self.calm.iter().map(|(name, value)| (name, value))))
    }

    /// Does something in the storm, which succeeds, or fails because of the storm and says so.
    /// Returns whether it succeeded in the end.
    #[track_caller]
    fn through(&self, act: impl Fn(&Scene) -> Run) -> bool {
        (0..TRIES).any(|_| {
            let it = act(&self.storm);
            let is_of_store = it.code == 5 && [&it.out, &it.err].iter().any(|said| said.contains("s3://"));
            assert!(it.code == 0 || is_of_store, "{it:#?}");
            it.code == 0
        })
    }

    #[track_caller]
    fn through_or_calmly(&self, words: &[&str]) {
        if !self.through(|scene| scene.run(words)) {
            self.calmly(words).expect_code(0);
        }
    }

    #[track_caller]
    fn restored(&self, id: &str) -> Rows {
        let target = self.storm.program.path(&id.replace('#', "-"));
        let words = self.storm.restore_words(&[id], &target);
        self.through_or_calmly(&words.iter().map(String::as_str).collect::<Vec<_>>());
        self.storm.rows_in(&target)
    }
}

type Rows = Vec<(u32, String)>;

#[test]
#[allow(clippy::print_stdout, reason = "what a failed run was like")]
fn a_storm_under_everything_ends_well_or_in_an_error_and_nothing_is_lost() {
    let seed = seed();
    let storage = ObjectStorage::start(ObjectStorageKind::Versitygw).unwrap();
    let storm = Arc::new(Storm::new(seed));
    let fates = Arc::clone(&storm);
    let proxy = Proxy::start(storage.port(), move |_| fates.fate()).unwrap();
    let calm = Vec::from(storage.environment());
    let environment = calm.iter().map(|(name, value)| match *name {
        "AWS_ENDPOINT_URL" => (*name, proxy.endpoint()),
        _ => (*name, value.clone()),
    });
    let scene = Scene::new(format!("s3://{BUCKET}/backups/db"), Vec::new(), environment.collect());
    let weather = Weather { storm: scene, calm };
    let scene = &weather.storm;

    let made = scene.run(&["init"]);
    assert!(made.code == 0 || made.code == 5, "{made:#?}");
    if made.code != 0 && weather.calmly(&["list"]).code != 0 {
        weather.calmly(&["init"]).expect_code(0);
    }
    // By tag, since a backup that failed has a number, too.
    let mut before: Vec<(String, Rows)> = Vec::new();
    for turn in 0..3 {
        let tag = format!("turn-{turn}");
        scene.server.exec(format!("UPDATE d.t SET v = '{tag}' WHERE id % 5000 = {turn}")).unwrap();
        before.push((tag.clone(), scene.rows()));
        let is_done = weather.through(|scene| scene.try_backup_as("db1", &["--tag", &tag]));
        println!("{tag}: {is_done}");
        if turn == 1 {
            weather.through_or_calmly(&["expire", "--name", "db1", "--keep-last", "1"]);
            weather.through_or_calmly(&["prune", "--grace", "0s"]);
            weather.through_or_calmly(&["prune", "--grace", "0s"]);
        }
    }
    weather.through(|scene| scene.run(&["check", "--read-data"]));
    weather.calmly(&["check", "--read-data"]).expect_code(0);
    let list = weather.calmly(&["list", "--json"]).expect_code(0).last();
    let listed = list["data"]["backups"].as_array().unwrap();
    assert!(!listed.is_empty(), "{list:#}");
    for backup in listed {
        let (id, tag) = (backup["id"].as_str().unwrap(), backup["tags"][0].as_str().unwrap());
        let expected = &before.iter().find(|(known, _)| known == tag).unwrap().1;
        assert!(weather.restored(id) == *expected, "{id}");
    }
    let (requests, troubled) = (storm.requests.load(Ordering::SeqCst), storm.troubled.load(Ordering::SeqCst));
    println!(
        "{troubled} of {requests} requests went wrong, and credentials had expired for {:?}",
        storm.expired
    );
    assert!(troubled > 30 && requests > storm.expired.end, "{troubled} of {requests}");
}
