//! A server's binlog as a replica receives it: settings, the request, and a thread that reads ahead.

use std::{
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use holdfast_formats::{Flavor, Gtids, MySqlGtidSet, binlog::encode_set};
use holdfast_pipe::lock::lock;

use super::{
    queue::{Popped, Queue},
    stretch::Place,
    wire::{self, Commands, Messages},
};
use crate::{
    error::{Error, Result},
    server::{ConnectOptions, Purpose, Session, SqlCause, SqlError},
};

/// How often a server with nothing to send shows that it lives.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Silence after which the server is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long a server may take to end a stream that it was told to end.
const END_MAX: Duration = Duration::from_secs(3);
/// First byte of a message that is a refusal.
const REFUSED: u8 = 0xff;
/// How often the last acknowledgement is repeated meanwhile.
const REPEAT_EVERY: Duration = Duration::from_millis(10);
/// How far the reading thread may be ahead.
const AHEAD_BYTES_MAX: usize = 16 << 20;

/// Where a stream begins.
#[derive(Clone, Debug)]
pub(super) enum StreamBegin {
    /// At an event.
    AtPlace(Place),
    /// After these transactions.
    AfterGtids(Gtids),
}

/// How to request a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamOptions {
    /// The stream ends where the binlog ends.
    pub(super) non_blocking: bool,
    /// Commits wait until they are acknowledged.
    pub(super) semi_sync: bool,
    /// The server id that this replica uses.
    pub(super) server_id: u32,
}

/// What the stream delivered.
#[derive(Debug)]
pub(super) enum Next {
    /// An event.
    Event {
        bytes: Vec<u8>,
        /// Whether the server waits for an acknowledgement of it.
        wants_ack: bool,
    },
    /// Nothing in time.
    Nothing,
    /// The binlog ends here.
    End,
    /// The server refuses, or the connection is lost.
    Failed(SqlError),
}

pub(super) enum Message {
    Event { bytes: Vec<u8>, wants_ack: bool },
    End,
    Failed(SqlError),
}

/// A stream that is under way.
pub(super) struct Stream {
    queue: Arc<Queue<Message>>,
    /// The server has sent something that it waits for.
    is_waited_for: Arc<AtomicBool>,
    socket: UnixStream,
    thread: Option<JoinHandle<()>>,
    acknowledger: Acknowledger,
    /// The server keeps the session as long as this lives.
    session: Session,
}

/// Tells the server what is durable.
#[derive(Clone)]
pub(super) struct Acknowledger(Arc<Mutex<Acknowledging>>);

struct Acknowledging {
    commands: Commands,
    /// The last acknowledgement; empty if there was none.
    last: Vec<u8>,
}

impl Acknowledger {
    /// Says that everything up to the event that ends at `place` is durable.
    /// If this does not arrive, the stream shows it.
    pub(super) fn acknowledge(&self, place: &Place) {
        const ACK: u8 = 0xef;
        let mut command = vec![ACK];
        command.extend_from_slice(&place.position.to_le_bytes());
        command.extend_from_slice(place.file.as_bytes());
        let mut to = lock(&self.0);
        let _gone = to.commands.send(&command);
        to.last = command;
    }

    /// Says the last thing again.
    fn repeat(&self) {
        let Acknowledging { commands, last } = &mut *lock(&self.0);
        if !last.is_empty() {
            let _gone = commands.send(last);
        }
    }
}

impl Stream {
    /// Connects and asks for the stream.
    pub(super) fn open(
        connect: &ConnectOptions,
        begin: &StreamBegin,
        options: StreamOptions,
    ) -> Result<Self> {
        let mut session = Session::open(connect, Purpose::Binlog)?;
        configure(&mut session, begin, options)?;
        let flavor = session.flavor();
        session.set_answer_timeout(SILENCE_MAX)?;
        let socket = session.socket()?;
        let (mut messages, mut commands) = wire::split(session.socket()?)?;
        let mut answer = Vec::new();
        commands.send(&wire::register(options.server_id))?;
        messages.read(&mut answer)?;
        if let Some((&REFUSED, rest)) = answer.split_first() {
            return Err(SqlError::from_packet(rest).doing("register as a replica").into());
        }
        commands.send(&request(flavor, begin, options))?;
        let queue = Arc::new(Queue::default());
        let is_waited_for = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new()
            .name("binlog-stream".to_owned())
            .spawn({
                let (queue, is_waited_for) = (Arc::clone(&queue), Arc::clone(&is_waited_for));
                move || read_all(messages, &queue, options.semi_sync, &is_waited_for)
            })
            .map_err(|error| Error::failed(format!("start a thread: {error}")))?;
        let acknowledging = Acknowledging { commands, last: Vec::new() };
        let acknowledger = Acknowledger(Arc::new(Mutex::new(acknowledging)));
        Ok(Self { queue, is_waited_for, socket, thread: Some(thread), acknowledger, session })
    }

    /// What comes next.
    pub(super) fn next(&self, wait: Duration) -> Next {
        match self.queue.pop(wait) {
            Popped::Item(Message::Event { bytes, wants_ack }) => Next::Event { bytes, wants_ack },
            Popped::Item(Message::End) => Next::End,
            Popped::Item(Message::Failed(error)) => Next::Failed(error),
            Popped::Nothing => Next::Nothing,
            Popped::Closed => Next::Failed(SqlError::new(SqlCause::Lost, "the stream has ended")),
        }
    }

    /// Waits until the server has ended the stream, as it was told to; whether it has. Its thread that receives
    /// acknowledgements must let go of the stream first, and notices only when one arrives, or once a second:
    /// so the last one is repeated. What still comes is dropped.
    pub(super) fn await_end(&self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < END_MAX {
            self.acknowledger.repeat();
            match self.next(REPEAT_EVERY) {
                Next::Event { .. } | Next::Nothing => {}
                Next::End | Next::Failed(_) => return true,
            }
        }
        false
    }

    /// Whether commits wait until something is acknowledged that has arrived, or did so once.
    pub(super) fn is_waited_for(&self) -> bool {
        self.is_waited_for.load(Ordering::Relaxed)
    }

    /// The server's id of the session.
    pub(super) fn connection_id(&self) -> u64 {
        self.session.connection_id()
    }

    pub(super) fn acknowledger(&self) -> Acknowledger {
        self.acknowledger.clone()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.queue.close();
        let _gone = self.socket.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Tells a server what it must know about a replica.
/// Each flavor, and each version, ignores the names that it does not know.
fn configure(session: &mut Session, begin: &StreamBegin, options: StreamOptions) -> Result<(), SqlError> {
    let heartbeat = HEARTBEAT.as_nanos();
    let mut settings = vec![
        "@master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'".to_owned(),
        format!("@master_heartbeat_period = {heartbeat}, @source_heartbeat_period = {heartbeat}"),
    ];
    match session.flavor() {
        Flavor::MariaDb => {
            // Send all events as they are, GTIDs and compressed ones too.
            settings.push("@mariadb_slave_capability = 4".to_owned());
            if let StreamBegin::AfterGtids(gtids) = begin {
                settings.push(format!("@slave_connect_state = '{gtids}'"));
                settings.push("@slave_gtid_strict_mode = 0, @slave_gtid_ignore_duplicates = 0".to_owned());
            }
        }
        Flavor::MySql => {
            // The server ends another stream with the same UUID, which must not happen to anybody else's.
            let uuid = session.value("SELECT UUID()")?.unwrap_or_default();
            settings.push(format!("@slave_uuid = '{uuid}', @replica_uuid = '{uuid}'"));
        }
    }
    if options.semi_sync {
        settings.push("@rpl_semi_sync_slave = 1, @rpl_semi_sync_replica = 1".to_owned());
    }
    session.exec(&format!("SET {}", settings.join(", ")))
}

fn request(flavor: Flavor, begin: &StreamBegin, options: StreamOptions) -> Vec<u8> {
    let mut flags = if options.non_blocking { wire::flags::NON_BLOCKING } else { 0 };
    if flavor == Flavor::MariaDb {
        flags |= wire::flags::ANNOTATE_ROWS;
    }
    match begin {
        StreamBegin::AfterGtids(Gtids::MySql(set)) => {
            wire::dump_gtid(options.server_id, flags, &encode_set(set))
        }
        StreamBegin::AfterGtids(Gtids::MariaDb(_)) if flavor == Flavor::MySql => {
            wire::dump_gtid(options.server_id, flags, &encode_set(&MySqlGtidSet::default()))
        }
        StreamBegin::AfterGtids(Gtids::MariaDb(_)) => wire::dump(options.server_id, flags, "", 4),
        StreamBegin::AtPlace(place) => {
            // The protocol has 32 bits. Beyond that, the stream begins with the file,
            // and what comes before the place is skipped.
            let position = u32::try_from(place.position).unwrap_or(4);
            wire::dump(options.server_id, flags, &place.file, position)
        }
    }
}

pub(super) fn read_all(
    mut messages: Messages,
    queue: &Queue<Message>,
    semi_sync: bool,
    is_waited_for: &AtomicBool,
) {
    const OK: u8 = 0;
    const END: u8 = 0xfe;
    const END_BYTES_MAX: usize = 8;
    let mut was_marked = semi_sync;
    loop {
        let mut message = Vec::new();
        let next = match messages.read(&mut message) {
            Err(error) => Message::Failed(error),
            Ok(()) => match message.first() {
                Some(&OK) => {
                    let is_marked = semi_sync && is_marked(&message, was_marked);
                    was_marked = is_marked;
                    let wants_ack = is_marked && message.get(2) == Some(&1);
                    is_waited_for.fetch_or(wants_ack, Ordering::Relaxed);
                    message.drain(..if is_marked { 3 } else { 1 }.min(message.len()));
                    Message::Event { bytes: message, wants_ack }
                }
                Some(&END) if message.len() <= END_BYTES_MAX => Message::End,
                Some(&REFUSED) => Message::Failed(SqlError::from_packet(&message[1..])),
                _ => Message::Failed(SqlError::unexpected("no event")),
            },
        };
        let (is_event, bytes) = match &next {
            Message::Event { bytes, .. } => (true, bytes.len()),
            _ => (false, 0),
        };
        // A fixed part for each message, so that small ones are bounded too.
        if !queue.push(next, bytes + 64, AHEAD_BYTES_MAX) || !is_event {
            return;
        }
    }
}

/// Whether two bytes before the event say if it is to be acknowledged. A server without semi-synchronous
/// replication sends none, and the first of them may be part of an event's time, so the event must be as long
/// as its header says. If that is so both ways, or neither,
/// the answer is the same as for the previous message.
fn is_marked(message: &[u8], was_marked: bool) -> bool {
    const SEMI_SYNC: u8 = 0xef;
    const LEN_AT: usize = 9;
    if message.get(1) != Some(&SEMI_SYNC) {
        return false;
    }
    let is_event_at = |begin: usize| {
        let len = message.get(begin + LEN_AT..).and_then(|rest| rest.first_chunk::<4>());
        len.is_some_and(|len| u32::from_le_bytes(*len) as usize == message.len() - begin)
    };
    match (is_event_at(3), is_event_at(1)) {
        (true, false) => true,
        (false, true) => false,
        _ => was_marked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event whose time contains the marker byte is told from a marked one, whatever came before.
    #[test]
    fn marked_and_not() {
        let mut event = vec![0; 40];
        event[..4].copy_from_slice(&0x6500_00ef_u32.to_le_bytes());
        event[9..13].copy_from_slice(&40_u32.to_le_bytes());
        let plain = [&[0][..], &event].concat();
        let marked = [&[0, 0xef, 1][..], &event].concat();
        for was_marked in [true, false] {
            assert!(!is_marked(&plain, was_marked));
            assert!(is_marked(&marked, was_marked));
            assert!(!is_marked(&[0], was_marked));
            // Cut off: whoever parses the event reports it.
            assert_eq!(is_marked(&marked[..20], was_marked), was_marked);
            assert_eq!(is_marked(&[0, 0xef], was_marked), was_marked);
        }
    }
}
