//! Keeps telling the server how far its redo was captured, and gives up before the server would have to wait.

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::Scope,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    server::{RedoConsumer, Session, status::MySqlRedoStatus},
    source::{RedoProgress, redo::mysql::Follower},
};

/// The server stalls all writers when seven eighths of its redo are held back (measured: 28 of 32 files); long before
/// that its users matter more than the backup.
const HELD_BACK_MAX: f64 = 0.5;
/// Once it has caught up, so close to the stall there is nothing to wait for.
const HELD_BACK_NEVER: f64 = 0.8;
/// At the start everything since the checkpoint is still to be read, and a busy disk may take its time: what counts is
/// whether it stays like that.
const HELD_BACK_FOR: Duration = Duration::from_secs(5);
const ADVANCE_EVERY: Duration = Duration::from_millis(200);

/// Ends the advancing when dropped; the registration ends with it.
pub(super) struct Advancing(#[allow(dead_code, reason = "its drop is the message")] Sender<()>);

/// Advances `consumer` behind `follower` until the answer is dropped; `session` asks how far the server is.
pub(super) fn advance<'scope>(
    scope: &'scope Scope<'scope, '_>,
    mut consumer: RedoConsumer,
    mut session: Session,
    follower: &'scope Follower,
    capacity_bytes: u64,
) -> Advancing {
    let (sender, receiver) = channel();
    scope.spawn(move || {
        if let Err(error) = session.set_answer_timeout(RedoConsumer::SILENCE_MAX) {
            return follower.give_up(error.into());
        }
        let mut held_since = None;
        let mut has_caught_up = false;
        while receiver.recv_timeout(ADVANCE_EVERY) == Err(RecvTimeoutError::Timeout) {
            let result = advance_once(&mut consumer, &mut session, follower).and_then(|held_bytes| {
                if held_bytes as f64 <= capacity_bytes as f64 * HELD_BACK_MAX {
                    held_since = None;
                    has_caught_up = true;
                    return Ok(());
                }
                let since = *held_since.get_or_insert_with(Instant::now);
                let near_the_stall =
                    has_caught_up && held_bytes as f64 > capacity_bytes as f64 * HELD_BACK_NEVER;
                if since.elapsed() < HELD_BACK_FOR && !near_the_stall {
                    Ok(())
                } else {
                    Err(too_far_behind(held_bytes, capacity_bytes))
                }
            });
            if let Err(error) = result {
                follower.give_up(error);
                break;
            }
        }
        // Without the registration redo may be gone that the follower still has to read.
        if let Err(error) = consumer.alive() {
            follower.give_up(error.into());
        }
        // An error here means that the session is gone, and the registration with it.
        drop(consumer.unregister());
    });
    Advancing(sender)
}

/// Tells the server what was captured; returns how many bytes of redo it holds back for us.
fn advance_once(consumer: &mut RedoConsumer, session: &mut Session, follower: &Follower) -> Result<u64> {
    follower.check()?;
    let captured = follower.captured();
    consumer.advance(captured)?;
    let redo = MySqlRedoStatus::read(session)?;
    follower.durable(redo.flushed);
    if !redo.is_enabled {
        return Err(Error::failed("redo logging was switched off during the backup")
            .hinted("ALTER INSTANCE ENABLE INNODB REDO_LOG, then run the backup again"));
    }
    Ok(redo.current.bytes_since(captured).unwrap_or(0))
}

fn too_far_behind(held_bytes: u64, capacity_bytes: u64) -> Error {
    Error::failed(format!(
        "the redo copy is {held_bytes} bytes behind, more than half of innodb_redo_log_capacity ({capacity_bytes}), \
         and does not catch up: given up before the server would have to wait"
    ))
    .hinted("raise innodb_redo_log_capacity, or take the backup when the server writes less")
}
