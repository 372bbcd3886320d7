//! Goals for the archive of binlogs.

use super::{In, MARIADB, MYSQL, Verdict};
use crate::results::{Cache, Load, Results, Unit};

const DURABLE_WITHIN_MS: f64 = 1000.0;

pub(super) fn verdicts(results: &Results) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for server in [MARIADB, MYSQL] {
        let archiver = In { results, scenario: "archiver", server, cache: Cache::Warm, load: Load::Writes };
        for (contestant, place) in [("holdfast", "a directory"), ("holdfast-s3", "object storage")] {
            let goal = format!("{place}: longest time from arrival to durable");
            verdicts.push(archiver.verdict(&goal, DURABLE_WITHIN_MS, Unit::Ms, |it| {
                it.series(contestant)?.spread(|sample| sample.reported("lag_max_ms")?.as_f64())
            }));
        }
        let acknowledged = In { scenario: "acknowledged", ..archiver };
        for (contestant, place) in
            [("holdfast", "a directory"), ("holdfast-s3", "object storage"), ("holdfast-spool", "the spool")]
        {
            let goal = format!("{place}: longest commit that waits for it");
            verdicts.push(
                acknowledged.verdict(&goal, DURABLE_WITHIN_MS, Unit::Ms, |it| it.longest_commits(contestant)),
            );
        }
    }
    verdicts
}
