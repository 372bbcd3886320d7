//! `hold` and `release`.

use std::str::FromStr;

use clap::Args;
use holdfast_repo::ops::hold::Until;
use jiff::{Timestamp, civil::Date, tz::TimeZone};

use super::{backup_ref::BackupRef, inspect::NameArg, units::Span};

const HOLD_EXAMPLES: &str = "\
Examples:
  holdfast hold latest --reason \"before the upgrade\"
  holdfast hold db1#42 --until 2027-12-31 --reason \"audit 2026\"
  holdfast hold 41 42 --until 90d

A held backup stays in the list until it is released or the hold expires. Holding and releasing take an operator's or a keeper's key.";

/// Keep backups from being dropped, by rules or by name.
///
/// A hold is a signed run of its source. Holding a backup again sets a new end and reason, but cannot shorten
/// the hold: release it first.
#[derive(Args, Debug)]
#[command(after_long_help = HOLD_EXAMPLES)]
pub(crate) struct HoldArgs {
    /// Backups to hold: latest, 42, db1#42 or db1/physical#42
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<BackupRef>,

    /// End of the hold: a day (through its end, UTC), an instant like 2027-12-31T12:00:00Z, or a time from
    /// now like 90d [default: until released]
    #[arg(long, value_name = "DATE|SPAN")]
    pub(crate) until: Option<UntilArg>,

    /// Reason, in one line; list and show print it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

const RELEASE_EXAMPLES: &str = "\
Examples:
  holdfast release 42
  holdfast release db1#41 db1#42

This drops nothing, but the next expire may. It does not end locks of Object Lock.";

/// End the hold on backups.
#[derive(Args, Debug)]
#[command(after_long_help = RELEASE_EXAMPLES)]
pub(crate) struct ReleaseArgs {
    /// Backups to release: latest, 42, db1#42 or db1/physical#42
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<BackupRef>,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// The end of a hold, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UntilArg(pub(crate) Until);

impl FromStr for UntilArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(at) = text.parse::<Timestamp>() {
            return Ok(Self(Until::At(at)));
        }
        if let Ok(span) = text.parse::<Span>() {
            return Ok(Self(Until::For(span.0)));
        }
        // Nothing but a date: jiff would pass over a time of day that lacks its zone.
        let day = Date::strptime("%Y-%m-%d", text).ok();
        let end = day.and_then(|day| day.tomorrow().ok()?.to_zoned(TimeZone::UTC).ok());
        end.map(|end| Self(Until::At(end.timestamp()))).ok_or_else(|| {
            format!("\"{text}\" is no end of a hold: write 2027-12-31, 2027-12-31T12:00:00Z, or a time from now like 90d")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_day_is_held_through_its_end() {
        let parse = |text: &str| text.parse::<UntilArg>().map(|until| until.0);
        let at = |text: &str| Ok(Until::At(text.parse().unwrap()));
        assert_eq!(parse("2027-12-31"), at("2028-01-01T00:00:00Z"));
        assert_eq!(parse("2027-12-31T12:00:00+02:00"), at("2027-12-31T10:00:00Z"));
        assert_eq!(parse("90d"), Ok(Until::For(Duration::from_secs(90 * 86_400))));
        for bad in ["", "tomorrow", "2027-13-01", "2027-12-31T12:00:00", "2027-12", "90", "-1d", "9999-12-31"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
