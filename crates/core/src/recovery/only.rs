//! Finds the one transaction with a GTID if no backup is named: after a reset a GTID may stand for several.

use std::sync::Arc;

use holdfast_formats::Gtid;
use holdfast_repo::Repo;

use super::{Backups, Until, continued, until::instant};
use crate::{
    binlog::{After, Archive, Occurrence, Place},
    error::{Error, ErrorKind, Result},
};

/// Where the transaction is. Fails if it is not in the archive, or is there on both sides of a gap.
pub(super) fn occurrence(
    repo: &Arc<Repo>,
    backups: &Backups,
    archive: &Archive,
    until: &Until,
    gtid: &Gtid,
) -> Result<Occurrence> {
    let mut found = archive.occurrences(gtid)?;
    let source = &archive.log().source;
    let Some(newest) = found.pop() else {
        let text = format!("the archive of {source} does not contain transaction {gtid}");
        return Err(Error::new(ErrorKind::Usage, text));
    };
    // Another server of the same history is archived from its oldest file on, so what appears again is the
    // same.
    let is_same = |other: &Occurrence| other.at == newest.at && !archive.was_reset_between(other, &newest);
    if found.is_empty() {
        return Ok(newest);
    }
    let bases: Vec<(String, After)> = backups
        .preferred()
        .filter_map(|(history, run)| {
            let (after, _) = continued(repo, history, run, archive, until).ok()?;
            Some((history.log().backup_id(run), after))
        })
        .collect();
    let base_of = |occurrence: &Occurrence| {
        let mut reaching =
            bases.iter().filter(|(_, after)| reaches(archive, after, occurrence).unwrap_or(false));
        reaching.next().map(|(id, _)| id)
    };
    if found.iter().all(is_same) {
        if base_of(&newest).is_some() {
            return Ok(newest);
        }
        let reached = found.iter().rposition(|other| base_of(other).is_some());
        return Ok(reached.map_or(newest, |at| found.swap_remove(at)));
    }
    found.push(newest);
    let places: Vec<String> = found.iter().map(|it| committed(&it.place, it.at)).collect();
    let text = format!(
        "{gtid} is in the archive of {source} more than once, with a gap in between: {}",
        places.join("; ")
    );
    let ways = found.iter().map(|occurrence| {
        let at = instant(occurrence.at).map(|at| at.to_string()).unwrap_or_default();
        match base_of(occurrence) {
            Some(id) => format!("restore {id} {} for the one committed at {at}", until.option()),
            None => format!("no backup is left to recover the one committed at {at} from"),
        }
    });
    let ways: Vec<String> = ways.collect();
    let hint = format!(
        "name a backup that precedes the transaction you mean, or a time (--at):\n{}",
        ways.join("\n")
    );
    Err(Error::new(ErrorKind::Usage, text).hinted(hint))
}

/// Whether a transaction comes after a backup with no gap in between.
pub(super) fn reaches(archive: &Archive, after: &After, occurrence: &Occurrence) -> Result<bool> {
    let (first, position, _) = archive.locate(after)?;
    let is_after = first < occurrence.stretch
        || (first == occurrence.stretch
            && position.is_none_or(|position| position <= occurrence.place.position));
    Ok(is_after && archive.is_whole_between(first, occurrence.stretch))
}

/// The error for a transaction that cannot be reached from any backup.
pub(super) fn out_of_reach(archive: &Archive, gtid: &Gtid, occurrence: &Occurrence) -> Error {
    let source = &archive.log().source;
    let text = format!(
        "no backup of {source} is left from which the archive leads to transaction {gtid}, {}, \
         without a gap",
        committed(&occurrence.place, occurrence.at)
    );
    Error::new(ErrorKind::Usage, text)
}

/// A transaction of several with one GTID, for messages.
pub(super) fn committed(place: &Place, us: u64) -> String {
    let at = instant(us).map(|at| at.to_string()).unwrap_or_default();
    format!("committed at {at} ({place})")
}
