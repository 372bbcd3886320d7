//! Recovery to a moment, precise to the transaction: the last backup before it, and what the binlog archive
//! has from there on.
//!
//! [`choose`] finds both. [`Recovery::run`] restores the backup ([`crate::restore`]) and has the server
//! replay the transactions ([`crate::restore::Transactions`]) that the archive ([`crate::binlog`]) holds
//! after it. A moment that the archive does not reach without a gap is refused before anything is written.
//! A physical backup is preferred, since restoring its files is faster than loading rows.
//!
//! What follows a backup can also be written as a binlog ([`Recovery::write_binlog`]), for the programs by
//! which a running server into which a logical backup was loaded executes one.

mod branches;
mod excluded;
mod only;
mod replay_range;
mod until;

use std::{collections::HashSet, sync::Arc};

use holdfast_formats::{
    Flavor,
    binlog::{Checksum, EventKind, FILE_MAGIC, Header, Part, statement_event},
};
use holdfast_repo::{Kind, LogName, Repo, RunNo, SourceName, format::manifest::Head, log::history::History};

use crate::{
    binlog::{After, Archive, Taken},
    error::{Context as _, Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    head::read_head,
    logical::ViewFacts,
    restore::{self, Piece, Reached, RestoreOptions, RestorePlan, RestoreReport, Transactions},
};

use excluded::ExcludedTables;
use replay_range::ReplayRange;
pub use until::Until;

/// The offset of an event's kind.
const KIND_AT: usize = 4;

/// After a format event, a MySQL server expects a GTID, or transactions that have none.
const NAMED_BY_THE_SERVER: &str = "SET @@SESSION.GTID_NEXT = 'AUTOMATIC'";

/// The backup to recover from, and what is replayed after it.
pub struct Recovery {
    archive: Archive,
    log: LogName,
    base: RunNo,
    after: After,
    until: Until,
    /// What the backup left out.
    left_out: Option<ExcludedTables>,
    /// The backup, if the user has named it.
    named: Option<RunNo>,
}

/// What a recovery would do.
#[derive(Clone, Debug)]
pub struct RecoveryPlan {
    /// How the backup is restored.
    pub restore: RestorePlan,
    /// What is replayed after it.
    pub replay: Reached,
}

/// Chooses the last physical backup before the moment, or else the last logical one. `named`: the kind that it
/// must be of, or the backup itself.
pub fn choose(
    repo: &Arc<Repo>,
    source: &SourceName,
    named: Option<(Kind, Option<RunNo>)>,
    until: Until,
) -> Result<Recovery> {
    let archive = archive_until(repo, source, &until)?;
    let backups = Backups::read(repo, source)?;
    let chosen = match named {
        Some((kind, Some(run))) => {
            let history = backups.of(kind)?;
            continued(repo, history, run, &archive, &until).map(|continued| (history, run, continued))
        }
        kind => last_before(repo, &backups, kind.map(|(kind, _)| kind), &archive, &until),
    };
    let (history, base, (after, left_out)) = chosen.map_err(|error| match error.hint() {
        Some(_) => error,
        None => error.hinted(
            "\"holdfast binlog list\" shows from which backups, and up to which time, recovery is possible",
        ),
    })?;
    let log = history.log().clone();
    let named = named.and_then(|(_, run)| run);
    Ok(Recovery { archive, log, base, after, until, left_out, named })
}

/// The backups of a source.
struct Backups {
    physical: History,
    logical: History,
}

impl Backups {
    fn read(repo: &Arc<Repo>, source: &SourceName) -> Result<Self> {
        let of = |kind| History::salvage(repo, &LogName { source: source.clone(), kind }, &mut |_, _| {});
        Ok(Self { physical: of(Kind::Physical)?, logical: of(Kind::Logical)? })
    }

    fn of(&self, kind: Kind) -> Result<&History> {
        match kind {
            Kind::Physical => Ok(&self.physical),
            Kind::Logical => Ok(&self.logical),
            Kind::Binlog => Err(Error::new(ErrorKind::Usage, "a run of the binlog archive is no backup")),
        }
    }

    /// All, in the order in which they are preferred: the newest first of each kind, and of that kind those last
    /// that lack something.
    fn preferred(&self) -> impl Iterator<Item = (&History, RunNo)> {
        [&self.physical, &self.logical].into_iter().flat_map(|history| {
            let of = |is_whole: bool| {
                let standing =
                    history.standing().rev().filter(move |outcome| outcome.part.is_none() == is_whole);
                standing.map(move |outcome| (history, outcome.run))
            };
            of(true).chain(of(false))
        })
    }
}

/// Finds the backup after which the archive continues to the moment, if there is one without a gap. If the moment
/// is a transaction, that is located first: numbers alone do not tell whether it comes after a backup, since they
/// begin again after a reset.
fn last_before<'a>(
    repo: &Arc<Repo>,
    backups: &'a Backups,
    kind: Option<Kind>,
    archive: &Archive,
    until: &Until,
) -> Result<(&'a History, RunNo, Continued)> {
    let occurrence =
        until.gtid().map(|gtid| only::occurrence(repo, backups, archive, until, gtid)).transpose()?;
    let mut refused = None;
    let mut cut_off = None;
    let is_wanted = |history: &History| kind.is_none_or(|kind| history.log().kind == kind);
    for (history, run) in backups.preferred().filter(|(history, _)| is_wanted(history)) {
        let tried = continued(repo, history, run, archive, until).and_then(|continued| {
            match until.gtid().zip(occurrence.as_ref()) {
                Some((gtid, occurrence)) if !only::reaches(archive, &continued.0, occurrence)? => {
                    Err(only::out_of_reach(archive, gtid, occurrence))
                }
                _ => Ok(continued),
            }
        });
        match tried {
            Ok(continued) if until.is_reached_from(archive, &continued.0)? => {
                return Ok((history, run, continued));
            }
            // If there is no other, the gap is what is reported.
            Ok(continued) => drop(cut_off.get_or_insert((history, run, continued))),
            // The newest refusal is reported: it concerns the backup that one would have expected.
            Err(error) => drop(refused.get_or_insert(error)),
        }
    }
    if let Some(cut_off) = cut_off {
        return Ok(cut_off);
    }
    let source = &archive.log().source;
    Err(match (refused, until.gtid().zip(occurrence.as_ref())) {
        // Each backup is refused for a reason of its own; this is what the reasons have in common.
        (Some(error), Some((gtid, occurrence))) if error.kind() == ErrorKind::Usage => {
            only::out_of_reach(archive, gtid, occurrence)
        }
        (Some(error), _) => error,
        (None, _) => {
            let of_kind = kind.map(|kind| format!("{kind} ")).unwrap_or_default();
            Error::failed(format!("there is no {of_kind}backup of {source}"))
        }
    })
}

/// The archive of a source, if it reaches the moment.
fn archive_until(repo: &Arc<Repo>, source: &SourceName, until: &Until) -> Result<Archive> {
    let archive = Archive::open(repo, source)?;
    if archive.stretches().is_empty() {
        if let Some(unreadable) = archive.unreadable_end() {
            return Err(Error::damaged(format!("nothing of {source} can be read: {}", unreadable.problem)));
        }
        let message = format!("the binlog of {source} is not archived");
        return Err(Error::new(ErrorKind::Usage, message)
            .hinted("start archiving it with \"holdfast binlog archive\""));
    }
    until.check_reach(&archive)?;
    Ok(archive)
}

/// Refuses a backup with tables of a later moment than its position. What follows the position cannot be
/// applied to them: some of it would be there twice.
fn refuse_several_moments(log: &LogName, base: RunNo, head: &Head) -> Result<()> {
    let Some(view) = ViewFacts::of(head).filter(|view| !view.inconsistent.is_empty()) else { return Ok(()) };
    let tables = view.inconsistent.join(", ");
    let text = format!(
        "{log} {base} has tables that do not match its position, because they could not be locked: {tables}"
    );
    Err(Error::failed(text).hinted(
        "later transactions cannot be applied to them; take the backup with an account that may lock tables \
         (RELOAD, LOCK TABLES)",
    ))
}

/// Where the archive continues after a backup, and what the backup left out.
type Continued = (After, Option<ExcludedTables>);

/// Finds both. Fails if the archive does not continue, or if the moment is before the backup.
fn continued(
    repo: &Repo,
    history: &History,
    base: RunNo,
    archive: &Archive,
    until: &Until,
) -> Result<Continued> {
    let log = history.log();
    if history.outcome(base).is_some_and(|outcome| !outcome.can_be_continued()) {
        let text = format!(
            "{log} {base} holds only a part of its server: the transactions after it change data that it \
             does not have"
        );
        return Err(Error::new(ErrorKind::Usage, text).hinted("name a backup of the whole server"));
    }
    let head = read_head(repo, history, base)?;
    refuse_several_moments(log, base, &head)?;
    let taken = Taken::of(&head)?;
    if until.is_before(taken.holds_from, taken.gtids().as_ref()) {
        return Err(Error::new(ErrorKind::Usage, format!("{log} {base} was taken after {until}")));
    }
    let after = archive.after(&taken).ok_or_else(|| {
        let text = match taken.is_told_by_gtids() {
            true => format!("the archive does not continue after {log} {base}"),
            false => format!(
                "it is unknown where the archive continues after {log} {base}: its server, a replica, had \
                 written transactions of its own into a GTID domain of its primary ({} in its binlog, {} \
                 applied)",
                taken.position.gtid.as_deref().unwrap_or_default(),
                taken.position.replica_gtid.as_deref().unwrap_or_default(),
            ),
        };
        Error::new(ErrorKind::Usage, text)
    })?;
    if let Until::Time(time) = until
        && archive.ends_later(&after, u64::try_from(time.as_microsecond()).unwrap_or_default())?
    {
        // The host that took it may have another time than the server whose binlog this is.
        let text = format!("{log} {base} holds transactions that were committed after {until}");
        return Err(Error::new(ErrorKind::Usage, text));
    }
    Ok((after, ExcludedTables::of(&head)))
}

impl Recovery {
    /// The backup that is restored.
    #[must_use]
    pub fn base(&self) -> (&LogName, RunNo) {
        (&self.log, self.base)
    }

    /// The backup, if the user has named it.
    pub(crate) fn named(&self) -> Option<RunNo> {
        self.named
    }

    /// The moment to recover to.
    pub(crate) fn until(&self) -> &Until {
        &self.until
    }

    fn range(&self) -> ReplayRange<'_> {
        ReplayRange::new(
            &self.archive,
            &self.after,
            &self.until,
            (&self.log, self.base),
            self.left_out.as_ref(),
        )
    }

    /// What is replayed after the backup. Must have been counted before.
    pub(crate) fn transactions(&self) -> impl Transactions + '_ {
        self.range()
    }

    /// Counts what is replayed, and returns where it ends. Reads all of it.
    pub(crate) fn count(&self, cancel: &Cancel) -> Result<Reached> {
        self.range().count(cancel)
    }

    /// As [`count`](Self::count), and passes what is replayed to `take`.
    pub(crate) fn count_each(
        &self,
        cancel: &Cancel,
        take: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<Reached> {
        self.range().count_each(cancel, take)
    }

    /// Plans the recovery. Reads all that would be replayed.
    pub fn plan(&self, repo: &Arc<Repo>, options: &RestoreOptions, cancel: &Cancel) -> Result<RecoveryPlan> {
        let restore = restore::plan(repo, &self.log, self.base, options, cancel)?;
        let replay = self.count(cancel)?;
        Ok(RecoveryPlan { restore, replay })
    }

    /// Writes what is replayed as one binlog, from the first transaction after the backup to the last one
    /// that is wanted. A moment that cannot be reached is found before anything is written. If nothing is
    /// replayed, nothing is written.
    ///
    /// A MySQL server silently skips transactions whose GTIDs it has executed, so it would seem to have done
    /// what it has not. So the first statement of the binlog fails on a server that has executed any of them.
    /// `skip_gtids` leaves the GTIDs out instead: the server then gives the transactions new ones.
    pub fn write_binlog(
        &self,
        skip_gtids: bool,
        cancel: &Cancel,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Reached> {
        // Events in which files describe themselves and each other. A format event describes what follows it,
        // wherever it is.
        const OF_FILES: [EventKind; 4] =
            [EventKind::ROTATE, EventKind::STOP, EventKind::PREVIOUS_GTIDS, EventKind::GTID_LIST];
        const GTIDS: [EventKind; 3] = [EventKind::GTID, EventKind::GTID_TAGGED, EventKind::ANONYMOUS_GTID];
        let is_mysql =
            self.archive.stretches().iter().any(|archived| archived.stretch.server.flavor() == Flavor::MySql);
        if skip_gtids && !is_mysql {
            let text = "transactions of MariaDB begin with their GTIDs, which cannot be left out";
            return Err(Error::new(ErrorKind::Usage, text));
        }
        let is_left_out = |kind: EventKind| OF_FILES.contains(&kind) || (skip_gtids && GTIDS.contains(&kind));
        let mut range = self.range();
        // An archiver that lost its server has the beginning of a transaction, and all of it from another
        // server.
        let mut whole = WholeTransactions::default();
        let reached = range.count_each(cancel, &mut |piece| {
            if let Piece::Event { part, .. } = piece {
                whole.count(part);
            }
            Ok(())
        })?;
        let mut is_whole = whole.again();
        let guard = reached.gtids.as_deref().filter(|_| is_mysql && !skip_gtids).map(guard);
        let mut left = reached.transactions;
        let mut has_begun = false;
        // Written with the first event that follows: MySQL's client refuses two formats in a row.
        let mut format_due: Option<Vec<u8>> = None;
        range.each(&mut |piece| {
            match piece {
                _ if left == 0 => {}
                Piece::File { format, .. } => {
                    cancel.check()?;
                    format_due = Some(format.to_vec());
                }
                Piece::Event { bytes, part } => {
                    let is_after = format_due.is_none() || part != Part::Outside;
                    let is_written = is_whole(part)
                        && is_after
                        && !bytes.get(KIND_AT).is_some_and(|kind| is_left_out(EventKind(*kind)));
                    if let Some(format) = format_due.take_if(|_| is_written) {
                        let is_first = !std::mem::replace(&mut has_begun, true);
                        if is_first {
                            write(&FILE_MAGIC)?;
                        }
                        write(&format)?;
                        let guard = guard.as_deref().filter(|_| is_first);
                        if let Some(statement) = guard.or(skip_gtids.then_some(NAMED_BY_THE_SERVER)) {
                            let header = Header::parse(&format).context("read the format of a binlog")?;
                            let checksum = Checksum::of_format(&format).unwrap_or_default();
                            write(&statement_event(header.server_id, statement, checksum))?;
                        }
                    }
                    if is_written {
                        write(bytes)?;
                    }
                    left -= u64::from(part == Part::Last);
                }
            }
            Ok(())
        })?;
        Ok(reached)
    }

    /// Restores the backup, and replays the transactions.
    pub fn run(
        &self,
        repo: &Arc<Repo>,
        options: &RestoreOptions,
        listener: &dyn Listener,
        cancel: &Cancel,
    ) -> Result<RestoreReport> {
        if let Some(left_out) = &self.left_out {
            let text = format!(
                "{} {} does not hold {left_out}: what was excluded is not restored",
                self.log, self.base
            );
            listener.event(Event::Warning { text });
        }
        let mut range = self.range();
        // A moment that cannot be reached is found before anything is written.
        range.count(cancel)?;
        let transactions = Some(&mut range as _);
        restore::run_and_replay(repo, &self.log, self.base, options, transactions, listener, cancel)
    }
}

/// Tells, when the same events come a second time, which transactions were complete the first time.
#[derive(Default)]
struct WholeTransactions {
    begun: u64,
    is_open: bool,
    /// By their number.
    unfinished: HashSet<u64>,
}

impl WholeTransactions {
    fn count(&mut self, part: Part) {
        match part {
            Part::First => {
                if std::mem::replace(&mut self.is_open, true) {
                    self.unfinished.insert(self.begun);
                }
                self.begun += 1;
            }
            Part::Last => self.is_open = false,
            Part::Inside | Part::Outside => {}
        }
    }

    /// Tells of each event, in order, whether it belongs to a complete transaction, or to none.
    fn again(mut self) -> impl FnMut(Part) -> bool {
        if self.is_open {
            self.unfinished.insert(self.begun);
        }
        let mut begun = 0;
        move |part| {
            begun += u64::from(part == Part::First);
            part == Part::Outside || !self.unfinished.contains(&begun)
        }
    }
}

/// A statement that fails on a MySQL server that has executed any of these transactions. The server's message
/// about an invalid UUID has the first 128 characters of it.
fn guard(gtids: &str) -> String {
    let why = "NOTHING WAS DONE: GTIDs of these transactions were executed here before; use holdfast binlog cat --skip-gtids";
    format!(
        "DO IF(GTID_SUBTRACT('{gtids}', @@GLOBAL.gtid_executed) = GTID_SUBTRACT('{gtids}', ''), 0, UUID_TO_BIN('{why}'))"
    )
}
