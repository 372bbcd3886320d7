//! Goals for the repository.

use super::{CPU, In, MARIADB, MYSQL, STORED, Verdict, WALL};
use crate::results::{Cache, Load, Results, Unit};
use crate::stats::Spread;

impl In<'_> {
    /// How much longer object storage takes than the slower of a directory and the bare transfer.
    fn beside_the_slower(self, transfer: &str) -> Option<Spread> {
        let of_directory = self.ratio("holdfast-s3", "holdfast", WALL)?;
        let of_transfer = self.ratio("holdfast-s3", transfer, WALL)?;
        Some(if of_directory.median < of_transfer.median { of_directory } else { of_transfer })
    }
}

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
    let fetch = In { results, scenario: "fetch", server: MARIADB, cache: Cache::Cold, load: Load::Stopped };
    let remote = In { results, scenario: "remote", server: MARIADB, cache: Cache::Cold, load: Load::Idle };
    verdicts.push(remote.verdict("object storage: own CPU / into a directory", 1.15, ratio, |it| {
        it.ratio("holdfast-s3", "holdfast", CPU)
    }));
    verdicts.push(remote.verdict(
        "object storage: wall / the slower of a directory and a PUT of the same bytes",
        1.15,
        ratio,
        |it| it.beside_the_slower("put"),
    ));
    verdicts.push(fetch.verdict("out of object storage: own CPU / out of a directory", 1.15, ratio, |it| {
        it.ratio("holdfast-s3", "holdfast", CPU)
    }));
    verdicts.push(fetch.verdict(
        "out of object storage: wall / the slower of a directory and a GET of the same objects",
        1.15,
        ratio,
        |it| it.beside_the_slower("get"),
    ));
    verdicts
}
