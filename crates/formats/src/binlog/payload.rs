//! Compressed transactions (MySQL): events without checksums, in a zstd frame.

use std::{
    io::{self, Read},
    ops::ControlFlow,
};

use super::{BinlogError, Event, EventKind, HEADER_BYTES, Header, cursor::Cursor};

/// Bytes kept of an event's data within a payload: enough for names and the beginning of a statement.
const DATA_KEPT: usize = 1 << 16;

/// How a payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadCompression {
    /// Uncompressed.
    None,
    /// zstd frames.
    Zstd,
}

/// The events of one transaction, compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<'a> {
    /// How the events are stored.
    pub compression: PayloadCompression,
    /// Bytes that the events take uncompressed, according to this one.
    pub plain_len: u64,
    stored: &'a [u8],
}

impl<'a> Payload<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, BinlogError> {
        const END: u64 = 0;
        const STORED_LEN: u64 = 1;
        const COMPRESSION: u64 = 2;
        const PLAIN_LEN: u64 = 3;
        const ZSTD: u64 = 0;
        const NONE: u64 = 255;
        let event = EventKind::TRANSACTION_PAYLOAD;
        let mut cursor = Cursor::new(event, data);
        let (mut stored_len, mut compression, mut plain_len) = (0, PayloadCompression::None, None);
        loop {
            let field = cursor.packed("field")?;
            if field == END {
                break;
            }
            let len = cursor.packed("field length")?;
            let value = cursor.bytes("field", usize::try_from(len).unwrap_or(usize::MAX))?;
            let mut value = Cursor::new(event, value);
            match field {
                STORED_LEN => stored_len = value.packed("stored length")?,
                COMPRESSION => {
                    compression = match value.packed("compression")? {
                        ZSTD => PayloadCompression::Zstd,
                        NONE => PayloadCompression::None,
                        _ => return Err(cursor.bad("compression", "is not known")),
                    };
                }
                PLAIN_LEN => plain_len = Some(value.packed("plain length")?),
                _ => {}
            }
        }
        let stored = cursor.bytes("payload", usize::try_from(stored_len).unwrap_or(usize::MAX))?;
        Ok(Self { compression, plain_len: plain_len.unwrap_or(stored_len), stored })
    }

    /// Calls `each` for the events in order, with the beginning of their data. Uses little memory, however
    /// many bytes come out, and reads no more than the event says there are.
    pub fn for_each(&self, each: &mut dyn FnMut(&Event<'_>)) -> Result<(), BinlogError> {
        self.walk(&mut |event| {
            each(event);
            ControlFlow::Continue(())
        })
    }

    /// Calls `look` for the first event, with the beginning of its data.
    pub fn look_at_first(&self, look: &mut dyn FnMut(&Event<'_>)) -> Result<(), BinlogError> {
        self.walk(&mut |event| {
            look(event);
            ControlFlow::Break(())
        })
    }

    fn walk(&self, each: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>) -> Result<(), BinlogError> {
        let failed = |_| BinlogError::Compressed { event: EventKind::TRANSACTION_PAYLOAD };
        let plain: Box<dyn Read + '_> = match self.compression {
            PayloadCompression::None => Box::new(self.stored),
            PayloadCompression::Zstd => {
                Box::new(zstd::stream::read::Decoder::with_buffer(self.stored).map_err(failed)?)
            }
        };
        let mut plain = plain.take(self.plain_len);
        let mut data = Vec::new();
        while plain.limit() > 0 {
            let mut header = [0; HEADER_BYTES];
            plain.read_exact(&mut header).map_err(failed)?;
            let header = Header::parse(&header)?;
            let len = header.len as usize - HEADER_BYTES;
            data.clear();
            (&mut plain).take(len.min(DATA_KEPT) as u64).read_to_end(&mut data).map_err(failed)?;
            let rest = len.saturating_sub(DATA_KEPT) as u64;
            let skipped = io::copy(&mut (&mut plain).take(rest), &mut io::sink()).map_err(failed)?;
            if data.len() != len.min(DATA_KEPT) || skipped != rest {
                return Err(BinlogError::Compressed { event: EventKind::TRANSACTION_PAYLOAD });
            }
            if each(&Event::from_parts(header, &data)).is_break() {
                break;
            }
        }
        Ok(())
    }
}
