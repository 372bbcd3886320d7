//! A killed import leaves no server and no backup, and nothing that hinders the next import.

use super::*;

const ORDERS: &str = "HOLDFAST_TEST_IMPORT_ORDERS";

#[derive(Serialize, Deserialize)]
struct Orders {
    repo: PathBuf,
    dump: PathBuf,
    work: PathBuf,
    point: String,
    nth: u64,
}

/// Not a test by itself: imports, and dies where it is told to.
#[test]
#[ignore = "a process for the test of this module"]
fn operation() {
    let orders: Orders = serde_json::from_str(&std::env::var(ORDERS).unwrap()).unwrap();
    let passings = AtomicU64::new(0);
    set_hook(move |name| {
        if name == orders.point && passings.fetch_add(1, Ordering::SeqCst) + 1 == orders.nth {
            kill_process(getpid(), Signal::KILL).unwrap();
            sleep(Duration::from_secs(60));
        }
    });
    let repo =
        Arc::new(Repo::open(Arc::new(FsStore::open(&orders.repo).unwrap()), Some(&password())).unwrap());
    import(&repo, &options(&orders.dump, ServerKind::MariaDb1011, &orders.work)).unwrap();
}

/// Processes with this directory in their command line.
fn processes_in(dir: &Path) -> Vec<String> {
    let told = |entry: fs::DirEntry| {
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        command.contains(dir.to_str().unwrap()).then_some(command)
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| told(entry.ok()?)).collect()
}

#[test]
fn a_killed_import_leaves_nothing() {
    let files = tempfile::tempdir().unwrap();
    let repo_dir = files.path().join("repo");
    let repo = crate::physical::new_repo(&repo_dir);
    let (work, dump) = (work_dir(), files.path().join("dump.sql"));
    let mut text = "-- MariaDB dump 10.19  Distrib 10.11.6-MariaDB, for Linux (x86_64)\n-- Server version\t10.11.6-MariaDB\n\
                    CREATE DATABASE shop;\nUSE shop;\nCREATE TABLE t (id INT PRIMARY KEY);\n"
        .to_owned();
    (0..20).for_each(|id| text.push_str(&format!("INSERT INTO t VALUES ({id});\n")));
    text.push_str("-- Dump completed\n");
    fs::write(&dump, text).unwrap();
    for (point, nth) in [("import.statement", 9), ("import.executed", 1)] {
        let orders = Orders {
            repo: repo_dir.clone(),
            dump: dump.clone(),
            work: work.path().to_owned(),
            point: point.to_owned(),
            nth,
        };
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "import::killed::operation", "--ignored", "--nocapture"])
            .env(ORDERS, serde_json::to_string(&orders).unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.signal(), Some(Signal::KILL.as_raw()), "{said}");
        // The kernel kills the server when its parent is gone, which takes a moment.
        while !processes_in(work.path()).is_empty() {
            sleep(Duration::from_millis(20));
        }
        assert_eq!(standing(&repo), 0);
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 1, "{point}");
    }
    let report = import(&repo, &options(&dump, ServerKind::MariaDb1011, work.path())).unwrap();
    assert_eq!(report.read.rows, 20);
    assert_empty(work.path());

    // A cancelled import returns immediately, and leaves just as little.
    let cancel = Cancel::default();
    cancel.cancel();
    let stopped = options(&dump, ServerKind::MariaDb1011, work.path());
    let error = import::run(&repo, &stopped, &backup_options(), &Told, &cancel).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_empty(work.path());
}
