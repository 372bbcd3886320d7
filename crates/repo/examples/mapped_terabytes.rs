//! The cost of a repository with many backups of a very large server: time, memory, and requests to its
//! store.
//!
//! `mapped_terabytes DIRECTORY make [TB] [backups] [permille]` creates one that maps this many terabytes;
//! this many of a thousand pages change before each backup, spread evenly.
//! `mapped_terabytes DIRECTORY list|show|check|stats|expire|prune|sweep` does what the verb does once and
//! prints the time, the peak memory, and the requests that a bucket would have received, by kind.
//! Without a verb, it runs all of these in separate processes.
//! `expire` keeps the newer half.
//!
//! Outcomes, heads, refs, the index, and the names and sizes of packs match those of real backups of that
//! size in number and length. The contents of packs are missing: packs are files without blocks, so neither
//! pages nor page maps can be read.
//! The password is `many`.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs::{self, File},
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use holdfast_formats::PageSize;
use holdfast_pipe::Codec;
use holdfast_repo::{
    ObjectKind, PackId, Place, Protection, Repo, RunNo,
    data::{
        reader::Backup,
        writer::{BackupWriter, ChunkRewriter, FileSpec, FinishedData, Foundation, WriterOptions},
    },
    format::{
        index::{self, IndexedPack},
        item::{FileRole, ItemPath, ItemType},
        manifest::Totals,
        pack::{ChunkKind, ChunkRow},
        refs::{BackupRefs, ChunkNeed, NeededPack},
    },
    interrupt::Interrupt,
    keys::KdfParams,
    log::{
        history::History,
        run::{Ending, PartCounts, Run},
    },
    ops::{
        check::{CheckOptions, check},
        expire::{ExpireRequest, Rules, expire},
        prune::{PruneOptions, prune},
        retention::RetentionPolicy,
        space::Space,
    },
    store::{ObjectInfo, ObjectPath, Store, StoreError, Upload, fs::FsStore},
};
use jiff::tz::TimeZone;

/// A chunk is one MiB of pages, compressed to a third.
mod made_up;

use made_up::{head, in_turn, log, mixed, password, read_heads, run_options, usage};

const CHUNK_PAGES: u32 = 64;
const CHUNK_BYTES: u64 = 1 << 20;
const SEALED_BYTES: u32 = 335_000;
const PACK_CHUNKS: u32 = 200;
const PACK_BYTES: u64 = 67_210_000;
/// As many as 2 GiB hold.
const PACKS_PER_INDEX_PART: usize = 32;

/// A made-up server, represented by what its backups need.
struct Server {
    chunks: u64,
    /// Changed pages per thousand before each backup.
    permille: u64,
    /// All packs of which the newest backup needs a part.
    packs: BTreeMap<PackId, Vec<u32>>,
}

impl Server {
    /// Pages of a chunk still unchanged after `age` backups: all chunks lose some, in varying numbers.
    fn needed(&self, pack: PackId, ordinal: u32, age: u64) -> u32 {
        let chunk = (pack.run.0 << 40) ^ (u64::from(pack.part) << 12) ^ u64::from(ordinal);
        let lost = u64::from(CHUNK_PAGES) * age * self.permille * (9 + mixed(chunk) % 9) / 13_000;
        CHUNK_PAGES - u32::try_from(lost.min(u64::from(CHUNK_PAGES))).unwrap()
    }

    /// Simulates changes, and stores them in run `run`; returns the parts of its packs, starting at `first`.
    fn back_up(&mut self, run: RunNo, first: u32, is_first: bool) -> Vec<u32> {
        let chunks = if is_first { self.chunks } else { self.chunks * self.permille / 1_000 };
        let count = u32::try_from(chunks.div_ceil(u64::from(PACK_CHUNKS))).unwrap();
        let parts: Vec<u32> = (first..first + count).collect();
        for part in &parts {
            self.packs.insert(PackId { run, part: *part }, Vec::new());
        }
        let mut packs = std::mem::take(&mut self.packs);
        packs.retain(|pack, needed| {
            *needed = (0..PACK_CHUNKS).map(|at| self.needed(*pack, at, run.0 - pack.run.0)).collect();
            needed.iter().any(|needed| *needed > 0)
        });
        self.packs = packs;
        parts
    }

    fn refs(&self) -> BackupRefs {
        let need = |needed: &u32| ChunkNeed { units: CHUNK_PAGES, needed: *needed };
        let pack = |(pack, needed): (&PackId, &Vec<u32>)| NeededPack {
            pack: *pack,
            size_bytes: PACK_BYTES,
            chunks: needed.iter().map(need).collect(),
        };
        BackupRefs { packs: self.packs.iter().map(pack).collect() }
    }
}

/// Stores an index part of a run, and the files that represent its packs.
fn store_packs(directory: &Path, run: &Run, parts: &[u32]) -> Result<u32, Box<dyn Error>> {
    let row = ChunkRow {
        kind: ChunkKind::Pages(PageSize::from_bytes(16 << 10).unwrap()),
        codec: Codec::Zstd,
        plain_len: u32::try_from(CHUNK_BYTES)?,
        sealed_len: SEALED_BYTES,
        unit_count: CHUNK_PAGES,
        base: None,
    };
    let pack = |part: &u32| {
        // Compressed chunks vary in length.
        let of = |at| ChunkRow {
            sealed_len: SEALED_BYTES - (mixed(u64::from(part << 8 | at)) % 9_999) as u32,
            ..row
        };
        IndexedPack { part: *part, size_bytes: PACK_BYTES, rows: (0..PACK_CHUNKS).map(of).collect() }
    };
    let folder = directory.join(run.log().pack(PackId { run: run.no(), part: 0 }).as_str());
    fs::create_dir_all(folder.parent().unwrap())?;
    let mut index_parts = 0;
    for parts in parts.chunks(PACKS_PER_INDEX_PART) {
        let packs: Vec<IndexedPack> = parts.iter().map(pack).collect();
        let sealed = run.secrets().seal_index(index_parts, &index::encode(&packs))?;
        let place = Place { log: run.log(), kind: ObjectKind::Index, run: run.no(), part: index_parts };
        run.repo().put(&place, &sealed)?;
        for part in parts {
            let path = run.log().pack(PackId { run: run.no(), part: *part });
            File::create(directory.join(path.as_str()))?.set_len(PACK_BYTES)?;
        }
        index_parts += 1;
    }
    Ok(index_parts)
}

/// The metadata of items; those of the first backup exist, and all later backups share them.
fn first_items(run: &Run) -> Result<FinishedData, Box<dyn Error>> {
    let writer = BackupWriter::new(run, &Foundation::newest(run.history()), WriterOptions::default())?;
    let page_size = PageSize::from_bytes(16 << 10).unwrap();
    let id = writer.begin_file(FileSpec {
        path: ItemPath::new("ibdata1".to_owned())?,
        item_type: ItemType::File,
        role: FileRole::Tablespace,
        mode: 0o640,
        page_size,
        tablespace: None,
        outside: None,
    })?;
    writer.pages(id, 0, &[7; 16 << 10])?;
    writer.end_file(id, 16 << 10)?;
    Ok(writer.finish(run)?)
}

fn make(directory: &Path, tb: u64, backups: u64, permille: u64) -> Result<(), Box<dyn Error>> {
    let protection = Protection::Password { password: &password(), kdf: KdfParams::MINIMUM };
    let repo = Arc::new(Repo::init(Arc::new(FsStore::create(directory)?), &protection)?);
    let bytes = tb * 1_000_000_000_000;
    let mut server = Server { chunks: bytes / CHUNK_BYTES, permille, packs: BTreeMap::new() };
    let begun = Instant::now();
    let mut first = None;
    for no in 1..=backups + 1 {
        let mut run = Run::begin(&repo, &log(), &run_options())?;
        let base = run.history().newest_backup();
        let ending = match &first {
            None => {
                let data = first_items(&run)?;
                let head = head(no, base, data.totals, data.roots.clone()).encode()?;
                let ending = Ending::Backup { head, refs: data.refs, parts: data.parts };
                first = Some((data, run.no()));
                ending
            }
            Some((data, of)) => {
                let parts = server.back_up(run.no(), 0, no == 2);
                let index = store_packs(directory, &run, &parts)?;
                let mut refs = server.refs();
                let items = run.history().backup_refs(&repo, *of)?;
                refs.packs.splice(0..0, items.packs);
                let refs = run.write_backup_refs(&refs)?;
                let pages = bytes / (16 << 10);
                let totals = Totals { items: 200_000, files: 200_000, bytes, pages, ..Totals::default() };
                let head = head(no, base, totals, data.roots.clone()).encode()?;
                let parts = PartCounts { index, pack: u32::try_from(parts.len())? };
                Ending::Backup { head, refs, parts }
            }
        };
        run.finish(ending)?;
        if no.is_multiple_of(20) {
            let (packs, seconds) = (server.packs.len(), begun.elapsed().as_secs_f64());
            println!("backup {no} of {backups}: needs {packs} packs, {seconds:.0} s");
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    put: u64,
    get: u64,
    head: u64,
    list: u64,
    delete: u64,
    received_bytes: u64,
}

/// Counts the requests that a bucket would have received.
struct Counted {
    store: FsStore,
    requests: Arc<Mutex<Requests>>,
}

impl Counted {
    fn count(&self, add: impl FnOnce(&mut Requests)) {
        add(&mut self.requests.lock().unwrap());
    }
}

impl Store for Counted {
    fn location(&self) -> String {
        self.store.location()
    }

    fn put(&self, path: &ObjectPath) -> Result<Box<dyn Upload>, StoreError> {
        self.count(|it| it.put += 1);
        self.store.put(path)
    }

    fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        self.count(|it| it.put += 1);
        self.store.create_if_absent(path, bytes)
    }

    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        self.count(|it| (it.get, it.received_bytes) = (it.get + 1, it.received_bytes + buffer.len() as u64));
        self.store.read_exact_at(path, offset, buffer)
    }

    fn read_whole(&self, path: &ObjectPath, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        let bytes = self.store.read_whole(path, limit_bytes);
        let len = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        self.count(|it| (it.get, it.received_bytes) = (it.get + 1, it.received_bytes + len));
        bytes
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        self.count(|it| it.head += 1);
        self.store.head(path)
    }

    /// A listing returns a thousand names per request.
    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError> {
        let mut count = 0;
        let listed = self.store.list(prefix, &mut |info| {
            count += 1;
            each(info)
        });
        self.count(|it| it.list += 1 + count / 1_000);
        listed
    }

    fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.count(|it| it.list += 1);
        self.store.list_folders(prefix)
    }

    /// A request deletes a thousand objects.
    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError> {
        self.count(|it| it.delete += paths.len().div_ceil(1_000) as u64);
        self.store.delete(paths)
    }

    /// Asking for the time writes, examines and deletes an object.
    fn now(&self) -> Result<SystemTime, StoreError> {
        self.count(|it| (it.put, it.head, it.delete) = (it.put + 1, it.head + 1, it.delete + 1));
        self.store.now()
    }

    /// The free space of a bucket is unknown.
    fn free_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    fn reads_at_once(&self) -> usize {
        16
    }
}

fn look(directory: &Path, verb: &str) -> Result<(), Box<dyn Error>> {
    let requests: Arc<Mutex<Requests>> = Arc::default();
    let store = Counted { store: FsStore::open(directory)?, requests: Arc::clone(&requests) };
    let repo = Arc::new(Repo::open(Arc::new(store), Some(&password()))?);
    let begun = Instant::now();
    let history = || History::read(&repo, &log());
    let found = match verb {
        "list" => {
            let count = read_heads(&repo, &history()?)?;
            format!("{count} backups")
        }
        "show" => {
            let history = history()?;
            let newest = history.newest_backup().ok_or("no backups")?;
            let backup = Backup::open(&repo, &history, newest)?;
            format!("{} bytes mapped", backup.head().totals.bytes)
        }
        "check" => {
            let report = check(&repo, &log(), CheckOptions::default())?;
            for finding in report.findings.iter().take(3) {
                println!("{finding:?}");
            }
            format!("{} packs, {} findings", report.packs, report.findings.len())
        }
        "stats" => format!("{} packs", Space::of(&repo, &history()?, &Interrupt::default())?.packs),
        "expire" => {
            let last = u32::try_from(history()?.standing().count() / 2)?;
            let policy = RetentionPolicy { last, ..RetentionPolicy::default() };
            let request = ExpireRequest::ByRules(Rules::by_age(policy, TimeZone::UTC));
            format!("{} dropped", expire(&repo, &log(), &request, &run_options())?.dropped.len())
        }
        "prune" | "sweep" => {
            let grace = if verb == "sweep" { Duration::ZERO } else { PruneOptions::default().grace };
            // Mostly dead packs would be rewritten, but cannot be read.
            let prune_options = PruneOptions { grace, rewrite_bytes_max: 0, ..PruneOptions::default() };
            let mut rewriter = ChunkRewriter::open(&repo, &history()?, WriterOptions::default())?;
            let pruned = prune(&repo, &log(), &prune_options, Some(&mut rewriter), &run_options())?;
            format!("{} packs declared dead, {:?}", pruned.declared.dead.len(), pruned.swept)
        }
        _ => return Err(format!("{verb} is no verb").into()),
    };
    let took = begun.elapsed();
    let (cpu_s, peak) = usage()?;
    println!(
        "{verb:<6} {:.2} s, processor {cpu_s:.2} s, {peak}; {found}; {:?}",
        took.as_secs_f64(),
        requests.lock().unwrap(),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let directory = Path::new(args.first().ok_or("mapped_terabytes DIRECTORY [make|list|show|...]")?);
    let number = |at: usize, default| args.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    match args.get(1).map(String::as_str) {
        Some("make") => make(directory, number(2, 20)?, number(3, 1_000)?, number(4, 5)?),
        Some(verb) => look(directory, verb),
        None => in_turn(directory, &["make", "list", "show", "check", "stats", "expire", "prune", "sweep"]),
    }
}
