//! Files in the data directory that belong to this very server: its logs, its sockets, its replication state.
//! Restored with the data, they would make the copy append to them, or connect to the original's primary.
//! Also what a restore or the file system has left there, and the server's keys ([`KeyFiles`]).

use std::path::{Path, PathBuf};

use crate::{foreign_files::is_foreign, key_files::KeyFiles, server::ServerFacts, source::files::path_text};

/// Patterns of files that are never part of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnLogs {
    /// Paths relative to the data directory.
    exact: Vec<String>,
    /// Base names. A dot follows, and then a number, `index` or `state`.
    numbered: Vec<String>,
    /// Base names. A dash and the name of a replication channel may precede the dot; the server encodes any
    /// dot in that name.
    by_channel: Vec<String>,
    /// Paths that a dot and any number may follow.
    rotated: Vec<String>,
    keys: KeyFiles,
}

impl OwnLogs {
    /// The files that the server's settings name.
    #[must_use]
    pub(super) fn of(facts: &ServerFacts) -> Self {
        let datadir = facts.resolved(&facts.paths.datadir);
        let relative = |path: &Path| {
            let full = facts.resolved(path);
            full.strip_prefix(&datadir).ok().map(path_text)
        };
        let mut logs = Self { keys: KeyFiles::of(facts), ..Self::default() };
        let paths = &facts.paths;
        let exact = [&paths.pid_file, &paths.log_error, &paths.general_log, &paths.slow_log];
        let exact = exact.into_iter().flatten().map(PathBuf::as_path);
        logs.exact.extend(exact.chain([facts.identity.socket.as_path()]).filter_map(relative));
        // Created anew at each start, under arbitrary names. A list that cannot be read names none.
        let temporary = facts.temporary_files().unwrap_or_default();
        logs.exact.extend(temporary.iter().filter_map(|path| relative(path)));
        logs.rotated.extend(paths.plugin_logs.iter().map(PathBuf::as_path).filter_map(relative));
        if let Some(binlog) = &facts.binlog {
            logs.numbered.extend(relative(&binlog.basename));
            logs.exact.extend(relative(&binlog.index));
        }
        let relay_log = &facts.replica.relay_log_basename;
        logs.by_channel.extend(relay_log.as_deref().and_then(relative));
        let relay_index = facts.replica.relay_log_index.as_deref().and_then(relative);
        // The index files of channels are named after this one, too, wherever an option has put it.
        logs.by_channel
            .extend(relay_index.as_ref().and_then(|path| path.strip_suffix(".index")).map(str::to_owned));
        logs.exact.extend(relay_index);
        logs
    }

    /// For tests: files named `<base>.NNNNNN` and `<base>.index`.
    #[cfg(test)]
    pub(crate) fn of_base(base: &str) -> Self {
        Self { numbered: vec![base.to_owned()], ..Self::default() }
    }

    /// Whether `path` is one of these files.
    #[must_use]
    pub(super) fn contains(&self, path: &str) -> bool {
        let numbered = |base: &String| {
            path.strip_prefix(base.as_str())
                .and_then(|rest| rest.strip_prefix('.'))
                .is_some_and(is_log_suffix)
        };
        let by_channel = |base: &String| {
            let channel = path.strip_prefix(base.as_str()).and_then(|rest| rest.strip_prefix('-'));
            let suffix = channel.filter(|rest| !rest.contains('/')).and_then(|rest| rest.split_once('.'));
            suffix.is_some_and(|(_, suffix)| is_log_suffix(suffix))
        };
        let rotated =
            |log: &String| match path.strip_prefix(log.as_str()).map(|rest| rest.split_at_checked(1)) {
                Some(None) => true,
                Some(Some((".", number))) => !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()),
                _ => false,
            };
        self.exact.iter().any(|exact| exact == path)
            || self.rotated.iter().any(rotated)
            || self.keys.contains(path)
            || self.numbered.iter().chain(&self.by_channel).any(numbered)
            || self.by_channel.iter().any(by_channel)
            // Multi-source replication names its files after the connection.
            || (!path.contains('/') && (is_replica_state(path) || is_left_behind(path)))
            || is_foreign(path.as_bytes())
            // A restore gives such names to incomplete files, and accepts no file that has one. Servers
            // create none.
            || path.ends_with(".partial")
    }
}

/// Whether this can follow the name of a log and a dot: a number, or the extension of a file beside the
/// numbered ones.
fn is_log_suffix(suffix: &str) -> bool {
    let number = suffix.split('.').next().unwrap_or(suffix);
    (number.len() >= 6 && number.bytes().all(|b| b.is_ascii_digit())) || ["index", "state"].contains(&suffix)
}

/// Whether a restore has put this there for itself.
fn is_left_behind(name: &str) -> bool {
    name.starts_with("holdfast-restore.") || name.starts_with("#holdfast-")
}

fn is_replica_state(name: &str) -> bool {
    let stem = |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.ends_with(".info"));
    stem("master") || stem("relay-log") || name == "multi-master.info"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plugin's log is left out together with the files that it was rotated to.
    #[test]
    fn rotated_logs_are_left() {
        let logs = OwnLogs { rotated: vec!["server_audit.log".into()], ..OwnLogs::default() };
        for (path, is_log) in [
            ("server_audit.log", true),
            ("server_audit.log.9", true),
            ("server_audit.log.", false),
            ("server_audit.log.old", false),
            ("server_audit.log2", false),
            ("db/server_audit.log", false),
        ] {
            assert_eq!(logs.contains(path), is_log, "{path}");
        }
    }

    /// Each channel has relay logs of its own, named after it. A file that only looks like one is kept.
    #[test]
    fn relay_logs_of_named_channels_are_left() {
        let logs = OwnLogs { by_channel: vec!["x-relay-bin".into()], ..OwnLogs::default() };
        for path in [
            "x-relay-bin.000001",
            "x-relay-bin.index",
            "x-relay-bin-ch1.000003",
            "x-relay-bin-ch1.index",
            "x-relay-bin-group_replication_applier.1000000",
            "x-relay-bin-two@002eparts.000001",
        ] {
            assert!(logs.contains(path), "{path}");
        }
        for path in
            ["x-relay-bin", "x-relay-bin-notes.txt", "x-relay-bin-db/t.000001", "x-relay-binary.000001"]
        {
            assert!(!logs.contains(path), "{path}");
        }
    }
}
