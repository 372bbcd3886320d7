//! `expire`, and the rules for what is kept.

use clap::Args;
use holdfast_repo::Kind;
use serde::Deserialize;

use super::{backup_ref::BackupRef, inspect::NameArg};

const EXAMPLES: &str = "\
Examples:
  holdfast expire --keep-daily 7 --keep-weekly 4 --keep-monthly 12 --dry-run
  holdfast expire --name db1 --keep-last 3 --keep-yearly 10
  holdfast expire --tag nightly --keep-daily 14 --keep-tag release
  holdfast expire 17 18 --name db1

Space is freed by prune. Rules never drop the last backup of a source (or of a part of it, if that was backed up later), nor the last good one. Good means that nothing of it is missing, no check has found it damaged, and it was taken without damaged pages (--allow-corrupt; only an operator's key can read that flag). By name, the last good backup is dropped only with --last-too. A backup on hold (holdfast hold) is dropped neither by rules nor by name.";

/// Drop backups, by rules or by name.
///
/// A backup stays if any rule keeps it. Rules go by UTC hours, days, ISO weeks, months and years, and keep
/// the newest backup of each. They apply to one source, and separately to each kind, to backups of the whole
/// server, and to those of each part of it (backup --database, --table, --where). If any rule is typed,
/// [retention] in the configuration file is ignored entirely.
///
/// Rules count backups. Of the binlog archive they drop only what no remaining backup can need: at most what
/// ended a day or more before the oldest of them. To apply rules to the archive itself, use --kind binlog.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ExpireArgs {
    /// Backups to drop: 42, db1#42 or db1/physical#42
    #[arg(value_name = "ID", conflicts_with_all = KeepArgs::IDS)]
    pub(crate) ids: Vec<BackupRef>,

    /// Drop the named backups even if no good backup of their source is left
    #[arg(long, requires = "ids", conflicts_with_all = KeepArgs::IDS)]
    pub(crate) last_too: bool,

    #[command(flatten)]
    pub(crate) keep: KeepArgs,

    /// Apply rules only to backups with this tag; all others stay
    #[arg(long, value_name = "TAG", conflicts_with = "ids", help_heading = "Rules")]
    pub(crate) tag: Option<String>,

    /// Apply rules only to backups of this kind: physical, logical or binlog
    #[arg(long, value_name = "KIND", conflicts_with = "ids", help_heading = "Rules")]
    pub(crate) kind: Option<Kind>,

    /// Only show what would be dropped
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// Which backups stay.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[command(next_help_heading = "Rules")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct KeepArgs {
    /// Keep the newest N backups
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_last: Option<u32>,
    /// Keep the newest backup of each of the last N hours that have one
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_hourly: Option<u32>,
    /// Keep the newest backup of each of the last N days that have one
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_daily: Option<u32>,
    /// Keep the newest backup of each of the last N weeks that have one
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_weekly: Option<u32>,
    /// Keep the newest backup of each of the last N months that have one
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_monthly: Option<u32>,
    /// Keep the newest backup of each of the last N years that have one
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_yearly: Option<u32>,
    /// Keep all backups with this tag; can be repeated
    #[arg(long, value_name = "TAG")]
    pub(crate) keep_tag: Vec<String>,
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number of backups: write one like 7"))
}

impl KeepArgs {
    /// clap's names of the rules.
    const IDS: [&'static str; 7] =
        ["keep_last", "keep_hourly", "keep_daily", "keep_weekly", "keep_monthly", "keep_yearly", "keep_tag"];

    /// The typed rules where there are any, else the file's: rules are one decision, not seven.
    pub(crate) fn or(self, file: Self) -> Self {
        if self == Self::default() { file } else { self }
    }
}
