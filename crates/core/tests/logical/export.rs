//! Exported files can be loaded by the usual programs: the servers' own clients, and `myloader`.

use std::{collections::BTreeSet, io::Read as _};

use holdfast_core::{
    ErrorKind,
    logical::export::{ExportFormat, ExportOptions, Exported, Packing, export},
};
use holdfast_testkit::servers_dir;

use super::{round_trip::histories, *};

pub(crate) fn options(target: &Path, format: ExportFormat) -> ExportOptions {
    ExportOptions {
        target: target.to_owned(),
        format,
        packing: Packing::None,
        parallel: 3,
        file_bytes: 300 << 10,
        tables: None,
    }
}

fn run(backup: &Backup, options: &ExportOptions) -> Result<Exported> {
    export(backup, options, &Told, &Cancel::default())
}

/// Feeds a script to a client that runs in a directory.
pub(crate) fn feed(server: &Server, directory: &Path, args: &[&str], script: &[u8]) {
    let mut client = Command::new(server.kind().client_program().unwrap())
        .args(["--no-defaults", "--user=root", "--max-allowed-packet=64M"])
        .arg(format!("--socket={}", server.socket().display()))
        .args(args)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let fed = client.stdin.take().unwrap().write_all(script);
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{}: {}", server.kind(), String::from_utf8_lossy(&output.stderr));
    fed.unwrap();
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}

/// CSV with its scripts contains everything, what only this server has too, and a script equals the output of `cat`.
fn everything_is_in_files(kind: ServerKind) {
    let stage = Stage::new(kind);
    load_torture(&stage.source);
    stage.source.exec_all(WITHOUT_WHAT_CSV_CANNOT_SAY).unwrap();
    let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
    let history = History::read(&stage.repo, &log()).unwrap();
    let backup = Backup::open(&stage.repo, &history, RunNo(report.run.backup)).unwrap();
    let place = |name: &str| stage.dir.path().join(name);

    let done = run(&backup, &options(&place("csv"), ExportFormat::Csv)).unwrap();
    assert_eq!((done.rows, done.tables), (report.read.rows, report.read.tables));
    let target = start_with(kind, &["--local-infile=1"]);
    let script = |name: &str| fs::read(place("csv").join(name)).unwrap();
    feed(&target, &place("csv"), &["--binary-mode", "--comments"], &script("1-schema.sql"));
    feed(&target, &place("csv"), &["--local-infile=1"], &script("2-load.sql"));
    feed(&target, &place("csv"), &["--binary-mode", "--comments"], &script("3-programs.sql"));
    assert_same_rows(&stage.source, &target);
    assert_same_objects(&stage.source, &target);
    if kind.is_mariadb() {
        assert_eq!(histories(&stage.source), histories(&target));
    }
    // A large table consists of several files.
    assert!(place("csv/torture/texts.csv").is_file() && place("csv/torture/texts.00001.csv").is_file());

    // Existing files are left alone; a failed export leaves nothing.
    let error = run(&backup, &options(&place("csv"), ExportFormat::Sql)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    let cancel = Cancel::default();
    cancel.cancel();
    let stopped = options(&place("stopped"), ExportFormat::MyDumper);
    assert!(export(&backup, &stopped, &Told, &cancel).is_err());
    assert_eq!(names(stage.dir.path()), BTreeSet::from(["csv".to_owned(), "repo".to_owned()]));

    // A single compressed script equals the output of `cat`.
    let packed = ExportOptions { packing: Packing::Zstd, ..options(&place("sql"), ExportFormat::Sql) };
    run(&backup, &packed).unwrap();
    let file = fs::File::open(place("sql/backup.sql.zst")).unwrap();
    let mut unpacked = Vec::new();
    zstd::stream::read::Decoder::new(file).unwrap().read_to_end(&mut unpacked).unwrap();
    assert!(unpacked == stage.script(report.run.backup, None));
}

/// Tables of several databases come back into their own; those of one come into the client's.
#[test]
fn tables_find_their_databases() {
    let stage = Stage::new(ServerKind::MariaDb118);
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE DATABASE branch",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
            "CREATE TABLE branch.orders (id INT PRIMARY KEY)",
            "CREATE TABLE branch.other (id INT PRIMARY KEY)",
            "INSERT INTO shop.orders VALUES (1)",
            "INSERT INTO branch.orders VALUES (1), (2)",
            "USE branch",
            "CREATE TRIGGER counts BEFORE INSERT ON orders FOR EACH ROW SET NEW.id = NEW.id + 1",
        ])
        .unwrap();
    let selection = Selection { without_accounts: true, ..Selection::default() };
    let report = stage.back_up(&stage.options(), &selection).unwrap();
    let history = History::read(&stage.repo, &log()).unwrap();
    let backup = Backup::open(&stage.repo, &history, RunNo(report.run.backup)).unwrap();
    let target = start_with(ServerKind::MariaDb118, &["--local-infile=1"]);
    let load = |tables: &str, format, args: &[&str]| {
        let place = stage.dir.path().join(format!("{format:?}"));
        drop(fs::remove_dir_all(&place));
        let tables = Some(tables.parse().unwrap());
        run(&backup, &ExportOptions { tables, ..options(&place, format) }).unwrap();
        let scripts = match format {
            ExportFormat::Sql => &["backup.sql"][..],
            _ => &["1-schema.sql", "2-load.sql", "3-programs.sql"],
        };
        let args = [&["--binary-mode", "--local-infile=1"], args].concat();
        scripts
            .iter()
            .for_each(|script| feed(&target, &place, &args, &fs::read(place.join(script)).unwrap()));
    };
    let found = || {
        let tables = "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
                      WHERE table_schema IN ('shop', 'branch', 'elsewhere') ORDER BY 1";
        target.query::<String>(tables).unwrap()
    };
    for format in [ExportFormat::Sql, ExportFormat::Csv] {
        load("*.orders", format, &[]);
        assert_eq!(found(), ["branch.orders", "shop.orders"], "{format:?}");
        let branch = "SELECT id FROM branch.orders ORDER BY id";
        assert_eq!(target.query::<i32>(branch).unwrap(), [1, 2], "{format:?}");
        target.exec_all(["DROP DATABASE shop", "DROP DATABASE branch", "CREATE DATABASE elsewhere"]).unwrap();
        load("branch.*", format, &["--database=elsewhere"]);
        assert_eq!(found(), ["elsewhere.orders", "elsewhere.other"], "{format:?}");
        target.exec("DROP DATABASE elsewhere").unwrap();
    }
}

/// mydumper's files: tables are loaded by a client, everything by myloader.
fn files_of_mydumper_load(kind: ServerKind) {
    let stage = Stage::new(kind);
    load_file(&stage.source, "torture.sql");
    let target = start_with(kind, &["--local-infile=1"]);
    let place = |name: &str| stage.dir.path().join(name);
    let readable = Selection {
        schemas: vec!["torture".parse().unwrap(), "größe".parse().unwrap()],
        ..Selection::default()
    };
    let odd = "DROP DATABASE `odd ``name.with/all%#`";
    stage.source.exec(odd).unwrap();
    stage.source.exec("DROP TABLE torture.`a ``very`` odd.table/%#`").unwrap();
    let report = stage.back_up(&stage.options(), &readable).unwrap();
    let history = History::read(&stage.repo, &log()).unwrap();
    let backup = Backup::open(&stage.repo, &history, RunNo(report.run.backup)).unwrap();
    run(&backup, &options(&place("dump"), ExportFormat::MyDumper)).unwrap();
    let read = |name: &str| fs::read(place("dump").join(name)).unwrap();
    feed(&target, &place("dump"), &[], &read("torture-schema-create.sql"));
    let all = names(&place("dump"));
    let is_table = |name: &str| all.contains(&name.replace("-schema.sql", "-schema-view.sql"));
    for name in all.iter().filter(|name| name.starts_with("torture.") && name.ends_with("-schema.sql")) {
        if !is_table(name) {
            feed(&target, &place("dump"), &["--database=torture"], &read(name));
        }
    }
    let is_data = |name: &str| name.starts_with("torture.") && !name.contains("-schema");
    for name in all.iter().filter(|name| is_data(name)) {
        feed(&target, &place("dump"), &["--binary-mode", "--database=torture"], &read(name));
    }
    let of_torture = |server: &Server| {
        let mut sums = user_checksums(server);
        sums.retain(|name, _| name.starts_with("`torture`."));
        sums
    };
    let differing = differences(&of_torture(&stage.source), &of_torture(&target));
    assert!(differing.is_empty() && all.contains("metadata"), "{kind}: {}", differing.join("\n"));
    // Debian's myloader only supports names that are valid in file names.
    let plain = Selection { schemas: vec!["torture".parse().unwrap()], ..Selection::default() };
    let report = stage.back_up(&stage.options(), &plain).unwrap();
    let history = History::read(&stage.repo, &log()).unwrap();
    let backup = Backup::open(&stage.repo, &history, RunNo(report.run.backup)).unwrap();
    run(&backup, &options(&place("plain"), ExportFormat::MyDumper)).unwrap();
    target.exec("DROP DATABASE torture").unwrap();
    let mut command = Command::new(servers_dir().unwrap().join("myloader/bin/myloader"));
    command.args(["--user=root", "--directory"]).arg(place("plain"));
    let output =
        command.arg("--socket").arg(target.socket()).output().expect("myloader: run scripts/servers");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("CRITICAL"), "{kind}: {said}");
    let differing = differences(&of_torture(&stage.source), &of_torture(&target));
    assert!(differing.is_empty(), "{kind}: {}", differing.join("\n"));
    assert_eq!(programs(&stage.source), programs(&target), "{kind}");
}

/// Names of stored programs.
fn programs(server: &Server) -> Vec<String> {
    let lists = [
        "SELECT CONCAT(routine_type, routine_name) FROM information_schema.routines WHERE routine_schema",
        "SELECT CONCAT('trigger ', trigger_name) FROM information_schema.triggers WHERE trigger_schema",
        "SELECT CONCAT('event ', event_name) FROM information_schema.events WHERE event_schema",
        "SELECT CONCAT('view ', table_name) FROM information_schema.views WHERE table_name <> 'broken' AND table_schema",
    ];
    let names = |list: &str| server.query::<String>(format!("{list} = 'torture' ORDER BY 1")).unwrap();
    lists.into_iter().flat_map(names).collect()
}

#[test]
fn everything_is_in_files_of_mariadb_10_11() {
    everything_is_in_files(ServerKind::MariaDb1011);
}

#[test]
fn everything_is_in_files_of_mariadb_11_8() {
    everything_is_in_files(ServerKind::MariaDb118);
}

#[test]
fn everything_is_in_files_of_mysql_9_7() {
    everything_is_in_files(ServerKind::MySql97);
}

#[test]
fn files_of_mydumper_load_into_mariadb() {
    files_of_mydumper_load(ServerKind::MariaDb118);
}

#[test]
fn files_of_mydumper_load_into_mysql() {
    files_of_mydumper_load(ServerKind::MySql97);
}
