//! Progress of an operation: a bar on a terminal, a line every few seconds elsewhere, an object each second
//! for machines. All three show the same figures.

use std::time::{Duration, Instant};

use holdfast_core::Event;

use super::text;
use crate::args::units::{ByteSize, Span};

/// Time constant for smoothing the rate: roughly the last ten seconds count.
const SMOOTHING_S: f64 = 10.0;

enum Screen {
    Silent,
    /// Output is due once per `every`.
    Paced {
        every: Duration,
        last: Option<Instant>,
    },
    Bar,
}

/// What an event changes on the screen.
pub(super) enum Due {
    Nothing,
    /// A line with the figures.
    Line,
    Draw(Look),
}

/// How the bar looks.
pub(super) struct Look {
    pub(super) phase: &'static str,
    /// Unless no progress is reported.
    pub(super) figures: Option<Figures>,
}

/// What the bar says of the progress.
pub(super) struct Figures {
    pub(super) text: String,
    pub(super) bytes_done: u64,
    /// 0 if unknown.
    pub(super) bytes_total: u64,
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
        Self::new(Screen::Bar)
    }

    /// Processes an event.
    pub(super) fn advance(&mut self, event: &Event) -> Due {
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
            _ => return Due::Nothing,
        }
        match &mut self.screen {
            Screen::Silent => Due::Nothing,
            Screen::Bar => {
                let figures = matches!(event, Event::Progress { .. }).then(|| Figures {
                    text: self.figures(),
                    bytes_done: self.bytes_done,
                    bytes_total: self.bytes_total,
                });
                Due::Draw(Look { phase: self.phase, figures })
            }
            Screen::Paced { every, last } => {
                if last.is_some_and(|last| now.duration_since(last) < *every) {
                    return Due::Nothing;
                }
                *last = Some(now);
                Due::Line
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

    /// Shows nothing from now on.
    pub(super) fn end(&mut self) {
        self.screen = Screen::Silent;
    }
}
