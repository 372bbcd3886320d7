//! What our servers' programs see of ours.

use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// `PATH` of the process: enough for a wrapper script.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether the process could reach the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// It had a network namespace of its own, an empty one.
    None,
    /// The kernel refused a namespace, or a right was missing, for this reason. Only the server's own options
    /// kept it off the network.
    Shared(String),
}

/// Replaces the environment of a command with a minimal one.
pub(super) fn clean(mut command: Command) -> Command {
    command.env_clear().env("PATH", SEARCH_PATH).env("LANG", "C").env("TZ", "UTC");
    command
}

#[allow(unsafe_code)]
pub(super) fn leave_network() -> Network {
    // SAFETY: only the network namespace of this thread changes; file descriptors stay shared with all
    // threads.
    match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        Ok(()) => Network::None,
        Err(error) => Network::Shared(error.to_string()),
    }
}
