//! The moment to recover to.

use std::fmt;

use holdfast_formats::{Flavor, Gtid, Gtids, binlog::GtidEvent};
use jiff::{SpanRound, Timestamp, Unit};

use crate::{
    binlog::{After, Archive, ArchivedStretch},
    error::{Error, ErrorKind, Result},
};

/// The last transaction that is replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Until {
    /// The last that was committed at this time or earlier. MariaDB's binlog has times to the second: there,
    /// everything that was committed in that second is included.
    Time(Timestamp),
    /// This transaction.
    Gtid(Gtid),
    /// The transaction before this one.
    BeforeGtid(Gtid),
    /// The last in the archive.
    End,
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Until::Time(time) => time.fmt(f),
            Until::Gtid(gtid) => write!(f, "transaction {gtid}"),
            Until::BeforeGtid(gtid) => write!(f, "the moment before transaction {gtid}"),
            Until::End => f.write_str("the end of the archive"),
        }
    }
}

impl Until {
    /// Whether a transaction is not replayed, nor any after it.
    pub(super) fn is_passed_by(&self, transaction: &GtidEvent, committed_us: u64) -> bool {
        match self {
            Until::Time(_) => self.is_passed_at(committed_us),
            Until::BeforeGtid(gtid) => transaction.gtid.as_ref() == Some(gtid),
            Until::Gtid(_) | Until::End => false,
        }
    }

    /// Whether a transaction that was committed then is later than the moment, if that is a time.
    pub(super) fn is_passed_at(&self, committed_us: u64) -> bool {
        matches!(self, Until::Time(time) if i128::from(committed_us) > i128::from(time.as_microsecond()))
    }

    /// Whether a transaction is the last to replay.
    pub(super) fn ends_with(&self, transaction: &GtidEvent) -> bool {
        matches!(self, Until::Gtid(gtid) if transaction.gtid.as_ref() == Some(gtid))
    }

    /// The transaction that names the moment.
    pub(super) fn gtid(&self) -> Option<&Gtid> {
        match self {
            Until::Gtid(gtid) | Until::BeforeGtid(gtid) => Some(gtid),
            Until::Time(_) | Until::End => None,
        }
    }

    /// The option that gives the moment on the command line.
    pub(super) fn option(&self) -> String {
        match self {
            Until::Time(time) => format!("--at {time}"),
            Until::Gtid(gtid) => format!("--gtid {gtid}"),
            Until::BeforeGtid(gtid) => format!("--before-gtid {gtid}"),
            Until::End => "--at latest".to_owned(),
        }
    }

    /// Whether the moment is before a backup that ended at `finished_at` and holds `gtids`.
    pub(super) fn is_before(&self, finished_at: Timestamp, gtids: Option<&Gtids>) -> bool {
        match self {
            Until::Time(time) => *time < finished_at,
            // A backup that ends with exactly this transaction would do, but cannot be told from one that
            // holds more.
            Until::Gtid(gtid) | Until::BeforeGtid(gtid) => gtids.is_some_and(|gtids| gtids.contains(gtid)),
            Until::End => false,
        }
    }

    /// Whether the archive leads from a position to the moment without a gap, if that is a time or the end.
    pub(super) fn is_reached_from(&self, archive: &Archive, after: &After) -> Result<bool> {
        let (first, ..) = archive.locate(after)?;
        let mut whole = archive.stretches().iter().skip(first);
        let is_passed = whole.next().is_some_and(|archived| self.is_passed_in(archived));
        let mut parts = whole.take_while(|archived| archived.gap.is_none());
        let is_passed = is_passed || parts.any(|archived| self.is_passed_in(archived));
        let last = archive.stretches().len().saturating_sub(1);
        Ok(match self {
            Until::Gtid(_) | Until::BeforeGtid(_) => true,
            Until::Time(_) | Until::End => is_passed || archive.is_whole_between(first, last),
        })
    }

    /// Whether a transaction of a stretch is later than the moment, if that is a time.
    fn is_passed_in(&self, archived: &ArchivedStretch) -> bool {
        archived.stretch.last_at.is_some_and(|at| self.is_passed_at(at))
    }

    /// Refuses a time if the archive cannot be said to have all transactions before it, and the end if that cannot
    /// be read.
    pub(super) fn check_reach(&self, archive: &Archive) -> Result<()> {
        let source = &archive.log().source;
        if let (Until::End, Some(unreadable)) = (self, archive.unreadable_end()) {
            let text = format!("the end of the archive of {source} cannot be read: {}", unreadable.problem);
            return Err(Error::damaged(text).hinted(way_to_the_end(archive)));
        }
        let Until::Time(time) = self else { return Ok(()) };
        let last = archive
            .stretches()
            .iter()
            .rev()
            .find_map(|archived| Some((archived.stretch.server.flavor(), archived.stretch.last_at?)));
        let last = last.and_then(|(flavor, us)| {
            Some((flavor, Timestamp::from_microsecond(i64::try_from(us).ok()?).ok()?))
        });
        let Some((flavor, last)) = last else {
            return Err(Error::failed(format!("the archive of {source} has no transactions")));
        };
        let message = match flavor {
            _ if *time < last => return Ok(()),
            Flavor::MySql if *time == last => return Ok(()),
            // Its binlog has times to the second, and more may have been committed in this one.
            Flavor::MariaDb if time.as_second() == last.as_second() => format!(
                "the archive of {source} ends within the second {last}: transactions later in that second \
                 are missing"
            ),
            _ => {
                let in_days = SpanRound::new().smallest(Unit::Second).largest(Unit::Day).days_are_24_hours();
                let after = time.since(last).and_then(|span| span.round(in_days));
                let by = after.map(|span| format!(", {span:#} before")).unwrap_or_default();
                format!(
                    "the last transaction in the archive of {source} was committed at {last}{by} {time}: \
                     later ones are missing"
                )
            }
        };
        let message = message + &archive.unreadable_end_told();
        Err(Error::new(ErrorKind::Usage, message).hinted(way_to_the_end(archive)))
    }
}

/// How everything in an archive is recovered.
fn way_to_the_end(archive: &Archive) -> String {
    let last = archive.stretches().iter().rev().find_map(|archived| archived.stretch.last_gtid.as_ref());
    let way = match (archive.unreadable_end(), last) {
        (None, _) => "--at latest recovers everything in the archive".to_owned(),
        (Some(_), Some(gtid)) => format!("--gtid {gtid} recovers everything that can be read"),
        (Some(_), None) => "a time (--at) before it recovers what can be read".to_owned(),
    };
    format!("{way}; binlog archive --once fetches what the server still has")
}

/// A time of the archive, in microseconds since 1970.
pub(super) fn instant(us: u64) -> Option<Timestamp> {
    Timestamp::from_microsecond(i64::try_from(us).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gtids(text: &str) -> Gtids {
        match text.contains(':') {
            true => Gtids::MySql(text.parse().unwrap()),
            false => Gtids::MariaDb(text.parse().unwrap()),
        }
    }

    /// A backup is a base for every moment that is not before it.
    #[test]
    fn bases() {
        let now = Timestamp::from_second(1_000).unwrap();
        let earlier = Timestamp::from_second(999).unwrap();
        assert!(!Until::Time(now).is_before(now, None));
        assert!(Until::Time(earlier).is_before(now, None));
        assert!(!Until::End.is_before(now, None));
        let uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
        for (held, gtid, is_before) in [
            ("0-1-10".to_owned(), "0-1-9".to_owned(), true),
            ("0-1-10".to_owned(), "0-1-10".to_owned(), true),
            ("0-1-10".to_owned(), "0-1-11".to_owned(), false),
            (format!("{uuid}:1-10"), format!("{uuid}:9"), true),
            (format!("{uuid}:1-10"), format!("{uuid}:11"), false),
        ] {
            let (held, gtid) = (gtids(&held), gtid.parse::<Gtid>().unwrap());
            assert_eq!(Until::BeforeGtid(gtid.clone()).is_before(now, Some(&held)), is_before, "{gtid}");
            assert_eq!(Until::Gtid(gtid.clone()).is_before(now, Some(&held)), is_before, "{gtid}");
        }
    }
}
