//! A logical backup restored into a data directory, and recovered from there to moments behind it: the result
//! holds what the source held then, table by table and object by object, and goes on as its replica.

use holdfast_core::{
    logical::{self, Selection},
    recovery::{self, Until},
    server::LockPolicy,
};
use holdfast_repo::store::fs::FsStore;
use holdfast_testkit::{load::DdlStorm, tables::check_tables};

use super::{
    killed::{Orders, killed},
    *,
};
use crate::{
    binlog::{Stage, once, source},
    logical::{load_torture, user_checksums},
    recovery::pause,
};

fn start(kind: ServerKind) -> Server {
    let options =
        ServerOptions::default().arg("--log-bin-trust-function-creators=1").arg("--event-scheduler=OFF");
    Server::start(kind, options).unwrap()
}

fn back_up_rows(repo: &Arc<Repo>, server: &Server) -> u64 {
    let options = BackupOptions {
        locks: LockPolicy { held_max: crate::server::LOCK_MAX, ..LockPolicy::default() },
        name: Some(source()),
        parallel: 3,
        ..BackupOptions::new(crate::server::options(server))
    };
    logical::run(repo, &options, &Selection::default(), &Told, &Cancel::default()).unwrap().run.backup
}

fn fill(server: &Server) {
    shop::load(server, shop::ShopOptions { size_mib: 4, ..shop::ShopOptions::default() }).unwrap();
    misc::create(server, misc::MiscOptions::default()).unwrap();
    load_torture(server);
    server
        .exec_all([
            // Over when the backup is restored, not when it was taken.
            "CREATE EVENT shop.once ON SCHEDULE AT CURRENT_TIMESTAMP + INTERVAL 15 SECOND DO SELECT 1",
            // As a provider of managed servers has it.
            "CREATE TABLE mysql.rds_heartbeat2 (id INT PRIMARY KEY, value BIGINT)",
            "CREATE TABLE shop.at (id INT PRIMARY KEY, t TIMESTAMP NULL, d DATETIME)",
            "INSERT INTO mysql.time_zone (Time_zone_id, Use_leap_seconds) VALUES (900, 'N')",
            "INSERT INTO mysql.time_zone_name (Name, Time_zone_id) VALUES ('Europe/Berlin', 900)",
            "INSERT INTO mysql.time_zone_transition_type VALUES (900, 0, 3600, 0, 'CET')",
            "SET SESSION time_zone = 'Europe/Berlin'",
            "CREATE EVENT shop.zoned ON SCHEDULE EVERY 1 DAY DO SELECT 1",
        ])
        .unwrap();
}

/// Nothing of ours may be left in a restored directory, except for the report.
fn assert_nothing_left(target: &Path) {
    let ours = |path: &PathBuf| {
        let name = path.strip_prefix(target).unwrap().to_string_lossy().into_owned();
        name.contains("holdfast") && name != "holdfast-restore.json"
    };
    let left: Vec<PathBuf> = walk(target).into_iter().filter(ours).collect();
    assert_eq!(left, Vec::<PathBuf>::new());
}

/// A logical backup does not install plugins.
fn with_plugins(options: ServerOptions, report: &RestoreReport) -> ServerOptions {
    let told = report.server_options.iter().filter(|option| option.starts_with("--plugin-load"));
    told.fold(options, |options, option| options.arg(option.clone()))
}

/// Without the next number, which replayed statements set otherwise.
fn without_next_number(answer: &[Vec<Option<Vec<u8>>>]) -> Vec<Vec<Option<String>>> {
    let plain = |text: &Option<Vec<u8>>| {
        let text = String::from_utf8_lossy(text.as_ref()?).into_owned();
        let Some((before, after)) = text.split_once(" AUTO_INCREMENT=") else { return Some(text) };
        Some(format!("{before}{}", after.trim_start_matches(|c: char| c.is_ascii_digit())))
    };
    answer.iter().map(|row| row.iter().map(plain).collect()).collect()
}

/// What the source held at a moment.
struct Held {
    at: jiff::Timestamp,
    checksums: holdfast_testkit::checksum::Checksums,
    objects: std::collections::BTreeMap<String, Vec<Vec<Option<Vec<u8>>>>>,
}

fn moments_behind_rows(kind: ServerKind, seed: u64) {
    let server = start(kind);
    fill(&server);
    let stage = Stage::of(server);
    let Stage { server, repo, dir } = &stage;
    let busy = |seed: u64, work: &mut dyn FnMut()| {
        let load = WriteLoad::start(server, 2, seed).unwrap();
        let storm = DdlStorm::start(server, 1, seed).unwrap();
        sleep(Duration::from_millis(800));
        work();
        storm.stop().unwrap();
        load.stop().unwrap();
    };
    stage.once();
    let mut backup = 0;
    busy(seed, &mut || backup = back_up_rows(repo, server));
    let mut moments = Vec::new();
    for round in 0..2 {
        server
            .exec_all([
                format!("CREATE USER 'u{round}'@'localhost' IDENTIFIED BY 'of no use 1X-'"),
                format!("CREATE EVENT shop.e{round} ON SCHEDULE EVERY 1 DAY DO SELECT 1"),
                format!("REPLACE INTO mysql.rds_heartbeat2 VALUES (1, {round})"),
                "SET SESSION time_zone = 'Europe/Berlin'".to_owned(),
                format!("INSERT INTO shop.at VALUES ({round}, NOW(), NOW())"),
                "FLUSH BINARY LOGS".to_owned(),
            ])
            .unwrap();
        let held = Held {
            at: pause(),
            checksums: user_checksums(server),
            objects: crate::logical::described(server),
        };
        moments.push(held);
        busy(seed + 1 + round, &mut || ());
    }
    stage.once();
    for (round, held) in moments.iter().enumerate() {
        let target = dir.path().join(format!("moment-{round}"));
        let chosen = recovery::choose(repo, &source(), None, Until::Time(held.at)).unwrap();
        assert_eq!((chosen.base().0.kind, chosen.base().1), (Kind::Logical, RunNo(backup)));
        // A view that cannot be used on the source cannot be made anywhere.
        let options = RestoreOptions { leave_out: true, ..options(kind, target.clone()) };
        let planned = chosen.plan(repo, &options, &Cancel::default()).unwrap();
        assert!(!target.exists() && planned.restore.rows.unwrap().rows > 0, "{planned:?}");
        let report = chosen.run(repo, &options, &Told, &Cancel::default()).unwrap();
        println!("{kind}: {:?} {:?}", report.loaded, report.phases);
        let loaded = report.loaded.as_ref().unwrap();
        // A logical backup has no tablespaces.
        let is_adapted = |it: &String| it.contains("the target has no tablespace general");
        let is_elsewhere = |it: &String| it.contains("no directory of") || it.contains("in memory, and gone");
        let is_history = |it: &String| it.contains("rows of its history may be in other partitions");
        let is_known = |it: &String| is_adapted(it) || is_elsewhere(it) || is_history(it);
        assert!(loaded.adapted.iter().all(is_known), "{loaded:?}");
        assert_eq!(loaded.adapted.iter().any(is_history), kind.is_mariadb());
        assert!(loaded.adapted.iter().any(|it| it.contains("in memory, and gone")), "{loaded:?}");
        assert_eq!(loaded.adapted.iter().any(is_adapted), !kind.is_mariadb());
        let [broken] = &loaded.left_out[..] else { panic!("{loaded:?}") };
        assert!(broken.starts_with("view torture.broken:"), "{broken}");
        assert!(loaded.tables_verified > 0 && loaded.accounts > 0, "{loaded:?}");
        assert!(report.replayed.as_ref().unwrap().reached.transactions > 0);
        assert_nothing_left(&target);

        // A server that finds a MEMORY table empty writes that into its binlog, under a number of its source.
        let options = [
            "--log-bin-trust-function-creators=1",
            "--skip-log-bin",
            "--event-scheduler=OFF",
            r"--replicate-wild-ignore-table=mysql.rds\_%",
        ];
        let options = options.into_iter().fold(ServerOptions::default(), ServerOptions::arg);
        let copy = Server::attach(kind, &target, with_plugins(options, &report)).unwrap();
        check_tables(&copy).unwrap();
        let found = user_checksums(&copy);
        let differing = holdfast_testkit::checksum::differences(&held.checksums, &found);
        assert_eq!(differing, Vec::<String>::new(), "{kind} moment {round}");
        for (query, answer) in crate::logical::described(&copy) {
            // An event that was made behind the backup is disabled, as on any replica. Where files are differs.
            let differs = ["SHOW CREATE EVENT `shop`.`e", "SHOW CREATE TABLE `misc`."];
            if !differs.iter().any(|begin| query.starts_with(begin)) {
                let held = held.objects.get(&query).map(|held| without_next_number(held));
                assert_eq!(held, Some(without_next_number(&answer)), "{kind}: {query}");
            }
        }
        assert_eq!(crate::logical::described(&copy).len(), held.objects.len());
        let ours = copy.value::<u64>("SELECT COUNT(*) FROM mysql.user WHERE user LIKE 'holdfast%'");
        assert_eq!(ours.unwrap(), 0);
        let position = match (kind.is_mariadb(), report.position.unwrap().gtid) {
            (true, Some(gtid)) => Position::Gtid(gtid),
            (_, gtid) => {
                assert!(gtid.is_some());
                Position::Held
            }
        };
        replica::catch_up(server, &copy, &position, CATCH_UP_MAX).unwrap();
        let differing =
            holdfast_testkit::checksum::differences(&user_checksums(server), &user_checksums(&copy));
        assert_eq!(differing, Vec::<String>::new(), "{kind} after moment {round}");
    }
}

#[test]
fn mariadb_10_11_is_recovered_from_rows() {
    moments_behind_rows(ServerKind::MariaDb1011, 41);
}

#[test]
fn mariadb_11_8_is_recovered_from_rows() {
    moments_behind_rows(ServerKind::MariaDb118, 42);
}

#[test]
fn mysql_9_7_is_recovered_from_rows() {
    moments_behind_rows(ServerKind::MySql97, 43);
}

/// Killed anywhere, it leaves a directory on which no server starts, and the same command completes it.
fn killed_while_rebuilding(kind: ServerKind) {
    let server = start(kind);
    shop::load(&server, shop::ShopOptions { size_mib: 2, ..shop::ShopOptions::default() }).unwrap();
    misc::create(&server, misc::MiscOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("repo");
    let store = FsStore::create(&place).unwrap();
    let repo = Arc::new(Repo::init(Arc::new(store), &Protection::None).unwrap());
    let run = back_up_rows(&repo, &server);
    let target = dir.path().join("target");
    let orders = |point: &str| Orders {
        repo: place.clone(),
        target: target.clone(),
        program: kind.server_program().unwrap(),
        kind: "logical".to_owned(),
        run,
        point: point.to_owned(),
        after_ms: 0,
    };
    // MySQL takes seconds to make a new directory.
    let first = ["rebuild.planned", "rebuild.claimed", "rebuild.installed", "load.begun"];
    let later = [
        "load.rows.done",
        "rebuild.loaded",
        "rebuild.durable",
        "rebuild.moved",
        "rebuild.named",
        "restore.report.written",
    ];
    let skipped = if kind.is_mariadb() { 0 } else { 3 };
    for point in first.into_iter().skip(skipped).chain(later) {
        assert!(killed(&orders(point)), "{point}");
        if point == "restore.report.written" {
            break;
        }
        let is_complete = point == "rebuild.named" && !kind.is_mariadb();
        if target.exists() && !is_complete {
            let started = Server::attach(kind, &target, ServerOptions::default());
            assert!(started.is_err(), "{kind}: a server starts after {point}");
        }
    }
    let log = LogName { source: source(), kind: Kind::Logical };
    let restored =
        restore::run(&repo, &log, RunNo(run), &options(kind, target.clone()), &Told, &Cancel::default());
    let report = restored.unwrap();
    assert!(report.replayed.is_none());
    assert_nothing_left(&target);
    let options = with_plugins(ServerOptions::default(), &report);
    let copy = Server::attach(kind, &target, options).unwrap();
    check_tables(&copy).unwrap();
    crate::logical::assert_same_rows(&server, &copy);
}

#[test]
fn mariadb_10_11_killed_while_rebuilding() {
    killed_while_rebuilding(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_killed_while_rebuilding() {
    killed_while_rebuilding(ServerKind::MySql97);
}

/// A branch that was prepared before a logical backup, and ended behind it, is not in that backup: a moment after
/// its end is refused, and reached from an older backup.
fn branches_of_another_time(kind: ServerKind) {
    let stage = Stage::of(start(kind));
    let Stage { server, repo, dir } = &stage;
    let branch = |name: &str, id: u32| {
        let compress =
            (!kind.is_mariadb()).then(|| "SET SESSION binlog_transaction_compression = ON".to_owned());
        compress.into_iter().chain([
            format!("XA START '{name}'"),
            format!("INSERT INTO a.t VALUES ({id}, REPEAT('v', 5000))"),
            format!("XA END '{name}'"),
            format!("XA PREPARE '{name}'"),
        ])
    };
    server.exec_all(["CREATE DATABASE a", "CREATE TABLE a.t (id INT PRIMARY KEY, v TEXT)"]).unwrap();
    stage.once();
    let old = back_up_rows(repo, server);
    server.exec_all(branch("before", 1)).unwrap();
    server.exec_all(branch("given up", 2)).unwrap();
    let new = back_up_rows(repo, server);
    // On the branch's own connection: another may end it only when the server has noticed that this one is gone.
    let ends = ["XA COMMIT 'within'", "INSERT INTO a.t VALUES (4, '')"].map(str::to_owned);
    server.exec_all(branch("within", 3).chain(ends)).unwrap();
    let prepared = pause();
    server.exec("XA ROLLBACK 'given up'").unwrap();
    let given_up = pause();
    server.exec("XA COMMIT 'before'").unwrap();
    let committed = pause();
    server.exec("INSERT INTO a.t VALUES (5, '')").unwrap();
    stage.once();

    let chosen = |run: u64, at: jiff::Timestamp| {
        recovery::choose(repo, &source(), Some((Kind::Logical, Some(RunNo(run)))), Until::Time(at)).unwrap()
    };
    let restored = |run: u64, at: jiff::Timestamp| {
        let target = dir.path().join("target");
        chosen(run, at).run(repo, &options(kind, target.clone()), &Told, &Cancel::default()).unwrap();
        let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
        let ids = copy.query::<u32>("SELECT id FROM a.t ORDER BY id").unwrap();
        drop(copy);
        fs::remove_dir_all(&target).unwrap();
        ids
    };
    assert_eq!(restored(new, prepared), [3, 4]);
    for (at, name) in [(given_up, "given up"), (committed, "given up")] {
        let target = dir.path().join("refused");
        let recovery = chosen(new, at);
        let error =
            recovery.run(repo, &options(kind, target.clone()), &Told, &Cancel::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        let text = error.to_string();
        assert!(
            text.contains(&format!("ends XA branch X'{hex}',")) && text.contains("db1/logical"),
            "{text}"
        );
        assert!(!target.exists());
        let written = recovery.write_binlog(false, &Cancel::default(), &mut |_| panic!("written"));
        assert_eq!(written.unwrap_err().to_string(), text);
    }
    assert_eq!(restored(old, committed), [1, 3, 4]);
}

#[test]
fn mariadb_10_11_branches_of_another_time() {
    branches_of_another_time(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_branches_of_another_time() {
    branches_of_another_time(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_branches_of_another_time() {
    branches_of_another_time(ServerKind::MySql97);
}

/// What is about files has no meaning, and what is not empty is not touched.
#[test]
fn what_is_refused() {
    let kind = ServerKind::MariaDb1011;
    let server = start(kind);
    server.exec_all(["CREATE DATABASE a", "CREATE TABLE a.t (id INT PRIMARY KEY)"]).unwrap();
    let stage = Stage::of(server);
    let run = back_up_rows(&stage.repo, &stage.server);
    let log = LogName { source: source(), kind: Kind::Logical };
    let target = stage.dir.path().join("target");
    let refused = |options: &RestoreOptions| {
        let plan = restore::plan(&stage.repo, &log, RunNo(run), options, &Cancel::default()).unwrap_err();
        let error = restore::run(&stage.repo, &log, RunNo(run), options, &Told, &Cancel::default());
        let error = error.unwrap_err();
        assert_eq!(error.to_string(), plan.to_string());
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        error.to_string()
    };
    for (options, option) in [
        (RestoreOptions { delta: true, ..options(kind, target.clone()) }, "--delta"),
        (RestoreOptions { prepare: false, ..options(kind, target.clone()) }, "--no-prepare"),
        (RestoreOptions { keyring: Some("/k".into()), ..options(kind, target.clone()) }, "--keyring"),
    ] {
        let error = refused(&options);
        assert!(error.contains(option) && error.contains("a server makes its files anew"), "{error}");
    }
    fs::create_dir(&target).unwrap();
    fs::write(target.join("thesis.txt"), "years of work").unwrap();
    assert!(refused(&options(kind, target.clone())).contains("is not empty"));
    assert_eq!(walk(&target).len(), 1);
    // A part of a server is a base for no moment.
    let part = Selection { schemas: vec!["a".parse().unwrap()], ..Selection::default() };
    let connect = crate::server::options(&stage.server);
    let options = BackupOptions { name: Some(source()), ..crate::server::backup_options(connect) };
    let part = logical::run(&stage.repo, &options, &part, &Told, &Cancel::default()).unwrap();
    once(&stage.repo, &stage.server);
    let named = Some((Kind::Logical, Some(RunNo(part.run.backup))));
    let error = recovery::choose(&stage.repo, &source(), named, Until::End).err().unwrap();
    assert!(error.to_string().contains("holds only a part of its server"), "{error}");
}
