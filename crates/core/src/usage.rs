//! What this process uses of its host.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What is allocated in one piece from here on is given back to the system as soon as it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const GIVEN_BACK_BYTES: libc::c_int = 128 << 10;
/// What lies free between smaller pieces is given back where the process has grown by so much since the last time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const GROWTH_BYTES: u64 = 8 << 20;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LOOKED_AT_EVERY: Duration = Duration::from_millis(500);

/// Keeps the C library from holding more than twice what is in use. For the beginning of a program.
///
/// A backup allocates a little that stays for every file, and much that does not for every leaf of it. By default glibc takes
/// what is large and freed once for a sign to keep all of that size from then on, and what is small and stays lies between:
/// 368 MiB were held where 164 do (`docs/evidence/scale.md`). Said once, the limit stays where it begins by default.
/// What is below it and freed stays with the process all the same, as long as anything behind it is in use: at 2 TiB
/// two fifths of all that it held. A thread gives that back.
pub fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[allow(unsafe_code)]
        // SAFETY: only a number is set, and a value that is refused leaves the default.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK_BYTES);
        }
        // Without the thread more memory is held, and nothing else is different.
        let _ = std::thread::Builder::new().name("memory".to_owned()).spawn(give_back_what_is_between);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back_what_is_between() {
    // The least since it was last given back.
    let mut held_bytes = memory_bytes();
    loop {
        std::thread::sleep(LOOKED_AT_EVERY);
        let now_bytes = memory_bytes();
        held_bytes = held_bytes.min(now_bytes);
        if now_bytes > held_bytes + GROWTH_BYTES {
            #[allow(unsafe_code)]
            // SAFETY: it takes the allocator's own locks, and touches what is free alone.
            unsafe {
                libc::malloc_trim(0);
            }
            held_bytes = memory_bytes();
        }
    }
}

/// The most memory the process has held so far; 0 where the kernel does not tell.
#[must_use]
pub fn memory_bytes_max() -> u64 {
    status_bytes("VmHWM:")
}

/// The memory that the process holds now; 0 where the kernel does not tell.
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
