//! What the recovery by a server takes: memory and time.

use holdfast_formats::Flavor;

use crate::restore::options::RestoreOptions;

pub(crate) const BUFFER_POOL_MIN: u64 = 128 << 20;
const BUFFER_POOL_MAX: u64 = 1 << 30;
/// A server does not start with less.
const BUFFER_POOL_LEAST: u64 = 32 << 20;
/// From a server's start to its shutdown, without redo.
const MARIADB_START_MS: u64 = 500;
const MYSQL_START_MS: u64 = 2000;
const MARIADB_REDO_BYTES_PER_MS: u64 = 500_000;
const MYSQL_REDO_BYTES_PER_MS: u64 = 150_000;

/// The buffer pool of the recovery, which keeps parsed redo in it and reads each page once.
pub(crate) fn buffer_pool_bytes(options: &RestoreOptions, redo_bytes: u64) -> u64 {
    let wanted = options
        .prepare_memory_bytes
        .unwrap_or_else(|| redo_bytes.saturating_mul(2).clamp(BUFFER_POOL_MIN, BUFFER_POOL_MAX));
    wanted.min(half_of_ram()).max(BUFFER_POOL_LEAST) >> 20 << 20
}

/// Half of the memory of this machine.
pub(crate) fn half_of_ram() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)) / 2
}

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

    /// The buffer pool follows the redo, within bounds, and the user's choice counts.
    #[test]
    fn buffer_pool() {
        let mut options = RestoreOptions::new("x");
        assert_eq!(buffer_pool_bytes(&options, 0), BUFFER_POOL_MIN);
        assert_eq!(buffer_pool_bytes(&options, 100 << 20), 200 << 20);
        assert_eq!(buffer_pool_bytes(&options, u64::MAX), BUFFER_POOL_MAX);
        options.prepare_memory_bytes = Some((64 << 20) + 5);
        assert_eq!(buffer_pool_bytes(&options, 0), 64 << 20);
        options.prepare_memory_bytes = Some(u64::MAX);
        let info = rustix::system::sysinfo();
        assert!(buffer_pool_bytes(&options, 0) <= info.totalram as u64 * u64::from(info.mem_unit) / 2);
    }
}
