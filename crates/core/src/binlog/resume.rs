//! Where an archive continues: after its last event on the server it came from, by GTID on another server,
//! and where neither is possible, after a gap that has a name.

use std::ops::ControlFlow;

use holdfast_formats::{
    Flavor, Gtid, Gtids,
    binlog::{Body, Checksum, Event, EventKind, FormatDescription, GtidEvent, Header},
    gtid::{MariaDbGtid, MariaDbGtidPos},
};
use holdfast_repo::{Kind, LogName, Repo, log::history::History};

use super::{
    read::Taken,
    recorder::{FILE_BEGIN, Known, Start, hash, tells_begin},
    stream::{Next, Stream, StreamBegin, StreamOptions},
    stretch::{BinlogServer, Gap, GapKind, Logged, Place, Tail, parse_gtids},
};
use crate::{
    error::{Context as _, Error, ErrorKind, Result},
    head::read_head,
    server::{ConnectOptions, Session, SqlCause, SqlError, code},
};

/// Size of the header before an encrypted binlog of MySQL.
const ENCRYPTION_HEADER_BYTES: u64 = 512;

/// A server's binlog. The server tells everything but the list of its files
/// even while its commits wait for an acknowledgement.
pub(super) struct Binlog {
    pub(super) server: BinlogServer,
    /// GTIDs of all transactions, where the server assigns them.
    pub(super) gtids: Option<Gtids>,
    /// The last transaction of each server in each domain that its binlog has had (MariaDB).
    logged: Logged,
    /// The last replicated transaction of each domain that its binlog never had (MariaDB): a server that was
    /// restored has those from the backup.
    held: MariaDbGtidPos,
    session: Session,
    files: Option<Files>,
    /// Whether it was asked for its files and has not answered, or is not to be asked.
    is_silent: bool,
}

/// A server's binlog files and where they end, oldest first.
pub(super) struct Files(Vec<(String, u64)>);

impl Binlog {
    /// Asks the server for its identity, and for what it has committed.
    pub(super) fn read(mut session: Session) -> Result<Self> {
        let version = session.version().clone();
        let is_on = session.variable("log_bin")?.is_some_and(|value| value != "0");
        if !is_on {
            return Err(Error::new(ErrorKind::Server, "the server writes no binlog")
                .hinted("set log_bin in its configuration, and restart it"));
        }
        let uuid = match version.flavor {
            Flavor::MySql => session.variable("server_uuid")?,
            Flavor::MariaDb => session.variable("server_uid")?,
        };
        let number = |session: &mut Session, name: &str| -> Result<u64, SqlError> {
            session.number(&format!("SELECT @@GLOBAL.{name}"))
        };
        let server = BinlogServer {
            uuid,
            server_id: u32::try_from(number(&mut session, "server_id")?).unwrap_or_default(),
            hostname: session.variable("hostname")?.unwrap_or_default(),
            port: u16::try_from(number(&mut session, "port")?).unwrap_or_default(),
            version,
        };
        let gtids = executed(&mut session)?;
        let (logged, held) = logged(&mut session)?;
        Ok(Self { server, gtids, logged, held, session, files: None, is_silent: false })
    }

    /// Its files. They may hold more than the GTIDs that were read before, never less.
    pub(super) fn files(&mut self) -> Result<&Files> {
        let files = match self.files.take() {
            Some(files) => files,
            None if self.is_silent => return Err(unlisted()),
            None => Files::list(&mut self.session).map_err(|error| {
                self.is_silent = *error.cause() == SqlCause::Lost;
                if self.is_silent { unlisted().caused_by(error) } else { error.into() }
            })?,
        };
        Ok(self.files.insert(files))
    }

    /// Its files, if they were asked for.
    pub(super) fn into_files(self) -> Option<Files> {
        self.files
    }

    /// From now on it is not asked for its files: it would not answer.
    pub(super) fn silence(&mut self) {
        self.is_silent = true;
    }

    /// Whether it does not answer which files it has.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent
    }

    fn oldest(&mut self) -> Result<Place> {
        self.files()?.oldest()
    }

    /// Whether it has said that a file is longer than an event can tell.
    fn is_long(&self, file: &str) -> bool {
        let size = self.files.as_ref().and_then(|files| files.size(file));
        size.is_some_and(|size| size > u64::from(u32::MAX))
    }
}

fn unlisted() -> Error {
    Error::new(ErrorKind::Server, "the server did not say in time which binlog files it has")
}

/// GTIDs of all transactions that a server has, where it assigns them.
pub(super) fn executed(session: &mut Session) -> Result<Option<Gtids>> {
    let flavor = session.flavor();
    let executed = session.value(match flavor {
        Flavor::MySql => "SELECT @@GLOBAL.gtid_executed",
        Flavor::MariaDb => "SELECT @@GLOBAL.gtid_binlog_pos",
    })?;
    let gtids = parse_gtids(flavor, &executed.unwrap_or_default())?;
    Ok((!gtids.is_empty()).then_some(gtids))
}

/// What the binlog of a MariaDB server has had, and what it has replicated in other domains.
fn logged(session: &mut Session) -> Result<(Logged, MariaDbGtidPos)> {
    if session.flavor() == Flavor::MySql {
        return Ok(Default::default());
    }
    let mut read = |variable: &str| -> Result<MariaDbGtidPos> {
        let value = session.value(&format!("SELECT @@GLOBAL.{variable}"))?.unwrap_or_default();
        value.parse().context("read the state of the server's binlog")
    };
    let (logged, mut held) = (Logged(read("gtid_binlog_state")?), read("gtid_slave_pos")?);
    logged.0.iter().for_each(|gtid| held.leave_out(gtid.domain));
    Ok((logged, held))
}

impl Files {
    /// Asks the server. It may not answer while commits wait for an acknowledgement: the lock that this needs
    /// is held on MariaDB by the second waiting commit, on MySQL by whoever ends a file meanwhile.
    pub(super) fn list(session: &mut Session) -> Result<Self, SqlError> {
        let mut files = Vec::new();
        for row in session.rows("SHOW BINARY LOGS")? {
            let size: u64 = row.number("File_size")?;
            let is_encrypted = row.has("Encrypted") && row.text("Encrypted")? == "Yes";
            // Offsets in a file do not count MySQL's encryption header.
            let hidden = if is_encrypted { ENCRYPTION_HEADER_BYTES } else { 0 };
            files.push((row.text("Log_name")?.to_owned(), size.saturating_sub(hidden)));
        }
        Ok(Self(files))
    }

    fn size(&self, file: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| name == file).map(|(_, size)| *size)
    }

    /// Whether the place exists.
    pub(super) fn has(&self, place: &Place) -> bool {
        self.size(&place.file).is_some_and(|size| size >= place.position)
    }

    fn first(&self) -> Option<&str> {
        self.0.first().map(|(name, _)| name.as_str())
    }

    /// The beginning of the oldest file.
    fn oldest(&self) -> Result<Place> {
        let file =
            self.first().ok_or_else(|| Error::new(ErrorKind::Server, "the server has no binlog files"))?;
        Ok(Place { file: file.to_owned(), position: FILE_BEGIN })
    }

    /// The file that follows another.
    fn file_after(&self, file: &str) -> Option<&str> {
        let at = self.0.iter().position(|(name, _)| name == file)?;
        self.0.get(at + 1).map(|(name, _)| name.as_str())
    }

    /// Where the newest file ends.
    pub(super) fn end(&self) -> Option<Place> {
        let (file, size) = self.0.last()?;
        Some(Place { file: file.clone(), position: *size })
    }

    /// Bytes from a place on; `None` if its file does not exist.
    pub(super) fn bytes_from(&self, place: &Place) -> Option<u64> {
        let at = self.0.iter().position(|(name, _)| *name == place.file)?;
        let bytes: u64 = self.0[at..].iter().map(|(_, size)| size).sum();
        Some(bytes.saturating_sub(place.position))
    }
}

/// Why the place at which the archive ended cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Not tried.
    No,
    /// Tried without knowing whether the server lists it.
    Unlisted,
    /// The server has something other than what was archived there.
    NotAsArchived,
    /// This file ends in the middle of an event.
    Torn(String),
}

/// Where to begin with nothing archived: the file that contains the newest backup's position, else the
/// oldest, with a warning if such a position was not found. If the backup is of another server, whose files
/// have other names, GTIDs determine the file.
pub(super) fn first(
    binlog: &mut Binlog,
    repo: &Repo,
    log: &LogName,
    connect: &ConnectOptions,
    options: StreamOptions,
) -> Result<(Start, Option<String>)> {
    if !repo.can_read() {
        return Ok((Start::at(binlog.oldest()?), None));
    }
    let mut newest: Option<Taken> = None;
    for kind in [Kind::Physical, Kind::Logical] {
        let log = LogName { source: log.source.clone(), kind };
        let history = History::salvage(repo, &log, &mut |_, _| {})?;
        let Some(run) = history.newest_backup() else { continue };
        let head = read_head(repo, &history, run)?;
        // An import may have no position.
        if let Ok(taken) = Taken::of(&head)
            && newest.as_ref().is_none_or(|newest| newest.finished_at < taken.finished_at)
        {
            newest = Some(taken);
        }
    }
    let Some(taken) = newest else { return Ok((Start::at(binlog.oldest()?), None)) };
    let begin = |file: &str| Start::at(Place { file: file.to_owned(), position: FILE_BEGIN });
    let at = taken.finished_at;
    let place = taken.position.binlog.as_ref().filter(|_| taken.server.is_same(&binlog.server));
    if let Some(place) = place {
        if binlog.files()?.size(&place.file).is_some() {
            return Ok((begin(&place.file), None));
        }
        let warning = format!(
            "the server no longer has the binlog file in which the newest backup, of {at:.0}, ends: \
             the archive begins after it"
        );
        return Ok((Start::at(binlog.oldest()?), Some(warning)));
    }
    let gtids = taken.gtids().filter(|_| taken.is_told_by_gtids() && !taken.may_lack_gtids);
    if let (Some(gtids), Some(executed)) = (&gtids, &binlog.gtids)
        && !gtids.is_empty()
        && executed.includes(gtids)
        && let Some(start) = start_after(gtids, binlog, connect, options)?
    {
        return Ok((begin(&start.place.file), None));
    }
    let warning = format!(
        "it is unknown where the server's binlog continues after the newest backup, of {at:.0}, or the \
         server no longer has that: the archive begins with the oldest file"
    );
    Ok((Start::at(binlog.oldest()?), Some(warning)))
}

/// Where an archive that ends at `tail` continues. If `is_unasked`, the place is requested without knowing
/// whether the server lists it: the server's answer, or the event that it sends, shows whether it was right.
pub(super) fn next(
    binlog: &mut Binlog,
    tail: &Tail,
    refused: &Refused,
    is_unasked: bool,
    new_identity: bool,
    connect: &ConnectOptions,
    options: StreamOptions,
) -> Result<Start> {
    let is_same = binlog.server.is_same(&tail.server);
    let is_as_archived = *refused != Refused::NotAsArchived;
    // A server that writes the next file has given up the event, and the transaction that it belonged to.
    if let Refused::Torn(file) = refused
        && is_same
        && let Some(next) = binlog.files()?.file_after(file)
    {
        return Ok(Start::at(Place { file: next.to_owned(), position: FILE_BEGIN }));
    }
    if is_as_archived && is_same && (is_unasked || binlog.files()?.has(&tail.place)) {
        // Where the protocol has no number for the place, the stream begins with the file.
        let begin = u32::try_from(tail.last.begin).map_or(FILE_BEGIN, |_| tail.last.begin);
        let known = Known { begin: tail.last.begin, end: tail.place.position, hash: tail.last.hash.clone() };
        let place = Place { file: tail.place.file.clone(), position: begin };
        return Ok(Start { place, known: Some(known), gap: None });
    }
    let archived = tail.gtids()?.filter(|gtids| !gtids.is_empty());
    if tail.server.flavor() != binlog.server.flavor() {
        let text = format!(
            "the archive is from a {} server, but this is {}",
            tail.server.flavor(),
            binlog.server.version
        );
        return Err(Error::new(ErrorKind::Usage, text).hinted("give this server a name of its own (--name)"));
    }
    // Numbers of files and of transactions repeat. The same server was reset if its oldest file begins with
    // an archived transaction, because everything archived was in files that are gone.
    let is_gone = is_same && binlog.files()?.size(&tail.place.file).is_none();
    let begins_anew = match &archived {
        Some(archived) if is_gone => begins_with_any(binlog, archived, connect, options)?,
        _ => false,
    };
    // The archive ends with a whole file, and the server still has the next one.
    if is_as_archived
        && is_gone
        && !begins_anew
        && let (Some(next), Some(oldest)) = (&tail.last.next_file, binlog.files()?.first())
        && next == oldest
    {
        return Ok(Start::at(Place { file: next.clone(), position: FILE_BEGIN }));
    }
    // The same file of the same server is shorter, or holds something else: the server lost its end, and may
    // have used the GTIDs of what it lost for other transactions.
    let has_lost = is_same && !is_gone;
    let lack = lack(binlog, tail, connect, options)?;
    if let Some(archived) = &archived
        && !has_lost
        && !begins_anew
        && lack.is_none()
        && let Some(start) = start_after(archived, binlog, connect, options)?
    {
        return Ok(start);
    }
    let kind = match (&archived, &binlog.gtids) {
        _ if begins_anew => GapKind::Reset,
        (Some(_), _) if lack.is_none() => match has_lost {
            true => GapKind::Diverged,
            false => GapKind::Purged,
        },
        (Some(_), _) if !is_same => GapKind::OtherServer,
        (Some(archived), Some(executed)) if shows_no_reset(executed, archived) => GapKind::Diverged,
        (Some(_), _) => GapKind::Reset,
        (None, _) if !is_same => GapKind::OtherServer,
        (None, _) if has_lost => GapKind::Reset,
        (None, _) => match binlog.files()?.first() {
            Some(oldest) if is_after(oldest, &tail.place.file) => GapKind::Purged,
            _ => GapKind::Reset,
        },
    };
    if kind == GapKind::OtherServer && !new_identity {
        let why = match &lack {
            Some(Lack::Otherwise(what)) => format!("cannot be shown to have the same transactions: {what}"),
            _ => "there is no way to tell where its binlog continues from there".to_owned(),
        };
        let text = format!("this is not the server that was archived until {}, and {why}", tail.place);
        return Err(Error::new(ErrorKind::Usage, text).hinted(
            "give it a name of its own (--name); or, if it has replaced the other for good, confirm that \
             once with --new-identity: the archive then has a gap here",
        ));
    }
    let oldest = binlog.oldest()?;
    let what = match kind {
        GapKind::Purged => "the server has purged what came after",
        GapKind::Diverged => {
            "the server was reset, or lost the end of its binlog, and its history differs after"
        }
        GapKind::OtherServer => "another server has replaced the one that was archived until",
        _ => "the server has reset its binlogs since",
    };
    let text = format!("{what} {}; its oldest file is {}", tail.place, oldest.file);
    Ok(Start { place: oldest, known: None, gap: Some(Gap { kind, text }) })
}

/// Why a server does not have all that is archived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// It has not got that far.
    After,
    /// It has, but cannot be shown to have the same transactions. Says what is wrong.
    Otherwise(String),
}

impl Lack {
    /// As an error; up to `until`, the archive is of another server.
    pub(super) fn of_another(self, until: &Place) -> Error {
        let text = match self {
            Lack::After => {
                format!(
                    "this server does not yet have everything that is archived, up to {until} of another \
                     server"
                )
            }
            Lack::Otherwise(what) => {
                format!(
                    "this server cannot be shown to have the transactions of the one that is archived until \
                     {until}: {what}"
                )
            }
        };
        Error::new(ErrorKind::Active, text)
    }
}

/// What a server lacks of what is archived, if anything. Each MySQL GTID is of one transaction; so is each
/// MariaDB GTID on the server that assigned it. On another MariaDB server it may be of another, newer
/// transaction: if that server was recovered to before the archived ones, or took their server's place
/// without them. So it must have the last one itself, and of every domain one as late by the same server:
/// a replica that leaves a domain out may have counted on in it. A domain that its binlog never had counts if it
/// has replicated exactly until there. Nor may it have a transaction that the archive would pass over.
fn lack(
    binlog: &mut Binlog,
    tail: &Tail,
    connect: &ConnectOptions,
    options: StreamOptions,
) -> Result<Option<Lack>> {
    let Some(archived) = tail.gtids()?.filter(|gtids| !gtids.is_empty()) else { return Ok(None) };
    let mut executed = binlog.gtids.clone().unwrap_or_else(|| Gtids::none(binlog.server.flavor()));
    if binlog.server.flavor() == Flavor::MariaDb {
        executed.add_all(&Gtids::MariaDb(binlog.held.clone()));
    }
    if !executed.includes(&archived) {
        return Ok(Some(Lack::After));
    }
    let Gtids::MariaDb(archived) = archived else { return Ok(None) };
    if binlog.server.is_same(&tail.server) {
        return Ok(None);
    }
    let is_held = |gtid: &MariaDbGtid| binlog.held.iter().any(|held| held == *gtid);
    if let Some(gtid) = archived.iter().find(|gtid| !binlog.logged.has(gtid) && !is_held(gtid)) {
        let what = format!("its binlog has never had the archived transaction {gtid}");
        return Ok(Some(Lack::Otherwise(what)));
    }
    let Some(last) = &tail.last_transaction else {
        let what = format!("the archive has no transaction by which {archived} could be verified");
        return Ok(Some(Lack::Otherwise(what)));
    };
    let parse = |gtid: &str| {
        gtid.parse::<MariaDbGtid>().context_kind(ErrorKind::Damaged, "understand where the archive ends")
    };
    let gtid = parse(&last.gtid)?;
    let mut after = archived.clone();
    after.leave_out(gtid.domain);
    if let Some(before) = &last.before {
        after.advance(parse(before)?);
    }
    let begin = StreamBegin::AfterGtids(Gtids::MariaDb(after));
    let what = match begun_s(gtid, &begin, connect, options)? {
        Some(begun_s) if begun_s == last.begun_s => {
            let Some(logged) = tail.logged()? else { return Ok(None) };
            let Some(gtid) = passed_over(binlog, &archived, &logged, connect, options)? else {
                return Ok(None);
            };
            format!("its {gtid}, before the end of what is archived, was never archived")
        }
        Some(_) => format!("its {gtid} is not the archived transaction"),
        None => format!("it does not have the archived transaction {gtid}, or has purged it"),
    };
    Ok(Some(Lack::Otherwise(what)))
}

/// A transaction of a MariaDB server that comes before archived ones of its domain, and is not archived itself. It is
/// looked for among the server's own, and among those of servers of which the archive has some; what others wrote may
/// be from before the archive's beginning. `logged` is what the archive has.
fn passed_over(
    binlog: &mut Binlog,
    archived: &MariaDbGtidPos,
    logged: &Logged,
    connect: &ConnectOptions,
    options: StreamOptions,
) -> Result<Option<MariaDbGtid>> {
    let begin = StreamBegin::AfterGtids(Gtids::MariaDb(archived.clone()));
    let start = match first_transaction(&begin, connect, options)? {
        First::At { place, .. } => Some(place),
        First::End => binlog.files()?.end(),
        First::Gone => None,
    };
    let Some(start) = start else { return Ok(None) };
    let own = binlog.server.server_id;
    let is_missing = |gtid: &MariaDbGtid| {
        (gtid.server == own || logged.knows(gtid.domain, gtid.server)) && !logged.has(gtid)
    };
    let last_of = |domain: u32| archived.iter().find(|last| last.domain == domain);
    // What the binlog had had up to there: before the file by its list, and then by its events.
    let mut had = Logged::default();
    let begin = StreamBegin::AtPlace(Place { file: start.file.clone(), position: FILE_BEGIN });
    let found = read_events(&begin, connect, options, &mut |place, event, _| {
        let is_before = place.file == start.file && place.position < start.position;
        match event.body() {
            Ok(Body::GtidList(list)) if is_before => {
                if let Some(missing) = list.iter().find(|gtid| is_missing(gtid)) {
                    return ControlFlow::Break(Some(*missing));
                }
                list.iter().for_each(|gtid| had.add(*gtid));
            }
            Ok(Body::Gtid(GtidEvent { gtid: Some(Gtid::MariaDb(gtid)), .. })) => {
                // Another domain may not have come as far.
                let is_passed = is_before || last_of(gtid.domain).is_some_and(|last| !had.has(&last));
                if is_passed && is_missing(&gtid) {
                    return ControlFlow::Break(Some(gtid));
                }
                had.add(gtid);
            }
            _ => {}
        }
        let has_all = || archived.iter().all(|last| had.has(&last) || !binlog.logged.has_domain(last.domain));
        match !is_before && has_all() {
            true => ControlFlow::Break(None),
            false => ControlFlow::Continue(()),
        }
    })?;
    Ok(match found {
        Read::Found(missing) => missing,
        Read::End | Read::Gone => None,
    })
}

/// What a server other than the one that was archived last lacks of what is archived.
pub(super) fn another_lacks(
    binlog: &mut Binlog,
    tail: &Tail,
    connect: &ConnectOptions,
    options: StreamOptions,
) -> Result<Option<Lack>> {
    match binlog.server.is_same(&tail.server) {
        true => Ok(None),
        false => lack(binlog, tail, connect, options),
    }
}

/// Whether the executed transactions show that the server was not reset: both sets name one server, and the
/// executed ones have a hole, be it among another server's.
fn shows_no_reset(executed: &Gtids, archived: &Gtids) -> bool {
    match (executed, archived) {
        (Gtids::MySql(executed), Gtids::MySql(archived)) => {
            // After a reset, transactions are counted from 1 again: that numbers are alike proves nothing.
            archived.iter().any(|(server, tag, _)| {
                executed.iter().any(|(other, other_tag, _)| (server, tag) == (other, other_tag))
            }) && executed.iter().any(|(_, _, intervals)| intervals.len() > 1)
        }
        _ => false,
    }
}

/// Whether a file's number is higher than that of another file of the same base name.
fn is_after(file: &str, other: &str) -> bool {
    let number = |file: &str| -> Option<u64> { file.rsplit_once('.')?.1.parse().ok() };
    matches!((number(file), number(other)), (Some(file), Some(other)) if file > other)
}

/// Whether the first transaction in a server's binlogs is an archived one.
fn begins_with_any(
    binlog: &mut Binlog,
    archived: &Gtids,
    connect: &ConnectOptions,
    options: StreamOptions,
) -> Result<bool> {
    let oldest = binlog.oldest()?;
    match first_transaction(&StreamBegin::AtPlace(oldest.clone()), connect, options)? {
        First::At { gtid, .. } => Ok(gtid.is_some_and(|gtid| archived.contains(&gtid))),
        First::End => Ok(false),
        First::Gone => {
            let text = format!("the server does not send its oldest binlog file {}", oldest.file);
            Err(Error::new(ErrorKind::Server, text).hinted(
                "try again if it was purged just now; if the file is gone from disk, PURGE BINARY LOGS \
                     removes it from the list",
            ))
        }
    }
}

/// Where the first transaction begins that is not archived, or the end if all are;
/// `None` if the server does not have it any more.
fn start_after(
    archived: &Gtids,
    binlog: &mut Binlog,
    connect: &ConnectOptions,
    options: StreamOptions,
) -> Result<Option<Start>> {
    let begin = StreamBegin::AfterGtids(archived.clone());
    let mut first = first_transaction(&begin, connect, options)?;
    if matches!(first, First::End) && binlog.files.is_none() {
        // Requesting a place acknowledges everything before it. What is committed until the files are listed
        // may be before their end, and is sent now.
        binlog.files()?;
        first = first_transaction(&begin, connect, options)?;
    }
    Ok(match first {
        // What was skipped before it may be longer than an event can tell.
        First::At { place, gtid: Some(gtid) } if binlog.is_long(&place.file) => {
            start_at(&place.file, &gtid, connect, options)?
        }
        First::At { place, .. } => Some(Start::at(place)),
        First::End => binlog.files()?.end().map(Start::at),
        First::Gone => None,
    })
}

/// Where a transaction begins in a file that is read from its beginning. Where the protocol has no number for
/// that place, the event before it is known, and the stream begins with the file.
fn start_at(
    file: &str,
    gtid: &Gtid,
    connect: &ConnectOptions,
    options: StreamOptions,
) -> Result<Option<Start>> {
    let begin_of_file = Place { file: file.to_owned(), position: FILE_BEGIN };
    let begin = StreamBegin::AtPlace(begin_of_file.clone());
    let mut before: Option<Known> = None;
    let found = read_events(&begin, connect, options, &mut |place, event, bytes| {
        if place.file != file {
            return ControlFlow::Break(None);
        }
        match event.body() {
            Ok(Body::Gtid(it)) if it.gtid.as_ref() == Some(gtid) => {
                let is_told = u32::try_from(place.position).is_ok();
                let known = before.take().filter(|_| !is_told);
                let place = if is_told { place.clone() } else { begin_of_file.clone() };
                ControlFlow::Break(Some(Start { place, known, gap: None }))
            }
            _ => {
                let end = place.position + u64::from(event.header.len);
                before = Some(Known { begin: place.position, end, hash: hash(bytes) });
                ControlFlow::Continue(())
            }
        }
    })?;
    Ok(match found {
        Read::Found(start) => start,
        Read::End | Read::Gone => None,
    })
}

/// When the first statement of `gtid` began, if that transaction comes first of its domain;
/// `None` if another does, or none.
fn begun_s(
    gtid: MariaDbGtid,
    begin: &StreamBegin,
    connect: &ConnectOptions,
    options: StreamOptions,
) -> Result<Option<u32>> {
    let mut is_it = false;
    let ended = read_events(begin, connect, options, &mut |_, event, _| match event.body() {
        Ok(Body::Gtid(GtidEvent { gtid: Some(Gtid::MariaDb(other)), .. })) => {
            if is_it || other.domain == gtid.domain && other != gtid {
                return ControlFlow::Break(None);
            }
            is_it = other == gtid;
            ControlFlow::Continue(())
        }
        Ok(body) if is_it && tells_begin(&body) => ControlFlow::Break(Some(event.header.timestamp)),
        _ => ControlFlow::Continue(()),
    })?;
    Ok(match ended {
        Read::Found(begun_s) => begun_s,
        Read::End | Read::Gone => None,
    })
}

/// The first transaction that a server sends.
enum First {
    At {
        place: Place,
        gtid: Option<Gtid>,
    },
    /// There is none.
    End,
    /// The server does not have what is asked for.
    Gone,
}

fn first_transaction(begin: &StreamBegin, connect: &ConnectOptions, options: StreamOptions) -> Result<First> {
    let found = read_events(begin, connect, options, &mut |place, event, _| match event.body() {
        Ok(Body::Gtid(transaction)) if event.header.end > 0 => {
            ControlFlow::Break(First::At { place: place.clone(), gtid: transaction.gtid })
        }
        _ => ControlFlow::Continue(()),
    })?;
    Ok(match found {
        Read::Found(first) => first,
        Read::End => First::End,
        Read::Gone => First::Gone,
    })
}

/// The result of reading.
enum Read<T> {
    Found(T),
    /// It was not found before the end.
    End,
    /// The server does not have what is asked for.
    Gone,
}

/// Where an event begins, if that is at `from` or less than 4 GiB after it: its header has the lower 32 bits of its
/// end, or, within a transaction, none.
fn begin_of(from: u64, header: &Header) -> u64 {
    let low = u64::from(header.end).wrapping_sub(u64::from(header.len));
    match header.end {
        0 => from,
        _ => from + (low.wrapping_sub(from) & u64::from(u32::MAX)),
    }
}

/// Takes an event: its place, itself, and its bytes.
type Each<'a, T> = dyn FnMut(&Place, &Event<'_>, &[u8]) -> ControlFlow<T> + 'a;

/// Calls `each` with the events that a server sends, until it breaks.
fn read_events<T>(
    begin: &StreamBegin,
    connect: &ConnectOptions,
    options: StreamOptions,
    each: &mut Each<'_, T>,
) -> Result<Read<T>> {
    let options = StreamOptions { non_blocking: true, semi_sync: false, ..options };
    let stream = Stream::open(connect, begin, options)?;
    let mut checksum = Checksum::None;
    let mut place = Place { file: String::new(), position: FILE_BEGIN };
    loop {
        match stream.next(std::time::Duration::from_secs(60)) {
            Next::Event { bytes, .. } => {
                // The first event comes before it is known whether events have checksums.
                let event = Event::parse(&bytes, Checksum::Crc32).or_else(|_| Event::parse(&bytes, checksum));
                let event = event.map_err(|error| Error::new(ErrorKind::Server, error.to_string()))?;
                let header = event.header;
                match (header.kind, event.body()) {
                    (EventKind::ROTATE, Ok(Body::Rotate { file, position })) => {
                        place = Place { file: String::from_utf8_lossy(file).into_owned(), position };
                        continue;
                    }
                    (
                        EventKind::FORMAT_DESCRIPTION,
                        Ok(Body::FormatDescription(FormatDescription { .. })),
                    ) => checksum = Checksum::of_format(&bytes).unwrap_or_default(),
                    _ => {}
                }
                // Not in the file, or sent again.
                let is_beside = match header.kind {
                    EventKind::HEARTBEAT | EventKind::HEARTBEAT_V2 | EventKind::START_ENCRYPTION => true,
                    EventKind::FORMAT_DESCRIPTION => header.end == 0 || place.position != FILE_BEGIN,
                    _ => header.flags.is_artificial(),
                };
                if is_beside {
                    continue;
                }
                place.position = begin_of(place.position, &header);
                if let ControlFlow::Break(found) = each(&place, &event, &bytes) {
                    return Ok(Read::Found(found));
                }
                place.position += u64::from(header.len);
            }
            Next::End => return Ok(Read::End),
            Next::Failed(error) if error.code() == Some(code::READING_FAILED) => return Ok(Read::Gone),
            Next::Failed(error) => return Err(error.into()),
            Next::Nothing => return Err(Error::new(ErrorKind::Server, "the server sends nothing")),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_formats::binlog::HEADER_BYTES;

    use super::*;

    /// Places beyond 4 GiB are told, though headers have 32 bits.
    #[test]
    fn places_beyond_what_headers_tell() {
        const GIB_4: u64 = 1 << 32;
        let begin = |from: u64, begin: u64, len: u32| {
            let mut bytes = [0; HEADER_BYTES];
            bytes[9..13].copy_from_slice(&len.to_le_bytes());
            let end = (begin + u64::from(len)) & u64::from(u32::MAX);
            bytes[13..17].copy_from_slice(&u32::try_from(end).unwrap().to_le_bytes());
            begin_of(from, &Header::parse(&bytes).unwrap())
        };
        for (from, at) in [
            (4, 4),
            (4, 700),
            (GIB_4 - 50, GIB_4 - 50),
            (GIB_4 - 50, GIB_4 + 900),
            (3 * GIB_4 + 7, 4 * GIB_4 + 5),
        ] {
            assert_eq!(begin(from, at, 100), at, "from {from}");
        }
        // Within a transaction, headers do not tell it.
        assert_eq!(begin(900, GIB_4 - 100, 100), 900);
    }
}
