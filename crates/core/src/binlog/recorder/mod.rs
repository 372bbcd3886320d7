//! Turns a server's events into stretches: checks that nothing is missing between two events, follows
//! transactions, and knows at any moment where the archive ends.
//!
//! Segments are read back through the same recorder,
//! so that what a run had before it died is known as if it had ended.

use holdfast_formats::{
    Flavor, Gtid, Gtids,
    binlog::{Body, Checksum, Event, EventKind, Header, Part, Tracker},
    gtid::MariaDbGtidPos,
};
use holdfast_repo::format::hex::to_hex;
use thiserror::Error;

mod offsets;

use self::offsets::after_first;
pub(super) use self::offsets::{FILE_BEGIN, Offsets};
use super::stretch::{
    BinlogServer, Gap, GapKind, LastEvent, LastTransaction, Logged, OpenTransaction, Place, Stretch, Tail,
    parse_gtids,
};
use crate::error::{Error, ErrorKind, Result};

/// Receives what a recorder accepts.
pub(super) trait Sink {
    /// A stretch begins, and all following events belong to it.
    fn stretch(&mut self, stretch: &Stretch) -> Result<()>;
    /// One whole event.
    fn event(&mut self, bytes: &[u8]) -> Result<()>;
    /// The stretch has ended, in its final form.
    fn ended(&mut self, stretch: Stretch) -> Result<()>;
}

/// Why an event from the server cannot be archived.
#[derive(Debug, Error)]
pub(super) enum RecordError {
    /// It differs from what was archived: this is another server, or its binlogs were reset.
    #[error("what the server has at {0} is not what was archived from there")]
    NotAsArchived(Place),
    /// Something is left out.
    #[error("the server left out the events between {from} and {to} in {file}")]
    Hole { file: String, from: u64, to: u64 },
    /// An event is damaged.
    #[error("{at}: {error}")]
    Event { at: Place, error: holdfast_formats::binlog::BinlogError },
    /// What was accepted could not be passed on to the sink.
    #[error("{0}")]
    Sink(Error),
}

impl From<Error> for RecordError {
    fn from(error: Error) -> Self {
        Self::Sink(error)
    }
}

impl From<RecordError> for Error {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Sink(error) => error,
            other => Error::new(ErrorKind::Server, other.to_string()),
        }
    }
}

/// Identifies the last archived event, which must precede the events to record.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) hash: String,
}

/// Where a stream is to begin, and how that relates to the archive.
#[derive(Clone, Debug)]
pub(super) struct Start {
    /// The place to request.
    pub(super) place: Place,
    /// The last archived event, which comes first.
    pub(super) known: Option<Known>,
    /// What is missing before the place.
    pub(super) gap: Option<Gap>,
}

impl Start {
    /// A start that nothing precedes.
    pub(super) fn at(place: Place) -> Self {
        Self { place, known: None, gap: None }
    }
}

/// Records events; see the module.
pub(super) struct Recorder {
    server: BinlogServer,
    checksum: Checksum,
    tracker: Tracker,
    gtids: Gtids,
    /// See [`Tail::logged`].
    logged: Option<Logged>,
    /// Where the next event begins; the file name is empty before the first event.
    place: Place,
    format: String,
    /// Whether the last event that the stream sent was the first of a file.
    is_after_first: bool,
    /// The last archived event, which the stream sends once more.
    known: Option<Known>,
    stretch: Option<Stretch>,
    next_number: u32,
    gap: Option<Gap>,
    /// Settings by which the server leaves something out.
    leaves_out: Option<String>,
    continues: Option<Place>,
    last: Option<LastEvent>,
    last_at: Option<u64>,
    /// The time of the last event that had one, in seconds since 1970.
    time_s: u32,
    last_transaction: Option<LastTransaction>,
    /// When the first statement of the open transaction began, in seconds since 1970.
    begun_s: Option<u32>,
    /// Says which transactions the server names as older that are not archived.
    missing: Option<String>,
    /// Whether the run has transactions without a GTID.
    has_nameless: bool,
}

impl Recorder {
    /// A recorder with nothing archived.
    pub(super) fn new(server: BinlogServer) -> Self {
        let gtids = Gtids::none(server.flavor());
        Self {
            server,
            checksum: Checksum::None,
            tracker: Tracker::default(),
            gtids,
            logged: None,
            place: Place { file: String::new(), position: 0 },
            format: String::new(),
            is_after_first: false,
            known: None,
            stretch: None,
            next_number: 0,
            gap: None,
            leaves_out: None,
            continues: None,
            last: None,
            last_at: None,
            time_s: 0,
            last_transaction: None,
            begun_s: None,
            missing: None,
            has_nameless: false,
        }
    }

    /// A recorder that continues after a tail.
    pub(super) fn at(tail: &Tail) -> Result<Self> {
        let gtids = tail.gtids()?.unwrap_or_else(|| Gtids::none(tail.server.flavor()));
        Ok(Self {
            gtids,
            logged: tail.logged()?,
            gap: tail.gap.clone(),
            place: tail.place.clone(),
            format: tail.format.clone(),
            tracker: tail.open.as_ref().map(OpenTransaction::tracker).transpose()?.unwrap_or_default(),
            continues: Some(tail.place.clone()),
            last: Some(tail.last.clone()),
            last_at: tail.last_at,
            time_s: tail.last_at.and_then(|at| u32::try_from(at / 1_000_000).ok()).unwrap_or(0),
            last_transaction: tail.last_transaction.clone(),
            begun_s: tail.open.as_ref().and_then(|open| open.begun_s),
            has_nameless: tail.has_nameless && tail.open.is_some(),
            ..Self::new(tail.server.clone())
        })
    }

    /// Where the archive ends; `None` if there is nothing in it.
    pub(super) fn tail(&self) -> Option<Tail> {
        let last = self.last.clone()?;
        let gtids = (!self.gtids.is_empty()).then(|| self.gtids.to_string());
        Some(Tail {
            server: self.server.clone(),
            place: self.continues.clone()?,
            last,
            format: self.format.clone(),
            gtids,
            logged: self.logged.as_ref().map(|logged| logged.0.to_string()),
            gap: self.gap.clone().filter(|_| self.stretch.is_none()),
            has_nameless: self.has_nameless,
            last_at: self.last_at,
            last_transaction: self.last_transaction.clone(),
            open: OpenTransaction::of(&self.tracker, self.begun_s),
        })
    }

    /// Flavor of the server that the events are from.
    pub(super) fn flavor(&self) -> Flavor {
        self.server.flavor()
    }

    /// Where the next event begins.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// GTIDs of all transactions so far, where the server assigns them.
    pub(super) fn gtids(&self) -> &Gtids {
        &self.gtids
    }

    /// Whether the next event begins a transaction or is between two.
    pub(super) fn is_between_transactions(&self) -> bool {
        !self.tracker.is_inside()
    }

    /// Whether the stream has shown the last archived event, if it has to.
    pub(super) fn is_confirmed(&self) -> bool {
        self.known.is_none()
    }

    /// Where the archive ends, as long as the stream has not shown it.
    pub(super) fn known_end(&self) -> Option<Place> {
        let known = self.known.as_ref()?;
        Some(Place { position: known.end, ..self.place.clone() })
    }

    /// Takes the text about transactions that the server names as older and that are not archived.
    pub(super) fn take_missing(&mut self) -> Option<String> {
        self.missing.take()
    }

    /// Begins a stream on `server` as `start` says. If the last archived event is known there, it comes first
    /// and is not recorded again. The open stretch continues only if nothing but its own events can follow.
    pub(super) fn begin_stream(
        &mut self,
        server: BinlogServer,
        start: Start,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let Start { place, known, gap } = start;
        let is_same = self.server.is_same(&server);
        let goes_on = is_same && gap.is_none() && (known.is_some() || self.place == place);
        if !goes_on || self.stretch.as_ref().is_some_and(|stretch| stretch.file != place.file) {
            self.end_stretch(false, sink)?;
        }
        if !goes_on {
            self.tracker = Tracker::default();
            self.format.clear();
        }
        self.server = server;
        self.start_over_after(gap.as_ref());
        self.place = place;
        self.is_after_first = false;
        self.known = known;
        self.gap = gap.or(self.gap.take());
        Ok(())
    }

    /// Where the server's GTIDs start over, ours do too.
    fn start_over_after(&mut self, gap: Option<&Gap>) {
        if let Some(Gap { kind: GapKind::Reset | GapKind::Diverged | GapKind::OtherServer, .. }) = gap {
            self.gtids = Gtids::none(self.server.flavor());
            self.logged = None;
            self.last_transaction = None;
        }
    }

    /// Notes the settings by which the server leaves something out of what follows,
    /// and of what has come since it was last asked.
    pub(super) fn leaves_out(&mut self, filters: Option<&str>) {
        self.leaves_out = filters.map(str::to_owned);
        if let Some(stretch) = self.stretch.as_mut().filter(|_| filters.is_some()) {
            stretch.leaves_out.clone_from(&self.leaves_out);
        }
    }

    /// From now on, stretches belong to another run.
    pub(super) fn begin_run(&mut self) {
        self.next_number = 0;
        self.has_nameless &= self.tracker.is_inside();
    }

    /// The next stretch gets this number.
    pub(super) fn number_from(&mut self, next: usize) {
        self.next_number = u32::try_from(next).unwrap_or(u32::MAX);
    }

    /// Ends the open stretch.
    pub(super) fn end_stretch(&mut self, is_complete: bool, sink: &mut dyn Sink) -> Result<()> {
        let Some(mut stretch) = self.stretch.take() else { return Ok(()) };
        stretch.is_complete |= is_complete;
        sink.ended(self.shown(stretch))
    }

    fn shown(&self, mut stretch: Stretch) -> Stretch {
        stretch.gtids_after = (!self.gtids.is_empty()).then(|| self.gtids.to_string());
        stretch
    }

    /// Takes in a stored stretch; its events follow through [`stored`](Self::stored).
    pub(super) fn begin_stored(&mut self, stretch: &Stretch, sink: &mut dyn Sink) -> Result<()> {
        let is_next_file = stretch.gap.is_none() && self.server.is_same(&stretch.server);
        self.end_stretch(is_next_file, sink)?;
        self.server = stretch.server.clone();
        if stretch.begins_at() != self.place || stretch.gap.is_some() {
            self.tracker = Tracker::default();
        }
        self.place = stretch.begins_at();
        self.format.clone_from(&stretch.format);
        let format = stretch.format_bytes()?;
        self.checksum = Checksum::of_format(&format).unwrap_or_default();
        self.start_over_after(stretch.gap.as_ref());
        if let Some(before) = &stretch.gtids_before {
            self.gtids = parse_gtids(self.server.flavor(), before)?;
        }
        self.gap.clone_from(&stretch.gap);
        self.leaves_out.clone_from(&stretch.leaves_out);
        self.continues.clone_from(&stretch.continues);
        self.open(stretch.begin, sink)
    }

    /// Takes in a stored event.
    pub(super) fn stored(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<()> {
        let event = Event::parse(bytes, self.checksum);
        let event = event.map_err(|error| RecordError::Event { at: self.place.clone(), error })?;
        if self.last.as_ref().is_some_and(|last| last.begin == FILE_BEGIN) {
            self.place.position = after_first(self.place.position, &event.header);
        }
        self.record(bytes, &event, sink).map_err(|error| match error {
            RecordError::Sink(error) => error,
            other => Error::damaged(other.to_string()),
        })
    }

    /// Takes in an event from the server. Returns whether it is recorded.
    pub(super) fn received(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<bool, RecordError> {
        let at = |recorder: &Self| recorder.place.clone();
        let failed = |recorder: &Self, error| RecordError::Event { at: at(recorder), error };
        let header = Header::parse(bytes).map_err(|error| failed(self, error))?;
        if header.kind == EventKind::ROTATE && (header.flags.is_artificial() || header.end == 0) {
            self.artificial_rotate(bytes, sink)?;
            return Ok(false);
        }
        if matches!(header.kind, EventKind::HEARTBEAT | EventKind::HEARTBEAT_V2) {
            return Ok(false);
        }
        if header.kind == EventKind::START_ENCRYPTION {
            // It is about the file only, and of no use to a receiver of unencrypted events. In the file it
            // follows the first event, but it is sent wherever a stream begins.
            if std::mem::take(&mut self.is_after_first) {
                self.place.position += u64::from(header.len);
            }
            return Ok(false);
        }
        let event = Event::parse(bytes, self.checksum).map_err(|error| failed(self, error))?;
        if header.kind == EventKind::FORMAT_DESCRIPTION {
            self.checksum = Checksum::of_format(bytes).unwrap_or_default();
            if self.place.position != FILE_BEGIN || header.end == 0 {
                // Sent again, with changes, if the stream begins in the middle of the file.
                if self.format.is_empty() {
                    self.format = to_hex(bytes);
                }
                return Ok(false);
            }
            self.format = to_hex(bytes);
        } else if header.flags.is_artificial() {
            return Ok(false);
        }
        let len = u64::from(header.len);
        // The header has the lower 32 bits of the event's end. MariaDB 11.4 and later leave it out for events
        // within a transaction, so a hole there shows at the next event that has it.
        let begin = u64::from(header.end).wrapping_sub(len) & u64::from(u32::MAX);
        if header.end != 0 && begin != self.place.position & u64::from(u32::MAX) {
            let Place { file, position: from } = self.place.clone();
            return Err(match &self.known {
                Some(_) => RecordError::NotAsArchived(self.place.clone()),
                None => RecordError::Hole { file, from, to: begin },
            });
        }
        self.is_after_first =
            header.kind == EventKind::FORMAT_DESCRIPTION && self.place.position == FILE_BEGIN;
        if let Some(known) = self.known.clone() {
            return self.compare(&known, bytes, len).map(|()| false);
        }
        self.record(bytes, &event, sink)?;
        Ok(true)
    }

    /// Compares an event with what was archived before.
    fn compare(&mut self, known: &Known, bytes: &[u8], len: u64) -> Result<(), RecordError> {
        let (begin, end) = (self.place.position, self.place.position + len);
        let is_it = begin == known.begin && end == known.end && hash(bytes) == known.hash;
        if end > known.begin && !is_it {
            return Err(RecordError::NotAsArchived(Place { position: known.begin, ..self.place.clone() }));
        }
        self.place.position = end;
        if is_it {
            self.known = None;
        }
        Ok(())
    }

    fn artificial_rotate(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<(), RecordError> {
        let failed = |error| RecordError::Event { at: self.place.clone(), error };
        // This event comes before it is known whether events have checksums.
        let event = Event::parse(bytes, Checksum::Crc32).or_else(|_| Event::parse(bytes, Checksum::None));
        let event = event.map_err(failed)?;
        let Body::Rotate { file, position } = event.body().map_err(failed)? else { return Ok(()) };
        let file = String::from_utf8_lossy(file).into_owned();
        if file != self.place.file {
            if let Some(known) = &self.known
                && !self.place.file.is_empty()
            {
                let position = known.begin;
                return Err(RecordError::NotAsArchived(Place { position, ..self.place.clone() }));
            }
            self.end_stretch(true, sink)?;
            if self.gap.is_none() {
                self.gap = self.skipped(&file);
                self.missing = self.gap.as_ref().map(|gap| gap.text.clone());
            }
            self.place = Place { file, position };
            self.is_after_first = false;
            self.format.clear();
        } else if self.place.position == 0 {
            self.place.position = position;
        }
        Ok(())
    }

    /// What is missing if `file` follows and is not the one that the last event names. After a shutdown, a server
    /// may have got another name for its files.
    fn skipped(&self, file: &str) -> Option<Gap> {
        let next = self.last.as_ref()?.next_file.as_deref()?;
        let base = |file: &str| file.rsplit_once('.').map(|(base, _)| base.to_owned());
        let is_there =
            next == file || self.continues.as_ref() != Some(&self.place) || base(next) != base(file);
        (!is_there).then(|| {
            let text = format!("the server goes on with {file} after {}, without {next}", self.place.file);
            Gap { kind: GapKind::Purged, text }
        })
    }

    fn open(&mut self, begin: u64, sink: &mut dyn Sink) -> Result<()> {
        let stretch = Stretch {
            number: self.next_number,
            of_run: None,
            server: self.server.clone(),
            file: self.place.file.clone(),
            begin,
            end: begin,
            bytes: 0,
            format: self.format.clone(),
            continues: self.continues.clone(),
            gap: self.gap.take(),
            leaves_out: self.leaves_out.clone(),
            is_complete: false,
            transactions: 0,
            first_at: None,
            last_at: None,
            first_gtid: None,
            last_gtid: None,
            gtids_before: (!self.gtids.is_empty()).then(|| self.gtids.to_string()),
            gtids_after: None,
        };
        self.next_number += 1;
        sink.stretch(&stretch)?;
        self.stretch = Some(stretch);
        Ok(())
    }

    fn record(&mut self, bytes: &[u8], event: &Event<'_>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        let at = self.place.clone();
        let failed = |error| RecordError::Event { at: at.clone(), error };
        let body = event.body().map_err(failed)?;
        if self.stretch.is_none() {
            self.open(self.place.position, sink)?;
        }
        // Events without a time: see `ArchivedEvent::time_s`.
        if event.header.timestamp > 0 {
            self.time_s = event.header.timestamp;
        }
        let open = self.tracker.open().cloned();
        let part = self.tracker.next(event, &body).map_err(failed)?;
        match part {
            Part::First => {
                self.begun_s = None;
                self.has_nameless |= self.tracker.open().is_some_and(|open| open.gtid.is_none());
            }
            Part::Inside | Part::Last if tells_begin(&body) => {
                self.begun_s.get_or_insert(event.header.timestamp);
            }
            _ => {}
        }
        sink.event(bytes)?;
        let begin = self.place.position;
        self.place.position = match event.header.kind {
            EventKind::FORMAT_DESCRIPTION if begin == FILE_BEGIN => u64::from(event.header.end),
            _ => begin + u64::from(event.header.len),
        };
        let next_file = match &body {
            Body::Rotate { file, .. } => Some(String::from_utf8_lossy(file).into_owned()),
            // A server that was shut down begins the next file when it is started.
            Body::Stop => file_after(&self.place.file),
            _ => None,
        };
        let mut ends = next_file.is_some() || matches!(body, Body::Stop);
        self.last = Some(LastEvent { begin, hash: hash(bytes), next_file });
        self.continues = Some(self.place.clone());
        if let Some(stretch) = &mut self.stretch {
            stretch.bytes += bytes.len() as u64;
            stretch.end = self.place.position;
            stretch.is_complete |= ends;
        }
        match &body {
            Body::PreviousGtids(set) => self.compare_gtids(&Gtids::MySql(set.clone())),
            Body::GtidList(list) => {
                let mut position = MariaDbGtidPos::default();
                let logged = self.logged.get_or_insert_default();
                for gtid in list {
                    position.advance(*gtid);
                    logged.add(*gtid);
                }
                self.compare_gtids(&Gtids::MariaDb(position));
            }
            Body::Incident { message } => {
                let text = format!("the server lost events: {}", String::from_utf8_lossy(message));
                self.gap = Some(Gap { kind: GapKind::Incident, text });
                ends = true;
            }
            _ => {}
        }
        if part == Part::Last
            && let Some(gtid) = open
        {
            let committed = gtid.committed_us_in(self.server.server_id);
            let at = committed.unwrap_or(u64::from(self.time_s) * 1_000_000);
            self.transaction(gtid.gtid.as_ref(), at);
        }
        if ends && self.gap.is_some() {
            self.end_stretch(false, sink)?;
        }
        Ok(())
    }

    fn transaction(&mut self, gtid: Option<&Gtid>, at: u64) {
        if let Some(gtid) = gtid {
            self.last_transaction = self.last_transaction(gtid);
            self.gtids.add(gtid);
            if let (Gtid::MariaDb(gtid), Some(logged)) = (gtid, &mut self.logged) {
                logged.add(*gtid);
            }
        }
        self.last_at = Some(at);
        if let Some(stretch) = &mut self.stretch {
            let name = gtid.map(ToString::to_string);
            stretch.transactions += 1;
            stretch.first_at.get_or_insert(at);
            stretch.last_at = Some(at);
            if stretch.first_gtid.is_none() {
                stretch.first_gtid.clone_from(&name);
            }
            stretch.last_gtid = name;
        }
    }

    fn last_transaction(&self, gtid: &Gtid) -> Option<LastTransaction> {
        let (Gtid::MariaDb(name), Gtids::MariaDb(before)) = (gtid, &self.gtids) else { return None };
        let last = before.iter().find(|before| before.domain == name.domain);
        let before = last.map(|last| last.to_string());
        Some(LastTransaction { gtid: gtid.to_string(), before, begun_s: self.begun_s? })
    }

    /// A file names the GTIDs of all files before it.
    /// Before anything is archived, and after a gap, they are what we know.
    fn compare_gtids(&mut self, said: &Gtids) {
        let is_first = self.last_at.is_none() && self.gtids.is_empty();
        let follows_gap = self.stretch.as_ref().is_some_and(|stretch| stretch.gap.is_some());
        if said.flavor() != self.gtids.flavor() || self.gtids.includes(said) {
            return;
        }
        if !is_first && !follows_gap {
            let text = format!(
                "transactions are missing: {} lists {said} as earlier, but the archive contains only {}",
                self.place.file, self.gtids
            );
            self.missing = Some(text.clone());
            if let Some(stretch) = &mut self.stretch {
                stretch.gap = Some(Gap { kind: GapKind::Purged, text });
            }
        }
        self.gtids.add_all(said);
        let before = self.gtids.to_string();
        if let Some(stretch) = &mut self.stretch {
            stretch.gtids_before = Some(before);
        }
    }

    /// The open stretch as it is now.
    pub(super) fn stretch(&self) -> Option<Stretch> {
        self.stretch.clone().map(|stretch| self.shown(stretch))
    }
}

/// The name of the file that a server writes after another, if that ends in a number.
fn file_after(file: &str) -> Option<String> {
    let (base, number) = file.rsplit_once('.')?;
    let next = number.parse::<u64>().ok()?.checked_add(1)?;
    Some(format!("{base}.{next:0width$}", width = number.len()))
}

/// Whether an event of a transaction has the time of a statement. Its GTID event does not count, nor the
/// event with the statement that rows come from, which comes and goes with the settings of a replica.
pub(super) fn tells_begin(body: &Body<'_>) -> bool {
    !matches!(body, Body::Gtid(_) | Body::RowsStatement(_))
}

/// BLAKE3, hex.
pub(super) fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

#[cfg(test)]
mod tests;
