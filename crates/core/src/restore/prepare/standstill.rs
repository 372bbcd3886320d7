//! Recognises a recovery of MySQL that has come to a standstill.
//!
//! MySQL keeps parsed redo in the buffer pool, and takes several passes if it takes up too much of it.
//! Records that reorganise a page need another page of the pool while they are applied, by the threads that
//! complete reads. Without a free one all of these threads wait for each other, forever, while the server
//! logs `MY-011959` hundreds of times per second. How often that happens, and with which settings it does
//! not, is in `docs/guide/restore.md`.

use std::time::{Duration, Instant};

/// How long nothing may be read or written, while the server waits for free pages.
const STANDSTILL: Duration = Duration::from_secs(10);

/// What the server said about its search for free pages.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Search {
    /// The whole line, which has the time.
    line: String,
    /// Reads, writes and syncs since its start.
    done: [u64; 3],
}

impl Search {
    fn last(log: &[String]) -> Option<Self> {
        let line = log.iter().rev().find(|line| line.contains("[MY-011959]"))?;
        let number_before = |unit: &str| line.split_once(unit)?.0.rsplit(' ').next()?.parse().ok();
        let done = [
            number_before(" OS file reads")?,
            number_before(" OS file writes")?,
            number_before(" OS fsyncs")?,
        ];
        Some(Self { line: line.clone(), done })
    }
}

/// Watches the log of a recovery.
#[derive(Debug, Default)]
pub(crate) struct StandstillWatch {
    /// Since when nothing has been done, and what the server said last.
    stuck: Option<(Instant, Search)>,
}

impl StandstillWatch {
    /// Whether the recovery has come to a standstill, given what it has logged until `now`.
    /// The server must have gone on saying so: its last words stay in the log after it has gone on working.
    pub(crate) fn stands_still(&mut self, log: &[String], now: Instant) -> bool {
        let Some(search) = Search::last(log) else { return false };
        match &mut self.stuck {
            Some((since, last)) if last.done == search.done && last.line != search.line => {
                last.line = search.line;
                now.saturating_duration_since(*since) >= STANDSTILL
            }
            stuck => {
                *stuck = Some((now, search));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(second: u32, reads: u32) -> String {
        format!(
            "2026-11-27T01:20:{second}.613604Z 0 [Warning] [MY-011959] [InnoDB] Difficult to find free blocks in the \
             buffer pool (16839 search iterations)! 16839 failed attempts to flush a page! Consider increasing the \
             buffer pool size. [...] Pending flushes (fsync) log: 0; buffer pool: 0. {reads} OS file reads, 2710 OS \
             file writes, 932 OS fsyncs. Starting InnoDB Monitor to print further diagnostics to the standard output."
        )
    }

    /// The seconds after which the watch reports a standstill, given the log's lines second by second.
    fn reported(lines: impl IntoIterator<Item = String>) -> Vec<u64> {
        let (mut watch, begun) = (StandstillWatch::default(), Instant::now());
        let mut log = vec!["[System] [MY-013576] [InnoDB] InnoDB initialization has started.".to_owned()];
        (0..)
            .zip(lines)
            .filter_map(|(second, line)| {
                log.push(line);
                watch.stands_still(&log, begun + Duration::from_secs(second)).then_some(second)
            })
            .collect()
    }

    #[test]
    fn a_server_that_only_searches_stands_still() {
        assert_eq!(reported((0..13).map(|second| line(second, 6765))), [10, 11, 12]);
    }

    #[test]
    fn a_server_that_reads_or_falls_silent_does_not() {
        assert!(reported((0..40).map(|second| line(second, second / 5))).is_empty());
        assert!(reported(std::iter::repeat_n(line(7, 6765), 40)).is_empty());
        // It searched, worked for a while without a word, and searches again.
        let lines = (0..8).map(|second| line(second, 6765)).chain(vec![line(7, 6765); 8]);
        assert!(reported(lines.chain((20..29).map(|second| line(second, 6765)))).is_empty());
        assert!(
            reported(vec!["[Note] [MY-012532] [InnoDB] Applying a batch of redo log".to_owned(); 40])
                .is_empty()
        );
    }
}
