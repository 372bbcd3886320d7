//! Where lines go: standard output, standard error, and the bar on a terminal.

use std::{
    io::{self, Write as _},
    sync::Mutex,
};

use holdfast_pipe::lock::lock;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    progress::{Figures, Look},
    text,
    writer::Line,
};

/// Used while the total is known.
const BAR_STYLE: &str = "{prefix:9} [{bar:28}] {wide_msg}";
/// Used while the total is unknown, but progress is reported.
const COUNT_STYLE: &str = "{prefix:9} {wide_msg}";
/// Used while no progress is reported.
const PHASE_STYLE: &str = "{prefix:9}";

/// The first error in writing to standard output.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// Shows lines, in the order in which they come.
#[derive(Default)]
pub(super) struct Screen {
    bar: Option<ProgressBar>,
}

impl Screen {
    pub(super) fn show(&mut self, line: Line) {
        match line {
            Line::Out(text) => write_out(&text),
            Line::Text(text) => write_out(&text::harmless(&text)),
            Line::Err(text) => {
                let text = text::harmless(&text);
                match &self.bar {
                    Some(bar) => bar.suspend(|| write_err(&text)),
                    None => write_err(&text),
                }
            }
            Line::Draw(look) => draw(self.bar.get_or_insert_with(new_bar), look),
            Line::EndBar => {
                if let Some(bar) = self.bar.take() {
                    bar.finish_and_clear();
                }
            }
        }
    }
}

fn new_bar() -> ProgressBar {
    ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr())
}

fn draw(bar: &ProgressBar, look: Look) {
    let style = match &look.figures {
        None => PHASE_STYLE,
        Some(Figures { bytes_total: 0, .. }) => COUNT_STYLE,
        Some(_) => BAR_STYLE,
    };
    if let Some(Figures { text, bytes_done, bytes_total }) = look.figures {
        bar.set_message(text);
        bar.set_length(bytes_total.max(1));
        bar.set_position(bytes_done);
    }
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(look.phase);
}

/// Notes that part of the result could not be written.
pub(super) fn note_lost(error: io::Error) {
    lock(&LOST).get_or_insert(error);
}

/// Why part of the result could not be written, if so.
pub(super) fn lost() -> Option<io::Error> {
    lock(&LOST).take()
}

/// Writes to standard output. A reader that has closed it (`| head`) is not an error.
fn write_out(text: &str) {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => note_lost(error),
        _ => {}
    }
}

fn write_err(text: &str) {
    let _gone = io::stderr().lock().write_all(text.as_bytes());
}
