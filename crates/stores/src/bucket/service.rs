//! Differences between the services.

/// The protocols of object storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// AWS, and services that speak its protocol.
    S3,
    /// Azure Blob Storage. Its buckets are called containers.
    Azure,
}

impl Service {
    /// The scheme of a location, before `://`.
    #[must_use]
    pub fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Azure => "az",
        }
    }

    /// Name of the mark in an object's metadata. Azure requires a valid C# identifier.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::S3 => "holdfast-mark",
            Self::Azure => "holdfast_mark",
        }
    }
}
