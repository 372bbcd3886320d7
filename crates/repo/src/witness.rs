//! What somebody has seen of logs before, and keeps elsewhere than in the store. It shows if the store has been set
//! back: each object of an old state is genuine, and so is the end of each chain
//! (`docs/reference/repository.md` section 16).

use std::{collections::BTreeMap, fmt, sync::Mutex};

use holdfast_pipe::lock::lock;

use crate::format::{
    hash::ObjectHash,
    names::{LogName, RunNo},
};

/// The newest outcome that was seen of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its run.
    pub run: RunNo,
    /// The hash of its bytes.
    pub outcome: ObjectHash,
}

/// How a store contradicts what was seen of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetBack {
    /// The run whose outcome was seen.
    pub run: RunNo,
    /// Whether another outcome is in its place now. If not, there is none.
    pub is_replaced: bool,
}

impl fmt::Display for SetBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_replaced {
            true => f.write_str("is not the one that this host has seen"),
            false => f.write_str("is gone, and this host has seen it"),
        }?;
        f.write_str(": the newest outcomes were deleted, or an earlier state of the store was put back")
    }
}

/// What was seen of logs before, and what is seen of them now.
#[derive(Default)]
pub struct Witness {
    before: BTreeMap<LogName, Seen>,
    now: Mutex<BTreeMap<LogName, Result<Seen, SetBack>>>,
    tell: Option<Tell>,
}

type Tell = Box<dyn Fn(&LogName, SetBack) + Send + Sync>;

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Witness(of {} logs)", self.before.len())
    }
}

impl Witness {
    /// With what was seen before. `tell` is called once for each log that is found set back.
    #[must_use]
    pub fn new(
        before: BTreeMap<LogName, Seen>,
        tell: impl Fn(&LogName, SetBack) + Send + Sync + 'static,
    ) -> Self {
        Self { before, now: Mutex::default(), tell: Some(Box::new(tell)) }
    }

    /// What was seen of a log before.
    pub(crate) fn before(&self, log: &LogName) -> Option<Seen> {
        self.before.get(log).copied()
    }

    /// Notes what is seen of a log now.
    pub(crate) fn note(&self, log: &LogName, now: Result<Seen, SetBack>) {
        let earlier = lock(&self.now).insert(log.clone(), now);
        if let (Some(tell), Err(set_back)) = (&self.tell, now)
            && earlier != Some(now)
        {
            tell(log, set_back);
        }
    }

    /// What is to be remembered: the newest outcome of each log; of one that was set back, the one that was seen
    /// before.
    #[must_use]
    pub fn seen(&self) -> BTreeMap<LogName, Seen> {
        let mut seen = self.before.clone();
        for (log, now) in &*lock(&self.now) {
            if let Ok(now) = now
                && seen.get(log).is_none_or(|before| before.run < now.run)
            {
                seen.insert(log.clone(), *now);
            }
        }
        seen
    }

    /// The logs that were found set back.
    #[must_use]
    pub fn set_back(&self) -> BTreeMap<LogName, SetBack> {
        let now = lock(&self.now);
        now.iter().filter_map(|(log, now)| Some((log.clone(), now.err()?))).collect()
    }
}
