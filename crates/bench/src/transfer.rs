//! `holdfast-bench put` and `get`: the minimum cost of moving bytes to and from object storage. They send all
//! files of a directory, or read all objects and keep nothing, with the client that Holdfast uses, as many in
//! parallel as there are processors.

use std::{
    env, fs,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context, Result};
use clap::Args;
use holdfast_repo::store::{ObjectInfo, ObjectPath, Store};
use holdfast_stores::{StoreOptions, bucket::BucketOptions, create_store, open_store};

/// Of one write to, or one read from the store.
const PIECE_BYTES: usize = 8 << 20;

/// What, and where to.
#[derive(Args, Debug)]
pub(crate) struct PutArgs {
    /// Its files, in all directories below
    #[arg(long)]
    from: PathBuf,
    /// s3://bucket/prefix; the rest is in the environment, as for the tools of AWS
    #[arg(long)]
    to: String,
}

/// Where from.
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// s3://bucket/prefix; the rest is in the environment, as for the tools of AWS
    #[arg(long)]
    from: String,
}

/// Sends all files.
pub(crate) fn put(args: &PutArgs) -> Result<()> {
    let store = create_store(&args.to, &options())?;
    let mut files = Vec::new();
    collect(&args.from, &mut files)?;
    in_parallel(&files, |at, file| send(&*store, at, file).with_context(|| file.display().to_string()))
}

/// Reads all objects.
pub(crate) fn get(args: &GetArgs) -> Result<()> {
    let store = open_store(&args.from, &options())?;
    let mut objects = Vec::new();
    store.list("", &mut |object| {
        objects.push(object);
        true
    })?;
    in_parallel(&objects, |_, object| read(&*store, object).with_context(|| object.path.to_string()))
}

fn options() -> StoreOptions {
    let environment = env::vars().filter(|(name, _)| name.starts_with("AWS_")).collect();
    StoreOptions {
        bucket: BucketOptions { environment, ..BucketOptions::default() },
        ..StoreOptions::default()
    }
}

/// Moves all, each by one of as many threads as there are processors.
fn in_parallel<T: Sync>(all: &[T], one: impl Fn(usize, &T) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = all.get(at) else { return Ok(()) };
                one(at, item)?;
            }
        };
        let threads: Vec<_> =
            (0..thread::available_parallelism()?.get()).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().ok().context("a thread panicked")?)
    })
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => collect(&entry.path(), files)?,
            false => files.push(entry.path()),
        }
    }
    Ok(())
}

fn send(store: &dyn Store, number: usize, file: &Path) -> Result<()> {
    let path = ObjectPath::new(format!("put/{number:06}")).context("a bad object path")?;
    let mut file = File::open(file)?;
    let mut upload = store.put(&path)?;
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        upload.write(&buffer[..read])?;
    }
    upload.finish()?;
    Ok(())
}

fn read(store: &dyn Store, object: &ObjectInfo) -> Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    for offset in (0..object.size_bytes).step_by(PIECE_BYTES) {
        let rest = usize::try_from(object.size_bytes - offset).unwrap_or(PIECE_BYTES);
        store.read_exact_at(&object.path, offset, &mut buffer[..rest.min(PIECE_BYTES)])?;
    }
    Ok(())
}
