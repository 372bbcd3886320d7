//! Telling how far long work on a repository is.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use holdfast_pipe::lock::lock;

/// Bytes are told no more often.
const BYTES_EVERY: Duration = Duration::from_millis(250);

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A named part of the work begins.
    Phase(&'static str),
    /// How far it is.
    Bytes {
        /// Bytes done.
        done: u64,
        /// Bytes in all; 0 where nobody knows yet.
        total: u64,
    },
}

struct Listening {
    listener: Box<dyn Fn(Step) + Send + Sync>,
    told: Mutex<Instant>,
}

/// Whom long work tells how far it is; nobody, unless the caller says otherwise.
#[derive(Clone, Default)]
pub struct Steps(Option<Arc<Listening>>);

impl Steps {
    /// Tells `listener`, from whichever thread is at work.
    pub fn new(listener: impl Fn(Step) + Send + Sync + 'static) -> Self {
        let told = Mutex::new(Instant::now());
        Self(Some(Arc::new(Listening { listener: Box::new(listener), told })))
    }

    pub(crate) fn phase(&self, name: &'static str) {
        if let Some(it) = &self.0 {
            (it.listener)(Step::Phase(name));
        }
    }

    /// Tells of bytes, a few times each second and at the end.
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
