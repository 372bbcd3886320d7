//! How a person names a backup: `latest`, `42`, `db1#42`, `db1/physical#42`, `db1#latest`.

use std::{fmt, str::FromStr};

use holdfast_repo::{Kind, RunNo, SourceName};

/// A backup as it was typed; the source may be left out where the repository or `--name` makes it clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackupRef {
    pub(crate) source: Option<SourceName>,
    pub(crate) kind: Option<Kind>,
    pub(crate) which: BackupNo,
}

/// Which backup of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackupNo {
    Latest,
    Number(RunNo),
}

impl FromStr for BackupRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (log, which) = match text.split_once('#') {
                Some((log, which)) => (log.trim_end(), which),
                None => ("", text),
            };
            let which = match which {
                "latest" => BackupNo::Latest,
                number => BackupNo::Number(RunNo(number.parse().ok().filter(|n| *n > 0)?)),
            };
            let (source, kind) = match log.split_once('/') {
                Some((source, kind)) => (source, Some(kind.parse().ok()?)),
                None => (log, None),
            };
            let source = if source.is_empty() { None } else { Some(source.parse().ok()?) };
            Some(Self { source, kind, which })
        };
        parse().ok_or_else(|| {
            format!("\"{text}\" does not name a backup: write latest, 42, db1#42 or db1/physical#42")
        })
    }
}

impl fmt::Display for BackupRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            write!(f, "{source}")?;
        }
        if let Some(kind) = self.kind {
            write!(f, "/{kind}")?;
        }
        match self.which {
            BackupNo::Latest if self.source.is_none() && self.kind.is_none() => f.write_str("latest"),
            BackupNo::Latest => f.write_str("#latest"),
            BackupNo::Number(run) => write!(f, "{run}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spellings_of_the_documentation_mean_what_they_say() {
        let parse = |text: &str| text.parse::<BackupRef>();
        assert_eq!(parse("latest").unwrap(), BackupRef { source: None, kind: None, which: BackupNo::Latest });
        assert_eq!(parse("42").unwrap().which, BackupNo::Number(RunNo(42)));
        assert_eq!(parse("#42").unwrap().which, BackupNo::Number(RunNo(42)));
        let full = parse("db1:3306/physical#42").unwrap();
        assert_eq!(full.source.as_ref().map(SourceName::as_str), Some("db1:3306"));
        assert_eq!((full.kind, full.which), (Some(Kind::Physical), BackupNo::Number(RunNo(42))));
        assert_eq!(parse("db1/physical #42").unwrap().to_string(), "db1/physical#42");
        for bad in ["", "#", "0", "db1", "db1#", "db1/tape#4", "-1", "a/b/c#1", "42x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
