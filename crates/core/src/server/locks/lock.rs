//! What all locks of a backup share: how long they may wait and be held, and a record of how long they did.

use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use crate::{
    event::{Event, Listener},
    server::connection::ANSWER_MARGIN,
};

/// Time limits of a lock.
#[derive(Clone, Copy, Debug)]
pub struct LockLimits {
    /// Longest wait of one attempt. Short, because new statements queue behind a lock that waits. Whole
    /// seconds.
    pub wait_max: Duration,
    /// How long it may be held (`--lock-max`); then the session is cut, and the server releases it.
    pub held_max: Option<Duration>,
}

/// How long, and how often, a backup may be in the way of a server's other sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockPolicy {
    /// Longest time that commits (MariaDB), or writes to tables of other engines, may be blocked in one try.
    pub held_max: Duration,
    /// Longest time that DDL, and on MariaDB also writes to non-transactional tables, may be blocked in one try.
    pub ddl_held_max: Duration,
    /// Longest time to wait for a lock in one try.
    pub wait_max: Duration,
    /// Number of tries to take the locks.
    pub tries: u32,
    /// How long to keep trying, beyond that number, while other sessions are in the way of the locks.
    pub patience: Duration,
}

impl Default for LockPolicy {
    fn default() -> Self {
        Self {
            held_max: Duration::from_secs(2),
            ddl_held_max: Duration::from_secs(30),
            wait_max: Duration::from_secs(2),
            tries: 3,
            patience: Duration::from_secs(600),
        }
    }
}

impl LockPolicy {
    /// Limits of the locks that block writes.
    pub(crate) fn limits(&self) -> LockLimits {
        LockLimits { wait_max: self.wait_max, held_max: Some(self.held_max) }
    }

    /// Limits of the locks that block DDL.
    pub(crate) fn ddl_limits(&self) -> LockLimits {
        LockLimits { wait_max: self.wait_max, held_max: Some(self.ddl_held_max) }
    }
}

impl LockLimits {
    /// A server that has not answered a lock request after this long is not going to answer.
    pub(super) fn answer_max(&self) -> Duration {
        self.wait_max + ANSWER_MARGIN
    }
}

impl Default for LockLimits {
    fn default() -> LockLimits {
        LockLimits { wait_max: Duration::from_secs(2), held_max: Some(Duration::from_secs(2)) }
    }
}

/// How an attempt to take a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Attempt {
    /// The lock is held.
    Granted,
    /// Another session was in the way for longer than [`LockLimits::wait_max`]. Locks held before are still
    /// held.
    TimedOut,
}

/// A lock that was held, with times measured on our side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LockRecord {
    /// The statement that took it.
    pub statement: String,
    /// How long the statement waited.
    #[serde(rename = "wait_ms", serialize_with = "milliseconds")]
    pub wait: Duration,
    /// How long the lock was held, including its release; zero for an attempt that timed out.
    #[serde(rename = "held_ms", serialize_with = "milliseconds")]
    pub held: Duration,
}

fn milliseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64() * 1000.0)
}

impl LockRecord {
    /// Reports the record to a listener.
    pub fn report(&self, listener: &dyn Listener) {
        let LockRecord { statement, wait, held } = self.clone();
        listener.event(Event::Lock { statement, wait, held });
    }
}

/// Measures locks as they are taken and released.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    held: Vec<(&'static str, Duration, Instant)>,
    records: Vec<LockRecord>,
}

impl Recorder {
    pub(super) fn granted(&mut self, statement: &'static str, asked_at: Instant) {
        self.held.push((statement, asked_at.elapsed(), Instant::now()));
    }

    pub(super) fn timed_out(&mut self, statement: &'static str, asked_at: Instant) {
        let statement = statement.to_owned();
        self.records.push(LockRecord { statement, wait: asked_at.elapsed(), held: Duration::ZERO });
    }

    /// Records that everything was released.
    pub(super) fn all_released(&mut self) {
        self.records.extend(self.held.drain(..).map(|(statement, wait, since)| LockRecord {
            statement: statement.to_owned(),
            wait,
            held: since.elapsed(),
        }));
    }

    pub(super) fn records(&self) -> &[LockRecord] {
        &self.records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each attempt has one record, and JSON shows times in milliseconds.
    #[test]
    fn records() {
        let mut recorder = Recorder::default();
        let now = Instant::now();
        recorder.timed_out("a", now);
        recorder.granted("a", now);
        recorder.granted("b", now);
        recorder.all_released();
        recorder.all_released();
        let statements: Vec<&str> =
            recorder.records().iter().map(|record| record.statement.as_str()).collect();
        assert_eq!(statements, ["a", "a", "b"]);
        let record = LockRecord {
            statement: "x".into(),
            wait: Duration::from_micros(1500),
            held: Duration::from_millis(2),
        };
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(json, r#"{"statement":"x","wait_ms":1.5,"held_ms":2.0}"#);
    }
}
