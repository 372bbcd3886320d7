//! What differs from one service to the other.

/// The protocols of object storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// AWS, and who speaks as it does.
    S3,
    /// Azure Blob Storage. Its buckets are called containers.
    Azure,
}

impl Service {
    /// What a location begins with, before `://`.
    #[must_use]
    pub fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Azure => "az",
        }
    }

    /// Name of the mark in an object's metadata. In Azure it has to be one that C# would take.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::S3 => "holdfast-mark",
            Self::Azure => "holdfast_mark",
        }
    }
}
