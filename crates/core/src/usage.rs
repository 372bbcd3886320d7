//! What this process uses of its host.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What is allocated in one piece from here on is given back to the system as soon as it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const GIVEN_BACK_BYTES: libc::c_int = 128 << 10;

/// Keeps the C library from holding more than twice what is in use. For the beginning of a program.
///
/// A backup allocates a little that stays for every file, and much that does not for every leaf of it. By default glibc takes
/// what is large and freed once for a sign to keep all of that size from then on, and what is small and stays lies between:
/// 368 MiB were held where 164 do (`docs/scale.md`). Said once, the limit stays where it begins by default.
#[allow(unsafe_code)]
pub fn give_memory_back() {
    // SAFETY: only a number is set, and a value that is refused leaves the default.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK_BYTES);
    }
}

/// The most memory the process has held so far; 0 where the kernel does not tell.
#[must_use]
pub fn memory_bytes_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")).and_then(|n| n.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// CPU time of all threads so far, user and system.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
