//! Times an operation and its phases, by the events that it sends.

use std::{
    borrow::Cow,
    sync::Mutex,
    time::{Duration, Instant},
};

use holdfast_pipe::lock::lock;
use serde::{Deserialize, Serialize};

use crate::event::{Event, Listener};

/// How long a phase took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Its name, as in [`Event::Phase`]; those of a physical backup are `reach`, `start`, `copy`, `stop`,
    /// `complete`.
    pub name: Cow<'static, str>,
    /// Wall time.
    pub ms: u64,
}

/// Forwards events, and measures the time of the phases.
pub(crate) struct Watch<'a> {
    listener: &'a dyn Listener,
    started: Instant,
    phases: Mutex<Vec<(&'static str, Instant)>>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(listener: &'a dyn Listener) -> Self {
        Self { listener, started: Instant::now(), phases: Mutex::default() }
    }

    pub(crate) fn phase(&self, name: &'static str) {
        self.event(Event::Phase { name });
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn phases(&self) -> Vec<PhaseTime> {
        let phases = lock(&self.phases);
        let ends = phases.iter().skip(1).map(|(_, begin)| *begin).chain([Instant::now()]);
        phases
            .iter()
            .zip(ends)
            .map(|((name, begin), end)| PhaseTime {
                name: Cow::Borrowed(name),
                ms: ms(end.duration_since(*begin)),
            })
            .collect()
    }
}

impl Listener for Watch<'_> {
    fn event(&self, event: Event) {
        if let Event::Phase { name } = &event {
            lock(&self.phases).push((name, Instant::now()));
        }
        self.listener.event(event);
    }
}

pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
