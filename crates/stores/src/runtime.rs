//! The runtime that moves bytes for all stores of the process.

use std::{
    io,
    sync::{Arc, Mutex},
};

use holdfast_pipe::lock::lock;
use tokio::runtime::{Builder, Runtime};

/// Moving bytes means waiting more than computing.
const THREADS: usize = 2;

/// The runtime, started if there is none.
pub(crate) fn runtime() -> io::Result<Arc<Runtime>> {
    static RUNTIME: Mutex<Option<Arc<Runtime>>> = Mutex::new(None);
    let mut runtime = lock(&RUNTIME);
    if let Some(runtime) = &*runtime {
        return Ok(Arc::clone(runtime));
    }
    let started = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("holdfast-store")
        .enable_all()
        .build()?;
    Ok(Arc::clone(runtime.insert(Arc::new(started))))
}
