//! Files in the data directory that belong to this very server: its logs, its sockets, its place in replication.
//! Restored with the data, they would make the copy append to them, or connect to the original's primary. And what a
//! restore or the filesystem has left there. And its keys, which nobody may come by together with the data.

use std::path::{Path, PathBuf};

use crate::{server::ServerFacts, source::files::path_text};

/// Patterns of files that are never part of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnLogs {
    /// Paths relative to the data directory.
    exact: Vec<String>,
    /// Prefixes that are followed by a number, or by `index`.
    numbered: Vec<String>,
}

impl OwnLogs {
    /// Those that the server's settings name.
    #[must_use]
    pub(super) fn of(facts: &ServerFacts) -> Self {
        let datadir = facts.resolved(&facts.paths.datadir);
        let relative = |path: &Path| {
            let full = facts.resolved(path);
            full.strip_prefix(&datadir).ok().map(path_text)
        };
        let mut logs = Self::default();
        let paths = &facts.paths;
        let exact = [&paths.pid_file, &paths.log_error, &paths.general_log, &paths.slow_log];
        // Keys are kept apart from what they open.
        let exact = exact.into_iter().chain([&facts.encryption.key_file]).flatten().map(PathBuf::as_path);
        logs.exact.extend(exact.chain([facts.identity.socket.as_path()]).filter_map(relative));
        let mut numbered = Vec::new();
        if let Some(binlog) = &facts.binlog {
            numbered.push(binlog.basename.as_path());
            logs.exact.extend(relative(&binlog.index));
        }
        numbered.extend(facts.replica.relay_log_basename.as_deref());
        logs.exact.extend(facts.replica.relay_log_index.as_deref().and_then(relative));
        logs.numbered.extend(numbered.into_iter().filter_map(relative).map(|path| format!("{path}.")));
        logs
    }

    /// For tests: files called `<base>.NNNNNN` and `<base>.index`.
    #[cfg(test)]
    pub(crate) fn of_base(base: &str) -> Self {
        Self { exact: vec![format!("{base}.index")], numbered: vec![format!("{base}.")] }
    }

    /// Whether `path` is one of them.
    #[must_use]
    pub(super) fn contains(&self, path: &str) -> bool {
        let numbered = |prefix: &String| {
            path.strip_prefix(prefix.as_str()).is_some_and(|rest| {
                let number = rest.split('.').next().unwrap_or(rest);
                (number.len() >= 6 && number.bytes().all(|b| b.is_ascii_digit()))
                    || rest == "index"
                    || rest == "state"
            })
        };
        self.exact.iter().any(|exact| exact == path)
            || self.numbered.iter().any(numbered)
            // Multi-source replication names its files after the connection.
            || (!path.contains('/') && (is_replica_state(path) || is_left_behind(path)))
            // A restore gives such names to what is not complete, and takes no file that has one. Servers make none.
            || path.ends_with(".partial")
    }
}

/// What a restore tells of itself, and the folder that a filesystem keeps for itself, often unreadable.
fn is_left_behind(name: &str) -> bool {
    name == "lost+found" || name.starts_with("holdfast-restore.") || name.starts_with("#holdfast-")
}

fn is_replica_state(name: &str) -> bool {
    let stem = |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.ends_with(".info"));
    stem("master") || stem("relay-log") || name == "multi-master.info"
}
