//! A moment to recover to: `--at`, `--gtid`, `--before-gtid`.

use std::str::FromStr;

use clap::Args;
use holdfast_core::recovery::Until;
use holdfast_formats::Gtid;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// Nothing: the backup as it is.
#[derive(Args, Debug)]
#[group(id = "moment", multiple = false)]
pub(crate) struct MomentArgs {
    /// Recover to this time after a backup, from the binlog archive: UTC unless a zone is given; latest is
    /// the end of the archive
    #[arg(long, value_name = "TIME|latest", help_heading = "Recovery to a moment")]
    pub(crate) at: Option<At>,

    /// Recover to the end of this transaction
    #[arg(long, value_name = "GTID", value_parser = gtid, help_heading = "Recovery to a moment")]
    pub(crate) gtid: Option<Gtid>,

    /// Recover to just before this transaction, such as the one that dropped the table
    #[arg(long, value_name = "GTID", value_parser = gtid, help_heading = "Recovery to a moment")]
    pub(crate) before_gtid: Option<Gtid>,
}

impl MomentArgs {
    /// What is asked for, if anything is.
    pub(crate) fn until(&self) -> Option<Until> {
        let at = self.at.map(|at| match at {
            At::Latest => Until::End,
            At::Time(time) => Until::Time(time),
        });
        at.or_else(|| self.gtid.clone().map(Until::Gtid))
            .or_else(|| self.before_gtid.clone().map(Until::BeforeGtid))
    }
}

fn gtid(text: &str) -> Result<Gtid, String> {
    text.parse().map_err(|_| {
        format!("\"{text}\" is no transaction: write 0-1-4711 for MariaDB, 3e11fa47-71ca-11e1-9e33-c80aa9429562:4711 for MySQL")
    })
}

/// A time as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Latest,
    Time(Timestamp),
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "latest" {
            return Ok(At::Latest);
        }
        time(text).map(At::Time).ok_or_else(|| {
            format!("\"{text}\" is no time: write \"2026-11-20 14:03:07\" (UTC), 2026-11-20T15:03:07+01:00, or latest")
        })
    }
}

/// A time with its zone, or without one in UTC, to the minute at least.
pub(super) fn time(text: &str) -> Option<Timestamp> {
    const FORMS: [&str; 4] =
        ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M"];
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time);
    }
    let civil = FORMS.iter().find_map(|form| DateTime::strptime(form, text).ok())?;
    Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_unless_they_say_otherwise() {
        let at = |text: &str| At::Time(text.parse().unwrap());
        for (typed, meant) in [
            ("latest", At::Latest),
            ("2026-11-20 14:03:07", at("2026-11-20T14:03:07Z")),
            ("2026-11-20T14:03:07.250", at("2026-11-20T14:03:07.25Z")),
            ("2026-11-20T15:03:07+01:00", at("2026-11-20T14:03:07Z")),
            ("2026-11-20 14:03:07Z", at("2026-11-20T14:03:07Z")),
            ("2026-11-20 14:03", at("2026-11-20T14:03:00Z")),
        ] {
            assert_eq!(typed.parse::<At>(), Ok(meant), "{typed}");
        }
        for bad in ["", "now", "yesterday", "2026-11-20", "2026-11-20 25:00:00", "14:03"] {
            assert!(bad.parse::<At>().is_err(), "{bad}");
        }
    }
}
