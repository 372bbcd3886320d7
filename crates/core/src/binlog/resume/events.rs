//! What a server sends from some place on, read to find something in it.

use std::ops::ControlFlow;

use holdfast_formats::{
    Gtid,
    binlog::{Body, Checksum, Event, EventKind, FormatDescription, Header},
};

use crate::{
    binlog::{
        recorder::FILE_BEGIN,
        stream::{Next, Stream, StreamBegin, StreamOptions},
        stretch::Place,
    },
    error::{Error, ErrorKind, Result},
    server::{ConnectOptions, code},
};

/// The first transaction that a server sends.
pub(super) enum First {
    At {
        place: Place,
        gtid: Option<Gtid>,
    },
    /// There is none.
    End,
    /// The server does not have what is asked for.
    Gone,
}

/// The result of reading.
pub(super) enum Read<T> {
    Found(T),
    /// It was not found before the end.
    End,
    /// The server does not have what is asked for.
    Gone,
}

/// Where an event begins, if that is at `from` or less than 4 GiB after it: its header has the lower 32 bits of its
/// end, or, within a transaction, none.
fn begin_of(from: u64, header: &Header) -> u64 {
    let low = u64::from(header.end).wrapping_sub(u64::from(header.len));
    match header.end {
        0 => from,
        _ => from + (low.wrapping_sub(from) & u64::from(u32::MAX)),
    }
}

/// Takes an event: its place, itself, and its bytes.
pub(super) type Each<'a, T> = dyn FnMut(&Place, &Event<'_>, &[u8]) -> ControlFlow<T> + 'a;

/// Reads a server's events, each time over a connection of its own.
pub(super) struct Events {
    connect: ConnectOptions,
    options: StreamOptions,
}

impl Events {
    pub(super) fn new(connect: &ConnectOptions, options: StreamOptions) -> Self {
        let options = StreamOptions { non_blocking: true, semi_sync: false, ..options };
        Self { connect: connect.clone(), options }
    }

    /// The first transaction that the server sends.
    pub(super) fn first_transaction(&self, begin: &StreamBegin) -> Result<First> {
        let found = self.read(begin, &mut |place, event, _| match event.body() {
            Ok(Body::Gtid(transaction)) if event.header.end > 0 => {
                ControlFlow::Break(First::At { place: place.clone(), gtid: transaction.gtid })
            }
            _ => ControlFlow::Continue(()),
        })?;
        Ok(match found {
            Read::Found(first) => first,
            Read::End => First::End,
            Read::Gone => First::Gone,
        })
    }

    /// Calls `each` with the events that the server sends, until it breaks.
    pub(super) fn read<T>(&self, begin: &StreamBegin, each: &mut Each<'_, T>) -> Result<Read<T>> {
        let stream = Stream::open(&self.connect, begin, self.options)?;
        let mut checksum = Checksum::None;
        let mut place = Place { file: String::new(), position: FILE_BEGIN };
        loop {
            match stream.next(std::time::Duration::from_secs(60)) {
                Next::Event { bytes, .. } => {
                    // The first event comes before it is known whether events have checksums.
                    let event =
                        Event::parse(&bytes, Checksum::Crc32).or_else(|_| Event::parse(&bytes, checksum));
                    let event = event.map_err(|error| Error::new(ErrorKind::Server, error.to_string()))?;
                    let header = event.header;
                    match (header.kind, event.body()) {
                        (EventKind::ROTATE, Ok(Body::Rotate { file, position })) => {
                            place = Place { file: String::from_utf8_lossy(file).into_owned(), position };
                            continue;
                        }
                        (
                            EventKind::FORMAT_DESCRIPTION,
                            Ok(Body::FormatDescription(FormatDescription { .. })),
                        ) => checksum = Checksum::of_format(&bytes).unwrap_or_default(),
                        _ => {}
                    }
                    // Not in the file, or sent again.
                    let is_beside = match header.kind {
                        EventKind::HEARTBEAT | EventKind::HEARTBEAT_V2 | EventKind::START_ENCRYPTION => true,
                        EventKind::FORMAT_DESCRIPTION => header.end == 0 || place.position != FILE_BEGIN,
                        _ => header.flags.is_artificial(),
                    };
                    if is_beside {
                        continue;
                    }
                    place.position = begin_of(place.position, &header);
                    if let ControlFlow::Break(found) = each(&place, &event, &bytes) {
                        return Ok(Read::Found(found));
                    }
                    place.position += u64::from(header.len);
                }
                Next::End => return Ok(Read::End),
                Next::Failed(error) if error.code() == Some(code::READING_FAILED) => return Ok(Read::Gone),
                Next::Failed(error) => return Err(error.into()),
                Next::Nothing => return Err(Error::new(ErrorKind::Server, "the server sends nothing")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_formats::binlog::HEADER_BYTES;

    use super::*;

    /// Places beyond 4 GiB are told, though headers have 32 bits.
    #[test]
    fn places_beyond_what_headers_tell() {
        const GIB_4: u64 = 1 << 32;
        let begin = |from: u64, begin: u64, len: u32| {
            let mut bytes = [0; HEADER_BYTES];
            bytes[9..13].copy_from_slice(&len.to_le_bytes());
            let end = (begin + u64::from(len)) & u64::from(u32::MAX);
            bytes[13..17].copy_from_slice(&u32::try_from(end).unwrap().to_le_bytes());
            begin_of(from, &Header::parse(&bytes).unwrap())
        };
        for (from, at) in [
            (4, 4),
            (4, 700),
            (GIB_4 - 50, GIB_4 - 50),
            (GIB_4 - 50, GIB_4 + 900),
            (3 * GIB_4 + 7, 4 * GIB_4 + 5),
        ] {
            assert_eq!(begin(from, at, 100), at, "from {from}");
        }
        // Within a transaction, headers do not tell it.
        assert_eq!(begin(900, GIB_4 - 100, 100), 900);
    }
}
