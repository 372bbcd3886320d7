//! The cost of examining a repository with many backups of many tables.
//!
//! `many_backups DIRECTORY make [backups] [tables] [changed] [given]` creates one with the writer that real
//! backups use, or adds the missing backups to it.
//! `many_backups DIRECTORY list|show|ls|stats [ms]` does what the verb does once, and prints the
//! time, the peak memory and the calls to the store, each of which is delayed by this many
//! milliseconds, as in a bucket.
//! Without a verb, it runs all of these in separate processes.
//!
//! Each table is a file of one page, and `changed` of them, spread evenly, differ from the previous backup:
//! metadata is as large as for real servers, and the data it refers to is not.
//! Only the first `given` backups are written page by page; later ones are of a server without any writes:
//! they contain everything that the last of these contains.
//! The password is `many`, so that the program itself can examine the repository, too.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    path::Path,
    sync::{Arc, Mutex},
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_formats::{PageSize, SpaceId};
use holdfast_repo::{
    Protection, Repo,
    data::{
        reader::Backup,
        writer::{BackupWriter, FileSpec, FinishedData, Foundation, WriterOptions},
    },
    format::{
        item::{FileRole, ItemPath, ItemType, Tablespace},
        manifest::{Head, Totals},
    },
    forward_store,
    interrupt::Interrupt,
    keys::KdfParams,
    log::{
        history::History,
        run::{Ending, PartCounts, Run},
    },
    ops::space::Space,
    store::{
        Store,
        faulty::{FaultyStore, Op},
        fs::FsStore,
    },
};

mod made_up;

use made_up::{head, in_turn, log, mixed, password, read_heads, run_options, usage};

const PAGE_BYTES: usize = 1_024;

/// A made-up server.
struct Tables {
    changed: u64,
    /// The backup before which each table was last written to.
    written: Vec<u64>,
}

impl Tables {
    fn new(tables: usize, changed: u64) -> Self {
        Self { changed, written: vec![0; tables] }
    }

    /// Writes to some of the tables before the backup of this run.
    fn write(&mut self, run: u64) {
        let every = (self.written.len() as u64 / self.changed.max(1)).max(1);
        for (table, written) in (0..).zip(&mut self.written) {
            if mixed(run << 32 | table).is_multiple_of(every) {
                *written = run;
            }
        }
    }

    fn give(&self, writer: &BackupWriter) -> Result<(), Box<dyn Error>> {
        let page_size = PageSize::from_bytes(PAGE_BYTES as u32).unwrap();
        for (table, written) in (0_u32..).zip(&self.written) {
            let path = format!("shop_{:03}/orders_{table:07}.ibd", table / 1_000);
            let id = writer.begin_file(FileSpec {
                path: ItemPath::new(path)?,
                item_type: ItemType::File,
                role: FileRole::Tablespace,
                mode: 0o640,
                page_size,
                tablespace: Some(Tablespace { space: SpaceId(table + 1), flags: 21 }),
                outside: None,
            })?;
            let mut page = [0; PAGE_BYTES];
            page[..4].copy_from_slice(&table.to_le_bytes());
            page[4..12].copy_from_slice(&(written + 1).to_le_bytes());
            writer.pages(id, 0, &page)?;
            writer.end_file(id, PAGE_BYTES as u64)?;
        }
        Ok(())
    }
}

/// A backup of the tables, or without tables, of the newest backup's contents.
fn back_up(repo: &Arc<Repo>, tables: Option<&Tables>) -> Result<(), Box<dyn Error>> {
    let mut run = Run::begin(repo, &log(), &run_options())?;
    let no = run.no().0;
    let foundation = Foundation::newest(run.history());
    let data = match (tables, foundation.base) {
        (None, Some(base)) => {
            let head = Head::decode(&run.history().head(repo, base)?)?;
            let refs = run.write_backup_refs(&run.history().backup_refs(repo, base)?)?;
            let totals = Totals { bytes_new: 0, bytes_stored: 0, chunks: 0, packs: 0, ..head.totals };
            FinishedData { totals, roots: head.roots, refs, parts: PartCounts::default() }
        }
        (tables, _) => {
            let writer = BackupWriter::new(&run, &foundation, WriterOptions::default())?;
            tables.map_or(Ok(()), |tables| tables.give(&writer))?;
            writer.finish(&run)?
        }
    };
    let head = head(no, foundation.base, data.totals, data.roots);
    run.finish(Ending::Backup { head: head.encode()?, refs: data.refs, parts: data.parts })?;
    Ok(())
}

fn make(
    directory: &Path,
    backups: u64,
    tables: usize,
    changed: u64,
    given: u64,
) -> Result<(), Box<dyn Error>> {
    let repo = if directory.join("holdfast.json").exists() {
        Repo::open(Arc::new(FsStore::open(directory)?), Some(&password()))?
    } else {
        let protection = Protection::Password { password: &password(), kdf: KdfParams::MINIMUM };
        Repo::init(Arc::new(FsStore::create(directory)?), &protection)?
    };
    let repo = Arc::new(repo);
    let done = History::read(&repo, &log())?.next_run().0;
    let mut tables = Tables::new(tables, changed);
    (1..done.min(given)).for_each(|run| tables.write(run));
    let begun = Instant::now();
    for run in done..=backups {
        let is_given = run <= given;
        if is_given {
            tables.write(run);
        }
        back_up(&repo, is_given.then_some(&tables))?;
        if run.is_multiple_of(50) {
            println!("backup {run} of {backups}, {:.0} s", begun.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

/// A store with a simulated round trip.
struct Distant {
    store: FsStore,
    round_trip: Duration,
}

impl Distant {
    fn there(&self) -> &FsStore {
        sleep(self.round_trip);
        &self.store
    }
}

impl Store for Distant {
    forward_store!(
        self => self.there();
        put, create_if_absent, read_exact_at, head, list, list_folders, delete, now, free_bytes
    );

    fn location(&self) -> String {
        self.store.location()
    }

    /// The same as for buckets.
    fn reads_at_once(&self) -> usize {
        if self.round_trip.is_zero() { 1 } else { 16 }
    }
}

fn look(directory: &Path, verb: &str, round_trip: Duration) -> Result<(), Box<dyn Error>> {
    let calls: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let counted = Arc::clone(&calls);
    let store: Arc<dyn Store> = Arc::new(Distant { store: FsStore::open(directory)?, round_trip });
    let store = FaultyStore::new(store, move |call| {
        let folder = call.path.split('/').nth(3).unwrap_or("others");
        let name = if call.op == Op::Read { "read" } else { "other" };
        *counted.lock().unwrap().entry(format!("{name} {folder}")).or_default() += 1;
        None
    });
    let repo = Arc::new(Repo::open(Arc::new(store), Some(&password()))?);
    calls.lock().unwrap().clear();
    let begun = Instant::now();
    let history = History::salvage(&repo, &log(), &mut |_, error| println!("{error}"))?;
    let newest = history.newest_backup().ok_or("no backups")?;
    let read_history = begun.elapsed();
    let found = match verb {
        "list" => read_heads(&repo, &history)?,
        "show" => Head::decode(&history.head(&repo, newest)?)?.totals.items,
        "ls" => Backup::open(&repo, &history, newest)?.items().try_fold(0, |count, item| {
            item?;
            Ok::<_, Box<dyn Error>>(count + 1)
        })?,
        "stats" => {
            let space = Space::of(&repo, &history, &Interrupt::default())?;
            read_heads(&repo, &history)?;
            println!("{:?}", space.compression);
            space.packs
        }
        _ => return Err(format!("{verb} is no verb").into()),
    };
    let took = begun.elapsed();
    let (cpu_s, peak) = usage()?;
    println!(
        "{verb:<6} {:.2} s ({:.2} s of them the history), processor {cpu_s:.2} s, {peak}, {found} found; calls: {:?}",
        took.as_secs_f64(),
        read_history.as_secs_f64(),
        calls.lock().unwrap(),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let directory = Path::new(args.first().ok_or("many_backups DIRECTORY [make|list|show|ls|stats]")?);
    let number = |at: usize, default| args.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    match args.get(1).map(String::as_str) {
        Some("make") => {
            let tables = usize::try_from(number(3, 100_000)?)?;
            make(directory, number(2, 1_000)?, tables, number(4, 100)?, number(5, 60)?)
        }
        Some(verb) => look(directory, verb, Duration::from_millis(number(2, 0)?)),
        None => in_turn(directory, &["make", "list", "show", "ls", "stats"]),
    }
}
