//! How far the redo may be captured.
//!
//! Bytes of the log count once the server has said that they are durable, never because they look right. The
//! server writes whole blocks, and what follows the end of the log in the last one is left over from other
//! uses of its log buffer: mini-transactions with good checksums and the sequence bit of this lap. If
//! transactions are alike, one of them can begin exactly where the log ends (verified on 10.11: a walk by
//! checksums alone took 1,611 such bytes in).

use std::{sync::Mutex, time::Duration};

use holdfast_formats::Lsn;

use super::super::lock;

/// How often the server is asked while an LSN is being waited for, and while none is.
const ASK_EVERY: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// Shared by the follower and those who direct it.
#[derive(Debug)]
pub(super) struct Bound {
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Everything before this is on disk, as the server has said.
    durable: Lsn,
    /// The LSN that is being waited for.
    wanted: Lsn,
    /// Nothing is learned until the stop is known.
    is_held: bool,
    stop: Option<Lsn>,
}

impl Bound {
    /// Starts with everything before `durable` on disk.
    pub(super) fn new(durable: Lsn) -> Bound {
        Bound { state: Mutex::new(State { durable, wanted: durable, is_held: false, stop: None }) }
    }

    /// Nothing at or after this LSN may be captured now.
    pub(super) fn get(&self) -> Lsn {
        let state = lock(&self.state);
        state.stop.map_or(state.durable, |stop| stop.min(state.durable))
    }

    /// Where to stop, once that is known.
    pub(super) fn stop(&self) -> Option<Lsn> {
        lock(&self.state).stop
    }

    /// Notes that, as the server says, everything before `durable` is on disk. Ignored while held: the answer
    /// may be younger than the stop.
    pub(super) fn learn(&self, durable: Lsn) {
        let mut state = lock(&self.state);
        if !state.is_held {
            state.durable = state.durable.max(durable);
        }
    }

    /// Notes that `lsn` is being waited for.
    pub(super) fn want(&self, lsn: Lsn) {
        let mut state = lock(&self.state);
        state.wanted = state.wanted.max(lsn);
    }

    /// How long to wait before asking the server; `None` if no answer would help.
    pub(super) fn ask_after(&self) -> Option<Duration> {
        let state = lock(&self.state);
        let stopped = state.stop.is_some_and(|stop| stop <= state.durable);
        let (soon, later) = ASK_EVERY;
        (!state.is_held && !stopped).then_some(if state.wanted > state.durable { soon } else { later })
    }

    /// Keeps the bound where it is until the stop is given: every LSN that the server reports from now on is
    /// at or after what will be captured until then.
    pub(super) fn hold(&self) {
        lock(&self.state).is_held = true;
    }

    /// Ends the hold with a stop.
    pub(super) fn stop_at(&self, lsn: Lsn) {
        let mut state = lock(&self.state);
        *state = State { is_held: false, stop: Some(lsn), wanted: state.wanted.max(lsn), ..*state };
    }

    /// Takes back the hold and the stop.
    pub(super) fn go_on(&self) {
        let mut state = lock(&self.state);
        *state = State { is_held: false, stop: None, ..*state };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learned_while_held_may_be_younger_than_the_stop() {
        let bound = Bound::new(Lsn(100));
        bound.learn(Lsn(200));
        bound.learn(Lsn(150));
        assert_eq!(bound.get(), Lsn(200));
        bound.hold();
        bound.learn(Lsn(300));
        assert_eq!((bound.get(), bound.ask_after()), (Lsn(200), None));
        bound.stop_at(Lsn(250));
        assert_eq!((bound.get(), bound.ask_after()), (Lsn(200), Some(ASK_EVERY.0)));
        bound.learn(Lsn(300));
        assert_eq!((bound.get(), bound.ask_after()), (Lsn(250), None));
        bound.go_on();
        assert_eq!((bound.get(), bound.ask_after()), (Lsn(300), Some(ASK_EVERY.1)));
        bound.want(Lsn(301));
        assert_eq!(bound.ask_after(), Some(ASK_EVERY.0));
    }
}
