//! A writer builds on backups that it cannot read, using what it has kept of them locally.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    Kind, LogName, Password, Repo, Role, RunNo,
    data::{
        local_maps::LocalMaps,
        writer::{ChunkRewriter, Foundation, WriteError},
    },
    format::{hex::Hex, manifest::Totals},
    keys::{KdfParams, KeyId, NewSlot},
    log::{
        client::{Client, ProcessId},
        run::{Run, RunOptions},
    },
    ops::{
        check::CheckOptions,
        expire::{ExpireRequest, expire},
        keys::{NewKey, add},
        prune::{PruneOptions, prune},
        repair::{RepairError, repair},
    },
    store::{ObjectPath, Store, mem::MemStore, read_all},
};

use crate::{damage::objects, world::*};

/// A repository as seen by its operator and by a writer.
pub(crate) struct Roles {
    pub(crate) operator: World,
    writer: World,
    cache: tempfile::TempDir,
}

fn as_writer(store: &MemStore, operator: &Repo, text: &str) -> Arc<Repo> {
    let password = Password::new(text.to_owned()).unwrap();
    let new = NewKey { role: Role::Writer, sources: Vec::new(), label: String::new() };
    add(operator, &new, NewSlot::Password { password: &password, kdf: KdfParams::MINIMUM }).unwrap();
    opened(store, text)
}

fn opened(store: &MemStore, text: &str) -> Arc<Repo> {
    let password = Password::new(text.to_owned()).unwrap();
    Arc::new(Repo::open(Arc::new(store.clone()), Some(&password)).unwrap())
}

impl Roles {
    fn new() -> Self {
        Self::of(World::new(Suite::X25519Aes256Gcm))
    }

    pub(crate) fn of(operator: World) -> Self {
        let repo = as_writer(&operator.store, &operator.repo, "writer");
        let (store, log) = (operator.store.clone(), operator.log.clone());
        let writer = World { store, repo, log, suite: operator.suite };
        Self { operator, writer, cache: tempfile::tempdir().unwrap() }
    }

    /// The writer's key.
    pub(crate) fn writer_key(&self) -> KeyId {
        self.writer.repo.keys().key_id()
    }

    /// The writer in a copy of the world.
    pub(crate) fn writer_of(&self, world: &World) -> World {
        let repo = opened(&world.store, "writer");
        world.with_repo(repo)
    }

    fn local(&self) -> Arc<LocalMaps> {
        Arc::new(LocalMaps::open(self.cache.path(), &self.writer.repo, &self.writer.log).unwrap())
    }

    /// Takes a backup as the writer and checks as the operator that it equals `source`.
    fn back_up(&self, source: &Source) -> (RunNo, Totals) {
        let (run, totals) = self.back_up_with(|writer| give_all(writer, source, 2));
        self.operator.assert_is(run, source);
        (run, totals)
    }

    pub(crate) fn back_up_with(
        &self,
        give: impl FnOnce(&holdfast_repo::data::writer::BackupWriter) -> Result<(), WriteError>,
    ) -> (RunNo, Totals) {
        let local = self.local();
        let foundation = |history: &_| Foundation::remembered(history, local);
        // A new process, which knows no secrets of the previous one.
        let (repo, store) = (opened(&self.writer.store, "writer"), self.writer.store.clone());
        let process = World { repo, store, log: self.writer.log.clone(), suite: self.writer.suite };
        process.try_backup_on(foundation, small_packs(), give).unwrap()
    }

    fn drop_backups(&self, runs: Vec<RunNo>) {
        expire(&self.operator.repo, &self.operator.log, &ExpireRequest::Exactly(runs), &run_options())
            .unwrap();
    }

    fn files(&self) -> Vec<PathBuf> {
        let directory = self.local().directory().to_owned();
        let mut files = vec![directory.join("head")];
        files.extend(fs::read_dir(directory.join("maps")).unwrap().map(|entry| entry.unwrap().path()));
        files
    }
}

fn source(random: &mut Random) -> Source {
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(random, 1024, 9_000 * 1024));
    source.insert("middle".into(), SourceFile::random(random, 16_384, 100 * 16_384));
    source.insert("small".into(), SourceFile::random(random, 16_384, 30_000));
    source
}

fn change(source: &mut Source, random: &mut Random) {
    for page in [5, 700, 4_500, 8_999] {
        source.get_mut("big").unwrap().change(random, page);
    }
    source.get_mut("small").unwrap().change(random, 1);
}

/// A writer's host may be compromised, and what it says about its packs may be untrue: an operator's backup
/// is whole without them.
#[test]
fn an_operator_leans_on_nothing_that_a_writer_has_added() {
    let mut random = Random::new(12);
    let roles = Roles::new();
    let world = &roles.operator;
    let mut source = source(&mut random);
    let back_up = |source: &Source| {
        let foundation = |history: &_| Foundation::newest_of(&world.repo, history, None);
        world.try_backup_on(foundation, small_packs(), |writer| give_all(writer, source, 1)).unwrap()
    };
    let base = |world: &World| world.history().newest_base(&world.repo, None);
    let (by_writer, _) = roles.back_up(&source);
    assert_eq!((base(world), base(&roles.writer)), (None, Some(by_writer)));
    let (own, totals) = back_up(&source);
    assert_eq!(totals.bytes_reused, 0);
    change(&mut source, &mut random);
    let (again, _) = roles.back_up(&source);
    assert_eq!(base(world), Some(own));
    let (last, totals) = back_up(&source);
    assert!(totals.bytes_reused > totals.bytes_new, "{totals:?}");
    let packs = [by_writer, again].map(|run| format!("/packs/{:010}-", run.0));
    let is_of_writer = |path: &ObjectPath| packs.iter().any(|pack| path.as_str().contains(pack));
    let packs: Vec<ObjectPath> =
        objects(world).into_iter().map(|(path, _)| path).filter(is_of_writer).collect();
    assert!(packs.len() > 1);
    world.store.delete(&packs).unwrap();
    world.assert_is(last, &source);
}

#[test]
fn a_writer_stores_what_has_changed_of_what_it_cannot_read() {
    let mut random = Random::new(11);
    let roles = Roles::new();
    let mut source = source(&mut random);
    let (first, totals) = roles.back_up(&source);
    assert_eq!(totals.bytes_reused, 0);
    assert!(roles.writer.open(first).is_err());
    for _ in 0..3 {
        change(&mut source, &mut random);
        let (_, totals) = roles.back_up(&source);
        assert_eq!(totals.bytes_new, 4 * 1024 + 16_384);
        assert_eq!(totals.bytes_rewritten, 0);
    }
    let (_, totals) = roles.back_up(&source);
    assert_eq!(totals.bytes_new, 0);
    // No more is kept than needed: leaves of 17 units, and the tables of items and roots.
    assert!(roles.files().len() < 12, "{:?}", roles.files());

    // Pages given again after their leaf was closed, and a dropped file: the stored data are looked up.
    let (big, middle) = (source["big"].clone(), source["middle"].clone());
    change(&mut source, &mut random);
    source.remove("middle");
    let (run, _) = roles.back_up_with(|writer| {
        let dropped = give_file(writer, "middle", &middle)?;
        writer.drop_file(dropped)?;
        give_file(writer, "small", &source["small"])?;
        let id = writer.begin_file(spec("big", &big))?;
        for file in [&big, &source["big"]] {
            for first in (0..file.pages()).step_by(512) {
                give_pages(writer, id, file, first..(first + 512).min(file.pages()))?;
            }
        }
        writer.end_file(id, big.bytes.len() as u64)
    });
    roles.operator.assert_is(run, &source);
    roles.operator.assert_sound();
}

/// A way of tampering with the files that a writer has kept.
type Sabotage = fn(&Roles, &Path);

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_was_kept_is_lost_damaged_or_anothers_and_no_page_is_wrong() {
    let cases: [(&str, Sabotage); 9] = [
        ("wiped", |roles, _| fs::remove_dir_all(roles.cache.path()).unwrap()),
        ("no head", |_, directory| fs::remove_file(directory.join("head")).unwrap()),
        ("a damaged head", |_, directory| flip(&directory.join("head"))),
        ("a head that is cut off", |_, directory| fs::write(directory.join("head"), b"HFMAPS1\n").unwrap()),
        ("damaged maps", |roles, _| roles.files().iter().skip(1).for_each(|path| flip(path))),
        ("no maps", |_, directory| fs::remove_dir_all(directory.join("maps")).unwrap()),
        ("maps in each other's place", |roles, _| {
            let mut files = roles.files().split_off(1);
            let contents: Vec<_> = files.iter().map(|path| fs::read(path).unwrap()).collect();
            files.rotate_left(1);
            files.iter().zip(contents).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        }),
        ("another key's", |roles, directory| {
            let other = as_writer(&roles.operator.store, &roles.operator.repo, "other");
            let world = World { repo: other, log: roles.writer.log.clone(), ..World::new(Suite::None) };
            let cache = tempfile::tempdir().unwrap();
            let others = Roles { operator: World::new(Suite::None), writer: world, cache };
            let local = others.local();
            let foundation = |history: &_| Foundation::remembered(history, Arc::clone(&local));
            let nothing = Source::new();
            let give = |writer: &_| give_all(writer, &nothing, 1);
            others.writer.try_backup_on(foundation, small_packs(), give).unwrap();
            fs::copy(others.local().directory().join("head"), directory.join("head")).unwrap();
        }),
        ("another source's", |roles, directory| {
            let log = LogName { source: "db2".parse().unwrap(), kind: Kind::Physical };
            let (repo, store) = (Arc::clone(&roles.writer.repo), roles.operator.store.clone());
            let twin = World { repo, log, store, suite: roles.operator.suite };
            let local = Arc::new(LocalMaps::open(roles.cache.path(), &twin.repo, &twin.log).unwrap());
            let foundation = |history: &_| Foundation::remembered(history, Arc::clone(&local));
            let data = source(&mut Random::new(23));
            twin.try_backup_on(foundation, small_packs(), |writer| give_all(writer, &data, 1)).unwrap();
            fs::remove_dir_all(directory).unwrap();
            fs::rename(local.directory(), directory).unwrap();
        }),
    ];
    for (what, sabotage) in cases {
        let mut random = Random::new(17);
        let roles = Roles::new();
        let mut source = source(&mut random);
        roles.back_up(&source);
        sabotage(&roles, roles.local().directory());
        change(&mut source, &mut random);
        let (_, totals) = roles.back_up(&source);
        // If the maps of some files are lost, those of others may remain.
        let (all, is_some) = (totals.bytes_new + totals.bytes_reused, what.contains("maps"));
        assert!(totals.bytes_reused == 0 || is_some && totals.bytes_new * 2 > all, "{what}: {totals:?}");
        // That backup repairs the kept files.
        let (_, totals) = roles.back_up(&source);
        assert_eq!(totals.bytes_new, 0, "{what}");
        roles.operator.assert_sound();
    }
}

/// Whoever can put a link in the place of the maps has nothing deleted or written where it leads; and of what lies
/// among the maps, only what is named as they are is deleted.
#[test]
fn nothing_that_is_not_a_writers_own_is_deleted() {
    let mut random = Random::new(18);
    let roles = Roles::new();
    let mut source = source(&mut random);
    roles.back_up(&source);
    let maps = roles.local().directory().join("maps");
    let (chunk, begun) = (maps.join("0123456789abcdef".repeat(2)), maps.join("tmp-0123456789abcdef"));
    [&chunk, &begun, &maps.join("note.txt")].iter().for_each(|path| fs::write(path, b"x").unwrap());
    change(&mut source, &mut random);
    roles.back_up(&source);
    assert!(maps.join("note.txt").exists() && !chunk.exists() && !begun.exists());

    let elsewhere = tempfile::tempdir().unwrap();
    let theirs = elsewhere.path().join("0123456789abcdef".repeat(2));
    fs::write(&theirs, b"x").unwrap();
    fs::remove_dir_all(&maps).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &maps).unwrap();
    change(&mut source, &mut random);
    let local = roles.local();
    let foundation = |history: &_| Foundation::remembered(history, local);
    let refused = roles.writer.try_backup_on(foundation, small_packs(), |it| give_all(it, &source, 2));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("is a link"), "{refused}");
    assert!(theirs.exists());
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    let newest = roles.operator.history().standing().map(|it| it.run).max().unwrap();
    roles.operator.assert_is(newest, &source);
}

#[test]
fn a_writer_does_not_build_on_what_was_dropped_or_moved() {
    let mut random = Random::new(19);
    let roles = Roles::new();
    let mut source = source(&mut random);
    let (first, _) = roles.back_up(&source);
    let kept = fs::read(roles.local().directory().join("head")).unwrap();
    for page in 0..8_000 {
        source.get_mut("big").unwrap().change(&mut random, page);
    }
    let (second, _) = roles.back_up(&source);
    roles.drop_backups(vec![first]);
    let newest = fs::read(roles.local().directory().join("head")).unwrap();
    // The kept head of a backup that has since been dropped is put back.
    fs::write(roles.local().directory().join("head"), kept).unwrap();
    assert_eq!(roles.local().backup(&roles.writer.history()), None);
    fs::write(roles.local().directory().join("head"), newest).unwrap();
    assert_eq!(roles.local().backup(&roles.writer.history()), Some(second));

    // An operator rewrites what is left of mostly dead packs; a writer cannot see where it went.
    let options = PruneOptions { grace: std::time::Duration::ZERO, ..PruneOptions::default() };
    let World { repo, log, .. } = &roles.operator;
    let mut rewriter = ChunkRewriter::open(repo, &roles.operator.history(), small_packs()).unwrap();
    let pruned = prune(repo, log, &options, Some(&mut rewriter), &run_options()).unwrap();
    assert!(!pruned.declared.rewrite.is_empty());
    let (_, totals) = roles.back_up(&source);
    assert!(totals.bytes_new > 0 && totals.bytes_reused > totals.bytes_new, "{totals:?}");
    prune(repo, log, &options, None, &run_options()).unwrap();
    prune(repo, log, &options, None, &run_options()).unwrap();
    let (run, totals) = roles.back_up(&source);
    assert_eq!(totals.bytes_new, 0);
    roles.drop_backups(vec![second]);
    prune(repo, log, &options, None, &run_options()).unwrap();
    prune(repo, log, &options, None, &run_options()).unwrap();
    roles.operator.assert_is(run, &source);
    roles.operator.assert_sound();
}

/// The only record of a writer's key is lost: whether or not the key's object exists, nothing signed with the
/// key is taken for damage.
#[test]
fn a_repair_touches_nothing_of_a_signer_whose_record_is_lost() {
    let mut random = Random::new(11);
    let roles = Roles::new();
    let source = source(&mut random);
    let (run, _) = roles.back_up(&source);
    let mut records = Vec::new();
    for prefix in ["signers/", "keys/"] {
        roles
            .operator
            .store
            .list(prefix, &mut |info| {
                records.push(info.path);
                true
            })
            .unwrap();
    }
    let signer = records.remove(0);
    let key = ObjectPath::new(signer.as_str().replace("signers/", "keys/")).unwrap();
    assert!(records.contains(&key));
    let bytes = |path| holdfast_repo::store::read_all(&roles.operator.store, path, 1 << 30).unwrap();
    let lost = [(signer.clone(), bytes(&signer)), (key.clone(), bytes(&key))];
    for (path, _) in &lost {
        roles.operator.store.delete(std::slice::from_ref(path)).unwrap();
        let repo =
            Arc::new(crate::world::open_repo(Arc::new(roles.operator.store.clone()), roles.operator.suite));
        let options = CheckOptions { read_data: Some(1.0), ..CheckOptions::default() };
        let done = repair(&repo, &roles.operator.log, &options, &mut |_| true, &run_options());
        let is_refused = matches!(done, Err(RepairError::Keys { .. } | RepairError::Stranger { .. }));
        assert!(is_refused, "{done:?}");
    }
    for (path, bytes) in &lost {
        roles.operator.store.create_if_absent(path, bytes).unwrap();
    }
    let repo =
        Arc::new(crate::world::open_repo(Arc::new(roles.operator.store.clone()), roles.operator.suite));
    let (store, log) = (roles.operator.store.clone(), roles.operator.log.clone());
    World { store, repo, log, suite: roles.operator.suite }.assert_is(run, &source);
}

/// Whoever cannot begin a run is told who has begun one before: a writer and an operator each other, by the name of
/// the host, which nobody reads without a key.
#[test]
fn a_run_is_refused_with_the_name_of_the_host_that_is_active() {
    let roles = Roles::new();
    for (active, refused) in [(&roles.operator, &roles.writer), (&roles.writer, &roles.operator)] {
        let process = ProcessId { host: Hex([7; 16]), pid: 4711, started: 1 };
        // A name that random digits cannot contain.
        let client = Client { host: "shop-db".to_owned(), process: Some(process) };
        let run = Run::begin(&active.repo, &active.log, &RunOptions { client, ..run_options() }).unwrap();
        let error = Run::begin(&refused.repo, &refused.log, &run_options()).err().unwrap().to_string();
        assert!(error.contains("a backup (process 4711 on shop-db) began at "), "{error}");
        let lease = read_all(&roles.operator.store, &active.log.lease(run.no(), 0), 4096).unwrap();
        assert!(!String::from_utf8(lease).unwrap().contains("shop-db"));
        run.abandon("").unwrap();
    }
}
