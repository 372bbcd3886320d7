//! Object Lock on a real server: what is locked, who may delete it, and what waits for it.

use std::{collections::BTreeMap, thread, time::Duration};

use holdfast_testkit::object_storage::{BUCKET, Keeps, ObjectStorage, ObjectStorageKind};
use jiff::Timestamp;
use serde_json::Value;

use crate::stores::Scene;

/// Prints the locks of all versions.
const LOCKS: &str = "\
    for page in s3.get_paginator('list_object_versions').paginate(Bucket=BUCKET):\n\
    \x20   for it in page.get('Versions', []):\n\
    \x20       try:\n\
    \x20           lock = s3.get_object_retention(Bucket=BUCKET, Key=it['Key'], VersionId=it['VersionId'])['Retention']\n\
    \x20       except s3.exceptions.ClientError as error:\n\
    \x20           assert error.response['Error']['Code'] == 'NoSuchObjectLockConfiguration', error\n\
    \x20           lock = {}\n\
    \x20       until = lock.get('RetainUntilDate')\n\
    \x20       until = until and until.astimezone(datetime.timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')\n\
    \x20       print(json.dumps([it['Key'], it['VersionId'], lock.get('Mode'), until, it['ETag']]))";

/// Ends all locks on objects whose name contains a text, as someone with a special permission can.
const END: &str = "\
    for it in s3.list_object_versions(Bucket=BUCKET)['Versions']:\n\
    \x20   if NAME in it['Key']:\n\
    \x20       soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=10)\n\
    \x20       s3.put_object_retention(Bucket=BUCKET, Key=it['Key'], VersionId=it['VersionId'],\n\
    \x20           Retention={'Mode': 'GOVERNANCE', 'RetainUntilDate': soon}, BypassGovernanceRetention=True)";

struct Lock {
    version: String,
    mode: Option<String>,
    until: Option<Timestamp>,
    is_in_parts: bool,
}

/// The locks by name below the repository.
fn locks(storage: &ObjectStorage) -> BTreeMap<String, Lock> {
    let told = storage.boto(LOCKS).unwrap();
    let read = |line: &str| {
        let it: Value = serde_json::from_str(line).unwrap();
        let text = |at: usize| it[at].as_str().map(str::to_owned);
        let lock = Lock {
            version: text(1).unwrap(),
            mode: text(2),
            until: it[3].as_str().map(|time| time.parse().unwrap()),
            is_in_parts: it[4].as_str().unwrap().contains('-'),
        };
        (text(0).unwrap().strip_prefix("r/").unwrap().to_owned(), lock)
    };
    told.lines().map(read).collect()
}

const PACKS: &str = "sources/db1/physical/packs/";

#[test]
fn what_is_locked_can_be_deleted_by_nobody_and_is_waited_for() {
    let storage = ObjectStorage::start_keeping(ObjectStorageKind::Versitygw, Keeps::Locks).unwrap();
    let options = ["--s3-part-size", "5M"].map(str::to_owned).into();
    let scene = Scene::new(format!("s3://{BUCKET}/r"), options, storage.environment().into());
    let made = scene.run(&["init", "--object-lock", "1h", "--json"]).expect_code(0).last();
    assert_eq!(made["data"]["object_lock"]["period_s"], 3600, "{made}");
    scene.backup(&["--full"]);
    scene.backup(&["--full"]);

    // All permanent objects are locked, whatever their size; short-lived ones are not.
    let first = locks(&storage);
    let soonest = Timestamp::now() + Duration::from_secs(1800);
    for (name, lock) in &first {
        let lasts = !["/runs/", "/checks/", ".tmp/", "probe/"].iter().any(|short| name.contains(short));
        assert_eq!(lock.until.is_some_and(|until| until > soonest), lasts, "{name}: {:?}", lock.until);
        assert!(!lasts || lock.mode.as_deref() == Some("GOVERNANCE"), "{name}");
    }
    assert!(first.iter().any(|(name, lock)| name.starts_with(PACKS) && lock.is_in_parts));
    let old = format!("{PACKS}0000000001-");
    let (pack, lock) = first.iter().find(|(name, _)| name.starts_with(&old)).unwrap();
    let delete = format!("s3.delete_object(Bucket=BUCKET, Key='r/{pack}', VersionId='{}')", lock.version);
    let refused = storage.boto(&delete).unwrap_err().to_string();
    assert!(refused.contains("AccessDenied"), "{refused}");

    // Dropped, declared dead, and waiting for their locks to end.
    scene.run(&["expire", "--name", "db1", "--keep-last", "1"]).expect_code(0);
    let prune = || {
        let run = scene.run(&["prune", "--grace", "0s", "--json"]).expect_code(0).last();
        run["data"]["logs"][0].clone()
    };
    assert!(prune()["dead_packs"].as_u64() > Some(0));
    let dead = first.keys().filter(|name| name.starts_with(&old)).count();
    let waits = prune();
    assert_eq!((&waits["deleted_packs"], &waits["locked_packs"]), (&0.into(), &dead.into()), "{waits:#}");
    assert!(waits["locked_bytes"].as_u64() > Some(0));
    let until: Timestamp = waits["locked_until"].as_str().unwrap().parse().unwrap();
    assert!(first.values().any(|lock| lock.until == Some(until)), "{until}");
    let told = scene.run(&["prune", "--grace", "0s"]).expect_code(0).out;
    assert!(told.contains("locked in the bucket until 20"), "{told}");

    // Locks of needed objects are extended, even of hidden ones; those of dead objects are not.
    let none = scene.run(&["lock", "--extend", "--json"]).expect_code(0).last();
    assert!(none["data"]["parts"].as_array().unwrap().iter().all(|part| part["extended"] == 0), "{none:#}");
    let young = format!("{PACKS}0000000002-");
    let hidden = first.keys().find(|name| name.starts_with(&young)).unwrap();
    storage.boto(&format!("s3.delete_object(Bucket=BUCKET, Key='r/{hidden}')")).unwrap();
    let plan = scene.run(&["lock", "--margin", "1h", "--json"]).expect_code(0).last();
    assert_eq!((&plan["data"]["dry_run"], &plan["data"]["writes"]), (&true.into(), &0.into()));
    let done = scene.run(&["lock", "--extend", "--margin", "1h", "--json"]).expect_code(0).last();
    let sum = |run: &Value| {
        let parts = run["data"]["parts"].as_array().unwrap();
        parts.iter().map(|part| part["extended"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((sum(&done), done["data"]["writes"].as_u64()), (sum(&plan), Some(sum(&plan))), "{done:#}");
    let second = locks(&storage);
    for (name, was) in &first {
        let Some(until) = second.get(name).map(|lock| lock.until) else {
            assert_eq!(was.until, None, "{name}");
            continue;
        };
        let is_needed = name.starts_with(&young) || name.contains("/outcomes/") || name.starts_with("keys/");
        assert!(!is_needed || until > was.until, "{name}: {until:?}");
        assert!(!name.starts_with(&old) || until == was.until, "{name}: {until:?}");
    }
    assert!(second[hidden].until > first[hidden].until);

    storage.boto(&format!(
        "for it in s3.list_object_versions(Bucket=BUCKET, Prefix='r/{hidden}').get('DeleteMarkers', []):\n\
         \x20   s3.delete_object(Bucket=BUCKET, Key=it['Key'], VersionId=it['VersionId'])"
    )).unwrap();

    // When the locks have ended, a prune frees what is dead, and nothing else.
    storage.boto(&format!("NAME = 'r/{old}'\n{END}")).unwrap();
    thread::sleep(Duration::from_millis(11_100));
    let freed = prune();
    assert_eq!((&freed["deleted_packs"], &freed["locked_packs"]), (&dead.into(), &0.into()), "{freed:#}");
    let left = locks(&storage);
    assert!(!left.keys().any(|name| name.starts_with(&old)));
    assert!(left.contains_key(hidden));

    // Someone overwrites an object: check names it, with the time, and finds nothing wrong as of before.
    let before = crate::stores::a_moment();
    storage.boto(&format!("s3.put_object(Bucket=BUCKET, Key='r/{hidden}', Body=b'theirs')")).unwrap();
    let found = scene.run(&["check", "--json"]).expect_code(3).last();
    let findings = found["data"]["findings"].as_array().unwrap();
    let is_it = |found: &&Value| found["severity"] == "suspicious" && found["object"] == hidden.as_str();
    let of_it = findings.iter().find(is_it).unwrap_or_else(|| panic!("{found:#}"));
    assert!(of_it["problem"].as_str().unwrap().starts_with("has 2 versions"), "{of_it}");
    scene.run(&["check", "--read-data", "--as-of", &before]).expect_code(0);
}

/// Removes the deletion markers.
const SHOW: &str = "\
    for it in s3.list_object_versions(Bucket=BUCKET).get('DeleteMarkers', []):\n\
    \x20   if it['IsLatest'] and not any(part in it['Key'] for part in ['/runs/', '.tmp/', 'keys/x']):\n\
    \x20       s3.delete_object(Bucket=BUCKET, Key=it['Key'], VersionId=it['VersionId'])";

#[test]
fn what_is_only_hidden_is_given_up_by_nobody() {
    let storage = ObjectStorage::start_keeping(ObjectStorageKind::Versitygw, Keeps::Locks).unwrap();
    let scene = Scene::new(format!("s3://{BUCKET}/r"), Vec::new(), storage.environment().into());
    scene.run(&["init", "--object-lock", "1h"]).expect_code(0);
    scene.backup(&["--full"]);
    scene.backup(&["--full"]);
    scene.run(&["check"]).expect_code(0);
    let hide = |part: &str| {
        let hide = format!(
            "for page in s3.get_paginator('list_objects_v2').paginate(Bucket=BUCKET, Prefix='r/sources/'):\n\
             \x20   for it in page['Contents']:\n\
             \x20       if '{part}' in it['Key']:\n\
             \x20           s3.delete_object(Bucket=BUCKET, Key=it['Key'])"
        );
        storage.boto(&hide).unwrap();
    };

    // Hidden packs are not lost, and nothing is dropped because of them.
    hide("/packs/0000000001-");
    let found = scene.run(&["check"]).expect_code(3);
    assert!(
        found.out.contains("its earlier content still exists") && found.out.contains("drop nothing"),
        "{found:#?}"
    );
    let refused = scene.run(&["repair", "--yes"]);
    assert!(refused.code != 0 && refused.err.contains("older version: nothing was repaired"), "{refused:#?}");
    storage.boto(SHOW).unwrap();
    scene.run(&["check", "--read-data"]).expect_code(0);

    // An overwritten outcome is not lost, either.
    let outcome = "r/sources/db1/physical/outcomes/0000000001";
    storage.boto(&format!("s3.put_object(Bucket=BUCKET, Key='{outcome}', Body=b'theirs')")).unwrap();
    let refused = scene.run(&["repair", "--yes"]);
    assert!(refused.code != 0 && refused.err.contains("was overwritten"), "{refused:#?}");
    let cover = format!(
        "for it in s3.list_object_versions(Bucket=BUCKET, Prefix='{outcome}')['Versions']:\n\
         \x20   if it['Size'] == 6:\n\
         \x20       s3.delete_object(Bucket=BUCKET, Key='{outcome}', VersionId=it['VersionId'])"
    );
    storage.boto(&cover).unwrap();
    scene.run(&["check"]).expect_code(0);

    // Hide the end of a history, and then all of it: all locks are extended, which is reported.
    // An invalid name does not keep others from being locked.
    storage
        .boto("s3.put_object(Bucket=BUCKET, Key='r/keys/x\\x7f', Body=b'')\ns3.delete_object(Bucket=BUCKET, Key='r/keys/x\\x7f')")
        .unwrap();
    let first = locks(&storage);
    let mut before = first.values().filter_map(|lock| lock.until).max();
    for part in ["/0000000002", "/"] {
        hide(part);
        thread::sleep(Duration::from_millis(1_100));
        let done = scene.run(&["lock", "--extend", "--margin", "1h", "--json"]).expect_code(3).last();
        let parts = done["data"]["parts"].as_array().unwrap();
        assert_eq!((&parts[0]["refused"], &parts[0]["problem"]), (&Value::from(0), &Value::Null), "{done:#}");
        assert!(parts[1]["problem"].as_str().unwrap().contains("its bytes still exist"), "{done:#}");
        let now = locks(&storage);
        let packs = || now.iter().filter(|(name, _)| name.starts_with(PACKS));
        assert!(packs().count() > 1 && packs().all(|(_, lock)| lock.until > before), "{part}");
        before = now.values().filter_map(|lock| lock.until).max();
        let found = scene.run(&["check", "--json"]).expect_code(3).last();
        let told = found["data"]["findings"].as_array().unwrap();
        let is_it = |it: &&Value| it["problem"].as_str().unwrap().contains("but not by Holdfast");
        assert!(told.iter().filter(is_it).count() > 1, "{found:#}");
    }
    storage.boto(SHOW).unwrap();
    scene.run(&["check", "--read-data"]).expect_code(0);
    scene.run(&["lock", "--extend"]).expect_code(0);

    // Locks that have ended are reported until they are renewed.
    storage.boto(&format!("NAME = '{PACKS}0000000002-'\n{END}")).unwrap();
    thread::sleep(Duration::from_millis(11_100));
    let found = scene.run(&["check"]).expect_code(3);
    assert!(
        found.out.contains("unlocked: sources/db1/physical/") && found.out.contains("lock --extend"),
        "{found:#?}"
    );
    scene.run(&["lock", "--extend"]).expect_code(3);
    scene.run(&["check"]).expect_code(0);
}

#[test]
fn locks_are_promised_only_where_they_are() {
    let storage = ObjectStorage::start_keeping(ObjectStorageKind::Versitygw, Keeps::Versions).unwrap();
    let program = crate::program::Program::new();
    let location = format!("s3://{BUCKET}/r");
    let run = |words: &[&str]| {
        let mut command = program.command(words);
        command.envs(storage.environment());
        crate::program::run(&mut command)
    };
    let refused = run(&["init", "--repo", &location, "--object-lock", "30d"]).expect_code(1);
    assert!(refused.err.contains("cannot lock objects") && refused.err.contains("hint: "), "{refused:#?}");
    let made = run(&["init", "--repo", &location]).expect_code(0);
    assert!(made.out.contains("the bucket keeps versions"), "{made:#?}");
    let doctor = run(&["doctor", "--no-server", "--repo", &location]).expect_code(0);
    assert!(doctor.out.contains("the bucket keeps versions"), "{doctor:#?}");
    let none = run(&["lock", "--extend", "--repo", &location]).expect_code(1);
    assert!(none.err.contains("was made without --object-lock"), "{none:#?}");
    let folder = run(&["init", "--object-lock", "30d"]).expect_code(1);
    assert!(folder.err.contains("cannot lock objects"), "{folder:#?}");
    let long = run(&["init", "--object-lock", "40000d"]).expect_code(2);
    assert!(long.err.contains("100 years"), "{long:#?}");
}
