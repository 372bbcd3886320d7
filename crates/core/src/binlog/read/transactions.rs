//! The transactions of an archive, in order, each once: what a recovery replays.

use std::{collections::BTreeSet, ops::ControlFlow};

use holdfast_formats::{
    Gtid, Gtids,
    binlog::{Body, Checksum, Event, GtidEvent, Header, Part, Tracker},
};

use super::{Archive, GapKind};
use crate::{
    binlog::stretch::parse_gtids,
    error::{Error, Result},
};

/// The position after which transactions are wanted.
#[derive(Clone, Debug)]
pub enum After {
    /// The beginning of a stretch, given by its position in [`Archive::stretches`].
    Stretch(usize),
    /// A place in a stretch.
    PlaceIn {
        /// The stretch, given by its position in [`Archive::stretches`].
        stretch: usize,
        /// In the server's file: where an event begins or the stretch ends.
        position: u64,
        /// GTIDs of what came before, if known:
        /// another server may have these after transactions that came later.
        gtids: Option<Gtids>,
    },
    /// These transactions.
    Gtids(Gtids),
}

/// An event of the archive.
#[derive(Debug)]
pub struct ArchivedEvent<'a> {
    /// Its bytes, as in the server's file.
    pub bytes: &'a [u8],
    /// Its header and data.
    pub event: Event<'a>,
    /// Its parsed body.
    pub body: &'a Body<'a>,
    /// Position of its stretch in [`Archive::stretches`].
    pub stretch: usize,
    /// Id of the server that it was archived from.
    pub server_id: u32,
    /// Where it begins in the server's file.
    pub begin: u64,
    /// Its part in its transaction. A transaction whose last event does not come never happened.
    pub part: Part,
    /// The transaction that it is part of.
    pub transaction: Option<&'a GtidEvent>,
    /// Its time, in seconds since 1970; of an event without one, that of the last event before it that has one. A
    /// MariaDB server that has recovered from a crash logs the DDL that it has completed, without a time, into a
    /// file that begins with the time of its start (seen on 11.8.9).
    pub time_s: u32,
}

impl ArchivedEvent<'_> {
    /// When this event's transaction was committed. MySQL records that; for MariaDB, whose binlog has whole
    /// seconds, it is the time of this event.
    pub(crate) fn committed_us(&self, transaction: &GtidEvent) -> u64 {
        transaction.committed_us_in(self.server_id).unwrap_or(u64::from(self.time_s) * 1_000_000)
    }
}

impl Archive {
    /// Whether the last transaction before a position was committed after a time, if the archive has it.
    pub(crate) fn ends_later(&self, after: &After, time_us: u64) -> Result<bool> {
        let (first, position, gtids) = self.locate(after)?;
        if position.is_some() && self.stretches[first].stretch.last_at.is_some_and(|at| at <= time_us) {
            return Ok(false);
        }
        let end = if position.is_some() { first + 1 } else { self.stretches.len() };
        let (mut open, mut last) = (None, None);
        self.all_transactions(first..end, &mut |event| {
            if position.is_some_and(|position| event.begin >= position) {
                return Ok(ControlFlow::Break(()));
            }
            match (event.part, event.transaction) {
                (Part::First, Some(transaction)) => {
                    let is_after = position.is_none()
                        && transaction
                            .gtid
                            .as_ref()
                            .zip(gtids.as_ref())
                            .is_none_or(|(gtid, held)| !held.contains(gtid));
                    if is_after {
                        return Ok(ControlFlow::Break(()));
                    }
                    open = Some(event.committed_us(transaction));
                }
                (Part::Last, _) => last = open.take().or(last),
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        })?;
        // It may be in an earlier stretch, unless there is a gap in between.
        let mut at = first;
        while last.is_none() && at > 0 && self.stretches[at].gap.is_none() {
            at -= 1;
            last = self.stretches[at].stretch.last_at;
        }
        Ok(last.is_some_and(|last| last > time_us))
    }

    /// Where to begin reading what comes after a position: a stretch,
    /// and what to skip in it, by offset and by GTIDs.
    pub fn locate(&self, after: &After) -> Result<(usize, Option<u64>, Option<Gtids>)> {
        let not_here = |what: String| {
            Error::failed(format!(
                "the archive of {} does not contain what comes after {what}",
                self.log.source
            ))
        };
        match after {
            After::Stretch(at) => Ok((*at, None, None)),
            After::PlaceIn { stretch, position, gtids } => Ok((*stretch, Some(*position), gtids.clone())),
            After::Gtids(gtids) => {
                // The newest stretch before which everything is in the position.
                let mut found = None;
                for (at, archived) in self.stretches.iter().enumerate() {
                    let flavor = archived.stretch.server.flavor();
                    let before = match &archived.stretch.gtids_before {
                        Some(text) => parse_gtids(flavor, text)?,
                        None => Gtids::none(flavor),
                    };
                    if gtids.includes(&before) {
                        found = Some(at);
                    }
                }
                let at = found.ok_or_else(|| not_here(gtids.to_string()))?;
                Ok((at, None, Some(gtids.clone())))
            }
        }
    }

    /// Calls `each` with all events after a position, in order, until it breaks. A transaction that is there
    /// twice, because two servers had it, is passed on only the first time.
    ///
    /// # Errors
    /// A gap, unless `each` broke before: what comes after it does not continue what came before.
    pub fn transactions(
        &self,
        after: &After,
        each: &mut dyn FnMut(&ArchivedEvent<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let gap = self.transactions_to_gap(after, each)?.and_then(|at| self.stretches[at].gap.as_ref());
        match gap {
            Some(gap) => {
                let source = &self.log.source;
                Err(Error::failed(format!("the archive of {source} has a gap: {}", gap.text)))
            }
            None => Ok(()),
        }
    }

    /// As [`transactions`](Self::transactions), but at a gap it returns which stretch is the first after it.
    pub(crate) fn transactions_to_gap(
        &self,
        after: &After,
        each: &mut dyn FnMut(&ArchivedEvent<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<Option<usize>> {
        let (first, position, seen) = self.locate(after)?;
        let is_all_new = !matches!(after, After::Gtids(_));
        let mut walk = Walk { position, seen, is_all_new, ends_at_gap: true, ..Walk::new(self, first) };
        let range = first..self.stretches.len();
        self.events(range, &mut |at, begin, bytes| walk.event(at, begin, bytes, each))?;
        Ok(walk.after_gap)
    }

    /// Passes the transactions of the stretches in `range` to `each`, across gaps.
    pub(super) fn all_transactions(
        &self,
        range: std::ops::Range<usize>,
        each: &mut dyn FnMut(&ArchivedEvent<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut walk = Walk::new(self, range.start);
        self.events(range, &mut |at, begin, bytes| walk.event(at, begin, bytes, each))
    }
}

struct Walk<'a> {
    archive: &'a Archive,
    first: usize,
    /// In the first stretch, events before this offset are skipped.
    position: Option<u64>,
    /// Transactions to skip, and those that have come.
    seen: Option<Gtids>,
    at: Option<usize>,
    tracker: Tracker,
    checksum: Checksum,
    is_passing: bool,
    /// Nothing of this server came before: it is the first one, and reading begins at a place in its binlog.
    is_all_new: bool,
    /// MariaDB: domains in which this server has had a transaction that had not come before. From then on all
    /// of them are new, whatever their numbers are:
    /// without `gtid_strict_mode` several servers count in one domain.
    caught_up: BTreeSet<u32>,
    /// The time of the last event that had one.
    time_s: u32,
    ends_at_gap: bool,
    /// The first stretch after the gap at which it ended.
    after_gap: Option<usize>,
}

impl<'a> Walk<'a> {
    fn new(archive: &'a Archive, first: usize) -> Self {
        Self {
            archive,
            first,
            position: None,
            seen: None,
            at: None,
            tracker: Tracker::default(),
            checksum: Checksum::None,
            is_passing: false,
            is_all_new: true,
            caught_up: BTreeSet::new(),
            time_s: 0,
            ends_at_gap: false,
            after_gap: None,
        }
    }

    fn event(
        &mut self,
        at: usize,
        begin: u64,
        bytes: &[u8],
        each: &mut dyn FnMut(&ArchivedEvent<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        if self.at != Some(at) {
            self.enter(at)?;
        }
        if self.after_gap.is_some() {
            return Ok(ControlFlow::Break(()));
        }
        let header = Header::parse(bytes).ok();
        if let Some(time_s) = header.map(|header| header.timestamp).filter(|time_s| *time_s > 0) {
            self.time_s = time_s;
        }
        if let Some(position) = self.position.filter(|position| at == self.first && begin < *position) {
            if begin + bytes.len() as u64 > position {
                let file = &self.archive.stretches[at].stretch.file;
                let text = format!(
                    "{file}:{position} is within an event: the position does not belong to this binlog"
                );
                return Err(Error::failed(text));
            }
            return Ok(ControlFlow::Continue(()));
        }
        let damaged = |error: holdfast_formats::binlog::BinlogError| {
            let file = &self.archive.stretches[at].stretch.file;
            Error::damaged(format!("{file}:{begin}: {error}"))
        };
        let event = Event::parse(bytes, self.checksum).map_err(damaged)?;
        let body = event.body().map_err(damaged)?;
        let open = self.tracker.open().cloned();
        let part = self.tracker.next(&event, &body).map_err(damaged)?;
        let transaction = match part {
            Part::First => self.tracker.open().cloned(),
            _ => open,
        };
        if part == Part::First {
            self.is_passing = transaction.as_ref().is_some_and(|transaction| self.has_seen(transaction));
        }
        let is_passed = self.is_passing && part != Part::Outside;
        if part == Part::Last {
            self.is_passing = false;
            // A skipped transaction is already in the position, which may be far ahead of it.
            let gtid = transaction.as_ref().and_then(|transaction| transaction.gtid.as_ref());
            if let Some(gtid) = gtid.filter(|_| !is_passed) {
                self.seen.get_or_insert_with(|| Gtids::none(gtid.flavor())).add(gtid);
            }
        }
        if is_passed {
            return Ok(ControlFlow::Continue(()));
        }
        each(&ArchivedEvent {
            bytes,
            event,
            body: &body,
            stretch: at,
            server_id: self.archive.stretches[at].stretch.server.server_id,
            begin,
            part,
            transaction: transaction.as_ref().filter(|_| part != Part::Outside),
            time_s: self.time_s,
        })
    }

    fn has_seen(&mut self, transaction: &GtidEvent) -> bool {
        let Some(gtid) = transaction.gtid.as_ref().filter(|_| !self.is_all_new) else { return false };
        let has_seen = self.seen.as_ref().is_some_and(|seen| seen.contains(gtid));
        match gtid {
            Gtid::MariaDb(gtid) if has_seen => !self.caught_up.contains(&gtid.domain),
            Gtid::MariaDb(gtid) => {
                self.caught_up.insert(gtid.domain);
                false
            }
            Gtid::MySql(_) => has_seen,
        }
    }

    /// Another stretch begins.
    fn enter(&mut self, at: usize) -> Result<()> {
        let archived = &self.archive.stretches[at];
        let format = archived.stretch.format_bytes()?;
        self.checksum = Checksum::of_format(&format).unwrap_or_default();
        if self.time_s == 0 {
            self.time_s = Header::parse(&format).map_or(0, |header| header.timestamp);
        }
        if let Some(before) = self.at {
            if !self.archive.stretches[before].stretch.server.is_same(&archived.stretch.server) {
                self.is_all_new = false;
                self.caught_up.clear();
            }
            let goes_on = archived.continues(&self.archive.stretches[before])
                && archived.stretch.file == self.archive.stretches[before].stretch.file;
            if !goes_on {
                self.tracker = Tracker::default();
                self.is_passing = false;
            }
            if let Some(gap) = &archived.gap {
                self.after_gap = self.ends_at_gap.then_some(at);
                if matches!(gap.kind, GapKind::Reset | GapKind::Diverged | GapKind::OtherServer) {
                    self.seen = None;
                }
            }
        }
        self.at = Some(at);
        Ok(())
    }
}
