//! Keeps telling the server how much of its redo was captured, and gives up before the server would have to
//! wait.

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

/// The server stalls all writers when seven eighths of its redo are held back (measured: 28 of 32 files).
/// Long before that, its users matter more than the backup.
const HELD_BACK_MAX: f64 = 0.5;
/// Once the copy has caught up, there is nothing to wait for this close to the stall.
const HELD_BACK_NEVER: f64 = 0.8;
/// At the start everything since the checkpoint has yet to be read, and a busy machine may take its time.
/// What counts is whether the backlog shrinks, or, near the stall, whether it stays there.
const HELD_BACK_FOR: Duration = Duration::from_secs(5);
const ADVANCE_EVERY: Duration = Duration::from_millis(200);

/// Stops advancing when dropped; the registration ends with it.
pub(super) struct Advancing(#[allow(dead_code, reason = "its drop is the message")] Sender<()>);

/// Advances `consumer` behind `follower` until the returned value is dropped. `session` asks how far the
/// server is.
pub(super) fn advance<'scope>(
    scope: &'scope Scope<'scope, '_>,
    mut consumer: RedoConsumer,
    mut session: Session,
    follower: &'scope Follower,
) -> Advancing {
    let (sender, receiver) = channel();
    scope.spawn(move || {
        if let Err(error) = session.set_answer_timeout(RedoConsumer::SILENCE_MAX) {
            return follower.give_up(error.into());
        }
        let mut behind = Behind::default();
        while receiver.recv_timeout(ADVANCE_EVERY) == Err(RecvTimeoutError::Timeout) {
            let result = advance_once(&mut consumer, &mut session, follower).and_then(
                |(held_bytes, capacity_bytes)| match behind.is_hopeless(
                    held_bytes,
                    capacity_bytes,
                    Instant::now(),
                ) {
                    false => Ok(()),
                    true => Err(too_far_behind(held_bytes, capacity_bytes)),
                },
            );
            if let Err(error) = result {
                follower.give_up(error);
                break;
            }
        }
        // Without the registration, redo that the follower still has to read may be gone. If the server itself was
        // gone meanwhile, it has cut off what was not complete, and has written something else in its place.
        if let Err(error) = consumer.unregister() {
            follower.give_up(error);
        }
    });
    Advancing(sender)
}

/// Whether the copy of the redo keeps up.
#[derive(Default)]
struct Behind {
    /// Since when the copy has been too far behind without coming nearer, and how far behind it was then.
    stuck: Option<(Instant, u64)>,
    has_caught_up: bool,
}

impl Behind {
    /// Whether to give up, given how much the server holds back now.
    fn is_hopeless(&mut self, held_bytes: u64, capacity_bytes: u64, now: Instant) -> bool {
        let share = held_bytes as f64 / capacity_bytes as f64;
        if share <= HELD_BACK_MAX {
            *self = Self { stuck: None, has_caught_up: true };
            return false;
        }
        let near_the_stall = share > HELD_BACK_NEVER;
        let (since, least_bytes) = self.stuck.get_or_insert((now, held_bytes));
        if held_bytes < *least_bytes && !near_the_stall {
            (*since, *least_bytes) = (now, held_bytes);
        }
        near_the_stall && self.has_caught_up || now.saturating_duration_since(*since) >= HELD_BACK_FOR
    }
}

/// Tells the server what was captured. Returns how many bytes of redo it holds back for us, and how many it
/// can hold.
fn advance_once(
    consumer: &mut RedoConsumer,
    session: &mut Session,
    follower: &Follower,
) -> Result<(u64, u64)> {
    follower.check()?;
    let captured = follower.captured();
    consumer.advance(captured)?;
    let redo = MySqlRedoStatus::read(session)?;
    follower.durable(redo.flushed);
    if !redo.is_enabled {
        return Err(redo_was_switched_off());
    }
    Ok((redo.current.bytes_since(captured).unwrap_or(0), redo.capacity_bytes))
}

/// The error for a server that changes files without redo.
pub(super) fn redo_was_switched_off() -> Error {
    Error::failed("redo logging was switched off during the backup")
        .hinted("ALTER INSTANCE ENABLE INNODB REDO_LOG, then run the backup again")
}

fn too_far_behind(held_bytes: u64, capacity_bytes: u64) -> Error {
    Error::failed(format!(
        "the redo copy is {held_bytes} bytes behind, more than half of innodb_redo_log_capacity \
         ({capacity_bytes}), and does not catch up: given up before the server would have to stall writes"
    ))
    .hinted("raise innodb_redo_log_capacity, or take the backup when the server writes less")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 100;

    /// Whether the copy is given up, given what is held back second by second.
    fn is_given_up(held: &[u64]) -> bool {
        let mut behind = Behind::default();
        let begun = Instant::now();
        let mut seconds = 0..;
        held.iter().any(|held| {
            let now = begun + Duration::from_secs(seconds.next().unwrap_or_default());
            behind.is_hopeless(*held, CAPACITY, now)
        })
    }

    #[test]
    fn a_copy_that_catches_up_is_waited_for_and_one_that_does_not_is_given_up() {
        assert!(!is_given_up(&[79, 77, 75, 72, 70, 68, 66, 62, 55, 50, 10]));
        assert!(!is_given_up(&[95, 90, 85, 79, 75, 49]), "the start may be near the stall");
        assert!(!is_given_up(&[10, 60, 60, 60, 40, 60, 60, 60, 40]));
        assert!(is_given_up(&[10, 60, 60, 61, 62, 60, 60]), "it stays where it is");
        assert!(is_given_up(&[95, 94, 93, 92, 91, 90]), "the server waits, however slowly it becomes less");
        assert!(is_given_up(&[10, 81]), "the server is about to wait");
    }
}
