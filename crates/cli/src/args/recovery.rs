//! How files of a physical backup are recovered.

use std::path::PathBuf;

use clap::Args;

use super::{owner::Owner, resources::memory, units::ByteSize};

/// How files are recovered, be it whole backups or tables.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Recovery")]
pub(crate) struct RecoveryArgs {
    /// Server program for the recovery [default: found on this host, by release series]
    #[arg(long, value_name = "PATH")]
    pub(crate) server_binary: Option<PathBuf>,

    /// User that the recovering server runs as and that restored files belong to; only as root [default: the
    /// owner of an existing target directory, unless root, else user mysql if it exists]
    #[arg(long, value_name = "USER[:GROUP]")]
    pub(crate) owner: Option<Owner>,

    /// Allow recovery with a server of another series, or an older one
    #[arg(long)]
    pub(crate) allow_version: bool,

    /// Option for the recovering server, like those of a key provider; can be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) prepare_option: Vec<String>,

    /// MySQL: file of component_keyring_file with the source's keys; only read [default: where the source had
    /// it]
    #[arg(long, value_name = "FILE")]
    pub(crate) keyring: Option<PathBuf>,

    /// Directory in which tables of a physical backup are restored, recovered and read, in a subdirectory
    /// that is removed at the end [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,

    /// Time zone of the source's host, for replayed statements that depend on it [default: UTC, if the backup
    /// says UTC]
    #[arg(long, value_name = "ZONE", requires = "moment", help_heading = "Recovery to a moment")]
    pub(crate) time_zone: Option<String>,

    /// Buffer pool for the recovery [default: by the amount of redo; to load rows at most 1G]
    #[arg(long, value_name = "SIZE", alias = "use-memory", help_heading = "Resources")]
    pub(crate) prepare_memory: Option<ByteSize>,

    /// Memory for buffers, caches and page maps, at least 80M; if it is too little for all threads, fewer are
    /// used [default: as configured, else 256M]
    #[arg(long, value_name = "SIZE", value_parser = memory, help_heading = "Resources")]
    pub(crate) memory: Option<ByteSize>,
}

impl RecoveryArgs {
    /// The first option that was given, for those who must refuse it.
    pub(crate) fn given(&self) -> Option<&'static str> {
        [
            (self.work_dir.is_some(), "--work-dir"),
            (self.server_binary.is_some(), "--server-binary"),
            (self.owner.is_some(), "--owner"),
            (self.allow_version, "--allow-version"),
            (!self.prepare_option.is_empty(), "--prepare-option"),
            (self.keyring.is_some(), "--keyring"),
            (self.prepare_memory.is_some(), "--prepare-memory"),
            (self.memory.is_some(), "--memory"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}
