//! A keeper, who can open no pack, sees from their signatures whether packs are as they were written.

use std::sync::Arc;

use holdfast_pipe::Suite;
use holdfast_repo::{
    PackId, Password, Repo, Role, RunNo,
    format::pack::{TRAILER_BYTES, Trailer},
    keys::{KdfParams, NewSlot},
    ops::{
        check::{CheckOptions, CheckReport, Severity, check},
        keys::{NewKey, UnderWay, add, remove},
    },
    store::ObjectPath,
};

use crate::{
    damage::{copy, objects, world_of_two},
    prune::{drop_backups, prune_all, world_of_three},
    world::*,
    writer_role::Roles,
};

const SIGNATURE_BYTES: usize = 8 + 32 + 64;

fn add_keeper(world: &World) {
    let password = Password::new("keeper".to_owned()).unwrap();
    let new = NewKey { role: Role::Keeper, sources: Vec::new(), label: String::new() };
    let slot = NewSlot::Password { password: &password, kdf: KdfParams::MINIMUM };
    add(&world.repo, &new, slot).unwrap();
}

fn by_keeper(world: &World, read_data: Option<f64>) -> CheckReport {
    let password = Password::new("keeper".to_owned()).unwrap();
    let repo = Arc::new(Repo::open(Arc::new(world.store.clone()), Some(&password)).unwrap());
    check(&repo, &world.log, CheckOptions { read_data, ..CheckOptions::default() }).unwrap()
}

fn packs(world: &World) -> Vec<(ObjectPath, u64)> {
    objects(world).into_iter().filter(|(path, _)| path.as_str().contains("/packs/")).collect()
}

fn assert_all_genuine(world: &World, case: &str) {
    let report = by_keeper(world, Some(1.0));
    assert!(report.findings.is_empty(), "{case}: {:?}", report.findings);
    assert!(report.packs > 0, "{case}");
    assert_eq!((report.packs_read, report.packs_unproven), (report.packs, 0), "{case}");
    assert_eq!(report.not_recorded, None, "{case}: only operators sign what they have read");
}

/// Where the signature of a pack is.
fn signature_at(bytes: &[u8]) -> usize {
    let trailer = Trailer::decode(bytes.last_chunk().unwrap(), bytes.len() as u64).unwrap();
    trailer.offset as usize - SIGNATURE_BYTES
}

#[test]
fn a_keeper_finds_any_bit_of_a_pack_that_has_changed() {
    let (pristine, _) = world_of_two(Suite::X25519Aes256Gcm);
    add_keeper(&pristine);
    let names = objects(&pristine);
    assert_all_genuine(&copy(&pristine, &names), "whole");
    let mut random = Random::new(21);
    for (path, size) in packs(&pristine) {
        for part in 0..6 {
            let world = copy(&pristine, &names);
            let mut at = 0;
            world.store.damage(&path, |bytes| {
                let size = bytes.len() as u64;
                // In header or chunks; in the signature but for its magic, whose loss is told otherwise; at the end.
                at = match part {
                    4 => signature_at(bytes) + 8 + random.below(96) as usize,
                    5 => (size - 1 - random.below(TRAILER_BYTES as u64 + 16)) as usize,
                    _ => random.below(signature_at(bytes) as u64) as usize,
                };
                bytes[at] ^= 1 << random.below(8);
            });
            let report = by_keeper(&world, Some(1.0));
            let found = report.findings.iter().find(|finding| finding.object == path.as_str());
            let found = found.unwrap_or_else(|| panic!("byte {at} of {size} in {path}: {report:?}"));
            assert_eq!(found.severity, Severity::Lost, "{found:?}");
            assert!(found.backups.contains(&RunNo(2)), "{found:?}");
        }
    }
}

/// Nobody who has no key of the repository can make a pack that a keeper believes, and one without a signature
/// does not count as checked.
#[test]
fn packs_that_others_have_put_there_are_not_believed() {
    let (pristine, _) = world_of_two(Suite::X25519Aes256Gcm);
    add_keeper(&pristine);
    let names = objects(&pristine);
    let pack = pristine.log.pack(PackId { run: RunNo(1), part: 0 });

    let world = copy(&pristine, &names);
    world.store.damage(&pack, |bytes| {
        let at = signature_at(bytes);
        bytes[at] ^= 1;
        bytes[500] ^= 1;
    });
    let report = by_keeper(&world, Some(1.0));
    assert_eq!((report.packs_unproven, report.packs_read), (1, report.packs - 1));
    assert!(report.not_checked.iter().any(|what| what.contains("without a signature")), "{report:?}");
    // An operator sees both, and what the second costs.
    let findings = world.check_all().findings;
    assert!(findings.iter().any(|finding| finding.severity == Severity::Lost), "{findings:?}");

    // Another pack of the same repository, whole and signed, under this name.
    let world = copy(&pristine, &names);
    let other = packs(&pristine).into_iter().map(|(path, _)| path).find(|path| *path != pack).unwrap();
    let bytes = holdfast_repo::store::read_all(&world.store, &other, 1 << 30).unwrap();
    world.store.damage(&pack, |own| *own = bytes);
    let report = by_keeper(&world, Some(1.0));
    assert!(report.findings.iter().any(|finding| finding.object == pack.as_str()), "{report:?}");
}

/// If only the signature is damaged, nothing is lost, and who can open the pack says so.
#[test]
fn an_operator_needs_no_signature() {
    let (world, sources) = world_of_two(Suite::X25519Aes256Gcm);
    let pack = world.log.pack(PackId { run: RunNo(1), part: 0 });
    for place in [0, 8, 40] {
        let mut damaged = Vec::new();
        world.store.damage(&pack, |bytes| {
            let at = signature_at(bytes) + place;
            bytes[at] ^= 1;
            damaged.clone_from(bytes);
        });
        let findings = world.check_all().findings;
        let of_pack: Vec<_> = findings.iter().filter(|finding| finding.object == pack.as_str()).collect();
        assert!(matches!(of_pack[..], [only] if only.severity == Severity::Repairable), "{findings:?}");
        world.assert_is(RunNo(2), &sources[1]);
        world.store.damage(&pack, |bytes| bytes[signature_at(&damaged) + place] ^= 1);
    }
    world.assert_sound();
}

#[test]
fn packs_of_writers_and_of_prunes_are_signed_too() {
    let (world, source) = world_of_three();
    add_keeper(&world);
    drop_backups(&world, &[RunNo(1), RunNo(2)]);
    let before = packs(&world);
    assert!(prune_all(&world) > 0);
    assert!(packs(&world).iter().any(|pack| !before.contains(pack)), "nothing was rewritten");
    assert_all_genuine(&world, "rewritten");

    let roles = Roles::of(world);
    let (run, _) = roles.back_up_with(|writer| give_all(writer, &source, 2));
    assert_all_genuine(&roles.operator, "of a writer");
    remove(&roles.operator.repo, roles.writer_key(), UnderWay::MayEnd).unwrap();
    // What it wrote before stands, and so does its signature.
    assert!(roles.operator.history().stands(run));
    assert_all_genuine(&roles.operator, "of a writer that was removed since");
}
