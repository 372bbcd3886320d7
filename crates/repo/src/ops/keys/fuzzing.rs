//! Records about keys that the fuzzer makes up, signed by an operator so that their contents are reached.

use std::{error::Error, sync::Arc};

use super::{NewKey, UnderWay, add, remove, rotate};
use crate::{
    keys::{
        KdfParams, KeyMaterial, NewSlot, Password, Protection, Role, look,
        rotation::{honest_share, with_share},
        signed::{Sort, sign_text, text_of},
    },
    repo::Repo,
    store::{ObjectPath, Store, mem::MemStore, read_all},
};

/// The piece of the records that is made up; all others are as an operator wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordPiece {
    /// The text of an operator's voucher for a new key.
    Signer,
    /// The text of the removal of a key.
    Removal,
    /// The text of a rotation.
    Rotation,
    /// The plain contents of the share for the key at hand in a rotation.
    Share,
    /// The whole voucher, as it is stored.
    SignerObject,
    /// The whole removal.
    RemovalObject,
    /// The whole rotation.
    RotationObject,
}

impl RecordPiece {
    /// All pieces.
    pub const ALL: [Self; 7] = [
        Self::Signer,
        Self::Removal,
        Self::Rotation,
        Self::Share,
        Self::SignerObject,
        Self::RemovalObject,
        Self::RotationObject,
    ];

    fn folder(self) -> &'static str {
        match self {
            Self::Signer | Self::SignerObject => "signers/",
            Self::Removal | Self::RemovalObject => "removals/",
            Self::Rotation | Self::Share | Self::RotationObject => "rotations/",
        }
    }
}

/// A repository in which a key was added, the keys were rotated, and the added key was removed.
pub struct Records {
    repo: Repo,
    honest: Vec<(ObjectPath, Vec<u8>)>,
}

impl Records {
    /// Makes the repository.
    ///
    /// # Errors
    /// If there is no randomness to make keys from.
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let password = Password::new("a password".to_owned()).ok_or("a password")?;
        let (password, kdf) = (&password, KdfParams::MINIMUM);
        let repo = Repo::init(Arc::new(MemStore::new()), &Protection::Password { password, kdf })?;
        let new = NewKey { role: Role::Operator, sources: Vec::new(), label: "second".to_owned() };
        let second = add(&repo, &new, NewSlot::Password { password, kdf })?;
        rotate(&repo)?;
        remove(&repo, second.key_id, UnderWay::MayEnd)?;
        let mut paths = Vec::new();
        for folder in ["signers/", "removals/", "rotations/"] {
            repo.store().list(folder, &mut |info| {
                paths.push(info.path);
                true
            })?;
        }
        let honest = paths
            .into_iter()
            .map(|path| read_all(&**repo.store(), &path, u64::MAX).map(|bytes| (path, bytes)))
            .collect::<Result<_, _>>()?;
        Ok(Self { repo, honest })
    }

    /// Reads all records with `bytes` in the place of `piece`. Returns the number of problems:
    /// whatever is wrong is a problem, and never more than that.
    ///
    /// # Errors
    /// If the piece could not be put in its place, which is no fault of what was made up.
    pub fn read_with(&self, piece: RecordPiece, bytes: &[u8]) -> Result<usize, Box<dyn Error>> {
        let keys = self.repo.keys();
        let text = || String::from_utf8_lossy(bytes).into_owned();
        let object = match piece {
            RecordPiece::Signer => sign_text(keys, Sort::Signer, text()),
            RecordPiece::Removal => sign_text(keys, Sort::Removal, text()),
            RecordPiece::Rotation => sign_text(keys, Sort::Rotation, text()),
            RecordPiece::Share => with_share(keys, bytes).ok_or("no share")?,
            _ => bytes.to_vec(),
        };
        let store = MemStore::new();
        for (path, honest) in &self.honest {
            let is_made_up = path.as_str().starts_with(piece.folder());
            store.create_if_absent(path, if is_made_up { &object } else { honest })?;
        }
        // Every look begins with what the key object says.
        let keys = KeyMaterial::from_payload(keys.payload.clone(), keys.key_id(), keys.role())?;
        let trust = look(&store, &keys)?;
        for known in trust.all() {
            let _ = trust.removal_of(known.signer.key_id);
            let _ = trust.knows(known.signer.public);
        }
        Ok(trust.problems().len() + usize::from(keys.rotation_problem().is_some()))
    }

    /// Every piece as an operator wrote it.
    #[must_use]
    pub fn honest(&self) -> Vec<(RecordPiece, Vec<u8>)> {
        let stored = |piece: RecordPiece| {
            let found = self.honest.iter().find(|(path, _)| path.as_str().starts_with(piece.folder()));
            found.map(|(_, bytes)| bytes.clone()).unwrap_or_default()
        };
        let content = |piece| match piece {
            RecordPiece::Signer | RecordPiece::Removal | RecordPiece::Rotation => {
                text_of(&stored(piece)).unwrap_or_default().into_bytes()
            }
            RecordPiece::Share => honest_share(self.repo.keys()),
            _ => stored(piece),
        };
        RecordPiece::ALL.into_iter().map(|piece| (piece, content(piece))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Honest records are believed as they are, and a piece that is cut is reported.
    #[test]
    fn honest_records_are_believed_and_none_can_be_cut() {
        let records = Records::new().unwrap();
        for (piece, bytes) in records.honest() {
            // The removal has the hash of the original rotation.
            let is_known = piece != RecordPiece::Share;
            assert_eq!(records.read_with(piece, &bytes).unwrap() == 0, is_known, "{piece:?}");
            for cut in (0..bytes.len()).step_by(37) {
                assert!(records.read_with(piece, &bytes[..cut]).unwrap() > 0, "{piece:?} cut at {cut}");
            }
        }
    }
}
