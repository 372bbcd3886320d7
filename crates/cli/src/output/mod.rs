//! Everything the program says. Nothing else prints.
//!
//! People: the result on standard output, progress, warnings and errors on standard error. Machines (`--json`): one
//! object on each line of standard output, the last one is the result or the error (`docs/reference/json.md`); errors
//! also stand on standard error, for whoever reads cron's mail.

use std::{
    fmt,
    io::{self, IsTerminal as _, Write as _},
    sync::{Arc, Mutex},
};

use holdfast_core::{Error, Event, Listener, Result};
use holdfast_pipe::lock::lock;
use holdfast_repo::steps::{Step, Steps};
use serde::Serialize;

use crate::{args::units::Span, exit::Exit};

mod json;
mod progress;
pub(crate) mod text;

use progress::Progress;

/// A verb's result: serde writes it for machines, this for people.
pub(crate) trait Render: Serialize {
    /// Writes whole lines.
    fn render(&self, out: &mut String) -> fmt::Result;
}

/// How much is said besides the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    Quiet,
    Normal,
    Verbose,
}

/// Where a verb's words go.
pub(crate) struct Output {
    json: Option<json::Stream>,
    verbosity: Verbosity,
    progress: Mutex<Progress>,
}

impl Output {
    pub(crate) fn new(verb: &'static str, json: bool, verbosity: Verbosity) -> Self {
        let progress = match verbosity {
            Verbosity::Quiet => Progress::silent(),
            _ if json => Progress::stream(),
            _ if io::stderr().is_terminal() => Progress::bar(),
            _ => Progress::lines(),
        };
        let json = json.then(|| json::Stream::new(verb));
        Self { json, verbosity, progress: Mutex::new(progress) }
    }

    /// The verb's result, after which nothing is said.
    pub(crate) fn result(&self, exit: Exit, result: &impl Render) {
        self.end();
        match &self.json {
            Some(stream) => stream.result(exit, result),
            None => {
                let mut text = String::new();
                if result.render(&mut text).is_ok() {
                    write_out(&text);
                }
            }
        }
    }

    /// Ends a verb that works in parts: what was done of them before an error, if anything, is told before that.
    pub(crate) fn ended(&self, done: Result<Exit>, result: &impl Render, is_any: bool) -> Result<Exit> {
        match &done {
            Ok(exit) => self.result(*exit, result),
            Err(_) if is_any => self.item(result),
            Err(_) => {}
        }
        done
    }

    /// One of many parts of a result, too many to keep: a line of `ls`.
    pub(crate) fn item(&self, item: &impl Render) {
        match &self.json {
            Some(stream) => stream.item(item),
            None => {
                let mut text = String::new();
                if item.render(&mut text).is_ok() {
                    write_out(&text);
                }
            }
        }
    }

    /// What the items that follow are, for people.
    pub(crate) fn heading(&self, text: &str) {
        if self.json.is_none() {
            write_out(&format!("{text}\n"));
        }
    }

    /// What is to be said, in place of the exit code, where not all of it could be written.
    pub(crate) fn lost(&self, only_prints: bool) -> Option<Result<Exit>> {
        let cause = lock(&LOST).take()?;
        let error = Error::failed("not all of the result could be written to standard output")
            .caused_by(cause)
            .hinted("make room where it goes, and run it again");
        if only_prints {
            return Some(Err(error));
        }
        // It is done all the same.
        self.warning(error.to_string());
        Some(Ok(Exit::Finding))
    }

    /// The verb's failure, after which nothing is said.
    pub(crate) fn error(&self, error: &Error) {
        self.end();
        if let Some(stream) = &self.json {
            stream.error(error);
        }
        write_err(&text::error(error));
    }

    /// What work on the repository itself tells.
    pub(crate) fn steps(self: &Arc<Self>) -> Steps {
        let output = Arc::clone(self);
        Steps::new(move |step| {
            output.event(match step {
                Step::Phase(name) => Event::Phase { name },
                Step::Bytes { done, total } => Event::Progress { bytes_done: done, bytes_total: total },
            });
        })
    }

    /// Something to look at; the result is sound all the same.
    pub(crate) fn warning(&self, text: String) {
        self.event(Event::Warning { text });
    }

    /// Something for the person at the terminal, now.
    pub(crate) fn notice(&self, text: &str) {
        self.lock().above(|| write_err(&format!("{text}\n")));
    }

    /// The same, with the answer on the same line.
    pub(crate) fn ask(&self, question: &str) {
        self.lock().above(|| write_err(question));
    }

    fn end(&self) {
        let mut progress = self.lock();
        progress.end();
        if self.verbosity == Verbosity::Verbose && self.json.is_none() {
            say_ended(&progress);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        lock(&self.progress)
    }
}

impl Listener for Output {
    fn event(&self, event: Event) {
        let mut progress = self.lock();
        if matches!(event, Event::Phase { .. }) && self.verbosity == Verbosity::Verbose && self.json.is_none()
        {
            say_ended(&progress);
        }
        let due = progress.advance(&event);
        if self.verbosity == Verbosity::Quiet && !matches!(event, Event::Warning { .. }) {
            return;
        }
        if let Some(stream) = &self.json {
            if due || !matches!(event, Event::Progress { .. }) {
                stream.event(&event, &progress);
            }
            return;
        }
        match &event {
            Event::Progress { .. } if due => write_err(&progress.line()),
            Event::Lock { statement, wait, held } if self.verbosity == Verbosity::Verbose => {
                let (wait, held) = (Span(*wait), Span(*held));
                progress.above(|| write_err(&format!("{statement}: waited {wait}, held {held}\n")));
            }
            Event::Phase { .. } | Event::Progress { .. } | Event::Lock { .. } => {}
            Event::Warning { text } => progress.above(|| write_err(&format!("warning: {text}\n"))),
            Event::Note { text } => progress.above(|| write_err(&format!("{text}\n"))),
        }
    }
}

/// How long the phase took that is over.
fn say_ended(progress: &Progress) {
    if let Some((phase, took)) = progress.ended() {
        progress.above(|| write_err(&format!("{phase}: {took}\n")));
    }
}

/// Why something could not be written to standard output, at first.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// A reader that has gone away (`| head`) is not an error of ours.
fn write_out(text: &str) {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = written.or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    }) {
        lock(&LOST).get_or_insert(error);
    }
}

fn write_err(text: &str) {
    let _gone = io::stderr().lock().write_all(text.as_bytes());
}

/// What clap has to say: help and versions on standard output, complaints on standard error.
pub(crate) fn usage(error: &clap::Error, json: bool) -> Exit {
    if !error.use_stderr() {
        let _gone = error.print();
        return Exit::Done;
    }
    if json {
        json::Stream::new("").error(&text::of_clap(error));
    }
    let _gone = error.print();
    Exit::Usage
}
