//! `holdfast-bench put`: the minimum cost of sending bytes to object storage. It sends all files of a
//! directory with the client that Holdfast uses, as many in parallel as there are processors.

use std::{
    env, fs,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result};
use clap::Args;
use holdfast_repo::store::{ObjectPath, Store};
use holdfast_stores::{StoreOptions, bucket::BucketOptions, create_store};

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

pub(crate) fn run(args: &PutArgs) -> Result<()> {
    let environment = env::vars().filter(|(name, _)| name.starts_with("AWS_")).collect();
    let bucket = BucketOptions { environment, ..BucketOptions::default() };
    let store = create_store(&args.to, &StoreOptions { bucket, ..StoreOptions::default() })?;
    let mut files = Vec::new();
    collect(&args.from, &mut files)?;
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let send = || -> Result<()> {
            let store = Arc::clone(&store);
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = files.get(at) else { return Ok(()) };
                put(&*store, at, file).with_context(|| file.display().to_string())?;
            }
        };
        let senders: Vec<_> =
            (0..thread::available_parallelism()?.get()).map(|_| scope.spawn(send)).collect();
        senders.into_iter().try_for_each(|sender| sender.join().ok().context("a sender panicked")?)
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

fn put(store: &dyn Store, number: usize, file: &Path) -> Result<()> {
    let path = ObjectPath::new(format!("put/{number:06}")).context("a bad object path")?;
    let mut file = File::open(file)?;
    let mut upload = store.put(&path)?;
    let mut buffer = vec![0; 1 << 20];
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
