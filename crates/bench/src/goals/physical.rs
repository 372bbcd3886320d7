//! Goals for physical backups.

use super::{In, MARIADB, MYSQL, STORED, Verdict, WALL};
use crate::results::{Cache, Load, Results, Unit};
use crate::stats::{Spread, percentile};

pub(super) fn verdicts(results: &Results) -> Vec<Verdict> {
    let full = |server| In { results, scenario: "full", server, cache: Cache::Cold, load: Load::Idle };
    let busy = In { results, scenario: "busy", server: MARIADB, cache: Cache::Cold, load: Load::Writes };
    let restore =
        In { results, scenario: "restore", server: MARIADB, cache: Cache::Cold, load: Load::Stopped };
    let incremental =
        |server| In { results, scenario: "incremental", server, cache: Cache::Cold, load: Load::Idle };
    let many =
        In { results, scenario: "amplification", server: MARIADB, cache: Cache::Cold, load: Load::Stopped };
    let ratio = Unit::Ratio;
    let mut verdicts = vec![
        full(MARIADB).verdict("plain, unencrypted, cold: wall / cp + sync", 1.15, ratio, |it| {
            it.ratio("holdfast-plain", "floor", WALL)
        }),
        full(MARIADB).verdict("plain, unencrypted, cold: wall / mariadb-backup", 1.0, ratio, |it| {
            it.ratio("holdfast-plain", "mariadb-backup", WALL)
        }),
        full(MARIADB).verdict("zstd + encryption, cold: wall / (mariadb-backup | zstd)", 0.75, ratio, |it| {
            it.ratio("holdfast", "mariadb-backup-zstd", WALL)
        }),
        full(MARIADB).verdict(
            "zstd + encryption: bytes stored / (mariadb-backup | zstd)",
            1.0,
            ratio,
            |it| it.ratio("holdfast", "mariadb-backup-zstd", STORED),
        ),
        full(MARIADB).verdict(
            "zstd + encryption, cold: wall / (bytes / (cores x codec alone))",
            1.2,
            ratio,
            In::codec_bound,
        ),
        restore.verdict("restore: wall / (decompress + extract + prepare + copy-back)", 0.5, ratio, |it| {
            it.ratio("holdfast", "mariadb-backup-zstd", WALL)
        }),
        restore.verdict("restore: wall / (decompress + extract + prepare + move-back)", 0.8, ratio, |it| {
            it.ratio("holdfast", "mariadb-backup-zstd-move", WALL)
        }),
        busy.verdict("longest commit seen by a 1 kHz prober, median of the runs", 15.0, Unit::Ms, |it| {
            it.longest_commits("holdfast")
        }),
        busy.verdict("longest commit seen by a 1 kHz prober, p95 of the runs", 60.0, Unit::Ms, |it| {
            let series = it.series("holdfast")?;
            let longest = series.samples.iter().filter_map(|sample| Some(sample.clients?.commit_longest_ms));
            percentile(longest, 95.0).map(Spread::single)
        }),
        many.verdict("after 50 skewed incrementals: restore wall / fresh full's", 1.3, ratio, |it| {
            it.ratio("holdfast-after-many", "holdfast-fresh", WALL)
        }),
        many.verdict(
            "after 50 skewed incrementals: repository with the last one / fresh full's",
            1.3,
            ratio,
            |it| Some(Spread::single(it.figure("repo-pruned")? / it.figure("repo-fresh")?)),
        ),
        full(MYSQL).verdict("plain, unencrypted, cold: wall / cp + sync", 1.15, ratio, |it| {
            it.ratio("holdfast-plain", "floor", WALL)
        }),
        full(MYSQL).verdict(
            "zstd + encryption, cold: wall / (bytes / (cores x codec alone))",
            1.2,
            ratio,
            In::codec_bound,
        ),
    ];
    for server in [MARIADB, MYSQL] {
        let storm = In { results, scenario: "storm", server, cache: Cache::Cold, load: Load::Definitions };
        verdicts.push(storm.verdict(
            "longest change of a definition during DDL, median of the runs",
            2000.0,
            Unit::Ms,
            |it| it.series("holdfast")?.spread(|sample| sample.clients?.definition_longest_ms),
        ));
        let it = incremental(server);
        verdicts.push(it.verdict("1 % changed, cold: wall / reading the files once", 1.1, ratio, |it| {
            it.ratio("holdfast", "read-once", WALL)
        }));
        verdicts.push(it.verdict(
            "1 % changed: bytes stored / changed pages compressed alone",
            1.03,
            ratio,
            |it| {
                let alone = it.figure("changed-compressed")?;
                it.series("holdfast")?.spread(|sample| Some(STORED(sample)? / alone))
            },
        ));
    }
    verdicts
}
