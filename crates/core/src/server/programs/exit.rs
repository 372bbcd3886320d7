//! How a server that we run has ended, and what to make of it.

use std::{fs, os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use super::environment::Network;
use crate::error::{Error, ErrorKind, Result};

/// Number of log lines that an error shows.
pub(super) const LINES_SHOWN_MAX: usize = 8;
/// The profiles that the kernel has loaded, a line each: `/usr/sbin/mysqld (enforce)`.
pub(super) const APPARMOR_PROFILES: &str = "/sys/kernel/security/apparmor/profiles";

/// How a server process ended.
#[derive(Clone, Debug)]
pub struct ServerExit {
    /// Its status.
    pub status: ExitStatus,
    /// Its error log, standard output and standard error. The middle of a very long log is left out.
    pub log: Vec<String>,
    /// How long it ran.
    pub duration: Duration,
    /// Whether it could reach the network.
    pub network: Network,
}

impl ServerExit {
    /// Fails unless the process succeeded and logged no errors other than `harmless` ones. `doing` says what
    /// it ran for.
    pub fn success(&self, doing: &str, harmless: &dyn Fn(&str) -> bool) -> Result<()> {
        let errors: Vec<&str> = self.errors().filter(|line| !harmless(line)).collect();
        if self.status.success() && errors.is_empty() {
            return Ok(());
        }
        let ending = match (self.status.code(), self.status.signal()) {
            (Some(0), _) => "logged errors".to_owned(),
            (Some(code), _) => format!("ended with status {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "ended badly".to_owned(),
        };
        let shown: Vec<&str> = if errors.is_empty() {
            let skipped = self.log.len().saturating_sub(LINES_SHOWN_MAX);
            self.log.iter().skip(skipped).map(String::as_str).collect()
        } else {
            errors.into_iter().take(LINES_SHOWN_MAX).collect()
        };
        let message = format!("{doing}: the server {ending}\n  {}", shown.join("\n  "));
        let error = Error::new(ErrorKind::Failed, message);
        Err(match self.permission_hint() {
            Some(hint) => error.hinted(hint),
            None => error,
        })
    }

    /// The lines that report errors.
    pub fn errors(&self) -> impl Iterator<Item = &str> {
        self.log.iter().map(String::as_str).filter(|line| line.contains("[ERROR]"))
    }

    fn permission_hint(&self) -> Option<&'static str> {
        let denied = |line: &String| line.contains("Permission denied") || line.contains("Errcode: 13");
        if !self.log.iter().any(denied) {
            return None;
        }
        Some(why_denied(&fs::read_to_string(APPARMOR_PROFILES).unwrap_or_default()))
    }
}

/// What to do about a server that may not open its own files, by the profiles that the kernel has loaded.
pub(super) fn why_denied(profiles: &str) -> &'static str {
    let is_server = |line: &str| line.contains("mysqld") || line.contains("mariadbd");
    if profiles.lines().any(|line| is_server(line) && line.ends_with("(enforce)")) {
        "an AppArmor profile confines the server to its own directories: allow the target in \
         /etc/apparmor.d/local, or set the profile to complain mode while restoring"
    } else {
        "the user that the server runs as must be able to enter every directory above the target"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Debian and Ubuntu list the profiles of their packages.
    #[test]
    fn a_profile_that_is_enforced_is_named() {
        let enforced = "/usr/bin/man (enforce)\n/usr/sbin/mysqld (enforce)\n";
        assert!(why_denied(enforced).contains("AppArmor"), "{}", why_denied(enforced));
        assert!(why_denied("mariadbd (enforce)\n").contains("AppArmor"));
        for free in ["", "/usr/bin/man (enforce)\n/usr/sbin/mysqld (complain)\n", "mariadbd (unconfined)\n"] {
            assert!(why_denied(free).contains("enter every directory"), "{free}");
        }
    }
}
