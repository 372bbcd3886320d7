//! Threads that read files, each with buffers of its own.

use std::sync::Mutex;

use holdfast_pipe::{
    AlignedBuffer, Stop,
    lock::{into_inner, lock},
};

use crate::error::Result;

/// Bytes read at once: the largest chunk the repository makes.
pub(super) const EXTENT_BYTES: usize = 1 << 20;
/// Bytes from the start of a file that suffice to tell the geometry of any tablespace: the largest page 0.
pub(super) const PAGE0_BYTES: usize = 65_536;
/// Room for one page that need not begin at a block of the disk.
const PAGE_BUFFER_BYTES: usize = PAGE0_BYTES + 4096;
/// Bytes that the buffers of one reader thread take.
pub(crate) const BUFFERS_BYTES: usize = 2 * EXTENT_BYTES + PAGE_BUFFER_BYTES;

/// Buffers of one reader thread.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) extent: AlignedBuffer,
    pub(super) second: AlignedBuffer,
    pub(super) page: AlignedBuffer,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            extent: AlignedBuffer::new(EXTENT_BYTES),
            second: AlignedBuffer::new(EXTENT_BYTES),
            page: AlignedBuffer::new(PAGE_BUFFER_BYTES),
        }
    }
}

/// Runs `work` over `jobs` on `threads` threads. Jobs are started in order, results are returned as they
/// come. The first error ends it.
pub(super) fn on_threads<J: Send, R: Send>(
    jobs: Vec<J>,
    threads: usize,
    work: impl Fn(J, &mut Buffers) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let queue = Mutex::new(jobs.into_iter());
    let results = Mutex::new(Vec::new());
    let stop = Stop::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut buffers = Buffers::default();
                while !stop.is_stopped() {
                    let job = lock(&queue).next();
                    let Some(job) = job else { break };
                    match work(job, &mut buffers) {
                        Ok(result) => {
                            lock(&results).push(result);
                        }
                        Err(error) => stop.fail(error),
                    }
                }
            });
        }
    });
    match stop.take() {
        Some(error) => Err(error),
        None => Ok(into_inner(results)),
    }
}
