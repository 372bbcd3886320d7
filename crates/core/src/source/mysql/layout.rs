//! What is in a MySQL data directory: which files are copied when, and which are left out.

use holdfast_formats::{redo, table_name};

use crate::{
    error::Result,
    server::ServerFacts,
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
    /// A tablespace: page-checked, while the server writes.
    Tablespace(Role),
    /// Before the locks, and again under the DDL lock if it has changed since.
    Early(Role),
    /// Before the locks, and again while its tables are closed to writes if it has changed since.
    Table,
    /// A file of a log table of the server, which nobody may lock: the backup has the files of an empty one.
    LogTable(LogTableFile),
    /// Not part of a backup.
    Never,
}

/// The files that the server's own settings name.
#[derive(Debug, Default)]
pub struct Layout {
    own_logs: OwnLogs,
    system_files: Vec<String>,
}

/// Created anew by the server at each start.
const NEVER_FOLDERS: &[&str] =
    &[redo::mysql::DIRECTORY, "#innodb_temp", "#ib_archive", "#meb", "#ib_16384_0.dblwr"];

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
        if top
            && (NEVER_FOLDERS.contains(&name)
                || ends(&[".pid", ".sock", ".sock.lock", ".err", ".dblwr", ".bdblwr"])
                || name == "auto.cnf"
                || name == "ib_buffer_pool"
                || name.starts_with("ibtmp")
                || name.starts_with("ib_logfile"))
        {
            return When::Never;
        }
        if self.own_logs.contains(path) {
            return When::Never;
        }
        if let Some(file) = LogTableFile::of(path) {
            return When::LogTable(file);
        }
        if is_of_another_engine(path) {
            return When::Never;
        }
        if ends(&[".ibd"]) {
            return When::Tablespace(Role::Tablespace);
        }
        if ends(&[".ibu"]) || (top && is_numbered(name, "undo_")) {
            return When::Tablespace(Role::Undo);
        }
        if top && self.system_files.iter().any(|file| file == name) {
            return When::Tablespace(Role::System);
        }
        if ends(&[".MYD", ".MYI", ".CSV", ".CSM", ".ARZ", ".ARM", ".ARN"]) {
            return When::Table;
        }
        When::Early(Role::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_data_directory_has_its_time() {
        let layout =
            Layout { own_logs: OwnLogs::of_base("binlog"), system_files: vec!["ibdata1".to_owned()] };
        for (path, when) in [
            ("mysql.ibd", When::Tablespace(Role::Tablespace)),
            ("ibdata1", When::Tablespace(Role::System)),
            ("ibdata1.bak", When::Early(Role::Other)),
            ("undo_001", When::Tablespace(Role::Undo)),
            ("more.ibu", When::Tablespace(Role::Undo)),
            ("db/t#p#p0.ibd", When::Tablespace(Role::Tablespace)),
            ("db/t_364.sdi", When::Early(Role::Other)),
            ("db/t.MYD", When::Table),
            ("mysql/general_log.CSV", When::LogTable(LogTableFile::Rows)),
            ("mysql/slow_log.CSM", When::LogTable(LogTableFile::Meta)),
            ("mysql/slow_log.MYI", When::Never),
            ("mysql/slow_log_228.sdi", When::Early(Role::Other)),
            ("db/general_log.CSV", When::Table),
            ("mysqld-auto.cnf", When::Early(Role::Other)),
            ("auto.cnf", When::Never),
            ("#innodb_redo", When::Never),
            ("#ib_16384_1.dblwr", When::Never),
            ("binlog.000007", When::Never),
            ("binlog.index", When::Never),
            (".my.cnf", When::Never),
        ] {
            assert_eq!(layout.when(path), when, "{path}");
        }
        assert!(layout.skips("ibtmp7", false) && !layout.skips("ibtmp7", true));
        assert!(layout.skips("#innodb_redo", true) && layout.skips("lost+found", true));
        assert!(layout.skips(".ssh", true));
    }
}
