//! Verbs on backups of a made-up server: written by the library, examined by the program.

use std::{fs, path::PathBuf, sync::Arc};

use holdfast_core::server::ServerVersion;
use holdfast_formats::{PageSize, SpaceId};
use holdfast_repo::{
    Kind, LogName, Password, Repo,
    data::writer::{BackupWriter, FileSpec, Foundation, WriterOptions},
    format::{
        item::{FileRole, ItemPath, ItemType, Tablespace},
        manifest::{HEAD_SCHEMA, Head},
    },
    log::{
        history::History,
        outcome::Part,
        run::{Ending, Run, RunOptions},
    },
    store::fs::FsStore,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::program::{PASSWORD, Program};

const PAGE_BYTES: usize = 16_384;

fn open(program: &Program) -> Arc<Repo> {
    let store = Arc::new(FsStore::open(program.repository()).unwrap());
    let password = Password::new(PASSWORD.to_owned()).unwrap();
    Arc::new(Repo::open(store, Some(&password)).unwrap())
}

fn log(source: &str) -> LogName {
    LogName { source: source.parse().unwrap(), kind: Kind::Physical }
}

/// Pages of a table; every fourth is in version `turn`.
pub(crate) fn content(turn: u8, pages: usize) -> Vec<u8> {
    let page = |page: usize| {
        let mut bytes: Vec<u8> = (0..PAGE_BYTES).map(|i| (i * (page + 3) % 251) as u8).collect();
        bytes[0] = if page.is_multiple_of(4) { turn } else { 0 };
        bytes
    };
    (0..pages).flat_map(page).collect()
}

/// Backs up one table with this many pages, every fourth in version `turn`.
pub(crate) fn take(program: &Program, source: &str, turn: u8, pages: usize) {
    take_flagged(program, source, turn, pages, &[]);
}

/// A backup of `source` that is active for as long as this value is kept.
pub(crate) fn begun(program: &Program, source: &str) -> Run {
    Run::begin(&open(program), &log(source), &RunOptions::of_this_process()).unwrap()
}

fn take_flagged(program: &Program, source: &str, turn: u8, pages: usize, flags: &[&str]) {
    take_with(program, source, turn, pages, |head| {
        head.flags = flags.iter().map(ToString::to_string).collect();
    });
}

fn take_with(program: &Program, source: &str, turn: u8, pages: usize, change: impl FnOnce(&mut Head)) {
    take_part(program, source, None, turn, pages, change);
}

fn take_part(
    program: &Program,
    source: &str,
    part: Option<Part>,
    turn: u8,
    pages: usize,
    change: impl FnOnce(&mut Head),
) {
    take_by(program, source, |run| run.set_part(part), turn, pages, change);
}

fn take_by(
    program: &Program,
    source: &str,
    prepare: impl FnOnce(&mut Run),
    turn: u8,
    pages: usize,
    change: impl FnOnce(&mut Head),
) {
    let (repo, log) = (open(program), log(source));
    let mut run = Run::begin(&repo, &log, &RunOptions::of_this_process()).unwrap();
    prepare(&mut run);
    let base = History::read(&repo, &log).unwrap().newest_backup();
    let foundation = Foundation { base, ..Foundation::default() };
    // One thread each, so that chunks are in the pack in the order in which they were given.
    let options = WriterOptions { compress_threads: 1, encrypt_threads: 1, ..WriterOptions::default() };
    let writer = BackupWriter::new(&run, &foundation, options).unwrap();
    writer.directory(ItemPath::new("shop").unwrap(), 0o750);
    let spec = FileSpec {
        path: ItemPath::new("shop/orders@002d1.ibd").unwrap(),
        item_type: ItemType::File,
        role: FileRole::Tablespace,
        mode: 0o640,
        page_size: PageSize::from_bytes(PAGE_BYTES as u32).unwrap(),
        tablespace: Some(Tablespace { space: SpaceId(7), flags: 21 }),
        outside: None,
    };
    let file = writer.begin_file(spec).unwrap();
    for (page, bytes) in (0..).zip(content(turn, pages).chunks_exact(PAGE_BYTES)) {
        writer.pages(file, page, bytes).unwrap();
    }
    writer.end_file(file, (pages * PAGE_BYTES) as u64).unwrap();
    let finished = writer.finish(&run).unwrap();
    let version = ServerVersion::parse("10.11.19-MariaDB").unwrap();
    let position = json!({"precision": "exact", "lsn": 1234, "binlog": {"file": "binlog.000007", "offset": 42}, "gtid": "0-1-9"});
    let object = |value: Value| value.as_object().unwrap().clone();
    let report = json!({"schema_version": 1, "total_ms": 4200, "server_version": version.to_string(),
        "position": position, "phases": [{"name": "copy", "ms": 4000}],
        "locks": [{"statement": "BACKUP STAGE BLOCK_COMMIT", "wait_ms": 0.4, "held_ms": 8.0}]});
    run.write_report(&serde_json::to_vec(&report).unwrap()).unwrap();
    let mut head = Head {
        schema: HEAD_SCHEMA,
        run: run.no().0,
        source: source.to_owned(),
        kind: "physical".to_owned(),
        method: "physical".to_owned(),
        started_at: Timestamp::now(),
        finished_at: Timestamp::now(),
        tags: vec![format!("turn-{turn}")],
        server: object(
            json!({"version": serde_json::to_value(&version).unwrap(), "identity": {"hostname": "db1.example"}}),
        ),
        redo: None,
        position: Some(object(position)),
        totals: finished.totals,
        flags: Vec::new(),
        roots: finished.roots,
        base: base.map(|base| base.0),
        more: Map::new(),
    };
    change(&mut head);
    let ending = Ending::Backup { head: head.encode().unwrap(), refs: finished.refs, parts: finished.parts };
    run.finish(ending).unwrap();
}

/// Three backups of db1.
pub(crate) fn three() -> Program {
    let program = Program::with_repository();
    for turn in 1..=3 {
        take(&program, "db1", turn, 40);
    }
    program
}

pub(crate) fn ids(list: &Value) -> Vec<&str> {
    list["data"]["backups"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect()
}

#[test]
fn list_shows_each_backup_by_an_id_that_can_be_typed() {
    let program = three();
    let list = program.run(&["list"]).expect_code(0);
    assert_eq!(list.out.lines().count(), 4, "{list:#?}");
    for part in ["db1#3", "MariaDB 10.11.19", "640 KiB", "binlog.000007:42", "turn-2"] {
        assert!(list.out.contains(part), "{part}: {list:#?}");
    }
    let json = program.run(&["list", "--json"]).expect_code(0).last();
    assert_eq!(ids(&json), ["db1#1", "db1#2", "db1#3"]);
    assert_eq!(json["data"]["backups"][1]["size_bytes"], 40 * PAGE_BYTES);
    assert_eq!(json["data"]["backups"][1]["new_bytes"], 10 * PAGE_BYTES);
    let tagged = program.run(&["list", "--tag", "turn-2", "--json"]).expect_code(0).last();
    assert_eq!(ids(&tagged), ["db1#2"]);
    for id in ids(&json) {
        program.run(&["show", id]).expect_code(0);
    }
}

#[test]
fn a_number_is_enough_while_there_is_one_source() {
    let program = three();
    let shown = program.run(&["show", "2"]).expect_code(0);
    for part in ["db1#2", "the operator's key ", "MariaDB 10.11.19", "hostname=db1.example", "0-1-9"] {
        assert!(shown.out.contains(part), "{part}: {shown:#?}");
    }
    take(&program, "db2", 1, 4);
    let vague = program.run(&["show", "2"]).expect_code(2);
    assert!(vague.err.contains("db1, db2") && vague.err.contains("--name"), "{vague:#?}");
    for words in [&["show", "db1#2"][..], &["show", "2", "--name", "db1"], &["show", "db2#latest"]] {
        program.run(words).expect_code(0);
    }
    let absent = program.run(&["show", "db1#17"]).expect_code(1);
    assert!(absent.err.contains("no run #17"), "{absent:#?}");
    let stranger = program.run(&["list", "--name", "db3"]).expect_code(1);
    assert!(stranger.err.contains("contains nothing of db3"), "{stranger:#?}");
    // No kind was asked for, so none is named.
    let stranger = program.run(&["show", "latest", "--name", "db3"]).expect_code(1);
    assert!(stranger.err.contains("contains no backup of db3"), "{stranger:#?}");
}

#[test]
fn ls_names_tables_as_the_server_does() {
    let program = three();
    let ls = program.run(&["ls", "latest"]).expect_code(0);
    let expected = "\
drwxr-x---            shop
-rw-r-----   640 KiB  shop/orders@002d1.ibd  (shop.orders-1)
2 items, 640 KiB
";
    assert_eq!(ls.out, expected);
    let lines = program.run(&["ls", "latest", "shop/orders@002d1.ibd", "--json"]).expect_code(0).json();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["type"], &lines[0]["data"]["table"]), (&"item".into(), &"orders-1".into()));
    assert_eq!(lines[0]["data"]["space_id"], 7);
    assert_eq!(lines[1]["data"]["items"], 1);
    program.run(&["ls", "latest", "sho"]).expect_code(1);
}

#[test]
fn the_report_of_a_run_is_shown_as_it_was_stored() {
    let program = three();
    let report = program.run(&["report", "2"]).expect_code(0);
    for part in ["4.2 s", "BACKUP STAGE BLOCK_COMMIT", "8 ms", "binlog.000007:42"] {
        assert!(report.out.contains(part), "{part}: {report:#?}");
    }
    let json = program.run(&["report", "2", "--json"]).expect_code(0).last();
    assert_eq!(json["data"]["report"]["phases"][0]["ms"], 4000);
}

#[test]
fn stats_tell_what_takes_the_space() {
    let program = three();
    let stats = program.run(&["stats", "--tables", "3"]).expect_code(0);
    for part in
        ["db1/physical: 3 backups", "db1#2", "FREES", "shop.orders-1", "files 0 B larger", "zstd   data"]
    {
        assert!(stats.out.contains(part), "{part}: {stats:#?}");
    }
    let json = program.run(&["stats", "--json"]).expect_code(0).last();
    let source = &json["data"]["sources"][0];
    let bytes = |backup: usize, field: &str| source["backups"][backup][field].as_u64().unwrap();
    for backup in 0..3 {
        assert!(bytes(backup, "own_bytes") <= bytes(backup, "needed_bytes"), "{source}");
    }
    assert_eq!(source["backups"][1]["size_bytes"], 40 * PAGE_BYTES);
    assert!(source["ratio"].as_f64() > Some(0.0) && source["unneeded_bytes"] == 0, "{source}");
    let codec = &source["codecs"][0];
    assert_eq!((&codec["codec"], &codec["content"]), (&json!("zstd"), &json!("data")), "{source}");
    let codec_bytes = |field: &str| codec[field].as_u64().unwrap();
    assert!(codec_bytes("plain_bytes") > codec_bytes("stored_bytes"), "{source}");
    assert!(codec_bytes("stored_bytes") < source["pack_bytes"].as_u64().unwrap(), "{source}");
    assert_eq!(source["unlisted_packs"], 0, "{source}");
    // The dry run reports the same freed bytes as the statistics did before.
    let own = bytes(0, "own_bytes");
    let plan = program.run(&["expire", "1", "--dry-run", "--json"]).expect_code(0).last();
    assert_eq!(plan["data"]["freed_bytes"], own, "{source}");
    // A part of the server does not mean that the server has shrunk.
    take_part(&program, "db1", Some(Part::of("shop.orders")), 4, 4, |_| ());
    let json = program.run(&["stats", "--json"]).expect_code(0).last();
    let source = &json["data"]["sources"][0];
    assert_eq!(
        (&source["backups"][3]["size_bytes"], &source["growth"]["size_bytes"]),
        (&json!(4 * PAGE_BYTES), &json!(0))
    );
}

#[test]
fn expire_drops_by_rule_and_by_name_and_prune_frees() {
    let program = three();
    let plan = program.run(&["expire", "--keep-last", "1", "--dry-run"]).expect_code(0);
    assert!(plan.out.contains("2 backups would be dropped, and about "), "{plan:#?}");
    assert_eq!(ids(&program.run(&["list", "--json"]).last()).len(), 3, "a dry run changes nothing");
    let config = program.write("holdfast.toml", "name = \"db1\"\n[retention]\nkeep-last = 2\n");
    let dropped =
        program.run(&["expire", "--json", "--config", config.to_str().unwrap()]).expect_code(0).last();
    assert_eq!(dropped["data"]["dropped"][0]["id"], "db1#1");
    let named = program.run(&["expire", "2"]).expect_code(0);
    assert!(named.out.contains("not named") && !named.out.contains("last"), "{named:#?}");
    assert_eq!(ids(&program.run(&["list", "--json"]).last()), ["db1#3"]);
    let gone = program.run(&["show", "2"]).expect_code(1);
    assert!(gone.err.contains("was dropped"), "{gone:#?}");
    let again = program.run(&["expire", "--keep-last", "1"]).expect_code(0);
    assert!(again.out.contains("nothing to drop"), "{again:#?}");
    let last = program.run(&["expire", "3"]).expect_code(1);
    assert!(last.err.contains("last good backup of db1") && last.err.contains("--last-too"), "{last:#?}");
    program.run(&["expire", "3", "--last-too", "--dry-run"]).expect_code(0);
    program.run(&["expire", "--keep-last", "1", "--last-too"]).expect_code(2);

    program.run(&["prune", "--dry-run"]).expect_code(0);
    let first = program.run(&["prune", "--grace", "0s", "--json"]).expect_code(0).last();
    let log = &first["data"]["logs"][0];
    assert!(log["dead_packs"].as_u64() > Some(0) || log["rewritten_packs"].as_u64() > Some(0), "{first}");
    let second = program.run(&["prune", "--grace", "0s", "--json"]).expect_code(0).last();
    assert!(second["data"]["logs"][0]["deleted_packs"].as_u64() > Some(0), "{second}");
    let check = program.run(&["check", "--read-data"]).expect_code(0);
    assert!(check.out.contains("no errors found"), "{check:#?}");
    let phases = |words: &[&str]| {
        let lines = program.run(words).expect_code(0).json();
        let names = lines.iter().filter(|line| line["type"] == "phase").map(|line| line["name"].clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(phases(&["check", "--read-data", "--json"]), ["structure", "data", "maps"]);
    assert_eq!(phases(&["prune", "--dry-run", "--json"]), ["plan"]);
    assert_eq!(phases(&["prune", "--json"]), ["sweep", "plan"]);
}

#[test]
fn what_is_held_stays_until_it_is_released() {
    let program = three();
    let held = program.run(&["hold", "1", "db1#2", "--reason", "before the upgrade"]).expect_code(0);
    assert!(held.out.contains("db1#2 is held until released"), "{held:#?}");
    let again = ["hold", "1", "--until", "2099-12-31", "--reason", "audit"];
    let shorter = program.run(&again).expect_code(1);
    assert!(shorter.err.contains("for longer") && shorter.err.contains("release db1#1"), "{shorter:#?}");
    program.run(&["release", "1"]).expect_code(0);
    program.run(&again).expect_code(0);
    let list = program.run(&["list"]).expect_code(0);
    for part in ["until released: before the upgrade", "until 2100-01-01 00:00:00: audit"] {
        assert!(list.out.contains(part), "{part}: {list:#?}");
    }
    let json = program.run(&["list", "--json"]).expect_code(0).last();
    let hold = |at: usize| &json["data"]["backups"][at]["hold"];
    assert_eq!((&hold(0)["until"], &hold(0)["reason"]), (&"2100-01-01T00:00:00Z".into(), &"audit".into()));
    assert!(hold(1)["until"].is_null() && hold(2).is_null(), "{json}");
    let shown = program.run(&["show", "1"]).expect_code(0);
    assert!(shown.out.contains("until 2100-01-01 00:00:00: audit (since "), "{shown:#?}");
    assert_eq!(program.run(&["show", "1", "--json"]).last()["data"]["hold"], *hold(0));

    let named = program.run(&["expire", "3", "2"]).expect_code(1);
    assert!(named.err.contains("is held until") && named.err.contains("release db1#2"), "{named:#?}");
    let rules = program.run(&["expire", "--keep-last", "1", "--json"]).expect_code(0).last();
    assert_eq!(rules["data"]["kept"][0]["reasons"], json!(["held"]));
    assert_eq!(rules["data"]["dropped"], json!([]));
    program.run(&["prune", "--grace", "0s"]).expect_code(0);
    program.run(&["prune", "--grace", "0s"]).expect_code(0);
    program.run(&["check", "--read-data"]).expect_code(0);
    program.run(&["release", "2"]).expect_code(0);
    program.run(&["release", "2"]).expect_code(1);
    program.run(&["expire", "2"]).expect_code(0);
    program.run(&["hold", "2"]).expect_code(1);
    assert_eq!(ids(&program.run(&["list", "--json"]).last()), ["db1#1", "db1#3"]);
    program.run(&["hold", "3", "--until", "2020-01-01"]).expect_code(2);
    program.run(&["hold", "3", "--until", "soon"]).expect_code(2);
    program.run(&["hold", "3", "--reason", "two\nlines"]).expect_code(2);
}

#[test]
fn a_hold_waits_for_no_other_run() {
    let program = three();
    let active = Run::begin(&open(&program), &log("db1"), &RunOptions::of_this_process()).unwrap();
    program.run(&["hold", "1"]).expect_code(8);
    active.abandon("enough").unwrap();
    program.run(&["hold", "1"]).expect_code(0);
}

#[test]
fn rules_go_by_tag_and_kind() {
    let program = three();
    let kept = |words: &[&str]| {
        let words = [&["expire", "--dry-run", "--json"], words].concat();
        let last = program.run(&words).expect_code(0).last();
        let kept = last["data"]["kept"].as_array().unwrap().clone();
        kept.iter()
            .map(|it| (it["id"].as_str().unwrap().to_owned(), it["reasons"].clone()))
            .collect::<Vec<_>>()
    };
    let of = |id: &str, reasons: Value| (id.to_owned(), reasons);
    let newest = of("db1#3", json!(["last"]));
    let tagged = kept(&["--keep-last", "1", "--keep-tag", "turn-1"]);
    assert_eq!(tagged, [of("db1#1", json!(["tag"])), newest.clone()]);
    let alone = kept(&["--keep-tag", "turn-2"]);
    assert_eq!(alone, [of("db1#2", json!(["tag"])), of("db1#3", json!([]))]);
    let only = kept(&["--tag", "turn-3", "--keep-last", "1"]);
    let other = json!(["other-tag"]);
    assert_eq!(only, [of("db1#1", other.clone()), of("db1#2", other), newest]);
    assert_eq!(kept(&["--kind", "binlog", "--keep-last", "1"]), []);
    assert_eq!(kept(&["--kind", "physical", "--keep-last", "2"]).len(), 2);
    program.run(&["expire", "1", "--tag", "turn-1"]).expect_code(2);
    program.run(&["expire", "--kind", "tape", "--keep-last", "1"]).expect_code(2);
    let config = program.write("holdfast.toml", "[retention]\nkeep-last = 1\nkeep-tag = [\"turn-2\"]\n");
    program.run(&["expire", "--config", config.to_str().unwrap()]).expect_code(0);
    assert_eq!(ids(&program.run(&["list", "--json"]).last()), ["db1#2", "db1#3"]);
}

/// Two backups with damaged pages after one without: the rules alone would keep those two.
#[test]
fn the_last_good_backup_is_kept() {
    let program = Program::with_repository();
    take(&program, "db1", 1, 8);
    take(&program, "db1", 2, 8);
    for turn in 3..=4 {
        take_flagged(&program, "db1", turn, 8, &["damaged-pages"]);
    }
    let expired = program.run(&["expire", "--keep-last", "2", "--json"]).expect_code(0).last();
    assert_eq!(expired["data"]["kept"][0]["reasons"], json!(["last-good"]));
    let left = program.run(&["list", "--json"]).last();
    assert_eq!(ids(&left), ["db1#2", "db1#3", "db1#4"]);
    let flags: Vec<_> = left["data"]["backups"].as_array().unwrap().iter().map(|it| &it["flags"]).collect();
    assert_eq!(flags, [&json!([]), &json!(["damaged-pages"]), &json!(["damaged-pages"])]);
    let list = program.run(&["list"]).expect_code(0);
    let is_marked =
        |id: &str| list.out.lines().any(|line| line.contains(id) && line.contains("damaged-pages"));
    assert_eq!(["#2", "#3", "#4"].map(is_marked), [false, true, true], "{list:#?}");
    for (id, is_marked) in [("db1#2", false), ("db1#3", true)] {
        let shown = program.run(&["show", id]).expect_code(0);
        assert_eq!(shown.out.contains("damaged-pages"), is_marked, "{shown:#?}");
    }
}

/// Retention is decided per source: rules meant for one must not thin out the backups of all.
#[test]
fn expire_asks_which_source_where_there_are_several() {
    let program = Program::with_repository();
    for source in ["db1", "db2"] {
        for turn in 1..=3 {
            take(&program, source, turn, 4);
        }
    }
    let vague = program.run(&["expire", "--keep-last", "1"]).expect_code(2);
    assert!(vague.err.contains("db1, db2: which one?") && vague.err.contains("--name"), "{vague:#?}");
    let typo = program.run(&["expire", "--keep-last", "1", "--name", "db3"]).expect_code(1);
    assert!(typo.err.contains("nothing of db3"), "{typo:#?}");
    assert_eq!(ids(&program.run(&["list", "--json"]).last()).len(), 6);
    program.run(&["expire", "--keep-last", "1", "--name", "db1"]).expect_code(0);
    let left = program.run(&["list", "--json"]).last();
    assert_eq!(ids(&left), ["db1#3", "db2#1", "db2#2", "db2#3"]);
    let config = program.write("holdfast.toml", "name = \"db2\"\n[retention]\nkeep-last = 2\n");
    program.run(&["expire", "--config", config.to_str().unwrap()]).expect_code(0);
    let left = program.run(&["list", "--json"]).last();
    assert_eq!(ids(&left), ["db1#3", "db2#2", "db2#3"]);
}

/// `db1` is damaged, `db2` is in use, and `db3` still has its space freed.
#[test]
fn a_bad_source_and_a_busy_one_keep_prune_from_no_other() {
    let program = Program::with_repository();
    for source in ["db1", "db2", "db3"] {
        for turn in 1..=3 {
            take(&program, source, turn, 40);
        }
        program.run(&["expire", "--name", source, "--keep-last", "1"]).expect_code(0);
    }
    let outcome = program.repository().join("sources/db1/physical/outcomes/0000000001");
    std::fs::write(&outcome, "damaged").unwrap();
    let _active = Run::begin(&open(&program), &log("db2"), &RunOptions::of_this_process()).unwrap();

    let failed = program.run(&["prune", "--grace", "0s", "--json"]).expect_code(7);
    let lines = failed.json();
    let [.., item, error] = &lines[..] else { panic!("{failed:#?}") };
    let logs = item["data"]["logs"].as_array().unwrap();
    let says = |at: usize, what: &str| logs[at]["error"].as_str().is_some_and(|text| text.contains(what));
    assert!(says(0, "outcomes/0000000001") && says(1, "is active"), "{item}");
    assert!(logs[2]["error"].is_null(), "{item}");
    assert!(logs[2]["dead_packs"].as_u64() > Some(0), "{item}");
    assert_eq!((&error["type"], &error["kind"]), (&"error".into(), &"damaged".into()));
    let busy = program.run(&["prune", "--name", "db2"]).expect_code(8);
    assert!(busy.out.contains("db2/physical") && busy.err.contains("is active"), "{busy:#?}");
    assert!(
        busy.err.contains("a backup (process ") && busy.err.contains(" of this host) began at"),
        "{busy:#?}"
    );
    program.run(&["prune", "--name", "db3", "--grace", "0s"]).expect_code(0);
}

/// A source without recent backups is a problem if a maximum age is given.
#[test]
fn doctor_tells_backups_that_are_too_old() {
    let program = three();
    program.run(&["doctor", "--no-server", "--max-age", "2d"]).expect_code(0);
    let late = program.run(&["doctor", "--no-server", "--max-age", "1ms"]).expect_code(3);
    assert!(late.out.contains("does the job that takes backups still run?"), "{late:#?}");

    // Neither a newer backup of another kind nor a partial one replaces the missing backups.
    let program = Program::with_repository();
    take_with(&program, "db1", 1, 4, |head| head.finished_at -= SignedDuration::from_hours(72));
    take_part(&program, "db1", Some(Part::of("shop.orders")), 2, 4, |_| ());
    let stopped = ["doctor", "--no-server", "--max-age", "2d"];
    let late = program.run(&stopped).expect_code(3);
    assert!(late.out.contains("db1/physical: 2 backups stand; the newest, #1, is from "), "{late:#?}");
    program.run(&[&stopped[..], &["--kind", "physical"]].concat()).expect_code(3);
    let none = program.run(&[&stopped[..], &["--kind", "logical"]].concat()).expect_code(3);
    assert!(none.out.contains("db1 has no logical backup"), "{none:#?}");
}

/// Backups that exclude the same are a series, and the newest of these series is what the rules are about if nothing
/// has everything: an older list is kept for as long as the new one does not reach back far enough, and one
/// of it longer.
#[test]
fn another_list_of_exclusions_takes_over_in_time() {
    let program = Program::with_repository();
    let kept = |rule: &str| -> Vec<Value> {
        let last = program.run(&["expire", "--keep-last", rule, "--dry-run", "--json"]).expect_code(0).last();
        let kept = last["data"]["kept"].as_array().unwrap().iter();
        kept.map(|it| json!([it["id"], it["reasons"]])).collect()
    };
    let mut turn = 0;
    let mut take = |list: &str| {
        turn += 1;
        take_part(&program, "db1", Some(Part::rest_of(list)), turn, 4, |_| ());
    };
    (0..3).for_each(|_| take("old"));
    take("new");
    let last = || json!(["last"]);
    assert_eq!(kept("2"), [json!(["db1#2", last()]), json!(["db1#3", last()]), json!(["db1#4", last()])]);
    take("new");
    assert_eq!(kept("2"), [json!(["db1#3", []]), json!(["db1#4", last()]), json!(["db1#5", last()])]);
}

/// An import is not a backup that has to be taken regularly, a running archiver need not be started, and a
/// question about one source is answered for that source only.
#[test]
fn doctor_says_what_stands_as_it_is() {
    let program = three();
    take_by(&program, "dump", Run::set_imported, 1, 4, |_| ());
    take_by(&program, "dump", Run::set_imported, 2, 4, |_| ());
    let binlog = LogName { kind: Kind::Binlog, ..log("db1") };
    let archiver = Run::begin(&open(&program), &binlog, &RunOptions::of_this_process()).unwrap();
    let all = program.run(&["doctor", "--no-server", "--max-age", "1d"]).expect_code(0);
    for part in [
        "holds 2 sources",
        "dump/physical: 2 imports stand, the newest is #2",
        "db1/binlog: an archiver is running",
        "nothing is wrong",
    ] {
        assert!(all.out.contains(part), "{part}: {all:#?}");
    }
    drop(archiver);
    let one = program.run(&["doctor", "--no-server", "--name", "dump"]).expect_code(0);
    assert!(one.out.contains("dump/physical") && !one.out.contains("db1/"), "{one:#?}");
    let none = program.run(&["doctor", "--no-server", "--name", "nosuch"]).expect_code(3);
    assert!(none.out.contains("contains nothing of nosuch"), "{none:#?}");
}

/// If nothing can be written, no backup can be taken, which is a problem when a server is examined.
/// The test write leaves nothing behind.
#[test]
fn doctor_finds_a_repository_that_cannot_be_written() {
    let program = three();
    program.run(&["doctor", "--no-server"]).expect_code(0);
    let (probes, unfinished) = (program.repository().join("probe"), program.repository().join(".tmp"));
    assert!(!probes.exists() && fs::read_dir(&unfinished).unwrap().next().is_none());
    fs::remove_dir_all(&unfinished).unwrap();
    fs::write(&unfinished, "").unwrap();
    let verdicts = |words: &[&str], code: i32| -> Vec<Value> {
        let last = program.run(&[&["doctor", "--json"], words].concat()).expect_code(code).last();
        let findings = last["data"]["repository"].as_array().unwrap().clone();
        let is_it = |it: &Value| it["text"].as_str().unwrap().contains("cannot write");
        findings.into_iter().filter(is_it).map(|it| it["verdict"].clone()).collect()
    };
    assert_eq!(verdicts(&["--no-server"], 0), ["notice"]);
    assert_eq!(verdicts(&["--no-defaults", "--socket", "absent"], 3), ["problem"]);
}

#[test]
fn prune_names_what_it_cannot_write_anew_and_ends_with_3() {
    let program = Program::with_repository();
    // The table has shrunk, so little of the first pack is still needed.
    take(&program, "db1", 1, 400);
    take(&program, "db1", 2, 40);
    program.run(&["expire", "--keep-last", "1"]).expect_code(0);
    let pack = program.repository().join("sources/db1/physical/packs/0000000001-000000");
    let mut bytes = std::fs::read(&pack).unwrap();
    // The first chunk of pages, after the header.
    bytes[200] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let last = program.run(&["prune", "--json"]).expect_code(3).last();
    let found = &last["data"]["logs"][0]["findings"][0];
    assert!(found["object"].as_str().is_some_and(|it| it.contains("0000000001-000000")), "{last}");
}

#[test]
fn check_names_what_is_damaged_and_ends_with_3() {
    let program = three();
    let packs = program.repository().join("sources/db1/physical/packs");
    let pack = std::fs::read_dir(packs).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let found = program.run(&["check", "--read-data"]).expect_code(3);
    for named in [pack.file_name().unwrap().to_str().unwrap(), "tables", "shop.orders-1"] {
        assert!(found.out.contains(named), "{named}: {found:#?}");
    }
    let last = program.run(&["check", "--read-data", "--json"]).expect_code(3).last();
    assert_eq!((&last["type"], &last["exit_code"]), (&"result".into(), &3.into()));
    let findings = last["data"]["findings"].as_array().unwrap();
    let of_table = findings.iter().find(|finding| finding["files"] == json!(["shop/orders@002d1.ibd"]));
    assert_eq!(of_table.unwrap()["tables"], json!(["shop.orders-1"]));
    for hint in [&found.out, last["data"]["hint"].as_str().unwrap()] {
        assert!(hint.contains("backup --full") && hint.contains("expire"), "{hint}");
    }
}

/// A share is a chance, so it may be all or nothing; a bound is reached by the first pack, and the next check goes on
/// behind it.
#[test]
fn check_reads_a_share_or_as_much_as_it_may() {
    let program = three();
    let checked = |words: &[&str]| {
        let last = program.run(&[&["check", "--json"], words].concat()).expect_code(0).last();
        let count = |field: &str| last["data"][field].as_u64().unwrap();
        (count("packs"), count("packs_read"), count("packs_left"), count("never_read_packs"))
    };
    let (packs, none, ..) = checked(&[]);
    assert_eq!((packs, none), (3, 0));
    let (_, read, left, never) = checked(&["--read-data=50%"]);
    assert_eq!((left, never), (0, packs - read));
    for share in ["0%", "101%", "half"] {
        program.run(&["check", &format!("--read-data={share}")]).expect_code(2);
    }
    let little = ["--read-data", "--unread-for", "0s", "--max-bytes", "1"];
    // When a pack was read is known in whole seconds: within the second in which another was stored, it comes first
    // again.
    let all_were_read = (0..100).any(|_| {
        let (_, read, left, never) = checked(&little);
        assert_eq!((read, left), (1, packs - 1));
        never == 0
    });
    assert!(all_were_read);
    let left = program.run(&[&["check"][..], &little].concat()).expect_code(0);
    assert!(left.out.contains("2 packs, ") && left.out.contains("left for a later check"), "{left:#?}");
    assert_eq!(checked(&["--read-data", "--unread-for", "1d"]).1, 0, "all were read today");
}

/// A loss that affects several backups is reported once, listing all of them.
#[test]
fn check_tells_what_is_missing_once() {
    let program = three();
    let pack = program.repository().join("sources/db1/physical/packs/0000000001-000000");
    fs::remove_file(pack).unwrap();
    let found = program.run(&["check"]).expect_code(3);
    let told: Vec<&str> = found.out.lines().filter(|line| line.starts_with("lost: ")).collect();
    assert_eq!(told.len(), 1, "{found:#?}");
    assert!(found.out.contains("db1#1 db1#2 db1#3"), "{found:#?}");
}

/// A damaged outcome cannot be repaired by the program: verbs that write report it and say what to do; verbs
/// that read continue.
#[test]
fn a_damaged_outcome_stops_writers_with_7_and_advice() {
    let program = three();
    take(&program, "db2", 1, 8);
    let outcome = program.repository().join("sources/db1/physical/outcomes/0000000002");
    let mut bytes = std::fs::read(&outcome).unwrap();
    bytes[200] ^= 1;
    std::fs::write(&outcome, bytes).unwrap();
    for words in [&["prune"][..], &["expire", "--keep-last", "1"]] {
        let named: &[&str] = if words[0] == "expire" { &["--name", "db1"] } else { &[] };
        let stopped = program.run(&[words, named].concat()).expect_code(7);
        for part in ["outcomes/0000000002", "hint: ", "backup --name NEW"] {
            assert!(stopped.err.contains(part), "{part}: {stopped:#?}");
        }
        program.run(&[words, &["--name", "db2"][..]].concat()).expect_code(0);
    }
    let found = program.run(&["check"]).expect_code(3);
    assert!(found.out.contains("backup --name NEW"), "{found:#?}");
    program.run(&["show", "db1#3"]).expect_code(0);
    let said = program.run(&["list", "--json", "--name", "db1"]).expect_code(0);
    let is_told = |line: &Value| {
        line["type"] == "warning" && line["text"].as_str().unwrap().contains("outcomes/0000000002")
    };
    assert!(said.json().iter().any(is_told) && said.err.is_empty(), "{said:#?}");
    assert!(program.run(&["list", "-q"]).err.starts_with("warning: "));
}

/// A backup whose manifest is unreadable, because a later version or the holder of a writer's key has written
/// it, does not hide the others.
#[test]
fn a_backup_that_is_not_understood_is_listed_as_that() {
    let program = Program::with_repository();
    take(&program, "db1", 1, 40);
    take_with(&program, "db1", 2, 40, |head| head.schema = HEAD_SCHEMA + 1);
    take(&program, "db2", 1, 40);
    let list = program.run(&["list"]).expect_code(3);
    let row = list.out.lines().find(|line| line.starts_with("db1#2")).unwrap();
    assert!(row.contains("!unreadable") && list.err.contains("manifest schema"), "{list:#?}");
    let json = program.run(&["list", "--json"]).expect_code(3).last();
    assert_eq!(ids(&json), ["db1#1", "db1#2", "db2#1"]);
    let problem = |at: usize| json["data"]["backups"][at]["problem"].clone();
    assert!(problem(0).is_null() && problem(1).as_str().unwrap().contains("manifest schema"), "{json}");
    let examined = program.run(&["doctor"]);
    assert!(
        examined.out.contains("manifest schema") && examined.out.contains("db2/physical"),
        "{examined:#?}"
    );
}

/// Damage that a check has found is shown wherever backups are listed, until it is repaired.
#[test]
fn a_backup_that_needs_what_a_check_found_damaged_is_listed_as_that() {
    let program = three();
    let packs_of = |run: u64| -> Vec<PathBuf> {
        let packs = fs::read_dir(program.repository().join("sources/db1/physical/packs")).unwrap();
        let paths = packs.map(|entry| entry.unwrap().path());
        let is_of =
            |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(&format!("{run:010}-"));
        paths.filter(is_of).collect()
    };
    for pack in packs_of(3) {
        let mut bytes = fs::read(&pack).unwrap();
        bytes[300] ^= 1;
        fs::write(&pack, bytes).unwrap();
    }
    let suspect = |list: &crate::program::Run| -> Vec<bool> {
        let backups = list.last()["data"]["backups"].as_array().unwrap().clone();
        backups.iter().map(|backup| backup["is_suspect"].as_bool().unwrap()).collect()
    };
    // Nobody has looked yet.
    assert_eq!(suspect(&program.run(&["list", "--json"]).expect_code(0)), [false, false, false]);
    program.run(&["check", "--read-data"]).expect_code(3);
    let list = program.run(&["list"]).expect_code(0);
    let row = list.out.lines().find(|line| line.starts_with("db1#3")).unwrap();
    assert!(row.contains("!suspect") && list.err.contains("db1#3: needs data"), "{list:#?}");
    assert_eq!(suspect(&program.run(&["list", "--json"]).expect_code(0)), [false, false, true]);
    let examined = program.run(&["doctor"]);
    assert!(examined.out.contains("needed by db1#3"), "{examined:#?}");
    program.run(&["repair", "--yes"]);
    assert_eq!(suspect(&program.run(&["list", "--json"]).expect_code(0)), [false, false]);

    // What is gone is listed likewise until it is there again, and no prune forgets it.
    let places = packs_of(2);
    assert!(!places.is_empty());
    let away = |pack: &PathBuf| program.path(&pack.file_name().unwrap().to_string_lossy());
    places.iter().for_each(|pack| fs::rename(pack, away(pack)).unwrap());
    program.run(&["check"]).expect_code(3);
    assert_eq!(suspect(&program.run(&["list", "--json"]).expect_code(0)), [false, true]);
    program.run(&["prune", "--grace", "0s"]).expect_code(3);
    assert_eq!(suspect(&program.run(&["list", "--json"]).expect_code(0)), [false, true]);
    places.iter().for_each(|pack| fs::rename(away(pack), pack).unwrap());
    program.run(&["check"]).expect_code(0);
    assert_eq!(suspect(&program.run(&["list", "--json"]).expect_code(0)), [false, false]);
}

/// What a repair has dropped for one source is reported, whatever happens to the next.
#[test]
fn a_busy_source_does_not_hide_what_repair_has_dropped() {
    let program = three();
    take(&program, "db2", 1, 40);
    let of =
        |source: &str, folder: &str| program.repository().join(format!("sources/{source}/physical/{folder}"));
    let packs = fs::read_dir(of("db1", "packs")).unwrap().map(|entry| entry.unwrap().path());
    packs
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("0000000003-"))
        .for_each(|path| fs::remove_file(path).unwrap());
    fs::remove_file(of("db2", "refs").join("0000000001")).unwrap();
    let active = Run::begin(&open(&program), &log("db2"), &RunOptions::of_this_process()).unwrap();
    let done = program.run(&["repair", "--yes"]).expect_code(8);
    assert!(done.out.contains("db1#3") && done.out.contains("failed"), "{done:#?}");
    assert!(done.err.contains("db2/physical"), "{done:#?}");
    assert_eq!(
        ids(&program.run(&["list", "--name", "db1", "--json"]).expect_code(0).last()),
        ["db1#1", "db1#2"]
    );
    drop(active);
}

#[test]
fn repair_shows_what_it_would_do_and_does_it_when_told() {
    let program = three();
    let log = program.repository().join("sources/db1/physical");
    let whole = program.run(&["repair"]).expect_code(0);
    assert_eq!(whole.out, "nothing to repair\n");
    fs::remove_file(log.join("refs/0000000002")).unwrap();
    program.run(&["check"]).expect_code(3);
    for words in [&["repair"][..], &["repair", "--dry-run"]] {
        let planned = program.run(words).expect_code(3);
        assert!(planned.out.contains("db1#2: rebuilt"), "{planned:#?}");
        assert!(planned.out.contains("nothing was changed"), "{planned:#?}");
    }
    program.run(&["check"]).expect_code(3);
    program.run(&["repair", "--yes"]).expect_code(0);
    program.run(&["check", "--read-data"]).expect_code(0);
    assert_eq!(ids(&program.run(&["list", "--json"]).expect_code(0).last()), ["db1#1", "db1#2", "db1#3"]);
    assert_eq!(program.run(&["repair", "--yes"]).expect_code(0).out, "nothing to repair\n");

    // Lose data that only the last backup has stored: the backup is dropped, and its files are named.
    let lost = fs::read_dir(log.join("packs")).unwrap().map(|entry| entry.unwrap().path());
    let lost = lost.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("0000000003-"));
    lost.for_each(|path| fs::remove_file(path).unwrap());
    let done = program.run(&["repair", "--yes", "--json"]).expect_code(0).last();
    let dropped = &done["data"]["logs"][0]["dropped"];
    assert_eq!(dropped[0]["id"], "db1#3", "{done}");
    assert!(!dropped[0]["lost"].as_array().unwrap().is_empty(), "{done}");
    assert_eq!(ids(&program.run(&["list", "--json"]).expect_code(0).last()), ["db1#1", "db1#2"]);
    program.run(&["check", "--read-data"]).expect_code(0);
}
