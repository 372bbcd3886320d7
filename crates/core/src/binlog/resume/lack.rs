//! Whether a server has everything that is archived, and what it lacks.

use std::ops::ControlFlow;

use holdfast_formats::{
    Flavor, Gtid, Gtids,
    binlog::{Body, GtidEvent},
    gtid::{MariaDbGtid, MariaDbGtidPos},
};

use super::{
    binlog::Binlog,
    events::{First, Read},
};
use crate::{
    binlog::{
        recorder::{FILE_BEGIN, tells_begin},
        stream::StreamBegin,
        stretch::{Logged, Place, Tail},
    },
    error::{Context as _, Error, ErrorKind, Result},
};

/// Why a server does not have all that is archived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::binlog) enum Lack {
    /// It has not got that far.
    After,
    /// It has, but cannot be shown to have the same transactions. Says what is wrong.
    Otherwise(String),
}

impl Lack {
    /// As an error; up to `until`, the archive is of another server.
    pub(in crate::binlog) fn of_another(self, until: &Place) -> Error {
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
pub(super) fn lack(binlog: &mut Binlog, tail: &Tail) -> Result<Option<Lack>> {
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
    let what = match begun_s(binlog, gtid, &begin)? {
        Some(begun_s) if begun_s == last.begun_s => {
            let Some(logged) = tail.logged()? else { return Ok(None) };
            let Some(gtid) = passed_over(binlog, &archived, &logged)? else {
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
) -> Result<Option<MariaDbGtid>> {
    let begin = StreamBegin::AfterGtids(Gtids::MariaDb(archived.clone()));
    let start = match binlog.first_after(&begin)? {
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
    let found = binlog.events.read(&begin, &mut |place, event, _| {
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
pub(in crate::binlog) fn another_lacks(binlog: &mut Binlog, tail: &Tail) -> Result<Option<Lack>> {
    match binlog.server.is_same(&tail.server) {
        true => Ok(None),
        false => lack(binlog, tail),
    }
}

/// When the first statement of `gtid` began, if that transaction comes first of its domain;
/// `None` if another does, or none.
fn begun_s(binlog: &Binlog, gtid: MariaDbGtid, begin: &StreamBegin) -> Result<Option<u32>> {
    let mut is_it = false;
    let ended = binlog.events.read(begin, &mut |_, event, _| match event.body() {
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
