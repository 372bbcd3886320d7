//! The memory of the servers that a restore starts.

use super::options::RestoreOptions;

/// The buffer pool of a recovery with little redo, unless the user sets one.
pub(super) const BUFFER_POOL_DEFAULT_MIN_BYTES: u64 = 128 << 20;
/// The buffer pool of a recovery with much redo, unless the user sets one.
const BUFFER_POOL_DEFAULT_MAX_BYTES: u64 = 1 << 30;
/// A server does not start with less.
const BUFFER_POOL_FLOOR_BYTES: u64 = 32 << 20;

/// The buffer pool of the recovery, which keeps parsed redo in it and reads each page once.
pub(super) fn buffer_pool_bytes(options: &RestoreOptions, redo_bytes: u64) -> u64 {
    let wanted = options.prepare_memory_bytes.unwrap_or_else(|| {
        redo_bytes.saturating_mul(2).clamp(BUFFER_POOL_DEFAULT_MIN_BYTES, BUFFER_POOL_DEFAULT_MAX_BYTES)
    });
    wanted.min(half_of_ram_bytes()).max(BUFFER_POOL_FLOOR_BYTES) >> 20 << 20
}

/// Half of the memory of this machine.
pub(super) fn half_of_ram_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The buffer pool follows the redo, within bounds, and the user's choice counts.
    #[test]
    fn buffer_pool() {
        let mut options = RestoreOptions::new("x");
        assert_eq!(buffer_pool_bytes(&options, 0), BUFFER_POOL_DEFAULT_MIN_BYTES);
        assert_eq!(buffer_pool_bytes(&options, 100 << 20), 200 << 20);
        assert_eq!(buffer_pool_bytes(&options, u64::MAX), BUFFER_POOL_DEFAULT_MAX_BYTES);
        options.prepare_memory_bytes = Some((64 << 20) + 5);
        assert_eq!(buffer_pool_bytes(&options, 0), 64 << 20);
        options.prepare_memory_bytes = Some(u64::MAX);
        let info = rustix::system::sysinfo();
        assert!(buffer_pool_bytes(&options, 0) <= info.totalram as u64 * u64::from(info.mem_unit) / 2);
    }
}
