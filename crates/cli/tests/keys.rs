//! Keys added, used and removed on the command line.

use serde_json::Value;

use crate::{
    backups::{begun, ids, three},
    program::{PASSWORD, Program, Run, bare, run},
    terminal::Terminal,
};

/// Runs the program with a password other than the first one.
fn with(program: &Program, password: &str, words: &[&str]) -> Run {
    run(program.command(words).env("HOLDFAST_PASSWORD", password))
}

/// Adds a key with `password`; returns its id.
fn add(program: &Program, password: &str, words: &[&str]) -> String {
    let words = [&["key", "add", "--json"], words].concat();
    let added = run(program.command(&words).env("HOLDFAST_NEW_PASSWORD", password)).expect_code(0).last();
    added["data"]["id"].as_str().unwrap().to_owned()
}

fn keys(program: &Program, password: &str) -> Vec<Value> {
    let listed = with(program, password, &["key", "list", "--json"]).expect_code(0).last();
    listed["data"]["keys"].as_array().unwrap().clone()
}

#[test]
fn passwords_are_added_changed_and_removed() {
    let program = Program::with_repository();
    let first = keys(&program, PASSWORD)[0]["id"].as_str().unwrap().to_owned();
    let last = program.run(&["key", "remove", &first]).expect_code(1);
    assert!(last.err.contains("last operator's key") && last.err.contains("hint: "), "{last:#?}");

    let file = program.write("new", "of the night shift\n");
    let words = ["key", "add", "--label", "night shift", "--new-password-file", file.to_str().unwrap()];
    let added = program.run(&words).expect_code(0);
    assert!(added.out.contains("added the operator's key"), "{added:#?}");
    with(&program, "of the night shift", &["list"]).expect_code(0);
    let text = program.run(&["key", "list"]).expect_code(0).out;
    assert!(text.contains("night shift") && text.contains("this one") && !text.contains("of the"), "{text}");

    let removed = with(&program, "of the night shift", &["key", "remove", &first]).expect_code(0);
    assert!(removed.out.contains("what the key could read stays readable"), "{removed:#?}");
    program.run(&["list"]).expect_code(6);

    let mut change = program.command(&["key", "change"]);
    change.env("HOLDFAST_PASSWORD", "of the night shift").env("HOLDFAST_NEW_PASSWORD", "of the day");
    run(&mut change).expect_code(0);
    with(&program, "of the night shift", &["list"]).expect_code(6);
    let left = keys(&program, "of the day");
    assert_eq!(
        (left.len(), &left[0]["label"], &left[0]["slot"]),
        (1, &"night shift".into(), &"password".into())
    );
    let id = left[0]["id"].as_str().unwrap();
    with(&program, "of the day", &["list", "--key", id]).expect_code(0);
    with(&program, "of the day", &["list", "--key", &first]).expect_code(2);
    let nobody = with(&program, "of the day", &["key", "add"]).expect_code(2);
    assert!(nobody.err.contains("HOLDFAST_NEW_PASSWORD"), "{nobody:#?}");
}

/// The store's own words say neither which repository it is nor what helps.
#[test]
fn a_key_that_cannot_be_stored_names_the_repository() {
    let program = Program::with_repository();
    let unfinished = program.repository().join(".tmp");
    std::fs::remove_dir_all(&unfinished).unwrap();
    std::fs::write(&unfinished, "").unwrap();
    let file = program.write("new", "another\n");
    let refused = program.run(&["key", "add", "--new-password-file", file.to_str().unwrap()]).expect_code(5);
    let said = format!("error: the repository {}: ", program.repository().display());
    assert!(refused.err.starts_with(&said) && refused.err.contains("/.tmp"), "{refused:#?}");
}

#[test]
fn a_new_password_is_asked_for_twice_after_the_old_one() {
    let program = Program::with_repository();
    let mut command = bare(&program.path(""));
    command.args(["key", "add", "--repo"]).arg(program.repository());
    let mut terminal = Terminal::start(&command);
    terminal.type_hidden("password of the repository: ", &format!("{PASSWORD}\n"));
    terminal.type_hidden("new password of the key: ", "another\n");
    terminal.type_hidden("the same again: ", "another\n");
    let it = terminal.ended().expect_code(0);
    assert!(it.out.contains("added the operator's key") && !it.out.contains("another"), "{it:#?}");
    with(&program, "another", &["list"]).expect_code(0);
}

#[test]
fn a_key_pair_opens_what_its_file_trusts() {
    let program = Program::with_repository();
    let file = program.path("me.identity");
    let path = file.to_str().unwrap();
    let made = run(bare(&program.path("")).args(["key", "generate", path, "--json"])).expect_code(0).last();
    let public = made["data"]["public_key"].as_str().unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap()) & 0o777, 0o600);
    run(bare(&program.path("")).args(["key", "generate", path])).expect_code(2);
    let typo = public.replace("holdfast-public-", "holdfast-public-0");
    program.run(&["key", "add", "--public-key", &typo]).expect_code(2);
    let other_half = program.run(&["key", "add", "--public-key", path]).expect_code(2);
    assert!(other_half.err.contains("is an identity") && other_half.err.contains(public), "{other_half:#?}");

    let added = program.run(&["key", "add", "--json", "--public-key", public]).expect_code(0).last();
    let trust = added["data"]["trust"].as_str().unwrap();
    let by_identity = |words: &[&str]| {
        let mut command = bare(&program.path(""));
        command.args(words).arg("--repo").arg(program.repository()).args(["--identity", path]);
        run(&mut command)
    };
    let untrusted = by_identity(&["list"]).expect_code(6);
    assert!(untrusted.err.contains(trust), "{untrusted:#?}");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}{trust}\n")).unwrap();
    by_identity(&["list"]).expect_code(0);
    let first = keys(&program, PASSWORD);
    let first = first.iter().find(|key| key["own"] == true).unwrap()["id"].as_str().unwrap();
    by_identity(&["key", "remove", first]).expect_code(0);
    by_identity(&["check"]).expect_code(0);
    program.run(&["list"]).expect_code(6);

    // A changed key vouches for itself, since its predecessor is gone.
    let second = program.path("second.identity");
    let made =
        run(bare(&program.path("")).args(["key", "generate", "--json"]).arg(&second)).expect_code(0).last();
    let public = made["data"]["public_key"].as_str().unwrap();
    let changed = by_identity(&["key", "change", "--json", "--public-key", public]).expect_code(0).last();
    let new_trust = changed["data"]["trust"].as_str().unwrap();
    assert_ne!(new_trust, trust);
    let text = std::fs::read_to_string(&second).unwrap();
    std::fs::write(&second, format!("{text}{new_trust}\n")).unwrap();
    let mut list = bare(&program.path(""));
    run(list.args(["list", "--repo"]).arg(program.repository()).arg("--identity").arg(&second))
        .expect_code(0);
    by_identity(&["list"]).expect_code(6);
}

/// Expects a refusal that names the role of the key, and the role that is needed.
#[track_caller]
fn refused(program: &Program, password: &str, whose: &str, needs: &str, words: &[&str]) {
    let it = with(program, password, words).expect_code(6);
    let said =
        it.err.contains(&format!("this is a {whose}'s key: ")) && it.err.contains(&format!("takes {needs}"));
    assert!(said, "{words:?}: {it:#?}");
}

#[test]
fn a_keeper_drops_and_frees_and_reads_nothing() {
    let program = three();
    add(&program, "of the keeper", &["--role", "keeper"]);
    let keeper = |words: &[&str]| with(&program, "of the keeper", words);
    let operators = "an operator's";
    for words in [
        &["show", "latest"][..],
        &["ls", "latest"],
        &["report", "latest"],
        &["restore", "latest", "--target-dir", "t"],
        &["list", "--tag", "x"],
        &["key", "add"],
        &["key", "rotate"],
        &["key", "remove", "0011223344556677"],
    ] {
        refused(&program, "of the keeper", "keeper", operators, words);
    }
    refused(&program, "of the keeper", "keeper", "a writer's or an operator's", &["backup"]);
    let listed = keeper(&["list", "--json"]).expect_code(0).last();
    assert_eq!(ids(&listed), ["db1#1", "db1#2", "db1#3"]);
    assert!(listed["data"]["backups"][0].get("tags").is_none(), "{listed}");

    let checked = keeper(&["check"]).expect_code(0);
    assert!(checked.out.contains("no errors found\nnot checked"), "{checked:#?}");
    let read = keeper(&["check", "--read-data", "--json"]).expect_code(0).last();
    assert_eq!(read["data"]["packs_read"], read["data"]["packs"], "{read}");
    assert_eq!(read["data"]["packs_unproven"], 0, "{read}");
    assert!(read["data"]["not_checked"].as_array().unwrap().len() > 2, "{read}");
    keeper(&["hold", "2", "--reason", "mine"]).expect_code(0);
    assert!(keeper(&["list"]).expect_code(0).out.contains("until released: mine"));
    let kept = keeper(&["expire", "--keep-last", "1", "--dry-run"]).expect_code(0);
    assert!(kept.out.contains("held") && kept.err.contains("damaged pages"), "{kept:#?}");
    refused(&program, "of the keeper", "keeper", operators, &["expire", "--keep-tag", "x"]);
    keeper(&["release", "2"]).expect_code(0);
    keeper(&["expire", "--keep-last", "1"]).expect_code(0);
    let first = keeper(&["prune", "--grace", "0s", "--json"]).expect_code(0).last();
    assert!(first["data"]["logs"][0]["live_bytes"].as_u64() > Some(0), "{first}");
    keeper(&["prune", "--grace", "0s"]).expect_code(0);
    assert_eq!(ids(&program.run(&["list", "--json"]).expect_code(0).last()), ["db1#3"]);
    program.run(&["check", "--read-data"]).expect_code(0);

    // What it can detect without reading: missing, truncated and foreign packs.
    let packs = program.repository().join("sources/db1/physical/packs");
    let pack = std::fs::read_dir(&packs).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&pack).unwrap();
    let mut other = whole.clone();
    other[30] ^= 1;
    for bad in [&whole[..whole.len() - 1], &other] {
        std::fs::write(&pack, bad).unwrap();
        let found = keeper(&["check"]).expect_code(3);
        assert!(found.out.contains(pack.file_name().unwrap().to_str().unwrap()), "{found:#?}");
    }
    // And what shows only when it is read: one bit of a sealed chunk.
    let mut rotten = whole.clone();
    rotten[500] ^= 1;
    std::fs::write(&pack, &rotten).unwrap();
    keeper(&["check"]).expect_code(0);
    let found = keeper(&["check", "--read-data"]).expect_code(3);
    assert!(found.out.contains("is not as its run wrote it") && found.out.contains("db1#3"), "{found:#?}");
}

#[test]
fn a_writer_is_told_what_its_key_is_not_for() {
    let program = three();
    let id = add(&program, "of db1", &["--role", "writer", "--source", "db1", "--label", "db1"]);
    for words in [&["show", "latest"][..], &["restore", "latest", "--target-dir", "t"], &["key", "change"]] {
        refused(&program, "of db1", "writer", "an operator's", words);
    }
    for words in
        [&["expire", "--keep-last", "1"][..], &["prune"], &["check"], &["hold", "1"], &["release", "1"]]
    {
        refused(&program, "of db1", "writer", "a keeper's or an operator's", words);
    }
    let listed = with(&program, "of db1", &["list"]).expect_code(0);
    assert!(listed.out.contains("db1#3") && listed.err.contains("operator's key"), "{listed:#?}");
    with(&program, "of db1", &["doctor", "--no-server"]).expect_code(0);
    let shown = keys(&program, "of db1");
    let own = shown.iter().find(|key| key["own"] == true).unwrap();
    assert_eq!((own["id"].as_str(), &own["sources"][0]), (Some(id.as_str()), &"db1".into()));
    program.run(&["key", "remove", &id]).expect_code(0);
    with(&program, "of db1", &["list"]).expect_code(6);
    let rotated = program.run(&["key", "rotate", "--json"]).expect_code(0).last();
    assert_eq!((&rotated["data"]["rotation"], &rotated["data"]["keys"]), (&1.into(), &1.into()));
    assert_eq!(ids(&program.run(&["list", "--json"]).expect_code(0).last()).len(), 3);
    program.run(&["check", "--read-data"]).expect_code(0);
}

#[test]
fn a_run_under_way_may_end_unless_the_key_is_removed_at_once() {
    let program = three();
    let lost = add(&program, "of one who left", &["--role", "writer", "--source", "db1"]);
    let stolen = add(&program, "of a thief", &["--role", "writer", "--source", "db1"]);
    let _under_way = begun(&program, "db1");
    let removed = program.run(&["key", "remove", "--json", &lost]).expect_code(0).last();
    assert_eq!(removed["data"]["may_end"], serde_json::json!(["db1#4"]), "{removed}");
    let removed = program.run(&["key", "remove", "--json", "--at-once", &stolen]).expect_code(0).last();
    assert_eq!(removed["data"]["may_end"], serde_json::json!([]), "{removed}");

    // Keys that were removed before an error are reported before the error.
    let third = add(&program, "of a third", &["--role", "keeper"]);
    let own = keys(&program, PASSWORD).iter().find(|key| key["own"] == true).unwrap()["id"].clone();
    let failed = program.run(&["key", "remove", &third, own.as_str().unwrap()]).expect_code(1);
    assert!(failed.out.contains(&format!("removed the key {third}")), "{failed:#?}");
    assert!(failed.err.contains("last operator's key"), "{failed:#?}");
}

#[test]
fn a_record_that_somebody_put_there_is_named() {
    let program = Program::with_repository();
    std::fs::create_dir(program.repository().join("signers")).unwrap();
    std::fs::write(program.repository().join("signers/0011223344556677"), "{}").unwrap();
    for words in [&["key", "list"][..], &["check"]] {
        let it = program.run(words).expect_code(3);
        assert!(it.out.contains("signers/0011223344556677"), "{it:#?}");
    }
    let empty = program.run(&["doctor", "--no-server", "--max-age", "1d"]).expect_code(3);
    assert!(empty.out.contains("there is no backup"), "{empty:#?}");
    let doctor = program.run(&["doctor", "--no-server"]).expect_code(0);
    assert!(doctor.out.contains("signers/0011223344556677"), "{doctor:#?}");
}
