//! Warnings about a failure that lasts: given when it begins,
//! when its cause changes, and now and then while it lasts.

use std::time::{Duration, Instant};

use crate::event::{Event, Listener};

/// The same warning is repeated after this long.
const SAME_AGAIN: Duration = Duration::from_secs(600);
/// A different warning is given after this long: the words of one failure may differ from attempt to attempt.
const OTHER_AGAIN: Duration = Duration::from_secs(60);

/// The last warning, and when it was given.
#[derive(Debug, Default)]
pub(super) struct RecurringWarning {
    last: Option<(String, Instant)>,
}

impl RecurringWarning {
    /// Warns, if a warning is due now.
    pub(super) fn warn(&mut self, listener: &dyn Listener, text: String) {
        if self.is_news_at(&text, Instant::now()) {
            listener.event(Event::Warning { text });
        }
    }

    /// Whether a warning is due. If so, it counts as given.
    fn is_news_at(&mut self, text: &str, now: Instant) -> bool {
        let is_news = self.last.as_ref().is_none_or(|(last, at)| {
            let again = if last == text { SAME_AGAIN } else { OTHER_AGAIN };
            now.duration_since(*at) >= again
        });
        if is_news {
            self.last = Some((text.to_owned(), now));
        }
        is_news
    }

    /// Whether a warning was given for a failure that is not over.
    pub(super) fn is_told(&self) -> bool {
        self.last.is_some()
    }

    /// Ends the failure. Returns whether a warning was given for it.
    pub(super) fn end(&mut self) -> bool {
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_now_and_then() {
        let (mut told, begin) = (RecurringWarning::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert!(!told.end());
        assert!(told.is_news_at("away", begin));
        assert!(!told.is_news_at("away", after(599)));
        assert!(told.is_news_at("away", after(600)));
        assert!(!told.is_news_at("refused", after(659)));
        assert!(told.is_news_at("refused", after(660)));
        assert!(told.end() && !told.end());
        assert!(told.is_news_at("refused", after(661)));
    }
}
