//! What keeps a backup from being dropped by any expire, whatever its rules ([`crate::ops::hold`]).

use jiff::Timestamp;

/// Why and how long a backup is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// When the hold was placed, by the store's clock.
    pub since: Timestamp,
    /// When it ends by itself; `None`: only by a release.
    pub until: Option<Timestamp>,
    /// For people; may be empty.
    pub reason: String,
}

impl Hold {
    /// Whether it has not ended by itself by `now`.
    #[must_use]
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Whether it lasts longer than one that ends at `until`.
    pub(crate) fn ends_after(&self, until: Option<Timestamp>) -> bool {
        match (self.until, until) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(own), Some(other)) => own > other,
        }
    }
}
