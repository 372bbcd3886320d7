//! Objects sealed for the keys of a repository: a header and frames (`docs/reference/repository.md` section 5).
//!
//! A secret is drawn for one purpose: the packs and index parts of one run ([`RunSecrets`]),
//! or one writing of one other object ([`seal_object`]). So no key ever seals two contents under one
//! nonce, whatever is written again.
//!
//! - [`header`]: what precedes the frames of an object, and a pack.
//! - [`frames`]: the bytes of a whole object.

mod frames;
mod header;

use std::fmt;

use holdfast_pipe::ObjectKey;

use crate::{
    error::RepoError,
    format::{
        hex::Secret32,
        names::{LogName, RunNo},
        place::{HEADER_BYTES, ObjectKind, Place, SecretKind},
    },
    keys::KeyMaterial,
};

use frames::seal_frames;
use header::Secret;

pub(crate) use frames::{Frames, open_frames, sealed_limit_bytes};
pub(crate) use header::{WrappedSecret, check_header, key_from_secret};

/// The secret of one run's packs and index parts.
///
/// The caller must give out each part number only once, not even again to repeat an upload.
pub struct RunSecrets {
    log: LogName,
    run: RunNo,
    secret: Secret,
}

impl fmt::Debug for RunSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunSecrets({} {})", self.log, self.run)
    }
}

impl RunSecrets {
    /// Draws a secret.
    pub fn draw(keys: &KeyMaterial, log: &LogName, run: RunNo) -> Result<Self, RepoError> {
        Ok(Self { log: log.clone(), run, secret: Secret::draw(keys, SecretKind::Read)? })
    }

    /// The secret in both forms: lets whoever drew it open what it seals without the private key.
    pub(crate) fn unwrapped(&self) -> (WrappedSecret, Secret32) {
        (self.secret.wrapped, self.secret.secret.clone())
    }

    /// The run.
    #[must_use]
    pub fn run(&self) -> RunNo {
        self.run
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> &LogName {
        &self.log
    }

    fn pack_place(&self, part: u32) -> Place<'_> {
        Place { log: &self.log, kind: ObjectKind::Pack, run: self.run, part }
    }

    /// First bytes of a pack.
    #[must_use]
    pub fn pack_header(&self, part: u32) -> [u8; HEADER_BYTES] {
        self.secret.header(&self.pack_place(part))
    }

    /// Key of a pack.
    #[must_use]
    pub fn pack_key(&self, part: u32) -> ObjectKey {
        self.secret.object_key(&self.pack_place(part))
    }

    /// Seals a whole index part.
    pub fn seal_index(&self, part: u32, plain: &[u8]) -> Result<Vec<u8>, RepoError> {
        let place = Place { log: &self.log, kind: ObjectKind::Index, run: self.run, part };
        seal_frames(&self.secret, &place, plain)
    }
}

/// Seals a whole object under a secret of its own. Writing the object again means sealing it again.
pub(crate) fn seal_object(keys: &KeyMaterial, place: &Place<'_>, plain: &[u8]) -> Result<Vec<u8>, RepoError> {
    seal_frames(&Secret::draw(keys, place.kind.secret())?, place, plain)
}
