//! A load that dies at any point: the same command continues it, and in the end the target equals the source.

use std::{
    fs::File,
    io::Write,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_core::{Event, Listener, points::set_hook, server::ConnectOptions};
use holdfast_repo::{Repo, store::fs::FsStore};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use super::*;
use crate::{freeze::freeze_here, physical::password};

const ORDERS: &str = "HOLDFAST_TEST_LOAD_ORDERS";

#[derive(Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) repo: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) backup: u64,
    /// Dies when this point is passed for the given time.
    pub(super) point: Option<(String, u64)>,
    /// Stops at the point instead, until told to continue.
    pub(super) freezes: bool,
    pub(super) enables_local_infile: bool,
    /// Dies after this long.
    pub(super) after: Option<Duration>,
    pub(super) record: PathBuf,
    /// Loads with the redo log off.
    pub(super) disable_redo: bool,
    pub(super) overwrite: bool,
}

impl Orders {
    pub(super) fn new(stage: &Stage, backup: u64, target: &Server) -> Orders {
        Orders {
            repo: stage.repo_dir(),
            socket: target.socket().to_owned(),
            backup,
            point: None,
            freezes: false,
            enables_local_infile: false,
            after: None,
            record: target.socket().with_extension("points"),
            disable_redo: false,
            overwrite: false,
        }
    }

    /// Small units, so that there are many moments at which to die.
    pub(super) fn options(&self) -> LoadOptions {
        let connect = ConnectOptions {
            socket: Some(self.socket.clone()),
            user: Some("root".to_owned()),
            ..ConnectOptions::default()
        };
        LoadOptions {
            parallel: 2,
            chunks_per_commit: 2,
            leave_out: true,
            enable_local_infile: self.enables_local_infile,
            disable_redo: self.disable_redo,
            overwrite: self.overwrite,
            ..LoadOptions::new(connect)
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "SIGKILL", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "load::interrupted::operation", "--ignored", "--nocapture"])
            .env(ORDERS, serde_json::to_string(self).unwrap());
        command
    }

    /// Starts loading in a separate process.
    fn start(&self) -> Child {
        self.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Loads in a separate process. Returns the points that it passed, and whether it completed.
    pub(super) fn carry_out(&self) -> (Vec<String>, bool) {
        let output = self.command().output().unwrap();
        let is_killed = output.status.signal() == Some(Signal::KILL.as_raw());
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(is_killed || output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let points = std::fs::read_to_string(&self.record).unwrap_or_default();
        (points.lines().map(str::to_owned).collect(), !is_killed)
    }
}

/// Not a test by itself: loads, and dies where it is told to.
#[test]
#[ignore = "a process for the tests of this module"]
fn operation() {
    let orders: Orders = serde_json::from_str(&std::env::var(ORDERS).unwrap()).unwrap();
    let record = Mutex::new(File::create(&orders.record).unwrap());
    let die = || {
        kill_process(getpid(), Signal::KILL).unwrap();
        sleep(Duration::from_secs(60));
    };
    if let Some(after) = orders.after {
        std::thread::spawn(move || {
            sleep(after);
            die();
        });
    }
    let (at, passings) = (orders.point.clone(), AtomicU64::new(0));
    let freezes = orders.freezes;
    set_hook(move |name| {
        writeln!(record.lock().unwrap(), "{name}").unwrap();
        if let Some((point, nth)) = &at
            && point == name
            && passings.fetch_add(1, Ordering::SeqCst) + 1 == *nth
        {
            if freezes {
                return freeze_here();
            }
            die();
        }
    });
    let repo =
        Arc::new(Repo::open(Arc::new(FsStore::open(&orders.repo).unwrap()), Some(&password())).unwrap());
    load::run(&repo, &log(), RunNo(orders.backup), &orders.options(), &Told, &Cancel::default()).unwrap();
}

/// Tables of every kind that is resumed differently, with several units each, and their related objects.
pub(super) fn shop(kind: ServerKind) -> (Stage, u64) {
    let stage = Stage::new(kind);
    let rows = "SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n AS n FROM shop.ten a, shop.ten b, shop.ten c, shop.ten d";
    let fill = |table: &str| {
        format!("INSERT INTO shop.{table} SELECT n, n % 97, REPEAT(SHA2(n, 256), 3) FROM ({rows}) AS x")
    };
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.ten (n INT PRIMARY KEY)",
            "INSERT INTO shop.ten VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, customer INT, text VARCHAR(250), KEY (customer), UNIQUE KEY t (text, id))",
            "CREATE TABLE shop.log (id INT, customer INT, text VARCHAR(250))",
            "CREATE TABLE shop.old (id INT PRIMARY KEY, customer INT, text VARCHAR(250), KEY (customer)) ENGINE = MyISAM",
            "CREATE TABLE shop.customers (id INT PRIMARY KEY)",
            fill("orders").as_str(),
            fill("log").as_str(),
            fill("old").as_str(),
            "INSERT INTO shop.customers SELECT DISTINCT customer FROM shop.orders",
            "ALTER TABLE shop.orders ADD CONSTRAINT c FOREIGN KEY (customer) REFERENCES shop.customers (id)",
            "CREATE VIEW shop.z_view AS SELECT COUNT(*) AS c FROM shop.log",
            "CREATE VIEW shop.a_view AS SELECT c FROM shop.z_view",
            "CREATE PROCEDURE shop.p () SELECT 1",
            "CREATE TRIGGER shop.t BEFORE INSERT ON shop.customers FOR EACH ROW SET NEW.id = NEW.id",
            "CREATE EVENT shop.e ON SCHEDULE EVERY 1 YEAR DO SELECT 1",
        ])
        .unwrap();
    let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
    (stage, report.run.backup)
}

/// Waits until the server has noticed that the loading client is gone.
pub(super) fn until_unused(target: &Server) {
    let until = Instant::now() + Duration::from_secs(300);
    while target.query::<Option<u64>>("SELECT IS_USED_LOCK('holdfast_load')").unwrap() != [None] {
        assert!(Instant::now() < until);
        sleep(Duration::from_millis(10));
    }
}

pub(super) fn assert_whole(stage: &Stage, target: &Server) {
    assert_same_rows(&stage.source, target);
    assert_same_objects(&stage.source, target);
    assert_clean(target);
}

/// Dies once at each point in turn within one load.
/// Into MySQL, the first rows are sent as parameters and the others by `LOAD DATA`: the setting switched on
/// for that stays on when the load dies, and is off in the end.
fn killed_everywhere(kind: ServerKind) {
    let (stage, backup) = shop(kind);
    let target = start(kind);
    let mut orders = Orders::new(&stage, backup, &target);
    let points = [
        ("load.begun", 1),
        ("load.schemas.made", 1),
        ("load.object.noted", 1),
        ("load.table.made", 1),
        ("load.rows.sent", 1),
        ("load.rows.noted", 2),
        ("load.rows.committed", 2),
        ("load.rows.committed", 1),
        ("load.table.indexed", 1),
        ("load.rows.done", 1),
        ("load.table.linked", 1),
        ("load.views.begun", 1),
        ("load.programs.made", 1),
        ("load.ended", 1),
    ];
    let has_local_infile = || target.query::<u8>("SELECT @@GLOBAL.local_infile").unwrap() == [1];
    let had_local_infile = has_local_infile();
    let mut has_enabled = false;
    for point in points {
        orders.enables_local_infile = kind == ServerKind::MySql97 && point == ("load.rows.committed", 2);
        orders.point = Some((point.0.to_owned(), point.1));
        let (passed, is_done) = orders.carry_out();
        assert!(!is_done, "{point:?} was not passed: {passed:?}");
        until_unused(&target);
        has_enabled |= orders.enables_local_infile;
        // The load ends after this point.
        let is_on = had_local_infile || has_enabled && point.0 != "load.ended";
        assert_eq!(has_local_infile(), is_on, "{point:?}");
    }
    orders.point = None;
    let (passed, is_done) = orders.carry_out();
    assert!(is_done);
    // All of that was done by the runs that died.
    assert!(!passed.iter().any(|point| point == "load.rows.sent"), "{passed:?}");
    assert_whole(&stage, &target);
}

#[test]
fn a_load_that_dies_at_every_point_goes_on_into_mariadb() {
    killed_everywhere(ServerKind::MariaDb1011);
}

#[test]
fn a_load_that_dies_at_every_point_goes_on_into_mysql() {
    killed_everywhere(ServerKind::MySql97);
}

/// The load dies at random moments, and sometimes the server does.
fn killed_at_any_moment(kind: ServerKind) {
    const TRIES: u32 = 12;
    let seed = std::env::var("HOLDFAST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed
        .unwrap_or_else(|| Instant::now().elapsed().subsec_nanos() as u64 ^ u64::from(std::process::id()));
    println!("HOLDFAST_SEED={seed}");
    let (stage, backup) = shop(kind);
    let mut target = start(kind);
    let mut orders = Orders::new(&stage, backup, &target);
    let mut random = seed | 1;
    let mut deaths = 0;
    for round in 0..TRIES {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        orders.after = Some(Duration::from_millis(100 + random % 1_500));
        if orders.carry_out().1 {
            break;
        }
        // It may have died after completing its work.
        let is_there =
            |name| !target.query::<String>(format!("SHOW DATABASES LIKE '{name}'")).unwrap().is_empty();
        if is_there("shop") && !is_there("holdfast\\_load") {
            println!("died at its end");
            return assert_whole(&stage, &target);
        }
        deaths += 1;
        if round % 3 == 1 {
            target.kill9().unwrap();
            target.run().unwrap();
        }
        until_unused(&target);
    }
    println!("died {deaths} times");
    orders.after = None;
    if deaths == TRIES {
        assert!(orders.carry_out().1);
    }
    assert_whole(&stage, &target);
}

#[test]
fn a_load_into_mariadb_goes_on_after_any_moment_of_its_death_and_the_servers() {
    killed_at_any_moment(ServerKind::MariaDb1011);
}

#[test]
fn a_load_into_mysql_goes_on_after_any_moment_of_its_death_and_the_servers() {
    killed_at_any_moment(ServerKind::MySql97);
}

/// The server dies while rows are loaded: the load fails, and continues when the server is back.
#[test]
fn a_load_goes_on_when_its_server_is_back() {
    /// Reports when the rows phase begins.
    struct Rows(Mutex<mpsc::Sender<()>>);
    impl Listener for Rows {
        fn event(&self, event: Event) {
            if matches!(event, Event::Phase { name: "rows" }) {
                self.0.lock().unwrap().send(()).unwrap();
            }
        }
    }
    let (stage, backup) = shop(ServerKind::MySql97);
    let mut target = start(ServerKind::MySql97);
    let orders = Orders::new(&stage, backup, &target);
    let run = |listener: &dyn Listener| {
        load::run(&stage.repo, &log(), RunNo(backup), &orders.options(), listener, &Cancel::default())
    };
    let (begun, rows) = mpsc::channel();
    let outcome = std::thread::scope(|scope| {
        let target = &mut target;
        scope.spawn(move || {
            rows.recv().unwrap();
            sleep(Duration::from_millis(200));
            target.kill9().unwrap();
        });
        run(&Rows(Mutex::new(begun)))
    });
    target.run().unwrap();
    let error = outcome.unwrap_err();
    println!("it said: {error}");
    let report = run(&Told).unwrap();
    assert!(report.plan.is_continued, "{report:?}");
    assert_whole(&stage, &target);
}

/// While a load is unfinished, another one is refused, and so is a second process of the same load.
#[test]
fn one_load_at_a_time() {
    let (stage, backup) = shop(ServerKind::MariaDb1011);
    let target = start(ServerKind::MariaDb1011);
    let mut orders = Orders::new(&stage, backup, &target);
    orders.point = Some(("load.rows.committed".to_owned(), 1));
    assert!(!orders.carry_out().1);
    until_unused(&target);
    let other = LoadOptions {
        selection: Selection { tables: vec!["shop.ten".parse().unwrap()], ..Selection::default() },
        ..orders.options()
    };
    let error = load(&stage, backup, &other).unwrap_err();
    assert!(error.to_string().contains("unfinished load"), "{error}");
    let mut other = target.conn().unwrap();
    mysql::prelude::Queryable::query_drop(&mut other, "DO GET_LOCK('holdfast_load', 5)").unwrap();
    let error = load(&stage, backup, &orders.options()).unwrap_err();
    assert_eq!(error.kind(), holdfast_core::ErrorKind::Active, "{error}");
    drop(other);
    until_unused(&target);
    load(&stage, backup, &orders.options()).unwrap();
    assert_whole(&stage, &target);
}

/// A load that is frozen, or whose host or network is gone (which looks the same to the server), can be
/// continued by another process after a minute at most; when it resumes, it does nothing more.
#[test]
fn a_load_that_is_frozen_is_gone_on_with() {
    let (stage, backup) = shop(ServerKind::MariaDb1011);
    let target = start(ServerKind::MariaDb1011);
    let mut orders = Orders::new(&stage, backup, &target);
    orders.point = Some(("load.rows.committed".to_owned(), 2));
    orders.freezes = true;
    let mut frozen = orders.start();
    let is_stopped = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        status.rsplit(')').next().unwrap().trim_start().starts_with('T')
    };
    let until = Instant::now() + Duration::from_secs(300);
    while !is_stopped(frozen.id()) {
        assert!(Instant::now() < until);
        sleep(Duration::from_millis(10));
    }
    // The error names the lock's holder.
    let holder = target.query::<u64>("SELECT IS_USED_LOCK('holdfast_load')").unwrap()[0];
    let again = Orders::new(&stage, backup, &target);
    let error = load(&stage, backup, &again.options()).unwrap_err();
    assert_eq!(error.kind(), holdfast_core::ErrorKind::Active, "{error}");
    assert!(error.to_string().contains(&format!("session {holder} of root@")), "{error}");
    let begun = Instant::now();
    let report = loop {
        match load(&stage, backup, &again.options()) {
            Err(error) if error.kind() == holdfast_core::ErrorKind::Active => {}
            other => break other.unwrap(),
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_secs(1));
    };
    assert!(report.plan.is_continued, "{report:?}");
    assert_whole(&stage, &target);
    kill_process(rustix::process::Pid::from_child(&frozen), Signal::CONT).unwrap();
    assert!(!frozen.wait().unwrap().success());
    assert_whole(&stage, &target);
}

/// Objects that others have created since a load was interrupted belong to them: the load continues once they
/// are out of its way.
#[test]
fn what_others_made_meanwhile_is_not_dropped() {
    let (stage, backup) = shop(ServerKind::MariaDb1011);
    let target = start(ServerKind::MariaDb1011);
    let mut orders = Orders::new(&stage, backup, &target);
    orders.point = Some(("load.schemas.made".to_owned(), 1));
    assert!(!orders.carry_out().1);
    target
        .exec_all([
            "CREATE TABLE shop.customers (id INT PRIMARY KEY, name TEXT)",
            "INSERT INTO shop.customers VALUES (1, 'theirs')",
            "CREATE PROCEDURE shop.p () SELECT 'theirs'",
        ])
        .unwrap();
    let error = load(&stage, backup, &orders.options()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("shop.customers") && text.contains("shop.procedure p"), "{text}");
    // Consent that was not given at the first try does not apply to the second.
    let error = load(&stage, backup, &LoadOptions { overwrite: true, ..orders.options() }).unwrap_err();
    assert!(error.to_string().contains("unfinished load"), "{error}");
    assert_eq!(target.query::<String>("SELECT name FROM shop.customers").unwrap(), ["theirs"]);
    target.exec_all(["DROP TABLE shop.customers", "DROP PROCEDURE shop.p"]).unwrap();
    // While the load is running, someone creates an object that it has not reached yet.
    struct Meddler(Mutex<mysql::Conn>);
    impl Listener for Meddler {
        fn event(&self, event: Event) {
            if matches!(event, Event::Phase { name: "keys" }) {
                let statement = "CREATE PROCEDURE shop.p () SELECT 'theirs'";
                mysql::prelude::Queryable::query_drop(&mut *self.0.lock().unwrap(), statement).unwrap();
            }
        }
    }
    let meddler = Meddler(Mutex::new(target.conn().unwrap()));
    let run = |listener: &dyn Listener| {
        load::run(&stage.repo, &log(), RunNo(backup), &orders.options(), listener, &Cancel::default())
    };
    let error = run(&meddler).unwrap_err();
    assert!(error.to_string().contains("procedure p exists by now"), "{error}");
    let error = run(&Told).unwrap_err();
    assert!(error.to_string().contains("shop.procedure p"), "{error}");
    target.exec("DROP PROCEDURE shop.p").unwrap();
    run(&Told).unwrap();
    assert_whole(&stage, &target);
}

/// A table that a load was about to create, and that someone else has created and filled since, belongs to
/// them.
#[test]
fn what_others_made_in_the_place_of_what_was_begun_is_not_dropped() {
    let (stage, _) = shop(ServerKind::MariaDb1011);
    // Recreated in any case, and may come first.
    stage.source.exec("ALTER TABLE shop.old ENGINE = InnoDB").unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let target = start(ServerKind::MariaDb1011);
    let mut orders = Orders::new(&stage, backup, &target);
    orders.point = Some(("load.object.noted".to_owned(), 1));
    assert!(!orders.carry_out().1);
    let begun = "SELECT name FROM holdfast_load.objects WHERE kind = 'table' AND stage = 1";
    let begun = target.query::<String>(begun).unwrap();
    assert!(!begun.is_empty());
    for table in &begun {
        // If several were begun, the statement for one of them may have reached the server.
        target.exec(format!("DROP TABLE IF EXISTS shop.{table}")).unwrap();
        target.exec(format!("CREATE TABLE shop.{table} (id INT PRIMARY KEY)")).unwrap();
        target.exec(format!("INSERT INTO shop.{table} VALUES (1)")).unwrap();
    }
    let error = load(&stage, backup, &orders.options()).unwrap_err();
    assert!(error.to_string().contains("exists by now, and was not made by this load"), "{error}");
    for table in &begun {
        assert_eq!(target.query::<i32>(format!("SELECT id FROM shop.{table}")).unwrap(), [1], "{table}");
        target.exec(format!("DROP TABLE shop.{table}")).unwrap();
    }
    load(&stage, backup, &orders.options()).unwrap();
    assert_whole(&stage, &target);
}

/// A load makes stand-ins for views, and never a table in the place of one.
#[test]
fn a_table_in_the_place_of_a_view_that_was_begun_is_not_dropped() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage.source.exec_all(["CREATE DATABASE shop", "CREATE VIEW shop.v AS SELECT 1 AS one"]).unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let target = start(ServerKind::MariaDb1011);
    let mut orders = Orders::new(&stage, backup, &target);
    orders.point = Some(("load.views.begun".to_owned(), 1));
    assert!(!orders.carry_out().1);
    target
        .exec_all([
            "DROP VIEW shop.v",
            "CREATE TABLE shop.v (id INT PRIMARY KEY)",
            "INSERT INTO shop.v VALUES (1)",
        ])
        .unwrap();
    for _ in 0..2 {
        let error = load(&stage, backup, &orders.options()).unwrap_err();
        assert!(error.to_string().contains("shop.v"), "{error}");
        assert_eq!(target.query::<i32>("SELECT id FROM shop.v").unwrap(), [1]);
    }
    target.exec("DROP TABLE shop.v").unwrap();
    load(&stage, backup, &orders.options()).unwrap();
    assert_eq!(target.query::<i32>("SELECT one FROM shop.v").unwrap(), [1]);
}

/// Tables that a server empties when it restarts are reloaded, or reported as incomplete.
#[test]
fn tables_that_a_restart_empties() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.quick (id INT PRIMARY KEY) ENGINE = MEMORY",
            "INSERT INTO shop.quick VALUES (1), (2)",
            "CREATE TRIGGER shop.t BEFORE INSERT ON shop.quick FOR EACH ROW SET NEW.id = NEW.id",
        ])
        .unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let mut target = start(ServerKind::MariaDb1011);
    let mut orders = Orders::new(&stage, backup, &target);
    for point in ["load.programs.made", "load.verified"] {
        orders.point = Some((point.to_owned(), 1));
        assert!(!orders.carry_out().1);
        target.restart().unwrap();
    }
    let triggers = "SELECT trigger_name FROM information_schema.triggers WHERE event_object_table = 'quick'";
    assert_eq!(target.query::<String>(triggers).unwrap(), ["t"]);
    let error = load(&stage, backup, &orders.options()).unwrap_err();
    assert!(error.to_string().contains("shop.quick (0 rows instead of 2)"), "{error}");
    target.exec("DROP TABLE shop.quick").unwrap();
    load(&stage, backup, &orders.options()).unwrap();
    assert_eq!(target.query::<i32>("SELECT id FROM shop.quick ORDER BY id").unwrap(), [1, 2]);
    assert_eq!(target.query::<String>(triggers).unwrap(), ["t"]);
    assert_clean(&target);
}
