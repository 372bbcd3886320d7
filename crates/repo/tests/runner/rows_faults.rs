//! Rows under adverse conditions: random operations, damage, prunes that move the bases of
//! patches, roles, crashes.

use std::time::Duration;

use holdfast_pipe::Suite;
use holdfast_repo::{
    RepoError, RunNo,
    data::{
        reader::{Backup, ReadRows},
        writer::{
            BackupWriter, FileProblem, Foundation, RangeStart, RowRange, TableId, TableSpec, WriteError,
            WriterOptions,
        },
    },
    format::{
        item::{Item, ItemMap},
        rows::{RowTotals, TableRows},
    },
    log::history::History,
    ops::{
        check::Severity,
        prune::{PruneOptions, prune},
    },
    store::Store,
};

use crate::{
    damage::{copy, objects},
    prune::{drop_backups, large_packs, prune_all},
    rows::*,
    world::*,
    writer_role::Roles,
};

/// Writes a table in so many ranges that its chunks are small and do not fit its item.
fn give_in_pieces(
    writer: &BackupWriter,
    name: &str,
    rows: &Rows,
    rows_each: usize,
) -> Result<TableId, WriteError> {
    let id = writer.begin_table(TableSpec { path: path(name), has_key: true })?;
    let all: Vec<_> = rows.iter().collect();
    for part in all.chunks(rows_each) {
        let mut range = writer.begin_range(id, RangeStart::default())?;
        for (key, row) in part {
            range.row(key, row)?;
        }
        range.finish()?;
    }
    assert_taken(writer.end_table(id, &definition(name))?, rows);
    Ok(id)
}

/// Two backups with every kind of object in a logical backup: tables with and without
/// leaves, patches, a long row.
fn world_of_two(suite: Suite) -> (World, Vec<Tables>) {
    let world = World::logical(suite);
    let mut random = Random::new(7);
    let mut tables = Tables::new();
    tables.insert("db/leaves".into(), rows(&mut random, 1_400, 50));
    tables.insert("db/small".into(), rows(&mut random, 30, 900));
    tables.insert("db/long".into(), Rows::from([(key(1), vec![7; 3 << 20]), (key(2), b"x".to_vec())]));
    let give = |tables: &Tables| {
        world.backup_with(small_packs(), |writer| {
            writer.definition(path("db/proc/p"), "procedure", &vec![b' '; 70_000])?;
            for (name, rows) in tables {
                give_in_pieces(writer, name, rows, if name == "db/leaves" { 20 } else { 1_000 })?;
            }
            Ok(())
        })
    };
    let first = tables.clone();
    give(&tables);
    for name in ["db/leaves", "db/small"] {
        let rows = tables.get_mut(name).unwrap();
        let number = rows.len() / 2;
        rows.values_mut().nth(number).unwrap()[..4].copy_from_slice(b"edit");
    }
    let (run, _) = give(&tables);
    let backup = world.open(run).unwrap();
    let items: Vec<Item> = backup.items().map(Result::unwrap).collect();
    let has_leaves = |item: &Item| match &item.map {
        ItemMap::Table(table) => matches!(table.rows, TableRows::Leaves(_)),
        _ => false,
    };
    assert_eq!(items.iter().filter(|item| has_leaves(item)).count(), 1);
    let entries = items.iter().filter_map(|item| backup.table(item)).flat_map(|table| {
        table.chunks(0..table.chunk_count()).map(|entry| entry.unwrap().1).collect::<Vec<_>>()
    });
    assert_eq!(entries.filter(|entry| entry.base.is_some()).count(), 2, "patches");
    (world, vec![first, tables])
}

/// Reads everything in a backup and returns whether that failed. Wrong rows fail the test.
fn reading_fails(world: &World, run: RunNo, tables: &Tables) -> bool {
    let open = || -> Result<(), RepoError> {
        let history = History::salvage(&world.repo, &world.log, &mut |_, _| {})?;
        if !history.stands(run) {
            return Err(RepoError::malformed("outcome", "does not stand"));
        }
        let backup = Backup::open(&world.repo, &history, run)?;
        for item in backup.items() {
            let item = item?;
            backup.definition(&item)?;
            let Some(table) = backup.table(&item) else { continue };
            let rows = read(&table, 0..table.chunk_count(), ReadRows { threads: 0, ..ReadRows::default() })?;
            assert!(
                rows.iter().eq(tables[&item.path.to_string()].values()),
                "{} was read wrongly",
                item.path
            );
        }
        Ok(())
    };
    open().is_err()
}

#[test]
fn damage_of_anything_is_found_and_named_and_never_read_as_rows() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let (pristine, tables) = world_of_two(suite);
        pristine.assert_sound();
        let names = objects(&pristine);
        let mut random = Random::new(11);
        for (path, size) in &names {
            let name = path.as_str();
            if name.contains("/runs/") {
                continue;
            }
            for damage in 0..if name.contains("/packs/") { 12 } else { 3 } {
                let world = copy(&pristine, &names);
                let at = random.below(*size) as usize;
                world.store.damage(path, |bytes| match damage {
                    0 => bytes.truncate(at),
                    _ => bytes[at] ^= 1 << (at % 8),
                });
                let report = world.check_all();
                assert!(!report.findings.is_empty(), "damage {damage} at {at} of {name} was not found");
                for (run, tables) in (1..).map(RunNo).zip(&tables) {
                    let named = report.findings.iter().any(|finding| {
                        finding.severity == Severity::Lost
                            && (finding.backups.contains(&run) || finding.backups.is_empty())
                    });
                    assert!(
                        !reading_fails(&world, run, tables) || named,
                        "{name} {damage} at {at} {run}: {:#?}",
                        report.findings
                    );
                }
            }
        }
    }
}

#[test]
fn a_pack_in_the_place_of_another_is_refused_by_name() {
    let (world, tables) = world_of_two(Suite::None);
    let packs: Vec<_> =
        objects(&world).into_iter().filter(|(path, _)| path.as_str().contains("/packs/")).collect();
    let (first, second) = (&packs[0].0, &packs[packs.len() - 1].0);
    let other = holdfast_repo::store::read_all(&world.store, second, 1 << 30).unwrap();
    world.store.damage(first, |bytes| *bytes = other.clone());
    let read_table = || {
        let backup = world.open(RunNo(1))?;
        let item = backup.find(&path("db/leaves"))?.unwrap();
        let table = backup.table(&item).unwrap();
        read(&table, 0..table.chunk_count(), ReadRows::default())
    };
    let error = read_table().unwrap_err();
    assert!(error.to_string().contains("packs/0000000001-000000"), "{error}");
    let report = world.check_all();
    let lost = report.findings.iter().filter(|finding| finding.severity == Severity::Lost);
    let tables_lost: Vec<_> = lost.flat_map(|finding| &finding.tables).collect();
    assert!(tables_lost.contains(&&"db.leaves".to_owned()), "{:#?}", report.findings);
    assert!(reading_fails(&world, RunNo(1), &tables[0]));
}

/// Counts the entries of a table that are patches, and all entries.
fn patches(world: &World, run: RunNo) -> (usize, usize) {
    let backup = world.open(run).unwrap();
    let (mut patches, mut all) = (0, 0);
    for item in backup.items().map(Result::unwrap) {
        let Some(table) = backup.table(&item) else { continue };
        for entry in table.chunks(0..table.chunk_count()) {
            all += 1;
            patches += usize::from(entry.unwrap().1.base.is_some());
        }
    }
    (patches, all)
}

/// The newest rows are patches on chunks of a dropped backup whose packs are mostly dead.
/// The chunks move, and later the patches do. Each backup still reads the same, and later ones build on it.
#[test]
fn patches_outlive_the_packs_of_their_bases_and_their_own() {
    let world = World::logical(Suite::X25519Aes256Gcm);
    let mut random = Random::new(3);
    let mut tables = Tables::new();
    tables.insert("db/t".into(), rows(&mut random, 3_000, 3_000));
    let give = |tables: &Tables| world.backup_with(large_packs(), |writer| give_tables(writer, tables, 1)).0;
    let touch = |random: &mut Random, rows: &mut Rows, share: std::ops::Range<usize>| {
        let keys: Vec<_> = rows.keys().cloned().collect();
        for key in &keys[share.end..] {
            let row = row(random, 3_000);
            rows.insert(key.clone(), row);
        }
        for key in keys[share].iter().step_by(40) {
            let edit = row(random, 30);
            rows.get_mut(key).unwrap()[..30].copy_from_slice(&edit);
        }
    };
    let mut newest = give(&tables);
    let mut moved = 0;
    let mut kept = Vec::new();
    for round in 0..4 {
        touch(&mut random, tables.get_mut("db/t").unwrap(), 0..1_500 - round * 300);
        let before = newest;
        newest = give(&tables);
        let (patches, all) = patches(&world, newest);
        assert!(patches > 0, "{patches} patches of {all} chunks in round {round}");
        assert_is(&world, newest, &tables);
        let opened = world.open(newest).unwrap();
        // The backups in between are kept for a while, so that some backups need a base and others do not.
        if round != 1 {
            drop_backups(&world, &[before]);
        } else {
            kept.push(before);
        }
        moved += prune_all(&world);
        assert_is(&world, newest, &tables);
        // A backup opened before anything moved is read after the sweep.
        prune_all(&world);
        let item = opened.find(&path("db/t")).unwrap().unwrap();
        let table = opened.table(&item).unwrap();
        let read = read(&table, 0..table.chunk_count(), ReadRows::default()).unwrap();
        assert!(read.iter().eq(tables["db/t"].values()));
        if round == 3 {
            drop_backups(&world, &kept);
            moved += prune_all(&world);
            assert_is(&world, newest, &tables);
        }
    }
    assert!(moved > 1, "{moved} packs were written anew");
}

/// The base of a patch that no backup needs is not kept, however long the patch's pack is
/// kept for its other contents.
#[test]
fn a_patch_that_nobody_needs_may_lose_its_base() {
    let world = World::logical(Suite::X25519Aes256Gcm);
    let mut random = Random::new(17);
    let give = |tables: &Tables| world.backup_with(large_packs(), |writer| give_tables(writer, tables, 1)).0;
    let mut tables = Tables::from([("db/t".into(), rows(&mut random, 300, 3_000))]);
    let full = give(&tables);
    tables.get_mut("db/t").unwrap().values_mut().next().unwrap()[..30].fill(b'x');
    tables.insert("db/u".into(), rows(&mut random, 3_000, 3_000));
    let patched = give(&tables);
    assert!(patches(&world, patched).0 > 0);
    tables.insert("db/t".into(), rows(&mut random, 300, 3_000));
    let newest = give(&tables);
    drop_backups(&world, &[full, patched]);
    let packs = || objects(&world).iter().filter(|(path, _)| path.as_str().contains("/packs/")).count();
    let before = packs();
    assert_eq!(prune_all(&world), 0);
    prune_all(&world);
    assert!(packs() < before);
    assert_is(&world, newest, &tables);
}

#[test]
fn a_writer_shares_what_it_cannot_read_and_makes_no_patches() {
    let roles = Roles::of(World::logical(Suite::X25519Aes256Gcm));
    let mut random = Random::new(5);
    let mut tables = Tables::new();
    tables.insert("db/t".into(), rows(&mut random, 700, 9_000));
    tables.insert("db/leaves".into(), rows(&mut random, 1_400, 50));
    let give = |writer: &BackupWriter, tables: &Tables| {
        give_tables(writer, &Tables::from([("db/t".into(), tables["db/t"].clone())]), 1)?;
        give_in_pieces(writer, "db/leaves", &tables["db/leaves"], 20).map(drop)
    };
    let (run, _) = roles.back_up_with(|writer| give(writer, &tables));
    assert_is(&roles.operator, run, &tables);
    for row in 0..2 {
        let rows = tables.get_mut("db/t").unwrap();
        rows.values_mut().nth(row * 600).unwrap()[..4].copy_from_slice(b"edit");
        let (run, totals) = roles.back_up_with(|writer| give(writer, &tables));
        assert_is(&roles.operator, run, &tables);
        assert!(totals.bytes_new < totals.bytes / 4, "{totals:?}");
        assert_eq!(patches(&roles.operator, run).0, 0);
    }
    // The operator continues with patches, and a writer's backup based on these is correct, too.
    tables.get_mut("db/t").unwrap().values_mut().next().unwrap()[..4].copy_from_slice(b"next");
    let (run, _) = roles.operator.backup_with(small_packs(), |writer| give(writer, &tables));
    assert_is(&roles.operator, run, &tables);
    assert_eq!(patches(&roles.operator, run).0, 1);
    let (run, _) = roles.back_up_with(|writer| give(writer, &tables));
    assert_is(&roles.operator, run, &tables);
}

/// Parts of the base that are unreadable or missing are stored again, and reported.
#[test]
fn a_backup_is_whole_whatever_its_base_has_lost() {
    for lost in [0, 1] {
        let (world, mut tables) = world_of_two(Suite::X25519Aes256Gcm);
        let mut tables = tables.pop().unwrap();
        let packs = objects(&world).into_iter().filter(|(path, _)| path.as_str().contains("/packs/"));
        let pack = packs.map(|(path, _)| path).nth(lost).unwrap();
        world.store.delete(std::slice::from_ref(&pack)).unwrap();
        for name in ["db/leaves", "db/small"] {
            tables.get_mut(name).unwrap().values_mut().next().unwrap()[..4].copy_from_slice(b"next");
        }
        let mut unreadable = None;
        let (run, _) = world.backup_with(small_packs(), |writer| {
            unreadable = Some(std::sync::Arc::clone(writer.meters()));
            give_tables(writer, &tables, 1)
        });
        assert!(unreadable.unwrap().base_unreadable.units() > 0);
        assert!(!reading_fails(&world, run, &tables), "without pack {lost}");
        drop_backups(&world, &[RunNo(1), RunNo(2)]);
        assert_is(&world, run, &tables);
    }
}

#[test]
fn what_a_dead_run_stored_of_rows_goes_at_once() {
    let world = World::logical(Suite::X25519Aes256Gcm);
    let mut random = Random::new(1);
    let tables = Tables::from([("db/t".to_owned(), rows(&mut random, 400, 9_000))]);
    let run = world.begin();
    let writer = BackupWriter::new(
        &run,
        &Foundation::default(),
        WriterOptions { index_every: Duration::ZERO, ..small_packs() },
    );
    let writer = writer.unwrap();
    give_tables(&writer, &tables, 2).unwrap();
    drop(writer);
    run.abandon("test").unwrap();
    let packs = || objects(&world).iter().filter(|(path, _)| path.as_str().contains("/packs/")).count();
    assert!(packs() > 0);
    assert!(Foundation::newest(&world.history()).adopted.is_empty());
    // Longer than any test takes.
    let options = PruneOptions {
        resume_window: Duration::from_secs(1 << 20),
        grace: Duration::ZERO,
        ..PruneOptions::default()
    };
    for _ in 0..2 {
        prune(&world.repo, &world.log, &options, None, &run_options()).unwrap();
    }
    assert_eq!(packs(), 0);
}

#[test]
fn what_was_not_read_to_its_end_fails_the_backup_by_name() {
    let world = World::logical(Suite::None);
    let run = world.begin();
    let writer = BackupWriter::new(&run, &Foundation::default(), small_packs()).unwrap();
    let problem = |error: WriteError| match error {
        WriteError::File { path, problem } => (path.to_string(), problem),
        other => panic!("{other}"),
    };
    let id = writer.begin_table(TableSpec { path: path("db/t"), has_key: true }).unwrap();
    let range = writer.begin_range(id, RangeStart::default()).unwrap();
    let no = range.no();
    assert_eq!(problem(writer.end_table(id, b"").unwrap_err()), ("db/t".into(), FileProblem::RangeNotEnded));
    drop(range);
    assert_eq!(problem(writer.end_table(id, b"").unwrap_err()), ("db/t".into(), FileProblem::RangeNotEnded));
    assert_eq!(problem(writer.definition(path("db/x"), "No Word", b"").unwrap_err()).0, "db/x");
    let other = writer.begin_table(TableSpec { path: path("db/other"), has_key: true }).unwrap();
    assert_eq!(problem(writer.reserve_range(other, no).unwrap_err()).1, FileProblem::NoSuchRange);
    // A range that is active or has ended cannot be begun again.
    let start = RangeStart { reserved: Some(no), base_chunk: None };
    for table in [id, other] {
        assert_eq!(
            problem(writer.begin_range(table, start).map(|_| ()).unwrap_err()).1,
            FileProblem::NoSuchRange
        );
    }
    writer.drop_table(other).unwrap();
    assert_eq!(problem(writer.finish(&run).unwrap_err()), ("db/t".into(), FileProblem::NotEnded));
    run.abandon("test").unwrap();
    let run = world.begin();
    let writer = BackupWriter::new(&run, &Foundation::default(), small_packs()).unwrap();
    writer.definition(path("db/x"), "view", b"1").unwrap();
    writer.definition(path("db/x"), "view", b"2").unwrap();
    assert_eq!(problem(writer.finish(&run).unwrap_err()), ("db/x".into(), FileProblem::Twice));
}

/// A table abandoned midway leaves nothing but packs to be pruned.
#[test]
fn what_was_given_up_is_not_needed() {
    let world = World::logical(Suite::None);
    let mut random = Random::new(2);
    let tables = Tables::from([("db/t".to_owned(), rows(&mut random, 20, 100))]);
    for _ in 0..2 {
        let (run, _) = world.backup_with(small_packs(), |writer| {
            let id = writer.begin_table(TableSpec { path: path("db/given up"), has_key: true })?;
            let mut range = writer.begin_range(id, RangeStart::default())?;
            for number in 0..300 {
                // Each row ends a chunk.
                range.row(&key(number), &vec![number as u8; 1 << 18])?;
            }
            drop(range);
            writer.drop_table(id)?;
            give_tables(writer, &tables, 1)
        });
        assert_is(&world, run, &tables);
    }
}

/// Writes a range and splits it while it is active: a later part gets its own range, which begins immediately
/// or after this one has ended, in any order.
fn give_splitting(
    random: &mut Random,
    writer: &BackupWriter,
    id: TableId,
    mut range: RowRange<'_>,
    rows: &[(&Vec<u8>, &Vec<u8>)],
    has_key: bool,
) -> Result<RowTotals, WriteError> {
    let mut done = RowTotals::default();
    let mut end = rows.len();
    let mut at = 0;
    let mut later = Vec::new();
    while at < end {
        if random.below(400) == 0 {
            let from = at + random.below((end - at) as u64 + 1) as usize;
            let reserved = Some(writer.reserve_range(id, range.no())?);
            let part = (RangeStart { reserved, base_chunk: None }, &rows[from..end]);
            end = from;
            if random.below(2) == 0 {
                later.insert(random.below(later.len() as u64 + 1) as usize, part);
            } else {
                let (start, rows) = part;
                let range = writer.begin_range(id, start)?;
                done = done.and(give_splitting(random, writer, id, range, rows, has_key)?).unwrap();
            }
            continue;
        }
        let (key, row) = rows[at];
        let key: &[u8] = if has_key { key } else { &[] };
        if random.below(50) == 0 {
            let mut long = range.long_row();
            for piece in row.chunks(1 + random.below(100_000) as usize) {
                long.piece(piece)?;
            }
            long.end(key)?;
        } else {
            range.row(key, row)?;
        }
        at += 1;
    }
    done = done.and(range.finish()?).unwrap();
    for (start, rows) in later {
        let range = writer.begin_range(id, start)?;
        done = done.and(give_splitting(random, writer, id, range, rows, has_key)?).unwrap();
    }
    Ok(done)
}

#[test]
fn random_tables_and_doings_end_as_the_model_says() {
    for seed in 0..4 {
        println!("seed {seed}");
        let world = World::logical(Suite::None);
        let mut random = Random::new(100 + seed);
        let mut tables = Tables::new();
        for _ in 0..5 {
            for number in 0..6 {
                let name = format!("db/t{number}");
                match random.below(5) {
                    0 => drop(tables.remove(&name)),
                    1 => {
                        let (count, len) = [(0, 1), (3, 10), (900, 300), (60, 20_000), (3, 1_500_000)]
                            [random.below(5) as usize];
                        tables.insert(name, rows(&mut random, count, len));
                    }
                    2 | 3 => {
                        if let Some(rows) = tables.get_mut(&name).filter(|rows| !rows.is_empty()) {
                            let changes = 1 + random.below(rows.len() as u64) / 8;
                            edit(&mut random, rows, changes);
                        }
                    }
                    _ => {}
                }
            }
            let dropped = rows(&mut random, 2_000, 60);
            let (run, _) = world.backup_with(small_packs(), |writer| {
                let dropped = give_in_pieces(writer, "db/dropped", &dropped, 20)?;
                for (number, (name, rows)) in tables.iter().enumerate() {
                    let has_key = number % 3 != 2;
                    let id = writer.begin_table(TableSpec { path: path(name), has_key })?;
                    let range = writer.begin_range(id, RangeStart::default())?;
                    let all: Vec<_> = rows.iter().collect();
                    let given = give_splitting(&mut random, writer, id, range, &all, has_key)?;
                    assert_taken(given, rows);
                    assert_eq!(writer.end_table(id, &definition(name))?, given);
                }
                // The last table begun.
                let id = writer.begin_table(TableSpec { path: path("db/gone"), has_key: true })?;
                let mut range = writer.begin_range(id, RangeStart::default())?;
                range.row(b"1", b"one")?;
                range.finish()?;
                writer.drop_table(id)?;
                writer.drop_table(dropped)
            });
            assert_is(&world, run, &tables);
            if random.below(2) == 0 {
                let standing: Vec<RunNo> = world.history().standing().map(|outcome| outcome.run).collect();
                drop_backups(&world, &standing[..standing.len() - 1]);
                prune_all(&world);
                assert_is(&world, run, &tables);
            }
        }
    }
}
