//! All output of the program. Nothing else prints.
//!
//! For people, the result goes to standard output; progress, warnings and errors go to standard error.
//! For machines (`--json`), each line of standard output is one object, and the last one is the result or the
//! error (`docs/reference/json.md`); errors also go to standard error, for readers of cron's mail.

use std::{
    fmt,
    io::{self, IsTerminal as _},
    sync::{Arc, Mutex},
};

use holdfast_core::{Error, Event, Listener, Result};
use holdfast_pipe::lock::lock;
use holdfast_repo::steps::{Step, Steps};
use serde::Serialize;

use crate::{args::units::Span, exit::Exit};

mod closable;
mod json;
mod progress;
mod screen;
pub(crate) mod text;
mod writer;

pub(crate) use closable::ClosableStdout;

use progress::{Due, Progress};
use screen::Screen;
use writer::{Line, Writer};

/// A verb's result: serde serializes it for machines, `render` formats it for people.
pub(crate) trait Render: Serialize {
    /// Writes whole lines.
    fn render(&self, out: &mut String) -> fmt::Result;
}

/// How much is printed besides the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    Quiet,
    Normal,
    Verbose,
}

/// The destination of a verb's output.
pub(crate) struct Output {
    json: Option<json::Stream>,
    verbosity: Verbosity,
    /// Held for no write: a reader may be slow, or read nothing.
    progress: Mutex<Progress>,
    writer: Writer,
}

impl Output {
    pub(crate) fn new(verb: &'static str, json: bool, verbosity: Verbosity) -> Self {
        let progress = match verbosity {
            Verbosity::Quiet => Progress::silent(),
            _ if json => Progress::stream(),
            _ if io::stderr().is_terminal() => Progress::bar(),
            _ => Progress::lines(),
        };
        let mut screen = Screen::default();
        let writer = Writer::new(move |line| screen.show(line));
        let json = json.then(|| json::Stream::new(verb, writer.clone()));
        Self { json, verbosity, progress: Mutex::new(progress), writer }
    }

    /// Prints the verb's result. Nothing is printed after it.
    pub(crate) fn result(&self, exit: Exit, result: &impl Render) {
        self.end();
        match &self.json {
            Some(stream) => stream.result(exit, result),
            None => {
                let mut text = String::new();
                if result.render(&mut text).is_ok() {
                    self.writer.write_soon(Line::Text(text));
                }
            }
        }
        self.written();
    }

    /// Ends a verb that works in parts: if it failed after `is_any` work, that work is
    /// reported before the error.
    pub(crate) fn ended(&self, done: Result<Exit>, result: &impl Render, is_any: bool) -> Result<Exit> {
        match &done {
            Ok(exit) => self.result(*exit, result),
            Err(_) if is_any => self.item(result),
            Err(_) => {}
        }
        done
    }

    /// Prints one of many parts of a result that is too large to collect, such as a line of `ls`.
    pub(crate) fn item(&self, item: &impl Render) {
        match &self.json {
            Some(stream) => stream.item(item),
            None => {
                let mut text = String::new();
                if item.render(&mut text).is_ok() {
                    self.writer.write(Line::Text(text));
                }
            }
        }
    }

    /// Prints a heading for the items that follow, in text output only.
    pub(crate) fn heading(&self, text: &str) {
        if self.json.is_none() {
            self.writer.write(Line::Text(format!("{}\n", text::one_line(text))));
        }
    }

    /// The error or exit code to use instead if part of the result could not be written.
    pub(crate) fn lost(&self, only_prints: bool) -> Option<Result<Exit>> {
        self.written();
        let cause = screen::lost()?;
        let error = Error::failed("not all of the result could be written to standard output")
            .caused_by(cause)
            .hinted("make room at the destination, and run it again");
        if only_prints {
            return Some(Err(error));
        }
        // The work itself is done.
        self.warning(error.to_string());
        Some(Ok(Exit::Finding))
    }

    /// Prints the verb's failure. Nothing is printed after it.
    pub(crate) fn error(&self, error: &Error) {
        self.end();
        if let Some(stream) = &self.json {
            stream.error(error);
        }
        self.writer.write_soon(Line::Err(text::error(error)));
        self.written();
    }

    /// Forwards the steps of work on the repository as events.
    pub(crate) fn steps(self: &Arc<Self>) -> Steps {
        let output = Arc::clone(self);
        Steps::new(move |step| {
            output.event(match step {
                Step::Phase(name) => Event::Phase { name },
                Step::Bytes { done, total } => Event::Progress { bytes_done: done, bytes_total: total },
            });
        })
    }

    /// Prints a warning that does not invalidate the result, before whatever is asked next.
    pub(crate) fn warning(&self, text: String) {
        self.event(Event::Warning { text });
        self.writer.drain();
    }

    /// Prints a message for the user at the terminal. Never waits.
    pub(crate) fn notice(&self, text: &str) {
        self.writer.write_soon(Line::Err(format!("{text}\n")));
    }

    /// Prints a question; the answer is typed on the same line.
    pub(crate) fn ask(&self, question: &str) {
        self.writer.write_soon(Line::Err(question.to_owned()));
        self.writer.drain();
    }

    /// The program was asked to end: from now on nothing waits for a reader that reads nothing.
    pub(crate) fn interrupt(&self) {
        self.writer.interrupt();
    }

    /// Waits until all is written.
    fn written(&self) {
        if !self.writer.drain() {
            screen::note_lost(io::Error::new(io::ErrorKind::TimedOut, "nothing reads it"));
        }
    }

    fn end(&self) {
        let mut progress = self.lock();
        progress.end();
        self.writer.write_soon(Line::EndBar);
        if self.verbosity == Verbosity::Verbose && self.json.is_none() {
            self.say_ended(&progress);
        }
    }

    /// Prints how long the phase took that has just ended.
    fn say_ended(&self, progress: &Progress) {
        if let Some((phase, took)) = progress.ended() {
            self.say(format!("{phase}: {took}\n"));
        }
    }

    fn say(&self, text: String) {
        self.writer.write(Line::Err(text));
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
            self.say_ended(&progress);
        }
        let due = progress.advance(&event);
        let is_left_out = matches!(event, Event::Progress { .. }) && self.writer.is_behind();
        if is_left_out || (self.verbosity == Verbosity::Quiet && !matches!(event, Event::Warning { .. })) {
            return;
        }
        if let Some(stream) = &self.json {
            if matches!(due, Due::Line) || !matches!(event, Event::Progress { .. }) {
                stream.event(&event, &progress);
            }
            return;
        }
        match due {
            Due::Draw(look) => self.writer.write(Line::Draw(look)),
            Due::Line if matches!(event, Event::Progress { .. }) => self.say(progress.line()),
            Due::Line | Due::Nothing => {}
        }
        match &event {
            Event::Lock { statement, wait, held } if self.verbosity == Verbosity::Verbose => {
                let (wait, held) = (Span(*wait), Span(*held));
                let statement = text::one_line(statement);
                self.say(format!("{statement}: waited {wait}, held {held}\n"));
            }
            Event::Phase { .. } | Event::Progress { .. } | Event::Lock { .. } => {}
            Event::Warning { text } => self.say(format!("warning: {}\n", text::one_line(text))),
            Event::Note { text } => self.say(format!("{}\n", text::one_line(text))),
        }
    }
}

/// Prints clap's message: help and versions to standard output, errors to standard error.
pub(crate) fn usage(error: &clap::Error, json: bool) -> Exit {
    if !error.use_stderr() {
        let _gone = error.print();
        return Exit::Done;
    }
    if json {
        let mut screen = Screen::default();
        let writer = Writer::new(move |line| screen.show(line));
        json::Stream::new("", writer.clone()).error(&text::of_clap(error));
        writer.drain();
    }
    let _gone = error.print();
    Exit::Usage
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, time::Duration};

    use super::*;

    /// What is printed of `events`, for people and for machines.
    fn printed(events: &[Event]) -> [String; 2] {
        [false, true].map(|is_json| {
            let (tell, told) = channel();
            let writer = Writer::new(move |line| match line {
                Line::Out(text) => tell.send(text).unwrap(),
                Line::Err(text) => tell.send(text::harmless(&text).into_owned()).unwrap(),
                _ => {}
            });
            let json = is_json.then(|| json::Stream::new("backup", writer.clone()));
            let progress = Mutex::new(Progress::lines());
            let output = Output { json, verbosity: Verbosity::Verbose, progress, writer };
            events.iter().for_each(|event| output.event(event.clone()));
            output.written();
            told.try_iter().collect()
        })
    }

    /// Anybody who can create a table on the server chooses what it is called.
    #[test]
    fn a_table_with_a_strange_name_is_in_one_line_of_the_log() {
        let name = "t\x1b[2J\nbackup db1/physical #9 completed OK";
        let text = || format!("the table {name} was left out");
        let (wait, held) = (Duration::ZERO, Duration::ZERO);
        let events = [
            Event::Warning { text: text() },
            Event::Note { text: text() },
            Event::Lock { statement: format!("LOCK TABLES `{name}` READ"), wait, held },
        ];
        let [text, json] = printed(&events);
        assert_eq!(text.lines().count(), events.len(), "{text}");
        assert!(!text.replace('\n', "").contains(char::is_control), "{text}");
        // Machines get the name itself.
        assert_eq!(json.matches("t\\u001b[2J\\nbackup db1").count(), events.len(), "{json}");
    }
}
