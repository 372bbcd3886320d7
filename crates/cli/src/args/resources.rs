//! What a backup may use of this host, and how backups are compressed.

use std::path::PathBuf;

use clap::Args;
use holdfast_core::restore::RestoreOptions;
use holdfast_pipe::codec::Compression;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::units::{ByteSize, Percent, Span, UnitError};

/// What a backup may use. Of the configuration's, restore, check and prune take the memory.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[command(next_help_heading = "Resources")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ResourceArgs {
    /// Threads that read [default: one per processor, at most 4]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) parallel: Option<usize>,

    /// Compression of chunks: zstd[:-7..19], lz4, gzip[:1..9] or none [default: zstd:1]
    #[arg(long, value_name = "CODEC[:LEVEL]")]
    #[serde(deserialize_with = "compression")]
    pub(crate) compress: Option<Compression>,

    /// Threads that compress [default: one per processor]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) compress_threads: Option<usize>,

    /// Threads that encrypt [default: 1]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) encrypt_threads: Option<usize>,

    /// Limit on reading data files, or rows, in bytes per second, for example 50M; redo, and reads under a lock,
    /// are not limited; 0 is no limit [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit_rate: Option<ByteSize>,

    /// Memory for buffers and caches, at least 80M; if it is too little for all threads, fewer read [default:
    /// 256M]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    #[serde(deserialize_with = "configured_memory")]
    pub(crate) memory: Option<ByteSize>,

    /// Longest time, in one try, to wait for any lock, and to block commits (MariaDB) or writes to non-InnoDB
    /// tables (MySQL) [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub(crate) lock_max: Option<Span>,

    /// Longest time, in one try, to block DDL (MariaDB: also writes to non-transactional tables); no limit on
    /// MySQL with encrypted redo and on every MySQL series but 9.7, where DDL waits for the whole copy
    /// [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) ddl_lock_max: Option<Span>,

    /// Directory on a disk for redo that is waiting to be stored [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub(crate) spool_dir: Option<PathBuf>,

    /// Most redo to capture; if there is more, the backup fails [default: 64G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) spool_max: Option<ByteSize>,

    /// Directory for the page maps of the last backup, a thousandth of the data; only for writer's keys,
    /// which cannot read backups [default: holdfast in the user's cache directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// Share of the data read that may be stored again although unchanged, to keep restores fast [default:
    /// 5%]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) max_rewrite: Option<Percent>,
}

/// Options that are about a server that others use.
pub(crate) const OF_A_BUSY_SERVER: &[&str] =
    &["--limit-rate", "--lock-max", "--ddl-lock-max", "--spool-dir", "--spool-max", "--max-rewrite"];
/// Options that are about reading data files and redo.
pub(crate) const OF_DATA_FILES: &[&str] = &["--ddl-lock-max", "--spool-dir", "--spool-max"];

impl ResourceArgs {
    /// Bytes to read each second at most; the outer `None` where nothing was said.
    pub(crate) fn read_bytes_per_s_max(&self) -> Option<Option<u64>> {
        self.limit_rate.map(|ByteSize(bytes)| (bytes > 0).then_some(bytes))
    }

    /// The first of these options that was typed: [`OF_A_BUSY_SERVER`], or [`OF_DATA_FILES`].
    pub(crate) fn first_typed(&self, options: &[&'static str]) -> Option<&'static str> {
        let is_typed = |option: &str| match option {
            "--limit-rate" => self.limit_rate.is_some(),
            "--lock-max" => self.lock_max.is_some(),
            "--ddl-lock-max" => self.ddl_lock_max.is_some(),
            "--spool-dir" => self.spool_dir.is_some(),
            "--spool-max" => self.spool_max.is_some(),
            "--max-rewrite" => self.max_rewrite.is_some(),
            _ => false,
        };
        options.iter().copied().find(|option| is_typed(option))
    }

    /// What was typed, and for the rest what the file says.
    pub(crate) fn or(self, file: Self) -> Self {
        Self {
            parallel: self.parallel.or(file.parallel),
            compress: self.compress.or(file.compress),
            compress_threads: self.compress_threads.or(file.compress_threads),
            encrypt_threads: self.encrypt_threads.or(file.encrypt_threads),
            limit_rate: self.limit_rate.or(file.limit_rate),
            memory: self.memory.or(file.memory),
            lock_max: self.lock_max.or(file.lock_max),
            ddl_lock_max: self.ddl_lock_max.or(file.ddl_lock_max),
            spool_dir: self.spool_dir.or(file.spool_dir),
            spool_max: self.spool_max.or(file.spool_max),
            cache_dir: self.cache_dir.or(file.cache_dir),
            max_rewrite: self.max_rewrite.or(file.max_rewrite),
        }
    }
}

/// The memory option of verbs that have no other resource options.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MemoryArg {
    /// Memory for buffers and caches, at least 80M; if it is too little for all threads, fewer are used [default: as
    /// configured, else 256M]
    #[arg(long, value_name = "SIZE", value_parser = memory, help_heading = "Resources")]
    memory: Option<ByteSize>,
}

impl MemoryArg {
    /// What was typed, or else what the file says.
    pub(crate) fn bytes_or(self, file: &ResourceArgs) -> Option<usize> {
        let ByteSize(bytes) = self.memory.or(file.memory)?;
        Some(usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

/// Memory that can do.
pub(crate) fn memory(text: &str) -> Result<ByteSize, String> {
    const LEAST: ByteSize = ByteSize(RestoreOptions::MEMORY_BYTES_MIN);
    let size: ByteSize = text.parse().map_err(|error: UnitError| error.to_string())?;
    if size < LEAST { Err(format!("{size} is too little: at least {LEAST} is needed")) } else { Ok(size) }
}

fn configured_memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    memory(&String::deserialize(deserializer)?).map(Some).map_err(D::Error::custom)
}

/// A number of threads: 1 to 256.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=256).contains(n))
        .ok_or_else(|| format!("\"{text}\" is not a number of threads: write 1 to 256"))
}

fn compression<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Compression>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in other tools. A rate at which nothing is ever read is no use to anybody.
    #[test]
    fn a_limit_of_nothing_is_no_limit() {
        let limit = |text: &str| ResourceArgs { limit_rate: text.parse().ok(), ..Default::default() };
        assert_eq!(limit("0").read_bytes_per_s_max(), Some(None));
        assert_eq!(limit("0M").read_bytes_per_s_max(), Some(None));
        assert_eq!(limit("1M").read_bytes_per_s_max(), Some(Some(1 << 20)));
        assert_eq!(ResourceArgs::default().read_bytes_per_s_max(), None);
        // What is typed wins over the file, also where it lifts the file's limit.
        assert_eq!(limit("0").or(limit("1M")).read_bytes_per_s_max(), Some(None));
    }
}
