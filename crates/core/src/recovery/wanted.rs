//! The transactions of an archive between a backup and a moment, for the server that replays them.

use std::{collections::BTreeMap, ops::ControlFlow};

use holdfast_formats::{
    Gtid, Gtids,
    binlog::{EventKind, GtidEvent, Part},
    gtid::MariaDbGtid,
};
use jiff::Timestamp;

use super::Until;
use crate::{
    binlog::{Archive, ArchivedEvent, Behind, Place},
    error::{Error, Result},
    event::Cancel,
    physical::BinlogPosition,
    restore::{Piece, Reached, Transactions},
};

pub(super) struct Wanted<'a> {
    archive: &'a Archive,
    behind: &'a Behind,
    until: &'a Until,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(archive: &'a Archive, behind: &'a Behind, until: &'a Until) -> Self {
        Self { archive, behind, until }
    }

    /// Where they end. Reads all of them; an error where the moment is not reached.
    pub(super) fn count(&mut self, cancel: &Cancel) -> Result<Reached> {
        self.each(&mut |piece| match piece {
            Piece::File { .. } => cancel.check(),
            Piece::Event { is_border, .. } if is_border => cancel.check(),
            Piece::Event { .. } => Ok(()),
        })
    }

    fn not_there(&self) -> Error {
        let source = &self.archive.log().source;
        Error::failed(format!("the archive of {source} does not have {} behind the backup", self.until))
    }
}

impl Transactions for Wanted<'_> {
    fn each(&mut self, take: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<Reached> {
        let mut walk =
            Walk { until: self.until, end: None, committed_us: 0, reached: Count::default(), is_over: false };
        self.archive.transactions(self.behind, &mut |event| walk.event(self.archive, event, take))?;
        match self.until {
            Until::Gtid(_) | Until::BeforeGtid(_) if !walk.is_over => Err(self.not_there()),
            _ => Ok(walk.reached.into_reached()),
        }
    }
}

struct Walk<'a> {
    until: &'a Until,
    /// The stretch of the last event, and where it ended.
    end: Option<(usize, Place)>,
    /// When the transaction was committed that the event is of.
    committed_us: u64,
    reached: Count,
    /// The moment has come.
    is_over: bool,
}

impl Walk<'_> {
    fn event(
        &mut self,
        archive: &Archive,
        event: &ArchivedEvent<'_>,
        take: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<ControlFlow<()>> {
        if let (Part::First, Some(transaction)) = (event.part, event.transaction) {
            self.committed_us = event.committed_us(transaction);
            if self.until.is_passed_by(transaction, self.committed_us) {
                self.is_over = true;
                return Ok(ControlFlow::Break(()));
            }
        }
        let stretch = &archive.stretches()[event.stretch].stretch;
        let begin = Place { file: stretch.file.clone(), position: event.begin };
        let goes_on = self.end.as_ref().is_some_and(|(at, end)| {
            archive.stretches()[*at].stretch.server.is_same(&stretch.server) && *end == begin
        });
        if !goes_on {
            let format = stretch.format_bytes()?;
            take(Piece::File { name: &stretch.file, offset: event.begin, format: &format })?;
        }
        // It was given with the file.
        if event.event.header.kind == EventKind::FORMAT_DESCRIPTION {
            let position = event.begin + event.bytes.len() as u64;
            self.end = Some((event.stretch, Place { position, ..begin }));
            return Ok(ControlFlow::Continue(()));
        }
        // What stands between transactions is given up with those behind it that never come.
        let is_border = event.part == Part::Last;
        take(Piece::Event { bytes: event.bytes, is_border })?;
        let end = Place { position: event.begin + event.bytes.len() as u64, ..begin };
        if let (Part::Last, Some(transaction)) = (event.part, event.transaction) {
            self.reached.add(transaction, self.committed_us, &end);
            if self.until.ends_with(transaction) {
                self.is_over = true;
                return Ok(ControlFlow::Break(()));
            }
        }
        self.end = Some((event.stretch, end));
        Ok(ControlFlow::Continue(()))
    }
}

/// What has been given so far.
#[derive(Default)]
struct Count {
    transactions: u64,
    committed_us: u64,
    end: Option<Place>,
    mariadb: BTreeMap<u32, MariaDbGtid>,
    mysql: Option<Gtids>,
}

impl Count {
    fn add(&mut self, transaction: &GtidEvent, committed_us: u64, end: &Place) {
        self.transactions += 1;
        self.committed_us = committed_us;
        self.end = Some(end.clone());
        match &transaction.gtid {
            Some(Gtid::MariaDb(gtid)) => drop(self.mariadb.insert(gtid.domain, *gtid)),
            Some(gtid @ Gtid::MySql(_)) => {
                self.mysql.get_or_insert_with(|| Gtids::MySql(Default::default())).add(gtid);
            }
            None => {}
        }
    }

    fn into_reached(self) -> Reached {
        let of_mariadb = self.mariadb.values().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let gtids = self.mysql.map(|set| set.to_string()).unwrap_or(of_mariadb);
        let committed_at = i64::try_from(self.committed_us).ok();
        let committed_at = committed_at.and_then(|us| Timestamp::from_microsecond(us).ok());
        Reached {
            transactions: self.transactions,
            committed_at: committed_at.filter(|_| self.transactions > 0),
            binlog: self.end.map(|Place { file, position }| BinlogPosition { file, offset: position }),
            gtids: Some(gtids).filter(|gtids| !gtids.is_empty()),
        }
    }
}
