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

Space is freed by prune. By name the last good backup of a source is dropped with --last-too only. By rules the last backup of a source, and of a part of it that was taken since, is never dropped, nor is the last good one: nothing of it is missing, no check has found it damaged, and, where an operator's key reads the flags, it was taken without damaged pages (--allow-corrupt). What is on hold (holdfast hold) is dropped neither by rules nor by name.";

/// Drop backups, by rules or by name.
///
/// A backup stays when any rule keeps it. Rules go by UTC days, ISO weeks, months and years, and keep the newest backup of each. They go for one source, for backups of all of it and for those of each part (backup --database, --table, --where) by themselves, and count backups: of a binlog archive goes what ended a day or more before the oldest backup that stays (rules of its own take --kind binlog). One rule that is typed replaces all of [retention] in the configuration file, not only its like.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ExpireArgs {
    /// Backups to drop: 42, db1#42 or db1/physical#42
    #[arg(value_name = "ID", conflicts_with_all = KeepArgs::IDS)]
    pub(crate) ids: Vec<BackupRef>,

    /// Drop named backups even if nothing good is left of their source
    #[arg(long, requires = "ids", conflicts_with_all = KeepArgs::IDS)]
    pub(crate) last_too: bool,

    #[command(flatten)]
    pub(crate) keep: KeepArgs,

    /// Rules go for backups with this tag only; all others stay
    #[arg(long, value_name = "TAG", conflicts_with = "ids", help_heading = "Rules")]
    pub(crate) tag: Option<String>,

    /// Rules go for backups of this kind only: physical, logical or binlog
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
    /// Keep the newest N
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_last: Option<u32>,
    /// Keep the newest of each of the last N hours that have one
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_hourly: Option<u32>,
    /// Keep the newest of each of the last N days that have one
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_daily: Option<u32>,
    /// Keep the newest of each of the last N weeks that have one
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_weekly: Option<u32>,
    /// Keep the newest of each of the last N months that have one
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_monthly: Option<u32>,
    /// Keep the newest of each of the last N years that have one
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep_yearly: Option<u32>,
    /// Keep all with this tag; may be given several times
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
