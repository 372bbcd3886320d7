//! Goals for logical backups and loads.

use super::{In, MARIADB, MYSQL, STORED, Verdict, WALL};
use crate::results::{Cache, Load, Results, Sample, Unit};
use crate::stats::Spread;

pub(super) fn verdicts(results: &Results) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for server in [MARIADB, MYSQL] {
        let dump = In { results, scenario: "dump", server, cache: Cache::Cold, load: Load::Idle };
        for (goal, at_most, ours, theirs) in [
            ("plain: wall / draining the same rows", 1.25, "holdfast-plain", "drain"),
            ("plain: wall / mysqldump", 1.0 / 3.0, "holdfast-plain", "client-dump"),
            ("plain: wall / mydumper", 1.0, "holdfast-plain", "mydumper"),
            ("zstd + encryption: wall / mydumper with zstd", 1.0 / 1.3, "holdfast", "mydumper-zstd"),
        ] {
            verdicts.push(dump.verdict(goal, at_most, Unit::Ratio, |it| it.ratio(ours, theirs, WALL)));
        }
        let redump = In { scenario: "redump", ..dump };
        let goal = "0.1 % of the rows changed: bytes stored / the first backup's";
        verdicts.push(redump.verdict(goal, 0.02, Unit::Ratio, |it| {
            let first = it.figure("first")?;
            it.series("holdfast")?.spread(|sample| Some(STORED(sample)? / first))
        }));
        let several = In { scenario: "several", ..dump };
        let goal = "five backups by one connection each: wall at once / in turn";
        verdicts.push(
            several.verdict(goal, 1.1, Unit::Ratio, |it| it.ratio("five-at-once", "five-in-turn", WALL)),
        );
        let held = In { scenario: "held", cache: Cache::Warm, load: Load::Writes, ..dump };
        let goal = "beside a long query: longest lock that blocks reads or writes, waiting and held";
        verdicts.push(
            held.verdict(goal, 100.0, Unit::Ms, |it| it.series("holdfast")?.spread(Sample::longest_lock_ms)),
        );
        let load = In { scenario: "load", ..dump };
        for (goal, at_most, ours, theirs) in [
            ("load: wall / mysql < dump.sql", 1.0 / 2.5, "holdfast", "client-dump"),
            ("load without binlog: wall / myloader", 1.0 / 1.2, "holdfast-without-binlog", "mydumper-zstd"),
        ] {
            verdicts.push(load.verdict(goal, at_most, Unit::Ratio, |it| -> Option<Spread> {
                it.ratio(ours, theirs, WALL)
            }));
        }
    }
    verdicts
}
