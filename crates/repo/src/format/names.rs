//! Names and numbers of what is stored (`docs/reference/repository.md` sections 1 and 2).

use std::{fmt, str::FromStr};

use thiserror::Error;

use super::hex::Hex;
use crate::store::ObjectPath;

/// Identifies a key; also the name of its key object.
pub type KeyId = Hex<8>;

/// Name of a source: a server's history, under a name that its owner chose.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceName(String);

impl SourceName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SourceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
        if (1..=64).contains(&text.len()) && !text.starts_with('.') && text.chars().all(good) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError::Source { text: text.to_owned() })
        }
    }
}

/// What is backed up, and how. Each kind of a source is a separate log of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Pages and redo.
    Physical = 1,
    /// Rows and statements.
    Logical = 2,
    /// The replication log.
    Binlog = 3,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Physical, Self::Logical, Self::Binlog];

    /// The name as used in object names.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Physical => "physical",
            Self::Logical => "logical",
            Self::Binlog => "binlog",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| NameError::Kind { text: text.to_owned() })
    }
}

/// Number of a run, from 1. A backup is identified by the number of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunNo(pub u64);

impl fmt::Display for RunNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A pack: part `part` of run `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackId {
    /// The run that wrote it.
    pub run: RunNo,
    /// Counted from 0 within the run.
    pub part: u32,
}

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}-{:06}", self.run.0, self.part)
    }
}

/// A chunk, by its place in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkRef {
    /// The pack.
    pub pack: PackId,
    /// Position in the pack, from 0.
    pub ordinal: u32,
}

impl fmt::Display for ChunkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pack, self.ordinal)
    }
}

/// Name of a log of runs: one kind of a source. Knows how the objects of the log are named.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogName {
    /// The source.
    pub source: SourceName,
    /// The kind.
    pub kind: Kind,
}

impl fmt::Display for LogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.source, self.kind)
    }
}

impl FromStr for LogName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (source, kind) = text.rsplit_once('/').unwrap_or((text, ""));
        Ok(Self { source: source.parse()?, kind: kind.parse()? })
    }
}

impl LogName {
    /// How a user types a backup of this log: `db1#42`, with the kind if it is not the usual one.
    #[must_use]
    pub fn backup_id(&self, run: RunNo) -> String {
        match self.kind {
            Kind::Physical => format!("{}{run}", self.source),
            _ => format!("{self}{run}"),
        }
    }

    /// Prefix of all objects of the log, with the final `/`.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("sources/{}/{}/", self.source, self.kind)
    }

    /// Prefix of one folder, with the final `/`.
    #[must_use]
    pub fn folder(&self, folder: Folder) -> String {
        format!("{}{}/", self.prefix(), folder.as_str())
    }

    fn object(&self, folder: Folder, name: &str) -> ObjectPath {
        match ObjectPath::new(self.folder(folder) + name) {
            Some(path) => path,
            None => unreachable!("source names and numbers make good object names"),
        }
    }

    /// A renewal of a run's lease.
    #[must_use]
    pub fn lease(&self, run: RunNo, renewal: u32) -> ObjectPath {
        self.object(Folder::Runs, &format!("{:010}/{renewal:06}", run.0))
    }

    /// The object that asks a run to make room.
    #[must_use]
    pub(crate) fn ask(&self, run: RunNo) -> ObjectPath {
        self.object(Folder::Asks, &format!("{:010}", run.0))
    }

    /// A pack.
    #[must_use]
    pub fn pack(&self, pack: PackId) -> ObjectPath {
        self.object(Folder::Packs, &pack.to_string())
    }

    /// A part of a run's index.
    #[must_use]
    pub fn index(&self, run: RunNo, part: u32) -> ObjectPath {
        self.object(Folder::Index, &format!("{:010}-{part:06}", run.0))
    }

    /// A run's refs.
    #[must_use]
    pub fn refs(&self, run: RunNo) -> ObjectPath {
        self.object(Folder::Refs, &format!("{:010}", run.0))
    }

    /// A run's outcome.
    #[must_use]
    pub fn outcome(&self, run: RunNo) -> ObjectPath {
        self.object(Folder::Outcomes, &format!("{:010}", run.0))
    }

    /// A segment of a run.
    #[must_use]
    pub fn segment(&self, run: RunNo, part: u32) -> ObjectPath {
        self.object(Folder::Segments, &format!("{:010}-{part:06}", run.0))
    }

    /// A record of what checks have read.
    #[must_use]
    pub fn check_record(&self, number: RunNo) -> ObjectPath {
        self.object(Folder::Checks, &format!("{:010}", number.0))
    }

    /// A run's report.
    #[must_use]
    pub fn report(&self, run: RunNo) -> ObjectPath {
        self.object(Folder::Reports, &format!("{:010}", run.0))
    }
}

/// The folders of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Folder {
    /// Leases.
    Runs,
    /// Chunks.
    Packs,
    /// Directories of packs.
    Index,
    /// What backups need, and what prunes declared.
    Refs,
    /// Outcomes of runs.
    Outcomes,
    /// What runs measured.
    Reports,
    /// What runs have before they end.
    Segments,
    /// Records of what checks have read.
    Checks,
    /// Requests that runs make room.
    Asks,
}

impl Folder {
    /// The name as used in object names.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Packs => "packs",
            Self::Index => "index",
            Self::Refs => "refs",
            Self::Outcomes => "outcomes",
            Self::Reports => "reports",
            Self::Segments => "segments",
            Self::Checks => "checks",
            Self::Asks => "asks",
        }
    }

    /// Parses an object's name in this folder into run and part (part 0 if names have
    /// none); `None` for an unknown name.
    #[must_use]
    pub fn parse(self, name: &str) -> Option<(RunNo, u32)> {
        let (run, part) = match self {
            Self::Runs => name.split_once('/')?,
            Self::Packs | Self::Index | Self::Segments => name.split_once('-')?,
            Self::Refs | Self::Outcomes | Self::Reports | Self::Checks | Self::Asks => (name, "000000"),
        };
        let digits = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_digit());
        (digits(run, 10) && digits(part, 6)).then_some(())?;
        Some((RunNo(run.parse().ok()?), part.parse().ok()?))
    }
}

/// A name that breaks the rules.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NameError {
    /// Not a valid source name.
    #[error("\"{text}\" cannot name a source: use 1 to 64 of A-Z a-z 0-9 . _ - : and no dot in front")]
    Source {
        /// The given text.
        text: String,
    },
    /// Not a valid kind.
    #[error("\"{text}\" is not a kind: physical, logical or binlog")]
    Kind {
        /// The given text.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_names_sort_like_numbers_and_parse_back() {
        let log = LogName { source: "db1:3306".parse().unwrap(), kind: Kind::Physical };
        let pack = PackId { run: RunNo(42), part: 7 };
        assert_eq!(log.pack(pack).as_str(), "sources/db1:3306/physical/packs/0000000042-000007");
        assert_eq!(Folder::Packs.parse(log.pack(pack).file_name()), Some((RunNo(42), 7)));
        assert_eq!(Folder::Runs.parse("0000000042/000003"), Some((RunNo(42), 3)));
        assert_eq!(Folder::Outcomes.parse("0000000042"), Some((RunNo(42), 0)));
        for stranger in ["42", "0000000042-7", "+000000042", "0000000042.tmp"] {
            assert_eq!(Folder::Outcomes.parse(stranger), None, "{stranger}");
        }
    }

    #[test]
    fn source_names_cannot_leave_their_folder() {
        for bad in ["", ".", "..", ".x", "a/b", "a\0", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<SourceName>().is_err(), "{bad:?}");
        }
    }
}
