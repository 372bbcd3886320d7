//! Progress reports of long-running work on a repository.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use holdfast_pipe::lock::lock;

/// Bytes are reported no more often than this.
const BYTES_EVERY: Duration = Duration::from_millis(250);

/// A progress report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A named phase of the work begins.
    Phase(&'static str),
    /// Progress within the phase.
    Bytes {
        /// Bytes done.
        done: u64,
        /// Bytes in total; 0 while unknown.
        total: u64,
    },
}

struct Listening {
    listener: Box<dyn Fn(Step) + Send + Sync>,
    told: Mutex<Instant>,
}

/// The listener that long-running work reports its progress to; none, unless the caller sets one.
#[derive(Clone, Default)]
pub struct Steps(Option<Arc<Listening>>);

impl Steps {
    /// Reports to `listener`, on whichever thread does the work.
    pub fn new(listener: impl Fn(Step) + Send + Sync + 'static) -> Self {
        let told = Mutex::new(Instant::now());
        Self(Some(Arc::new(Listening { listener: Box::new(listener), told })))
    }

    pub(crate) fn phase(&self, name: &'static str) {
        if let Some(it) = &self.0 {
            (it.listener)(Step::Phase(name));
        }
    }

    /// Reports bytes, a few times each second and at the end.
    pub(crate) fn bytes(&self, done: u64, total: u64) {
        let Some(it) = &self.0 else { return };
        let mut told = lock(&it.told);
        if done == total || told.elapsed() >= BYTES_EVERY {
            *told = Instant::now();
            (it.listener)(Step::Bytes { done, total });
        }
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Steps(told)" } else { "Steps(silent)" })
    }
}
