//! `--json`: the stream that `docs/reference/json.md` describes.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use holdfast_core::{Error, Event};
use holdfast_pipe::lock::lock;
use serde::Serialize;

use super::{
    progress::Progress,
    text,
    writer::{Line as Written, Writer},
};
use crate::exit::Exit;

/// Raised when a field is removed or changes its meaning. New fields do not raise it.
const SCHEMA_VERSION: u32 = 1;

/// Writes one object per line.
pub(super) struct Stream {
    verb: &'static str,
    run_id: String,
    seq: AtomicU64,
    writer: Writer,
    writing: Mutex<()>,
}

#[derive(Serialize)]
struct Line<'a, T> {
    schema_version: u32,
    run_id: &'a str,
    seq: u64,
    time: String,
    verb: &'a str,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Body<'a, T> {
    Phase { name: &'a str },
    Progress { phase: &'a str, bytes_done: u64, bytes_total: u64, bytes_per_s: u64, eta_s: Option<u64> },
    Note { text: &'a str },
    Warning { text: &'a str },
    Lock { statement: &'a str, wait_ms: u128, held_ms: u128 },
    Item { data: &'a T },
    Result { exit_code: Exit, data: &'a T },
    Error { exit_code: Exit, kind: &'static str, message: String, hint: Option<&'a str> },
}

impl Stream {
    pub(super) fn new(verb: &'static str, writer: Writer) -> Self {
        Self { verb, run_id: run_id(), seq: AtomicU64::new(1), writer, writing: Mutex::new(()) }
    }

    fn write<T: Serialize>(&self, body: Body<'_, T>, write: impl FnOnce(&Writer, Written)) {
        let _order = lock(&self.writing);
        let line = Line {
            schema_version: SCHEMA_VERSION,
            run_id: &self.run_id,
            seq: self.seq.fetch_add(1, Ordering::Relaxed),
            time: text::now(),
            verb: self.verb,
            body,
        };
        if let Ok(mut text) = serde_json::to_string(&line) {
            text.push('\n');
            write(&self.writer, Written::Out(text));
        }
    }

    pub(super) fn event(&self, event: &Event, progress: &Progress) {
        let body = match event {
            Event::Phase { name } => Body::Phase { name },
            Event::Progress { bytes_done, bytes_total } => Body::Progress {
                phase: progress.phase(),
                bytes_done: *bytes_done,
                bytes_total: *bytes_total,
                bytes_per_s: progress.bytes_per_s(),
                eta_s: progress.eta().map(|eta| eta.as_secs()),
            },
            Event::Note { text } => Body::Note { text },
            Event::Warning { text } => Body::Warning { text },
            Event::Lock { statement, wait, held } => {
                Body::Lock { statement, wait_ms: wait.as_millis(), held_ms: held.as_millis() }
            }
        };
        self.write::<()>(body, Writer::write);
    }

    pub(super) fn item(&self, data: &impl Serialize) {
        self.write(Body::Item { data }, Writer::write);
    }

    pub(super) fn result(&self, exit: Exit, data: &impl Serialize) {
        self.write(Body::Result { exit_code: exit, data }, Writer::write_soon);
    }

    pub(super) fn error(&self, error: &Error) {
        let exit = Exit::from(error.kind());
        let message = error.to_string();
        let body = Body::Error { exit_code: exit, kind: exit.name(), message, hint: error.hint() };
        self.write::<()>(body, Writer::write_soon);
    }
}

/// Identifies the lines of one invocation in a shared log: time and process id, in hex.
fn run_id() -> String {
    let us = jiff::Timestamp::now().as_microsecond();
    format!("{us:013x}-{:x}", std::process::id())
}
