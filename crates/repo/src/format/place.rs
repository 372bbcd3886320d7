//! Where a sealed object belongs, and what it is (`docs/reference/repository.md` section 5).

use std::fmt;

use crate::{
    format::names::{LogName, PackId, RunNo},
    store::ObjectPath,
};

/// Size of the header of every sealed object and pack.
pub const HEADER_BYTES: usize = 116;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ObjectKind {
    /// Chunks.
    Pack = 1,
    /// Directories of packs.
    Index = 2,
    /// What a backup needs, or what a prune declared.
    Refs = 3,
    /// Public part of an outcome.
    OutcomePublic = 4,
    /// Head of a manifest, in an outcome.
    ManifestHead = 5,
    /// What a run measured.
    Report = 6,
    /// Public part of a segment.
    SegmentPublic = 7,
    /// Bytes of a segment.
    SegmentBytes = 8,
    /// What checks have read.
    CheckRecord = 9,
    /// Name of the host of a run, in its lease.
    LeaseHost = 10,
}

impl ObjectKind {
    pub(crate) fn secret(self) -> SecretKind {
        match self {
            Self::Pack | Self::Index | Self::ManifestHead | Self::Report | Self::SegmentBytes => {
                SecretKind::Read
            }
            Self::Refs | Self::OutcomePublic | Self::SegmentPublic | Self::CheckRecord | Self::LeaseHost => {
                SecretKind::Refs
            }
        }
    }
}

/// For whom a secret is wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum SecretKind {
    /// Keys that may read backups.
    Read = 1,
    /// Keys that may see what is dead.
    Refs = 2,
}

/// Where an object belongs; bound into its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The log.
    pub log: &'a LogName,
    /// The kind of object.
    pub kind: ObjectKind,
    /// The run.
    pub run: RunNo,
    /// Part number; 0 if there is only one part.
    pub part: u32,
}

impl Place<'_> {
    /// Name of the object, or of the object that contains it.
    #[must_use]
    pub fn path(&self) -> ObjectPath {
        match self.kind {
            ObjectKind::Pack => self.log.pack(PackId { run: self.run, part: self.part }),
            ObjectKind::Index => self.log.index(self.run, self.part),
            ObjectKind::Refs => self.log.refs(self.run),
            ObjectKind::OutcomePublic | ObjectKind::ManifestHead => self.log.outcome(self.run),
            ObjectKind::Report => self.log.report(self.run),
            ObjectKind::CheckRecord => self.log.check_record(self.run),
            ObjectKind::LeaseHost => self.log.lease(self.run, self.part),
            ObjectKind::SegmentPublic | ObjectKind::SegmentBytes => self.log.segment(self.run, self.part),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path())
    }
}
