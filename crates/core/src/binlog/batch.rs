//! The records of a segment: how they are gathered, and read back.

use std::time::Instant;

use holdfast_repo::format::wire::{Decoder, put_prefixed};

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
    put_prefixed(out, bytes);
}

/// One record of a segment.
pub(super) enum Record<'a> {
    /// A stretch, whose events follow.
    Stretch(Box<Stretch>),
    /// Whole events, one after another.
    Events(&'a [u8]),
}

/// The records of a segment.
pub(super) fn records(bytes: &[u8]) -> Result<Vec<Record<'_>>> {
    let bad = |_| Error::damaged("understand a segment: its records are cut off");
    let mut from = Decoder::new(bytes);
    let mut records = Vec::new();
    while from.left() > 0 {
        let kind = from.u8("kind of a record").map_err(bad)?;
        let content = from.prefixed("a record", usize::MAX).map_err(bad)?;
        records.push(match kind {
            record::STRETCH => Record::Stretch(Box::new(
                serde_json::from_slice(content).context_kind(ErrorKind::Damaged, "understand a segment")?,
            )),
            record::EVENTS => Record::Events(content),
            _ => {
                return Err(Error::damaged("understand a segment: a record of a kind that is not known"));
            }
        });
    }
    Ok(records)
}
