//! The records of a segment: how they are gathered, and read back.

use std::time::Instant;

use super::{
    stream::Acknowledger,
    stretch::{Place, Stretch},
};
use crate::error::{Context, Error, ErrorKind, Result};

/// A batch of this size is full: whoever fills it waits until it is handed over.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Kinds of records in a segment.
mod record {
    pub(super) const STRETCH: u8 = 1;
    pub(super) const EVENTS: u8 = 2;
}

/// Records of a segment that is being built.
#[derive(Default)]
pub(super) struct Batch {
    /// Closed records.
    pub(super) done: Vec<u8>,
    events: Vec<u8>,
    /// When its first record came.
    pub(super) began: Option<Instant>,
    pub(super) ack: Option<Ack>,
}

/// A server waits for an acknowledgement of everything before this place.
pub(super) struct Ack {
    pub(super) place: Place,
    pub(super) to: Acknowledger,
}

impl Batch {
    pub(super) fn stretch(&mut self, stretch: &Stretch) -> Result<()> {
        self.close_events();
        let json = serde_json::to_vec(stretch).context("describe a stretch")?;
        put_record(&mut self.done, record::STRETCH, &json);
        self.began.get_or_insert_with(Instant::now);
        Ok(())
    }

    pub(super) fn event(&mut self, bytes: &[u8]) {
        self.began.get_or_insert_with(Instant::now);
        self.events.extend_from_slice(bytes);
    }

    /// Notes that the server behind `to` waits for an acknowledgement of everything before this place.
    pub(super) fn wants_ack(&mut self, place: Place, to: Acknowledger) {
        self.ack = Some(Ack { place, to });
    }

    pub(super) fn close_events(&mut self) {
        if !self.events.is_empty() {
            put_record(&mut self.done, record::EVENTS, &self.events);
            self.events.clear();
        }
    }

    /// Whether the batch must be handed over before more is added.
    pub(super) fn is_full(&self) -> bool {
        self.bytes() >= BATCH_BYTES_MAX
    }

    pub(super) fn bytes(&self) -> usize {
        self.done.len() + self.events.len()
    }
}

fn put_record(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    let mut len = bytes.len() as u64;
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(bytes);
}

/// One record of a segment.
pub(super) enum Record<'a> {
    /// A stretch, whose events follow.
    Stretch(Box<Stretch>),
    /// Whole events, one after another.
    Events(&'a [u8]),
}

/// The records of a segment.
pub(super) fn records(mut bytes: &[u8]) -> Result<Vec<Record<'_>>> {
    let bad = || Error::new(ErrorKind::Damaged, "understand a segment: its records are cut off");
    let mut records = Vec::new();
    while let Some((kind, mut rest)) = bytes.split_first() {
        let (mut len, mut shift) = (0_u64, 0);
        loop {
            let (byte, after) = rest.split_first().ok_or_else(bad)?;
            rest = after;
            if shift > 56 {
                return Err(bad());
            }
            len |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let (content, after) =
            rest.split_at_checked(usize::try_from(len).unwrap_or(usize::MAX)).ok_or_else(bad)?;
        bytes = after;
        records.push(match *kind {
            record::STRETCH => Record::Stretch(Box::new(
                serde_json::from_slice(content).context_kind(ErrorKind::Damaged, "understand a segment")?,
            )),
            record::EVENTS => Record::Events(content),
            _ => {
                return Err(Error::new(
                    ErrorKind::Damaged,
                    "understand a segment: a record of a kind that is not known",
                ));
            }
        });
    }
    Ok(records)
}
