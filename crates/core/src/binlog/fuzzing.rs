//! Entry points for the fuzzer: segments of an archive, and what a server sends on a stream. Not part of the
//! product; compiled only for the fuzzer and for its own test.

use std::{sync::atomic::AtomicBool, time::Duration};

use holdfast_formats::binlog::HEADER_BYTES;

use super::{
    queue::{Popped, Queue},
    recorder::{FILE_BEGIN, Recorder, Sink, Start},
    stored::replay,
    stream::{self, Message},
    stretch::{BinlogServer, Place, Stretch},
    wire,
};
use crate::{
    error::Result,
    server::{
        connection::fuzzing::{INPUT_BYTES_MAX, says},
        version::ServerVersion,
    },
};

/// Checks that only whole events, no longer than the input, come out.
struct Checked {
    bytes_max: usize,
}

impl Sink for Checked {
    fn stretch(&mut self, _: &Stretch) -> Result<()> {
        Ok(())
    }

    fn event(&mut self, bytes: &[u8]) -> Result<()> {
        assert!((HEADER_BYTES..=self.bytes_max).contains(&bytes.len()));
        Ok(())
    }

    fn ended(&mut self, stretch: Stretch) -> Result<()> {
        assert!(stretch.end >= stretch.begin || stretch.bytes == 0);
        Ok(())
    }
}

/// Reads a segment, as an archiver that takes over and everything that reads an archive do.
pub fn segment(bytes: &[u8]) {
    let mut sink = Checked { bytes_max: bytes.len() };
    let mut recorder = None;
    let _refused = replay(bytes, &mut recorder, &mut sink);
    if let Some(mut recorder) = recorder {
        let _refused = recorder.end_stretch(false, &mut sink);
        let _tail = recorder.tail();
    }
}

/// Reads a stream of messages made from the input, and records its events.
///
/// The first byte chooses the flavor and whether commits are acknowledged. Each message is a byte for its first
/// byte, two for its length, and its content. If the first byte is that of an event, the event's header gets
/// the length and the offset that fit.
pub fn stream(input: &[u8]) {
    let Some((choice, input)) = input.split_first() else { return };
    let input = &input[..input.len().min(INPUT_BYTES_MAX)];
    let (is_mysql, semi_sync) = (choice & 1 != 0, choice & 2 != 0);
    let (ours, _theirs) = says(&packets(input, semi_sync)).expect("a socket with room in its buffer");
    let queue = Queue::default();
    let (messages, _commands) = wire::split(ours).expect("both ends of a socket");
    stream::read_all(messages, &queue, semi_sync, &AtomicBool::new(false));
    record(&queue, is_mysql, input.len() + HEADER_BYTES);
}

fn packets(mut input: &[u8], semi_sync: bool) -> Vec<u8> {
    let mut sent = Vec::new();
    let mut offset = FILE_BEGIN as u32;
    while let Some((&[first, low, high], rest)) = input.split_first_chunk::<3>() {
        let len = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (content, after) = rest.split_at(len);
        input = after;
        let mut payload = vec![first];
        if first == 0 && semi_sync {
            payload.extend_from_slice(&[0xef, high & 1]);
        }
        let begin = payload.len();
        payload.extend_from_slice(content);
        if first == 0 && payload.len() >= begin + HEADER_BYTES {
            let event_bytes = content.len() as u32;
            offset = offset.wrapping_add(event_bytes);
            payload[begin + 9..begin + 13].copy_from_slice(&event_bytes.to_le_bytes());
            payload[begin + 13..begin + 17].copy_from_slice(&offset.to_le_bytes());
        }
        sent.extend_from_slice(&(payload.len() as u32).to_le_bytes()[..3]);
        sent.push(0);
        sent.extend_from_slice(&payload);
    }
    sent
}

fn record(queue: &Queue<Message>, is_mysql: bool, bytes_max: usize) {
    let version = if is_mysql { "9.7.4" } else { "10.11.19-MariaDB" };
    let server = BinlogServer {
        version: ServerVersion::parse(version).expect("a version"),
        uuid: None,
        server_id: 1,
        hostname: "h".to_owned(),
        port: 3306,
    };
    let mut sink = Checked { bytes_max };
    let mut recorder = Recorder::new(server.clone());
    let start = Start::at(Place { file: "bin.000001".to_owned(), position: FILE_BEGIN });
    recorder.begin_stream(server, start, &mut sink).expect("a stream at the beginning of a file");
    while let Popped::Item(Message::Event { bytes, .. }) = queue.pop(Duration::ZERO) {
        if recorder.received(&bytes, &mut sink).is_err() {
            break;
        }
    }
    let _refused = recorder.end_stretch(false, &mut sink);
    let _tail = recorder.tail();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry points take anything, and a stream of a few events gets through to the recorder.
    #[test]
    fn anything_is_read() {
        for input in [&b""[..], b"\x01", b"\x00\xff\x05\x00abcde", b"\x02\xfe\0\0"] {
            segment(input);
            stream(input);
        }
        // A format description of MySQL 9, and a message that is no event.
        let mut event = vec![0; HEADER_BYTES + 60];
        event[4] = 15;
        let mut input = vec![1, 0, event.len() as u8, 0];
        input.extend_from_slice(&event);
        input.extend_from_slice(&[0xff, 3, 0, 1, 2, 3]);
        stream(&input);
    }
}
