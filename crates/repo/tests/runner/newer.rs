//! What a later version has written is no damage: this version says that it does not know it, and drops, replaces
//! and forgets nothing of it.

use std::time::Duration;

use holdfast_pipe::{Suite, TAG_BYTES};
use holdfast_repo::{
    Folder, ObjectKind, PackId, Place, RunNo, RunSecrets,
    data::writer::{BackupWriter, Foundation},
    format::{
        pack::{TRAILER_BYTES, Trailer, directory_seal_context},
        refs::PruneRefs,
    },
    log::{
        check_record::Checked,
        run::{Ending, PartCounts, Run},
    },
    ops::{
        check::{CheckOptions, Severity},
        expire::{ExpireError, ExpireRequest, Rules, plan_expire},
        prune::{PruneOptions, prune},
        repair::{RepairError, RepairPlan, plan_repair, repair},
        retention::RetentionPolicy,
    },
    store::{ObjectPath, Store},
};

use crate::{
    damage::{copy, objects},
    repair::{all, bytes_of},
    world::*,
};

const SECOND: RunNo = RunNo(2);

fn source() -> Source {
    let mut random = Random::new(7);
    Source::from([("a".to_owned(), SourceFile::random(&mut random, 16_384, 3_000_000))])
}

fn full(world: &World, edit: impl Fn(String) -> String) -> RunNo {
    let mut run = world.begin();
    let writer = BackupWriter::new(&run, &Foundation::none(run.history()), small_packs()).unwrap();
    give_all(&writer, &source(), 1).unwrap();
    let data = writer.finish(&run).unwrap();
    let mut head = world.head(run.no());
    (head.totals, head.roots) = (data.totals, data.roots);
    let head = edit(String::from_utf8(head.encode().unwrap()).unwrap()).into_bytes();
    run.finish(Ending::Backup { head, refs: data.refs, parts: data.parts }).unwrap();
    run.no()
}

/// Three backups that share nothing; the head of the second is of a later version if that `is_newer`.
fn three(is_newer: bool) -> World {
    let world = World::new(Suite::X25519Aes256Gcm);
    full(&world, |head| head);
    let newer = |head: String| head.replace("\"schema\":1", "\"schema\":2");
    full(&world, |head| if is_newer { newer(head) } else { head });
    full(&world, |head| head);
    world
}

fn objects_of(world: &World, folder: Folder, run: RunNo) -> Vec<ObjectPath> {
    let begin = format!("{}{:010}-", world.log.folder(folder), run.0);
    objects(world)
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.as_str().starts_with(&begin))
        .collect()
}

fn packs_of(world: &World, run: RunNo) -> Vec<PackId> {
    let count = objects_of(world, Folder::Packs, run).len() as u32;
    (0..count).map(|part| PackId { run, part }).collect()
}

/// Changes the first chunk that a pack lists to one of this kind and codec.
fn relabel(world: &World, pack: PackId, kind: Option<u8>, codec: Option<u8>) {
    let place = Place { log: &world.log, kind: ObjectKind::Pack, run: pack.run, part: pack.part };
    let is_there = world.store.damage(&world.log.pack(pack), |bytes| {
        let end = bytes.len() - TRAILER_BYTES;
        let trailer = Trailer::decode(bytes.last_chunk().unwrap(), bytes.len() as u64).unwrap();
        let key = world.repo.object_key(&place, bytes.first_chunk().unwrap()).unwrap();
        let context = directory_seal_context(trailer.plain_len);
        let sealed = &mut bytes[trailer.offset as usize..end];
        let mut plain = key.open(context, sealed).unwrap().to_vec();
        assert_eq!(plain.len() + TAG_BYTES, sealed.len());
        // After the count of chunks.
        let first = if plain[0] < 128 { 1 } else { 2 };
        plain[first] = kind.unwrap_or(plain[first]);
        plain[first + 1] = codec.unwrap_or(plain[first + 1]);
        key.seal(context, &mut plain);
        bytes[trailer.offset as usize..end].copy_from_slice(&plain);
    });
    assert!(is_there);
}

fn mend(world: &World) -> Result<RepairPlan, RepairError> {
    repair(&world.repo, &world.log, &all(), &mut |_| true, &run_options())
}

/// The check names what is not known, with its backup, and a repair leaves it and everything else alone.
fn assert_left(world: &World, what: &str) {
    let found = world.check_all().findings;
    assert!(!found.is_empty() && found.iter().all(|it| it.severity == Severity::Newer), "{what}: {found:?}");
    let is_it = |it: &holdfast_repo::ops::check::Finding| {
        it.backups == [SECOND] && it.problem.contains("which this version does not know")
    };
    assert!(found.iter().any(is_it), "{what}: {found:?}");
    let before = bytes_of(world);
    for read_data in [None, Some(1.0)] {
        let options = CheckOptions { read_data, threads: 1, ..CheckOptions::default() };
        let plan = plan_repair(&world.repo, &world.log, &options, jiff::Timestamp::now()).unwrap();
        assert!(plan.is_empty() && plan.held.is_empty() && !plan.left.is_empty(), "{what}: {plan:?}");
    }
    assert!(mend(world).unwrap().is_empty(), "{what}");
    assert!(bytes_of(world) == before, "{what}");
    let checked = Checked::read(&world.repo, &world.log, &mut |_| {}).unwrap();
    assert!(!checked.has_found_damage(), "{what}: nobody has found it damaged");
    let now =
        PruneOptions { grace: Duration::ZERO, resume_window: Duration::ZERO, ..PruneOptions::default() };
    for _ in 0..2 {
        prune(&world.repo, &world.log, &now, None, &run_options()).unwrap();
    }
    let packs = packs_of(world, SECOND);
    assert!(!packs.is_empty() && packs.iter().all(|pack| !is_dead(world, *pack)), "{what}");
}

fn is_dead(world: &World, pack: PackId) -> bool {
    world.history().all_prunes(&world.repo).unwrap().is_dead(pack)
}

#[test]
fn a_head_that_is_not_known_is_left() {
    assert_left(&three(true), "head");
}

#[test]
fn chunks_that_are_not_known_are_left() {
    let all = three(false);
    for (kind, codec) in [(Some(9), None), (None, Some(9)), (Some(1), Some(4))] {
        let what = format!("chunk kind {kind:?}, codec {codec:?}");
        let world = copy(&all, &objects(&all));
        for pack in packs_of(&world, SECOND) {
            relabel(&world, pack, kind, codec);
        }
        assert_left(&world, &what);
        // An index that is damaged besides could not list these packs.
        let index = objects_of(&world, Folder::Index, SECOND);
        for path in &index {
            assert!(world.store.damage(path, |bytes| bytes[150] ^= 1));
        }
        let plan = mend(&world).unwrap();
        assert!(plan.dropped.is_empty() && plan.index.is_empty(), "{what}: {plan:?}");
        assert!(index.iter().all(|path| plan.left.iter().any(|it| it.object == path.as_str())), "{what}");
        assert!(world.history().stands(SECOND), "{what}");
    }
}

/// An index part that is not known may list what it seems not to list.
#[test]
fn an_index_that_is_not_known_is_not_replaced() {
    let world = three(false);
    let place = Place { log: &world.log, kind: ObjectKind::Index, run: SECOND, part: 0 };
    let mut plain = world.repo.read_object(&place, 1 << 28).unwrap();
    let first = plain.windows(4).position(|it| it[0] == 1 && it[2] == 14).expect("a chunk of pages");
    plain[first] = 9;
    let secrets = RunSecrets::draw(world.repo.keys(), &world.log, SECOND).unwrap();
    let object = secrets.seal_index(0, &plain).unwrap();
    assert!(world.store.damage(&place.path(), |bytes| *bytes = object));
    let world = copy(&world, &objects(&world));
    let found = world.check_all().findings;
    assert!(found.len() == 1 && found[0].severity == Severity::Newer, "{found:?}");
    let plan = mend(&world).unwrap();
    assert!(plan.is_empty() && plan.left.len() == 1, "{plan:?}");
    world.assert_is(SECOND, &source());
}

/// Refs are lost, and cannot be made anew from page maps that are not known.
#[test]
fn a_backup_that_is_not_known_is_not_dropped_for_its_refs() {
    let world = three(true);
    world.store.delete(&[world.log.refs(SECOND), world.log.refs(RunNo(3))]).unwrap();
    let plan = mend(&world).unwrap();
    assert_eq!(plan.refs, [RunNo(3)]);
    assert!(plan.dropped.is_empty(), "{plan:?}");
    assert!(plan.left.iter().any(|it| it.object == world.log.refs(SECOND).as_str()), "{:?}", plan.left);
    assert!(world.history().stands(SECOND));
}

/// What a prune has moved is found through page maps: if some are not known, its record is not made anew.
#[test]
fn a_lost_prune_beside_a_backup_that_is_not_known_is_left() {
    let world = three(true);
    let pruned = {
        let history = world.history();
        let mut run = Run::begin_filing(&world.repo, &history, &run_options()).unwrap();
        let refs = run.write_prune_refs(&PruneRefs::default()).unwrap();
        run.finish(Ending::Prune { refs, parts: PartCounts::default() }).unwrap().run
    };
    assert!(world.store.damage(&world.log.outcome(pruned), |bytes| bytes[150] ^= 1));
    let before = bytes_of(&world);
    let refused = mend(&world);
    let is_it = |object: &str| object == world.log.outcome(SECOND).as_str();
    assert!(matches!(&refused, Err(RepairError::Newer { object, .. }) if is_it(object)), "{refused:?}");
    assert!(bytes_of(&world) == before);
}

/// It may be the last good one.
#[test]
fn no_rule_takes_a_damaged_backup_for_better_than_one_that_is_not_known() {
    let world = three(true);
    let plan = |request: &ExpireRequest| {
        plan_expire(&world.repo, &world.history(), request, world.repo.now().unwrap())
    };
    let policy = RetentionPolicy { last: 1, ..RetentionPolicy::default() };
    let rules = ExpireRequest::ByRules(Rules::by_age(policy, jiff::tz::TimeZone::UTC));
    assert_eq!(plan(&rules).unwrap().dropped, [RunNo(1), SECOND]);
    world.store.delete(&[world.log.pack(packs_of(&world, RunNo(3))[0])]).unwrap();
    // The first is known to be good, and the second may be better.
    assert_eq!(plan(&rules).unwrap().dropped, []);
    let named = |runs: &[u64]| plan(&ExpireRequest::Named(runs.iter().copied().map(RunNo).collect()));
    named(&[2]).unwrap();
    assert!(matches!(named(&[1, 2]), Err(ExpireError::LastGood { .. })));
    world.store.delete(&[world.log.pack(packs_of(&world, RunNo(1))[0])]).unwrap();
    assert!(matches!(named(&[2]), Err(ExpireError::LastGood { run: SECOND, .. })));
    assert_eq!(plan(&rules).unwrap().dropped, [RunNo(1)]);
}
