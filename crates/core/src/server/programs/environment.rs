//! What our servers' programs see of ours.

use std::{path::PathBuf, process::Command};

use landlock::{
    ABI, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, path_beneath_rules,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// `PATH` of the process: enough for a wrapper script.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Devices that any program may use. Not all of `/dev`: it has memory that others share, as files.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];

/// Whether the process could reach the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// It had a network namespace of its own, an empty one.
    None,
    /// The kernel refused a namespace, or a right was missing, for this reason. Only the server's own options
    /// kept it off the network.
    Shared(String),
}

/// Where the process could write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Only in the directories that were named, whatever its user may.
    Confined,
    /// Wherever its user may: nothing was named, or the kernel could not confine it, for this reason.
    Anywhere(Option<String>),
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

/// Lets this thread and what it starts write below `dirs` only, and to some devices. With no `dirs`, nothing changes.
pub(super) fn confine_writes(dirs: Option<&[PathBuf]>) -> Writes {
    let Some(dirs) = dirs else { return Writes::Anywhere(None) };
    match restrict(dirs) {
        Ok(RulesetStatus::NotEnforced) => Writes::Anywhere(Some("the kernel has no Landlock".to_owned())),
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => Writes::Confined,
        Err(error) => Writes::Anywhere(Some(error.to_string())),
    }
}

fn restrict(dirs: &[PathBuf]) -> Result<RulesetStatus, RulesetError> {
    // What older kernels do not know of this is left out: device controls.
    let writes = AccessFs::from_write(ABI::V5);
    let devices = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let restricted = Ruleset::default()
        // Without the first right (Linux before 5.19) no file could be moved to another directory, not even within
        // `dirs`, as a server does that renames a table to another schema. Without the other (before 6.2) any file
        // could be cut off.
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer | AccessFs::Truncate)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(writes)?
        .create()?
        .add_rules(path_beneath_rules(dirs, writes))?
        .add_rules(path_beneath_rules(DEVICES, devices))?
        .restrict_self()?;
    Ok(restricted.ruleset)
}
