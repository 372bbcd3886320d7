use std::sync::Arc;

use holdfast_pipe::Suite;
use holdfast_repo::{
    RepoError, RunNo,
    check::{CheckOptions, CheckReport, Severity, check},
    history::History,
    reader::Backup,
    store::{ObjectPath, Store, mem::MemStore, read_all},
};

use crate::world::*;

fn check_all(world: &World) -> CheckReport {
    let options = CheckOptions { read_data: Some(1.0), ..CheckOptions::default() };
    check(&world.repo, &world.log, options).unwrap()
}

fn objects(world: &World) -> Vec<(ObjectPath, u64)> {
    let mut objects = Vec::new();
    world
        .store
        .list("sources/", &mut |info| {
            objects.push((info.path, info.size_bytes));
            true
        })
        .unwrap();
    objects
}

/// Two backups with every kind of chunk: inline entries, full leaves, overlays, shared item chunks.
fn world_of_two(suite: Suite) -> (World, Vec<Source>) {
    let world = World::new(suite);
    let mut random = Random::new(7);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut random, 1024, 5_000 * 1024));
    source.insert("small".into(), SourceFile::random(&mut random, 16_384, 30_000));
    let first = source.clone();
    world.backup(&source, small_packs());
    for page in [5, 700, 4_500] {
        source.get_mut("big").unwrap().change(&mut random, page);
    }
    world.backup(&source, small_packs());
    (world, vec![first, source])
}

#[test]
fn a_whole_repository_has_no_findings() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let (world, sources) = world_of_two(suite);
        let report = check_all(&world);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!((report.backups, report.items_walked), (2, 4));
        assert_eq!(report.packs, report.packs_read);
        for (run, source) in (1..).zip(&sources) {
            world.assert_is(RunNo(run), source);
        }
    }
}

/// Restores everything of a backup, and says whether that failed. Wrong bytes fail the test.
fn restore_fails(world: &World, run: RunNo, source: &Source) -> bool {
    let open = || -> Result<(), RepoError> {
        let history = History::salvage(&world.repo, &world.log, &mut |_, _| {})?;
        if !history.stands(run) {
            return Err(RepoError::malformed("outcome", "does not stand"));
        }
        let backup = Backup::open(&world.repo, &history, run)?;
        for item in backup.items() {
            let item = item?;
            let mut bytes = Vec::new();
            backup.read_file(&item, &mut |part| {
                bytes.extend_from_slice(part);
                Ok::<_, RepoError>(())
            })?;
            assert!(bytes == source[&item.path.to_string()].bytes, "{} was restored wrongly", item.path);
        }
        Ok(())
    };
    open().is_err()
}

#[test]
fn damage_of_any_object_is_found_and_named_and_never_restored() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let (pristine, sources) = world_of_two(suite);
        let names = objects(&pristine);
        let mut random = Random::new(11);
        for (path, size) in &names {
            let name = path.as_str();
            // Leases are signs of life only.
            if name.contains("/runs/") {
                continue;
            }
            for damage in 0..6 {
                let world = copy(&pristine, &names);
                let at = random.below(*size) as usize;
                let done = world.store.damage(path, |bytes| match damage {
                    0 => bytes.truncate(at),
                    1 => bytes.clear(),
                    2 => bytes.extend_from_slice(b"more"),
                    _ => bytes[at] ^= 1 << (at % 8),
                });
                assert!(done);
                let report = check_all(&world);
                assert!(!report.findings.is_empty(), "damage {damage} at {at} of {name} was not found");
                let failed: Vec<bool> = (1..)
                    .zip(&sources)
                    .map(|(run, source)| restore_fails(&world, RunNo(run), source))
                    .collect();
                for (run, failed) in (1..).zip(failed.clone()) {
                    let named = report.findings.iter().any(|finding| {
                        finding.severity == Severity::Lost
                            && (finding.backups.contains(&RunNo(run)) || finding.backups.is_empty())
                    });
                    assert!(!failed || named, "{name} {damage} at {at} {run}: {:?}", report.findings);
                }
                let kind = name.split('/').nth(3).unwrap();
                if kind == "outcomes" {
                    let own = |run: usize| name.ends_with(&format!("{run:010}"));
                    assert_eq!(failed, [own(1), own(2)], "{name} {damage} at {at}");
                }
                assert!(
                    report.findings.iter().any(|finding| finding.object.contains(kind)),
                    "{name}: {:?}",
                    report.findings
                );
            }
            let world = copy(&pristine, &names);
            world.store.delete(std::slice::from_ref(path)).unwrap();
            if !name.contains("/outcomes/") && !name.contains("/index/") {
                let report = check_all(&world);
                assert!(
                    report.findings.iter().any(|finding| finding.object == name),
                    "{name} is gone: {report:?}"
                );
            }
        }
    }
}

/// Another store with the same objects.
fn copy(world: &World, names: &[(ObjectPath, u64)]) -> World {
    let store = MemStore::new();
    let mut everything: Vec<_> = names.iter().map(|(path, _)| path.clone()).collect();
    for prefix in ["", "keys/"] {
        world
            .store
            .list(prefix, &mut |info| {
                let ours = !info.path.as_str().starts_with("sources/") && !everything.contains(&info.path);
                everything.extend(ours.then_some(info.path));
                true
            })
            .unwrap();
    }
    for path in everything {
        let bytes = read_all(&world.store, &path, 1 << 30).unwrap();
        store.create_if_absent(&path, &bytes).unwrap();
    }
    let repo = Arc::new(open_repo(Arc::new(store.clone()), world.suite));
    World { repo, store, suite: world.suite, log: world.log.clone() }
}

#[test]
fn a_missing_index_costs_nothing_but_reads() {
    let (world, sources) = world_of_two(Suite::X25519Aes256Gcm);
    let index: Vec<_> = objects(&world)
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.as_str().contains("/index/"))
        .collect();
    world.store.delete(&index).unwrap();
    for (run, source) in (1..).zip(&sources) {
        world.assert_is(RunNo(run), source);
    }
    let report = check_all(&world);
    assert!(!report.findings.is_empty());
    assert!(report.findings.iter().all(|finding| finding.severity == Severity::Repairable));
    let (run, totals) = world.backup(&sources[1], small_packs());
    assert_eq!(totals.bytes_new, 0);
    world.assert_is(run, &sources[1]);
}

#[test]
fn a_backup_heals_what_its_base_has_lost() {
    let (world, sources) = world_of_two(Suite::None);
    let packs: Vec<_> = objects(&world)
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.as_str().contains("/packs/"))
        .collect();
    for lost in 0..packs.len() {
        let (world, sources) = (copy(&world, &objects(&world)), &sources);
        world.store.delete(&packs[lost..=lost]).unwrap();
        let (run, _) = world.try_backup(small_packs(), |writer| give_all(writer, &sources[1], 2)).unwrap();
        world.assert_is(run, &sources[1]);
    }
}

#[test]
fn a_finding_names_the_files() {
    let (world, _) = world_of_two(Suite::None);
    let (path, _) = objects(&world).into_iter().find(|(path, _)| path.as_str().contains("/packs/")).unwrap();
    world.store.damage(&path, |bytes| bytes[500] ^= 1);
    let report = check_all(&world);
    let finding = &report.findings[0];
    assert_eq!((finding.severity, finding.backups.len()), (Severity::Lost, 2));
    assert_eq!(finding.object, format!("{path}, chunk 0"));
    assert!(finding.files.iter().any(|file| file.to_string() == "big"), "{finding:?}");
    let sample = CheckOptions { read_data: Some(0.0), ..CheckOptions::default() };
    assert_eq!(check(&world.repo, &world.log, sample).unwrap().packs_read, 0);
}
