//! The effects of tampering with one object of a repository: every kind of object, in every way of tampering.
//! This test generates the table in `docs/evidence/faults.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    ChunkRef, Folder, Kind, LogName, ObjectKind, PackId, Password, Place, Repo, RepoError, Role, RunNo,
    data::{
        reader::Backup,
        writer::{BackupWriter, ChunkRewriter, Foundation},
    },
    format::manifest::Head,
    keys::{Identity, NewSlot},
    log::{
        history::History,
        outcome::OutcomeType,
        run::{Ending, Run},
        segment::{SegmentReader, list_segments},
    },
    ops::{
        check::{CheckOptions, check},
        expire::{ExpireRequest, expire},
        hold::{HoldTerms, hold, release},
        keys::{self, NewKey, UnderWay, add, remove, rotate},
        prune::{PruneOptions, prune},
        repair::repair,
    },
    store::{
        ObjectPath, Store,
        mem::{ManualClock, MemStore},
        read_all,
    },
};

use crate::world::*;

type Objects = BTreeMap<String, Vec<u8>>;

fn objects_of(store: &MemStore) -> Objects {
    let mut paths = Vec::new();
    let mut take = |info: holdfast_repo::store::ObjectInfo| {
        paths.push(info.path);
        true
    };
    store.list("", &mut take).unwrap();
    paths.into_iter().map(|path| (path.to_string(), read_all(store, &path, 1 << 30).unwrap())).collect()
}

fn path(name: &str) -> ObjectPath {
    ObjectPath::new(name).unwrap()
}

/// A store with these objects, in which all leases have expired.
fn store_of(objects: &Objects) -> MemStore {
    let clock = ManualClock::default();
    let store = MemStore::with_clock(clock.clone());
    for (name, bytes) in objects {
        store.create_if_absent(&path(name), bytes).unwrap();
    }
    clock.advance(Duration::from_secs(3600));
    store
}

fn world_of(objects: &Objects) -> Result<World, String> {
    let store = store_of(objects);
    let password = Password::new("x".to_owned()).unwrap();
    let repo = Repo::open(Arc::new(store.clone()), Some(&password)).map_err(|error| error.to_string())?;
    Ok(World { repo: Arc::new(repo), store, suite: Suite::X25519Aes256Gcm, log: log(Kind::Physical) })
}

fn log(kind: Kind) -> LogName {
    LogName { source: "db1".parse().unwrap(), kind }
}

/// A repository with an object of every kind, and its expected contents.
struct Course {
    objects: Objects,
    /// Includes objects that were deleted on the way.
    ever: Objects,
    sources: BTreeMap<RunNo, Source>,
    /// The row of the table that each object belongs to.
    rows: BTreeMap<String, &'static str>,
}

/// Whoever has a key can seal a report. Only the one that its run has stored is taken for its report.
#[test]
fn a_report_of_somebody_else_is_none() {
    let world = World::over(MemStore::new(), Suite::X25519Aes256Gcm);
    let mut source = Source::new();
    source.insert("file".into(), SourceFile::random(&mut Random::new(1), 4096, 50_000));
    let run = back_up(&world, &source);
    let report = || History::read(&world.repo, &world.log).unwrap().report(&world.repo, run);
    assert_eq!(report().unwrap(), br#"{"format":1}"#);
    let name = world.log.report(run);
    world.store.delete(std::slice::from_ref(&name)).unwrap();
    let place = Place { log: &world.log, kind: ObjectKind::Report, run, part: 0 };
    world.repo.write_object(&place, br#"{"format":2}"#).unwrap();
    let error = report().unwrap_err().to_string();
    assert!(
        error.contains(name.as_str()) && error.contains("is not what the outcome of its run recorded"),
        "{error}"
    );
    let options = CheckOptions { read_data: Some(1.0), ..CheckOptions::default() };
    let found = || check(&world.repo, &world.log, options.clone()).unwrap().findings;
    assert!(found().len() == 1 && found()[0].object == name.to_string(), "{:?}", found());
    repair(&world.repo, &world.log, &options, &mut |_| true, &run_options()).unwrap();
    assert!(found().is_empty());
    assert!(report().unwrap_err().is_not_found());
}

/// The common beginning of two courses of one repository.
fn beginning() -> (Objects, Source) {
    let world = World::over(MemStore::with_clock(ManualClock::default()), Suite::X25519Aes256Gcm);
    let mut source = Source::new();
    let mut random = Random::new(1);
    source.insert("big".into(), SourceFile::random(&mut random, 1024, 5_000 * 1024));
    source.insert("small".into(), SourceFile::random(&mut random, 16_384, 30_000));
    back_up(&world, &source);
    (objects_of(&world.store), source)
}

/// A backup with a report.
pub fn back_up(world: &World, source: &Source) -> RunNo {
    let mut run = Run::begin(&world.repo, &world.log, &run_options()).unwrap();
    let foundation = Foundation::newest(run.history());
    let writer = BackupWriter::new(&run, &foundation, small_packs()).unwrap();
    give_all(&writer, source, 1).unwrap();
    let data = writer.finish(&run).unwrap();
    run.write_report(br#"{"format":1}"#).unwrap();
    let base = foundation.base.map(|run| run.0);
    let head = Head { totals: data.totals, roots: data.roots, base, ..world.head(run.no()) };
    run.finish(Ending::Backup { head: head.encode().unwrap(), refs: data.refs, parts: data.parts }).unwrap();
    run.no()
}

impl Course {
    /// Continues from `beginning` in a way that depends on `seed`: the same runs with other contents.
    fn new(seed: u64, (objects, source): (Objects, Source)) -> Self {
        let world = world_of(&objects).unwrap();
        let mut ever = objects;
        let mut random = Random::new(seed);
        let mut source = source;
        let mut sources = BTreeMap::from([(RunNo(1), source.clone())]);
        let mut note = |world: &World| ever.extend(objects_of(&world.store));
        // Behind public keys: a password would be tried on each of them, slowly.
        let key = |role| {
            let new = NewKey { role, sources: Vec::new(), label: String::new() };
            add(&world.repo, &new, NewSlot::Public(Identity::generate().public())).unwrap().key_id
        };
        key(Role::Writer);
        key(Role::Keeper);
        for _ in 0..2 {
            let gone = key(Role::Operator);
            note(&world);
            remove(&world.repo, gone, UnderWay::Refused).unwrap();
        }
        rotate(&world.repo).unwrap();
        rotate(&world.repo).unwrap();
        let mut next = |world: &World, pages: u64| {
            for page in 0..pages {
                source.get_mut("big").unwrap().change(&mut random, page);
            }
            source.get_mut("small").unwrap().change(&mut random, 0);
            let run = back_up(world, &source);
            sources.insert(run, source.clone());
            run
        };
        let second = next(&world, 2_100);
        let terms = HoldTerms { until: None, reason: format!("case {seed}") };
        hold(&world.repo, &world.log, &[second], &terms, &run_options()).unwrap();
        release(&world.repo, &world.log, &[second], &run_options()).unwrap();
        let third = next(&world, 1_050);
        hold(&world.repo, &world.log, &[third], &terms, &run_options()).unwrap();
        let drop = |runs: Vec<RunNo>| {
            expire(&world.repo, &world.log, &ExpireRequest::Exactly(runs), &run_options()).unwrap();
        };
        let prune = || {
            let mut rewriter = ChunkRewriter::open(&world.repo, &world.history(), small_packs()).unwrap();
            let options = PruneOptions { rewrite_below_percent: 95, ..PruneOptions::default() };
            let done = prune(&world.repo, &world.log, &options, Some(&mut rewriter), &run_options()).unwrap();
            assert!(!done.declared.rewrite.is_empty(), "a prune moved nothing");
        };
        drop(vec![RunNo(1)]);
        prune();
        let fourth = next(&world, 300);
        drop(vec![second]);
        prune();
        next(&world, 20);
        note(&world);
        let check_options = CheckOptions { read_data: Some(1.0), threads: 1, ..CheckOptions::default() };
        for run in [third, fourth] {
            world.store.delete(&[world.log.refs(run)]).unwrap();
            let plan =
                repair(&world.repo, &world.log, &check_options, &mut |_| true, &run_options()).unwrap();
            assert_eq!(plan.refs, [run]);
            note(&world);
        }
        world.begin().abandon("test").unwrap();
        next(&world, 10);
        for _ in 0..2 {
            let report = check(&world.repo, &world.log, check_options.clone()).unwrap();
            assert!(report.findings.is_empty(), "{:?}", report.findings);
            note(&world);
        }
        // Active runs.
        let living = world.begin();
        living.renew().unwrap();
        living.renew().unwrap();
        world
            .store
            .create_if_absent(&path(&format!("{}{:010}", "sources/db1/physical/asks/", living.no().0)), b"{}")
            .unwrap();
        world.store.create_if_absent(&path("one-writer"), br#"{"why":"a test","found_at":"now"}"#).unwrap();
        let archive = Run::begin(&world.repo, &log(Kind::Binlog), &run_options()).unwrap();
        let mut segments = archive.segment_writer();
        for part in 0..3 {
            let tail = serde_json::json!({ "at": part }).as_object().unwrap().clone();
            let sealed = segments.seal(tail, format!("{seed} {part}").as_bytes()).unwrap();
            segments.store(&sealed).unwrap();
        }
        note(&world);
        let objects = objects_of(&world.store);
        let rows = rows(&world, &objects);
        Self { objects, ever, sources, rows }
    }
}

/// The row of each object.
fn rows(world: &World, objects: &Objects) -> BTreeMap<String, &'static str> {
    let history = world.history();
    let prunes = history.all_prunes(&world.repo).unwrap();
    let last = history.outcomes().last().unwrap().run;
    let own = world.repo.keys().key_id().to_string();
    let needed: BTreeSet<PackId> = history
        .standing()
        .flat_map(|outcome| history.backup_refs(&world.repo, outcome.run).unwrap().packs)
        .flat_map(|pack| {
            let needed = (0..).zip(pack.chunks).filter(|(_, need)| need.needed > 0);
            let chunks = needed.map(move |(ordinal, _)| ChunkRef { pack: pack.pack, ordinal });
            chunks.map(|chunk| prunes.resolve(chunk).pack).collect::<Vec<_>>()
        })
        .collect();
    let row = |name: &str| {
        let folder = name.split('/').nth(3);
        let file = name.rsplit('/').next().unwrap();
        let run = file.get(..10).and_then(|run| run.parse().ok()).map(RunNo);
        let of = run.and_then(|run| history.outcome(run)).map(|outcome| outcome.outcome_type);
        match (name.split('/').next().unwrap(), folder) {
            ("holdfast.json", _) => "`holdfast.json`",
            ("one-writer", _) => "`one-writer`",
            ("keys", _) if file == own => "`keys/`: the one that opens",
            ("keys", _) => "`keys/`: of others",
            ("signers", _) if objects.contains_key(&format!("keys/{file}")) => "`signers/`",
            ("signers", _) => "`signers/`: of removed keys",
            ("removals", _) if objects.contains_key("removals/0000000003") => panic!("more than two"),
            ("removals", _) if file.ends_with('2') => "`removals/`: the newest",
            ("removals", _) => "`removals/`",
            ("rotations", _) if file.ends_with('2') => "`rotations/`: the newest",
            ("rotations", _) => "`rotations/`",
            (_, Some("runs")) => "`runs/`",
            (_, Some("asks")) => "`asks/`",
            (_, Some("packs")) => match Folder::Packs.parse(file).unwrap() {
                (run, part) if needed.contains(&PackId { run, part }) => "`packs/`",
                _ => "`packs/`: needed by nothing",
            },
            (_, Some("index")) => match needed.iter().any(|pack| Some(pack.run) == run) {
                true => "`index/`",
                false => "`index/`: of packs that nothing needs",
            },
            (_, Some("refs")) => match of {
                Some(OutcomeType::Prune) => "`refs/`: of a prune",
                Some(OutcomeType::Repair) => "`refs/`: of a repair",
                _ => "`refs/`: of a backup",
            },
            (_, Some("outcomes")) if run == Some(last) => "`outcomes/`: the newest, of a backup",
            (_, Some("outcomes")) => match of.unwrap() {
                OutcomeType::Backup => "`outcomes/`: of a backup",
                OutcomeType::Expire => "`outcomes/`: of an expire",
                OutcomeType::Prune => "`outcomes/`: of a prune",
                OutcomeType::Hold => "`outcomes/`: of a hold",
                OutcomeType::Release => "`outcomes/`: of a release",
                OutcomeType::Repair => "`outcomes/`: of a repair",
                OutcomeType::Tombstone | OutcomeType::Abandoned => "`outcomes/`: of a run without effect",
            },
            (_, Some("reports")) => "`reports/`",
            (_, Some("checks")) => "`checks/`",
            (_, Some("segments")) if file.ends_with("000002") => "`segments/`: the newest",
            (_, Some("segments")) => "`segments/`",
            _ => panic!("{name}"),
        }
    };
    objects.keys().map(|name| (name.clone(), row(name))).collect()
}

/// A way of tampering with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tampering {
    Flipped,
    Cut,
    Emptied,
    Swapped,
    Replayed,
    Foreign,
    Removed,
}

impl Tampering {
    const ALL: [Self; 7] = [
        Self::Flipped,
        Self::Cut,
        Self::Emptied,
        Self::Swapped,
        Self::Replayed,
        Self::Foreign,
        Self::Removed,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Flipped => "a bit flipped",
            Self::Cut => "cut",
            Self::Emptied => "emptied",
            Self::Swapped => "another of its kind",
            Self::Replayed => "itself of another course",
            Self::Foreign => "of another repository",
            Self::Removed => "removed",
        }
    }
}

/// All contents that can replace an object in this way.
fn variants(name: &str, tampering: Tampering, of: &Courses) -> Vec<Option<Vec<u8>>> {
    let bytes = &of.here.objects[name];
    let row = of.here.rows[name];
    let folder = |name: &str| name.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
    let differs = |other: &&Vec<u8>| *other != bytes;
    match tampering {
        Tampering::Flipped => {
            // In JSON, also tamper within a number so that it stays a number.
            let is_digit = |byte: &u8| b"01234567abef".contains(byte);
            let within = bytes.len() / 3;
            let within = within + bytes[within..].iter().position(is_digit).unwrap_or(0);
            let at = BTreeSet::from([0, within, bytes.len() - 1]);
            let flipped = |at| {
                let mut bytes = bytes.clone();
                bytes[at] ^= 4;
                Some(bytes)
            };
            at.into_iter().map(flipped).collect()
        }
        Tampering::Cut => [bytes.len() / 2, bytes.len() - 1].map(|len| Some(bytes[..len].to_vec())).to_vec(),
        Tampering::Emptied => vec![Some(Vec::new())],
        Tampering::Swapped => {
            let is_like = |(other, _): &(&String, &Vec<u8>)| {
                *other != name
                    && of.here.rows.get(*other).map_or(folder(other) == folder(name), |other| *other == row)
            };
            let others = of.here.ever.iter().filter(is_like).map(|(_, bytes)| bytes).filter(differs);
            others.take(1).cloned().map(Some).collect()
        }
        Tampering::Replayed => {
            of.other_course.objects.get(name).filter(differs).cloned().map(Some).into_iter().collect()
        }
        Tampering::Foreign => {
            // Names of keys differ between repositories.
            let is_like = |(other, of_row): &(&String, &&'static str)| {
                *other == name || (folder(name) == "keys" && **of_row == row)
            };
            let other = of.other_repository.rows.iter().find(is_like).map(|(name, _)| name);
            let other = other.and_then(|name| of.other_repository.objects.get(name));
            other.filter(differs).cloned().map(Some).into_iter().collect()
        }
        Tampering::Removed => vec![None],
    }
}

/// A reader that may notice the tampering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reader {
    Open,
    Keys,
    List,
    Check,
    Restore,
    Backup,
}

impl Reader {
    fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Keys => "key list",
            Self::List => "list",
            Self::Check => "check",
            Self::Restore => "restore",
            Self::Backup => "backup",
        }
    }
}

/// What the readers of a repository noticed.
#[derive(Debug, Default)]
struct Found {
    /// Readers whose error names the object.
    named: BTreeSet<Reader>,
    /// Readers whose error does not.
    refused: BTreeMap<Reader, String>,
    /// The reported backups and holds, from readers that noticed nothing else.
    state: Vec<String>,
}

impl Found {
    fn tell(&mut self, reader: Reader, name: &str, message: &str) {
        if message.contains(name) {
            self.named.insert(reader);
            self.refused.remove(&reader);
        } else if !self.named.contains(&reader) {
            self.refused.insert(reader, message.to_owned());
        }
    }
}

/// Reads everything in every way; wrong bytes fail the test.
fn look(objects: &Objects, name: &str, sources: &BTreeMap<RunNo, Source>) -> Found {
    let mut found = Found::default();
    let world = match world_of(objects) {
        Ok(world) => world,
        Err(message) => {
            found.tell(Reader::Open, name, &message);
            return found;
        }
    };
    match keys::list(&world.repo) {
        Ok(list) => {
            found.state.push(format!("{} keys", list.keys.len()));
            for (object, problem) in list.problems {
                found.tell(Reader::Keys, name, &format!("{object}: {problem}"));
            }
        }
        Err(error) => found.tell(Reader::Keys, name, &error.to_string()),
    }
    let logs = [log(Kind::Physical), log(Kind::Binlog)];
    for log in &logs {
        match History::read(&world.repo, log) {
            Ok(history) => {
                let now = world.repo.now().unwrap();
                for outcome in history.standing() {
                    let held = history.hold(outcome.run, now).is_some();
                    found.state.push(format!("{log} {} held {held}", outcome.run));
                }
                let standing: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
                history
                    .heads(&world.repo, &standing, |_, head| {
                        if let Err(error) = head {
                            found.tell(Reader::List, name, &error.to_string());
                        }
                        Ok::<_, RepoError>(())
                    })
                    .unwrap();
            }
            Err(error) => found.tell(Reader::List, name, &error.to_string()),
        }
        let options = CheckOptions { read_data: Some(1.0), threads: 1, ..CheckOptions::default() };
        match check(&world.repo, log, options) {
            Ok(report) => {
                for finding in report.findings {
                    found.tell(Reader::Check, name, &format!("{}: {}", finding.object, finding.problem));
                }
            }
            Err(error) => found.tell(Reader::Check, name, &error.to_string()),
        }
        restore(&world, log, name, sources, &mut found);
    }
    if let Err(error) = Run::begin(&world.repo, &world.log, &run_options()) {
        found.tell(Reader::Backup, name, &error.to_string());
    }
    found
}

fn restore(world: &World, log: &LogName, name: &str, sources: &BTreeMap<RunNo, Source>, found: &mut Found) {
    let told = Mutex::new(Vec::new());
    let history =
        History::salvage(&world.repo, log, &mut |_, error| told.lock().unwrap().push(error.to_string()));
    let history = match history {
        Ok(history) => history,
        Err(error) => return found.tell(Reader::Restore, name, &error.to_string()),
    };
    for run in history.standing().map(|outcome| outcome.run) {
        let read = || -> Result<(), RepoError> {
            let backup = Backup::open(&world.repo, &history, run)?;
            let source = &sources[&run];
            let mut count = 0;
            for item in backup.items() {
                let item = item?;
                let bytes = read_whole(&backup, &item)?;
                assert!(
                    bytes == source[&item.path.to_string()].bytes,
                    "{name}: {} of {run} is wrong",
                    item.path
                );
                count += 1;
            }
            assert_eq!(count, source.len(), "{name}: {run} lacks files");
            Ok(())
        };
        told.lock().unwrap().extend(read().err().map(|error| error.to_string()));
        found.state.push(format!("{log} {run} read"));
    }
    for run in list_segments(&world.repo, log).unwrap().into_keys() {
        let mut reader = SegmentReader::new(&world.repo, &history, run);
        let ended = loop {
            match reader.read_next() {
                Ok(Some(segment)) => found.state.push(format!("segment {:?}", segment.bytes)),
                Ok(None) => break reader.check_end(),
                Err(error) => break Err(error),
            }
        };
        told.lock().unwrap().extend(ended.err().map(|error| error.to_string()));
    }
    for message in told.into_inner().unwrap() {
        found.tell(Reader::Restore, name, &message);
    }
}

struct Courses {
    here: Course,
    other_course: Course,
    other_repository: Course,
}

/// One cell of the table.
#[derive(Debug, Default)]
struct Cell {
    /// Readers that name the object every time.
    always: Option<BTreeSet<Reader>>,
    /// Readers that do so at least once.
    ever: BTreeSet<Reader>,
    /// Readers that refuse every time without naming the object.
    unnamed: BTreeSet<Reader>,
    /// Unnoticed cases that changed nothing.
    harmless: Vec<String>,
    /// Unnoticed cases that changed what is reported of backups.
    unseen: Vec<String>,
    /// Cases that were noticed, but not by name.
    nameless: Vec<String>,
}

impl Cell {
    fn take(&mut self, case: String, found: &Found, usual: &[String]) {
        self.ever.extend(&found.named);
        let always = self.always.get_or_insert_with(|| found.named.clone());
        always.retain(|reader| found.named.contains(reader));
        if !found.named.is_empty() {
            return;
        }
        if !found.refused.is_empty() {
            self.unnamed.extend(found.refused.keys());
            self.nameless.push(format!("{case}: {:?}", found.refused));
        } else if found.state == usual {
            self.harmless.push(case);
        } else {
            self.unseen.push(format!("{case}: {:?}", found.state));
        }
    }

    fn text(&self) -> String {
        let list = |readers: &BTreeSet<Reader>| {
            readers.iter().map(|reader| reader.as_str()).collect::<Vec<_>>().join(", ")
        };
        let always = self.always.clone().unwrap_or_default();
        let mut parts = Vec::new();
        if !always.is_empty() {
            parts.push(list(&always));
        } else if !self.ever.is_empty() {
            parts.push(format!("{}, not all each time", list(&self.ever)));
        }
        if !self.nameless.is_empty() {
            parts.push(format!("{} (no name)", list(&self.unnamed)));
        }
        if !self.harmless.is_empty() {
            parts.push("no effect".to_owned());
        }
        if !self.unseen.is_empty() {
            parts.push("**not seen**".to_owned());
        }
        if parts.is_empty() { "–".to_owned() } else { parts.join("; ") }
    }
}

#[test]
fn tampering_with_any_object_is_noticed_and_named() {
    let common = beginning();
    let courses = Courses {
        here: Course::new(1, common.clone()),
        other_course: Course::new(2, common),
        other_repository: Course::new(1, beginning()),
    };
    let here = &courses.here;
    let usual = look(&here.objects, "nothing", &here.sources);
    assert!(usual.named.is_empty() && usual.refused.is_empty(), "{usual:?}");
    let mut cases = Vec::new();
    let mut of_rows: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for (name, row) in &here.rows {
        of_rows.entry(row).or_default().push(name);
    }
    for (row, name) in
        of_rows.iter().flat_map(|(row, names)| names.iter().take(PER_ROW).map(move |name| (row, *name)))
    {
        for tampering in Tampering::ALL {
            for bytes in variants(name, tampering, &courses) {
                cases.push((*row, tampering, name, bytes));
            }
        }
    }
    let table: Mutex<BTreeMap<(&str, Tampering), Cell>> = Mutex::default();
    let next = Mutex::new(cases.into_iter());
    let work = || {
        loop {
            let case = next.lock().unwrap().next();
            let Some((row, tampering, name, bytes)) = case else { return };
            let mut objects = here.objects.clone();
            match bytes {
                Some(bytes) => drop(objects.insert(name.clone(), bytes)),
                None => drop(objects.remove(name)),
            }
            let found = look(&objects, name, &here.sources);
            let mut table = table.lock().unwrap();
            table.entry((row, tampering)).or_default().take(name.clone(), &found, &usual.state);
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    let table = table.into_inner().unwrap();
    for ((row, tampering), cell) in &table {
        let is_one = |of: &[&str]| of.contains(row);
        assert!(
            cell.unseen.is_empty() || UNSEEN.contains(&(row, *tampering)),
            "{row} {tampering:?}: {cell:?}"
        );
        assert!(cell.nameless.is_empty() || is_one(&NAMELESS), "{row} {tampering:?}: {cell:?}");
        let is_harmless = is_one(&HARMLESS) || HARMLESS_CASES.contains(&(row, *tampering));
        assert!(cell.harmless.is_empty() || is_harmless, "{row} {tampering:?}: {cell:?}");
    }
    let mut text = String::from("| object |");
    Tampering::ALL.iter().for_each(|it| text += &format!(" {} |", it.title()));
    text += "\n|---|";
    Tampering::ALL.iter().for_each(|_| text += "---|");
    text += "\n";
    for row in of_rows.keys() {
        text += &format!("| {row} |");
        for tampering in Tampering::ALL {
            let cell = table.get(&(row, tampering)).map_or_else(|| "–".to_owned(), Cell::text);
            text += &format!(" {cell} |");
        }
        text += "\n";
    }
    compare_with_docs(&text);
}

/// The number of objects per row to tamper with.
const PER_ROW: usize = 2;
/// Tampering that cannot be noticed (`docs/reference/repository.md`, sections 4 and 6a).
const UNSEEN: [(&str, Tampering); 1] = [("`segments/`: the newest", Tampering::Removed)];
/// Tampering that is noticed by an error that cannot name the object: an object that a password does not open
/// may be damaged, and a missing or foreign object only shows where something depends on it.
const NAMELESS: [&str; 7] = [
    "`holdfast.json`",
    "`keys/`: the one that opens",
    "`signers/`",
    "`removals/`",
    "`removals/`: the newest",
    "`rotations/`",
    "`rotations/`: the newest",
];
/// Objects that nothing permanent depends on.
const HARMLESS: [&str; 6] = [
    "`asks/`",
    "`one-writer`",
    "`runs/`",
    "`packs/`: needed by nothing",
    "`index/`: of packs that nothing needs",
    "`signers/`: of removed keys",
];
const HARMLESS_CASES: [(&str, Tampering); 2] =
    [("`checks/`", Tampering::Removed), ("`reports/`", Tampering::Removed)];

/// Checks that the table in the document equals `table`; with `HOLDFAST_UPDATE_DOCS`, writes it instead.
fn compare_with_docs(table: &str) {
    const HEADING: &str = "# Every object tampered with\n";
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence/faults.md");
    let text = fs::read_to_string(&document).unwrap();
    let from = text.find(HEADING).expect("the heading of the table");
    let from = from + text[from..].find("| object |").expect("the table");
    let to = text[from..].find("\n\n").map_or(text.len(), |end| from + end + 1);
    if env::var_os("HOLDFAST_UPDATE_DOCS").is_some() {
        fs::write(&document, [&text[..from], table, &text[to..]].concat()).unwrap();
        return;
    }
    assert!(
        &text[from..to] == table,
        "docs/evidence/faults.md is stale (HOLDFAST_UPDATE_DOCS=1 writes it anew); it should be\n{table}"
    );
}
