//! The transactions of an archive between a backup and a moment, for the server that replays them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::ControlFlow,
};

use holdfast_formats::{
    Flavor, Gtid, Gtids,
    binlog::{EventKind, GtidEvent, Part},
    gtid::MariaDbGtid,
};
use holdfast_repo::{Kind, LogName, RunNo};

use super::{Until, branches::Branches, excluded::ExcludedTables, only::committed, until::instant};
use crate::{
    binlog::{After, Archive, ArchivedEvent, Place, Stretch},
    error::{Error, ErrorKind, Result},
    event::Cancel,
    restore::{Piece, Reached, Transactions},
    server::status::BinlogPosition,
};

pub(super) struct ReplayRange<'a> {
    archive: &'a Archive,
    after: &'a After,
    until: &'a Until,
    /// The backup.
    base: (&'a LogName, RunNo),
    /// What the backup left out.
    left_out: Option<&'a ExcludedTables>,
}

impl<'a> ReplayRange<'a> {
    pub(super) fn new(
        archive: &'a Archive,
        after: &'a After,
        until: &'a Until,
        base: (&'a LogName, RunNo),
        left_out: Option<&'a ExcludedTables>,
    ) -> Self {
        Self { archive, after, until, base, left_out }
    }

    /// Reads all of the transactions, and returns where they end. Fails if the moment is not reached, or if a
    /// time does not identify it.
    pub(super) fn count(&self, cancel: &Cancel) -> Result<Reached> {
        self.count_each(cancel, &mut |_| Ok(()))
    }

    /// As [`count`](Self::count), and passes the transactions to `take`.
    pub(super) fn count_each(
        &self,
        cancel: &Cancel,
        take: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<Reached> {
        self.walk(Some(cancel), &mut |piece| {
            if matches!(piece, Piece::File { .. } | Piece::Event { part: Part::Last, .. }) {
                cancel.check()?;
            }
            take(piece)
        })
    }

    /// With `doubts`, also checks whether the transactions can be replayed, and whether the time of the first one
    /// that is left out is right: those after it are looked at, until that is cancelled.
    fn walk(
        &self,
        doubts: Option<&Cancel>,
        take: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<Reached> {
        let has_no_branches = self.base.0.kind == Kind::Logical;
        let mut walk = Walk {
            until: self.until,
            base: self.base,
            doubts,
            branches: (doubts.is_some() && has_no_branches).then(Branches::default),
            left_out: self.left_out.filter(|_| doubts.is_some()).cloned(),
            end: None,
            committed_us: 0,
            reached: Count::default(),
            is_over: false,
            later: None,
            end_at: None,
            again: None,
        };
        let take = &mut |event: &ArchivedEvent<'_>| walk.event(self.archive, event, take);
        let read = self.archive.transactions_to_gap(self.after, take);
        doubts.map(Cancel::check).transpose()?;
        if let Some(again) = &walk.again {
            return Err(self.comes_twice(&walk, again));
        }
        match &walk.later {
            // So is what follows a transaction that is named.
            None if walk.is_over => {}
            // What cannot be read after the moment is not needed, nor is what follows a gap.
            Some(later) => later.check(self.until)?,
            None => match read? {
                Some(at) if !self.is_reached_at_gap(at, &walk.reached) => {
                    return Err(self.ends_at_gap(at, &walk.reached));
                }
                _ => {}
            },
        }
        match self.until {
            Until::Gtid(_) | Until::BeforeGtid(_) if !walk.is_over => Err(self.not_there()),
            _ => Ok(walk.reached.into_reached()),
        }
    }

    fn comes_twice(&self, walk: &Walk<'_>, again: &(Place, u64)) -> Error {
        let source = &self.archive.log().source;
        let places: Vec<String> =
            walk.end_at.iter().chain([again]).map(|(place, us)| committed(place, *us)).collect();
        let named = self.until.gtid().map(ToString::to_string).unwrap_or_default();
        let text = format!("{named} is in the archive of {source} more than once: {}", places.join("; "));
        Error::new(ErrorKind::Usage, text)
            .hinted("name a time (--at) instead, or, for the later one, a backup that was taken between them")
    }

    fn not_there(&self) -> Error {
        let source = &self.archive.log().source;
        let (log, base) = self.base;
        let unreadable = self.archive.unreadable_end_told();
        let text =
            format!("the archive of {source} does not contain {} after {log} {base}{unreadable}", self.until);
        Error::new(ErrorKind::Usage, text).hinted(
            "without the ID of a backup, restore takes the last one before the transaction; \"holdfast \
             binlog list\" shows what is archived",
        )
    }

    /// Whether the last transaction before a gap is exactly of the moment: MySQL's times are precise enough
    /// for that.
    fn is_reached_at_gap(&self, at: usize, reached: &Count) -> bool {
        let flavor = self.archive.stretches().get(at).map(|archived| archived.stretch.server.flavor());
        matches!(self.until, Until::Time(time) if flavor == Some(Flavor::MySql)
            && reached.transactions > 0
            && i128::from(reached.committed_us) == i128::from(time.as_microsecond()))
    }

    /// The error for a gap before the moment: what was committed between the last transaction before the gap
    /// and the moment is missing, even within one second.
    fn ends_at_gap(&self, at: usize, reached: &Count) -> Error {
        let source = &self.archive.log().source;
        let (log, base) = self.base;
        let gap = self.archive.stretches().get(at).and_then(|archived| archived.gap.as_ref());
        let why = gap.map(|gap| gap.text.as_str()).unwrap_or_default();
        let last_at = instant(reached.committed_us).filter(|_| reached.transactions > 0);
        let (ends, way) = match (last_at, &reached.last_gtid) {
            (Some(at), Some(gtid)) => {
                (format!("ends with transaction {gtid}, committed at {at}"), format!("--gtid {gtid}"))
            }
            (Some(at), None) => (format!("ends with what was committed at {at}"), format!("--at {at}")),
            (None, _) => ("has no transaction".to_owned(), String::new()),
        };
        let text = format!(
            "the archive of {source} has a gap before {}: {why}; what it has between {log} {base} and the \
             gap {ends}",
            self.until
        );
        let id = log.backup_id(base);
        let hint = match (log.kind, last_at.is_some()) {
            (Kind::Physical, true) => format!("restore {id} {way} recovers everything before the gap"),
            (Kind::Physical, false) => format!("restore {id} restores the backup itself"),
            (_, true) => format!("{way} gives everything before the gap"),
            (_, false) => "the backup itself can be loaded".to_owned(),
        };
        let hint =
            format!("{hint}; \"holdfast binlog list\" shows what is archived and what can be recovered");
        Error::new(ErrorKind::Usage, text).hinted(hint)
    }
}

impl Transactions for ReplayRange<'_> {
    /// The transactions have been counted, so their end is not checked again.
    fn each(&mut self, take: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<Reached> {
        self.walk(None, take)
    }
}

struct Walk<'a> {
    until: &'a Until,
    base: (&'a LogName, RunNo),
    doubts: Option<&'a Cancel>,
    /// Behind a logical backup.
    branches: Option<Branches>,
    /// What that backup left out.
    left_out: Option<ExcludedTables>,
    /// The stretch of the last event, and where it ended.
    end: Option<(usize, Place)>,
    /// When the transaction of the current event was committed.
    committed_us: u64,
    reached: Count,
    /// Whether the moment has come.
    is_over: bool,
    /// The first transaction that was committed after a time; those after it are only looked at.
    later: Option<Later>,
    /// The transaction that names the moment, and when it was committed.
    end_at: Option<(Place, u64)>,
    /// The same GTID once more: two servers that count in one domain may use a number twice (MariaDB).
    again: Option<(Place, u64)>,
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
            if self.is_over && self.later.is_none() {
                self.doubts.map(Cancel::check).transpose()?;
                if transaction.gtid.as_ref() != self.until.gtid() {
                    return Ok(ControlFlow::Continue(()));
                }
                self.again = Some((begin, committed_us));
                return Ok(ControlFlow::Break(()));
            }
            if transaction.gtid.is_some() && transaction.gtid.as_ref() == self.until.gtid() {
                self.end_at = Some((begin.clone(), committed_us));
            }
            if let Some(later) = &mut self.later {
                self.doubts.map(Cancel::check).transpose()?;
                return Ok(later.followed(is_passed, committed_us));
            }
            self.committed_us = committed_us;
            if is_passed {
                self.is_over = true;
                let (Until::Time(_), Some(_)) = (self.until, self.doubts) else {
                    return Ok(self.over());
                };
                let later = Later::new(name_of(transaction.gtid.as_ref(), &begin), committed_us);
                let after = archive.stretches()[event.stretch + 1..].iter();
                let after = after.take_while(|archived| archived.gap.is_none());
                later.check_files(after.map(|archived| &archived.stretch), self.until)?;
                self.later = Some(later);
            }
        }
        if self.is_over {
            return Ok(ControlFlow::Continue(()));
        }
        let goes_on = self.end.as_ref().is_some_and(|(at, end)| {
            archive.stretches()[*at].stretch.server.is_same(&stretch.server) && *end == begin
        });
        if !goes_on {
            let format = stretch.format_bytes()?;
            self.reached.leaves_out.extend(stretch.leaves_out.clone());
            take(Piece::File { name: &stretch.file, offset: event.begin, format: &format })?;
        }
        // The format was passed on with the file.
        if event.event.header.kind == EventKind::FORMAT_DESCRIPTION {
            let position = event.begin + event.bytes.len() as u64;
            self.end = Some((event.stretch, Place { position, ..begin }));
            return Ok(ControlFlow::Continue(()));
        }
        if let Some(branch) = self.branches.as_mut().and_then(|branches| branches.next(event.body)) {
            return Err(self.ends_unknown(&branch, event.transaction, &begin));
        }
        if let Some(needed) = self.left_out.as_mut().and_then(|left_out| left_out.next(event.body)) {
            return Err(self.needs_left_out(&needed, event.transaction, &begin));
        }
        // The receiver drops events between transactions if no transaction follows them.
        take(Piece::Event { bytes: event.bytes, part: event.part })?;
        let end = Place { position: event.begin + event.bytes.len() as u64, ..begin };
        if let (Part::Last, Some(transaction)) = (event.part, event.transaction) {
            self.reached.add(transaction, self.committed_us, &end);
            if self.until.ends_with(transaction) {
                self.is_over = true;
                return Ok(self.over());
            }
        }
        self.end = Some((event.stretch, end));
        Ok(ControlFlow::Continue(()))
    }

    /// At the transaction that names the moment: whether its GTID comes again is looked at, where that is possible.
    fn over(&self) -> ControlFlow<()> {
        match (self.until.gtid(), self.doubts) {
            (Some(Gtid::MariaDb(_)), Some(_)) => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }

    /// The error for a change of what the backup left out.
    fn needs_left_out(&self, needed: &str, transaction: Option<&GtidEvent>, at: &Place) -> Error {
        let (log, base) = self.base;
        let what = format!(
            "needs {needed}, which was excluded from {log} {base}: it cannot be replayed after that backup"
        );
        cannot_be_replayed(transaction, at, &what, "name a backup that has it")
    }

    /// The error for the end of a branch that the backup does not have.
    fn ends_unknown(&self, branch: &str, transaction: Option<&GtidEvent>, at: &Place) -> Error {
        let (log, base) = self.base;
        let what = format!(
            "ends XA branch {branch}, which was prepared before {log} {base}: a logical backup does not hold what \
             was prepared, so this cannot be replayed"
        );
        let way = "name an older backup, taken before the branch was prepared, or a physical one";
        cannot_be_replayed(transaction, at, &what, way)
    }
}

/// The error for a transaction that cannot be replayed after its backup, and how to recover it or what is before it.
fn cannot_be_replayed(transaction: Option<&GtidEvent>, at: &Place, what: &str, way: &str) -> Error {
    let gtid = transaction.and_then(|transaction| transaction.gtid.as_ref());
    let before = match gtid {
        Some(gtid) => format!("--before-gtid {gtid}"),
        None => "a time before it (--at)".to_owned(),
    };
    Error::new(ErrorKind::Usage, format!("transaction {} {what}", name_of(gtid, at)))
        .hinted(format!("{way}; {before} recovers everything before"))
}

/// A transaction for messages: its GTID, or else where it is.
fn name_of(gtid: Option<&Gtid>, at: &Place) -> String {
    gtid.map_or_else(|| format!("at {at}"), ToString::to_string)
}

/// This many transactions in a row are no coincidence.
const FOLLOWERS_MAX: usize = 20;
/// After the first transaction past the moment, those are looked at that say they were committed at most this
/// much later, or earlier.
const LOOKED_AT_US: u64 = 3_600_000_000;

/// The first transaction that was committed after a time, according to itself. That may be wrong: the host's
/// clock was ahead for a while, or, on MariaDB, someone set the time of a session. The transactions after it
/// tell.
#[derive(Debug)]
struct Later {
    name: String,
    committed_us: u64,
    /// How many transactions after it were looked at.
    followers: usize,
    /// For each of the last of them, whether it was committed at the time or earlier. Some may be: on MariaDB
    /// a statement has the time at which it began, however long it took.
    are_earlier: VecDeque<bool>,
    /// How many of the last of them, in a row, were committed far later.
    far: usize,
}

impl Later {
    fn new(name: String, committed_us: u64) -> Self {
        Self { name, committed_us, followers: 0, are_earlier: VecDeque::new(), far: 0 }
    }

    /// Looks at the next transaction after it. Breaks once it is clear what to think of the time.
    fn followed(&mut self, is_later: bool, committed_us: u64) -> ControlFlow<()> {
        if self.are_earlier.len() == FOLLOWERS_MAX {
            self.are_earlier.pop_front();
        }
        self.are_earlier.push_back(!is_later);
        self.followers += 1;
        let is_far = committed_us > self.committed_us.saturating_add(LOOKED_AT_US);
        self.far = if is_far { self.far + 1 } else { 0 };
        // Most of the first are enough. Later it takes all of the last, since long statements come one by
        // one.
        let is_wrong = match self.followers {
            FOLLOWERS_MAX => self.earlier() * 2 > FOLLOWERS_MAX,
            _ => self.earlier() == FOLLOWERS_MAX,
        };
        match is_wrong || self.far == FOLLOWERS_MAX {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn earlier(&self) -> usize {
        self.are_earlier.iter().filter(|is_earlier| **is_earlier).count()
    }

    /// Refuses the moment if most of the last transactions looked at are earlier: it is not reached there.
    fn check(&self, until: &Until) -> Result<()> {
        let (earlier, last) = (self.earlier(), self.are_earlier.len());
        if earlier * 2 <= last {
            return Ok(());
        }
        Err(self.is_wrong(until, format_args!("{earlier} of the {last} transactions after it")))
    }

    /// Refuses the moment if the transactions of a whole file after this one are earlier, which the archive
    /// knows without reading the file: the clock was ahead for longer than is looked at.
    fn check_files<'a>(&self, after: impl Iterator<Item = &'a Stretch>, until: &Until) -> Result<()> {
        for stretch in after.filter(|stretch| stretch.transactions >= FOLLOWERS_MAX as u64) {
            let is_earlier = |at: Option<u64>| at.is_some_and(|at| !until.is_passed_at(at));
            if is_earlier(stretch.first_at) && is_earlier(stretch.last_at) {
                return Err(
                    self.is_wrong(until, format_args!("the transactions after it in {}", stretch.file))
                );
            }
        }
        Ok(())
    }

    fn is_wrong(&self, until: &Until, earlier: std::fmt::Arguments<'_>) -> Error {
        let Self { name, .. } = self;
        let committed_at = instant(self.committed_us).map(|at| at.to_string()).unwrap_or_default();
        Error::failed(format!(
            "transaction {name} says that it was committed at {committed_at}, but {earlier} at {until} or \
             before: its time seems wrong (a clock that was ahead, or SET timestamp), so a time cannot tell \
             where to stop"
        ))
        .hinted(
            "name the transaction to recover to with --gtid or --before-gtid: \"holdfast binlog list \
             --around TIME\" lists the transactions around a time",
        )
    }
}

/// What has been passed on so far.
#[derive(Default)]
struct Count {
    transactions: u64,
    committed_us: u64,
    end: Option<Place>,
    mariadb: BTreeMap<u32, MariaDbGtid>,
    mysql: Option<Gtids>,
    has_nameless: bool,
    leaves_out: BTreeSet<String>,
    last_gtid: Option<String>,
}

impl Count {
    fn add(&mut self, transaction: &GtidEvent, committed_us: u64, end: &Place) {
        self.transactions += 1;
        self.committed_us = committed_us;
        self.end = Some(end.clone());
        self.last_gtid = transaction.gtid.as_ref().map(ToString::to_string);
        match &transaction.gtid {
            Some(Gtid::MariaDb(gtid)) => drop(self.mariadb.insert(gtid.domain, *gtid)),
            Some(gtid @ Gtid::MySql(_)) => {
                self.mysql.get_or_insert_with(|| Gtids::none(gtid.flavor())).add(gtid);
            }
            None => self.has_nameless = true,
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
            has_nameless: self.has_nameless,
            leaves_out: self.leaves_out.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{binlog::BinlogServer, server::ServerVersion};

    fn until() -> Until {
        Until::Time(Timestamp::from_second(1_000).unwrap())
    }

    /// What is thought of a transaction of second 5000, past the moment in second 1000, given those after it.
    fn check(after: impl IntoIterator<Item = u64>) -> Result<()> {
        let mut first = Later::new("0-1-7".to_owned(), 5_000_000_000);
        for second in after {
            let us = second * 1_000_000;
            if first.followed(until().is_passed_at(us), us).is_break() {
                break;
            }
        }
        first.check(&until())
    }

    #[track_caller]
    fn refused(result: Result<()>) {
        let error = result.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("transaction 0-1-7 says that it was committed at 1970-01-01T01:23:20Z"),
            "{text}"
        );
        assert!(error.hint().unwrap().contains("--before-gtid"));
    }

    /// A few that are earlier are long statements; most are not.
    #[test]
    fn a_time_that_is_wrong() {
        let both = |earlier: usize, later: usize| [vec![900; earlier], vec![5_000; later]].concat();
        for (earlier, later) in [(0, 0), (0, 1), (1, 1), (3, 3), (10, 50)] {
            check(both(earlier, later)).unwrap();
        }
        for (earlier, later) in [(1, 0), (2, 1), (11, 9), (11, 500), (500, 1)] {
            refused(check(both(earlier, later)));
        }
    }

    /// However many transactions were committed while the clock was ahead, those from after it was set right
    /// tell, for an hour by their own times. Long statements do not come in a row.
    #[test]
    fn a_clock_that_was_ahead_for_a_while() {
        let ahead = |count: usize| vec![5_000; count];
        refused(check([ahead(3_000), (100..1_500).collect()].concat()));
        // The archive ends before the moment.
        refused(check([ahead(3_000), vec![900; 11]].concat()));
        check([ahead(3_000), vec![900; 10]].concat()).unwrap();
        check([ahead(30), [vec![900; 19], ahead(1)].concat().repeat(50), ahead(30)].concat()).unwrap();
        // A single transaction that is far ahead does not end the search; many in a row do.
        let far = 5_000 + 3_601;
        refused(check([ahead(30), vec![far], ahead(30), vec![900; 20], ahead(30)].concat()));
        check([ahead(30), vec![far; 20], vec![900; 20]].concat()).unwrap();
    }

    /// When the transactions of a whole file were committed is known without reading it.
    #[test]
    fn a_clock_that_was_ahead_for_hours() {
        let later = Later::new("0-1-7".to_owned(), 5_000_000_000);
        let server = BinlogServer {
            version: ServerVersion::parse("10.11.19-MariaDB-log").unwrap(),
            uuid: None,
            server_id: 1,
            hostname: "h".to_owned(),
            port: 1,
        };
        let file = |transactions: u64, first_at: u64, last_at: u64| Stretch {
            of_run: None,
            number: 0,
            server: server.clone(),
            file: "binlog.000002".to_owned(),
            begin: 4,
            end: 900,
            bytes: 896,
            format: String::new(),
            continues: None,
            gap: None,
            leaves_out: None,
            is_complete: true,
            transactions,
            first_at: Some(first_at * 1_000_000),
            last_at: Some(last_at * 1_000_000),
            first_gtid: None,
            last_gtid: None,
            gtids_before: None,
            gtids_after: None,
        };
        for fine in [file(500, 5_000, 9_000), file(500, 900, 9_000), file(500, 5_000, 900), file(3, 900, 900)]
        {
            later.check_files([&fine].into_iter(), &until()).unwrap();
        }
        let ahead = file(500, 5_000, 9_000);
        refused(later.check_files([&ahead, &file(500, 500, 1_000)].into_iter(), &until()));
    }
}
