//! Goals for the repository.

use super::{CPU, In, MARIADB, MYSQL, STORED, Verdict, WALL};
use crate::results::{Cache, Load, Results, Unit};

pub(super) fn verdicts(results: &Results) -> Vec<Verdict> {
    let ratio = Unit::Ratio;
    let mut verdicts = Vec::new();
    for server in [MARIADB, MYSQL] {
        let archive = In { results, scenario: "archive", server, cache: Cache::Cold, load: Load::Idle };
        let again = In { scenario: "again", ..archive };
        verdicts.push(archive.verdict("zstd:3: wall / restic", 1.0 / 1.3, ratio, |it| {
            it.ratio("holdfast-zstd3", "restic", WALL)
        }));
        verdicts.push(
            archive.verdict("defaults: wall / restic", 0.5, ratio, |it| it.ratio("holdfast", "restic", WALL)),
        );
        verdicts.push(archive.verdict("defaults: bytes stored / restic", 1.15, ratio, |it| {
            it.ratio("holdfast", "restic", STORED)
        }));
        verdicts.push(again.verdict("1 % changed: bytes stored / restic", 1.0 / 15.0, ratio, |it| {
            it.ratio("holdfast", "restic", STORED)
        }));
    }
    let remote = In { results, scenario: "remote", server: MARIADB, cache: Cache::Cold, load: Load::Idle };
    verdicts.push(remote.verdict("object storage: own CPU / into a directory", 1.15, ratio, |it| {
        it.ratio("holdfast-s3", "holdfast", CPU)
    }));
    verdicts.push(remote.verdict(
        "object storage: wall / the slower of a directory and a PUT of the same bytes",
        1.15,
        ratio,
        |it| {
            let of_directory = it.ratio("holdfast-s3", "holdfast", WALL)?;
            let of_put = it.ratio("holdfast-s3", "put", WALL)?;
            Some(if of_directory.median < of_put.median { of_directory } else { of_put })
        },
    ));
    verdicts
}
