//! Beside a server that is written to, whoever compresses rests ([`Headroom`]). Whether it is written to shows in its log,
//! which nobody reads here: the server is asked how much it has written to it.

use std::{thread, time::Duration};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use holdfast_pipe::Headroom;

use crate::server::{Session, status};

/// How often the server is asked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// An answer that takes longer is not waited for: the end of the work would have to.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Does `work` while `session` asks.
pub(super) fn asking<T>(session: Session, headroom: &Headroom, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        // Hung up when the work is over, however it ends.
        let (_working, over) = bounded(0);
        scope.spawn(move || watch(session, headroom, &over));
        work()
    })
}

fn watch(mut session: Session, headroom: &Headroom, over: &Receiver<()>) {
    if session.set_answer_timeout(ANSWER_MAX).is_err() {
        return headroom.lost_log();
    }
    loop {
        match status::log_bytes_written(&mut session) {
            Ok(bytes) => headroom.saw_log(bytes),
            // If the server is gone, whoever reads rows finds out.
            Err(_) => return headroom.lost_log(),
        }
        if over.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
