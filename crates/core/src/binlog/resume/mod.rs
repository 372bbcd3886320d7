//! Where an archive continues: after its last event on the server it came from, by GTID on another server,
//! and where neither is possible, after a gap that has a name.
//!
//! - [`events`]: finds something in what a server sends.
//! - [`binlog`]: what a server has, and in which files.
//! - [`lack`]: whether it has everything that is archived.

mod binlog;
mod events;
mod lack;

use std::ops::ControlFlow;

use holdfast_formats::{Gtid, Gtids, binlog::Body};
use holdfast_repo::{Kind, LogName, Repo, log::history::History};

pub(super) use self::{
    binlog::{Binlog, Files, executed},
    lack::{Lack, another_lacks},
};
use self::{
    events::{First, Read},
    lack::lack,
};
use super::{
    read::Taken,
    recorder::{FILE_BEGIN, Known, Start, hash},
    stream::StreamBegin,
    stretch::{Gap, GapKind, Place, Tail},
};
use crate::{
    error::{Error, ErrorKind, Result},
    head::read_head,
};

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
pub(super) fn first(binlog: &mut Binlog, repo: &Repo, log: &LogName) -> Result<(Start, Option<String>)> {
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
        && let Some(start) = start_after(gtids, binlog)?
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
        Some(archived) if is_gone => begins_with_any(binlog, archived)?,
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
    let lack = lack(binlog, tail)?;
    if let Some(archived) = &archived
        && !has_lost
        && !begins_anew
        && lack.is_none()
        && let Some(start) = start_after(archived, binlog)?
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
fn begins_with_any(binlog: &mut Binlog, archived: &Gtids) -> Result<bool> {
    let oldest = binlog.oldest()?;
    match binlog.events.first_transaction(&StreamBegin::AtPlace(oldest.clone()))? {
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
fn start_after(archived: &Gtids, binlog: &mut Binlog) -> Result<Option<Start>> {
    let begin = StreamBegin::AfterGtids(archived.clone());
    let first = binlog.first_after(&begin)?;
    Ok(match first {
        // What was skipped before it may be longer than an event can tell.
        First::At { place, gtid: Some(gtid) } if binlog.is_long(&place.file) => {
            start_at(binlog, &place.file, &gtid)?
        }
        First::At { place, .. } => Some(Start::at(place)),
        First::End => binlog.files()?.end().map(Start::at),
        First::Gone => None,
    })
}

/// Where a transaction begins in a file that is read from its beginning. Where the protocol has no number for
/// that place, the event before it is known, and the stream begins with the file.
fn start_at(binlog: &Binlog, file: &str, gtid: &Gtid) -> Result<Option<Start>> {
    let begin_of_file = Place { file: file.to_owned(), position: FILE_BEGIN };
    let begin = StreamBegin::AtPlace(begin_of_file.clone());
    let mut before: Option<Known> = None;
    let found = binlog.events.read(&begin, &mut |place, event, bytes| {
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
