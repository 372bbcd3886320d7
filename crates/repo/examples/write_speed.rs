//! Throughput of the writer, the reader, and of copies: `write_speed [directory|-] [MiB] [files]`.
//!
//! Without a directory, packs are stored in memory.
//! With a number of files, it measures small files instead, and the memory that they take.
//! The source is pages in memory, so that only the pipeline is measured.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::{
    env,
    error::Error,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use holdfast_formats::PageSize;
use holdfast_pipe::{Compression, PageHash, Suite, codec::Compressor, meter::Meter};
use holdfast_repo::{
    Kind, LogName, Password, Protection, Repo, RepoError, RunNo,
    data::{
        reader::{Backup, FetchOptions, PageWant},
        writer::{BackupWriter, FileSpec, FinishedData, Foundation, WriterOptions},
    },
    format::{
        columns::PageEntry,
        item::{FileRole, ItemPath, ItemType},
        manifest::{HEAD_SCHEMA, Head},
    },
    keys::KdfParams,
    log::{
        history::History,
        run::{Ending, Run, RunOptions},
    },
    ops::copy::{Copied, Copier, CopyOptions},
    store::{Store, fs::FsStore, mem::MemStore},
};

const EXTENT: usize = 1 << 20;
const FILES: u64 = 4;

/// A pool of extents of distinct pages that compress to about 0.4.
/// Extent n of a file is derived from it by putting a number into each page, so that no two pages are equal.
struct Pages {
    pool: Vec<Vec<u8>>,
}

impl Pages {
    fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let extent = |_| {
            let mut bytes = vec![0; EXTENT];
            for block in bytes.chunks_exact_mut(20) {
                block[..8].copy_from_slice(&next().to_le_bytes());
            }
            bytes
        };
        Self { pool: (0..16).map(extent).collect() }
    }

    fn extent(&self, file: u64, extent: u64, round: u64, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.pool[(extent % 16) as usize]);
        for (page, bytes) in buffer.chunks_exact_mut(16_384).enumerate() {
            // One page in a hundred differs in each round.
            let number = extent * 64 + page as u64;
            let round = if number % 100 == 7 { round } else { 0 };
            bytes[100..108].copy_from_slice(&number.to_le_bytes());
            bytes[108..116].copy_from_slice(&(file << 32 | round).to_le_bytes());
        }
    }
}

struct Case {
    repo: Arc<Repo>,
    log: LogName,
}

impl Case {
    fn backup(
        &self,
        pages: &Pages,
        mib: u64,
        round: u64,
        compression: Compression,
    ) -> Result<(), Box<dyn Error>> {
        let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
        let mut run = Run::begin(&self.repo, &self.log, &options)?;
        let base = run.history().newest_backup();
        let start = (Instant::now(), cpu());
        let options = WriterOptions { compression, ..WriterOptions::default() };
        let foundation = Foundation { base, ..Foundation::default() };
        let writer = BackupWriter::new(&run, &foundation, options)?;
        let next = AtomicU64::new(0);
        thread::scope(|scope| {
            let work = || {
                let mut buffer = vec![0; EXTENT];
                loop {
                    let file = next.fetch_add(1, Ordering::Relaxed);
                    if file >= FILES {
                        return Ok(());
                    }
                    let path = ItemPath::new(format!("db/t{file}.ibd")).unwrap();
                    let id = writer.begin_file(file_spec(path))?;
                    for extent in 0..mib / FILES {
                        pages.extent(file, extent, round, &mut buffer);
                        writer.pages(id, extent * 64, &buffer)?;
                    }
                    writer.end_file(id, mib / FILES * EXTENT as u64)?;
                }
            };
            let threads = [scope.spawn(work), scope.spawn(work)];
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        })
        .map_err(|error: holdfast_repo::data::writer::WriteError| error)?;
        let meters = Arc::clone(writer.meters());
        let data = writer.finish(&run)?;
        let took = (start.0.elapsed(), cpu() - start.1);
        let busy = |name: &str, meter: &Meter| format!("{name} {:.2} s", meter.busy().as_secs_f64());
        println!(
            "  {:<12} {:5.0} MiB/s, {:.2} s, CPU {:.2} s; stored {:.3}; {}, {}, {}, {}, {}",
            if base.is_some() { "incremental" } else { "full" },
            mib as f64 / took.0.as_secs_f64(),
            took.0.as_secs_f64(),
            took.1.as_secs_f64(),
            data.totals.bytes_stored as f64 / data.totals.bytes as f64,
            busy("hash", &meters.compare),
            busy("compress", &meters.pipeline.compress),
            busy("seal", &meters.pipeline.seal),
            busy("upload", &meters.pipeline.upload),
            busy("finish", &meters.pipeline.finish),
        );
        self.end(&mut run, data, base)
    }

    /// Backs up small files of 7 pages, the first of which differs in each round.
    fn small_files(&self, files: u64, round: u64) -> Result<(), Box<dyn Error>> {
        let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
        let mut run = Run::begin(&self.repo, &self.log, &options)?;
        let base = run.history().newest_backup();
        let start = (Instant::now(), cpu());
        let foundation = Foundation { base, ..Foundation::default() };
        let writer = BackupWriter::new(&run, &foundation, WriterOptions::default())?;
        let mut buffer = vec![0; 7 * 16_384];
        for file in 0..files {
            for (page, bytes) in buffer.chunks_exact_mut(16_384).enumerate() {
                bytes[..8].copy_from_slice(&(file * 7 + page as u64 + 1).to_le_bytes());
                bytes[8..16].copy_from_slice(&(if file == 0 { round } else { 0 }).to_le_bytes());
            }
            let path = ItemPath::new(format!("db{}/t{file:07}.ibd", file / 1_000)).unwrap();
            let id = writer.begin_file(file_spec(path))?;
            writer.pages(id, 0, &buffer)?;
            writer.end_file(id, buffer.len() as u64)?;
        }
        let data = writer.finish(&run)?;
        let status = std::fs::read_to_string("/proc/self/status")?;
        let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
        let took = (start.0.elapsed(), cpu() - start.1);
        println!(
            "{files} files: {:.1} s, CPU {:.1} s, stored {} KiB, {peak}",
            took.0.as_secs_f64(),
            took.1.as_secs_f64(),
            data.totals.bytes_stored >> 10
        );
        self.end(&mut run, data, base)
    }

    fn end(&self, run: &mut Run, data: FinishedData, base: Option<RunNo>) -> Result<(), Box<dyn Error>> {
        let head = Head {
            schema: HEAD_SCHEMA,
            run: run.no().0,
            source: self.log.source.to_string(),
            kind: self.log.kind.to_string(),
            method: "speed".into(),
            started_at: jiff::Timestamp::UNIX_EPOCH,
            finished_at: jiff::Timestamp::UNIX_EPOCH,
            tags: Vec::new(),
            server: serde_json::Map::new(),
            redo: None,
            position: None,
            totals: data.totals,
            flags: Vec::new(),
            roots: data.roots,
            base: base.map(|run| run.0),
            more: serde_json::Map::new(),
        };
        run.finish(Ending::Backup { head: head.encode()?, refs: data.refs, parts: data.parts })?;
        Ok(())
    }

    fn restore(&self, run: RunNo) -> Result<(), Box<dyn Error>> {
        let start = (Instant::now(), cpu());
        let backup = Backup::open(&self.repo, &History::read(&self.repo, &self.log)?, run)?;
        let mut wants = Vec::new();
        for item in backup.items() {
            let item = item?;
            for leaf in 0..item.page_count().div_ceil(4_096) {
                for entry in backup.leaf(&item, leaf)? {
                    if let PageEntry::Stored(stored) = entry {
                        wants.push(PageWant {
                            chunk: stored.chunk,
                            slot: stored.slot,
                            hash: stored.hash,
                            token: 0,
                        });
                    }
                }
            }
        }
        wants.sort_by_key(|want| (want.chunk, want.slot));
        let bytes = AtomicU64::new(0);
        backup.source().fetch_pages(&wants, FetchOptions::default(), &|_| String::new(), &|pages| {
            bytes.fetch_add(pages.wants.len() as u64 * 16_384, Ordering::Relaxed);
            Ok::<_, RepoError>(())
        })?;
        println!(
            "  {:<12} {:5.0} MiB/s, CPU {:.2} s",
            format!("fetch {run}"),
            bytes.into_inner() as f64 / 1_048_576.0 / start.0.elapsed().as_secs_f64(),
            (cpu() - start.1).as_secs_f64()
        );
        Ok(())
    }
}

/// Copies the three backups of `from` into a new repository.
fn copies(from: &Case, to: &Case) -> Result<(), Box<dyn Error>> {
    let history = History::read(&from.repo, &from.log)?;
    let run = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    let options = CopyOptions { run, ..CopyOptions::default() };
    let mut copier = Copier::new(&from.repo, &history, &to.repo, to.log.source.clone(), options)?;
    for run in 1..=3 {
        let start = (Instant::now(), cpu());
        let Copied::Now(report) = copier.copy(RunNo(run))? else { return Err("it was there".into()) };
        let took = (start.0.elapsed(), cpu() - start.1);
        println!(
            "  {:<12} {:5.0} MiB/s, {:.2} s, CPU {:.2} s; read {:.3}, stored {:.3}",
            format!("copy #{run}"),
            report.totals.bytes as f64 / 1_048_576.0 / took.0.as_secs_f64(),
            took.0.as_secs_f64(),
            took.1.as_secs_f64(),
            report.bytes_read as f64 / report.totals.bytes as f64,
            report.totals.bytes_stored as f64 / report.totals.bytes as f64,
        );
    }
    Ok(())
}

fn file_spec(path: ItemPath) -> FileSpec {
    FileSpec {
        path,
        item_type: ItemType::File,
        role: FileRole::Tablespace,
        mode: 0o640,
        page_size: PageSize::DEFAULT_FILE,
        tablespace: None,
        outside: None,
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let directory = args.next().filter(|arg| arg != "-").map(PathBuf::from);
    let mib: u64 = args.next().map_or(Ok(1_024), |arg| arg.parse())?;
    if let Some(files) = args.next() {
        let store: Arc<dyn Store> = Arc::new(FsStore::create(directory.ok_or("a directory, please")?)?);
        let log = LogName { source: "speed".parse()?, kind: Kind::Physical };
        let case = Case { repo: Arc::new(Repo::init(store, &Protection::None)?), log };
        return (0..3).try_for_each(|round| case.small_files(files.parse()?, round));
    }
    let pages = Pages::new();
    alone(&pages)?;
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        for compression in ["none", "lz4", "zstd:1"] {
            println!("{compression}, {suite:?}");
            let name = format!("{suite:?}-{compression}").replace(':', "-");
            let case = new_case(directory.as_deref(), &name, suite)?;
            for round in 0..3 {
                case.backup(&pages, mib, round, compression.parse()?)?;
            }
            case.restore(RunNo(1))?;
            case.restore(RunNo(3))?;
            copies(&case, &new_case(directory.as_deref(), &format!("{name}-copy"), suite)?)?;
        }
    }
    Ok(())
}

fn new_case(directory: Option<&Path>, name: &str, suite: Suite) -> Result<Case, Box<dyn Error>> {
    let store: Arc<dyn Store> = match directory {
        Some(directory) => Arc::new(FsStore::create(directory.join(name))?),
        None => Arc::new(MemStore::new()),
    };
    let password = Password::new("speed".to_owned()).ok_or("no password")?;
    let protection = match suite {
        Suite::None => Protection::None,
        Suite::X25519Aes256Gcm => Protection::Password { password: &password, kdf: KdfParams::MINIMUM },
    };
    let log = LogName { source: "speed".parse()?, kind: Kind::Physical };
    Ok(Case { repo: Arc::new(Repo::init(store, &protection)?), log })
}

/// The throughput of each stage alone on one core, as a yardstick.
fn alone(pages: &Pages) -> Result<(), Box<dyn Error>> {
    let mut buffer = vec![0; EXTENT];
    pages.extent(1, 1, 1, &mut buffer);
    let rate = |name: &str, work: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..200).for_each(|_| work());
        println!("{name:<8} alone on one core: {:5.0} MiB/s", 200.0 / start.elapsed().as_secs_f64());
    };
    let key = holdfast_pipe::HashKey::new([7; 32]);
    let mut sum = PageHash([0; 16]);
    rate("hash", &mut || {
        for page in buffer.chunks(16_384) {
            sum = key.hash(page);
        }
    });
    let mut out = Vec::new();
    for text in ["lz4", "zstd:1"] {
        let mut compressor = Compressor::new(text.parse()?)?;
        rate(text, &mut || {
            compressor.compress(&buffer, &mut out).unwrap();
        });
    }
    Ok(())
}
