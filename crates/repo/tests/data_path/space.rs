//! What is said of space before something is dropped is what is freed afterwards.

use holdfast_repo::{
    Folder, RunNo,
    interrupt::Interrupt,
    space::{Space, freed_by},
    store::Store,
};

use crate::{
    prune::{drop_backups, prune_all, world_of_three},
    world::*,
};

fn space(world: &World) -> Space {
    Space::of(&world.repo, &world.history(), &Interrupt::default()).unwrap()
}

fn pack_bytes(world: &World) -> u64 {
    let mut bytes = 0;
    let mut add = |info: holdfast_repo::store::ObjectInfo| {
        bytes += info.size_bytes;
        true
    };
    world.store.list(&world.log.folder(Folder::Packs), &mut add).unwrap();
    bytes
}

#[test]
fn space_is_told_as_it_is_freed() {
    for dropped in [&[RunNo(1)][..], &[RunNo(2)], &[RunNo(3)], &[RunNo(1), RunNo(2)]] {
        let (world, _) = world_of_three();
        let before = space(&world);
        assert_eq!((before.pack_bytes, before.unneeded_bytes), (pack_bytes(&world), 0));
        assert_eq!(before.backups.iter().map(|backup| backup.run.0).collect::<Vec<_>>(), [1, 2, 3]);
        let told = freed_by(&world.repo, &world.history(), dropped, &Interrupt::default()).unwrap();
        if let [one] = dropped {
            let own = before.backups.iter().find(|backup| backup.run == *one).unwrap();
            assert_eq!(told, own.own_bytes);
            assert!(own.own_bytes <= own.needed_bytes);
        }
        drop_backups(&world, dropped);
        // One declares and writes anew, the next deletes.
        prune_all(&world);
        prune_all(&world);
        let freed = before.pack_bytes - pack_bytes(&world);
        // Chunks differ in size, and what is nine tenths live is not written anew.
        let near = before.pack_bytes / 10;
        assert!(
            freed.abs_diff(told) <= near,
            "{dropped:?}: told {told}, freed {freed} of {}",
            before.pack_bytes
        );
        let after = space(&world);
        assert_eq!(after.pack_bytes, pack_bytes(&world));
        assert_eq!(after.backups.len(), 3 - dropped.len());
    }
}
