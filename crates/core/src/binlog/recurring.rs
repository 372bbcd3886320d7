//! What goes on failing: told when it begins, when it is something else, and now and then while it lasts.

use std::time::{Duration, Instant};

use crate::event::{Event, Listener};

/// The same is told again after so long.
const SAME_AGAIN: Duration = Duration::from_secs(600);
/// Something else, after so long: words of one failure may differ from attempt to attempt.
const OTHER_AGAIN: Duration = Duration::from_secs(60);

/// What was told last.
#[derive(Debug, Default)]
pub(super) struct RecurringWarning {
    last: Option<(String, Instant)>,
}

impl RecurringWarning {
    /// Warns, if this is to be told now.
    pub(super) fn warn(&mut self, listener: &dyn Listener, text: String) {
        if self.is_news_at(&text, Instant::now()) {
            listener.event(Event::Warning { text });
        }
    }

    /// Whether this is to be told. It counts as told then.
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

    /// Whether it was told of and is not over.
    pub(super) fn is_told(&self) -> bool {
        self.last.is_some()
    }

    /// It is over. Whether anything was told of it.
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
