//! Keeps telling the server how far its redo was captured, and gives up before the server would have to wait.

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::Scope,
    time::Duration,
};

use crate::{
    error::{Error, Result},
    server::{RedoConsumer, Session, status::MySqlRedoStatus},
    source::{RedoProgress, redo::mysql::Follower},
};

/// The server stalls all writers when seven eighths of its redo are held back (measured: 28 of 32 files); long before
/// that its users matter more than the backup.
const HELD_BACK_MAX: f64 = 0.5;
const ADVANCE_EVERY: Duration = Duration::from_millis(200);

/// Ends the advancing when dropped; the registration ends with it.
pub(super) struct Advancing(#[allow(dead_code, reason = "its drop is the message")] Sender<()>);

/// Advances `consumer` behind `follower` until the answer is dropped; `session` asks how far the server is.
pub(super) fn advance<'scope>(
    scope: &'scope Scope<'scope, '_>,
    mut consumer: RedoConsumer,
    mut session: Session,
    follower: &'scope Follower,
    redo_capacity_bytes: u64,
) -> Advancing {
    let (sender, receiver) = channel();
    scope.spawn(move || {
        while receiver.recv_timeout(ADVANCE_EVERY) == Err(RecvTimeoutError::Timeout) {
            if let Err(error) = tick(&mut consumer, &mut session, follower, redo_capacity_bytes) {
                follower.give_up(error);
                break;
            }
        }
        // An error here means that the session is gone, and the registration with it.
        drop(consumer.unregister());
    });
    Advancing(sender)
}

fn tick(
    consumer: &mut RedoConsumer,
    session: &mut Session,
    follower: &Follower,
    capacity: u64,
) -> Result<()> {
    follower.check()?;
    let captured = follower.captured();
    consumer.advance(captured)?;
    let held = MySqlRedoStatus::read(session)?.current.bytes_since(captured).unwrap_or(0);
    if held as f64 > capacity as f64 * HELD_BACK_MAX {
        return Err(Error::failed(format!(
            "the redo copy is {held} bytes behind, more than half of innodb_redo_log_capacity ({capacity}): given up before the server would have to wait"
        ))
        .hinted("raise innodb_redo_log_capacity, or take the backup when the server writes less"));
    }
    Ok(())
}
