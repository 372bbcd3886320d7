//! Finds a transaction in an archive by its GTID. After a reset, GTIDs are reused for other transactions.

use std::ops::ControlFlow;

use holdfast_formats::{Gtid, Gtids, binlog::Part};

use super::{Archive, ArchivedStretch, Gap, GapKind, Place};
use crate::{binlog::stretch::parse_gtids, error::Result};

/// A transaction with the GTID that was looked for.
#[derive(Clone, Debug)]
pub(crate) struct Occurrence {
    /// Position of its stretch in [`Archive::stretches`].
    pub stretch: usize,
    /// Where it begins.
    pub place: Place,
    /// When it was committed, in microseconds since 1970.
    pub at: u64,
}

impl Archive {
    /// The first transaction with this GTID in each part between gaps, oldest first. Reads only the files
    /// that may have it according to the archive, or all if it is in none of those:
    /// the numbers of a domain need not rise.
    pub(crate) fn occurrences(&self, gtid: &Gtid) -> Result<Vec<Occurrence>> {
        let found = self.occurrences_in(gtid, &|archived| may_have(archived, gtid))?;
        match found.is_empty() {
            true => self.occurrences_in(gtid, &|_| true),
            false => Ok(found),
        }
    }

    /// Whether nothing is missing between two stretches, of which `first` comes first.
    pub(crate) fn is_whole_between(&self, first: usize, last: usize) -> bool {
        self.gaps_between(first, last).next().is_none()
    }

    /// Whether the server's binlogs were reset between two occurrences.
    pub(crate) fn was_reset_between(&self, first: &Occurrence, last: &Occurrence) -> bool {
        self.gaps_between(first.stretch, last.stretch).any(|gap| gap.kind == GapKind::Reset)
    }

    fn gaps_between(&self, first: usize, last: usize) -> impl Iterator<Item = &Gap> {
        let between = self.stretches.get(first..=last).unwrap_or_default();
        between.iter().skip(1).filter_map(|archived| archived.gap.as_ref())
    }

    fn occurrences_in(
        &self,
        gtid: &Gtid,
        is_in: &dyn Fn(&ArchivedStretch) -> bool,
    ) -> Result<Vec<Occurrence>> {
        let mut is_read: Vec<bool> = self.stretches.iter().map(is_in).collect();
        // A transaction that ends in a stretch may have begun in the one before it.
        for at in (1..self.stretches.len()).rev() {
            let (before, archived) = (&self.stretches[at - 1], &self.stretches[at]);
            let goes_on = archived.continues(before) && archived.stretch.file == before.stretch.file;
            is_read[at - 1] |= is_read[at] && goes_on;
        }
        let mut found: Vec<Occurrence> = Vec::new();
        let mut at = 0;
        while at < is_read.len() {
            let is_found = found.last().is_some_and(|found| self.is_whole_between(found.stretch, at));
            let mut end = at + 1;
            if is_read[at] && !is_found {
                while end < is_read.len() && is_read[end] && self.stretches[end].gap.is_none() {
                    end += 1;
                }
                found.extend(self.first_occurrence(gtid, at..end)?);
            }
            at = end;
        }
        Ok(found)
    }

    fn first_occurrence(&self, gtid: &Gtid, range: std::ops::Range<usize>) -> Result<Option<Occurrence>> {
        let mut found = None;
        self.all_transactions(range, &mut |event| {
            let (Part::First, Some(transaction)) = (event.part, event.transaction) else {
                return Ok(ControlFlow::Continue(()));
            };
            if transaction.gtid.as_ref() != Some(gtid) {
                return Ok(ControlFlow::Continue(()));
            }
            let file = self.stretches[event.stretch].stretch.file.clone();
            found = Some(Occurrence {
                stretch: event.stretch,
                place: Place { file, position: event.begin },
                at: event.committed_us(transaction),
            });
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }
}

/// Whether a transaction with this GTID may end in a stretch,
/// judging by what came before it and what had come at its end.
fn may_have(archived: &ArchivedStretch, gtid: &Gtid) -> bool {
    let stretch = &archived.stretch;
    let gtids = |text: &Option<String>| {
        text.as_deref().and_then(|text| parse_gtids(stretch.server.flavor(), text).ok())
    };
    let (before, after) = (gtids(&stretch.gtids_before), gtids(&stretch.gtids_after));
    let had_it = before.is_some_and(|before| match (&before, gtid) {
        // Several servers may count in one domain.
        (Gtids::MariaDb(before), Gtid::MariaDb(gtid)) => before.iter().any(|before| {
            before == *gtid || (before.domain == gtid.domain && before.sequence > gtid.sequence)
        }),
        _ => before.contains(gtid),
    });
    stretch.transactions > 0 && !had_it && after.is_some_and(|after| after.contains(gtid))
}
