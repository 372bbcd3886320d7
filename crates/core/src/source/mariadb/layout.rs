//! What is in a MariaDB data directory: which files are copied when, and which are left out.

use holdfast_formats::table_name;

use crate::{
    error::Result,
    server::{ServerFacts, locks::STOPPED_PURGE_NOTE},
    source::{
        Role,
        files::{base_name, is_numbered},
        log_tables::{LogTableFile, is_of_another_engine},
        own_logs::OwnLogs,
    },
};

/// When a file is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// A tablespace: first, page-checked, while the server writes.
    Tablespace(Role),
    /// Before the locks, and again under them if it has changed since.
    Early(Role),
    /// First of all non-InnoDB files, and never again: the Aria log from its checkpoint on repairs everything
    /// that was copied later, and nothing that was copied before.
    AriaControl,
    /// Before the locks, and its tail while commits are blocked: it must be newer than every Aria page.
    AriaLog,
    /// Before the locks, and again while commits are blocked if it has changed since: the server's own
    /// tables, and its log of DDL, which it writes to until then.
    Late(Role),
    /// A file of a log table, which is empty in a backup.
    LogTable(LogTableFile),
    /// An `.isl` file, which names the path of a tablespace elsewhere. The file itself is copied, too.
    Link,
    /// Not part of a backup.
    Never,
}

/// The files that the server's own settings name.
#[derive(Debug, Default)]
pub struct Layout {
    own_logs: OwnLogs,
    system_files: Vec<String>,
}

/// Rebuilt by the server, or tied to this very server: restoring them would do harm or nothing.
const NEVER: &[&str] =
    &["ibtmp1", "ib_buffer_pool", "ddl.log", "tc.log", "aria_log_control.lock", "auto.cnf"];

impl Layout {
    /// Takes them from the server's settings.
    pub fn new(facts: &ServerFacts) -> Result<Self> {
        Ok(Self { own_logs: OwnLogs::of(facts), system_files: facts.system_file_names()? })
    }

    /// Whether `path` is not part of a backup. A directory that can be a schema is, whatever a file of that
    /// name would be: nothing prevents a schema named `ib_buffer_pool`.
    #[must_use]
    pub fn skips(&self, path: &str, is_dir: bool) -> bool {
        let is_schema = is_dir && table_name::decode(path).is_some();
        !is_schema && self.when(path) == When::Never
    }

    /// When `path` is copied.
    #[must_use]
    pub fn when(&self, path: &str) -> When {
        let name = base_name(path);
        let top = !path.contains('/');
        let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
        if path.starts_with('#') || name.starts_with("#sql-temptable") || self.own_logs.contains(path) {
            return When::Never;
        }
        if top {
            // A server that is changing the size of its redo log has another one.
            if NEVER.contains(&name) || name.starts_with("ib_logfile") || ends(&[".pid", ".sock", ".err"]) {
                return When::Never;
            }
            if self.system_files.iter().any(|file| file == name) {
                return When::Tablespace(Role::System);
            }
            if is_numbered(name, "undo") {
                return When::Tablespace(Role::Undo);
            }
            if name == "aria_log_control" {
                return When::AriaControl;
            }
            if name.starts_with("aria_log.") {
                return When::AriaLog;
            }
            if name == "ddl_recovery.log" {
                return When::Late(Role::Other);
            }
        }
        if name.ends_with(".ibd") {
            return When::Tablespace(Role::Tablespace);
        }
        if name.ends_with(".isl") {
            return When::Link;
        }
        if path == STOPPED_PURGE_NOTE {
            return When::Never;
        }
        if let Some(file) = LogTableFile::of(path) {
            return When::LogTable(file);
        }
        if is_of_another_engine(path) {
            return When::Never;
        }
        let role = if ends(&[".MAD", ".MAI"]) {
            Role::Aria
        } else if ends(&[".MYD", ".MYI", ".CSV", ".CSM", ".ARZ", ".ARM", ".ARN", ".MRG"]) {
            Role::EngineFile
        } else {
            return When::Early(Role::Other);
        };
        if path.starts_with("mysql/") { When::Late(role) } else { When::Early(role) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_data_directory_has_its_time() {
        let layout = Layout { own_logs: OwnLogs::of_base("bin"), system_files: vec!["ibdata1".to_owned()] };
        for (path, when) in [
            ("ibdata1", When::Tablespace(Role::System)),
            ("ibdata1.bak", When::Early(Role::Other)),
            ("undo003", When::Tablespace(Role::Undo)),
            ("undo", When::Early(Role::Other)),
            ("undoing.txt", When::Early(Role::Other)),
            ("db/t#P#p0.ibd", When::Tablespace(Role::Tablespace)),
            ("db/#sql-alter-1-2.ibd", When::Tablespace(Role::Tablespace)),
            ("db/t.isl", When::Link),
            ("db/t.frm", When::Early(Role::Other)),
            ("db/t.MAD", When::Early(Role::Aria)),
            ("db/t.MYI", When::Early(Role::EngineFile)),
            ("mysql/slow_log.CSV", When::LogTable(LogTableFile::Rows)),
            ("mysql/slow_log.CSM", When::LogTable(LogTableFile::Meta)),
            ("mysql/slow_log.frm", When::Early(Role::Other)),
            ("mysql/general_log.MAD", When::Never),
            ("db/slow_log.CSV", When::Early(Role::EngineFile)),
            ("mysql/column_stats.MAD", When::Late(Role::Aria)),
            ("mysql/column_stats.frm", When::Early(Role::Other)),
            ("mysql/innodb_table_stats.cfg", When::Never),
            ("db/innodb_table_stats.cfg", When::Early(Role::Other)),
            ("aria_log_control", When::AriaControl),
            ("aria_log.00000001", When::AriaLog),
            ("ddl_recovery.log", When::Late(Role::Other)),
            ("ib_logfile0", When::Never),
            ("ib_logfile101", When::Never),
            (".my.cnf", When::Never),
            ("bin.000001", When::Never),
            ("bin.index", When::Never),
            ("bin.notes", When::Early(Role::Other)),
            ("db/#sql-temptable-1.MAD", When::Never),
            ("master.info", When::Never),
        ] {
            assert_eq!(layout.when(path), when, "{path}");
        }
        assert!(layout.skips("ib_buffer_pool", false) && !layout.skips("ib_buffer_pool", true));
        assert!(layout.skips("#rocksdb", true) && layout.skips("lost+found", true));
        assert!(layout.skips(".snapshot", true) && !layout.skips("ib_logfile101", true));
    }
}
