//! A bit flip and a truncation in every kind of object, in a repository with backups of a server, an expiry,
//! a prune and runs that died.
//! The damage is found and named; whatever is read is correct, to the byte, or an error.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
    process::Command,
    sync::Mutex,
};

use holdfast_core::ErrorKind;
use holdfast_pipe::{HashKey, PageHash};
use holdfast_repo::{
    ChunkRef, Folder, KeyError, PackId, RepoError, RunNo,
    data::reader::Backup,
    format::pack::ChunkKind,
    log::run::RunOptions,
    ops::{
        check::{CheckReport, Severity},
        expire::{ExpireRequest, expire},
    },
    store::fs::FsStore,
};

use super::{prune::ripe, *};

/// A range of an object.
#[derive(Clone, Debug)]
struct Part {
    /// The contents of the range.
    class: &'static str,
    object: String,
    range: Range<u64>,
    /// Whether it is needed, so that damage must be found.
    is_needed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Harm {
    Flip { byte: u64, bit: u32 },
    Truncation { bytes: u64 },
}

/// A hash of each file in a backup.
type Contents = BTreeMap<String, PageHash>;

fn contents(repo: &Arc<Repo>, run: u64) -> Result<Contents, RepoError> {
    let history = History::salvage(repo, &log(), &mut |_, _| {})?;
    let backup = Backup::open(repo, &history, RunNo(run))?;
    let key = HashKey::new([7; 32]);
    let mut contents = Contents::new();
    for item in backup.items() {
        let item = item?;
        let mut hash = key.hash(&item.size_bytes.to_le_bytes());
        backup.read_file(&item, &mut |bytes| {
            hash = key.hash(&[&hash.0[..], &key.hash(bytes).0[..]].concat());
            Ok::<_, RepoError>(())
        })?;
        contents.insert(item.path.to_string(), hash);
    }
    Ok(contents)
}

/// Every object, split into ranges of different kinds.
fn parts(repo: &Arc<Repo>) -> Vec<Part> {
    let mut objects = BTreeMap::new();
    let mut add = |info: holdfast_repo::store::ObjectInfo| {
        objects.insert(info.path.to_string(), info.size_bytes);
        true
    };
    repo.store().list("", &mut add).unwrap();
    let history = History::read(repo, &log()).unwrap();
    let needed = needed_chunks(repo, &history);
    let packs: BTreeSet<PackId> = needed.iter().map(|chunk| chunk.pack).collect();
    let mut parts = Vec::new();
    for (object, size) in objects {
        let mut part = |class, range: Range<u64>, is_needed| {
            parts.push(Part { class, object: object.clone(), range, is_needed });
        };
        let mut names = object.split('/').skip(3);
        let (folder, name) = (names.next().unwrap_or_default(), names.collect::<Vec<_>>().join("/"));
        let key = |folder: Folder| folder.parse(&name).unwrap();
        match folder {
            "" if object.starts_with("keys/") => part("key", 0..size, true),
            "" => part("holdfast.json", 0..size, true),
            "runs" => part("lease", 0..size, false),
            "reports" => part("report", 0..size, true),
            // Only the newest record exists, and restores do not use it: packs that were read successfully
            // are read once more.
            "checks" => part("record of a check", 0..size, true),
            "index" => {
                let run = key(Folder::Index).0;
                let is_needed = packs.iter().any(|pack| pack.run == run);
                part(if is_needed { "index" } else { "index of no use" }, 0..size, is_needed);
            }
            "refs" => {
                let run = key(Folder::Refs).0;
                let class = match history.outcome(run).unwrap().outcome_type {
                    OutcomeType::Backup if history.stands(run) => "refs of a backup",
                    OutcomeType::Prune => "refs of a prune",
                    _ => "refs of no use",
                };
                part(class, 0..size, class != "refs of no use");
            }
            "outcomes" => {
                let class = match history.outcome(key(Folder::Outcomes).0).unwrap().outcome_type {
                    OutcomeType::Backup => "outcome: backup",
                    OutcomeType::Expire => "outcome: expiry",
                    OutcomeType::Prune => "outcome: prune",
                    OutcomeType::Hold | OutcomeType::Release => "outcome: hold",
                    OutcomeType::Repair => "outcome: repair",
                    OutcomeType::Tombstone | OutcomeType::Abandoned => "outcome: ended run",
                };
                part(class, 0..size, true);
            }
            "packs" => {
                let (run, number) = key(Folder::Packs);
                let pack = PackId { run, part: number };
                if packs.contains(&pack) {
                    for (class, range) in parts_of_pack(repo, &history, pack, size, &needed) {
                        part(class, range, true);
                    }
                } else {
                    part("pack of no use", 0..size, false);
                }
            }
            other => panic!("{other}: no such kind of object is known here"),
        }
    }
    parts
}

/// The current places of the chunks that listed backups need.
fn needed_chunks(repo: &Arc<Repo>, history: &History) -> BTreeSet<ChunkRef> {
    let prunes = history.prunes(repo).unwrap();
    let mut needed = BTreeSet::new();
    for backup in history.standing() {
        for of_pack in history.backup_refs(repo, backup.run).unwrap().packs {
            for (ordinal, _) in (0..).zip(&of_pack.chunks).filter(|(_, chunk)| chunk.needed > 0) {
                needed.insert(prunes.resolve(ChunkRef { pack: of_pack.pack, ordinal }));
            }
        }
    }
    needed
}

fn parts_of_pack(
    repo: &Arc<Repo>,
    history: &History,
    pack: PackId,
    size: u64,
    needed: &BTreeSet<ChunkRef>,
) -> Vec<(&'static str, Range<u64>)> {
    const HEADER_BYTES: u64 = 116;
    const TRAILER_BYTES: u64 = 20;
    let newest = history.newest_backup().unwrap();
    let backup = Backup::open(repo, history, newest).unwrap();
    let rows = backup.source().pack(pack).unwrap();
    let mut parts = vec![("pack: header", 0..HEADER_BYTES)];
    let mut end = HEADER_BYTES;
    for (ordinal, row) in (0..).zip(rows.rows()) {
        let begin = end;
        end += u64::from(row.sealed_len);
        let class = match row.kind {
            ChunkKind::Pages(_) => "pack: pages",
            ChunkKind::Leaves => "pack: leaves",
            ChunkKind::Items => "pack: items",
            ChunkKind::Roots => "pack: roots",
            ChunkKind::Rows | ChunkKind::RowLeaf => unreachable!("a physical backup has no rows"),
        };
        if needed.contains(&ChunkRef { pack, ordinal }) {
            parts.push((class, begin..end));
        }
    }
    parts.push(("pack: directory", end..size - TRAILER_BYTES));
    parts.push(("pack: trailer", size - TRAILER_BYTES..size));
    parts
}

/// One part of each class, chosen by `rng`; all parts in long runs.
fn choose(parts: Vec<Part>, rng: &mut Rng) -> Vec<Part> {
    if long() {
        return parts;
    }
    let mut classes: BTreeMap<&str, Vec<Part>> = BTreeMap::new();
    for part in parts {
        classes.entry(part.class).or_default().push(part);
    }
    classes.into_values().map(|mut parts| parts.swap_remove(rng.index(parts.len()))).collect()
}

/// A repository that is damaged again and again.
struct Pristine {
    dir: PathBuf,
    backups: BTreeMap<u64, Contents>,
}

impl Pristine {
    /// A copy that shares all objects with the original except the damaged one.
    fn harmed(&self, copy: &Path, part: &Part, harm: Harm) {
        let status = Command::new("cp").arg("-rl").args([&self.dir, copy]).status().unwrap();
        assert!(status.success());
        let path = copy.join(&part.object);
        let mut bytes = fs::read(&path).unwrap();
        match harm {
            Harm::Flip { byte, bit } => bytes[byte as usize] ^= 1 << bit,
            Harm::Truncation { bytes: left } => bytes.truncate(left as usize),
        }
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    }

    fn examine(&self, copy: &Path, part: &Part) {
        let store = Arc::new(FsStore::open(copy).unwrap());
        let repo = match Repo::open(store, Some(&password())) {
            Ok(repo) => Arc::new(repo),
            Err(error) => {
                assert!(["holdfast.json", "key"].contains(&part.class), "{error}");
                // A damaged key cannot be told from one with a different password.
                let is_ambiguous = part.class == "key" && matches!(error, KeyError::WrongPassword { .. });
                assert!(is_ambiguous || error.to_string().contains(&part.object), "{error}");
                return;
            }
        };
        let options = CheckOptions { read_data: READ_ALL, ..CheckOptions::default() };
        let report = check(&repo, &log(), options).unwrap();
        let named = report.findings.iter().any(|finding| finding.object.contains(&part.object));
        assert_eq!(named, part.is_needed, "{:?}", report.findings);
        assert!(named || report.findings.is_empty(), "{:?}", report.findings);
        for (run, expected) in &self.backups {
            match contents(&repo, *run) {
                Ok(found) => assert!(found == *expected, "wrong bytes come out of backup {run}"),
                Err(error) => self.assert_lost(&repo, &report, part, *run, &error),
            }
        }
    }

    /// An unreadable backup must be reported as lost by the check, and a restore must say why it fails.
    fn assert_lost(&self, repo: &Arc<Repo>, report: &CheckReport, part: &Part, run: u64, error: &RepoError) {
        let is_lost = report.findings.iter().any(|finding| {
            let concerns = finding.backups.is_empty() || finding.backups.contains(&RunNo(run));
            finding.severity == Severity::Lost && concerns
        });
        assert!(is_lost, "{run}: {error}: {:?}", report.findings);
        let harmless = ["outcome: expiry", "outcome: ended run", "report", "record of a check", "index"];
        assert!(!harmless.contains(&part.class), "nothing of backup {run} was harmed: {error}");
        let own = part.object.ends_with(&format!("{run:010}"));
        assert!(own || part.class != "outcome: backup", "the outcome of {run} was not harmed: {error}");
        let dir = tempfile::tempdir().unwrap();
        let options = RestoreOptions { prepare: false, ..RestoreOptions::new(dir.path().join("target")) };
        let said = holdfast_core::restore::run(repo, &log(), RunNo(run), &options, &Told, &Cancel::default())
            .unwrap_err();
        println!("  backup {run}: {said}");
        assert_eq!(said.kind(), ErrorKind::Damaged, "{said}");
        assert!(said.to_string().contains("sources/db1/physical/"), "{said}");
    }
}

/// The remedy for damage that `docs/reference/errors.md` describes under code 3.
#[test]
fn a_full_backup_shares_no_damage_with_earlier_ones() {
    let stage = Stage::around(small_server(ServerKind::MariaDb1011, ServerOptions::default()));
    let first = stage.back_up();
    let packs = stage.dir.path().join("repo/sources/db1/physical/packs");
    for pack in fs::read_dir(packs).unwrap() {
        let path = pack.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        bytes[500] ^= 1;
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    let heir = stage.back_up();
    let options = BackupOptions { full: true, ..stage.options() };
    let full = backup::run(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    assert_eq!((full.run.base, full.run.totals.bytes_reused), (None, 0));
    let options = CheckOptions { read_data: READ_ALL, ..CheckOptions::default() };
    let report = check(&stage.repo, &log(), options).unwrap();
    let named: BTreeSet<u64> =
        report.findings.iter().flat_map(|finding| &finding.backups).map(|run| run.0).collect();
    assert_eq!(named, BTreeSet::from([first.run.backup, heir.run.backup]));
    let request = ExpireRequest::Exactly(named.into_iter().map(RunNo).collect());
    expire(&stage.repo, &log(), &request, &RunOptions::of_this_process()).unwrap();
    check_all(&stage.repo, READ_ALL);
    let (restored, _) = stage.restore(full.run.backup);
    assert_equal_checksums(&stage.source, &restored.server).unwrap();
}

#[test]
fn damage_in_any_kind_of_object_is_found_and_never_restored() {
    let seed = std::env::var("HOLDFAST_FAULTS_SEED").map_or(101, |seed| seed.parse().unwrap());
    println!("HOLDFAST_FAULTS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let (scene, [first, second]) = ripe(seed);
    let third = scene.stage.back_up();
    let Scene { stage, load } = scene;
    load.stop().unwrap();
    let standing = [first.run.backup, second.run.backup, third.run.backup];
    assert_eq!(standing_in(&stage.repo), standing);
    check_all(&stage.repo, READ_ALL);
    let backups = standing.map(|run| (run, contents(&stage.repo, run).unwrap())).into();
    let pristine = Pristine { dir: stage.dir.path().join("repo"), backups };

    let parts = parts(&stage.repo);
    let classes: BTreeSet<&str> = parts.iter().map(|part| part.class).collect();
    println!("{classes:?}");
    for class in [
        "holdfast.json",
        "key",
        "lease",
        "index",
        "report",
        "record of a check",
        "refs of a backup",
        "refs of a prune",
        "outcome: backup",
        "outcome: expiry",
        "outcome: prune",
        "outcome: ended run",
        "pack of no use",
        "pack: header",
        "pack: pages",
        "pack: leaves",
        "pack: items",
        "pack: roots",
        "pack: directory",
        "pack: trailer",
    ] {
        assert!(classes.contains(class), "{class} is missing among {classes:?}");
    }
    let mut cases = Vec::new();
    for part in choose(parts, &mut rng) {
        let mut within = || rng.between(part.range.start, part.range.end - 1);
        let flip = Harm::Flip { byte: within(), bit: (within() % 8) as u32 };
        let truncation = Harm::Truncation { bytes: within() };
        cases.extend([(part.clone(), flip), (part.clone(), truncation)]);
    }
    let cases = Mutex::new(cases.into_iter().enumerate());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = cases.lock().unwrap().next();
                    let Some((number, (part, harm))) = next else { return };
                    println!("{number}: {harm:?} in {} ({})", part.object, part.class);
                    let copy = stage.dir.path().join(format!("harmed-{number}"));
                    pristine.harmed(&copy, &part, harm);
                    pristine.examine(&copy, &part);
                    fs::remove_dir_all(&copy).unwrap();
                }
            });
        }
    });
    stage.prove(&third);
}
