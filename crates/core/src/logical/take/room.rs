//! Lets compression rest beside a server that is being written to ([`Headroom`]). A logical backup does not
//! read the server's log, so it asks the server how much it has written to it.

use std::{thread, time::Duration};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use holdfast_pipe::Headroom;

use crate::server::{Session, status};

/// How often to ask the server.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long to wait for an answer: the end of the work has to wait for it, too.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Runs `work` while `session` polls the server.
pub(crate) fn asking<T>(session: Session, headroom: &Headroom, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        // Disconnected when the work is over, however it ends.
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
            // If the server is gone, the readers of rows will find out.
            Err(_) => return headroom.lost_log(),
        }
        if over.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
