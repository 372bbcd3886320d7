//! The space reported before a drop is the space freed afterwards.

use holdfast_pipe::{Codec, Compression as Codecs, Suite};
use holdfast_repo::{
    Folder, RunNo,
    data::writer::WriterOptions,
    interrupt::Interrupt,
    ops::{
        compression::{CodecBytes, Compression, Content},
        space::{Space, freed_by},
    },
    store::Store,
};

use crate::{
    prune::{drop_backups, prune_all, world_of_three},
    world::*,
};

fn space(world: &World) -> Space {
    Space::of(&world.repo, &world.history(), &Interrupt::default()).unwrap()
}

fn blank() -> SourceFile {
    SourceFile { page_size: page_size(16_384), bytes: Vec::new(), holes: Default::default(), space: None }
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
        // The first prune declares and rewrites, the second deletes.
        prune_all(&world);
        prune_all(&world);
        let freed = before.pack_bytes - pack_bytes(&world);
        // Chunks differ in size, and packs that are nine tenths live are not rewritten.
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

#[test]
fn what_each_codec_made_is_told_apart() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let mut random = Random::new(31);
    let mut source = Source::new();
    // Incompressible bytes are stored uncompressed, whatever codec was requested.
    let noise = SourceFile { bytes: (0..64 << 10).map(|_| random.next() as u8).collect(), ..blank() };
    for (name, codec) in [
        ("a", Codecs::Zstd { level: 1 }),
        ("b", Codecs::Lz4),
        ("c", Codecs::Gzip { level: 1 }),
        ("noise", Codecs::Zstd { level: 1 }),
    ] {
        let file = match name {
            "noise" => noise.clone(),
            _ => SourceFile::random(&mut random, 16_384, 512 << 10),
        };
        source.insert(name.into(), file);
        world.backup(&source, WriterOptions { compression: codec, ..small_packs() });
    }
    let told = space(&world);
    let Compression { codecs, unlisted_packs, unlisted_bytes } = &told.compression;
    assert_eq!((*unlisted_packs, *unlisted_bytes), (0, 0));
    assert!(codecs.is_sorted_by_key(|it| (it.content, it.codec as u8)), "{codecs:?}");
    let of = |content, codec: Codec| {
        let mut found = codecs.iter().filter(|it| (it.content, it.codec) == (content, codec));
        (*found.next().unwrap(), assert!(found.next().is_none())).0
    };
    for codec in [Codec::Zstd, Codec::Lz4, Codec::Gzip] {
        let CodecBytes { plain_bytes, stored_bytes, chunks, .. } = of(Content::Data, codec);
        assert_eq!(plain_bytes, 512 << 10, "{codec:?}");
        assert!(chunks > 0 && stored_bytes < plain_bytes * 9 / 10, "{codec:?}: {codecs:?}");
    }
    let CodecBytes { plain_bytes, stored_bytes, chunks, .. } = of(Content::Data, Codec::None);
    assert_eq!((plain_bytes, stored_bytes), (64 << 10, plain_bytes + 16 * chunks), "with their seals");
    assert!(codecs.iter().any(|it| it.content == Content::Maps), "{codecs:?}");
    // Headers, directories and trailers are outside of chunks.
    let chunks: u64 = codecs.iter().map(|it| it.stored_bytes).sum();
    assert!(chunks < told.pack_bytes && told.pack_bytes - chunks < told.pack_bytes / 50, "{told:?}");
}

#[test]
fn packs_that_no_index_lists_are_not_guessed_at() {
    let (world, _) = world_of_three();
    let before = space(&world).compression;
    let part = world.log.index(RunNo(2), 0);
    let of_run_2 = |info: &holdfast_repo::store::ObjectInfo| info.path.as_str().contains("/0000000002-");
    let mut packs = Vec::new();
    let mut add = |info| {
        packs.push(info);
        true
    };
    world.store.list(&world.log.folder(Folder::Packs), &mut add).unwrap();
    let bytes: u64 = packs.iter().filter(|info| of_run_2(info)).map(|info| info.size_bytes).sum();
    let count = packs.iter().filter(|info| of_run_2(info)).count() as u64;
    assert!(count > 0 && before.unlisted_packs == 0);
    world.store.delete(&[part]).unwrap();
    let after = space(&world).compression;
    assert_eq!((after.unlisted_packs, after.unlisted_bytes), (count, bytes));
    let data = |told: &Compression| told.codecs.iter().map(|it| it.plain_bytes).sum::<u64>();
    assert!(data(&after) < data(&before), "{after:?}");
}
