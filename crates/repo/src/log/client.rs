//! The client of a run: for people, and for the shortcut that lets a new run on the same host
//! end one whose process is gone.
//!
//! Correctness never depends on this: a wrong "gone" costs the other run its work, but never lets it claim
//! a success that does not count.

use std::{fs, io};

use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};
use serde::{Deserialize, Serialize};

use crate::format::hex::Hex;

/// The host and process that perform a run.
#[derive(Clone, Debug)]
pub struct Client {
    /// Name of the host, for people; stored sealed.
    pub host: String,
    /// The process, if the host can tell.
    pub process: Option<ProcessId>,
}

/// Identifies a process among all that ever ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Hash of what distinguishes this boot of this host, and this process namespace, from all others.
    pub host: Hex<16>,
    /// Process number.
    pub pid: u32,
    /// When it started, in ticks since boot.
    pub started: u64,
}

impl Client {
    /// This process on this host.
    #[must_use]
    pub fn this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { host, process: ProcessId::own().ok() }
    }
}

impl ProcessId {
    fn own() -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self { host: host_tag()?, pid, started: started(pid)? })
    }

    /// Whether the process runs, or ran, during this boot of this host and in our process namespace.
    #[must_use]
    pub(crate) fn is_of_this_host(&self) -> bool {
        host_tag().ok() == Some(self.host)
    }

    /// Whether the process is known to have run here and to be gone.
    #[must_use]
    pub(crate) fn is_gone(&self) -> bool {
        if !self.is_of_this_host() {
            return false;
        }
        match started(self.pid) {
            Ok(started) => started != self.started || has_ended(self.pid),
            Err(error) => error.kind() == io::ErrorKind::NotFound && is_free(self.pid),
        }
    }
}

/// Whether no process has this number. A `/proc` that hides the processes of other users (`hidepid`,
/// systemd's `ProtectProc`) claims so of those as well; signal 0 finds them.
fn is_free(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// The boot id is random, so its hash does not reveal the host. Without the process namespace, processes of
/// another container would look gone.
fn host_tag() -> io::Result<Hex<16>> {
    let mut hasher = blake3::Hasher::new_derive_key("holdfast 2026-11 host 1");
    hasher.update(fs::read("/proc/sys/kernel/random/boot_id")?.trim_ascii());
    hasher.update(fs::read_link("/proc/self/ns/pid")?.as_os_str().as_encoded_bytes());
    let mut tag = [0; 16];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Ok(Hex(tag))
}

/// Start time of a process, in ticks since boot.
fn started(pid: u32) -> io::Result<u64> {
    stat(pid, 22)?.parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Whether a process is listed only because its parent has not waited for it: in a container without
/// an init that may last forever.
fn has_ended(pid: u32) -> bool {
    stat(pid, 3).is_ok_and(|state| matches!(state.as_str(), "Z" | "X"))
}

/// A field of a process's `stat`, counted from 1 as in proc(5). Fields are located after the
/// name, which may hold anything.
fn stat(pid: u32, field: usize) -> io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let found = stat
        .rsplit_once(')')
        .and_then(|(_, after_the_name)| after_the_name.split_ascii_whitespace().nth(field.checked_sub(3)?));
    found.map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_gone_only_when_this_host_knows_it() {
        let own = ProcessId::own().unwrap();
        assert!(!own.is_gone());
        assert!(ProcessId { started: own.started + 1, ..own }.is_gone(), "its number was given out again");
        assert!(ProcessId { pid: u32::MAX, ..own }.is_gone());
        assert!(!ProcessId { host: Hex([0; 16]), pid: u32::MAX, ..own }.is_gone(), "of another host");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let of_child = ProcessId { pid, started: started(pid).unwrap(), ..own };
        while !of_child.is_gone() {
            std::thread::yield_now(); // it ends without being waited for
        }
        assert!(!is_free(pid), "nobody has asked how it ended");
        child.wait().unwrap();
        assert!(of_child.is_gone() && is_free(pid));
        // Another user's, or root's own.
        assert!(!is_free(1) && is_free(u32::MAX));
    }
}
