//! What can be recovered: backups of a whole server, and how far the archive continues after each without a
//! gap.

use std::{cmp::Ordering, ops::ControlFlow};

use holdfast_formats::{
    Flavor, Gtids,
    binlog::{Body, Checksum, Event, Header, Part},
    gtid::{MariaDbGtid, MariaDbGtidPos},
};
use holdfast_repo::{Kind, LogName, RunNo, format::manifest::Head, log::history::History};
use jiff::Timestamp;
use serde::Serialize;

use super::{After, Archive, ArchivedStretch, GapKind, Place};
use crate::{
    binlog::{
        recorder::FILE_BEGIN,
        stretch::{BinlogServer, parse_gtids},
    },
    error::Result,
    head::{self, read_head},
    logical::ViewFacts,
    position::Position,
};

/// How far the clocks of a server and of the host that backs it up may differ.
const CLOCKS_DIFFER_S: i64 = 1;
/// How much later than its start, in whole seconds, a server may begin its first file.
const STARTS_WITHIN_S: u64 = 2;

/// Stretches without a gap between them.
#[derive(Clone, Debug, Serialize)]
pub struct Chain {
    /// Position of the first in [`Archive::stretches`].
    pub first: usize,
    /// Position of the last.
    pub last: usize,
    /// Where it begins.
    pub begin: Place,
    /// Where it ends.
    pub end: Place,
    /// When its first transaction was committed, in microseconds since 1970.
    pub first_at: Option<u64>,
    /// When its last transaction was committed.
    pub last_at: Option<u64>,
    /// Backups after whose positions it has everything, oldest first.
    pub bases: Vec<Base>,
}

/// A backup of the whole server, or of all but what was excluded, after which the archive continues.
#[derive(Clone, Debug, Serialize)]
pub struct Base {
    /// How the command line names it.
    pub id: String,
    /// Its run.
    pub run: u64,
    /// From when on recovery is possible.
    pub at: Timestamp,
    /// Whether something was excluded by name, so that recovery ends at the first transaction that needs it.
    pub excludes: bool,
}

impl Archive {
    /// The first run of the archive that recovery from any of these backups needs; `None` if the archive
    /// continues after none of them. What counts is the position of a backup: one of a replica that is far
    /// behind needs what was archived long before it was taken. Nothing is replayed after a logical backup of
    /// a part of a server, or one without a position.
    ///
    /// # Errors
    /// The position of one of them cannot be read.
    pub fn needed_from(&self, kind: Kind, backups: &[RunNo]) -> Result<Option<RunNo>> {
        let history = self.backups(kind)?;
        let mut first: Option<usize> = None;
        for run in backups {
            if history.outcome(*run).is_some_and(|outcome| !outcome.can_be_continued()) {
                continue;
            }
            let head = read_head(&self.repo, &history, *run)?;
            if kind == Kind::Logical && head.position.is_none() {
                continue;
            }
            let taken = Taken::of(&head)?;
            let Some(after) = self.after(&taken) else { continue };
            if let Ok((at, ..)) = self.locate(&after) {
                first = Some(first.map_or(at, |first| first.min(at)));
            }
        }
        // What was taken over late is in a run after those that it came before.
        Ok(first.and_then(|at| self.stretches[at..].iter().map(|archived| archived.run).min()))
    }

    fn backups(&self, kind: Kind) -> Result<History> {
        let log = LogName { source: self.log.source.clone(), kind };
        Ok(History::salvage(&self.repo, &log, &mut |_, _| {})?)
    }

    /// The parts between gaps, oldest first, each with the backups that it continues.
    pub fn chains(&self) -> Result<Vec<Chain>> {
        let mut chains: Vec<Chain> = Vec::new();
        for (at, archived) in self.stretches.iter().enumerate() {
            let stretch = &archived.stretch;
            match chains.last_mut() {
                Some(chain) if archived.gap.is_none() => {
                    chain.last = at;
                    chain.end = archived.ends_at();
                    chain.first_at = chain.first_at.or(stretch.first_at);
                    chain.last_at = stretch.last_at.or(chain.last_at);
                }
                _ => chains.push(Chain {
                    first: at,
                    last: at,
                    begin: stretch.begins_at(),
                    end: archived.ends_at(),
                    first_at: stretch.first_at,
                    last_at: stretch.last_at,
                    bases: Vec::new(),
                }),
            }
        }
        for kind in [Kind::Physical, Kind::Logical] {
            let history = self.backups(kind)?;
            for outcome in history.standing().filter(|outcome| outcome.can_be_continued()) {
                // A backup that cannot be read is no base; `check` says why.
                let Ok(head) = read_head(&self.repo, &history, outcome.run) else { continue };
                let Ok(taken) = Taken::of(&head) else { continue };
                if ViewFacts::of(&head).is_some_and(|view| !view.inconsistent.is_empty()) {
                    continue;
                }
                if let Some(stretch) = self.after(&taken).and_then(|after| Some(self.locate(&after).ok()?.0))
                    && let Some(chain) =
                        chains.iter_mut().find(|chain| (chain.first..=chain.last).contains(&stretch))
                {
                    let id = history.log().backup_id(outcome.run);
                    let excludes = outcome.part.is_some();
                    chain.bases.push(Base { id, run: outcome.run.0, at: taken.holds_from, excludes });
                }
            }
        }
        for chain in &mut chains {
            chain.bases.sort_by_key(|base| base.at);
        }
        Ok(chains)
    }

    /// The time until which a chain has everything that was committed, in microseconds since 1970. With a
    /// base, any time until then can be recovered to. On MariaDB it is a whole second, all of which is there.
    #[must_use]
    pub fn recoverable_until(&self, chain: &Chain) -> Option<u64> {
        let stretches = self.stretches.get(chain.first..=chain.last)?;
        stretches.iter().rev().find_map(|archived| archived.stretch.complete_until_us())
    }

    /// Where the archive continues after a backup; `None` if it does not, or if that cannot be told for sure.
    ///
    /// The place in the binlog of the very server that was backed up decides, in a file that existed when the
    /// place was read, because file names and numbers repeat after a reset. If that place is not in the
    /// archive, GTIDs decide: it may be of another server, such as a replica of the archived one, also before
    /// that replica took its place; or the backup has none. GTIDs count only after the last gap: a history
    /// begun after a gap may reuse them. If a gap is known to be such a beginning, or it cannot be told what
    /// is missing, they do not count at all: a replica may still be before it.
    #[must_use]
    pub fn after(&self, taken: &Taken) -> Option<After> {
        self.after_place(taken).or_else(|| self.after_gtids(taken))
    }

    fn after_place(&self, taken: &Taken) -> Option<After> {
        let position = taken.position.binlog.as_ref()?.offset;
        let gtids = taken.gtids();
        let has = |at: usize, archived: &ArchivedStretch| {
            archived.has_its_name(taken)
                && (archived.stretch.begin..=archived.end).contains(&position)
                && gtids.as_ref().is_none_or(|gtids| archived.may_precede(gtids))
                && self.existed(at, taken)
        };
        let mut stretches = self.stretches.iter().enumerate().rev();
        let (stretch, _) = stretches.find(|(at, archived)| has(*at, archived))?;
        Some(After::PlaceIn { stretch, position, gtids })
    }

    fn after_gtids(&self, taken: &Taken) -> Option<After> {
        let begin = self.stretches.iter().rposition(|archived| archived.gap.is_some()).unwrap_or(0);
        let part = &self.stretches[begin..];
        let first = part.first()?;
        let flavor = first.stretch.server.flavor();
        let gtids = taken.gtids().filter(|_| taken.is_told_by_gtids())?;
        let newest = part.iter().rev().find_map(|archived| archived.stretch.gtids_after.as_deref());
        let newest = parse_gtids(flavor, newest?).ok()?;
        let mut gaps = self.stretches.iter().filter_map(|archived| archived.gap.as_ref());
        let counts_on = gaps.all(|gap| matches!(gap.kind, GapKind::Purged | GapKind::NotStored));
        // If the file ended before the place, or more came before it than the backup holds, it is another
        // file of that name: the server was reset, and numbers its transactions from 1 again.
        let offset = taken.position.binlog.as_ref().map(|binlog| binlog.offset);
        let was_reset = self.stretches.iter().any(|archived| {
            let has_ended = |offset| archived.stretch.is_complete && archived.end < offset;
            let had_more = |offset| archived.stretch.begin <= offset && !archived.may_precede(&gtids);
            archived.has_its_name(taken)
                && archived.was_begun_before(taken.finished_at)
                && offset.is_some_and(|offset| has_ended(offset) || had_more(offset))
        });
        // What the server itself has begun since may belong to another history.
        let was_known = || match first.stretch.server.is_same(&taken.server) {
            true => self.existed(begin, taken),
            false => first.was_begun_before(taken.finished_at),
        };
        let after = After::Gtids(gtids.clone());
        let is_after_gap = || begin == 0 || self.locate(&after).is_ok_and(|(at, ..)| at >= begin);
        (counts_on
            && !was_reset
            && !taken.may_lack_gtids
            && flavor == taken.server.flavor()
            && !gtids.is_empty()
            && newest.includes(&gtids)
            && was_known()
            && is_after_gap())
        .then_some(after)
    }
}

impl Archive {
    /// Whether the file of a stretch of the server that was backed up existed when the backup's place was read.
    ///
    /// The server's clock tells both times, in whole seconds. In the same second the server may have been reset
    /// right after the backup, and its files have their names again. Then a file that was begun as the first
    /// counts only if the server was started just then, or if nothing was committed in it before the place.
    fn existed(&self, at: usize, taken: &Taken) -> bool {
        let archived = &self.stretches[at];
        let Some(placed_at) = taken.position.at else { return archived.was_begun_before(taken.finished_at) };
        let second = placed_at.as_second();
        match archived.begun_s().map(|begun| begun.cmp(&second)) {
            None | Some(Ordering::Greater) => false,
            Some(Ordering::Less) => true,
            Some(Ordering::Equal) => {
                let is_first_then = |other: &ArchivedStretch| {
                    other.stretch.server.is_same(&taken.server)
                        && other.begun_s() == Some(second)
                        && other.is_first_file()
                };
                let started_at = taken.started_at.map(Timestamp::as_second);
                let is_started = started_at.is_some_and(|at| at.abs_diff(second) <= STARTS_WITHIN_S);
                let place = taken.position.binlog.as_ref();
                let has_nothing = |offset| matches!(self.has_transactions_before(at, offset), Ok(false));
                is_started
                    || !self.stretches[..=at].iter().any(is_first_then)
                    || place.is_some_and(|place| has_nothing(place.offset))
            }
        }
    }

    /// Whether a transaction begins in a stretch before an offset.
    fn has_transactions_before(&self, at: usize, offset: u64) -> Result<bool> {
        if self.stretches[at].stretch.begin > FILE_BEGIN {
            return Ok(true);
        }
        let mut has = false;
        self.all_transactions(at..at + 1, &mut |event| {
            if event.begin >= offset {
                return Ok(ControlFlow::Break(()));
            }
            has |= event.part != Part::Outside;
            Ok(if has { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(has)
    }
}

impl ArchivedStretch {
    /// Whether its file has the name and the server of the file that contains the backup's place.
    fn has_its_name(&self, taken: &Taken) -> bool {
        self.stretch.server.is_same(&taken.server)
            && taken.position.binlog.as_ref().is_some_and(|binlog| binlog.file == self.stretch.file)
    }

    /// Whether a backup of its server that holds these transactions may have ended in it. A backup that holds
    /// fewer than were there before was taken after a reset, when file and place may repeat. MariaDB's GTIDs
    /// are compared only within one domain and server:
    /// several servers may count in one domain, and domains may be deleted.
    fn may_precede(&self, gtids: &Gtids) -> bool {
        let before = self.stretch.gtids_before.as_deref();
        let before = before.and_then(|before| parse_gtids(self.stretch.server.flavor(), before).ok());
        match (gtids, &before) {
            (Gtids::MySql(gtids), Some(Gtids::MySql(before))) => gtids.contains_all(before),
            (Gtids::MariaDb(gtids), Some(Gtids::MariaDb(before))) => before.iter().all(|before| {
                let of_server =
                    |gtid: &MariaDbGtid| (gtid.domain, gtid.server) == (before.domain, before.server);
                gtids.iter().filter(of_server).all(|gtid| gtid.sequence >= before.sequence)
            }),
            _ => true,
        }
    }

    /// Whether its file existed at a time by another host's clock.
    fn was_begun_before(&self, at: Timestamp) -> bool {
        self.begun_s().is_some_and(|begun| begun <= at.as_second() + CLOCKS_DIFFER_S)
    }

    /// When its file was begun, in seconds since 1970.
    fn begun_s(&self) -> Option<i64> {
        let format = self.stretch.format_bytes().ok()?;
        Some(i64::from(Header::parse(&format).ok()?.timestamp))
    }

    /// Whether its file is the first since the server was started or reset: none that it has ended names it.
    fn is_first_file(&self) -> bool {
        let format = self.stretch.format_bytes().ok();
        let event = format.as_deref().and_then(|format| Event::parse(format, Checksum::Crc32).ok());
        match event.as_ref().and_then(|event| event.body().ok()) {
            Some(Body::FormatDescription(format)) => format.created != 0,
            _ => true,
        }
    }
}

/// A backup as a base for recovery.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Where it ends.
    pub position: Position,
    /// The server it was taken from.
    pub server: BinlogServer,
    /// When it ended.
    pub finished_at: Timestamp,
    /// From when on moments can be recovered to: when its position was read, or, of backups that do not say that, a
    /// time that is about it: their end, or the beginning of a logical one, whose view comes first.
    pub holds_from: Timestamp,
    /// MySQL: some of its transactions may have no GTID.
    pub may_lack_gtids: bool,
    /// When its server was started, by the server's clock.
    pub started_at: Option<Timestamp>,
}

impl Taken {
    /// Reads it from a backup's manifest.
    pub fn of(head: &Head) -> Result<Taken> {
        let backup = format_args!("{}/{} #{}", head.source, head.kind, head.run);
        let position = head::require_position(head, &backup)?;
        let facts = head::require_server(head, &backup)?;
        let gtid_mode = facts.binlog.as_ref().and_then(|binlog| binlog.gtid_mode.as_deref());
        Ok(Taken {
            server: BinlogServer::of_facts(&facts),
            finished_at: head.finished_at,
            holds_from: position.at.unwrap_or(match head.kind.parse() {
                Ok(Kind::Logical) => head.started_at,
                _ => head.finished_at,
            }),
            position,
            may_lack_gtids: gtid_mode.is_some_and(|mode| mode != "ON"),
            started_at: facts.started_at,
        })
    }

    /// The GTIDs of the transactions that it holds, as far as its server assigns them.
    ///
    /// MariaDB reports what is in its binlog and what it has applied as a replica separately. If it does not
    /// log what it applies, or did so only in the past, the latter is further ahead. So the result has the
    /// later of both in each domain.
    pub(crate) fn gtids(&self) -> Option<Gtids> {
        if self.server.flavor() == Flavor::MySql {
            return parse_gtids(Flavor::MySql, self.position.gtid.as_deref()?).ok();
        }
        let (mut later, applied) = self.logged_and_applied()?;
        later.add_all(&applied);
        (!later.is_empty()).then_some(Gtids::MariaDb(later))
    }

    /// Whether these GTIDs tell what it holds of another server's transactions. They do not if, as a replica,
    /// it has written into a domain after what it applied there: the next numbers from its primary are the
    /// same. Nor do they if one number stands for two transactions.
    pub(crate) fn is_told_by_gtids(&self) -> bool {
        if self.server.flavor() == Flavor::MySql {
            return true;
        }
        let Some((logged, applied)) = self.logged_and_applied() else { return false };
        let is_replica = !self.position.replica_of.is_empty();
        applied.iter().all(|applied| {
            logged.iter().filter(|logged| logged.domain == applied.domain).all(|logged| {
                let is_own = logged.server == self.server.server_id;
                logged.server == applied.server
                    || logged.sequence < applied.sequence
                    || (logged.sequence > applied.sequence && !(is_own && is_replica))
            })
        })
    }

    /// What a MariaDB server had in its binlog, and what it had applied as a replica.
    fn logged_and_applied(&self) -> Option<(MariaDbGtidPos, MariaDbGtidPos)> {
        let of = |text: &Option<String>| text.as_deref().unwrap_or_default().parse().ok();
        Some((of(&self.position.gtid)?, of(&self.position.replica_gtid)?))
    }
}

#[cfg(test)]
mod tests;
