//! What can be recovered: backups, and how far the archive goes on behind each without a gap.

use holdfast_formats::Gtids;
use holdfast_repo::{Kind, LogName, history::History};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Archive, Behind, Place};
use crate::{
    binlog::stretch::parse_gtids,
    error::Result,
    physical::{Position, read_head},
};

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
    /// When its last transaction was committed: with a base, anything until then can be recovered.
    pub last_at: Option<u64>,
    /// Backups from whose position on it has everything, oldest first.
    pub bases: Vec<Base>,
}

/// A backup behind which the archive goes on.
#[derive(Clone, Debug, Serialize)]
pub struct Base {
    /// Its kind.
    pub kind: String,
    /// Its run.
    pub run: u64,
    /// When it was taken.
    pub finished_at: Timestamp,
}

impl Archive {
    /// The parts between gaps, oldest first, each with the backups that it goes on behind.
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
            let log = LogName { source: self.log.source.clone(), kind };
            let history = History::salvage(&self.repo, &log, &mut |_, _| {})?;
            for outcome in history.standing() {
                // What cannot be read is no base; check says why.
                let Ok(head) = read_head(&self.repo, &history, outcome.run) else { continue };
                let position = head.position.map(serde_json::Value::Object);
                let Some(position) = position.and_then(|position| Position::deserialize(position).ok())
                else {
                    continue;
                };
                if let Some(at) = self.stretch_behind(&position)
                    && let Some(chain) =
                        chains.iter_mut().find(|chain| (chain.first..=chain.last).contains(&at))
                {
                    let finished_at = head.finished_at;
                    chain.bases.push(Base { kind: kind.to_string(), run: outcome.run.0, finished_at });
                }
            }
        }
        for chain in &mut chains {
            chain.bases.sort_by_key(|base| base.finished_at);
        }
        Ok(chains)
    }

    /// The stretch with what comes after a backup's position.
    #[must_use]
    pub fn stretch_behind(&self, position: &Position) -> Option<usize> {
        self.locate(&self.behind(position)?).ok().map(|(at, ..)| at)
    }

    /// A backup's position as the archive knows it: by GTID where both have them, else by place.
    #[must_use]
    pub fn behind(&self, position: &Position) -> Option<Behind> {
        let flavor = self.stretches.first()?.stretch.server.flavor();
        let gtids = position.gtid.as_deref().and_then(|text| parse_gtids(flavor, text).ok());
        let has_gtids = self.stretches.iter().any(|archived| archived.stretch.gtids_after.is_some());
        let place = position
            .binlog
            .as_ref()
            .map(|binlog| Place { file: binlog.file.clone(), position: binlog.offset });
        match (gtids, place) {
            (Some(gtids), place) if has_gtids && !gtids.is_empty() => {
                // Where the position is beyond all that is archived, nothing goes on behind it yet.
                let newest =
                    self.stretches.iter().rev().find_map(|archived| archived.stretch.gtids_after.as_deref());
                let newest = newest.and_then(|text| parse_gtids(flavor, text).ok());
                match newest {
                    Some(newest) if !reaches(&newest, &gtids) => place
                        .filter(|place| self.stretches.iter().any(|archived| archived.ends_at() == *place))
                        .map(Behind::Place),
                    _ => Some(Behind::Gtids(gtids)),
                }
            }
            (_, place) => place.map(Behind::Place),
        }
    }
}

fn reaches(newest: &Gtids, gtids: &Gtids) -> bool {
    match (newest, gtids) {
        (Gtids::MySql(newest), Gtids::MySql(gtids)) => newest.contains_all(gtids),
        (Gtids::MariaDb(newest), Gtids::MariaDb(gtids)) => gtids.iter().all(|gtid| newest.reaches(gtid)),
        _ => false,
    }
}
