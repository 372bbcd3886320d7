//! Progress of an operation: a bar on a terminal, a line every few seconds elsewhere, an object each second
//! for machines. All three show the same figures.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use holdfast_core::Event;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::text;
use crate::args::units::{ByteSize, Span};

/// Time constant for smoothing the rate: roughly the last ten seconds count.
const SMOOTHING_S: f64 = 10.0;

/// Used while the total is known.
const BAR_STYLE: &str = "{prefix:9} [{bar:28}] {wide_msg}";
/// Used while the total is unknown, but progress is reported.
const COUNT_STYLE: &str = "{prefix:9} {wide_msg}";
/// Used while no progress is reported.
const PHASE_STYLE: &str = "{prefix:9}";

enum Screen {
    Silent,
    /// Output is due once per `every`.
    Paced {
        every: Duration,
        last: Option<Instant>,
    },
    Bar(ProgressBar),
}

/// The current phase and its pace.
pub(super) struct Progress {
    screen: Screen,
    phase: &'static str,
    phase_began: Instant,
    bytes_done: u64,
    bytes_total: u64,
    bytes_per_s: f64,
    seen: Option<(Instant, u64)>,
}

impl Progress {
    fn new(screen: Screen) -> Self {
        Self {
            screen,
            phase: "",
            phase_began: Instant::now(),
            bytes_done: 0,
            bytes_total: 0,
            bytes_per_s: 0.0,
            seen: None,
        }
    }

    pub(super) fn silent() -> Self {
        Self::new(Screen::Silent)
    }

    pub(super) fn lines() -> Self {
        Self::new(Screen::Paced { every: Duration::from_secs(5), last: None })
    }

    pub(super) fn stream() -> Self {
        Self::new(Screen::Paced { every: Duration::from_secs(1), last: None })
    }

    pub(super) fn bar() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        style(&bar, PHASE_STYLE);
        Self::new(Screen::Bar(bar))
    }

    /// Processes an event; returns whether a line is due.
    pub(super) fn advance(&mut self, event: &Event) -> bool {
        let now = Instant::now();
        match *event {
            Event::Phase { name } => {
                let screen = std::mem::replace(&mut self.screen, Screen::Silent);
                *self = Self { phase: name, ..Self::new(screen) };
                if let Screen::Paced { last, .. } = &mut self.screen {
                    *last = Some(now);
                }
            }
            Event::Progress { bytes_done, bytes_total } => self.measure(now, bytes_done, bytes_total),
            _ => return false,
        }
        let figures = self.figures();
        match &mut self.screen {
            Screen::Silent => false,
            Screen::Bar(bar) => {
                match event {
                    Event::Phase { .. } => {
                        style(bar, PHASE_STYLE);
                        bar.set_prefix(self.phase);
                    }
                    _ => {
                        bar.set_message(figures);
                        bar.set_length(self.bytes_total.max(1));
                        bar.set_position(self.bytes_done);
                        style(bar, if self.bytes_total == 0 { COUNT_STYLE } else { BAR_STYLE });
                    }
                }
                false
            }
            Screen::Paced { every, last } => {
                let due = last.is_none_or(|last| now.duration_since(last) >= *every);
                if due {
                    *last = Some(now);
                }
                due
            }
        }
    }

    fn measure(&mut self, now: Instant, bytes_done: u64, bytes_total: u64) {
        let bytes_total = if bytes_total == 0 { 0 } else { bytes_total.max(bytes_done) };
        (self.bytes_done, self.bytes_total) = (bytes_done, bytes_total);
        let Some((then, before)) = self.seen else {
            self.seen = Some((now, bytes_done));
            return;
        };
        let elapsed_s = now.duration_since(then).as_secs_f64();
        if elapsed_s < 0.1 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate for reading")]
        let current = bytes_done.saturating_sub(before) as f64 / elapsed_s;
        let weight = if self.bytes_per_s == 0.0 { 1.0 } else { 1.0 - (-elapsed_s / SMOOTHING_S).exp() };
        self.bytes_per_s += (current - self.bytes_per_s) * weight;
        self.seen = Some((now, bytes_done));
    }

    /// The current phase, which the next one's event ends, and how long it has taken.
    pub(super) fn ended(&self) -> Option<(&'static str, Span)> {
        (!self.phase.is_empty()).then(|| (self.phase, Span(self.phase_began.elapsed())))
    }

    pub(super) fn phase(&self) -> &'static str {
        self.phase
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and saturating"
    )]
    pub(super) fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s as u64
    }

    /// Time left at the current pace; unknown at the beginning and when there is no progress.
    pub(super) fn eta(&self) -> Option<Duration> {
        if self.bytes_total == 0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let left = self.bytes_total.saturating_sub(self.bytes_done) as f64;
        let seconds = left / self.bytes_per_s;
        (seconds.is_finite() && seconds < 1e7).then(|| Duration::from_secs_f64(seconds))
    }

    fn figures(&self) -> String {
        let (done, total) = (ByteSize(self.bytes_done), ByteSize(self.bytes_total));
        let rate = ByteSize(self.bytes_per_s());
        let Some(percent) = (u128::from(self.bytes_done) * 100).checked_div(u128::from(self.bytes_total))
        else {
            return if self.bytes_done == 0 { String::new() } else { format!("{done}, {rate}/s") };
        };
        let eta = self.eta().map_or_else(String::new, |eta| match eta.as_secs() {
            s if s < 60 => format!(", {} s left", s.max(1)),
            _ => format!(", {} left", Span(eta)),
        });
        format!("{percent}% of {total}: {done}, {rate}/s{eta}")
    }

    /// A complete line for a log.
    pub(super) fn line(&self) -> String {
        format!("{} {}: {}\n", text::now(), self.phase, self.figures())
    }

    /// Runs `write`, which prints to standard error, without tearing the bar.
    pub(super) fn above(&self, write: impl FnOnce()) {
        match &self.screen {
            Screen::Bar(bar) => bar.suspend(write),
            _ => write(),
        }
        let _gone = std::io::stderr().flush();
    }

    /// Removes the bar from the screen.
    pub(super) fn end(&mut self) {
        if let Screen::Bar(bar) = &self.screen {
            bar.finish_and_clear();
        }
        self.screen = Screen::Silent;
    }
}

fn style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
}
