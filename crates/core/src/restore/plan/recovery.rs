//! The time that the recovery by a server takes.

use holdfast_formats::Flavor;

/// From a server's start to its shutdown, without redo.
const MARIADB_START_MS: u64 = 500;
const MYSQL_START_MS: u64 = 2000;
const MARIADB_REDO_BYTES_PER_MS: u64 = 500_000;
const MYSQL_REDO_BYTES_PER_MS: u64 = 150_000;

/// The least time that recovery takes: what a server needs to start and stop, and to read and apply this much
/// redo if all pages that it changes fit the buffer pool (measured with 20 GiB, `docs/guide/restore.md`).
pub(crate) fn least_ms(flavor: Flavor, redo_bytes: u64) -> u64 {
    let (start_ms, bytes_per_ms) = match flavor {
        Flavor::MariaDb => (MARIADB_START_MS, MARIADB_REDO_BYTES_PER_MS),
        Flavor::MySql => (MYSQL_START_MS, MYSQL_REDO_BYTES_PER_MS),
    };
    start_ms + redo_bytes / bytes_per_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MariaDB took 40 s for 20 GiB (`docs/guide/restore.md`), where this says 43.
    #[test]
    fn the_forecast_grows_with_the_redo() {
        let of = |flavor| [0, 1 << 30, 20 << 30].map(|redo_bytes| least_ms(flavor, redo_bytes));
        assert_eq!(of(Flavor::MariaDb), [500, 2_647, 43_449]);
        assert_eq!(of(Flavor::MySql), [2_000, 9_158, 145_165]);
    }
}
