//! Resources that this process uses.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// An allocation of at least this size is returned to the system as soon as it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const GIVEN_BACK_BYTES: libc::c_int = 128 << 10;
/// Free memory between smaller allocations is returned once the process has grown by this much since the last
/// time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const GROWTH_BYTES: u64 = 8 << 20;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LOOKED_AT_EVERY: Duration = Duration::from_millis(500);

/// Keeps the C library from holding more than twice the memory in use. To be called when a program starts.
///
/// For every file a backup allocates a little that stays, and for every leaf of it much that does not. By
/// default, glibc takes the freeing of a large allocation as a sign to keep memory of that size from then on,
/// and small allocations that stay come to lie in between: 368 MiB were held where 164 suffice
/// (`docs/evidence/scale.md`). Once set explicitly, the threshold stays at its initial default. Smaller freed
/// memory still stays with the process as long as anything after it is in use: at 2 TiB, two fifths of all
/// that it held. A thread returns that memory.
pub fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[allow(unsafe_code)]
        // SAFETY: only a number is set, and a refused value leaves the default.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK_BYTES);
        }
        // Without the thread the process holds more memory; nothing else changes.
        let _ = std::thread::Builder::new().name("memory".to_owned()).spawn(give_back_what_is_between);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back_what_is_between() {
    // The least memory held since memory was last returned.
    let mut held_bytes = memory_bytes();
    loop {
        std::thread::sleep(LOOKED_AT_EVERY);
        let now_bytes = memory_bytes();
        held_bytes = held_bytes.min(now_bytes);
        if now_bytes > held_bytes + GROWTH_BYTES {
            #[allow(unsafe_code)]
            // SAFETY: this takes the allocator's own locks, and touches only free memory.
            unsafe {
                libc::malloc_trim(0);
            }
            held_bytes = memory_bytes();
        }
    }
}

/// The most memory that the process has held so far; 0 if the kernel does not report it.
#[must_use]
pub fn memory_bytes_max() -> u64 {
    status_bytes("VmHWM:")
}

/// The memory that the process holds now; 0 if the kernel does not report it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn memory_bytes() -> u64 {
    status_bytes("VmRSS:")
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")).and_then(|n| n.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// CPU time of all threads so far, user and system.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
