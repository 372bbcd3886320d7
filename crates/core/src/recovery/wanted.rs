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
        let mut walk = Walk {
            until: self.until,
            end: None,
            committed_us: 0,
            reached: Count::default(),
            is_over: false,
            later: None,
        };
        let read = self.archive.transactions(self.behind, &mut |event| walk.event(self.archive, event, take));
        match &walk.later {
            // What cannot be read behind the moment is not needed, nor what is behind a gap.
            Some(later) => later.check(self.until)?,
            None => read?,
        }
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
    /// The first that was committed after a time; those behind it are only looked at.
    later: Option<Later>,
}

impl Walk<'_> {
    fn event(
        &mut self,
        archive: &Archive,
        event: &ArchivedEvent<'_>,
        take: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<ControlFlow<()>> {
        let stretch = &archive.stretches()[event.stretch].stretch;
        let begin = Place { file: stretch.file.clone(), position: event.begin };
        if let (Part::First, Some(transaction)) = (event.part, event.transaction) {
            let committed_us = event.committed_us(transaction);
            let is_passed = self.until.is_passed_by(transaction, committed_us);
            if let Some(later) = &mut self.later {
                return Ok(later.followed(is_passed));
            }
            self.committed_us = committed_us;
            if is_passed {
                self.is_over = true;
                let Until::Time(_) = self.until else { return Ok(ControlFlow::Break(())) };
                let gtid = transaction.gtid.as_ref();
                let name = gtid.map_or_else(|| format!("at {begin}"), ToString::to_string);
                self.later = Some(Later { name, committed_us, followers: 0, earlier: 0 });
            }
        }
        if self.later.is_some() {
            return Ok(ControlFlow::Continue(()));
        }
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

/// Transactions behind the first of after a moment that are looked at.
const FOLLOWERS_MAX: u32 = 20;

/// The first transaction that was committed after a time, by what it says itself. That may be wrong: the host's clock was
/// ahead for a while, or, on MariaDB, somebody set the time of a session. Those behind it tell.
#[derive(Debug)]
struct Later {
    name: String,
    committed_us: u64,
    /// How many behind it were looked at.
    followers: u32,
    /// How many of them were committed at the time or before. Some may be: on MariaDB a statement has the time when it
    /// began, however long it took.
    earlier: u32,
}

impl Later {
    /// Another comes behind it.
    fn followed(&mut self, is_later: bool) -> ControlFlow<()> {
        self.followers += 1;
        self.earlier += u32::from(!is_later);
        match self.followers < FOLLOWERS_MAX {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }

    /// Refuses a moment where most of those behind it came before.
    fn check(&self, until: &Until) -> Result<()> {
        let Self { name, followers, earlier, .. } = self;
        if earlier * 2 <= *followers {
            return Ok(());
        }
        let committed_at = instant(self.committed_us).map(|at| at.to_string()).unwrap_or_default();
        Err(Error::failed(format!(
            "transaction {name} was committed at {committed_at}, as it says, and {earlier} of the {followers} behind it at \
             {until} or before: its time seems wrong (a clock that was ahead, or SET timestamp), and what would be left out \
             cannot be told by times"
        ))
        .hinted(
            "name the transaction to recover to by --gtid or --before-gtid: \"holdfast binlog list --around TIME\" shows \
             those of a time",
        ))
    }
}

fn instant(us: u64) -> Option<Timestamp> {
    Timestamp::from_microsecond(i64::try_from(us).ok()?).ok()
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
        Reached {
            transactions: self.transactions,
            committed_at: instant(self.committed_us).filter(|_| self.transactions > 0),
            binlog: self.end.map(|Place { file, position }| BinlogPosition { file, offset: position }),
            gtids: Some(gtids).filter(|gtids| !gtids.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Few that came before are long statements; most are not.
    #[test]
    fn a_time_that_is_wrong() {
        let until = Until::Time(Timestamp::from_second(1_000).unwrap());
        let check = |earlier: u32, later: u32| {
            let mut first =
                Later { name: "0-1-7".to_owned(), committed_us: 5_000_000_000, followers: 0, earlier: 0 };
            let times = std::iter::repeat_n(false, earlier as usize).chain(std::iter::repeat(true));
            for is_later in times.take((earlier + later) as usize) {
                if first.followed(is_later).is_break() {
                    break;
                }
            }
            first.check(&until)
        };
        for (earlier, later) in [(0, 0), (0, 1), (1, 1), (3, 3), (10, 50)] {
            check(earlier, later).unwrap();
        }
        for (earlier, later) in [(1, 0), (2, 1), (11, 9), (11, 500), (500, 1)] {
            let error = check(earlier, later).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("transaction 0-1-7 was committed at 1970-01-01T01:23:20Z"), "{text}");
            assert!(error.hint().unwrap().contains("--before-gtid"));
        }
    }
}
